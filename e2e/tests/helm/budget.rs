//! A budget that changes: what agents offer is what pods hold.

use std::time::Duration;

use anyhow::Result;
use cloche_e2e::deadline::until;
use cloche_e2e::helm;

use crate::scene;

const LIMIT: Duration = Duration::from_mins(2);

#[tokio::test]
async fn a_new_budget_is_offered_and_held() {
    helm::run(async |release| {
        scene::start(release, "stays").await?;
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/cloche");
        let budget = "budget.cpu=700m,budget.memory=3Gi,budget.ephemeralStorage=9Gi";
        release
            .helm("upgrade", &[chart, "--reuse-values", "--set", budget])
            .await?;
        let told = async |kind: &str, path: &str| -> Result<String> {
            let output = format!("--output=jsonpath={{.items[*]{path}}}");
            release.own(&["get", kind, &output]).await
        };
        until(LIMIT, "the agent offers it", async || {
            let offered = told("sandboxnodes", ".status.allocatable").await?;
            let all = [r#""cpu":"700m""#, r#""memory":"3Gi""#, r#""ephemeral-storage":"9Gi""#];
            Ok(all.iter().all(|part| offered.contains(part)).then_some(()))
        })
        .await?;
        until(LIMIT, "a pod that runs holds it", async || {
            let selector = "--selector=app.kubernetes.io/component=reservation";
            let output = "--output=jsonpath={range .items[*]}{.status.phase} {.spec.containers[0].resources.requests}{end}";
            let held = release.own(&["get", "pods", selector, output]).await?;
            let all = ["Running ", r#""cpu":"700m""#, r#""memory":"3Gi""#, r#""ephemeral-storage":"9Gi""#];
            Ok(all.iter().all(|part| held.contains(part)).then_some(()))
        })
        .await?;
        // It takes new ones, and has kept the old.
        scene::start(release, "new").await?;
        release.wait_ready("stays").await.map(drop)
    })
    .await
    .unwrap();
}

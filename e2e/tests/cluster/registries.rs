//! Private registries: users from Secrets, by password and by token.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cloche_crds::Reason;
use cloche_crds::sandbox::Termination;
use cloche_e2e::cluster::{self, Cluster, condition};
use cloche_e2e::image;
use cloche_e2e::registry::{Guard, Registry};
use serde_json::{Value, json};

use crate::scene;
use crate::tokens::Tokens;

const LIMIT: Duration = Duration::from_mins(1);
/// `ann` with the password `correct horse`.
const USERS: &str = "ann:$2b$05$abcdefghijklmnopqrstuuHNbAKRhpaujgo33bRWs.NLUTJO3lOy2\n";
const ANN: &str = "ann:correct horse";
const REPOSITORY: &str = "team/app";

/// A Secret with a docker configuration of these users (`name:password`) by their places.
async fn logins(cluster: &Cluster, name: &str, users: &[(&str, &str)]) -> Result<()> {
    let auths: serde_json::Map<String, Value> = users
        .iter()
        .map(|(place, user)| {
            (
                (*place).to_owned(),
                json!({"auth": BASE64_STANDARD.encode(user)}),
            )
        })
        .collect();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json!({"auths": auths}).to_string()},
    });
    cluster.apply(&secret.to_string()).await
}

async fn apply(
    cluster: &Cluster,
    name: &str,
    image: &str,
    secrets: &[&str],
    more: &Value,
) -> Result<()> {
    let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    let mut spec = json!({"image": image, "imagePullPolicy": "Always"});
    if !secrets.is_empty() {
        spec["imagePullSecrets"] = json!(secrets);
    }
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    cluster
        .apply(&scene::manifest("default", name, &spec))
        .await
}

async fn end(cluster: &Cluster, name: &str) -> Result<Termination> {
    let ended = cluster
        .wait(name, LIMIT, "it has ended", |object| {
            condition(object, "Finished") == Some("True")
        })
        .await?;
    let status = ended.status.context("its status")?;
    status.termination.context("its end")
}

#[tokio::test]
async fn private_images_come_by_password_and_by_token_and_nobody_elses() {
    let open = Registry::start().await.unwrap();
    open.push(&image::busybox().unwrap(), REPOSITORY, "one")
        .await
        .unwrap();
    let by_password = open.beside(&Guard::Users(USERS.to_owned())).await.unwrap();
    let tokens = Tokens::start(ANN, REPOSITORY).await.unwrap();
    let by_token = open.beside(&tokens.guard()).await.unwrap();
    let mut options = scene::options().unwrap();
    options.insecure_registries = [by_password.address(), by_token.address(), tokens.address()]
        .map(str::to_owned)
        .into();
    cluster::run(1, options, async |cluster| {
        for (name, registry) in [
            ("password", by_password.address()),
            ("token", by_token.address()),
        ] {
            let image = format!("{registry}/{REPOSITORY}:one");
            let refused = |kind: &str| format!("{name}-{kind}");
            // Before anybody's success and after it: what is on the node is no key to it under Always.
            for round in ["before", "after"] {
                let (none, wrong) = (
                    refused(&format!("none-{round}")),
                    refused(&format!("wrong-{round}")),
                );
                apply(cluster, &none, &image, &[], &json!({})).await?;
                logins(cluster, "wrong", &[(registry, "ann:wrong battery")]).await?;
                apply(cluster, &wrong, &image, &["wrong"], &json!({})).await?;
                for (sandbox, says) in [
                    (&none, "without credentials"),
                    (&wrong, "imagePullSecrets (wrong)"),
                ] {
                    let end = end(cluster, sandbox).await?;
                    ensure!(end.reason == Reason::ImageUnauthorized, "{end:?}");
                    ensure!(
                        end.message.contains(says) && !end.message.contains("battery"),
                        "{end:?}"
                    );
                }
                if round == "before" {
                    // Of several the one that fits, also behind one that is wrong.
                    let place = format!("https://{registry}/v2/team/");
                    logins(cluster, "right", &[("other.example", "x:y"), (&place, ANN)]).await?;
                    let sandbox = refused("right");
                    apply(cluster, &sandbox, &image, &["wrong", "right"], &json!({})).await?;
                    cluster.wait_ready(&sandbox).await?;
                    let seen = cluster.exec_text(&sandbox, &["echo", "here"]).await?;
                    ensure!(seen == "here\n", "{seen}");
                }
            }
        }
        let told = cluster
            .plane
            .kubectl_text(&["get", "sbx", "-o", "yaml"])
            .await?;
        let logs = [cluster.agents[0].log()?, cluster.operator.tail(), told];
        for text in logs {
            ensure!(
                !text.contains("horse") && !text.contains("battery"),
                "{text}"
            );
            ensure!(!text.contains(&BASE64_STANDARD.encode(ANN)), "{text}");
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_pull_secret_that_is_missing_is_named_and_waited_for() {
    let open = Registry::start().await.unwrap();
    open.push(&image::busybox().unwrap(), REPOSITORY, "one")
        .await
        .unwrap();
    let private = open.beside(&Guard::Users(USERS.to_owned())).await.unwrap();
    let mut options = scene::options().unwrap();
    options.insecure_registries = vec![private.address().to_owned()];
    cluster::run(1, options, async |cluster| {
        let image = format!("{}/{REPOSITORY}:one", private.address());
        let waits = async |cluster: &Cluster, what: &str| {
            let object = cluster
                .wait("patient", LIMIT, what, |object| scene::message(object, "ImageReady").contains(what))
                .await?;
            ensure!(condition(&object, "ImageReady") == Some("False"));
            ensure!(scene::message(&object, "Ready").contains(what));
            anyhow::Ok(())
        };
        let soon = json!({"lifecycle": {"startTimeoutSeconds": 3}});
        apply(cluster, "impatient", &image, &["never"], &soon).await?;
        apply(cluster, "patient", &image, &["regcred"], &json!({})).await?;
        waits(cluster, "imagePullSecrets: the Secret \"regcred\" is not there").await?;
        let opaque = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "regcred"}, "stringData": {".dockerconfigjson": "{}"},
        });
        cluster.apply(&opaque.to_string()).await?;
        waits(cluster, "is of type \"Opaque\"").await?;
        // The type of a Secret cannot change.
        cluster.plane.kubectl_text(&["delete", "secret", "regcred"]).await?;
        logins(cluster, "regcred", &[(private.address(), ANN)]).await?;
        cluster.wait_ready("patient").await?;

        let end = end(cluster, "impatient").await?;
        ensure!(end.reason == Reason::StartTimeout, "{end:?}");
        ensure!(end.message.contains("the Secret \"never\" is not there"), "{end:?}");

        // Nobody asks for what is there already.
        let here = json!({"imagePullPolicy": "IfNotPresent"});
        apply(cluster, "here", &image, &["never"], &here).await?;
        cluster.wait_ready("here").await.map(drop)
    })
    .await
    .unwrap();
}

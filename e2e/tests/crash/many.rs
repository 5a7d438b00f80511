//! Many sandboxes at once.

use std::time::Duration;

use anyhow::ensure;
use cloche_e2e::random::scaled;
use cloche_e2e::session::command;
use cloche_e2e::{Options, image, trial};
use futures::future::try_join_all;
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use serde_json::json;
use tokio::time::Instant;

use super::subject::{drop_want, want};

/// For all of them.
const LIMIT: Duration = Duration::from_mins(3);

#[tokio::test(flavor = "multi_thread")]
async fn many() {
    let count = scaled(50, 20).unwrap();
    let options = Options::default()
        .images(image::prepared().unwrap())
        .pool("cpu=1,memory=128Mi,created=2,started=8");
    trial::run(options, async |agent| {
        let names: Vec<String> = (0..count).map(|number| format!("many-{number}")).collect();
        let begun = Instant::now();
        for (number, name) in names.iter().enumerate() {
            let spec = json!({
                "image": "oci:python",
                "env": [{"name": "VALUE", "value": (number * number).to_string()}],
                "resources": {
                    "requests": {"cpu": "10m", "ephemeral-storage": "16Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"},
                },
            });
            want(agent, name, &spec)?;
        }
        try_join_all(names.iter().map(|name| agent.wait_running(name, LIMIT))).await?;
        println!("{count} sandboxes Running after {:?}", begun.elapsed());

        let program =
            "import os, socket; print(int(os.environ['VALUE']) + 1, socket.gethostname())";
        let agent_now = &*agent;
        iter(names.iter().enumerate())
            .map(async |(number, name)| {
                let argv = command(["python3", "-c", program]);
                let said = agent_now.output(name, argv, LIMIT).await?;
                let wanted = format!("{} {name}\n", number * number + 1);
                ensure!(said == wanted, "{name} answered {said:?}");
                Ok(())
            })
            .buffer_unordered(8)
            .try_collect::<()>()
            .await?;
        println!("each answered after {:?}", begun.elapsed());

        for name in &names {
            drop_want(agent, name)?;
        }
        try_join_all(names.iter().map(|name| agent.wait_gone(name, LIMIT))).await?;
        println!("all gone after {:?}", begun.elapsed());
        Ok(())
    })
    .await
    .unwrap();
}

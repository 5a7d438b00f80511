//! Registries that do not give what is asked for: they hang, trickle, or refuse.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::registry::Registry;
use cloche_e2e::{Options, trial};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::scene::{self, images, manifest, options};
use crate::verdict::Verdict;

/// What a [`Server`] answers to every request.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// Nothing, ever.
    Nothing,
    /// This, and then a byte every 50 ms.
    Trickle(&'static str),
    /// This, whole.
    Whole(&'static str),
}

/// A server that is no registry.
pub(crate) struct Server {
    pub(crate) address: String,
    task: AbortHandle,
}

impl Server {
    pub(crate) async fn start(answer: Answer) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let address = listener.local_addr().context("its port")?.to_string();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                        match answer {
                            Answer::Nothing => {}
                            Answer::Whole(text) => stream.write_all(text.as_bytes()).await.ok()?,
                            Answer::Trickle(head) => {
                                stream.write_all(head.as_bytes()).await.ok()?;
                                let mut ticks = tokio::time::interval(Duration::from_millis(50));
                                loop {
                                    ticks.tick().await;
                                    stream.write_all(b" ").await.ok()?;
                                }
                            }
                        }
                    }
                    Some(())
                });
            }
        });
        Ok(Self {
            address,
            task: task.abort_handle(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_registry_that_hangs_or_trickles_costs_the_start_timeout_alone() {
    let folder = images().unwrap();
    let silent = Server::start(Answer::Nothing).await.unwrap();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: 4000\r\n\r\n";
    let trickling = Server::start(Answer::Trickle(head)).await.unwrap();
    let options = Options {
        insecure_registries: vec![silent.address.clone(), trickling.address.clone()],
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let mut client = agent.client().await?;
        let spec = || json!({"lifecycle": {"startTimeoutSeconds": 2}});
        for (name, server) in [("silent", &silent), ("trickling", &trickling)] {
            let image = format!("{}/x:one", server.address);
            client.apply(&manifest(name, &image, spec())).await?;
            client
                .apply(&manifest(&format!("{name}-deleted"), &image, spec()))
                .await?;
        }
        // Others start meanwhile, and a pull that nobody wants any more is given up.
        scene::run(agent, "other", json!({})).await?;
        for name in ["silent-deleted", "trickling-deleted"] {
            client.delete(name).await?;
            agent.wait_gone(name, Duration::from_secs(2)).await?;
        }
        for name in ["silent", "trickling"] {
            let status = Verdict::new(Reason::StartTimeout)
                .never_ran()
                .says("2 s")
                .says("startTimeoutSeconds")
                .says("image")
                .wait(agent, name)
                .await?;
            ensure!(status.image_digest.is_none());
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_registry_that_refuses_is_told_as_such() {
    let folder = images().unwrap();
    let private = Registry::start_private().await.unwrap();
    let forbidding = Server::start(Answer::Whole(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 64\r\n\r\n\
         {\"errors\":[{\"code\":\"DENIED\",\"message\":\"this one is not yours\"}]}",
    ))
    .await
    .unwrap();
    let options = Options {
        insecure_registries: vec![private.address().to_owned(), forbidding.address.clone()],
        ..options(&folder)
    };
    trial::run(options, async |agent| {
        let mut client = agent.client().await?;
        for (name, address, says) in [
            ("private", private.address(), "401"),
            ("forbidding", &forbidding.address, "this one is not yours"),
        ] {
            let image = format!("{address}/app:one");
            client.apply(&manifest(name, &image, json!({}))).await?;
            let status = Verdict::new(Reason::ImageUnauthorized)
                .never_ran()
                .says(&image)
                .says(address)
                .says(says)
                .says("without credentials")
                .wait(agent, name)
                .await?;
            ensure!(status.image_digest.is_none(), "{status:#?}");
        }
        scene::run(agent, "other", json!({})).await
    })
    .await
    .unwrap();
}

//! The table of accept and deny, `crds/tests/rules/*.yaml`, through the apiserver.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_e2e::rig::ControlPlane;
use serde_json::json;

use crate::server::{Answer, Server};
use crate::table::{Apiserver, Case, Word, cases};

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/tests/rules");

/// What the apiserver says of an object.
#[derive(Debug, PartialEq)]
enum Verdict {
    Accepted,
    /// With the fields that it names.
    Refused(BTreeSet<String>),
}

impl Verdict {
    fn expected(case: &Case) -> Self {
        match &case.apiserver {
            Some(Apiserver::Word(Word::Accepts)) => Self::Accepted,
            Some(Apiserver::Word(Word::Refuses)) => Self::Refused(BTreeSet::new()),
            Some(Apiserver::Names(paths)) => Self::Refused(paths.iter().cloned().collect()),
            None => {
                let broken = case.breaks.values().flatten();
                let paths: BTreeSet<_> = broken.chain(&case.refused).cloned().collect();
                if paths.is_empty() {
                    Self::Accepted
                } else {
                    Self::Refused(paths)
                }
            }
        }
    }

    fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Done(_) => Self::Accepted,
            Answer::Refused(refusal) => Self::Refused(refusal.fields.clone()),
        }
    }
}

/// Creates or updates it, and clears it away.
async fn ask(server: &Server, case: &Case) -> Result<Answer> {
    let mut object = case.object();
    let Some(old) = case.old() else {
        let answer = server.create(&object).await?;
        if let Answer::Done(made) = &answer {
            server.delete(made).await?;
        }
        return Ok(answer);
    };
    let old = server.create(&old).await?.done("what was before")?;
    object["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    let answer = server.replace("demo", &object).await?;
    server.delete(&old).await?;
    Ok(answer)
}

#[tokio::test]
async fn the_apiserver_keeps_the_table() {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let server = Server::new("table").await?;
            let mut wrong = Vec::new();
            for (title, case) in cases(Path::new(TABLE)) {
                let answer = ask(&server, &case).await.with_context(|| title.clone())?;
                let (verdict, expected) = (Verdict::of(&answer), Verdict::expected(&case));
                if verdict != expected {
                    let said = match answer {
                        Answer::Done(_) => String::new(),
                        Answer::Refused(refusal) => refusal.message.chars().take(1000).collect(),
                    };
                    wrong.push(format!("{title}\n    {verdict:?}\n    {said}"));
                }
            }
            ensure!(
                wrong.is_empty(),
                "{} differ:\n{}",
                wrong.len(),
                wrong.join("\n")
            );
            Ok(())
        })
        .await
        .unwrap();
}

/// What a client that does not ask for strictness gets: the field is dropped, and no rule of it can hold.
#[tokio::test]
async fn an_unknown_field_is_dropped_where_nobody_asks() {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let server = Server::new("pruned").await?;
            let made = server.made("demo", json!({"image": "python"})).await?;
            let patched = plane
                .kubectl_text(&[
                    "--namespace=pruned",
                    "patch",
                    "sbx",
                    "demo",
                    "--type=merge",
                    "--output=json",
                    "--patch",
                    r#"{"spec": {"egres": {}}}"#,
                ])
                .await?;
            let patched: serde_json::Value =
                serde_json::from_str(&patched).context("kubectl's JSON")?;
            if patched["spec"] != made["spec"] {
                bail!("stored: {}", patched["spec"]);
            }
            Ok(())
        })
        .await
        .unwrap();
}

//! What earlier agents left: each sandbox is decided and driven, and what no sandbox claims is killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;

use crate::clock;
use crate::instance::{InstanceRecord, Workshop};
use crate::node::Node;
use crate::recovery::{self, Decision, Found};
use crate::sandbox::{SandboxRecord, State, death};
use crate::session::main_has_ended;
use crate::snapshot::Saved;
use crate::supervisor::Supervisor;

/// How long a start waits for instances that nobody claims to be gone. What takes longer goes on beside it.
const UNCLAIMED_PATIENCE: Duration = Duration::from_secs(15);

/// Decides each sandbox that an earlier agent had, and drives it.
pub(super) async fn resume(
    node: &Arc<Node>,
    sandboxes: Vec<(String, SandboxRecord)>,
    instances: &[(String, InstanceRecord)],
) -> Result<Supervisor> {
    let mut supervisor = Supervisor::new(Arc::clone(node));
    let kept = sandboxes
        .iter()
        .filter_map(|(_, record)| record.kept.as_ref());
    let saved: BTreeSet<Saved> = kept.map(|kept| kept.files.clone()).collect();
    let snapshots = node.snapshots.clone();
    tokio::task::spawn_blocking(move || snapshots.retain(&saved))
        .await
        .context("look at the files of stopped sandboxes")??;
    // All at once: a sentry that does not answer must hold up none but its own sandbox.
    let looks = sandboxes.into_iter().map(|(_, record)| async move {
        let (found, instance) = find(node, &record, instances).await?;
        anyhow::Ok((record, found, instance))
    });
    let mut looks: FuturesUnordered<_> = looks.collect();
    while let Some((record, found, instance)) = looks.try_next().await? {
        if let Some(image) = &record.image {
            node.images.pin(&image.digest, &record.uid);
        }
        match recovery::decide(&record, &found, &node.boot_id, clock::now()) {
            Decision::Resume(record) => supervisor.resume(record, instance).await,
            Decision::Restart { discard, record } => {
                // Beside what follows: nothing has run in it, and no record claims it any more.
                let workshop = Arc::clone(&node.workshop);
                node.tasks
                    .spawn(async move { workshop.demolish(&discard).await });
                supervisor.resume(record, None).await;
            }
        }
    }
    Ok(supervisor)
}

/// Kills and removes whatever no sandbox claims: records, groups and folders of instances.
pub(super) async fn kill_unclaimed(
    workshop: &Arc<Workshop>,
    records: &[(String, InstanceRecord)],
    sandboxes: &[(String, SandboxRecord)],
) -> Result<()> {
    let claimed: BTreeSet<&str> = sandboxes
        .iter()
        .filter_map(|(_, record)| record.state.instance())
        .collect();
    let mut found: BTreeSet<String> = records.iter().map(|(id, _)| id.clone()).collect();
    found.extend(workshop.cgroups.list()?);
    for entry in std::fs::read_dir(&workshop.run).context("list instance folders")? {
        found.extend(entry?.file_name().into_string().ok());
    }
    let unclaimed = found
        .into_iter()
        .filter(|id| !claimed.contains(id.as_str()));
    let removals = unclaimed.map(|id| {
        let workshop = Arc::clone(workshop);
        tokio::spawn(async move {
            tracing::info!(instance = id, "removing an instance that no sandbox claims");
            workshop.demolish(&id).await;
        })
    });
    let removed = futures::future::try_join_all(removals);
    if let Ok(removed) = tokio::time::timeout(UNCLAIMED_PATIENCE, removed).await {
        removed.context("remove instances that no sandbox claims")?;
    } else {
        tracing::warn!("some instances that no sandbox claims are still being removed");
    }
    Ok(())
}

/// What is left of the instance that a record claims.
async fn find(
    node: &Arc<Node>,
    record: &SandboxRecord,
    instances: &[(String, InstanceRecord)],
) -> Result<(Found, Option<crate::instance::Instance>)> {
    let Some(id) = record.state.instance() else {
        return Ok((Found::Nothing, None));
    };
    if record.state.termination().is_some() {
        // It is torn down, whatever is left.
        return Ok((Found::Nothing, None));
    }
    let is_over = || {
        main_has_ended(&node.sandboxes.folder(&record.uid).join("sessions"))
            && !matches!(record.state, State::Claimed { .. })
    };
    let Some((_, instance)) = instances.iter().find(|(known, _)| known == id) else {
        let found = if is_over() {
            Found::MainEnded
        } else {
            Found::Nothing
        };
        return Ok((found, None));
    };
    match node.workshop.adopt(id, instance)? {
        None if is_over() => Ok((Found::MainEnded, None)),
        None => Ok((Found::Dead(death::of_sentry(node, id, record).await), None)),
        Some(instance) => match instance.main_running().await {
            Ok(main_running) => Ok((Found::Alive { main_running }, Some(instance))),
            Err(error) => {
                tracing::warn!(
                    sandbox = record.name,
                    error = &error as &dyn std::error::Error,
                    "its sentry lives but does not answer"
                );
                Ok((Found::Silent, Some(instance)))
            }
        },
    }
}

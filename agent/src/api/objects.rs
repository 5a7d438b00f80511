//! Objects: list, watch, apply, delete.

use std::sync::Arc;

use cloche_crds::Sandbox;
use cloche_proto::agent::v1alpha1 as pb;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

use super::stream::{Receiving, Sending, channel};
use super::{key, no_such};
use crate::board::Change;
use crate::node::Node;
use crate::source::{ManifestDirectory, PutError, RemoveError, SandboxKey};
use crate::told::chain;

pub(super) fn list(node: &Node, request: pb::ListRequest) -> Result<pb::ListResponse, Status> {
    let objects = match request.key {
        None => node
            .board
            .all()
            .iter()
            .map(|(_, posting)| json(&posting.object))
            .collect::<Result<_, _>>()?,
        Some(named) => {
            let key = key(Some(named))?;
            let posting = node.board.get(&key).ok_or_else(|| no_such(&key))?;
            vec![json(&posting.object)?]
        }
    };
    Ok(pb::ListResponse { objects })
}

pub(super) fn watch(
    node: &Arc<Node>,
    request: pb::ListRequest,
) -> Result<Receiving<pb::WatchEvent>, Status> {
    let only = request.key.map(|named| key(Some(named))).transpose()?;
    let (mut all, changes) = node.board.watch();
    if let Some(only) = &only {
        all.retain(|(key, _)| key == only);
        // Whoever waits for the end of one that is gone already would wait for ever.
        if all.is_empty() {
            return Err(no_such(only));
        }
    }
    let (sender, receiver) = channel();
    let cancel = node.cancel.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => drop(sender.send(Err(Status::unavailable("the agent stops"))).await),
            // Ends when the client has gone.
            () = sender.closed() => {}
            _ = follow(all, changes, only.as_ref(), &sender) => {}
        }
    });
    Ok(receiver)
}

/// Sends `all`, then changes; `None` when the client has gone.
async fn follow(
    all: Vec<(SandboxKey, Arc<Sandbox>)>,
    mut changes: Receiver<Change>,
    only: Option<&SandboxKey>,
    sender: &Sending<pb::WatchEvent>,
) -> Option<()> {
    let wanted = |key: &SandboxKey| only.is_none_or(|only| only == key);
    for (_, object) in all {
        send(sender, &object, false).await?;
    }
    sender
        .send(Ok(pb::WatchEvent {
            synced: true,
            ..pb::WatchEvent::default()
        }))
        .await
        .ok()?;
    loop {
        match changes.recv().await {
            Ok(Change::Posted(key, object)) if wanted(&key) => send(sender, &object, false).await?,
            Ok(Change::Removed(key, object)) if wanted(&key) => send(sender, &object, true).await?,
            Ok(Change::Posted(..) | Change::Removed(..)) => {}
            Err(RecvError::Lagged(_)) => {
                // A removal may be among what was missed: the client has to begin anew.
                let status =
                    Status::data_loss("changes came faster than they were read: watch again");
                sender.send(Err(status)).await.ok()?;
                return Some(());
            }
            Err(RecvError::Closed) => return Some(()),
        }
    }
}

async fn send(sender: &Sending<pb::WatchEvent>, object: &Sandbox, deleted: bool) -> Option<()> {
    let event = json(object).map(|object| pb::WatchEvent {
        object,
        deleted,
        synced: false,
    });
    sender.send(event).await.ok()
}

pub(super) async fn apply(
    manifests: &Arc<ManifestDirectory>,
    request: pb::ApplyRequest,
) -> Result<pb::ApplyResponse, Status> {
    let pb::ApplyRequest { manifest, replace } = request;
    let manifests = Arc::clone(manifests);
    let put = tokio::task::spawn_blocking(move || manifests.put(&manifest, replace)).await;
    let key = put
        .map_err(|error| Status::internal(error.to_string()))?
        .map_err(|error| {
            let line = chain(&error);
            match error {
                PutError::Invalid(_) | PutError::Immutable { .. } => Status::invalid_argument(line),
                PutError::Exists { .. } | PutError::FileTaken { .. } => {
                    Status::already_exists(line)
                }
                PutError::Folder(_) => Status::internal(line),
            }
        })?;
    Ok(pb::ApplyResponse {
        key: Some(pb::SandboxKey {
            namespace: key.namespace,
            name: key.name,
        }),
    })
}

pub(super) async fn delete(
    node: &Node,
    manifests: &Arc<ManifestDirectory>,
    request: pb::DeleteRequest,
) -> Result<pb::DeleteResponse, Status> {
    let key = key(request.key)?;
    let posted = node.board.get(&key);
    if !request.uid.is_empty() && posted.is_none_or(|posted| posted.record.uid != request.uid) {
        return Err(no_such(&key));
    }
    let manifests = Arc::clone(manifests);
    let removed = tokio::task::spawn_blocking(move || manifests.remove(&key)).await;
    removed
        .map_err(|error| Status::internal(error.to_string()))?
        .map_err(|error| {
            let line = chain(&error);
            match error {
                RemoveError::NotFound(_) => Status::not_found(line),
                RemoveError::Folder(_) => Status::internal(line),
            }
        })?;
    Ok(pb::DeleteResponse {})
}

fn json(object: &Sandbox) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(object)
        .map_err(|error| Status::internal(format!("encode an object: {error}")))
}

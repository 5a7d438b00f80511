//! What a sandbox uses.

use std::sync::Arc;

use cloche_proto::agent::v1alpha1 as pb;
use tonic::Status;

use super::{key, posting};
use crate::node::Node;

pub(super) async fn usage(
    node: &Arc<Node>,
    request: pb::UsageRequest,
) -> Result<pb::UsageResponse, Status> {
    let key = key(request.key)?;
    let posting = posting(node, &key, &request.uid)?;
    let runs_not = || {
        Status::failed_precondition(format!(
            "nothing of sandbox {:?} runs: it is {}",
            key.name,
            posting
                .object
                .status
                .as_ref()
                .map(|status| status.phase)
                .unwrap_or_default()
        ))
    };
    let id = posting.record.state.instance().ok_or_else(runs_not)?;
    let (sampler, id) = (node.sampler.clone(), id.to_owned());
    let now = tokio::task::spawn_blocking(move || sampler.now(&id))
        .await
        .map_err(|error| Status::internal(error.to_string()))?
        .ok_or_else(runs_not)?;
    Ok(pb::UsageResponse {
        cpu_millicores: now.cpu_millis,
        cpu_microseconds: now.counters.cpu_usec,
        memory_bytes: now.counters.memory,
        peak_memory_bytes: now.peak_memory,
        disk_bytes: now.disk,
        processes: now.counters.processes,
    })
}

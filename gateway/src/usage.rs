//! What a sandbox uses, as its agent tells it.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use cloche_crds::cluster::{SUBRESOURCES_GROUP, VERSION};
use cloche_proto::agent::v1alpha1::{SandboxKey, UsageRequest, UsageResponse};
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::place::Place;
use crate::refusal::{Kind, Refusal};

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the sandbox's agent, once.
pub(crate) async fn read(agents: &Agents, place: &Place) -> Result<Response, Refusal> {
    let mut connection = agents.connect(&place.node).await?;
    let request = UsageRequest {
        key: Some(SandboxKey {
            namespace: place.namespace.clone(),
            name: place.name.clone(),
        }),
        uid: place.uid.clone(),
    };
    let asked = tokio::time::timeout(PATIENCE, connection.client.usage(request)).await;
    let Ok(answer) = asked else {
        let message = "the agent did not answer in time; retry";
        return Err(Refusal::new(Kind::ServiceUnavailable, message));
    };
    match answer {
        Ok(answer) => Ok(Json(object(place, &answer.into_inner())).into_response()),
        Err(status) => Err(agents.refusal(&connection, &status)),
    }
}

fn object(place: &Place, usage: &UsageResponse) -> Value {
    let UsageResponse {
        cpu_millicores,
        cpu_microseconds,
        memory_bytes,
        peak_memory_bytes,
        disk_bytes,
        processes,
    } = usage;
    json!({
        "apiVersion": format!("{SUBRESOURCES_GROUP}/{VERSION}"),
        "kind": "SandboxUsage",
        "metadata": {"namespace": place.namespace, "name": place.name, "uid": place.uid},
        "cpuMillicores": cpu_millicores,
        "cpuMicroseconds": cpu_microseconds,
        "memoryBytes": memory_bytes,
        "peakMemoryBytes": peak_memory_bytes,
        "diskBytes": disk_bytes,
        "processes": processes,
    })
}

//! What the parts of Cloche call each other by in a cluster: names that stand in objects of more than one part.

use std::time::Duration;

/// The API group of our objects.
pub const GROUP: &str = "cloche.dev";
/// The API group that the gateway serves through the aggregation layer.
pub const SUBRESOURCES_GROUP: &str = "subresources.cloche.dev";
/// The version of both groups.
pub const VERSION: &str = "v1alpha1";

/// How long an answer of the apiserver may be silent. A watch on which nothing happens tells so about every minute (bookmarks): one that
/// does not hangs on a connection whose other end is gone.
pub const SILENCE: Duration = Duration::from_mins(2);

/// Finalizer of every Sandbox: the operator puts it on before a binding; the node's agent takes it off when nothing of the sandbox
/// is left on the node, or the operator where no node can have anything of it.
pub const FINALIZER: &str = "cloche.dev/teardown";

/// Taint of a Node whose sandboxes are to end, whatever its value and effect: nothing tolerates it.
pub const DRAIN_TAINT: &str = "cloche.dev/drain";

/// Signer of the certificates of agents (`spec.signerName` of a `CertificateSigningRequest`).
pub const AGENT_SIGNER: &str = "cloche.dev/agent";
/// Signer of the certificates of gateways.
pub const GATEWAY_SIGNER: &str = "cloche.dev/gateway";
/// Signer of the certificates of operators: they sign their own by it, as those of the others.
pub const OPERATOR_SIGNER: &str = "cloche.dev/operator";

/// Who tells an event (`reportingController`), where an agent does.
pub const AGENT_CONTROLLER: &str = "cloche.dev/agent";
/// Where the operator does.
pub const OPERATOR_CONTROLLER: &str = "cloche.dev/operator";
/// Service account of the operators, in the namespace where Cloche is installed.
pub const OPERATOR_ACCOUNT: &str = "cloche-operator";
/// Service account of the agents, in the namespace where Cloche is installed.
pub const AGENT_ACCOUNT: &str = "cloche-agent";
/// Service account of the gateways.
pub const GATEWAY_ACCOUNT: &str = "cloche-gateway";

/// Service of the gateways, in the namespace where Cloche is installed. The apiserver knows them by it: see [`gateway_host`].
pub const GATEWAY_SERVICE: &str = "cloche-gateway";

/// The name by which the apiserver asks for the gateways' certificate, where Cloche is installed in `namespace`.
pub fn gateway_host(namespace: &str) -> String {
    format!("{GATEWAY_SERVICE}.{namespace}.svc")
}

/// Service of the operators, in the namespace where Cloche is installed: agents ask there, at [`OPERATOR_PORT`].
pub const OPERATOR_SERVICE: &str = "cloche-operator";
/// The port of [`OPERATOR_SERVICE`].
pub const OPERATOR_PORT: u16 = 7444;

/// Where agents ask the operators, where Cloche is installed in `namespace`.
pub fn operator_address(namespace: &str) -> String {
    format!("{OPERATOR_SERVICE}.{namespace}.svc:{OPERATOR_PORT}")
}

/// The namespace where Cloche is installed, if nobody says otherwise. The Leases of the agents are there, each named as its node.
pub const NAMESPACE: &str = "cloche-system";
/// `ConfigMap` with what certificates of Cloche's parts are checked by: PEM, under [`CA_KEY`].
pub const CA_CONFIG_MAP: &str = "cloche-ca";
/// Secret with the CA's key. Only the operator reads it.
pub const CA_SECRET: &str = "cloche-ca";
/// The key in [`CA_CONFIG_MAP`].
pub const CA_KEY: &str = "ca.crt";

/// How long an agent's Lease holds without being renewed, in seconds (`spec.leaseDurationSeconds`).
pub const LEASE_SECONDS: i32 = 40;

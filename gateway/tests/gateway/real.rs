//! The gateway behind a real apiserver, which anybody may throw away afterwards. `CLOCHE_TEST_KUBECONFIG` is the kubeconfig of an
//! administrator, `CLOCHE_TEST_ADDRESS` an address of this machine at which the apiserver finds it (no loopback).

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use cloche_gateway::Options;
use cloche_identity::Identity;
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Api, AttachParams, AttachedProcess, Execute, Patch, PatchParams, TerminalSize};
use kube::client::ConfigExt as _;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, CustomResourceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::support::DEMO;
use crate::support::agent::{FakeAgent, pattern};
use crate::support::authority::Authority;
use crate::support::reach::Reach;

const SERVICE: &str = "cloche-gateway";
const SYSTEM: &str = "cloche-system";

/// A sandbox, as kube's client asks for its `exec`.
#[derive(Clone, Debug, serde::Deserialize)]
struct Reached {
    metadata: kube::core::ObjectMeta,
}

impl Execute for Reached {}

impl kube::Resource for Reached {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        "Sandbox".into()
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        "subresources.cloche.dev".into()
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        "sandboxes".into()
    }

    fn meta(&self) -> &kube::core::ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
        &mut self.metadata
    }
}

/// One test at a time has the cluster.
static TURN: Mutex<()> = Mutex::const_new(());

/// A cluster with a gateway and an agent.
struct Real {
    config: Config,
    admin: Client,
    agent: FakeAgent,
    stop: CancellationToken,
    gateway: tokio::task::JoinHandle<Result<(), cloche_gateway::Error>>,
    _turn: MutexGuard<'static, ()>,
}

impl Real {
    /// `None` where there is no cluster.
    async fn set() -> Option<Self> {
        let (Ok(kubeconfig), Ok(address)) = (
            std::env::var("CLOCHE_TEST_KUBECONFIG"),
            std::env::var("CLOCHE_TEST_ADDRESS"),
        ) else {
            assert!(std::env::var_os("CI").is_none(), "no cluster to test with");
            eprintln!("skipped: CLOCHE_TEST_KUBECONFIG and CLOCHE_TEST_ADDRESS name no cluster");
            return None;
        };
        let turn = TURN.lock().await;
        // Another test may have set it already.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_env("CLOCHE_LOG"))
            .try_init()
            .ok();
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        let admin = Client::try_from(config.clone()).unwrap();
        let authority = Arc::new(Authority::new());
        let one = Identity::agent("one").unwrap();
        let agent = FakeAgent::start(authority.credentials(&one), true).await;
        let listener = TcpListener::bind((address.as_str(), 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        install(&admin, &authority, &address, port).await;
        put_sandbox(&admin, &agent.address.to_string()).await;
        tokio::spawn(sign(admin.clone(), Arc::clone(&authority)));
        let stop = CancellationToken::new();
        let gateway = tokio::spawn(cloche_gateway::run_with(
            Options::parse_from(["cloche-gateway"]),
            listener,
            client_as(
                &config,
                &format!("system:serviceaccount:{SYSTEM}:{SERVICE}"),
            ),
            stop.clone(),
        ));
        until_available(&admin).await;
        Some(Self {
            config,
            admin,
            agent,
            stop,
            gateway,
            _turn: turn,
        })
    }

    /// kube's own exec.
    async fn exec(&self, command: &[&str], params: &AttachParams) -> AttachedProcess {
        let sandboxes: Api<Reached> = Api::namespaced(self.admin.clone(), "team");
        let command = command.iter().copied();
        sandboxes
            .exec("demo", command.collect::<Vec<_>>(), params)
            .await
            .unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        self.gateway.await.unwrap().unwrap();
    }
}

fn client_as(config: &Config, user: &str) -> Client {
    let mut config = config.clone();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

/// Puts an object where `path` says.
async fn apply(client: &Client, path: &str, object: &Value) {
    let request = http::Request::patch(format!("{path}?fieldManager=test&force=true"))
        .header("content-type", "application/apply-patch+yaml")
        .body(serde_json::to_vec(object).unwrap())
        .unwrap();
    // What a definition that was just made makes possible is not there at once.
    let applied = async {
        loop {
            match client.request::<Value>(request.clone()).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{path}: {error}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), applied)
        .await
        .unwrap_or_else(|_| panic!("{path}"));
}

fn object(api: &str, kind: &str, name: &str, rest: &Value) -> Value {
    let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    for (key, value) in rest.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

async fn install(admin: &Client, authority: &Authority, address: &str, port: u16) {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for definition in [cloche_crds::Sandbox::crd(), cloche_crds::SandboxNode::crd()] {
        let name = definition.metadata.name.clone().unwrap();
        let definition = serde_json::to_value(definition).unwrap();
        apply(admin, &format!("{definitions}/{name}"), &definition).await;
    }
    for namespace in [SYSTEM, "team"] {
        let object = object("v1", "Namespace", namespace, &json!({}));
        apply(admin, &format!("/api/v1/namespaces/{namespace}"), &object).await;
    }
    rights(admin).await;
    let system = format!("/api/v1/namespaces/{SYSTEM}");
    let ca = json!({"data": {"ca.crt": authority.pem()}});
    let ca = object("v1", "ConfigMap", "cloche-ca", &ca);
    apply(admin, &format!("{system}/configmaps/cloche-ca"), &ca).await;
    let spec = json!({"spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}});
    let service = object("v1", "Service", SERVICE, &spec);
    apply(admin, &format!("{system}/services/{SERVICE}"), &service).await;
    let mut slice = object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        SERVICE,
        &json!({
            "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        }),
    );
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": SERVICE});
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices");
    apply(admin, &format!("{slices}/{SERVICE}"), &slice).await;
    let name = "v1alpha1.subresources.cloche.dev";
    let spec = json!({"spec": {
        "group": "subresources.cloche.dev", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
        "service": {"name": SERVICE, "namespace": SYSTEM},
    }});
    let registration = object("apiregistration.k8s.io/v1", "APIService", name, &spec);
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
    apply(admin, &path, &registration).await;
}

/// All that a gateway may, and a user who may only read.
async fn rights(admin: &Client) {
    let rbac = "rbac.authorization.k8s.io";
    let api = format!("{rbac}/v1");
    let root = format!("/apis/{api}");
    let rules = json!({"rules": [
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": ["cloche.dev"], "resources": ["sandboxes", "sandboxnodes"], "verbs": ["get"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
         "verbs": ["create", "get", "list", "watch"]},
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"],
         "resourceNames": ["v1alpha1.subresources.cloche.dev"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cloche-ca"], "verbs": ["get", "list", "watch"]},
    ]});
    let bound = |role: &str, subject: &Value| json!({"roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role}, "subjects": [subject]});
    let account = json!({"kind": "ServiceAccount", "name": SERVICE, "namespace": SYSTEM});
    let reader = json!({"rules": [{"apiGroups": ["subresources.cloche.dev"], "resources": ["sandboxes/*"], "verbs": ["get"]}]});
    for (kind, plural, name, rest) in [
        ("ClusterRole", "clusterroles", SERVICE, rules),
        (
            "ClusterRoleBinding",
            "clusterrolebindings",
            SERVICE,
            bound(SERVICE, &account),
        ),
        ("ClusterRole", "clusterroles", "reader", reader),
        (
            "ClusterRoleBinding",
            "clusterrolebindings",
            "reader",
            bound(
                "reader",
                &json!({"kind": "User", "name": "bob", "apiGroup": rbac}),
            ),
        ),
    ] {
        let object = object(&api, kind, name, &rest);
        apply(admin, &format!("{root}/{plural}/{name}"), &object).await;
    }
    let role = json!({
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "extension-apiserver-authentication-reader"}, "subjects": [account],
    });
    let role = object(&api, "RoleBinding", SERVICE, &role);
    let path = format!("{root}/namespaces/kube-system/rolebindings/{SERVICE}");
    apply(admin, &path, &role).await;
}

async fn put_sandbox(admin: &Client, endpoint: &str) {
    let root = "/apis/cloche.dev/v1alpha1";
    let spec = json!({"spec": {"image": "python"}});
    let mut sandbox = object("cloche.dev/v1alpha1", "Sandbox", "demo", &spec);
    let path = format!("{root}/namespaces/team/sandboxes/demo");
    apply(admin, &path, &sandbox).await;
    sandbox["status"] = json!({"phase": "Running", "nodeName": "one"});
    apply(admin, &format!("{path}/status"), &sandbox).await;
    let spec = json!({"spec": {"nodeUID": "x"}});
    let mut node = object("cloche.dev/v1alpha1", "SandboxNode", "one", &spec);
    apply(admin, &format!("{root}/sandboxnodes/one"), &node).await;
    node["status"] = json!({"endpoint": endpoint});
    apply(admin, &format!("{root}/sandboxnodes/one/status"), &node).await;
}

/// As the operator does.
async fn sign(admin: Client, authority: Arc<Authority>) {
    let requests: Api<CertificateSigningRequest> = Api::all(admin);
    let filter = watcher::Config::default().fields("spec.signerName=cloche.dev/gateway");
    let mut changes = watcher(requests.clone(), filter).applied_objects().boxed();
    while let Some(Ok(request)) = changes.next().await {
        let is_signed = request
            .status
            .as_ref()
            .is_some_and(|status| status.certificate.is_some());
        if is_signed {
            continue;
        }
        let name = request.metadata.name.unwrap();
        let params = PatchParams::default();
        let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": ""}]}});
        requests
            .patch_approval(&name, &params, &Patch::Merge(&approved))
            .await
            .unwrap();
        let certificate = ByteString(authority.sign(&request.spec.request.0).into_bytes());
        let signed = json!({"status": {"certificate": certificate}});
        // Seen again before its certificate was, or signed by the signer of another test.
        requests
            .patch_status(&name, &params, &Patch::Merge(&signed))
            .await
            .ok();
    }
}

async fn until_available(admin: &Client) {
    let root = "/apis/subresources.cloche.dev/v1alpha1";
    let available = async {
        loop {
            let request = http::Request::get(root).body(Vec::new()).unwrap();
            if admin.request::<Value>(request).await.is_ok() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), available)
        .await
        .expect("an API service that is available");
}

async fn stdout(process: &mut AttachedProcess) -> Vec<u8> {
    let mut read = Vec::new();
    process
        .stdout()
        .unwrap()
        .read_to_end(&mut read)
        .await
        .unwrap();
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubes_own_client_reaches_sandboxes() {
    let Some(cluster) = Real::set().await else {
        return;
    };
    let output = AttachParams::default();
    let mut echo = cluster.exec(&["echo", "hi"], &output).await;
    let ended = echo.take_status().unwrap();
    assert_eq!(stdout(&mut echo).await, b"hi\n");
    assert_eq!(ended.await.unwrap().status.as_deref(), Some("Success"));

    let mut fail = cluster.exec(&["fail", "7"], &output).await;
    let status = fail.take_status().unwrap().await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
    let causes = status.details.unwrap().causes.unwrap();
    assert_eq!(causes[0].message.as_deref(), Some("7"));

    // Stdin and its end, over restarts of the agent.
    let both = AttachParams::default().stdin(true).stderr(false);
    let mut cat = cluster.exec(&["cat"], &both).await;
    let ended = cat.take_status().unwrap();
    let mut stdin = cat.stdin().unwrap();
    let sent = pattern(400_000);
    let write = async {
        for piece in sent.chunks(50_000) {
            stdin.write_all(piece).await.unwrap();
            cluster.agent.kill();
            cluster.agent.come_back();
        }
        stdin.shutdown().await.unwrap();
        drop(stdin);
    };
    let ((), read) = tokio::join!(write, stdout(&mut cat));
    assert!(read == sent, "{} bytes", read.len());
    assert_eq!(ended.await.unwrap().status.as_deref(), Some("Success"));

    let mut shell = cluster
        .exec(&["sleep"], &AttachParams::interactive_tty())
        .await;
    let size = TerminalSize {
        width: 132,
        height: 40,
    };
    futures::SinkExt::send(&mut shell.terminal_size().unwrap(), size)
        .await
        .unwrap();
    let mut shown = [0; 7];
    shell
        .stdout()
        .unwrap()
        .read_exact(&mut shown)
        .await
        .unwrap();
    assert_eq!(&shown, b"40x132\n");
    shell.abort();

    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_and_namespaces_are_kept() {
    let Some(cluster) = Real::set().await else {
        return;
    };
    // Who may only read may not run.
    let bob: Api<Reached> = Api::namespaced(client_as(&cluster.config, "bob"), "team");
    let refused = bob
        .exec("demo", ["echo", "hi"], &AttachParams::default())
        .await;
    assert!(
        matches!(refused, Err(kube::Error::Api(ref status)) if status.code == 403),
        "{:?}",
        refused.err()
    );
    // And the headers of whoever reaches the gateway through the apiserver are not believed.
    let forged = http::Request::get(format!("{DEMO}/exec?command=echo"))
        .header("X-Remote-User", "admin")
        .header("X-Remote-Group", "system:masters")
        .body(Vec::new())
        .unwrap();
    let forged = client_as(&cluster.config, "bob")
        .request::<Value>(forged)
        .await;
    assert!(matches!(forged, Err(kube::Error::Api(status)) if status.code == 403));

    // No namespace waits for the gateway's discovery.
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cluster.admin.clone());
    let object = object("v1", "Namespace", "short", &json!({}));
    apply(&cluster.admin, "/api/v1/namespaces/short", &object).await;
    namespaces
        .delete("short", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let gone = kube::runtime::wait::await_condition(namespaces, "short", |found: Option<&_>| {
        found.is_none()
    });
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("a namespace that goes")
        .unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_outlive_the_apiservers_minute() {
    let Some(cluster) = Real::set().await else {
        return;
    };
    let both = AttachParams::default().stdin(true).stderr(false);
    let mut cat = cluster.exec(&["cat"], &both).await;
    let mut stdin = cat.stdin().unwrap();
    let mut stdout = cat.stdout().unwrap();
    stdin.write_all(&pattern(70_000)).await.unwrap();
    let mut early = vec![0; 60_000];
    stdout.read_exact(&mut early).await.unwrap();
    let names = cluster.agent.node.names();
    let path = format!("{DEMO}/log?follow=true&commandId={}", names[0]);
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let log = cluster.admin.request_stream(request).await.unwrap();
    let began = tokio::time::Instant::now();
    let read = tokio::spawn(async move {
        let mut log = std::pin::pin!(log);
        let mut read = Vec::new();
        futures::AsyncReadExt::read_to_end(&mut log, &mut read)
            .await
            .unwrap();
        read
    });
    // What is tested is time itself.
    tokio::time::sleep(Duration::from_secs(90)).await;
    stdin.write_all(b"late").await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"late"));
    let read = read.await.unwrap();
    assert!(read.ends_with(b"late"), "after {:?}", began.elapsed());
    assert_eq!(read.len(), 70_004);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: it says how long an exec takes, each with a connection of its own"]
async fn an_exec_takes_milliseconds() {
    let Some(cluster) = Real::set().await else {
        return;
    };
    let url = cluster.config.cluster_url.clone();
    let apiserver = Reach {
        address: url.authority().unwrap().as_str().parse().unwrap(),
        name: url.host().unwrap().to_owned(),
        tls: Arc::new(cluster.config.rustls_client_config().unwrap()),
        headers: Vec::new(),
    };
    let path = format!("{DEMO}/exec?command=echo&command=hi");
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = tokio::time::Instant::now();
        let socket = apiserver.socket(&path, "v5.channel.k8s.io").await;
        let socket = socket.ok().unwrap();
        let upgraded = began.elapsed();
        let heard = socket.rest().await;
        assert_eq!(heard.stdout, b"hi\n");
        times.push((began.elapsed(), upgraded));
    }
    times.sort();
    eprintln!(
        "exec of echo (to its end, to the upgrade): best {:?}, median {:?}, p95 {:?}",
        times[0], times[100], times[190]
    );
    cluster.end().await;
}

//! Whole objects: their YAML, what they mean, and what a later version may send.

#![allow(clippy::unwrap_used)] // a whole file of tests; the functions beside them are not marked as such

use cloche_crds::condition::set_condition;
use cloche_crds::rules::validate;
use cloche_crds::sandbox::{EffectiveStatus, RuntimeStatus, Termination};
use cloche_crds::{
    ConditionReason, ConditionStatus, ConditionType, Effective, FailureDomain, Phase, Reason,
    Sandbox, SandboxStatus, decode,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

const FULL: &str = "
apiVersion: cloche.dev/v1alpha1
kind: Sandbox
metadata:
  name: demo
  namespace: default
  labels: {team: a}
spec:
  image: python:3.11-slim
  imagePullPolicy: Never
  imagePullSecrets: [{name: regcred}, {name: other}]
  command: [python3, -c]
  args: ['print(1)']
  env:
    - {name: A, value: b}
    - {name: EMPTY}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
    - {name: LEVEL, valueFrom: {configMapKeyRef: {name: settings, key: level, optional: true}}}
  workingDir: /work
  shell: /bin/bash
  hostname: other
  resources:
    requests: {cpu: 250m, memory: 256Mi, ephemeral-storage: 1Gi}
    limits: {cpu: 2, memory: 1Gi, ephemeral-storage: 5Gi}
    pids: 100
  securityContext:
    runAsUser: 1000
    runAsGroup: 2000
    supplementalGroups: [3000, 3000]
    readOnlyRootFilesystem: true
    writablePaths: [/var/cache]
    allowPrivilegeEscalation: false
    capabilities: [KILL, CHOWN]
  lifecycle:
    ttlSeconds: 3600
    startTimeoutSeconds: 60
    terminationGracePeriodSeconds: 7
  nodeSelector: {disk: ssd}
  tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
";

fn full() -> Sandbox {
    decode::sandbox(&serde_saphyr::from_str(FULL).unwrap()).unwrap()
}

fn minimal(image: &str) -> Sandbox {
    decode::sandbox(&json!({
        "apiVersion": "cloche.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {"name": "demo"},
        "spec": {"image": image},
    }))
    .unwrap()
}

fn finished() -> SandboxStatus {
    let at = |second: i64| Time(Timestamp::from_second(1_800_000_000 + second).unwrap());
    let mut conditions = Vec::new();
    for (kind, status, reason, message) in [
        (
            ConditionType::Finished,
            ConditionStatus::True,
            ConditionReason::Ended(Reason::Error),
            "exit code 1",
        ),
        (
            ConditionType::Stalled,
            ConditionStatus::True,
            ConditionReason::Ended(Reason::Error),
            "exit code 1",
        ),
        (
            ConditionType::Ready,
            ConditionStatus::False,
            ConditionReason::Ended(Reason::Error),
            "",
        ),
        (
            ConditionType::ImageReady,
            ConditionStatus::True,
            ConditionReason::Present,
            "",
        ),
        (
            ConditionType::Scheduled,
            ConditionStatus::True,
            ConditionReason::Bound,
            "",
        ),
        (
            ConditionType::Accepted,
            ConditionStatus::True,
            ConditionReason::Valid,
            "",
        ),
    ] {
        set_condition(&mut conditions, kind, status, reason, message, at(1).0);
    }
    let effective = validate(&full()).unwrap();
    SandboxStatus {
        observed_generation: Some(1),
        phase: Phase::Failed,
        conditions,
        node_name: Some("node-1".to_owned()),
        node_uid: Some("3d0f8c86-8a9a-4a5e-9d55-3f4f4c5d0d11".to_owned()),
        effective: Some(EffectiveStatus {
            user: Some("0:0".to_owned()),
            ..EffectiveStatus::before_image(&effective)
        }),
        image_digest: Some(format!("sha256:{}", "0".repeat(64))),
        runtime: Some(RuntimeStatus {
            name: "runsc".to_owned(),
            version: "release-20250905".to_owned(),
            platform: "systrap".to_owned(),
            profile: "0123456789abcdef".to_owned(),
        }),
        started_at: Some(at(2)),
        expires_at: Some(at(3602)),
        termination: Some(Termination {
            reason: Reason::Error,
            failure_domain: FailureDomain::Workload,
            message: "exit code 1".to_owned(),
            exit_code: Some(1),
            signal: None,
            started_at: Some(at(2)),
            finished_at: Some(at(3)),
            peak_memory_bytes: Some(12_345_678),
            cpu_seconds: Some(0),
            written_bytes: Some(0),
        }),
    }
}

#[test]
fn a_whole_object_keeps_its_yaml() {
    let object = Sandbox {
        status: Some(finished()),
        ..full()
    };
    let yaml = serde_saphyr::to_string(&object).unwrap();
    insta::assert_snapshot!("whole_object", yaml);
    assert_eq!(serde_saphyr::from_str::<Sandbox>(&yaml).unwrap(), object);
    let json = serde_json::to_string(&object).unwrap();
    assert_eq!(serde_json::from_str::<Sandbox>(&json).unwrap(), object);
}

#[test]
fn what_a_full_spec_means() {
    let effective = validate(&full()).unwrap();
    insta::assert_json_snapshot!("effective_of_full", effective);
    let json = serde_json::to_string(&effective).unwrap();
    assert_eq!(serde_json::from_str::<Effective>(&json).unwrap(), effective);
}

#[test]
fn what_a_minimal_spec_means() {
    let effective = validate(&minimal("python")).unwrap();
    insta::assert_json_snapshot!("effective_of_minimal", effective);
    let json = serde_json::to_string(&effective).unwrap();
    assert_eq!(serde_json::from_str::<Effective>(&json).unwrap(), effective);
}

#[test]
fn a_moving_tag_is_pulled_each_time_as_in_a_pod() {
    let digest = format!("python:latest@sha256:{}", "0".repeat(64));
    for (image, policy) in [
        ("python", "Always"),
        ("python:latest", "Always"),
        ("python:3.11", "IfNotPresent"),
        (&digest, "IfNotPresent"),
        ("oci:python", "IfNotPresent"),
        ("rootfs:python.tar", "IfNotPresent"),
    ] {
        let effective = validate(&minimal(image)).unwrap();
        assert_eq!(
            serde_json::to_value(effective.pull_policy).unwrap(),
            policy,
            "{image}"
        );
    }
}

#[test]
fn command_and_args_mean_what_they_mean_in_a_pod_but_for_idling() {
    let main = |command: &[&str], args: &[&str]| {
        let mut sandbox = minimal("python");
        sandbox.spec.command = Some(command.iter().map(|&text| text.to_owned()).collect());
        sandbox.spec.args = Some(args.iter().map(|&text| text.to_owned()).collect());
        serde_json::to_value(validate(&sandbox).unwrap().main).unwrap()
    };
    assert_eq!(main(&[], &[]), json!("idle"));
    assert_eq!(main(&[], &["a"]), json!({"entrypoint": ["a"]}));
    assert_eq!(main(&["a"], &[]), json!({"command": ["a"]}));
    assert_eq!(
        main(&["a", "b"], &["c"]),
        json!({"command": ["a", "b", "c"]})
    );
}

#[test]
fn a_change_of_the_lifecycle_alone_is_told_from_others() {
    let before = validate(&full()).unwrap();
    let mut sandbox = full();
    sandbox.spec.lifecycle = None;
    assert!(before.same_but_lifecycle(&validate(&sandbox).unwrap()));
    sandbox.spec.shell = None;
    assert!(!before.same_but_lifecycle(&validate(&sandbox).unwrap()));
}

#[test]
fn the_status_of_a_newer_agent_can_be_read() {
    let status: SandboxStatus = serde_json::from_value(json!({
        "phase": "Hibernating",
        "address": "192.0.2.1",
        "conditions": [{"type": "New", "status": "True", "reason": "New", "message": "", "lastTransitionTime": "2027-01-01T00:00:00Z"}],
        "termination": {"reason": "Evaporated", "failureDomain": "Weather", "writtenBytes": 5},
    }))
    .unwrap();
    assert_eq!(status.phase, Phase::Unknown);
    let termination = status.termination.unwrap();
    assert_eq!(termination.reason, Reason::Unknown);
    assert_eq!(termination.failure_domain, FailureDomain::Unknown);
}

#[test]
fn the_schema_knows_every_field_and_only_numbers_that_kubernetes_knows() {
    use kube::CustomResourceExt;
    let crd = serde_json::to_value(Sandbox::crd()).unwrap();
    let text = crd.to_string();
    for format in ["uint64", "uint32", "\"uint\""] {
        assert!(!text.contains(format), "{format}");
    }
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(
        schema["required"]
            .as_array()
            .unwrap()
            .contains(&json!("spec"))
    );
    let described = schema["properties"]["spec"]["properties"]
        .as_object()
        .unwrap();
    let written = serde_json::to_value(full().spec).unwrap();
    assert_eq!(
        described.keys().collect::<Vec<_>>(),
        written.as_object().unwrap().keys().collect::<Vec<_>>(),
    );
}

//! Records for tests.

use std::time::Duration;

use cloche_crds::sandbox::{EffectiveResources, Security};
use cloche_crds::{DesiredState, Effective, MainCommand, PullPolicy, Sandbox, SandboxSpec};
use jiff::Timestamp;

use super::{SandboxRecord, State};
use crate::clock::Now;
use crate::image::Digest;
use crate::snapshot::Saved;

/// Both clocks at `second` of the test.
pub(crate) fn now_at(second: i64) -> Now {
    Now {
        boot: Duration::from_secs(second.try_into().unwrap()),
        wall: Timestamp::from_second(1_700_000_000 + second).unwrap(),
    }
}

/// Files in the store.
pub(crate) fn saved() -> Saved {
    Saved {
        id: "s-1".to_owned(),
        manifest: Digest::of(b"files"),
        names: 1000,
    }
}

/// A sandbox bound at second 0 whose command is `/bin/true`: TTL 60 s, start timeout 300 s, grace 5 s.
pub(crate) fn record() -> SandboxRecord {
    SandboxRecord {
        uid: "0b6c3b5e-0000-4000-8000-000000000001".to_owned(),
        namespace: "default".to_owned(),
        name: "demo".to_owned(),
        generation: 1,
        manifest: None,
        object: Sandbox::new(
            "demo",
            SandboxSpec {
                image: "oci:python".to_owned(),
                ..SandboxSpec::default()
            },
        ),
        spec: Effective {
            image: "oci:python".parse().unwrap(),
            pull_policy: PullPolicy::IfNotPresent,
            pull_secrets: Vec::new(),
            main: MainCommand::Command(vec!["/bin/true".to_owned()]),
            env: Vec::new(),
            env_from: Vec::new(),
            working_dir: None,
            shell: None,
            hostname: "demo".to_owned(),
            resources: EffectiveResources {
                cpu_request: cloche_crds::quantity::Millicores(1000),
                cpu_limit: cloche_crds::quantity::Millicores(1000),
                memory_request: cloche_crds::quantity::Bytes(512 << 20),
                memory_limit: cloche_crds::quantity::Bytes(512 << 20),
                disk_request: cloche_crds::quantity::Bytes(2 << 30),
                disk_limit: cloche_crds::quantity::Bytes(2 << 30),
                pids: 1024,
            },
            security: Security::default(),
            ttl: Some(Duration::from_mins(1)),
            desired: DesiredState::Running,
            idle: None,
            start_timeout: Duration::from_mins(5),
            grace: Duration::from_secs(5),
        },
        boot_id: "boot-1".to_owned(),
        bound: now_at(0),
        paused: Duration::ZERO,
        values: None,
        lacks: None,
        image: None,
        kept: None,
        stopped: None,
        woken: None,
        failures: 0,
        overhead: 0,
        used: None,
        aged: Duration::ZERO,
        state: State::Bound,
        deleted: false,
    }
}

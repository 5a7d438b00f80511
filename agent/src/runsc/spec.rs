//! Pure: the OCI specs of the two containers of a sandbox.
//!
//! Both are constant within a profile: gVisor refuses to restore into a container whose arguments, user, capabilities, limits
//! or mounts differ from those that were saved (seen). What a user asks for is applied inside, by cloche-init. What differs
//! from instance to instance is what a restore accepts to differ: ids and the control group.

use std::path::Path;

use serde_json::{Value, json};

use super::InstanceName;

/// Counts changes of these specs; part of the runtime profile's identity.
pub const VERSION: u32 = 1;

/// The id of the user's container within its sandbox.
pub const MAIN: &str = "main";

/// Where cloche-init's file system is mounted in `main`.
pub const INIT_MOUNT: &str = "/.cloche";

/// Processes of one uid in the guest, the limit that a session inherits. Every guest process is a host process, and a sentry
/// whose fork fails on the host panics: the group's pids limit must be well above.
pub const GUEST_PROCESSES: u64 = 4096;

/// Open files of a guest process: soft and hard.
const GUEST_FILES: (u64, u64) = (1024, 1 << 20);

/// What the holder has and may hand on: what it needs to set sessions up (`KILL` to `SYS_ADMIN` of design), and the default
/// list of container engines. Never `NET_RAW`: packets with a forged source.
const CAPABILITIES: [&str; 15] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_SYS_RESOURCE",
];

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// CPUs that the guest sees: the quota in whole CPUs, at least 2 (programs switch locks off on one), at most those of the node.
/// Source: `createSandboxProcess`, runsc/sandbox/sandbox.go. A quota of 0 is none.
pub fn guest_cpus(quota_millis: u32, node: u32) -> u32 {
    match quota_millis.div_ceil(1000) {
        0 => node,
        cpus => cpus.max(2).min(node),
    }
}

/// The `config.json` of the root container: it only waits, read-only, from the EROFS `init` (whose file system is also `main`'s
/// `/.cloche`). `empty` is an empty directory: runsc wants to see a root path although the file system comes from the EROFS.
///
/// `cgroups_path` names the instance's group as `/sys/fs/cgroup/CONTROLLER` counts, absolute. It exists with its limits, so
/// runsc reads them (memory and CPU quota become what the guest sees) and changes nothing.
pub fn root(name: &InstanceName, init: &Path, empty: &Path, cgroups_path: &str) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": process(&["/init", "pause"], &[]),
        "root": { "path": empty, "readonly": true },
        "hostname": "sandbox",
        "mounts": mounts(&[]),
        "annotations": {
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": name.as_str(),
            "dev.gvisor.spec.rootfs.source": init,
            "dev.gvisor.spec.rootfs.type": "erofs",
        },
        "linux": {
            "cgroupsPath": cgroups_path,
            "namespaces": namespaces(&["pid", "network", "ipc", "uts", "mount"]),
        },
    })
}

/// The spec of `main` for `StartSubcontainer` and `RestoreSubcontainer`: the holder of cloche-init over the user's image.
pub fn main(name: &InstanceName) -> Value {
    let init = format!("{INIT_MOUNT}/init");
    json!({
        "ociVersion": "1.0.2",
        "process": process(&[&init, "holder"], &CAPABILITIES),
        // The file system is that of the descriptors which come with the call.
        "root": { "path": "/", "readonly": false },
        "mounts": mounts(&[json!({
            "destination": INIT_MOUNT,
            "type": "erofs",
            // A label only, the file is a descriptor too; but it may not be empty.
            "source": "/init.erofs",
            "options": ["ro"],
        })]),
        "annotations": {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": name.as_str(),
            "io.kubernetes.cri.container-name": MAIN,
        },
        "linux": { "namespaces": namespaces(&["pid", "ipc", "uts", "mount"]) },
    })
}

fn process(arguments: &[&str], capabilities: &[&str]) -> Value {
    json!({
        "user": { "uid": 0, "gid": 0 },
        "args": arguments,
        "env": [PATH],
        "cwd": "/",
        "terminal": false,
        // Inheritable and ambient are empty: what the holder hands on it raises itself, per session.
        "capabilities": {
            "bounding": capabilities,
            "effective": capabilities,
            "permitted": capabilities,
            "inheritable": [],
            "ambient": [],
        },
        // Set in the root container too: what the control socket's exec starts takes its limits from there, and a limit left
        // unset would be another container's (`loader.go`, createContainerProcess: shared defaults).
        "rlimits": [
            { "type": "RLIMIT_NOFILE", "soft": GUEST_FILES.0, "hard": GUEST_FILES.1 },
            { "type": "RLIMIT_NPROC", "soft": GUEST_PROCESSES, "hard": GUEST_PROCESSES },
        ],
        "noNewPrivileges": false,
    })
}

fn mounts(more: &[Value]) -> Value {
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        // The sentry makes its own file system of it, whatever the type (`compileMounts`, runsc/boot/vfs.go).
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }),
        json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts" }),
        json!({
            "destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        }),
        // Mounts nothing. Over an empty /tmp the sentry puts a tmpfs of half the node's memory, unless the spec names a mount
        // there (`mountTmp`, runsc/boot/vfs.go); one whose type it does not know it skips (`mountSubmount`). So /tmp belongs
        // to the writable layer, under its one size limit.
        json!({ "destination": "/tmp", "type": "writable-layer", "source": "none" }),
    ];
    mounts.extend_from_slice(more);
    Value::Array(mounts)
}

fn namespaces(kinds: &[&str]) -> Value {
    kinds.iter().map(|kind| json!({ "type": kind })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> InstanceName {
        InstanceName::try_from("i-7f3a".to_owned()).expect("valid")
    }

    #[test]
    fn root_golden() {
        insta::assert_json_snapshot!(root(
            &name(),
            Path::new("/var/lib/cloche/profiles/abc/init.erofs"),
            Path::new("/var/lib/cloche/profiles/abc/empty"),
            "/cloche/i-7f3a",
        ));
    }

    #[test]
    fn main_golden() {
        insta::assert_json_snapshot!(main(&name()));
    }

    #[test]
    fn every_capability_that_can_be_asked_for_is_to_be_had() {
        for capability in cloche_crds::sandbox::Capability::ALL {
            let name = format!("CAP_{}", capability.as_str());
            assert!(CAPABILITIES.contains(&name.as_str()), "{name}");
        }
    }

    #[test]
    fn nobody_can_get_net_raw() {
        assert!(!main(&name()).to_string().contains("NET_RAW"));
    }

    #[test]
    fn cpus_that_the_guest_sees() {
        for (quota, node, seen) in [
            (0, 8, 8),
            (1, 8, 2),
            (500, 8, 2),
            (2000, 8, 2),
            (2001, 8, 3),
            (4000, 8, 4),
            (64_000, 8, 8),
            (500, 1, 1),
            (u32::MAX, 8, 8),
        ] {
            assert_eq!(guest_cpus(quota, node), seen, "{quota} of {node}");
        }
    }
}

//! What the unpacking child still has when it reads its first hostile byte.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{what} did not happen"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_child_has_nothing() {
    let staging = tempfile::Builder::new()
        .prefix("cloche-image-")
        .tempdir()
        .unwrap();
    let layer = staging.path().join("layer-0");
    nix::unistd::mkfifo(&layer, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Both ends of the pipe are here: the child waits for bytes of its layer, confined.
    let _layer: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&layer)
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_cloche-agent"))
        .arg("unpack")
        .current_dir(staging.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let job = r#"{"layers":[{"compression":"none","diffId":null}],"bounds":{"bytes":1000,"entries":10,"depth":5},"memory":500000000,"cpuSeconds":60}"#;
    stdin.write_all(format!("{job}\n").as_bytes()).unwrap();

    let proc = |name: &str| format!("/proc/{}/{name}", child.id());
    let limits = eventually("confinement", || {
        let limits = fs::read_to_string(proc("limits")).unwrap();
        // The last step.
        limits
            .lines()
            .any(|line| line.starts_with("Max open files            0 "))
            .then_some(limits)
    });
    assert!(
        limits.contains("Max address space         500000000"),
        "{limits}"
    );
    assert!(limits.contains("Max processes             0"), "{limits}");
    let status = fs::read_to_string(proc("status")).unwrap();
    for line in [
        "Uid:\t1073741808\t1073741808\t1073741808\t1073741808",
        "Gid:\t1073741808\t1073741808\t1073741808\t1073741808",
        "Groups:\t ",
        "NoNewPrivs:\t1",
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapAmb:\t0000000000000000",
    ] {
        assert!(
            status.lines().any(|found| found == line),
            "no {line:?} in {status}"
        );
    }
    for namespace in ["net", "mnt", "ipc", "uts"] {
        let (own, its) = (
            format!("/proc/self/ns/{namespace}"),
            proc(&format!("ns/{namespace}")),
        );
        assert_ne!(
            fs::read_link(own).unwrap(),
            fs::read_link(its).unwrap(),
            "{namespace}"
        );
    }
    assert_eq!(
        fs::read_dir(proc("root")).unwrap().count(),
        0,
        "its root is empty"
    );
    assert_eq!(fs::read_dir(proc("cwd")).unwrap().count(), 0);
    assert_ne!(
        fs::metadata(proc("root")).unwrap().dev(),
        fs::metadata("/").unwrap().dev()
    );
    let mounts = fs::read_to_string(proc("mounts")).unwrap();
    assert!(
        !mounts.contains(" /proc") && mounts.lines().count() <= 1,
        "{mounts}"
    );
    let threads = fs::read_dir(proc("task")).unwrap();
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(
            status.contains("CapEff:\t0000000000000000") && status.contains("NoNewPrivs:\t1"),
            "{status}"
        );
    }

    // An agent that goes away takes it along.
    drop(stdin);
    eventually("its end", || child.try_wait().unwrap());
}

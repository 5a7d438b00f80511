//! A root that sessions cannot write to.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use support::Sandbox;

/// Prints which of the paths can be written to: `yes` or `no` each.
fn probe(paths: &[&str]) -> String {
    let each = |path: &&str| format!("(touch {path}/probe) 2>/dev/null && echo yes || echo no");
    paths.iter().map(each).collect::<Vec<_>>().join("; ")
}

#[test]
fn only_what_is_named_can_be_written() {
    let (sandbox, mut agent) = Sandbox::start();
    let base = sandbox.root.path().to_str().unwrap();
    let [kept, link, made, file] =
        ["kept", "link", "made/deep", "file"].map(|name| format!("{base}/{name}"));
    fs::create_dir(&kept).unwrap();
    fs::write(&file, "old").unwrap();
    symlink(&kept, &link).unwrap();
    let writable = [kept.as_str(), &made, &file];
    let done = agent.setup_root("box", Some(&writable));
    assert_eq!((done.error.as_str(), done.path.as_str()), ("", ""));
    let made_above = format!("{base}/made");
    let probes = probe(&[&kept, &link, &made, base, &made_above, "/var"]);
    assert_eq!(agent.shell("a", &probes).1, "yes\nyes\nyes\nno\nno\nno\n");
    assert_eq!(
        fs::metadata(&made).unwrap().permissions().mode() & 0o7777,
        0o777
    );
    let write = format!("echo new > {file}; cat {file}; rm {file} 2>/dev/null || echo stays");
    assert_eq!(agent.shell("b", &write).1, "new\nstays\n");
    // Nothing of the machine's own mounts has changed, and the holder can still name the sandbox anew.
    fs::write(format!("{base}/outside"), "x").unwrap();

    // A repeat is no change; what is another is refused, and changes nothing.
    assert_eq!(agent.setup_root("other", Some(&writable)).error, "");
    assert_eq!(
        agent.shell("c", "hostname; cat /etc/hostname").1,
        "other\nother\n"
    );
    for another in [None, Some(&[base][..])] {
        let refused = agent.setup_root("other", another);
        assert!(
            refused.error.contains("decided already"),
            "{}",
            refused.error
        );
    }
    assert_eq!(agent.shell("d", &probes).1, "yes\nyes\nyes\nno\nno\nno\n");
}

#[test]
fn what_cannot_be_kept_writable_is_named_and_nothing_runs() {
    let (sandbox, mut agent) = Sandbox::start();
    let base = sandbox.root.path().to_str().unwrap();
    let file = format!("{base}/file");
    fs::write(&file, "x").unwrap();
    let below = format!("{file}/below");
    let done = agent.setup_root("box", Some(&["/tmp", &below]));
    assert_eq!(done.path, below);
    assert!(done.error.contains("not a directory"), "{}", done.error);
    let (code, output, _) = agent.shell("a", "echo ran");
    assert_eq!(output, "");
    assert_ne!(code, 0);
    // Mended, it runs.
    assert_eq!(agent.setup_root("box", Some(&["/tmp"])).error, "");
    assert_eq!(agent.shell("b", "echo ran").1, "ran\n");
}

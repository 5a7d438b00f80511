//! Pure: the arguments of `runsc create`.

use std::ffi::OsString;

use super::{InstancePaths, SavedFiles};

/// The flags that decide how a sandbox behaves; part of the runtime profile's identity, since a restore needs the same.
pub const FLAGS: [&str; 6] = [
    // The sentry's own stack, into which the agent puts links over the control socket. Also with loopback alone: `none` could
    // never get one.
    "--network=sandbox",
    // The sentry runs as nobody, without capabilities, in a user namespace of its own. With directfs it keeps chown, fowner, ...
    "--directfs=false",
    "--platform=systrap",
    // It would only advise, and looks at the whole node for that.
    "--host-settings=ignore",
    // One idle control connection would delay the sentry's exit by 15 s.
    "--control-rpc-stop-timeout=0s",
    // Set-user-id files of images work as on Linux (sudo, su, ping); no_new_privs of a session still forbids it.
    "--allow-suid",
];

/// All arguments, the program's name not included; the writable layer of `main` begins as `saved`, or empty.
///
/// No `--ignore-cgroups`: runsc would then not know the instance's limits and show the guest the node's memory and CPUs. No log
/// flag: runsc then discards its log, and the reason of a failure goes to stderr.
pub fn create(paths: &InstancePaths, saved: Option<&SavedFiles>) -> Vec<OsString> {
    let flag = |name: &str, value: &std::path::Path, end: &str| {
        let mut flag = OsString::from(name);
        flag.push(value);
        flag.push(end);
        flag
    };
    let mut arguments: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
    arguments.push(flag("--root=", &paths.root(), ""));
    // The slash at the end makes it a directory (`OpenDebugLogFile`, runsc/specutils/specutils.go).
    arguments.push(flag("--panic-log=", &paths.panic(), "/"));
    arguments.push("create".into());
    if let Some(SavedFiles(folder)) = saved {
        arguments.push(flag("--fs-restore-image-path=", folder, ""));
    }
    arguments.push(flag("--bundle=", &paths.bundle(), ""));
    arguments.push(paths.name().as_str().into());
    arguments
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::runsc::InstanceName;

    #[test]
    fn create_golden() {
        let name = InstanceName::try_from("i-7f3a".to_owned()).expect("valid");
        let paths = InstancePaths::new(Path::new("/run/cloche/i"), name).expect("short");
        let saved = SavedFiles("/var/lib/cloche/snapshots/s-1".into());
        for saved in [None, Some(&saved)] {
            let arguments: Vec<String> = create(&paths, saved)
                .into_iter()
                .map(|argument| argument.into_string().expect("text"))
                .collect();
            insta::assert_snapshot!(arguments.join("\n"));
        }
    }
}

//! What the findings mean, and what to do about them. Pure.

use std::fmt;

use super::findings::{Directory, Findings, Run, Wanted};
use crate::cgroup::Kind;

/// The oldest kernel on which everything that the agent relies on exists: `CLOSE_RANGE_CLOEXEC` of `close_range`, which came last, is
/// of 5.11.
const OLDEST_KERNEL: (u32, u32) = (5, 11);

/// Capabilities that runsc needs to make a sandbox, or the agent to handle files and processes of others (capability.h).
const CAPABILITIES: [(u32, &str); 10] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (8, "CAP_SETPCAP"),
    (18, "CAP_SYS_CHROOT"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
];

/// Something that the host lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, with what.
    pub what: String,
    /// What to do.
    pub remedy: String,
    /// The agent must not start. Otherwise it is worse off, as `what` says.
    pub fatal: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.what, self.remedy)
    }
}

/// Lists the problems, in the order in which it makes sense to solve them.
pub fn report(findings: &Findings, wanted: &Wanted) -> Vec<Problem> {
    let mut problems = Vec::new();
    privileges(findings, &mut problems);
    kernel(findings, &mut problems);
    programs(findings, wanted, &mut problems);
    directory(&findings.state, true, &mut problems);
    directory(&findings.run, false, &mut problems);
    problems
}

/// The version in the output of `runsc --version`, whose first line is `runsc version VERSION`.
pub fn runsc_version(output: &str) -> Option<&str> {
    output
        .lines()
        .next()?
        .strip_prefix("runsc version ")
        .map(str::trim)
        .filter(|version| !version.is_empty())
}

fn fatal(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem {
        what: what.into(),
        remedy: remedy.into(),
        fatal: true,
    }
}

fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem {
        fatal: false,
        ..fatal(what, remedy)
    }
}

fn privileges(found: &Findings, problems: &mut Vec<Problem>) {
    if found.uid != 0 {
        problems.push(fatal(
            format!("the agent runs as user {}", found.uid),
            "run it as root (in a container: runAsUser 0, privileged)",
        ));
        // What else is missing follows from this.
        return;
    }
    if found.uid_map != "0 0 4294967295" {
        problems.push(fatal(
            "the agent's root is not the host's root (it is in a user namespace)",
            "run it outside of rootless containers, with the host's user namespace (hostUsers)",
        ));
    }
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(bit, _)| found.capabilities & (1 << bit) == 0)
        .map(|(_, name)| *name)
        .collect();
    if !missing.is_empty() {
        problems.push(fatal(
            format!("the agent lacks {}", missing.join(", ")),
            "give them to it (in a container: privileged)",
        ));
    }
    if found.seccomp_filtered {
        problems.push(warning(
            "a seccomp filter is on the agent, sandboxes inherit it, and system calls that they need may fail",
            "take it away (in a container: privileged, or seccompProfile Unconfined)",
        ));
    }
}

fn kernel(found: &Findings, problems: &mut Vec<Problem>) {
    let (major, minor) = OLDEST_KERNEL;
    if kernel_version(&found.kernel).is_none_or(|version| version < OLDEST_KERNEL) {
        problems.push(fatal(
            format!("the kernel is {:?}", found.kernel),
            format!("use Linux {major}.{minor} or newer"),
        ));
    }
    match found.user_namespaces {
        Some(0) => problems.push(fatal(
            "user namespaces are switched off (user.max_user_namespaces is 0), and each sandbox needs one",
            "sysctl -w user.max_user_namespaces=16384, and a file in /etc/sysctl.d to keep it",
        )),
        Some(_) => {}
        None => problems.push(fatal(
            "the kernel has no user namespaces, and each sandbox needs one",
            "use a kernel with CONFIG_USER_NS=y",
        )),
    }
    let missing: Vec<_> = ["trap", "errno", "kill_process", "allow"]
        .into_iter()
        .filter(|action| !found.seccomp_actions.iter().any(|a| a == action))
        .collect();
    if !missing.is_empty() {
        problems.push(fatal(
            format!(
                "the kernel's seccomp filters lack {}: system calls of guests cannot be caught",
                missing.join(", ")
            ),
            "use a kernel with CONFIG_SECCOMP_FILTER=y",
        ));
    }
    // From 2 on also a parent may trace its children only with CAP_SYS_PTRACE, which the sentry does not have.
    if let Some(scope @ 2..) = found.ptrace_scope {
        problems.push(fatal(
            format!("kernel.yama.ptrace_scope is {scope}, and sandboxes cannot trace their own processes"),
            "set it to 0 or 1 (3 can only be changed by a reboot)",
        ));
    }
    match (&found.cgroups, &found.kernel_log) {
        (Err(why), _) => problems.push(fatal("control groups cannot be used", why)),
        (Ok(Kind::V1 | Kind::Hybrid), Err(why)) => problems.push(warning(
            format!(
                "the kernel's log cannot be read ({why}), and a sandbox that is killed for others' use of memory may be reported as OOMKilled"
            ),
            "give the agent /dev/kmsg and CAP_SYSLOG",
        )),
        (Ok(_), _) => {}
    }
}

fn programs(found: &Findings, wanted: &Wanted, problems: &mut Vec<Problem>) {
    let runsc = wanted.runsc.display();
    match &found.runsc {
        Run::Succeeded(output) => match runsc_version(output) {
            Some("VERSION_MISSING") => problems.push(fatal(
                format!("{runsc} was built without a version, so that a restore by another build could not be refused"),
                "use the runsc that belongs to this agent",
            )),
            Some(_) => {}
            None => problems.push(fatal(
                format!("{runsc} --version does not say a version"),
                "use the runsc that belongs to this agent",
            )),
        },
        run => problems.push(fatal(
            format!("{runsc} --version {}", failure(run)),
            "put the runsc that belongs to this agent there, or name another by --runsc",
        )),
    }
    let mkfs = wanted.mkfs_erofs.display();
    match &found.mkfs_erofs {
        Run::Succeeded(_) => {}
        run => problems.push(fatal(
            format!("making an image with {mkfs} {}", failure(run)),
            "install erofs-utils 1.5 or newer",
        )),
    }
}

fn failure(run: &Run) -> String {
    match run {
        Run::NotStarted(why) => format!("could not be started ({why})"),
        Run::TimedOut => "did not end in time".to_owned(),
        Run::Failed { status, stderr } => format!("failed ({status}; {stderr:?})"),
        Run::Succeeded(_) => "succeeded".to_owned(),
    }
}

/// The state directory holds scratch files and programs; the run directory only sockets and small files.
fn directory(found: &Directory, state: bool, problems: &mut Vec<Problem>) {
    let path = found.path.display();
    if let Err(why) = &found.writable {
        problems.push(fatal(
            format!("{path} cannot be written ({why})"),
            "let the agent own it, on a file system that is mounted read-write",
        ));
        return;
    }
    if found.full {
        problems.push(Problem {
            what: format!("the file system of {path} is full, so that nothing new can start"),
            remedy: "delete sandboxes that fill it, or make room".to_owned(),
            // Those that run have to be looked after all the more, and deleting the one that fills it needs an agent.
            fatal: false,
        });
    }
    if !state {
        return;
    }
    let other = "put it on ext4, xfs or btrfs";
    if let Err(why) = &found.unnamed {
        problems.push(fatal(
            format!("the file system of {path} has no unnamed files, O_TMPFILE ({why})"),
            other,
        ));
    }
    if let Err(why) = &found.holes {
        problems.push(fatal(
            format!("the file system of {path} cannot give back parts of files, FALLOC_FL_PUNCH_HOLE ({why})"),
            other,
        ));
    }
    if !found.executable {
        problems.push(fatal(
            format!("{path} is mounted noexec, and runsc is run from there"),
            "mount it without noexec",
        ));
    }
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            runsc: "/opt/runsc".into(),
            mkfs_erofs: "mkfs.erofs".into(),
            state: "/var/lib/cloche".into(),
            run: "/run/cloche".into(),
            cgroup_parent: "cloche".to_owned(),
        }
    }

    fn directory(path: &str) -> Directory {
        Directory {
            path: path.into(),
            full: false,
            writable: Ok(()),
            unnamed: Ok(()),
            holes: Ok(()),
            executable: true,
        }
    }

    fn good() -> Findings {
        Findings {
            uid: 0,
            uid_map: "0 0 4294967295".to_owned(),
            capabilities: 0x1_ffff_feff_ffff,
            kernel: "6.1.0-57-cloud-amd64".to_owned(),
            user_namespaces: Some(7876),
            seccomp_actions: "kill_process kill_thread trap errno user_notif trace log allow"
                .split(' ')
                .map(str::to_owned)
                .collect(),
            seccomp_filtered: false,
            ptrace_scope: Some(1),
            cgroups: Ok(Kind::Hybrid),
            kernel_log: Ok(()),
            runsc: Run::Succeeded("runsc version v0.0.0-1\nspec: 1.2.1\n".to_owned()),
            mkfs_erofs: Run::Succeeded(String::new()),
            state: directory("/var/lib/cloche"),
            run: directory("/run/cloche"),
        }
    }

    fn found(change: impl FnOnce(&mut Findings)) -> Vec<String> {
        let mut findings = good();
        change(&mut findings);
        report(&findings, &wanted())
            .iter()
            .map(|p| format!("{}{p}", if p.fatal { "" } else { "warning: " }))
            .collect()
    }

    #[test]
    fn a_good_host_has_no_problem() {
        assert_eq!(found(|_| {}), [""; 0]);
        // What no part of this agent needs.
        assert_eq!(
            found(|f| {
                f.ptrace_scope = None;
                f.run.unnamed = Err("no".to_owned());
                f.run.holes = Err("no".to_owned());
                f.run.executable = false;
                f.kernel = "5.11.0".to_owned();
            }),
            [""; 0]
        );
        // Version 2 counts exactly without the log.
        assert_eq!(
            found(|f| {
                f.cgroups = Ok(Kind::V2);
                f.kernel_log = Err("no".to_owned());
            }),
            [""; 0]
        );
    }

    /// One finding changed, and what the only problem must say.
    type Case = (fn(&mut Findings), &'static [&'static str]);

    #[test]
    fn each_lack_is_one_problem_that_says_what_to_do() {
        let no = || Err("no such luck".to_owned());
        let cases: [Case; 20] = [
            (
                |f| f.state.full = true,
                &["/var/lib/cloche is full", "delete sandboxes"],
            ),
            (
                |f| {
                    f.uid = 1000;
                    f.capabilities = 0;
                },
                &["user 1000", "root"],
            ),
            (|f| f.uid_map = "0 1000 1".to_owned(), &["user namespace"]),
            (
                |f| f.capabilities &= !((1 << 21) | (1 << 19)),
                &["CAP_SYS_PTRACE, CAP_SYS_ADMIN", "privileged"],
            ),
            (|f| f.seccomp_filtered = true, &["warning: ", "Unconfined"]),
            (|f| f.kernel = "5.10.99".to_owned(), &["5.10.99", "5.11"]),
            (|f| f.kernel = "what".to_owned(), &["what", "5.11"]),
            (|f| f.user_namespaces = Some(0), &["sysctl"]),
            (|f| f.user_namespaces = None, &["CONFIG_USER_NS"]),
            (
                |f| f.seccomp_actions.retain(|a| a != "trap"),
                &["lack trap"],
            ),
            (|f| f.ptrace_scope = Some(2), &["ptrace_scope is 2"]),
            (
                |f| f.cgroups = Err("mount it".to_owned()),
                &["control groups", "mount it"],
            ),
            (
                |f| f.kernel_log = Err("EPERM".to_owned()),
                &["warning: ", "EPERM", "/dev/kmsg"],
            ),
            (
                |f| f.runsc = Run::NotStarted("not found".to_owned()),
                &["/opt/runsc", "not found", "--runsc"],
            ),
            (
                |f| f.runsc = Run::Succeeded("runsc version VERSION_MISSING\n".to_owned()),
                &["without a version"],
            ),
            (
                |f| f.runsc = Run::Succeeded("runc 1.1\n".to_owned()),
                &["does not say"],
            ),
            (|f| f.runsc = Run::TimedOut, &["in time"]),
            (
                |f| {
                    f.mkfs_erofs = Run::Failed {
                        status: "exit status: 1".to_owned(),
                        stderr: "invalid option".to_owned(),
                    }
                },
                &["invalid option", "erofs-utils"],
            ),
            (|f| f.state.executable = false, &["noexec"]),
            (
                |f| f.run.writable = Err("EROFS".to_owned()),
                &["/run/cloche", "EROFS"],
            ),
        ];
        for (change, texts) in cases {
            let problems = found(change);
            assert_eq!(problems.len(), 1, "{problems:?}");
            for text in texts {
                assert!(problems[0].contains(text), "{text:?}: {}", problems[0]);
            }
        }
        let problems = found(|f| {
            f.state.unnamed = no();
            f.state.holes = no();
        });
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("O_TMPFILE") && problems[1].contains("PUNCH_HOLE"));
    }

    #[test]
    fn versions_are_read() {
        for (text, wanted) in [
            ("6.18.44-fc", Some((6, 18))),
            ("5.3", Some((5, 3))),
            ("5", None),
            ("", None),
            ("99999999999.1", None),
            ("v5.3", None),
        ] {
            assert_eq!(kernel_version(text), wanted, "{text}");
        }
        assert_eq!(runsc_version("runsc version v1 \nspec"), Some("v1"));
        for text in ["", "runsc version ", "x\nrunsc version v1"] {
            assert_eq!(runsc_version(text), None, "{text}");
        }
    }
}

//! From what went wrong to why the sandbox ended.

use std::error::Error;
use std::sync::Arc;

use cloche_crds::{FailureDomain, Reason};

use super::command::CommandError;
use super::record::{Cause, SandboxRecord};
use crate::cgroup::{Counters, Death, Evidence, OomLimit, Verdict, verdict};
use crate::image::ImageError;
use crate::instance::Instance;
use crate::node::Node;
use crate::session::{Ended, NotStarted, Outcome};
use crate::told::chain;

/// An image that cannot be had.
pub(super) fn of_image(error: &ImageError) -> Cause {
    Cause::new(
        error.reason(),
        error.reason().default_domain(),
        chain(error),
    )
}

/// The image that a stopped sandbox ran is gone from the node, and its reference means another by now.
pub(super) fn of_other_image(record: &SandboxRecord) -> Cause {
    let was = record.image.as_ref();
    let message = format!(
        "{} is not on the node any more, and spec.image means another image by now",
        was.map_or_else(String::new, |image| image.digest.to_string())
    );
    let reason = Reason::ImageNotFound;
    Cause::new(reason, reason.default_domain(), message)
}

/// Files of a stopped sandbox that cannot be read, or are not what they were.
pub(super) fn of_files(error: &crate::snapshot::Error) -> Cause {
    if !error.is_corrupt() {
        return of_start(error, false);
    }
    let message = format!("its files are lost: {}", chain(error));
    Cause::new(
        Reason::SnapshotCorrupt,
        FailureDomain::Infrastructure,
        message,
    )
}

/// A start that failed: for want of room on the node's disk, by a limit that cannot be set, or by the runtime.
pub(super) fn of_start(error: &(dyn Error + 'static), is_limit: bool) -> Cause {
    let reason = if is_full(error) {
        Reason::NodeRejected
    } else if is_limit {
        Reason::CannotEnforce
    } else {
        Reason::RuntimeCrashed
    };
    Cause::new(reason, FailureDomain::Infrastructure, chain(error))
}

fn is_full(error: &(dyn Error + 'static)) -> bool {
    let is_it = |error: &(dyn Error + 'static)| {
        let kind = error.downcast_ref().map(std::io::Error::kind);
        matches!(
            kind,
            Some(std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        )
    };
    let mut at = Some(error);
    while let Some(error) = at {
        if is_it(error) {
            return true;
        }
        at = error.source();
    }
    false
}

/// Something that cannot be unless the agent has a bug.
pub(super) fn internal(what: &str) -> Cause {
    Cause::new(Reason::RuntimeCrashed, FailureDomain::Infrastructure, what)
}

/// A command that the image cannot run as the spec says.
pub(super) fn of_command(error: &CommandError) -> Cause {
    let reason = match error {
        CommandError::Empty | CommandError::NoEntrypoint => Reason::CommandNotFound,
        // As a shell tells "argument list too long".
        CommandError::ShellArguments(_)
        | CommandError::Shell(_)
        | CommandError::Env(_)
        | CommandError::Nul(_)
        | CommandError::TooLong(_) => Reason::CommandNotExecutable,
    };
    Cause {
        exit_code: reason.exit_code().map(i32::from),
        ..Cause::new(reason, FailureDomain::User, error.to_string())
    }
}

/// Init could not do what it was told before the first command, perhaps to keep the root read-only.
pub(super) fn of_set_up(why: &str, is_rule: bool) -> Cause {
    let reason = if is_rule {
        Reason::CannotEnforce
    } else {
        Reason::RuntimeCrashed
    };
    let message = format!("its init could not be set up: {why}");
    Cause::new(reason, FailureDomain::Infrastructure, message)
}

/// A writable path of the spec that the image does not allow.
pub(super) fn of_path(why: &str) -> Cause {
    Cause::new(
        Reason::SpecInvalid,
        FailureDomain::User,
        format!("spec.securityContext.writablePaths: {why}"),
    )
}

/// Init was killed from inside.
pub(super) fn of_init(message: &str) -> Cause {
    let message = if message.is_empty() {
        "init was killed from inside"
    } else {
        message
    };
    Cause {
        signal: Some(9),
        exit_code: Some(137),
        ..Cause::new(Reason::Error, FailureDomain::Workload, message)
    }
}

/// Init is gone while its sentry lives: the guest's kernel killed it, or it gave up.
pub(super) fn of_init_gone(why: &str) -> Cause {
    Cause::new(
        Reason::Error,
        FailureDomain::Workload,
        format!("its init ended while the sandbox ran: {why}"),
    )
}

/// The end of the sandbox's own command.
pub(super) fn of_main(ended: &Ended) -> Cause {
    match &ended.outcome {
        Outcome::Exited {
            code,
            signal,
            message,
            not_started,
            ..
        } => {
            let reason = match not_started {
                Some(NotStarted::NotFound) => Reason::CommandNotFound,
                Some(NotStarted::NotExecutable) => Reason::CommandNotExecutable,
                None if *code == 0 && *signal == 0 => Reason::Completed,
                Some(NotStarted::Failed) | None => Reason::Error,
            };
            let told = if message.is_empty() {
                match (*code, *signal) {
                    (0, 0) => "its command ended with exit code 0".to_owned(),
                    (code, 0) => format!("its command ended with exit code {code}"),
                    (_, signal) => format!("its command was ended by signal {signal}"),
                }
            } else {
                message.clone()
            };
            Cause {
                exit_code: Some(*code),
                signal: (*signal != 0).then_some(*signal),
                ..Cause::new(reason, reason.default_domain(), told)
            }
        }
        Outcome::SandboxEnded { reason } => {
            internal(&format!("its command ended with its sandbox ({reason})"))
        }
        Outcome::Lost { message } => internal(message),
    }
}

/// Why a process of the sentry is gone without which it cannot go on, if the kernel killed one for memory: then all are killed.
/// Nothing where none was, or where the counters cannot be read.
pub(super) async fn of_stub(
    node: &Arc<Node>,
    instance: &Instance,
    record: &SandboxRecord,
) -> Option<Cause> {
    let (cgroups, id) = (Arc::clone(&node.cgroups), instance.id().to_owned());
    let counters = tokio::task::spawn_blocking(move || cgroups.counters(&id));
    let after = counters.await.ok()?.ok()?;
    let evidence = Evidence {
        sentry_gone: false,
        before: Counters::default(),
        after,
        panicked: false,
        logged: None,
    };
    if verdict(&evidence) != Verdict::KillGroup {
        return None;
    }
    node.workshop.kill(instance.id()).await;
    Some(of_sentry(node, instance.id(), record).await)
}

/// Why a sentry is gone: by the counters of its group, the kernel's log and its panic log.
pub async fn of_sentry(node: &Arc<Node>, id: &str, record: &SandboxRecord) -> Cause {
    let (node, id, limits) = (Arc::clone(node), id.to_owned(), record.spec.resources);
    let read = tokio::task::spawn_blocking(move || {
        let panic = node.workshop.panic_reason(&id);
        let after = match node.cgroups.counters(&id) {
            Ok(counters) => counters,
            Err(error) => {
                return internal(&format!(
                    "its sentry ended; status unknown: {}",
                    chain(&error)
                ));
            }
        };
        let evidence = Evidence {
            sentry_gone: true,
            before: Counters::default(),
            after,
            panicked: panic.is_some(),
            logged: node.cgroups.oom_limit(&id).ok().flatten(),
        };
        explain(
            verdict(&evidence),
            panic.as_deref(),
            limits.memory_limit.0,
            limits.pids,
            evidence.logged,
        )
    });
    read.await
        .unwrap_or_else(|error| internal(&format!("its sentry ended; status unknown: {error}")))
}

fn explain(
    verdict: Verdict,
    panic: Option<&str>,
    memory: u64,
    pids: u32,
    logged: Option<OomLimit>,
) -> Cause {
    let death = match verdict {
        Verdict::Ended(death) => death,
        // Asked only when the sentry is gone.
        Verdict::Alive | Verdict::KillGroup => Death::RuntimeCrashed,
    };
    match death {
        Death::OomKilled => Cause::new(
            Reason::OOMKilled,
            FailureDomain::Workload,
            format!(
                "it used more memory than its limit of {memory} bytes: raise spec.resources.limits.memory or use less"
            ),
        ),
        Death::Evicted => {
            let whose = match logged {
                Some(OomLimit::Above) => {
                    "the node's sandboxes together, or the node, ran out of memory"
                }
                Some(OomLimit::Own) | None => "memory ran out above its own limit",
            };
            Cause::new(
                Reason::Evicted,
                FailureDomain::Infrastructure,
                format!("{whose} and the kernel chose this one: request what it needs"),
            )
        }
        Death::PidsExceeded => Cause::new(
            Reason::PidsExceeded,
            FailureDomain::Workload,
            format!(
                "it used more processes than the node lets a sandbox with spec.resources.pids {pids} have"
            ),
        ),
        Death::RuntimeCrashed => Cause::new(
            Reason::RuntimeCrashed,
            FailureDomain::Infrastructure,
            match panic {
                Some(line) => format!("gVisor's sentry panicked: {line}"),
                None => "gVisor's sentry was killed or ended; status unknown".to_owned(),
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::InstanceError;
    use crate::ledger::LedgerError;

    #[test]
    fn a_full_disk_is_no_crash_of_the_runtime() {
        let of = |errno: i32| {
            let error = InstanceError::Ledger(LedgerError::File {
                operation: "write",
                path: "/state/instances/i/record.json".into(),
                source: std::io::Error::from_raw_os_error(errno),
            });
            of_start(&error, error.is_limit()).reason
        };
        assert_eq!(of(nix::libc::ENOSPC), Reason::NodeRejected);
        assert_eq!(of(nix::libc::EIO), Reason::RuntimeCrashed);
    }
}

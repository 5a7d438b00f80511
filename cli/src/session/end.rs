//! What the end of a command means to the caller.

use cloche_proto::agent::v1alpha1::Exit;

use crate::NOT_RUN;
use crate::object::text::plain;

/// As coreutils' and busybox's `timeout` exit.
const TIMED_OUT: u8 = 124;

/// The exit code to end with.
pub(crate) fn code(exit: &Exit) -> u8 {
    if exit.timed_out {
        return TIMED_OUT;
    }
    // The agent promises 0 to 255; another number, such as its -1, is not a known end.
    u8::try_from(exit.code).unwrap_or(NOT_RUN)
}

/// What to say on standard error, where the code does not say it all.
pub(crate) fn remark(name: &str, exit: &Exit) -> Option<String> {
    let message = plain(&exit.message);
    if !exit.sandbox_reason.is_empty() {
        let mut remark = format!(
            "the command ended with sandbox {name}: {}",
            plain(&exit.sandbox_reason)
        );
        if !message.is_empty() {
            remark.push_str(": ");
            remark.push_str(&message);
        }
        return Some(remark);
    }
    if exit.timed_out {
        let seconds = std::time::Duration::from_millis(exit.duration_ms).as_secs_f64();
        return Some(format!(
            "the command was killed after {seconds:.1} s: its timeout was over"
        ));
    }
    (!message.is_empty()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let exit = |code| Exit {
            code,
            ..Exit::default()
        };
        assert_eq!(code(&exit(0)), 0);
        assert_eq!(code(&exit(255)), 255);
        assert_eq!(code(&exit(256)), 125);
        let lost = Exit {
            code: -1,
            message: "init no longer knows it".into(),
            ..Exit::default()
        };
        assert_eq!(code(&lost), 125);
        assert_eq!(remark("demo", &lost).unwrap(), "init no longer knows it");
        assert_eq!(remark("demo", &exit(3)), None);
        let timed_out = Exit {
            code: 137,
            timed_out: true,
            duration_ms: 1530,
            ..Exit::default()
        };
        assert_eq!(code(&timed_out), 124);
        assert_eq!(
            remark("demo", &timed_out).unwrap(),
            "the command was killed after 1.5 s: its timeout was over"
        );
        let oom = Exit {
            code: 137,
            sandbox_reason: "OOMKilled".into(),
            message: "over 64Mi\u{1b}[2J".into(),
            ..Exit::default()
        };
        assert_eq!(
            remark("demo", &oom).unwrap(),
            "the command ended with sandbox demo: OOMKilled: over 64Mi\u{fffd}[2J"
        );
    }
}

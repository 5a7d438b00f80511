//! The kernel's log: which memory limit an OOM kill was for.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;

/// So many of the newest lines are kept.
const MAX_LINES: usize = 1024;

/// A record is at most this long (kernel/printk/printk.c, `PRINTK_MESSAGE_MAX`); a smaller buffer would lose it.
const RECORD: usize = 8192;

/// What the kernel said about OOM kills and still remembers, oldest first: lines that begin with `oom-kill:`. Does not wait.
/// Needs root or `CAP_SYSLOG`, and a container needs the host's /dev/kmsg.
pub fn oom_lines() -> io::Result<Vec<String>> {
    let mut log = fs::OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open("/dev/kmsg")?;
    let mut lines = VecDeque::new();
    let mut record = [0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                if let Some(line) = oom_line(&record[..length]) {
                    if lines.len() == MAX_LINES {
                        lines.pop_front();
                    }
                    lines.push_back(line);
                }
            }
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => break,
                // EPIPE: records were overwritten before they were read; the next read goes on behind them.
                Some(Errno::EPIPE | Errno::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(lines.into())
}

/// One record: `PRIORITY,SEQUENCE,TIME,FLAGS;MESSAGE\n KEY=VALUE...` (Documentation/ABI/testing/dev-kmsg). Programs can write
/// to the log too; the kernel's own records have facility 0.
fn oom_line(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (head, message) = text.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let line = message.lines().next()?;
    (priority >> 3 == 0 && line.starts_with("oom-kill:")).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_lines_count() {
        let line = |record: &str| oom_line(record.as_bytes());
        assert_eq!(
            line("6,339,5140900,-;oom-kill:constraint=X,task=a\n SUBSYSTEM=x\n").as_deref(),
            Some("oom-kill:constraint=X,task=a")
        );
        assert_eq!(line("14,339,5140900,-;oom-kill:constraint=X\n"), None);
        assert_eq!(line("6,339,5140900,-;x oom-kill:constraint=X\n"), None);
        assert_eq!(line("6,339,5140900,-;x\n oom-kill:constraint=X\n"), None);
        assert_eq!(line("oom-kill:"), None);
        assert_eq!(oom_line(&[0xff, b';']), None);
    }

    #[test]
    fn the_log_of_this_machine_can_be_read() {
        oom_lines().expect("read /dev/kmsg: this test needs root");
    }
}

//! The first line of what a sentry wrote when it panicked.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use crate::sys::log::printable;

/// As much of a log is looked at: a sentry that was taken over may have written anything, a real panic begins with its reason.
const MAX_READ: u64 = 64 << 10;

/// The longest line, in bytes.
const MAX_LINE: usize = 512;

/// Files that are looked at in the directory: runsc makes one.
const MAX_FILES: usize = 16;

/// The reason in the panic log of the directory `dir`, as one printable line of at most 512 bytes. `None`: nothing was written
/// there. Blocking.
pub fn reason(dir: &Path) -> io::Result<Option<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries.take(MAX_FILES) {
        let entry = entry?;
        // Only root names files here, but this costs nothing: no link is followed, nothing is waited for.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(entry.path())?;
        if !file.metadata()?.is_file() {
            continue;
        }
        let mut text = Vec::new();
        file.take(MAX_READ).read_to_end(&mut text)?;
        if let Some(line) = choose(&text) {
            return Ok(Some(line));
        }
    }
    Ok(None)
}

/// Go begins a panic with `panic:` or `fatal error:`; without such a line the first one that says anything.
fn choose(text: &[u8]) -> Option<String> {
    let lines = || {
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.trim_ascii().is_empty())
    };
    let line = lines()
        .find(|line| line.starts_with(b"panic: ") || line.starts_with(b"fatal error: "))
        .or_else(|| lines().next())?;
    Some(printable(&line[..line.len().min(MAX_LINE)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_and_bounded() {
        assert_eq!(choose(b""), None);
        assert_eq!(choose(b"\n  \n"), None);
        assert_eq!(choose(b"odd\nmore"), Some("odd".to_owned()));
        assert_eq!(
            choose(b"SIGABRT\n\npanic: no memory\x1b[0m\n\ngoroutine 1 [running]:\n"),
            Some("panic: no memory [0m".to_owned())
        );
        let long = [b"panic: ".to_vec(), vec![b'x'; 1 << 20]].concat();
        assert_eq!(choose(&long).map(|line| line.len()), Some(MAX_LINE));
    }

    #[test]
    fn links_and_fifos_are_not_read_and_no_directory_is_no_reason() {
        let dir = tempfile::tempdir().expect("made");
        assert_eq!(reason(&dir.path().join("no")).expect("fine"), None);
        assert_eq!(reason(dir.path()).expect("fine"), None);
        nix::unistd::mkfifo(
            &dir.path().join("fifo"),
            nix::sys::stat::Mode::from_bits_truncate(0o600),
        )
        .expect("made");
        assert_eq!(reason(dir.path()).expect("fine"), None);
        std::fs::write(dir.path().join("log"), "fatal error: x\n").expect("written");
        assert_eq!(
            reason(dir.path()).expect("fine"),
            Some("fatal error: x".to_owned())
        );
    }
}

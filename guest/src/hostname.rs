//! The sandbox's own name: the kernel's, /etc/hostname and /etc/hosts.
//!
//! The files are the guest's, and the holder sees mounts that the guest does not: so neither /etc nor a file in it is
//! followed if it is a link, and nothing but a regular file is written. What else an image has there is its own affair and is
//! left alone; an /etc that is missing is made.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{ftruncate, mkdir, sethostname};

/// `HOST_NAME_MAX` of Linux.
const MAX_NAME: usize = 64;
/// The most of an /etc/hosts that is kept.
const MAX_HOSTS: u64 = 64 * 1024;
/// Ends the line of /etc/hosts that is ours.
const MARK: &str = "# cloche";

/// Why a name was not set.
#[derive(Debug, thiserror::Error)]
pub enum HostnameError {
    /// It is no host name.
    #[error("{0:?} is no host name")]
    Invalid(String),
    /// The kernel refused.
    #[error("setting the host name to {name}: {source}")]
    Kernel {
        /// The name.
        name: String,
        /// What the kernel said.
        source: Errno,
    },
    /// A file could not be written.
    #[error("writing /etc/{file}: {source}")]
    File {
        /// Its name in /etc.
        file: &'static str,
        /// Why.
        source: Errno,
    },
}

/// Sets the name everywhere it can. A read-only root is no error, nor is an image that has other things there.
pub fn set(name: &str) -> Result<(), HostnameError> {
    if !is_valid(name) {
        return Err(HostnameError::Invalid(name.chars().take(80).collect()));
    }
    sethostname(name).map_err(|source| HostnameError::Kernel {
        name: name.to_owned(),
        source,
    })?;
    rewrite("hostname", |_| format!("{name}\n"))?;
    rewrite("hosts", |old| hosts(old, name))
}

fn is_valid(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// `old` with our line for `name` in the place of that for an earlier one, and a line for localhost where there is none.
fn hosts(old: &str, name: &str) -> String {
    let mut new = String::new();
    for line in old.lines().filter(|line| !line.ends_with(MARK)) {
        new.push_str(line);
        new.push('\n');
    }
    let has = |wanted: &str| {
        old.lines()
            .filter_map(|line| line.split('#').next())
            .any(|line| line.split_whitespace().skip(1).any(|word| word == wanted))
    };
    if !has("localhost") {
        new.push_str("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    }
    new.push_str("127.0.1.1\t");
    new.push_str(name);
    new.push('\t');
    new.push_str(MARK);
    new.push('\n');
    new
}

fn rewrite(file: &'static str, change: impl FnOnce(&str) -> String) -> Result<(), HostnameError> {
    match try_rewrite(file, change) {
        // Read-only, a link, no folder, a folder, a socket: not ours to write to.
        Ok(())
        | Err(Errno::EROFS | Errno::ELOOP | Errno::ENOTDIR | Errno::EISDIR | Errno::ENXIO) => {
            Ok(())
        }
        Err(error) => Err(HostnameError::File {
            file,
            source: error,
        }),
    }
}

fn try_rewrite(file: &str, change: impl FnOnce(&str) -> String) -> nix::Result<()> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let etc = match open("/etc", flags, Mode::empty()) {
        Err(Errno::ENOENT) => {
            mkdir("/etc", Mode::from_bits_truncate(0o755))?;
            open("/etc", flags, Mode::empty())?
        }
        opened => opened?,
    };
    let flags = OFlag::O_RDWR
        | OFlag::O_CREAT
        | OFlag::O_NOFOLLOW
        | OFlag::O_NONBLOCK
        | OFlag::O_NOCTTY
        | OFlag::O_CLOEXEC;
    let fd = openat(&etc, file, flags, Mode::from_bits_truncate(0o644))?;
    let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFREG {
        return Ok(());
    }
    replace(std::fs::File::from(fd), change)
        .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

fn replace(mut file: std::fs::File, change: impl FnOnce(&str) -> String) -> std::io::Result<()> {
    let mut old = Vec::new();
    Read::by_ref(&mut file)
        .take(MAX_HOSTS)
        .read_to_end(&mut old)?;
    let new = change(&String::from_utf8_lossy(&old));
    if new.as_bytes() == old {
        return Ok(());
    }
    ftruncate(file.as_fd(), 0)?;
    std::io::Seek::rewind(&mut file)?;
    file.write_all(new.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_keeps_what_is_there_and_replaces_our_line() {
        let first = hosts("10.0.0.1 db\n", "a");
        assert_eq!(
            first,
            "10.0.0.1 db\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\ta\t# cloche\n"
        );
        let second = hosts(&first, "b");
        assert_eq!(second, first.replace("\ta\t", "\tb\t"));
        assert_eq!(hosts(&second, "b"), second);
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", "a b", "a\nb", "ä", &"x".repeat(65), "a/b"] {
            assert!(!is_valid(bad), "{bad:?}");
        }
        assert!(is_valid("my-box.1"));
    }
}

//! A file in memory that cannot grow: output of a child that is kept, but never fills anything.
//!
//! A sandbox's processes inherit the descriptors of `runsc create` and may be taken over by their guest. With a file on disk
//! or a pipe as stderr such a one could fill the disk or wait for us for ever. Writing past the end of this file fails with
//! EPERM. Source: `memfd_create(2)`, `F_SEAL_GROW` in fcntl(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A bounded log.
#[derive(Debug)]
pub struct BoundedLog {
    file: File,
    size: usize,
}

impl BoundedLog {
    /// An empty one that takes `size` bytes.
    pub fn new(size: usize) -> io::Result<Self> {
        let fd = memfd_create(
            c"cloche-log",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        let file = File::from(fd);
        file.set_len(u64::try_from(size).map_err(io::Error::other)?)?;
        fcntl(
            &file,
            FcntlArg::F_ADD_SEALS(
                SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL,
            ),
        )?;
        Ok(Self { file, size })
    }

    /// The file, for a child's stdout or stderr.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What was written so far: at most `most` bytes from the beginning, as printable text in one line.
    pub fn text(&self, most: usize) -> io::Result<String> {
        let mut bytes = vec![0; self.size.min(most)];
        self.file.read_exact_at(&mut bytes, 0)?;
        let written = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        Ok(printable(&bytes[..written]))
    }
}

/// Text from somebody whom we do not trust, made safe for a log or a terminal: one line, control characters as blanks.
pub fn printable(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn keeps_what_fits_and_refuses_the_rest() {
        let log = BoundedLog::new(8).expect("made");
        let mut writer = log.file.try_clone().expect("cloned");
        writer.write_all(b"ab\ncd").expect("fits");
        assert_eq!(log.text(100).expect("read"), "ab cd");
        assert_eq!(log.text(2).expect("read"), "ab");
        let error = writer.write_all(b"0123456789").expect_err("must not fit");
        assert_eq!(error.raw_os_error(), Some(nix::libc::EPERM));
        assert_eq!(log.file.metadata().expect("stat").len(), 8);
        assert!(writer.set_len(1 << 20).is_err(), "grew");
    }

    #[test]
    fn untrusted_text_becomes_one_printable_line() {
        assert_eq!(printable(b"\x1b[31mred\r\nx\xff "), "[31mred  x\u{fffd}");
    }
}

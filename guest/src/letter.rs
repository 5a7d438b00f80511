//! What holder and spawner tell each other that is longer than a packet can be: messages in files that are in memory.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use cloche_proto::frame::MAX_FRAME;
use cloche_proto::frame::codec::{self, Decoder};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The most bytes of a letter: those of a frame, and of its length.
const MAX: u64 = MAX_FRAME as u64 + 4;

/// A new letter, to be read from its beginning.
pub fn write<M: prost::Message>(message: &M) -> nix::Result<OwnedFd> {
    let bytes = codec::encode(message).map_err(|_| Errno::EMSGSIZE)?;
    let mut file = File::from(memfd_create("letter", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes)
        .and_then(|()| file.rewind())
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
    Ok(file.into())
}

/// What a letter says; `None` where it is none.
pub fn read<M: prost::Message + Default>(letter: OwnedFd) -> Option<M> {
    let mut bytes = Vec::new();
    File::from(letter).take(MAX).read_to_end(&mut bytes).ok()?;
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    decoder.next().ok().flatten()
}

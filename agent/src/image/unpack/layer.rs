//! One layer: decompress, verify, read the tar, put its entries into the tree and its files' bytes into the spool.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use serde::{Deserialize, Serialize};
use tar::EntryType;

use super::BLOCK;
use super::fault::{Fault, shown};
use super::path::{EntryPath, Meaning};
use super::tree::{Content, Meta, Tree};
use crate::image::digest::{Digest, Meter};

/// Largest window of a zstd frame, as a power of two: 128 MiB, what `zstd --long` makes.
const ZSTD_WINDOW_LOG: u32 = 27;

/// How a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::image) enum Compression {
    /// Not at all.
    None,
    Gzip,
    Zstd,
}

/// Bounds of an unpack. What exceeds one makes the image invalid.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::image) struct Bounds {
    /// Bytes of all layers, decompressed.
    pub(in crate::image) bytes: u64,
    /// Inodes, and names, and whiteouts.
    pub(in crate::image) entries: u32,
    /// Directories between the root and an entry.
    pub(in crate::image) depth: usize,
}

/// File contents, one after another, each on a block boundary.
pub(super) struct Spool {
    file: BufWriter<File>,
    end: u64,
    /// Bytes of contents so far. A sparse file has more of them than its layer.
    taken: u64,
}

impl Spool {
    /// Begins at the start of an empty file.
    pub(super) fn new(file: File) -> Self {
        Self {
            file: BufWriter::with_capacity(1 << 18, file),
            end: 0,
            taken: 0,
        }
    }

    /// The file, all of it written.
    pub(super) fn finish(self) -> Result<File, Fault> {
        self.file
            .into_inner()
            .map_err(|error| Fault::io("write the spool", error.error()))
    }

    /// Takes exactly `size` bytes and tells where they are; at most `limit` of all files together.
    fn take(
        &mut self,
        from: &mut impl Read,
        size: u64,
        limit: u64,
        name: &[u8],
    ) -> Result<u64, Fault> {
        self.taken = self.taken.saturating_add(size);
        if self.taken > limit {
            return Err(too_large(limit));
        }
        let offset = self.end.next_multiple_of(BLOCK);
        let spooling = |error: &io::Error| Fault::io("write the spool", error);
        if offset != self.end {
            self.file
                .seek(SeekFrom::Start(offset))
                .map_err(|error| spooling(&error))?;
        }
        let mut left = size;
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let want = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let got = from
                .read(&mut buffer[..want])
                .map_err(|error| malformed(&error))?;
            if got == 0 {
                return Err(Fault::Invalid(format!(
                    "a layer ends in the middle of the file {}",
                    shown(name)
                )));
            }
            self.file
                .write_all(&buffer[..got])
                .map_err(|error| spooling(&error))?;
            left -= got as u64;
        }
        self.end = offset + size;
        Ok(offset)
    }
}

/// What was met in layers besides entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Met {
    /// Bytes read so far, decompressed, of all layers.
    pub(super) bytes: u64,
    /// Device nodes that were left out.
    pub(super) devices: u64,
}

/// Lays one layer over the tree. `diff_id`: what its uncompressed bytes must hash to.
pub(super) fn apply(
    blob: File,
    compression: Compression,
    diff_id: Option<Digest>,
    bounds: &Bounds,
    tree: &mut Tree,
    spool: &mut Spool,
    met: &mut Met,
) -> Result<(), Fault> {
    let blob = BufReader::with_capacity(1 << 17, blob);
    let plain: Box<dyn Read> = match compression {
        Compression::None => Box::new(blob),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(blob)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(blob)
                .map_err(|error| malformed(&error))?;
            decoder
                .window_log_max(ZSTD_WINDOW_LOG)
                .map_err(|error| malformed(&error))?;
            Box::new(decoder)
        }
    };
    let mut stream = Stream {
        plain,
        meter: Meter::default(),
        allowed: bounds.bytes - met.bytes.min(bounds.bytes),
    };
    let read = put_all(&mut stream, bounds, tree, spool, met);
    if stream.meter.length() > stream.allowed {
        return Err(too_large(bounds.bytes));
    }
    read?;
    met.bytes += stream.meter.length();
    let found = stream.meter.digest();
    if let Some(wanted) = diff_id
        && wanted != found
    {
        return Err(Fault::Invalid(format!(
            "a layer's uncompressed content is {found}, its configuration says {wanted}"
        )));
    }
    tree.end_layer()
}

/// Puts all entries of the tar where they belong, and reads on to the end of the stream.
fn put_all(
    stream: &mut Stream,
    bounds: &Bounds,
    tree: &mut Tree,
    spool: &mut Spool,
    met: &mut Met,
) -> Result<(), Fault> {
    let mut archive = tar::Archive::new(&mut *stream);
    for entry in archive.entries().map_err(|error| malformed(&error))? {
        let mut entry = entry.map_err(|error| malformed(&error))?;
        put(&mut entry, bounds, tree, spool, met)?;
    }
    // The end of the archive is not the end of the stream: its padding belongs to the digest.
    io::copy(stream, &mut io::sink()).map_err(|error| malformed(&error))?;
    Ok(())
}

/// Puts one entry of the tar where it belongs.
fn put(
    entry: &mut tar::Entry<'_, impl Read>,
    bounds: &Bounds,
    tree: &mut Tree,
    spool: &mut Spool,
    met: &mut Met,
) -> Result<(), Fault> {
    let kind = entry.header().entry_type();
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let name = entry.path_bytes().into_owned();
    let path = match EntryPath::parse(&name, bounds.depth)?.meaning()? {
        Meaning::Entry(path) => path,
        Meaning::Whiteout(path) => return tree.hide(path),
        Meaning::Opaque(path) => return tree.hide_children(path),
        Meaning::Bookkeeping => return Ok(()),
    };
    let meta = meta(entry, &name)?;
    let target = |entry: &tar::Entry<'_, _>| {
        entry
            .link_name_bytes()
            .map(std::borrow::Cow::into_owned)
            .filter(|target| !target.is_empty() && target.len() < 4096 && !target.contains(&0))
            .ok_or_else(|| {
                Fault::Invalid(format!("the link {} has no proper target", path.shown()))
            })
    };
    match kind {
        // Archives from before POSIX mark a directory by its name alone.
        EntryType::Regular if name.ends_with(b"/") => tree.put(&path, meta, Content::Directory),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let size = entry.size();
            let offset = spool.take(entry, size, bounds.bytes, &name)?;
            tree.put(&path, meta, Content::File { offset, size })
        }
        EntryType::Directory => tree.put(&path, meta, Content::Directory),
        EntryType::Symlink => {
            let target = target(entry)?.into_boxed_slice();
            tree.put(&path, meta, Content::Symlink(target))
        }
        EntryType::Link => {
            let target = EntryPath::parse(&target(entry)?, bounds.depth)?;
            tree.link(&path, &target)
        }
        EntryType::Fifo => tree.put(&path, meta, Content::Fifo),
        // A sandbox has its own /dev; others could not be opened in it. So is the 0/0 device by which overlayfs marks a whiteout: in a layer it means nothing.
        EntryType::Char | EntryType::Block => {
            met.devices += 1;
            Ok(())
        }
        other => Err(Fault::Invalid(format!(
            "{} is of a kind that is not supported ({:?})",
            path.shown(),
            char::from(other.as_byte())
        ))),
    }
}

/// Owner, mode and time, from the header and, where it has more, the PAX records.
fn meta(entry: &mut tar::Entry<'_, impl Read>, name: &[u8]) -> Result<Meta, Fault> {
    let bad = |what: &str| Fault::Invalid(format!("{} has a malformed {what}", shown(name)));
    let header = entry.header();
    let id = |value: io::Result<u64>, what| {
        let id = value.ok().and_then(|value| u32::try_from(value).ok());
        // The last one means "none" to system calls.
        id.filter(|id| *id != u32::MAX).ok_or_else(|| bad(what))
    };
    let mode = header.mode().map_err(|_| bad("mode"))?;
    let uid = id(header.uid(), "owner")?;
    let gid = id(header.gid(), "group")?;
    // A time before 1970 reads as one far in the future: such files are as old as can be.
    let header_time = header.mtime().map_err(|_| bad("time"))?;
    let mut time = (i64::try_from(header_time).map_or(0, |_| header_time), 0);
    if let Some(records) = entry.pax_extensions().map_err(|error| malformed(&error))? {
        for record in records {
            let record = record.map_err(|error| malformed(&error))?;
            let key = record.key_bytes();
            if key == b"mtime" {
                time = pax_time(record.value_bytes()).ok_or_else(|| bad("time"))?;
            } else if key.starts_with(b"GNU.sparse.") {
                return Err(Fault::Invalid(format!(
                    "{} is a sparse file in PAX format, which is not supported",
                    shown(name)
                )));
            }
        }
    }
    Ok(Meta {
        mode: (mode & 0o7777) as u16,
        uid,
        gid,
        mtime: time.0,
        mtime_nanos: time.1,
    })
}

/// Seconds and nanoseconds of a PAX time (`1700000000.123456789`); before 1970 is 1970.
fn pax_time(value: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    if text.starts_with('-') {
        return Some((0, 0));
    }
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let nanos: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let seconds = seconds.parse::<u64>().ok()?;
    i64::try_from(seconds).ok()?;
    Some((seconds, nanos.parse().ok()?))
}

/// A decompressed layer, hashed and bounded.
struct Stream {
    plain: Box<dyn Read>,
    meter: Meter,
    allowed: u64,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.plain.read(buffer)?;
        self.meter.update(&buffer[..got]);
        if self.meter.length() > self.allowed {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(got)
    }
}

fn too_large(limit: u64) -> Fault {
    Fault::Invalid(format!("its layers hold more than {limit} bytes"))
}

/// Whatever reading a layer says: the blob was verified and lies on a local disk, so its content is at fault.
fn malformed(error: &io::Error) -> Fault {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(200));
    Fault::Invalid(format!("a layer cannot be read: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_times() {
        for (text, wanted) in [
            ("0", Some((0, 0))),
            ("12", Some((12, 0))),
            ("12.5", Some((12, 500_000_000))),
            ("12.1234567891", Some((12, 123_456_789))),
            ("-3.5", Some((0, 0))),
            ("12.", Some((12, 0))),
            ("", None),
            ("x", None),
            ("1.x", None),
            ("1.-5", None),
            ("99999999999999999999", None),
            ("18446744073709551615", None),
        ] {
            assert_eq!(pax_time(text.as_bytes()), wanted, "{text}");
        }
    }
}

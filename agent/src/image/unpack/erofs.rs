//! Writes a [`Tree`] as an EROFS image: uncompressed, no extended attributes, no inline data of files, 4 KiB blocks.
//!
//! That is the part of EROFS that gVisor maps (its pkg/erofs refuses compression and inodes with attributes, and cannot map a
//! file whose tail is inline). The bytes are a function of the tree alone: no clock, no random UUID, names in the order of their
//! bytes. On-disk format: `fs/erofs/erofs_fs.h` of Linux and `Documentation/filesystems/erofs.rst`.
//!
//! ```text
//!   block 0        superblock at 1024
//!   block 1 ...    inodes (64 bytes each, short targets of symbolic links behind them), in the order of a depth-first walk
//!   then           names of directories, one or more blocks each, in the same order
//!   then           contents of files, each on a block boundary, in the same order
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use super::fault::Fault;
use super::tree::{Kind, Node, NodeId, Tree};
use super::{BLOCK, BLOCK_BYTES};

const MAGIC: u32 = 0xe0f5_e1e2;
const SUPERBLOCK_AT: usize = 1024;
/// The superblock's checksum is there; inode times are modification times.
const COMPATIBLE: u32 = 0x1 | 0x2;
/// Inodes start here. With the metadata area at block 0 the root's number is 128: it must fit 16 bits, and must not be 0.
const INODES_AT: u64 = ROOT as u64 * SLOT;
const ROOT: u16 = 128;
const SLOT: u64 = 32;
const INODE: u64 = INODE_BYTES as u64;
const INODE_BYTES: usize = 64;
const DIRENT: usize = 12;

/// An inode with its place.
struct Placed {
    node: NodeId,
    links: u32,
    /// Offset in the image.
    at: u64,
    /// Names and contents: size in bytes and first block. An inline target has no block.
    size: u64,
    block: u32,
    inline: bool,
    /// Only of directories: the inode number of the parent.
    parent: usize,
}

/// Everything that is decided before the first byte is written.
struct Plan {
    inodes: Vec<Placed>,
    /// By [`NodeId::index`]: index into `inodes`.
    places: Vec<u32>,
    blocks: u32,
}

/// Writes `tree`, with file contents from `spool`, to the empty file `out`. Returns the image's size in bytes.
pub(super) fn write(tree: &Tree, spool: &File, out: &File) -> Result<u64, Fault> {
    let plan = plan(tree)?;
    let size = u64::from(plan.blocks) * BLOCK;
    let failed = |error: io::Error| Fault::io("write the image", &error);
    out.set_len(size).map_err(failed)?;
    write_metadata(tree, &plan, out).map_err(failed)?;
    for placed in &plan.inodes {
        if let Kind::File { offset, size } = tree.node(placed.node).kind {
            copy(spool, offset, out, u64::from(placed.block) * BLOCK, size).map_err(failed)?;
        }
    }
    Ok(size)
}

/// Gives every inode its number and every content its blocks.
fn plan(tree: &Tree) -> Result<Plan, Fault> {
    let (mut inodes, places) = walk(tree);
    let mut at = INODES_AT;
    for placed in &mut inodes {
        let tail = match &tree.node(placed.node).kind {
            Kind::Symlink(target) => {
                placed.size = target.len() as u64;
                placed.inline = INODE + placed.size <= BLOCK;
                if placed.inline { placed.size } else { 0 }
            }
            Kind::File { size, .. } => {
                placed.size = *size;
                0
            }
            Kind::Directory(_) | Kind::Fifo => 0,
        };
        // Neither an inode nor its tail may lie in two blocks.
        if at % BLOCK + INODE + tail > BLOCK {
            at = at.next_multiple_of(BLOCK);
        }
        placed.at = at;
        at = (at + INODE + tail).next_multiple_of(SLOT);
    }
    for index in 0..inodes.len() {
        if let Kind::Directory(_) = tree.node(inodes[index].node).kind {
            let names = names(tree, &inodes, &places, index);
            let size = packed_size(&pack(&names));
            drop(names);
            inodes[index].size = size;
        }
    }
    let mut next = at.div_ceil(BLOCK);
    let is_directory = |placed: &Placed| matches!(tree.node(placed.node).kind, Kind::Directory(_));
    let (directories, others): (Vec<_>, Vec<_>) =
        inodes.iter_mut().partition(|placed| is_directory(placed));
    for placed in directories.into_iter().chain(others) {
        if placed.size > 0 && !placed.inline {
            placed.block = block_number(next)?;
            next += placed.size.div_ceil(BLOCK);
        }
    }
    Ok(Plan {
        inodes,
        places,
        blocks: block_number(next)?,
    })
}

fn block_number(block: u64) -> Result<u32, Fault> {
    u32::try_from(block).map_err(|_| Fault::Invalid("it is larger than EROFS can hold".to_owned()))
}

/// All inodes that have a name, depth first, names in order; and where each is.
fn walk(tree: &Tree) -> (Vec<Placed>, Vec<u32>) {
    let mut places = vec![u32::MAX; tree.len()];
    let mut inodes: Vec<Placed> = Vec::new();
    let mut open = vec![(Tree::ROOT, 0)];
    while let Some((node, parent)) = open.pop() {
        let known = places[node.index()];
        if known != u32::MAX {
            inodes[known as usize].links += 1;
            continue;
        }
        let index = inodes.len();
        // Not more inodes than the tree has, which are counted in 32 bits.
        places[node.index()] = u32::try_from(index).unwrap_or(u32::MAX);
        let mut links = 1;
        if let Kind::Directory(directory) = tree.node(node).kind {
            links = 2;
            for (_, child) in tree.names(directory).rev() {
                if matches!(tree.node(child).kind, Kind::Directory(_)) {
                    links += 1;
                }
                open.push((child, index));
            }
        }
        inodes.push(Placed {
            node,
            links,
            at: 0,
            size: 0,
            block: 0,
            inline: false,
            parent,
        });
    }
    (inodes, places)
}

/// A name as a directory block holds it.
struct Dirent<'a> {
    name: &'a [u8],
    /// Index of the inode.
    inode: usize,
    kind: u8,
}

/// The names of a directory, `.` and `..` among them where the order of bytes puts them.
fn names<'a>(tree: &'a Tree, inodes: &[Placed], places: &[u32], index: usize) -> Vec<Dirent<'a>> {
    const DIRECTORY: u8 = 2;
    let Kind::Directory(directory) = tree.node(inodes[index].node).kind else {
        return Vec::new();
    };
    let children = tree.names(directory).map(|(name, node)| Dirent {
        name,
        inode: places[node.index()] as usize,
        kind: match tree.node(node).kind {
            Kind::File { .. } => 1,
            Kind::Directory(_) => DIRECTORY,
            Kind::Fifo => 5,
            Kind::Symlink(_) => 7,
        },
    });
    let dot = |name, inode| Dirent {
        name,
        inode,
        kind: DIRECTORY,
    };
    let mut names: Vec<_> = [dot(b".", index), dot(b"..", inodes[index].parent)]
        .into_iter()
        .chain(children)
        .collect();
    names.sort_by_key(|dirent| dirent.name);
    names
}

/// Splits names into runs that fill a block each.
fn pack<'a, 'n>(names: &'n [Dirent<'a>]) -> Vec<&'n [Dirent<'a>]> {
    let mut blocks = Vec::new();
    let mut start = 0;
    let mut used = 0;
    for (index, dirent) in names.iter().enumerate() {
        let needs = DIRENT + dirent.name.len();
        if used + needs > BLOCK_BYTES {
            blocks.push(&names[start..index]);
            start = index;
            used = 0;
        }
        used += needs;
    }
    blocks.push(&names[start..]);
    blocks
}

fn packed_size(blocks: &[&[Dirent<'_>]]) -> u64 {
    let last = blocks.last().map_or(0, |last| {
        last.iter().map(|dirent| DIRENT + dirent.name.len()).sum()
    });
    (blocks.len() as u64).saturating_sub(1) * BLOCK + last as u64
}

/// Superblock, inodes and names.
fn write_metadata(tree: &Tree, plan: &Plan, out: &File) -> io::Result<()> {
    out.write_all_at(&superblock(plan), 0)?;
    let mut writer = BufWriter::with_capacity(1 << 18, out);
    writer.seek(SeekFrom::Start(INODES_AT))?;
    let mut at = INODES_AT;
    for (index, placed) in plan.inodes.iter().enumerate() {
        pad(&mut writer, placed.at - at)?;
        let node = tree.node(placed.node);
        writer.write_all(&inode(node, placed, index))?;
        at = placed.at + INODE;
        if let Kind::Symlink(target) = &node.kind
            && placed.inline
        {
            writer.write_all(target)?;
            at += placed.size;
        }
    }
    for (index, placed) in plan.inodes.iter().enumerate() {
        if let Kind::Directory(_) = tree.node(placed.node).kind {
            pad(&mut writer, u64::from(placed.block) * BLOCK - at)?;
            at = u64::from(placed.block) * BLOCK;
            for run in pack(&names(tree, &plan.inodes, &plan.places, index)) {
                pad(&mut writer, at.next_multiple_of(BLOCK) - at)?;
                let block = directory_block(run, &plan.inodes);
                writer.write_all(&block)?;
                at = at.next_multiple_of(BLOCK) + block.len() as u64;
            }
        }
    }
    writer.flush()?;
    drop(writer);
    for placed in &plan.inodes {
        if let Kind::Symlink(target) = &tree.node(placed.node).kind
            && !placed.inline
        {
            out.write_all_at(target, u64::from(placed.block) * BLOCK)?;
        }
    }
    Ok(())
}

fn pad(writer: &mut impl Write, count: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(count), writer)?;
    Ok(())
}

/// Block 0.
fn superblock(plan: &Plan) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        block[SUPERBLOCK_AT + at..SUPERBLOCK_AT + at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &MAGIC.to_le_bytes());
    put(8, &COMPATIBLE.to_le_bytes());
    put(12, &[12]); // log2 of the block size
    put(14, &ROOT.to_le_bytes());
    put(16, &(plan.inodes.len() as u64).to_le_bytes());
    put(36, &plan.blocks.to_le_bytes());
    let checksum = crc32c(&block[SUPERBLOCK_AT..]);
    block[SUPERBLOCK_AT + 4..SUPERBLOCK_AT + 8].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// CRC-32C without the final inversion, as the kernel computes it for superblocks.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

/// An extended inode.
fn inode(node: &Node, placed: &Placed, index: usize) -> [u8; INODE_BYTES] {
    let layout: u16 = if placed.inline { 2 } else { 0 };
    let kind: u16 = match node.kind {
        Kind::Fifo => 0o010_000,
        Kind::Directory(_) => 0o040_000,
        Kind::File { .. } => 0o100_000,
        Kind::Symlink(_) => 0o120_000,
    };
    let mut bytes = [0; INODE_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(1 | layout << 1).to_le_bytes());
    put(4, &(kind | node.meta.mode).to_le_bytes());
    put(8, &placed.size.to_le_bytes());
    put(16, &placed.block.to_le_bytes());
    put(
        20,
        &u32::try_from(index + 1).unwrap_or(u32::MAX).to_le_bytes(),
    );
    put(24, &node.meta.uid.to_le_bytes());
    put(28, &node.meta.gid.to_le_bytes());
    put(32, &node.meta.mtime.to_le_bytes());
    put(40, &node.meta.mtime_nanos.to_le_bytes());
    put(44, &placed.links.to_le_bytes());
    bytes
}

/// One block of names: all entries first, then the bytes of all names.
fn directory_block(run: &[Dirent<'_>], inodes: &[Placed]) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    let mut name_at = run.len() * DIRENT;
    for dirent in run {
        block.extend_from_slice(&(inodes[dirent.inode].at / SLOT).to_le_bytes());
        // A block has 4096 bytes.
        block.extend_from_slice(&u16::try_from(name_at).unwrap_or(u16::MAX).to_le_bytes());
        block.extend_from_slice(&[dirent.kind, 0]);
        name_at += dirent.name.len();
    }
    for dirent in run {
        block.extend_from_slice(dirent.name);
    }
    block
}

/// Copies contents; the standard library does it in the kernel where that can (shared extents on XFS and Btrfs).
fn copy(mut from: &File, from_at: u64, mut to: &File, to_at: u64, size: u64) -> io::Result<()> {
    from.seek(SeekFrom::Start(from_at))?;
    to.seek(SeekFrom::Start(to_at))?;
    if io::copy(&mut from.take(size), &mut to)? < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

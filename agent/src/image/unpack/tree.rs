//! The tree that layers make: plain data, no file system. Names cannot reach anything outside it, because there is nothing else.
//!
//! Whiteouts hide what *lower* layers have and never what their own layer has, wherever in the layer they stand: so every name
//! remembers its layer, and whiteouts are applied when their layer ends.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::{Fault, shown};
use super::path::{EntryPath, shown_parts};

/// Directories that every image gets: mount points of the sandbox, with their modes where the image lacks them.
const RESERVED: [(&[u8], u16); 5] = [
    (b"dev", 0o755),
    (b"proc", 0o555),
    (b"sys", 0o555),
    (b"tmp", 0o1777),
    (OWN, 0o755),
];
/// Where the node mounts its own init.
const OWN: &[u8] = b".cloche";

/// What an inode says of itself besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds since 1970.
    pub(super) mtime: u64,
    pub(super) mtime_nanos: u32,
}

impl Meta {
    /// Of a directory that no layer describes: root's, time 0, so that equal layers give equal bytes.
    const fn unsaid(mode: u16) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            mtime: 0,
            mtime_nanos: 0,
        }
    }
}

/// What a layer's entry puts at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Directory,
    /// Bytes `[offset, offset + size)` of the spool.
    File {
        offset: u64,
        size: u64,
    },
    Symlink(Box<[u8]>),
    Fifo,
}

/// An inode of the tree.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) meta: Meta,
    pub(super) kind: Kind,
}

/// What an inode is.
#[derive(Debug)]
pub(super) enum Kind {
    Directory(DirectoryId),
    File { offset: u64, size: u64 },
    Symlink(Box<[u8]>),
    Fifo,
}

/// Index of an inode in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(u32);

impl NodeId {
    /// As an index.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Index of a directory's names in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectoryId(u32);

/// The names of a directory, in the order of their bytes.
type Names = BTreeMap<Box<[u8]>, Name>;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
struct Name {
    node: NodeId,
    /// The layer that put it there.
    layer: u32,
}

/// The image's tree while layers are laid over one another.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    directories: Vec<Names>,
    layer: u32,
    max_entries: u32,
    hidden: BTreeSet<EntryPath>,
    opaque: BTreeSet<EntryPath>,
    links: usize,
}

impl Tree {
    /// The root: always the first inode.
    pub(super) const ROOT: NodeId = NodeId(0);
    const ROOT_DIRECTORY: DirectoryId = DirectoryId(0);

    /// An empty root directory. Not more than `max_entries` inodes are ever made in it.
    pub(super) fn new(max_entries: u32) -> Self {
        Self {
            nodes: vec![Node {
                meta: Meta::unsaid(0o755),
                kind: Kind::Directory(Self::ROOT_DIRECTORY),
            }],
            directories: vec![Names::new()],
            layer: 0,
            max_entries,
            hidden: BTreeSet::new(),
            opaque: BTreeSet::new(),
            links: 0,
        }
    }

    /// The inode `id`.
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The names of a directory and their inodes, in the order of the names' bytes.
    pub(super) fn names(
        &self,
        id: DirectoryId,
    ) -> impl DoubleEndedIterator<Item = (&[u8], NodeId)> {
        self.directories[id.0 as usize]
            .iter()
            .map(|(name, found)| (&**name, found.node))
    }

    /// How many inodes were ever made: every [`NodeId`]'s index is below this.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Puts an entry of the current layer. Of two entries at one path the later one wins; a directory keeps its children.
    pub(super) fn put(
        &mut self,
        path: &EntryPath,
        meta: Meta,
        content: Content,
    ) -> Result<(), Fault> {
        let is_directory = content == Content::Directory;
        check_reserved(path, is_directory)?;
        let Some((parent, name)) = path.split() else {
            if !is_directory {
                return Err(Fault::Invalid("its root is not a directory".to_owned()));
            }
            self.nodes[Self::ROOT.index()].meta = meta;
            return Ok(());
        };
        let parent = self.make_parents(parent)?;
        if is_directory
            && let Some(found) = self.names_ref(parent).get(name)
            && matches!(self.node(found.node).kind, Kind::Directory(_))
        {
            let node = found.node;
            self.nodes[node.index()].meta = meta;
            self.name(parent, name, node);
            return Ok(());
        }
        let node = match content {
            Content::Directory => self.make_directory(meta)?,
            Content::File { offset, size } => self.make(meta, Kind::File { offset, size })?,
            Content::Symlink(target) => self.make(meta, Kind::Symlink(target))?,
            Content::Fifo => self.make(meta, Kind::Fifo)?,
        };
        self.name(parent, name, node);
        Ok(())
    }

    /// Gives the file at `target` a further name. The target must be in the image already: in this layer or a lower one.
    pub(super) fn link(&mut self, path: &EntryPath, target: &EntryPath) -> Result<(), Fault> {
        check_reserved(path, false)?;
        let found = self
            .find(target.parts())?
            .filter(|node| !matches!(self.node(*node).kind, Kind::Directory(_)));
        let (Some(node), Some((parent, name))) = (found, path.split()) else {
            return Err(Fault::Invalid(format!(
                "the hard link {} names {}, which is no file of the image",
                path.shown(),
                target.shown()
            )));
        };
        let parent = self.make_parents(parent)?;
        self.check_count(self.links + 1)?;
        self.links += 1;
        self.name(parent, name, node);
        Ok(())
    }

    /// What lower layers have at `path` is gone when this layer ends.
    pub(super) fn hide(&mut self, path: EntryPath) -> Result<(), Fault> {
        if path.parts().len() > 1 {
            check_reserved(&path, false)?;
        }
        self.hidden.insert(path);
        self.check_count(self.hidden.len())
    }

    /// What lower layers have in the directory `path` is gone when this layer ends.
    pub(super) fn hide_children(&mut self, path: EntryPath) -> Result<(), Fault> {
        self.opaque.insert(path);
        self.check_count(self.opaque.len())
    }

    /// Ends the layer: applies its whiteouts. What follows belongs to the next one.
    pub(super) fn end_layer(&mut self) -> Result<(), Fault> {
        for path in std::mem::take(&mut self.opaque) {
            if let Some(id) = self.find(path.parts())? {
                let directory = self.as_directory(id, path.parts())?;
                self.drop_lower(directory);
            }
        }
        for path in std::mem::take(&mut self.hidden) {
            if let Some((parent, name)) = path.split()
                && let Some(id) = self.find(parent)?
            {
                let directory = self.as_directory(id, parent)?;
                self.drop_lower_name(directory, name);
            }
        }
        self.layer += 1;
        Ok(())
    }

    /// Adds the mount points that the image lacks.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        for (name, mode) in RESERVED {
            if !self.names_ref(Self::ROOT_DIRECTORY).contains_key(name) {
                let node = self.make_directory(Meta::unsaid(mode))?;
                self.name(Self::ROOT_DIRECTORY, name, node);
            }
        }
        Ok(())
    }

    /// The inode at `parts`. `None`: nothing there. A symbolic link on the way is an error, never followed.
    fn find(&self, parts: &[Box<[u8]>]) -> Result<Option<NodeId>, Fault> {
        let mut at = Self::ROOT;
        for (depth, part) in parts.iter().enumerate() {
            let directory = self.as_directory(at, &parts[..depth])?;
            match self.names_ref(directory).get(part) {
                Some(found) => at = found.node,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// The directory at `parts`; makes what is missing.
    fn make_parents(&mut self, parts: &[Box<[u8]>]) -> Result<DirectoryId, Fault> {
        let mut at = Self::ROOT;
        for (depth, part) in parts.iter().enumerate() {
            let directory = self.as_directory(at, &parts[..depth])?;
            at = if let Some(found) = self.names_ref(directory).get(part) {
                found.node
            } else {
                let node = self.make_directory(Meta::unsaid(unsaid_mode(&parts[..=depth])))?;
                self.name(directory, part, node);
                node
            };
        }
        self.as_directory(at, parts)
    }

    fn as_directory(&self, id: NodeId, parts: &[Box<[u8]>]) -> Result<DirectoryId, Fault> {
        match &self.node(id).kind {
            Kind::Directory(directory) => Ok(*directory),
            Kind::Symlink(target) => Err(Fault::Invalid(format!(
                "a layer goes through the symbolic link {} (to {})",
                shown_parts(parts),
                shown(target)
            ))),
            Kind::File { .. } | Kind::Fifo => Err(Fault::Invalid(format!(
                "a layer goes below {}, which is not a directory",
                shown_parts(parts)
            ))),
        }
    }

    /// Removes from a directory what lower layers put there.
    fn drop_lower(&mut self, directory: DirectoryId) {
        let names: Vec<Box<[u8]>> = self.names_ref(directory).keys().cloned().collect();
        for name in names {
            self.drop_lower_name(directory, &name);
        }
    }

    /// Removes what lower layers have at `name` of a directory.
    fn drop_lower_name(&mut self, parent: DirectoryId, name: &[u8]) {
        let Some(found) = self.names_ref(parent).get(name).copied() else {
            return;
        };
        let mut something_left = false;
        if let Kind::Directory(directory) = self.node(found.node).kind {
            self.drop_lower(directory);
            something_left = !self.names_ref(directory).is_empty();
        }
        if found.layer == self.layer {
            return;
        }
        if something_left {
            // This layer has something below a directory that it hides and does not describe: a new directory.
            self.nodes[found.node.index()].meta = Meta::unsaid(0o755);
            self.name(parent, name, found.node);
        } else {
            self.directories[parent.0 as usize].remove(name);
        }
    }

    fn names_ref(&self, id: DirectoryId) -> &Names {
        &self.directories[id.0 as usize]
    }

    /// Names an inode, in the name of the current layer.
    fn name(&mut self, parent: DirectoryId, name: &[u8], node: NodeId) {
        let layer = self.layer;
        self.directories[parent.0 as usize].insert(name.into(), Name { node, layer });
    }

    fn make_directory(&mut self, meta: Meta) -> Result<NodeId, Fault> {
        // Bounded by max_entries, as inodes are.
        let id = DirectoryId(u32::try_from(self.directories.len()).unwrap_or(u32::MAX));
        let node = self.make(meta, Kind::Directory(id))?;
        self.directories.push(Names::new());
        Ok(node)
    }

    fn make(&mut self, meta: Meta, kind: Kind) -> Result<NodeId, Fault> {
        self.check_count(self.nodes.len())?;
        // Bounded by max_entries, which is a u32.
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node { meta, kind });
        Ok(id)
    }

    /// Fails when there is one more than the limit of whatever is counted (the root is free).
    fn check_count(&self, count: usize) -> Result<(), Fault> {
        if count > self.max_entries as usize {
            return Err(Fault::Invalid(format!(
                "it has more than {} entries",
                self.max_entries
            )));
        }
        Ok(())
    }
}

/// The sandbox mounts over these: an image that has something else there would be hidden or would break it.
fn check_reserved(path: &EntryPath, is_directory: bool) -> Result<(), Fault> {
    let parts = path.parts();
    let Some(first) = parts.first() else {
        return Ok(());
    };
    if parts.len() == 1 && !is_directory && RESERVED.iter().any(|(name, _)| *name == &**first) {
        return Err(Fault::Invalid(format!(
            "{} must be a directory: sandboxes mount there",
            path.shown()
        )));
    }
    if parts.len() > 1 && **first == *OWN {
        return Err(Fault::Invalid(format!(
            "{} lies in `/.cloche`, which is reserved for the sandbox's init",
            path.shown()
        )));
    }
    Ok(())
}

/// The mode of a directory that a layer needs and does not describe.
fn unsaid_mode(parts: &[Box<[u8]>]) -> u16 {
    match parts {
        [only] => RESERVED
            .iter()
            .find(|(name, _)| **name == **only)
            .map_or(0o755, |(_, mode)| *mode),
        _ => 0o755,
    }
}

#[cfg(test)]
mod tests;

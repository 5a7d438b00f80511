//! Names in layers: hostile bytes until parsed here.

use super::fault::{Fault, shown};

/// Longest name that a layer may give to an entry, in bytes (`PATH_MAX` of Linux less the NUL).
const PATH_MAX: usize = 4095;
/// Longest part of a name, in bytes: the limit of EROFS and of Linux.
const NAME_MAX: usize = 255;

/// A path below the image's root: no part is empty, `.`, `..`, or too long. Empty: the root itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryPath(Vec<Part>);

/// A part of a path.
pub(super) type Part = Box<[u8]>;

/// What a layer says at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Something to have at this path.
    Entry(EntryPath),
    /// What lower layers have at this path is gone.
    Whiteout(EntryPath),
    /// What lower layers have in this directory is gone; the directory stays.
    Opaque(EntryPath),
    /// Bookkeeping of AUFS (`.wh..wh.plnk` and the like): not part of the image.
    Bookkeeping,
}

impl EntryPath {
    /// Parses a name of a tar entry, or the target of a hard link. A leading `/` means the image's root, as `.` does.
    pub(super) fn parse(name: &[u8], max_depth: usize) -> Result<Self, Fault> {
        if name.len() > PATH_MAX {
            return Err(Fault::Invalid(format!(
                "the name {} is longer than {PATH_MAX} bytes",
                shown(name)
            )));
        }
        if name.contains(&0) {
            return Err(Fault::Invalid(format!(
                "the name {} contains a NUL byte",
                shown(name)
            )));
        }
        let mut parts = Vec::new();
        for part in name.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    return Err(Fault::Invalid(format!(
                        "the name {} contains `..`",
                        shown(name)
                    )));
                }
                part if part.len() > NAME_MAX => {
                    return Err(Fault::Invalid(format!(
                        "a part of the name {} is longer than {NAME_MAX} bytes",
                        shown(name)
                    )));
                }
                part => parts.push(part.into()),
            }
        }
        if parts.len() > max_depth {
            return Err(Fault::Invalid(format!(
                "the name {} is more than {max_depth} directories deep",
                shown(name)
            )));
        }
        Ok(Self(parts))
    }

    /// Its parts, from the root.
    pub(super) fn parts(&self) -> &[Part] {
        &self.0
    }

    /// The parts of its parent and its own name; `None` for the root.
    pub(super) fn split(&self) -> Option<(&[Part], &[u8])> {
        self.0.split_last().map(|(name, parent)| (parent, &**name))
    }

    /// For messages: absolute, escaped, shortened.
    pub(super) fn shown(&self) -> String {
        shown_parts(&self.0)
    }

    /// What a layer means by an entry at this path (image-spec, layer.md, "Whiteouts").
    pub(super) fn meaning(self) -> Result<Meaning, Fault> {
        const PREFIX: &[u8] = b".wh.";
        let Some((parent, name)) = self.split() else {
            return Ok(Meaning::Entry(self));
        };
        if parent.iter().any(|part| part.starts_with(b".wh..wh.")) {
            return Ok(Meaning::Bookkeeping);
        }
        if parent.iter().any(|part| part.starts_with(PREFIX)) {
            return Err(Fault::Invalid(format!(
                "{} lies below a whiteout",
                self.shown()
            )));
        }
        let Some(hidden) = name.strip_prefix(PREFIX) else {
            return Ok(Meaning::Entry(self));
        };
        match hidden {
            b".wh..opq" => Ok(Meaning::Opaque(Self(parent.to_vec()))),
            _ if hidden.starts_with(PREFIX) => Ok(Meaning::Bookkeeping),
            b"" | b"." | b".." => Err(Fault::Invalid(format!(
                "{} is a whiteout of nothing",
                self.shown()
            ))),
            _ => {
                let mut parts = parent.to_vec();
                parts.push(hidden.into());
                Ok(Meaning::Whiteout(Self(parts)))
            }
        }
    }
}

/// Parts as an absolute path for messages.
pub(super) fn shown_parts(parts: &[Part]) -> String {
    let mut path = Vec::new();
    for part in parts {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    shown(&path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(name: &str) -> Result<EntryPath, Fault> {
        EntryPath::parse(name.as_bytes(), 8)
    }

    #[test]
    fn names() {
        for (name, path) in [
            ("", "/"),
            ("./", "/"),
            ("/", "/"),
            ("a", "/a"),
            ("./a//b/.", "/a/b"),
            ("/etc/passwd", "/etc/passwd"),
            ("...", "/..."),
            ("a..b/..c", "/a..b/..c"),
            ("1/2/3/4/5/6/7/8", "/1/2/3/4/5/6/7/8"),
        ] {
            assert_eq!(parse(name).unwrap().shown(), format!("`{path}`"), "{name}");
        }
        for (name, part) in [
            ("..", "`..`"),
            ("../x", "`..`"),
            ("a/../b", "`..`"),
            ("/..", "`..`"),
            ("a/..", "`..`"),
            ("a\0b", "NUL"),
            ("1/2/3/4/5/6/7/8/9", "deep"),
            (&"x".repeat(256), "part of the name"),
            (&"x/".repeat(3000), "longer than 4095"),
        ] {
            let Err(Fault::Invalid(message)) = parse(name) else {
                panic!("{name} was taken");
            };
            assert!(message.contains(part), "{name}: {message}");
            assert!(message.len() < 400, "{message}");
        }
    }

    #[test]
    fn whiteouts() {
        let meaning = |name: &str| parse(name).unwrap().meaning();
        let path = |name: &str| parse(name).unwrap();
        for (name, wanted) in [
            ("a/b", Meaning::Entry(path("a/b"))),
            ("", Meaning::Entry(path(""))),
            ("a/.wh.b", Meaning::Whiteout(path("a/b"))),
            (".wh.b", Meaning::Whiteout(path("b"))),
            ("a/.wh..b", Meaning::Whiteout(path("a/.b"))),
            ("a/.wh..wh..opq", Meaning::Opaque(path("a"))),
            (".wh..wh..opq", Meaning::Opaque(path(""))),
            (".wh..wh.plnk", Meaning::Bookkeeping),
            (".wh..wh.plnk/1.2", Meaning::Bookkeeping),
            (".whx", Meaning::Entry(path(".whx"))),
        ] {
            assert_eq!(meaning(name), Ok(wanted), "{name}");
        }
        for name in [".wh.", ".wh..", ".wh...", "a/.wh.x/b"] {
            assert!(matches!(meaning(name), Err(Fault::Invalid(_))), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_path_cannot_leave_the_root(name in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(path) = EntryPath::parse(&name, 64) {
                prop_assert!(path.parts().len() <= 64);
                for part in path.parts() {
                    prop_assert!(!part.is_empty() && part.len() <= NAME_MAX);
                    prop_assert!(!part.contains(&b'/') && !part.contains(&0));
                    prop_assert!(&**part != b"." && &**part != b"..");
                }
            }
        }

        #[test]
        fn a_meaning_never_names_a_dot(name in "(\\.wh\\.|\\.|/|a|wh|opq){0,12}") {
            if let Ok(Meaning::Whiteout(path)) = EntryPath::parse(name.as_bytes(), 64).and_then(EntryPath::meaning) {
                let (_, last) = path.split().unwrap();
                prop_assert!(!last.is_empty() && last != b"." && last != b".." && !last.contains(&b'/'));
            }
        }
    }
}

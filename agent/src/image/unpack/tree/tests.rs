use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::path::Meaning;
use super::*;

fn path(name: &str) -> EntryPath {
    EntryPath::parse(name.as_bytes(), 16).unwrap()
}

fn meta(mode: u16) -> Meta {
    Meta {
        mode,
        uid: 7,
        gid: 8,
        mtime: 9,
        mtime_nanos: 10,
    }
}

/// One layer: `d NAME`, `f NAME SIZE`, `s NAME TARGET`, `l NAME TARGET`, `p NAME`. Names with `.wh.` mean what they mean.
fn apply(tree: &mut Tree, layer: &[&str]) -> Result<(), Fault> {
    for entry in layer {
        let words: Vec<&str> = entry.split(' ').collect();
        let at = match path(words[1]).meaning()? {
            Meaning::Entry(at) => at,
            Meaning::Whiteout(at) => {
                tree.hide(at)?;
                continue;
            }
            Meaning::Opaque(at) => {
                tree.hide_children(at)?;
                continue;
            }
            Meaning::Bookkeeping => continue,
        };
        match words[0] {
            "d" => tree.put(&at, meta(0o700), Content::Directory)?,
            "f" => {
                let size = words[2].parse().unwrap();
                tree.put(&at, meta(0o644), Content::File { offset: 0, size })?;
            }
            "s" => tree.put(
                &at,
                meta(0o777),
                Content::Symlink(words[2].as_bytes().into()),
            )?,
            "l" => tree.link(&at, &path(words[2]))?,
            "p" => tree.put(&at, meta(0o600), Content::Fifo)?,
            other => panic!("{other}"),
        }
    }
    tree.end_layer()
}

/// Every path with a word about it; directories with their mode.
fn listing(tree: &Tree) -> BTreeMap<String, String> {
    fn walk(tree: &Tree, id: NodeId, at: &str, out: &mut BTreeMap<String, String>) {
        let word = match &tree.node(id).kind {
            Kind::Directory(directory) => {
                for (name, child) in tree.names(*directory) {
                    walk(tree, child, &format!("{at}/{}", name.escape_ascii()), out);
                }
                format!("d{:o}", tree.node(id).meta.mode)
            }
            Kind::File { size, .. } => format!("f{size}"),
            Kind::Symlink(target) => format!("s{}", target.escape_ascii()),
            Kind::Fifo => "p".to_owned(),
        };
        out.insert(at.to_owned(), word);
    }
    let mut out = BTreeMap::new();
    walk(tree, Tree::ROOT, "", &mut out);
    out
}

fn build(layers: &[&[&str]]) -> Result<String, Fault> {
    let mut tree = Tree::new(1000);
    for layer in layers {
        apply(&mut tree, layer)?;
    }
    let lines = listing(&tree).into_iter().filter(|(at, _)| !at.is_empty());
    let words: Vec<String> = lines.map(|(at, word)| format!("{at}={word}")).collect();
    Ok(words.join(" "))
}

#[test]
#[allow(clippy::too_many_lines)] // a table
fn layers_over_one_another() {
    let table: &[(&str, &[&[&str]], &str)] = &[
        ("a file replaces a file", &[&["f a 1"], &["f a 2"]], "/a=f2"),
        ("later wins in one layer", &[&["f a 1", "f a 2"]], "/a=f2"),
        ("implicit parents", &[&["f a/b 1"]], "/a=d755 /a/b=f1"),
        (
            "a described parent keeps its children",
            &[&["f a/b 1", "d a"]],
            "/a=d700 /a/b=f1",
        ),
        (
            "a directory is merged",
            &[&["d a", "f a/x 1"], &["d a", "f a/y 1"]],
            "/a=d700 /a/x=f1 /a/y=f1",
        ),
        (
            "a file replaces a directory",
            &[&["f a/b 1"], &["f a 1"]],
            "/a=f1",
        ),
        (
            "a directory replaces a link",
            &[&["s a /etc"], &["d a", "f a/b 1"]],
            "/a=d700 /a/b=f1",
        ),
        (
            "whiteout of a file",
            &[&["f a 1", "f b 1"], &["f .wh.a 0"]],
            "/b=f1",
        ),
        ("whiteout of a tree", &[&["f a/b/c 1"], &["f .wh.a 0"]], ""),
        (
            "whiteout of nothing",
            &[&["f a 1"], &["f .wh.b 0", "f x/.wh.y 0"]],
            "/a=f1",
        ),
        (
            "whiteout does not hide its own layer",
            &[&["f a 1"], &["f a 2", "f .wh.a 0"]],
            "/a=f2",
        ),
        (
            "in the other order too",
            &[&["f a 1"], &["f .wh.a 0", "f a 2"]],
            "/a=f2",
        ),
        (
            "hidden directory, new content",
            &[&["d a", "f a/x 1"], &["f .wh.a 0", "f a/y 1"]],
            "/a=d755 /a/y=f1",
        ),
        (
            "in the other order",
            &[&["d a", "f a/x 1"], &["f a/y 1", "f .wh.a 0"]],
            "/a=d755 /a/y=f1",
        ),
        (
            "opaque first",
            &[&["d a", "f a/x/y 1"], &["f a/.wh..wh..opq 0", "f a/z 1"]],
            "/a=d700 /a/z=f1",
        ),
        (
            "opaque last",
            &[&["d a", "f a/x/y 1"], &["f a/z 1", "f a/.wh..wh..opq 0"]],
            "/a=d700 /a/z=f1",
        ),
        (
            "opaque keeps deep new files",
            &[&["f a/x/old 1"], &["f a/x/new 1", "f a/.wh..wh..opq 0"]],
            "/a=d755 /a/x=d755 /a/x/new=f1",
        ),
        (
            "opaque root",
            &[&["f a 1"], &["f .wh..wh..opq 0", "f b 1"]],
            "/b=f1",
        ),
        (
            "whiteout reaches only lower layers",
            &[&["f a 1"], &["f .wh.a 0"], &["f a 3"]],
            "/a=f3",
        ),
        (
            "bookkeeping",
            &[&["f .wh..wh.plnk/1 1", "f .wh..wh.aufs 0"]],
            "",
        ),
        (
            "hard links",
            &[&["f a 5", "l d/b a"]],
            "/a=f5 /d=d755 /d/b=f5",
        ),
        (
            "a link to a lower file",
            &[&["f a 5"], &["l b a", "f .wh.a 0"]],
            "/b=f5",
        ),
        (
            "a replaced file keeps its other name",
            &[&["f a 5", "l b a"], &["f a 6"]],
            "/a=f6 /b=f5",
        ),
        (
            "links and pipes are entries",
            &[&["s a ../../etc/shadow", "p b", "l c a"]],
            "/a=s../../etc/shadow /b=p /c=s../../etc/shadow",
        ),
        (
            "mount points may be directories",
            &[&["d dev", "d .cloche", "f tmp/x 1"]],
            "/.cloche=d700 /dev=d700 /tmp=d1777 /tmp/x=f1",
        ),
    ];
    for (what, layers, wanted) in table {
        assert_eq!(build(layers).as_deref(), Ok(*wanted), "{what}");
    }
}

#[test]
fn refusals_name_their_object() {
    let table: &[(&[&[&str]], &[&str])] = &[
        (
            &[&["s a /etc", "f a/passwd 1"]],
            &["symbolic link `/a`", "/etc"],
        ),
        (&[&["s a /etc"], &["f a/b/c 1"]], &["symbolic link `/a`"]),
        (&[&["s a /etc"], &["f a/.wh.b 0"]], &["symbolic link `/a`"]),
        (
            &[&["d e", "s a e", "f e/x 1", "l b a/x"]],
            &["symbolic link `/a`"],
        ),
        (&[&["f a 1", "f a/b 1"]], &["below `/a`"]),
        (
            &[&["l a /etc/shadow"]],
            &["`/a`", "`/etc/shadow`", "no file of the image"],
        ),
        (&[&["d d", "l a d"]], &["no file of the image"]),
        (&[&["f x 1", "l / x"]], &["no file of the image"]),
        (&[&["f / 1"]], &["root"]),
        (&[&["f .cloche 1"]], &["`/.cloche` must be a directory"]),
        (&[&["s dev /x"]], &["`/dev` must be a directory"]),
        (&[&["p tmp"]], &["`/tmp` must be a directory"]),
        (&[&["f x 1", "l proc x"]], &["`/proc` must be a directory"]),
        (&[&["f .cloche/init 1"]], &["`/.cloche/init`", "reserved"]),
        (&[&["d .cloche/a/b"]], &["`/.cloche/a/b`", "reserved"]),
        (&[&["f .cloche/.wh.x 0"]], &["`/.cloche/x`", "reserved"]),
    ];
    for (layers, parts) in table {
        let Err(Fault::Invalid(message)) = build(layers) else {
            panic!("{layers:?} was taken");
        };
        for part in *parts {
            assert!(message.contains(part), "{layers:?}: {message}");
        }
    }
}

#[test]
fn entries_are_counted() {
    let mut tree = Tree::new(3);
    apply(&mut tree, &["f a 1", "f a 1", "f a 1"]).unwrap();
    assert!(
        matches!(apply(&mut tree, &["f b 1"]), Err(Fault::Invalid(m)) if m.contains("3 entries"))
    );
    let mut tree = Tree::new(3);
    assert!(apply(&mut tree, &["f a/b/c/d 1"]).is_err());
    let mut tree = Tree::new(3);
    assert!(apply(&mut tree, &["f a 1", "l b a", "l b a", "l b a", "l b a"]).is_err());
    let mut tree = Tree::new(3);
    assert!(
        apply(
            &mut tree,
            &["f .wh.a 0", "f .wh.b 0", "f .wh.c 0", "f .wh.d 0"]
        )
        .is_err()
    );
}

#[test]
fn mount_points_are_added() {
    let mut tree = Tree::new(100);
    apply(&mut tree, &["d tmp"]).unwrap();
    tree.finish().unwrap();
    let words: Vec<String> = listing(&tree)
        .into_iter()
        .map(|(at, word)| format!("{at}={word}"))
        .collect();
    assert_eq!(
        words.join(" "),
        "=d755 /.cloche=d755 /dev=d755 /proc=d555 /sys=d555 /tmp=d700"
    );
}

/// Entries of one upper layer over a fixed lower one; no two at one path, so that order alone differs.
fn upper() -> impl Strategy<Value = Vec<String>> {
    let name = prop::sample::select(vec!["a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/a/b"]);
    let kind = prop::sample::select(vec!["d", "f", "w", "o"]);
    prop::collection::btree_map(name, kind, 0..6).prop_map(|entries| {
        let is_file = |entries: &BTreeMap<&str, &str>, at: &str| entries.get(at) == Some(&"f");
        entries
            .iter()
            // Something below a file of the same layer has no order-independent meaning: it is refused or replaced.
            .filter(|(at, _)| {
                !at.match_indices('/')
                    .any(|(cut, _)| is_file(&entries, &at[..cut]))
            })
            .map(|(at, kind)| {
                let (parent, last) = at.rsplit_once('/').map_or(("", *at), |(p, l)| (p, l));
                match *kind {
                    "w" => format!("f {parent}/.wh.{last} 0"),
                    "o" => format!("f {at}/.wh..wh..opq 0"),
                    kind => format!("{kind} {at} 3"),
                }
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn order_within_a_layer_does_not_matter((sorted, shuffled) in upper().prop_flat_map(|entries| (Just(entries.clone()), Just(entries).prop_shuffle()))) {
        let lower: &[&str] = &["d a", "d a/a", "f a/a/a 1", "f a/a/b 1", "f a/b 1", "d b", "f b/a 1", "d b/b"];
        let sorted: Vec<&str> = sorted.iter().map(String::as_str).collect();
        let shuffled: Vec<&str> = shuffled.iter().map(String::as_str).collect();
        prop_assert_eq!(build(&[lower, &sorted]), build(&[lower, &shuffled]));
    }
}

//! Layers become EROFS files, and hostile ones become errors.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use cloche_agent::image::ImageError;
use serde_json::json;
use tar::EntryType;

use super::support::{Made, Mounted, Pack, Rig, Tar, made, made_with, one_layer, record};

const OWN: [&str; 5] = [
    ".cloche d 755 0:0 @0",
    "dev d 755 0:0 @0",
    "proc d 555 0:0 @0",
    "sys d 555 0:0 @0",
    "tmp d 1777 0:0 @0",
];

async fn listing(rig: &Rig, made: &Made) -> Vec<String> {
    let image = rig.take(made).await.unwrap();
    let lines = Mounted::new(&image.erofs).listing();
    for own in OWN {
        assert!(
            lines.iter().any(|line| line == own),
            "no {own} in {lines:?}"
        );
    }
    lines
        .into_iter()
        .filter(|line| !OWN.contains(&line.as_str()))
        .collect()
}

#[tokio::test]
async fn everything_is_kept() {
    let rig = Rig::new();
    let mut times = Vec::new();
    record(&mut times, "mtime", b"1700000000.5");
    record(&mut times, "uid", b"70000");
    record(&mut times, "SCHILY.xattr.user.x", b"dropped");
    let long = "n".repeat(255);
    let tar = Tar::default()
        .dir("a")
        .file("a/b", b"hello")
        .link("a/hard", "a/b")
        .link("/a/hard2", "/a/b")
        .symlink("abs", "/etc/shadow")
        .symlink("up", "../../..")
        .symlink("long", &"t/".repeat(1000))
        .symlink("longest", &"t".repeat(4095))
        .node(EntryType::Fifo, "pipe")
        .node(EntryType::Char, "dev/null")
        .node(EntryType::Block, "disk")
        .mode("su", 0o6755)
        .mode("!first", 0o1644)
        .file("empty", b"")
        .file("block", &[7; 4096])
        .file("more", &[8; 4097])
        .raw(EntryType::Regular, b"odd\xff\n name", b"", 0o600, 1, b"x")
        .raw(EntryType::Regular, long.as_bytes(), b"", 0o600, 1, b"x")
        .pax(&times)
        .file("timed", b"t");
    let image = rig.take(&one_layer(tar)).await.unwrap();
    let mounted = Mounted::new(&image.erofs);
    let lines = mounted.listing();
    let t = "@1600000000";
    let mut wanted = vec![
        format!("a d 750 1000:2000 {t}"),
        format!("a/b f 644 1000:2000 x3 =5 {t}"),
        format!("a/hard f 644 1000:2000 x3 =5 {t}"),
        format!("a/hard2 f 644 1000:2000 x3 =5 {t}"),
        format!("abs l 777 1000:2000 {t} -> /etc/shadow"),
        format!("up l 777 1000:2000 {t} -> ../../.."),
        format!("long l 777 1000:2000 {t} -> {}", "t/".repeat(1000)),
        format!("longest l 777 1000:2000 {t} -> {}", "t".repeat(4095)),
        format!("pipe p 600 1000:2000 {t}"),
        format!("su f 6755 1000:2000 =2 {t}"),
        format!("!first f 1644 1000:2000 =2 {t}"),
        format!("empty f 644 1000:2000 =0 {t}"),
        format!("block f 644 1000:2000 =4096 {t}"),
        format!("more f 644 1000:2000 =4097 {t}"),
        format!("odd\\xff\\n name f 600 1000:2000 =1 {t}"),
        format!("{long} f 600 1000:2000 =1 {t}"),
        "timed f 644 70000:2000 =1 @1700000000.500000000".to_owned(),
    ];
    wanted.extend(OWN.map(str::to_owned));
    wanted.sort();
    assert_eq!(lines, wanted);
    assert_eq!(fs::read(mounted.path("a/hard2")).unwrap(), b"hello");
    assert_eq!(fs::read(mounted.path("block")).unwrap(), [7; 4096]);
    assert_eq!(fs::read(mounted.path("more")).unwrap(), [8; 4097]);
    let mode = fs::metadata(&image.erofs).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o400, "nobody may write to a shared image");
    rig.files("tmp").await;
}

#[tokio::test]
async fn large_directories_and_deep_ones() {
    let rig = Rig::new();
    let names: BTreeSet<String> = (0..5000)
        .map(|n| format!("{n:x}-{}", "y".repeat(n % 200)))
        .collect();
    let mut tar = Tar::default();
    for name in &names {
        tar = tar.file(&format!("many/{name}"), b"");
    }
    let deep = "d/".repeat(250) + "end";
    let image = rig
        .take(&one_layer(tar.file(&deep, b"deep")))
        .await
        .unwrap();
    let mounted = Mounted::new(&image.erofs);
    let found: BTreeSet<String> = fs::read_dir(mounted.path("many"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, names);
    for name in &names {
        // Looking up is another path through the kernel than listing.
        fs::metadata(mounted.path("many").join(name)).unwrap();
    }
    assert!(fs::metadata(mounted.path("many/zz")).is_err());
    assert_eq!(fs::read(mounted.path(&deep)).unwrap(), b"deep");
}

#[tokio::test]
async fn layers_hide_and_replace() {
    let rig = Rig::new();
    let lower = Tar::default()
        .file("gone", b"1")
        .file("kept", b"22")
        .file("dir/old", b"1")
        .file("opaque/old", b"1")
        .symlink("turn", "/etc")
        .file("tree/x/y", b"1");
    let upper = Tar::default()
        .file("opaque/new", b"new")
        .file("opaque/.wh..wh..opq", b"")
        .file(".wh.gone", b"")
        .file("dir/.wh.old", b"")
        .dir("turn")
        .file("turn/inside", b"1")
        .symlink("tree", "kept");
    let layers = [(Pack::Zstd, lower.done()), (Pack::Plain, upper.done())];
    let lines = listing(&rig, &made(&layers, json!({}))).await;
    let t = "@1600000000";
    assert_eq!(
        lines,
        [
            "dir d 755 0:0 @0".to_owned(),
            format!("kept f 644 1000:2000 =2 {t}"),
            "opaque d 755 0:0 @0".to_owned(),
            format!("opaque/new f 644 1000:2000 =3 {t}"),
            format!("tree l 777 1000:2000 {t} -> kept"),
            format!("turn d 750 1000:2000 {t}"),
            format!("turn/inside f 644 1000:2000 =1 {t}"),
        ]
    );
}

#[tokio::test]
async fn equal_trees_give_equal_bytes() {
    let rig = Rig::new();
    let once = Tar::default()
        .dir("d")
        .file("d/a", b"aaaa")
        .file("d/b", &[9; 9000])
        .link("z", "d/b");
    let lower = Tar::default()
        .file("d/b", &[9; 9000])
        .file("junk", &[1; 50_000])
        .file("d/a", b"old");
    let upper = Tar::default()
        .file(".wh.junk", b"")
        .link("z", "d/b")
        .file("d/a", b"aaaa")
        .dir("d");
    let first = rig
        .take(&made(&[(Pack::Plain, once.done())], json!({})))
        .await
        .unwrap();
    let layers = [(Pack::Gzip, lower.done()), (Pack::Zstd, upper.done())];
    let second = rig
        .take(&made(&layers, json!({"Env": ["A=b"]})))
        .await
        .unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(
        fs::read(first.erofs).unwrap(),
        fs::read(second.erofs).unwrap()
    );
}

/// Ends in `ImageInvalid` with all of `parts` in its text, and leaves nothing.
async fn refused(rig: &Rig, what: &str, made: &Made, parts: &[&str]) {
    let start = Instant::now();
    let error = rig.take(made).await.expect_err(what);
    assert!(
        matches!(error, ImageError::Invalid { .. }),
        "{what}: {error:?}"
    );
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{what}: {text}");
    }
    assert!(
        text.contains("oci:layout") && text.len() < 1500,
        "{what}: {text}"
    );
    assert!(start.elapsed().as_secs() < 60, "{what} took too long");
    rig.assert_nothing_left().await;
}

#[tokio::test]
async fn hostile_layers_are_refused() {
    let rig = Rig::new();
    let tar = Tar::default;
    for (what, tar, parts) in [
        (
            "climbing name",
            tar().file("../evil", b"x"),
            &["`../evil`", "`..`"] as &[&str],
        ),
        (
            "climbing inside",
            tar().file("a/../../evil", b"x"),
            &["`..`"],
        ),
        (
            "write through an absolute link",
            tar().symlink("etc", "/etc").file("etc/passwd", b"x"),
            &["symbolic link `/etc`"],
        ),
        (
            "write through a climbing link",
            tar().symlink("a", "../..").file("a/x", b"x"),
            &["symbolic link `/a`"],
        ),
        (
            "hard link to the host",
            tar().link("a", "/etc/shadow"),
            &["`/etc/shadow`", "no file of the image"],
        ),
        (
            "hard link that climbs",
            tar().link("a", "../../etc/shadow"),
            &["`..`"],
        ),
        (
            "hard link through a link",
            tar().symlink("e", "/etc").link("a", "e/shadow"),
            &["symbolic link `/e`"],
        ),
        (
            "file at the init's place",
            tar().file(".cloche", b"x"),
            &["`/.cloche`", "directory"],
        ),
        (
            "file below it",
            tar().file(".cloche/init", b"x"),
            &["`/.cloche/init`", "reserved"],
        ),
        ("link at /dev", tar().symlink("dev", "/x"), &["`/dev`"]),
        (
            "unknown kind",
            tar().raw(EntryType::new(b'Z'), b"z", b"", 0o600, 0, b""),
            &["`/z`", "'Z'"],
        ),
        (
            "zero byte in a link",
            tar()
                .pax(&{
                    let mut r = Vec::new();
                    record(&mut r, "linkpath", b"a\0b");
                    r
                })
                .symlink("l", "x"),
            &["`/l`", "target"],
        ),
        (
            "PAX sparse",
            tar()
                .pax(&{
                    let mut r = Vec::new();
                    record(&mut r, "GNU.sparse.major", b"1");
                    r
                })
                .file("s", b"x"),
            &["sparse"],
        ),
        ("long part", tar().file(&"x".repeat(256), b""), &["255"]),
        (
            "too deep",
            tar().file(&"d/".repeat(300), b""),
            &["256 directories"],
        ),
    ] {
        refused(&rig, what, &one_layer(tar), parts).await;
    }
    let turned = [
        (Pack::Plain, tar().dir("d").file("d/x", b"1").done()),
        (Pack::Plain, tar().symlink("d", "/etc").done()),
        (Pack::Plain, tar().file("d/passwd", b"x").done()),
    ];
    refused(
        &rig,
        "directory becomes a link",
        &made(&turned, json!({})),
        &["symbolic link `/d`"],
    )
    .await;
}

#[tokio::test]
async fn lies_about_size_are_refused() {
    let rig = Rig::with(|config| {
        config.limits.total = 64 << 20;
        config.limits.entries = 10_000;
    });
    let terabyte = Tar::default().raw(EntryType::Regular, b"big", b"", 0o600, 1 << 40, b"x");
    refused(
        &rig,
        "declares a terabyte",
        &one_layer(terabyte),
        &["more than 67108864 bytes"],
    )
    .await;
    let cut = Tar::default().raw(EntryType::Regular, b"cut", b"", 0o600, 1 << 20, b"x");
    refused(&rig, "ends early", &one_layer(cut), &["a layer"]).await;
    let bomb = one_layer(Tar::default().file("zeros", &vec![0; 100 << 20]));
    let compressed: usize = bomb.blobs.values().map(Vec::len).sum();
    assert!(compressed < 4 << 20);
    refused(&rig, "gzip bomb", &bomb, &["more than 67108864 bytes"]).await;
    let hidden = vec![0; 100 << 20];
    let mut padded = Tar::default().file("a", b"x").done();
    padded.extend_from_slice(&hidden);
    refused(
        &rig,
        "bomb behind the end",
        &made(&[(Pack::Zstd, padded)], json!({})),
        &["more than 67108864 bytes"],
    )
    .await;
    let mut many = Tar::default();
    for n in 0..100_000 {
        many = many.file(&n.to_string(), b"");
    }
    refused(
        &rig,
        "many entries",
        &one_layer(many),
        &["more than 10000 entries"],
    )
    .await;
    let half = || Tar::default().file("half", &vec![1; 40 << 20]).done();
    let halves = [(Pack::Gzip, half()), (Pack::Gzip, half())];
    refused(
        &rig,
        "two halves are too much",
        &made(&halves, json!({})),
        &["more than 67108864 bytes"],
    )
    .await;

    let endless = Tar::default().append(&holes("endless", b"77777777777\0"));
    // 40 MiB each, of which a layer holds nothing.
    let several = Tar::default()
        .append(&holes("a", b"00240000000\0"))
        .append(&holes("b", b"00240000000\0"));
    for (what, sparse) in [("sparse", endless), ("several sparse", several)] {
        let too_much = &["more than 67108864 bytes"];
        refused(&rig, what, &one_layer(sparse), too_much).await;
    }
}

/// The header of a sparse file of `size` bytes (in octal), all of it holes.
fn holes(name: &str, size: &[u8; 12]) -> [u8; 512] {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path(name).unwrap();
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_is_extended(false);
    gnu.realsize.copy_from_slice(size);
    gnu.sparse[0].offset.copy_from_slice(size);
    gnu.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
    header.set_cksum();
    *header.as_bytes()
}

#[tokio::test]
async fn memory_is_bounded() {
    let rig = Rig::with(|config| config.limits.memory = 96 << 20);
    // A name that a naive reader would keep whole in memory.
    let long = Tar::default().raw(
        EntryType::GNULongName,
        b"././@LongLink",
        b"",
        0,
        150 << 20,
        &vec![b'n'; 150 << 20],
    );
    refused(
        &rig,
        "endless name",
        &one_layer(long.file("x", b"")),
        &["memory"],
    )
    .await;
}

#[tokio::test]
async fn broken_layers_are_refused() {
    let rig = Rig::new();
    let good = Tar::default().file("a", b"x").done();
    let garbage = vec![0xa5; 100_000];
    refused(
        &rig,
        "no tar",
        &made(&[(Pack::Plain, garbage.clone())], json!({})),
        &["cannot be read"],
    )
    .await;
    let wrong_diff = made_with(&[(Pack::Gzip, good.clone())], json!({}), |config, _| {
        config["rootfs"]["diff_ids"][0] = json!(cloche_agent::image::Digest::of(b"other"));
    });
    refused(&rig, "diff_id", &wrong_diff, &["uncompressed content"]).await;
    let mislabelled = made_with(&[(Pack::Plain, good.clone())], json!({}), |_, manifest| {
        manifest["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip");
    });
    refused(&rig, "not gzip", &mislabelled, &["cannot be read"]).await;
    let foreign = made_with(&[(Pack::Plain, good.clone())], json!({}), |_, manifest| {
        manifest["layers"][0]["mediaType"] =
            json!("application/vnd.cncf.helm.chart.content.v1.tar+gzip");
    });
    refused(&rig, "no image", &foreign, &["helm.chart"]).await;
    let counts = made_with(&[(Pack::Plain, good.clone())], json!({}), |config, _| {
        config["rootfs"]["diff_ids"] = json!([]);
    });
    refused(&rig, "layer count", &counts, &["0 layers", "1"]).await;
    let arch = made_with(&[(Pack::Plain, good.clone())], json!({}), |config, _| {
        config["architecture"] = json!("s390x");
    });
    refused(&rig, "architecture", &arch, &["s390x"]).await;
    for (bad, part) in [
        (json!({"Env": ["NOEQUALS"]}), "NAME=value"),
        (json!({"Env": ["=x"]}), "NAME=value"),
        (json!({"Cmd": ["a\u{0}b"]}), "NUL"),
        (json!({"Entrypoint": vec!["x"; 1001]}), "1001 strings"),
        (json!({"User": "a\nb"}), "User"),
        (json!({"WorkingDir": 7}), "configuration"),
    ] {
        refused(
            &rig,
            part,
            &made(&[(Pack::Plain, good.clone())], bad),
            &[part],
        )
        .await;
    }
}

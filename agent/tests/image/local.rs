//! The local image directory.

use std::fs;
use std::os::unix::fs::symlink;

use cloche_agent::image::{Digest, ImageError, PullPolicy};
use serde_json::json;

use super::support::{Mounted, Pack, Rig, Tar, made, one_layer, tar_of};

fn small() -> Tar {
    Tar::default().file("bin/hello", b"hello")
}

#[tokio::test]
async fn a_layout_with_its_configuration() {
    let rig = Rig::new();
    let config = json!({
        "Env": ["PATH=/bin", "EMPTY="], "Entrypoint": ["/bin/hello"], "Cmd": ["a", "b"],
        "WorkingDir": "work", "User": "1000:1000",
    });
    let made = made(&[(Pack::Gzip, small().done())], config);
    made.write_layout(&rig.local("sub.dir/layout"));
    let image = rig.ensure("oci:sub.dir/layout:latest").await.unwrap();
    assert_eq!(image.digest, made.manifest);
    assert_eq!(image.config.env, ["PATH=/bin", "EMPTY="]);
    assert_eq!(image.config.entrypoint, ["/bin/hello"]);
    assert_eq!(image.config.cmd, ["a", "b"]);
    assert_eq!(image.config.working_dir, "/work");
    assert_eq!(image.config.user, "1000:1000");
    assert_eq!(rig.files("tmp").await, [] as [String; 0]);
    // Never is about registries: what lies in the image directory is on the node.
    let again = rig
        .ensure_by("oci:sub.dir/layout", PullPolicy::Never)
        .await
        .unwrap();
    assert_eq!(again.erofs, image.erofs);
    let error = rig.ensure("oci:sub.dir/layout:v2").await.unwrap_err();
    assert!(
        matches!(error, ImageError::NotFound { .. }) && error.to_string().contains("v2"),
        "{error}"
    );
}

#[tokio::test]
async fn an_archive_of_a_layout() {
    let rig = Rig::new();
    let made = one_layer(small());
    made.write_layout(&rig.temp.path().join("outside"));
    tar_of(&rig.temp.path().join("outside"), &rig.local("image.tar"));
    let image = rig.ensure("oci-archive:image.tar:latest").await.unwrap();
    assert_eq!(image.digest, made.manifest);
    let bytes = fs::read(rig.local("image.tar")).unwrap();
    for (what, bytes) in [
        ("cut", bytes[..bytes.len() / 2 + 100].to_vec()),
        ("noise", vec![0x55; 5000]),
        ("empty", Vec::new()),
    ] {
        fs::write(rig.local("bad.tar"), bytes).unwrap();
        let error = rig.ensure("oci-archive:bad.tar").await.unwrap_err();
        assert!(
            matches!(
                error,
                ImageError::Invalid { .. } | ImageError::NotFound { .. }
            ),
            "{what}: {error:?}"
        );
    }
    assert_eq!(rig.files("tmp").await, [] as [String; 0]);
}

#[tokio::test]
async fn a_rootfs_tar_is_hashed_once() {
    let rig = Rig::new();
    let tar = small().done();
    fs::write(rig.local("root.tar"), &tar).unwrap();
    let image = rig.ensure("rootfs:root.tar").await.unwrap();
    assert_eq!(image.digest, Digest::of(&tar));
    assert_eq!(
        fs::read(Mounted::new(&image.erofs).path("bin/hello")).unwrap(),
        b"hello"
    );
    // With the staging directory unusable only what is known already can succeed.
    let staging = rig.config.directory.join("tmp");
    rig.files("tmp").await;
    fs::remove_dir(&staging).unwrap();
    rig.ensure("rootfs:root.tar").await.unwrap();
    fs::write(
        rig.local("root.tar"),
        Tar::default().file("other", b"x").done(),
    )
    .unwrap();
    rig.ensure("rootfs:root.tar").await.unwrap_err();
    fs::create_dir(&staging).unwrap();
    let other = rig.ensure("rootfs:root.tar").await.unwrap();
    assert_ne!(other.digest, image.digest);
    let zipped = zstd::encode_all(&tar[..], 1).unwrap();
    fs::write(rig.local("root.tar.zst"), &zipped).unwrap();
    let third = rig.ensure("rootfs:root.tar.zst").await.unwrap();
    assert_eq!(
        fs::read(third.erofs).unwrap(),
        fs::read(image.erofs).unwrap()
    );
}

#[tokio::test]
async fn damaged_blobs_are_told() {
    let rig = Rig::new();
    let made = one_layer(small());
    let layer = made.blobs.keys().filter(|digest| **digest != made.manifest);
    for digest in layer {
        for damage in [
            b"".as_slice(),
            b"shorter",
            &vec![0; made.blobs[digest].len()],
            &vec![0; 100_000],
        ] {
            made.write_layout(&rig.local("layout"));
            fs::write(rig.local("layout/blobs/sha256").join(digest.hex()), damage).unwrap();
            let error = rig.ensure("oci:layout").await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, ImageError::Pull { .. }), "{error:?}");
            assert!(
                text.contains(&digest.to_string()) && text.contains("damaged"),
                "{text}"
            );
        }
        fs::remove_file(rig.local("layout/blobs/sha256").join(digest.hex())).unwrap();
        let error = rig.ensure("oci:layout").await.unwrap_err();
        assert!(matches!(error, ImageError::Invalid { .. }), "{error:?}");
    }
    made.write_layout(&rig.local("layout"));
    let mut manifest = made.blobs[&made.manifest].clone();
    manifest.push(b' ');
    fs::write(
        rig.local("layout/blobs/sha256").join(made.manifest.hex()),
        manifest,
    )
    .unwrap();
    let error = rig.ensure("oci:layout").await.unwrap_err();
    assert!(
        error.to_string().contains(&made.manifest.to_string()),
        "{error}"
    );
    rig.assert_nothing_left().await;
}

#[tokio::test]
async fn no_way_out_of_the_directory() {
    let rig = Rig::new();
    let made = one_layer(small());
    let outside = rig.temp.path().join("outside");
    made.write_layout(&outside);
    fs::write(rig.temp.path().join("secret.tar"), small().done()).unwrap();
    symlink(&outside, rig.local("layout")).unwrap();
    symlink("../secret.tar", rig.local("root.tar")).unwrap();
    fs::create_dir(rig.local("half")).unwrap();
    symlink(outside.join("blobs"), rig.local("half/blobs")).unwrap();
    fs::copy(outside.join("index.json"), rig.local("half/index.json")).unwrap();
    nix::unistd::mkfifo(&rig.local("pipe.tar"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    for (image, part) in [
        ("oci:layout", "symbolic link"),
        ("rootfs:root.tar", "symbolic link"),
        ("oci-archive:root.tar", "symbolic link"),
        ("oci:half", "symbolic link"),
        ("rootfs:pipe.tar", "regular file"),
        ("rootfs:half", "regular file"),
    ] {
        let error = rig.ensure(image).await.unwrap_err();
        assert!(
            matches!(error, ImageError::Invalid { .. }),
            "{image}: {error:?}"
        );
        assert!(error.to_string().contains(part), "{image}: {error}");
    }
    for image in [
        "oci:absent",
        "oci-archive:absent",
        "rootfs:absent/x.tar",
        "oci:root.tar/x",
    ] {
        let error = rig.ensure(image).await.unwrap_err();
        assert!(
            matches!(
                error,
                ImageError::NotFound { .. } | ImageError::Invalid { .. }
            ),
            "{image}: {error:?}"
        );
    }
    rig.assert_nothing_left().await;
    let without = Rig::with(|config| config.local_images = None);
    let error = without.ensure("oci:layout").await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error:?}");
}

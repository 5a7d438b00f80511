//! The smallest useful image: Debian's busybox-static with all its commands.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::layer::{Entry, Layer};
use super::layout::{Config, Image};

/// Where Debian's package busybox-static has it.
const BUSYBOX: &str = "/bin/busybox";

/// Commands that tests use; busybox is all of them by its name.
const COMMANDS: &str = "awk cat chmod chown cmp cp cut date dd df du echo env expr false find free grep head hostname id \
    kill killall ln ls md5sum mkdir mkfifo mknod mount mv nohup nproc od printf ps pwd readlink rm rmdir sed seq setsid sh \
    sha256sum sleep sort stat stty sync tail tee test timeout touch tr true tty umount uname wc which whoami xargs yes";

/// Its layer: busybox, its commands, /etc/passwd and /etc/group with the users root and user (1000).
pub fn busybox_layer() -> Result<Layer> {
    let program = fs::read(Path::new(BUSYBOX))
        .with_context(|| format!("read {BUSYBOX}: install the package busybox-static"))?;
    let mut layer = Layer::default()
        .add("bin", Entry::Folder)?
        .add("bin/busybox", Entry::File(program))?;
    for command in COMMANDS.split_whitespace() {
        layer = layer.add(&format!("bin/{command}"), Entry::Link("busybox".to_owned()))?;
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n";
    let group = "root:x:0:\nuser:x:1000:\nextra:x:2000:user\n";
    layer
        .add("etc", Entry::Folder)?
        .add_owned("etc/passwd", Entry::File(passwd.into()), 0o644, 0, 0)?
        .add_owned("etc/group", Entry::File(group.into()), 0o644, 0, 0)?
        .add_owned("root", Entry::Folder, 0o700, 0, 0)?
        .add("home", Entry::Folder)?
        .add_owned("home/user", Entry::Folder, 0o755, 1000, 1000)
}

/// An image of it.
pub fn busybox() -> Result<Image> {
    let config = Config {
        env: vec!["PATH=/bin".to_owned()],
        cmd: vec!["sh".to_owned()],
        ..Config::default()
    };
    Image::new(vec![busybox_layer()?], &config)
}

//! The images of Cloche's own programs: each the program, what it starts, and the libraries of both.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::layer::Keep;
use super::layout::{Image, Layout};
use super::{PATH, layer};
use crate::artifact::{Artifacts, Digest, Stamp, is_static};
use crate::command::Command;
use crate::workspace::{Profile, Workspace};

const RECIPE: &str = "1";
/// What TLS connections to registries are checked by.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// One image.
pub(super) struct Product {
    /// Its repository below `cloche/`, and its folder.
    pub(super) name: &'static str,
    /// Programs that cargo built, in `/usr/bin`; the first is the entrypoint.
    programs: &'static [&'static str],
    /// Other files for `/usr/bin`.
    files: fn(&Artifacts) -> Vec<PathBuf>,
}

/// All of them.
pub(super) const PRODUCTS: &[Product] = &[
    Product {
        name: "agent",
        programs: &["cloche-agent"],
        files: |artifacts| {
            vec![
                artifacts.runsc.clone(),
                artifacts.init.clone(),
                "/usr/bin/mkfs.erofs".into(),
            ]
        },
    },
    Product {
        name: "operator",
        programs: &["cloche-operator"],
        files: |_| Vec::new(),
    },
    Product {
        name: "gateway",
        programs: &["cloche-gateway"],
        files: |_| Vec::new(),
    },
];

impl Product {
    /// Makes its layout in `folder`, unless it is there and its files are the same.
    pub(super) fn build(
        &self,
        workspace: &Workspace,
        profile: Profile,
        artifacts: &Artifacts,
        folder: &Path,
    ) -> Result<PathBuf> {
        let path = folder.join(self.name);
        let programs: Vec<PathBuf> = self
            .programs
            .iter()
            .map(|name| workspace.built(profile, name))
            .collect();
        let files = (self.files)(artifacts);
        let mut inputs = vec![("recipe", RECIPE.as_bytes().to_vec())];
        for file in programs.iter().chain(&files) {
            let content =
                std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
            inputs.push(("file", content));
        }
        let digest = Digest::of(inputs.iter().map(|(name, content)| (*name, &**content)));
        let stamp = Stamp::new(
            &workspace.artifacts(),
            &format!("image-{}", self.name),
            digest,
        );
        if stamp.is_fresh(&path) {
            return Ok(path);
        }
        let staging = tempfile::Builder::new()
            .prefix("image-")
            .tempdir_in(workspace.artifacts())
            .context("create a directory for an image")?;
        fill(staging.path(), &programs, &files)
            .with_context(|| format!("make the image {}", self.name))?;
        Layout::replace(&path)?.write(&Image {
            layer: &|out| layer::write(staging.path(), &|_| Keep::Whole, out),
            env: &[PATH],
            entrypoint: &[&format!("/usr/bin/{}", self.programs[0])],
            command: &[],
        })?;
        stamp.write()?;
        Ok(path)
    }
}

fn fill(root: &Path, programs: &[PathBuf], files: &[PathBuf]) -> Result<()> {
    std::fs::set_permissions(root, Permissions::from_mode(0o755))?;
    for directory in ["bin", "etc", "root", "run", "tmp", "usr/bin", "var/lib"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    std::fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777))?;
    // For people who look into it, and for what the programs ask of a shell.
    copy(Path::new("/bin/busybox"), &root.join("bin/busybox"))?;
    symlink("busybox", root.join("bin/sh"))?;
    copy(Path::new(AUTHORITIES), &at(root, Path::new(AUTHORITIES)))?;
    for program in programs {
        let to = root.join("usr/bin").join(name(program)?);
        // The lines of a debug build are more than half of it.
        Command::new("strip")
            .args(["--strip-debug", "-o"])
            .args([&to, program])
            .run()?;
        copy_libraries(root, program)?;
    }
    for file in files {
        copy(file, &root.join("usr/bin").join(name(file)?))?;
        copy_libraries(root, file)?;
    }
    Ok(())
}

fn name(path: &Path) -> Result<&std::ffi::OsStr> {
    path.file_name()
        .with_context(|| format!("{} has no name", path.display()))
}

/// The same absolute path below another root.
fn at(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// With its mode; a link's target and not the link.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(directory) = to.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// Those that a program is linked with; a static one has none.
fn copy_libraries(root: &Path, program: &Path) -> Result<()> {
    let content = std::fs::read(program).with_context(|| format!("read {}", program.display()))?;
    if is_static(&content) == Some(true) {
        return Ok(());
    }
    for library in libraries(&Command::new("ldd").arg(program).text()?) {
        copy(&library, &at(root, &library))?;
    }
    Ok(())
}

/// The files of ldd's lines: `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` for the dynamic linker.
fn libraries(told: &str) -> Vec<PathBuf> {
    told.lines()
        .filter_map(|line| line.split_once(" ("))
        .map(|(line, _)| {
            line.split_once(" => ")
                .map_or(line, |(_, path)| path)
                .trim()
        })
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_files_that_ldd_names() {
        let told = "\tlinux-vdso.so.1 (0x00007f50d4731000)\n\
            \tlibuuid.so.1 => /lib/x86_64-linux-gnu/libuuid.so.1 (0x00007f50d4713000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f50d4733000)\n";
        assert_eq!(
            libraries(told),
            [
                "/lib/x86_64-linux-gnu/libuuid.so.1",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}

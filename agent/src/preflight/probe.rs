//! Looks at the host. Leaves nothing behind but the two directories.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc::O_TMPFILE;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::findings::{Directory, Findings, Run, Wanted};
use crate::cgroup::{Groups, oom_lines};
use crate::process;
use crate::told::chain;

/// A program that only says its version, or makes an image of one file, takes milliseconds; a machine under load some more.
const PROGRAM_DEADLINE: Duration = Duration::from_secs(30);

/// The first four bytes of an EROFS superblock, and where it begins (`erofs_fs.h` of the kernel).
const EROFS_MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
const EROFS_SUPERBLOCK: u64 = 1024;

/// Looks at everything. To be called before anything else runs: it blocks for some milliseconds. Fails only where the host cannot be looked at: /proc is not mounted, for example.
pub async fn probe(wanted: &Wanted) -> io::Result<Findings> {
    let status = read("/proc/self/status")?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map_or("", str::trim)
    };
    let (state, run) = (directory(&wanted.state), directory(&wanted.run));
    Ok(Findings {
        uid: nix::unistd::geteuid().as_raw(),
        uid_map: read("/proc/self/uid_map")?
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        capabilities: u64::from_str_radix(field("CapEff"), 16).unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        user_namespaces: number("/proc/sys/user/max_user_namespaces"),
        seccomp_actions: fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        seccomp_filtered: field("Seccomp") == "2",
        ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
        cgroups: Groups::open(&wanted.cgroup_parent)
            .map(|groups| groups.layout().kind())
            .map_err(|error| chain(&error)),
        kernel_log: oom_lines().map(drop).map_err(|error| error.to_string()),
        runsc: finish(process::command(&wanted.runsc).arg("--version")).await,
        mkfs_erofs: if state.writable.is_ok() && !state.full {
            image(wanted).await
        } else {
            // Not its fault, and reported already.
            Run::Succeeded(String::new())
        },
        state,
        run,
    })
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("read {path}: {error}")))
}

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Runs a program to its end, killed at the deadline.
async fn finish(command: &mut tokio::process::Command) -> Run {
    let output = match tokio::time::timeout(PROGRAM_DEADLINE, command.output()).await {
        Err(_) => return Run::TimedOut,
        Ok(Err(error)) => return Run::NotStarted(error.to_string()),
        Ok(Ok(output)) => output,
    };
    if output.status.success() {
        return Run::Succeeded(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr = stderr.trim();
    let begin = stderr.floor_char_boundary(stderr.len().saturating_sub(400));
    Run::Failed {
        status: output.status.to_string(),
        stderr: stderr[begin..].to_owned(),
    }
}

/// Makes an image of one small file with the options that images are made with. That the options are taken is not enough: old versions take
/// some and do something else, so the result is looked at.
async fn image(wanted: &Wanted) -> Run {
    let place = wanted
        .state
        .join(format!(".preflight-{}", std::process::id()));
    let made = async {
        fs::create_dir_all(place.join("tree"))?;
        fs::write(place.join("tree/file"), "x")?;
        let out = place.join("image");
        let run = finish(
            process::command(&wanted.mkfs_erofs)
                .env("SOURCE_DATE_EPOCH", "4102444800")
                .args(["--quiet", "-x-1", "-Enoinline_data", "-U"])
                .arg("00000000-0000-4000-8000-000000000000")
                .args([&out, &place.join("tree")]),
        )
        .await;
        if !matches!(run, Run::Succeeded(_)) {
            return Ok(run);
        }
        let mut magic = [0; 4];
        let mut file = fs::File::open(out)?;
        file.seek(SeekFrom::Start(EROFS_SUPERBLOCK))?;
        file.read_exact(&mut magic)?;
        if magic == EROFS_MAGIC {
            Ok(run)
        } else {
            Err(io::Error::other("what it made is not an EROFS image"))
        }
    }
    .await;
    let removed = fs::remove_dir_all(&place);
    match (made, removed) {
        (Ok(run), Ok(())) => run,
        (Err(error), _) | (_, Err(error)) => Run::Failed {
            status: "its result".to_owned(),
            stderr: error.to_string(),
        },
    }
}

fn directory(path: &Path) -> Directory {
    let mut full = false;
    let mut told = |tried: io::Result<()>| match tried {
        Err(error) if is_full(&error) => {
            full = true;
            Ok(())
        }
        other => other.map_err(|error| error.to_string()),
    };
    let probe = path.join(format!(".preflight-{}-file", std::process::id()));
    let wrote = fs::create_dir_all(path).and_then(|()| fs::write(&probe, "x"));
    let removed = match fs::remove_file(&probe) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    let writable = told(wrote.and(removed));
    let without_name = told(unnamed(path).map(drop));
    let holes = unnamed(path).or_else(|_| named(path));
    let holes = told(holes.and_then(|file| punch(&file)));
    Directory {
        path: path.to_owned(),
        full,
        writable,
        unnamed: without_name,
        holes,
        executable: statvfs(path).is_ok_and(|fs| !fs.flags().contains(FsFlags::ST_NOEXEC)),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn unnamed(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_TMPFILE)
        .open(path)
}

fn named(path: &Path) -> io::Result<fs::File> {
    let name = path.join(format!(".preflight-{}-hole", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)?;
    fs::remove_file(name)?;
    Ok(file)
}

fn punch(mut file: &fs::File) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    file.write_all(&vec![1; 3 * BLOCK])?;
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let block = i64::try_from(BLOCK).unwrap_or_default();
    fallocate(file, hole, block, block)?;
    let mut middle = vec![1; BLOCK];
    file.seek(SeekFrom::Start(BLOCK as u64))?;
    file.read_exact(&mut middle)?;
    if middle.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(io::Error::other("the hole is not empty"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::report;
    use super::*;

    /// Written by another process: a file that this one had open for writing could still be so, and not be executable (ETXTBSY), in a child
    /// that another test just forked.
    fn program(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join(format!("program-{}", text.len()));
        let written = process::command("/bin/sh")
            .into_std()
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#,
            ])
            .args([path.as_os_str(), text.as_ref()])
            .status()
            .unwrap();
        assert!(written.success());
        path
    }

    fn wanted(dir: &Path) -> Wanted {
        Wanted {
            runsc: program(dir, "echo runsc version v1"),
            mkfs_erofs: "mkfs.erofs".into(),
            state: dir.join("state/deep"),
            run: dir.join("run"),
            cgroup_parent: crate::cgroup::PARENT.to_owned(),
        }
    }

    /// Needs what the agent needs: root, cgroups, mkfs.erofs, a TMPDIR on a file system that will do.
    #[tokio::test]
    async fn this_host_will_do_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = wanted(dir.path());
        let findings = probe(&wanted).await.unwrap();
        let problems = report(&findings, &wanted);
        assert!(problems.is_empty(), "{problems:#?}\n{findings:#?}");
        for path in [&wanted.state, &wanted.run] {
            assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        }
    }

    #[tokio::test]
    async fn lacks_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut wanted = wanted(dir.path());
        wanted.runsc = dir.path().join("absent");
        // Takes every option, and makes something else.
        wanted.mkfs_erofs = program(dir.path(), "head -c 4096 /dev/zero >\"$6\"");
        fs::write(dir.path().join("run"), "a file").unwrap();
        wanted.cgroup_parent = "../x".to_owned();
        let findings = probe(&wanted).await.unwrap();
        assert!(matches!(findings.runsc, Run::NotStarted(_)));
        assert!(
            matches!(&findings.mkfs_erofs, Run::Failed { stderr, .. } if stderr.contains("not an EROFS image")),
            "{:?}",
            findings.mkfs_erofs
        );
        assert!(findings.run.writable.is_err() && findings.cgroups.is_err());
        assert_eq!(report(&findings, &wanted).len(), 4);

        wanted.mkfs_erofs = program(dir.path(), "echo unknown option >&2; exit 3");
        let findings = probe(&wanted).await.unwrap();
        let failed = Run::Failed {
            status: "exit status: 3".to_owned(),
            stderr: "unknown option".to_owned(),
        };
        assert_eq!(findings.mkfs_erofs, failed);
        assert_eq!(fs::read_dir(&wanted.state).unwrap().count(), 0);
    }

    /// procfs has neither unnamed files nor any other.
    #[test]
    fn a_file_system_that_will_not_do() {
        let found = directory(Path::new("/proc/self"));
        assert!(
            found.writable.is_err() && found.unnamed.is_err() && found.holes.is_err(),
            "{found:?}"
        );
    }
}

//! The agent's side of the unpacking child.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Fault, Job, Unpacked, shown};

/// Longest outcome and longest complaint that are read from a child, in bytes. It may have been taken over.
const REPLY_MAX: u64 = 1 << 14;

/// The program that unpacks.
#[derive(Clone, Debug)]
pub(in crate::image) struct Unpacker {
    /// This agent's own program: it is called as `PROGRAM unpack`.
    pub(in crate::image) program: PathBuf,
}

/// Runs one job in the staging directory `staging`. Cancel safe: the child is killed when this is dropped.
pub(in crate::image) async fn unpack(
    unpacker: &Unpacker,
    staging: &Path,
    job: &Job,
) -> Result<Unpacked, Fault> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Fault::Node(format!("{what} {}: {error}", unpacker.program.display()))
    };
    let mut line = serde_json::to_vec(job).map_err(|error| failed("write a job for", &error))?;
    line.push(b'\n');
    let mut child = crate::process::command(&unpacker.program)
        .arg("unpack")
        .current_dir(staging)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed("start", &error))?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed("start", &"no pipes"));
    };
    // A child that dies at once closes the pipe: its status says more than the failed write.
    drop(stdin.write_all(&line).await);
    let mut reply = Vec::new();
    let mut complaint = Vec::new();
    let (mut stdout, mut stderr) = (stdout.take(REPLY_MAX), stderr.take(REPLY_MAX));
    let (read, _) = tokio::join!(
        stdout.read_to_end(&mut reply),
        stderr.read_to_end(&mut complaint)
    );
    read.map_err(|error| failed("read from", &error))?;
    // Its outcome is told, or it told too much: either way it has nothing more to do.
    drop((stdin, stdout, stderr));
    let status = child
        .wait()
        .await
        .map_err(|error| failed("wait for", &error))?;
    if status.success() {
        return serde_json::from_slice::<Result<Unpacked, Fault>>(&reply)
            .map_err(|_| failed("understand", &shown(&reply)))?;
    }
    match status.signal() {
        // What the allocator does when there is no more memory, unless the program has a bug: then it says so on stderr.
        Some(nix::libc::SIGABRT) if complaint.starts_with(b"memory allocation") => {
            Err(Fault::Invalid(format!(
                "unpacking it needs more than {} bytes of memory",
                job.memory
            )))
        }
        Some(nix::libc::SIGXCPU) => Err(Fault::Invalid(format!(
            "unpacking it needs more than {} seconds of processor time",
            job.cpu_seconds
        ))),
        Some(nix::libc::SIGXFSZ) => Err(Fault::Invalid(
            "its EROFS would be larger than the limit".to_owned(),
        )),
        _ => Err(failed(
            "run",
            &format_args!("{status}, {}", shown(&complaint)),
        )),
    }
}

//! The unpacking child: `cloche-agent unpack`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use super::fault::Fault;
use super::layer::{self, Met, Spool};
use super::tree::Tree;
use super::{BLOCK, Job, OUTPUT, SPOOL, Unpacked, blob_name, erofs};
use crate::sys::confine::{self, Confinement};

/// Largest job that is read, in bytes: 200 layers of 200 bytes each fit well.
const JOB_MAX: u64 = 1 << 17;

/// The whole life of the unpacking child. Works in its current directory, the staging directory; takes a job on stdin and
/// gives its outcome on stdout, both JSON on one line. Ends when stdin ends, so that it does not outlive its agent.
///
/// To be called first thing in `main`, before any other thread exists.
pub fn child_main() -> ExitCode {
    let outcome = run();
    let mut line = serde_json::to_vec(&outcome).unwrap_or_default();
    line.push(b'\n');
    match io::stdout().write_all(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run() -> Result<Unpacked, Fault> {
    let mut line = Vec::new();
    io::stdin()
        .lock()
        .take(JOB_MAX)
        .read_until(b'\n', &mut line)
        .map_err(|error| Fault::io("read the job", &error))?;
    let job: Job = serde_json::from_slice(&line)
        .map_err(|error| Fault::Node(format!("read the job: {error}")))?;

    let blobs = (0..job.layers.len())
        .map(|index| open(Path::new(&blob_name(index)), OpenOptions::new().read(true)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut fresh = OpenOptions::new();
    fresh.read(true).write(true).create_new(true);
    let spool = open(Path::new(SPOOL), &fresh)?;
    let out = open(Path::new(OUTPUT), &fresh)?;

    confine::give_up_everything(&Confinement {
        memory: job.memory,
        cpu_seconds: job.cpu_seconds,
        // Contents rounded up to blocks, and the metadata.
        file_size: job
            .bounds
            .bytes
            .saturating_add(u64::from(job.bounds.entries) * (2 * BLOCK))
            .saturating_add(1 << 30),
    })
    .map_err(|error| Fault::Node(error.to_string()))?;

    let mut tree = Tree::new(job.bounds.entries);
    let mut spool = Spool::new(spool);
    let mut met = Met::default();
    for (blob, said) in blobs.into_iter().zip(&job.layers) {
        layer::apply(
            blob,
            said.compression,
            said.diff_id,
            &job.bounds,
            &mut tree,
            &mut spool,
            &mut met,
        )?;
    }
    tree.finish()?;
    let size = erofs::write(&tree, &spool.finish()?, &out)?;
    out.sync_all()
        .map_err(|error| Fault::io("sync the image", &error))?;
    Ok(Unpacked {
        size,
        devices: met.devices,
    })
}

fn open(path: &Path, options: &OpenOptions) -> Result<File, Fault> {
    options.open(path).map_err(|error| {
        Fault::io(
            &format!("open {} in the staging directory", path.display()),
            &error,
        )
    })
}

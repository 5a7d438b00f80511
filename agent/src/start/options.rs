//! The options that every agent has, and what they mean. Pure but for the machine's size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cloche_crds::quantity::Quantity;

use crate::instance::{Link, Shape, Target};
use crate::sandbox::admission::Budget;
use crate::usage::Watermarks;

/// How an agent is run, wherever its sandboxes come from.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "of-every-agent")]
pub struct Options {
    /// Folder for what outlives the agent: records, images, logs, writable layers
    #[arg(long, default_value = "/var/lib/cloche", value_parser = absolute)]
    pub state: PathBuf,
    /// Folder for what does not outlive the machine's boot; short, in a tmpfs
    #[arg(long, default_value = "/run/cloche", value_parser = absolute)]
    pub run: PathBuf,
    /// The API's socket [default: agent.sock in the run folder]
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Folder of local images, for `oci:`, `oci-archive:` and `rootfs:` references
    #[arg(long, value_parser = absolute)]
    pub images: Option<PathBuf>,
    /// The runsc to run [default: beside this program]
    #[arg(long, value_parser = absolute)]
    pub runsc: Option<PathBuf>,
    /// The cloche-init to put into sandboxes [default: beside this program]
    #[arg(long, value_parser = absolute)]
    pub init: Option<PathBuf>,
    /// Group of all sandboxes, below the root of every hierarchy
    #[arg(long, default_value = "cloche")]
    pub cgroup_parent: String,
    /// Memory for all sandboxes together [default: the machine's less 1Gi]
    #[arg(long)]
    pub memory_budget: Option<String>,
    /// Processor time that sandboxes may request together, in cores [default: four times the machine's]
    #[arg(long)]
    pub cpu_budget: Option<String>,
    /// Bytes of what sandboxes write to files that they may request together [default: half of the file system of the state folder]
    #[arg(long)]
    pub disk_budget: Option<String>,
    /// Bytes that are to stay free where sandboxes write: below it nothing new begins, and images that nobody uses go [default: a tenth of the
    /// file system, 10Gi at most]
    #[arg(long)]
    pub disk_reserve: Option<String>,
    /// The same, below which the sandbox is evicted that is furthest over the ephemeral-storage that it requested; 0 evicts none [default: half
    /// of --disk-reserve]
    #[arg(long)]
    pub disk_eviction: Option<String>,
    /// Instances held ready: `cpu=1,memory=512Mi,created=1,started=2`; may be given several times, `none` for no pool
    #[arg(long, default_value = "cpu=1,memory=512Mi,created=1,started=2")]
    pub pool: Vec<String>,
    /// Bytes of images to keep on the node; beyond it those not in use go, the longest unused first
    #[arg(long, default_value = "20Gi")]
    pub image_budget: String,
    /// A registry to ask in place of another: `docker.io=127.0.0.1:5000`; may be given several times
    #[arg(long)]
    pub registry_mirror: Vec<String>,
    /// A registry on the loopback that may be asked over plain HTTP: `127.0.0.1:5000`; may be given several times
    #[arg(long)]
    pub insecure_registry: Vec<String>,
}

impl Options {
    /// The API's local socket.
    pub fn socket(&self) -> PathBuf {
        let beside = || self.run.join("agent.sock");
        self.socket.clone().unwrap_or_else(beside)
    }
}

/// What runsc is given is read from other folders than ours.
fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

pub(super) fn budget(options: &Options) -> Result<Budget> {
    let machine = nix::sys::sysinfo::sysinfo()
        .context("read the machine's memory")?
        .ram_total();
    let memory = match &options.memory_budget {
        Some(text) => Quantity(text.clone()).bytes().context("--memory-budget")?.0,
        None => machine.saturating_sub(1 << 30),
    };
    if memory == 0 || memory > machine {
        bail!("--memory-budget {memory} is not between 1 and the machine's {machine} bytes");
    }
    let cores = std::thread::available_parallelism()
        .context("count the cores")?
        .get() as u64;
    let cpu_millis = match &options.cpu_budget {
        Some(text) => {
            Quantity(text.clone())
                .millicores()
                .context("--cpu-budget")?
                .0
        }
        None => cores * 4000,
    };
    let file_system = file_system(&options.state)?;
    let disk = match &options.disk_budget {
        Some(text) => Quantity(text.clone()).bytes().context("--disk-budget")?.0,
        None => file_system / 2,
    };
    if disk == 0 || disk > file_system {
        bail!(
            "--disk-budget {disk} is not between 1 and the {file_system} bytes of the file system of {}",
            options.state.display()
        );
    }
    Ok(Budget {
        memory,
        cpu_millis,
        disk,
    })
}

/// The most that is kept free where nothing is said.
const MOST_RESERVE: u64 = 10 << 30;

/// What is to stay free where sandboxes write.
pub(super) fn watermarks(options: &Options, scratch: &Path) -> Result<Watermarks> {
    let file_system = file_system(scratch)?;
    let bytes = |text: &Option<String>, flag: &'static str, default: u64| match text {
        Some(text) => Ok(Quantity(text.clone()).bytes().context(flag)?.0),
        None => anyhow::Ok(default),
    };
    let most = (file_system / 10).min(MOST_RESERVE);
    let pressure = bytes(&options.disk_reserve, "--disk-reserve", most)?;
    let eviction = bytes(&options.disk_eviction, "--disk-eviction", pressure / 2)?;
    if pressure >= file_system || eviction > pressure {
        bail!(
            "--disk-reserve {pressure} must be less than the {file_system} bytes of the file system of {}, and --disk-eviction {eviction} not more than it",
            scratch.display()
        );
    }
    Ok(Watermarks { pressure, eviction })
}

/// The size of the file system of a folder, in bytes.
fn file_system(folder: &Path) -> Result<u64> {
    let told = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("read the size of the file system of {}", folder.display()))?;
    Ok(told.blocks().saturating_mul(told.fragment_size()))
}

/// Processes and threads that all sandboxes together may have: three quarters of what the kernel can number or has room for, so that
/// they can never keep the node from starting its own. Sources: `proc_sys_kernel(5)`, `pid_max` and `threads-max`.
pub(super) fn process_budget() -> Result<u32> {
    let read = |name: &str| -> Result<u32> {
        let path = format!("/proc/sys/kernel/{name}");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        text.trim().parse().with_context(|| format!("read {path}"))
    };
    let all = read("pid_max")?.min(read("threads-max")?);
    Ok(all / 4 * 3)
}

pub(super) fn targets(texts: &[String]) -> Result<Vec<Target>> {
    texts
        .iter()
        .filter(|text| *text != "none")
        .map(|text| target(text).with_context(|| format!("--pool {text:?}")))
        .collect()
}

fn target(text: &str) -> Result<Target> {
    let (mut cpu, mut memory, mut created, mut started) = (None, None, 0, 0);
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .with_context(|| format!("{part:?} is not KEY=VALUE"))?;
        match key {
            "cpu" => cpu = Some(Quantity(value.to_owned()).millicores()?.0),
            "memory" => memory = Some(Quantity(value.to_owned()).bytes()?.0),
            "created" => {
                created = value
                    .parse()
                    .with_context(|| format!("created={value:?}"))?;
            }
            "started" => {
                started = value
                    .parse()
                    .with_context(|| format!("started={value:?}"))?;
            }
            _ => bail!("{key:?} is not one of cpu, memory, created, started"),
        }
    }
    let shape = Shape {
        cpu_millis: cpu.context("cpu is missing")?,
        memory: memory.context("memory is missing")?,
        link: Link::Loopback,
    };
    Ok(Target {
        shape,
        created,
        started,
    })
}

pub(super) fn mirrors(texts: &[String]) -> Result<BTreeMap<String, Vec<String>>> {
    let mut mirrors = BTreeMap::<String, Vec<String>>::new();
    for text in texts {
        let (registry, mirror) = text
            .split_once('=')
            .with_context(|| format!("--registry-mirror {text:?} is not REGISTRY=MIRROR"))?;
        mirrors
            .entry(registry.to_owned())
            .or_default()
            .push(mirror.to_owned());
    }
    Ok(mirrors)
}

/// A program that came with the agent.
pub(super) fn beside_us(given: Option<&Path>, name: &str, made_by: &str) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .context("find this program")?
            .with_file_name(name),
    };
    if !path.is_file() {
        bail!(
            "there is no {name} at {}: name one by --{}, or make it by `{made_by}`",
            path.display(),
            name.trim_start_matches("cloche-")
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn folders_are_absolute_whatever_was_written() {
        let words = [
            "agent", "--state", "state", "--run", "run", "--runsc", "runsc", "--images", "./images",
        ];
        let command = Options::augment_args(Command::new("agent"));
        let matches = command.try_get_matches_from(words).unwrap();
        for name in ["state", "run", "runsc", "images"] {
            let path = matches.get_one::<PathBuf>(name).unwrap();
            assert!(path.is_absolute(), "{name}: {}", path.display());
        }
    }

    #[test]
    fn options_go_together() {
        for command in [
            crate::standalone::Options::augment_args(Command::new("standalone")),
            crate::cluster::Options::augment_args(Command::new("node")),
        ] {
            command.debug_assert();
        }
    }

    #[test]
    fn pool_targets() {
        let parsed = target("cpu=500m,memory=1Gi,started=3").unwrap();
        assert_eq!((parsed.created, parsed.started), (0, 3));
        assert_eq!(
            (parsed.shape.cpu_millis, parsed.shape.memory),
            (500, 1 << 30)
        );
        for bad in [
            "",
            "cpu=1",
            "memory=1Gi",
            "cpu=1,memory=1Gi,started=-1",
            "cpu=1,memory=1Gi,size=3",
            "cpu,memory=1Gi",
        ] {
            assert!(target(bad).is_err(), "{bad:?}");
        }
        assert!(targets(&["none".to_owned()]).unwrap().is_empty());
    }
}

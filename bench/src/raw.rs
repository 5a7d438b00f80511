//! The same work done raw: `runsc create` with the agent's recipe, and calls to the control socket. No records, no session, no
//! status, no verification.
//!
//! Groups and folders are those of the agent under test, so that both work on the same file systems, and so that its audit finds
//! what is left here.

use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cloche_agent::cgroup::{Cgroups, Groups};
use cloche_agent::instance::{Link, Shape, limits};
use cloche_agent::runsc::saved::NAMES;
use cloche_agent::runsc::sentry::{Execute, MainFiles};
use cloche_agent::runsc::urpc::Connection;
use cloche_agent::runsc::{
    InstanceName, InstancePaths, Profile, SavedFiles, Sentry, argv, spec, tear_down,
};
use cloche_agent::sys::log::BoundedLog;
use cloche_agent::sys::{Exit, Spawn, spawn};
use cloche_e2e::Agent;
use cloche_e2e::process::Built;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::{block_in_place, spawn_blocking};

use crate::clock::Stopwatch;

/// How long one call or kill may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// As the agent raises it for its own.
const OOM_SCORE_ADJ: i32 = 900;
/// Bytes of what `runsc create` says that are kept.
const LOG: usize = 64 << 10;

/// Where raw instances are made.
pub(crate) struct Raw {
    groups: Arc<dyn Cgroups>,
    run: PathBuf,
    state: PathBuf,
    profile: Profile,
    /// The image's EROFS file in the agent's cache.
    image: PathBuf,
    count: AtomicU32,
}

/// A raw instance. [`Raw::destroy`] takes it down.
pub(crate) struct Instance {
    pub(crate) paths: InstancePaths,
    shape: Shape,
}

impl Instance {
    /// Names its group below the agent's.
    pub(crate) fn id(&self) -> &str {
        self.paths.name().as_str()
    }
}

/// Our ends of the pipes to the first process of `main`: it ends with them.
pub(crate) struct Channel {
    _ours: [OwnedFd; 2],
}

impl Raw {
    /// Beside an agent that runs and has exactly one image in its cache.
    pub(crate) async fn beside(agent: &Agent) -> Result<Self> {
        let run = agent.run().join("raw");
        DirBuilder::new()
            .mode(0o700)
            .create(&run)
            .context("make the folder of raw instances")?;
        let images = agent.state().join("images/erofs");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&images).context("list the agent's images")? {
            let path = entry.context("list the agent's images")?.path();
            if path.extension().is_some_and(|end| end == "erofs") {
                found.push(path);
            }
        }
        let [image] = &found[..] else {
            bail!("the agent's cache holds {} images, not one", found.len());
        };
        Ok(Self {
            groups: Arc::new(Groups::open(agent.group()).context("find the agent's groups")?),
            run,
            // The one that the agent has installed there: the same files, shared in memory.
            profile: Profile::install(&agent.state(), &Built::Runsc.path()?, &Built::Init.path()?)
                .await
                .context("find the agent's runtime profile")?,
            state: agent.state(),
            image: image.clone(),
            count: AtomicU32::new(0),
        })
    }

    /// Groups, limits, folders and bundle: what `runsc create` needs.
    pub(crate) fn prepare(&self, memory: u64) -> Result<Instance> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let paths =
            InstancePaths::new(&self.run, InstanceName::try_from(format!("raw-{number}"))?)?;
        let instance = Instance {
            paths,
            shape: Shape {
                cpu_millis: 1000,
                memory,
                link: Link::Loopback,
            },
        };
        self.groups.create(instance.id())?;
        self.groups
            .limit(instance.id(), &limits::of_shape(&instance.shape))?;
        let paths = &instance.paths;
        for folder in [
            paths.home().to_owned(),
            paths.root(),
            paths.bundle(),
            paths.panic(),
        ] {
            DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .with_context(|| format!("make {}", folder.display()))?;
        }
        let spec = spec::root(
            paths.name(),
            &self.profile.init_erofs(),
            &self.profile.empty(),
            &self.groups.path(instance.id())?,
        );
        std::fs::write(paths.bundle().join("config.json"), spec.to_string())
            .context("write a bundle")?;
        Ok(instance)
    }

    /// `runsc create` and `SetNetworkArgs`: *created*.
    pub(crate) async fn create(&self, instance: &Instance) -> Result<()> {
        self.create_with(instance, None).await
    }

    /// The same with these files in its writable layer.
    pub(crate) async fn create_with(
        &self,
        instance: &Instance,
        saved: Option<&SavedFiles>,
    ) -> Result<()> {
        let log = BoundedLog::new(LOG).context("make a log")?;
        let process = block_in_place(|| -> Result<_> {
            Ok(spawn(&Spawn {
                program: &self.profile.runsc(),
                arguments: &argv::create(&instance.paths, saved),
                join: &self.groups.join_files(instance.id())?,
                stderr: log.file(),
                oom_score_adj: OOM_SCORE_ADJ,
            })?)
        })?;
        let exit = process.ended().await?;
        ensure!(
            exit == Exit::Code(0),
            "runsc create ended with {exit:?}: {}",
            log.text(LOG).unwrap_or_default()
        );
        Sentry::connect(&instance.paths)
            .await?
            .set_network()
            .await?;
        Ok(())
    }

    /// `StartRoot`: *started*.
    pub(crate) async fn start_root(&self, instance: &Instance) -> Result<()> {
        Ok(Sentry::connect(&instance.paths).await?.start_root().await?)
    }

    /// `CreateSubcontainer` and `StartSubcontainer` with cloche-init: *claimed*.
    pub(crate) async fn claim(&self, instance: &Instance) -> Result<Channel> {
        self.start_main(instance, &spec::main(instance.paths.name()))
            .await
    }

    /// The same with a program of the image that waits: what a sandbox is without us.
    pub(crate) async fn claim_asleep(&self, instance: &Instance) -> Result<Channel> {
        let mut spec = spec::main(instance.paths.name());
        spec["process"]["args"] = json!(["/bin/sleep", "1000000"]);
        self.start_main(instance, &spec).await
    }

    async fn start_main(&self, instance: &Instance, spec: &Value) -> Result<Channel> {
        let (stdin, to_guest) = pipe2(OFlag::O_CLOEXEC)?;
        let (from_guest, stdout) = pipe2(OFlag::O_CLOEXEC)?;
        let null = File::options().write(true).open("/dev/null")?;
        let scratch = File::options()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlag::O_TMPFILE.bits())
            .open(&self.state)
            .context("make a writable layer")?;
        let image = File::open(&self.image).context("open the image")?;
        let init = File::open(self.profile.init_erofs()).context("open cloche-init")?;
        let files = MainFiles {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: null.as_fd(),
            scratch: scratch.as_fd(),
            image: image.as_fd(),
            init: init.as_fd(),
        };
        Sentry::connect(&instance.paths)
            .await?
            .start_main(spec, files, None)
            .await?;
        Ok(Channel {
            _ours: [to_guest, from_guest],
        })
    }

    /// `ExecuteAsync` of a program that prints; returns with its first output.
    pub(crate) async fn first_output(&self, instance: &Instance) -> Result<()> {
        let null = File::open("/dev/null")?;
        let (sender, mut receiver) = pipe::pipe().context("make a pipe")?;
        let out = sender.into_blocking_fd().context("make a pipe")?;
        Sentry::connect(&instance.paths)
            .await?
            .execute(Execute {
                argv: &["/bin/echo", "up"],
                uid: 0,
                gid: 0,
                files: &[null.as_fd(), out.as_fd(), out.as_fd()],
            })
            .await?;
        drop(out);
        let read = receiver.read(&mut [0; 16]).await.context("read output")?;
        ensure!(read > 0, "echo printed nothing");
        Ok(())
    }

    /// `FSSave` into new files of a folder.
    pub(crate) async fn save(&self, instance: &Instance) -> Result<(TempDir, SavedFiles)> {
        let folder = TempDir::new_in(&self.state).context("make a folder for files")?;
        let make = |name| File::create_new(folder.path().join(name));
        let files = NAMES.map(make);
        let files = files.into_iter().collect::<std::io::Result<Vec<_>>>()?;
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        Sentry::connect(&instance.paths)
            .await?
            .save_files(&files)
            .await?;
        let saved = SavedFiles(folder.path().to_owned());
        Ok((folder, saved))
    }

    /// `WaitFSRestore`.
    pub(crate) async fn files_are_back(&self, instance: &Instance) -> Result<()> {
        Ok(Sentry::connect(&instance.paths)
            .await?
            .files_are_back()
            .await?)
    }

    /// Kills it and removes all of it.
    pub(crate) async fn destroy(&self, instance: Instance) -> Result<()> {
        tear_down::kill(&self.groups, instance.id(), DEADLINE).await?;
        tear_down::remove(&instance.paths).await?;
        let groups = Arc::clone(&self.groups);
        spawn_blocking(move || groups.remove(instance.id())).await??;
        Ok(())
    }
}

/// Warm connections to run programs in one raw instance: one to start them, one to wait.
pub(crate) struct Console {
    start: Sentry,
    wait: Connection,
}

impl Console {
    pub(crate) async fn open(instance: &Instance) -> Result<Self> {
        Ok(Self {
            start: Sentry::connect(&instance.paths).await?,
            wait: Connection::open(&instance.paths.socket(), DEADLINE).await?,
        })
    }

    /// `ExecuteAsync` and `WaitPID` of `true`; milliseconds.
    pub(crate) async fn run_true(&mut self) -> Result<f64> {
        self.run(&["/bin/true"]).await
    }

    /// The same of any program.
    pub(crate) async fn run(&mut self, argv: &[&str]) -> Result<f64> {
        let watch = Stopwatch::start();
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let pid = self
            .start
            .execute(Execute {
                argv,
                uid: 0,
                gid: 0,
                files: &[null.as_fd(), null.as_fd(), null.as_fd()],
            })
            .await?;
        let status: u32 = self
            .wait
            .call(
                "containerManager.WaitPID",
                json!({ "PID": pid, "CID": spec::MAIN }),
                &[],
                DEADLINE,
            )
            .await?;
        ensure!(status == 0, "{argv:?} ended with the wait status {status}");
        Ok(watch.millis())
    }
}

//! Makes, starts, adopts and destroys instances: the effects behind the pool and the drivers.
//!
//! Making, in this order: record `Making`; group; `runsc create` inside it; network; record `Made`. Destroying, in the reverse:
//! kill the group until it is empty; files; group; record. Killed anywhere in between, the next start of the agent finds the
//! record or the group, and destroys what no sandbox claims.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use super::pool;
use super::{InstanceRecord, Shape, Stage, limits};
use crate::cgroup::{CgroupError, Cgroups};
use crate::fault;
use crate::ledger::{Ledger, LedgerError};
use crate::runsc::place::PlaceError;
use crate::runsc::sentry::ContainerState;
use crate::runsc::urpc::UrpcError;
use crate::runsc::{
    CreateError, CreatePlan, InstanceName, InstancePaths, Profile, SavedFiles, Sentry, create,
    panic_log, tear_down,
};
use crate::sys::{Process, ProcessError};

/// How long `runsc create` may take: some 50 ms on a quiet machine, and a hundred may start at once.
const CREATE_DEADLINE: Duration = Duration::from_mins(1);
/// How long the processes of an instance may outlive SIGKILL before it is said and tried again.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between tries to destroy.
const RETRY: Duration = Duration::from_secs(1);

/// An instance that could not be made, started or adopted.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Its record could not be written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its place cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Its group could not be made, limited or read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// `runsc create` failed.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Its sentry does not answer as it should.
    #[error("the sentry of instance {id} did not {operation}")]
    Sentry {
        /// The instance.
        id: String,
        /// `take its network`, `start its root container`.
        operation: &'static str,
        /// Why.
        source: UrpcError,
    },
    /// Its sentry could not be watched.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The thread that blocks was lost: the runtime shuts down.
    #[error("make an instance")]
    Lost(#[source] tokio::task::JoinError),
}

impl InstanceError {
    /// Whether the node could not set or keep a limit, as opposed to a runtime that failed.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::Cgroup(_) | Self::Create(CreateError::Cgroup { .. })
        )
    }
}

/// An instance, held by its sentry's pidfd. Dropping it does nothing to it.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its names and paths.
    pub paths: InstancePaths,
    /// Its sentry.
    pub sentry: Arc<Process>,
}

impl Instance {
    /// Its id: names its record, group and folder.
    pub fn id(&self) -> &str {
        self.paths.name().as_str()
    }

    /// Whether the sentry says that `main` runs.
    pub async fn main_running(&self) -> Result<bool, UrpcError> {
        let state = Sentry::connect(&self.paths).await?.main_state().await?;
        Ok(state == ContainerState::Running)
    }
}

/// Where instances are made. Cheap to clone.
#[derive(Clone)]
pub struct Workshop {
    /// Removals of what could not be made go on in these.
    pub tasks: TaskTracker,
    /// The groups.
    pub cgroups: Arc<dyn Cgroups>,
    /// The records of instances.
    pub ledger: Ledger<InstanceRecord>,
    /// The runtime that new instances run on.
    pub profile: Profile,
    /// Folder of instance folders; short, in a tmpfs.
    pub run: PathBuf,
    /// This boot.
    pub boot_id: String,
}

impl Workshop {
    /// The instance of a record that some sandbox claims, if its sentry still is the process that was recorded.
    pub fn adopt(
        &self,
        id: &str,
        record: &InstanceRecord,
    ) -> Result<Option<Instance>, InstanceError> {
        let Stage::Made { sentry } = record.stage else {
            return Ok(None);
        };
        if record.boot_id != self.boot_id {
            return Ok(None);
        }
        match self.cgroups.assert_member(id, sentry.pid) {
            Ok(()) => {}
            Err(error) if error.is_of_the_gone() => return Ok(None),
            // That nothing can be known of it does not make it dead.
            Err(error) => return Err(error.into()),
        }
        let paths = self.paths(id)?;
        Ok(Process::open(sentry)?.map(|process| Instance {
            paths,
            sentry: Arc::new(process),
        }))
    }

    /// What the sentry of the instance `id` wrote when it panicked, if it did: one line. Blocking.
    pub fn panic_reason(&self, id: &str) -> Option<String> {
        let reason = self
            .paths(id)
            .map(|paths| panic_log::reason(&paths.panic()));
        match reason {
            Ok(Ok(reason)) => reason,
            Ok(Err(error)) => {
                tracing::warn!(
                    instance = id,
                    error = &error as &dyn std::error::Error,
                    "cannot read a panic log"
                );
                None
            }
            Err(_) => None,
        }
    }

    /// Kills and removes the instance `id`, whatever is left of it; returns when nothing is, which it tries until then.
    pub async fn demolish(&self, id: &str) {
        while let Err(error) = self.demolish_once(id).await {
            tracing::error!(
                instance = id,
                error = &*error,
                "cannot remove an instance; trying again"
            );
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Kills all processes of the instance `id`; returns when there are none.
    pub async fn kill(&self, id: &str) {
        while let Err(error) = tear_down::kill(&self.cgroups, id, KILL_DEADLINE).await {
            tracing::error!(
                instance = id,
                error = &error as &dyn std::error::Error,
                "cannot kill an instance; trying again"
            );
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn demolish_once(
        &self,
        id: &str,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        tear_down::kill(&self.cgroups, id, KILL_DEADLINE).await?;
        fault::point("instance.destroy.killed");
        tear_down::remove(&self.paths(id)?).await?;
        fault::point("instance.destroy.files");
        let (cgroups, name) = (Arc::clone(&self.cgroups), id.to_owned());
        tokio::task::spawn_blocking(move || cgroups.remove(&name)).await??;
        fault::point("instance.destroy.group");
        self.ledger.remove(id).await?;
        Ok(())
    }

    fn paths(&self, id: &str) -> Result<InstancePaths, PlaceError> {
        InstancePaths::new(&self.run, InstanceName::try_from(id.to_owned())?)
    }

    async fn make_as(
        &self,
        id: &str,
        shape: &Shape,
        saved: Option<SavedFiles>,
    ) -> Result<Instance, InstanceError> {
        let record = |stage| InstanceRecord {
            boot_id: self.boot_id.clone(),
            shape: shape.clone(),
            profile: self.profile.hash().to_owned(),
            stage,
        };
        self.ledger.write(id, &record(Stage::Making)).await?;
        fault::point("instance.create.recorded");
        let (cgroups, name) = (Arc::clone(&self.cgroups), id.to_owned());
        tokio::task::spawn_blocking(move || cgroups.create(&name))
            .await
            .map_err(InstanceError::Lost)??;
        fault::point("instance.create.group");
        let paths = self.paths(id)?;
        let plan = CreatePlan {
            paths: paths.clone(),
            profile: self.profile.clone(),
            group: id.to_owned(),
            cgroups_path: self.cgroups.path(id)?,
            guest_memory: shape.memory,
            limits: limits::of_shape(shape),
            saved,
            deadline: CREATE_DEADLINE,
        };
        let created = create(&plan, &self.cgroups).await?;
        fault::point("instance.create.created");
        let sentry = created.sentry;
        self.ask(id, &paths, "take its network", async |sentry| {
            sentry.set_network().await
        })
        .await?;
        fault::point("instance.create.network");
        self.ledger
            .write(
                id,
                &record(Stage::Made {
                    sentry: sentry.id(),
                }),
            )
            .await?;
        fault::point("instance.create.made");
        Ok(Instance {
            paths,
            sentry: Arc::new(sentry),
        })
    }

    async fn ask(
        &self,
        id: &str,
        paths: &InstancePaths,
        operation: &'static str,
        call: impl AsyncFnOnce(&mut Sentry) -> Result<(), UrpcError>,
    ) -> Result<(), InstanceError> {
        let asked = async { call(&mut Sentry::connect(paths).await?).await };
        asked.await.map_err(|source| InstanceError::Sentry {
            id: id.to_owned(),
            operation,
            source,
        })
    }
}

impl pool::Workshop for Workshop {
    type Instance = Instance;
    type Error = InstanceError;

    async fn make(
        &self,
        shape: &Shape,
        saved: Option<SavedFiles>,
    ) -> Result<Instance, InstanceError> {
        let id = new_id();
        match self.make_as(&id, shape, saved).await {
            Ok(instance) => Ok(instance),
            Err(error) => {
                // Beside: what the kernel cannot remove now must not keep who waits from the error.
                let workshop = self.clone();
                self.tasks
                    .spawn(async move { workshop.demolish(&id).await });
                Err(error)
            }
        }
    }

    async fn start(&self, instance: &Instance) -> Result<(), InstanceError> {
        fault::point("instance.start");
        let id = instance.id();
        self.ask(
            id,
            &instance.paths,
            "start its root container",
            async |sentry| sentry.start_root().await,
        )
        .await?;
        fault::point("instance.started");
        Ok(())
    }

    async fn destroy(&self, instance: Instance) {
        self.demolish(instance.id()).await;
    }

    fn died(&self, instance: &Instance) -> impl Future<Output = ()> + Send + 'static {
        let sentry = Arc::clone(&instance.sentry);
        async move {
            if let Err(error) = sentry.gone().await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot watch a sentry"
                );
            }
        }
    }

    fn id<'a>(&self, instance: &'a Instance) -> &'a str {
        instance.id()
    }
}

/// A new id: `i-` and 12 hexadecimal digits. Two alike would share a group; 48 random bits make that one in 10^8 for a
/// thousand instances at once.
fn new_id() -> String {
    format!("i-{}", crate::unique::hex::<6>())
}

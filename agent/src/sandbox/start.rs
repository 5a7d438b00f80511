//! The effects that start a sandbox, or find a running one again.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::MainCommand;
use cloche_proto::frame::{BRIDGE_USER, Setup};
use futures::future::BoxFuture;
use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::unistd::pipe2;
use tokio::sync::mpsc;

use super::holding::Shared;
use super::record::{Cause, SandboxRecord, State};
use super::step::Event;
use super::{command, death};
use crate::clock;
use crate::fault;
use crate::instance::Instance;
use crate::runsc::sentry::{ContainerState, Execute, MainFiles};
use crate::runsc::{Sentry, spec};
use crate::session::{
    Bridge, BridgeError, CommandId, Health, Link, NewSession, Pauses, Pipes, SessionError,
    Sessions, SetUp, put_main_aside,
};
use crate::sys::log::BoundedLog;

/// Bytes of what init says that are kept, and that are told.
const INIT_SAYS: usize = 16 << 10;
const INIT_TOLD: usize = 512;

/// How long output may take that was printed before a command's end. On a machine that is busy, init may be slow.
const SETTLE: Duration = Duration::from_secs(30);

/// How long after the last word of a sentry its death may show.
const DEATH_SHOWS: Duration = Duration::from_millis(250);

/// Limits, container, channel: everything before the command.
pub(super) async fn prepare(shared: Shared, record: SandboxRecord, events: mpsc::Sender<Event>) {
    let outcome = try_prepare(&shared, &record).await;
    if outcome.is_err()
        && let Some(instance) = shared.instance()
        && tokio::time::timeout(DEATH_SHOWS, instance.sentry.gone())
            .await
            .is_ok()
    {
        // It failed because the sentry died, which is told with what the kernel knows of it.
        return;
    }
    drop(events.send(Event::Prepared(outcome)).await);
}

async fn try_prepare(shared: &Shared, record: &SandboxRecord) -> Result<(), Cause> {
    let instance = shared
        .instance()
        .ok_or_else(|| death::internal("its instance is not held"))?;
    let image = shared
        .holding()
        .image
        .clone()
        .ok_or_else(|| death::internal("its image is not held"))?;
    let limits = record.limits();
    let (cgroups, id) = (Arc::clone(&shared.node.cgroups), instance.id().to_owned());
    tokio::task::spawn_blocking(move || cgroups.limit(&id, &limits))
        .await
        .map_err(|error| death::of_start(&error, false))?
        .map_err(|error| death::of_start(&error, true))?;
    fault::point("claim.limited");

    let erofs = image.erofs.clone();
    let (scratch, init) = (
        shared.node.scratch.clone(),
        shared.node.workshop.profile.init_erofs(),
    );
    let files = tokio::task::spawn_blocking(move || Files::open(&scratch, &erofs, &init))
        .await
        .map_err(|error| death::of_start(&error, false))?
        .map_err(|error| death::of_start(&error, false))?;
    let mut sentry = Sentry::connect(&instance.paths)
        .await
        .map_err(|error| death::of_start(&error, false))?;
    sentry
        .create_main()
        .await
        .map_err(|error| death::of_start(&error, false))?;
    fault::point("claim.container-created");
    let main = MainFiles {
        stdin: files.guest_in.as_fd(),
        stdout: files.guest_out.as_fd(),
        stderr: files.said.file(),
        scratch: files.scratch.as_fd(),
        image: files.image.as_fd(),
        init: files.init.as_fd(),
    };
    let main_spec = spec::main(instance.paths.name());
    sentry
        .start_created_main(&main_spec, main, Some(record.spec.resources.disk_limit.0))
        .await
        .map_err(|error| death::of_start(&error, false))?;
    if record.kept.is_some() {
        // Before anything is changed in them, and before what they come from may go.
        sentry
            .files_are_back()
            .await
            .map_err(|error| death::of_start(&error, false))?;
        fault::point("claim.files-back");
    }
    fault::point("claim.container-started");

    // The guest's ends too: as long as we hold them, its end would not show.
    let Files {
        to_guest,
        from_guest,
        said,
        guest_in: _,
        guest_out: _,
        scratch: _,
        image: _,
        init: _,
    } = files;
    let pipes = Pipes {
        from_guest,
        to_guest,
    };
    let bridge = Arc::new(SentryBridge { instance });
    let opening = shared.opening.lock().await;
    close(shared).await;
    if record.kept.is_some() {
        let folder = sessions_folder(shared, record);
        tokio::task::spawn_blocking(move || put_main_aside(&folder))
            .await
            .map_err(|error| death::of_start(&error, false))?
            .map_err(|error| death::of_start(&error, false))?;
        fault::point("claim.main-aside");
    }
    let sessions = open(shared, record, Some(pipes), bridge)
        .await
        .map_err(|error| death::of_start(&error, false))?;
    drop(opening);
    set_up(shared, record, &sessions, &said).await?;
    fault::point("claim.channel");
    Ok(())
}

/// Waits until init answers and has done what it was told.
async fn set_up(
    shared: &Shared,
    record: &SandboxRecord,
    sessions: &Sessions,
    said: &BoundedLog,
) -> Result<(), Cause> {
    let mut health = sessions.health();
    loop {
        let seen = health.borrow_and_update().clone();
        match (seen.link, seen.setup) {
            (Link::Up, Some(SetUp::Done)) => return Ok(()),
            (Link::Up, Some(SetUp::Failed(why))) => {
                return Err(death::of_set_up(&why, record.spec.security.read_only_root));
            }
            (Link::Up, Some(SetUp::BadPath(why))) => return Err(death::of_path(&why)),
            (Link::Unavailable { why }, _) if init_has_ended(shared).await => {
                let said = said.text(INIT_TOLD).unwrap_or_default();
                return Err(death::of_init_gone(if said.is_empty() {
                    &why
                } else {
                    &said
                }));
            }
            (Link::SpawnerKilled { message }, _) => return Err(death::of_init(&message)),
            (Link::Up | Link::Connecting | Link::Unavailable { .. } | Link::Ended, _) => {}
        }
        if health.changed().await.is_err() {
            return Err(death::internal("its channel was closed"));
        }
    }
}

/// Whether the sentry says that the container `main` has ended, which a sandbox outlives.
async fn init_has_ended(shared: &Shared) -> bool {
    let Some(instance) = shared.instance() else {
        return false;
    };
    let asked = async { Sentry::connect(&instance.paths).await?.main_state().await };
    matches!(asked.await, Ok(ContainerState::Stopped))
}

/// Descriptors of `main`, and our ends of its channel.
struct Files {
    guest_in: OwnedFd,
    guest_out: OwnedFd,
    to_guest: OwnedFd,
    from_guest: OwnedFd,
    /// What init says before it gives up: a file in memory that cannot grow.
    said: BoundedLog,
    scratch: File,
    image: File,
    init: File,
}

impl Files {
    fn open(
        scratch: &std::path::Path,
        image: &std::path::Path,
        init: &std::path::Path,
    ) -> std::io::Result<Self> {
        let (guest_in, to_guest) = pipe2(OFlag::O_CLOEXEC)?;
        let (from_guest, guest_out) = pipe2(OFlag::O_CLOEXEC)?;
        let scratch = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            // Unnamed: it goes with its last descriptor, whoever dies.
            .custom_flags(OFlag::O_TMPFILE.bits())
            .open(scratch)?;
        Ok(Self {
            guest_in,
            guest_out,
            to_guest,
            from_guest,
            said: BoundedLog::new(INIT_SAYS)?,
            scratch,
            image: File::open(image)?,
            init: File::open(init)?,
        })
    }
}

fn sessions_folder(shared: &Shared, record: &SandboxRecord) -> PathBuf {
    shared.node.sandboxes.folder(&record.uid).join("sessions")
}

/// Closes the sessions of the life before: two cannot work on one folder.
async fn close(shared: &Shared) {
    let (sessions, cancel) = {
        let mut holding = shared.holding();
        (holding.sessions.take(), holding.sessions_cancel.take())
    };
    if let Some(cancel) = cancel {
        cancel.cancel();
    }
    if let Some(sessions) = sessions {
        sessions.closed().await;
    }
}

/// Opens the sandbox's sessions, and keeps them where the api finds them.
async fn open(
    shared: &Shared,
    record: &SandboxRecord,
    pipes: Option<Pipes>,
    bridge: Arc<dyn Bridge>,
) -> Result<Sessions, SessionError> {
    let folder = sessions_folder(shared, record);
    let cancel = shared.sessions_cancel.child_token();
    let setup = Setup {
        hostname: record.spec.hostname.clone(),
        read_only_root: command::read_only_root(record),
    };
    let sessions = Sessions::open(
        &folder,
        pipes,
        bridge,
        setup,
        Pauses {
            is_paused: record.state.may_be_paused(),
            before: record.paused,
        },
        cancel.clone(),
    )
    .await?;
    {
        let mut holding = shared.holding();
        holding.sessions = Some(sessions.clone());
        holding.sessions_cancel = Some(cancel);
    }
    shared.tell_beside(|_| {});
    Ok(sessions)
}

/// Opens the sessions that a sandbox had under an earlier agent. That they cannot be is told by whoever needs them next.
pub(super) async fn find_sessions(shared: &Shared, record: &SandboxRecord) {
    let bridge: Arc<dyn Bridge> = match (&record.state, shared.instance()) {
        // What it printed before it was stopped can be read while it waits.
        (State::Bound, _) if record.kept.is_some() => Arc::new(NoBridge),
        (State::Bound | State::Claimed { .. }, _) => return,
        (_, Some(instance)) => Arc::new(SentryBridge { instance }),
        (_, None) => Arc::new(NoBridge),
    };
    if let Err(error) = open(shared, record, None, bridge).await {
        tracing::error!(
            sandbox = record.name,
            error = &error as &dyn std::error::Error,
            "cannot open the sessions of a sandbox"
        );
    }
}

/// Finds the channel of a running instance again, by its bridge.
pub(super) async fn reopen(shared: &Shared, record: &SandboxRecord) -> Result<Sessions, Cause> {
    let instance = shared
        .instance()
        .ok_or_else(|| death::internal("its instance is not held"))?;
    open(shared, record, None, Arc::new(SentryBridge { instance }))
        .await
        .map_err(|error| death::of_start(&error, false))
}

/// Waits until what the sandbox's command printed before its end is in the log: init tells an end before the output that led to it, and
/// both go with the instance. Not where the command has not ended, and not longer than [`SETTLE`].
pub(super) async fn settle_main(shared: &Shared) {
    let (Some(sessions), Some(instance)) = (shared.sessions(), shared.instance()) else {
        return;
    };
    let Ok(session) = sessions.get(&main_id()).await else {
        return;
    };
    let has_ended = session.state().borrow().ended.is_some();
    // All commands end with the process that they live under, which init tells before their ends.
    let is_ending = matches!(sessions.health().borrow().link, Link::SpawnerKilled { .. });
    if !has_ended && !is_ending {
        return;
    }
    let settled = async {
        tokio::select! {
            // All are cancel safe: they look at levels. An error: the agent stops, or nothing can be known of the sentry.
            settled = session.settled() => drop(settled),
            gone = instance.sentry.gone() => drop(gone),
            () = out_of_reach(shared, &sessions) => {}
        }
    };
    if tokio::time::timeout(SETTLE, settled).await.is_err() {
        tracing::warn!("what a command printed before its end did not come in time");
    }
}

/// Returns where what init still holds cannot be had: it is gone, or there is no room. It may be the sandbox's own files that take it.
async fn out_of_reach(shared: &Shared, sessions: &Sessions) {
    let mut health = sessions.health();
    loop {
        let seen = health.borrow_and_update().clone();
        let is_gone = match seen.link {
            Link::Ended => true,
            Link::Unavailable { .. } => init_has_ended(shared).await,
            Link::Connecting | Link::Up | Link::SpawnerKilled { .. } => false,
        };
        if is_gone || seen.storage_full.is_some() || health.changed().await.is_err() {
            return;
        }
    }
}

/// Whether the end of what the sandbox's command printed is known to be lost.
pub(super) async fn is_output_lost(shared: &Shared) -> bool {
    let Some(sessions) = shared.sessions() else {
        return false;
    };
    match sessions.get(&main_id()).await {
        Ok(session) => {
            let state = session.state();
            let state = state.borrow();
            state.ended.as_ref().is_some_and(|ended| ended.lost)
        }
        Err(_) => false,
    }
}

/// Ends all sessions of a sandbox that has ended; what they printed and how they ended can still be read.
pub(super) async fn end_sessions(shared: &Shared, record: &SandboxRecord, reason: &str) {
    let sessions = match shared.sessions() {
        Some(sessions) => Ok(sessions),
        None => open(shared, record, None, Arc::new(NoBridge)).await,
    };
    let ended = match sessions {
        Ok(sessions) => sessions.end_all(reason).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::error!(
            sandbox = record.name,
            error = &error as &dyn std::error::Error,
            "cannot end the sessions of a sandbox"
        );
    }
}

/// Gets or creates the session `main`, and tells its start and its end; tells also when init was killed from inside.
pub(super) async fn main(shared: Shared, record: SandboxRecord, events: mpsc::Sender<Event>) {
    let event = match follow_main(&shared, &record, &events).await {
        Ok(event) => explained(&shared, &record, event).await,
        Err(cause) => died(&record, cause),
    };
    drop(events.send(event).await);
}

/// What runs in its instance cannot go on.
fn died(record: &SandboxRecord, cause: Cause) -> Event {
    let instance = record.state.instance().unwrap_or_default().to_owned();
    Event::Died { instance, cause }
}

async fn follow_main(
    shared: &Shared,
    record: &SandboxRecord,
    events: &mpsc::Sender<Event>,
) -> Result<Event, Cause> {
    let sessions = match shared.sessions() {
        Some(sessions) => sessions,
        // After a restart of the agent.
        None => reopen(shared, record).await?,
    };
    let image = record
        .image
        .as_ref()
        .ok_or_else(|| death::internal("its image is not known"))?;
    let spec = match command::main(record, image) {
        Ok(spec) => spec,
        Err(error) => {
            let now = clock::now();
            return Ok(Event::MainEnded {
                cause: death::of_command(&error),
                began: now,
                at: now,
            });
        }
    };
    let health = watch_health(shared, record, &sessions, events);
    let Some(spec) = spec else {
        return Ok(tokio::select! {
            // Both look at levels.
            event = health => event,
            never = serve_idle(&sessions, events) => match never {},
        });
    };
    debug_assert_ne!(record.spec.main, MainCommand::Idle);
    let new = NewSession {
        spec,
        kill_on_detach: None,
        // An agent of another version may make something else of the same spec, and has to adopt it.
        fingerprint: None,
    };
    let (session, _) = sessions
        .create(main_id(), new)
        .await
        .map_err(|error| death::of_start(&error, false))?;
    fault::point("main.created");
    let main = async {
        let mut state = session.state();
        let begun = state
            .wait_for(|state| state.started.is_some() || state.ended.is_some())
            .await
            .ok()?
            .clone();
        fault::point("main.started");
        if let (Some(at), None) = (begun.started, begun.ended) {
            drop(events.send(Event::MainStarted { at }).await);
        }
        let ended = session.ended().await.ok()?;
        let started = session.state().borrow().started;
        Some(Event::MainEnded {
            cause: death::of_main(&ended),
            began: started.unwrap_or_else(|| ended.began()),
            at: ended.at,
        })
    };
    tokio::select! {
        // Both are cancel safe: they look at levels.
        Some(event) = main => {
            // Init's end ends the command too. It is told before the ends that it causes.
            let link = sessions.health().borrow().link.clone();
            if let Link::SpawnerKilled { message } = link {
                Ok(Event::InitKilled(death::of_init(&message)))
            } else {
                Ok(event)
            }
        }
        event = health => Ok(event),
    }
}

/// Tells that a sandbox without a command of its own runs, once its init answers.
async fn serve_idle(sessions: &Sessions, events: &mpsc::Sender<Event>) -> Infallible {
    let mut health = sessions.health();
    if health
        .wait_for(|health| health.link == Link::Up)
        .await
        .is_ok()
    {
        let at = clock::now();
        drop(events.send(Event::MainStarted { at }).await);
    }
    std::future::pending().await
}

/// An end may be the kernel's doing: it takes a process of the sentry when memory runs out, and with it goes one of the guest, of which
/// a shell may have made an exit code of its own. The group's counters tell; where they do, the whole group is killed, and the end is
/// the sentry's.
async fn explained(shared: &Shared, record: &SandboxRecord, event: Event) -> Event {
    let Some(instance) = shared.instance() else {
        return event;
    };
    let Some(killed) = death::of_stub(&shared.node, &instance, record).await else {
        return event;
    };
    match event {
        Event::MainEnded { began, at, .. } => Event::MainEnded {
            cause: killed,
            began,
            at,
        },
        Event::InitKilled(_) => Event::InitKilled(killed),
        _ => died(record, killed),
    }
}

/// Shows whether sessions can be reached, and returns only when init was killed from inside.
async fn watch_health(
    shared: &Shared,
    record: &SandboxRecord,
    sessions: &Sessions,
    events: &mpsc::Sender<Event>,
) -> Event {
    let mut health = sessions.health();
    loop {
        let Health {
            link, storage_full, ..
        } = health.borrow_and_update().clone();
        // Told only where it changed: each word of it is a status of its own.
        if shared.holding().beside.log_storage_full != storage_full {
            shared.tell_beside(|beside| beside.log_storage_full = storage_full);
        }
        match link {
            Link::SpawnerKilled { message } => return Event::InitKilled(death::of_init(&message)),
            Link::Unavailable { why } if init_has_ended(shared).await => {
                return died(record, death::of_init_gone(&why));
            }
            Link::Unavailable { why } => {
                shared.tell_beside(|beside| beside.sessions_unavailable = Some(why));
                drop(events.send(Event::Unreachable).await);
            }
            Link::Up => shared.tell_beside(|beside| beside.sessions_unavailable = None),
            Link::Connecting | Link::Ended => {}
        }
        if health.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Has SIGTERM sent to the command, as soon as its init answers.
pub(super) async fn terminate(shared: Shared, record: SandboxRecord) {
    let Some(sessions) = shared.sessions() else {
        return;
    };
    let sent = async { sessions.get(&main_id()).await?.terminate().await };
    match sent.await {
        Ok(()) | Err(SessionError::Ended { .. }) => {}
        Err(error) => tracing::warn!(
            sandbox = record.name,
            error = &error as &dyn std::error::Error,
            "cannot tell a command to end"
        ),
    }
}

/// The way to a sandbox's init by its sentry.
struct SentryBridge {
    instance: Instance,
}

impl Bridge for SentryBridge {
    fn connect(&self) -> BoxFuture<'_, Result<Pipes, BridgeError>> {
        Box::pin(async {
            let (guest_in, to_guest) = pipe2(OFlag::O_CLOEXEC).map_err(failed_to("bridge to"))?;
            let (from_guest, guest_out) =
                pipe2(OFlag::O_CLOEXEC).map_err(failed_to("bridge to"))?;
            let mut sentry = Sentry::connect(&self.instance.paths)
                .await
                .map_err(failed_to("bridge to"))?;
            let init = format!("{}/init", spec::INIT_MOUNT);
            let program = Execute {
                argv: &[&init, "bridge"],
                uid: BRIDGE_USER,
                gid: BRIDGE_USER,
                files: &[guest_in.as_fd(), guest_out.as_fd()],
            };
            sentry
                .execute(program)
                .await
                .map_err(failed_to("bridge to"))?;
            Ok(Pipes {
                from_guest,
                to_guest,
            })
        })
    }

    fn wake(&self) -> BoxFuture<'_, Result<(), BridgeError>> {
        Box::pin(async {
            let mut sentry = Sentry::connect(&self.instance.paths)
                .await
                .map_err(failed_to("wake"))?;
            sentry
                .signal_main(Signal::SIGCONT)
                .await
                .map_err(failed_to("wake"))
        })
    }
}

/// The bridge of a sandbox that has no instance any more.
struct NoBridge;

impl Bridge for NoBridge {
    fn connect(&self) -> BoxFuture<'_, Result<Pipes, BridgeError>> {
        Box::pin(async {
            Err(failed_to("bridge to")(std::io::Error::from(
                std::io::ErrorKind::NotConnected,
            )))
        })
    }

    fn wake(&self) -> BoxFuture<'_, Result<(), BridgeError>> {
        Box::pin(async {
            Err(failed_to("wake")(std::io::Error::from(
                std::io::ErrorKind::NotConnected,
            )))
        })
    }
}

fn failed_to<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    operation: &'static str,
) -> impl FnOnce(E) -> BridgeError {
    move |error| BridgeError {
        operation,
        source: error.into(),
    }
}

fn main_id() -> CommandId {
    CommandId::main()
}

//! The calls to a sentry that we use, typed. Source: runsc/boot/controller.go and runsc/boot/network.go.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::urpc::{Connection, UrpcError};
use super::{InstancePaths, spec};

/// To connect and for calls that only look or tell: they take far less than a millisecond.
const SHORT: Duration = Duration::from_secs(5);

/// For calls that start something: 3 to 10 ms on a quiet node, more when it is busy.
const LONG: Duration = Duration::from_secs(15);

/// For what writes or reads all that a sandbox may have written: at 20 MB a second, 18 GB.
const FILES: Duration = Duration::from_mins(15);

/// `lower` and `upper` of a mount that comes as descriptors: an EROFS file; nothing, or a file as writable layer over it.
/// Source: `runsc/specutils/gofer_conf.go`.
const LOWER_EROFS: u8 = 2;
const UPPER_NONE: u8 = 0;
const UPPER_FILE: u8 = 3;

/// Longest list of stacks, in bytes: one of a task that is stopped takes 1.1 KiB, one of a task that runs some 3 KiB (measured).
const MAX_STACKS: usize = 64 << 20;

/// For a list of them: of 10,000 tasks it took 19 s on a busy machine.
const STACKS: Duration = Duration::from_mins(1);

/// One control connection to a sentry, for one purpose: a call that waits holds up those behind it.
#[derive(Debug)]
pub struct Sentry {
    connection: Connection,
    root: String,
}

/// The descriptors that `main` is made of. The sentry gets duplicates.
#[derive(Clone, Copy, Debug)]
pub struct MainFiles<'a> {
    /// The holder's stdin: the channel towards the guest.
    pub stdin: BorrowedFd<'a>,
    /// The holder's stdout: the channel from the guest.
    pub stdout: BorrowedFd<'a>,
    /// The holder's stderr.
    pub stderr: BorrowedFd<'a>,
    /// The writable layer: an empty, unlinked file, open for reading and writing.
    pub scratch: BorrowedFd<'a>,
    /// The user's image, an EROFS file, open for reading.
    pub image: BorrowedFd<'a>,
    /// cloche-init's EROFS file, open for reading.
    pub init: BorrowedFd<'a>,
}

/// A program that the sentry is to run in `main`, without any capability and without the chance to gain one.
#[derive(Clone, Copy, Debug)]
pub struct Execute<'a> {
    /// Program and arguments, as paths in the guest.
    pub argv: &'a [&'a str],
    /// User id.
    pub uid: u32,
    /// Group id; it has no other groups.
    pub gid: u32,
    /// Its descriptors 0, 1, ... in this order.
    pub files: &'a [BorrowedFd<'a>],
}

/// State of a container as the sentry tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// Its first process runs.
    Running,
    /// Its first process ended, or there is no such container: the sentry does not tell these apart.
    Stopped,
}

/// A process of the guest, as the sentry tells it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct GuestProcess {
    /// In the sandbox's root pid namespace.
    pub pid: i32,
    /// Its parent, there.
    pub ppid: i32,
    /// Name of its program. Untrusted.
    pub cmd: String,
}

impl Sentry {
    /// Connects to the control socket of an instance that was created.
    pub async fn connect(paths: &InstancePaths) -> Result<Self, UrpcError> {
        Ok(Self {
            connection: Connection::open(&paths.socket(), SHORT).await?,
            root: paths.name().to_string(),
        })
    }

    /// Gives the sandbox its network: a loopback and nothing else. Exactly once, before [`Self::start_root`]: later the
    /// sentry's system call filter forbids what it needs.
    ///
    /// The place where links are attached: `FDBasedLinks`, with one `AF_PACKET` socket each as file.
    pub async fn set_network(&mut self) -> Result<(), UrpcError> {
        let loopback = json!({
            "Name": "lo",
            "Addresses": [
                { "Address": "127.0.0.1", "PrefixLen": 8 },
                { "Address": "::1", "PrefixLen": 128 },
            ],
            // Masks are base64 of their bytes: Go's net.IPMask.
            "Routes": [
                { "Destination": { "IP": "127.0.0.0", "Mask": "/wAAAA==" }, "Gateway": null, "MTU": 0 },
                {
                    "Destination": { "IP": "::1", "Mask": "/////////////////////w==" },
                    "Gateway": null,
                    "MTU": 0,
                },
            ],
            "GVisorGRO": false,
        });
        let no_gateway = json!({
            "Route": { "Destination": { "IP": "", "Mask": null }, "Gateway": "" },
            "Name": "",
        });
        self.tell(
            "containerManager.SetNetworkArgs",
            json!({
                "LoopbackLinks": [loopback],
                "FDBasedLinks": null,
                "XDPLinks": null,
                "Defaultv4Gateway": no_gateway,
                "Defaultv6Gateway": no_gateway,
            }),
            &[],
            SHORT,
        )
        .await
    }

    /// Starts the root container: a *created* sandbox becomes a *started* one.
    pub async fn start_root(&mut self) -> Result<(), UrpcError> {
        let root = self.root.clone();
        self.tell("containerManager.StartRoot", root, &[], LONG)
            .await
    }

    /// Creates and starts `main` over an image. Exactly once; a failure in between leaves a sandbox that is used up.
    ///
    /// `spec` is [`spec::main`]. `size` bounds the writable layer, in bytes; past it the guest sees ENOSPC.
    pub async fn start_main(
        &mut self,
        spec: &Value,
        files: MainFiles<'_>,
        size: Option<u64>,
    ) -> Result<(), UrpcError> {
        self.create_main().await?;
        self.start_created_main(spec, files, size).await
    }

    /// The first half of [`Self::start_main`].
    pub async fn create_main(&mut self) -> Result<(), UrpcError> {
        let arg = json!({ "CID": spec::MAIN });
        self.tell("containerManager.CreateSubcontainer", arg, &[], SHORT)
            .await
    }

    /// The second half of [`Self::start_main`].
    pub async fn start_created_main(
        &mut self,
        spec: &Value,
        files: MainFiles<'_>,
        size: Option<u64>,
    ) -> Result<(), UrpcError> {
        let mut layers = json!({ "lower": LOWER_EROFS, "upper": UPPER_FILE });
        if let Some(size) = size {
            layers["size"] = Value::String(size.to_string());
        }
        // Order and number of files are part of the call (`StartArgs`): stdio, writable layers, then one image per mount.
        let MainFiles {
            stdin,
            stdout,
            stderr,
            scratch,
            image,
            init,
        } = files;
        self.tell(
            "containerManager.StartSubcontainer",
            json!({
                "Spec": spec,
                // All defaults. What matters of runsc's flags was fixed when the sandbox was created.
                "Conf": {},
                "CID": spec::MAIN,
                "NumGoferFilestoreFDs": 1,
                "IsDevIoFilePresent": false,
                "GoferMountConfs": [layers, { "lower": LOWER_EROFS, "upper": UPPER_NONE }],
                "IsRootfsUpperTarFilePresent": false,
            }),
            &[stdin, stdout, stderr, scratch, image, init],
            LONG,
        )
        .await
    }

    /// Starts a program in `main` without waiting for it. Returns its pid in the sandbox's root pid namespace.
    ///
    /// For bridging only, never for what a user asks to run: a restore kills it. Its status is not asked for, since the call
    /// that waits takes the status away even when its caller has gone.
    pub async fn execute(&mut self, program: Execute<'_>) -> Result<i32, UrpcError> {
        let Execute {
            argv,
            uid,
            gid,
            files,
        } = program;
        self.connection
            .call(
                "containerManager.ExecuteAsync",
                json!({
                    "filename": "",
                    "argv": argv,
                    "envv": [],
                    "MountNamespace": null,
                    "wd": "/",
                    "KUID": uid,
                    "KGID": gid,
                    "ExtraKGIDs": [],
                    "NoNewPrivileges": true,
                    // Null would mean all.
                    "Capabilities": {
                        "PermittedCaps": 0,
                        "InheritableCaps": 0,
                        "EffectiveCaps": 0,
                        "BoundingCaps": 0,
                        "AmbientCaps": 0,
                    },
                    "StdioIsPty": false,
                    "SupportTTYs": false,
                    "GuestFDs": (0..files.len()).collect::<Vec<_>>(),
                    "ContainerID": spec::MAIN,
                }),
                files,
                LONG,
            )
            .await
    }

    /// Sends a signal to the first process of `main`: the holder.
    pub async fn signal_main(&mut self, signal: Signal) -> Result<(), UrpcError> {
        // PID 0 with mode 0 is the container's first process.
        let arg = json!({ "CID": spec::MAIN, "Signo": signal as i32, "PID": 0, "Mode": 0 });
        self.tell("containerManager.Signal", arg, &[], SHORT).await
    }

    /// The processes of `main`.
    pub async fn processes(&mut self) -> Result<Vec<GuestProcess>, UrpcError> {
        self.connection
            .call("containerManager.Processes", spec::MAIN, &[], SHORT)
            .await
    }

    /// Whether `main` runs: what decides between adopting and killing after a restart of the agent.
    pub async fn main_state(&mut self) -> Result<ContainerState, UrpcError> {
        let method = "containerManager.ContainerRuntimeState";
        let state: u8 = self.connection.call(method, spec::MAIN, &[], SHORT).await?;
        match state {
            1 => Ok(ContainerState::Created),
            2 => Ok(ContainerState::Running),
            3 => Ok(ContainerState::Stopped),
            _ => Err(UrpcError::Reply {
                method,
                what: "no known container state",
            }),
        }
    }

    /// Stops all guest tasks; returns once none runs. The sentry counts: exactly once before each [`Self::resume`].
    pub async fn pause(&mut self) -> Result<(), UrpcError> {
        self.tell("containerManager.Pause", json!({}), &[], LONG)
            .await
    }

    /// Lets all guest tasks go on. One that is not paused dies of it.
    pub async fn resume(&mut self) -> Result<(), UrpcError> {
        self.tell("containerManager.Resume", json!({}), &[], LONG)
            .await
    }

    /// Whether all guest tasks are stopped, by what the sentry's threads do: no call tells it.
    pub async fn is_paused(&mut self) -> Result<bool, UrpcError> {
        let method = "debug.Stacks";
        let stacks: String = self
            .connection
            .call_up_to(MAX_STACKS, method, json!({}), &[], STACKS)
            .await?;
        are_all_stopped(&stacks).ok_or(UrpcError::Reply {
            method,
            what: "of a pause that is not over yet, or cut off, or of no guest task",
        })
    }

    /// Saves the writable layer of `main` into the empty `files`, in the order of [`NAMES`](super::saved::NAMES). Nothing of `main` runs
    /// meanwhile, and what is paused stays so. After a failure their content means nothing.
    pub async fn save_files(&mut self, files: &[BorrowedFd<'_>]) -> Result<(), UrpcError> {
        let root = json!({ "container_name": spec::MAIN, "path": "/" });
        let arg = json!({
            "paths": [root],
            "exit_after_saving": false,
            "use_checkpoint_gofer": false,
        });
        self.tell("containerManager.FSSave", arg, files, FILES)
            .await
    }

    /// Waits until all of the writable layer that `main` was started with is read, so that the files it came from may go.
    pub async fn files_are_back(&mut self) -> Result<(), UrpcError> {
        let arg = json!({ "CID": spec::MAIN });
        self.tell("containerManager.WaitFSRestore", arg, &[], FILES)
            .await
    }

    async fn tell(
        &mut self,
        method: &'static str,
        arg: impl serde::Serialize,
        files: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(), UrpcError> {
        self.connection
            .call::<IgnoredAny>(method, arg, files, deadline)
            .await
            .map(|_| ())
    }
}

/// Whether every guest task waits to be let go on; `None` where that cannot be told: a pause that is still being waited for counts already.
/// A guest can stop tasks of its own, but neither the
/// root container's nor cloche-init, so that in one which runs some are not stopped. Source: `pkg/sentry/kernel/task_stop.go`.
fn are_all_stopped(stacks: &str) -> Option<bool> {
    const TASK: &str = "kernel.(*Task).run(";
    const STOPPED: &str = "kernel.(*Task).doStop(";
    const PAUSING: &str = "kernel.(*Kernel).Pause(";
    if stacks.contains(PAUSING) {
        return None;
    }
    // As log.Stacks cuts them off.
    let is_whole = !stacks.contains("<too large, truncated>");
    let mut tasks = stacks
        .split("\n\n")
        .filter(|stack| stack.contains(TASK))
        .peekable();
    let is_there = tasks.peek().is_some();
    let all = tasks.all(|stack| stack.contains(STOPPED));
    match (is_there, all, is_whole) {
        (true, false, _) => Some(false),
        (true, true, true) => Some(true),
        (true, true, false) | (false, _, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_that_goes_on_is_enough() {
        let task = |at: &str| format!("goroutine 1 [select]:\n{at}\nkernel.(*Task).run(0x1)\n");
        let stopped = task("kernel.(*Task).doStop(0x1)");
        let runs = task("kernel.(*Task).block(0x1)");
        let other = "goroutine 2 [select]:\nnet.loop()\n";
        let of = |stacks: &[&str]| are_all_stopped(&stacks.join("\n\n"));
        assert_eq!(of(&[other, &stopped, &stopped]), Some(true));
        assert_eq!(of(&[&stopped, other, &runs]), Some(false));
        assert_eq!(of(&[other]), None);
        let pausing = "goroutine 3 [semacquire]:\nkernel.(*Kernel).Pause(0x1)\n";
        assert_eq!(of(&[&stopped, &runs, pausing]), None);
        let cut = "...<too large, truncated>";
        assert_eq!(of(&[&stopped, cut]), None);
        assert_eq!(of(&[&stopped, &runs, cut]), Some(false));
    }
}

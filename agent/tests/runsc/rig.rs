//! What the tests of real sandboxes share: programs, an image, instances, a way to run something in the guest.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cloche_agent::cgroup::{Cgroups, Limits};
use cloche_agent::process::command;
use cloche_agent::runsc::sentry::{Execute, MainFiles};
use cloche_agent::runsc::{
    CreatePlan, Created, InstanceName, InstancePaths, Profile, Sentry, create, spec, tear_down,
};
use cloche_agent::sys::orphan;

use super::groups::TestGroups;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GUEST_MEMORY: u64 = 200 * MIB;
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

static COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) groups: TestGroups,
    pub(crate) profile: Profile,
    pub(crate) image: PathBuf,
}

/// A program that a test needs: an environment variable, else where `cargo xtask` builds it.
fn program(variable: &str, name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/artifacts")
        .join(name);
    let path = std::env::var_os(variable).map_or(built, PathBuf::from);
    assert!(
        path.is_file(),
        "this test needs {name}: {} is not there; build it with `cargo xtask`, or set {variable}",
        path.display()
    );
    path
}

impl Rig {
    pub(crate) async fn new() -> Self {
        orphan::become_subreaper().expect("a subreaper");
        tokio::spawn(orphan::reap());
        let unique = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let groups = TestGroups::new(&unique);
        let dir = tempfile::Builder::new()
            .prefix("cloche-runsc-")
            .tempdir()
            .expect("made");
        let profile = Profile::install(
            dir.path(),
            &program("CLOCHE_RUNSC", "runsc"),
            &program("CLOCHE_INIT", "cloche-init"),
        )
        .await
        .expect("a profile");
        let image = busybox_image(dir.path()).await;
        Self {
            dir,
            groups,
            profile,
            image,
        }
    }

    pub(crate) fn cgroups(&self) -> Arc<dyn Cgroups> {
        self.groups.shared()
    }

    /// Plans an instance and makes its groups.
    pub(crate) fn plan(&self, name: &str) -> CreatePlan {
        let name = InstanceName::try_from(name.to_owned()).expect("a name");
        self.groups.create(name.as_str()).expect("groups");
        CreatePlan {
            group: name.to_string(),
            cgroups_path: format!("{}/{name}", self.groups.path),
            paths: InstancePaths::new(self.dir.path(), name).expect("short paths"),
            profile: self.profile.clone(),
            saved: None,
            guest_memory: GUEST_MEMORY,
            limits: Limits {
                memory: GUEST_MEMORY + 64 * MIB,
                cpu_millis: 2000,
                cpu_request_millis: 100,
                pids: 4 * 4096,
            },
            deadline: DEADLINE,
        }
    }

    pub(crate) async fn create(&self, plan: &CreatePlan) -> Created {
        create(plan, &self.cgroups()).await.expect("created")
    }

    /// A writable layer: unlinked from the beginning.
    pub(crate) fn scratch(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_TMPFILE)
            .mode(0o600)
            .open(self.dir.path())
            .expect("a file system with O_TMPFILE")
    }

    /// Starts `main` from the image. The ends of the channel are what the agent would hold.
    pub(crate) async fn start_main(
        &self,
        sentry: &mut Sentry,
        plan: &CreatePlan,
        size: Option<u64>,
    ) -> Channel {
        let (stdin, to_guest) = nix::unistd::pipe().expect("a pipe");
        let (from_guest, stdout) = nix::unistd::pipe().expect("a pipe");
        let null = File::options()
            .write(true)
            .open("/dev/null")
            .expect("there");
        let scratch = self.scratch();
        let image = File::open(&self.image).expect("the image");
        let init = File::open(self.profile.init_erofs()).expect("init");
        let files = MainFiles {
            stdin: stdin.as_fd(),
            stdout: stdout.as_fd(),
            stderr: null.as_fd(),
            scratch: scratch.as_fd(),
            image: image.as_fd(),
            init: init.as_fd(),
        };
        sentry
            .start_main(&spec::main(plan.paths.name()), files, size)
            .await
            .expect("main started");
        Channel {
            _to_guest: to_guest,
            _from_guest: from_guest,
        }
    }

    /// Ends an instance and asserts that nothing of it is left.
    pub(crate) async fn tear_down(&self, plan: &CreatePlan) {
        tear_down::kill(&self.cgroups(), &plan.group, DEADLINE)
            .await
            .expect("killed");
        tear_down::remove(&plan.paths).await.expect("removed");
        assert_eq!(
            self.groups.processes(&plan.group).expect("readable"),
            Vec::<i32>::new()
        );
        assert!(!plan.paths.home().exists());
        self.groups
            .remove(&plan.group)
            .expect("empty groups can be removed");
        let named: Vec<String> = processes_naming(plan.paths.home());
        assert!(named.is_empty(), "still there: {named:?}");
    }
}

pub(crate) struct Channel {
    _to_guest: OwnedFd,
    _from_guest: OwnedFd,
}

/// Runs a shell command in the guest through the control socket and returns its output.
pub(crate) async fn shell(sentry: &mut Sentry, script: &str) -> String {
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    let null = File::options().read(true).open("/dev/null").expect("there");
    sentry
        .execute(Execute {
            argv: &["/bin/busybox", "sh", "-c", script],
            uid: 0,
            gid: 0,
            files: &[null.as_fd(), write.as_fd(), write.as_fd()],
        })
        .await
        .expect("executed");
    drop(write);
    tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).expect("text");
        text
    })
    .await
    .expect("joined")
}

async fn busybox_image(dir: &Path) -> PathBuf {
    let busybox = Path::new("/bin/busybox");
    assert!(
        busybox.is_file(),
        "this test needs busybox-static: install it"
    );
    let tree = dir.join("tree");
    for folder in ["bin", "proc", "dev", "sys", "tmp", ".cloche"] {
        std::fs::create_dir_all(tree.join(folder)).expect("made");
    }
    std::fs::copy(busybox, tree.join("bin/busybox")).expect("copied");
    let image = dir.join("image.erofs");
    let made = command("mkfs.erofs")
        .args(["--quiet", "-x-1", "-Enoinline_data"])
        .arg(&image)
        .arg(&tree)
        .status()
        .await
        .expect("this test needs mkfs.erofs: install erofs-utils");
    assert!(made.success());
    image
}

/// Command lines in which the folder of an instance occurs: every process of runsc has it among its arguments.
fn processes_naming(home: &Path) -> Vec<String> {
    let home = format!("{}/", home.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("mounted").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&home) {
            found.push(line);
        }
    }
    found
}

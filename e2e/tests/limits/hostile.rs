//! A hostile guest: root with Docker's capabilities. The agent and other sandboxes go on, and the status says what happened.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::deadline::{until, within};
use cloche_e2e::image::prepared;
use cloche_e2e::session::{Session, command, shell};
use cloche_e2e::{Agent, Options, trial};
use cloche_proto::agent::v1alpha1::{Command, Open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scene::{self, LIMIT, images, line, manifest, options, output, sh};
use crate::verdict::Verdict;

/// Attacks on init; prints what came of each as JSON. What the kernel said is its errno, 0 where it let it happen.
const ATTACK: &str = r"
import ctypes, json, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
told = {}
def tried(name, attack):
    try:
        told[name] = attack() or 0
    except OSError as error:
        told[name] = error.errno
def called(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        return ctypes.get_errno()
def spoil(path):
    with open(path, 'wb', buffering=0) as file:
        file.write(b'\xff' * 4096)

told['processes'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
told['me'] = os.getpid()
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
tried('attach', lambda: called(101, PTRACE_ATTACH, 1, 0, 0))
tried('seize', lambda: called(101, PTRACE_SEIZE, 1, 0, 0))
tried('memory', lambda: spoil('/proc/1/mem'))
files = []
try:
    files = os.listdir('/proc/1/fd')
except OSError as error:
    told['list'] = error.errno
for name in files:
    tried('fd ' + name, lambda: spoil('/proc/1/fd/' + name))
for name in os.listdir('/proc/self/fd'):
    if int(name) > 2:
        tried('own ' + name, lambda: os.write(int(name), b'\xff'))
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        tried('signal', lambda: os.kill(1, number))
tried('plant', lambda: spoil('/.cloche/init'))
tried('folder', lambda: os.mkdir('/.cloche/x'))
tried('move', lambda: os.rename('/.cloche', '/moved'))
tried('mount', lambda: libc.mount(b'none', b'/.cloche', b'tmpfs', 0, None) and ctypes.get_errno())
tried('unmount', lambda: libc.umount2(b'/.cloche', 2) and ctypes.get_errno())
tried('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())
tried('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).close())
for name, kind, major, minor in [('memory', 0o020000, 1, 1), ('disk', 0o060000, 7, 0)]:
    path = '/tmp/device-' + name
    def device():
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        os.close(os.open(path, os.O_RDWR))
    tried('device ' + name, device)
print(json.dumps(told))
";

#[tokio::test]
async fn root_inside_cannot_reach_init() {
    let options = Options::default().images(prepared().unwrap());
    trial::run(options, async |agent| {
        let mut client = agent.client().await?;
        let python = manifest("evil", "oci:python:latest", json!({}));
        client.apply(&python).await?;
        scene::run(agent, "good", json!({})).await?;
        agent.wait_running("evil", LIMIT).await?;

        let attack = command(["python3", "-c", ATTACK]);
        let told: Value = serde_json::from_str(&agent.output("evil", attack, LIMIT).await?)
            .context("read what came of the attacks")?;
        for (name, outcome) in told.as_object().context("an object")? {
            let wanted = match name.as_str() {
                "processes" => outcome == &json!([1, told["me"]]),
                // Signals too: whoever may send them, init has to live with them.
                "me" | "signal" => true,
                _ => outcome.as_i64().is_some_and(|errno| errno > 0),
            };
            ensure!(wanted, "{name}: {outcome} in {told:#}");
        }
        ensure!(output(agent, "evil", "echo alive").await? == "alive");

        // A stopped init is continued.
        output(agent, "evil", "kill -STOP 1").await?;
        let woken = output(agent, "evil", "echo woken");
        ensure!(within(Duration::from_secs(5), "it is woken", woken).await? == "woken");
        // All but init can be killed.
        sh(agent, "evil", "kill -9 -1").await?;
        ensure!(output(agent, "evil", "echo alive").await? == "alive");

        let killing = sh(agent, "evil", "kill -9 1; sleep 10").await?;
        // With its sandbox or just before it: by SIGKILL in any case.
        ensure!(killing.exit.signal == 9, "{killing:?}");
        let verdict = Verdict::new(Reason::Error)
            .signal(9)
            .says("init was killed from inside");
        verdict.wait(agent, "evil").await?;
        let main = manifest(
            "main",
            "oci:busybox:latest",
            line("echo hi; kill -9 1; sleep 10"),
        );
        client.apply(&main).await?;
        verdict.wait(agent, "main").await?;
        ensure!(output(agent, "good", "echo fine").await? == "fine");
        Ok(())
    })
    .await
    .unwrap();
}

/// How long `true` takes in a sandbox, again and again for as long as `span`.
#[allow(
    clippy::disallowed_methods,
    reason = "a test measures by its own clock"
)]
async fn latencies(agent: &Agent, name: &str, span: Duration) -> Result<Vec<Duration>> {
    let start = Instant::now();
    let mut all = Vec::new();
    while start.elapsed() < span {
        let begun = Instant::now();
        agent.output(name, command(["true"]), LIMIT).await?;
        all.push(begun.elapsed());
    }
    all.sort();
    Ok(all)
}

fn median(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() / 2]
}

#[tokio::test]
async fn a_flood_does_not_hold_up_others() {
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        scene::run(agent, "good", json!({})).await?;
        let flood = json!({"resources": {"pids": 100, "limits": {"memory": "256Mi"}}});
        scene::run(agent, "flood", flood).await?;
        let span = Duration::from_secs(2);
        let quiet = latencies(agent, "good", Duration::from_millis(500)).await?;
        let mut sessions = Vec::new();
        for what in ["yes", "while :; do echo x; done", "cat /dev/zero >&2"] {
            for _ in 0..3 {
                let open = Open {
                    command: Some(Command {
                        timeout_ms: 4000,
                        ..shell(what)
                    }),
                    ..Open::default()
                };
                sessions.push(Session::open(agent, "flood", open).await??);
            }
        }
        // Nobody reads: what is printed is kept on the node as far as its bounds go.
        let loud = latencies(agent, "good", span).await?;
        let in_it = within(Duration::from_secs(5), "one in the flood", async {
            output(agent, "flood", "echo here").await
        })
        .await?;
        ensure!(in_it == "here");
        println!(
            "true: quiet {:?} of {}, beside a flood {:?} of {}, at most {:?}",
            median(&quiet),
            quiet.len(),
            median(&loud),
            loud.len(),
            loud.last()
        );
        let most = Duration::from_secs(1);
        ensure!(median(&loud) < most / 4, "{loud:?}");
        ensure!(
            loud.last().is_some_and(|slowest| *slowest < most),
            "{loud:?}"
        );
        drop(sessions);
        // A fork bomb is a flood of its own kind; its whole tree is killed in time.
        let bomb = Command {
            timeout_ms: 1000,
            ..shell("f() { f & f & wait; }; f")
        };
        let bombing = within(Duration::from_secs(4), "the bomb is over", async {
            agent.exec("flood", bomb, LIMIT).await
        });
        let beside = latencies(agent, "good", span);
        let (bombed, beside) = tokio::try_join!(bombing, beside)?;
        ensure!(bombed.exit.timed_out, "{bombed:?}");
        ensure!(median(&beside) < most / 4, "{beside:?}");
        let left = output(agent, "flood", "ls /proc | grep -c '^[0-9]'").await?;
        // Init, the shell, and the two of its line.
        ensure!(
            left.parse::<u32>().is_ok_and(|count| count <= 4),
            "{left} processes"
        );
        let seen = agent.wait_running("flood", LIMIT).await?;
        ensure!(seen.is_running());
        Ok(())
    })
    .await
    .unwrap();
}

/// Runs with a small disk at a folder of the agent's.
pub(crate) async fn with_small_disk(
    agent: &mut Agent,
    disk: &Path,
    size: &str,
    body: impl AsyncFnOnce(&mut Agent) -> Result<()>,
) -> Result<()> {
    agent.stop().await?;
    mount(
        Some("none"),
        disk,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(size),
    )
    .context("mount a small disk")?;
    agent.restart().await?;
    body(agent).await?;
    let mut client = agent.client().await?;
    for name in ["full", "other"] {
        client.delete(name).await?;
        agent.wait_gone(name, LIMIT).await?;
    }
    agent.stop().await?;
    umount2(disk, MntFlags::empty()).context("unmount the small disk")?;
    agent.restart().await
}

/// An agent that looks on while its disk fills.
fn heedless(folder: &TempDir) -> Options {
    Options {
        more: ["--disk-reserve", "0"].map(Into::into).to_vec(),
        ..options(folder)
    }
}

fn roomy() -> Value {
    json!({"resources": {"limits": {"memory": "256Mi"}}})
}

/// What a sandbox may write is bounded over all of it together, whoever writes; it survives, and what it deletes it can write again.
#[tokio::test]
async fn a_sandbox_writes_what_it_may_and_no_more() {
    const MIB: u64 = 1 << 20;
    let folder = images().unwrap();
    trial::run(options(&folder), async |agent| {
        let small = json!({
            "resources": {"limits": {"memory": "256Mi", "ephemeral-storage": "24Mi"}},
            "securityContext": {"readOnlyRootFilesystem": true, "writablePaths": ["/data", "/home/user"]},
        });
        scene::run(agent, "small", small).await?;
        let free = json!({"resources": {"limits": {"memory": "256Mi", "ephemeral-storage": "64Mi"}}});
        scene::run(agent, "larger", free).await?;
        for round in 0..3 {
            let writes = "for at in /tmp /data /home/user; do head -c 10000000 /dev/zero > $at/big 2>/dev/null; done; \
                cat /tmp/big /data/big /home/user/big | wc -c";
            let written: u64 = output(agent, "small", writes)
                .await?
                .lines()
                .last()
                .and_then(|line| line.parse().ok())
                .context("it counts")?;
            ensure!((16 * MIB..=24 * MIB).contains(&written), "{round}: {written}");
            let full = sh(agent, "small", "cat /dev/zero > /tmp/more").await?;
            let errors = String::from_utf8_lossy(&full.stderr).into_owned();
            ensure!(full.exit.code != 0 && errors.contains("No space left"), "{round}: {full:?}");
            output(agent, "small", "rm -f /tmp/big /data/big /home/user/big /tmp/more").await?;
        }
        let more = "head -c 40000000 /dev/zero > /tmp/big && stat -c %s /tmp/big";
        ensure!(output(agent, "larger", more).await? == "40000000");
        let told = agent.wait_running("small", LIMIT).await?.0["status"]["effective"]["resources"].clone();
        ensure!(
            told["limits"]["ephemeral-storage"] == "24Mi" && told["requests"]["ephemeral-storage"] == "24Mi",
            "{told:#}"
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_full_disk_of_writable_layers_is_told_inside() {
    let folder = images().unwrap();
    trial::run(heedless(&folder), async |agent| {
        let disk = agent.state().join("scratch");
        with_small_disk(agent, &disk, "size=48m", async |agent| {
            scene::run(agent, "full", roomy()).await?;
            scene::run(agent, "other", roomy()).await?;
            let filled = sh(agent, "full", "cat /dev/zero > /big").await?;
            let errors = String::from_utf8_lossy(&filled.stderr).into_owned();
            ensure!(errors.contains("No space left"), "{filled:?}");
            for name in ["full", "other"] {
                ensure!(output(agent, name, "echo fine").await? == "fine");
            }
            output(agent, "full", "rm /big").await?;
            let again = "head -c 1000000 /dev/zero > /small && stat -c %s /small";
            ensure!(output(agent, "other", again).await? == "1000000");
            Ok(())
        })
        .await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_full_disk_is_freed_by_a_deletion() {
    let folder = images().unwrap();
    trial::run(heedless(&folder), async |agent| {
        let disk = agent.state();
        with_small_disk(agent, &disk, "size=200m", async |agent| {
            scene::run(agent, "full", roomy()).await?;
            scene::run(agent, "other", roomy()).await?;
            let open = Open {
                command: Some(shell("cat /dev/zero > /big")),
                ..Open::default()
            };
            let filling = Session::open(agent, "full", open).await??;
            until(LIMIT, "the disk is full", async || {
                let disk = statvfs(&disk).context("look at the disk")?;
                Ok((disk.blocks_free() == 0).then_some(()))
            })
            .await?;
            // Nor does it keep an agent from starting: who else would free it?
            agent.kill().await?;
            agent.restart().await?;
            let mut client = agent.client().await?;
            client.delete("full").await?;
            agent.wait_gone("full", Duration::from_secs(10)).await?;
            drop(filling);
            ensure!(output(agent, "other", "echo fine").await? == "fine");
            Ok(())
        })
        .await
    })
    .await
    .unwrap();
}

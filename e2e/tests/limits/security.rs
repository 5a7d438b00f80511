//! As whom commands run and with which rights: `spec.securityContext`, seen from inside.

use anyhow::{Result, ensure};
use cloche_crds::Reason;
use cloche_e2e::deadline::until;
use cloche_e2e::image::{Entry, Layer};
use cloche_e2e::session::shell;
use cloche_e2e::{Agent, trial};
use cloche_proto::agent::v1alpha1::Command;
use serde_json::{Value, json};

use crate::scene::{LIMIT, add, busybox_with, images, manifest, options, output};
use crate::verdict::Verdict;

/// What a command tells of itself: ids, then inheritable, permitted, effective, bounding and ambient set, then `no_new_privs`.
const SELF: &str = "echo $(id -u) $(id -g) $(id -G); awk '/^(Cap|NoNew)/ {print $2}' /proc/self/status | tr '\\n' ' '";

/// The five sets and the flag as /proc shows them, in its order.
fn sets(own: u64, bounding: u64, no_new_privileges: u8) -> String {
    format!(
        "{own:016x} {own:016x} {own:016x} {bounding:016x} {:016x} {no_new_privileges}",
        0
    )
}

/// A busybox whose user is `user`, with a setuid `su` and a root that needs no password.
fn image() -> Result<cloche_e2e::image::Image> {
    let program = std::fs::read("/bin/busybox")?;
    let passwd = "root::0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n";
    let layer = Layer::default()
        .add("suid", Entry::Folder)?
        .add_owned("suid/su", Entry::File(program), 0o4755, 0, 0)?
        .add_owned("etc/passwd", Entry::File(passwd.into()), 0o644, 0, 0)?;
    busybox_with(vec![layer], |config| "user".clone_into(&mut config.user))
}

#[tokio::test]
async fn commands_have_exactly_what_the_security_context_gives() {
    /// Docker's default capabilities without `NET_RAW`.
    const ALL: u64 = 0xa804_05fb;
    const CHOWN_KILL: u64 = 1 | 1 << 5;
    let folder = images().unwrap();
    let image = add(folder.path(), "own", &image().unwrap()).unwrap();
    let cases = [
        (
            "absent",
            Value::Null,
            "1000 1000 1000 2000",
            sets(0, ALL, 0),
        ),
        ("empty", json!({}), "1000 1000 1000 2000", sets(0, ALL, 0)),
        ("root", json!({"runAsUser": 0}), "0 0 0", sets(ALL, ALL, 0)),
        (
            "own-group",
            json!({"runAsUser": 1000}),
            "1000 1000 1000 2000",
            sets(0, ALL, 0),
        ),
        (
            "stranger",
            json!({"runAsUser": 4321}),
            "4321 0 0",
            sets(0, ALL, 0),
        ),
        (
            "group",
            json!({"runAsGroup": 77}),
            "1000 77 77 2000",
            sets(0, ALL, 0),
        ),
        (
            "groups",
            json!({"runAsUser": 5, "runAsGroup": 6, "supplementalGroups": [9, 7, 9]}),
            "5 6 6 7 9",
            sets(0, ALL, 0),
        ),
        (
            "greatest",
            json!({"runAsUser": 4_294_967_294_u32, "runAsGroup": 4_294_967_294_u32}),
            "4294967294 4294967294 4294967294",
            sets(0, ALL, 0),
        ),
        (
            "none",
            json!({"runAsUser": 0, "capabilities": []}),
            "0 0 0",
            sets(0, 0, 0),
        ),
        (
            "two",
            json!({"runAsUser": 0, "capabilities": ["KILL", "CHOWN"]}),
            "0 0 0",
            sets(CHOWN_KILL, CHOWN_KILL, 0),
        ),
        (
            "user-two",
            json!({"capabilities": ["KILL", "CHOWN"], "allowPrivilegeEscalation": false}),
            "1000 1000 1000 2000",
            sets(0, CHOWN_KILL, 1),
        ),
        (
            "fixed",
            json!({"runAsUser": 0, "allowPrivilegeEscalation": false}),
            "0 0 0",
            sets(ALL, ALL, 1),
        ),
    ];
    trial::run(options(&folder), async |agent| {
        let mut client = agent.client().await?;
        for (name, context, ..) in &cases {
            // Its own command, too, not only those of clients.
            let spec = json!({
                "command": ["/bin/sh", "-c", format!("{SELF}; exec sleep 100000")],
                "securityContext": context,
            });
            client.apply(&manifest(name, &image, spec)).await?;
        }
        for (name, _, ids, sets) in &cases {
            agent.wait_running(name, LIMIT).await?;
            let wanted = format!("{ids}\n{sets}");
            let got = output(agent, name, SELF).await?;
            ensure!(
                got.trim_end() == wanted,
                "{name}: {got:?} is not {wanted:?}"
            );
            let main = printed(agent, name, wanted.len()).await?;
            ensure!(
                main.trim_end() == wanted,
                "{name}: its own: {main:?} is not {wanted:?}"
            );
        }
        told(agent).await?;
        rights(agent).await
    })
    .await
    .unwrap();
}

/// What a sandbox's own command has printed, once that is `least` bytes.
async fn printed(agent: &Agent, name: &str, least: usize) -> Result<String> {
    until(LIMIT, "its own command tells", async || {
        let log = agent.kubectl(&["log", name]).await?.stdout;
        let text = String::from_utf8_lossy(&log).into_owned();
        Ok((text.len() >= least).then_some(text))
    })
    .await
}

/// The status says what applies.
async fn told(agent: &Agent) -> Result<()> {
    let mut client = agent.client().await?;
    for (name, user, escalates, capabilities) in [
        ("absent", "user", true, 13),
        ("group", "user:77", true, 13),
        ("groups", "5:6", true, 13),
        ("none", "0", true, 0),
        ("user-two", "user", false, 2),
    ] {
        let object = client.get(name).await?.unwrap_or_default();
        let effective = &object["status"]["effective"];
        let told = effective["capabilities"].as_array().map(Vec::len);
        ensure!(
            effective["user"] == user
                && effective["allowPrivilegeEscalation"] == escalates
                && told == Some(capabilities),
            "{name}: {effective:#}"
        );
    }
    Ok(())
}

/// The rights are real: who has a capability can use it, who has not cannot, and setuid gives root only where it may.
async fn rights(agent: &Agent) -> Result<()> {
    for (name, user, line, wanted) in [
        (
            "root",
            "",
            "touch /tmp/a && chown 7 /tmp/a && stat -c %u /tmp/a",
            "7",
        ),
        (
            "two",
            "",
            "touch /tmp/a && chown 7 /tmp/a && stat -c %u /tmp/a",
            "7",
        ),
        (
            "none",
            "",
            "touch /tmp/a && chown 7 /tmp/a 2>/dev/null || echo refused",
            "refused",
        ),
        (
            "none",
            "",
            "cat /home/user/secret 2>/dev/null || echo refused",
            "refused",
        ),
        (
            "root",
            "",
            "echo x > /home/user/x; rm /home/user/x && echo done",
            "done",
        ),
        ("absent", "", "/suid/su root -c 'id -u'", "0"),
        (
            "user-two",
            "",
            "/suid/su root -c 'id -u' 2>/dev/null || echo refused",
            "refused",
        ),
        // Who may execute commands may choose their user; the bounds stay.
        (
            "user-two",
            "0",
            "id -u; awk '/^(CapBnd|NoNew)/ {print $2}' /proc/self/status",
            "0\n0000000000000021\n1",
        ),
    ] {
        if line.contains("secret") {
            let owned = Command {
                user: "1000".to_owned(),
                ..shell("echo x > /home/user/secret; chmod 600 /home/user/secret")
            };
            agent.output(name, owned, LIMIT).await?;
        }
        let command = Command {
            user: user.to_owned(),
            ..shell(line)
        };
        let got = agent.output(name, command, LIMIT).await?;
        ensure!(
            got.trim_end() == wanted,
            "{name}: {line}: {got:?} is not {wanted:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_read_only_root_takes_writes_where_it_is_said_alone() {
    let folder = images().unwrap();
    let layer = Layer::default()
        .add("data", Entry::Folder)
        .and_then(|layer| layer.add_owned("data/own", Entry::Folder, 0o700, 1000, 1000))
        .and_then(|layer| layer.add("file", Entry::File(b"old".to_vec())))
        .and_then(|layer| layer.add("linked", Entry::Link("data".to_owned())))
        .unwrap();
    let image = busybox_with(vec![layer], |config| "user".clone_into(&mut config.user)).unwrap();
    let image = add(folder.path(), "read-only", &image).unwrap();
    let paths = ["/data", "/srv/made", "/file"];
    trial::run(options(&folder), async |agent| {
        let spec = json!({"securityContext": {"readOnlyRootFilesystem": true, "writablePaths": paths}});
        let mut client = agent.client().await?;
        client.apply(&manifest("closed", &image, spec)).await?;
        let bare = json!({"securityContext": {"readOnlyRootFilesystem": true, "runAsUser": 0}});
        client.apply(&manifest("bare", &image, bare)).await?;
        let told = agent.wait_running("closed", LIMIT).await?.0["status"]["effective"].clone();
        ensure!(told["readOnlyRootFilesystem"] == true && told["writablePaths"] == json!(["/data", "/file", "/srv/made"]), "{told:#}");
        agent.wait_running("bare", LIMIT).await?;
        closed(agent).await?;
        // It is the sandbox's, not the agent's.
        agent.kill().await?;
        agent.restart().await?;
        agent.wait_running("closed", LIMIT).await?;
        closed(agent).await?;

        for (name, path, says) in [
            ("below-a-file", "/file/below", "/file/below"),
            ("too-long", &*format!("/{}", "a".repeat(300)), "aaaa"),
        ] {
            let spec = json!({"securityContext": {"readOnlyRootFilesystem": true, "writablePaths": ["/data", path]}});
            client.apply(&manifest(name, &image, spec)).await?;
            Verdict::new(Reason::SpecInvalid)
                .never_ran()
                .says("writablePaths")
                .says(says)
                .wait(agent, name)
                .await?;
        }
        Ok(())
    })
    .await
    .unwrap();
}

// In a user namespace that a guest makes for itself it has every capability.
const MINE_REMOUNT: &str = "busybox unshare -Urm sh -c 'mount -o remount,rw / && touch /etc/x' 2>/dev/null || echo refused";
const MINE_BIND: &str = "mkdir -p /tmp/all; busybox unshare -Urm \\
    sh -c 'mount -o bind / /tmp/all && mount -o remount,bind,rw /tmp/all && touch /tmp/all/etc/x' 2>/dev/null || echo refused";
const MINE_UMOUNT: &str =
    "busybox unshare -Urm sh -c 'umount /data && touch /data/x' 2>/dev/null || echo refused";

/// Where the sandboxes of this test can be written to, and where not, by whom.
async fn closed(agent: &Agent) -> Result<()> {
    let tries = |path: &str| {
        format!("(: > {path}/x) 2>&1 | grep -o 'Read-only\\|Permission' || echo written")
    };
    for (name, user, path, wanted) in [
        ("closed", "", "/tmp", "written"),
        ("closed", "", "/data", "Permission"),
        ("closed", "", "/data/own", "written"),
        ("closed", "", "/linked/own", "written"),
        ("closed", "", "/srv/made", "written"),
        ("closed", "", "/home/user", "Read-only"),
        ("closed", "0", "/data", "written"),
        ("closed", "0", "/", "Read-only"),
        ("closed", "0", "/etc", "Read-only"),
        ("closed", "0", "/srv", "Read-only"),
        ("bare", "", "/tmp", "written"),
        ("bare", "", "/data", "Read-only"),
        ("bare", "", "/root", "Read-only"),
    ] {
        let command = Command {
            user: user.to_owned(),
            ..shell(&tries(path))
        };
        let got = agent.output(name, command, LIMIT).await?;
        ensure!(
            got.trim_end() == wanted,
            "{name}: {user}: {path}: {got:?} is not {wanted:?}"
        );
    }
    for (line, wanted) in [
        (
            "mount -o remount,rw / 2>/dev/null || echo refused",
            "refused",
        ),
        (
            "mount -t tmpfs x /root 2>/dev/null || echo refused",
            "refused",
        ),
        (MINE_REMOUNT, "refused"),
        (MINE_BIND, "refused"),
        (MINE_UMOUNT, "refused"),
        ("echo new > /file && cat /file", "new"),
        ("rm /file 2>/dev/null || echo stays", "stays"),
        ("stat -c %a:%u /srv/made", "777:0"),
        // One layer, under one size.
        ("stat -c %d / /tmp /data /srv/made | sort -u | wc -l", "1"),
        ("hostname; cat /etc/hostname", "closed\nclosed"),
    ] {
        let command = Command {
            user: "0".to_owned(),
            ..shell(line)
        };
        let got = agent.output("closed", command, LIMIT).await?;
        ensure!(
            got.trim_end() == wanted,
            "{line}: {got:?} is not {wanted:?}"
        );
    }
    Ok(())
}

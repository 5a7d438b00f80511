//! `kubectl sandbox` against the real apiserver. Nobody runs the sandboxes: what an agent would write, the test writes.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use cloche_crds::cluster::FINALIZER;
use cloche_e2e::process::{self, Built};
use cloche_e2e::rig::ControlPlane;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::server::{Patch, Server};

/// A namespace, and the program in it.
struct Scene {
    plane: &'static ControlPlane,
    server: Server,
    namespace: String,
}

/// How the program ended.
#[derive(Debug, PartialEq)]
struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Scene {
    fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = process::command(Built::Cli.path()?);
        command
            .env("KUBECONFIG", self.plane.kubeconfig()?)
            .env_remove("CLOCHE_STANDALONE")
            .args(["--namespace", &self.namespace])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }

    async fn run(&self, args: &[&str]) -> Result<Done> {
        done(self.spawn(args)?).await
    }

    fn spawn(&self, args: &[&str]) -> Result<Child> {
        self.command(args)?
            .spawn()
            .with_context(|| format!("run {args:?}"))
    }

    /// Its output on success.
    async fn text(&self, args: &[&str]) -> Result<String> {
        let done = self.run(args).await?;
        ensure!(
            done.code == Some(0) && done.stderr.is_empty(),
            "{args:?}: {done:?}"
        );
        Ok(done.stdout)
    }

    /// Its one line on standard error.
    async fn refused(&self, args: &[&str], code: i32) -> Result<String> {
        let done = self.run(args).await?;
        ensure!(
            done.code == Some(code) && done.stdout.is_empty(),
            "{args:?}: {done:?}"
        );
        Ok(done.stderr)
    }

    /// What an agent would write.
    async fn status(&self, name: &str, status: Value) -> Result<()> {
        let patch = json!({ "status": status });
        let rest = format!("{name}/status");
        self.server
            .patch(&rest, Patch::Merge, &patch)
            .await?
            .done(name)?;
        Ok(())
    }

    /// Waits until somebody has asked for its deletion.
    async fn deleting(&self, name: &str) -> Result<()> {
        let object = format!("sandboxes.cloche.dev/{name}");
        let asked = "--for=jsonpath={.metadata.deletionTimestamp}";
        self.plane
            .kubectl_text(&["wait", &object, "--namespace", &self.namespace, asked])
            .await?;
        Ok(())
    }

    async fn finalizers(&self, name: &str, finalizers: &[&str]) -> Result<()> {
        let patch = json!({"metadata": {"finalizers": finalizers}});
        self.server
            .patch(name, Patch::Merge, &patch)
            .await?
            .done(name)?;
        Ok(())
    }
}

async fn done(child: Child) -> Result<Done> {
    let output = child
        .wait_with_output()
        .await
        .context("wait for the program")?;
    Ok(Done {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).context("read what it printed")?,
        stderr: String::from_utf8(output.stderr).context("read what it complained of")?,
    })
}

fn lines(child: &mut Child) -> Result<Lines<BufReader<ChildStdout>>> {
    let stdout = child.stdout.take().context("its output is piped")?;
    Ok(BufReader::new(stdout).lines())
}

async fn scene(namespace: &str, body: impl AsyncFnOnce(&Scene) -> Result<()>) {
    let plane = ControlPlane::shared().await.unwrap();
    plane
        .run(async {
            let scene = Scene {
                plane,
                server: Server::new(namespace).await?,
                namespace: namespace.to_owned(),
            };
            body(&scene).await
        })
        .await
        .unwrap();
}

/// Without the ages, which are what they are.
fn columns(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

fn ended() -> Value {
    json!({
        "phase": "Failed",
        "termination": {"reason": "Error", "failureDomain": "Workload", "message": "it ended with 3", "exitCode": 3},
    })
}

#[tokio::test]
async fn sandboxes_are_made_shown_and_deleted() {
    scene("cli-made", async |scene| {
        ensure!(scene.refused(&["ls"], 0).await? == "No sandboxes found.\n");
        let made = scene
            .text(&["create", "one", "--image", "python", "--memory", "64Mi", "--ephemeral-storage", "1Gi", "--", "true"])
            .await?;
        ensure!(made == "sandbox.cloche.dev/one created\n", "{made}");
        let spec = scene.server.get("one").await?["spec"].clone();
        ensure!(
            spec == json!({"image": "python", "command": ["true"], "resources": {"limits": {"memory": "64Mi", "ephemeral-storage": "1Gi"}}}),
            "{spec}"
        );
        scene.status("one", json!({"phase": "Running"})).await?;
        let table = scene.text(&["ls", "--all-namespaces", "--selector", "!team"]).await?;
        let row: &[&str] = &["cli-made", "one", "Running"];
        let table = columns(&table);
        ensure!(table[0] == ["NAMESPACE", "NAME", "PHASE", "REASON", "AGE"], "{table:?}");
        ensure!(table.iter().any(|found| found.starts_with(row)), "{table:?}");
        ensure!(scene.text(&["ls", "one", "-o", "name"]).await? == "sandbox.cloche.dev/one\n");
        let shown = scene.text(&["ls", "one", "-o", "json"]).await?;
        let shown: Value = serde_json::from_str(&shown)?;
        ensure!(shown["metadata"]["managedFields"].is_null() && shown["spec"] == spec, "{shown}");
        let all = scene.text(&["describe", "one"]).await?;
        ensure!(all.contains("Status:              Running\n"), "{all}");

        // What is being deleted is waited for, and says how it ended.
        scene.finalizers("one", &[FINALIZER]).await?;
        let mut watch = scene.spawn(&["ls", "--watch"])?;
        let mut seen = lines(&mut watch)?;
        ensure!(seen.next_line().await?.is_some_and(|line| line.starts_with("NAME")));
        ensure!(seen.next_line().await?.is_some_and(|line| line.contains("Running")));
        let rm = scene.spawn(&["rm", "--all"])?;
        scene.deleting("one").await?;
        scene.status("one", ended()).await?;
        while !seen.next_line().await?.context("it goes on")?.contains("Failed") {}
        scene.finalizers("one", &[]).await?;
        let rm = done(rm).await?;
        ensure!(
            rm.stdout == "sandbox.cloche.dev/one deleted (Error: it ended with 3)\n",
            "{rm:?}"
        );
        let gone = scene.refused(&["rm", "one"], 1).await?;
        ensure!(gone.starts_with("error: cannot delete sandbox one: sandboxes.cloche.dev \"one\" not found"), "{gone}");
        ensure!(scene.refused(&["rm", "--all"], 0).await? == "No sandboxes found.\n");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_the_apiserver_refuses_is_told() {
    scene("cli-refused", async |scene| {
        let line = scene
            .refused(&["create", "bad", "--image", "", "--memory", "1Mi"], 1)
            .await?;
        let fields: Vec<_> = line.lines().collect();
        ensure!(fields[0] == "error: cannot make sandbox bad: it is not valid:", "{line}");
        ensure!(fields[1].starts_with("  spec.image: Invalid value: "), "{line}");
        ensure!(fields[2].starts_with("  spec.resources.limits.memory: "), "{line}");

        let folder = tempfile::tempdir()?;
        let path = folder.path().join("two.yaml");
        let path = path.to_str().context("a name in UTF-8")?;
        let object = |name: &str, spec: &str| {
            format!("---\napiVersion: cloche.dev/v1alpha1\nkind: Sandbox\nmetadata: {{name: {name}}}\nspec: {spec}\n")
        };
        std::fs::write(path, object("typo", "{imag: python}") + &object("good", "{image: python}"))?;
        let checked = scene.run(&["create", "-f", path, "--dry-run=server"]).await?;
        ensure!(checked.stdout == "sandbox.cloche.dev/good created (server dry run)\n", "{checked:?}");
        let made = scene.run(&["create", "-f", path]).await?;
        ensure!(made.code == Some(1), "{made:?}");
        ensure!(made.stdout == "sandbox.cloche.dev/good created\n", "{made:?}");
        ensure!(made.stderr.contains("unknown field \"spec.imag\""), "{made:?}");
        ensure!(made.stderr.ends_with("error: 1 of 2 sandboxes could not be made\n"), "{made:?}");

        let line = scene.refused(&["create", "good", "--image", "python"], 1).await?;
        ensure!(line.ends_with("sandboxes.cloche.dev \"good\" already exists\n"), "{line}");
        let line = scene.refused(&["--as", "joe", "ls"], 1).await?;
        ensure!(
            line.contains("User \"joe\" cannot list resource \"sandboxes\" in API group \"cloche.dev\""),
            "{line}"
        );
        // There is no gateway here.
        for args in [&["exec", "good", "--", "ls"][..], &["attach", "good"]] {
            let line = scene.refused(args, 125).await?;
            ensure!(line.contains("the cluster has no API subresources.cloche.dev"), "{line}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_is_waited_for_comes_or_cannot_come() {
    scene("cli-waits", async |scene| {
        let early = scene.spawn(&["wait", "demo", "--for=Ready", "--timeout=1m"])?;
        let run = scene.spawn(&["run", "demo", "--image", "python", "--rm", "--", "false"])?;
        let mut made = scene.spawn(&["ls", "-w", "-o", "name"])?;
        ensure!(lines(&mut made)?.next_line().await?.is_some());
        let ready = json!([{
            "type": "Ready", "status": "True", "reason": "Running", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        scene.finalizers("demo", &[FINALIZER]).await?;
        scene
            .status("demo", json!({"phase": "Starting", "conditions": ready}))
            .await?;
        let early = done(early).await?;
        ensure!(
            early.stdout == "sandbox.cloche.dev/demo condition met\n",
            "{early:?}"
        );
        let gone = scene.spawn(&["wait", "demo", "--for=deleted"])?;
        scene.status("demo", ended()).await?;
        let late = scene
            .refused(&["wait", "demo", "--for=phase=Running"], 1)
            .await?;
        ensure!(
            late.contains("will not reach phase Running: it is Failed (Error: it ended with 3)"),
            "{late}"
        );
        // Whoever runs it wants its output, which nobody serves here; --rm deletes it all the same, and waits.
        scene.deleting("demo").await?;
        scene.finalizers("demo", &[]).await?;
        let run = done(run).await?;
        ensure!(
            run.code == Some(125) && run.stderr.contains("subresources.cloche.dev"),
            "{run:?}"
        );
        let gone = done(gone).await?;
        ensure!(
            gone.stdout == "sandbox.cloche.dev/demo condition met\n",
            "{gone:?}"
        );
        Ok(())
    })
    .await;
}

//! What a user does with sandboxes, as an administrator.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloche_crds::Sandbox;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

use super::{ControlPlane, text};
use crate::deadline::until;
use crate::process::{self, Built};

/// How long a sandbox may take to be Ready.
const START: Duration = Duration::from_mins(1);
/// How long sandboxes may take to be gone.
const REMOVAL: Duration = Duration::from_mins(1);

impl ControlPlane {
    fn sandbox_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = process::command(Built::Cli.path()?);
        command.envs(self.variables()).args(arguments);
        Ok(command)
    }

    /// Runs `kubectl sandbox` to the end.
    pub async fn sandbox(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.sandbox_command(arguments)?.output().await;
        output.with_context(|| format!("run kubectl sandbox {}", arguments.join(" ")))
    }

    /// Starts `kubectl sandbox`, its outputs on pipes.
    pub fn spawn_sandbox(&self, arguments: &[&str]) -> Result<Child> {
        self.sandbox_command(arguments)?
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("run kubectl sandbox {}", arguments.join(" ")))
    }

    /// Runs a command in a sandbox by `kubectl sandbox exec`; what it printed, and an error unless it succeeds.
    pub async fn exec_text(&self, name: &str, argv: &[&str]) -> Result<String> {
        let arguments = [&["exec", name, "--"], argv].concat();
        text(
            "kubectl sandbox",
            &arguments,
            self.sandbox(&arguments).await?,
        )
    }

    /// Sandboxes of the namespace `default`.
    pub async fn sandboxes(&self) -> Result<Api<Sandbox>> {
        Ok(Api::default_namespaced(self.client().await?))
    }

    /// Applies manifests by kubectl.
    pub async fn apply(&self, manifests: &str) -> Result<()> {
        self.apply_with(&[], manifests).await
    }

    /// The same with more of kubectl's flags.
    pub(crate) async fn apply_with(&self, flags: &[&str], manifests: &str) -> Result<()> {
        let mut child = process::command(self.program("kubectl")?)
            .envs(self.variables())
            .args(["apply", "-f", "-"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("run kubectl apply")?;
        let mut stdin = child.stdin.take().context("kubectl's input")?;
        stdin
            .write_all(manifests.as_bytes())
            .await
            .context("feed kubectl apply")?;
        drop(stdin);
        let output = child
            .wait_with_output()
            .await
            .context("wait for kubectl apply")?;
        text("kubectl", &["apply"], output).map(drop)
    }

    /// Waits until a sandbox looks as `holds` wants.
    pub async fn wait(
        &self,
        name: &str,
        patience: Duration,
        what: &str,
        holds: impl Fn(&Sandbox) -> bool,
    ) -> Result<Sandbox> {
        let api = self.sandboxes().await?;
        let told = std::cell::RefCell::new(String::new());
        let waited = until(patience, what, async || {
            let object = api
                .get_opt(name)
                .await
                .with_context(|| format!("get the sandbox {name}"))?;
            *told.borrow_mut() = format!("{:?}", object.as_ref().map(|object| &object.status));
            Ok(object.filter(|object| holds(object)))
        })
        .await;
        waited.with_context(|| format!("the sandbox {name} was last {}", told.borrow()))
    }

    /// Waits until a sandbox is Ready.
    pub async fn wait_ready(&self, name: &str) -> Result<Sandbox> {
        self.wait(name, START, "the sandbox is Ready", |object| {
            condition(object, "Ready") == Some("True")
        })
        .await
    }

    /// Waits until there is no such sandbox.
    pub async fn wait_gone(&self, name: &str) -> Result<()> {
        let api = self.sandboxes().await?;
        until(
            REMOVAL,
            &format!("the sandbox {name} is gone"),
            async || {
                let object = api.get_opt(name).await.context("get a sandbox")?;
                Ok(object.is_none().then_some(()))
            },
        )
        .await
    }

    /// Deletes every sandbox of the namespace `default`, and waits until they are gone.
    pub(crate) async fn delete_sandboxes(&self) -> Result<()> {
        let sandboxes = self.sandboxes().await?;
        sandboxes
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await
            .context("delete the sandboxes")?;
        until(REMOVAL, "every sandbox is gone", async || {
            let list = sandboxes
                .list_metadata(&ListParams::default())
                .await
                .context("list sandboxes")?;
            Ok(list.items.is_empty().then_some(()))
        })
        .await
    }
}

/// The status of a condition.
pub fn condition<'a>(object: &'a Sandbox, kind: &str) -> Option<&'a str> {
    let conditions = &object.status.as_ref()?.conditions;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some(&found.status)
}

//! How a test's agent is run.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::process::Built;

/// The options that tests differ in.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of local images.
    pub images: Option<PathBuf>,
    /// Pools, as `--pool` takes them. Default: none, so that a test starts quickly and pays for what it uses.
    pub pools: Vec<String>,
    /// Memory for all sandboxes together, as a quantity.
    pub memory_budget: Option<String>,
    /// Registries that may be asked over plain HTTP: `127.0.0.1:PORT`.
    pub insecure_registries: Vec<String>,
    /// More arguments.
    pub more: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            images: None,
            pools: vec!["none".to_owned()],
            memory_budget: None,
            insecure_registries: Vec::new(),
            more: Vec::new(),
        }
    }
}

impl Options {
    /// The same with a folder of local images.
    #[must_use]
    pub fn images(mut self, folder: impl Into<PathBuf>) -> Self {
        self.images = Some(folder.into());
        self
    }

    /// The same with a pool, such as `cpu=1,memory=512Mi,created=1,started=2`.
    #[must_use]
    pub fn pool(mut self, pool: &str) -> Self {
        self.pools.retain(|pool| pool != "none");
        self.pools.push(pool.to_owned());
        self
    }

    pub(super) fn arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = vec![
            "--runsc".into(),
            Built::Runsc.path()?.into(),
            "--init".into(),
            Built::Init.path()?.into(),
        ];
        let mut add = |option: &str, value: OsString| arguments.extend([option.into(), value]);
        if let Some(images) = &self.images {
            add("--images", images.into());
        }
        for pool in &self.pools {
            add("--pool", pool.into());
        }
        if let Some(budget) = &self.memory_budget {
            add("--memory-budget", budget.into());
        }
        for registry in &self.insecure_registries {
            add("--insecure-registry", registry.into());
        }
        arguments.extend(self.more.iter().cloned());
        Ok(arguments)
    }
}

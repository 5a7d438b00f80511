//! A reboot between two runs of the agent, as the second one finds it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::Agent;

/// The boot from which the records come afterwards.
const EARLIER_BOOT: &str = "7d1c0d5e-5a3a-4c39-9d5e-0f6a3c1b2e4d";
/// What the clock of that boot shows in all of them, behind this one's, in seconds: longer than tests let anything start, shorter
/// than output is kept.
const BEHIND: u64 = 600;

impl Agent {
    /// Does what a reboot of the machine does to an agent: it and all that it runs are gone without a last word, and with them
    /// groups, mounts and the run folder. What is on disk stays, and is of another boot: machine and kernel go on, so the boot
    /// id and the times by the boot clock are changed there, in every record. The agent is not started again.
    pub async fn reboot(&mut self) -> Result<()> {
        if self.is_started() {
            self.kill().await?;
        }
        self.end_all().await?;
        for entry in fs::read_dir(self.run()).context("list the run folder")? {
            let path = entry.context("list the run folder")?.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        let boot_id =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read this boot's id")?;
        for kind in ["instances", "sandboxes"] {
            for path in records(&self.state().join(kind))? {
                age(&path, boot_id.trim()).with_context(|| format!("age {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Makes one sandbox and its instance of the earlier boot, as [`Self::reboot`] does all. The agent must not run.
    pub fn age(&self, name: &str) -> Result<()> {
        ensure!(!self.is_started(), "the agent runs");
        let boot_id =
            fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read this boot's id")?;
        let mut found = false;
        for entry in fs::read_dir(self.state().join("sandboxes")).context("list sandboxes")? {
            let folder = entry.context("list sandboxes")?.path();
            let text = fs::read(folder.join("record.json")).context("read a record")?;
            let file: Value = serde_json::from_slice(&text).context("understand a record")?;
            if file["record"]["name"] != name {
                continue;
            }
            found = true;
            let instance = file["record"]["state"]["instance"].as_str();
            let instance = instance.map(|id| self.state().join("instances").join(id));
            for of in [Some(folder), instance].into_iter().flatten() {
                for path in records(&of)? {
                    age(&path, boot_id.trim())
                        .with_context(|| format!("age {}", path.display()))?;
                }
            }
        }
        ensure!(found, "{name} has no record");
        Ok(())
    }
}

/// Every `record.json` below a folder.
fn records(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry.context("list records")?.path();
        if path.is_dir() {
            found.extend(records(&path)?);
        } else if path.file_name().is_some_and(|name| name == "record.json") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Makes a record one of the earlier boot.
fn age(path: &Path, boot_id: &str) -> Result<()> {
    let text = fs::read(path).context("read it")?;
    let mut file: Value = serde_json::from_slice(&text).context("understand it")?;
    // A session's record has none: its sandbox's counts.
    if let Some(of) = file.pointer_mut("/record/bootId") {
        ensure!(*of == boot_id, "it is of the boot {of}, not of {boot_id}");
        *of = EARLIER_BOOT.into();
    }
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).context("read the boot clock")?;
    let now = u64::try_from(now.tv_sec()).context("a clock before its boot")?;
    set(&mut file, now.saturating_sub(BEHIND));
    fs::write(path, file.to_string()).context("write it")
}

/// Sets every time by the boot clock to a second of it.
fn set(value: &mut Value, second: u64) {
    match value {
        Value::Object(map) => {
            for (key, below) in map {
                match below.get_mut("secs") {
                    Some(seconds) if key == "boot" || key == "killAt" => *seconds = second.into(),
                    _ => set(below, second),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|below| set(below, second)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_times_by_the_boot_clock_are_set() {
        let now =
            |secs: u64| json!({"boot": {"secs": secs, "nanos": 5}, "wall": "2026-01-02T03:04:05Z"});
        let whole = |secs: u64| {
            json!({
                "bound": now(secs),
                "spec": {"grace": {"secs": 30, "nanos": 0}, "env": [{"boot": "x"}]},
                "state": {"at": "stopping", "started": now(secs), "killAt": {"secs": secs, "nanos": 0}},
            })
        };
        let mut record = whole(7);
        set(&mut record, 9);
        assert_eq!(record, whole(9));
    }
}

//! What a person needs after a failure, on standard error.

use std::fmt::Write as _;
use std::path::Path;

use crate::agent::Agent;
use crate::audit::world::World;

/// Longest file that is shown whole, in bytes; of a longer one the end.
const FILE: usize = 16 << 10;

/// Prints the failure, objects, records, processes, groups, mounts and the log.
pub async fn dump(agent: &Agent, problem: &anyhow::Error) {
    let mut text = format!("==== failed: {problem:#}\n");
    let objects = async { anyhow::Ok(agent.client().await?.list().await?) };
    let objects = match tokio::time::timeout(std::time::Duration::from_secs(5), objects).await {
        Ok(Ok(objects)) => format!("{:#}", serde_json::Value::Array(objects)),
        Ok(Err(problem)) => format!("{problem:#}"),
        Err(_) => "the agent does not answer".to_owned(),
    };
    section(&mut text, "objects", &objects);
    match World::see(agent) {
        Ok(world) => section(&mut text, "world", &format!("{world:#?}")),
        Err(problem) => section(&mut text, "world", &format!("{problem:#}")),
    }
    for folder in [
        agent.manifests(),
        agent.state().join("sandboxes"),
        agent.state().join("instances"),
        agent.run().to_owned(),
    ] {
        files(&mut text, &folder, 3);
    }
    section(
        &mut text,
        "the agent's log",
        &tail(&agent.log().unwrap_or_default()),
    );
    // Through eprint, so that the test harness shows it with its test.
    eprintln!("{text}==== end");
}

pub(crate) fn section(text: &mut String, title: &str, content: &str) {
    writeln!(text, "---- {title}\n{content}").ok();
}

fn files(text: &mut String, folder: &Path, depth: usize) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return section(text, &folder.display().to_string(), "(none)");
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth > 0 {
            files(text, &path, depth - 1);
        } else if kind.is_file() {
            let content = std::fs::read(&path).unwrap_or_default();
            section(
                text,
                &path.display().to_string(),
                &tail(&String::from_utf8_lossy(&content)),
            );
        } else {
            section(text, &path.display().to_string(), &format!("({kind:?})"));
        }
    }
}

pub(crate) fn tail(text: &str) -> String {
    let skipped = text.len().saturating_sub(FILE);
    let from = (skipped..text.len())
        .find(|index| text.is_char_boundary(*index))
        .unwrap_or(0);
    if from == 0 {
        return text.to_owned();
    }
    format!("... {from} bytes ...\n{}", &text[from..])
}

//! Records as older agents wrote them: each is still read, and says what it said.
//!
//! `tests/golden/KIND/vVERSION/NAME.json` is what an agent wrote, and is never changed. NAME is the state, and after a `-` what else is special
//! in it. A new state needs one, and so does every state when the version is raised: an agent that is started with
//! `CLOCHE_FAULT=STATE` dies with such a record on its disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::record::{Record, decode, encode};

/// Names every state of a type, in a list and of a value. A state that is left out does not compile.
macro_rules! states {
    ($list:ident, $of:ident: $type:ty { $($name:ident = $pattern:pat,)+ }) => {
        const $list: &[&str] = &[$(stringify!($name)),+];

        fn $of(state: &$type) -> &'static str {
            match state {
                $($pattern => stringify!($name),)+
            }
        }
    };
}
pub(crate) use states;

/// The golden files of a kind and version, by name.
pub(crate) fn files(kind: &str, version: u32) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(kind)
        .join(format!("v{version}"));
    let entries = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("list {}: {error}", folder.display()));
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

/// Reads the golden files of one version by `read`, which tells the state of what it read and how this build would write it. The states
/// of the `newest` version are all there, and nothing that a file says is lost.
pub(crate) fn judge(
    kind: &str,
    version: u32,
    newest: Option<&[&str]>,
    read: impl Fn(&[u8]) -> (&'static str, Vec<u8>),
) {
    let mut found = BTreeSet::new();
    for (name, bytes) in files(kind, version) {
        let (state, written) = read(&bytes);
        let wanted = name.split('-').next().unwrap();
        assert_eq!(state, wanted, "{kind} {name}");
        if newest.is_some() {
            let said: Value = serde_json::from_slice(&bytes).unwrap();
            let says: Value = serde_json::from_slice(&written).unwrap();
            assert_kept(&said, &says, &format!("{kind} {name}"));
        }
        found.insert(state);
    }
    if let Some(states) = newest {
        assert_eq!(found, states.iter().copied().collect(), "of {kind}");
    }
}

/// Everything in `said` stands in `says`, which may say more.
fn assert_kept(said: &Value, says: &Value, at: &str) {
    if let Value::Object(map) = said {
        for (key, below) in map {
            let at = format!("{at}/{key}");
            assert_kept(below, says.get(key).unwrap_or(&Value::Null), &at);
        }
    } else {
        assert_eq!(said, says, "{at}");
    }
}

/// Every golden file of a record in the ledger.
fn judge_all<R: Record>(states: &[&str], name: impl Fn(&R) -> &'static str) {
    for version in 1..=R::VERSION {
        let newest = (version == R::VERSION).then_some(states);
        judge(R::KIND, version, newest, |bytes| {
            let record: R = decode(bytes).unwrap();
            (name(&record), encode(&record).unwrap())
        });
    }
}

mod tests {
    use super::*;
    use crate::instance::{InstanceRecord, Stage};
    use crate::sandbox::{SandboxRecord, State};
    use crate::usage;

    states!(SANDBOX, sandbox: State {
        Bound = State::Bound,
        Claimed = State::Claimed { .. },
        MainRequested = State::MainRequested { .. },
        Running = State::Running { .. },
        Halting = State::Halting { .. },
        Keeping = State::Keeping { .. },
        Discarding = State::Discarding { .. },
        Stopped = State::Stopped { .. },
        Stopping = State::Stopping { .. },
        Ending = State::Ending { .. },
        Ended = State::Ended { .. },
    });

    states!(INSTANCE, instance: Stage {
        Making = Stage::Making,
        Made = Stage::Made { .. },
    });

    #[test]
    fn sandboxes_in_every_state_are_read() {
        judge_all::<SandboxRecord>(SANDBOX, |record| sandbox(&record.state));
    }

    #[test]
    fn instances_in_every_stage_are_read() {
        judge_all::<InstanceRecord>(INSTANCE, |record| instance(&record.stage));
    }

    #[test]
    fn kept_use_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/usage/v1");
        let used = usage::kept(&folder);
        let said = (Some(70_254_592), Some(200_685));
        assert_eq!((used.peak_memory, used.cpu_usec), said);
    }

    #[test]
    #[should_panic(expected = "thing/b/c")]
    fn what_is_lost_is_seen() {
        let said = serde_json::json!({"a": 1, "b": {"c": [1]}});
        let says = serde_json::json!({"a": 1, "b": {"d": [1]}, "e": 5});
        assert_kept(&said, &says, "thing");
    }
}

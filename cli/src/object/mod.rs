//! Sandboxes as the agent shows them.
//!
//! Read as plain JSON and not as the types of this build: a program that is older than its agent must still show every word
//! that the agent wrote, and print the object unchanged.

pub(crate) mod describe;
pub(crate) mod goal;
pub(crate) mod list;
pub(crate) mod text;
pub(crate) mod usage;
pub(crate) mod written;

use cloche_crds::Phase;
use jiff::Timestamp;
use serde_json::Value;

use self::text::plain;

/// One sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object(Value);

impl Object {
    /// Reads one. The error is a sentence about what the agent sent.
    pub(crate) fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|problem| format!("a sandbox that is not JSON: {problem}"))
            .and_then(Self::of)
    }

    /// Of what was read already.
    pub(crate) fn of(value: Value) -> Result<Self, String> {
        match value {
            value @ Value::Object(_) => Ok(Self(value)),
            _ => Err("a sandbox that is not an object".to_owned()),
        }
    }

    /// As it came.
    pub(crate) fn json(&self) -> &Value {
        &self.0
    }

    /// What stands at a JSON pointer.
    pub(crate) fn at(&self, pointer: &str) -> Option<&Value> {
        self.0.pointer(pointer).filter(|value| !value.is_null())
    }

    /// A string or number at a JSON pointer, harmless to a terminal.
    pub(crate) fn word(&self, pointer: &str) -> Option<String> {
        text::scalar(self.at(pointer)?)
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.word("/metadata/name").unwrap_or_default()
    }

    /// Which of all that ever had its name; nothing of one that is not stored.
    pub(crate) fn uid(&self) -> Option<String> {
        self.word("/metadata/uid")
    }

    /// Its phase as written; `Unknown` where there is none yet.
    pub(crate) fn phase(&self) -> String {
        self.word("/status/phase")
            .unwrap_or_else(|| Phase::Unknown.to_string())
    }

    /// Whether it has ended and will not change.
    pub(crate) fn is_finished(&self) -> bool {
        let phase = self.phase();
        Phase::ALL
            .iter()
            .any(|known| known.is_terminal() && known.as_str() == phase)
    }

    /// Whether it serves commands.
    pub(crate) fn is_running(&self) -> bool {
        self.phase() == Phase::Running.as_str()
    }

    /// A condition, by its type; upper and lower case are the same, as for kubectl.
    pub(crate) fn condition(&self, kind: &str) -> Option<&Value> {
        self.conditions().iter().find(|condition| {
            condition
                .get("type")
                .and_then(Value::as_str)
                .is_some_and(|found| found.eq_ignore_ascii_case(kind))
        })
    }

    /// All conditions.
    pub(crate) fn conditions(&self) -> &[Value] {
        self.at("/status/conditions")
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// One word for why it is as it is: its end reason; else, while it is not running, the reason of the first condition
    /// that does not hold.
    pub(crate) fn reason(&self) -> Option<String> {
        if let Some(reason) = self.word("/status/termination/reason") {
            return Some(reason);
        }
        if self.is_running() {
            return None;
        }
        self.conditions()
            .iter()
            .filter(|condition| field(condition, "status").as_deref() == Some("False"))
            .find_map(|condition| field(condition, "reason"))
    }

    /// `Failed (OOMKilled: it used more than its limit of 64Mi)`: phase, reason and message, as far as there are any.
    pub(crate) fn summary(&self) -> String {
        let phase = self.phase();
        let Some(reason) = self.reason() else {
            return phase;
        };
        let message = self.word("/status/termination/message").or_else(|| {
            self.conditions()
                .iter()
                .filter(|condition| field(condition, "status").as_deref() == Some("False"))
                .find_map(|condition| field(condition, "message"))
        });
        match message {
            Some(message) if !message.is_empty() => format!("{phase} ({reason}: {message})"),
            Some(_) | None => format!("{phase} ({reason})"),
        }
    }

    /// `Deleted: its object was deleted`: reason and message of its end; `None` while it has none.
    pub(crate) fn end(&self) -> Option<String> {
        let reason = self.word("/status/termination/reason")?;
        Some(match self.word("/status/termination/message") {
            Some(message) if !message.is_empty() => format!("{reason}: {message}"),
            Some(_) | None => reason,
        })
    }

    /// The exit code of its main command.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        u8::try_from(self.at("/status/termination/exitCode")?.as_u64()?).ok()
    }

    /// A time at a JSON pointer.
    pub(crate) fn time(&self, pointer: &str) -> Option<Timestamp> {
        self.at(pointer)?.as_str()?.parse().ok()
    }
}

/// A string or number in an object, harmless to a terminal.
pub(crate) fn field(value: &Value, name: &str) -> Option<String> {
    text::scalar(value.get(name)?)
}

/// `sandbox.cloche.dev/NAME`, as kubectl names an object.
pub(crate) fn full_name(name: &str) -> String {
    format!("sandbox.cloche.dev/{}", plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn object(yaml: &str) -> Object {
        let value: Value = serde_saphyr::from_str(yaml).unwrap();
        Object::read(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_newer_agents_words_are_shown_as_they_are() {
        let object = object("{metadata: {name: a}, status: {phase: Hibernating}}");
        assert_eq!(object.summary(), "Hibernating");
        assert!(!object.is_finished());
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(Object::read(b"[]").is_err());
        assert!(Object::read(b"{").is_err());
        assert_eq!(Object::read(b"{}").unwrap().phase(), "Unknown");
    }

    #[test]
    fn a_summary_says_why() {
        let starting = object(
            "{status: {phase: Starting, conditions: [
               {type: Scheduled, status: 'True', reason: Bound},
               {type: ImageReady, status: 'False', reason: Pulling, message: 3 of 9 MiB}]}}",
        );
        assert_eq!(starting.summary(), "Starting (Pulling: 3 of 9 MiB)");
        let failed = object(
            "{status: {phase: Failed, termination: {reason: OOMKilled, message: \"a\\tb\"}}}",
        );
        assert_eq!(failed.summary(), "Failed (OOMKilled: a\\tb)");
        assert!(failed.is_finished());
        assert_eq!(failed.end().as_deref(), Some("OOMKilled: a\\tb"));
        assert_eq!(starting.end(), None);
        let completed = object("{status: {termination: {reason: Completed, message: ''}}}");
        assert_eq!(completed.end().as_deref(), Some("Completed"));
    }
}

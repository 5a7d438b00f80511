//! Between a client's channels and an agent's session. No I/O.

use std::time::Duration;

use bytes::Bytes;
use cloche_proto::agent::v1alpha1::{SandboxKey, SessionRequest, SessionResponse, Stream};
use cloche_proto::session::{Received, State};

use super::channel::{self, Said, Version};
use super::ending;
use crate::ask::Ask;
use crate::place::Place;
use crate::refusal::{Kind as Refused, Refusal, json};

/// One command of one client, over any number of connections to the agent.
#[derive(Debug)]
pub(crate) struct Translator {
    version: Version,
    state: State,
    stdout: bool,
    stderr: bool,
    /// Bytes of output that are lost and that the client was not told of.
    lost: u64,
    /// Whether nothing of a stream has come yet to one who joins a command: what is no longer kept was before its time.
    joining: [bool; 2],
}

/// What becomes of an agent's reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// To be said to the client, in this order.
    Say(Vec<Bytes>),
    /// The agent has the command: the connection stands.
    Attached,
    /// The command's end: to be said last.
    End(Bytes),
}

impl Translator {
    /// For a client that asks for `ask` at `place`. `name` is what to call the command if the client does not.
    pub(crate) fn new(version: Version, ask: Ask, place: &Place, name: String) -> Self {
        let mut open = ask.open;
        open.key = Some(SandboxKey {
            namespace: place.namespace.clone(),
            name: place.name.clone(),
        });
        open.uid.clone_from(&place.uid);
        let joins = open.command.is_none();
        let state = if open.command_id.is_empty() {
            open.command_id = name;
            State::made_up(open)
        } else {
            State::new(open)
        };
        Self {
            version,
            state,
            stdout: ask.stdout,
            stderr: ask.stderr,
            lost: 0,
            joining: [joins; 2],
        }
    }

    /// What the client said; the error is its fault.
    pub(crate) fn hear(&mut self, message: &Bytes) -> Result<(), Refusal> {
        let said = channel::read(self.version, message)
            .map_err(|wrong| Refusal::new(Refused::BadRequest, wrong))?;
        match said {
            Said::Nothing => {}
            Said::Stdin(data) => self.state.push_stdin(&data),
            Said::EndOfStdin => self.state.push_stdin(&[]),
            Said::Resize(size) => self.state.resize(size),
        }
        Ok(())
    }

    /// What the agent said; the error is its fault.
    pub(crate) fn receive(&mut self, reply: SessionResponse) -> Result<Outcome, Refusal> {
        let received = self.state.receive(reply).map_err(|wrong| {
            Refusal::new(
                Refused::InternalError,
                format!("the agent is wrong: {wrong}"),
            )
        })?;
        Ok(match received {
            Received::Nothing => Outcome::Say(Vec::new()),
            Received::Attached { .. } => Outcome::Attached,
            Received::Output { stream, lost, data } => Outcome::Say(self.output(stream, lost, &data)),
            Received::TakenOver => Outcome::Say(self.remark(
                "standard input was taken over by another client: none is passed on from here any more",
            )),
            Received::Exit(exit) => {
                Outcome::End(channel::error(&json(&ending::status(&exit, self.lost))))
            }
        })
    }

    fn output(&mut self, stream: Stream, lost: u64, data: &[u8]) -> Vec<Bytes> {
        let (wanted, message): (bool, fn(&[u8]) -> Bytes) = match stream {
            Stream::Stderr => (self.stderr, channel::stderr),
            Stream::Stdout | Stream::Unspecified => (self.stdout, channel::stdout),
        };
        if !wanted {
            return Vec::new();
        }
        let joining = &mut self.joining[usize::from(stream == Stream::Stderr)];
        let was_before = std::mem::take(joining);
        let mut said = Vec::new();
        if lost > 0 {
            let name = match stream {
                Stream::Stderr => "standard error",
                Stream::Stdout | Stream::Unspecified => "standard output",
            };
            said = self.remark(&format!(
                "{lost} bytes of {name} are lost: they are no longer kept"
            ));
            if said.is_empty() && !was_before {
                self.lost += lost;
            }
        }
        if !data.is_empty() {
            said.push(message(data));
        }
        said
    }

    /// A line for a person on stderr, as the protocol has no other place for one; nothing where the client does not want stderr.
    fn remark(&self, remark: &str) -> Vec<Bytes> {
        if self.stderr {
            vec![channel::stderr(format!("cloche: {remark}\n").as_bytes())]
        } else {
            Vec::new()
        }
    }

    /// The last message to a client that gets no end of its command.
    pub(crate) fn refuse(refusal: &Refusal) -> Bytes {
        channel::error(&refusal.json())
    }

    /// How many bytes may be heard of the client. Stdin that nobody takes goes nowhere, so that sizes and the client's end are heard.
    pub(crate) fn room(&self) -> usize {
        if self.state.takes_stdin() {
            self.state.room()
        } else {
            super::MESSAGE
        }
    }

    /// The first request of a new connection.
    pub(crate) fn open(&mut self) -> SessionRequest {
        self.state.open()
    }

    /// The connection is gone, which stood for so long. Whether it was one, and no part of an outage.
    pub(crate) fn detach(&mut self, stood: Duration) -> bool {
        self.state.detach(stood)
    }

    /// Whether [`Self::next_request`] has something.
    pub(crate) fn has_next(&self) -> bool {
        self.state.has_next()
    }

    /// The next request.
    pub(crate) fn next_request(&mut self) -> Option<SessionRequest> {
        self.state.next_request()
    }

    /// Whether the agent is known to have the command.
    pub(crate) fn exists(&self) -> bool {
        self.state.exists()
    }

    /// The command's name.
    pub(crate) fn command_id(&self) -> &str {
        self.state.command_id()
    }
}

#[cfg(test)]
mod tests {
    use cloche_proto::agent::v1alpha1::session_response::Kind as Reply;
    use cloche_proto::agent::v1alpha1::{Command, Exit, Gap, Open};

    use super::*;

    /// How the end of a command is told whose stdout has gaps before these offsets.
    fn end(open: Open, gaps: &[u64]) -> Bytes {
        let place = Place {
            namespace: "team".into(),
            name: "demo".into(),
            uid: "u".into(),
            node: "one".into(),
        };
        let ask = Ask {
            open,
            stdout: true,
            stderr: false,
        };
        let mut translator = Translator::new(Version::V5, ask, &place, "x".into());
        let mut receive = |kind| {
            let reply = SessionResponse { kind: Some(kind) };
            translator.receive(reply).unwrap()
        };
        for end in gaps {
            receive(Reply::Gap(Gap {
                stream: Stream::Stdout.into(),
                offset: end - 1,
                end: *end,
            }));
        }
        match receive(Reply::Exit(Exit::default())) {
            Outcome::End(said) => said,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_dropped_before_a_client_joined_is_no_loss_of_its() {
        let success = |said: &Bytes| String::from_utf8_lossy(said).contains("Success");
        let join = || Open {
            command_id: "build".into(),
            ..Open::default()
        };
        let run = Open {
            command: Some(Command::default()),
            ..join()
        };
        assert!(success(&end(join(), &[9])));
        assert!(!success(&end(join(), &[9, 20])));
        assert!(!success(&end(run, &[9])));
    }
}

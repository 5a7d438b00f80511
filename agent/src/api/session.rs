//! Sessions over the wire: a client's stream joined to a session's log, stdin and end.

use std::sync::Arc;
use std::time::Duration;

use cloche_proto::agent::v1alpha1 as pb;
use cloche_proto::agent::v1alpha1::session_request::Kind as In;
use cloche_proto::agent::v1alpha1::session_response::Kind as Out;
use cloche_proto::frame;
use tonic::{Status, Streaming};

use super::pause::pass;
use super::requests::{stdin_taken, take};
use super::stream::{Receiving, Sending, channel};
use super::{key, posting};
use crate::board::Posting;
use crate::node::Node;
use crate::sandbox::Cause;
use crate::sandbox::command::{self, Request};
use crate::session::{
    Chunk, CommandId, Ended, Fingerprint, Input, NewSession, Outcome, Session, SessionError,
    Sessions, Stream, Until,
};
use crate::source::SandboxKey;
use crate::told::chain;

/// How long a client that was told the end may take to close its requests.
const LINGER: Duration = Duration::from_secs(5);

/// The code of an end that nobody knows: no command can exit with it.
const NOT_KNOWN: i32 = -1;

/// Opens the session that the first request names, and joins the stream to it.
pub(super) async fn open(
    node: &Arc<Node>,
    mut requests: Streaming<pb::SessionRequest>,
) -> Result<Receiving<pb::SessionResponse>, Status> {
    let first = requests.message().await?.and_then(|request| request.kind);
    let Some(In::Open(open)) = first else {
        return Err(Status::invalid_argument(
            "the first request of a session stream must be `open`",
        ));
    };
    let key = key(open.key.clone())?;
    let there = posting(node, &key, &open.uid)?;
    // Before anything is run for it.
    let stream = node.streams.open(&there.record.uid)?;
    let id = if open.command_id.is_empty() {
        command_id(&format!("c-{}", crate::unique::hex::<6>()))?
    } else {
        command_id(&open.command_id)?
    };
    let used = there.activity.begin();
    let new = open.command.is_some().then_some(&id);
    pass(node, &key, &there, new).await?;
    // It may have others by now.
    let (posting, sessions) = find(node, &key, &there.record.uid)?;
    let (session, created) = match &open.command {
        Some(_) if id.is_own() => {
            return Err(Status::invalid_argument(format!(
                "the command id {id:?} is that of the sandbox's own command: choose another, or attach to it without a command",
                id = id.to_string()
            )));
        }
        Some(asked) => sessions
            .create(id, new_session(&posting, asked, open.kill_on_detach_ms)?)
            .await
            .map_err(|error| refused(node, &posting, &error))?,
        None if open.kill_on_detach_ms > 0 => {
            return Err(Status::invalid_argument(
                "kill_on_detach_ms is for a new command: whoever made a session says how long it goes on alone",
            ));
        }
        None => (
            sessions.get(&id).await.map_err(|error| status(&error))?,
            false,
        ),
    };
    let (sender, receiver) = channel();
    let cancel = node.cancel.clone();
    tokio::spawn(async move {
        let _held = (stream, used);
        tokio::select! {
            () = cancel.cancelled() => drop(sender.send(Err(Status::unavailable("the agent stops; attach again"))).await),
            // Ends when all is told, or the client has gone.
            _ = serve(&session, created, &open, &mut requests, &sender) => {
                // The end of our answers is told first, and the client's requests are read until it has closed: dropped together
                // they reset the stream, and what was told last, an exit code or a refusal, is lost on the way (seen).
                drop(sender);
                drop(tokio::time::timeout(LINGER, async { while let Ok(Some(_)) = requests.message().await {} }).await);
            },
        }
    });
    Ok(receiver)
}

/// A session's kept output, once or followed.
pub(super) async fn log(
    node: &Arc<Node>,
    request: pb::LogRequest,
) -> Result<Receiving<pb::SessionResponse>, Status> {
    let (posting, sessions) = find(node, &key(request.key)?, &request.uid)?;
    let stream = node.streams.open(&posting.record.uid)?;
    let id = if request.command_id.is_empty() {
        frame::MAIN_SESSION
    } else {
        &request.command_id
    };
    let session = sessions
        .get(&command_id(id)?)
        .await
        .map_err(|error| status(&error))?;
    let until = if request.follow {
        Until::Closed
    } else {
        Until::Now
    };
    let from = |stream, asked: Option<u64>| {
        let (head, end) = session.kept(stream);
        match (asked, request.tail_bytes) {
            (Some(offset), _) => offset,
            (None, 0) => head,
            (None, tail) => head.max(end.saturating_sub(tail)),
        }
    };
    let offsets = [
        from(Stream::Stdout, request.stdout_offset),
        from(Stream::Stderr, request.stderr_offset),
    ];
    // To follow what it prints is a use, but none that it would have to go on for.
    let used = request.follow.then(|| posting.activity.begin());
    let (sender, receiver) = channel();
    let cancel = node.cancel.clone();
    tokio::spawn(async move {
        let _held = (stream, used);
        tokio::select! {
            () = cancel.cancelled() => drop(sender.send(Err(Status::unavailable("the agent stops"))).await),
            () = sender.closed() => {}
            _ = async {
                // Both before any output, so that a reader which comes back asks for both as they were.
                for (stream, offset) in [Stream::Stdout, Stream::Stderr].into_iter().zip(offsets) {
                    let stream = number(stream);
                    tell(&sender, Out::Gap(pb::Gap { stream, offset, end: offset })).await?;
                }
                futures::try_join!(
                    output(&session, Stream::Stdout, offsets[0], until, &sender),
                    output(&session, Stream::Stderr, offsets[1], until, &sender),
                ).ok()?;
                let ended = session.state().borrow().ended.clone();
                if let Some(ended) = ended {
                    tell(&sender, Out::Exit(exit(&ended))).await?;
                }
                Some(())
            } => {}
        }
    });
    Ok(receiver)
}

fn find(node: &Node, key: &SandboxKey, uid: &str) -> Result<(Posting, Sessions), Status> {
    let posting = posting(node, key, uid)?;
    let record = &posting.record;
    // Its sessions may be open already, but the first command in it must be its own.
    if record.started().is_none() && record.state.termination().is_none() {
        return Err(Status::failed_precondition(format!(
            "sandbox {:?} is not running yet: wait for its condition Ready",
            key.name
        )));
    }
    let Some(sessions) = posting.sessions.clone() else {
        let name = &key.name;
        return Err(match posting.record.state.termination() {
            Some(end) => ended(name, &end.cause),
            // The agent has just started and is finding its way back to it.
            None => Status::unavailable(format!(
                "the sessions of sandbox {name:?} are being found again; retry"
            )),
        });
    };
    Ok((posting, sessions))
}

fn ended(name: &str, cause: &Cause) -> Status {
    let Cause {
        reason, message, ..
    } = cause;
    Status::failed_precondition(format!("sandbox {name:?} has ended: {reason}: {message}"))
}

/// A session that could not be made. Where that is because the sandbox has ended, also why it has.
fn refused(node: &Node, posting: &Posting, error: &SessionError) -> Status {
    let record = &posting.record;
    let newest = node.board.get(&SandboxKey {
        namespace: record.namespace.clone(),
        name: record.name.clone(),
    });
    let newest = newest.filter(|newest| newest.record.uid == record.uid);
    match newest
        .as_ref()
        .and_then(|newest| newest.record.state.termination())
    {
        Some(end) if matches!(error, SessionError::SandboxEnded { .. }) => {
            ended(&record.name, &end.cause)
        }
        _ => status(error),
    }
}

fn new_session(
    posting: &Posting,
    asked: &pb::Command,
    kill_on_detach_ms: u64,
) -> Result<NewSession, Status> {
    let Some(image) = &posting.record.image else {
        return Err(Status::failed_precondition(
            "the sandbox has no image yet: wait for its condition Ready",
        ));
    };
    let request = Request {
        argv: asked.argv.clone(),
        shell: asked.shell.clone(),
        env: asked.env.clone(),
        cwd: asked.cwd.clone(),
        user: asked.user.clone(),
        terminal: asked.terminal.map(size),
        stdin: asked.stdin,
        timeout_ms: asked.timeout_ms,
    };
    let spec = command::session(&posting.record, image, &request)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let kill_on_detach = (kill_on_detach_ms > 0).then(|| Duration::from_millis(kill_on_detach_ms));
    Ok(NewSession {
        spec,
        kill_on_detach,
        fingerprint: Some(fingerprint(asked)),
    })
}

/// Of what runs, and where and as whom. What a client that comes back may say otherwise is left out: the size of its terminal, and whether
/// there is more input.
fn fingerprint(asked: &pb::Command) -> Fingerprint {
    let pb::Command {
        argv,
        shell,
        env,
        cwd,
        user,
        terminal,
        stdin: _,
        timeout_ms,
    } = asked;
    let list = |list: &[Vec<u8>]| Fingerprint::of(list.iter().map(Vec::as_slice));
    let (argv, env) = (list(argv), list(env));
    let shell = shell
        .as_ref()
        .map_or_else(Vec::new, |shell| [b"=", shell.as_bytes()].concat());
    Fingerprint::of([
        argv.as_bytes(),
        env.as_bytes(),
        &shell,
        cwd.as_bytes(),
        user.as_bytes(),
        &[u8::from(terminal.is_some())],
        &timeout_ms.to_le_bytes(),
    ])
}

/// Joins a client to a session until the session ends (`Some`), a request is refused or the client goes (`None`).
async fn serve(
    session: &Session,
    created: bool,
    open: &pb::Open,
    requests: &mut Streaming<pb::SessionRequest>,
    sender: &Sending<pb::SessionResponse>,
) -> Option<()> {
    let _attached = session.attach();
    let input = if open.stdin {
        let known = (open.input > 0).then_some(open.input);
        match session.take_input(known).await {
            Ok(input) => Some(input),
            // Its end is told below.
            Err(SessionError::Ended { .. }) => None,
            Err(error) => {
                drop(sender.send(Err(status(&error))).await);
                return None;
            }
        }
    } else {
        None
    };
    let stdin_offset = match &input {
        None => None,
        Some(input) => tokio::select! {
            // Both look at levels.
            stdin = input.known() => stdin.map(|stdin| stdin.accepted),
            // What it may go on with is a later one's.
            () = sender.closed() => return None,
        },
    };
    let opened = pb::Opened {
        command_id: session.id().to_string(),
        created,
        stdin_offset,
        input: input.as_ref().map_or(0, Input::number),
    };
    tell(sender, Out::Opened(opened)).await?;
    let told = async {
        let outputs = futures::try_join!(
            output(
                session,
                Stream::Stdout,
                open.stdout_offset,
                Until::Exit,
                sender
            ),
            output(
                session,
                Stream::Stderr,
                open.stderr_offset,
                Until::Exit,
                sender
            ),
        );
        outputs.ok()?;
        let ended = session.ended().await.ok()?;
        tell(sender, Out::Exit(exit(&ended))).await
    };
    tokio::select! {
        // Looked at in this order: what was printed is told before the client's silence counts.
        biased;
        told = told => told,
        // Both go on for ever; an end of the client's requests is no end of the session.
        () = take(session, open.stdin, input.as_ref(), requests, sender) => None,
        () = stdin_taken(session, input.as_ref(), sender) => None,
        () = sender.closed() => None,
    }
}

/// Sends a stream's output; `Err` when the client has gone or was told why nothing more comes.
async fn output(
    session: &Session,
    stream: Stream,
    offset: u64,
    until: Until,
    sender: &Sending<pb::SessionResponse>,
) -> Result<(), ()> {
    let mut reader = session.read(stream, offset, until);
    let stream = number(stream);
    loop {
        let out = match reader.next().await {
            Ok(Chunk::Output { offset, bytes }) => Out::Output(pb::Output {
                stream,
                offset,
                data: bytes.into(),
            }),
            Ok(Chunk::Gap { offset, end }) => Out::Gap(pb::Gap {
                stream,
                offset,
                end,
            }),
            Ok(Chunk::End { .. }) => return Ok(()),
            Err(error) => {
                drop(sender.send(Err(status(&error))).await);
                return Err(());
            }
        };
        tell(sender, out).await.ok_or(())?;
    }
}

fn number(stream: Stream) -> i32 {
    let stream = match stream {
        Stream::Stdout => pb::Stream::Stdout,
        Stream::Stderr => pb::Stream::Stderr,
    };
    stream.into()
}

pub(super) async fn tell(sender: &Sending<pb::SessionResponse>, kind: Out) -> Option<()> {
    sender
        .send(Ok(pb::SessionResponse { kind: Some(kind) }))
        .await
        .ok()
}

fn exit(ended: &Ended) -> pb::Exit {
    match &ended.outcome {
        Outcome::Exited {
            code,
            signal,
            timed_out,
            message,
            duration_ms,
            ..
        } => pb::Exit {
            code: *code,
            signal: *signal,
            timed_out: *timed_out,
            sandbox_reason: String::new(),
            message: message.clone(),
            duration_ms: *duration_ms,
        },
        Outcome::SandboxEnded { reason } => pb::Exit {
            code: 137,
            signal: 9,
            sandbox_reason: reason.clone(),
            message: format!("the command ended because its sandbox did: {reason}"),
            ..pb::Exit::default()
        },
        Outcome::Lost { message } => pb::Exit {
            code: NOT_KNOWN,
            message: message.clone(),
            ..pb::Exit::default()
        },
    }
}

fn command_id(id: &str) -> Result<CommandId, Status> {
    CommandId::parse(id).map_err(|error| Status::invalid_argument(error.to_string()))
}

pub(super) fn size(size: pb::TerminalSize) -> frame::TerminalSize {
    frame::TerminalSize {
        rows: size.rows,
        columns: size.columns,
    }
}

pub(super) fn status(error: &SessionError) -> Status {
    let line = chain(error);
    match error {
        SessionError::Id(_)
        | SessionError::TooLong { .. }
        | SessionError::BadSignal { .. }
        | SessionError::NoTerminal { .. }
        | SessionError::Stdin(_) => Status::invalid_argument(line),
        SessionError::TooMany => Status::resource_exhausted(line),
        SessionError::Unavailable { .. } | SessionError::ShuttingDown => Status::unavailable(line),
        SessionError::SandboxEnded { .. }
        | SessionError::Ended { .. }
        | SessionError::Removing { .. } => Status::failed_precondition(line),
        SessionError::NotFound { .. } => Status::not_found(line),
        SessionError::Another { .. } => Status::already_exists(line),
        SessionError::Record(_) | SessionError::Log(_) | SessionError::Directory { .. } => {
            Status::internal(line)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn an_end_that_is_not_known_is_not_told_as_a_kill() {
        let ended = |outcome| Ended {
            outcome,
            at: clock::now(),
            stdout: 0,
            stderr: 0,
            lost: false,
        };
        let message = "init no longer knows it".to_owned();
        let lost = exit(&ended(Outcome::Lost {
            message: message.clone(),
        }));
        assert_eq!((lost.code, lost.signal, lost.message), (-1, 0, message));
        let reason = "OOMKilled".to_owned();
        let killed = exit(&ended(Outcome::SandboxEnded { reason }));
        assert_eq!((killed.code, killed.signal), (137, 9));
    }
}

//! An agent alone: gRPC over its unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cloche_proto::agent::v1alpha1::agent_client::AgentClient;
use cloche_proto::agent::v1alpha1::session_request::Kind as Ask;
use cloche_proto::agent::v1alpha1::{
    ApplyRequest, DeleteRequest, ListRequest, LogRequest, SandboxKey, SessionRequest,
    SessionResponse, UsageRequest, WatchEvent,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tower::service_fn;

use super::{Change, Failure, Refusal, Selection};
use crate::error::Error;
use crate::object::Object;
use crate::object::usage::Usage;

/// Most that one reply may hold: a list of all objects of a node.
const REPLY_LIMIT: usize = 64 << 20;

/// Bytes in flight per stream. HTTP/2's own 64 KiB would make every second chunk of output wait for an acknowledgement.
const WINDOW: u32 = 1 << 20;

/// How often the agent is asked for a sandbox that is not there yet: it has no stream of what is absent.
const ABSENT: Duration = Duration::from_millis(20);

/// The namespace that an agent alone knows.
const NAMESPACE: &str = "default";

/// An agent, by its socket.
#[derive(Debug, Clone)]
pub(crate) struct Standalone {
    socket: PathBuf,
    namespace: String,
}

impl Standalone {
    /// Nothing is connected yet.
    pub(crate) fn new(socket: &Path, namespace: Option<&str>) -> Self {
        Self {
            socket: socket.to_owned(),
            namespace: namespace.unwrap_or(NAMESPACE).to_owned(),
        }
    }

    /// Connects once.
    async fn connect(&self) -> Result<AgentClient<Channel>, Failure> {
        // Connected before tonic gets it, so that the reason of a failure is the system's and not "transport error".
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| {
            Failure::Unconnected(Error::Connect {
                socket: self.socket.clone(),
                hint: hint(&source),
                source,
            })
        })?;
        let mut stream = Some(TokioIo::new(stream));
        let channel = Endpoint::from_static("http://agent.invalid")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .connect_with_connector(service_fn(move |_| {
                let stream = stream.take();
                // Asked a second time: tonic would connect anew by itself, which is the callers' to decide.
                async move { stream.ok_or_else(|| io::Error::other("it closed the connection")) }
            }))
            .await
            .map_err(|problem| {
                Failure::Unconnected(Error::Protocol {
                    socket: self.socket.clone(),
                    message: problem.to_string(),
                })
            })?;
        Ok(AgentClient::new(channel).max_decoding_message_size(REPLY_LIMIT))
    }

    fn key(&self, name: &str) -> SandboxKey {
        SandboxKey {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        }
    }

    /// The same in another namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self.clone()
        }
    }

    fn request(&self, selection: &Selection) -> Result<ListRequest, Failure> {
        let key = match selection {
            Selection::One(name) => Some(self.key(name)),
            Selection::All(None) | Selection::Everywhere(None) => None,
            Selection::OnNode(_) => {
                return Err(Failure::Refused(Refusal::other(
                    "an agent alone has no nodes",
                )));
            }
            Selection::All(Some(_)) | Selection::Everywhere(Some(_)) => {
                return Err(Failure::Refused(Refusal::other(
                    "an agent alone does not select by labels",
                )));
            }
        };
        Ok(ListRequest { key })
    }

    /// The sandboxes; a refusal where one was named and is not there.
    pub(super) async fn list(&self, selection: &Selection) -> Result<Vec<Object>, Failure> {
        let request = self.request(selection)?;
        let mut client = self.connect().await?;
        let response = client.list(request).await.map_err(failure)?.into_inner();
        response
            .objects
            .iter()
            .map(|object| Object::read(object))
            .collect::<Result<_, _>>()
            .map_err(Failure::Wrong)
    }

    /// Puts a new manifest down.
    pub(super) async fn create(&self, manifest: Vec<u8>) -> Result<(), Failure> {
        let request = ApplyRequest {
            manifest,
            replace: false,
        };
        let mut client = self.connect().await?;
        client.apply(request).await.map(drop).map_err(failure)
    }

    /// Changes what `patch` names of a sandbox: its manifest is put down anew.
    pub(super) async fn merge(&self, name: &str, patch: &Value) -> Result<(), Failure> {
        let objects = self.list(&Selection::One(name.to_owned())).await?;
        let shown = objects
            .first()
            .map(Object::json)
            .ok_or_else(|| Failure::Wrong("it names no sandbox".to_owned()))?;
        let mut manifest = json!({
            "apiVersion": shown["apiVersion"],
            "kind": shown["kind"],
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": shown["spec"],
        });
        for words in ["labels", "annotations"] {
            if let Some(given) = shown["metadata"].get(words) {
                manifest["metadata"][words] = given.clone();
            }
        }
        merge(&mut manifest, patch);
        let request = ApplyRequest {
            manifest: manifest.to_string().into_bytes(),
            replace: true,
        };
        let mut client = self.connect().await?;
        client.apply(request).await.map(drop).map_err(failure)
    }

    /// Asks for a deletion.
    pub(super) async fn delete(&self, name: &str, uid: Option<&str>) -> Result<(), Failure> {
        let request = DeleteRequest {
            key: Some(self.key(name)),
            uid: uid.unwrap_or_default().to_owned(),
        };
        let mut client = self.connect().await?;
        client.delete(request).await.map(drop).map_err(failure)
    }

    /// Runs a command or attaches to one.
    pub(super) async fn session(
        &self,
        name: &str,
        mut first: SessionRequest,
    ) -> Result<(mpsc::Sender<SessionRequest>, Streaming<SessionResponse>), Failure> {
        let mut client = self.connect().await?;
        if let Some(Ask::Open(open)) = &mut first.kind {
            open.key = Some(self.key(name));
        }
        let (requests, receiver) = mpsc::channel(super::REQUESTS);
        // Cannot fail: there is room and the receiver is held.
        drop(requests.send(first).await);
        let replies = client
            .session(ReceiverStream::new(receiver))
            .await
            .map_err(failure)?
            .into_inner();
        Ok((requests, replies))
    }

    /// What a sandbox uses.
    pub(super) async fn usage(&self, name: &str) -> Result<Usage, Failure> {
        let request = UsageRequest {
            key: Some(self.key(name)),
            uid: String::new(),
        };
        let mut client = self.connect().await?;
        let used = client.usage(request).await.map_err(failure)?.into_inner();
        Ok(Usage {
            cpu_millicores: used.cpu_millicores,
            memory_bytes: used.memory_bytes,
            disk_bytes: used.disk_bytes,
            processes: used.processes,
        })
    }

    /// A command's output as kept on the node.
    pub(super) async fn log(
        &self,
        name: &str,
        mut request: LogRequest,
    ) -> Result<Streaming<SessionResponse>, Failure> {
        request.key = Some(self.key(name));
        let mut client = self.connect().await?;
        let replies = client.log(request).await.map_err(failure)?;
        Ok(replies.into_inner())
    }

    /// What happens to sandboxes; nothing is connected yet.
    pub(super) fn changes(&self, selection: &Selection) -> Changes {
        Changes {
            agent: self.clone(),
            selection: selection.clone(),
            events: None,
            absent: false,
        }
    }
}

/// A JSON merge patch. Source: RFC 7396.
fn merge(into: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (name, value) in fields {
                match (value, into.as_object_mut()) {
                    (Value::Null, Some(into)) => drop(into.remove(name)),
                    _ => merge(&mut into[name], value),
                }
            }
        }
        value => *into = value.clone(),
    }
}

/// The stream of changes of an agent, opened anew after each failure.
#[derive(Debug)]
pub(crate) struct Changes {
    agent: Standalone,
    selection: Selection,
    events: Option<Streaming<WatchEvent>>,
    /// The last answer was that there is no such sandbox.
    absent: bool,
}

impl Changes {
    pub(super) async fn next(&mut self) -> Result<Change, Failure> {
        let next = self.attempt().await;
        match next {
            Err(Failure::Refused(refusal)) if refusal.is_not_found() => {
                self.events = None;
                self.absent = true;
                Ok(Change::Absent)
            }
            Ok(change) => Ok(change),
            Err(failure) => {
                self.events = None;
                Err(failure)
            }
        }
    }

    async fn attempt(&mut self) -> Result<Change, Failure> {
        let events = match &mut self.events {
            Some(events) => events,
            none => {
                if std::mem::take(&mut self.absent) {
                    tokio::time::sleep(ABSENT).await;
                }
                let request = self.agent.request(&self.selection)?;
                let mut client = self.agent.connect().await?;
                let events = client.watch(request).await.map_err(failure)?;
                none.insert(events.into_inner())
            }
        };
        let event = loop {
            let event = events.message().await.map_err(failure)?;
            match event.ok_or_else(|| Failure::broken("it closed the stream"))? {
                event if event.synced => {}
                event => break event,
            }
        };
        let object = Object::read(&event.object).map_err(Failure::Wrong)?;
        Ok(if event.deleted {
            Change::Deleted(object)
        } else {
            Change::Present(object)
        })
    }
}

/// What to do about a socket that cannot be connected to.
fn hint(problem: &io::Error) -> &'static str {
    match problem.kind() {
        io::ErrorKind::PermissionDenied => {
            "only the user that runs the agent may use it (usually root)"
        }
        _ => "is `cloche-agent standalone` running, with this --socket?",
    }
}

/// What a status means: the connection broke, as it does when the agent restarts, or it is the agent's answer.
#[allow(
    clippy::needless_pass_by_value,
    reason = "as Result::map_err passes it"
)]
pub(super) fn failure(status: Status) -> Failure {
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    match status.code() {
        // What tonic makes of a closed or reset connection; a handler's own panic also arrives as one of them.
        Code::Unavailable | Code::Cancelled | Code::Unknown => Failure::broken(message),
        Code::Internal if std::error::Error::source(&status).is_some() => Failure::broken(message),
        Code::NotFound => Failure::Refused(Refusal::not_found(message)),
        Code::Unimplemented => Failure::Refused(Refusal::other(&format!(
            "{message} (the agent is of another version than this program)"
        ))),
        Code::Ok
        | Code::Internal
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Unauthenticated => Failure::Refused(Refusal::other(message)),
    }
}

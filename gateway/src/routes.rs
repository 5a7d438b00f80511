//! Every path, and what it takes to get through to it.
//!
//! ```text
//! certificate of the front proxy? ─► user ─┬► SubjectAccessReview ─► query ─┬► a place among the streams ─► served
//!                                          └► Sandbox, its node ────────────┘
//! ```

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, Path, RawQuery, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, extract::ws::WebSocket};
use cloche_proto::{SESSION_MESSAGE, SESSION_PROTOCOL};
use http::{StatusCode, Uri};
use rustls_pki_types::UnixTime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{Apiserver, Deed};
use crate::agents::Agents;
use crate::client::Client;
use crate::front_proxy::{FrontProxy, User};
use crate::place::{self, Place};
use crate::refusal::{Kind, Refusal};
use crate::remote::{self, Translator, Version};
use crate::serve::Peer;
use crate::streams::Streams;
use crate::{ask, discovery, log, session, usage};

/// What every request is served with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) apiserver: Apiserver,
    pub(crate) agents: Agents,
    pub(crate) front_proxy: watch::Receiver<Option<Arc<FrontProxy>>>,
    pub(crate) streams: Streams,
    /// It is going to stop: nobody else should be sent to it.
    pub(crate) leaving: CancellationToken,
    /// It stops: who can come back to another gateway should.
    pub(crate) stopping: CancellationToken,
    /// It does not wait any longer.
    pub(crate) over: CancellationToken,
    /// Every stream.
    pub(crate) tracker: TaskTracker,
}

/// Bytes that are read of a WebSocket at once, and kept for it.
const READ: usize = 16 << 10;

/// Which sandbox, by the path.
type Named = Path<(String, String)>;
type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// All paths.
pub(crate) fn router(gateway: Gateway) -> Router {
    let path = |deed: Deed| {
        let (root, subresource) = (discovery::ROOT, deed.subresource());
        format!("{root}/namespaces/{{namespace}}/sandboxes/{{name}}/{subresource}")
    };
    let served = discovery::routes()
        .route(&path(Deed::Exec), get(exec))
        .route(&path(Deed::Attach), get(attach))
        .route(&path(Deed::Log), get(read_log))
        .route(&path(Deed::Usage), get(tell_usage))
        .method_not_allowed_fallback(not_allowed)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(gateway.clone(), admit));
    Router::new()
        // Asked by the kubelet, which has no certificate.
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .merge(served)
        .with_state(gateway)
}

async fn ready(State(gateway): State<Gateway>) -> (StatusCode, &'static str) {
    if gateway.leaving.is_cancelled() || gateway.stopping.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if gateway.front_proxy.borrow().is_none() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the front proxy is not known yet",
        )
    } else {
        (StatusCode::OK, "ok")
    }
}

/// Lets nobody through but the front proxy; the user for whom it asks goes with the request.
async fn admit(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    let known = gateway.front_proxy.borrow().clone();
    let admitted =
        if let (Some(front_proxy), Some(peer)) = (known, request.extensions().get::<Peer>()) {
            front_proxy
                .user(peer.chain(), request.headers(), UnixTime::now())
                .and_then(|user| {
                    let full = "this gateway has too many connections; retry";
                    let full = || Refusal::new(Kind::ServiceUnavailable, full);
                    peer.is_welcome().then_some(user).ok_or_else(full)
                })
        } else {
            let message = "the gateway does not know the cluster's front proxy yet; retry";
            Err(Refusal::new(Kind::ServiceUnavailable, message))
        };
    match admitted {
        Ok(user) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn not_found(uri: Uri) -> Refusal {
    let message = format!("there is nothing at {:?}", uri.path());
    Refusal::new(Kind::NotFound, message)
}

async fn not_allowed() -> Refusal {
    let message = "only GET is offered here; streams are WebSockets (SPDY is not spoken)";
    Refusal::new(Kind::MethodNotAllowed, message)
}

async fn exec(
    State(gateway): State<Gateway>,
    Path(named): Named,
    RawQuery(query): RawQuery,
    Extension(user): Extension<User>,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    command(gateway, named, query, user, upgrade, Deed::Exec, ask::exec).await
}

async fn attach(
    State(gateway): State<Gateway>,
    Path(named): Named,
    RawQuery(query): RawQuery,
    Extension(user): Extension<User>,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    let read = ask::attach;
    command(gateway, named, query, user, upgrade, Deed::Attach, read).await
}

/// Serves `exec` and `attach`, in whichever protocol the client speaks.
async fn command(
    gateway: Gateway,
    named: (String, String),
    query: Option<String>,
    user: User,
    upgrade: Upgrade,
    deed: Deed,
    read: fn(&str) -> Result<ask::Ask, Refusal>,
) -> Result<Response, Refusal> {
    let found = find(&gateway, &named, &user, deed).await?;
    let (upgrade, protocol) = choose(upgrade, &Protocol::ALL)?;
    let query = query.unwrap_or_default();
    let asked = match protocol {
        Protocol::Session if query.is_empty() => None,
        Protocol::Session => {
            let message =
                format!("in {SESSION_PROTOCOL} the first message says what to run, not the URL");
            return Err(Refusal::new(Kind::BadRequest, message));
        }
        Protocol::Remote(version) => Some((version, read(&query)?, command_id()?)),
    };
    let place = found?;
    let stream = gateway.streams.open(&user.name)?;
    let token = gateway.tracker.token();
    Ok(upgrade.on_upgrade(move |socket: WebSocket| async move {
        let _held = (stream, token);
        let client = Client::new(socket);
        let agents = &gateway.agents;
        match asked {
            Some((version, ask, name)) => {
                let translator = Translator::new(version, ask, &place, name);
                remote::serve(client, translator, agents, &place, &gateway.over).await;
            }
            None => {
                session::serve(
                    client,
                    deed == Deed::Exec,
                    agents,
                    &place,
                    &gateway.stopping,
                )
                .await;
            }
        }
    }))
}

async fn read_log(
    State(gateway): State<Gateway>,
    Path(named): Named,
    RawQuery(query): RawQuery,
    Extension(user): Extension<User>,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    let deed = Deed::Log;
    let found = find(&gateway, &named, &user, deed).await?;
    let ask = ask::log(&query.unwrap_or_default())?;
    let upgrade = match upgrade {
        Ok(upgrade) => Some(choose(Ok(upgrade), &[Protocol::Session])?.0),
        // No WebSocket: plain bytes.
        Err(_) => None,
    };
    let place = found?;
    let stream = gateway.streams.open(&user.name)?;
    let reading = log::read(&gateway.agents, &place, &ask).await?;
    let token = gateway.tracker.token();
    Ok(match upgrade {
        Some(upgrade) => upgrade.on_upgrade(move |socket: WebSocket| async move {
            let _held = (stream, token);
            session::tell(
                Client::new(socket),
                reading.replies,
                &ask,
                &gateway.stopping,
            )
            .await;
        }),
        None => log::body(
            reading,
            gateway.agents,
            place,
            ask,
            gateway.over,
            (stream, token),
        ),
    })
}

async fn tell_usage(
    State(gateway): State<Gateway>,
    Path(named): Named,
    Extension(user): Extension<User>,
) -> Result<Response, Refusal> {
    let place = find(&gateway, &named, &user, Deed::Usage).await??;
    // Short, but one that an agent may hold up.
    let _stream = gateway.streams.open(&user.name)?;
    usage::read(&gateway.agents, &place).await
}

/// Whether the user may do that, which is the outer error, and where the sandbox is. Both are asked at once, since each is a round trip;
/// who may not never learns whether there is such a sandbox.
async fn find(
    gateway: &Gateway,
    (namespace, name): &(String, String),
    user: &User,
    deed: Deed,
) -> Result<Result<Place, Refusal>, Refusal> {
    // Both go into paths of requests to the apiserver, and no object is called otherwise.
    if !is_name(namespace) || !is_name(name) {
        let message = format!("{namespace:?} and {name:?} name no sandbox");
        return Err(Refusal::new(Kind::NotFound, message));
    }
    let apiserver = &gateway.apiserver;
    let allowed = apiserver.check(user, namespace, name, deed);
    let found = async { Ok(place::find(apiserver, namespace, name, deed).await) };
    let ((), found) = futures::future::try_join(allowed, found).await?;
    Ok(found)
}

/// A DNS subdomain, roughly: nothing that could lead elsewhere in a path.
fn is_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    (1..=253).contains(&name.len())
        && name.bytes().all(is_plain)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// What is spoken over a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The agent's own.
    Session,
    /// Kubernetes'.
    Remote(Version),
}

impl Protocol {
    /// The best first.
    const ALL: [Self; 3] = [
        Self::Session,
        Self::Remote(Version::ALL[0]),
        Self::Remote(Version::ALL[1]),
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Session => SESSION_PROTOCOL,
            Self::Remote(version) => version.name(),
        }
    }

    const fn message(self) -> usize {
        match self {
            Self::Session => SESSION_MESSAGE,
            Self::Remote(_) => remote::MESSAGE,
        }
    }
}

/// The upgrade to the best of `offered` that the client speaks.
fn choose(upgrade: Upgrade, offered: &[Protocol]) -> Result<(WebSocketUpgrade, Protocol), Refusal> {
    let bad = |message: String| Refusal::new(Kind::BadRequest, message);
    let upgrade = upgrade
        .map_err(|error| bad(format!("this is offered over WebSockets alone: {error}")))?
        .protocols(offered.iter().map(|protocol| protocol.name()));
    let chosen = upgrade.selected_protocol().and_then(|chosen| {
        let is_chosen = |protocol: &&Protocol| chosen == protocol.name();
        offered.iter().find(is_chosen).copied()
    });
    let protocol = chosen.ok_or_else(|| {
        let names: Vec<_> = offered.iter().map(|protocol| protocol.name()).collect();
        bad(format!("the client speaks none of: {}", names.join(", ")))
    })?;
    let most = protocol.message();
    let upgrade = upgrade
        .max_message_size(most)
        .max_frame_size(most)
        .read_buffer_size(READ)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * SESSION_MESSAGE);
    Ok((upgrade, protocol))
}

/// A name for a command that its client gave none: nobody else's.
fn command_id() -> Result<String, Refusal> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Refusal::new(Kind::InternalError, format!("name the command: {error}")))?;
    Ok(format!("exec-{:032x}", u128::from_ne_bytes(random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_objects_go_into_paths() {
        for name in ["a", "a-1", "a.b", "1a"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a?b",
            "A",
            "a%2fb",
            "-a",
            &"a".repeat(254),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn made_up_names_are_names_and_differ() {
        let (one, two) = (command_id().unwrap(), command_id().unwrap());
        assert_eq!(one.len(), 37);
        assert_ne!(one, two);
    }
}

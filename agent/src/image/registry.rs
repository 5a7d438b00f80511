//! A client of the distribution API (OCI distribution-spec 1.1), pull only.
//!
//! Registries are hostile: every reply is bounded in size and time before anything of it is kept, redirects and token servers may not
//! lead from HTTPS to plain HTTP, and plain HTTP is spoken only with addresses of this machine that the node's owner listed.
//!
//! Users and passwords go to the registry that the reference names, never to its mirrors, and only after it has itself asked for them: by Basic
//! authentication to itself, or to the token server that it names (distribution's token authentication). That server may be another host,
//! as it is of most public registries: a registry that is trusted with a password could hand it on anyway. Over HTTPS, and for a registry
//! over plain HTTP on this machine, also what the node's owner listed. No redirect to another host or port takes them along, nor tokens
//! (reqwest takes `Authorization` off); blobs mostly lie behind one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cloche_crds::image::RegistryRef;
use futures::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::timeout;

use super::access::{Access, Login};
use super::challenge::{Authorization, Challenge};
use super::digest::Digest;
use super::error::Failure;
use super::manifest::{ACCEPTED, Blob, DOCUMENT_MAX};
use super::transfer::{collect, verify};
use crate::told::chain;

/// Longest reply of a token server and longest error that is read, in bytes.
const REPLY_MAX: u64 = 64 << 10;
/// Where docker.io really is.
const DOCKER_HUB: &str = "registry-1.docker.io";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS_MAX: usize = 5;

/// Which registries there are for this node.
#[derive(Clone, Debug, Default)]
pub struct Registries {
    /// `HOST:PORT` that speak plain HTTP. Only addresses of this machine (`127.0.0.1`, `[::1]`, `localhost`) are taken.
    pub insecure: BTreeSet<String>,
    /// For a registry as references call it (`docker.io`): `HOST[:PORT]` to ask before it, in this order.
    pub mirrors: BTreeMap<String, Vec<String>>,
}

impl Registries {
    /// The first entry of `insecure` that is not of this machine.
    pub(super) fn not_loopback(&self) -> Option<&str> {
        self.insecure.iter().map(String::as_str).find(|entry| {
            let Some((host, port)) = entry.rsplit_once(':') else {
                return true;
            };
            port.parse::<u16>().is_err() || !is_loopback(host)
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The way to all registries.
#[derive(Debug)]
pub(super) struct Registry {
    registries: Arc<Registries>,
    idle: Duration,
    /// Made when first needed: it reads the machine's certificates, which a node with local images alone may lack.
    client: OnceLock<Client>,
}

/// One repository at one endpoint.
#[derive(Debug)]
pub(super) struct Repository<'a> {
    registry: &'a Registry,
    client: Client,
    /// `HOST[:PORT]`, for messages.
    endpoint: String,
    /// `https://HOST/v2/NAME/`
    base: Url,
    access: Access,
    /// How it let itself be asked last.
    held: tokio::sync::Mutex<Option<Held>>,
}

/// An authorization, and by which login it was had: 0 where there is none.
#[derive(Clone, Debug)]
struct Held {
    login: usize,
    authorization: Authorization,
}

impl Registry {
    /// A client that takes less than the pace of [`super::transfer`] in `idle` for silence.
    pub(super) fn new(registries: Registries, idle: Duration) -> Self {
        Self {
            registries: Arc::new(registries),
            idle,
            client: OnceLock::new(),
        }
    }

    /// Where to look for `image`: its mirrors first, which anybody may ask, then its own registry, by `access`.
    pub(super) fn repositories(
        &self,
        image: &RegistryRef,
        access: &Access,
    ) -> Result<Vec<Repository<'_>>, Failure> {
        let client = self.client()?;
        let own = if image.has_default_registry() {
            DOCKER_HUB
        } else {
            image.registry()
        };
        let mirrors = self.registries.mirrors.get(image.registry());
        mirrors
            .into_iter()
            .flatten()
            .map(|mirror| (mirror.as_str(), Access::default()))
            .chain([(own, access.clone())])
            .map(|(endpoint, access)| {
                let scheme = if self.registries.insecure.contains(endpoint) {
                    "http"
                } else {
                    "https"
                };
                let base = format!("{scheme}://{endpoint}/v2/{}/", image.repository());
                let base = Url::parse(&base)
                    .map_err(|error| Failure::Invalid(format!("registry {endpoint}: {error}")))?;
                Ok(Repository {
                    registry: self,
                    client: client.clone(),
                    endpoint: endpoint.to_owned(),
                    base,
                    access,
                    held: tokio::sync::Mutex::default(),
                })
            })
            .collect()
    }

    fn client(&self) -> Result<Client, Failure> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let registries = Arc::clone(&self.registries);
        let redirects = reqwest::redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS_MAX {
                attempt.error("too many redirects")
            } else if may_visit(&registries, attempt.url()) {
                attempt.follow()
            } else {
                attempt.error("a redirect to plain HTTP")
            }
        });
        let client = Client::builder()
            .redirect(redirects)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("cloche/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::Node(format!("prepare to pull images: {}", chain(&error))))?;
        Ok(self.client.get_or_init(|| client).clone())
    }
}

/// HTTPS anywhere; plain HTTP only where the node's owner allowed it.
fn may_visit(registries: &Registries, url: &Url) -> bool {
    match url.scheme() {
        "https" => true,
        "http" => url
            .host_str()
            .zip(url.port_or_known_default())
            .is_some_and(|(host, port)| registries.insecure.contains(&format!("{host}:{port}"))),
        _ => false,
    }
}

impl Repository<'_> {
    /// The manifest or index that `reference`, a tag or a digest, names. `wanted`: what it has to hash to.
    pub(super) async fn manifest(
        &self,
        reference: &str,
        wanted: Option<&Digest>,
    ) -> Result<(Vec<u8>, Digest), Failure> {
        let response = self.get("manifests", reference, true).await?;
        let told = response
            .headers()
            .get("docker-content-digest")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse::<Digest>().ok());
        let body = collect(self.body(response), DOCUMENT_MAX, self.registry.idle).await?;
        for wanted in wanted.into_iter().chain(told.as_ref()) {
            verify(&body, wanted, "its manifest")?;
        }
        let digest = Digest::of(&body);
        Ok((body, digest))
    }

    /// The content of a blob, not yet verified.
    pub(super) async fn blob(
        &self,
        blob: &Blob,
    ) -> Result<impl Stream<Item = Result<Bytes, Failure>> + Unpin + use<>, Failure> {
        let response = self.get("blobs", &blob.digest.to_string(), false).await?;
        Ok(self.body(response))
    }

    fn body(
        &self,
        response: Response,
    ) -> impl Stream<Item = Result<Bytes, Failure>> + Unpin + use<> {
        let endpoint = self.endpoint.clone();
        response.bytes_stream().map(move |chunk| {
            chunk.map_err(|error| {
                Failure::Pull(format!("registry {endpoint} broke off: {}", chain(&error)))
            })
        })
    }

    async fn get(&self, kind: &str, name: &str, accept: bool) -> Result<Response, Failure> {
        let url = self
            .base
            .join(&format!("{kind}/{name}"))
            .map_err(|error| Failure::Invalid(format!("{kind}/{name}: {error}")))?;
        let held = self.held.lock().await.clone();
        let (first, authorization) =
            held.map_or((0, None), |held| (held.login, Some(held.authorization)));
        let mut response = self
            .send(url.clone(), accept, authorization.as_ref())
            .await?;
        let Some(challenge) = self.asked_for(&response) else {
            return self.judge(response, name).await;
        };
        // One that held before is asked again, as where its token has run out; then the ones after it.
        let logins = &self.access.logins;
        for login in first..logins.len().max(1) {
            let Some(authorization) = self.authorize(&challenge, logins.get(login)).await? else {
                continue;
            };
            response = self.send(url.clone(), accept, Some(&authorization)).await?;
            // Some hide from a user what is not the user's.
            let is_refused = matches!(
                response.status(),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
            );
            if !is_refused {
                *self.held.lock().await = Some(Held {
                    login,
                    authorization,
                });
                break;
            }
        }
        self.judge(response, name).await
    }

    /// What a refusal asks for, where it is the registry's own: to where it redirects is no place to ask for its users.
    fn asked_for(&self, refusal: &Response) -> Option<Challenge> {
        let is_own = refusal.url().origin() == self.base.origin();
        let is_refused = refusal.status() == StatusCode::UNAUTHORIZED;
        (is_own && is_refused)
            .then(|| Challenge::of(refusal.headers()))
            .flatten()
    }

    async fn send(
        &self,
        url: Url,
        accept: bool,
        authorization: Option<&Authorization>,
    ) -> Result<Response, Failure> {
        let mut request = self.client.get(url);
        if accept {
            request = request.header(ACCEPT, ACCEPTED.join(", "));
        }
        if let Some(authorization) = authorization {
            request = authorization.on(request);
        }
        self.within(request).await
    }

    async fn within(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let endpoint = &self.endpoint;
        match timeout(self.registry.idle, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Failure::Pull(format!(
                "ask registry {endpoint}: {}",
                chain(&error)
            ))),
            Err(_) => Err(Failure::Pull(format!(
                "registry {endpoint} stalls: no answer in {} s",
                self.registry.idle.as_secs_f32()
            ))),
        }
    }

    /// Answers a challenge by `login`, or as anybody may. `None`: that is no answer to it, or its token server does not take it.
    async fn authorize(
        &self,
        challenge: &Challenge,
        login: Option<&Login>,
    ) -> Result<Option<Authorization>, Failure> {
        match challenge {
            Challenge::Basic => Ok(login.cloned().map(Authorization::Basic)),
            Challenge::Bearer(parameters) => {
                let token = self.token(parameters.clone(), login).await?;
                Ok(token.map(Authorization::Bearer))
            }
        }
    }

    /// Asks the token server that a challenge names (distribution's token authentication). `None`: it gives none.
    async fn token(
        &self,
        mut challenge: BTreeMap<String, String>,
        login: Option<&Login>,
    ) -> Result<Option<String>, Failure> {
        #[derive(Deserialize)]
        struct Reply {
            token: Option<String>,
            access_token: Option<String>,
        }

        let malformed = || {
            Failure::Pull(format!(
                "registry {} names no proper token server",
                self.endpoint
            ))
        };
        let realm = challenge.remove("realm").ok_or_else(malformed)?;
        let mut realm = Url::parse(&realm).map_err(|_| malformed())?;
        let is_downgrade = self.base.scheme() == "https" && realm.scheme() != "https";
        if is_downgrade || !may_visit(&self.registry.registries, &realm) {
            return Err(malformed());
        }
        realm.query_pairs_mut().extend_pairs(
            challenge
                .iter()
                .filter(|(key, _)| *key == "service" || *key == "scope"),
        );
        let mut request = self.client.get(realm);
        if let Some(login) = login {
            request = Authorization::Basic(login.clone()).on(request);
        }
        let response = self.within(request).await?;
        match response.status() {
            status if status.is_success() => {}
            // It gives this user none.
            StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Ok(None);
            }
            status => {
                let endpoint = &self.endpoint;
                return Err(Failure::Pull(format!(
                    "who gives tokens for registry {endpoint} answers {status}"
                )));
            }
        }
        let body = collect(self.body(response), REPLY_MAX, self.registry.idle).await?;
        let reply: Reply = serde_json::from_slice(&body).map_err(|_| malformed())?;
        let token = reply.token.or(reply.access_token).ok_or_else(malformed)?;
        // Not more than visible characters, so that it is a header and nothing else.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(malformed());
        }
        Ok(Some(token))
    }

    /// A reply that is no success becomes a failure.
    async fn judge(&self, response: Response, name: &str) -> Result<Response, Failure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let is_json = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with("application/json"));
        let said = if is_json {
            collect(self.body(response), REPLY_MAX, self.registry.idle)
                .await
                .map(|body| said(&body))
                .unwrap_or_default()
        } else {
            String::new()
        };
        let endpoint = &self.endpoint;
        Err(match status {
            StatusCode::NOT_FOUND => {
                Failure::NotFound(format!("registry {endpoint} has no {name}{said}"))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let (how, advice) = self.access.refused();
                Failure::Unauthorized {
                    registry: endpoint.clone(),
                    how,
                    advice,
                    detail: format!("{status}{said}"),
                }
            }
            StatusCode::TOO_MANY_REQUESTS => Failure::Pull(format!(
                "registry {endpoint} has had too many requests from this node{said}"
            )),
            status => Failure::Pull(format!("registry {endpoint} answers {status}{said}")),
        })
    }
}

/// The first message of the distribution API's error list, shortened, for the end of a sentence.
fn said(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Said>,
    }
    #[derive(Deserialize)]
    struct Said {
        #[serde(default)]
        message: String,
    }
    serde_json::from_slice::<Errors>(body)
        .ok()
        .and_then(|errors| errors.errors.into_iter().next())
        .map(|error| format!(": {:.200}", error.message.escape_debug().to_string()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        let registries = |entry: &str| Registries {
            insecure: [entry.to_owned()].into(),
            ..Registries::default()
        };
        for entry in [
            "127.0.0.1:5000",
            "localhost:5000",
            "[::1]:5000",
            "127.9.9.9:1",
        ] {
            assert_eq!(registries(entry).not_loopback(), None, "{entry}");
        }
        for entry in [
            "10.0.0.1:5000",
            "localhost",
            "example.org:80",
            "127.0.0.1.example:80",
            ":80",
        ] {
            assert_eq!(registries(entry).not_loopback(), Some(entry), "{entry}");
        }
        let ours = registries("127.0.0.1:5000");
        for (url, wanted) in [
            ("https://example.org/x", true),
            ("http://127.0.0.1:5000/x", true),
            ("http://127.0.0.1:5001/x", false),
            ("http://169.254.169.254/latest", false),
            ("file:///etc/passwd", false),
        ] {
            assert_eq!(may_visit(&ours, &Url::parse(url).unwrap()), wanted, "{url}");
        }
    }
}

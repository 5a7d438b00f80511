//! Following requests, writing decisions.

use std::collections::HashMap;
use std::time::Duration;

use cloche_crds::cluster::{
    AGENT_SIGNER, CA_CONFIG_MAP, CA_KEY, CA_SECRET, GATEWAY_SIGNER, OPERATOR_SIGNER,
};
use cloche_identity::Identity;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::authority::{Authority, AuthorityError, Kept};
use super::bundle::{Bundle, bundle};
use super::review::{Grant, Refusal, Stage, applicant, review, stage};
use crate::clock;
use crate::failure::{Class, class, pause};
use crate::lease::Standing;
use crate::told::chain;

/// Until when what an earlier CA signed is taken: an annotation of the `ConfigMap`.
const EARLIER_UNTIL: &str = "cloche.dev/earlier-until";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// How long one request to the apiserver may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing could be signed for now.
#[derive(Debug, thiserror::Error)]
enum SignerError {
    /// The apiserver refused or could not be reached.
    #[error("{0}")]
    Api(&'static str, #[source] Box<kube::Error>),
    /// It did not answer.
    #[error("{0}: the apiserver does not answer")]
    Timeout(&'static str),
    /// The CA.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The Secret is there without what makes a CA.
    #[error(
        "the Secret {CA_SECRET} lacks {CERTIFICATE} or {KEY} in PEM: mend it, or delete it for a new CA"
    )]
    Secret,
    /// A mistake of ours.
    #[error("write what is sent")]
    Patch(#[from] serde_json::Error),
}

impl SignerError {
    fn class(&self) -> Class {
        match self {
            Self::Api(_, error) => class(error),
            Self::Timeout(_) | Self::Secret => Class::Transient,
            Self::Authority(_) | Self::Patch(_) => Class::Bug,
        }
    }
}

struct Signer {
    client: Client,
    namespace: String,
    authority: Authority,
}

/// Signs from when this replica acts. Returns only when nobody can tell it that any more.
pub async fn serve(client: Client, namespace: String, mut standing: watch::Receiver<Standing>) {
    if standing.wait_for(|standing| standing.leads).await.is_err() {
        return;
    }
    let mut failures = 0;
    let authority = loop {
        match authority(&client, &namespace).await {
            Ok(authority) => break authority,
            Err(error) => {
                tracing::error!(error = chain(&error), "no CA; trying again");
                tokio::time::sleep(pause(failures, 0)).await;
                failures += 1;
            }
        }
    };
    let signer = Signer {
        client,
        namespace,
        authority,
    };
    signer.follow().await;
}

impl Signer {
    async fn follow(&self) {
        let signers = [AGENT_SIGNER, GATEWAY_SIGNER, OPERATOR_SIGNER];
        let mut requests = stream::select_all(signers.map(|signer| self.requests(signer)));
        let mut again = FuturesUnordered::new();
        // What is to be tried again, as it was last seen, by its UID.
        let mut waits: HashMap<String, (CertificateSigningRequest, u32)> = HashMap::new();
        loop {
            // Cancel safe: each arm takes what is whole.
            let (request, failures) = tokio::select! {
                Some(request) = requests.next() => {
                    waits.remove(&request.uid().unwrap_or_default());
                    (request, 0)
                }
                Some(uid) = again.next() => match waits.remove(&uid) {
                    Some(due) => due,
                    None => continue,
                },
                else => return,
            };
            let Err(error) = self.decide(&request).await else {
                continue;
            };
            let (name, class) = (request.name_any(), error.class());
            let why = chain(&error);
            match class {
                // Somebody else changed it, which the watch tells.
                Class::Conflict | Class::Gone => {
                    tracing::debug!(request = name, error = why, "look again");
                }
                Class::Transient => {
                    tracing::warn!(request = name, error = why, "not signed; trying again");
                    let uid = request.uid().unwrap_or_default();
                    waits.insert(uid.clone(), (request, failures + 1));
                    again.push(tokio::time::sleep(pause(failures, 0)).map(|()| uid));
                }
                Class::Invalid | Class::Bug => {
                    let class = class.as_str();
                    tracing::error!(request = name, class, error = why, "not signed");
                }
            }
        }
    }

    fn requests(&self, signer: &str) -> BoxStream<'static, CertificateSigningRequest> {
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.signerName={signer}"));
        let seen = watcher(api, config).default_backoff().applied_objects();
        seen.filter_map(async |seen| match seen {
            Ok(request) => Some(request),
            Err(error) => {
                tracing::warn!(%error, "cannot watch certificate requests; trying again");
                None
            }
        })
        .boxed()
    }

    async fn decide(&self, request: &CertificateSigningRequest) -> Result<(), SignerError> {
        let stage = stage(request);
        let refused = match stage {
            Stage::Done => return Ok(()),
            Stage::New => "Denied",
            // An approval cannot be taken back.
            Stage::Approved => "Failed",
        };
        let name = request.name_any();
        match self.review(request).await? {
            // The watch tells of the approved one, which is signed.
            Ok(grant) if stage == Stage::New => {
                let message = format!("the applicant is {}", grant.identity);
                self.condition(request, "Approved", "IdentityProved", &message)
                    .await?;
            }
            Ok(grant) => {
                let certificate = self.authority.certificate();
                publish(&self.client, &self.namespace, certificate).await?;
                let chain = self.authority.sign(&grant, clock::now().wall)?;
                self.issue(request, chain).await?;
                tracing::info!(request = name, identity = %grant.identity, "signed");
            }
            Err(refusal) => {
                let account = request.spec.username.as_deref();
                tracing::warn!(request = name, account, "refused: {refusal}");
                self.condition(request, refused, "Refused", &refusal.to_string())
                    .await?;
            }
        }
        Ok(())
    }

    async fn review(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<Result<Grant, Refusal>, SignerError> {
        let applicant = match applicant(&request.spec, &self.namespace) {
            Ok(applicant) => applicant,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let node = match &applicant.identity {
            Identity::Agent { node } => {
                let nodes: Api<Node> = Api::all(self.client.clone());
                ask("read the applicant's Node", nodes.get_opt(node)).await?
            }
            Identity::Gateway | Identity::Operator => None,
        };
        let uid = node.and_then(|node| node.metadata.uid);
        Ok(review(&request.spec, applicant, uid.as_deref()))
    }

    async fn condition(
        &self,
        request: &CertificateSigningRequest,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), SignerError> {
        let status = request.status.as_ref();
        let before = status.and_then(|status| status.conditions.as_deref());
        let new = json!({"type": kind, "status": "True", "reason": reason, "message": message});
        let all = before.unwrap_or_default().iter().map(|one| json!(one));
        let conditions: Vec<Value> = all.chain([new]).collect();
        let patch = patch(
            request,
            [
                json!({"op": "test", "path": "/status/conditions", "value": before}),
                json!({"op": "add", "path": "/status/conditions", "value": conditions}),
            ],
        )?;
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let (name, params) = (request.name_any(), PatchParams::default());
        let written = if kind == "Failed" {
            ask(
                "tell a refusal",
                requests.patch_status(&name, &params, &patch),
            )
            .await
        } else {
            ask(
                "approve or deny",
                requests.patch_approval(&name, &params, &patch),
            )
            .await
        };
        written.map(drop)
    }

    async fn issue(
        &self,
        request: &CertificateSigningRequest,
        chain: String,
    ) -> Result<(), SignerError> {
        let chain = ByteString(chain.into_bytes());
        let patch = patch(
            request,
            [
                json!({"op": "test", "path": "/status/certificate", "value": null}),
                json!({"op": "add", "path": "/status/certificate", "value": chain}),
            ],
        )?;
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let (name, params) = (request.name_any(), PatchParams::default());
        let written = requests.patch_status(&name, &params, &patch);
        ask("write a certificate", written).await.map(drop)
    }
}

/// Of this request alone.
fn patch(
    request: &CertificateSigningRequest,
    steps: [Value; 2],
) -> Result<Patch<()>, serde_json::Error> {
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": request.metadata.uid});
    let all: Vec<Value> = std::iter::once(uid).chain(steps).collect();
    Ok(Patch::Json(serde_json::from_value(all.into())?))
}

/// The CA that is kept, or a new one. Of two that make one at once the apiserver takes one, and both use that.
async fn authority(client: &Client, namespace: &str) -> Result<Authority, SignerError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match ask("read the CA", secrets.get_opt(CA_SECRET)).await? {
        Some(secret) => secret,
        None => keep_new(&secrets).await?,
    };
    let authority = Authority::read(kept_in(&secret).ok_or(SignerError::Secret)?)?;
    publish(client, namespace, authority.certificate()).await?;
    Ok(authority)
}

async fn keep_new(secrets: &Api<Secret>) -> Result<Secret, SignerError> {
    let new = secret_of(Kept::make(clock::now().wall)?);
    let params = PostParams::default();
    match ask("keep a new CA", secrets.create(&params, &new)).await {
        Ok(secret) => {
            tracing::info!("made a new CA");
            Ok(secret)
        }
        Err(error) if error.class() == Class::Conflict => {
            ask("read the CA", secrets.get(CA_SECRET)).await
        }
        Err(error) => Err(error),
    }
}

fn secret_of(kept: Kept) -> Secret {
    let Kept { certificate, key } = kept;
    let data = [(CERTIFICATE, certificate), (KEY, key)];
    Secret {
        metadata: ObjectMeta {
            name: Some(CA_SECRET.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(
            data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())))
                .into(),
        ),
        ..Secret::default()
    }
}

fn kept_in(secret: &Secret) -> Option<Kept> {
    let text = |name: &str| {
        let bytes = &secret.data.as_ref()?.get(name)?.0;
        String::from_utf8(bytes.clone()).ok()
    };
    Some(Kept {
        certificate: text(CERTIFICATE)?,
        key: text(KEY)?,
    })
}

/// What certificates are checked by is there for everybody to read before one is signed.
async fn publish(client: &Client, namespace: &str, certificate: &str) -> Result<(), SignerError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = ask("read the CA's ConfigMap", maps.get_opt(CA_CONFIG_MAP)).await?;
    let before = map.as_ref().and_then(published);
    let bundle = bundle(certificate, before.as_ref(), clock::now().wall);
    if before.as_ref() == Some(&bundle) {
        return Ok(());
    }
    let until = bundle.until.map(|until| until.to_string());
    let data = json!({
        "metadata": {"annotations": {EARLIER_UNTIL: until}},
        "data": {CA_KEY: bundle.text},
    });
    if map.is_some() {
        let patch = Patch::Merge(data);
        let params = PatchParams::default();
        let written = maps.patch(CA_CONFIG_MAP, &params, &patch);
        return ask("publish the CA", written).await.map(drop);
    }
    // Where there was none nothing earlier stays.
    let new = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CA_CONFIG_MAP.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(CA_KEY.to_owned(), bundle.text)].into()),
        ..ConfigMap::default()
    };
    let params = PostParams::default();
    let written = maps.create(&params, &new);
    ask("publish the CA", written).await.map(drop)
}

fn published(map: &ConfigMap) -> Option<Bundle> {
    let text = map.data.as_ref()?.get(CA_KEY)?.clone();
    let annotations = map.metadata.annotations.as_ref();
    let until = annotations.and_then(|all| all.get(EARLIER_UNTIL)?.parse().ok());
    Some(Bundle { text, until })
}

async fn ask<T>(
    what: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, SignerError> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    answer
        .map_err(|_| SignerError::Timeout(what))?
        .map_err(|error| SignerError::Api(what, Box::new(error)))
}

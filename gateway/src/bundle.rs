//! Keeps the `APIService`'s `caBundle` equal to our CA: by it the apiserver knows the gateway, and the CA is made when Cloche is installed,
//! so no manifest can hold it.

use std::time::Duration;

use cloche_crds::cluster::{CA_CONFIG_MAP, CA_KEY, SUBRESOURCES_GROUP, VERSION};
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::follow;

/// The name by which the apiserver notes who wrote the field.
const MANAGER: &str = "cloche-gateway";
/// How long to wait after a patch that was refused.
const PAUSE: Duration = Duration::from_secs(5);

/// Keeps it so, for ever.
pub(crate) async fn keep(client: kube::Client, namespace: String) {
    let name = format!("{VERSION}.{SUBRESOURCES_GROUP}");
    let services: Api<APIService> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut authorities = std::pin::pin!(follow::objects(maps, CA_CONFIG_MAP));
    let mut registrations = std::pin::pin!(follow::objects(services.clone(), &name));
    let (mut authority, mut registration): (Option<ConfigMap>, Option<APIService>) = (None, None);
    loop {
        // Both are streams: cancel safe. Neither ends.
        tokio::select! {
            Some(seen) = authorities.next() => authority = seen,
            Some(seen) = registrations.next() => registration = seen,
            else => return,
        }
        while let Some(patch) = patch(authority.as_ref(), registration.as_ref()) {
            let params = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            match services.patch(&name, &params, &Patch::Merge(patch)).await {
                Ok(written) => {
                    tracing::info!(name, "told the apiserver by which CA it knows the gateway");
                    registration = Some(written);
                }
                // Deleted meanwhile, which is seen above.
                Err(kube::Error::Api(status)) if status.code == 404 => break,
                Err(error) => {
                    tracing::warn!(
                        name,
                        error = &error as &dyn std::error::Error,
                        "cannot tell the apiserver by which CA it knows the gateway; trying again"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// What to change, if anything. A merge patch, since it makes no object that was deleted.
fn patch(authority: Option<&ConfigMap>, registration: Option<&APIService>) -> Option<Value> {
    let ca = authority?.data.as_ref()?.get(CA_KEY)?.as_bytes();
    let spec = registration?.spec.as_ref()?;
    let is_told = spec.ca_bundle.as_ref().is_some_and(|bundle| bundle.0 == ca);
    let bundle = ByteString(ca.to_vec());
    (!is_told && !ca.is_empty()).then(|| json!({"spec": {"caBundle": bundle}}))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIServiceSpec;

    use super::*;

    #[test]
    fn only_what_differs_is_patched() {
        let authority = ConfigMap {
            data: Some(BTreeMap::from([(CA_KEY.to_owned(), "pem".to_owned())])),
            ..ConfigMap::default()
        };
        let registration = |bundle: Option<&str>| APIService {
            spec: Some(APIServiceSpec {
                ca_bundle: bundle.map(|bundle| ByteString(bundle.into())),
                ..APIServiceSpec::default()
            }),
            ..APIService::default()
        };
        let wanted = json!({"spec": {"caBundle": "cGVt"}});
        for bundle in [None, Some("old")] {
            let patch = patch(Some(&authority), Some(&registration(bundle)));
            assert_eq!(patch.as_ref(), Some(&wanted));
        }
        assert_eq!(
            patch(Some(&authority), Some(&registration(Some("pem")))),
            None
        );
        assert_eq!(patch(Some(&authority), None), None);
        assert_eq!(patch(None, Some(&registration(None))), None);
        let empty = ConfigMap::default();
        assert_eq!(patch(Some(&empty), Some(&registration(None))), None);
    }
}

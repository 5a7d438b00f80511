//! Objects of the cluster that the gateway follows.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::front_proxy::{self, FrontProxy};

/// Keeps `current` as the cluster says, for ever. What cannot be read is told in the log; what was known before stays.
pub(crate) async fn front_proxy(
    client: kube::Client,
    current: watch::Sender<Option<Arc<FrontProxy>>>,
) {
    let maps: Api<ConfigMap> = Api::namespaced(client, front_proxy::NAMESPACE);
    let changes = objects(maps, front_proxy::NAME);
    let mut changes = std::pin::pin!(changes);
    while let Some(map) = changes.next().await {
        let data = map.and_then(|map| map.data).unwrap_or_default();
        match FrontProxy::read(&data) {
            Ok(front_proxy) => {
                current.send_replace(Some(Arc::new(front_proxy)));
            }
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "the cluster's front proxy is not known"
            ),
        }
    }
}

/// One object, again whenever it changes; `None` where there is none. Failures are told in the log and tried again, ever more slowly.
pub(crate) fn objects<K>(api: Api<K>, name: &str) -> impl futures::Stream<Item = Option<K>> + use<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let what = name.to_owned();
    watcher::watch_object(api, name)
        .default_backoff()
        .filter_map(move |change| {
            let found = match change {
                Ok(found) => Some(found),
                Err(error) => {
                    tracing::warn!(
                        object = what,
                        error = &error as &dyn std::error::Error,
                        "cannot follow an object; trying again"
                    );
                    None
                }
            };
            std::future::ready(found)
        })
}

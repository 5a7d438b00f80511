//! One image at one place, whatever kind of place: resolve it, then fetch its blobs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cloche_crds::ImageRef;
use cloche_crds::image::RegistryRef;

use super::access::Access;
use super::digest::Digest;
use super::error::Failure;
use super::local::{Layout, Rootfs, Section};
use super::manifest::{self, Blob, Document, Manifest};
use super::registry::{Registry, Repository};
use super::transfer::{Expected, blocking, receive};
use super::unpack::Compression;

/// Most indexes that lead to one another.
const NESTING_MAX: usize = 3;

/// An image whose manifest is known and verified.
pub(super) struct Found<'a> {
    /// Of the manifest for this platform.
    pub(super) digest: Digest,
    pub(super) manifest: Manifest,
    place: Place<'a>,
}

enum Place<'a> {
    Registry(Box<Repository<'a>>),
    Local(Arc<Layout>),
}

/// What a reference leads to.
pub(super) enum Resolved<'a> {
    Image(Box<Found<'a>>),
    Rootfs(Rootfs),
}

/// Finds out what `image` is. Asks the registry, or reads the local image directory `local`. Of the places to ask, `attempt` (from 0)
/// says which is the first. The image's own registry is asked by `access`, its mirrors as
/// anybody may ask them.
pub(super) async fn resolve<'a>(
    registry: &'a Registry,
    local: Option<&Path>,
    image: &ImageRef,
    access: &Access,
    attempt: u32,
) -> Result<Resolved<'a>, Failure> {
    let local = || {
        local.map(Path::to_owned).ok_or_else(|| {
            Failure::NotFound(
                "the node has no local image directory: start its agent with --images FOLDER, or name an image of a registry"
                    .to_owned(),
            )
        })
    };
    match image {
        ImageRef::Registry(reference) => pull_manifest(registry, reference, access, attempt)
            .await
            .map(Box::new)
            .map(Resolved::Image),
        ImageRef::OciLayout(reference) => {
            let (root, path) = (local()?, reference.path().as_str().to_owned());
            let tag = reference.tag().map(str::to_owned);
            let found =
                blocking(move || read_layout(Layout::open_folder(&root, &path)?, tag.as_deref()));
            found.await.map(Box::new).map(Resolved::Image)
        }
        ImageRef::OciArchive(reference) => {
            let (root, path) = (local()?, reference.path().as_str().to_owned());
            let tag = reference.tag().map(str::to_owned);
            let found =
                blocking(move || read_layout(Layout::open_archive(&root, &path)?, tag.as_deref()));
            found.await.map(Box::new).map(Resolved::Image)
        }
        ImageRef::Rootfs(path) => {
            let (root, path) = (local()?, path.as_str().to_owned());
            blocking(move || Rootfs::open(&root, &path))
                .await
                .map(Resolved::Rootfs)
        }
    }
}

/// Asks the mirrors in turn, then the registry itself: its answer is the one that counts when none has the image. A later attempt
/// begins with a later one of them, since a mirror may have the manifest and not the rest.
async fn pull_manifest<'a>(
    registry: &'a Registry,
    reference: &RegistryRef,
    access: &Access,
    attempt: u32,
) -> Result<Found<'a>, Failure> {
    let mut repositories = registry.repositories(reference, access)?;
    let first = usize::try_from(attempt).unwrap_or_default() % repositories.len().max(1);
    repositories.rotate_left(first);
    let own = repositories.len().saturating_sub(1 + first);
    let mut failure = None;
    for (index, repository) in repositories.into_iter().enumerate() {
        match pull_manifest_from(repository, reference).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                tracing::debug!(?error, "no manifest here");
                if index == own || failure.is_none() {
                    failure = Some(error);
                }
            }
        }
    }
    Err(failure.unwrap_or_else(|| Failure::Node("no registry to ask".to_owned())))
}

async fn pull_manifest_from<'a>(
    repository: Repository<'a>,
    reference: &RegistryRef,
) -> Result<Found<'a>, Failure> {
    let mut wanted = reference
        .digest()
        .map(str::parse::<Digest>)
        .transpose()
        .map_err(|error| Failure::Invalid(error.to_string()))?;
    let mut name = match (&wanted, reference.tag()) {
        (Some(digest), _) => digest.to_string(),
        (None, Some(tag)) => tag.to_owned(),
        (None, None) => "latest".to_owned(),
    };
    for _ in 0..NESTING_MAX {
        let (body, digest) = repository.manifest(&name, wanted.as_ref()).await?;
        match manifest::parse(&body)? {
            Document::Manifest(manifest) => {
                return Ok(Found {
                    digest,
                    manifest,
                    place: Place::Registry(Box::new(repository)),
                });
            }
            Document::Index(ours) => {
                name = ours.digest.to_string();
                wanted = Some(ours.digest);
            }
        }
    }
    Err(nested())
}

fn read_layout(layout: Layout, tag: Option<&str>) -> Result<Found<'static>, Failure> {
    let mut blob = layout.resolve(tag)?;
    for _ in 0..NESTING_MAX {
        let body = layout.document(&blob, "its manifest")?;
        match manifest::parse(&body)? {
            Document::Manifest(manifest) => {
                return Ok(Found {
                    digest: blob.digest,
                    manifest,
                    place: Place::Local(Arc::new(layout)),
                });
            }
            Document::Index(ours) => blob = ours,
        }
    }
    Err(nested())
}

fn nested() -> Failure {
    Failure::Invalid("its index leads to an index, again and again".to_owned())
}

impl Found<'_> {
    /// Fetches a blob into the new file `path`, verified.
    pub(super) async fn fetch(
        &self,
        blob: Blob,
        path: &Path,
        idle: Duration,
        arrived: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), Failure> {
        let expected = Expected::Blob(blob);
        match &self.place {
            Place::Registry(repository) => {
                let stream = repository.blob(&blob).await.map_err(incomplete)?;
                receive(stream, expected, path, idle, arrived).await?;
            }
            Place::Local(layout) => {
                let layout = Arc::clone(layout);
                let section = blocking(move || layout.blob(&blob.digest)).await?;
                if section.size() != blob.size {
                    return Err(Failure::mismatch(
                        "a blob",
                        &blob.digest,
                        &format!("{} bytes long instead of {}", section.size(), blob.size),
                    ));
                }
                receive(section.stream(), expected, path, idle, arrived).await?;
            }
        }
        Ok(())
    }
}

/// A manifest names blobs that its registry does not have: the image is there, but not whole.
fn incomplete(failure: Failure) -> Failure {
    match failure {
        Failure::NotFound(detail) => Failure::Pull(format!("a part of it is missing: {detail}")),
        other => other,
    }
}

/// Copies a rootfs tar into the new file `path`; returns what it is.
pub(super) async fn fetch_rootfs(
    content: Section,
    limit: u64,
    path: &Path,
    idle: Duration,
    arrived: &(dyn Fn(u64) + Send + Sync),
) -> Result<Blob, Failure> {
    receive(
        content.stream(),
        Expected::AtMost(limit),
        path,
        idle,
        arrived,
    )
    .await
}

/// The manifest that a rootfs tar would have, had it one.
pub(super) fn rootfs_layer(compression: Compression) -> Vec<super::unpack::Layer> {
    vec![super::unpack::Layer {
        compression,
        diff_id: None,
    }]
}

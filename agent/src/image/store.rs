//! The store: who wants which image, and one pull for all who want the same.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use cloche_crds::ImageRef;
use cloche_crds::sandbox::PullPolicy;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::watch;

use super::access::Access;
use super::cache::{Cache, OpenError, Staging};
use super::digest::Digest;
use super::error::{Failure, ImageError};
use super::local::Rootfs;
use super::manifest;
use super::registry::{Registries, Registry};
use super::source::{self, Found, Resolved};
use super::transfer::blocking;
use super::unpack::{self, Bounds, Job, Layer, Unpacker};
use super::{Image, ImageConfig};

/// Bounds on what an image may be and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one blob, compressed.
    pub blob: u64,
    /// Bytes of all layers, uncompressed.
    pub total: u64,
    /// Files, directories and links, and as many whiteouts. Bounds the unpacking child's memory together with `memory`.
    pub entries: u32,
    /// Directories between the root and a file.
    pub depth: usize,
    /// Address space of the unpacking child, in bytes.
    pub memory: u64,
    /// One whole pull, unpacking included.
    pub deadline: Duration,
    /// A source that gives less than 16 KiB in this time is given up.
    pub idle: Duration,
    /// How often a pull that broke off is tried again, each time beginning with the next of the mirrors.
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blob: 16 << 30,
            total: 32 << 30,
            entries: 1_000_000,
            depth: 256,
            memory: 1 << 30,
            deadline: Duration::from_mins(15),
            idle: Duration::from_secs(30),
            retries: 2,
        }
    }
}

/// Pause before a pull that broke off is tried again, doubled each time.
const RETRY: Duration = Duration::from_secs(1);
/// Images that are unpacked at the same time: each takes a processor and up to [`Limits::memory`].
const UNPACKERS: usize = 2;
/// Of the file system of the images so many hundredths stay free: records and output of sandboxes may lie on it too.
const RESERVE: u64 = 5;

/// What a store needs to know.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Where images are kept; made if missing. One file system for all of it.
    pub directory: PathBuf,
    /// Where `oci:`, `oci-archive:` and `rootfs:` paths are looked up. None: there are no such images.
    pub local_images: Option<PathBuf>,
    /// Mirrors, and registries without TLS.
    pub registries: Registries,
    /// Bounds.
    pub limits: Limits,
    /// The program that is called as `PROGRAM unpack`: this agent itself (`/proc/self/exe`).
    pub program: PathBuf,
}

/// How far a pull is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Asking what the reference means.
    #[default]
    Resolving,
    /// Fetching blobs.
    Pulling {
        /// Bytes that are here.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Making the EROFS file.
    Unpacking,
}

/// The images of this node. Clones are the same store.
#[derive(Clone, Debug)]
pub struct ImageStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cache: Arc<Cache>,
    registry: Registry,
    local_images: Option<PathBuf>,
    limits: Limits,
    unpacker: Unpacker,
    unpackers: tokio::sync::Semaphore,
    /// Pulls that someone waits for.
    flights: Mutex<HashMap<Want, Flight>>,
    /// Held while the image of a digest is made, whatever references led to it.
    making: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
}

/// What makes two pulls the same: the reference, whether the registry has to be asked, and by whom ([`Access::mark`]). Nobody gets by
/// another's user what their own could not get.
type Want = (String, bool, Digest);
type Outcome = Result<Image, ImageError>;
type Pull = BoxFuture<'static, Outcome>;

#[derive(Debug)]
struct Flight {
    /// Weak: the pull lives as long as someone waits for it, and is dropped, wherever it is, with the last one.
    pull: WeakShared<Pull>,
    progress: watch::Receiver<Progress>,
}

impl ImageStore {
    /// Opens the store; deletes what a killed agent left. Blocks on the disk: call it before serving, or off the runtime.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        if let Some(bad) = config.registries.not_loopback() {
            return Err(OpenError::Insecure(bad.to_owned()));
        }
        // TLS needs a process-wide provider. An error means that there is one already, which is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        Ok(Self {
            inner: Arc::new(Inner {
                cache: Arc::new(Cache::open(&config.directory)?),
                registry: Registry::new(config.registries, config.limits.idle),
                local_images: config.local_images,
                limits: config.limits,
                unpacker: Unpacker {
                    program: config.program,
                },
                unpackers: tokio::sync::Semaphore::new(UNPACKERS),
                flights: Mutex::default(),
                making: Mutex::default(),
            }),
        })
    }

    /// Makes sure that an image is on the node.
    ///
    /// `Always` asks the registry what the reference means today, and fetches only what is not here. `IfNotPresent` asks only where
    /// the node does not know the reference. `Never` takes what is here. Local images are looked at each time, under every policy.
    ///
    /// The image's own registry is asked by `access`. What is here is here for everybody, whoever may pull it.
    ///
    /// Calls for the same image by the same users share one pull. Cancel safe: dropping this call leaves the pull to the others; with the last one it
    /// ends, and its staging directory is removed. `progress` is set as it goes.
    pub async fn ensure(
        &self,
        image: &ImageRef,
        policy: PullPolicy,
        access: &Access,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, ImageError> {
        let reference = image.to_string();
        let is_remote = matches!(image, ImageRef::Registry(_));
        if is_remote && policy != PullPolicy::Always {
            match self.inner.known(image, &reference).await? {
                Some(known) => return Ok(known),
                None if policy == PullPolicy::Never => {
                    return Err(ImageError::NotPresent { image: reference });
                }
                None => {}
            }
        }
        let want = (reference, policy == PullPolicy::Always, access.mark());
        let (pull, mut seen) = self.join(image, access, want);
        tokio::pin!(pull);
        loop {
            // Cancel safe: a shared future and a watch lose nothing when they are dropped.
            tokio::select! {
                outcome = &mut pull => return outcome,
                Ok(()) = seen.changed() => {
                    let now = *seen.borrow_and_update();
                    progress.send_replace(now);
                }
            }
        }
    }

    /// The image `digest`, if it is on the node.
    pub async fn here(&self, digest: &Digest) -> Option<Image> {
        let (cache, digest) = (Arc::clone(&self.inner.cache), *digest);
        let found = blocking(move || Ok(cache.get(&digest, crate::clock::now().wall)));
        found.await.ok().flatten()
    }

    /// Whether [`Self::ensure`] would ask a registry. What cannot be found out is told there.
    pub async fn asks(&self, image: &ImageRef, policy: PullPolicy) -> bool {
        let is_remote = matches!(image, ImageRef::Registry(_));
        match policy {
            PullPolicy::Always => is_remote,
            PullPolicy::Never => false,
            PullPolicy::IfNotPresent => {
                let known = self.inner.known(image, &image.to_string()).await;
                is_remote && matches!(known, Ok(None))
            }
        }
    }

    /// Keeps an image from being collected, in the name of `holder` (a sandbox's id). False: it is not on the node (any more).
    /// In memory only: see the module's restart contract.
    pub fn pin(&self, digest: &Digest, holder: &str) -> bool {
        self.inner.cache.pin(digest, holder)
    }

    /// Takes a pin back; one that is not there is fine.
    pub fn unpin(&self, digest: &Digest, holder: &str) {
        self.inner.cache.unpin(digest, holder);
    }

    /// Who pins what.
    pub fn pins(&self) -> Vec<(Digest, String)> {
        self.inner.cache.pins()
    }

    /// Deletes images that are neither pinned nor in someone's hands, longest unused first, until the rest has at most `budget`
    /// bytes. Tells which are gone.
    pub async fn collect(&self, budget: u64) -> Result<Vec<Digest>, ImageError> {
        let cache = Arc::clone(&self.inner.cache);
        blocking(move || cache.collect(budget))
            .await
            .map_err(|failure| failure.of("(collection)"))
    }

    /// Joins the pull of `image`, or starts it.
    fn join(
        &self,
        image: &ImageRef,
        access: &Access,
        want: Want,
    ) -> (Shared<Pull>, watch::Receiver<Progress>) {
        let mut flights = self
            .inner
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&want)
            && let Some(pull) = flight.pull.upgrade()
            // One that has ended told what was true then, not now.
            && pull.peek().is_none()
        {
            return (pull, flight.progress.clone());
        }
        flights.retain(|_, flight| {
            flight
                .pull
                .upgrade()
                .is_some_and(|pull| pull.peek().is_none())
        });
        let (sender, progress) = watch::channel(Progress::default());
        let inner = Arc::clone(&self.inner);
        let (image, access) = (image.clone(), access.clone());
        let pull: Pull = async move { inner.pull(&image, &access, &sender).await }.boxed();
        let pull = pull.shared();
        if let Some(weak) = pull.downgrade() {
            let flight = Flight {
                pull: weak,
                progress: progress.clone(),
            };
            flights.insert(want, flight);
        }
        (pull, progress)
    }
}

impl Inner {
    /// What the node has of a registry's image, without asking anyone.
    async fn known(&self, image: &ImageRef, reference: &str) -> Result<Option<Image>, ImageError> {
        let named = match image {
            ImageRef::Registry(image) => image.digest().and_then(|digest| digest.parse().ok()),
            ImageRef::OciLayout(_) | ImageRef::OciArchive(_) | ImageRef::Rootfs(_) => None,
        };
        let reference_ = reference.to_owned();
        let cache = Arc::clone(&self.cache);
        let known = blocking(move || {
            let now = crate::clock::now().wall;
            let by_digest = named.and_then(|digest| cache.get(&digest, now));
            // A digest may be that of an index: then it is the reference that is known.
            Ok(by_digest.or_else(|| cache.get(&cache.resolve(&reference_)?, now)))
        });
        known.await.map_err(|failure| failure.of(reference))
    }

    async fn pull(
        &self,
        image: &ImageRef,
        access: &Access,
        progress: &watch::Sender<Progress>,
    ) -> Outcome {
        let reference = image.to_string();
        let seconds = self.limits.deadline.as_secs();
        let result = tokio::time::timeout(self.limits.deadline, async {
            let mut attempt = 0;
            loop {
                match self
                    .pull_once(image, access, &reference, attempt, progress)
                    .await
                {
                    Err(Failure::Pull(detail)) if attempt < self.limits.retries => {
                        tracing::warn!(image = reference, detail, "a pull broke off; trying again");
                        tokio::time::sleep(RETRY * 2_u32.saturating_pow(attempt)).await;
                        attempt += 1;
                    }
                    result => return result,
                }
            }
        });
        let result = result
            .await
            .unwrap_or_else(|_| Err(Failure::Pull(format!("not done in {seconds} s"))));
        result.map_err(|failure| failure.of(&reference))
    }

    async fn pull_once(
        &self,
        image: &ImageRef,
        access: &Access,
        reference: &str,
        attempt: u32,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, Failure> {
        let local = self.local_images.as_deref();
        match source::resolve(&self.registry, local, image, access, attempt).await? {
            Resolved::Image(found) => self.take_image(*found, reference, progress).await,
            Resolved::Rootfs(rootfs) => self.take_rootfs(rootfs, reference, progress).await,
        }
    }

    async fn take_image(
        &self,
        found: Found<'_>,
        reference: &str,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, Failure> {
        let digest = found.digest;
        let making = self.making(digest);
        let _one_at_a_time = making.lock().await;
        if let Some(image) = self.take_known(digest, reference).await? {
            return Ok(image);
        }
        for (blob, _) in &found.manifest.layers {
            self.check_blob(blob.size)?;
        }
        let blobs = found.manifest.layers.iter().map(|(blob, _)| blob.size);
        let total = blobs.fold(found.manifest.config.size, u64::saturating_add);
        if total > self.limits.total {
            return Err(Failure::Invalid(format!(
                "its layers hold more than {} bytes",
                self.limits.total
            )));
        }
        let staging = self.stage(total).await?;
        let mut done = 0;
        let config = staging.path().join("config");
        let report = |before: u64| {
            move |arrived| {
                progress.send_replace(Progress::Pulling {
                    done: before + arrived,
                    total,
                });
            }
        };
        let idle = self.limits.idle;
        found
            .fetch(found.manifest.config, &config, idle, &report(done))
            .await?;
        done += found.manifest.config.size;
        let count = found.manifest.layers.len();
        let described = blocking(move || {
            let bytes = std::fs::read(&config)
                .map_err(|error| Failure::io("read the configuration", &error))?;
            manifest::parse_configuration(&bytes, count)
        })
        .await?;
        for (index, (blob, _)) in found.manifest.layers.iter().enumerate() {
            let path = staging.path().join(unpack::blob_name(index));
            found.fetch(*blob, &path, idle, &report(done)).await?;
            done += blob.size;
        }
        crate::fault::point("image-pulled");
        let layers = found
            .manifest
            .layers
            .iter()
            .zip(described.diff_ids)
            .map(|((_, compression), diff_id)| Layer {
                compression: *compression,
                diff_id: Some(diff_id),
            })
            .collect();
        progress.send_replace(Progress::Unpacking);
        self.make(
            &staging,
            layers,
            digest,
            described.config,
            reference.to_owned(),
        )
        .await
    }

    async fn take_rootfs(
        &self,
        rootfs: Rootfs,
        reference: &str,
        progress: &watch::Sender<Progress>,
    ) -> Result<Image, Failure> {
        // Not hashed again while the file stays the same.
        let stamped = format!("{reference}#{}", rootfs.stamp);
        let cache = Arc::clone(&self.cache);
        let key = stamped.clone();
        let known = blocking(move || {
            Ok(cache
                .resolve(&key)
                .and_then(|digest| cache.get(&digest, crate::clock::now().wall)))
        });
        if let Some(image) = known.await? {
            return Ok(image);
        }
        let total = rootfs.content.size();
        self.check_blob(total)?;
        let staging = self.stage(total).await?;
        let path = staging.path().join(unpack::blob_name(0));
        let report = move |done| {
            progress.send_replace(Progress::Pulling { done, total });
        };
        let limit = self.limits.blob;
        let blob =
            source::fetch_rootfs(rootfs.content, limit, &path, self.limits.idle, &report).await?;
        let making = self.making(blob.digest);
        let _one_at_a_time = making.lock().await;
        if let Some(image) = self.take_known(blob.digest, &stamped).await? {
            return Ok(image);
        }
        progress.send_replace(Progress::Unpacking);
        let layers = source::rootfs_layer(rootfs.compression);
        self.make(
            &staging,
            layers,
            blob.digest,
            ImageConfig::default(),
            stamped,
        )
        .await
    }

    /// Turns verified blobs into an image of the cache.
    async fn make(
        &self,
        staging: &Staging,
        layers: Vec<Layer>,
        digest: Digest,
        config: ImageConfig,
        reference: String,
    ) -> Result<Image, Failure> {
        let job = Job {
            layers,
            bounds: Bounds {
                bytes: self.limits.total,
                entries: self.limits.entries,
                depth: self.limits.depth,
            },
            memory: self.limits.memory,
            cpu_seconds: self.limits.deadline.as_secs(),
        };
        // The semaphore is never closed.
        let turn = self.unpackers.acquire().await;
        let unpacked = unpack::unpack(&self.unpacker, staging.path(), &job).await?;
        drop(turn);
        if unpacked.devices > 0 {
            tracing::info!(%digest, devices = unpacked.devices, "device nodes of the image left out");
        }
        crate::fault::point("image-unpacked");
        let made = staging.path().join(unpack::OUTPUT);
        let cache = Arc::clone(&self.cache);
        blocking(move || {
            let now = crate::clock::now().wall;
            let image = cache.put(digest, &made, unpacked.size, config, now)?;
            cache.refer(&reference, digest)?;
            Ok(image)
        })
        .await
    }

    /// The image if it is here by now; then `reference` means it from now on.
    async fn take_known(&self, digest: Digest, reference: &str) -> Result<Option<Image>, Failure> {
        let (cache, reference) = (Arc::clone(&self.cache), reference.to_owned());
        blocking(move || {
            let image = cache.get(&digest, crate::clock::now().wall);
            if image.is_some() {
                cache.refer(&reference, digest)?;
            }
            Ok(image)
        })
        .await
    }

    /// A staging directory with room for `bytes`.
    async fn stage(&self, bytes: u64) -> Result<Staging, Failure> {
        let cache = Arc::clone(&self.cache);
        blocking(move || cache.stage(bytes, RESERVE)).await
    }

    fn check_blob(&self, size: u64) -> Result<(), Failure> {
        if size > self.limits.blob {
            return Err(Failure::Invalid(format!(
                "a blob of it has {size} bytes; at most {} are allowed",
                self.limits.blob
            )));
        }
        Ok(())
    }

    fn making(&self, digest: Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        making.retain(|_, lock| lock.strong_count() > 0);
        let lock = making
            .get(&digest)
            .and_then(Weak::upgrade)
            .unwrap_or_default();
        making.insert(digest, Arc::downgrade(&lock));
        lock
    }
}

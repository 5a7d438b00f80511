//! Bounds and defaults of a spec. One place for the rules, the CRD's schema and the documentation.

use crate::quantity::{Bytes, Millicores};

/// Longest `metadata.name` and `hostname`, in bytes: a DNS label (RFC 1123).
pub const LABEL: usize = 63;
/// Most entries of `command` and of `args`, each.
pub const ARGUMENTS: usize = 1024;
/// Longest entry of `command` and of `args` that the schema takes, in characters. The rules count bytes, of all together.
pub const ARGUMENT_CHARACTERS: usize = PROCESS_BYTES;
/// Most bytes of `command`, `args` and `env` together, NUL ends included. They travel to the guest in one frame of 256 KiB
/// together with what the image adds; Linux takes no argument above this either (`MAX_ARG_STRLEN`).
pub const PROCESS_BYTES: usize = 128 * 1024;
/// Most entries of `env`.
pub const ENV: usize = 512;
/// Longest name of an environment variable, in bytes.
pub const ENV_NAME: usize = 256;
/// Longest value of an environment variable, in bytes.
pub const ENV_VALUE: usize = 32 * 1024;
/// Most entries of `imagePullSecrets`.
pub const PULL_SECRETS: usize = 16;
/// Longest name of a Secret or `ConfigMap`, and longest key in one, each in bytes (Kubernetes: a DNS subdomain, `IsConfigMapKey`).
pub const OBJECT_NAME: usize = 253;
/// Longest path, in bytes: one less than Linux' `PATH_MAX`, which counts the NUL.
pub const PATH: usize = 4095;

/// Least `limits.cpu`: Linux enforces no quota below 1 ms in a period of 100 ms (`min_cfs_quota_period`).
pub const LEAST_CPU_LIMIT: Millicores = Millicores(10);
/// Most of any cpu quantity: 1024 cores.
pub const MOST_CPU: Millicores = Millicores(1_024_000);
/// `limits.cpu` where there is none.
pub const DEFAULT_CPU: Millicores = Millicores(1000);
/// Least `limits.memory`.
pub const LEAST_MEMORY_LIMIT: Bytes = Bytes(32 << 20);
/// Most of any memory quantity: 64 TiB.
pub const MOST_MEMORY: Bytes = Bytes(64 << 40);
/// `limits.memory` where there is none.
pub const DEFAULT_MEMORY: Bytes = Bytes(512 << 20);
/// Least `limits.ephemeral-storage`.
pub const LEAST_DISK_LIMIT: Bytes = Bytes(1 << 20);
/// Most of any ephemeral-storage quantity: 64 TiB.
pub const MOST_DISK: Bytes = Bytes(64 << 40);
/// `limits.ephemeral-storage` where there is none.
pub const DEFAULT_DISK: Bytes = Bytes(2 << 30);
/// Most `pids`: Linux' `pid_max` of a machine with few processors. A sandbox that needs more than all other programs of such
/// a node together is a mistake.
pub const MOST_PIDS: i64 = 32_768;
/// `pids` where there is none.
pub const DEFAULT_PIDS: i64 = 1024;

/// Most user or group id: one less than 32 bits hold, which means "unchanged" to the kernel.
pub const MOST_ID: i64 = u32::MAX as i64 - 1;
/// Most entries of `supplementalGroups`.
pub const SUPPLEMENTAL_GROUPS: usize = 64;
/// Most entries of `writablePaths`.
pub const WRITABLE_PATHS: usize = 32;

/// Longest DNS name before the `/` of a label's key, in bytes.
pub const LABEL_PREFIX: usize = 253;
/// Most labels in `nodeSelector`.
pub const NODE_SELECTOR: usize = 16;
/// Most entries of `tolerations`.
pub const TOLERATIONS: usize = 32;

/// Most `ttlSeconds`, `scheduleTimeoutSeconds` and `ttlSecondsAfterFinished`: 366 days.
pub const MOST_TTL_SECONDS: i64 = 366 * 24 * 60 * 60;
/// Most `startTimeoutSeconds`: a day.
pub const MOST_START_TIMEOUT_SECONDS: i64 = 24 * 60 * 60;
/// `startTimeoutSeconds` where there is none.
pub const DEFAULT_START_TIMEOUT_SECONDS: i64 = 300;
/// Most `terminationGracePeriodSeconds`: an hour.
pub const MOST_GRACE_SECONDS: i64 = 60 * 60;
/// `terminationGracePeriodSeconds` where there is none.
pub const DEFAULT_GRACE_SECONDS: i64 = 5;

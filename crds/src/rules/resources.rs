//! What a sandbox may use.

use std::fmt::Display;

use super::Violation;
use crate::limits::{
    DEFAULT_CPU, DEFAULT_DISK, DEFAULT_MEMORY, LEAST_CPU_LIMIT, LEAST_DISK_LIMIT,
    LEAST_MEMORY_LIMIT, MOST_CPU, MOST_DISK, MOST_MEMORY, MOST_PIDS,
};
use crate::quantity::{Bytes, Millicores, Quantity, QuantityError};
use crate::sandbox::{ResourceList, Sandbox};

const CPU_LIMIT: &str = "spec.resources.limits.cpu";
const CPU_REQUEST: &str = "spec.resources.requests.cpu";
const MEMORY_LIMIT: &str = "spec.resources.limits.memory";
const MEMORY_REQUEST: &str = "spec.resources.requests.memory";
const DISK_LIMIT: &str = "spec.resources.limits.ephemeral-storage";
const DISK_REQUEST: &str = "spec.resources.requests.ephemeral-storage";

fn limits(sandbox: &Sandbox) -> Option<&ResourceList> {
    sandbox.spec.resources.as_ref()?.limits.as_ref()
}

fn requests(sandbox: &Sandbox) -> Option<&ResourceList> {
    sandbox.spec.resources.as_ref()?.requests.as_ref()
}

/// Cpu quantities can be read and enforced.
pub(super) fn cpu(sandbox: &Sandbox) -> Vec<Violation> {
    let limit = limits(sandbox).and_then(|list| list.cpu.as_ref());
    let request = requests(sandbox).and_then(|list| list.cpu.as_ref());
    [
        within(
            CPU_LIMIT,
            limit,
            Quantity::millicores,
            LEAST_CPU_LIMIT,
            MOST_CPU,
        ),
        within(
            CPU_REQUEST,
            request,
            Quantity::millicores,
            Millicores(1),
            MOST_CPU,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Memory quantities can be read, and a sandbox fits into its limit.
pub(super) fn memory(sandbox: &Sandbox) -> Vec<Violation> {
    let of = |list: Option<&'_ ResourceList>| list?.memory.clone();
    let (limit, request) = (of(limits(sandbox)), of(requests(sandbox)));
    bytes(
        (MEMORY_LIMIT, limit, LEAST_MEMORY_LIMIT),
        (MEMORY_REQUEST, request),
        MOST_MEMORY,
    )
}

/// Quantities of disk can be read, and something can be written at all.
pub(super) fn ephemeral_storage(sandbox: &Sandbox) -> Vec<Violation> {
    let of = |list: Option<&'_ ResourceList>| list?.ephemeral_storage.clone();
    let (limit, request) = (of(limits(sandbox)), of(requests(sandbox)));
    bytes(
        (DISK_LIMIT, limit, LEAST_DISK_LIMIT),
        (DISK_REQUEST, request),
        MOST_DISK,
    )
}

fn bytes(
    (limit_path, limit, least): (&str, Option<Quantity>, Bytes),
    (request_path, request): (&str, Option<Quantity>),
    most: Bytes,
) -> Vec<Violation> {
    let limit = within(limit_path, limit.as_ref(), Quantity::bytes, least, most);
    let request = within(
        request_path,
        request.as_ref(),
        Quantity::bytes,
        Bytes(1),
        most,
    );
    limit.into_iter().chain(request).collect()
}

/// No request is above its limit, also where the limit is the default. What cannot be read is left to the other rules.
pub(super) fn requests_within_limits(sandbox: &Sandbox) -> Vec<Violation> {
    let (limits, requests) = (limits(sandbox), requests(sandbox));
    let cpu = above(
        CPU_REQUEST,
        requests.and_then(|list| list.cpu.as_ref()),
        limits.and_then(|list| list.cpu.as_ref()),
        Quantity::millicores,
        DEFAULT_CPU,
    );
    let memory = above(
        MEMORY_REQUEST,
        requests.and_then(|list| list.memory.as_ref()),
        limits.and_then(|list| list.memory.as_ref()),
        Quantity::bytes,
        DEFAULT_MEMORY,
    );
    let disk = above(
        DISK_REQUEST,
        requests.and_then(|list| list.ephemeral_storage.as_ref()),
        limits.and_then(|list| list.ephemeral_storage.as_ref()),
        Quantity::bytes,
        DEFAULT_DISK,
    );
    [cpu, memory, disk].into_iter().flatten().collect()
}

/// `spec.resources.pids` is a number that a node can give.
pub(super) fn pids(sandbox: &Sandbox) -> Vec<Violation> {
    let pids = sandbox
        .spec
        .resources
        .as_ref()
        .and_then(|resources| resources.pids);
    match pids {
        Some(pids) if !(1..=MOST_PIDS).contains(&pids) => {
            let message = format!("is {pids}: write a number from 1 to {MOST_PIDS}");
            vec![Violation::new("spec.resources.pids", message)]
        }
        Some(_) | None => Vec::new(),
    }
}

fn within<T: Copy + Ord + Display>(
    path: &str,
    quantity: Option<&Quantity>,
    read: fn(&Quantity) -> Result<T, QuantityError>,
    least: T,
    most: T,
) -> Option<Violation> {
    let quantity = quantity?;
    let message = match read(quantity) {
        Err(error) => error.to_string(),
        Ok(value) if value < least || value > most => {
            format!("is {quantity}: write {least} to {most}, or leave it out for the default")
        }
        Ok(_) => return None,
    };
    Some(Violation::new(path, message))
}

fn above<T: Copy + Ord + Display>(
    path: &str,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
    read: fn(&Quantity) -> Result<T, QuantityError>,
    default: T,
) -> Option<Violation> {
    let request = request?;
    let value = read(request).ok()?;
    let (limit, origin) = match limit {
        Some(limit) => (read(limit).ok()?, ""),
        None => (default, ", the default"),
    };
    (value > limit).then(|| {
        let message = format!(
            "is {request}, more than the limit of {limit}{origin}: lower it, or raise the limit"
        );
        Violation::new(path, message)
    })
}

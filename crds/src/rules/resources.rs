//! What a sandbox may use.

use std::fmt::Display;

use super::Violation;
use crate::limits::{
    DEFAULT_CPU, DEFAULT_MEMORY, LEAST_CPU_LIMIT, LEAST_MEMORY_LIMIT, MOST_CPU, MOST_MEMORY,
    MOST_PIDS,
};
use crate::quantity::{Bytes, Millicores, Quantity, QuantityError};
use crate::sandbox::{ResourceList, Sandbox};

const CPU_LIMIT: &str = "spec.resources.limits.cpu";
const CPU_REQUEST: &str = "spec.resources.requests.cpu";
const MEMORY_LIMIT: &str = "spec.resources.limits.memory";
const MEMORY_REQUEST: &str = "spec.resources.requests.memory";

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
    let limit = limits(sandbox).and_then(|list| list.memory.as_ref());
    let request = requests(sandbox).and_then(|list| list.memory.as_ref());
    [
        within(
            MEMORY_LIMIT,
            limit,
            Quantity::bytes,
            LEAST_MEMORY_LIMIT,
            MOST_MEMORY,
        ),
        within(
            MEMORY_REQUEST,
            request,
            Quantity::bytes,
            Bytes(1),
            MOST_MEMORY,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
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
    [cpu, memory].into_iter().flatten().collect()
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

//! What can change while a sandbox exists.

use std::collections::BTreeMap;

use super::Violation;
use crate::sandbox::{EnvVar, PullSecret, Sandbox, SandboxSpec, SecurityContext};

/// Everything in `new` that cannot follow `old`: all of the spec but `lifecycle`.
///
/// Presence counts as well as value, compared on the parent: a field that is taken out and put back with another value in a
/// second step would pass a rule that looks at the field alone.
pub fn check_update(old: &Sandbox, new: &Sandbox) -> Vec<Violation> {
    let SandboxSpec {
        image,
        image_pull_policy,
        image_pull_secrets,
        command,
        args,
        env,
        working_dir,
        shell,
        hostname,
        resources,
        security_context,
        lifecycle: _,
        node_selector,
        tolerations,
    } = &old.spec;
    let new = &new.spec;
    [
        ("spec.image", *image == new.image),
        ("spec.imagePullPolicy", *image_pull_policy == new.image_pull_policy),
        (
            "spec.imagePullSecrets",
            sorted(image_pull_secrets.as_ref()) == sorted(new.image_pull_secrets.as_ref()),
        ),
        ("spec.command", *command == new.command),
        ("spec.args", *args == new.args),
        ("spec.env", by_name(env.as_ref()) == by_name(new.env.as_ref())),
        ("spec.workingDir", *working_dir == new.working_dir),
        ("spec.shell", *shell == new.shell),
        ("spec.hostname", *hostname == new.hostname),
        ("spec.resources", *resources == new.resources),
        (
            "spec.securityContext",
            by_set(security_context.as_ref()) == by_set(new.security_context.as_ref()),
        ),
        ("spec.nodeSelector", *node_selector == new.node_selector),
        ("spec.tolerations", *tolerations == new.tolerations),
    ]
    .into_iter()
    .filter(|(_, same)| !same)
    .map(|(path, _)| {
        Violation::new(
            path,
            "cannot change while the sandbox exists: put it back, or delete the sandbox and create it anew",
        )
    })
    .collect()
}

/// The apiserver too compares this list by name, whatever its order.
fn by_name(env: Option<&Vec<EnvVar>>) -> Option<BTreeMap<&str, &EnvVar>> {
    let variables = env?.iter();
    Some(
        variables
            .map(|variable| (variable.name.as_str(), variable))
            .collect(),
    )
}

/// And this one.
fn sorted(secrets: Option<&Vec<PullSecret>>) -> Option<Vec<PullSecret>> {
    let mut secrets = secrets?.clone();
    secrets.sort_unstable();
    Some(secrets)
}

/// And these lists as sets.
fn by_set(context: Option<&SecurityContext>) -> Option<SecurityContext> {
    let mut context = context?.clone();
    if let Some(capabilities) = &mut context.capabilities {
        capabilities.sort_unstable();
    }
    if let Some(paths) = &mut context.writable_paths {
        paths.sort_unstable();
    }
    Some(context)
}

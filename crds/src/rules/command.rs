//! What runs, and where.

use super::placement::is_subdomain;
use super::{Violation, excerpt, no_object_name};
use crate::image::ImageRef;
use crate::limits::{ARGUMENTS, PATH, PULL_SECRETS};
use crate::sandbox::{PullSecret, Sandbox};

/// `spec.image` is an image reference.
pub(super) fn image(sandbox: &Sandbox) -> Vec<Violation> {
    match sandbox.spec.image.parse::<ImageRef>() {
        Ok(_) => Vec::new(),
        Err(error) => vec![Violation::new("spec.image", error.to_string())],
    }
}

/// `spec.imagePullPolicy` is of an image that can be pulled.
pub(super) fn pull_policy(sandbox: &Sandbox) -> Vec<Violation> {
    if sandbox.spec.image_pull_policy.is_none() || !is_local(sandbox) {
        return Vec::new();
    }
    let message = "means nothing for a local image, which is looked at whenever a sandbox starts: leave it out";
    vec![Violation::new("spec.imagePullPolicy", message)]
}

/// `spec.imagePullSecrets` is a bounded list of objects that can exist, each once, for an image that can be pulled.
pub(super) fn pull_secrets(sandbox: &Sandbox) -> Vec<Violation> {
    const PATH: &str = "spec.imagePullSecrets";
    let Some(secrets) = &sandbox.spec.image_pull_secrets else {
        return Vec::new();
    };
    let mut broken = Vec::new();
    if secrets.len() > PULL_SECRETS {
        let message = format!(
            "has {} entries; at most {PULL_SECRETS} are allowed",
            secrets.len()
        );
        broken.push(Violation::new(PATH, message));
    }
    if is_local(sandbox) {
        let message =
            "means nothing for a local image, which no registry is asked for: leave it out";
        broken.push(Violation::new(PATH, message));
    }
    for (index, PullSecret { name }) in secrets.iter().enumerate() {
        let path = format!("{PATH}[{index}].name");
        if !is_subdomain(name) {
            broken.push(Violation::new(path, no_object_name(name)));
        } else if secrets[..index].iter().any(|other| other.name == *name) {
            let message = format!("{} stands there already: keep one", excerpt(name));
            broken.push(Violation::new(path, message));
        }
    }
    broken
}

fn is_local(sandbox: &Sandbox) -> bool {
    matches!(
        sandbox.spec.image.parse(),
        Ok(ImageRef::OciLayout(_) | ImageRef::OciArchive(_) | ImageRef::Rootfs(_))
    )
}

/// `spec.command` begins with a program and is of what Linux can take. Empty means absent, as in a pod.
pub(super) fn command(sandbox: &Sandbox) -> Vec<Violation> {
    let command = sandbox.spec.command.as_deref().unwrap_or(&[]);
    let mut broken = arguments("spec.command", command);
    if command.first().is_some_and(String::is_empty) {
        broken.push(Violation::new(
            "spec.command[0]",
            "is empty: name the program, or leave command out",
        ));
    }
    broken
}

/// `spec.args` is of what Linux can take. Without a command they go to the image's entrypoint.
pub(super) fn args(sandbox: &Sandbox) -> Vec<Violation> {
    arguments("spec.args", sandbox.spec.args.as_deref().unwrap_or(&[]))
}

/// `spec.workingDir` is an absolute path.
pub(super) fn working_dir(sandbox: &Sandbox) -> Vec<Violation> {
    let path = sandbox.spec.working_dir.as_deref();
    path.and_then(|path| absolute("spec.workingDir", path))
        .into_iter()
        .collect()
}

/// `spec.shell` is the absolute path of a file.
pub(super) fn shell(sandbox: &Sandbox) -> Vec<Violation> {
    let Some(path) = sandbox.spec.shell.as_deref() else {
        return Vec::new();
    };
    let mut broken: Vec<_> = absolute("spec.shell", path).into_iter().collect();
    if broken.is_empty() && path.ends_with('/') {
        broken.push(Violation::new(
            "spec.shell",
            "ends with /: name a program, as /bin/sh",
        ));
    }
    broken
}

fn arguments(path: &str, arguments: &[String]) -> Vec<Violation> {
    let mut broken = Vec::new();
    if arguments.len() > ARGUMENTS {
        let message = format!(
            "has {} entries; at most {ARGUMENTS} are allowed",
            arguments.len()
        );
        broken.push(Violation::new(path, message));
    }
    for (index, argument) in arguments.iter().enumerate() {
        if argument.contains('\0') {
            let message = "contains a NUL character, which no argument can: take it out";
            broken.push(Violation::new(format!("{path}[{index}]"), message));
        }
    }
    broken
}

fn absolute(path: &str, text: &str) -> Option<Violation> {
    let message = if text.len() > PATH {
        format!("has {} bytes; at most {PATH} are allowed", text.len())
    } else if text.contains('\0') {
        "contains a NUL character, which no path can: take it out".to_owned()
    } else if text.starts_with('/') {
        return None;
    } else {
        format!("{} is not an absolute path: begin it with /", excerpt(text))
    };
    Some(Violation::new(path, message))
}

//! `create`.

use std::io::Read as _;
use std::path::Path;

use jiff::Timestamp;

use super::{manifest, print};
use crate::args::{Create, DryRun};
use crate::backend::Backend;
use crate::error::{self, Error};
use crate::object::{Object, full_name, list, written};
use crate::request;

/// Most that is read of a manifest, in bytes: more than an apiserver takes of any number of sandboxes that a person writes.
const MANIFEST: u64 = 16 << 20;

/// Makes sandboxes; one that fails does not keep the others. `namespace`: what the user said.
pub(super) async fn create(
    backend: &Backend,
    args: &Create,
    namespace: Option<&str>,
) -> Result<(), Error> {
    let wanted = match (&args.name, &args.image) {
        (Some(name), Some(image)) => {
            let sandbox = request::sandbox(name, image, &args.shape, &args.argv)?;
            vec![manifest(&sandbox, name)?]
        }
        _ => read(&args.files)?,
    };
    let mut failed = 0;
    let mut made = Vec::new();
    for object in &wanted {
        match one(backend, args, object, namespace).await {
            Ok(object) if args.output.is_some() => made.push(object),
            Ok(object) => {
                let how = match args.dry_run {
                    None => "created",
                    Some(DryRun::Client) => "created (dry run)",
                    Some(DryRun::Server) => "created (server dry run)",
                };
                print(&format!("{} {how}\n", full_name(&object.name())))?;
            }
            Err(problem) if wanted.len() == 1 => return Err(problem),
            Err(problem) => {
                failed += 1;
                error::print(&problem);
            }
        }
    }
    if let Some(output) = args.output
        && !made.is_empty()
    {
        let text = list::print(
            &made,
            Some(output.into()),
            list::Form {
                one: wanted.len() == 1,
                namespaces: false,
            },
            Timestamp::now(),
        );
        print(&text.map_err(|message| Error::Wrong {
            operation: "print sandboxes".to_owned(),
            message,
        })?)?;
    }
    if failed > 0 {
        return Err(Error::Some {
            failed,
            all: wanted.len(),
            what: "made",
        });
    }
    Ok(())
}

async fn one(
    backend: &Backend,
    args: &Create,
    object: &Object,
    namespace: Option<&str>,
) -> Result<Object, Error> {
    let own = object.word("/metadata/namespace");
    let backend = match (&own, namespace) {
        (Some(own), Some(said)) if own != said => {
            return Err(Error::Usage(format!(
                "sandbox {} says that it is of namespace {own}, and -n says {said}: make them agree",
                object.name()
            )));
        }
        (Some(own), _) => &backend.in_namespace(own)?,
        (None, _) => backend,
    };
    match args.dry_run {
        Some(DryRun::Client) => Ok(object.clone()),
        Some(DryRun::Server) => backend.check(object).await,
        None => {
            let made = backend.create(object).await?;
            Ok(made.unwrap_or_else(|| object.clone()))
        }
    }
}

fn read(files: &[std::path::PathBuf]) -> Result<Vec<Object>, Error> {
    let mut objects = Vec::new();
    for path in files {
        let wrong = |message: String| Error::Manifest {
            path: path.clone(),
            message,
        };
        let text = text(path).map_err(|problem| wrong(problem.to_string()))?;
        let found = written::read(&text).map_err(wrong)?;
        objects.extend(found);
    }
    Ok(objects)
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let source: &mut dyn std::io::Read = if path == Path::new("-") {
        &mut std::io::stdin().lock()
    } else {
        &mut std::fs::File::open(path)?
    };
    source.take(MANIFEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MANIFEST {
        return Err(std::io::Error::other(format!(
            "it has more than {MANIFEST} bytes"
        )));
    }
    Ok(text)
}

//! Files of the cgroup file system: whole values, written, read back and compared.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::CgroupError;

fn failed(operation: impl Into<String>, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let (operation, path) = (operation.into(), path.to_owned());
    move |source| CgroupError::File {
        operation,
        path,
        source,
    }
}

/// Writes `value` in one call, as the kernel wants it. The file must exist: the kernel makes them, nobody else.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(failed(format!("write {value:?} to"), path))
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("read", path))
}

/// Reads a file that a kernel or a hierarchy may lack; None if the file, or its group, is not there.
pub(super) fn read_if_there(path: &Path) -> Result<Option<String>, CgroupError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Writes `value` and fails unless the file then holds `value`.
pub(super) fn hold(path: &Path, value: &str) -> Result<(), CgroupError> {
    write(path, value)?;
    expect(path, value)
}

/// Fails unless the file holds `wanted`.
pub(super) fn expect(path: &Path, wanted: &str) -> Result<(), CgroupError> {
    let found = read(path)?;
    if found.trim_end() == wanted {
        return Ok(());
    }
    Err(CgroupError::NotHeld {
        path: path.to_owned(),
        wanted: wanted.to_owned(),
        found: found.trim_end().to_owned(),
    })
}

/// The number in a file that holds one.
pub(super) fn number(path: &Path) -> Result<u64, CgroupError> {
    let text = read(path)?;
    text.trim_end().parse().map_err(|_| malformed(path, &text))
}

/// The number after `key` in a file of `KEY NUMBER` lines. A missing key is an error: an absent counter must not read as zero.
pub(super) fn keyed(path: &Path, key: &str) -> Result<u64, CgroupError> {
    let text = read(path)?;
    find(&text, key).ok_or_else(|| malformed(path, &format!("no {key:?} in {text:?}")))
}

/// Pure part of [`keyed`], for files of which several keys are wanted.
pub(super) fn find(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
}

/// An error that says what a kernel file holds.
pub(super) fn malformed(path: &Path, text: &str) -> CgroupError {
    failed("understand", path)(io::Error::new(
        io::ErrorKind::InvalidData,
        text.chars().take(200).collect::<String>(),
    ))
}

/// Makes a group; true if it was not there before. Something else of that name (`tasks` is a file) is an error.
pub(super) fn make(path: &Path) -> Result<bool, CgroupError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(failed("make", path)(error)),
    }
}

/// Removes an empty group; gone already is fine.
pub(super) fn remove(path: &Path) -> Result<(), CgroupError> {
    match fs::remove_dir(path) {
        Err(error) if !is_gone(&error) => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Names of the groups directly below `path`; none if it is not there.
pub(super) fn children(path: &Path) -> Result<Vec<String>, CgroupError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", path)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => break,
            Err(error) => return Err(failed("list", path)(error)),
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// `path` and all groups below it, children before their parents.
pub(super) fn subtree(path: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut found = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        for child in children(&next)? {
            open.push(next.join(child));
        }
        found.push(next);
    }
    found.reverse();
    Ok(found)
}

/// A group that is being removed answers ENODEV where it answered ENOENT before.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ENODEV)
}

//! Names and paths of one instance.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// `sun_path` of unix(7), without its final zero.
const MAX_SOCKET_PATH: usize = 107;

/// The longest name. It stands twice in the socket's path.
const MAX_NAME: usize = 36;

/// The name of an instance: 1 to 36 (a UUID fits) of `a-z`, `0-9` and `-`, not beginning with `-`. It is runsc's container id, the name of
/// its control group and of its directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstanceName(String);

/// A name or a place that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The name breaks the rule of [`InstanceName`].
    #[error(
        "instance name {0:?} is not 1 to {MAX_NAME} of a-z, 0-9 and -, beginning with a letter or digit"
    )]
    Name(String),
    /// runsc would put its control socket somewhere else.
    #[error(
        "the control socket {0} needs more than {MAX_SOCKET_PATH} bytes: use a shorter run directory"
    )]
    TooLong(PathBuf),
    /// runsc needs an absolute path.
    #[error("the run directory {0} is not absolute")]
    Relative(PathBuf),
}

impl TryFrom<String> for InstanceName {
    type Error = PlaceError;

    fn try_from(name: String) -> Result<Self, PlaceError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty()
            || name.len() > MAX_NAME
            || name.starts_with('-')
            || !name.bytes().all(allowed)
        {
            return Err(PlaceError::Name(name));
        }
        Ok(Self(name))
    }
}

impl From<InstanceName> for String {
    fn from(name: InstanceName) -> Self {
        name.0
    }
}

impl InstanceName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where an instance lives: `RUN/NAME/`, in a tmpfs (`/run/cloche/i`).
///
/// That it is a tmpfs bounds what a sentry can do to the node: its panic log is the one file that it may write to, and pages
/// of a tmpfs are charged to the group of who wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstancePaths {
    name: InstanceName,
    home: PathBuf,
}

impl InstancePaths {
    /// Below the run directory `run`, which must be absolute and short: the socket's path has a limit.
    pub fn new(run: &Path, name: InstanceName) -> Result<Self, PlaceError> {
        if !run.is_absolute() {
            return Err(PlaceError::Relative(run.to_owned()));
        }
        let home = run.join(name.as_str());
        let paths = Self { name, home };
        let socket = paths.socket();
        // runsc falls back to /var/run, /run and /tmp when it cannot bind (`createControlSocket`, runsc/sandbox/sandbox.go).
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(PlaceError::TooLong(socket));
        }
        Ok(paths)
    }

    /// The instance.
    pub fn name(&self) -> &InstanceName {
        &self.name
    }

    /// Everything of the instance that is not in the ledger: removing it removes all.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// runsc's state directory, this instance's alone.
    pub fn root(&self) -> PathBuf {
        self.home.join("r")
    }

    /// Holds `config.json`.
    pub fn bundle(&self) -> PathBuf {
        self.home.join("bundle")
    }

    /// Where the sentry's panic log is.
    pub fn panic(&self) -> PathBuf {
        self.home.join("panic")
    }

    /// The sentry's control socket.
    pub fn socket(&self) -> PathBuf {
        self.root().join(format!("runsc-{}.sock", self.name))
    }

    /// What `runsc create` wrote of the sandbox (`buildPath`, `runsc/container/state_file.go`).
    pub fn state_file(&self) -> PathBuf {
        self.root()
            .join(format!("{0}_sandbox:{0}.state", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<InstanceName, PlaceError> {
        InstanceName::try_from(text.to_owned())
    }

    #[test]
    fn names_are_safe_as_file_group_and_argument() {
        for good in ["a", "0", "i-7f3a", &"x".repeat(MAX_NAME)] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            "A",
            "a/b",
            "..",
            "a.b",
            "a b",
            "a:b",
            "ä",
            "a\n",
            &"x".repeat(MAX_NAME + 1),
        ] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_socket_that_runsc_would_put_elsewhere_is_refused() {
        let longest = name(&"x".repeat(MAX_NAME)).expect("valid");
        let paths = InstancePaths::new(Path::new("/run/cloche/i"), longest.clone()).expect("fits");
        assert!(paths.socket().as_os_str().len() <= MAX_SOCKET_PATH);
        let deep = format!("/{}", "d".repeat(60));
        assert!(matches!(
            InstancePaths::new(Path::new(&deep), longest.clone()),
            Err(PlaceError::TooLong(_))
        ));
        assert!(matches!(
            InstancePaths::new(Path::new("run"), longest),
            Err(PlaceError::Relative(_))
        ));
    }
}

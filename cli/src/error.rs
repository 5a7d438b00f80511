//! What can go wrong, as the user reads it: one line that says what happened, to what, and what to do.

use std::io;
use std::path::PathBuf;

use crate::backend::Refusal;
use crate::object::text::plain;

/// Why a command of this program was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No kubeconfig, no pod, no `--standalone`.
    #[error(
        "no cluster and no agent given: there is no kubeconfig (--kubeconfig, KUBECONFIG, ~/.kube/config); for an agent alone pass --standalone SOCKET or set CLOCHE_STANDALONE"
    )]
    NoCluster,
    /// A part of a kubeconfig was named where there is none.
    #[error(
        "--context, --cluster and --user choose from a kubeconfig, and there is none: pass --kubeconfig or set KUBECONFIG"
    )]
    NoKubeconfig,
    /// The kubeconfig does not say which cluster.
    #[error(
        "the kubeconfig has no current context: pass --context (`kubectl config get-contexts` lists them)"
    )]
    NoContext,
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig: {0}")]
    Kubeconfig(String),
    /// The cluster is behind a proxy of another kind.
    #[error(
        "cannot use the proxy {0} (proxy-url of the kubeconfig, or HTTPS_PROXY): only http:// is supported"
    )]
    Proxy(String),
    /// There are no credentials to use.
    #[error("cannot log in to the cluster at {server}: {message}")]
    Credentials {
        /// Its address.
        server: String,
        /// Why.
        message: String,
    },
    /// The cluster could not be connected to.
    #[error(
        "cannot reach the cluster at {server}: {message}; is it up, and is this the right --context?"
    )]
    Unreached {
        /// Its address.
        server: String,
        /// Why.
        message: String,
    },
    /// The apiserver knows of a gateway and cannot reach it.
    #[error(
        "no gateway of Cloche answers the apiserver ({0}): see `kubectl get apiservice v1alpha1.subresources.cloche.dev`"
    )]
    Gateway(String),
    /// The socket could not be connected to.
    #[error("cannot reach the agent at {}: {source}; {hint}", socket.display())]
    Connect {
        /// The agent's socket.
        socket: PathBuf,
        /// What to do.
        hint: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The connection was refused by the other side's HTTP/2.
    #[error("cannot talk to {}: {message}; is it the socket of `cloche-agent standalone`?", socket.display())]
    Protocol {
        /// The agent's socket.
        socket: PathBuf,
        /// Why.
        message: String,
    },
    /// The other side said no.
    #[error("cannot {operation}: {refusal}")]
    Refused {
        /// What was asked for: verb and object.
        operation: String,
        /// What the other side said.
        refusal: Refusal,
    },
    /// The way to the other side broke: it may have been done or not.
    #[error("cannot {operation}: {message}")]
    Unanswered {
        /// What was asked for: verb and object.
        operation: String,
        /// How it broke.
        message: String,
    },
    /// The other side went away and did not come back.
    #[error("cannot {operation}: no answer for {seconds} s ({last}); {left}")]
    Lost {
        /// What was being done: verb and object.
        operation: String,
        /// How long it was tried.
        seconds: u64,
        /// How the last attempt ended.
        last: String,
        /// What became of the command, and how to get back to it.
        left: String,
    },
    /// The other side broke the protocol; bytes would be missing or doubled.
    #[error("cannot {operation}: a wrong answer: {message}")]
    Wrong {
        /// What was being done: verb and object.
        operation: String,
        /// What is wrong.
        message: String,
    },
    /// A file holds no sandboxes.
    #[error("cannot read manifests from {}: {message}", path.display())]
    Manifest {
        /// The file; `-` is standard input.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// Arguments that fit their syntax and make no sense.
    #[error("{0}")]
    Usage(String),
    /// A sandbox ended, or is not there, and so what was asked for cannot come.
    #[error("{0}")]
    Unreachable(String),
    /// `wait` waited long enough.
    #[error("timed out after {seconds} s waiting for {state} of sandbox {name}; it is now {now}")]
    TimedOut {
        /// Name of the sandbox.
        name: String,
        /// What was waited for.
        state: String,
        /// How long.
        seconds: u64,
        /// What is so instead.
        now: String,
    },
    /// An own stream could not be written.
    #[error("cannot write to {stream}: {source}")]
    Write {
        /// `standard output` or `standard error`.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The terminal could not be set up.
    #[error("cannot {operation} the terminal: {source}")]
    Terminal {
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Randomness for a name could not be read.
    #[error("cannot read /dev/urandom: {0}")]
    Random(#[source] io::Error),
    /// The machine gave no runtime.
    #[error("cannot start: {0}")]
    Runtime(#[source] io::Error),
    /// Some of several sandboxes failed; each was told.
    #[error("{failed} of {all} sandboxes could not be {what}")]
    Some {
        /// What was tried.
        what: &'static str,
        /// How many.
        failed: usize,
        /// Of how many.
        all: usize,
    },
}

impl Error {
    /// Whether nobody reads standard output any more: not worth a message.
    pub(crate) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Write { stream: "standard output", source } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Why writing to standard output failed.
    pub(crate) fn stdout(source: io::Error) -> Self {
        Self::Write {
            stream: "standard output",
            source,
        }
    }

    /// Whether what was asked for may have been done all the same.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::Wrong { .. })
    }

    /// Whether the answer was no.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether the answer was that there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.is_not_found())
    }
}

/// An error and what is behind it on one line, harmless to a terminal. What repeats what stands before is left out, as some errors
/// already hold their sources' words.
pub(crate) fn chain(problem: &dyn std::error::Error) -> String {
    let mut line = plain(&problem.to_string());
    let mut next = problem.source();
    while let Some(source) = next {
        let words = plain(&source.to_string());
        if !line.contains(&words) {
            line.push_str(": ");
            line.push_str(&words);
        }
        next = source.source();
    }
    line
}

/// Says something on standard error that is no error.
pub(crate) fn note(text: &str) {
    use std::io::Write as _;
    drop(writeln!(io::stderr(), "{text}"));
}

/// Prints one line on standard error.
pub(crate) fn print(problem: &dyn std::fmt::Display) {
    use std::io::Write as _;
    // Nothing can be told to a closed terminal.
    drop(writeln!(io::stderr(), "error: {problem}"));
}

//! How many sessions and logs are open, of a sandbox and in all: output that a client does not read waits in the agent's memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Most of one sandbox: one for each command that it may run, and some for readers.
const OF_ONE: usize = 320;
/// Most of all sandboxes. What is open for a client that does not read takes some 700 KiB (measured): of each output a piece of 128 KiB that
/// waits for its turn, one that has it, one that HTTP/2 has, and what a stream takes anyway. So all of them take 700 MiB, of the 1 GiB that
/// the chart allows the agent.
const ALL: usize = 1024;

/// Counts what is open.
#[derive(Debug)]
pub struct Streams {
    all: Arc<Semaphore>,
    /// By UID of the sandbox.
    of_one: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// One that is open; closed when dropped.
#[derive(Debug)]
pub(super) struct Stream {
    _of_one: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(ALL)),
            of_one: Mutex::default(),
        }
    }
}

impl Streams {
    /// One more of the sandbox with this UID.
    pub(super) fn open(&self, uid: &str) -> Result<Stream, Status> {
        let full = |what: &str, most: usize| {
            Status::resource_exhausted(format!(
                "{what} has {most} sessions and logs open, its most; end some first"
            ))
        };
        let of_one = self
            .of(uid)
            .try_acquire_owned()
            .map_err(|_| full("this sandbox", OF_ONE))?;
        let of_all = Arc::clone(&self.all)
            .try_acquire_owned()
            .map_err(|_| full("this node's agent", ALL))?;
        Ok(Stream {
            _of_one: of_one,
            _of_all: of_all,
        })
    }

    fn of(&self, uid: &str) -> Arc<Semaphore> {
        let mut of_one = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = of_one.get(uid).and_then(Weak::upgrade) {
            return known;
        }
        // Whoever has one open keeps its count.
        of_one.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(OF_ONE));
        of_one.insert(uid.to_owned(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_bounded_per_sandbox_and_in_all() {
        let streams = Streams::default();
        let mut open: Vec<_> = (0..OF_ONE).map(|_| streams.open("a").unwrap()).collect();
        let refused = streams.open("a").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        open.extend((OF_ONE..ALL).map(|number| streams.open(&number.to_string()).unwrap()));
        assert!(streams.open("b").is_err());
        open.truncate(OF_ONE - 1);
        assert!(streams.open("b").is_ok());
        let last = streams.open("a").unwrap();
        assert!(streams.open("a").is_err());
        drop((open, last));
        assert!(streams.open("a").is_ok());
        assert_eq!(streams.of_one.lock().unwrap().len(), 1, "of those in use");
    }
}

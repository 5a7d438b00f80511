//! How many streams may be open, in all and per user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::refusal::{Kind, Refusal};

/// Counts the streams that are open.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    most: usize,
    most_of_one: usize,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

/// One open stream; closed when dropped.
#[derive(Debug)]
pub(crate) struct Stream {
    user: String,
    open: Arc<Mutex<HashMap<String, usize>>>,
}

impl Streams {
    /// At most `most` in all and `most_of_one` of one user.
    pub(crate) fn new(most: usize, most_of_one: usize) -> Self {
        Self {
            most,
            most_of_one,
            open: Arc::default(),
        }
    }

    /// One more of `user`.
    pub(crate) fn open(&self, user: &str) -> Result<Stream, Refusal> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = |message: String| Err(Refusal::new(Kind::TooManyRequests, message));
        // There are as many users in the map as have streams: adding up is short beside what a stream costs.
        if open.values().sum::<usize>() >= self.most {
            let most = self.most;
            return refused(format!(
                "this gateway has {most} open streams, its most; retry"
            ));
        }
        let of_user = open.get(user).copied().unwrap_or_default();
        if of_user >= self.most_of_one {
            return refused(format!(
                "user {user:?} has {of_user} open streams at this gateway, the most of one user; end some first"
            ));
        }
        open.insert(user.to_owned(), of_user + 1);
        Ok(Stream {
            user: user.to_owned(),
            open: Arc::clone(&self.open),
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_bounded_in_all_and_per_user() {
        let streams = Streams::new(3, 2);
        let kept: Vec<_> = ["a", "a", "b"]
            .iter()
            .map(|user| streams.open(user).unwrap())
            .collect();
        assert!(streams.open("c").is_err());
        drop(kept);
        let _one = streams.open("a").unwrap();
        let two = streams.open("a").unwrap();
        assert_eq!(streams.open("a").unwrap_err().kind, Kind::TooManyRequests);
        assert!(streams.open("b").is_ok());
        drop(two);
        assert!(streams.open("a").is_ok());
        assert_eq!(streams.open.lock().unwrap().len(), 1);
    }
}

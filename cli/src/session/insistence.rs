//! When a user who asks to go means this program and not the command. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// So often must the user ask before this program goes without the command's end. Once is enough while there is no agent
/// and no command.
const TIMES: usize = 3;

/// So soon after one another: an interrupt now and then, in a shell that lives for hours, is the command's.
const WITHIN: Duration = Duration::from_secs(5);

/// The last times at which the user asked to go.
#[derive(Debug, Default)]
pub(crate) struct Insistence(VecDeque<Instant>);

impl Insistence {
    /// The user asks once more; whether that is insisting.
    pub(crate) fn ask(&mut self, now: Instant) -> bool {
        self.0.push_back(now);
        self.0
            .retain(|asked| now.saturating_duration_since(*asked) < WITHIN);
        self.0.len() >= TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_in_a_row_counts() {
        let start = Instant::now();
        let mut insistence = Insistence::default();
        for second in [0, 4, 8, 12] {
            let now = start + Duration::from_secs(second);
            assert!(!insistence.ask(now), "at {second} s");
        }
        assert!(!insistence.ask(start + Duration::from_secs(20)));
        assert!(!insistence.ask(start + Duration::from_secs(21)));
        assert!(insistence.ask(start + Duration::from_secs(22)));
    }
}

//! The named points at which the agent can be killed (its feature `fault-points`).

/// What the agent does when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// It starts two sandboxes, of which one ends by itself.
    Life,
    /// The same, with an image that the node does not have.
    Image,
    /// A sandbox that runs is deleted.
    Delete,
    /// A sandbox that runs comes to its deadline, and is told to end.
    Deadline,
    /// A sandbox that runs is paused, and goes on.
    Pause,
    /// A sandbox that runs is stopped.
    Stop,
    /// One that is stopped is brought back.
    Wake,
    /// It fills its pool.
    Pool,
    /// It starts a sandbox on an instance of its pool.
    Claim,
    /// In a cluster: it writes the statuses of two sandboxes, of which one ends by itself.
    Tell,
    /// In a cluster: a sandbox that runs is deleted, and its finalizer goes.
    Release,
}

use During::{Claim, Deadline, Delete, Image, Life, Pause, Pool, Release, Stop, Tell, Wake};

/// Every point of the agent's source, and what it is doing there when a test kills it. `NAME:N` is the N-th passage.
pub const POINTS: &[(&str, &[During])] = &[
    ("sandbox.before-record", &[Life]),
    ("sandbox.recorded", &[Life]),
    ("Bound", &[Image, Wake]),
    ("image-pulled", &[Image]),
    ("image-unpacked", &[Image]),
    ("image-named", &[Image]),
    ("instance.create.recorded", &[Life, Pool, Wake]),
    ("instance.create.group", &[Life, Pool]),
    ("instance.create.created", &[Life, Pool, Wake]),
    ("instance.create.network", &[Life, Pool]),
    ("instance.create.made", &[Life, Pool]),
    ("instance.start", &[Life, Pool]),
    ("instance.started", &[Life, Pool]),
    ("Claimed", &[Life, Claim, Wake]),
    ("claim.limited", &[Life, Claim]),
    ("claim.container-created", &[Life]),
    ("claim.container-started", &[Life, Claim]),
    ("claim.channel", &[Life]),
    ("MainRequested", &[Life, Claim, Wake]),
    ("session-record", &[Life]),
    ("session-record:2", &[Life]),
    ("session-recorded", &[Life]),
    ("session-recorded:2", &[Life]),
    ("session-output-written", &[Life]),
    ("main.created", &[Life, Wake]),
    ("main.started", &[Life]),
    ("Running", &[Life, Wake]),
    ("Pausing", &[Pause]),
    ("pause.paused", &[Pause]),
    ("Paused", &[Pause]),
    ("Resuming", &[Pause]),
    ("pause.resumed", &[Pause]),
    ("Halting", &[Stop]),
    ("Keeping", &[Stop]),
    ("keep.still", &[Stop]),
    ("keep.saved", &[Stop]),
    ("snapshot.hashed", &[Stop]),
    ("snapshot.named", &[Stop]),
    ("snapshot.committed", &[Stop]),
    ("Discarding", &[Stop]),
    ("Stopped", &[Stop]),
    ("claim.files-back", &[Wake]),
    ("claim.main-aside", &[Wake]),
    ("Stopping", &[Delete, Deadline]),
    ("Ending", &[Life, Delete, Deadline]),
    ("sandbox.killed", &[Life, Delete, Stop]),
    ("instance.destroy.killed", &[Life, Delete, Stop]),
    ("instance.destroy.files", &[Life, Delete]),
    ("instance.destroy.group", &[Life, Delete, Stop]),
    ("Ended", &[Life, Delete]),
    ("sandbox.remove.files", &[Delete]),
    ("sandbox.removed", &[Delete]),
    ("status-written", &[Tell]),
    ("status-written:2", &[Tell]),
    ("status-written:3", &[Tell]),
    ("finalizer-off", &[Release]),
];

/// The points that are passed during this.
pub fn points(during: During) -> impl Iterator<Item = &'static str> {
    let there =
        move |(point, all): &(&'static str, &[During])| all.contains(&during).then_some(*point);
    POINTS.iter().filter_map(there)
}

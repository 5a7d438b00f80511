//! What holder and spawner say to each other over a SEQPACKET socket: fixed small messages; what to run or to set up goes as a
//! file (a memfd), since it may be longer than a message can be. The spawner lives where the guest can reach it, so what it
//! says is checked as the guest's word.

use cloche_proto::frame::SignalScope;

use crate::core::Serial;

/// Bytes of every message.
pub const LENGTH: usize = 17;

/// From holder to spawner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start a session. With it come, in this order: status pipe, specification, member list of its group, then its streams.
    Spawn(Serial),
    /// Signal the command itself, or its process group.
    Signal(Serial, i32, SignalScope),
    /// Make the root read-only, before the first session. With it comes what stays writable.
    ReadOnlyRoot,
}

/// From spawner to holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Orders are taken from now on. With it comes the devpts that sessions see, if there is one.
    Ready,
    /// The session's process has this pid in the guest's eyes.
    Spawned(Serial, i32),
    /// There is no process for it: errno.
    NotSpawned(Serial, i32),
    /// The session's process ended with this status of wait(2).
    Exited(Serial, i32),
    /// The root is read-only (0), or why not: errno, and the number of the writable path that is at fault, -1 where none is.
    RootDone(i32, i32),
}

type Bytes = [u8; LENGTH];

fn pack(kind: u8, serial: Serial, a: i32, b: i32) -> Bytes {
    let mut bytes = [0; LENGTH];
    bytes[0] = kind;
    bytes[1..9].copy_from_slice(&serial.to_le_bytes());
    bytes[9..13].copy_from_slice(&a.to_le_bytes());
    bytes[13..17].copy_from_slice(&b.to_le_bytes());
    bytes
}

fn unpack(bytes: &[u8]) -> Option<(u8, Serial, i32, i32)> {
    let bytes: &Bytes = bytes.try_into().ok()?;
    let (kind, rest) = bytes.split_first()?;
    let (serial, rest) = rest.split_first_chunk()?;
    let (a, rest) = rest.split_first_chunk()?;
    let (b, _) = rest.split_first_chunk()?;
    Some((
        *kind,
        Serial::from_le_bytes(*serial),
        i32::from_le_bytes(*a),
        i32::from_le_bytes(*b),
    ))
}

impl Order {
    /// As it goes over the socket.
    pub fn encode(self) -> Bytes {
        match self {
            Self::Spawn(serial) => pack(1, serial, 0, 0),
            Self::Signal(serial, signal, scope) => pack(2, serial, signal, scope as i32),
            Self::ReadOnlyRoot => pack(3, 0, 0, 0),
        }
    }

    /// None where it is no order.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            (1, serial, 0, 0) => Some(Self::Spawn(serial)),
            (2, serial, signal, scope) => Some(Self::Signal(
                serial,
                signal,
                SignalScope::try_from(scope).ok()?,
            )),
            (3, 0, 0, 0) => Some(Self::ReadOnlyRoot),
            _ => None,
        }
    }
}

impl Notice {
    /// As it goes over the socket.
    pub fn encode(self) -> Bytes {
        match self {
            Self::Ready => pack(1, 0, 0, 0),
            Self::Spawned(serial, pid) => pack(2, serial, pid, 0),
            Self::NotSpawned(serial, error) => pack(3, serial, error, 0),
            Self::Exited(serial, status) => pack(4, serial, status, 0),
            Self::RootDone(error, path) => pack(5, 0, error, path),
        }
    }

    /// None where it is no notice.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            (1, 0, 0, 0) => Some(Self::Ready),
            (2, serial, pid, 0) => Some(Self::Spawned(serial, pid)),
            (3, serial, error, 0) => Some(Self::NotSpawned(serial, error)),
            (4, serial, status, 0) => Some(Self::Exited(serial, status)),
            (5, 0, error, path) => Some(Self::RootDone(error, path)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        for order in [
            Order::Spawn(7),
            Order::Signal(u64::MAX, 64, SignalScope::Foreground),
            Order::ReadOnlyRoot,
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        for notice in [
            Notice::Ready,
            Notice::Spawned(1, 2),
            Notice::NotSpawned(3, 11),
            Notice::Exited(4, -1),
            Notice::RootDone(0, -1),
            Notice::RootDone(20, 3),
        ] {
            assert_eq!(Notice::decode(&notice.encode()), Some(notice));
        }
    }

    proptest! {
        #[test]
        fn anything_else_is_nothing(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(notice) = Notice::decode(&bytes) {
                prop_assert_eq!(notice.encode().to_vec(), bytes.clone());
            }
            if let Some(order) = Order::decode(&bytes) {
                prop_assert_eq!(order.encode().to_vec(), bytes.clone());
            }
        }
    }
}

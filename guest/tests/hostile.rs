//! Hostile bytes on every way into the init: the function that the fuzzer runs too.

use cloche_proto::frame::{
    Create, Down, DownKind, Forget, Hello, Ping, Position, ReadOnlyRoot, SessionSpec, Setup,
    Signal, Stdin, codec::encode,
};
use proptest::prelude::*;

#[path = "../fuzz/entry.rs"]
mod entry;

fn id() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]{1,2}", ".{0,80}"]
}

fn position() -> impl Strategy<Value = Position> {
    (id(), -1i32..4, any::<u64>()).prop_map(|(command_id, stream, offset)| Position {
        command_id,
        stream,
        offset,
    })
}

fn frame() -> impl Strategy<Value = DownKind> {
    prop_oneof![
        (
            prop::collection::vec(any::<u8>(), 14..18),
            any::<u32>(),
            prop::collection::vec(position(), 0..4)
        )
            .prop_map(|(nonce, version, held)| DownKind::Hello(Hello {
                nonce,
                version,
                held
            })),
        (id(), any::<bool>(), any::<u64>()).prop_map(|(command_id, stdin, timeout_ms)| {
            let spec = SessionSpec {
                stdin,
                timeout_ms,
                ..SessionSpec::default()
            };
            DownKind::Create(Create {
                command_id,
                spec: Some(spec),
            })
        }),
        (
            id(),
            0u64..9,
            prop::collection::vec(any::<u8>(), 0..9),
            any::<bool>()
        )
            .prop_map(|(command_id, offset, data, end)| DownKind::Stdin(Stdin {
                command_id,
                offset,
                data,
                end
            })),
        position().prop_map(DownKind::Ack),
        (id(), any::<i32>(), -1i32..5).prop_map(|(command_id, signal, scope)| DownKind::Signal(
            Signal {
                command_id,
                signal,
                scope
            }
        )),
        id().prop_map(|command_id| DownKind::Forget(Forget { command_id })),
        any::<u64>().prop_map(|token| DownKind::Ping(Ping { token })),
        (
            ".{0,80}",
            prop::option::of(prop::collection::vec(".{0,20}", 0..4))
        )
            .prop_map(|(hostname, writable)| DownKind::Setup(Setup {
                hostname,
                read_only_root: writable.map(|writable| ReadOnlyRoot { writable }),
            })),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        entry::drive(&bytes);
    }

    /// Mostly well-formed, which goes deeper; and here and there a byte is another.
    #[test]
    fn any_frames_are_survived(
        choice in any::<u8>(),
        frames in prop::collection::vec(frame(), 0..60),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = vec![choice & !3 | 1];
        for kind in frames {
            bytes.extend(encode(&Down { kind: Some(kind) }).unwrap());
        }
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        entry::drive(&bytes);
    }
}

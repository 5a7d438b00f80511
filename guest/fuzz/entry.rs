//! What the fuzzer and the property test both run: hostile bytes on every way into the init.

use cloche_init::core::Core;
use cloche_init::launch::{read_record, resolve};
use cloche_init::wire::{Notice, Order};
use cloche_proto::frame::codec::encode;
use cloche_proto::frame::{Down, DownKind, Hello, MAX_FRAME, MAX_SESSIONS, NONCE, VERSION};

/// The first byte chooses where the others go and how they are cut.
pub(crate) fn drive(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let block = usize::from(choice >> 2) + 1;
    match choice & 3 {
        0 => channel(rest, block, false),
        1 => channel(rest, block, true),
        2 => {
            let _notice = Notice::decode(rest);
            let _order = Order::decode(rest);
            let _failure = read_record(rest);
        }
        _ => {
            let mut parts = rest.split(|byte| *byte == 0);
            let mut part = || parts.next().unwrap_or_default();
            let user = String::from_utf8_lossy(part()).into_owned();
            let _identity = resolve(&user, &[], part(), part());
        }
    }
}

/// Frames from an agent, before or in an epoch, and what the holder answers to them.
fn channel(bytes: &[u8], block: usize, in_epoch: bool) {
    let mut core = Core::default();
    if in_epoch {
        let hello = Hello {
            nonce: vec![0; NONCE],
            version: VERSION,
            held: Vec::new(),
        };
        let frame = encode(&Down {
            kind: Some(DownKind::Hello(hello)),
        });
        let heard = frame.map(|frame| core.receive(&frame, 0));
        assert!(matches!(heard, Ok(Ok(_))));
    }
    for (now, block) in (0..).zip(bytes.chunks(block)) {
        if core.receive(block, now).is_err() {
            core.reset_channel();
        }
        let said = core.unwritten().len();
        assert!(said <= 3 * MAX_FRAME, "{said} bytes are waiting");
        core.wrote(said / 2);
        core.overdue(now);
        assert!(core.sessions().count() <= MAX_SESSIONS);
    }
}

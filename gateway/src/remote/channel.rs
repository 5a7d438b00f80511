//! The messages of the remote-command protocol: a byte that names the channel, then its bytes (Kubernetes,
//! `k8s.io/apimachinery/pkg/util/remotecommand`).

use bytes::Bytes;
use cloche_proto::agent::v1alpha1::TerminalSize;
use serde::Deserialize;

/// Stdin of the command.
const STDIN: u8 = 0;
/// Its stdout, and all that a terminal shows.
const STDOUT: u8 = 1;
/// Its stderr.
const STDERR: u8 = 2;
/// How it ended: one `Status`, the last message.
const ERROR: u8 = 3;
/// The terminal's size.
const RESIZE: u8 = 4;
/// Version 5 only: the channel named by the next byte is closed.
const CLOSE: u8 = 255;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// `v4.channel.k8s.io`: its clients cannot close stdin alone.
    V4,
    /// `v5.channel.k8s.io`.
    V5,
}

impl Version {
    /// Every version, the best first.
    pub(crate) const ALL: [Self; 2] = [Self::V5, Self::V4];

    /// The WebSocket subprotocol.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing of importance.
    Nothing,
    /// Bytes for stdin, never empty.
    Stdin(Bytes),
    /// No more stdin.
    EndOfStdin,
    /// The terminal has another size.
    Resize(TerminalSize),
}

/// Reads a message; the error says what is wrong with it.
pub(super) fn read(version: Version, message: &Bytes) -> Result<Said, String> {
    let Some((&channel, _)) = message.split_first() else {
        // Some clients open a channel by an empty message.
        return Ok(Said::Nothing);
    };
    let data = message.slice(1..);
    match (channel, version) {
        (STDIN | RESIZE, _) if data.is_empty() => Ok(Said::Nothing),
        (STDIN, _) => Ok(Said::Stdin(data)),
        (RESIZE, _) => resize(&data).map(Said::Resize),
        (CLOSE, Version::V5) => match data[..] {
            [STDIN] => Ok(Said::EndOfStdin),
            // It has no more to say of the size, or wants no more output: which it cannot undo, and does not hurt.
            [STDOUT | STDERR | ERROR | RESIZE] => Ok(Said::Nothing),
            _ => Err("it closes a channel that there is not".to_owned()),
        },
        _ => Err(format!("a client sends nothing on channel {channel}")),
    }
}

fn resize(data: &[u8]) -> Result<TerminalSize, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Size {
        width: u16,
        height: u16,
    }
    let size: Size = serde_json::from_slice(data)
        .map_err(|error| format!("the terminal's size cannot be read: {error}"))?;
    Ok(TerminalSize {
        rows: size.height.into(),
        columns: size.width.into(),
    })
}

/// A message of stdout.
pub(super) fn stdout(data: &[u8]) -> Bytes {
    on(STDOUT, data)
}

/// A message of stderr.
pub(super) fn stderr(data: &[u8]) -> Bytes {
    on(STDERR, data)
}

/// The message of how it ended.
pub(super) fn error(status: &str) -> Bytes {
    on(ERROR, status.as_bytes())
}

fn on(channel: u8, data: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(1 + data.len());
    message.push(channel);
    message.extend_from_slice(data);
    message.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(version: Version, message: &'static [u8]) -> Result<Said, String> {
        read(version, &Bytes::from_static(message))
    }

    #[test]
    fn what_clients_say() {
        let stdin = Ok(Said::Stdin(Bytes::from_static(b"ab")));
        assert_eq!(said(Version::V4, b"\0ab"), stdin);
        assert_eq!(said(Version::V4, b""), Ok(Said::Nothing));
        assert_eq!(said(Version::V4, b"\0"), Ok(Said::Nothing));
        assert_eq!(said(Version::V5, b"\xff\0"), Ok(Said::EndOfStdin));
        let size = TerminalSize {
            rows: 40,
            columns: 132,
        };
        assert_eq!(
            said(Version::V5, b"\x04{\"Width\":132,\"Height\":40}\n"),
            Ok(Said::Resize(size))
        );
    }

    #[test]
    fn what_no_client_says() {
        for message in [
            &b"\x01a"[..],
            b"\x02a",
            b"\x03a",
            b"\x05",
            b"\xff",
            b"\xff\x07",
            b"\xff\0\0",
            b"\x04{}",
            b"\x04{\"Width\":-1,\"Height\":1}",
            b"\x04{\"Width\":1,\"Height\":65536}",
        ] {
            assert!(said(Version::V5, message).is_err(), "{message:?}");
        }
        assert!(said(Version::V4, b"\xff\0").is_err());
    }

    proptest! {
        #[test]
        fn no_message_upsets_it(message: Vec<u8>) {
            drop(read(Version::V5, &Bytes::from(message)));
        }
    }
}

//! Digests of content: parsed once, then cannot be malformed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A `sha256` digest. Other algorithms of the OCI specification are refused: no registry in use serves them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A string that is no digest that we take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest must be `sha256:` and 64 lower-case hex digits")]
pub struct DigestError;

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of all that `source` has from here on, and its length. Blocking.
    pub fn of_reader(mut source: impl std::io::Read) -> std::io::Result<(Self, u64)> {
        let mut meter = Meter::default();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => {
                    let length = meter.length();
                    return Ok((meter.digest(), length));
                }
                Ok(read) => meter.update(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The 64 hex digits alone: the file name of what it names.
    pub fn hex(&self) -> String {
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
        self.0
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
            .collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let hex = text.strip_prefix("sha256:").ok_or(DigestError)?.as_bytes();
        if hex.len() != 64 {
            return Err(DigestError);
        }
        let nibble = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(DigestError),
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Counts and hashes what flows by.
#[derive(Default)]
pub(super) struct Meter {
    hash: Sha256,
    length: u64,
}

impl Meter {
    /// Takes the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The digest of all that flowed by.
    pub(super) fn digest(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_lower_case_sha256() {
        let text = Digest::of(b"cloche").to_string();
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        assert_eq!(
            Digest::of(b"").to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        for bad in [
            "",
            "sha256:",
            "sha256:00",
            "sha512:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            &text.to_uppercase(),
            &format!("{text}0"),
            &text.replace("sha256:", "sha256:../"),
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestError), "{bad}");
        }
    }

    #[test]
    fn the_meter_sees_what_flows() {
        let mut meter = Meter::default();
        meter.update(b"clo");
        meter.update(b"che");
        assert_eq!(meter.length(), 6);
        assert_eq!(meter.digest(), Digest::of(b"cloche"));
    }
}

//! Kubernetes quantities (`1Gi`, `500M`, `0.5`, `100m`, `1e3`), read exactly.
//!
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`. Where Kubernetes caps what is too large, this refuses it: a
//! limit that is not the one that was asked for is a lie.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest quantity, in bytes.
pub const MAX_LENGTH: usize = 32;

/// A quantity as it was written. [`Quantity::bytes`] and [`Quantity::millicores`] say what it means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Quantity(pub String);

/// An exact number of bytes, at most `i64::MAX`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Processor time in thousandths of a core, at most `i64::MAX`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millicores(pub u64);

/// Why a quantity means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not of the grammar.
    #[error("{0:?} is not a quantity: write a number with a suffix, as 512Mi, 1G, 0.5 or 500m")]
    Malformed(String),
    /// Below zero.
    #[error("{0:?} is negative")]
    Negative(String),
    /// Beyond 2^63 - 1 of what it counts.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

impl Quantity {
    /// As bytes; a part of a byte counts as a whole one.
    pub fn bytes(&self) -> Result<Bytes, QuantityError> {
        parse(&self.0, 0).map(Bytes)
    }

    /// As thousandths; a part of one counts as a whole one.
    pub fn millicores(&self) -> Result<Millicores, QuantityError> {
        parse(&self.0, 3).map(Millicores)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<Bytes> for Quantity {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.to_string())
    }
}

impl From<Millicores> for Quantity {
    fn from(millicores: Millicores) -> Self {
        Self(millicores.to_string())
    }
}

/// With the largest binary suffix that is exact.
impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let mut value = self.0;
        let mut suffix = 0;
        while value != 0 && value.is_multiple_of(1024) && suffix + 1 < SUFFIXES.len() {
            value /= 1024;
            suffix += 1;
        }
        write!(formatter, "{value}{}", SUFFIXES[suffix])
    }
}

/// As cores where it is a whole number, else with `m`.
impl fmt::Display for Millicores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(formatter, "{}", self.0 / 1000)
        } else {
            write!(formatter, "{}m", self.0)
        }
    }
}

/// The apiserver takes an integer or a string for a quantity of a custom resource, and so does this. A fraction has to be
/// quoted: as a bare number it would already have lost its exact value.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Quantity;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a quantity: an integer, or a string as \"512Mi\" or \"0.5\"")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                Err(E::custom(format!(
                    "{value} is a bare fraction: put it in quotes, \"{value}\""
                )))
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Quantity, E> {
                if value.len() > MAX_LENGTH {
                    return Err(E::custom(format!(
                        "a quantity of {} bytes; at most {MAX_LENGTH} are allowed",
                        value.len()
                    )));
                }
                Ok(Quantity(value.to_owned()))
            }
        }

        from.deserialize_any(Written)
            .map_err(|error| D::Error::custom(error.to_string()))
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": MAX_LENGTH,
            "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

/// `text` times 10^`scale`, rounded up.
fn parse(text: &str, scale: i32) -> Result<u64, QuantityError> {
    let malformed = || QuantityError::Malformed(excerpt(text));
    let too_large = || QuantityError::TooLarge(excerpt(text));
    if text.len() > MAX_LENGTH {
        return Err(malformed());
    }
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let suffix = Suffix::parse(suffix).ok_or_else(malformed)?;
    let digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|digit| digit - b'0')
        .collect();
    if digits.iter().all(|digit| *digit == 0) {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative(excerpt(text)));
    }

    // Where the decimal point stands in `digits` after the power of ten: may be left of the first or right of the last.
    let (tens, doublings) = match suffix {
        Suffix::PowerOfTen(exponent) => (exponent, 0),
        Suffix::PowerOfTwo(exponent) => (0, exponent),
    };
    let whole_digits = i32::try_from(whole.len()).map_err(|_| malformed())?;
    let point = whole_digits + tens + scale;

    let mut value: u64 = 0;
    for position in 0..point.max(0) {
        let digit = usize::try_from(position)
            .ok()
            .and_then(|position| digits.get(position));
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit.copied().unwrap_or(0))))
            .ok_or_else(too_large)?;
    }
    // The part below one, as a decimal fraction of digits, doubled together with the whole part: exact, however many digits.
    let mut below: Vec<u8> = vec![0; usize::try_from(-point).unwrap_or(0)];
    below.extend(digits.iter().skip(usize::try_from(point).unwrap_or(0)));
    for _ in 0..doublings {
        let mut carry = 0;
        for digit in below.iter_mut().rev() {
            let doubled = *digit * 2 + carry;
            *digit = doubled % 10;
            carry = doubled / 10;
        }
        value = value
            .checked_mul(2)
            .and_then(|value| value.checked_add(u64::from(carry)))
            .ok_or_else(too_large)?;
    }
    if below.iter().any(|digit| *digit != 0) {
        value = value.checked_add(1).ok_or_else(too_large)?;
    }
    if i64::try_from(value).is_err() {
        return Err(too_large());
    }
    Ok(value)
}

enum Suffix {
    PowerOfTen(i32),
    PowerOfTwo(u32),
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "n" => Self::PowerOfTen(-9),
            "u" => Self::PowerOfTen(-6),
            "m" => Self::PowerOfTen(-3),
            "" => Self::PowerOfTen(0),
            "k" => Self::PowerOfTen(3),
            "M" => Self::PowerOfTen(6),
            "G" => Self::PowerOfTen(9),
            "T" => Self::PowerOfTen(12),
            "P" => Self::PowerOfTen(15),
            "E" => Self::PowerOfTen(18),
            "Ki" => Self::PowerOfTwo(10),
            "Mi" => Self::PowerOfTwo(20),
            "Gi" => Self::PowerOfTwo(30),
            "Ti" => Self::PowerOfTwo(40),
            "Pi" => Self::PowerOfTwo(50),
            "Ei" => Self::PowerOfTwo(60),
            exponent => {
                let signed = exponent.strip_prefix(['e', 'E'])?;
                let digits = signed.strip_prefix(['+', '-']).unwrap_or(signed);
                // Two digits: beyond that nothing is left of 32 characters but zero or too much.
                if !(1..=2).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                let power: i32 = digits.parse().ok()?;
                Self::PowerOfTen(if signed.starts_with('-') {
                    -power
                } else {
                    power
                })
            }
        })
    }
}

/// Enough of a bad quantity to find it by.
fn excerpt(text: &str) -> String {
    text.chars().take(MAX_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(text: &str) -> Result<u64, QuantityError> {
        Quantity::from(text).bytes().map(|bytes| bytes.0)
    }

    fn milli(text: &str) -> Result<u64, QuantityError> {
        Quantity::from(text)
            .millicores()
            .map(|millicores| millicores.0)
    }

    #[test]
    fn bytes_are_exact() {
        for (text, wanted) in [
            ("0", 0),
            ("-0", 0),
            ("0Ei", 0),
            ("1", 1),
            ("+1", 1),
            ("007", 7),
            ("1.", 1),
            (".5Ki", 512),
            ("512Mi", 512 << 20),
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("500M", 500_000_000),
            ("1k", 1000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("1E+2", 100),
            ("1500e-2", 15),
            ("1.5e1", 15),
            ("0.1", 1),
            ("100m", 1),
            ("1001m", 2),
            ("1n", 1),
            ("0.3Ki", 308),
            ("0.1Gi", 107_374_183),
            ("0.0000000000000000000001Ei", 1),
            ("0.1234567890123456789Ei", 142_335_986_942_043_634),
            ("9223372036854775807", 9_223_372_036_854_775_807),
            ("7.999999999999999999Ei", 9_223_372_036_854_775_807),
        ] {
            assert_eq!(bytes(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn millicores_are_exact() {
        for (text, wanted) in [
            ("1", 1000),
            ("0.5", 500),
            ("100m", 100),
            ("2", 2000),
            ("0.0001", 1),
            ("1.0001", 1001),
            ("1u", 1),
            ("1Ki", 1_024_000),
            ("1.0009765625Ki", 1_025_000),
            ("1e-3", 1),
        ] {
            assert_eq!(milli(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in [
            "",
            " ",
            ".",
            "+",
            "-",
            "1 Gi",
            " 1",
            "1 ",
            "Gi",
            "1gi",
            "1GI",
            "1Kib",
            "1K",
            "1mi",
            "1g",
            "1..2",
            "1.2.3",
            "--1",
            "+-1",
            "1e",
            "1e+",
            "1e1.5",
            "1e100",
            "1Ei3",
            "0x10",
            "∞",
            "１",
            "1e3Ki",
            "1_000",
            "1,5",
            "NaN",
            "inf",
            "000000000000000000000000000000001",
        ] {
            assert!(
                matches!(bytes(text), Err(QuantityError::Malformed(_))),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_negative_or_too_large_is_refused() {
        for text in ["-1", "-0.1n", "-1Gi"] {
            assert!(
                matches!(bytes(text), Err(QuantityError::Negative(_))),
                "{text}"
            );
        }
        for text in [
            "9223372036854775808",
            "8Ei",
            "7.9999999999999999999Ei",
            "9.3E",
            "1e19",
            "1e99",
            "99999999999999999999999999999999",
        ] {
            assert!(
                matches!(bytes(text), Err(QuantityError::TooLarge(_))),
                "{text}"
            );
        }
        assert!(matches!(
            milli("9223372036854775.808"),
            Err(QuantityError::TooLarge(_))
        ));
        assert_eq!(milli("9223372036854775.807"), Ok(9_223_372_036_854_775_807));
    }

    #[test]
    fn integers_and_strings_are_read_and_bare_fractions_are_not() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json);
        assert_eq!(read("2").unwrap(), Quantity::from("2"));
        assert_eq!(read("-2").unwrap(), Quantity::from("-2"));
        assert_eq!(read(r#""0.5""#).unwrap(), Quantity::from("0.5"));
        assert!(
            read("0.5")
                .unwrap_err()
                .to_string()
                .contains(r#"put it in quotes, "0.5""#)
        );
        for json in [
            "true",
            "null",
            "[]",
            r#""000000000000000000000000000000001""#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in "\\PC{0,40}") {
            drop(bytes(&text));
            drop(milli(&text));
        }

        #[test]
        fn what_looks_like_a_quantity_agrees_with_wide_integers(
            whole in 0_u64..1_000_000,
            fraction in 0_u64..1_000_000,
            suffix in 0_usize..7,
        ) {
            let (name, factor) = [
                ("", 1_u128), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30),
                ("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000),
            ][suffix];
            let micro = (u128::from(whole) * 1_000_000 + u128::from(fraction)) * factor;
            let text = format!("{whole}.{fraction:06}{name}");
            prop_assert_eq!(bytes(&text).map(u128::from), Ok(micro.div_ceil(1_000_000)));
            prop_assert_eq!(milli(&text).map(u128::from), Ok(micro.div_ceil(1000)));
        }

        #[test]
        fn what_is_shown_means_the_same(value in 0_u64..=i64::MAX as u64) {
            prop_assert_eq!(Quantity::from(Bytes(value)).bytes(), Ok(Bytes(value)));
            prop_assert_eq!(Quantity::from(Millicores(value)).millicores(), Ok(Millicores(value)));
        }
    }
}

//! What certificates are checked by, as it is published. Pure.
//!
//! When the CA is a new one, what the one before signed is in use for another day: it stays published beside the new one for that time.
//! Where the old one must not be believed any more, its `ConfigMap` is deleted together with its Secret, and nothing of it stays.

use std::time::Duration;

use jiff::Timestamp;
use x509_parser::pem::Pem;

use super::review::LONGEST;

/// How long an earlier CA stays: the longest life of what it signed, and some time for everybody to read that there is a new one.
const OVERLAP: Duration = LONGEST.saturating_add(Duration::from_hours(1));

/// What is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The CA's certificate first, then those of earlier ones; PEM.
    pub text: String,
    /// Until when the earlier ones stay, where there are any.
    pub until: Option<Timestamp>,
}

/// What is to be published for a CA of this certificate, where `before` is.
pub fn bundle(certificate: &str, before: Option<&Bundle>, now: Timestamp) -> Bundle {
    let alone = Bundle {
        text: certificate.to_owned(),
        until: None,
    };
    let Some(before) = before.filter(|before| before.text != certificate) else {
        return alone;
    };
    if before.text.starts_with(certificate) {
        let stays = before.until.is_some_and(|until| now < until);
        return if stays { before.clone() } else { alone };
    }
    // What somebody else put there would make all of it useless.
    if !is_of_authorities(&before.text) {
        return alone;
    }
    let end = if certificate.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Bundle {
        text: format!("{certificate}{end}{}", before.text),
        until: now.checked_add(OVERLAP).ok(),
    }
}

fn is_of_authorities(text: &str) -> bool {
    let is_authority = |block: &Pem| block.parse_x509().is_ok_and(|parsed| parsed.is_ca());
    let mut blocks = Pem::iter_from_buffer(text.as_bytes()).peekable();
    blocks.peek().is_some() && blocks.all(|block| block.is_ok_and(|block| is_authority(&block)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signer::authority::Kept;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
    }

    fn authority() -> String {
        Kept::make(at(0)).unwrap().certificate
    }

    #[test]
    fn the_ca_before_stays_for_the_life_of_what_it_signed() {
        let (old, new) = (authority(), authority());
        let first = bundle(&old, None, at(0));
        assert_eq!((&first.text, first.until), (&old, None));
        assert_eq!(bundle(&old, Some(&first), at(1)), first);
        let both = bundle(&new, Some(&first), at(1));
        assert_eq!(both.text, format!("{new}{old}"));
        assert_eq!(both.until, Some(at(26)));
        assert_eq!(bundle(&new, Some(&both), at(25)), both);
        let after = bundle(&new, Some(&both), at(26));
        assert_eq!((&after.text, after.until), (&new, None));
        assert_eq!(bundle(&new, Some(&after), at(27)), after);
    }

    #[test]
    fn what_is_no_ca_does_not_stay() {
        let new = authority();
        for text in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let before = Bundle {
                text: text.to_owned(),
                until: None,
            };
            assert_eq!(bundle(&new, Some(&before), at(0)).text, new, "{text:?}");
        }
    }
}

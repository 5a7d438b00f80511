//! What a registry asks for, and what it is answered.

use std::collections::BTreeMap;
use std::fmt;

use reqwest::RequestBuilder;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

use super::access::Login;

/// What a request proves itself by.
#[derive(Clone)]
pub(super) enum Authorization {
    Basic(Login),
    Bearer(String),
}

impl Authorization {
    /// The request with it.
    pub(super) fn on(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::Basic(login) => request.basic_auth(&login.user, Some(&login.password)),
            Self::Bearer(token) => request.bearer_auth(token),
        }
    }
}

/// Not shown.
impl fmt::Debug for Authorization {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Basic(_) => "Basic",
            Self::Bearer(_) => "Bearer",
        })
    }
}

/// What a registry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password.
    Basic,
    /// A token of a server, with these parameters.
    Bearer(BTreeMap<String, String>),
}

impl Challenge {
    /// Of the headers of a refusal: a token where that will do.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        let (tokens, others): (Vec<_>, Vec<_>) = texts
            .filter_map(challenge)
            .partition(|challenge| matches!(challenge, Self::Bearer(_)));
        tokens.into_iter().chain(others).next()
    }
}

/// A challenge of a kind that is known (RFC 9110, 11.6.1).
fn challenge(value: &str) -> Option<Challenge> {
    let (scheme, mut rest) = value.split_once(' ').unwrap_or((value, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") || rest.is_empty() {
        return None;
    }
    let mut parameters = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if rest.is_empty() {
            return Some(Challenge::Bearer(parameters));
        }
        let (key, after) = rest.split_once('=')?;
        let value;
        (value, rest) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        parameters.insert(key.trim().to_ascii_lowercase(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        let challenged = challenge(
            r#"Bearer realm="https://auth.example/token",service="registry.example", scope="repository:a/b:pull,push",x=y"#,
        )
        .unwrap();
        let Challenge::Bearer(found) = challenged else {
            panic!("{challenged:?}");
        };
        assert_eq!(found["realm"], "https://auth.example/token");
        assert_eq!(found["service"], "registry.example");
        assert_eq!(found["scope"], "repository:a/b:pull,push");
        assert_eq!(found["x"], "y");
        for basic in [
            "Basic realm=\"x\"",
            "basic",
            "BASIC realm=x, charset=\"UTF-8\"",
        ] {
            assert_eq!(challenge(basic), Some(Challenge::Basic), "{basic}");
        }
        for other in ["Negotiate x", "", "Bearer", "Bearer realm=\"x", "Bearer x"] {
            assert_eq!(challenge(other), None, "{other}");
        }
    }
}

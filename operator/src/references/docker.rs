//! Users and passwords of registries in a Secret, as docker and the kubelet read them. Pure.

use std::collections::BTreeMap;

use cloche_crds::image::RegistryRef;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use serde_json::Value;

/// Longest configuration that is read, in bytes.
const LONGEST: usize = 256 << 10;
/// Most entries of one Secret that are tried for one image.
const TRIED: usize = 4;
/// Longest user name or password, in bytes: they go into a header.
const WORD: usize = 8 << 10;

/// A user of a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// What a Secret has for the registry of `image`: the entry for the longest path first. Else what is wrong with it, without what stands in
/// it.
pub(super) fn logins(secret: &Secret, image: &RegistryRef) -> Result<Vec<Login>, String> {
    let mut fitting: Vec<(usize, Value)> = auths(secret)?
        .into_iter()
        .filter_map(|(place, entry)| Some((place_fits(&place, image)?, entry)))
        .collect();
    // Stable: those of equal length stay in the order of their names.
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let logins = fitting.into_iter().take(TRIED);
    let logins = logins.map(|(_, entry)| login(entry));
    Ok(logins
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect())
}

/// The entries by their places, whatever is in them.
fn auths(secret: &Secret) -> Result<BTreeMap<String, Value>, String> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        auths: BTreeMap<String, Value>,
    }
    let kind = secret.type_.as_deref().unwrap_or_default();
    let key = match kind {
        "kubernetes.io/dockerconfigjson" => ".dockerconfigjson",
        "kubernetes.io/dockercfg" => ".dockercfg",
        other => {
            return Err(format!(
                "is of type {other:?}: write one of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg"
            ));
        }
    };
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    let ByteString(text) = data.ok_or_else(|| format!("has no key {key:?}"))?;
    if text.len() > LONGEST {
        return Err(format!(
            "has {} bytes under {key:?}; at most {LONGEST} are allowed",
            text.len()
        ));
    }
    let read = if key == ".dockercfg" {
        serde_json::from_slice(text)
    } else {
        serde_json::from_slice(text).map(|Config { auths }| auths)
    };
    // The error itself would show what it stumbled over.
    read.map_err(|error| {
        format!(
            "has no docker configuration under {key:?} (line {}, column {})",
            error.line(),
            error.column()
        )
    })
}

/// User and password of an entry; none where it has neither, as where it names a program that has them.
fn login(entry: Value) -> Result<Option<Login>, String> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        username: String,
        #[serde(default)]
        password: String,
        /// Both, as `user:password` in base64: counts before the other two.
        #[serde(default)]
        auth: String,
    }
    let malformed = || "has an entry without a proper user and password".to_owned();
    let entry: Entry = serde_json::from_value(entry).map_err(|_| malformed())?;
    let (user, password) = if entry.auth.is_empty() {
        (entry.username, entry.password)
    } else {
        let text = decoded(&entry.auth).ok_or_else(malformed)?;
        let (user, password) = text.split_once(':').ok_or_else(malformed)?;
        (user.to_owned(), password.trim_matches('\0').to_owned())
    };
    if user.is_empty() && password.is_empty() {
        return Ok(None);
    }
    // A colon would end the user's name early (RFC 7617).
    let fits = |text: &str| text.len() <= WORD && !text.chars().any(char::is_control);
    if !fits(&user) || !fits(&password) || user.contains(':') {
        return Err(malformed());
    }
    Ok(Some(Login { user, password }))
}

/// Base64, with or without its padding.
fn decoded(text: &str) -> Option<String> {
    let text = text.trim();
    let padding = "=".repeat(text.len().wrapping_neg() % 4);
    let padded = Value::String(format!("{text}{padding}"));
    let ByteString(bytes) = serde_json::from_value(padded).ok()?;
    String::from_utf8(bytes).ok()
}

/// The length of the path in `place` where that is one for `image`, by the kubelet's rules: `[SCHEME://]HOST[:PORT][/PATH]`, labels of the
/// host may have `*` and `?` in them, the port has to be the same, and the image's path begins with PATH, of which `v1/` and `v2/` are
/// no part.
fn place_fits(place: &str, image: &RegistryRef) -> Option<usize> {
    let place = place
        .strip_prefix("https://")
        .or_else(|| place.strip_prefix("http://"))
        .unwrap_or(place);
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let path = path
        .strip_prefix("v1/")
        .or_else(|| path.strip_prefix("v2/"))
        .unwrap_or(path);
    let path = path.trim_end_matches('/');
    let path = if path == "v1" || path == "v2" {
        ""
    } else {
        path
    };
    let registry = image.registry();
    // Where the registry that references may leave out has its users, by tradition.
    let is_index = || {
        let rest = host.strip_prefix("index.");
        image.has_default_registry() && rest == Some(registry)
    };
    let fits = host_fits(host, registry) || is_index();
    (fits && image.repository().starts_with(path)).then_some(path.len())
}

fn host_fits(pattern: &str, host: &str) -> bool {
    let split = |text: &str| {
        let lower = text.to_ascii_lowercase();
        let (name, port) = match lower.rsplit_once(':') {
            // An address in brackets has colons of its own.
            Some((name, port)) if !port.contains(']') => (name, port),
            Some(_) | None => (lower.as_str(), ""),
        };
        let labels = name.split('.').map(str::to_owned);
        (labels.collect::<Vec<_>>(), port.to_owned())
    };
    let (patterns, pattern_port) = split(pattern);
    let (labels, port) = split(host);
    pattern_port == port
        && patterns.len() == labels.len()
        && patterns
            .iter()
            .zip(&labels)
            .all(|(pattern, label)| label_fits(pattern.as_bytes(), label.as_bytes()))
}

/// `*` is any text, `?` any character.
fn label_fits(pattern: &[u8], label: &[u8]) -> bool {
    // Where the last `*` was, and how much of the label it takes so far.
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < label.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == label[from] => {
                at += 1;
                from += 1;
            }
            Some(_) | None => match star {
                Some((stands, taken)) => {
                    star = Some((stands, taken + 1));
                    at = stands + 1;
                    from = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use cloche_crds::ImageRef;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn image(reference: &str) -> RegistryRef {
        match reference.parse() {
            Ok(ImageRef::Registry(image)) => image,
            other => panic!("{reference}: {other:?}"),
        }
    }

    fn secret(kind: &str, key: &str, text: &str) -> Secret {
        Secret {
            type_: Some(kind.to_owned()),
            data: Some([(key.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        }
    }

    fn config(auths: &Value) -> Secret {
        let text = json!({"auths": auths}).to_string();
        secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &text)
    }

    fn users(secret: &Secret, reference: &str) -> Vec<String> {
        let logins = logins(secret, &image(reference)).unwrap();
        logins.into_iter().map(|login| login.user).collect()
    }

    #[test]
    fn places_are_those_of_the_kubelet() {
        for (place, reference, fits) in [
            ("registry.example", "registry.example/app", true),
            ("https://registry.example", "registry.example/app", true),
            ("https://registry.example/v1/", "registry.example/app", true),
            ("http://registry.example/v2/", "registry.example/app", true),
            ("registry.example/v2", "registry.example/app", true),
            ("registry.example/team", "registry.example/team/app", true),
            (
                "registry.example/v2/team/",
                "registry.example/team/app",
                true,
            ),
            (
                "registry.example/team/app",
                "registry.example/team/app",
                true,
            ),
            ("REGISTRY.example", "registry.example/app", true),
            ("*.example", "registry.example/app", true),
            ("r*y.exam?le", "registry.example/app", true),
            ("registry.example:5000", "registry.example:5000/app", true),
            ("127.0.0.1:5000", "127.0.0.1:5000/app", true),
            ("registry.example/other", "registry.example/team/app", false),
            ("registry.example", "registry.example:5000/app", false),
            ("registry.example:5000", "registry.example/app", false),
            ("*.example", "a.registry.example/app", false),
            ("*", "registry.example/app", false),
            ("*.*:*", "registry.example:5000/app", false),
            ("example", "registry.example/app", false),
            (
                "registry.example.evil.example",
                "registry.example/app",
                false,
            ),
            (
                "evil.example/registry.example",
                "registry.example/app",
                false,
            ),
            ("index.registry.example", "registry.example/app", false),
            ("", "registry.example/app", false),
        ] {
            let found = place_fits(place, &image(reference)).is_some();
            assert_eq!(found, fits, "{place} {reference}");
        }
        let python = image("python");
        let default = python.registry();
        for place in [default.to_owned(), format!("https://index.{default}/v1/")] {
            assert!(place_fits(&place, &python).is_some(), "{place}");
            assert!(place_fits(&place, &image("registry.example/app")).is_none());
        }
    }

    #[test]
    fn the_longest_path_comes_first() {
        let secret = config(&json!({
            "r.example": {"username": "all", "password": "p"},
            "r.example/team/app": {"username": "app", "password": "p"},
            "*.example/team": {"username": "team", "password": "p"},
            "other.example": {"auth": 5},
        }));
        assert_eq!(users(&secret, "r.example/team/app"), ["app", "team", "all"]);
        assert_eq!(users(&secret, "r.example/x"), ["all"]);
        assert_eq!(users(&secret, "elsewhere.example/x"), [""; 0]);
    }

    #[test]
    fn users_stand_in_either_form() {
        // `ann:pass:word`, with padding, without and with NULs.
        for auth in [
            "YW5uOnBhc3M6d29yZA==",
            "YW5uOnBhc3M6d29yZA",
            "YW5uOnBhc3M6d29yZAAA",
        ] {
            let entry = json!({"auth": auth, "username": "other", "email": "a@b"});
            let found = login(entry).unwrap().unwrap();
            assert_eq!(
                (found.user.as_str(), found.password.as_str()),
                ("ann", "pass:word")
            );
        }
        let old = json!({"r.example": {"username": "ann", "password": "p"}}).to_string();
        let old = secret("kubernetes.io/dockercfg", ".dockercfg", &old);
        assert_eq!(users(&old, "r.example/app"), ["ann"]);
        assert!(login(json!({"identitytoken": "x"})).unwrap().is_none());
        assert!(login(json!({})).unwrap().is_none());
        for entry in [
            json!({"auth": "!"}),
            json!({"auth": "YW5u"}),
            json!({"auth": "/w=="}),
            json!({"username": 5}),
            json!({"username": "a:b", "password": "p"}),
            json!({"username": "a", "password": "p\r\nX: y"}),
            json!({"username": "a", "password": "p".repeat(WORD + 1)}),
        ] {
            assert!(login(entry.clone()).is_err(), "{entry}");
        }
    }

    #[test]
    fn what_is_no_configuration_is_told_and_not_shown() {
        let json = "kubernetes.io/dockerconfigjson";
        let long = format!("{{\"auths\": {{}}, \"x\": \"{}\"}}", "y".repeat(LONGEST));
        for (secret, says) in [
            (
                secret("Opaque", ".dockerconfigjson", "{}"),
                "is of type \"Opaque\"",
            ),
            (Secret::default(), "is of type \"\""),
            (
                secret(json, "config.json", "{}"),
                "has no key \".dockerconfigjson\"",
            ),
            (
                secret(json, ".dockerconfigjson", "hunter2"),
                "no docker configuration",
            ),
            (
                secret(json, ".dockerconfigjson", "{\"auths\": \"hunter2\"}"),
                "no docker configuration",
            ),
            (secret(json, ".dockerconfigjson", &long), "at most 262144"),
            (
                config(&json!({"r.example": "hunter2"})),
                "without a proper user",
            ),
        ] {
            let fault = logins(&secret, &image("r.example/app")).err().unwrap();
            assert!(
                fault.contains(says) && !fault.contains("hunter2"),
                "{fault}"
            );
        }
        let empty = secret(json, ".dockerconfigjson", "{}");
        assert_eq!(users(&empty, "r.example/app"), [""; 0]);
    }

    /// What `*` and `?` mean, said plainly.
    fn fits(pattern: &[u8], label: &[u8]) -> bool {
        match (pattern.split_first(), label.split_first()) {
            (None, _) => label.is_empty(),
            (Some((b'*', rest)), _) => (0..=label.len()).any(|taken| fits(rest, &label[taken..])),
            (Some((b'?', rest)), Some((_, after))) => fits(rest, after),
            (Some((byte, rest)), Some((first, after))) => byte == first && fits(rest, after),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn labels_fit_as_is_said(pattern in "[ab*?]{0,8}", label in "[ab]{0,8}") {
            let (pattern, label) = (pattern.as_bytes(), label.as_bytes());
            prop_assert_eq!(label_fits(pattern, label), fits(pattern, label));
        }

        #[test]
        fn anything_is_read_or_refused(text in ".{0,60}", place in ".{0,30}", auth in ".{0,30}") {
            let wild = secret("kubernetes.io/dockercfg", ".dockercfg", &text);
            prop_assert!(logins(&wild, &image("r.example/app")).map_or(true, |found| found.is_empty()));
            let entry = json!({ place.as_str(): {"auth": auth}, "r.example": {"username": "a", "password": "b"} });
            if let Ok(found) = logins(&config(&entry), &image("r.example/app")) {
                prop_assert!(found.iter().any(|login| login.user == "a") || place == "r.example");
            }
        }
    }
}

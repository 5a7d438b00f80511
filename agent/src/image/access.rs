//! By whom registries are asked for an image.

use std::fmt;

use super::digest::Digest;

/// A user of a registry. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Name of the Secret that it is from.
    pub secret: String,
    /// The user's name; no colon.
    pub user: String,
    /// The user's password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Login").field(&self.secret).finish()
    }
}

/// By whom an image's own registry may be asked. Two pulls share nothing unless theirs is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Names of the Secrets that the spec names.
    pub secrets: Vec<String>,
    /// What they have for this registry, in the order in which it is tried. None: it is asked as anybody may ask it.
    pub logins: Vec<Login>,
}

impl Access {
    /// What tells it from another one, without what stands in it.
    pub(super) fn mark(&self) -> Digest {
        let Self { secrets, logins } = self;
        let logins = logins.iter().flat_map(|login| {
            let Login {
                secret,
                user,
                password,
            } = login;
            [secret, user, password]
        });
        let mut all = secrets.len().to_le_bytes().to_vec();
        for text in secrets.iter().chain(logins) {
            all.extend(text.len().to_le_bytes());
            all.extend(text.as_bytes());
        }
        Digest::of(&all)
    }

    /// How a registry was asked that refused, and what to do about that.
    pub(super) fn refused(&self) -> (String, &'static str) {
        let public = "check that its name is right and it is public, or name a Secret with credentials for it in spec.imagePullSecrets";
        if self.secrets.is_empty() {
            return ("without credentials".to_owned(), public);
        }
        if self.logins.is_empty() {
            let secrets = self.secrets.join(", ");
            let how = format!(
                "without credentials, and spec.imagePullSecrets ({secrets}) has none for that registry"
            );
            return (how, public);
        }
        let mut secrets: Vec<&str> = self
            .logins
            .iter()
            .map(|login| login.secret.as_str())
            .collect();
        secrets.dedup();
        let how = format!(
            "to the users in spec.imagePullSecrets ({})",
            secrets.join(", ")
        );
        let advice = "check user and password there, and that the user may pull it";
        (how, advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_one() {
        let login = |secret: &str, user: &str, password: &str| Login {
            secret: secret.to_owned(),
            user: user.to_owned(),
            password: password.to_owned(),
        };
        let access = |secrets: &[&str], logins: &[Login]| Access {
            secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
            logins: logins.to_vec(),
        };
        let all = [
            Access::default(),
            access(&["a"], &[]),
            access(&["a", "b", "c"], &[]),
            access(&[], &[login("a", "b", "c")]),
            access(&["a"], &[login("a", "b", "c")]),
            access(&["a"], &[login("a", "bc", "")]),
            access(&["a"], &[login("a", "b", "d")]),
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(
                    one.mark() == other.mark(),
                    at == other_at,
                    "{at} {other_at}"
                );
            }
        }
    }
}

//! By whom registries are asked for an image.

use std::fmt;

/// A user of a registry. Never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// Names of the Secrets that the spec names.
    pub secrets: Vec<String>,
    /// What they have for this registry, in the order in which it is tried. None: it is asked as anybody may ask it.
    pub logins: Vec<Login>,
}

impl Access {
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

//! What a sandbox took from Secrets and `ConfigMap`s.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Environment variables, by their names. Never shown: only the names are.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Values(BTreeMap<String, String>);

impl Values {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Values {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_and_not_shown() {
        let values = Values::from_iter([("PASSWORD".to_owned(), "hunter2".to_owned())]);
        assert_eq!(format!("{values:?}"), "{\"PASSWORD\"}");
        let kept = serde_json::to_string(&values).unwrap();
        assert_eq!(serde_json::from_str::<Values>(&kept).unwrap(), values);
    }
}

//! What each sandbox and instance found at start becomes.

//! Status files beside the manifests.

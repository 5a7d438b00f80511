//! Instances: every runsc sandbox, pooled or in use.

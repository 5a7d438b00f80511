//! The Go compiler, for programs whose versions a `go.mod` of ours pins.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::Command;

/// What one build may take, its downloads too.
const LIMIT: Duration = Duration::from_mins(20);

/// go in a module's folder, with nothing of the user's settings that would change the product or the pin.
pub(crate) fn go(module: &Path) -> Command {
    Command::new("go")
        .directory(module)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly -trimpath -buildvcs=false")
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off")
        .limit(LIMIT)
}

/// What `go version` says.
pub(crate) fn compiler(module: &Path) -> Result<String> {
    go(module).arg("version").text().with_context(|| {
        format!(
            "find the Go compiler: install Go as {}/go.mod asks for",
            module.display()
        )
    })
}

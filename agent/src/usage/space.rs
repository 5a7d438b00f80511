//! How much is left of the disk that sandboxes write to, and when that is too little.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use tokio::sync::watch;

/// Bytes that are to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it nothing new begins.
    pub pressure: u64,
    /// Below it the sandbox goes that is furthest over its request; 0: never.
    pub eviction: u64,
}

impl Watermarks {
    /// Whether too little is left: what was told stays so until a little more than that is free.
    fn is_pressed(self, was: bool, free: u64) -> bool {
        let margin = if was { self.pressure / 8 } else { 0 };
        free < self.pressure.saturating_add(margin)
    }
}

/// The disk.
#[derive(Clone, Debug)]
pub struct Space {
    /// A folder on it.
    pub folder: PathBuf,
    /// When too little is left.
    pub watermarks: Watermarks,
    /// Whether that is so.
    pub pressed: watch::Sender<bool>,
}

impl Space {
    /// Bytes that are free; `None` where that cannot be seen. Blocking.
    pub(super) fn free(&self) -> Option<u64> {
        free(&self.folder)
    }

    /// Tells whether too little is left.
    pub(super) fn tell(&self, free: u64) {
        self.pressed.send_if_modified(|pressed| {
            let now = self.watermarks.is_pressed(*pressed, free);
            let differs = now != *pressed;
            if differs {
                tracing::warn!(
                    free,
                    pressed = now,
                    "space on the disk that sandboxes write to"
                );
            }
            *pressed = now;
            differs
        });
    }
}

fn free(folder: &Path) -> Option<u64> {
    let told = statvfs(folder).ok()?;
    Some(told.blocks_available().saturating_mul(told.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_below_its_watermark_and_ends_a_little_above() {
        let marks = Watermarks {
            pressure: 800,
            eviction: 400,
        };
        let told = |was, free| marks.is_pressed(was, free);
        assert!(!told(false, 800) && told(false, 799));
        assert!(told(true, 899) && !told(true, 900));
        assert!(free(Path::new("/")).is_some());
        assert_eq!(free(Path::new("/absent")), None);
    }
}

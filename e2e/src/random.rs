//! Loops whose length is scaled, and what is random in them: repeated by its seed.

use anyhow::{Context as _, Result};

/// `SplitMix64`: small, and the same everywhere.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// The next number, from 0 up to `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // Below a usize.
        usize::try_from(self.number() % bound as u64).unwrap_or(0)
    }
}

/// `CLOCHE_SEED`, or one that nobody had before.
pub fn seed() -> Result<u64> {
    if let Ok(seed) = std::env::var("CLOCHE_SEED") {
        return seed.parse().context("CLOCHE_SEED is no number");
    }
    let bytes = std::fs::read("/proc/sys/kernel/random/uuid").context("make a seed")?;
    Ok(bytes.iter().fold(0, |seed: u64, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(*byte))
    }))
}

/// `CLOCHE_SCALE`: how much of each loop and each wait is done, 1 where nothing is said.
pub fn scale() -> Result<f64> {
    std::env::var("CLOCHE_SCALE")
        .map_or(Ok(1.0), |scale| scale.parse())
        .context("CLOCHE_SCALE is no number")
}

/// A number of repetitions: `whole` times [`scale`], and no fewer than `least`.
pub fn scaled(whole: usize, least: usize) -> Result<usize> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a small number of repetitions"
    )]
    let scaled = (whole as f64 * scale()?) as usize;
    Ok(scaled.max(least))
}

//! Samples of one measurement.

use anyhow::{Result, ensure};

/// At least one number, ascending.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Fails without samples, and where one is no number.
    pub(crate) fn new(mut samples: Vec<f64>) -> Result<Self> {
        ensure!(!samples.is_empty(), "nothing was measured");
        ensure!(
            samples.iter().all(|sample| sample.is_finite()),
            "a sample is no number"
        );
        samples.sort_by(f64::total_cmp);
        Ok(Self(samples))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn least(&self) -> f64 {
        self.0[0]
    }

    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// The least sample that `percent` (at most 100) of all samples do not exceed: always one that was measured.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0[rank.saturating_sub(1).min(self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_the_nearest_rank() {
        let of = |count: u32| Samples::new((1..=count).rev().map(f64::from).collect()).unwrap();
        // Count, then the sample at 0, 50, 95 and 100 per cent.
        let cases: [(u32, [f64; 4]); 6] = [
            (1, [1.0, 1.0, 1.0, 1.0]),
            (2, [1.0, 1.0, 2.0, 2.0]),
            (3, [1.0, 2.0, 3.0, 3.0]),
            (20, [1.0, 10.0, 19.0, 20.0]),
            (100, [1.0, 50.0, 95.0, 100.0]),
            (200, [1.0, 100.0, 190.0, 200.0]),
        ];
        for (count, expected) in cases {
            let samples = of(count);
            let found = [0, 50, 95, 100].map(|percent| samples.percentile(percent));
            assert_eq!(
                found.map(f64::to_bits),
                expected.map(f64::to_bits),
                "{count}"
            );
            assert_eq!(samples.least().to_bits(), 1.0_f64.to_bits());
        }
    }

    #[test]
    fn no_samples_and_no_numbers_are_refused() {
        assert!(Samples::new(Vec::new()).is_err());
        assert!(Samples::new(vec![1.0, f64::NAN]).is_err());
        assert!(Samples::new(vec![f64::INFINITY]).is_err());
    }
}

//! Whom to evict when the sandboxes of a node together use up their budget. Pure.

/// A sandbox that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its instance.
    pub id: String,
    /// Memory that it requested, in bytes.
    pub request: u64,
    /// Memory that it uses, in bytes.
    pub memory: u64,
}

/// Above so many hundredths of the budget somebody has to go: below it the kernel would soon choose, and not by requests.
const WATERMARK: u64 = 90;

/// Above so many hundredths everybody is looked at each time.
const NEAR: u64 = 75;

/// Whether `total` is so near `budget` that somebody may soon have to go.
pub fn is_near(budget: u64, total: u64) -> bool {
    total > budget / 100 * NEAR
}

/// The one furthest above its request, once `total` is above 90 % of `budget`; nobody who is within it.
pub fn choose(budget: u64, total: u64, candidates: &[Candidate]) -> Option<String> {
    if total <= budget / 100 * WATERMARK {
        return None;
    }
    candidates
        .iter()
        .filter(|one| one.memory > one.request)
        .max_by_key(|one| one.memory - one.request)
        .map(|one| one.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: &str, request: u64, memory: u64) -> Candidate {
        Candidate {
            id: id.to_owned(),
            request,
            memory,
        }
    }

    #[test]
    fn the_one_furthest_above_its_request_goes() {
        let all = [
            candidate("within", 500, 400),
            candidate("a-bit", 100, 150),
            candidate("far", 10, 350),
        ];
        assert_eq!(choose(1000, 899, &all), None);
        assert_eq!(choose(1000, 900, &all), None);
        assert_eq!(choose(1000, 901, &all), Some("far".to_owned()));
        assert_eq!(
            choose(1000, 2000, &all[..1]),
            None,
            "nobody within its request is evicted"
        );
        assert_eq!(choose(1000, 2000, &[]), None);
    }
}

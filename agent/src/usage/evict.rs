//! Whom to evict when the sandboxes of a node together use up their memory, or its disk. Pure.

/// A sandbox that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its instance.
    pub id: String,
    /// Bytes that it requested.
    pub request: u64,
    /// Bytes that it uses.
    pub used: u64,
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
    furthest(candidates)
}

/// The one furthest above its request.
pub fn furthest(candidates: &[Candidate]) -> Option<String> {
    candidates
        .iter()
        .filter(|one| one.used > one.request)
        .max_by_key(|one| one.used - one.request)
        .map(|one| one.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: &str, request: u64, used: u64) -> Candidate {
        Candidate {
            id: id.to_owned(),
            request,
            used,
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

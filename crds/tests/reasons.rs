//! `docs/reasons.md` against the code.

#![allow(clippy::panic)] // a whole file of tests

use cloche_crds::{FailureDomain, Reason};

const DOCUMENT: &str = include_str!("../../docs/reasons.md");

/// The cells of the table's rows.
fn rows() -> Vec<Vec<&'static str>> {
    let table = DOCUMENT.lines().filter(|line| line.starts_with('|'));
    table
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

fn domains(reason: Reason) -> String {
    let usual = reason.default_domain();
    let other = [
        FailureDomain::Workload,
        FailureDomain::User,
        FailureDomain::Policy,
        FailureDomain::Infrastructure,
    ]
    .into_iter()
    .filter(|domain| *domain != usual && reason.allows(*domain));
    let names: Vec<&str> = std::iter::once(usual)
        .chain(other)
        .map(FailureDomain::as_str)
        .collect();
    names.join(" or ")
}

#[test]
fn the_document_tells_each_reason_as_the_code_does() {
    let wanted: Vec<[String; 4]> = Reason::ALL
        .into_iter()
        .map(|reason| {
            let retry = if reason.retry_can_help() { "yes" } else { "no" };
            [
                reason.to_string(),
                reason.phase().to_string(),
                domains(reason),
                retry.to_owned(),
            ]
        })
        .collect();
    let found: Vec<[String; 4]> = rows()
        .iter()
        .map(|cells| std::array::from_fn(|at| cells[at].to_owned()))
        .collect();
    assert_eq!(found, wanted);
}

#[test]
fn the_document_says_what_each_means_what_proves_it_and_which_exit_code_is_fixed() {
    for cells in rows() {
        let [name, _, _, _, means, proof] = cells[..] else {
            panic!("{cells:?}")
        };
        assert!(means.len() > 10, "{name}: {means:?}");
        assert!(proof.len() > 10, "{name}: {proof:?}");
        let reason = Reason::ALL
            .into_iter()
            .find(|reason| reason.as_str() == name);
        if let Some(code) = reason.and_then(Reason::exit_code) {
            assert!(means.contains(&format!("exit code {code}")), "{name}");
        }
    }
}

#[test]
fn the_document_says_of_which_ends_there_are_no_events() {
    let quiet = Reason::ALL
        .into_iter()
        .filter(|reason| !reason.is_worth_an_event());
    let names: Vec<&str> = quiet.map(Reason::as_str).collect();
    let (last, others) = names.split_last().unwrap();
    let sentence = format!(
        "every end but {} and {last} is also told as an event",
        others.join(", ")
    );
    assert!(DOCUMENT.contains(&sentence), "{sentence}");
}

//! The fault points in the code against the table in `docs/ARCHITECTURE.md`.

#![allow(clippy::expect_used)] // a whole file of tests

use std::collections::BTreeSet;
use std::path::Path;

const DOCUMENT: &str = include_str!("../../docs/ARCHITECTURE.md");

/// Names in `fault::point("NAME")` below `folder`.
fn points(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            points(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            let names = text.split("fault::point(\"").skip(1);
            found.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
}

#[test]
fn the_document_names_every_fault_point_and_no_other() {
    let mut found = BTreeSet::new();
    points(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    let section = DOCUMENT
        .split_once("### Fault points")
        .expect("the section is there")
        .1;
    let section = section.split("\n## ").next().unwrap_or(section);
    let named: BTreeSet<String> = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        // The names of states, which the driver passes as they are.
        .filter(|name| !name.starts_with(char::is_uppercase))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, found);
}

//! `/proc/PID/stat`: parent, session, state and start time of a process. Source: `proc_pid_stat(5)`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

/// Longer than any line of the kernel (52 numbers and a name of at most 64 bytes).
const MAX_LINE: u64 = 4096;

/// The fields of `/proc/PID/stat` that we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// `Z` is a zombie, `X` one that is just going.
    pub(super) state: char,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// Clock ticks since boot. With the pid and the boot id it names a process for ever.
    pub(super) start_time: u64,
}

/// Reads the line of `pid`. `None`: there is no such process.
pub(super) fn read(pid: i32) -> io::Result<Option<Stat>> {
    let mut line = Vec::new();
    let read = std::fs::File::open(format!("/proc/{pid}/stat"))
        .and_then(|file| file.take(MAX_LINE).read_to_end(&mut line));
    match read {
        Ok(_) => parse(&line).map(Some).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat is not as proc_pid_stat(5) says"),
            )
        }),
        // The read of a process that ended between open and read says ESRCH.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(nix::libc::ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The name in parentheses is chosen by the process, may hold blanks and parentheses: what counts follows the last one.
fn parse(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// Every process of the machine. Those that end meanwhile are left out.
pub(super) fn all() -> io::Result<BTreeMap<i32, Stat>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(stat) = read(pid)? {
            found.insert(pid, stat);
        }
    }
    Ok(found)
}

/// `root` and all that descend from it now, zombies left out. Reads all of `/proc`: some milliseconds, blocking.
pub fn descendants(root: i32) -> io::Result<BTreeSet<i32>> {
    Ok(below(&all()?, root))
}

fn below(all: &BTreeMap<i32, Stat>, root: i32) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (pid, stat) in all {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let mut found = BTreeSet::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let alive = all
            .get(&pid)
            .is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'));
        // The guard ends loops of a table that changed while it was read.
        if alive && found.insert(pid) {
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(state: char, parent: i32) -> Stat {
        Stat {
            state,
            parent,
            session: 1,
            start_time: 1,
        }
    }

    #[test]
    fn a_name_with_parentheses_and_blanks_does_not_shift_the_fields() {
        let line = b"42 (a) Z 1 (b) S 7 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0 0\n";
        assert_eq!(
            parse(line),
            Some(Stat {
                state: 'S',
                parent: 7,
                session: 43,
                start_time: 987_654
            })
        );
    }

    #[test]
    fn a_short_or_foreign_line_is_refused() {
        for line in [
            &b""[..],
            b"42",
            b"42 (x",
            b"42 (x) S 1 2",
            b"42 (x) S a b c",
        ] {
            assert_eq!(parse(line), None, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn descendants_follow_parents_and_leave_zombies_out() {
        let all = BTreeMap::from([
            (1, stat('S', 0)),
            (5, stat('S', 1)),
            (6, stat('R', 5)),
            (7, stat('Z', 5)),
            (8, stat('S', 6)),
            (9, stat('S', 1)),
        ]);
        assert_eq!(below(&all, 5), BTreeSet::from([5, 6, 8]));
        assert_eq!(below(&all, 99), BTreeSet::new());
    }

    #[test]
    fn this_process_is_there_and_an_impossible_pid_is_not() {
        let pid = i32::try_from(std::process::id()).expect("a pid is positive");
        assert!(read(pid).expect("readable").is_some());
        assert_eq!(read(i32::MAX).expect("not an error"), None);
    }
}

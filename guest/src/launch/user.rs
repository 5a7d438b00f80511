//! Who a command runs as, by the guest's own /etc/passwd and /etc/group. Both are hostile: bounded bytes in, numbers out, and
//! no library of the image is ever asked.

use cloche_proto::frame::ExitCause;

use crate::core::Failure;

/// The most bytes read of either file.
pub(super) const MAX_FILE: usize = 1024 * 1024;
/// The most supplementary groups.
const MAX_GROUPS: usize = 1024;

/// A user as the kernel knows one, and what the environment needs of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, sorted, each once.
    pub groups: Vec<u32>,
    /// Absolute home directory; `/` where none is known.
    pub home: Vec<u8>,
}

struct Entry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

/// Resolves `uid[:gid]` or `name[:group]`; numbers need no file. A number without a group takes the group of its entry in
/// `passwd`, or 0. The empty user is `0:0`.
pub fn resolve(
    user: &str,
    extra: &[u32],
    passwd: &[u8],
    group: &[u8],
) -> Result<Identity, Failure> {
    let user = if user.is_empty() { "0:0" } else { user };
    let (user, wanted) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let entry = entries(passwd).find(|entry| match number(user.as_bytes()) {
        Some(uid) => entry.uid == uid,
        None => !user.is_empty() && entry.name == user.as_bytes(),
    });
    let uid = match (number(user.as_bytes()), &entry) {
        (Some(uid), _) => uid,
        (None, Some(entry)) => entry.uid,
        (None, None) => {
            return Err(unknown(format!(
                "user {user:?} is not in the sandbox's /etc/passwd"
            )));
        }
    };
    let gid = match wanted {
        None => entry.as_ref().map_or(0, |entry| entry.gid),
        Some(wanted) => number(wanted.as_bytes())
            .or_else(|| {
                lines(group)
                    .filter_map(group_line)
                    .find(|(name, ..)| !wanted.is_empty() && *name == wanted.as_bytes())
                    .map(|(_, gid, _)| gid)
            })
            .ok_or_else(|| {
                unknown(format!(
                    "group {wanted:?} is not in the sandbox's /etc/group"
                ))
            })?,
    };
    let mut groups: Vec<u32> = extra.to_vec();
    if let Some(entry) = &entry {
        groups.extend(
            lines(group)
                .filter_map(group_line)
                .filter(|(_, _, members)| {
                    members
                        .split(|byte| *byte == b',')
                        .any(|member| !member.is_empty() && member == entry.name)
                })
                .map(|(_, gid, _)| gid)
                .take(MAX_GROUPS),
        );
    }
    groups.sort_unstable();
    groups.dedup();
    groups.truncate(MAX_GROUPS);
    if groups.contains(&u32::MAX) {
        return Err(unknown("4294967295 is no group".to_owned()));
    }
    let home = entry
        .map(|entry| entry.home)
        .filter(|home| home.starts_with(b"/"))
        .unwrap_or(b"/");
    Ok(Identity {
        uid,
        gid,
        groups,
        home: home.to_vec(),
    })
}

fn unknown(message: String) -> Failure {
    Failure::new(ExitCause::BadUser, message)
}

/// A user or group number. The last of 32 bits means "unchanged" to the kernel, and is none.
fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text)
        .ok()?
        .parse()
        .ok()
        .filter(|number| *number != u32::MAX)
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file[..file.len().min(MAX_FILE)].split(|byte| *byte == b'\n')
}

fn entries(passwd: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    lines(passwd).filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next()?;
        let uid = number(fields.nth(1)?)?;
        let gid = number(fields.next()?)?;
        let home = fields.nth(1).unwrap_or_default();
        Some(Entry {
            name,
            uid,
            gid,
            home,
        })
    })
}

fn group_line(line: &[u8]) -> Option<(&[u8], u32, &[u8])> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next()?;
    let gid = number(fields.nth(1)?)?;
    Some((name, gid, fields.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n\
        broken\n\
        worse:x:abc:1::/\n\
        ann:x:1000:1000:Ann:/home/ann:/bin/sh\n\
        homeless:x:1001:100::relative:/bin/sh\n\
        ann:x:7:7::/second:/bin/sh\n\
        77:x:5:5::/five:/bin/sh";
    const GROUP: &[u8] = b"root:x:0:\n\
        users:x:100:ann,bob\n\
        bad:x:nope:ann\n\
        docker:x:999:bob,ann\n\
        annoying:x:998:annabel\n\
        short:x:42";

    fn ids(user: &str) -> Result<(u32, u32, Vec<u32>, String), ExitCause> {
        resolve(user, &[], PASSWD, GROUP)
            .map(|id| {
                let home = String::from_utf8(id.home).unwrap();
                (id.uid, id.gid, id.groups, home)
            })
            .map_err(|failure| failure.cause)
    }

    #[test]
    fn users_are_those_of_the_guest() {
        let ann = vec![100, 999];
        for (user, expected) in [
            ("", (0, 0, vec![], "/root")),
            ("root", (0, 0, vec![], "/root")),
            ("ann", (1000, 1000, ann.clone(), "/home/ann")),
            ("ann:users", (1000, 100, ann.clone(), "/home/ann")),
            ("ann:5", (1000, 5, ann.clone(), "/home/ann")),
            ("1000", (1000, 1000, ann.clone(), "/home/ann")),
            ("1000:short", (1000, 42, ann, "/home/ann")),
            ("homeless", (1001, 100, vec![], "/")),
            ("4242", (4242, 0, vec![], "/")),
            ("4242:4243", (4242, 4243, vec![], "/")),
            ("77", (77, 0, vec![], "/")),
        ] {
            let (uid, gid, groups, home) = expected;
            assert_eq!(
                ids(user),
                Ok((uid, gid, groups, home.to_owned())),
                "user {user:?}"
            );
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        for user in [
            "nobody",
            "ann:nogroup",
            ":100",
            "ann:",
            "-1",
            "+1",
            "4294967295",
            "4294967296",
            "99999999999",
            "worse",
            "1 ",
            "0x0",
        ] {
            assert_eq!(ids(user), Err(ExitCause::BadUser), "user {user:?}");
        }
    }

    #[test]
    fn numbers_need_no_files_and_extra_groups_are_added_once() {
        let id = resolve("12:34", &[7, 5, 7], b"", b"").unwrap();
        assert_eq!((id.uid, id.gid, id.groups), (12, 34, vec![5, 7]));
    }

    proptest! {
        #[test]
        fn hostile_files_are_survived(user in ".{0,20}", passwd in prop::collection::vec(any::<u8>(), 0..300), group in "[a-c:0-9,\n]{0,200}") {
            if let Ok(id) = resolve(&user, &[], &passwd, group.as_bytes()) {
                prop_assert!(id.groups.len() <= MAX_GROUPS && id.home.starts_with(b"/"));
                prop_assert!(id.uid != u32::MAX && id.gid != u32::MAX);
            }
        }
    }
}

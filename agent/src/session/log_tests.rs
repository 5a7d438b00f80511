use super::*;

fn id(name: &str) -> CommandId {
    CommandId::parse(name).unwrap()
}

fn caps() -> Caps {
    Caps {
        session: 64 * 1024,
        sandbox: 160 * 1024,
        piece: 16 * 1024,
    }
}

struct Session {
    id: CommandId,
    tails: Arc<Tails>,
}

impl Session {
    fn new(root: &Path, name: &str) -> Self {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        Self {
            id: id(name),
            tails: Arc::new(Tails::new(&directory)),
        }
    }

    fn job(&self, stream: Stream, data: Vec<u8>) -> Job {
        Job::Append {
            tails: Arc::clone(&self.tails),
            fresh: Fresh {
                id: self.id.clone(),
                stream,
                offset: 0,
                data,
            },
        }
    }

    fn span(&self, stream: Stream) -> Span {
        *self.tails.tail(stream).span.borrow()
    }
}

/// The byte at an offset of a test's stream. Never zero, so that a hole can be told from it.
fn byte(offset: u64) -> u8 {
    u8::try_from(offset % 251 + 1).unwrap()
}

fn run(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(byte).collect()
}

fn check(session: &Session, stream: Stream) {
    let span = session.span(stream);
    let bytes = fs::read(&session.tails.tail(stream).path).unwrap();
    assert_eq!(bytes.len() as u64, span.length);
    for offset in span.head..span.length {
        assert_eq!(
            bytes[usize::try_from(offset).unwrap()],
            byte(offset),
            "at {offset}"
        );
    }
}

#[test]
fn a_flood_stays_within_its_cap_and_offsets_stay_true() {
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    let session = Session::new(root.path(), "a");
    let mut store = Store::new(caps());
    let mut length = 0;
    for piece in [100, 8000, 64 * 1024, 1, 30_000].iter().cycle().take(50) {
        let done = store.apply(vec![session.job(Stream::Stdout, run(length, *piece))]);
        length += piece;
        assert!(done.error.is_none());
        assert_eq!(done.written, [(session.id.clone(), Stream::Stdout, length)]);
        let span = session.span(Stream::Stdout);
        assert!(span.length - span.head <= caps().session);
        check(&session, Stream::Stdout);
    }
    let file = fs::metadata(&session.tails.tail(Stream::Stdout).path).unwrap();
    assert_eq!(file.len(), length);
    assert!(
        file.blocks() * 512 <= caps().session + 2 * BLOCK,
        "{} bytes on disk",
        file.blocks() * 512
    );
    // What was dropped is still known after a restart, though the kept part begins with what looks like anything.
    let loaded = Tails::load(&root.path().join("a")).unwrap();
    assert_eq!(
        *loaded.tail(Stream::Stdout).span.borrow(),
        session.span(Stream::Stdout)
    );
    assert_eq!(loaded.lengths(), [length, 0]);
}

#[test]
fn zeros_that_a_command_printed_are_kept_as_output() {
    let root = tempfile::tempdir().unwrap();
    let session = Session::new(root.path(), "a");
    let mut store = Store::new(caps());
    store.apply(vec![session.job(Stream::Stdout, vec![0; 40_000])]);
    let loaded = Tails::load(&root.path().join("a")).unwrap();
    let span = *loaded.tail(Stream::Stdout).span.borrow();
    assert_eq!((span.head, span.length), (0, 40_000));
}

#[test]
fn the_largest_pays_for_the_sandbox_cap() {
    let root = tempfile::tempdir().unwrap();
    let sessions: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .map(|name| Session::new(root.path(), name))
        .collect();
    let mut store = Store::new(caps());
    store.apply(vec![sessions[0].job(Stream::Stderr, run(0, 5000))]);
    for _ in 0..20 {
        for session in &sessions[1..] {
            let from = session.span(Stream::Stdout).length;
            let done = store.apply(vec![session.job(Stream::Stdout, run(from, 10_000))]);
            assert!(done.error.is_none());
        }
        let kept: u64 = sessions.iter().map(|session| session.tails.kept()).sum();
        assert!(kept <= caps().sandbox);
        assert_eq!(kept, store.kept);
    }
    assert_eq!(
        sessions[0].span(Stream::Stderr),
        Span {
            head: 0,
            length: 5000
        }
    );
    for session in &sessions[1..] {
        check(session, Stream::Stdout);
    }
    let done = store.apply(vec![Job::Remove(
        sessions[1].id.clone(),
        Arc::clone(&sessions[1].tails),
    )]);
    assert_eq!(done.removed, [sessions[1].id.clone()]);
    assert!(!root.path().join("b").exists());
    let kept: u64 = [0, 2, 3].iter().map(|at| sessions[*at].tails.kept()).sum();
    assert_eq!(store.kept, kept);
}

#[test]
fn many_sessions_do_not_hold_many_files_open() {
    let root = tempfile::tempdir().unwrap();
    let mut store = Store::new(caps());
    let sessions: Vec<_> = (0..200)
        .map(|n| Session::new(root.path(), &format!("s{n}")))
        .collect();
    for round in 0..2 {
        for session in &sessions {
            let done = store.apply(vec![session.job(Stream::Stdout, run(round * 10, 10))]);
            assert!(done.error.is_none());
            assert!(store.open <= OPEN_FILES + 2);
        }
    }
    for session in &sessions {
        check(session, Stream::Stdout);
    }
}

#[test]
fn a_head_that_cannot_be_read_counts_all_as_dropped() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("stdout"), b"0123456789").unwrap();
    fs::write(root.path().join(HEADS), b"123").unwrap();
    let tails = Tails::load(root.path()).unwrap();
    assert_eq!(
        *tails.tail(Stream::Stdout).span.borrow(),
        Span {
            head: 10,
            length: 10
        }
    );
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        nix::mount::umount2(self.0, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

/// On a file system of 1 MiB of its own. Needs root.
#[test]
fn a_full_disk_drops_old_output_and_then_refuses() {
    use nix::mount::{MsFlags, mount};
    assert!(
        nix::unistd::geteuid().is_root(),
        "run as root: this test mounts a tmpfs"
    );
    let root = tempfile::tempdir().unwrap();
    mount(
        None::<&str>,
        root.path(),
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=1m"),
    )
    .unwrap();
    let unmount = Unmount(root.path());
    let session = Session::new(root.path(), "a");
    let mut store = Store::new(Caps {
        session: 64 << 20,
        sandbox: 256 << 20,
        piece: 128 * 1024,
    });
    let mut length = 0;
    for _ in 0..100 {
        let done = store.apply(vec![session.job(Stream::Stdout, run(length, 60_000))]);
        assert!(done.error.is_none(), "{:?}", done.error);
        length += 60_000;
    }
    assert_eq!(session.span(Stream::Stdout).length, length);
    assert!(session.span(Stream::Stdout).head > 0);
    check(&session, Stream::Stdout);
    // Nothing of its own to drop: it is refused, and goes on once there is room.
    drop(store);
    fs::remove_dir_all(root.path().join("a")).unwrap();
    let session = Session::new(root.path(), "b");
    let mut store = Store::new(caps());
    let done = store.apply(vec![session.job(Stream::Stdout, Vec::new())]);
    assert!(done.error.is_none());
    let filler = root.path().join("filler");
    let file = open_at(&filler).unwrap();
    let mut size = 0;
    while let Ok(count) = file.write_at(&[1; 4096], size) {
        size += count as u64;
    }
    let done = store.apply(vec![session.job(Stream::Stdout, run(0, 60_000))]);
    assert!(done.error.expect("no room").is_full());
    assert_eq!(session.span(Stream::Stdout), Span::default());
    fs::remove_file(&filler).unwrap();
    drop(file);
    let done = store.apply(vec![session.job(Stream::Stdout, run(0, 60_000))]);
    assert!(done.error.is_none(), "goes on once there is room");
    check(&session, Stream::Stdout);
    drop(store);
    drop(unmount);
}

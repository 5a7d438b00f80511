use cloche_proto::frame::{Exit, Forget, SignalScope, Stdin, codec::PREFIX};
use proptest::prelude::*;

use super::*;

const NONCE_BYTES: [u8; NONCE] = *b"0123456789abcdef";

fn down(kind: DownKind) -> Vec<u8> {
    encode(&Down { kind: Some(kind) }).unwrap()
}

fn hello(nonce: [u8; NONCE], held: Vec<Position>) -> Vec<u8> {
    down(DownKind::Hello(Hello {
        nonce: nonce.to_vec(),
        version: VERSION,
        held,
    }))
}

fn create(id: &str, spec: SessionSpec) -> Vec<u8> {
    down(DownKind::Create(Create {
        command_id: id.to_owned(),
        spec: Some(spec),
    }))
}

/// A core with an epoch open and sessions 1, 2, … of these specs, all running.
fn running(specs: &[SessionSpec]) -> Core {
    let mut core = Core::default();
    core.receive(&hello(NONCE_BYTES, Vec::new()), 0).unwrap();
    for (number, spec) in (1..).zip(specs) {
        let effects = core
            .receive(&create(&format!("s{number}"), spec.clone()), 0)
            .unwrap();
        assert!(matches!(effects.as_slice(), [Effect::Spawn(serial, _)] if *serial == number));
        core.spawned(number, 100);
        core.started(number);
    }
    said(&mut core);
    core
}

fn take(core: &mut Core) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = core.unwritten().to_vec();
        if bytes.is_empty() {
            return all;
        }
        core.wrote(bytes.len());
        all.extend(bytes);
    }
}

/// What the core says now. An epoch's marker is skipped.
fn said(core: &mut Core) -> Vec<UpKind> {
    let bytes = take(core);
    let mut decoder = Decoder::default();
    let rest = bytes.strip_prefix(&NONCE_BYTES).unwrap_or(&bytes);
    let mut kinds = Vec::new();
    for block in rest.chunks(1000) {
        decoder.push(block);
        while let Some(up) = decoder.next::<Up>().unwrap() {
            kinds.extend(up.kind);
        }
    }
    kinds
}

fn reports(core: &mut Core) -> Vec<Report> {
    said(core)
        .into_iter()
        .filter_map(|kind| match kind {
            UpKind::Report(report) => Some(report),
            _ => None,
        })
        .collect()
}

#[test]
fn nothing_counts_and_nothing_is_said_before_a_hello() {
    let mut core = Core::default();
    let frames = create("a", SessionSpec::default());
    assert_eq!(core.receive(&frames, 0), Ok(Vec::new()));
    assert!(core.unwritten().is_empty());
    // Half a hello, then new pipes: the half must not join on to what follows.
    let frame = hello(NONCE_BYTES, Vec::new());
    core.receive(&frame[..PREFIX + 3], 0).unwrap();
    core.reset_channel();
    core.receive(&frame, 0).unwrap();
    assert!(matches!(said(&mut core).as_slice(), [UpKind::HelloAck(_)]));
}

#[test]
fn create_is_get_or_create() {
    let mut core = running(&[SessionSpec::default()]);
    assert_eq!(
        core.receive(&create("s1", SessionSpec::default()), 0),
        Ok(Vec::new())
    );
    assert_eq!(reports(&mut core).len(), 1);
    core.exited(1, 3 << 8, [0, 0], 10);
    let forget = down(DownKind::Forget(Forget {
        command_id: "s1".to_owned(),
    }));
    assert_eq!(core.receive(&forget, 0), Ok(vec![Effect::Drop(1)]));
    let effects = core
        .receive(&create("s1", SessionSpec::default()), 0)
        .unwrap();
    assert!(matches!(effects.as_slice(), [Effect::Spawn(2, _)]));
}

#[test]
fn running_session_is_not_forgotten() {
    let mut core = running(&[SessionSpec::default()]);
    let forget = down(DownKind::Forget(Forget {
        command_id: "s1".to_owned(),
    }));
    assert_eq!(core.receive(&forget, 0), Ok(Vec::new()));
    assert!(core.session(1).is_some());
}

#[test]
fn sessions_are_bounded_and_the_refused_one_is_told() {
    let mut core = running(&vec![SessionSpec::default(); MAX_SESSIONS]);
    assert_eq!(
        core.receive(&create("more", SessionSpec::default()), 0),
        Ok(Vec::new())
    );
    let reports = reports(&mut core);
    let [report] = reports.as_slice() else {
        panic!("{reports:?}")
    };
    let exit = report.exit.as_ref().unwrap();
    assert_eq!(
        (report.command_id.as_str(), exit.code, exit.cause),
        ("more", 126, ExitCause::NoResources as i32)
    );
    // An epoch that begins with all of them, each with the longest message, fits one frame.
    let failure = Failure::new(ExitCause::BadUser, "é".repeat(1000));
    for serial in 1..=MAX_SESSIONS as u64 {
        core.failed(serial, &failure, 0);
    }
    core.receive(&hello(NONCE_BYTES, Vec::new()), 0).unwrap();
    let said = said(&mut core);
    assert!(
        matches!(said.first(), Some(UpKind::HelloAck(ack)) if ack.sessions.len() == MAX_SESSIONS)
    );
}

#[test]
fn reports_are_one_however_much_changed() {
    let mut core = running(&[SessionSpec {
        stdin: true,
        ..SessionSpec::default()
    }]);
    for offset in 0..50 {
        let stdin = down(DownKind::Stdin(Stdin {
            command_id: "s1".to_owned(),
            offset: 2 * offset,
            data: vec![1, 2],
            end: false,
        }));
        core.receive(&stdin, 0).unwrap();
        core.stdin_drained(1, 2);
    }
    core.output_ended(1, Stream::Stderr);
    core.exited(1, 9, [0, 0], 5);
    let reports = reports(&mut core);
    let [report] = reports.as_slice() else {
        panic!("{reports:?}")
    };
    assert_eq!((report.stdin_offset, report.stdin_drained), (100, 100));
    assert_eq!(
        report.exit,
        Some(Exit {
            code: 137,
            signal: 9,
            duration_ms: 5,
            ..Exit::default()
        })
    );
}

#[test]
fn time_that_runs_out_kills_once_and_is_told() {
    let mut core = running(&[
        SessionSpec {
            timeout_ms: 100,
            ..SessionSpec::default()
        },
        SessionSpec::default(),
    ]);
    assert_eq!(core.next_deadline(), Some(100));
    assert_eq!(core.overdue(99), Vec::new());
    assert_eq!(core.overdue(100), vec![Effect::Kill(1)]);
    assert_eq!(
        (core.overdue(101), core.next_deadline()),
        (Vec::new(), None)
    );
    core.exited(1, 9, [0, 0], 102);
    let reports = reports(&mut core);
    assert_eq!(
        reports[0].exit.as_ref().unwrap().cause,
        ExitCause::TimedOut as i32
    );
}

#[test]
fn session_that_never_started_says_why_on_its_stderr() {
    let mut core = running(&[SessionSpec::default()]);
    let failure = Failure::new(ExitCause::NotFound, "x: not\nfound");
    core.failed(1, &failure, 7);
    let said = said(&mut core);
    let data: Vec<_> = said
        .iter()
        .filter_map(|kind| match kind {
            UpKind::Data(data) => Some((data.stream, data.data.as_slice())),
            _ => None,
        })
        .collect();
    assert_eq!(
        data,
        [(
            Stream::Stderr as i32,
            b"cloche-init: x: not found\n".as_slice()
        )]
    );
    assert!(said.iter().any(|kind| matches!(
        kind,
        UpKind::Report(report) if report.exit.as_ref().is_some_and(|exit| exit.code == 127
            && exit.message == "x: not found") && report.stderr_end == Some(26)
    )));
}

#[test]
fn killed_spawner_ends_every_session_and_is_told_in_every_epoch() {
    let mut core = running(&[SessionSpec::default()]);
    core.spawner_killed("gone".to_owned(), 3);
    let is_fault = |kind: &UpKind| matches!(kind, UpKind::Fault(fault) if fault.message == "gone");
    let first = said(&mut core);
    assert!(first.iter().any(is_fault));
    core.receive(&hello(NONCE_BYTES, Vec::new()), 0).unwrap();
    assert!(said(&mut core).iter().any(is_fault));
    core.receive(&create("new", SessionSpec::default()), 0)
        .unwrap();
    assert_eq!(
        reports(&mut core)[0].exit.as_ref().unwrap().cause,
        ExitCause::NoResources as i32
    );
}

#[test]
fn signals_are_checked() {
    let mut core = running(&[SessionSpec::default()]);
    let mut signal = |id: &str, signal, scope: i32| {
        let frame = down(DownKind::Signal(cloche_proto::frame::Signal {
            command_id: id.to_owned(),
            signal,
            scope,
        }));
        core.receive(&frame, 0).unwrap()
    };
    let leader = SignalScope::Leader as i32;
    let tree = SignalScope::Tree as i32;
    assert_eq!(
        signal("s1", 15, leader),
        [Effect::Signal(1, 15, SignalScope::Leader)]
    );
    assert_eq!(signal("s1", 9, tree), [Effect::Kill(1)]);
    for (id, number, scope) in [
        ("s1", 0, leader),
        ("s1", 65, leader),
        ("s1", -9, tree),
        ("s1", 15, 0),
        ("s1", 15, 99),
        ("nobody", 15, leader),
    ] {
        assert_eq!(signal(id, number, scope), [], "{id} {number} {scope}");
    }
}

#[test]
fn flood_does_not_keep_others_from_their_turn() {
    let mut core = running(&vec![SessionSpec::default(); 3]);
    core.output(1, Stream::Stdout, &vec![7; 1024 * 1024]);
    core.output(3, Stream::Stdout, b"small");
    core.receive(&down(DownKind::Ping(Ping { token: 5 })), 0)
        .unwrap();
    let first = core.unwritten().len();
    assert!(first <= OUTBOX + MAX_DATA + 200);
    let kinds = said(&mut core);
    assert_eq!(kinds[0], UpKind::Pong(Ping { token: 5 }));
    let small = kinds
        .iter()
        .position(|kind| matches!(kind, UpKind::Data(data) if data.data == b"small"));
    assert!(small.unwrap() <= 2, "{small:?}");
}

/// What happens between a holder and its agents.
#[derive(Clone, Debug)]
enum Step {
    /// A command writes.
    Write(Serial, bool, usize),
    /// So many bytes get through the pipe.
    Carry(usize),
    /// The agent acknowledges what it has of a stream.
    Acknowledge(Serial, bool),
    /// The agent opens a new epoch over the same pipe.
    Hello,
    /// The agent died; a new one comes with new pipes. What was under way is lost.
    NewPipes,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let session = 1u64..4;
    prop::collection::vec(
        prop_oneof![
            4 => (session.clone(), any::<bool>(), 1usize..300_000)
                .prop_map(|(serial, err, size)| Step::Write(serial, err, size)),
            6 => (1usize..400_000).prop_map(Step::Carry),
            3 => (session, any::<bool>()).prop_map(|(serial, err)| Step::Acknowledge(serial, err)),
            1 => Just(Step::Hello),
            1 => Just(Step::NewPipes),
        ],
        1..60,
    )
}

fn stream(err: bool) -> Stream {
    if err { Stream::Stderr } else { Stream::Stdout }
}

/// The byte that belongs at an offset, so that one lost, doubled or misplaced shows.
#[allow(clippy::cast_possible_truncation)]
fn byte_at(serial: Serial, stream: Stream, offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16))
        .wrapping_mul(31)
        .wrapping_add(serial * 7 + stream as u64) as u8
}

#[derive(Default)]
struct Agent {
    held: BTreeMap<(String, i32), u64>,
    decoder: Decoder,
    marker: Option<[u8; NONCE]>,
    epochs: u8,
}

impl Agent {
    fn hello(&mut self) -> Vec<u8> {
        self.epochs += 1;
        let mut nonce = NONCE_BYTES;
        nonce[0] = self.epochs;
        self.marker = Some(nonce);
        let held = self
            .held
            .iter()
            .map(|((command_id, stream), offset)| Position {
                command_id: command_id.clone(),
                stream: *stream,
                offset: *offset,
            })
            .collect();
        hello(nonce, held)
    }

    fn hear(&mut self, bytes: &[u8]) {
        for block in bytes.chunks(64 * 1024) {
            self.decoder.push(block);
            if let Some(marker) = self.marker {
                if !self.decoder.seek(&marker) {
                    continue;
                }
                self.marker = None;
            }
            while let Some(up) = self.decoder.next::<Up>().unwrap() {
                let Some(UpKind::Data(data)) = up.kind else {
                    continue;
                };
                let key = (data.command_id.clone(), data.stream);
                let held = self.held.entry(key).or_default();
                assert_eq!(
                    data.offset, *held,
                    "a byte of {} is lost or doubled",
                    data.command_id
                );
                let serial = data.command_id[1..].parse().unwrap();
                let stream = Stream::try_from(data.stream).unwrap();
                for (offset, byte) in (*held..).zip(&data.data) {
                    assert_eq!(*byte, byte_at(serial, stream, offset));
                }
                *held += data.data.len() as u64;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the order of writing, carrying, acknowledging, dying and beginning anew: each byte arrives once.
    #[test]
    fn each_byte_arrives_once(steps in steps()) {
        let mut core = running(&vec![SessionSpec::default(); 3]);
        let mut agent = Agent::default();
        let mut written: BTreeMap<(Serial, Stream), u64> = BTreeMap::new();
        core.receive(&agent.hello(), 0).unwrap();
        for step in steps.into_iter().chain([Step::NewPipes]) {
            match step {
                Step::Write(serial, err, size) => {
                    let end = written.entry((serial, stream(err))).or_default();
                    let room = core.session(serial).unwrap().output(stream(err)).room();
                    let size = size.min(room) as u64;
                    let bytes: Vec<u8> = (*end..*end + size)
                        .map(|offset| byte_at(serial, stream(err), offset))
                        .collect();
                    core.output(serial, stream(err), &bytes);
                    *end += size;
                }
                Step::Carry(limit) => {
                    let bytes = core.unwritten();
                    let bytes = bytes[..bytes.len().min(limit)].to_vec();
                    core.wrote(bytes.len());
                    agent.hear(&bytes);
                }
                Step::Acknowledge(serial, err) => {
                    let command_id = format!("s{serial}");
                    let stream = stream(err) as i32;
                    if let Some(offset) = agent.held.get(&(command_id.clone(), stream)).copied() {
                        core.receive(&down(DownKind::Ack(Position { command_id, stream, offset })), 0).unwrap();
                    }
                }
                Step::Hello => {
                    core.receive(&agent.hello(), 0).unwrap();
                }
                Step::NewPipes => {
                    core.reset_channel();
                    agent.decoder.clear();
                    core.receive(&agent.hello(), 0).unwrap();
                }
            }
        }
        agent.hear(&take(&mut core));
        for ((serial, stream), end) in written {
            let held = agent.held.get(&(format!("s{serial}"), stream as i32));
            prop_assert_eq!(held.copied().unwrap_or(0), end);
        }
    }

    /// Stdin in pieces of any size, resent from anywhere, with gaps: the command gets each byte once, in order.
    #[test]
    fn each_byte_of_stdin_is_given_once(pieces in prop::collection::vec((0u64..40, 0usize..60, 0usize..50), 0..80)) {
        let mut core = running(&[SessionSpec { stdin: true, ..SessionSpec::default() }]);
        let mut given = Vec::new();
        for (back, length, drained) in pieces {
            let next = core.session(1).unwrap().stdin().offset();
            // Mostly joining on or overlapping, at times behind a gap.
            let offset = (next + 10).saturating_sub(back);
            let data: Vec<u8> = (offset..offset + length as u64).map(|at| byte_at(1, Stream::Stdout, at)).collect();
            core.receive(&down(DownKind::Stdin(Stdin { command_id: "s1".to_owned(), offset, data, end: false })), 0).unwrap();
            let pending = core.session(1).unwrap().stdin().pending();
            let taken = pending[..pending.len().min(drained)].to_vec();
            core.stdin_drained(1, taken.len());
            given.extend(taken);
        }
        for (at, byte) in (0..).zip(&given) {
            prop_assert_eq!(*byte, byte_at(1, Stream::Stdout, at));
        }
    }
}

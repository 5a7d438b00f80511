//! The whole decider against a simulated holder: any cuts of the bytes, any interleaving, agents killed anywhere.

use std::collections::VecDeque;

use cloche_proto::frame::{MAX_SESSIONS, NONCE, SessionSpec, UpKind};
use proptest::prelude::*;

use super::super::log::Span;
use super::super::request::{Fingerprint, NewSession, Request};
use super::super::simulation::Holder;
use super::*;

fn at(secs: u64) -> Now {
    Now {
        boot: Duration::from_secs(secs),
        wall: jiff::Timestamp::from_second(secs.try_into().unwrap()).unwrap(),
    }
}

/// What survives an agent: records and logs.
#[derive(Default)]
struct Disk {
    records: BTreeMap<CommandId, Vec<u8>>,
    logs: BTreeMap<CommandId, [Vec<u8>; 2]>,
}

/// An agent, its pipes and the holder at their other end.
struct World {
    table: Table,
    holder: Holder,
    disk: Disk,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    nonce: u8,
    broken: u32,
    clock: u64,
    /// Ends as they were told to a client.
    told: BTreeMap<CommandId, Arc<Ended>>,
    storage_full: bool,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            table: Table::new("/s".into(), frame::Setup::default(), Arc::default()),
            holder: Holder::default(),
            disk: Disk::default(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            nonce: 0,
            broken: 0,
            clock: 0,
            told: BTreeMap::new(),
            storage_full: false,
        };
        world.hello(true);
        world
    }

    fn now(&self) -> Now {
        at(self.clock)
    }

    fn hello(&mut self, new_pipes: bool) {
        if new_pipes {
            self.up.clear();
            self.down.clear();
            self.holder.new_pipes();
        }
        self.nonce = self.nonce.wrapping_add(1);
        // Like a random one it has no period: no other place in the pipe looks like it.
        let mut nonce = [self.nonce; NONCE];
        for (at, byte) in nonce.iter_mut().enumerate().skip(1) {
            *byte = u8::try_from(at * at * 7 % 256).unwrap() ^ 0xa5;
        }
        self.table.epoch.begin(nonce, new_pipes);
    }

    fn crash(&mut self) {
        self.table = Table::new("/s".into(), frame::Setup::default(), Arc::default());
        for bytes in self.disk.records.values() {
            let record = Record::decode(bytes).unwrap();
            let tails = Tails::new(&record.id.directory("/s".as_ref()));
            if let Some(logs) = self.disk.logs.get(&record.id) {
                for (tail, log) in tails.streams.iter().zip(logs) {
                    tail.span.send_replace(Span {
                        head: 0,
                        length: log.len() as u64,
                    });
                }
            }
            self.table.load(record, Arc::new(tails), self.now());
        }
        self.hello(true);
    }

    fn create(&mut self, id: &str) {
        let new = NewSession {
            spec: SessionSpec {
                argv: vec![b"true".to_vec()],
                stdin: true,
                ..SessionSpec::default()
            },
            kill_on_detach: None,
            fingerprint: None,
        };
        let (reply, _) = oneshot::channel();
        let id = CommandId::parse(id).unwrap();
        self.table
            .on_request(Request::Create { id, new, reply }, self.now());
    }

    /// The agent writes its records.
    fn record(&mut self) {
        for write in std::mem::take(&mut self.table.writes) {
            self.disk.records.insert(write.id.clone(), write.bytes);
            let now = self.now();
            self.table.on_recorded(&write.id, Ok(()), now);
        }
        for found in self.table.entries.values() {
            if let Some(ended) = found.state.borrow().ended.clone() {
                let before = self
                    .told
                    .insert(found.record.id.clone(), Arc::clone(&ended));
                assert!(
                    before.is_none_or(|before| {
                        // Output that was promised and never came does not stay promised.
                        before == ended || (self.holder.lies && before.at == ended.at)
                    }),
                    "an end changed"
                );
            }
        }
    }

    /// The agent writes its logs, or finds that there is no room.
    fn log(&mut self) {
        let mut done = Done::default();
        for job in std::mem::take(&mut self.table.batch) {
            match job {
                Job::Append { tails, fresh } => {
                    if self.storage_full {
                        done.error = Some(super::super::log::LogError::new(
                            "append to",
                            "/s".as_ref(),
                            std::io::ErrorKind::StorageFull,
                        ));
                        continue;
                    }
                    let log = &mut self.disk.logs.entry(fresh.id.clone()).or_default()
                        [fresh.stream.index()];
                    assert_eq!(fresh.offset, log.len() as u64, "joins on");
                    log.extend(&fresh.data);
                    let length = log.len() as u64;
                    tails
                        .tail(fresh.stream)
                        .span
                        .send_modify(|span| span.length = length);
                    done.written.push((fresh.id, fresh.stream, length));
                }
                Job::Remove(id, _) => {
                    self.disk.records.remove(&id);
                    self.disk.logs.remove(&id);
                    self.told.remove(&id);
                    done.removed.push(id);
                }
            }
        }
        self.table.batch_bytes = 0;
        self.table.on_logged(&done);
    }

    fn move_down(&mut self, most: usize) {
        self.table.epoch.pump();
        let mut bytes: Vec<u8> = self
            .table
            .epoch
            .outbox
            .slices()
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect();
        bytes.truncate(most);
        self.table.epoch.outbox.advance(bytes.len());
        self.down.extend(bytes);
    }

    fn holder_reads(&mut self, most: usize) {
        let count = most.min(self.down.len());
        let bytes: Vec<u8> = self.down.drain(..count).collect();
        self.holder.on_bytes(&bytes);
        let count = self.holder.out.len();
        self.holder_writes(count.min(most));
    }

    fn holder_writes(&mut self, most: usize) {
        let count = most.min(self.holder.out.len());
        self.up.extend(self.holder.out.drain(..count));
    }

    fn agent_reads(&mut self, most: usize) {
        let count = most.min(self.up.len());
        let bytes: Vec<u8> = self.up.drain(..count).collect();
        let mut events = Vec::new();
        self.table.epoch.on_bytes(&bytes, &mut events);
        let now = self.now();
        for event in events {
            if let Event::Broken(_) = event {
                self.broken += 1;
                self.hello(false);
            } else {
                self.table.on_event(event, now);
            }
        }
    }

    /// Lets everything run until nothing moves.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.record();
            self.log();
            self.move_down(usize::MAX);
            self.holder_reads(usize::MAX);
            self.holder_writes(usize::MAX);
            self.agent_reads(usize::MAX);
            let idle = self.up.is_empty()
                && self.down.is_empty()
                && self.holder.out.is_empty()
                && self.table.batch.is_empty()
                && self.table.writes.is_empty()
                && self.table.epoch.outbox.is_empty();
            if idle {
                self.table.epoch.pump();
                if self.table.epoch.outbox.is_empty() {
                    return;
                }
            }
        }
        panic!("does not come to rest");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Print(usize, usize, usize),
    Exit(usize, i32, bool),
    Record,
    Log,
    Full(bool),
    Down(usize),
    HolderReads(usize),
    HolderWrites(usize),
    AgentReads(usize),
    Crash,
    Hello,
    Stdin(usize, usize),
}

const IDS: [&str; 3] = ["main", "a", "b.1"];

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![3 => 1..64usize, 2 => 64..20_000usize, 1 => Just(usize::MAX)];
    prop_oneof![
        2 => (0..3usize).prop_map(Step::Create),
        6 => (0..3usize, 0..2usize, 1..30_000usize).prop_map(|(a, b, c)| Step::Print(a, b, c)),
        1 => (0..3usize, 0..256i32, any::<bool>()).prop_map(|(a, b, c)| Step::Exit(a, b, c)),
        3 => Just(Step::Record),
        4 => Just(Step::Log),
        1 => any::<bool>().prop_map(Step::Full),
        5 => bytes.clone().prop_map(Step::Down),
        5 => bytes.clone().prop_map(Step::HolderReads),
        5 => bytes.clone().prop_map(Step::HolderWrites),
        5 => bytes.prop_map(Step::AgentReads),
        1 => Just(Step::Crash),
        1 => Just(Step::Hello),
        2 => (0..3usize, 1..5000usize).prop_map(|(a, b)| Step::Stdin(a, b)),
    ]
}

/// Bytes of which each place in each stream has its own run.
fn text(id: usize, stream: usize, from: usize, length: usize) -> Vec<u8> {
    (from..from + length)
        .map(|at| u8::try_from((at / 3 + at / 251 + id * 7 + stream * 13) % 256).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn each_byte_comes_once_and_each_end_is_exact(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        let mut created = [false; 3];
        let mut exits: [Option<i32>; 3] = [None; 3];
        let mut printed = [[0usize; 2]; 3];
        let mut stdin = [0usize; 3];
        for step in steps {
            match step {
                Step::Create(id) => {
                    created[id] = true;
                    world.create(IDS[id]);
                }
                Step::Print(id, stream, length) => {
                    let bytes = text(id, stream, printed[id][stream], length);
                    printed[id][stream] += world.holder.print(IDS[id], stream, &bytes);
                }
                Step::Exit(id, code, close) => {
                    if world.holder.commands.contains_key(IDS[id]) {
                        exits[id].get_or_insert(code);
                    }
                    world.holder.exit(IDS[id], code, close);
                }
                Step::Record => world.record(),
                Step::Log => world.log(),
                Step::Full(full) => world.storage_full = full,
                Step::Down(most) => world.move_down(most),
                Step::HolderReads(most) => world.holder_reads(most),
                Step::HolderWrites(most) => world.holder_writes(most),
                Step::AgentReads(most) => world.agent_reads(most),
                Step::Crash => world.crash(),
                Step::Hello => world.hello(false),
                Step::Stdin(id, length) => {
                    let id_text = CommandId::parse(IDS[id]).unwrap();
                    let Some(from) = world.table.epoch.wire(&id_text).and_then(|w| w.stdin.state()) else { continue };
                    let from = usize::try_from(from.accepted).unwrap();
                    let bytes = text(id, 2, from, length);
                    let accepted = world.table.epoch.stdin(&id_text, from as u64, &bytes, false);
                    if let Ok(accepted) = accepted {
                        stdin[id] = stdin[id].max(usize::try_from(accepted).unwrap());
                    }
                    world.holder.drain_stdin(IDS[id]);
                }
            }
        }
        world.storage_full = false;
        world.hello(false);
        world.settle();
        // A client whose agent was killed before it recorded anything tries again; the others attach.
        for (id, created) in created.iter().enumerate() {
            if *created {
                world.create(IDS[id]);
            }
        }
        world.settle();
        prop_assert_eq!(world.broken, 0, "an honest holder broke the protocol");
        prop_assert_eq!(world.table.epoch.refused(), 0, "an honest holder was refused");
        for (at, name) in IDS.into_iter().enumerate() {
            let id = CommandId::parse(name).unwrap();
            if !created[at] {
                continue;
            }
            prop_assert_eq!(world.holder.begun.get(name), Some(&1), "run once");
            let forgotten = world.holder.forgotten.iter().find(|(id, _)| id == name).map(|(_, command)| command);
            let command = forgotten.or(world.holder.commands.get(name)).unwrap();
            let logs = world.disk.logs.remove(&id).unwrap_or_default();
            for stream in 0..2 {
                prop_assert_eq!(command.outputs[stream].printed.len(), printed[at][stream]);
                prop_assert!(logs[stream] == command.outputs[stream].printed, "output of {} {}", name, stream);
            }
            // What an agent took and did not live to send is the client's to send again.
            prop_assert!(command.stdin == text(at, 2, 0, command.stdin.len()));
            prop_assert!(command.stdin.len() <= stdin[at]);
            match (exits[at], world.told.get(&id)) {
                (None, None) => {}
                (Some(code), Some(ended)) => {
                    let exact = matches!(ended.outcome, Outcome::Exited { code: told, .. } if told == code);
                    prop_assert!(exact);
                    prop_assert!(ended.stdout <= printed[at][0] as u64);
                }
                (exit, told) => prop_assert!(false, "{name}: ended {exit:?}, told {told:?}"),
            }
            // All is here: the holder was told to let go.
            let complete = command.exit.is_some() && command.outputs.iter().all(|output| output.end.is_some());
            prop_assert_eq!(forgotten.is_some(), complete);
        }
    }

    #[test]
    fn nothing_that_a_sandbox_sends_harms(
        ups in prop::collection::vec(hostile(), 1..60),
        garbage in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut world = World::new();
        world.create("main");
        world.create("a");
        world.settle();
        world.holder.lies = true;
        for up in ups {
            world.holder.send(up);
            world.holder_writes(usize::MAX);
            world.agent_reads(usize::MAX);
            world.record();
            world.log();
        }
        world.up.extend(garbage);
        world.agent_reads(usize::MAX);
        world.settle_hostile();
        prop_assert!(world.table.entries.len() == 2);
        for entry in world.table.entries.values() {
            if let Some(ended) = &entry.record.ended {
                prop_assert!((entry.record.created.boot..=world.now().boot).contains(&ended.at.boot));
                let [stdout, stderr] = entry.shared.tails.lengths();
                prop_assert!(ended.stdout <= stdout + (8 << 20) && ended.stderr <= stderr + (8 << 20));
            }
        }
    }
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..100u64, Just(u64::MAX), Just(1 << 40)]
}

fn hostile() -> impl Strategy<Value = UpKind> {
    let id = prop_oneof![
        4 => Just("main".to_owned()),
        2 => Just("a".to_owned()),
        1 => Just("../../etc".to_owned()),
        1 => Just("x".repeat(5000)),
    ];
    let exit = prop::option::of((-1..300i32, -1..70i32, offset()).prop_map(
        |(code, signal, duration_ms)| frame::Exit {
            code,
            signal,
            duration_ms,
            message: "\x1b[2J".repeat(2000),
            ..frame::Exit::default()
        },
    ));
    let ends = prop::collection::vec(prop::option::of(offset()), 4);
    let report = (id.clone(), exit, offset(), offset(), ends, any::<i32>()).prop_map(
        |(command_id, exit, stdin_offset, stdin_drained, ends, pid)| frame::Report {
            command_id,
            pid,
            exit,
            stdin_offset,
            stdin_closed: stdin_drained == 0,
            stdout_end: ends[0],
            stderr_end: ends[1],
            stdout_at_exit: ends[2],
            stderr_at_exit: ends[3],
            stdin_drained,
            begun_ms: stdin_offset,
        },
    );
    prop_oneof![
        report.prop_map(UpKind::Report),
        (id, 0..4i32, offset(), 0..70_000usize).prop_map(|(command_id, stream, offset, length)| {
            UpKind::Data(frame::Data {
                command_id,
                stream,
                offset,
                data: vec![0; length],
            })
        }),
        offset().prop_map(|token| UpKind::Pong(frame::Ping { token })),
        (any::<u8>(), offset()).prop_map(|(byte, clock_ms)| UpKind::HelloAck(frame::HelloAck {
            nonce: vec![byte; NONCE],
            version: 1,
            sessions: vec![],
            clock_ms,
        })),
        Just(UpKind::Fault(frame::Fault::default())),
    ]
}

impl World {
    /// Runs on for a while, whatever the state.
    fn settle_hostile(&mut self) {
        for _ in 0..10 {
            self.clock += 3;
            let now = self.now();
            self.table.due(now, false);
            self.record();
            self.log();
            self.move_down(usize::MAX);
            self.holder_reads(usize::MAX);
            self.agent_reads(usize::MAX);
        }
    }
}

#[test]
fn a_kill_is_repeated_in_every_epoch_until_the_end() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    let id = CommandId::parse("main").unwrap();
    world.table.kill(&id);
    world.move_down(usize::MAX);
    // Lost with the pipe.
    world.hello(true);
    world.settle();
    world.hello(false);
    world.settle();
    let tree = frame::SignalScope::Tree as i32;
    assert_eq!(
        world.holder.commands["main"].signals,
        [(9, tree), (9, tree)]
    );
    world.holder.exit("main", 0, true);
    world.settle();
    assert!(world.told.contains_key(&id));
}

#[test]
fn a_signal_waits_for_init_and_is_sent_once() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    // An agent that has just begun, as one that was restarted under its client.
    world.crash();
    for signal in [2, 19, 18, 19, 2] {
        let (reply, mut asked) = oneshot::channel();
        let id = CommandId::main();
        world
            .table
            .on_request(Request::Signal { id, signal, reply }, world.now());
        assert!(asked.try_recv().unwrap().is_ok());
    }
    world.settle();
    world.hello(false);
    world.settle();
    let key = frame::SignalScope::Foreground as i32;
    assert_eq!(
        world.holder.commands["main"].signals,
        [(18, key), (19, key), (2, key)]
    );
}

#[test]
fn being_told_to_end_is_repeated_after_a_break_until_the_end() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    let id = CommandId::parse("main").unwrap();
    let (reply, mut asked) = oneshot::channel();
    world
        .table
        .on_request(Request::Terminate { id, reply }, world.now());
    assert!(asked.try_recv().unwrap().is_ok());
    world.move_down(usize::MAX);
    // Lost with the pipe.
    world.hello(true);
    world.settle();
    world.settle();
    let leader = frame::SignalScope::Leader as i32;
    assert_eq!(world.holder.commands["main"].signals, [(15, leader)]);
    world.holder.exit("main", 0, true);
    world.settle();
    world.hello(false);
    world.settle();
    assert_eq!(world.holder.forgotten[0].1.signals.len(), 1, "not after it");
}

#[test]
fn what_happened_while_no_agent_ran_is_dated_by_the_holder() {
    let mut world = World::new();
    world.clock = 100;
    world.holder.clock_ms = 7_000;
    world.create("ended");
    world.create("runs");
    world.settle();
    world.up.clear();
    world.holder.clock_ms += 30_000;
    world.holder.exit("ended", 0, true);
    world.holder.clock_ms += 270_000;
    world.clock = 400;
    world.crash();
    // Heard of, but its end is not on disk yet: it must not look as if it ran.
    world.move_down(usize::MAX);
    world.holder_reads(usize::MAX);
    world.holder_writes(usize::MAX);
    world.agent_reads(usize::MAX);
    let ended = &world.table.entries[&CommandId::parse("ended").unwrap()];
    assert!(matches!(ended.recording, Recording::End(_)));
    assert_eq!(ended.state.borrow().started, None);
    world.settle();
    let ended = &world.told[&CommandId::parse("ended").unwrap()];
    assert_eq!(
        (ended.began().boot, ended.at.boot),
        (at(100).boot, at(130).boot)
    );
    let runs = &world.table.entries[&CommandId::parse("runs").unwrap()];
    assert_eq!(runs.state.borrow().started.unwrap().boot, at(100).boot);
    // Heard at once: by this node's clock.
    world.clock = 500;
    world.holder.exit("runs", 0, true);
    world.settle();
    let ended = &world.told[&CommandId::parse("runs").unwrap()];
    assert_eq!(ended.at.boot, at(500).boot);
}

#[test]
fn output_that_never_comes_does_not_hold_up_the_end() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    world.holder.print("main", 0, b"abc");
    world.settle();
    world.holder.send(UpKind::Report(frame::Report {
        command_id: "main".to_owned(),
        pid: 7,
        exit: Some(frame::Exit::default()),
        stdout_at_exit: Some(1000),
        ..frame::Report::default()
    }));
    world.settle();
    let id = CommandId::parse("main").unwrap();
    assert_eq!(world.told[&id].stdout, 1000);
    world.told.clear();
    // Not while there is no room for it on the node.
    world.clock += 3;
    world.table.due(world.now(), true);
    world.settle();
    assert_eq!(world.told[&id].stdout, 1000);
    world.told.clear();
    world.clock += 3;
    world.table.due(world.now(), false);
    world.settle();
    assert_eq!(world.told[&id].stdout, 3);
}

#[test]
fn output_that_waits_for_the_disk_is_not_given_up() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    world.holder.print("main", 0, b"abc");
    world.holder.exit("main", 0, false);
    world.holder_writes(usize::MAX);
    world.agent_reads(usize::MAX);
    let id = CommandId::main();
    // Its end is recorded at once, and the disk takes its time with the output.
    for _ in 0..5 {
        world.record();
        world.clock += 3;
        world.table.due(world.now(), false);
        assert_eq!(world.told[&id].stdout, 3);
        assert!(world.table.writes.is_empty(), "its end stays as it was");
    }
    world.settle();
    assert_eq!(world.disk.logs[&id][0], b"abc");
}

#[test]
fn output_that_is_sent_again_in_a_new_epoch_is_waited_for() {
    let mut world = World::new();
    world.create("main");
    world.settle();
    world.holder.print("main", 0, b"abc");
    world.settle();
    world.holder.print("main", 0, b"def");
    world.holder.exit("main", 0, false);
    let id = CommandId::main();
    // Greeted, which tells of the end, but the output stays in the pipe.
    let greet = |world: &mut World| {
        world.hello(true);
        world.move_down(usize::MAX);
        world.holder_reads(usize::MAX);
        let output = world.up.split_off(world.up.len() - 20);
        world.agent_reads(usize::MAX);
        world.record();
        output
    };
    greet(&mut world);
    assert_eq!(world.told[&id].stdout, 6);
    // A new epoch at the very moment at which it would be given up.
    world.clock += 3;
    let output = greet(&mut world);
    world.table.due(world.now(), false);
    assert!(world.table.writes.is_empty(), "its end stays as it was");
    world.up.extend(output);
    world.settle();
    assert_eq!(world.disk.logs[&id][0], b"abcdef");
}

#[test]
fn an_ended_session_goes_after_an_hour_and_its_id_is_free_again() {
    let mut world = World::new();
    let id = CommandId::parse("a").unwrap();
    world.create("a");
    world.settle();
    world.holder.exit("a", 3, true);
    world.settle();
    assert!(world.disk.records.contains_key(&id));
    world.clock += 3599;
    world.table.due(world.now(), false);
    world.settle();
    assert!(world.disk.records.contains_key(&id));
    world.clock += 1;
    world.table.due(world.now(), false);
    world.create("a");
    world.settle();
    assert!(
        !world.disk.records.contains_key(&id),
        "removed once forgotten"
    );
    assert_eq!(world.holder.forgotten.len(), 1);
    world.create("a");
    world.settle();
    assert_eq!(world.holder.begun["a"], 2);
    assert!(
        !world.told.contains_key(&id),
        "the old end is not the new one's"
    );
}

#[test]
fn a_session_with_open_output_is_kept_however_many_come_after_it() {
    let mut world = World::new();
    let daemon = CommandId::parse("daemon").unwrap();
    world.create("daemon");
    world.settle();
    // A background child keeps stdout open: forgotten by the holder, it would be killed by its next write.
    world.holder.exit("daemon", 0, false);
    world.settle();
    world.clock += 3 * 3600;
    world.table.due(world.now(), false);
    world.settle();
    for n in 0..MAX_KEPT + 20 {
        let id = format!("s{n}");
        world.create(&id);
        world.settle();
        world.holder.exit(&id, 0, true);
        world.settle();
    }
    world.crash();
    world.settle();
    world.table.due(world.now(), false);
    world.settle();
    assert!(world.holder.commands.contains_key("daemon"));
    world.holder.print("daemon", 0, b"still here");
    world.settle();
    assert_eq!(world.disk.logs[&daemon][0], b"still here");
    world.holder.exit("daemon", 0, true);
    world.settle();
    world.table.due(world.now(), false);
    world.settle();
    assert!(!world.disk.records.contains_key(&daemon), "an hour is over");
}

#[test]
fn the_main_command_is_kept_as_long_as_the_sandbox() {
    let mut world = World::new();
    world.create("main");
    world.create("a");
    world.settle();
    world.holder.print("main", 0, b"abc");
    for id in ["main", "a"] {
        world.holder.exit(id, 0, true);
    }
    world.settle();
    for hour in 1..4 {
        world.clock += 3601;
        if hour == 2 {
            world.table.end_all("Completed", world.now());
        }
        world.table.due(world.now(), false);
        world.settle();
    }
    assert!(!world.table.entries.contains_key("a"));
    assert!(world.disk.records.contains_key(&CommandId::main()));
    assert_eq!(world.disk.logs[&CommandId::main()][0], b"abc");
}

#[test]
fn an_id_is_of_one_command() {
    let mut world = World::new();
    world.hello(true);
    let ask = |world: &mut World, fingerprint: Option<&str>| {
        let (reply, mut answer) = oneshot::channel();
        let new = NewSession {
            spec: SessionSpec::default(),
            kill_on_detach: None,
            fingerprint: fingerprint.map(|text| Fingerprint::of([text.as_bytes()])),
        };
        let id = CommandId::parse("a").unwrap();
        world
            .table
            .on_request(Request::Create { id, new, reply }, world.now());
        world.settle();
        answer.try_recv().unwrap().map(|found| found.created)
    };
    assert!(ask(&mut world, Some("ls")).unwrap());
    assert!(!ask(&mut world, Some("ls")).unwrap());
    let refused = ask(&mut world, Some("rm")).unwrap_err();
    assert!(matches!(refused, SessionError::Another { .. }), "{refused}");
    // Who does not care joins.
    assert!(!ask(&mut world, None).unwrap());
}

#[test]
fn sessions_are_bounded() {
    let mut world = World::new();
    for n in 0..MAX_SESSIONS {
        world.create(&format!("s{n}"));
        world.settle();
    }
    let one_more = |world: &mut World| {
        let (reply, mut answer) = oneshot::channel();
        let id = CommandId::parse("more").unwrap();
        let new = NewSession {
            spec: SessionSpec::default(),
            kill_on_detach: None,
            fingerprint: None,
        };
        world
            .table
            .on_request(Request::Create { id, new, reply }, world.now());
        world.settle();
        answer.try_recv().unwrap()
    };
    assert!(matches!(one_more(&mut world), Err(SessionError::TooMany)));
    world.holder.exit("s9", 0, true);
    world.settle();
    assert!(one_more(&mut world).unwrap().created);
    assert!(!one_more(&mut world).unwrap().created, "a retry attaches");
}

#[test]
fn ended_sessions_do_not_count_but_are_bounded_too() {
    let mut world = World::new();
    for n in 0..MAX_KEPT + 20 {
        let id = format!("s{n}");
        world.create(&id);
        world.settle();
        world.holder.exit(&id, 0, true);
        world.settle();
    }
    assert!(world.table.entries.len() <= MAX_KEPT + 1);
    assert_eq!(world.disk.records.len(), world.table.entries.len());
    assert!(world.holder.commands.is_empty(), "all were forgotten");
}

#[test]
fn a_restarted_agent_knows_that_forgotten_sessions_are_closed() {
    let mut world = World::new();
    let id = CommandId::parse("a").unwrap();
    world.create("a");
    world.settle();
    world.holder.print("a", 0, b"abc");
    world.holder.exit("a", 0, true);
    world.settle();
    assert!(world.holder.commands.is_empty());
    world.crash();
    let closed = |world: &World| world.table.entries[&id].state.borrow().closed;
    assert_eq!(closed(&world), [None, None]);
    world.settle();
    assert_eq!(closed(&world), [Some(3), Some(0)]);
}

#[test]
fn what_init_lost_is_told_as_lost_and_not_run_again() {
    let mut world = World::new();
    let id = CommandId::parse("a").unwrap();
    world.create("a");
    world.settle();
    world.holder.print("a", 0, b"begun");
    world.settle();
    world.holder.commands.clear();
    world.crash();
    world.settle();
    assert!(matches!(world.told[&id].outcome, Outcome::Lost { .. }));
    assert_eq!(world.told[&id].stdout, 5);
    let closed = world.table.entries[&id].state.borrow().closed;
    assert_eq!(closed, [Some(5), Some(0)]);
    assert_eq!(world.holder.begun["a"], 1);
}

#[test]
fn the_end_of_the_sandbox_ends_all() {
    let mut world = World::new();
    let (a, b) = (
        CommandId::parse("a").unwrap(),
        CommandId::parse("b.1").unwrap(),
    );
    world.create("a");
    world.create("b.1");
    world.settle();
    world.holder.exit("a", 5, true);
    world.settle();
    world.table.end_all("OOMKilled", world.now());
    world.record();
    assert!(world.table.all_ended());
    assert!(matches!(
        world.told[&a].outcome,
        Outcome::Exited { code: 5, .. }
    ));
    assert_eq!(
        world.told[&b].outcome,
        Outcome::SandboxEnded {
            reason: "OOMKilled".to_owned()
        }
    );
    world.create("c");
    assert!(!world.table.entries.contains_key("c"));
}

#[test]
fn a_late_kill_counts_as_the_timeout() {
    let exit = |signal, duration_ms| super::super::wire::Exit {
        code: if signal == 0 { 0 } else { 128 + signal },
        signal,
        not_started: None,
        timed_out: false,
        message: String::new(),
        duration_ms,
    };
    let timed_out = |exit, timeout| match outcome(&exit, timeout, false) {
        Outcome::Exited { timed_out, .. } => timed_out,
        Outcome::SandboxEnded { .. } | Outcome::Lost { .. } => unreachable!(),
    };
    assert!(timed_out(exit(9, 1300), 1000));
    assert!(!timed_out(exit(9, 900), 1000));
    assert!(!timed_out(exit(9, 1300), 0));
    assert!(!timed_out(exit(0, 1300), 1000));
    // Of a pause the guest may count less than it was; who killed it knows.
    let killed = |exit| {
        matches!(
            outcome(&exit, 1000, true),
            Outcome::Exited {
                timed_out: true,
                ..
            }
        )
    };
    assert!(killed(exit(9, 500)));
    assert!(!killed(exit(0, 500)));
}

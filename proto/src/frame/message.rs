//! The messages themselves. Tags are never reused; a field that is gone leaves its number behind.

/// One frame from the agent to the holder.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Down {
    /// What it says; a holder ignores a kind that it does not know.
    #[prost(oneof = "DownKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub kind: Option<DownKind>,
}

/// The kinds of [`Down`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DownKind {
    /// Opens an epoch.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// Gets or creates a session.
    #[prost(message, tag = "2")]
    Create(Create),
    /// Bytes for a command's stdin.
    #[prost(message, tag = "3")]
    Stdin(Stdin),
    /// The agent holds a stream up to here; the holder may let go of it.
    #[prost(message, tag = "4")]
    Ack(Position),
    /// Sends a signal.
    #[prost(message, tag = "5")]
    Signal(Signal),
    /// Sets the size of a session's terminal.
    #[prost(message, tag = "6")]
    Resize(Resize),
    /// Lets go of an ended session, its record and buffers.
    #[prost(message, tag = "7")]
    Forget(Forget),
    /// Asks for a [`Pong`].
    #[prost(message, tag = "8")]
    Ping(Ping),
    /// Facts of the sandbox that were not known when its instance was made; sent after every hello, before any create.
    #[prost(message, tag = "9")]
    Setup(Setup),
}

/// Opens an epoch; all before it on the same channel is void.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// 16 random bytes, echoed by [`HelloAck`].
    #[prost(bytes = "vec", tag = "1")]
    pub nonce: Vec<u8>,
    /// The newest protocol version that the agent speaks.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// How far the agent holds each stream; one not named here is sent from what the holder last had acknowledged.
    #[prost(message, repeated, tag = "3")]
    pub held: Vec<Position>,
}

/// A byte offset in an output stream of a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Position {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// The stream.
    #[prost(enumeration = "Stream", tag = "2")]
    pub stream: i32,
    /// Bytes since the session's start.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
}

/// An output stream. With a terminal all output is [`Stream::Stdout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Stream {
    /// Never sent.
    Unspecified = 0,
    /// Standard output, or the terminal.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
}

/// Sets up the sandbox, once; repeats are ignored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Setup {
    /// Host name, also written to /etc/hosts and /etc/hostname.
    #[prost(string, tag = "1")]
    pub hostname: String,
    /// Keeps sessions from writing to the root file system; absent: they may. Cannot change once it was done.
    #[prost(message, optional, tag = "2")]
    pub read_only_root: Option<ReadOnlyRoot>,
}

/// A root file system that sessions cannot write to, but for some paths.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReadOnlyRoot {
    /// Absolute paths that stay writable, with all below them; what is missing is made: directories that everybody may write to.
    #[prost(string, repeated, tag = "1")]
    pub writable: Vec<String>,
}

/// Gets the session `command_id` or, where there is none, creates it from `spec`. Answered by a [`Report`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Create {
    /// Chosen by the client; see [`is_command_id`](super::is_command_id).
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// What to run; ignored where the session exists.
    #[prost(message, optional, tag = "2")]
    pub spec: Option<SessionSpec>,
}

/// What a session runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionSpec {
    /// Program and arguments. With `shell` set it is one string, run as `SHELL -c STRING`. The program is looked up in the
    /// PATH of `env` as execvp does.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub argv: Vec<Vec<u8>>,
    /// Absent: `argv` is run as it is. Empty: by /bin/bash if the image has it, else /bin/sh. Else an absolute path.
    #[prost(string, optional, tag = "2")]
    pub shell: Option<String>,
    /// The whole environment, `NAME=value`. HOME is added from the user's passwd entry (else `/`) where it is missing, and
    /// TERM=xterm where there is a terminal.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub env: Vec<Vec<u8>>,
    /// Working directory, absolute.
    #[prost(bytes = "vec", tag = "4")]
    pub cwd: Vec<u8>,
    /// Make the working directory, owned by the user, where it is missing.
    #[prost(bool, tag = "5")]
    pub create_cwd: bool,
    /// `uid[:gid]` or `name[:group]` as the guest's own /etc/passwd and /etc/group say; empty: `0:0`. Supplementary groups
    /// are those that /etc/group gives the user's name.
    #[prost(string, tag = "6")]
    pub user: String,
    /// Supplementary groups added to these.
    #[prost(uint32, repeated, tag = "7")]
    pub extra_groups: Vec<u32>,
    /// Bit set of capabilities (bit number = CAP_*): exactly these in the bounding, permitted, effective and inheritable sets
    /// of a root user; bounding only for any other. The holder masks `CAP_NET_RAW` (13) whatever this says.
    #[prost(uint64, tag = "8")]
    pub capabilities: u64,
    /// `no_new_privs`.
    #[prost(bool, tag = "9")]
    pub no_new_privileges: bool,
    /// Resource limits to set.
    #[prost(message, repeated, tag = "10")]
    pub rlimits: Vec<Rlimit>,
    /// Give it a terminal of this size; stdin, stdout and stderr are then one stream.
    #[prost(message, optional, tag = "11")]
    pub terminal: Option<TerminalSize>,
    /// Whether it has a stdin; else it reads /dev/null.
    #[prost(bool, tag = "12")]
    pub stdin: bool,
    /// Kill the whole tree after so many milliseconds of the holder's running time; 0: never.
    #[prost(uint64, tag = "13")]
    pub timeout_ms: u64,
}

/// A resource limit of setrlimit(2).
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Rlimit {
    /// Number of the resource (RLIMIT_*, x86-64).
    #[prost(uint32, tag = "1")]
    pub resource: u32,
    /// Soft limit; `u64::MAX` is infinity.
    #[prost(uint64, tag = "2")]
    pub soft: u64,
    /// Hard limit; `u64::MAX` is infinity.
    #[prost(uint64, tag = "3")]
    pub hard: u64,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TerminalSize {
    /// Rows; 0 leaves it unset.
    #[prost(uint32, tag = "1")]
    pub rows: u32,
    /// Columns; 0 leaves it unset.
    #[prost(uint32, tag = "2")]
    pub columns: u32,
}

/// Bytes for a command's stdin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Stdin {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// Offset of the first byte of `data`.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// At most [`MAX_DATA`](super::MAX_DATA) bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub data: Vec<u8>,
    /// Nothing follows: stdin is closed once all of it was read. On a terminal: the end-of-file character.
    #[prost(bool, tag = "4")]
    pub end: bool,
}

/// Sends a signal to processes of a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Signal {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// Signal number, 1 to 64.
    #[prost(int32, tag = "2")]
    pub signal: i32,
    /// To whom.
    #[prost(enumeration = "SignalScope", tag = "3")]
    pub scope: i32,
}

/// The processes that a [`Signal`] reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SignalScope {
    /// Never sent.
    Unspecified = 0,
    /// The command itself.
    Leader = 1,
    /// The foreground process group of its terminal, as a key press would; without a terminal, its process group. Before the command
    /// runs, the process that is to become it.
    Foreground = 2,
    /// Every process that came from the command, also those that called setsid.
    Tree = 3,
}

/// Sets the size of a session's terminal.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resize {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// The new size.
    #[prost(message, optional, tag = "2")]
    pub size: Option<TerminalSize>,
}

/// Lets go of a session. Ignored while it runs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Forget {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
}

/// Asks for a [`Pong`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Ping {
    /// Echoed.
    #[prost(uint64, tag = "1")]
    pub token: u64,
}

/// One frame from the holder to the agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Up {
    /// What it says; an agent ignores a kind that it does not know.
    #[prost(oneof = "UpKind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<UpKind>,
}

/// The kinds of [`Up`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum UpKind {
    /// Begins the epoch that a [`Hello`] asked for.
    #[prost(message, tag = "1")]
    HelloAck(HelloAck),
    /// A session's state.
    #[prost(message, tag = "2")]
    Report(Report),
    /// Output of a command.
    #[prost(message, tag = "3")]
    Data(Data),
    /// Answers a [`Ping`].
    #[prost(message, tag = "4")]
    Pong(Ping),
    /// Something that ends or cripples the sandbox.
    #[prost(message, tag = "5")]
    Fault(Fault),
    /// Answers a [`Setup`].
    #[prost(message, tag = "6")]
    SetupDone(SetupDone),
}

/// Begins an epoch: the first frame that counts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloAck {
    /// The 16 bytes of the hello.
    #[prost(bytes = "vec", tag = "1")]
    pub nonce: Vec<u8>,
    /// The protocol version that the holder will speak: the smaller of both sides' newest.
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// Every session that the holder has.
    #[prost(message, repeated, tag = "3")]
    pub sessions: Vec<Report>,
    /// The holder's running time in milliseconds: with [`Report::begun_ms`] it tells how long ago a command was begun.
    #[prost(uint64, tag = "4")]
    pub clock_ms: u64,
}

/// The outcome of a [`Setup`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetupDone {
    /// Empty when all was done; else what failed, in one line.
    #[prost(string, tag = "1")]
    pub error: String,
    /// The writable path that is at fault; empty where none is.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Sessions cannot write to the root, but for the paths that were told. Never of an init that does not know how.
    #[prost(bool, tag = "3")]
    pub read_only_root: bool,
}

/// The whole state of one session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// The command's pid as the guest sees it; 0 where it never started.
    #[prost(int32, tag = "2")]
    pub pid: i32,
    /// Present once the command has ended.
    #[prost(message, optional, tag = "3")]
    pub exit: Option<Exit>,
    /// Bytes of stdin taken over so far: the offset at which the next [`Stdin`] must begin.
    #[prost(uint64, tag = "4")]
    pub stdin_offset: u64,
    /// Stdin can take no more: it was ended, the command closed it, or there is none.
    #[prost(bool, tag = "5")]
    pub stdin_closed: bool,
    /// Where stdout ended, once every writer has closed it.
    #[prost(uint64, optional, tag = "6")]
    pub stdout_end: Option<u64>,
    /// Where stderr ended, once every writer has closed it.
    #[prost(uint64, optional, tag = "7")]
    pub stderr_end: Option<u64>,
    /// Where stdout stood when the command ended: all output of the command itself lies before it.
    #[prost(uint64, optional, tag = "8")]
    pub stdout_at_exit: Option<u64>,
    /// Where stderr stood when the command ended.
    #[prost(uint64, optional, tag = "9")]
    pub stderr_at_exit: Option<u64>,
    /// Bytes of stdin that the command has drained; with `stdin_offset` it tells how much window is left: a sender may be
    /// [`MAX_STREAM_BUFFER`](super::MAX_STREAM_BUFFER) ahead of this.
    #[prost(uint64, tag = "10")]
    pub stdin_drained: u64,
    /// The holder's running time in milliseconds at which the command was begun; see [`HelloAck::clock_ms`].
    #[prost(uint64, tag = "11")]
    pub begun_ms: u64,
}

/// How a command ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Exit {
    /// Exit code 0 to 255; where `signal` is not 0, 128 + signal.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The signal that killed it, else 0.
    #[prost(int32, tag = "2")]
    pub signal: i32,
    /// Why it ended.
    #[prost(enumeration = "ExitCause", tag = "3")]
    pub cause: i32,
    /// One line for a person where it could not be started; also written to its stderr.
    #[prost(string, tag = "4")]
    pub message: String,
    /// Milliseconds from start to end, by the holder's running time.
    #[prost(uint64, tag = "5")]
    pub duration_ms: u64,
}

/// Why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ExitCause {
    /// By itself or by a signal.
    Unspecified = 0,
    /// `timeout_ms` was over and its tree was killed.
    TimedOut = 1,
    /// No such program: code 127.
    NotFound = 2,
    /// Not executable (mode, directory, format): code 126.
    NotExecutable = 3,
    /// The working directory is missing, is no directory or may not be entered: code 126.
    BadDirectory = 4,
    /// The user or group is unknown to the guest: code 126.
    BadUser = 5,
    /// The sandbox had no process, memory or session left for it: code 126.
    NoResources = 6,
    /// The session could not be set up for another reason: code 126.
    SetupFailed = 7,
}

/// Output of a command.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Data {
    /// The session.
    #[prost(string, tag = "1")]
    pub command_id: String,
    /// The stream.
    #[prost(enumeration = "Stream", tag = "2")]
    pub stream: i32,
    /// Offset of the first byte of `data`.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// At most [`MAX_DATA`](super::MAX_DATA) bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub data: Vec<u8>,
}

/// Something that ends or cripples the sandbox.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Fault {
    /// What happened.
    #[prost(enumeration = "FaultKind", tag = "1")]
    pub kind: i32,
    /// One line for a person.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// What a [`Fault`] tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FaultKind {
    /// Never sent.
    Unspecified = 0,
    /// The process that all sessions live under was killed from inside; every session is gone.
    SpawnerKilled = 1,
}

//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

/// Runs commands in sandboxes and shows how they are.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl sandbox",
    bin_name = "kubectl sandbox",
    version,
    after_help = "\
The cluster is that of the kubeconfig, as for kubectl; in a pod without one, the pod's own. With --standalone it is one
agent, without Kubernetes."
)]
pub(crate) struct Cli {
    /// Socket of an agent that runs without Kubernetes (`cloche-agent standalone --socket`)
    #[arg(
        long,
        value_name = "SOCKET",
        env = "CLOCHE_STANDALONE",
        global = true,
        hide_env_values = true
    )]
    pub(crate) standalone: Option<PathBuf>,
    /// Namespace of the sandbox; absent: that of the context, or "default"
    #[arg(short, long, global = true)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which cluster, as whom: as kubectl has it.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct ClusterFlags {
    /// The kubeconfig to use instead of those of KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig to use
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) cluster: Option<String>,
    // Not global: exec has another one.
    /// User of the kubeconfig to use; only before the command's name, after it it is exec's own
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// User to impersonate
    #[arg(long = "as", value_name = "NAME", global = true)]
    pub(crate) as_user: Option<String>,
    /// Group to impersonate, with --as; may be given again
    #[arg(long = "as-group", value_name = "NAME", global = true)]
    pub(crate) as_groups: Vec<String>,
}

impl ClusterFlags {
    /// The first flag that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        [
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--context", self.context.is_some()),
            ("--cluster", self.cluster.is_some()),
            ("--user", self.user.is_some()),
            ("--as", self.as_user.is_some()),
            ("--as-group", !self.as_groups.is_empty()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a sandbox, or attach to one that runs
    Exec(Exec),
    /// Attach to a command that runs, such as a sandbox's own
    Attach(Attach),
    /// Make a sandbox and run a command in it
    Run(Run),
    /// Make sandboxes
    Create(Create),
    /// List sandboxes
    Ls(Ls),
    /// Show all about a sandbox
    Describe(Describe),
    /// Show what sandboxes use
    Top(Top),
    /// Wait until a sandbox is in some state
    Wait(Wait),
    /// Print what a command has written
    Log(Log),
    /// Have sandboxes stand still: no processor, all else stays
    Pause(Pace),
    /// Have paused sandboxes go on
    Resume(Pace),
    /// Have sandboxes stop: their files are kept, their commands end
    Stop(Pace),
    /// Have stopped sandboxes run again
    Start(Pace),
    /// Delete sandboxes
    Rm(Rm),
    /// End what runs on a node, and keep new sandboxes away from it
    Drain(Drain),
}

impl Command {
    /// Whether its exit code is that of a command inside a sandbox.
    pub(crate) fn runs_a_command(&self) -> bool {
        match self {
            Self::Exec(_) | Self::Attach(_) | Self::Run(_) => true,
            Self::Create(_)
            | Self::Ls(_)
            | Self::Describe(_)
            | Self::Top(_)
            | Self::Wait(_)
            | Self::Log(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Stop(_)
            | Self::Start(_)
            | Self::Rm(_)
            | Self::Drain(_) => false,
        }
    }
}

/// How a command meets the local terminal.
#[derive(Debug, Args, Clone, Copy, Default)]
pub(crate) struct Interaction {
    /// Pass standard input on to the command
    #[arg(short = 'i', long = "stdin")]
    pub(crate) stdin: bool,
    /// Give the command a terminal
    #[arg(short = 't', long = "tty")]
    pub(crate) tty: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exits with the command's code; 124 where --timeout ended it; 125 where it could not be run or how it
ended is not known.
^C is passed on to the command; the third one within 5 seconds leaves it.
The agent, and in a cluster the gateway, may be restarted meanwhile: the command is attached to again, for up to 60 s.
In a cluster it takes the right to get and create sandboxes/exec in the group subresources.cloche.dev; to come back after
a break, sandboxes/attach.
Without --command-id the command is killed 2 minutes after this program has gone; with it, it goes on, and the same
command with the same --command-id (or no command) attaches to it and prints its output from the beginning. Another command is refused.")]
pub(crate) struct Exec {
    /// Name of the sandbox
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) interaction: Interaction,
    /// User to run as: uid, uid:gid, name or name:group of the sandbox's own files
    #[arg(
        long,
        value_name = "USER",
        default_value = "",
        hide_default_value = true,
        requires = "argv"
    )]
    pub(crate) user: String,
    /// Working directory; relative to the sandbox's own
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true,
        requires = "argv"
    )]
    pub(crate) cwd: String,
    /// Environment variable; may be given again
    #[arg(long = "env", value_name = "NAME=VALUE", requires = "argv")]
    pub(crate) env: Vec<OsString>,
    /// Kill the command and all it started after so long, such as 30s or 1m30s
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, requires = "argv")]
    pub(crate) timeout: Option<Duration>,
    /// Name of this run of the command: a second exec with it attaches, and never runs the command twice
    #[arg(long, value_name = "ID")]
    pub(crate) command_id: Option<String>,
    /// The command is one string for a shell: the sandbox's own, or the one at PATH
    #[arg(
        long,
        value_name = "PATH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "argv"
    )]
    pub(crate) shell: Option<String>,
    /// Program and arguments
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "command_id"
    )]
    pub(crate) argv: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Prints the command's output from the beginning, as far as it is kept, and goes on. Exits as exec does.
The command outlives this program: ^C is passed on to it; the third one within 5 seconds leaves it.")]
pub(crate) struct Attach {
    /// Name of the sandbox
    pub(crate) name: String,
    /// The command; absent: the sandbox's own
    #[arg(long, value_name = "ID")]
    pub(crate) command_id: Option<String>,
    #[command(flatten)]
    pub(crate) interaction: Interaction,
}

/// What a sandbox is made of, beside its image and command.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Shape {
    /// CPU limit, such as 500m or 2
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) cpu: Option<String>,
    /// Memory limit, such as 512Mi
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) memory: Option<String>,
    /// Limit of what it writes to files, such as 5Gi
    #[arg(long, value_name = "QUANTITY")]
    pub(crate) ephemeral_storage: Option<String>,
    /// Environment variable; may be given again
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// End the sandbox so long after its start, in whole seconds, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) ttl: Option<Duration>,
    /// What becomes of the sandbox once nobody has used it for so long, in whole seconds, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) idle_timeout: Option<Duration>,
    /// What becomes of it then; absent: it is stopped
    #[arg(long, value_name = "ACTION", requires = "idle_timeout")]
    pub(crate) idle_action: Option<IdleAction>,
}

/// What becomes of an idle sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleAction {
    /// Its files are kept, its commands end, until it is used again
    Stop,
    /// It is paused, until it is used again
    Pause,
    /// It ends
    End,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command is the sandbox's main one: the sandbox ends with it. Without one it idles and serves exec.")]
pub(crate) struct Create {
    /// Name of the sandbox
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) name: Option<String>,
    /// Manifests in YAML or JSON, any number in each; -: standard input
    #[arg(
        short = 'f',
        long = "filename",
        id = "file",
        value_name = "FILE",
        conflicts_with_all = ["image", "cpu", "memory", "ephemeral_storage", "env", "ttl", "idle_timeout", "idle_action", "argv"]
    )]
    pub(crate) files: Vec<PathBuf>,
    /// Image to run
    #[arg(long, value_name = "REF", required_unless_present = "file")]
    pub(crate) image: Option<String>,
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Make nothing: print what would be asked for, or have the cluster check it
    #[arg(long, value_name = "WHERE", require_equals = true)]
    pub(crate) dry_run: Option<DryRun>,
    /// How to print what was made
    #[arg(short, long)]
    pub(crate) output: Option<Printed>,
    /// Program and arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Asks nobody
    Client,
    /// Has the cluster do all but store it
    Server,
}

/// How an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Printed {
    /// Objects in JSON
    Json,
    /// Objects in YAML
    Yaml,
    /// Only names
    Name,
}

impl From<Printed> for Output {
    fn from(printed: Printed) -> Self {
        match printed {
            Printed::Json => Self::Json,
            Printed::Yaml => Self::Yaml,
            Printed::Name => Self::Name,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
The command is the sandbox's main one: the sandbox ends with it. With -i or -t it is run by exec in a sandbox that
stays (a shell where none is given). Without a command the sandbox idles and serves exec.
Exits with the command's code; 125 where it could not be run.")]
pub(crate) struct Run {
    /// Name of the sandbox; made up and printed where absent
    pub(crate) name: Option<String>,
    /// Image to run
    #[arg(long, value_name = "REF")]
    pub(crate) image: String,
    #[command(flatten)]
    pub(crate) shape: Shape,
    /// Delete the sandbox at the end, also after ^C
    #[arg(long)]
    pub(crate) rm: bool,
    #[command(flatten)]
    pub(crate) interaction: Interaction,
    /// Program and arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// More columns
    Wide,
    /// Objects in JSON
    Json,
    /// Objects in YAML
    Yaml,
    /// Only names
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only these sandboxes
    #[arg(conflicts_with_all = ["all_namespaces", "selector", "watch"])]
    pub(crate) names: Vec<String>,
    /// Those of all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Only those with such labels, such as team=a,stage!=test
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Go on and print each again whenever it changes
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// How to print
    #[arg(short, long)]
    pub(crate) output: Option<Output>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Of each sandbox that runs: processor time over the last seconds, memory (its kernel's included) and what it has written to
files, with their share of its limits, and processes. In a cluster it takes the right to get sandboxes/usage in the group
subresources.cloche.dev.")]
pub(crate) struct Top {
    /// Only these sandboxes
    #[arg(conflicts_with_all = ["all_namespaces", "selector"])]
    pub(crate) names: Vec<String>,
    /// Those of all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Only those with such labels, such as team=a,stage!=test
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// Name of the sandbox
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Name of the sandbox
    pub(crate) name: String,
    /// condition=TYPE[=STATUS], phase=PHASE, ready, finished or delete
    #[arg(long = "for", value_name = "STATE")]
    pub(crate) state: String,
    /// How long to wait; 0 looks once
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Name of the sandbox
    pub(crate) name: String,
    /// Of this command; absent: the sandbox's main one
    #[arg(long, value_name = "ID")]
    pub(crate) command_id: Option<String>,
    /// Of the main one as it ran before the sandbox was last stopped
    #[arg(short, long, conflicts_with_all = ["command_id", "follow"])]
    pub(crate) previous: bool,
    /// Go on until no process can write to the output any more: the command and all that it left running
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only so many bytes from the end of each of stdout and stderr
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tail_bytes: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Sets spec.lifecycle.desiredState. A pause keeps memory and commands: clients that are attached stay so, and time limits of commands do
not count meanwhile. A stop keeps files alone: the main command is told to end, the others are killed, and the main command is started
anew once the sandbox is to run. The time to live counts in both.")]
pub(crate) struct Pace {
    /// Names of the sandboxes
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// Return only when it is so
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_value = "true",
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Gives the Node the taint cloche.dev/drain, as `kubectl taint` would, and waits until nothing runs there: each sandbox is told to end, has
its grace period, and ends with NodeShutdown. Stopped ones stay, with their files on the node's disk. Pods are not touched: `kubectl
drain` does that.")]
pub(crate) struct Drain {
    /// Name of the node
    pub(crate) node: String,
    /// Take the taint off again
    #[arg(long)]
    pub(crate) undo: bool,
    /// How long to wait until nothing runs there; 0 does not wait
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration, conflicts_with = "undo")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Names of the sandboxes
    #[arg(required_unless_present_any = ["all", "selector"], conflicts_with_all = ["all", "selector"])]
    pub(crate) names: Vec<String>,
    /// All of the namespace
    #[arg(long)]
    pub(crate) all: bool,
    /// All with such labels, such as team=a,stage!=test
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Return only when nothing of them is left on the node; absent: in a cluster
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) wait: Option<bool>,
}

/// `30s`, `1m30s`, `500ms`, `0s`; a unit is required but for `0`.
fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or_else(|| "write it like 30s, 500ms or 1m30s".to_owned())
}

/// A [`duration`] above zero.
fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be above zero".to_owned()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_unit_and_no_sign() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "5", "-5s", "5 parsecs", "1mo", "s", "1e9s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn what_exec_understands() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("s exec demo -- ls -l").is_ok());
        assert!(parse("s --standalone /run/a exec demo -it --env A=b -- sh").is_ok());
        assert!(parse("s exec demo -it --command-id one").is_ok());
        for wrong in [
            "s exec demo",
            "s exec demo ls",
            "s exec -- ls",
            "s exec demo --timeout 0s -- ls",
            "s exec demo --command-id one --timeout 1s",
            "s exec demo --command-id one --env A=b",
            "s exec demo --command-id one --cwd /tmp",
            "s exec demo --command-id one --user 0",
            "s exec demo --command-id one --shell",
            "s run demo",
            "s rm",
            "s log demo --tail-bytes 0",
            "s attach",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let Ok(Cli {
            command: Command::Exec(exec),
            ..
        }) = parse("s exec demo --shell -- ls")
        else {
            panic!("exec expected");
        };
        assert_eq!(exec.shell.as_deref(), Some(""));
    }

    #[test]
    fn flags_are_as_kubectl_has_them() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        for right in [
            "s ls -A",
            "s ls --all-namespaces -o wide -l a=b,c!=d",
            "s ls -w",
            "s -n team ls",
            "s ls -n team --context x --cluster y --kubeconfig /z",
            "s --user joe ls",
            "s --as joe --as-group a --as-group b ls",
            "s ls --as joe",
            "s create demo --image i --cpu 1 --memory 1Gi --ephemeral-storage 5Gi --env A=b --ttl 1m -- sh -c x",
            "s create demo --image i --dry-run=client -o yaml",
            "s create demo --image i --dry-run=server -o name",
            "s create -f a.yaml -f -",
            "s create --filename a.yaml",
            "s rm demo --wait=false",
            "s rm demo --wait",
            "s rm --all",
            "s rm -l a=b",
            "s wait demo --for=Ready --timeout 1m",
            "s attach demo -it --command-id one",
        ] {
            assert!(parse(right).is_ok(), "{right}: {:?}", parse(right).err());
        }
        for (wrong, told) in [
            ("s ls demo -A", "cannot be used with"),
            ("s ls demo -l a=b", "cannot be used with"),
            ("s ls demo -w", "cannot be used with"),
            ("s ls -o xml", "possible values"),
            ("s create", "--image"),
            ("s create demo", "--image"),
            ("s create --image i", "NAME"),
            ("s create demo -f a.yaml", "cannot be used with"),
            ("s create -f a.yaml --image i", "cannot be used with"),
            ("s create -f a.yaml --cpu 1", "cannot be used with"),
            ("s create demo --image i --dry-run", "--dry-run"),
            ("s create demo --image i --dry-run=maybe", "possible values"),
            ("s create demo --image i -o wide", "possible values"),
            ("s rm demo --all", "cannot be used with"),
            ("s rm demo -l a=b", "cannot be used with"),
            ("s rm demo --wait=maybe", "possible values"),
            ("s rm", "NAMES"),
        ] {
            let problem = parse(wrong).map(|_| ()).unwrap_err().to_string();
            assert!(problem.contains(told), "{wrong}: {problem}");
        }
        // What stands after the command's name is exec's own.
        let Ok(Cli {
            cluster,
            command: Command::Exec(exec),
            ..
        }) = parse("s --user joe exec demo --user 1000 -- id")
        else {
            panic!("exec expected");
        };
        assert_eq!(
            (cluster.user.as_deref(), &*exec.user),
            (Some("joe"), "1000")
        );
        let wait = |line: &str| match parse(line).unwrap().command {
            Command::Rm(rm) => rm.wait,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait("s rm demo"), None);
        assert_eq!(wait("s rm demo --wait"), Some(true));
        assert_eq!(wait("s rm demo --wait=false"), Some(false));
    }
}

//! The arguments of every command. Help texts are part of the contract: they are snapshotted in tests.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::rewind::Reach;

/// A timeline of the messages that you sent to an AI coding agent, each with a checkpoint of the files:
/// browse, diff, rewind, undo.
///
/// Without a command it opens the timeline of a conversation (the newest one of this folder).
#[derive(Debug, Parser)]
#[command(name = "respool", version)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The conversation to open: an id, a unique prefix of one, or the path of its store.
    #[arg(value_name = "CONVERSATION")]
    pub open: Option<OsString>,
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// When to colour text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print one JSON document (JSON Lines where a command streams) and nothing else on stdout.
    #[arg(long, global = true)]
    pub json: bool,
    /// The conversation: an id, a unique prefix, a path to its store [default: the newest of this folder].
    #[arg(short, long, global = true, value_name = "CONVERSATION")]
    pub conversation: Option<OsString>,
    /// The sandbox, by id or path, where there is no conversation.
    #[arg(short, long, global = true, value_name = "SANDBOX")]
    pub sandbox: Option<OsString>,
    /// Work on another machine, through ssh: its conversations, its sandboxes.
    #[arg(long, global = true, value_name = "HOST")]
    pub host: Option<OsString>,
    /// Keep all state of this run here [default: /var/lib/respool for root].
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Read this config file.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// When to colour text.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Say more on stderr (twice: even more).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Say nothing but errors on stderr.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Do not ask.
    #[arg(long, global = true)]
    pub yes: bool,
    /// Print what would be done and change nothing.
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// The service's own: for whom it works, as UID:PID.
    #[arg(long, global = true, hide = true, value_name = "UID:PID")]
    pub behalf: Option<Behalf>,
}

/// For whom the service works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behalf {
    /// The user.
    pub uid: u32,
    /// The process that asked.
    pub pid: i32,
}

impl std::str::FromStr for Behalf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(u, p)| Some((u.parse().ok()?, p.parse().ok()?)));
        let (uid, pid) = parsed.ok_or("it must be UID:PID")?;
        Ok(Self { uid, pid })
    }
}

/// A vault to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VaultChoice {
    /// Read-only snapshots on Btrfs.
    Btrfs,
    /// Copies, without privileges.
    Copy,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the main job on a recorded conversation, with nothing to set up.
    Demo {
        /// Do the rewind and the undo without a terminal, check them, print the result.
        #[arg(long)]
        headless: bool,
        /// The vault.
        #[arg(long, value_name = "VAULT", default_value = "btrfs")]
        vault: VaultChoice,
        /// Make the scratch sandbox in this folder [default: a temporary one].
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Leave the scratch sandbox there.
        #[arg(long)]
        keep: bool,
    },
    /// Start an agent here under protection: a checkpoint at each message, and its process is known as an agent's.
    ///
    /// A folder that is not tracked yet is tracked first, after asking. Under sudo the agent runs as the invoking
    /// user. Its exit code is the command's.
    Run {
        /// The vault, where the folder must be tracked first.
        #[arg(long, value_name = "VAULT")]
        vault: Option<VaultChoice>,
        /// The agent's program and its arguments.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "AGENT"
        )]
        agent: Vec<OsString>,
    },
    /// Put a workspace under respool.
    Track(TrackArgs),
    /// Give a workspace back as a plain folder with its present content.
    Untrack {
        /// The workspace.
        dir: PathBuf,
    },
    /// List what is tracked.
    Sandboxes,
    /// List the conversations found on this machine.
    Conversations {
        /// Only those of this agent.
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
    },
    /// Show the messages of a conversation, each with its checkpoint.
    Timeline {
        /// The conversation, as with -c [default: the newest of this folder].
        #[arg(id = "named", value_name = "CONVERSATION")]
        conversation: Option<OsString>,
    },
    /// Take a checkpoint now.
    #[command(alias = "snapshot")]
    Checkpoint {
        /// The message that it is the state before.
        #[arg(long, value_name = "MESSAGE")]
        message: Option<String>,
        /// A label of your own.
        #[arg(long, value_name = "TEXT")]
        label: Option<String>,
    },
    /// List all checkpoints of a sandbox, newest first, also those of no message.
    Checkpoints,
    /// List the paths that differ between two states.
    Changes {
        /// The first state: a message (the state just before it), m3.end, a checkpoint id, start, now.
        a: String,
        /// The second state.
        b: String,
        /// Only these paths, with everything below them.
        paths: Vec<PathBuf>,
        /// Also files whose modification time alone differs.
        #[arg(long)]
        times: bool,
    },
    /// Show the difference of texts between two states, usable by `git apply`.
    Diff {
        /// The first state.
        a: String,
        /// The second state.
        b: String,
        /// Only these paths, with everything below them.
        paths: Vec<PathBuf>,
    },
    /// Print a file as it was.
    Cat {
        /// The state.
        state: String,
        /// The path, relative to the workspace.
        path: PathBuf,
    },
    /// List a folder as it was.
    Ls {
        /// The state.
        state: String,
        /// The path, relative to the workspace.
        path: Option<PathBuf>,
    },
    /// Go back to a state: plan, safety checkpoint, restore, check.
    #[command(alias = "restore")]
    Rewind(RewindArgs),
    /// Take back the last rewind.
    Undo {
        /// The operation to take back [default: the last one].
        operation: Option<String>,
        /// How far it reaches.
        #[command(flatten)]
        reach: ReverseArgs,
    },
    /// Take back the last undo.
    Redo {
        /// The undo to take back [default: the last one].
        operation: Option<String>,
        /// How far it reaches.
        #[command(flatten)]
        reach: ReverseArgs,
    },
    /// List the operations, newest first.
    Log,
    /// Finish or roll back what a crash left.
    Recover {
        /// Where the conversation of an operation cannot be seen: take its files back, and leave the conversation.
        #[arg(long)]
        files: bool,
    },
    /// Give a checkpoint a label (an empty one removes it).
    Label {
        /// The checkpoint.
        checkpoint: String,
        /// The label.
        text: String,
    },
    /// Keep a checkpoint whatever retention says.
    Pin {
        /// The checkpoint.
        checkpoint: String,
    },
    /// Let retention have a checkpoint again.
    Unpin {
        /// The checkpoint.
        checkpoint: String,
    },
    /// Remove old checkpoints; never pinned ones, never a safety checkpoint under 30 days old.
    ///
    /// Without a flag, [retention] of the config says what stays.
    ///
    /// With -s SANDBOX alone, where that sandbox is no longer tracked: removes it with all its checkpoints, after
    /// asking.
    Prune {
        /// Keep the newest N.
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Keep those younger than this: 30d, 12h, 45m.
        #[arg(long, value_name = "AGE")]
        keep_within: Option<String>,
        /// Remove until the pool holds at most this much: 10G.
        #[arg(long, value_name = "SIZE")]
        max_bytes: Option<String>,
    },
    /// Show what takes space: checkpoints, pool, host disk.
    Space,
    /// Look after the Btrfs file system behind the checkpoints.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Take a checkpoint at each message of these conversations.
    Watch {
        /// The conversations [default: the newest of this folder].
        conversations: Vec<OsString>,
    },
    /// Called by an agent's prompt hook, with its JSON on stdin.
    Hook {
        /// The agent.
        agent: String,
        /// Inside a container: the socket of the sandbox [default: hook.sock beside this program, if it is there].
        #[arg(long, value_name = "FILE")]
        socket: Option<PathBuf>,
    },
    /// Put the hook into an agent's configuration, or take it out.
    Hooks {
        /// What to do.
        #[command(subcommand)]
        command: HooksCommand,
    },
    /// Show the containers found and how each can be covered; bring all of Docker's data into a pool, and back.
    Docker {
        /// What to do.
        #[command(subcommand)]
        command: DockerCommand,
    },
    /// Which message's turn last changed this file.
    Why {
        /// The file, relative to the workspace.
        path: PathBuf,
    },
    /// Tell what works here, what is missing, and the command that mends it.
    Doctor,
    /// Do the privileged work for ordinary users, over a socket; as root.
    Service {
        /// Listen here [default: /run/respool.sock, or what systemd hands over].
        #[arg(long, value_name = "FILE")]
        socket: Option<PathBuf>,
        /// Serve standard input and output alone, as the user who starts it: what --host does at the other end.
        #[arg(long, conflicts_with = "socket")]
        stdio: bool,
    },
    /// Print the completions of a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, with every key of the config.
    Man,
}

/// Arguments of `track`.
#[derive(Debug, Args)]
pub struct TrackArgs {
    /// The workspace.
    pub dir: PathBuf,
    /// The vault.
    #[arg(long, value_name = "VAULT")]
    pub vault: Option<VaultChoice>,
    /// Without root, on a Btrfs: the folder to keep the checkpoints in [default: the state folder, if it is on the
    /// same file system, else the highest folder of yours above the workspace].
    #[arg(long, value_name = "PATH", conflicts_with = "image")]
    pub pool: Option<PathBuf>,
    /// The loop image to use; made if it is not there.
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// The size of a new image: 20G, 500M.
    #[arg(long, value_name = "SIZE", default_value = "20G")]
    pub size: String,
    /// Reserve the whole size of a new image on the host's disk.
    #[arg(long)]
    pub preallocate: bool,
    /// Give each conversation a workspace of its own: DIR is the template, each is a clone of it beside it, in
    /// DIR.workspaces, with checkpoints of its own. With -c ID: open the one of this conversation.
    #[arg(long, conflicts_with = "containers")]
    pub per_conversation: bool,
    /// With --per-conversation: a folder that all these workspaces share, as ../NAME; it is in no checkpoint.
    #[arg(long, value_name = "NAME", requires = "per_conversation")]
    pub shared: Option<String>,
    /// A container that goes with it: its root file system is in each checkpoint, and goes back with the workspace. May
    /// be named again for a workspace that is tracked already.
    #[arg(long = "container", value_name = "NAME")]
    pub containers: Vec<String>,
}

/// Arguments of `undo` and `redo`.
#[derive(Debug, Clone, Copy, Args)]
pub struct ReverseArgs {
    /// Restore the files alone; a conversation that was moved stays where it is.
    #[arg(long)]
    pub files: bool,
    /// Interrupt the agent if it is at work, and wait until it has stopped.
    #[arg(long, conflicts_with = "files")]
    pub interrupt: bool,
}

impl RewindArgs {
    /// How far it reaches.
    pub fn reach(&self) -> Reach {
        match (self.both, self.files, self.chat) {
            (true, ..) => Reach::Both,
            (_, true, _) => Reach::Files,
            (.., true) => Reach::Chat,
            _ => Reach::Auto,
        }
    }
}

/// Arguments of `rewind`.
#[derive(Debug, Args)]
pub struct RewindArgs {
    /// The state: a message (the state just before it), m3.end, a checkpoint id, start.
    pub state: String,
    /// Restore the files; the conversation stays as it is.
    #[arg(long, conflicts_with_all = ["chat", "both"])]
    pub files: bool,
    /// Move the conversation; the files stay as they are.
    #[arg(long, conflicts_with_all = ["both", "paths", "keep_mine", "only_turn"])]
    pub chat: bool,
    /// Restore the files and move the conversation, or do nothing [default, where this conversation can be moved].
    #[arg(long)]
    pub both: bool,
    /// Interrupt the agent if it is at work, and wait until it has stopped.
    #[arg(long, conflicts_with = "files")]
    pub interrupt: bool,
    /// Only this path, with everything below it. May be given more than once.
    #[arg(long = "path", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Keep what you changed yourself between the agent's turns.
    #[arg(long)]
    pub keep_mine: bool,
    /// Take back only what this message's turn changed.
    #[arg(long, conflicts_with = "keep_mine")]
    pub only_turn: bool,
    /// Bring all of Docker's data back, everybody's containers, images and volumes, and not this sandbox's container alone.
    /// The plan names each. (`docker enable` must have been done before the checkpoint.)
    #[arg(long, conflicts_with_all = ["paths", "keep_mine", "only_turn", "chat"])]
    pub whole_docker: bool,
    /// Change the files in place (the default): open files and shells stay valid.
    #[arg(long)]
    pub in_place: bool,
    /// Then send the message again with this text, its pictures kept (-: from standard input).
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["files", "paths"], allow_hyphen_values = true)]
    pub resend: Option<String>,
    /// Then send the message again as you edit it in $VISUAL or $EDITOR.
    #[arg(long, conflicts_with_all = ["files", "paths", "resend"])]
    pub edit: bool,
}

/// Commands of `pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make the loop image of the state folder, or the named one.
    Create {
        /// The image [default: pool.img in the state folder].
        #[arg(long, value_name = "FILE")]
        image: Option<PathBuf>,
        /// Its size: 20G, 500M.
        #[arg(long, value_name = "SIZE", default_value = "20G")]
        size: String,
        /// Reserve the whole size on the host's disk.
        #[arg(long)]
        preallocate: bool,
    },
    /// Show the pools.
    Status,
    /// Make a pool's image larger.
    Grow {
        /// The new size: 40G.
        size: String,
        /// The pool, by its id or image [default: the only one].
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
    },
    /// Mount the pools and their workspaces again.
    Mount,
    /// Unmount the workspaces and the pools.
    Unmount,
    /// Check the pools with btrfs scrub.
    Check,
}

/// Commands of `hooks`.
#[derive(Debug, Subcommand)]
pub enum HooksCommand {
    /// Put the hook into the agent's configuration.
    Install(HooksArgs),
    /// Take it out again.
    Uninstall(HooksArgs),
    /// Show where it is, and whether messages will have checkpoints.
    Status(HooksArgs),
}

/// Where a hook goes.
#[derive(Debug, Args)]
pub struct HooksArgs {
    /// The agent: openhands or claude [default: openhands; status: the one of this folder's newest conversation].
    pub agent: Option<String>,
    /// In the workspace's configuration (the default).
    #[arg(long, conflicts_with = "user")]
    pub project: bool,
    /// In your own configuration.
    #[arg(long)]
    pub user: bool,
    /// In the workspace's configuration, for an agent inside a container: opens the sandbox's door, and says how the
    /// container gets it.
    #[arg(long, conflicts_with = "user")]
    pub container: bool,
}

/// Commands of `docker`.
#[derive(Debug, Subcommand)]
pub enum DockerCommand {
    /// Show the containers found and how each can be covered.
    Status,
    /// Bring all of Docker's data into a pool: each checkpoint has all of it from then on.
    ///
    /// Docker is stopped meanwhile, and its containers are. The path of the data stays the same; what was there before is
    /// set aside and stays until `docker disable`. The plan is shown first, and asks.
    Enable {
        /// The loop image to use; made if it is not there [default: pool.img in the state folder; none where the data is
        /// on a Btrfs already].
        #[arg(long, value_name = "FILE")]
        image: Option<PathBuf>,
        /// The size of a new image: 20G, 500M [default: 20G, or twice the data].
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
    },
    /// Bring Docker's data, with all that was made meanwhile, and its settings back.
    ///
    /// Says first what is lost with it: the checkpoints of all of Docker.
    Disable,
}

//! The command line: arguments, one call into the rooms below, the result as text or JSON.

mod app;
mod args;
mod changes;
mod checkpoint;
mod checkpoints;
mod content;
mod conversations;
mod current;
mod demo;
mod diff;
mod docker;
mod doctor;
mod forward;
mod hook;
mod hooks;
mod host;
mod man;
mod open;
mod operations;
mod output;
mod pool;
mod prune;
mod resend;
mod rewind;
mod run;
mod run_claude;
mod sandboxes;
mod service;
mod shell;
mod signals;
mod timeline;
mod track;
mod watch;
mod why;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use app::App;
use args::{Cli, Command};
use output::{Done, Failure, Output, complain};

use crate::config::run::{AS_COMMAND, become_and_run};
use crate::failure::Kind;
use crate::sandbox::parts::pause;
use crate::sandbox::whole::recipe;
use crate::sandbox::{foreground, freeze};

/// Runs one command; the exit code of the process.
pub fn run() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // no command of the user: in no help, in no completion
    if args.get(1).is_some_and(|a| a == freeze::THAW_COMMAND) {
        return match freeze::thaw_helper() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if args.get(1).is_some_and(|a| a == pause::UNPAUSE_COMMAND) {
        return match pause::unpause_helper() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if args.get(1).is_some_and(|a| a == foreground::AGENT_COMMAND) {
        let why = foreground::become_agent(&args[2..]);
        complain(format_args!("respool: the agent cannot be run: {why}\n"));
        return ExitCode::from(foreground::NOT_RUN);
    }
    if args.get(1).is_some_and(|a| a == recipe::DAEMON_COMMAND) {
        let e = recipe::become_daemon(&args[2..]);
        complain(format_args!("respool: the daemon cannot be run: {e}\n"));
        return ExitCode::from(foreground::NOT_RUN);
    }
    crate::text::follow_locale();
    if args.get(1).is_some_and(|a| a == AS_COMMAND) {
        let e = become_and_run(&args[2..]);
        complain(format_args!("{e}\n"));
        return ExitCode::from(127);
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(e) if is_hook(&args) => {
            // 2 would make the agent refuse the message
            usage(&args, &e);
            return ExitCode::FAILURE;
        }
        Err(e) => return usage(&args, &e),
    };
    logging(cli.global.verbose, cli.global.quiet);
    raise_file_limit();
    let out = Output::new(&cli.global);
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

/// True if an agent's hook is what was asked for, whatever else stands there.
fn is_hook(args: &[OsString]) -> bool {
    if args.get(1).is_some_and(|a| a == "help") {
        return false;
    }
    let words = args.iter().skip(1).take_while(|a| *a != "--");
    words.clone().any(|a| a == "hook") && !words.clone().any(|a| a == "--help" || a == "-h")
}

/// Help and version go to stdout with 0; all else is usage, 2.
fn usage(args: &[OsString], e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // help into a closed pipe is no failure
        drop(e.print());
        return ExitCode::SUCCESS;
    }
    let json = args.iter().take_while(|a| *a != "--").any(|a| a == "--json");
    let text = e.to_string();
    let first = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .to_owned();
    if json {
        let failure = Failure::new(Kind::Usage, crate::text::shown(&first)).hint("respool --help");
        Output::plain(true).failure(&failure);
    } else {
        complain(format_args!(
            "{}",
            text.lines()
                .map(|l| format!("{}\n", crate::text::shown(l)))
                .collect::<String>()
        ));
    }
    ExitCode::from(Kind::Usage.exit_code())
}

fn logging(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("RESPOOL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("respool={level}")));
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if let Err(e) = format
        .without_time()
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(false)
        .try_init()
    {
        complain(format_args!("respool: no log: {e}\n"));
    }
}

/// Deep trees are walked with one open folder a level.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, wanted) {
        tracing::debug!("the limit of open files stays as it is: {e}");
    }
}

fn dispatch(cli: Cli) -> Done {
    let Cli {
        global,
        open,
        command,
    } = cli;
    if global.host.is_some() {
        command.as_ref().map_or(Ok(()), host::allows)?;
    }
    let Some(command) = command else {
        return open::run(global, open);
    };
    if let Some(word) = open {
        let what = format!("{} is no command", crate::text::shown(&word.to_string_lossy()));
        return Err(Failure::new(Kind::Usage, what).hint("respool --help"));
    }
    match command {
        Command::Completions { shell } => shell::completions(shell),
        Command::Man => man::man(),
        Command::Hook { agent, socket } => hook::run(global, &agent, socket),
        command => with_app(App::new(global)?, command),
    }
}

fn with_app(app: App, command: Command) -> Done {
    if let Some(verb) = forward::verb(&app, &command)? {
        return forward::run(&app, verb);
    }
    match command {
        Command::Demo {
            headless,
            vault,
            dir,
            keep,
        } => demo::run(&app, headless, vault, dir.as_deref(), keep),
        Command::Service { stdio: true, .. } => service::stdio(app),
        Command::Service { socket, .. } => service::run(&app, socket),
        Command::Track(args) => track::track(&app, &args),
        Command::Untrack { dir } => track::untrack(&app, &dir),
        Command::Sandboxes => sandboxes::run(&app),
        Command::Conversations { agent } => conversations::run(&app, agent.as_deref()),
        Command::Timeline { conversation } => timeline::run(&app, conversation.as_ref()),
        Command::Checkpoint { message, label } => checkpoint::run(&app, message.as_deref(), label),
        Command::Checkpoints => checkpoints::run(&app),
        Command::Changes { a, b, paths, times } => changes::run(&app, &a, &b, &paths, times),
        Command::Diff { a, b, paths } => diff::run(&app, &a, &b, &paths),
        Command::Cat { state, path } => content::cat(&app, &state, &path),
        Command::Ls { state, path } => content::ls(&app, &state, path.as_deref()),
        Command::Rewind(args) => rewind::run(&app, &args),
        Command::Undo { operation, reach } => rewind::undo(&app, operation.as_deref(), reach),
        Command::Redo { operation, reach } => rewind::redo(&app, operation.as_deref(), reach),
        Command::Log => operations::log(&app),
        Command::Recover { files } => operations::recover(&app, files),
        Command::Label { checkpoint, text } => checkpoint::label(&app, &checkpoint, &text),
        Command::Pin { checkpoint } => checkpoint::pin(&app, &checkpoint, true),
        Command::Unpin { checkpoint } => checkpoint::pin(&app, &checkpoint, false),
        Command::Prune {
            keep,
            keep_within,
            max_bytes,
        } => prune::run(&app, keep, keep_within.as_deref(), max_bytes.as_deref()),
        Command::Space => sandboxes::space(&app),
        Command::Pool(command) => pool::run(&app, command),
        Command::Watch { conversations } => watch::run(&app, &conversations),
        Command::Hooks { command } => hooks::run(&app, &command),
        Command::Docker { command } => docker::run(&app, &command),
        Command::Why { path } => why::run(&app, &path),
        Command::Run { vault, agent } => run::run(&app, vault, &agent),
        Command::Doctor => doctor::run(&app),
        Command::Completions { .. } | Command::Man | Command::Hook { .. } => Ok(()),
    }
}

//! `--host`: the same commands on another machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::app::App;
use super::args::{Command, Global, PoolCommand};
use super::output::{Done, Failure, Output, complain};
use crate::config::Config;
use crate::conversation::Library;
use crate::failure::Kind;
use crate::paths::{self, Who};
use crate::sandbox::registry::Registry;
use crate::sandbox::remote::Line;
use crate::service::host::{Talk, connect};
use crate::service::shelf::FarShelf;
use crate::text::{shell_word, shown, shown_path};
use crate::timeline::desk::Desk;

/// Refuses what makes no sense there.
pub fn allows(command: &Command) -> Done {
    let name = match command {
        // never 2: agents take it for a refusal of the message
        Command::Hook { .. } => {
            return Err(
                Failure::new(Kind::Failed, "a hook works on the machine of its agent")
                    .hint("leave --host away"),
            );
        }
        Command::Demo { .. } => "demo",
        Command::Run { .. } => "run",
        Command::Track(_) => "track",
        Command::Watch { .. } => "watch",
        Command::Hooks { .. } => "hooks",
        Command::Docker { .. } => "docker",
        Command::Doctor => "doctor",
        Command::Service { .. } => "service",
        Command::Completions { .. } => "completions",
        Command::Man => "man",
        Command::Pool(PoolCommand::Create { .. }) => "pool create",
        Command::Pool(PoolCommand::Grow { .. }) => "pool grow",
        Command::Pool(PoolCommand::Check) => "pool check",
        Command::Untrack { .. }
        | Command::Sandboxes
        | Command::Conversations { .. }
        | Command::Timeline { .. }
        | Command::Checkpoint { .. }
        | Command::Checkpoints
        | Command::Changes { .. }
        | Command::Diff { .. }
        | Command::Cat { .. }
        | Command::Ls { .. }
        | Command::Rewind(_)
        | Command::Undo { .. }
        | Command::Redo { .. }
        | Command::Log
        | Command::Recover { .. }
        | Command::Label { .. }
        | Command::Pin { .. }
        | Command::Unpin { .. }
        | Command::Prune { .. }
        | Command::Space
        | Command::Pool(PoolCommand::Status | PoolCommand::Mount | PoolCommand::Unmount)
        | Command::Why { .. } => return Ok(()),
    };
    Err(
        Failure::new(Kind::Usage, format!("{name} does not work with --host"))
            .hint(format!("run it there: ssh HOST respool {name}")),
    )
}

/// A path that is named for the other machine: this one's current folder means nothing there.
pub fn absolute(what: &str, path: &Path) -> Result<PathBuf, Failure> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let message = format!("{what}: {} is no absolute path", shown_path(path));
    Err(Failure::new(Kind::Usage, message).hint("with --host, name the whole path on that machine"))
}

/// The ground of a command whose conversations and sandboxes are on this host.
pub fn app(global: Global, host: &std::ffi::OsStr) -> Result<App, Failure> {
    let env = paths::environment();
    let who = Who::invoking(&env);
    let state = global.state_dir.as_deref();
    let state = state.map(|d| absolute("--state-dir", d)).transpose()?;
    let config = Config::load(global.config.as_deref(), &who.config_dir(&env))?;
    let talk = Talk::new(|line| complain(format_args!("{line}\n")));
    let line: Arc<dyn Line> = Arc::new(connect(host, state.as_deref(), &talk)?);
    let library = Library::elsewhere(Arc::new(FarShelf(Arc::clone(&line))));
    let named = state.is_some();
    let registry = Registry::new(&state.unwrap_or_else(|| who.state_dir(&env)), named).with_line(line);
    Ok(App {
        out: Output::new(&global),
        desk: Desk::new(library, registry),
        global,
        who,
        cwd: PathBuf::from("/"),
        config,
        talk: Some(talk),
    })
}

/// `-c` was left out.
pub fn no_conversation(app: &App) -> Failure {
    Failure::new(
        Kind::Usage,
        "there is no current folder on another machine: name the conversation or the sandbox",
    )
    .hint(format!(
        "-c CONVERSATION or -s SANDBOX; {} conversations lists them",
        app.program()
    ))
}

/// The options that lead there again.
pub fn words(global: &Global) -> String {
    global.host.as_ref().map_or_else(String::new, |host| {
        format!(" --host {}", shown(&shell_word(Path::new(host))))
    })
}

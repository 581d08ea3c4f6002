//! `respool hook`: called by an agent for each message; quick, and never in the agent's way.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::args::Global;
use super::output::{Done, Failure, complain, raw};
use crate::config::Config;
use crate::failure::Kind;
use crate::paths::{self, Who};
use crate::sandbox::registry::Registry;
use crate::sandbox::settings::Settings;
use crate::watch::agent::Agent;
use crate::watch::hook::{Call, Taken, answer_to, carry_out};
use crate::watch::line::{beside, say};

/// The agent's own patience is 60 seconds; a checkpoint that comes after it would be a late one.
const DEADLINE: Duration = Duration::from_secs(50);
/// What is read of the agent's input at most.
const INPUT: u64 = 64 << 20;

/// Takes the checkpoint and prints what the agent wants. Whatever goes wrong, the agent goes on: the exit
/// code is 0 and the answer says why there is no checkpoint.
pub fn run(global: Global, agent: &str, socket: Option<PathBuf>) -> Done {
    let Some(agent) = Agent::named(agent) else {
        // never 2: agents take it for a refusal of the message
        return Err(Failure::new(
            Kind::Failed,
            format!("{} has no hook here", crate::text::shown(agent)),
        )
        .hint(Agent::names()));
    };
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(INPUT).read_to_end(&mut input);
    let call = read.map_err(|e| format!("the hook's input: {e}")).and_then(|_| {
        let project = std::env::var_os("CLAUDE_PROJECT_DIR");
        Call::of(agent, &input, project.as_deref())
    });
    let taken = match call {
        Ok(call) => match call.checkpoint() {
            None => return raw(answer_to(agent, None).as_bytes()),
            Some(_) => match socket.or_else(own_line) {
                Some(socket) => say(&socket, &call, DEADLINE),
                None => in_time(agent, global.state_dir, global.config.as_deref(), &call),
            },
        },
        Err(why) => Err(why),
    };
    if let Err(why) = &taken {
        complain(format_args!(
            "respool: no checkpoint: {}\n",
            crate::text::shown(why)
        ));
    }
    raw(answer_to(agent, Some(&taken)).as_bytes())
}

/// The socket in this program's own folder: it runs inside a container then, and what keeps checkpoints is outside.
fn own_line() -> Option<PathBuf> {
    beside(&std::env::current_exe().ok()?)
}

/// Takes it in this thread; if that takes too long, another one answers and ends the process.
fn in_time(
    agent: Agent,
    state_dir: Option<PathBuf>,
    config: Option<&Path>,
    call: &Call,
) -> Result<Taken, String> {
    let answered = Arc::new(AtomicBool::new(false));
    let watchdog = Arc::clone(&answered);
    // without it there is no deadline but the agent's own: better than no checkpoint
    let _thread = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(DEADLINE);
        if !watchdog.swap(true, Ordering::SeqCst) {
            let late = Err(format!("timeout after {} seconds", DEADLINE.as_secs()));
            let code = i32::from(raw(answer_to(agent, Some(&late)).as_bytes()).is_err());
            std::process::exit(code);
        }
    });
    let taken = registry(state_dir, config).and_then(|r| carry_out(&r, call));
    if answered.swap(true, Ordering::SeqCst) {
        // the other thread is ending the process
        loop {
            std::thread::park();
        }
    }
    taken
}

/// A config that cannot be read is said, and is no reason to take no checkpoint.
fn registry(state_dir: Option<PathBuf>, config: Option<&Path>) -> Result<Registry, String> {
    let env = paths::environment();
    let who = Who::invoking(&env);
    let config = Config::load(config, &who.config_dir(&env)).unwrap_or_else(|e| {
        complain(format_args!("respool: the config is not used: {e}\n"));
        Config::default()
    });
    let registry = match state_dir {
        Some(dir) => Registry::new(&paths::settled(&dir).unwrap_or(dir), true),
        None => Registry::new(&who.state_dir(&env), false),
    };
    let registry = registry.with(Settings::of(&config, &who));
    super::app::with_service(registry, &env).map_err(|e| e.message)
}

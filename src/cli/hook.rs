//! `respool hook`: called by an agent for each message; quick, and never in the agent's way.

use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::args::Global;
use super::output::{Done, Failure, complain, raw};
use crate::failure::Kind;
use crate::paths::{self, Who};
use crate::sandbox::registry::Registry;
use crate::watch::hook::{Call, Taken, answer, carry_out};

/// The agent's own patience is 60 seconds; a checkpoint that comes after it would be a late one.
const DEADLINE: Duration = Duration::from_secs(50);
/// What is read of the agent's input at most.
const INPUT: u64 = 64 << 20;

/// Takes the checkpoint and prints what the agent wants. Whatever goes wrong, the agent goes on: the exit
/// code is 0 and the answer says why there is no checkpoint.
pub fn run(global: Global, agent: &str) -> Done {
    if agent != "openhands" {
        // never 2: agents take it for a refusal of the message
        return Err(Failure::new(
            Kind::Failed,
            format!("{} has no hook here", crate::text::shown(agent)),
        )
        .hint("openhands"));
    }
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(INPUT).read_to_end(&mut input);
    let call = read
        .map_err(|e| format!("the hook's input: {e}"))
        .and_then(|_| Call::openhands(&input));
    let taken = match call {
        Ok(call) => match call.checkpoint() {
            None => return raw(br#"{"decision":"allow"}"#),
            Some(_) => in_time(global.state_dir, call),
        },
        Err(why) => Err(why),
    };
    if let Err(why) = &taken {
        complain(format_args!(
            "respool: no checkpoint: {}\n",
            crate::text::shown(why)
        ));
    }
    raw(answer(&taken).as_bytes())
}

fn in_time(state_dir: Option<PathBuf>, call: Call) -> Result<Taken, String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // nobody listens any more after the deadline; the process ends then
        drop(tell.send(carry_out(&registry(state_dir), &call)));
    });
    told.recv_timeout(DEADLINE)
        .unwrap_or_else(|_| Err(format!("timeout after {} seconds", DEADLINE.as_secs())))
}

fn registry(state_dir: Option<PathBuf>) -> Registry {
    let env = paths::environment();
    match state_dir {
        Some(dir) => Registry::new(&paths::settled(&dir).unwrap_or(dir), true),
        None => Registry::new(&Who::invoking(&env).state_dir(&env), false),
    }
}

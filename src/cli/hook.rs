//! `respool hook`: called by an agent for each message; quick, and never in the agent's way.

use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::args::Global;
use super::output::{Done, Failure, complain, raw};
use crate::engine::Checkpoint;
use crate::failure::{Explain, Kind};
use crate::paths::{self, Who};
use crate::sandbox::registry::Registry;
use crate::watch::hook::{Call, answer};

/// The agent's own patience is 60 seconds; a checkpoint that comes after it would be a late one.
const DEADLINE: Duration = Duration::from_secs(50);
/// How long it waits for a rewind that is under way.
const LOCKED: Duration = Duration::from_secs(20);
/// What is read of the agent's input at most.
const INPUT: u64 = 64 << 20;

/// Takes the checkpoint and prints what the agent wants. Whatever goes wrong, the agent goes on: the exit
/// code is 0 and the answer says why there is no checkpoint.
pub fn run(global: Global, agent: &str) -> Done {
    if agent != "openhands" {
        return Err(Failure::new(
            Kind::Usage,
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
        complain(format_args!("respool: no checkpoint: {why}\n"));
    }
    raw(answer(&taken).as_bytes())
}

fn in_time(state_dir: Option<PathBuf>, call: Call) -> Result<(Checkpoint, String), String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // nobody listens any more after the deadline; the process ends then
        drop(tell.send(take(state_dir, &call)));
    });
    told.recv_timeout(DEADLINE)
        .unwrap_or_else(|_| Err(format!("timeout after {} seconds", DEADLINE.as_secs())))
}

fn take(state_dir: Option<PathBuf>, call: &Call) -> Result<(Checkpoint, String), String> {
    let env = paths::environment();
    let named = state_dir.is_some();
    let state = state_dir.unwrap_or_else(|| Who::invoking(&env).state_dir(&env));
    let registry = Registry::new(&state, named);
    let words = |e: &dyn Explain| match e.hint() {
        Some(hint) => format!("{e} ({hint})"),
        None => e.to_string(),
    };
    let site = registry.find(&call.workspace).map_err(|e| words(&e))?;
    let site = site.ok_or_else(|| format!("{} is not tracked", crate::text::shown_path(&call.workspace)))?;
    let new = call.checkpoint().ok_or("nothing to do")?;
    let log = crate::rewind::journal::Log::open(site.dir()).map_err(|e| words(&e))?;
    // held over the snapshot: one in the middle of a rewind would be of no state that ever was
    let _lock = log.lock(&call.workspace, LOCKED).map_err(|e| words(&e))?;
    log.none_interrupted().map_err(|e| words(&e))?;
    let taken = site.vault.checkpoint(&new).map_err(|e| words(&e))?;
    Ok((taken, site.record.id))
}

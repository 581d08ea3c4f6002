//! Containers paused for the time of a checkpoint. A helper process that was started before the first one is paused
//! lets them go on when this process dies.

use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sandbox::docker::inspect::State;
use crate::sandbox::docker::{Engine, Inspect};
use crate::sandbox::freeze::{end, start_helper};

/// The hidden command of the helper process.
pub const UNPAUSE_COMMAND: &str = "__unpause";

/// The line that leaves the helper nothing to do.
const DONE: &str = "done";

/// Paused containers. They go on when it is dropped.
#[derive(Default)]
pub struct Paused {
    helper: Option<(Child, Option<ChildStdin>)>,
    list: Vec<(Arc<Engine>, Inspect)>,
    since: Option<Instant>,
}

impl Paused {
    /// Gets ready to pause: what takes time is done before the first container stands still.
    pub fn prepare(&mut self) -> std::io::Result<()> {
        if self.helper.is_none() {
            self.helper = Some(start_helper(UNPAUSE_COMMAND)?);
        }
        Ok(())
    }

    /// Pauses a running container.
    pub fn pause(&mut self, engine: &Arc<Engine>, container: &Inspect) -> Result<(), String> {
        self.prepare()
            .map_err(|e| format!("no helper can be started: {e}"))?;
        if let Some((_, Some(pipe))) = &mut self.helper {
            writeln!(pipe, "{} {}", container.id, engine.host())
                .and_then(|()| pipe.flush())
                .map_err(|e| format!("the helper does not listen: {e}"))?;
        }
        self.since.get_or_insert_with(Instant::now);
        // should it fail half-way, it is let go on, too
        self.list.push((Arc::clone(engine), container.clone()));
        engine.pause(container).map_err(|e| e.to_string())
    }

    /// Lets all go on. How long they stood still, and what went wrong.
    pub fn resume(&mut self) -> (Option<Duration>, Vec<String>) {
        let all: Vec<_> = self.list.drain(..).rev().collect();
        let said: Vec<_> = all.iter().map(|(engine, c)| engine.let_go(c)).collect();
        let stood = self.since.take().map(|s| s.elapsed());
        let still = all
            .iter()
            .zip(said)
            .filter_map(|((engine, c), s)| engine.goes_on(c, s).err());
        let wrong: Vec<String> = still.map(|e| e.to_string()).collect();
        if wrong.is_empty()
            && let Some((_, Some(pipe))) = &mut self.helper
            && let Err(e) = writeln!(pipe, "{DONE}")
        {
            tracing::debug!("the helper for paused containers: {e}");
        }
        (stood, wrong)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for e in self.resume().1 {
            tracing::warn!("{e}");
        }
        if let Some((child, pipe)) = self.helper.take() {
            drop(pipe);
            if let Err(e) = end(child) {
                tracing::warn!("the helper for paused containers: {e}");
            }
        }
    }
}

/// The helper: reads `id host` lines until its standard input ends, then lets each of these that is still paused go
/// on.
pub fn unpause_helper() -> std::io::Result<()> {
    rustix::process::setsid()?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut paused: Vec<(String, String)> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if line == DONE {
            paused.clear();
        } else if let Some((id, host)) = line.split_once(' ') {
            paused.push((id.to_owned(), host.to_owned()));
        }
    }
    for (id, host) in paused {
        let Ok(engine) = Engine::connect(Some(&host)) else {
            continue;
        };
        if let Ok(Some(c)) = engine.find(&id)
            && c.state == State::Paused
            && let Err(e) = engine.unpause(&c)
        {
            return Err(std::io::Error::other(e.to_string()));
        }
    }
    Ok(())
}

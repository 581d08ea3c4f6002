//! All of Docker's data brought to a checkpoint: all containers and the daemon stopped, the data exchanged, the daemon
//! started, and the containers that ran. Each step is safe to do again: what a crash left is gone through once more.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::daemon::Daemon;
use super::home::Home;
use super::keep::Keep;
use super::record::{Ran, Record, Stopped};
use crate::engine::{CheckpointId, EngineError, Result};
use crate::process::fault_point;
use crate::sandbox::docker::inspect::State;
use crate::sandbox::docker::{DockerError, Engine};
use crate::sandbox::parts::part::as_engine;
use crate::text::shown;

/// Stops all containers that live. Those that were started with `--rm` are gone with that.
pub fn stop_all(engine: &Engine) -> std::result::Result<(), DockerError> {
    // one that another one waits for may come up meanwhile
    for _ in 0..3 {
        let all = engine.all()?;
        let live: Vec<_> = all.iter().filter(|c| c.state.lives()).collect();
        if live.is_empty() {
            return Ok(());
        }
        for c in live {
            if c.auto_remove {
                engine.stop_for_good(c)?;
            } else {
                engine.stop(c)?;
            }
            fault_point("docker-container-stopped");
        }
    }
    Ok(())
}

/// Starts those that are to live and do not. What could not be, one harmless line each; an error for one of `needed`.
pub fn start_all(
    engine: &Engine,
    wanted: &[Ran],
    needed: &BTreeSet<String>,
) -> std::result::Result<Vec<String>, DockerError> {
    let (mut told, mut first) = (Vec::new(), None);
    for ran in wanted {
        let Some(c) = engine.find(&ran.id)? else {
            told.push(format!("container {} is gone", shown(&ran.name)));
            continue;
        };
        let up = if c.state.lives() {
            Ok(None)
        } else {
            engine.start(&c).map(|(_, line)| line)
        };
        let up = up.and_then(|line| match (ran.paused, engine.find(&ran.id)?) {
            (true, Some(now)) if now.state == State::Running => engine.pause(&now).map(|()| line),
            (false, Some(now)) if now.state == State::Paused => engine.unpause(&now).map(|()| line),
            _ => Ok(line),
        });
        match up {
            Ok(line) => told.extend(line),
            Err(e) if needed.contains(&ran.id) => drop(first.get_or_insert(e)),
            Err(e) => told.push(e.to_string()),
        }
        fault_point("docker-container-started");
    }
    first.map_or(Ok(told), Err)
}

impl Record {
    /// Stops the daemon if it is up. How it is started is learnt anew: somebody may have started it in another way.
    pub fn stop_daemon(&mut self, state: &std::path::Path) -> std::result::Result<(), DockerError> {
        let Ok(engine) = Engine::reach(&self.host) else {
            return Ok(());
        };
        let daemon = Daemon::find(&engine, self.root())?;
        drop(engine);
        if daemon.recipe != self.recipe {
            self.recipe = daemon.recipe.clone();
            self.save(state)?;
        }
        daemon.stop(self.root())?;
        fault_point("docker-daemon-stopped");
        Ok(())
    }

    /// Starts the daemon, unless it is up.
    pub fn start_daemon(&self, state: &std::path::Path) -> std::result::Result<Engine, DockerError> {
        let engine = self.recipe.start(&self.host, self.root(), &Self::log(state))?;
        fault_point("docker-daemon-started");
        Ok(engine)
    }
}

impl Keep {
    /// Stops all containers, and remembers which lived. Safe to do again.
    pub fn stop(&self) -> Result<()> {
        let home = self.home()?;
        self.hold(&home)?;
        let engine = self.engine();
        let stopped = Stopped::load(&self.state)?;
        if let Some(other) = stopped.as_ref().filter(|s| s.sandbox != self.sandbox) {
            self.let_go();
            return Err(EngineError::Refused {
                why: format!(
                    "a rewind of all of Docker by sandbox {} was interrupted",
                    shown(&other.sandbox)
                ),
                path: None,
                hint: Some("run: respool recover".into()),
            });
        }
        if stopped.is_none() {
            let engine = engine.as_ref().map_err(|why| refused(why))?;
            let all = engine.all().map_err(as_engine)?;
            let stopped = Stopped {
                sandbox: self.sandbox.clone(),
                ran: Ran::of(&all),
                wanted: None,
            };
            stopped.save(&self.state)?;
            fault_point("docker-noted");
        }
        // one that is down has no containers that live
        match engine {
            Ok(engine) => stop_all(&engine).map_err(as_engine),
            Err(_) => Ok(()),
        }
    }

    /// Brings all data to a checkpoint, and the daemon up on it. Nothing lives. Safe to do again.
    pub fn restore(&self, target: &CheckpointId) -> Result<()> {
        let home = self.home()?;
        self.hold(&home)?;
        let (set, kept) = home.kept(&self.sandbox, target)?;
        let mut record = Record::load(&self.state)?.unwrap_or_else(|| self.record.clone());
        record.stop_daemon(&self.state).map_err(as_engine)?;
        record.hide(&home)?;
        fault_point("docker-hidden");
        home.exchange(&set, &kept)?;
        record.show(&home)?;
        fault_point("docker-shown");
        let mut stopped = Stopped::load(&self.state)?.unwrap_or(Stopped {
            sandbox: self.sandbox.clone(),
            ran: Vec::new(),
            wanted: None,
        });
        stopped.wanted = Some(kept.running);
        stopped.save(&self.state)?;
        record.start_daemon(&self.state).map_err(as_engine)?;
        home.clear_next()
    }

    /// Starts daemon and containers again: those that lived in the state that is there now. `needed`: those without which
    /// it failed. What the user should know, harmless lines.
    pub fn resume(&self, needed: &BTreeSet<String>) -> Result<Vec<String>> {
        let own = |s: &Stopped| self.sandbox.is_empty() || s.sandbox == self.sandbox;
        let Some(stopped) = Stopped::load(&self.state)?.filter(own) else {
            self.let_go();
            return Ok(Vec::new());
        };
        let home = self.home()?;
        self.hold(&home)?;
        let record = Record::load(&self.state)?.unwrap_or_else(|| self.record.clone());
        record.show(&home)?;
        let engine = match self.engine() {
            Ok(engine) => engine,
            Err(_) => Arc::new(record.start_daemon(&self.state).map_err(as_engine)?),
        };
        let wanted = stopped.wanted.as_ref().unwrap_or(&stopped.ran);
        let told = start_all(&engine, wanted, needed).map_err(as_engine)?;
        home.clear_next()?;
        Stopped::forget(&self.state)?;
        self.let_go();
        Ok(told)
    }

    /// An error unless a checkpoint has all of the data.
    pub fn has(&self, target: &CheckpointId) -> Result<()> {
        let home: Home = self.home()?;
        let (set, kept) = home.kept(&self.sandbox, target)?;
        match crate::engine::forest::missing(set.as_fd(), &kept.inner) {
            None => Ok(()),
            Some(reason) => Err(EngineError::DamagedCheckpoint {
                id: target.to_string(),
                reason,
            }),
        }
    }
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused {
        why: format!("the container engine does not answer: {why}"),
        path: None,
        hint: Some("start it, then try again".into()),
    }
}

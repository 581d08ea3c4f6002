//! The restart of a container that was started with `--rm`. Engines promise not to remove it by a restart, but may all
//! the same: whether a container that ends is to be removed is looked up after its end, and then it may be on its way
//! up already (moby, `containerRestart` and `handleContainerExit`). Then it is made again, with the same files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::open::Parts;
use super::part::{Part, as_engine};
use super::turn::Turn;
use crate::durable::replace_file;
use crate::engine::{CheckpointId, EngineError, Result, State};
use crate::process;
use crate::process::fault_point;
use crate::progress::Silent;
use crate::sandbox::docker::again::Spec;
use crate::sandbox::docker::inspect::State as Does;
use crate::text::shown;

/// How long it is watched after a restart.
const WATCHED: Duration = Duration::from_secs(1);

/// Ends all processes of a container but the first: what they would still write is not wanted. (The first one's end
/// without the engine would be the container's.)
fn end_others(init: i32) {
    let space = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = space(init).filter(|s| space(std::process::id() as i32).as_ref() != Some(s)) else {
        return;
    };
    for pid in process::pids()
        .into_iter()
        .filter(|p| *p != init && space(*p).as_ref() == Some(&own))
    {
        if let Err(e) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
            tracing::debug!("process {pid}: {e}");
        }
    }
}

impl Parts {
    fn spec_path(&self, turn: &Turn) -> PathBuf {
        self.shelf().copies.join(format!("{}.json", turn.part))
    }

    /// Writes down what the container is made of, for its owner's eyes alone.
    fn keep_spec(&self, part: &Part, turn: &Turn) -> Result<()> {
        let path = self.spec_path(turn);
        let err = |e: std::io::Error| EngineError::io("write", &path)(e);
        let spec = part.engine.spec(&part.container.id).map_err(as_engine)?;
        let bytes = serde_json::to_vec(&spec).map_err(|e| err(e.into()))?;
        replace_file(&path, &path.with_extension("tmp"), &bytes).map_err(err)
    }

    /// Restarts a paused container, and watches it. What the user should know.
    pub(super) fn restart_living(&self, part: &Part, turn: &Turn) -> Result<Option<String>> {
        let (engine, c) = (&part.engine, &part.container);
        self.keep_spec(part, turn)?;
        fault_point("living-kept");
        end_others(c.pid);
        let restarted = engine.restart(c);
        fault_point("container-restarted");
        let until = Instant::now() + WATCHED;
        while Instant::now() < until {
            match engine.find(&c.id).map_err(as_engine)? {
                // the engine heard of the pause only now
                Some(now) if now.state == Does::Paused => engine.unpause(&now).map_err(as_engine)?,
                Some(now) if now.is_up() => {}
                _ => return self.make_again(turn).map(Some),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let told = restarted.map_err(as_engine)?.1;
        self.forget_spec(turn)?;
        Ok(told)
    }

    /// Removes what was written down of it.
    pub(super) fn forget_spec(&self, turn: &Turn) -> Result<()> {
        let path = self.spec_path(turn);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(EngineError::io("remove", path)(e)),
            _ => Ok(()),
        }
    }

    /// True if the container of a turn may be lost, and can be made again.
    pub(super) fn lost(&self, turn: &Turn) -> bool {
        turn.keep_alive && self.spec_path(turn).exists() && self.is_gone(turn)
    }

    /// Makes a container again that was removed, with the files that it is to have, and starts it.
    pub(super) fn make_again(&self, turn: &Turn) -> Result<String> {
        let path = self.spec_path(turn);
        let record = self.records().iter().find(|r| r.part == turn.part);
        let record = record.ok_or_else(|| EngineError::NoPath { path: path.clone() })?;
        let engine = crate::sandbox::docker::Engine::connect(Some(&record.host)).map_err(as_engine)?;
        let text = std::fs::read(&path).map_err(EngineError::io("read", &path))?;
        let spec: Spec =
            serde_json::from_slice(&text).map_err(|e| EngineError::io("read", &path)(e.into()))?;
        for id in [&record.id, &turn.name] {
            engine.gone(id).map_err(as_engine)?;
        }
        if engine.find(&turn.name).map_err(as_engine)?.is_none() {
            engine.make_again(&spec).map_err(as_engine)?;
        }
        fault_point("living-made");
        let part = self.open_one(&turn.part).map_err(|why| EngineError::Refused {
            why: format!("container {}: {why}", shown(&turn.name)),
            path: Some(path),
            hint: None,
        })?;
        if let Some(target) = &turn.holds {
            fill(&part, turn, target)?;
        }
        part.engine.start(&part.container).map_err(as_engine)?;
        self.forget_spec(turn)?;
        Ok(format!(
            "container {} was removed by its engine when it was restarted (it was started with --rm): it was made \
             again with the same files, and has another id",
            shown(&turn.name)
        ))
    }
}

/// Gives a container that was just made its files.
fn fill(part: &Part, turn: &Turn, target: &CheckpointId) -> Result<()> {
    part.restore(&State::Now, target, &turn.beside, &Silent)?;
    let found = part.verify(target, &Silent)?;
    if found.is_empty() {
        return part.clear(&turn.beside);
    }
    Err(super::turn::differs(&turn.name, &found))
}

//! The containers' way through a rewind: stopped, their files brought back and checked, started again.

use std::collections::BTreeSet;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::open::Parts;
use super::part::{Part, as_engine};
use super::record::ContainerRecord;
use super::vault::has;
use crate::engine::{CheckpointId, Difference, Elsewhere, EngineError, PartKind, Result, State, random_id};
use crate::process::fault_point;
use crate::progress::{Progress, Silent, named, together};
use crate::sandbox::docker::inspect::State as Does;
use crate::sandbox::docker::{DockerError, Engine};
use crate::text::shown;

/// What a container did before an operation, and is to do after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Was {
    /// It ran.
    Running,
    /// It was paused.
    Paused,
    /// It did not live.
    Stopped,
}

/// One container in one operation; written to the journal before it is touched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The id of its vault.
    pub part: String,
    /// Its name.
    pub name: String,
    /// What it did.
    pub was: Was,
    /// It is removed once it is stopped: it must not be.
    pub keep_alive: bool,
    /// The name that its root gets when it is exchanged.
    pub beside: String,
    /// The checkpoint whose files it has, or is being given; `None` while they are its own.
    #[serde(default)]
    pub holds: Option<CheckpointId>,
    /// It stands for all of Docker's data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// What was done to a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewound {
    /// Its name.
    pub name: String,
    /// How: the word of its technique.
    pub technique: String,
    /// Inodes or, where its root was exchanged, paths that were changed; `None` if that is not known.
    pub changed: Option<u64>,
    /// What it does now: `running`, `paused`, `stopped`.
    pub state: Was,
    /// How long that took, stop and start left out, milliseconds.
    #[serde(default)]
    pub ms: u64,
}

/// Whether an operation goes on or is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A container that is gone is an error.
    There,
    /// One that is gone cannot be brought back by anybody: the rest is.
    Back,
}

/// The containers of a sandbox, as an operation sees them.
pub trait Turns {
    /// Those that a checkpoint holds, by what its record says is kept elsewhere, with what each does now. A share that
    /// is missing or damaged is an error.
    fn turns(&self, target: &CheckpointId, kept: &[Elsewhere]) -> Result<Vec<Turn>>;
    /// All of Docker's data instead, each container in it. An error where a checkpoint does not have that.
    fn whole(&self, target: &CheckpointId) -> Result<Vec<Turn>>;
    /// Stops those that may be stopped, all at the same time, and waits for their end. Safe to do again.
    fn stop(&self, turns: &[Turn], progress: &dyn Progress) -> Result<()>;
    /// Pauses those that must not be stopped. Safe to do again.
    fn pause(&self, turns: &[Turn]) -> Result<()>;
    /// Brings the files of all of them back, and checks each; `way`: what is done with those that are gone. Safe to do
    /// again.
    fn restore(
        &self,
        turns: &[Turn],
        target: &CheckpointId,
        way: Way,
        progress: &dyn Progress,
    ) -> Result<Vec<Rewound>>;
    /// Makes them do again what they did, and removes what was exchanged. What the user should know, harmless lines.
    fn resume(&self, turns: &[Turn], progress: &dyn Progress) -> Result<Vec<String>>;
}

/// What all of Docker's data is called among containers: no container has a space in its name.
pub const DOCKER: &str = "all of Docker";

/// The phase in which containers are stopped.
fn stopping(open: &[&Part]) -> &'static str {
    let names: Vec<String> = open.iter().map(|p| shown(&p.container.name)).collect();
    let patience = open.iter().map(|p| p.container.stop_seconds).max().unwrap_or(0);
    let many = if names.len() == 1 { "" } else { "s" };
    let phase = format!(
        "stopping container{many} {} (up to {patience} s)",
        names.join(", ")
    );
    named(&phase, "stopping containers")
}

/// The phase in which one is started.
fn starting(open: &[&Turn]) -> &'static str {
    let names: Vec<String> = open.iter().map(|t| shown(&t.name)).collect();
    named(
        &format!("starting container {}", names.join(", ")),
        "starting containers",
    )
}

/// True if all of Docker's data goes through it.
pub fn is_whole(turns: &[Turn]) -> bool {
    turns.iter().any(|t| t.whole)
}

/// A sandbox without containers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoContainers;

impl Turns for NoContainers {
    fn turns(&self, _target: &CheckpointId, _kept: &[Elsewhere]) -> Result<Vec<Turn>> {
        Ok(Vec::new())
    }
    fn whole(&self, _target: &CheckpointId) -> Result<Vec<Turn>> {
        Err(no_docker())
    }
    fn stop(&self, _turns: &[Turn], _progress: &dyn Progress) -> Result<()> {
        Ok(())
    }
    fn pause(&self, _turns: &[Turn]) -> Result<()> {
        Ok(())
    }
    fn restore(&self, _: &[Turn], _: &CheckpointId, _: Way, _: &dyn Progress) -> Result<Vec<Rewound>> {
        Ok(Vec::new())
    }
    fn resume(&self, _turns: &[Turn], _progress: &dyn Progress) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The error where Docker's data is in no pool.
pub fn no_docker() -> EngineError {
    EngineError::Refused {
        why: "Docker's data is in no pool: it cannot go back as a whole".into(),
        path: None,
        hint: Some("respool docker enable brings it there, for checkpoints from then on".into()),
    }
}

/// The error for a container that cannot go through with it.
fn refused(name: &str, why: &str) -> EngineError {
    EngineError::Refused {
        why: format!("container {}: {why}", shown(name)),
        path: None,
        hint: Some("respool docker status tells more; --path PATH goes back in the workspace alone".into()),
    }
}

/// The first difference, in words.
pub(super) fn differs(name: &str, found: &[Difference]) -> EngineError {
    let first = found.first();
    EngineError::Refused {
        why: format!(
            "container {}: {} paths differ from the checkpoint, first {}: {}",
            shown(name),
            found.len(),
            first.map_or_else(String::new, |d| crate::text::shown_path(&d.path)),
            first.map_or("", |d| &d.what)
        ),
        path: None,
        hint: Some("something on the host writes to its files; stop it and try again".into()),
    }
}

/// The turn of a container whose share a checkpoint has.
pub(super) fn turn(part: &Part, target: &CheckpointId) -> Result<Turn> {
    let c = &part.container;
    has(part.vault(), target)?.map_err(|reason| EngineError::DamagedCheckpoint {
        id: target.to_string(),
        reason: format!("container {}: {reason}", shown(&c.name)),
    })?;
    if c.state == Does::Dead {
        return Err(refused(&c.name, "it is being removed, or dead"));
    }
    let live = c.state.lives();
    if c.auto_remove && live && !part.lives_through()? {
        return Err(EngineError::Refused {
            why: format!(
                "container {} was started with --rm: it would be gone once it is stopped, and its files cannot be \
                 exchanged while it runs",
                shown(&c.name)
            ),
            path: None,
            hint: Some("start it without --rm; or go back in the workspace alone: --path PATH".into()),
        });
    }
    Ok(Turn {
        part: part.record.part.clone(),
        name: c.name.clone(),
        was: match c.state {
            Does::Running | Does::Restarting => Was::Running,
            Does::Paused => Was::Paused,
            Does::Created | Does::Exited | Does::Dead => Was::Stopped,
        },
        keep_alive: c.auto_remove && live,
        beside: random_id(".respool"),
        holds: None,
        whole: false,
    })
}

impl Parts {
    fn opened(&self, turn: &Turn) -> Result<Part> {
        self.open_one(&turn.part).map_err(|why| refused(&turn.name, &why))
    }

    /// True if the engine has neither this container nor another one of its name.
    pub(super) fn is_gone(&self, turn: &Turn) -> bool {
        let record = self.records().iter().find(|r| r.part == turn.part);
        let gone = |r: &ContainerRecord| {
            let engine = Engine::connect(Some(&r.host))?;
            Ok::<_, DockerError>(engine.find(&r.id)?.is_none() && engine.find(&turn.name)?.is_none())
        };
        // what an engine that does not answer has is not known
        record.is_none_or(|r| gone(r).unwrap_or(false))
    }

    fn restore_whole(&self, target: &CheckpointId, progress: &dyn Progress) -> Result<Vec<Rewound>> {
        progress.step("restoring Docker's data", 0, 0);
        let began = Instant::now();
        self.docker().ok_or_else(no_docker)?.restore(target)?;
        Ok(vec![Rewound {
            name: DOCKER.into(),
            technique: "whole-docker".into(),
            changed: None,
            state: Was::Running,
            ms: began.elapsed().as_millis() as u64,
        }])
    }

    fn resume_one(&self, turn: &Turn) -> Result<Option<String>> {
        let part = match self.open_one(&turn.part) {
            Ok(part) => part,
            // removed by its engine, while respool was killed
            Err(_) if self.lost(turn) => return self.make_again(turn).map(Some),
            // it can be brought up by nobody any more
            Err(why) => return Ok(Some(format!("container {}: {why}", shown(&turn.name)))),
        };
        let (engine, c) = (&part.engine, &part.container);
        let mut told = None;
        match (turn.was, c.state) {
            (Was::Stopped, _) => {}
            (_, Does::Paused) if turn.keep_alive && turn.holds.is_some() => {
                told = self.restart_living(&part, turn)?;
            }
            (_, Does::Dead) if turn.keep_alive && turn.holds.is_some() => {
                return self.make_again(turn).map(Some);
            }
            (Was::Running, Does::Paused) => engine.unpause(c).map_err(as_engine)?,
            (_, Does::Running | Does::Paused | Does::Restarting) => {}
            _ => {
                told = engine.start(c).map_err(as_engine)?.1;
                fault_point("container-started");
            }
        }
        if turn.was == Was::Paused {
            let now = engine.inspect(&c.id).map_err(as_engine)?;
            if now.state == Does::Running {
                engine.pause(&now).map_err(as_engine)?;
            }
        }
        part.clear(&turn.beside)?;
        if turn.keep_alive {
            self.forget_spec(turn)?;
        }
        Ok(told)
    }
}

impl Turns for Parts {
    fn turns(&self, target: &CheckpointId, kept: &[Elsewhere]) -> Result<Vec<Turn>> {
        let held = kept
            .iter()
            .filter(|e| e.kind == PartKind::Container && e.missing.is_none());
        let one = |e: &Elsewhere| {
            let part = self.open_one(&e.vault).map_err(|why| refused(&e.name, &why))?;
            turn(&part, target)
        };
        held.map(one).collect()
    }

    fn whole(&self, target: &CheckpointId) -> Result<Vec<Turn>> {
        let docker = self.docker().ok_or_else(no_docker)?;
        docker.has(target)?;
        Ok(vec![Turn {
            part: docker.record().id.clone(),
            name: DOCKER.into(),
            was: Was::Running,
            keep_alive: false,
            beside: String::new(),
            holds: None,
            whole: true,
        }])
    }

    fn stop(&self, turns: &[Turn], progress: &dyn Progress) -> Result<()> {
        if is_whole(turns) {
            return self.docker().ok_or_else(no_docker)?.stop();
        }
        let there = turns.iter().filter(|t| !t.keep_alive && !self.is_gone(t));
        let parts = there.map(|t| self.opened(t)).collect::<Result<Vec<_>>>()?;
        let stopped = together(&parts, progress, stopping, |part| {
            if part.container.state.lives() {
                part.engine.stop(&part.container).map_err(as_engine)?;
            }
            fault_point("container-stopped");
            Ok(())
        });
        // each was waited for: none goes on by itself once this says that it failed
        stopped.into_iter().collect()
    }

    fn pause(&self, turns: &[Turn]) -> Result<()> {
        if is_whole(turns) {
            return Ok(());
        }
        for turn in turns.iter().filter(|t| t.keep_alive && !self.is_gone(t)) {
            let part = self.opened(turn)?;
            if part.container.state == Does::Running {
                part.engine.pause(&part.container).map_err(as_engine)?;
            }
            fault_point("container-paused");
        }
        Ok(())
    }

    fn restore(
        &self,
        turns: &[Turn],
        target: &CheckpointId,
        way: Way,
        progress: &dyn Progress,
    ) -> Result<Vec<Rewound>> {
        if is_whole(turns) {
            return self.restore_whole(target, progress);
        }
        let mut out = Vec::new();
        for turn in turns {
            progress.step("restoring containers", out.len() as u64, turns.len() as u64);
            let began = Instant::now();
            if self.lost(turn) || way == Way::Back && self.is_gone(turn) {
                continue;
            }
            let part = self.opened(turn)?;
            let known = (way == Way::There)
                .then(|| part.differing(target, &Silent))
                .flatten();
            let (changed, found) = if turn.keep_alive {
                (known, part.restore_living(target, &turn.beside, progress)?)
            } else {
                let changed = part.restore(&State::Now, target, &turn.beside, progress)?;
                fault_point("container-restored");
                (changed.or(known), part.verify(target, progress)?)
            };
            if !found.is_empty() {
                return Err(differs(&turn.name, &found));
            }
            fault_point("container-checked");
            out.push(Rewound {
                name: turn.name.clone(),
                technique: part.located.verdict.technique.word().to_owned(),
                changed,
                state: turn.was,
                ms: began.elapsed().as_millis() as u64,
            });
        }
        Ok(out)
    }

    fn resume(&self, turns: &[Turn], progress: &dyn Progress) -> Result<Vec<String>> {
        if is_whole(turns) {
            let own: BTreeSet<String> = self.records().iter().map(|r| r.id.clone()).collect();
            return self.docker().ok_or_else(no_docker)?.resume(&own);
        }
        let (mut told, mut first) = (Vec::new(), None);
        for turn in turns {
            // one that cannot be brought up must not keep the others down
            let one = std::slice::from_ref(turn);
            let done = together(one, progress, starting, |turn| self.resume_one(turn));
            match done.into_iter().next().unwrap_or(Ok(None)) {
                Ok(line) => told.extend(line),
                Err(e) => drop(first.get_or_insert(e)),
            }
        }
        first.map_or(Ok(told), Err)
    }
}

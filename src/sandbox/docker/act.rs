//! Pausing, stopping and starting a container. What counts is the state afterwards, not what the engine answered.

use std::time::{Duration, Instant};

use bollard::errors::Error as ApiError;
use bollard::query_parameters::{RestartContainerOptions, StopContainerOptions};

use super::engine::{Engine, said};
use super::error::{DockerError, Result};
use super::inspect::{Inspect, State};
use crate::text::shown;

/// The limit of a call that pauses or unpauses.
const SHORT: Duration = Duration::from_secs(20);
/// What a stop may take longer than the engine itself waits.
const SLACK: Duration = Duration::from_secs(20);
/// The limit of a start.
const START: Duration = Duration::from_secs(120);
/// How long one that was started is watched before it counts as up.
const STEADY: Duration = Duration::from_millis(300);
/// How long a health check is waited for.
const HEALTH: Duration = Duration::from_secs(30);

type Answer = std::result::Result<std::result::Result<(), ApiError>, String>;

/// What an act answered, in words.
fn words(answer: Answer) -> Option<String> {
    match answer {
        Ok(Ok(())) => None,
        Ok(Err(e)) => Some(said(&e)),
        Err(why) => Some(why),
    }
}

impl Engine {
    /// An error unless the state is a wanted one now.
    fn became(
        &self,
        what: &'static str,
        c: &Inspect,
        said: Option<String>,
        wanted: &[State],
    ) -> Result<Inspect> {
        let now = self.inspect(&c.id)?;
        if wanted.contains(&now.state) {
            return Ok(now);
        }
        let state = format!("it is {}", now.state.word());
        Err(DockerError::Act {
            what,
            name: c.name.clone(),
            why: said.map_or_else(|| state.clone(), |s| format!("{s}; {state}")),
        })
    }

    /// Pauses it.
    pub fn pause(&self, c: &Inspect) -> Result<()> {
        let said = words(self.raw(SHORT, self.docker().pause_container(&c.id)));
        self.became("pause", c, said, &[State::Paused]).map(drop)
    }

    /// Lets it go on. One that does not live any more needs nothing.
    pub fn unpause(&self, c: &Inspect) -> Result<()> {
        let said = self.let_go(c);
        self.goes_on(c, said)
    }

    /// As [`Engine::unpause`], without a look at what came of it; what the engine said, if that was not yes.
    pub fn let_go(&self, c: &Inspect) -> Option<String> {
        words(self.raw(SHORT, self.docker().unpause_container(&c.id)))
    }

    /// An error if it is still paused; `said`: what [`Engine::let_go`] gave.
    pub fn goes_on(&self, c: &Inspect, said: Option<String>) -> Result<()> {
        let on = [
            State::Running,
            State::Exited,
            State::Created,
            State::Restarting,
            State::Dead,
        ];
        self.became("unpause", c, said, &on).map(drop)
    }

    /// Stops it, a paused one too, and waits for its end. One that would be removed by that is refused.
    pub fn stop(&self, c: &Inspect) -> Result<Inspect> {
        if c.auto_remove {
            return Err(DockerError::Refused {
                why: format!(
                    "{} was started with --rm: it would be gone after a stop",
                    shown(&c.name)
                ),
                path: None,
                hint: None,
            });
        }
        let options = StopContainerOptions {
            t: i32::try_from(c.stop_seconds).ok(),
            ..StopContainerOptions::default()
        };
        let limit = Duration::from_secs(c.stop_seconds.into()) + SLACK;
        let said = words(self.raw(limit, self.docker().stop_container(&c.id, Some(options))));
        self.became("stop", c, said, &[State::Exited, State::Created])
    }

    /// Stops one that was started with `--rm`, and waits until it is gone.
    pub fn stop_for_good(&self, c: &Inspect) -> Result<()> {
        let options = StopContainerOptions {
            t: i32::try_from(c.stop_seconds).ok(),
            ..StopContainerOptions::default()
        };
        let limit = Duration::from_secs(c.stop_seconds.into()) + SLACK;
        let said = words(self.raw(limit, self.docker().stop_container(&c.id, Some(options))));
        if self.gone(&c.id)? {
            return Ok(());
        }
        self.became("stop", c, said, &[State::Exited, State::Created])
            .map(drop)
    }

    /// Starts it, and waits until it is up: it runs steadily, and its health check, if it has one, has an answer.
    /// What the user should know of its health is told in a line.
    pub fn start(&self, c: &Inspect) -> Result<(Inspect, Option<String>)> {
        // one that ended by now was started all the same: what became of it is told below
        if let Some(said) = words(self.raw(START, self.docker().start_container(&c.id, None))) {
            self.became("start", c, Some(said), &[State::Running])?;
        }
        self.steady(c)
    }

    /// Restarts it: the one way to end and begin one that was started with `--rm`.
    pub fn restart(&self, c: &Inspect) -> Result<(Inspect, Option<String>)> {
        let options = RestartContainerOptions {
            t: i32::try_from(c.stop_seconds).ok(),
            ..RestartContainerOptions::default()
        };
        let limit = Duration::from_secs(c.stop_seconds.into()) + START;
        if let Some(said) = words(self.raw(limit, self.docker().restart_container(&c.id, Some(options)))) {
            self.became("restart", c, Some(said), &[State::Running])?;
        }
        self.steady(c)
    }

    fn steady(&self, c: &Inspect) -> Result<(Inspect, Option<String>)> {
        let began = Instant::now();
        loop {
            let now = self.inspect(&c.id)?;
            if now.state != State::Running {
                let how = format!("it ended at once with code {}", now.exit_code);
                return Err(DockerError::Act {
                    what: "start",
                    name: c.name.clone(),
                    why: how,
                });
            }
            let waits = now.health.as_deref() == Some("starting") && began.elapsed() < HEALTH;
            if began.elapsed() >= STEADY && !waits {
                let ill = now.health.as_deref().filter(|h| *h != "healthy");
                let told = ill.map(|h| {
                    format!(
                        "container {} runs; its health check says: {}",
                        shown(&c.name),
                        shown(h)
                    )
                });
                return Ok((now, told));
            }
            std::thread::sleep(Duration::from_millis(25));
        }
    }

    /// Waits until a container that is being removed is gone; false if it is still there.
    pub fn gone(&self, id: &str) -> Result<bool> {
        let until = Instant::now() + START;
        while self.find(id)?.is_some() {
            if Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        Ok(true)
    }
}

//! The screens: a timeline of the messages next to their checkpoints, the changed files, the diff; the plan
//! of a rewind, its progress and its result.
//!
//! Input becomes an action, an action a message, `update` turns messages into new state and effects,
//! workers turn effects into messages. One task owns the state; drawing is a function of it alone.

pub mod backend;
pub mod effect;
mod eyes;
pub mod keymap;
pub mod layout;
pub mod mail;
pub mod message;
mod outside;
pub mod real;
pub mod state;
mod terminal;
pub mod theme;
pub mod tracking;
pub mod update;
pub mod view;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use ratatui::crossterm::event::{Event, EventStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::backend::{Backend, Failure};
use self::effect::{Effect, Outside, Runner};
use self::keymap::Keymap;
use self::message::{Millis, Msg};
use self::state::{End, Setup, State};
use self::terminal::Terminal;
use self::theme::Theme;
use crate::failure::{Explain, Kind};
use crate::sandbox::starter::Starter;

/// Messages that are no answer to a key are drawn at most this often.
const FRAME: Duration = Duration::from_millis(16);
/// Ages are looked at this often.
const TICK: Duration = Duration::from_secs(60);
/// A terminal that changed its size and did nothing else for so long has settled.
const SETTLED: Duration = Duration::from_millis(150);

/// Why the screens could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    /// Input or output is no terminal.
    #[error("the timeline needs a terminal")]
    NoTerminal,
    /// The terminal failed.
    #[error("the terminal failed: {0}")]
    Terminal(#[from] io::Error),
    /// The keymap is wrong.
    #[error("{0}")]
    Keymap(String),
    /// The theme is wrong.
    #[error("{0}")]
    Theme(String),
}

impl Explain for TuiError {
    fn kind(&self) -> Kind {
        match self {
            Self::Terminal(_) => Kind::Failed,
            _ => Kind::Usage,
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoTerminal => Some("without one: respool timeline, respool timeline --json".into()),
            _ => None,
        }
    }
}

/// What the caller decides.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store to open; none = the start screen.
    pub store: Option<PathBuf>,
    /// The store that is selected on the start screen.
    pub select: Option<PathBuf>,
    /// The folder that the program was started in.
    pub folder: Option<PathBuf>,
    /// Something to say at once.
    pub notice: Option<String>,
    /// The keys.
    pub keymap: Arc<Keymap>,
    /// The colours.
    pub theme: Arc<Theme>,
    /// The user's home folder, shown as `~`.
    pub home: Option<PathBuf>,
    /// Files named in the help: what ("config", "log"), where.
    pub paths: Vec<(&'static str, PathBuf)>,
    /// How programs of the user's are started.
    pub starter: Starter,
}

impl Options {
    /// True where colours are not wanted.
    pub fn plain() -> bool {
        std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
    }

    /// The built-in keys and colours; no colours under `NO_COLOR`.
    pub fn built_in(store: Option<PathBuf>) -> Result<Self, TuiError> {
        let plain = Self::plain();
        Ok(Self {
            store,
            select: None,
            folder: None,
            notice: None,
            keymap: Arc::new(Keymap::built_in()?),
            theme: Arc::new(Theme::named(if plain { "mono" } else { "default" })?),
            home: std::env::var_os("HOME").map(PathBuf::from),
            paths: Vec::new(),
            starter: Starter {
                folders: std::env::var_os("PATH")
                    .iter()
                    .flat_map(std::env::split_paths)
                    .collect(),
                ..Starter::default()
            },
        })
    }
}

/// Shows the screens until the user quits or a signal comes. A rewind that is at work is asked to stop and
/// waited for, with the terminal already given back, unless the user quits twice.
pub async fn run(backend: Arc<dyn Backend>, options: Options) -> Result<End, TuiError> {
    let mut terminal = Terminal::enter()?;
    let (send, receive) = unbounded_channel();
    let mut state = State::new(Setup {
        keymap: options.keymap,
        theme: options.theme,
        size: terminal.size()?,
        now: Utc::now(),
        offset: *chrono::Local::now().offset(),
        home: options.home,
        paths: options.paths,
        store: options.store,
        select: options.select,
        folder: options.folder,
        notice: options.notice,
        tmux: std::env::var_os("TMUX").is_some_and(|v| !v.is_empty()),
    });
    terminal.draw(|frame| view::draw(frame, &state))?;
    let mut runner = Runner::new(backend, send);
    let looped = Loop {
        terminal: &mut terminal,
        runner: &mut runner,
        receive,
        events: Some(EventStream::new()),
        starter: options.starter,
        began: Instant::now(),
        drawn: Instant::now(),
        urgent: false,
        resumed: None,
        returned: None,
        unsettled: false,
    }
    .run(&mut state)
    .await;
    drop(terminal);
    let end = state.end.unwrap_or(End::Quit);
    runner.finish(end == End::Abandoned).await;
    looped.map(|()| end)
}

struct Loop<'a> {
    terminal: &'a mut Terminal,
    runner: &'a mut Runner,
    receive: UnboundedReceiver<Msg>,
    /// None while another program has the terminal: it would steal the keys.
    events: Option<EventStream>,
    starter: Starter,
    began: Instant,
    drawn: Instant,
    /// A key waits for its frame: no floor.
    urgent: bool,
    /// When Ctrl-Z ended: the signal that comes with it has nothing more to say.
    resumed: Option<Instant>,
    /// When another program gave the terminal back: Ctrl-C was for that one.
    returned: Option<Instant>,
    /// The terminal changed its size just now.
    unsettled: bool,
}

/// What woke the loop.
enum Woken {
    Msg(Box<Msg>),
    Event(Option<io::Result<Event>>),
    Frame,
    Tick,
    /// The terminal has its size for a while.
    Settled,
    Continued,
    Resized,
}

impl Loop<'_> {
    async fn run(&mut self, state: &mut State) -> Result<(), TuiError> {
        let mut ends = [
            (signal(SignalKind::terminate())?, 15),
            (signal(SignalKind::interrupt())?, 2),
            (signal(SignalKind::hangup())?, 1),
            (signal(SignalKind::quit())?, 3),
        ];
        let mut continued = signal(SignalKind::from_raw(nix::libc::SIGCONT))?;
        // crossterm tells a change of size, too, but not one that comes together with a key
        let mut sizes = signal(SignalKind::window_change())?;
        self.dispatch(state, Msg::Start)?;
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        while state.end.is_none() {
            let floor = FRAME.saturating_sub(self.drawn.elapsed());
            let woken = tokio::select! {
                biased;
                number = any(&mut ends) => Woken::Msg(Box::new(Msg::Signal(number))),
                event = next(&mut self.events) => Woken::Event(event),
                Some(msg) = self.receive.recv() => Woken::Msg(Box::new(msg)),
                _ = continued.recv() => Woken::Continued,
                _ = sizes.recv() => Woken::Resized,
                () = tokio::time::sleep(floor), if state.dirty => Woken::Frame,
                _ = tick.tick() => Woken::Tick,
                () = tokio::time::sleep(SETTLED), if self.unsettled => Woken::Settled,
            };
            match woken {
                Woken::Msg(msg) if self.is_the_childs(&msg) => {}
                Woken::Msg(msg) => self.dispatch(state, *msg)?,
                Woken::Event(Some(event)) => self.event(state, event?)?,
                // the terminal is gone
                Woken::Event(None) => state.end = Some(End::Signal(1)),
                Woken::Continued if self.resumed.take().is_some_and(|at| at.elapsed() < FRAME * 30) => {}
                Woken::Continued => {
                    self.terminal.again()?;
                    self.resized(state)?;
                    self.urgent = true;
                }
                Woken::Resized => {
                    self.urgent = true;
                    self.resized(state)?;
                }
                Woken::Frame => {}
                Woken::Tick => self.dispatch(state, Msg::Tick(Utc::now()))?,
                Woken::Settled => self.repaint(state)?,
            }
            self.drain(state).await?;
            if state.dirty && (self.urgent || self.drawn.elapsed() >= FRAME) {
                self.draw(state)?;
            }
        }
        Ok(())
    }

    /// Takes everything that waits already, so that one frame shows all of it.
    async fn drain(&mut self, state: &mut State) -> Result<(), TuiError> {
        for _ in 0..10_000 {
            if state.end.is_some() {
                break;
            }
            let event = tokio::select! {
                biased;
                event = next(&mut self.events) => event,
                () = std::future::ready(()) => None,
            };
            if let Some(event) = event {
                self.event(state, event?)?;
            } else if let Ok(msg) = self.receive.try_recv() {
                self.dispatch(state, msg)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn draw(&mut self, state: &mut State) -> Result<(), TuiError> {
        self.terminal.draw(|frame| view::draw(frame, state))?;
        state.dirty = false;
        self.urgent = false;
        self.drawn = Instant::now();
        let at = self.millis();
        self.dispatch(state, Msg::Drawn(at))
    }

    fn millis(&self) -> Millis {
        self.began.elapsed().as_millis() as Millis
    }

    fn event(&mut self, state: &mut State, event: Event) -> Result<(), TuiError> {
        self.urgent = true;
        match event {
            Event::Key(key) => {
                let at = self.millis();
                self.dispatch(state, Msg::Key(key, at))
            }
            Event::Paste(text) => self.dispatch(state, Msg::Paste(text)),
            Event::Mouse(mouse) => self.dispatch(state, Msg::Mouse(mouse)),
            Event::Resize(..) => self.resized(state),
            Event::FocusGained | Event::FocusLost => Ok(()),
        }
    }

    fn dispatch(&mut self, state: &mut State, msg: Msg) -> Result<(), TuiError> {
        for effect in update::update(state, msg) {
            match effect {
                Effect::Suspend => {
                    self.terminal.outside(terminal::stop_job)?;
                    self.resumed = Some(Instant::now());
                    self.resized(state)?;
                }
                Effect::Outside(what) => {
                    let ended = self.outside(state, &what)?;
                    self.dispatch(state, Msg::Ran(what, ended))?;
                }
                Effect::Redraw => {
                    self.terminal.redraw()?;
                    state.dirty = true;
                }
                effect => self.runner.run(effect),
            }
        }
        Ok(())
    }

    /// What other programs do; the terminal is theirs meanwhile, where they need it.
    fn outside(&mut self, state: &mut State, what: &Outside) -> Result<Result<(), Failure>, TuiError> {
        let tmux = state.tmux;
        if matches!(what, Outside::Window(..) | Outside::Copy(_)) {
            return Ok(outside::perform(what, &self.starter, tmux));
        }
        self.events = None;
        let mut ended = Ok(());
        self.terminal.outside(|| {
            ended = outside::perform(what, &self.starter, tmux);
            // keys that were meant for that program are none for these screens
            Terminal::drop_input();
        })?;
        self.events = Some(EventStream::new());
        self.returned = Some(Instant::now());
        self.urgent = true;
        self.resized(state)?;
        Ok(ended)
    }

    /// The terminal sends its interrupt to every program that stands in front.
    fn is_the_childs(&self, msg: &Msg) -> bool {
        matches!(msg, Msg::Signal(2 | 3)) && self.returned.is_some_and(|at| at.elapsed() < FRAME * 30)
    }

    /// What was drawn while the terminal changed its size may have come to one of another size: once it has settled
    /// all is drawn anew.
    fn repaint(&mut self, state: &mut State) -> Result<(), TuiError> {
        self.resized(state)?;
        self.unsettled = false;
        self.terminal.redraw()?;
        state.dirty = true;
        Ok(())
    }

    /// The terminal may have another size than before.
    fn resized(&mut self, state: &mut State) -> Result<(), TuiError> {
        Terminal::look_again()?;
        self.unsettled = true;
        let (width, height) = self.terminal.size()?;
        self.dispatch(state, Msg::Tick(Utc::now()))?;
        self.dispatch(state, Msg::Resize(width, height))
    }
}

async fn any(signals: &mut [(Signal, i32); 4]) -> i32 {
    let [a, b, c, d] = signals;
    tokio::select! {
        _ = a.0.recv() => a.1,
        _ = b.0.recv() => b.1,
        _ = c.0.recv() => c.1,
        _ = d.0.recv() => d.1,
    }
}

/// The next event, without a crate for one method of `Stream`.
async fn next(events: &mut Option<EventStream>) -> Option<io::Result<Event>> {
    let Some(events) = events else {
        return std::future::pending().await;
    };
    std::future::poll_fn(|context| tokio_stream_poll(events, context)).await
}

fn tokio_stream_poll(
    events: &mut EventStream,
    context: &mut std::task::Context<'_>,
) -> std::task::Poll<Option<io::Result<Event>>> {
    use futures_core::Stream;
    std::pin::Pin::new(events).poll_next(context)
}

//! Keys go in, workers run against the fake, the text of the screen is looked at.

use crate::tui_fake;
use crate::tui_fake::Fake;
use crate::tui_fake::Script;
use chrono::FixedOffset;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEvent;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;
use respool::tui::effect::Effect;
use respool::tui::effect::Outside;
use respool::tui::effect::Runner;
use respool::tui::keymap::Keymap;
use respool::tui::message::Msg;
use respool::tui::state::Content;
use respool::tui::state::Overlay;
use respool::tui::state::Setup;
use respool::tui::state::State;
use respool::tui::state::TrackStage;
use respool::tui::theme::Theme;
use respool::tui::update;
use respool::tui::view;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::unbounded_channel;

/// What is waited for must come within this time.
pub const LIMIT: Duration = Duration::from_secs(10);

pub struct Tui {
    pub runtime: tokio::runtime::Runtime,
    pub fake: Arc<Fake>,
    pub state: State,
    pub runner: Runner,
    pub receive: UnboundedReceiver<Msg>,
    pub terminal: Terminal<TestBackend>,
    pub at: u64,
    /// What was to be done outside of the screens.
    pub outside: Vec<Outside>,
}

pub fn setup(size: (u16, u16), store: Option<PathBuf>, theme: &str) -> Setup {
    Setup {
        keymap: Arc::new(Keymap::built_in().expect("keymap")),
        theme: Arc::new(Theme::named(theme).expect("theme")),
        size,
        now: tui_fake::now(),
        offset: FixedOffset::east_opt(0).expect("UTC"),
        home: Some("/home/ada".into()),
        paths: vec![("config", "/home/ada/.config/respool/config.toml".into())],
        folder: Some("/home/ada/src/new".into()),
        store,
        select: None,
        notice: None,
        tmux: false,
    }
}

impl Tui {
    /// The skeleton: nothing was asked for yet.
    pub fn new(script: Script, size: (u16, u16)) -> Self {
        Self::with(script, setup(size, Some(tui_fake::store()), "default"))
    }
    pub fn with(script: Script, setup: Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (send, receive) = unbounded_channel();
        let fake = Fake::new(script);
        let runner = Runner::new(fake.clone(), send);
        let (width, height) = setup.size;
        let terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let state = State::new(setup);
        let mut tui = Self {
            runtime,
            fake,
            state,
            runner,
            receive,
            terminal,
            at: 10_000,
            outside: Vec::new(),
        };
        tui.draw();
        tui
    }
    /// Started, and everything is there.
    pub fn started(script: Script, size: (u16, u16)) -> Self {
        let mut tui = Self::new(script, size);
        tui.send(Msg::Start);
        tui.settle();
        tui
    }
    pub fn send(&mut self, msg: Msg) {
        let _inside = self.runtime.enter();
        for effect in update::update(&mut self.state, msg) {
            match effect {
                Effect::Suspend | Effect::Redraw => {}
                Effect::Outside(what) => self.outside.push(what),
                effect => self.runner.run(effect),
            }
        }
    }
    pub fn draw(&mut self) {
        let state = &self.state;
        self.terminal
            .draw(|frame| view::draw(frame, state))
            .expect("drawn");
        self.state.dirty = false;
        self.send(Msg::Drawn(self.at));
    }
    pub fn screen(&self) -> String {
        let buffer = self.terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..buffer.area.height {
            let mut skip = 0;
            let mut line = String::new();
            for x in 0..buffer.area.width {
                let symbol = buffer[(x, y)].symbol();
                if skip == 0 {
                    line.push_str(symbol);
                }
                skip = view::cells::width(symbol).max(skip).saturating_sub(1);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
    /// Takes messages until the screen (or the state) is as wished; prints the screen if that never comes.
    pub fn until(&mut self, what: &str, wished: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            while let Ok(msg) = self.receive.try_recv() {
                self.send(msg);
            }
            self.draw();
            if wished(self) {
                return;
            }
            assert!(Instant::now() < end, "never came: {what}\n{}", self.screen());
            let next = self.runtime.block_on(async {
                tokio::time::timeout(Duration::from_millis(50), self.receive.recv()).await
            });
            if let Ok(Some(msg)) = next {
                self.send(msg);
            }
        }
    }
    pub fn wait(&mut self, text: &str) {
        self.until(text, |t| t.screen().contains(text));
    }
    pub fn gone(&mut self, text: &str) {
        self.until(&format!("no {text}"), |t| !t.screen().contains(text));
    }
    /// Nothing is under way.
    pub fn idle(&self) -> bool {
        let s = &self.state;
        let open = s.open.as_ref().is_none_or(|o| {
            o.load.job.is_none()
                && !o.refresh_soon
                && o.counting.is_none()
                && o.files.load.job.is_none()
                && o.diff.load.job.is_none()
                && o.diff.versions.job.is_none()
                && o.looking.is_none()
        });
        let boxes = s.overlays.iter().all(|o| match o {
            Overlay::Plan(p) => p.load.job.is_none(),
            Overlay::Edit(e) => !matches!(e.content, Content::Reading(_)),
            Overlay::Log(load, _) => load.job.is_none(),
            Overlay::Running(_) => false,
            Overlay::Track(t) => match &t.stage {
                TrackStage::Offer(load) => load.job.is_none(),
                TrackStage::Working(..) => false,
                TrackStage::Ended(_) => true,
            },
            _ => true,
        });
        open && boxes && s.conversations.load.job.is_none() && s.checkpointing.is_none()
    }
    pub fn settle(&mut self) {
        self.until("rest", |t| t.idle() && t.state.spinner.is_none());
    }
    /// Presses keys as a person does, a second after each other.
    pub fn press(&mut self, keys: &str) {
        for key in keys.split(' ') {
            self.at += 1000;
            self.key(key, KeyEventKind::Press);
        }
    }
    /// Presses keys as fast as a held key repeats.
    pub fn rush(&mut self, keys: &str) {
        for key in keys.split(' ') {
            self.at += 30;
            self.key(key, KeyEventKind::Press);
        }
    }
    pub fn key(&mut self, key: &str, kind: KeyEventKind) {
        let mut event = parse(key);
        event.kind = kind;
        self.send(Msg::Key(event, self.at));
        self.draw();
    }
    /// The style of the first cell with this text.
    pub fn style_of(&self, text: &str) -> ratatui::style::Style {
        let buffer = self.terminal.backend().buffer();
        for y in 0..buffer.area.height {
            let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
            if let Some(at) = line.find(text) {
                let x = view::cells::width(&line[..at]) as u16;
                return buffer[(x, y)].style();
            }
        }
        panic!("no {text:?} on\n{}", self.screen());
    }
}

pub fn parse(key: &str) -> KeyEvent {
    let (modifiers, name) = match key.strip_prefix("Ctrl-") {
        Some(rest) => (KeyModifiers::CONTROL, rest),
        None => (KeyModifiers::NONE, key),
    };
    let code = match name {
        "Enter" => KeyCode::Enter,
        "Esc" => KeyCode::Esc,
        "Tab" => KeyCode::Tab,
        "BackTab" => KeyCode::BackTab,
        "Down" => KeyCode::Down,
        "Up" => KeyCode::Up,
        "Right" => KeyCode::Right,
        "Left" => KeyCode::Left,
        "PgDn" => KeyCode::PageDown,
        "Backspace" => KeyCode::Backspace,
        "Space" => KeyCode::Char(' '),
        one => KeyCode::Char(one.chars().next().expect("a key")),
    };
    KeyEvent::new(code, modifiers)
}

pub const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

/// Takes a picture at both sizes.
pub fn pictures(name: &str, script: impl Fn() -> Script, go: impl Fn(&mut Tui)) {
    for size in SIZES {
        let mut tui = Tui::started(script(), size);
        go(&mut tui);
        insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), tui.screen());
    }
}

/// From the newest message to message 3.
pub const TO_3: &str = "k k k k k";

pub fn at_message_3(tui: &mut Tui) {
    tui.press(TO_3);
    tui.wait("Files  message 3");
    tui.settle();
}

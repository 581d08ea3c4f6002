//! How quick the screens are: `cargo bench --bench tui`. Prints milliseconds; fails above the limits.

#[path = "../tui_fake/mod.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod tui_fake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::FixedOffset;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use respool::tui::effect::{Effect, Runner};
use respool::tui::keymap::Keymap;
use respool::tui::message::Msg;
use respool::tui::state::{Setup, State};
use respool::tui::theme::Theme;
use respool::tui::{update, view};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tui_fake::Fake;

const ROWS: u32 = 10_000;

struct Bench {
    state: State,
    runner: Runner,
    receive: UnboundedReceiver<Msg>,
    terminal: Terminal<TestBackend>,
}

impl Bench {
    fn new() -> Self {
        let (send, receive) = unbounded_channel();
        let fake = Fake::new(tui_fake::long(ROWS));
        let state = State::new(Setup {
            keymap: Arc::new(Keymap::built_in().expect("keymap")),
            theme: Arc::new(Theme::named("default").expect("theme")),
            size: (120, 40),
            now: tui_fake::now(),
            offset: FixedOffset::east_opt(0).expect("UTC"),
            home: None,
            paths: Vec::new(),
            folder: None,
            store: Some(tui_fake::store()),
            select: None,
            notice: None,
            tmux: false,
        });
        Self {
            state,
            runner: Runner::new(fake, send),
            receive,
            terminal: Terminal::new(TestBackend::new(120, 40)).expect("a terminal"),
        }
    }
    fn send(&mut self, msg: Msg) {
        for effect in update::update(&mut self.state, msg) {
            if !matches!(effect, Effect::Suspend | Effect::Redraw) {
                self.runner.run(effect);
            }
        }
    }
    fn draw(&mut self) {
        let state = &self.state;
        self.terminal
            .draw(|frame| view::draw(frame, state))
            .expect("drawn");
    }
    async fn until(&mut self, wished: impl Fn(&State) -> bool) {
        while !wished(&self.state) {
            let msg = self.receive.recv().await.expect("a message");
            self.send(msg);
        }
        self.draw();
    }
    /// A key to its frame: the middle time, and the one that 95 of 100 stay below (the worst is the
    /// scheduler's on a busy machine).
    fn keys(&mut self, codes: &[KeyCode]) -> (Duration, Duration) {
        let mut times = Vec::new();
        for n in 0..400 {
            while let Ok(msg) = self.receive.try_recv() {
                self.send(msg);
            }
            let begin = Instant::now();
            let key = KeyEvent::new(codes[n % codes.len()], KeyModifiers::NONE);
            self.send(Msg::Key(key, n as u64));
            self.draw();
            times.push(begin.elapsed());
        }
        times.sort();
        (times[times.len() / 2], times[times.len() * 95 / 100])
    }
}

fn check(what: &str, took: Duration, limit: Duration) {
    let ok = if took < limit { "ok" } else { "TOO SLOW" };
    println!(
        "{what:<44} {:>9.3} ms  limit {:>5} ms  {ok}",
        took.as_secs_f64() * 1e3,
        limit.as_millis()
    );
    assert!(took < limit, "{what}");
}

fn main() {
    if std::env::args().any(|a| a == "--list") {
        // a test runner asks for tests: there are none
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let begin = Instant::now();
        let mut bench = Bench::new();
        // the fake's data is made inside of it: the skeleton alone is timed from here
        let made = begin.elapsed();
        let begin = Instant::now();
        bench.draw();
        check(
            "first frame (skeleton)",
            begin.elapsed(),
            Duration::from_millis(100),
        );
        let begin = Instant::now();
        bench.send(Msg::Start);
        bench
            .until(|s| s.open.as_ref().is_some_and(|o| o.timeline.is_some()))
            .await;
        check(
            "last screenful of rows",
            begin.elapsed(),
            Duration::from_millis(300),
        );
        let whole = |s: &State| {
            s.open
                .as_ref()
                .is_some_and(|o| o.timeline.as_ref().is_some_and(|t| !t.partial))
        };
        bench.until(whole).await;
        check("all 10,000 rows", begin.elapsed(), Duration::from_secs(3));
        let frame = Duration::from_millis(16);
        for (what, codes) in [
            ("key to frame: k j", &[KeyCode::Char('k'), KeyCode::Char('j')][..]),
            ("key to frame: g G", &[KeyCode::Char('g'), KeyCode::Char('G')][..]),
            ("key to frame: PgUp", &[KeyCode::PageUp][..]),
            ("key to frame: Tab", &[KeyCode::Tab][..]),
        ] {
            let (middle, most) = bench.keys(codes);
            check(&format!("{what}, median"), middle, frame);
            check(&format!("{what}, 95 of 100"), most, frame);
        }
        bench.send(Msg::Key(KeyEvent::new(KeyCode::Char('/'), KeyModifiers::NONE), 0));
        let (middle, most) = bench.keys(&[KeyCode::Char('9'), KeyCode::Backspace]);
        check("a letter of the filter to frame, median", middle, frame);
        check("a letter of the filter to frame, 95 of 100", most, frame * 2);
        println!("(making the data took {:.0} ms)", made.as_secs_f64() * 1e3);
    });
}

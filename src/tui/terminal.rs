//! The terminal: entered and left as a whole, and given back on every way out - return, error, panic,
//! signal, Ctrl-Z.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::Frame;
use ratatui::Terminal as Ratatui;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute, queue, style};
use ratatui::layout::Rect;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, QueueSelector, tcflush, tcgetattr, tcsetattr};

use super::TuiError;
use crate::text;

/// Clicks and the wheel (1000) as SGR (1006); no motion, so that Shift and drag select natively.
const MOUSE_ON: &[u8] = b"\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &[u8] = b"\x1b[?1006l\x1b[?1000l";

static ENTERED: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

thread_local! {
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` as a worker: a panic in it leaves the terminal alone.
pub fn as_worker<T>(f: impl FnOnce() -> T) -> T {
    WORKER.set(true);
    let result = f();
    WORKER.set(false);
    result
}

/// The terminal while the screens own it.
pub struct Terminal {
    inner: Ratatui<CrosstermBackend<io::Stdout>>,
}

impl Terminal {
    /// Takes the terminal over. Refused where there is none.
    pub fn enter() -> Result<Self, TuiError> {
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        if !io::stdin().is_terminal() || !stdout().is_terminal() || dumb {
            return Err(TuiError::NoTerminal);
        }
        // crossterm would write a full reset for each colour under NO_COLOR, the selection would be lost;
        // the theme has no colours then
        style::force_color_output(true);
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if WORKER.get() {
                    tracing::error!("{info}");
                } else {
                    leave();
                    before(info);
                }
            }));
        });
        enter()?;
        let inner = Ratatui::new(CrosstermBackend::new(stdout())).inspect_err(|_| leave())?;
        Ok(Self { inner })
    }

    /// Draws a frame, as one update on terminals that can do so.
    pub fn draw(&mut self, render: impl FnOnce(&mut Frame)) -> io::Result<()> {
        queue!(stdout(), BeginSynchronizedUpdate)?;
        let drawn = self.inner.draw(|frame| {
            render(frame);
            if text::ascii_only() {
                to_ascii(frame.buffer_mut());
            }
        });
        let drawn = drawn.map(|_| ());
        execute!(stdout(), EndSynchronizedUpdate)?;
        drawn
    }

    /// Columns and rows.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        self.inner.size().map(|s| (s.width, s.height))
    }

    /// The next frame draws every cell. (`clear` would ask the terminal where the cursor is, and wait for
    /// an answer among the keys.)
    pub fn redraw(&mut self) -> io::Result<()> {
        let size = self.inner.size()?;
        self.inner.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Gives the terminal back while `f` runs, then takes it over again. While `f` waits for another program no
    /// reader of events may live: it would steal the keys. While the whole job is stopped it may, and must: the
    /// wake-up that a dropped [`EventStream`](ratatui::crossterm::event::EventStream) leaves behind hides the keys
    /// that come with it, see [`Terminal::look_again`].
    pub fn outside(&mut self, f: impl FnOnce()) -> io::Result<()> {
        leave();
        f();
        self.again()
    }

    /// Takes the terminal over again, after someone else had it.
    pub fn again(&mut self) -> io::Result<()> {
        // whoever had it may have left it in any mode: back to the one from before, then raw again
        disable_raw_mode()?;
        enter()?;
        self.redraw()
    }

    /// Forgets what was typed and not read.
    pub fn drop_input() {
        if let Err(error) = tcflush(io::stdin(), QueueSelector::IFlush) {
            tracing::warn!(%error, "cannot forget what was typed");
        }
    }

    /// Makes the reader of events look for keys again. crossterm 0.29 waits for edges (`event/source/unix/mio.rs`):
    /// where a change of size, or a wake-up, comes together with keys, it returns with the first and the edge of the
    /// keys is gone; they would be seen with the next key only. Setting the modes that are set wakes all readers.
    pub fn look_again() -> io::Result<()> {
        let modes = tcgetattr(io::stdin())?;
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &modes)?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// Stops the whole job, as the terminal's own Ctrl-Z does; returns after `fg`.
pub fn stop_job() {
    if let Err(error) = kill_current_process_group(Signal::TSTP) {
        tracing::warn!(%error, "cannot stop");
    }
}

/// Puts ASCII in the place of everything else: what is foreign as `?`, one for each column.
fn to_ascii(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        let Some(c) = cell.symbol().chars().find(|c| !c.is_ascii()) else {
            continue;
        };
        cell.set_char(match c {
            '─' | '━' | '┄' | '·' => '-',
            '│' | '┃' | '╎' | '▏' => '|',
            '\u{2500}'..='\u{257f}' => '+',
            '●' | '\u{2800}'..='\u{28ff}' => '*',
            '○' | '◌' | '◐' => 'o',
            '»' | '›' | '→' => '>',
            '…' => '.',
            '±' => '~',
            '✗' => 'x',
            '␤' | '⇥' | '␍' => '$',
            _ => '?',
        });
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    ENTERED.store(true, Ordering::SeqCst);
    let mut out = stdout();
    let entered = execute!(out, EnterAlternateScreen, EnableBracketedPaste, cursor::Hide)
        .and_then(|()| out.write_all(MOUSE_ON))
        .and_then(|()| out.flush());
    entered.inspect_err(|_| leave())
}

/// Gives everything back. Does nothing the second time. Errors cannot be told to anyone: the terminal may
/// be gone, and what follows must be tried all the same.
fn leave() {
    if !ENTERED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut out = stdout();
    let _gone = out.write_all(MOUSE_OFF);
    let _gone = execute!(
        out,
        EndSynchronizedUpdate,
        DisableBracketedPaste,
        LeaveAlternateScreen,
        cursor::Show
    );
    let _gone = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::Style;

    #[test]
    fn ascii_keeps_every_column() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        buffer.set_string(0, 0, "├─●é中文👩‍👩‍👧x", Style::new());
        to_ascii(&mut buffer);
        let symbols: String = buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect();
        assert!(
            symbols.is_ascii() && symbols.starts_with("+-*?? ? ? x"),
            "{symbols:?}"
        );
    }
}

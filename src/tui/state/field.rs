//! A field of text that is edited: what a terminal would act on is in it as a stand-in of one column, so that it is
//! kept byte for byte and never reaches the terminal.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Style;
use ratatui_textarea::{CursorMove, TextArea, WrapMode};

use crate::text::is_unsafe_char;

/// The longest text that is edited here, in bytes: the layout of all of it is made anew with each key.
const MOST: usize = 128 << 10;
/// The most lines, as wrapped in a narrow field (the widget counts rows in 16 bits).
const LINES: usize = 20_000;
/// The stand-ins: private use, plane 16. What is from there itself gets a stand-in, too.
const FIRST: u32 = 0x10_0000;
/// How many there are.
const STAND_INS: usize = 0xfffd;

/// The field.
#[derive(Debug, Clone)]
pub struct Field {
    area: TextArea<'static>,
    odd: Vec<char>,
}

fn is_odd(c: char) -> bool {
    (is_unsafe_char(c) && c != '\t') || c as u32 >= FIRST
}

/// What is shown for a character that has a stand-in: one column.
fn picture(c: char) -> char {
    match c as u32 {
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or('\u{fffd}'),
        0x7f => '\u{2421}',
        _ => '\u{fffd}',
    }
}

impl Field {
    /// With this text, the cursor at its end; `None` if it is too long to be edited here.
    pub fn new(text: &str) -> Option<Self> {
        if text.len() > MOST || text.bytes().filter(|b| *b == b'\n').count() > LINES {
            return None;
        }
        let mut odd = Vec::new();
        let lines: Option<Vec<String>> = text.split('\n').map(|l| encoded(l, &mut odd)).collect();
        let mut area = TextArea::new(lines?);
        area.set_wrap_mode(WrapMode::WordOrGlyph);
        area.set_hard_tab_indent(true);
        area.set_cursor_line_style(Style::new());
        area.move_cursor(CursorMove::Bottom);
        area.move_cursor(CursorMove::End);
        Some(Self { area, odd })
    }

    /// The text, as it was given but for what was edited.
    pub fn text(&self) -> String {
        let lines: Vec<String> = self.area.lines().iter().map(|l| self.decoded(l)).collect();
        lines.join("\n")
    }

    fn decoded(&self, line: &str) -> String {
        line.chars().map(|c| self.meant(c)).collect()
    }

    fn meant(&self, c: char) -> char {
        let slot = (c as u32).checked_sub(FIRST).map(|n| n as usize);
        slot.and_then(|n| self.odd.get(n)).copied().unwrap_or(c)
    }

    /// What is drawn for a cell of the widget.
    pub fn drawn(&self, symbol: &str) -> Option<String> {
        let stands_in = |c: char| c as u32 >= FIRST;
        symbol.chars().any(stands_in).then(|| {
            let shown = |c: char| if stands_in(c) { picture(self.meant(c)) } else { c };
            symbol.chars().map(shown).collect()
        })
    }

    /// The widget, to be drawn.
    pub fn widget(&self) -> &TextArea<'static> {
        &self.area
    }

    /// Puts in what was pasted, as text: no key, and no end of the field. False if there is no room for it.
    pub fn paste(&mut self, text: &str) -> bool {
        // terminals send the end of a line as a carriage return
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let now: usize = self.area.lines().iter().map(|l| l.len() + 1).sum();
        let lines = self.area.lines().len() + text.bytes().filter(|b| *b == b'\n').count();
        if now + text.len() > MOST || lines > LINES {
            return false;
        }
        let lines: Option<Vec<String>> = text.split('\n').map(|l| encoded(l, &mut self.odd)).collect();
        let Some(lines) = lines else { return false };
        self.area.insert_str(lines.join("\n"));
        true
    }

    /// Moves the cursor by lines.
    pub fn scroll(&mut self, lines: isize) {
        let way = if lines < 0 {
            CursorMove::Up
        } else {
            CursorMove::Down
        };
        for _ in 0..lines.unsigned_abs().min(1000) {
            self.area.move_cursor(way);
        }
    }

    /// A key: it types, deletes or moves. `page`: the rows of a page. True if it was one of the field's.
    pub fn key(&mut self, key: &KeyEvent, page: u16) -> bool {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        let area = &mut self.area;
        match (key.code, ctrl, alt) {
            (KeyCode::Char(c), false, false) if !is_odd(c) => area.insert_char(c),
            (KeyCode::Enter, _, false) => area.insert_newline(),
            (KeyCode::Tab, false, false) => area.insert_char('\t'),
            (KeyCode::Backspace, false, false) => drop(area.delete_char()),
            (KeyCode::Delete, false, false) => drop(area.delete_next_char()),
            (KeyCode::Char('w'), true, false) | (KeyCode::Backspace, _, _) => drop(area.delete_word()),
            (KeyCode::Delete, _, _) => drop(area.delete_next_word()),
            (KeyCode::Char('k'), true, false) => drop(area.delete_line_by_end()),
            (KeyCode::Char('u'), true, false) => drop(area.delete_line_by_head()),
            (KeyCode::Char('_'), true, _) | (KeyCode::Char('u'), false, true) => drop(area.undo()),
            (KeyCode::Char('r'), false, true) => drop(area.redo()),
            (KeyCode::Char('y'), true, false) => drop(area.paste()),
            (KeyCode::PageUp, ..) => self.scroll(-isize::from(page as i16)),
            (KeyCode::PageDown, ..) => self.scroll(isize::from(page as i16)),
            (code, ..) => match movement(code, ctrl, alt) {
                Some(movement) => area.move_cursor(movement),
                None => return false,
            },
        }
        true
    }
}

fn movement(code: KeyCode, ctrl: bool, alt: bool) -> Option<CursorMove> {
    Some(match (code, ctrl, alt) {
        (KeyCode::Left, true, _) | (KeyCode::Char('b'), false, true) => CursorMove::WordBack,
        (KeyCode::Right, true, _) | (KeyCode::Char('f'), false, true) => CursorMove::WordForward,
        (KeyCode::Home, true, _) => CursorMove::Top,
        (KeyCode::End, true, _) => CursorMove::Bottom,
        (KeyCode::Left, ..) => CursorMove::Back,
        (KeyCode::Right, ..) => CursorMove::Forward,
        (KeyCode::Up, ..) => CursorMove::Up,
        (KeyCode::Down, ..) => CursorMove::Down,
        (KeyCode::Home, ..) | (KeyCode::Char('a'), true, false) => CursorMove::Head,
        (KeyCode::End, ..) => CursorMove::End,
        _ => return None,
    })
}

/// A line with stand-ins; `None` if there are more odd characters in a text than stand-ins.
fn encoded(line: &str, odd: &mut Vec<char>) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        if !is_odd(c) {
            out.push(c);
            continue;
        }
        let slot = match odd.iter().position(|o| *o == c) {
            Some(slot) => slot,
            None if odd.len() < STAND_INS => {
                odd.push(c);
                odd.len() - 1
            }
            None => return None,
        };
        out.push(char::from_u32(FIRST + slot as u32)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(field: &mut Field, code: KeyCode) -> bool {
        field.key(&KeyEvent::new(code, KeyModifiers::NONE), 10)
    }

    #[test]
    fn a_text_comes_back_byte_for_byte() {
        for text in [
            "",
            "\n",
            "a\n\nb\n",
            "a\tb\r\nc\rd\n",
            "\0\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{200b}\u{feff}\u{e0041}",
            "中文 👩‍👩‍👧 e\u{301}\u{10fffd}\u{100000}\u{100001}",
        ] {
            let mut field = Field::new(text).expect("short enough");
            assert_eq!(field.text(), text);
            press(&mut field, KeyCode::Char('x'));
            assert_eq!(field.text(), format!("{text}x"), "what was not edited stays");
            assert!(
                field
                    .widget()
                    .lines()
                    .iter()
                    .all(|l| !l.chars().any(|c| c.is_control() && c != '\t')),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_stand_in_is_shown_as_a_picture_of_what_it_stands_for() {
        let field = Field::new("\u{1b}\r\u{7f}\u{9b}\u{202e}\u{100000}a").expect("short");
        let line = &field.widget().lines()[0];
        let shown = line
            .chars()
            .map(|c| field.drawn(&c.to_string()).unwrap_or(c.to_string()));
        assert_eq!(shown.collect::<String>(), "␛␍␡\u{fffd}\u{fffd}\u{fffd}a");
    }

    #[test]
    fn what_is_pasted_is_text() {
        let mut field = Field::new("x").expect("short");
        assert!(field.paste("one\r\ntwo\rq\ny\u{1b}[2J"));
        assert_eq!(field.text(), "xone\ntwo\nq\ny\u{1b}[2J");
        assert!(!field.paste(&"x".repeat(MOST)), "no room");
        assert_eq!(field.text(), "xone\ntwo\nq\ny\u{1b}[2J");
    }

    #[test]
    fn what_is_too_long_is_not_edited_here() {
        assert!(Field::new(&"x".repeat(MOST + 1)).is_none());
        assert!(Field::new(&"\n".repeat(LINES + 1)).is_none());
        assert!(Field::new(&"x".repeat(MOST)).is_some());
    }

    #[test]
    fn keys_edit() {
        let mut field = Field::new("one two").expect("short");
        let ctrl = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert!(field.key(&ctrl('w'), 10));
        assert_eq!(field.text(), "one ");
        press(&mut field, KeyCode::Enter);
        press(&mut field, KeyCode::Tab);
        press(&mut field, KeyCode::Char('q'));
        assert_eq!(field.text(), "one \n\tq");
        press(&mut field, KeyCode::Backspace);
        press(&mut field, KeyCode::Up);
        press(&mut field, KeyCode::Home);
        press(&mut field, KeyCode::Char('中'));
        assert_eq!(field.text(), "中one \n\t");
        assert!(!field.key(&ctrl('s'), 10), "that is no key of the field's");
    }
}

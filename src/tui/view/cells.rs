//! Text in cells: widths by grapheme, cutting without splitting one, wrapping, rows with a left and a right
//! side. Foreign text is made harmless before it comes here.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::text;
use crate::tui::theme::{Role, Theme};

/// Columns between tab stops.
pub const TAB: usize = 4;

/// The columns of a text.
pub fn width(s: &str) -> usize {
    s.graphemes(true).map(UnicodeWidthStr::width).sum()
}

/// The longest beginning of the text that fits, as bytes, and its columns.
fn fit(s: &str, columns: usize) -> (usize, usize) {
    let mut used = 0;
    for (at, g) in s.grapheme_indices(true) {
        let w = g.width();
        if used + w > columns {
            return (at, used);
        }
        used += w;
    }
    (s.len(), used)
}

/// The text in at most so many columns; what is cut off ends in `…`.
pub fn clip(s: &str, columns: usize) -> String {
    let (end, _) = fit(s, columns);
    if end == s.len() {
        return s.to_owned();
    }
    let (end, _) = fit(s, columns.saturating_sub(1));
    if columns == 0 {
        String::new()
    } else {
        format!("{}…", &s[..end])
    }
}

/// The first line of foreign text that is not blank, harmless, in at most so many columns. The cost does
/// not depend on the length of the text.
pub fn first_line(s: &str, columns: usize) -> String {
    let mut end = s.len().min(4096 + columns * 8);
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    clip(&text::first_line(&s[..end]), columns)
}

/// A path in at most so many columns; the middle is cut out, the file's name stays as long as it can.
pub fn clip_middle(s: &str, columns: usize) -> String {
    if width(s) <= columns {
        return s.to_owned();
    }
    if columns < 5 {
        return clip(s, columns);
    }
    let tail_columns = (columns - 1) * 2 / 3;
    let (head, used) = fit(s, columns - 1 - tail_columns);
    let mut tail = s.len();
    let mut rest = columns - 1 - used;
    for (at, g) in s.grapheme_indices(true).rev() {
        let w = g.width();
        if w > rest || at < head {
            break;
        }
        rest -= w;
        tail = at;
    }
    format!("{}…{}", &s[..head], &s[tail..])
}

/// Foreign text of several lines as harmless lines of at most so many columns, wrapped at spaces.
pub fn wrap(s: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    for line in s.strip_suffix('\n').unwrap_or(s).split('\n') {
        wrap_line(
            &expand(line.strip_suffix('\r').unwrap_or(line)),
            columns,
            &mut lines,
        );
    }
    lines
}

/// Tabs to spaces, the rest harmless.
fn expand(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for (n, piece) in line.split('\t').enumerate() {
        if n > 0 {
            let to = TAB - width(&out) % TAB;
            out.extend(std::iter::repeat_n(' ', to));
        }
        out.push_str(&text::shown(piece));
    }
    out
}

fn wrap_line(line: &str, columns: usize, lines: &mut Vec<String>) {
    let mut rest = line;
    loop {
        let (end, _) = fit(rest, columns);
        if end == rest.len() {
            lines.push(rest.to_owned());
            return;
        }
        // at least one grapheme, also where not even that fits
        let end = end.max(rest.graphemes(true).next().map_or(0, str::len));
        let space = rest[..end]
            .rfind(' ')
            .filter(|at| *at > 0 && !rest[..*at].trim().is_empty());
        let cut = if rest[end..].starts_with(' ') {
            end
        } else {
            space.map_or(end, |at| at + 1)
        };
        lines.push(rest[..cut].trim_end().to_owned());
        rest = rest[cut..].trim_start_matches(' ');
        if rest.is_empty() {
            return;
        }
    }
}

/// One line of an area.
pub fn line_of(area: Rect, line: usize) -> Rect {
    let line = u16::try_from(line).unwrap_or(u16::MAX).min(area.height);
    Rect {
        y: area.y + line,
        height: u16::from(line < area.height),
        ..area
    }
}

/// Draws a line of text, cut at the end of the area.
pub fn put(buf: &mut Buffer, area: Rect, line: &Line) {
    let area = area.intersection(buf.area);
    if !area.is_empty() {
        buf.set_line(area.x, area.y, line, area.width);
    }
}

/// Draws a row with text on the left and on the right; the right side wins. `selected` colours all of it.
pub fn row(buf: &mut Buffer, area: Rect, left: Line, right: Line, selected: Option<Style>) {
    let area = area.intersection(buf.area);
    if area.is_empty() {
        return;
    }
    let right_width = (right.width() as u16).min(area.width);
    let gap = u16::from(right_width > 0);
    let left_area = Rect {
        width: area.width.saturating_sub(right_width + gap),
        ..area
    };
    let right_area = Rect {
        x: area.right() - right_width,
        width: right_width,
        ..area
    };
    put(buf, left_area, &left);
    put(buf, right_area, &right);
    if let Some(style) = selected {
        for x in area.left()..area.right() {
            let cell = &mut buf[(x, area.y)];
            if style.add_modifier.contains(Modifier::REVERSED) {
                // colours turned around would make a patchwork
                cell.set_style(Style::reset());
            }
            cell.set_style(style);
        }
    }
}

/// Draws the title line of a pane: a rule with the title in it and a remark at its end.
pub fn title(buf: &mut Buffer, area: Rect, theme: &Theme, title: &str, remark: &str, focused: bool) {
    let area = line_of(area, 0).intersection(buf.area);
    if area.is_empty() {
        return;
    }
    let columns = usize::from(area.width);
    let rule = "─".repeat(columns);
    buf.set_stringn(area.x, area.y, &rule, columns, theme[Role::Rule]);
    if title.is_empty() {
        return;
    }
    let remark = if remark.is_empty() {
        String::new()
    } else {
        format!(" {remark} ")
    };
    let room = columns.saturating_sub(2);
    let text = clip(title, room.saturating_sub(2));
    let style = Style::reset().patch(if focused {
        theme[Role::TitleFocus]
    } else {
        theme[Role::Title]
    });
    let name = Line::from(vec![Span::raw(" "), Span::styled(text, style), Span::raw(" ")]);
    let after = name.width() + 2;
    put(
        buf,
        Rect {
            x: area.x + 1.min(area.width),
            width: area.width.saturating_sub(1),
            ..area
        },
        &name,
    );
    let wide = width(&remark);
    if wide > 0 && after + wide < columns {
        let x = area.right() - wide as u16 - 1;
        put(
            buf,
            Rect {
                x,
                width: wide as u16,
                ..area
            },
            &Line::styled(remark, theme[Role::Dim]),
        );
    }
}

/// Draws lines of text in the middle of an area.
pub fn centred(buf: &mut Buffer, area: Rect, lines: &[Line]) {
    let top = (usize::from(area.height).saturating_sub(lines.len())) / 3;
    for (n, line) in lines.iter().enumerate() {
        let mut at = line_of(area, top + n);
        let spare = at.width.saturating_sub(line.width() as u16);
        at.x += spare / 2;
        at.width -= spare / 2;
        if at.height > 0 {
            put(buf, at, line);
        }
    }
}

/// Sentences for an empty place, wrapped and in the middle.
pub fn say(buf: &mut Buffer, area: Rect, style: Style, sentences: &[&str]) {
    let columns = usize::from(area.width.saturating_sub(2)).min(64);
    let mut lines = Vec::new();
    for sentence in sentences {
        lines.extend(
            wrap(sentence, columns)
                .into_iter()
                .map(|l| Line::styled(l, style)),
        );
    }
    centred(buf, area, &lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_never_splits_a_grapheme() {
        for s in ["👩‍👩‍👧x", "e\u{301}e\u{301}", "中文字", "ｶﾞ①♻️", "กำลัง"]
        {
            for columns in 0..12 {
                for cut in [clip(s, columns), clip_middle(s, columns)] {
                    assert!(width(&cut) <= columns, "{cut:?} in {columns}");
                    let whole: Vec<&str> = s.graphemes(true).collect();
                    assert!(
                        cut.graphemes(true).all(|g| g == "…" || whole.contains(&g)),
                        "{cut:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn paths_lose_their_middle() {
        assert_eq!(
            clip_middle("src/a/very/long/path/to/file.rs", 16),
            "src/a…to/file.rs"
        );
    }

    #[test]
    fn text_wraps_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("a\tb\n\nc\r\n", 9), ["a   b", "", "c"]);
        assert_eq!(wrap("中文", 1), ["中", "文"]);
        assert_eq!(wrap("x\u{1b}[31m", 20), ["x^[[31m"]);
    }
}

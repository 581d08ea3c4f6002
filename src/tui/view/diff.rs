//! How one file differs.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::{cells, files};
use crate::diff::{FileDiff, Hunk, Line as DiffLine, Tag};
use crate::text;
use crate::tui::layout;
use crate::tui::state::{DiffKey, Open, Pane, ShownDiff, State};
use crate::tui::theme::{Role, Theme};

/// The pane.
pub fn draw(buf: &mut Buffer, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let Some(open) = &state.open else { return };
    let load = &open.diff.load;
    let key = if load.slow {
        load.wanted.as_ref()
    } else {
        load.value.as_ref().map(|(k, _)| k)
    };
    let remark = load
        .ready()
        .filter(|_| !load.slow)
        .map_or_else(String::new, remark);
    let heading = heading(open, key, usize::from(area.width), &remark);
    cells::title(
        buf,
        area,
        &state.theme,
        &heading,
        &remark,
        state.focus == Pane::Diff,
    );
    let content = layout::content(area);
    let dim = state.theme[Role::Dim];
    if load.slow {
        return cells::put(buf, cells::line_of(content, 0), &Line::styled("  reading …", dim));
    }
    match &load.value {
        None => {}
        Some((_, Err(failure))) => {
            let hint = failure.hint.clone().unwrap_or_default();
            cells::say(buf, content, state.theme[Role::Bad], &[&failure.message, &hint]);
        }
        Some((_, Ok(shown))) => body(buf, content, state, open, shown),
    }
}

fn heading(open: &Open, key: Option<&DiffKey>, columns: usize, remark: &str) -> String {
    let Some(key) = key else { return "Diff".to_owned() };
    let version = match &key.version {
        Some((at, of, words)) => format!("  version {} of {of}, {}", at + 1, text::shown(words)),
        None if open.diff.versions.job.is_some() => "  versions …".to_owned(),
        None => String::new(),
    };
    let room = columns.saturating_sub(cells::width(&version) + cells::width(remark) + 7);
    format!(
        "{}{version}",
        cells::clip_middle(&text::shown_path(&key.change.path), room.max(8))
    )
}

fn remark(shown: &ShownDiff) -> String {
    match &shown.diff {
        FileDiff::Text { added, removed, .. } => format!("+{added} -{removed}"),
        _ => String::new(),
    }
}

fn body(buf: &mut Buffer, area: Rect, state: &State, open: &Open, shown: &ShownDiff) {
    let dim = state.theme[Role::Dim];
    match &shown.diff {
        FileDiff::Text { hunks, note, .. } => {
            let note = note.as_deref().map(text::shown);
            let skip = usize::from(note.is_some() && open.diff.top == 0);
            if let Some(note) = note.filter(|_| skip > 0) {
                cells::put(
                    buf,
                    cells::line_of(area, 0),
                    &Line::styled(format!("  {note}"), state.theme[Role::Warn]),
                );
            }
            if hunks.is_empty() {
                let next = "What differs is said in the list of files.";
                return cells::say(buf, area, dim, &["The content is equal.", "", next]);
            }
            let digits = digits(hunks);
            for n in 0..usize::from(area.height).saturating_sub(skip) {
                let Some((h, l)) = shown.rows.get(open.diff.top + n) else {
                    break;
                };
                let Some(hunk) = hunks.get(*h as usize) else { break };
                let at = cells::line_of(area, n + skip);
                match l.and_then(|l| hunk.lines.get(l as usize)) {
                    Some(line) => {
                        let line =
                            diff_line(&state.theme, line, digits, open.diff.left, usize::from(at.width));
                        cells::put(buf, at, &line);
                    }
                    None => cells::put(buf, at, &hunk_head(&state.theme, hunk, digits)),
                }
            }
        }
        other => {
            let sentences = words(other);
            let sentences: Vec<&str> = sentences.iter().map(String::as_str).collect();
            cells::say(buf, area, dim, &sentences);
        }
    }
}

/// What is not text, in words.
fn words(diff: &FileDiff) -> Vec<String> {
    let size = |s: &Option<u64>| s.map_or_else(|| "not there".to_owned(), text::size);
    match diff {
        FileDiff::Text { .. } => Vec::new(),
        FileDiff::Binary {
            size_a,
            size_b,
            hash_a,
            hash_b,
        } => {
            let mut lines = vec!["Not text.".to_owned(), String::new()];
            let side = |name: &str, s: &Option<u64>, h: &Option<String>| {
                let hash = h
                    .as_deref()
                    .map(|h| format!("  {}", text::shown(h)))
                    .unwrap_or_default();
                format!("{name}  {:>10}{hash}", size(s))
            };
            lines.push(side("before", size_a, hash_a));
            lines.push(side("after ", size_b, hash_b));
            lines
        }
        FileDiff::Link { a, b } => {
            let side = |t: &Option<std::path::PathBuf>| {
                t.as_deref().map_or("not there".to_owned(), text::shown_path)
            };
            vec![
                "A symbolic link.".to_owned(),
                String::new(),
                format!("before  {}", side(a)),
                format!("after   {}", side(b)),
            ]
        }
        FileDiff::Special { a, b } if a == b => {
            vec![format!("A {}: it has no content to show.", files::file_type(*a))]
        }
        FileDiff::Special { a, b } => vec![
            "Nothing to compare line by line.".to_owned(),
            String::new(),
            format!("before  {}", files::file_type(*a)),
            format!("after   {}", files::file_type(*b)),
        ],
        FileDiff::TooLarge { size_a, size_b } => vec![
            "Too large to show.".to_owned(),
            String::new(),
            format!("before  {}", size(size_a)),
            format!("after   {}", size(size_b)),
        ],
        FileDiff::Same => vec!["The content is equal; its attributes may differ.".to_owned()],
    }
}

/// The columns of the line numbers.
fn digits(hunks: &[Hunk]) -> usize {
    let last = hunks
        .last()
        .map_or(0, |h| (h.old_start + h.old_len).max(h.new_start + h.new_len));
    last.to_string().len().max(2)
}

fn hunk_head(theme: &Theme, hunk: &Hunk, digits: usize) -> Line<'static> {
    let lines = |start: u32, len: u32| match len {
        0 => "nothing".to_owned(),
        1 => start.to_string(),
        n => format!("{start}-{}", start + n - 1),
    };
    let old = lines(hunk.old_start, hunk.old_len);
    let new = lines(hunk.new_start, hunk.new_len);
    let pad = " ".repeat(digits * 2 + 3);
    Line::styled(format!("{pad}@@ {old} → {new}"), theme[Role::Hunk])
}

fn diff_line(theme: &Theme, line: &DiffLine, digits: usize, left: usize, columns: usize) -> Line<'static> {
    let (sign, base, word) = match line.tag {
        Tag::Equal => (" ", theme[Role::Text], theme[Role::Text]),
        Tag::Delete => ("-", theme[Role::LineDeleted], theme[Role::WordDeleted]),
        Tag::Insert => ("+", theme[Role::LineAdded], theme[Role::WordAdded]),
    };
    let number = |n: Option<u32>| n.map_or_else(String::new, |n| n.to_string());
    let gutter = format!(" {:>digits$} {:>digits$} ", number(line.old), number(line.new));
    let room = columns.saturating_sub(gutter.len() + 2);
    let mut spans = vec![
        Span::styled(gutter, theme[Role::Dim]),
        Span::styled(format!("{sign} "), base),
    ];
    pieces(
        &mut spans,
        &line.text,
        &line.emphasis,
        (base, word),
        left..left + room,
        theme[Role::Warn],
    );
    if line.no_newline {
        spans.push(Span::styled(" (no line end)", theme[Role::Dim]));
    }
    Line::from(spans)
}

/// The part of a line that can be seen, tabs as spaces, everything harmless, changed words marked.
fn pieces(
    spans: &mut Vec<Span<'static>>,
    line: &str,
    emphasis: &[Range<usize>],
    (base, word): (Style, Style),
    window: Range<usize>,
    odd: Style,
) {
    let mut column = 0;
    let mut run = (String::new(), base);
    for (at, grapheme) in line.grapheme_indices(true) {
        if column >= window.end {
            break;
        }
        let mut style = if emphasis.iter().any(|r| r.contains(&at)) {
            word
        } else {
            base
        };
        let piece = if grapheme == "\t" {
            " ".repeat(cells::TAB - column % cells::TAB)
        } else {
            let shown = text::shown(grapheme);
            if shown != grapheme {
                style = odd;
            }
            shown
        };
        for g in piece.graphemes(true) {
            let wide = g.width();
            let seen = column >= window.start && column + wide <= window.end;
            column += wide;
            if !seen {
                continue;
            }
            if run.1 != style {
                spans.push(Span::styled(std::mem::take(&mut run.0), run.1));
                run.1 = style;
            }
            run.0.push_str(g);
        }
    }
    spans.push(Span::styled(run.0, run.1));
}

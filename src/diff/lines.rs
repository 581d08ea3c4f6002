//! Lines: hunks with context, the words that differ in lines that replace each other.

use std::ops::Range;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, DiffTag, TextDiff, capture_diff_slices_deadline};

use super::{FileDiff, Hunk, Line, Tag};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// Lines longer than this (bytes) get no emphasis.
const EMPHASIS_LINE: usize = 2000;
/// Pairs of lines that get emphasis in one file.
const EMPHASIS_PAIRS: usize = 1000;

/// Compares two texts by lines that end in line feeds; a carriage return is a character like any other.
pub(super) fn text_diff(a: &str, b: &str, time: Duration) -> FileDiff {
    let lines_a: Vec<&str> = a.split_inclusive('\n').collect();
    let lines_b: Vec<&str> = b.split_inclusive('\n').collect();
    let began = Instant::now();
    let diff = TextDiff::configure()
        .timeout(time)
        .diff_slices(&lines_a, &lines_b);
    let note = if began.elapsed() >= time {
        Some("the comparison ran out of time: more is shown as replaced than was".to_owned())
    } else {
        (a != b && same_but_for_line_ends(a, b)).then(|| "only line ends differ".to_owned())
    };
    let mut painter = Painter {
        a: &lines_a,
        b: &lines_b,
        pairs: EMPHASIS_PAIRS,
        deadline: began + time * 2,
    };
    let hunks: Vec<Hunk> = diff
        .grouped_ops(CONTEXT)
        .iter()
        .map(|ops| painter.hunk(ops))
        .collect();
    let count = |tag| {
        hunks
            .iter()
            .flat_map(|h| &h.lines)
            .filter(|l| l.tag == tag)
            .count() as u64
    };
    FileDiff::Text {
        added: count(Tag::Insert),
        removed: count(Tag::Delete),
        hunks,
        note,
    }
}

fn same_but_for_line_ends(a: &str, b: &str) -> bool {
    a.replace("\r\n", "\n") == b.replace("\r\n", "\n")
}

struct Painter<'a> {
    a: &'a [&'a str],
    b: &'a [&'a str],
    pairs: usize,
    deadline: Instant,
}

impl Painter<'_> {
    fn hunk(&mut self, ops: &[DiffOp]) -> Hunk {
        let span = |range: fn(&DiffOp) -> Range<usize>| {
            let start = ops.first().map_or(0, |o| range(o).start);
            start..ops.last().map_or(start, |o| range(o).end)
        };
        let (old, new) = (span(DiffOp::old_range), span(DiffOp::new_range));
        let start = |r: &Range<usize>| if r.is_empty() { r.start } else { r.start + 1 } as u32;
        let mut lines = Vec::with_capacity(old.len() + new.len());
        for op in ops {
            let (old, new) = (op.old_range(), op.new_range());
            match op.tag() {
                DiffTag::Equal => {
                    lines.extend(old.zip(new).map(|(i, j)| self.line(Tag::Equal, Some(i), Some(j))));
                }
                DiffTag::Delete => lines.extend(old.map(|i| self.line(Tag::Delete, Some(i), None))),
                DiffTag::Insert => lines.extend(new.map(|j| self.line(Tag::Insert, None, Some(j)))),
                DiffTag::Replace => self.replaced(old, new, &mut lines),
            }
        }
        Hunk {
            old_start: start(&old),
            old_len: old.len() as u32,
            new_start: start(&new),
            new_len: new.len() as u32,
            lines,
        }
    }

    fn replaced(&mut self, old: Range<usize>, new: Range<usize>, lines: &mut Vec<Line>) {
        let mut removed: Vec<Line> = old.map(|i| self.line(Tag::Delete, Some(i), None)).collect();
        let mut added: Vec<Line> = new.map(|j| self.line(Tag::Insert, None, Some(j))).collect();
        for (from, to) in removed.iter_mut().zip(&mut added) {
            if self.pairs == 0 || Instant::now() > self.deadline {
                break;
            }
            self.pairs -= 1;
            (from.emphasis, to.emphasis) = emphasis(&from.text, &to.text, self.deadline);
        }
        lines.append(&mut removed);
        lines.append(&mut added);
    }

    fn line(&self, tag: Tag, old: Option<usize>, new: Option<usize>) -> Line {
        let whole = match (old, new) {
            (Some(i), _) => self.a[i],
            (None, Some(j)) => self.b[j],
            (None, None) => "",
        };
        let text = whole.strip_suffix('\n').unwrap_or(whole);
        Line {
            tag,
            old: old.map(|i| i as u32 + 1),
            new: new.map(|j| j as u32 + 1),
            text: text.to_owned(),
            emphasis: Vec::new(),
            no_newline: text.len() == whole.len(),
        }
    }
}

/// The byte ranges of each that the other has not; none where the two have little in common.
fn emphasis(a: &str, b: &str, deadline: Instant) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
    if a.len() > EMPHASIS_LINE || b.len() > EMPHASIS_LINE {
        return (Vec::new(), Vec::new());
    }
    let (words_a, words_b) = (words(a), words(b));
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &words_a, &words_b, Some(deadline));
    let text_of = |words: &[&str]| words.iter().map(|w| w.trim().len()).sum::<usize>();
    let common: usize = ops
        .iter()
        .filter(|o| o.tag() == DiffTag::Equal)
        .map(|o| text_of(&words_a[o.old_range()]))
        .sum();
    if common * 10 < text_of(&words_a).max(text_of(&words_b)) * 3 {
        return (Vec::new(), Vec::new());
    }
    let (ends_a, ends_b) = (ends(&words_a), ends(&words_b));
    let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
    for op in ops.iter().filter(|o| o.tag() != DiffTag::Equal) {
        push(&mut in_a, &ends_a, op.old_range());
        push(&mut in_b, &ends_b, op.new_range());
    }
    (in_a, in_b)
}

/// Runs of letters and digits, runs of blanks, and every other character for itself.
fn words(line: &str) -> Vec<&str> {
    let class = |c: char| match c {
        c if c.is_alphanumeric() || c == '_' => 1,
        ' ' | '\t' => 2,
        _ => 0,
    };
    let mut words = Vec::new();
    let mut start = 0;
    let mut before = None;
    for (i, c) in line.char_indices() {
        if before.is_some_and(|b| b != class(c) || b == 0) {
            words.push(&line[start..i]);
            start = i;
        }
        before = Some(class(c));
    }
    if start < line.len() {
        words.push(&line[start..]);
    }
    words
}

/// Where each word begins, and the end.
fn ends(words: &[&str]) -> Vec<usize> {
    let mut at = 0;
    let mut ends = vec![0];
    ends.extend(words.iter().map(|w| {
        at += w.len();
        at
    }));
    ends
}

fn push(ranges: &mut Vec<Range<usize>>, ends: &[usize], words: Range<usize>) {
    let range = ends[words.start]..ends[words.end];
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunks(a: &str, b: &str) -> (Vec<Hunk>, Option<String>) {
        match text_diff(a, b, Duration::from_secs(5)) {
            FileDiff::Text { hunks, note, .. } => (hunks, note),
            other => panic!("{other:?}"),
        }
    }

    /// P086: a carriage return is kept, and a change of line ends alone is said.
    #[test]
    fn p086_carriage_returns() {
        let (h, note) = hunks("a\r\nb\n", "a\nb\n");
        assert_eq!(note.as_deref(), Some("only line ends differ"));
        let text: Vec<_> = h[0].lines.iter().map(|l| (l.tag, l.text.as_str())).collect();
        assert_eq!(
            text,
            [(Tag::Delete, "a\r"), (Tag::Insert, "a"), (Tag::Equal, "b")]
        );
        let (h, note) = hunks("one\rtwo\n", "one\rthree\n");
        assert_eq!(note, None);
        assert_eq!(
            h[0].lines[0].text, "one\rtwo",
            "a lone carriage return ends no line"
        );
        let (_, note) = hunks("a\r\nb\nc\r\n", "a\nb\r\nc\n");
        assert_eq!(note.as_deref(), Some("only line ends differ"));
    }

    #[test]
    fn context_and_numbers() {
        let a = (1..=20).map(|i| format!("{i}\n")).collect::<Vec<_>>().concat();
        let b = a.replace("10\n", "ten\n");
        let (h, _) = hunks(&a, &b);
        let head = (h[0].old_start, h[0].old_len, h[0].new_start, h[0].new_len);
        assert_eq!((h.len(), head), (1, (7, 7, 7, 7)));
        assert_eq!((h[0].lines[3].old, h[0].lines[4].new), (Some(10), Some(10)));
        let (h, _) = hunks("", "x");
        assert_eq!(
            (h[0].old_start, h[0].old_len, h[0].new_start, h[0].new_len),
            (0, 0, 1, 1)
        );
        assert!(h[0].lines[0].no_newline);
    }

    #[test]
    fn words_that_differ_are_marked() {
        let (h, _) = hunks("let x = old_name(1);\n", "let x = new_name(1, 2);\n");
        let marked = |l: &Line| {
            l.emphasis
                .iter()
                .map(|r| l.text[r.clone()].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(marked(&h[0].lines[0]), ["old_name"]);
        assert_eq!(marked(&h[0].lines[1]), ["new_name", ", 2"]);
        let (h, _) = hunks("something\n", "entirely different\n");
        assert!(h[0].lines.iter().all(|l| l.emphasis.is_empty()));
        let (h, _) = hunks("é ü\r\n", "é ö\n");
        assert_eq!(marked(&h[0].lines[0]), ["ü\r"]);
    }

    #[test]
    fn a_comparison_that_takes_too_long_is_cut_short_and_right() {
        let a = (0..60_000u32)
            .map(|i| format!("{}\n", i.wrapping_mul(2_654_435_761) % 5000))
            .collect::<Vec<_>>()
            .concat();
        let b = (0..60_000u32)
            .map(|i| format!("{}\n", i.wrapping_mul(40_503) % 5000))
            .collect::<Vec<_>>()
            .concat();
        let began = Instant::now();
        let FileDiff::Text { hunks, note, .. } = text_diff(&a, &b, Duration::from_millis(30)) else {
            panic!("text")
        };
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(note.is_some_and(|n| n.contains("ran out of time")));
        let new: usize = hunks.iter().map(|h| h.new_len as usize).sum();
        assert!(new <= 60_000);
    }
}

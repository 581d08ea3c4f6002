//! The filter of the timeline and the search in it.

use super::picker::cut;
use crate::tui::state::{Open, Pane, State, Tone};

/// Begins to type a filter.
pub fn start(state: &mut State) {
    let Some(open) = &state.open else { return };
    state.typing = Some(open.filter.clone());
    state.focus = Pane::Timeline;
    state.zoom = false;
}

/// One more character.
pub fn typed(state: &mut State, c: char) {
    if let Some(text) = &mut state.typing {
        text.push(c);
    }
    apply(state);
}

/// One character less, or all.
pub fn rub_out(state: &mut State, all: bool) {
    if let Some(text) = &mut state.typing {
        cut(text, all);
    }
    apply(state);
}

/// The filter stays; its line goes.
pub fn accept(state: &mut State) {
    apply(state);
    state.typing = None;
}

/// All rows again; the search stays for n and N.
pub fn clear(state: &mut State) {
    if let Some(open) = &mut state.open {
        set(open, String::new());
    }
}

fn apply(state: &mut State) {
    let Some(text) = state.typing.clone() else { return };
    if let Some(open) = &mut state.open {
        if !text.is_empty() {
            open.search.clone_from(&text);
        }
        set(open, text);
    }
}

/// Sets the filter and keeps the selected message, or the nearest that is left.
fn set(open: &mut Open, text: String) {
    let index = open.index(open.at.selected);
    open.filter = text;
    refilter(open);
    select_index(open, index.unwrap_or(usize::MAX));
}

/// Finds the rows that pass the filter.
pub fn refilter(open: &mut Open) {
    if open.filter.is_empty() {
        open.order = None;
        return;
    }
    let words = words(&open.filter);
    let rows = open.timeline.as_ref().map_or(&[][..], |t| &t.rows);
    let order = (0..rows.len())
        .filter(|i| matches(&rows[*i].text, &words))
        .collect();
    open.order = Some(order);
}

/// Selects the row with this index, or the nearest one that is shown.
pub fn select_index(open: &mut Open, index: usize) {
    open.at.selected = match &open.order {
        Some(order) => order
            .partition_point(|i| *i < index)
            .min(order.len().saturating_sub(1)),
        None => index.min(open.rows().len().saturating_sub(1)),
    };
}

/// To the next or previous row that the last search found.
pub fn jump(state: &mut State, forward: bool) {
    let Some(open) = &mut state.open else { return };
    let len = open.len();
    if open.search.is_empty() || len == 0 {
        state.say(Tone::Plain, "search first with /");
        return;
    }
    let words = words(&open.search);
    let here = open.at.selected;
    let found = (1..=len)
        .map(|n| {
            if forward {
                (here + n) % len
            } else {
                (here + len - n) % len
            }
        })
        .find(|p| open.row(*p).is_some_and(|r| matches(&r.text, &words)));
    match found {
        Some(place) => open.at.selected = place,
        None => state.say(Tone::Plain, "no message has it"),
    }
}

/// The words of a filter, in lower case unless they hold a capital.
pub fn words(filter: &str) -> Vec<String> {
    filter.split_whitespace().map(str::to_owned).collect()
}

/// True if the text has all the words, in any case unless a word has a capital.
pub fn matches(text: &str, words: &[String]) -> bool {
    words.iter().all(|w| find(text, w).is_some())
}

/// Where the text has the word first, as a range of bytes.
pub fn find(text: &str, word: &str) -> Option<std::ops::Range<usize>> {
    if word.chars().any(char::is_uppercase) {
        return text.find(word).map(|at| at..at + word.len());
    }
    if word.is_empty() {
        return None;
    }
    let first = word.chars().next()?;
    text.char_indices()
        .filter(|(_, c)| lower(*c) == first)
        .find_map(|(at, _)| prefix(&text[at..], word).map(|len| at..at + len))
}

/// How many bytes of the text's beginning are the word, in any case.
fn prefix(text: &str, word: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    for w in word.chars() {
        let (_, c) = chars.next()?;
        if lower(c) != w {
            return None;
        }
    }
    Some(chars.next().map_or(text.len(), |(at, _)| at))
}

fn lower(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_finds_words_in_any_case_and_capitals_exactly() {
        let has = |text: &str, filter: &str| matches(text, &words(filter));
        assert!(has("Fix the Parser", "parser fix"));
        assert!(!has("fix the parser", "Parser"));
        assert!(has("ÄRGER im Straßenbau", "ärger"));
        assert!(!has("fix", "fix it"));
        assert_eq!(find("aÄb", "äb"), Some(1..4));
    }
}

//! Lists with a search line: the conversation switcher and the palette of actions.

use std::path::PathBuf;

use nucleo_matcher::pattern::{CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};
use unicode_segmentation::UnicodeSegmentation;

use super::{Effects, actions, conversations, opened};
use crate::conversation::Summary;
use crate::text;
use crate::tui::keymap::{Action, Context, Keymap};
use crate::tui::state::{Overlay, Picker, PickerKind, Position, State};

/// Opens the conversation switcher.
pub fn switcher(state: &mut State, effects: &mut Effects) {
    if state.conversations.load.job.is_none() {
        conversations(state, effects);
    }
    push(state, PickerKind::Switcher, Vec::new());
    // the open conversation is the first choice
    let store = state.open.as_ref().map(|o| o.store.clone());
    let place = state
        .conversations
        .load
        .ready()
        .and_then(|l| l.iter().position(|c| Some(&c.store) == store.as_ref()));
    if let (Some(Overlay::Picker(picker)), Some(place)) = (state.overlays.last_mut(), place) {
        picker.at.selected = place;
    }
}

/// Opens the palette.
pub fn palette(state: &mut State) {
    let context = state.base_context();
    let actions = palette_actions(&state.keymap, context);
    push(state, PickerKind::Palette, actions);
}

/// The actions that do something here, each with its description.
fn palette_actions(keymap: &Keymap, context: Context) -> Vec<(Action, String)> {
    const MOVES: &[Action] = &[Action::Palette, Action::Back, Action::Suspend];
    keymap
        .bindings
        .iter()
        .filter(|b| b.contexts.iter().any(|c| *c == context || *c == Context::Any))
        .filter(|b| b.group != "Move" && !MOVES.contains(&b.action))
        .map(|b| (b.action, b.help.clone()))
        .collect()
}

fn push(state: &mut State, kind: PickerKind, actions: Vec<(Action, String)>) {
    let context = state.base_context();
    let mut picker = Picker {
        kind,
        query: String::new(),
        order: Vec::new(),
        actions,
        at: Position::default(),
        context,
    };
    sort(&mut picker, state.conversations.load.ready());
    state.overlays.push(Overlay::Picker(picker));
}

/// One more character in the search line.
pub fn typed(state: &mut State, c: char) {
    edit(state, |query| query.push(c));
}

/// One character less, or all.
pub fn rub_out(state: &mut State, all: bool) {
    edit(state, |query| cut(query, all));
}

/// Deletes the last grapheme, or everything.
pub fn cut(text: &mut String, all: bool) {
    let end = text.grapheme_indices(true).next_back().map_or(0, |(at, _)| at);
    text.truncate(if all { 0 } else { end });
}

fn edit(state: &mut State, change: impl FnOnce(&mut String)) {
    let list = state.conversations.load.ready();
    if let Some(Overlay::Picker(picker)) = state.overlays.last_mut() {
        change(&mut picker.query);
        sort(picker, list);
        picker.at = Position::default();
    }
}

/// The store that is selected in the switcher.
pub fn picked(state: &State) -> Option<PathBuf> {
    let list = state.conversations.load.ready()?;
    state.overlays.iter().find_map(|o| match o {
        Overlay::Picker(p) if p.kind == PickerKind::Switcher => {
            Some(list.get(*p.order.get(p.at.selected)?)?.store.clone())
        }
        _ => None,
    })
}

/// The list came anew while the switcher is open: the selection stays on its conversation, at first on the
/// open one.
pub fn conversations_came(state: &mut State, picked: Option<PathBuf>) {
    let Some(list) = state.conversations.load.ready() else {
        return;
    };
    let wanted = picked.or_else(|| state.open.as_ref().map(|o| o.store.clone()));
    for overlay in &mut state.overlays {
        if let Overlay::Picker(picker) = overlay
            && picker.kind == PickerKind::Switcher
        {
            sort(picker, Some(list));
            let place = picker
                .order
                .iter()
                .position(|i| Some(&list[*i].store) == wanted.as_ref());
            picker.at.selected = place.unwrap_or(0);
        }
    }
}

/// The text by which a conversation is found.
pub fn summary_text(summary: &Summary) -> String {
    let workspace = summary
        .workspace
        .as_deref()
        .map(text::shown_path)
        .unwrap_or_default();
    let title = summary.title.as_deref().unwrap_or_default();
    format!(
        "{} {} {} {}",
        text::first_line(title),
        summary.agent,
        workspace,
        text::shown(&summary.id)
    )
}

/// Finds what matches, best first; everything in its own order where nothing was typed.
fn sort(picker: &mut Picker, conversations: Option<&Vec<Summary>>) {
    let texts: Vec<String> = match picker.kind {
        PickerKind::Palette => picker.actions.iter().map(|(_, help)| help.clone()).collect(),
        PickerKind::Switcher => conversations.into_iter().flatten().map(summary_text).collect(),
    };
    if picker.query.trim().is_empty() {
        picker.order = (0..texts.len()).collect();
        return;
    }
    let mut matcher = Matcher::new(Config::DEFAULT);
    let pattern = Pattern::parse(&picker.query, CaseMatching::Smart, Normalization::Smart);
    let mut buffer = Vec::new();
    let mut found: Vec<(u32, usize)> = texts
        .iter()
        .enumerate()
        .filter_map(|(i, t)| Some((pattern.score(Utf32Str::new(t, &mut buffer), &mut matcher)?, i)))
        .collect();
    found.sort_by_key(|(score, i)| (std::cmp::Reverse(*score), *i));
    picker.order = found.into_iter().map(|(_, i)| i).collect();
}

/// Takes the selected entry.
pub fn accept(state: &mut State, effects: &mut Effects) {
    let Some(Overlay::Picker(picker)) = state.overlays.last() else {
        return;
    };
    let Some(entry) = picker.order.get(picker.at.selected).copied() else {
        return;
    };
    match picker.kind {
        PickerKind::Palette => {
            let action = picker.actions.get(entry).map(|(action, _)| *action);
            state.overlays.pop();
            if let Some(action) = action {
                actions::act(state, action, effects);
            }
        }
        PickerKind::Switcher => {
            let list = state.conversations.load.ready();
            let store = list.and_then(|l| l.get(entry)).map(|c| c.store.clone());
            state.overlays.pop();
            if let Some(store) = store {
                opened::open(state, store, effects);
            }
        }
    }
}

//! A message is edited, to be sent again. Nothing here sends: the plan comes first, and its yes.

use std::path::PathBuf;

use ratatui::crossterm::event::KeyEvent;

use super::{Effects, actions, begin, plan};
use crate::conversation::MessageKind;
use crate::failure::Kind;
use crate::tui::backend::{Failure, Opening};
use crate::tui::effect::{Effect, Outside, Work};
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::message::{JobId, Msg};
use crate::tui::state::{Content, EditBox, Overlay, State, Tone};
use crate::tui::view::name_of;

/// What is written is kept so long after the first key of it, in milliseconds.
const SOON: u64 = 1500;

fn shown(state: &mut State) -> Option<&mut EditBox> {
    state.overlays.iter_mut().find_map(|o| match o {
        Overlay::Edit(edit) => Some(edit.as_mut()),
        _ => None,
    })
}

fn store(state: &State) -> Option<PathBuf> {
    state.open.as_ref().map(|o| o.store.clone())
}

/// Opens the box for the selected message.
pub fn open(state: &mut State, effects: &mut Effects) {
    let selected = state
        .open
        .as_ref()
        .and_then(|o| Some((o.store.clone(), o.selected()?.clone())));
    let Some((store, row)) = selected else { return };
    if shown(state).is_some() || plan::refused(state, &row.id, false) {
        return;
    }
    if matches!(row.kind, MessageKind::Shell | MessageKind::Command) {
        state.say(
            Tone::Plain,
            "only a message to the agent can be sent again: not a command",
        );
        return;
    }
    let job = begin(state, effects, Work::Opening(store, row.id.clone()));
    let edit = EditBox::new(row.id.clone(), name_of(&row), row.text, job);
    state.overlays.push(Overlay::Edit(Box::new(edit)));
}

/// What it is edited from is there.
pub fn came(state: &mut State, job: JobId, result: Result<Opening, Failure>) {
    let Some(edit) = shown(state) else { return };
    if !matches!(edit.content, Content::Reading(own) if own == job) {
        return;
    }
    match result {
        Ok(opening) => edit.open(opening),
        Err(failure) => {
            state.overlays.retain(|o| !matches!(o, Overlay::Edit(_)));
            if failure.kind != Kind::Cancelled {
                plan::failed(state, failure);
            }
        }
    }
    state.dirty = true;
}

/// A key while the box is on top.
pub fn key(state: &mut State, key: &KeyEvent, action: Option<Action>, effects: &mut Effects) {
    let page = state
        .overlays
        .last()
        .map_or(1, |o| layout::scrolled(state, o).height);
    let Some(edit) = shown(state) else { return };
    let reading = matches!(edit.content, Content::Reading(_)) || edit.outside.is_some();
    match action {
        Some(Action::LeaveEdit) if edit.on_parts => edit.on_parts = false,
        Some(Action::LeaveEdit) => leave(state, effects),
        Some(Action::Suspend | Action::ForceQuit) => {
            save(state, effects);
            actions::act(state, action.unwrap_or(Action::ForceQuit), effects);
        }
        _ if reading => {}
        Some(Action::Send) => send(state, effects),
        Some(Action::Editor) => editor(state, effects),
        Some(Action::OldText) => {
            let old = edit.original.clone();
            edit.set(old);
            edit.found = false;
            changed(state, effects);
        }
        Some(Action::Attachments) if !edit.parts.is_empty() => edit.on_parts = !edit.on_parts,
        Some(Action::DropAttachment) => {
            if let Some((_, keep)) = edit.parts.get_mut(edit.chosen) {
                *keep = !*keep;
            }
        }
        Some(action) if edit.on_parts => actions::act(state, action, effects),
        _ => {
            if let Content::Field(field) = &mut edit.content
                && !edit.on_parts
                && field.key(key, page)
            {
                changed(state, effects);
            }
        }
    }
}

/// What is pasted is text, whatever is in it.
pub fn paste(state: &mut State, text: &str, effects: &mut Effects) {
    let Some(edit) = shown(state) else { return };
    let Content::Field(field) = &mut edit.content else {
        return;
    };
    if edit.outside.is_none() && field.paste(text) {
        changed(state, effects);
    } else {
        state.say(Tone::Plain, "that is too long to be edited here: use your editor");
    }
}

/// Moves in it.
pub fn scroll(edit: &mut EditBox, rows: isize) {
    if edit.on_parts {
        let last = edit.parts.len().saturating_sub(1);
        edit.chosen = edit.chosen.saturating_add_signed(rows).min(last);
    } else if let Content::Field(field) = &mut edit.content {
        field.scroll(rows);
    }
}

/// What is written is kept soon, so that a crash does not lose it.
fn changed(state: &mut State, effects: &mut Effects) {
    let Some(edit) = shown(state) else { return };
    if !std::mem::replace(&mut edit.soon, true) {
        effects.push(Effect::After(SOON, Msg::Keep(edit.row.clone())));
    }
}

/// It is time to keep it.
pub fn keep(state: &mut State, row: &str, effects: &mut Effects) {
    if let Some(edit) = shown(state).filter(|e| e.row == row) {
        edit.soon = false;
        save(state, effects);
    }
}

/// Keeps what is written, if it is not kept yet. What is as it was needs no keeping. True if something is kept.
pub fn save(state: &mut State, effects: &mut Effects) -> bool {
    let Some(store) = store(state) else { return false };
    let Some(edit) = shown(state) else { return false };
    let Some(text) = edit.text() else {
        return edit.kept.is_some();
    };
    let wanted = (text != edit.original).then_some(text);
    if wanted == edit.kept {
        return wanted.is_some();
    }
    edit.kept.clone_from(&wanted);
    let (row, kept) = (edit.row.clone(), wanted.is_some());
    let job = state.job();
    effects.push(Effect::Work(job, Work::Keep(store, row, wanted)));
    kept
}

fn leave(state: &mut State, effects: &mut Effects) {
    let kept = save(state, effects);
    state.overlays.retain(|o| !matches!(o, Overlay::Edit(_)));
    if kept {
        let key = state.keymap.key_of(Action::Edit);
        let said = format!("not sent; what you wrote is kept: {key} on this message offers it again");
        state.say(Tone::Plain, said);
    }
}

/// Asks for the plan.
fn send(state: &mut State, effects: &mut Effects) {
    let Some(writing) = shown(state).and_then(|e| e.writing()) else {
        return;
    };
    if writing.text.trim().is_empty() {
        state.say(Tone::Plain, "the message is empty");
        return;
    }
    if plan::refused(state, &writing.row, false) {
        return;
    }
    save(state, effects);
    plan::resend(state, writing, effects);
}

/// The text goes to the user's editor.
fn editor(state: &mut State, effects: &mut Effects) {
    let Some(store) = store(state) else { return };
    let Some(edit) = shown(state) else { return };
    let Some(text) = edit.text() else { return };
    edit.outside = Some(None);
    let work = Work::ToEditor(store, edit.row.clone(), text);
    begin(state, effects, work);
}

/// The file for the editor is there.
pub fn to_editor(state: &mut State, result: Result<PathBuf, Failure>, effects: &mut Effects) {
    let Some(edit) = shown(state).filter(|e| e.outside.is_some()) else {
        return;
    };
    match result {
        Ok(file) => {
            edit.outside = Some(Some(file.clone()));
            effects.push(Effect::Outside(Outside::Editor(file)));
        }
        Err(failure) => {
            edit.outside = None;
            plan::failed(state, failure);
        }
    }
}

/// The editor has ended.
pub fn edited(state: &mut State, file: PathBuf, ended: Result<(), Failure>, effects: &mut Effects) {
    let Some(store) = store(state) else { return };
    let Some(edit) = shown(state).filter(|e| e.outside.is_some()) else {
        return;
    };
    let before = edit.text().unwrap_or_default();
    let work = Work::FromEditor(store, edit.row.clone(), file, before);
    if let Err(failure) = ended {
        // the file is read all the same: it is removed with that, and its text is not taken
        edit.outside = None;
        plan::failed(state, failure);
    }
    begin(state, effects, work);
}

/// What the editor made of it is there.
pub fn from_editor(state: &mut State, result: Result<String, Failure>, effects: &mut Effects) {
    state.dirty = true;
    let Some(edit) = shown(state) else { return };
    if edit.outside.take().is_none() {
        return;
    }
    match result {
        Ok(text) => {
            edit.set(text);
            changed(state, effects);
        }
        Err(failure) => plan::failed(state, failure),
    }
}

/// What was written is kept, or not.
pub fn kept(state: &mut State, result: Result<(), Failure>) {
    if let Err(failure) = result {
        state.dirty = true;
        state.say(Tone::Bad, format!("it is not kept: {}", failure.message));
    }
}

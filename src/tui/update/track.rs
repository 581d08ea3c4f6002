//! Tracking a folder from the screens: the offer, the yes, the work, what to do next. Two questions at most: which
//! vault, and whether.

use std::path::PathBuf;
use std::sync::Arc;

use ratatui::crossterm::event::{KeyEvent, KeyEventKind};

use super::{Effects, actions, begin, opened};
use crate::failure::Kind;
use crate::rewind::offer::{Offer, VaultKind};
use crate::tui::backend::{Failure, TrackedHere};
use crate::tui::effect::{Effect, Work};
use crate::tui::keymap::Action;
use crate::tui::message::JobId;
use crate::tui::state::{Loading, Overlay, Screen, State, Tone, TrackBox, TrackStage};

/// Asks what tracking the workspace of the selected (or open) conversation would do; without one, this folder.
pub fn workspace(state: &mut State, effects: &mut Effects) {
    let (summary, tracked) = match state.screen {
        Screen::Start => {
            let list = state.conversations.load.ready();
            (list.and_then(|l| l.get(state.conversations.at.selected)), false)
        }
        Screen::Timeline => {
            let timeline = state.open.as_ref().and_then(|o| o.timeline.as_ref());
            let tracked = timeline.is_some_and(|t| t.sandbox.is_some());
            (timeline.map(|t| &t.conversation), tracked)
        }
    };
    if tracked {
        state.say(Tone::Plain, "this workspace is tracked already");
        return;
    }
    let known = summary.map(|s| s.workspace.clone());
    match known {
        Some(Some(folder)) => ask(state, folder, None, effects),
        Some(None) => state.say(
            Tone::Plain,
            "this conversation names no folder: respool track DIR",
        ),
        None => here(state, effects),
    }
}

/// The same for the folder that the program was started in.
pub fn here(state: &mut State, effects: &mut Effects) {
    match state.folder.clone() {
        Some(folder) => ask(state, folder, None, effects),
        None => state.say(Tone::Plain, "name the folder: respool track DIR"),
    }
}

fn ask(state: &mut State, dir: PathBuf, vault: Option<VaultKind>, effects: &mut Effects) {
    if state.running() {
        state.say(Tone::Plain, "not while something else is at work");
        return;
    }
    let job = begin(state, effects, Work::TrackPlan(dir.clone(), vault));
    let mut load = Loading::default();
    load.begin((), job);
    state.overlays.push(Overlay::Track(Box::new(TrackBox {
        dir,
        vault: vault.unwrap_or(VaultKind::Btrfs),
        stage: TrackStage::Offer(load),
        top: 0,
    })));
}

fn shown(state: &mut State) -> Option<&mut TrackBox> {
    state.overlays.iter_mut().find_map(|o| match o {
        Overlay::Track(shown) => Some(shown.as_mut()),
        _ => None,
    })
}

/// The offer is there.
pub fn came(state: &mut State, job: JobId, result: Result<Arc<Offer>, Failure>) {
    let Some(shown) = shown(state) else { return };
    let TrackStage::Offer(load) = &mut shown.stage else {
        return;
    };
    let vault = result.as_ref().ok().map(|o| o.wish.vault);
    if load.finish(job, result) {
        shown.vault = vault.unwrap_or(shown.vault);
        state.dirty = true;
    }
}

/// A key while the box is shown.
pub fn key(state: &mut State, key: &KeyEvent, action: Option<Action>, effects: &mut Effects) {
    let Some(Overlay::Track(shown)) = state.overlays.last() else {
        return;
    };
    match (action, &shown.stage) {
        // a held key confirms nothing
        (Some(Action::Confirm), TrackStage::Offer(_)) if key.kind != KeyEventKind::Repeat => {
            go(state, effects);
        }
        (Some(Action::OtherVault), TrackStage::Offer(_)) => other_vault(state, effects),
        (Some(Action::Close), TrackStage::Working(job, _)) => effects.push(Effect::Cancel(*job)),
        (Some(Action::Close), _) => close(state, effects),
        (Some(Action::Confirm | Action::OtherVault) | None, _) => {}
        (Some(action), _) => actions::act(state, action, effects),
    }
}

fn close(state: &mut State, effects: &mut Effects) {
    if let Some(Overlay::Track(shown)) = state.overlays.pop()
        && let TrackStage::Offer(load) = shown.stage
    {
        effects.extend(load.job.map(Effect::Cancel));
    }
}

fn other_vault(state: &mut State, effects: &mut Effects) {
    let Some(shown) = shown(state) else { return };
    let (dir, vault) = match shown.vault {
        VaultKind::Btrfs => (shown.dir.clone(), VaultKind::Copy),
        VaultKind::Copy => (shown.dir.clone(), VaultKind::Btrfs),
    };
    close(state, effects);
    ask(state, dir, Some(vault), effects);
}

/// The user said yes.
fn go(state: &mut State, effects: &mut Effects) {
    let Some(offer) = shown(state).and_then(|s| match &s.stage {
        TrackStage::Offer(load) => load
            .ready()
            .filter(|o| o.plan.blockers.iter().all(|b| !b.stops))
            .cloned(),
        _ => None,
    }) else {
        return;
    };
    let job = begin(state, effects, Work::Track(offer));
    if let Some(shown) = shown(state) {
        shown.stage = TrackStage::Working(job, None);
        shown.top = 0;
    }
}

/// How far it is.
pub fn progress(state: &mut State, job: JobId, step: (&'static str, u64, u64)) {
    if let Some(shown) = shown(state)
        && let TrackStage::Working(own, at) = &mut shown.stage
        && *own == job
    {
        *at = Some(step);
        state.dirty = true;
    }
}

/// It has ended, one way or the other.
pub fn ended(state: &mut State, job: JobId, result: Result<TrackedHere, Failure>, effects: &mut Effects) {
    let Some(shown) = shown(state) else { return };
    if !matches!(shown.stage, TrackStage::Working(own, _) if own == job) {
        return;
    }
    let cancelled = result.as_ref().is_err_and(|f| f.kind == Kind::Cancelled);
    shown.stage = TrackStage::Ended(result);
    state.dirty = true;
    if cancelled {
        state.overlays.retain(|o| !matches!(o, Overlay::Track(_)));
        state.say(Tone::Plain, "stopped: the folder is as it was");
    }
    if state.screen == Screen::Timeline {
        opened::files_changed(state, effects);
    }
}

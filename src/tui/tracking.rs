//! How the real backend tracks a folder: the offer of the rewind room, for the user that it works for.

use std::path::{Path, PathBuf};

use super::backend::{Failure, Result, TrackedHere};
use crate::failure::Kind;
use crate::progress::Progress;
use crate::rewind::adopt::recover_adoptions;
use crate::rewind::offer::{self, Offer, VaultKind, Wish};
use crate::rewind::track::Means;
use crate::text::shell_word;
use crate::timeline::desk::Desk;

/// The user that the backend works for.
#[derive(Debug, Clone, Default)]
pub struct User {
    /// The home folder.
    pub home: PathBuf,
    /// Started through sudo.
    pub sudo: bool,
    /// The vault that the config wants.
    pub vault: Option<VaultKind>,
}

/// What tracking this folder will do. Changes nothing.
pub fn plan(
    desk: &Desk,
    user: &User,
    dir: &Path,
    vault: Option<VaultKind>,
    progress: &dyn Progress,
) -> Result<Offer> {
    if desk.registry.far() {
        let hint = format!("run it there: sudo respool track {}", shell_word(dir));
        return Err(Failure::new(
            Kind::Refused,
            "it is on another machine",
            Some(hint),
        ));
    }
    let path = offer::folder(dir)?;
    let vault = vault
        .or(user.vault)
        .unwrap_or_else(|| offer::preferred(desk, &path));
    Ok(offer::offer(desk, &user.home, &path, Wish::of(vault), progress)?)
}

/// Does it, after what a crash left in the way of it.
pub fn track(desk: &Desk, user: &User, offer: &Offer, progress: &dyn Progress) -> Result<TrackedHere> {
    let path = &offer.plan.path;
    let swept = recover_adoptions(&desk.registry, Some(path))?;
    offer::in_the_way(offer)?;
    let tracked = offer::accept(desk, offer, progress)?;
    let mut hints = swept.unreadable;
    hints.extend(tracked.hints);
    if offer.wish.vault == VaultKind::Btrfs && offer.plan.means != Means::Adopt {
        hints.push("a shell that stands in the folder sees the old one: run cd \"$PWD\" there".into());
    }
    Ok(TrackedHere {
        sandbox: tracked.record.id,
        hints,
        next: next(desk, user, path),
    })
}

fn next(desk: &Desk, user: &User, path: &Path) -> Vec<(String, &'static str)> {
    let sudo = if user.sudo { "sudo " } else { "" };
    let state = desk.registry.named();
    let state = state.map_or_else(String::new, |dir| format!(" --state-dir {}", shell_word(dir)));
    let there = format!("cd {} && ", shell_word(path));
    vec![
        (
            format!("{there}{sudo}respool{state} run -- {}", desk.agent_of(path)),
            "starts the agent there, under protection",
        ),
        (
            format!("{there}{sudo}respool{state} watch"),
            "while an agent works that you started yourself",
        ),
    ]
}

//! The demo without a terminal: the whole main job, each value from the running engine and each tree
//! compared with what was recorded.

use serde::Serialize;

use super::stage::Stage;
use super::{DemoError, Result};
use crate::engine::{EngineError, Selection, State};
use crate::progress::Progress;
use crate::rewind::OperationKind;
use crate::rewind::run::Order;
use crate::rewind::tools::Tools;
use crate::timeline::desk::Opened;
use crate::timeline::select;

/// The message that the demo goes back to.
const MESSAGE: u32 = 3;

/// What the demo did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The vault.
    pub vault: &'static str,
    /// Rows of the timeline.
    pub messages: usize,
    /// Those of them whose checkpoint can be gone back to.
    pub checkpoints: usize,
    /// Where it went back to.
    pub rewound_to: String,
    /// The rewind's own check found no difference, and the tree is the recorded one.
    pub verified: bool,
    /// After the undo the tree is that of the end again.
    pub undone: bool,
}

/// Plays all turns; the workspace must be what was recorded after each.
pub fn play_all(stage: &Stage, progress: &dyn Progress) -> Result<()> {
    stage.track(progress)?;
    let site = stage.site()?;
    let total = stage.recording.turns.len() as u64;
    for turn in &stage.recording.turns {
        progress.step("playing messages", u64::from(turn.number), total);
        if progress.cancelled() {
            return Err(EngineError::Cancelled.into());
        }
        stage.play(&site, turn)?;
        if stage.digest()? != turn.tree {
            return Err(DemoError::Recording {
                what: format!("after message {} the files are not as recorded", turn.number),
            });
        }
    }
    Ok(())
}

fn open(stage: &Stage, progress: &dyn Progress) -> Result<Opened> {
    let desk = stage.desk();
    let found = desk.library.at(&stage.store)?;
    Ok(desk.open(&found, progress)?)
}

/// Plays, goes back, takes it back.
pub fn headless(stage: &Stage, progress: &dyn Progress) -> Result<Report> {
    play_all(stage, progress)?;
    let opened = open(stage, progress)?;
    let rows = &opened.timeline.rows;
    let usable = rows
        .iter()
        .filter(|r| {
            r.checkpoint
                .as_ref()
                .is_some_and(|c| c.id.is_some() && c.state.usable())
        })
        .count();
    let target = select::state(
        Some(&opened.timeline),
        &opened.checkpoints,
        &format!("m{MESSAGE}"),
    )?;
    let State::Checkpoint(id) = target.state else {
        return Err(DemoError::Recording {
            what: "message 3 has no checkpoint".into(),
        });
    };
    let site = stage.site()?;
    let tools = Tools::of(&site)?;
    let words = format!("to {}", target.words);
    let order = Order {
        kind: OperationKind::Rewind,
        target: id,
        words,
        selection: Selection::All,
        of: None,
        chat: None,
        mover: None,
        whole_docker: false,
    };
    let outcome = tools.run(&order, progress)?;
    let before = stage
        .recording
        .turns
        .iter()
        .find(|t| t.number == MESSAGE)
        .map(|t| t.before_tree.clone());
    let verified = outcome.verified && Some(stage.digest()?) == before;
    let undo = tools.reversal(OperationKind::Undo, None)?;
    let undone = tools.run(&undo, progress)?.verified;
    let last = stage.recording.turns.last().map(|t| t.tree.clone());
    Ok(Report {
        vault: site.vault.kind(),
        messages: rows.len(),
        checkpoints: usable,
        rewound_to: format!("m{MESSAGE}"),
        verified,
        undone: undone && Some(stage.digest()?) == last,
    })
}

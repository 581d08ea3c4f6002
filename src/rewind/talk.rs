//! What a plan says of the conversation: whether it goes back too, who does that, or why it stays.

use super::run::Order;
use super::survey::Scope;
use super::tools::{Tools, hand};
use super::{Blocker, Reach, Result};
use crate::chat::{Aim, Change, ChatError, Draft, Hand, Talk, draft};
use crate::engine::CheckpointId;
use crate::sandbox::site::Site;
use crate::text::shown;
use crate::timeline::Timeline;
use crate::timeline::select::Selected;

/// What becomes of the conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heard {
    /// How it is moved; `None` if it stays, or cannot be moved now.
    pub talk: Option<Talk>,
    /// It goes back too (perhaps once a blocker is gone).
    pub moves: bool,
    /// It does so by a fork.
    pub forks: bool,
    /// Why it stays although that was not asked for, one harmless line.
    pub why: Option<String>,
    /// An agent server has it, and sends messages to it.
    pub sends: bool,
    /// The step that comes first, if the agent is to be interrupted.
    pub interrupt: Option<String>,
    /// The step that comes last.
    pub step: Option<String>,
    /// What stands in the way.
    pub blockers: Vec<Blocker>,
    /// True or false where the agent's server says whether it is at work.
    pub at_work: Option<bool>,
}

impl Heard {
    fn stays(why: Option<String>) -> Self {
        Self {
            why,
            ..Self::default()
        }
    }
}

/// Finds out what becomes of the conversation. Nothing is changed.
pub fn hear(
    timeline: Option<&Timeline>,
    site: &Site,
    target: &Selected,
    id: &CheckpointId,
    scope: &Scope,
) -> Result<Heard> {
    if scope.reach == Reach::Files {
        return Ok(Heard::default());
    }
    let talk = match talk(timeline, site, target, id, scope) {
        Ok(Some(talk)) => talk,
        Ok(None) => return Ok(Heard::default()),
        Err(why) if scope.reach == Reach::Auto => return Ok(Heard::stays(Some(why))),
        Err(why) => return Err(ChatError::Unmovable(why).into()),
    };
    match draft(&talk) {
        Ok(draft) => Ok(drafted(talk, draft)),
        Err(ChatError::Held { what, pid, hint }) => Ok(Heard {
            moves: true,
            blockers: vec![Blocker {
                kind: "chat",
                pid,
                what: format!(
                    "the conversation cannot be moved now: {what}: a store that is in use is never changed{}",
                    hint.map_or_else(String::new, |h| format!("; {h}"))
                ),
                stops: true,
            }],
            ..Heard::default()
        }),
        Err(e) if scope.reach == Reach::Auto => Ok(Heard::stays(Some(e.to_string()))),
        Err(e) => Err(e.into()),
    }
}

/// What is asked of the room `chat`; an error is why the conversation stays.
fn talk(
    timeline: Option<&Timeline>,
    site: &Site,
    target: &Selected,
    id: &CheckpointId,
    scope: &Scope,
) -> std::result::Result<Option<Talk>, String> {
    if let Some(change) = &scope.undone {
        let access = scope
            .access
            .clone()
            .ok_or("it can only be moved on its own machine")?;
        return Ok(Some(Talk {
            store: change.store.0.clone(),
            aim: Aim::Undone(change.clone()),
            access,
            hand: hand(site),
            interrupt: scope.interrupt,
        }));
    }
    let Some(timeline) = timeline else {
        return match scope.reach {
            Reach::Auto => Ok(None),
            _ => Err("no conversation of this folder is known".into()),
        };
    };
    let Some(access) = scope.access.clone() else {
        return match scope.reach {
            Reach::Auto => Ok(None),
            _ => Err("it can only be moved on its own machine".into()),
        };
    };
    if scope.reach == Reach::Auto && (scope.paths.is_some() || scope.only_turn) {
        return Err("only a part of the files goes back".into());
    }
    let conversation = &timeline.conversation;
    if !["openhands", "claude"].contains(&conversation.agent) {
        return Err(format!(
            "conversations of {} cannot be moved yet",
            shown(conversation.agent)
        ));
    }
    let real = |p: &std::path::Path| p.canonicalize().unwrap_or_else(|_| p.to_owned());
    if real(&conversation.store).starts_with(real(site.path())) {
        return Err("its store is in the workspace, and goes back with the files".into());
    }
    if foreign(&conversation.store, hand(site)) {
        return Err("its store belongs to another user than the folder".into());
    }
    let aim = aim(timeline, target, id).ok_or("that state is no message's and no turn's end")?;
    Ok(Some(Talk {
        store: conversation.store.clone(),
        aim,
        access,
        hand: hand(site),
        interrupt: scope.interrupt,
    }))
}

/// Root touches a store with the rights of the folder's owner alone.
fn foreign(store: &std::path::Path, hand: Hand) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::symlink_metadata(store).map(|m| m.uid());
    rustix::process::geteuid().is_root() && hand.uid != 0 && owner.is_ok_and(|o| o != hand.uid)
}

/// The place in the conversation that a checkpoint is of.
fn aim(timeline: &Timeline, target: &Selected, id: &CheckpointId) -> Option<Aim> {
    let named = |r: &&crate::timeline::Row| target.native.as_ref().is_none_or(|n| *n == r.id);
    let rows = || timeline.rows.iter().filter(named);
    let is = |c: Option<&CheckpointId>| c == Some(id);
    let before = rows().find(|r| r.checkpoint.as_ref().is_some_and(|c| is(c.id.as_ref())));
    let end = rows().find(|r| r.checkpoint.as_ref().is_some_and(|c| is(c.turn_end.as_ref())));
    // one checkpoint may be both: the words tell which was meant
    let meant_end = target.words.starts_with("the end of");
    match (before, end) {
        (_, Some(row)) if meant_end => Some(Aim::EndOf(row.id.clone())),
        (Some(row), _) => Some(Aim::Before(row.id.clone())),
        (None, Some(row)) => Some(Aim::EndOf(row.id.clone())),
        (None, None) => None,
    }
}

fn drafted(talk: Talk, draft: Draft) -> Heard {
    let mut blockers = Vec::new();
    let pid = draft.server.as_ref().and_then(|s| s.pid);
    if let Some(server) = draft.server.as_ref().filter(|_| draft.at_work) {
        let by = format!(" ({})", server.words());
        blockers.push(Blocker {
            kind: "agent",
            pid,
            what: if talk.interrupt {
                format!("the agent is at work on this conversation{by}: it is interrupted")
            } else {
                format!(
                    "the agent is at work on this conversation{by}: wait for it, or interrupt it: --interrupt"
                )
            },
            stops: !talk.interrupt,
        });
    }
    for (pid, what, stops) in draft.told {
        blockers.push(Blocker {
            kind: if stops { "agent" } else { "chat" },
            pid: Some(pid),
            what,
            stops,
        });
    }
    let is_known = draft.server.is_some() || draft.at_work;
    Heard {
        moves: true,
        forks: draft.becomes == "forked",
        sends: draft.server.is_some(),
        why: None,
        interrupt: draft.interrupt,
        step: Some(draft.step),
        blockers,
        at_work: is_known.then_some(draft.at_work),
        talk: Some(talk),
    }
}

/// What the operation that an undo or a redo takes back did to the conversation.
pub fn undone(tools: &Tools<'_>, order: &Order) -> Result<Option<Change>> {
    let Some(of) = &order.of else { return Ok(None) };
    let kept = tools
        .records()?
        .into_iter()
        .find(|r| r.id == *of)
        .and_then(|r| r.chat);
    Ok(kept.map(|k| Change::of(&k)).transpose()?)
}

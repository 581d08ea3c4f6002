//! The plan of a rewind: pure, from facts gathered before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::talk::Heard;
use super::{Blocker, Plan, Reach};
use crate::chat::Shell;
use crate::engine::{Change, CheckpointId, Counts, Difference};
use crate::packages::Summary;
use crate::sandbox::holders::Holder;
use crate::sandbox::parts::outlook::Outlook;
use crate::sandbox::whole::Fate;
use crate::text::{count, shown, shown_path, size};

/// What a plan is made of.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The sandbox's id.
    pub sandbox: String,
    /// The workspace.
    pub workspace: PathBuf,
    /// Where it goes.
    pub target: Option<CheckpointId>,
    /// That in words.
    pub target_words: String,
    /// The message, where the target is one.
    pub message: Option<u32>,
    /// What differs from the target to now, within the selection.
    pub changes: Vec<Change>,
    /// The packages that differ from the target to now, within the selection.
    pub packages: Summary,
    /// What differs in each stretch between a turn's end and the next message after the target.
    pub between: Vec<Change>,
    /// Who holds the workspace.
    pub holders: Vec<Holder>,
    /// Nested subvolumes and mounts, relative to the workspace.
    pub not_covered: Vec<PathBuf>,
    /// The agent is at work on this conversation.
    pub at_work: bool,
    /// What becomes of the conversation.
    pub heard: Heard,
    /// How far it reaches.
    pub reach: Reach,
    /// What other conversations changed of it.
    pub others: Vec<Blocker>,
    /// Shells that an agent left behind.
    pub shells: Vec<Shell>,
    /// What this process has no right to bring back.
    pub denied: Vec<Difference>,
    /// The checkpoints are copies, file by file.
    pub copied: bool,
    /// Free bytes on the pool, if known to be low.
    pub low_space: Option<u64>,
    /// The paths asked for, if not all.
    pub paths: Option<Vec<PathBuf>>,
    /// What becomes of the containers; none where only paths are asked for.
    pub containers: Vec<Outlook>,
    /// Where all of Docker's data goes back: what becomes of each container, and of images and volumes.
    pub docker: (Vec<Fate>, Vec<String>),
}

/// True if `path` is `root` or below it.
pub fn within(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|r| path.starts_with(r) || r.as_os_str() == ".")
}

/// Keeps the changes that a selection of paths covers.
pub fn narrowed(changes: Vec<Change>, paths: Option<&[PathBuf]>) -> Vec<Change> {
    let Some(paths) = paths else { return changes };
    changes
        .into_iter()
        .filter(|c| within(&c.path, paths) || within(c.old_path(), paths))
        .collect()
}

/// The user's own paths among the changes: those that also changed between turns.
fn yours(changes: &[Change], between: &[Change]) -> Vec<PathBuf> {
    let own: BTreeSet<&Path> = between
        .iter()
        .flat_map(|c| [c.path.as_path(), c.old_path()])
        .collect();
    changes
        .iter()
        .filter(|c| own.contains(c.path.as_path()) || own.contains(c.old_path()))
        .map(|c| c.path.clone())
        .collect()
}

/// So many paths that are not covered are named one by one.
const NAMED: usize = 20;

fn blockers(facts: &Facts) -> Vec<Blocker> {
    let mut out = Vec::new();
    if facts.at_work {
        out.push(Blocker {
            kind: "agent",
            pid: None,
            what: "the agent is at work on this conversation: stop it first".into(),
            stops: true,
        });
    }
    out.extend(facts.heard.blockers.iter().cloned());
    out.extend(facts.others.iter().cloned());
    for h in facts
        .holders
        .iter()
        .filter(|h| h.open && facts.reach != Reach::Chat)
    {
        let name = shown(&h.comm);
        let what = if h.own {
            format!("{name} has files open, but belongs to your terminal: it is not paused")
        } else {
            format!("{name} has files open: it is paused meanwhile")
        };
        out.push(Blocker {
            kind: "holder",
            pid: Some(h.pid),
            what,
            stops: false,
        });
    }
    out.extend(left_behind(&facts.shells));
    facts.containers.iter().for_each(|c| of_container(c, &mut out));
    out.extend(of_docker(&facts.docker));
    let is_shell = |h: &&Holder| facts.shells.iter().any(|s| s.pid == h.pid);
    let others: Vec<Holder> = facts.holders.iter().filter(|h| !is_shell(h)).cloned().collect();
    out.extend(bystanders(&others));
    for path in facts.not_covered.iter().take(NAMED) {
        let what = format!("{} is not covered: it stays as it is", shown_path(path));
        out.push(Blocker {
            kind: "nested",
            pid: None,
            what,
            stops: false,
        });
    }
    if facts.not_covered.len() > NAMED {
        let more = count((facts.not_covered.len() - NAMED) as u64, "more path");
        out.push(Blocker {
            kind: "nested",
            pid: None,
            what: format!("{more} not covered: they stay as they are"),
            stops: false,
        });
    }
    for d in &facts.denied {
        out.push(Blocker {
            kind: "rights",
            pid: None,
            what: format!(
                "{} cannot be brought back: {}",
                shown_path(&d.path),
                shown(&d.what)
            ),
            stops: true,
        });
    }
    if let Some(free) = facts.low_space {
        out.push(Blocker {
            kind: "space",
            pid: None,
            what: format!("only {} free on the pool", size(free)),
            stops: false,
        });
    }
    out
}

/// One line for each tmux server of an agent whose shells are still here.
fn left_behind(shells: &[Shell]) -> Vec<Blocker> {
    let servers: BTreeSet<i32> = shells.iter().map(|s| s.server).collect();
    let line = |server: i32| Blocker {
        kind: "shell",
        pid: Some(server),
        what: format!(
            "a tmux server of OpenHands still has a shell in this folder: end the program that has the conversation \
             open first, as it would not hear that it went back; if there is none, it outlived one that was killed: \
             kill {server}"
        ),
        stops: false,
    };
    servers.into_iter().map(line).collect()
}

/// What is to be known of a container.
fn of_container(c: &Outlook, out: &mut Vec<Blocker>) {
    let name = shown(&c.name);
    let mut tell = |kind, what, stops| {
        out.push(Blocker {
            kind,
            pid: None,
            what,
            stops,
        });
    };
    if let Some((why, hint)) = &c.refused {
        let hint = hint.as_ref().map_or_else(String::new, |h| format!("; {h}"));
        tell("container", format!("container {name}: {why}{hint}"), true);
    }
    if let Some(why) = &c.stays {
        tell(
            "container",
            format!("container {name} stays as it is: {why}"),
            false,
        );
    }
    // what is covered needs no decision
    for b in c.beside.iter().filter(|b| !b.covered) {
        let word = match &b.why {
            Some(why) => format!("not covered: {why}"),
            None => "not covered: it stays as it is".to_owned(),
        };
        tell(
            "volume",
            format!("container {name}: {} at {}: {word}", b.what, b.at),
            false,
        );
    }
}

/// What becomes of everybody's containers, images and volumes where all of Docker's data goes back.
fn of_docker((fates, lines): &(Vec<Fate>, Vec<String>)) -> Vec<Blocker> {
    let note = |what: String| Blocker {
        kind: "docker",
        pid: None,
        what,
        stops: false,
    };
    let named = fates
        .iter()
        .map(|f| note(format!("container {} {}", shown(&f.name), f.what)));
    named.chain(lines.iter().cloned().map(note)).collect()
}

/// Programs that only stand in the workspace, in one line: nothing is done to them. Those of the user's own
/// terminal and respool itself are not told.
fn bystanders(holders: &[Holder]) -> Option<Blocker> {
    let others: Vec<&Holder> = holders
        .iter()
        .filter(|h| !h.open && !h.own && h.comm != "respool")
        .collect();
    let names: BTreeSet<String> = others.iter().map(|h| shown(&h.comm)).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let what = match others.len() {
        0 => return None,
        1 => format!("1 program stands in this folder ({names}): it is left alone"),
        n => format!("{n} programs stand in this folder ({names}): they are left alone"),
    };
    Some(Blocker {
        kind: "cwd",
        pid: None,
        what,
        stops: false,
    })
}

fn steps(facts: &Facts, counts: Counts) -> Vec<String> {
    let place = shown_path(&facts.workspace);
    let what = match &facts.paths {
        None => place,
        Some(paths) => paths.iter().map(|p| shown_path(p)).collect::<Vec<_>>().join(", "),
    };
    let mut steps: Vec<String> = facts.heard.interrupt.iter().cloned().collect();
    if facts.reach == Reach::Chat {
        steps.push("take a safety checkpoint of the state now; the files stay as they are".into());
        steps.extend(facts.heard.step.clone());
        return steps;
    }
    let held = facts.holders.iter().filter(|h| h.open && !h.own).count();
    if held > 0 {
        steps.push(format!("pause {}", count(held as u64, "process")));
    }
    let how = if facts.copied {
        " (a copy, file by file: not atomic)"
    } else {
        ""
    };
    steps.push(format!("take a safety checkpoint of the state now{how}"));
    let verb = if counts.total() == 1 { "changes" } else { "change" };
    steps.push(format!(
        "make {what} equal to {}: {} {verb}",
        facts.target_words,
        count(counts.total(), "path")
    ));
    steps.push("check every path and attribute against the checkpoint".into());
    steps.extend(facts.containers.iter().flat_map(|c| c.steps.iter().cloned()));
    if !facts.docker.0.is_empty() || !facts.docker.1.is_empty() {
        steps.insert(0, "stop all containers".into());
        steps.push("stop Docker, exchange all of its data for that of the checkpoint, start it again".into());
        steps.push("start the containers that ran then".into());
    }
    if held > 0 {
        steps.push("let the paused processes go on".into());
    }
    if let Some(step) = &facts.heard.step {
        steps.push(step.clone());
        steps.push("if that fails, take the files back, too".into());
    }
    steps
}

/// Makes the plan; `None` without a target.
pub fn plan(facts: &Facts) -> Option<Plan> {
    Some(Plan {
        sandbox: facts.sandbox.clone(),
        target: facts.target.clone()?,
        target_words: facts.target_words.clone(),
        message: facts.message,
        steps: steps(facts, Counts::of(&facts.changes)),
        yours: yours(&facts.changes, &facts.between),
        changes: facts.changes.clone(),
        packages: facts.packages.clone(),
        blockers: blockers(facts),
        not_covered: facts.not_covered.iter().map(|p| shown_path(p)).collect(),
        chat: match (facts.heard.moves, facts.heard.forks) {
            (false, _) => "kept",
            (true, false) => "rewound",
            (true, true) => "forked",
        },
        chat_reason: facts.heard.why.clone(),
        reach: facts.reach,
        talk: facts.heard.talk.clone().map(Box::new),
        sends: facts.heard.sends,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, comm: &str, open: bool, own: bool) -> Holder {
        Holder {
            pid,
            start: 0,
            comm: comm.into(),
            writes: open,
            open,
            cwd: true,
            own,
            window: false,
        }
    }

    #[test]
    fn who_only_stands_there_is_one_line() {
        let facts = Facts {
            holders: vec![
                holder(1, "bash", false, true),
                holder(2, "watch", false, false),
                holder(3, "bash", false, false),
                holder(4, "respool", false, false),
                holder(5, "vim", true, false),
            ],
            ..Facts::default()
        };
        let told: Vec<(Option<i32>, String)> =
            blockers(&facts).into_iter().map(|b| (b.pid, b.what)).collect();
        assert_eq!(
            told,
            [
                (Some(5), "vim has files open: it is paused meanwhile".to_owned()),
                (
                    None,
                    "2 programs stand in this folder (bash, watch): they are left alone".to_owned()
                ),
            ]
        );
        assert_eq!(bystanders(&facts.holders[..1]), None);
    }
}

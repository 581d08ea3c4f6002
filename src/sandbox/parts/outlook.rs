//! What will become of the containers of a sandbox in a checkpoint or a rewind, for plans. Nothing is changed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::open::{Found, Parts};
use super::part::Part;
use super::turn::turn;
use crate::engine::{CheckpointId, Elsewhere};
use crate::failure::Explain;
use crate::progress::Silent;
use crate::sandbox::docker::Technique;
use crate::sandbox::docker::sight::older;
use crate::text::{count, shown, shown_path};

/// Something that a container has mounted or holds in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// `bind`, `volume`, `tmpfs`, `subvolume`.
    pub kind: String,
    /// What it is, harmless.
    pub what: String,
    /// Where the container has it, harmless.
    pub at: String,
    /// A checkpoint has it.
    pub covered: bool,
    /// Why it is not, where it would be, one harmless line.
    #[serde(default)]
    pub why: Option<String>,
}

/// What will become of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlook {
    /// Its name (hostile).
    pub name: String,
    /// The word of its technique; empty where it cannot be reached.
    pub technique: String,
    /// Why it stays as it is, one harmless line; `None` if it goes back.
    pub stays: Option<String>,
    /// Why that cannot be done now, one harmless line, and what helps.
    pub refused: Option<(String, Option<String>)>,
    /// How many paths of its files differ from the checkpoint; `None` if that is not known.
    #[serde(default)]
    pub changed: Option<u64>,
    /// The steps, one harmless line each.
    pub steps: Vec<String>,
    /// What else it has.
    pub beside: Vec<Beside>,
}

/// What a container has besides its root file system.
fn beside(part: &Part, workspace: &Path) -> Vec<Beside> {
    let c = &part.container;
    let mounts = c.mounts.iter().map(|m| {
        let within = m.source.starts_with(workspace);
        let why = within.then(|| older(&part.engine, c, m)).flatten();
        Beside {
            kind: m.kind.clone(),
            what: m
                .name
                .as_ref()
                .map_or_else(|| shown_path(&m.source), |n| format!("volume {}", shown(n))),
            at: shown_path(&m.destination),
            covered: within && why.is_none(),
            why,
        }
    });
    let memory = c.tmpfs.iter().map(|path| Beside {
        kind: "tmpfs".into(),
        what: "memory".into(),
        at: shown_path(path),
        covered: false,
        why: None,
    });
    let nested = part
        .vault()
        .not_covered()
        .unwrap_or_default()
        .into_iter()
        .map(|path| Beside {
            kind: "subvolume".into(),
            what: "a subvolume in it".into(),
            at: format!("/{}", shown_path(&path)),
            covered: false,
            why: None,
        });
    mounts.chain(memory).chain(nested).collect()
}

/// What a rewind does with a container.
fn steps(part: &Part) -> Vec<String> {
    let c = &part.container;
    let name = shown(&c.name);
    let exchanges = part.exchanges().unwrap_or(false);
    let files = match part.located.verdict.technique {
        Technique::SubvolumeRoot if exchanges => "exchange its root file system for that of the checkpoint",
        Technique::OverlayCopy => "make its changed files equal to their copy in the checkpoint",
        _ => "make its files equal to the checkpoint",
    };
    let live = c.state.lives();
    let (before, after) = match (live, c.auto_remove) {
        (false, _) => (String::new(), "; it stays stopped".to_owned()),
        (true, false) => (
            "stop it, ".into(),
            format!(", then start it again: it was {}", c.state.word()),
        ),
        (true, true) => (
            "pause it, ".into(),
            ", then restart it (it was started with --rm)".into(),
        ),
    };
    let mut out = vec![format!("container {name}: {before}{files}, check it{after}")];
    if live {
        out.push(format!("shells and programs in container {name} end"));
    }
    out
}

impl Parts {
    /// What will become of each container in a rewind to `target`, which keeps `kept`; or, without one, in a
    /// checkpoint. `workspace`: what is mounted from there is covered.
    pub fn outlook(&self, target: Option<(&CheckpointId, &[Elsewhere])>, workspace: &Path) -> Vec<Outlook> {
        self.open()
            .into_iter()
            .map(|f| look(&f, target, workspace))
            .collect()
    }
}

fn look(f: &Found, target: Option<(&CheckpointId, &[Elsewhere])>, workspace: &Path) -> Outlook {
    let mut out = Outlook {
        name: f.record.name.clone(),
        technique: String::new(),
        stays: None,
        refused: None,
        changed: None,
        steps: Vec::new(),
        beside: Vec::new(),
    };
    let kept = target.map(|(id, kept)| (id, kept.iter().find(|e| e.vault == f.record.part)));
    match kept {
        Some((_, None)) => out.stays = Some("it is not in that checkpoint: it was added later".into()),
        Some((
            _,
            Some(Elsewhere {
                missing: Some(why), ..
            }),
        )) => {
            out.stays = Some(format!("it is not in that checkpoint: {why}"));
        }
        _ => {}
    }
    match (&f.part, kept) {
        (Ok(part), _) => {
            part.located
                .verdict
                .technique
                .word()
                .clone_into(&mut out.technique);
            out.beside = beside(part, workspace);
        }
        // one that the checkpoint does not have need not be there
        (Err(why), None) => out.stays = Some(why.clone()),
        (Err(why), Some(_)) if out.stays.is_none() => out.refused = Some((why.clone(), None)),
        _ => {}
    }
    if let (Ok(part), Some((id, Some(_))), None) = (&f.part, kept, &out.stays) {
        out.steps = steps(part);
        out.changed = part.differing(id, &Silent);
        let name = shown(&f.record.name);
        out.steps.push(match out.changed {
            Some(n) => format!(
                "container {name}: {} changed since then: its files go back",
                count(n, "path")
            ),
            None => format!("container {name}: its files go back"),
        });
        if let Err(e) = turn(part, id) {
            out.refused = Some((e.to_string(), e.hint()));
        }
    }
    out
}

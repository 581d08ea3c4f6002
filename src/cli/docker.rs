//! `respool docker`.

mod whole;

use std::path::PathBuf;

use serde_json::{Value, json};

use super::app::App;
use super::args::DockerCommand;
use super::output::Done;
use crate::engine::subvolume;
use crate::sandbox::bind;
use crate::sandbox::docker::locate::locate;
use crate::sandbox::docker::sight::older;
use crate::sandbox::docker::{ContainerMount, Engine, Inspect, Verdict, containers};
use crate::sandbox::parts;
use crate::sandbox::registry::Census;
use crate::text::{shell_word, shown, shown_path};

pub use whole::{as_set, mode, recover_first};

/// Containers, and Docker's data in a pool.
pub fn run(app: &App, command: &DockerCommand) -> Done {
    match command {
        DockerCommand::Status => status(app),
        DockerCommand::Enable { image, size } => whole::enable(app, image.as_deref(), size.as_deref()),
        DockerCommand::Disable => whole::disable(app),
    }
}

/// What is known of one container.
pub struct Row {
    /// The container.
    pub container: Inspect,
    /// How its files can be kept, and why.
    pub verdict: Verdict,
    /// The workspace of the sandbox that it is a part of.
    sandbox: Option<String>,
    /// Subvolumes in its root: in no checkpoint.
    nested: Vec<String>,
    /// What it has mounted.
    mounts: Vec<Seen>,
}

/// Something that a container has mounted.
struct Seen {
    mount: ContainerMount,
    /// The tracked workspace that has it.
    workspace: Option<PathBuf>,
    /// Why that is not what the container sees.
    older: Option<String>,
}

impl Seen {
    fn of(app: &App, engine: &Engine, c: &Inspect, m: &ContainerMount) -> Self {
        let site = app.desk.registry.find(&m.source).ok().flatten();
        let workspace = site.map(|s| s.path().to_owned());
        let older = workspace.as_ref().and_then(|_| older(engine, c, m));
        Self {
            mount: m.clone(),
            workspace,
            older,
        }
    }

    fn covered(&self) -> bool {
        self.workspace.is_some() && self.older.is_none()
    }
}

/// The containers of all sandboxes: id, name, and the workspace.
fn owned(app: &App) -> Vec<(String, String, String)> {
    let Ok(Census {
        sandboxes, copies, ..
    }) = app.desk.registry.all()
    else {
        return Vec::new();
    };
    let all = sandboxes
        .into_iter()
        .map(|(_, l)| l)
        .chain(copies.into_iter().map(|(_, l)| l));
    let tracked = all.filter_map(|l| l.record.ok()).filter(|r| r.tracked);
    tracked
        .flat_map(|r| {
            let path = shown_path(&r.path);
            parts::containers(&r)
                .into_iter()
                .map(move |c| (c.id, c.name, path.clone()))
        })
        .collect()
}

fn row(app: &App, engine: &Engine, container: Inspect, owned: &[(String, String, String)]) -> Row {
    let located = locate(engine, &container, None);
    let nested = located.as_ref().map(|l| {
        let folder = bind::open_folder(&l.path).and_then(subvolume::nested);
        let paths = folder
            .unwrap_or_default()
            .into_iter()
            .map(|n| shown_path(&n.path));
        paths.collect()
    });
    let seen = |m: &ContainerMount| Seen::of(app, engine, &container, m);
    let mounts = container.mounts.iter().map(seen).collect();
    let is = |(id, name, _): &&(String, String, String)| *id == container.id || *name == container.name;
    Row {
        sandbox: owned.iter().find(is).map(|o| o.2.clone()),
        nested: nested.unwrap_or_default(),
        verdict: located.map_or_else(|v| v, |l| l.verdict),
        mounts,
        container,
    }
}

/// All containers, each with how it can be covered.
pub fn rows(app: &App) -> Result<Vec<Row>, crate::sandbox::docker::DockerError> {
    let (engine, list) = containers()?;
    let owned = owned(app);
    Ok(list.into_iter().map(|c| row(app, &engine, c, &owned)).collect())
}

impl Row {
    /// What is not what it seems, one line each.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let name = shown(&self.container.name);
        let told = self
            .mounts
            .iter()
            .filter_map(|s| Some((&s.mount, s.older.as_ref()?)));
        told.map(move |(m, why)| format!("container {name}: {}: {why}", shown_path(&m.destination)))
    }

    fn json(&self, whole: bool) -> Value {
        let c = &self.container;
        let mounts: Vec<Value> = self
            .mounts
            .iter()
            .map(|s| {
                let m = &s.mount;
                json!({"kind": m.kind, "name": m.name, "source": shown_path(&m.source),
                       "destination": shown_path(&m.destination), "writable": m.writable, "covered": s.covered(),
                       "why": s.older})
            })
            .collect();
        let tmpfs: Vec<String> = c.tmpfs.iter().map(|p| shown_path(p)).collect();
        json!({"id": c.id, "name": c.name, "image": c.image_name, "state": c.state, "flavour": c.flavour,
               "conversation": c.conversation, "sandbox": self.sandbox, "root_covered": self.sandbox.is_some(),
               "technique": self.verdict.technique, "why": self.verdict.why, "better": self.verdict.better,
               "auto_remove": c.auto_remove, "whole_docker": whole, "nested": self.nested, "mounts": mounts, "tmpfs": tmpfs})
    }

    fn text(&self, program: &str) -> String {
        let c = &self.container;
        let name = shown(&c.name);
        let mut out = format!("{name} ({}, {})\n", shown(&c.image_name), c.state.word());
        if let Some(id) = &c.conversation {
            out += &format!("  serves conversation {}\n", shown(id));
        }
        out += &match &self.sandbox {
            Some(path) => format!("  its root file system: covered with {path}\n"),
            None if self.verdict.technique.covers() => {
                // of one that works in a workspace, it is that one
                let dir = self.mounts.iter().find_map(|s| s.workspace.as_ref());
                let dir = dir.map_or_else(|| "DIR".to_owned(), |d| shell_word(d));
                format!(
                    "  its root file system: not covered; to cover it: {program} track {dir} --container {name}\n"
                )
            }
            None => "  its root file system: cannot be covered\n".to_owned(),
        };
        out += &format!("  {}: {}\n", self.verdict.technique.word(), self.verdict.why);
        if let Some(better) = &self.verdict.better {
            out += &format!("  better: {better}\n");
        }
        if c.auto_remove {
            out += "  started with --rm: it is gone once it is stopped, so it is restarted instead\n";
        }
        for s in &self.mounts {
            let m = &s.mount;
            let word = match &s.older {
                Some(why) => &format!("not covered: {why}"),
                None if s.covered() => "covered",
                None => "not covered",
            };
            let what = m
                .name
                .as_ref()
                .map_or_else(|| shown_path(&m.source), |n| format!("volume {}", shown(n)));
            out += &format!("  {what} at {}: {word}\n", shown_path(&m.destination));
        }
        for path in &c.tmpfs {
            out += &format!("  {} is in memory: never covered\n", shown_path(path));
        }
        for path in &self.nested {
            out += &format!("  {path} is a subvolume in it: not covered\n");
        }
        out
    }
}

/// Shows the containers, and what of each is covered.
fn status(app: &App) -> Done {
    let mode = mode(app);
    let rows = match (rows(app), &mode) {
        // that it is interrupted is to be known even if Docker does not answer
        (Err(e), Some(mode)) => {
            app.out.say(format!("respool: {mode}"));
            return Err(e.into());
        }
        (rows, _) => rows?,
    };
    let program = app.program();
    let doc: Vec<Value> = rows.iter().map(|r| r.json(mode.is_some())).collect();
    app.out.result(&doc, || {
        let head = mode.map_or_else(
            || {
                format!("Docker's data is in no pool ({program} docker enable): checkpoints have single containers\n")
            },
            |m| format!("{m}\n"),
        );
        if rows.is_empty() {
            return head + "no containers\n";
        }
        head + &rows.iter().map(|r| r.text(&program)).collect::<String>()
    })
}

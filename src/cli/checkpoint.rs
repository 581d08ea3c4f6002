//! `respool checkpoint`, `label`, `pin`, `unpin`.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::app::App;
use super::output::{Done, Failure};
use crate::engine::{CheckpointKind, Elsewhere, How, NewCheckpoint, PartKind};
use crate::failure::Kind;
use crate::rewind::tools::Tools;
use crate::sandbox::parts::outlook::Outlook;
use crate::text::{json_path, shown_path};
use crate::timeline::select;

/// Takes a checkpoint now.
pub fn run(app: &App, message: Option<&str>, label: Option<String>) -> Done {
    let subject = match message {
        Some(m) => app.subject_for(&[m])?,
        None => app.subject()?,
    };
    let site = &subject.site;
    super::operations::recover_first(app, site)?;
    let mut new = NewCheckpoint::of(CheckpointKind::Manual, How::Command);
    new.label = label;
    if let Some(m) = message {
        let timeline = subject.timeline().ok_or_else(|| {
            Failure::new(Kind::NotFound, "there is no conversation here").hint("name it: -c CONVERSATION")
        })?;
        new.kind = CheckpointKind::Message;
        new.message = Some(select::message(&timeline.rows, m)?.id.clone());
    }
    new.conversation = subject.timeline().map(|t| t.conversation.id.clone());
    let not_covered = site.not_covered()?;
    let mut parts = vec![
        json!({"kind": PartKind::Workspace, "path": json_path(site.path()).0, "covered": true, "reason": null}),
    ];
    let left_out = site.vault.left_out()?;
    let reason = |p: &PathBuf| {
        if left_out.contains(p) {
            "left out by exclude"
        } else {
            "a subvolume or mount inside"
        }
    };
    for p in &not_covered {
        let path = json_path(&site.path().join(p)).0;
        parts.push(json!({"kind": PartKind::Workspace, "path": path, "covered": false, "reason": reason(p)}));
    }
    let outlook = site.outlook(None)?;
    if app.global.dry_run {
        parts.extend(outlook.iter().flat_map(|c| container(c, c.stays.as_deref())));
        let doc = json!({"plan": {"steps": [format!("take a checkpoint of {}", shown_path(site.path()))], "parts": parts}});
        return app.out.result(&doc, || {
            format!("would take a checkpoint of {}\n", shown_path(site.path()))
        });
    }
    let tools = Tools::of(site)?;
    if let Some(warning) = site.before_checkpoint(new.kind) {
        app.out.say(format!("respool: {warning}"));
    }
    let started = Instant::now();
    let taken = tools.checkpoint(&new)?;
    let ms = started.elapsed().as_millis() as u64;
    let kept = &taken.meta.elsewhere;
    for c in &outlook {
        let missing = kept
            .iter()
            .find(|e| e.name == c.name)
            .and_then(|e| e.missing.as_deref());
        parts.extend(container(c, missing));
    }
    let docker = kept.iter().filter(|e| e.kind == PartKind::Docker);
    parts.extend(docker.map(
        |e| json!({"kind": e.kind, "path": e.name, "covered": e.missing.is_none(), "reason": e.missing}),
    ));
    let doc = json!({
        "checkpoint": taken.meta.id, "kind": taken.meta.kind, "parts": parts, "ms": ms, "atomic": !site.copied(),
        "pause_ms": taken.meta.pause_ms,
    });
    app.out.result(&doc, || {
        let mut text = format!("{}  ({ms} ms)\n", taken.meta.id);
        for p in &not_covered {
            text += &format!("not covered: {} ({})\n", shown_path(p), reason(p));
        }
        text.extend(outlook.iter().map(older));
        text.extend(kept.iter().map(|e| share(e, taken.meta.pause_ms)));
        text
    })
}

/// What became of a part that is kept elsewhere, a line.
fn share(e: &Elsewhere, pause_ms: Option<u64>) -> String {
    let name = crate::text::shown(&e.name);
    match (e.kind, &e.missing, pause_ms) {
        (PartKind::Docker, Some(why), _) => format!("not covered: Docker's data at {name} ({why})\n"),
        (PartKind::Docker, None, _) => format!("with all of Docker's data at {name}\n"),
        (_, Some(why), _) => format!("not covered: container {name} ({why})\n"),
        (_, None, Some(ms)) => format!("with container {name}, paused for {ms} ms\n"),
        (_, None, None) => format!("with container {name}\n"),
    }
}

/// What a container sees another one of, a line each.
fn older(c: &Outlook) -> String {
    let name = crate::text::shown(&c.name);
    let told = c.beside.iter().filter_map(|b| Some((&b.at, b.why.as_ref()?)));
    told.map(|(at, why)| format!("not covered: {at} of container {name}: {why}\n"))
        .collect()
}

/// The rows of a container: its root file system, and what else it has.
fn container(c: &Outlook, missing: Option<&str>) -> Vec<Value> {
    let mut out = vec![
        json!({"kind": PartKind::Container, "path": c.name, "covered": missing.is_none(),
        "reason": missing, "technique": c.technique}),
    ];
    for b in c.beside.iter().filter(|b| !b.covered) {
        let kind = if b.kind == "volume" {
            PartKind::DockerVolume
        } else {
            PartKind::Container
        };
        let why = b.why.as_ref().map_or_else(String::new, |w| format!("; {w}"));
        out.push(json!({"kind": kind, "path": b.at, "covered": false,
            "reason": format!("container {}: {} ({}){why}", crate::text::shown(&c.name), b.what, b.kind)}));
    }
    out
}

/// Gives a checkpoint a label.
pub fn label(app: &App, checkpoint: &str, text: &str) -> Done {
    let id = App::checkpoint_id(checkpoint)?;
    let subject = app.subject()?;
    if app.global.dry_run {
        return would(app, format!("label {id}"));
    }
    subject.site.vault.label(&id, text)?;
    app.out.result(&json!({"checkpoint": id, "label": text}), || {
        format!("{id} is labelled\n")
    })
}

/// Pins or unpins a checkpoint.
pub fn pin(app: &App, checkpoint: &str, pinned: bool) -> Done {
    let id = App::checkpoint_id(checkpoint)?;
    let subject = app.subject()?;
    if app.global.dry_run {
        return would(app, format!("{} {id}", if pinned { "pin" } else { "unpin" }));
    }
    subject.site.vault.pin(&id, pinned)?;
    let word = if pinned { "pinned" } else { "no longer pinned" };
    app.out.result(&json!({"checkpoint": id, "pinned": pinned}), || {
        format!("{id} is {word}\n")
    })
}

/// The plan of one step, where nothing is to be changed.
fn would(app: &App, step: String) -> Done {
    app.out
        .result(&json!({"plan": {"steps": [step]}}), || format!("would {step}\n"))
}

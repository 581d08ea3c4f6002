//! `respool track --per-conversation DIR`: a workspace of its own for each conversation.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};

use super::super::forward::must;
use super::{asked, plan_text, wish};
use crate::cli::app::App;
use crate::cli::args::TrackArgs;
use crate::cli::operations::{recover_adoptions_first, recover_first};
use crate::cli::output::{Done, Failure};
use crate::failure::Kind;
use crate::rewind::exclusive::{Workspace, make_template, open};
use crate::rewind::offer::{Offer, VaultKind, offer, permitted};
use crate::sandbox::exclusive::{check_name, folder_of, template};
use crate::sandbox::manage::{Verb, order};
use crate::sandbox::site::Site;
use crate::text::{json_path, shown, shown_path};

/// Tracks the folder if it is not, makes it a template if it is none, and opens the workspace of the conversation that
/// is named.
pub fn track(app: &App, args: &TrackArgs, path: &Path) -> Done {
    let name = named(app)?;
    let wish = wish(app, args)?;
    if wish.vault == VaultKind::Copy {
        let what = "a workspace for each conversation is cloned by a snapshot: copies cannot do that";
        return Err(Failure::new(Kind::Refused, what).hint("leave --vault copy away"));
    }
    if let Some(shared) = &args.shared {
        check_name(shared)?;
    }
    recover_adoptions_first(app, path)?;
    let found = app.desk.registry.find(path)?.filter(|s| s.path() == path);
    if found.is_none() {
        permitted(&app.desk, wish.vault, path)?;
        let offer = offer(&app.desk, &app.who.home, path, wish, &app.bar())?;
        if app.global.dry_run {
            return planned(app, args, path, name.as_deref(), Some(offer));
        }
        asked(app, &offer)?;
    } else if app.global.dry_run {
        return planned(app, args, path, name.as_deref(), None);
    }
    let mut site = app.desk.site_at(path)?;
    must(app, &site.record)?;
    if site.remote().is_none() {
        may_beside(app, path)?;
        recover_first(app, &site)?;
        make_template(&mut site, args.shared.as_deref())?;
        return match &name {
            Some(name) => told_workspace(app, &site, name),
            None => told_template(app, &site),
        };
    }
    let verb = Verb::Exclusive {
        dir: path.to_owned(),
        conversation: name,
        shared: args.shared.clone(),
    };
    let doc = order(&app.desk.registry, verb, false, &app.bar())?;
    app.out.result(&doc, || far_text(&doc))
}

/// What `-c` names here: the conversation may not exist yet.
fn named(app: &App) -> Result<Option<String>, Failure> {
    let Some(c) = &app.global.conversation else {
        return Ok(None);
    };
    let name = c.to_string_lossy().into_owned();
    check_name(&name)?;
    Ok(Some(name))
}

/// On behalf of a user, a folder is made only where that user could make one.
fn may_beside(app: &App, path: &Path) -> Done {
    let Some(behalf) = app.global.behalf.filter(|b| b.uid != 0) else {
        return Ok(());
    };
    let parent = path.parent().unwrap_or(path);
    let owner = std::fs::metadata(parent).map(|m| m.uid());
    if owner.is_ok_and(|uid| uid == behalf.uid) || folder_of(path).is_dir() {
        return Ok(());
    }
    let what = format!("you may not make a folder in {}", shown_path(parent));
    Err(Failure::new(Kind::Refused, what).hint("run it as root: sudo respool track --per-conversation DIR"))
}

fn steps(args: &TrackArgs, path: &Path, name: Option<&str>) -> Vec<String> {
    let folder = folder_of(path);
    let mut steps = vec![format!(
        "give each conversation a clone of it, in {}",
        shown_path(&folder)
    )];
    if let Some(shared) = &args.shared {
        let shared = shown_path(&folder.join(shared));
        steps.push(format!("make {shared} for all of them: it is in no checkpoint"));
    }
    if let Some(name) = name {
        steps.push(format!("open {}", shown_path(&folder.join(name))));
    }
    steps
}

fn planned(app: &App, args: &TrackArgs, path: &Path, name: Option<&str>, offer: Option<Offer>) -> Done {
    let mut more = steps(args, path, name);
    let Some(mut offer) = offer else {
        let doc = json!({"plan": {"steps": more}});
        return app
            .out
            .result(&doc, || more.iter().map(|s| format!("would {s}\n")).collect());
    };
    offer.plan.steps.append(&mut more);
    app.out
        .result(&json!({"plan": offer.plan}), || plan_text(&offer.plan))
}

fn told_template(app: &App, site: &Site) -> Done {
    let (path, exact) = json_path(site.path());
    let folder = folder_of(site.path());
    let shared = template(&site.record).and_then(|t| t.shared);
    let shared = shared.map(|s| folder.join(s));
    let doc = json!({
        "sandbox": site.record.id, "vault": "btrfs", "path": path, "path_b64": exact, "per_conversation": true,
        "workspaces": json_path(&folder).0, "shared": shared.as_ref().map(|s| json_path(s).0),
    });
    let program = app.program();
    app.out.result(&doc, || {
        let beside = shared.map_or_else(String::new, |s| {
            format!(
                "all of them share {}, which is in no checkpoint\n",
                shown_path(&s)
            )
        });
        format!(
            "tracked as {}: each conversation gets a clone of it, in {}\n{beside}next, one of:\n  \
             {program} run -- openhands   (in it: starts the agent in a fresh clone)\n  \
             {program} track --per-conversation {} -c ID   (opens the clone of a conversation)\n",
            site.record.id,
            shown_path(&folder),
            crate::text::shell_word(site.path())
        )
    })
}

/// Opens a conversation's workspace, and says what of the template is not in it.
pub fn opened(app: &App, template: &Site, name: &str) -> Result<Workspace, Failure> {
    let workspace = open(&app.desk, template, name, &app.bar())?;
    for path in &workspace.missing {
        app.out.say(format!(
            "respool: {} is not in the clone: a subvolume or mount inside the template",
            shown_path(path)
        ));
    }
    Ok(workspace)
}

fn told_workspace(app: &App, template: &Site, name: &str) -> Done {
    let workspace = opened(app, template, name)?;
    let (path, exact) = json_path(&workspace.path);
    let doc = json!({
        "sandbox": workspace.sandbox, "vault": "btrfs", "path": path, "path_b64": exact,
        "template": template.record.id, "conversation": name, "made": workspace.made,
    });
    app.out.result(&doc, || {
        line(workspace.made, &shown_path(&workspace.path), &workspace.sandbox)
    })
}

fn line(made: bool, path: &str, sandbox: &str) -> String {
    let what = if made {
        "a fresh clone"
    } else {
        "it was there already"
    };
    format!("{path}  {sandbox}  ({what})\n")
}

/// What the service answered, for people.
fn far_text(doc: &Value) -> String {
    let text = |key: &str| shown(doc[key].as_str().unwrap_or("?"));
    if doc["conversation"].is_string() {
        return line(doc["made"] == true, &text("path"), &text("sandbox"));
    }
    format!(
        "tracked as {}: each conversation gets a clone of it, in {}\n",
        text("sandbox"),
        text("workspaces")
    )
}

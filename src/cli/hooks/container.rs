//! `respool hooks install --container`: the hook of an agent inside a container, and the door through which it is heard.

use std::path::Path;

use serde_json::json;

use super::super::app::App;
use super::super::output::{Done, Failure};
use crate::failure::Kind;
use crate::sandbox::site::Site;
use crate::service::door;
use crate::text::{json_path, shell_word, shown_path};
use crate::watch::agent::Agent;
use crate::watch::hooks::{Edit, State, install, uninstall};
use crate::watch::line::{INSIDE, PROGRAM};

/// Why a hook inside a container is not heard.
pub const NOBODY: &str = "nobody answers at the door: respool service, or respool watch";

/// What a hook inside a container calls.
pub fn program() -> std::path::PathBuf {
    Path::new(INSIDE).join(PROGRAM)
}

/// True where the hook calls what is inside a container.
pub fn is_ours(state: &State) -> bool {
    matches!(state, State::OtherBinary(b) if program().as_os_str() == b.as_str())
}

/// Why such a hook is not heard, if it is not. `door`: whether there is one, and whether somebody answers.
pub fn unheard(door: Option<(bool, bool)>) -> Option<String> {
    match door {
        Some((true, true)) => None,
        Some((true, false)) => Some(NOBODY.into()),
        _ => Some("the sandbox has no door: respool hooks install --container".into()),
    }
}

fn site(app: &App) -> Result<Site, Failure> {
    if !rustix::process::geteuid().is_root() {
        let what = "what a container hears is for root to open";
        return Err(Failure::new(Kind::Refused, what)
            .hint("run it as root: sudo respool hooks install openhands --container"));
    }
    match app.named_site()? {
        Some(site) => Ok(site),
        None => Ok(app.desk.site_at(&app.cwd)?),
    }
}

/// Puts the hook into the workspace's configuration and opens the door, or takes both away.
pub fn edit(app: &App, agent: Agent, put: bool) -> Done {
    let site = site(app)?;
    let (registry, id) = (&app.desk.registry, &site.record.id);
    let spot = agent.in_project(site.path());
    let (file, at) = (spot.file(agent), door::folder(registry, id));
    if app.global.dry_run {
        let verb = if put {
            "put the hook into"
        } else {
            "take the hook out of"
        };
        let door = if put { "open" } else { "take away" };
        let steps = [
            format!("{verb} {}", shown_path(&file)),
            format!("{door} {}", shown_path(&at)),
        ];
        return app.out.result(&json!({"plan": {"steps": steps}}), || {
            steps.iter().map(|s| format!("would {s}\n")).collect()
        });
    }
    let failed = |e: std::io::Error| Failure::new(Kind::Failed, format!("{}: {e}", shown_path(&at)));
    if !put {
        let done = uninstall(agent, &spot)?;
        let gone = door::remove(registry, id).map_err(failed)?;
        let doc = json!({"file": json_path(&file).0, "done": done, "door": null, "closed": gone});
        return app.out.result(&doc, || {
            format!("{}: {done:?}; the door is closed\n", shown_path(&file))
        });
    }
    let door = door::make(registry, id).map_err(failed)?;
    let done = install(agent, &spot, &program(), None)?;
    let mount = format!("{}:{INSIDE}:ro", shell_word(&door));
    let doc = json!({"file": json_path(&file).0, "done": done, "door": json_path(&door).0, "mount": mount,
        "inside": INSIDE});
    app.out.result(&doc, || {
        let word = if done == Edit::Unchanged {
            "was there"
        } else {
            "written"
        };
        format!(
            "{}: {word}\nthe container needs the door, when it is made: docker run -v {mount} ...\n\
             respool service or respool watch must run: they answer at the door\n",
            shown_path(&file)
        )
    })
}

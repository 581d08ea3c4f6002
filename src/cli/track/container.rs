//! `respool track DIR --container NAME`.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::app::App;
use crate::cli::operations::recover_first;
use crate::cli::output::{Done, Failure};
use crate::engine::{CheckpointKind, How, NewCheckpoint};
use crate::failure::Kind;
use crate::rewind::tools::Tools;
use crate::sandbox::parts::attach::{self, Offer};
use crate::sandbox::site::Site;
use crate::text::{shown, shown_path};

/// Finds the containers that are named; none of them is taken if one cannot be.
pub fn offers(names: &[String]) -> Result<Vec<Offer>, Failure> {
    if !names.is_empty() && !rustix::process::geteuid().is_root() {
        let what = "the files of a container are for root to keep";
        return Err(
            Failure::new(Kind::Refused, what).hint("run it as root: sudo respool track DIR --container NAME")
        );
    }
    Ok(names.iter().map(|n| attach::offer(n)).collect::<Result<_, _>>()?)
}

/// The sandbox of this workspace, if it is tracked already.
pub fn tracked(app: &App, path: &Path) -> Result<Option<Site>, Failure> {
    let found = app.desk.registry.find(path)?;
    Ok(found.filter(|s| s.path() == path && s.remote().is_none()))
}

/// What is done with a container, in a plan.
pub fn step(offer: &Offer) -> String {
    let verdict = &offer.located.verdict;
    format!(
        "keep the root file system of container {} in each checkpoint, too ({}: {})",
        shown(&offer.container.name),
        verdict.technique.word(),
        verdict.why
    )
}

/// Containers that belong to a sandbox now.
pub struct Attached {
    /// Its id.
    pub sandbox: String,
    /// The word of its vault.
    pub vault: &'static str,
    /// One a container.
    pub rows: Vec<Value>,
    /// For people.
    pub text: String,
}

fn ask(app: &App, site: &Site, offers: &[Offer]) -> Done {
    let names: Vec<String> = offers.iter().map(|o| shown(&o.container.name)).collect();
    if !app.global.yes {
        for offer in offers {
            app.out.say(step(offer));
        }
    }
    app.confirm(&format!(
        "keep {} together with {}?",
        names.join(", "),
        shown_path(site.path())
    ))
}

/// Makes containers parts of a sandbox, and takes the first checkpoint that has them.
pub fn attach(app: &App, mut site: Site, offers: &[Offer]) -> Result<Attached, Failure> {
    let path = site.path().to_owned();
    recover_first(app, &site)?;
    ask(app, &site, offers)?;
    for offer in offers {
        attach::attach(&app.desk.registry, &mut site, offer)?;
    }
    // opened again: now with them
    let site = app.desk.site_at(&path)?;
    Tools::of(&site)?.checkpoint(&NewCheckpoint::of(CheckpointKind::Start, How::Own))?;
    let outlook = site.outlook(None)?;
    let older = |o: &Offer| -> Vec<String> {
        let own = outlook.iter().filter(|c| c.name == o.container.name);
        let told = own
            .flat_map(|c| &c.beside)
            .filter_map(|b| Some((&b.at, b.why.as_ref()?)));
        told.map(|(at, why)| format!("{at} is not covered: {why}"))
            .collect()
    };
    let row = |o: &Offer| {
        json!({"name": o.container.name, "id": o.container.id, "technique": o.located.verdict.technique,
               "why": o.located.verdict.why, "better": o.located.verdict.better, "not_covered": older(o)})
    };
    let line = |o: &Offer| {
        let (name, word) = (shown(&o.container.name), o.located.verdict.technique.word());
        let mut text = format!("container {name} is in each checkpoint from now on ({word})\n");
        for why in older(o) {
            text += &format!("! container {name}: {why}\n");
        }
        text
    };
    Ok(Attached {
        sandbox: site.record.id.clone(),
        vault: if site.copied() { "copy" } else { "btrfs" },
        rows: offers.iter().map(row).collect(),
        text: offers.iter().map(line).collect(),
    })
}

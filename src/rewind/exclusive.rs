//! A workspace of its own for each conversation: a writable snapshot of the template's live tree, in constant time,
//! beside the template. Each step is announced in the journal; killed anywhere, the workspace is there or it is not.

mod folders;
mod steps;

use std::path::{Path, PathBuf};

use super::error::{Result, RewindError};
use crate::engine::catalog::SandboxDir;
use crate::progress::Progress;
use crate::sandbox::exclusive::{
    Template, check_name, clone_of, folder_of, must_be_template, set_template, template as template_of,
};
use crate::sandbox::manage::{Verb, order};
use crate::sandbox::site::Site;
use crate::text::shown_path;
use crate::timeline::desk::Desk;
use folders::{member, workspaces};
use steps::cloned;
pub(super) use steps::unmade;

/// A conversation's workspace, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Its sandbox.
    pub sandbox: String,
    /// Where it is.
    pub path: PathBuf,
    /// False if it was there already.
    pub made: bool,
    /// What of the template is not in it, relative to it.
    pub missing: Vec<PathBuf>,
}

fn refused(path: &Path, why: String, hint: &str) -> RewindError {
    RewindError::Refused {
        why,
        path: Some(path.to_owned()),
        hint: Some(hint.to_owned()),
    }
}

/// Makes a tracked workspace the template of its conversations' workspaces, here. `shared`: the name of a folder that
/// all of them share, in no checkpoint. Doing it again changes nothing but a shared folder that was not there.
pub fn make_template(site: &mut Site, shared: Option<&str>) -> Result<Template> {
    let path = site.path().to_owned();
    if site.copied() {
        let hint = "track it with --vault btrfs";
        let why = format!(
            "{} has copies: a workspace is cloned by a snapshot",
            shown_path(&path)
        );
        return Err(refused(&path, why, hint));
    }
    if clone_of(&site.record).is_some() {
        let why = format!("{} is the workspace of a conversation", shown_path(&path));
        return Err(refused(&path, why, "name the folder that it was cloned from"));
    }
    let mut mark = template_of(&site.record).unwrap_or_default();
    if let Some(name) = shared {
        check_name(name)?;
        mark.shared = Some(name.to_owned());
    }
    let folder = workspaces(&site.record)?;
    if let Some(name) = &mark.shared {
        member(&folder, &site.record, name)?;
    }
    let mut record = site.record.clone();
    set_template(&mut record, &mark)?;
    if record != site.record {
        site.write_record(record)?;
    }
    Ok(mark)
}

/// Opens the workspace of a conversation: the one that it has, or a fresh clone of the template as it is now. Where the
/// template is behind the service, that does it.
pub fn open(desk: &Desk, template: &Site, name: &str, progress: &dyn Progress) -> Result<Workspace> {
    check_name(name)?;
    if template.remote().is_some() {
        let verb = Verb::Exclusive {
            dir: template.path().to_owned(),
            conversation: Some(name.to_owned()),
            shared: None,
        };
        let doc = order(&desk.registry, verb, false, progress)?;
        let text = |key: &str| doc[key].as_str().unwrap_or_default().to_owned();
        return Ok(Workspace {
            sandbox: text("sandbox"),
            path: folder_of(template.path()).join(name),
            made: doc["made"] == true,
            missing: Vec::new(),
        });
    }
    let mark = must_be_template(&template.record)?;
    if mark.shared.as_deref() == Some(name) {
        let path = folder_of(template.path()).join(name);
        let why = format!("{} is the shared folder", shown_path(&path));
        return Err(refused(&path, why, "name the conversation"));
    }
    let (pool, _) = template.btrfs()?;
    let dir = SandboxDir::open(pool, &template.record.id)?;
    // two that ask for the same one get the same
    let _lock = dir.lock()?;
    let path = folder_of(template.path()).join(name);
    if path.is_dir()
        && let Some(site) = desk.registry.without_line().find(&path)?
    {
        let of_it = clone_of(&site.record).is_some_and(|o| o.template == template.record.id);
        if of_it && site.path() == path {
            return Ok(Workspace {
                sandbox: site.record.id,
                path,
                made: false,
                missing: Vec::new(),
            });
        }
        let why = format!("{} is tracked, and no clone of the template", shown_path(&path));
        return Err(refused(&path, why, "choose another name"));
    }
    let missing = template.vault.not_covered()?;
    let record = cloned(pool, template, name, &mark)?;
    Ok(Workspace {
        sandbox: record.id,
        path,
        made: true,
        missing,
    })
}

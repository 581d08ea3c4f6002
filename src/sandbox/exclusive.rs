//! Workspaces that are exclusive to a conversation: what the records of the template and of the workspaces cloned
//! from it say, and where they lie. The template is a workspace like any other; a clone has checkpoints of its own.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::catalog::{SandboxRecord, list_sandboxes};
use crate::engine::pool::Pool;
use crate::engine::{EngineError, Result};
use crate::text::{shown, shown_path};

const TEMPLATE: &str = "per_conversation";
const CLONE: &str = "workspace_of";
/// The longest name of a workspace, in bytes.
const LONGEST: usize = 128;

/// What the record of a template says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Template {
    /// The name of the folder that all its workspaces share, beside them; none where there is none.
    #[serde(default)]
    pub shared: Option<String>,
}

/// What the record of a cloned workspace says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The template's sandbox.
    pub template: String,
    /// The conversation that it is for, or another name.
    pub conversation: String,
    /// The template's live subvolume that it is a snapshot of, 32 hexadecimal digits.
    pub source: String,
    /// The folder was not there before.
    #[serde(default)]
    pub made: bool,
    /// The shared folder's name.
    #[serde(default)]
    pub shared: Option<String>,
}

/// What makes this sandbox a template; `None` if it is none.
pub fn template(record: &SandboxRecord) -> Option<Template> {
    serde_json::from_value(record.extra.get(TEMPLATE)?.clone()).ok()
}

/// What makes this sandbox a clone; `None` if it is none.
pub fn clone_of(record: &SandboxRecord) -> Option<Origin> {
    serde_json::from_value(record.extra.get(CLONE)?.clone()).ok()
}

fn write<T: Serialize>(record: &mut SandboxRecord, key: &str, mark: &T) -> Result<()> {
    let value = serde_json::to_value(mark)
        .map_err(|e| EngineError::io("write the record of", &record.path)(e.into()))?;
    record.extra.insert(key.into(), value);
    Ok(())
}

/// Says in a record that it is a template.
pub fn set_template(record: &mut SandboxRecord, mark: &Template) -> Result<()> {
    write(record, TEMPLATE, mark)
}

/// Says in a record that it is a clone.
pub fn set_clone(record: &mut SandboxRecord, mark: &Origin) -> Result<()> {
    write(record, CLONE, mark)
}

/// The folder beside a template that its workspaces are in.
pub fn folder_of(template: &Path) -> PathBuf {
    let mut name = template.file_name().unwrap_or_default().to_owned();
    name.push(".workspaces");
    template.with_file_name(name)
}

/// Refuses a name that could lead elsewhere, or that cannot be typed.
pub fn check_name(name: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && name.len() <= LONGEST && !name.starts_with('.') && name.chars().all(fine) {
        return Ok(());
    }
    Err(EngineError::Refused {
        why: format!("{} cannot be the name of a workspace", shown(name)),
        path: None,
        hint: Some("letters, digits, - _ and . inside, at most 128 of them: a conversation's id".into()),
    })
}

/// The shared folder of a clone, relative to its workspace: in no checkpoint.
pub fn shared(record: &SandboxRecord) -> Option<PathBuf> {
    Some(Path::new("..").join(clone_of(record)?.shared?))
}

/// The tracked workspaces that were cloned from this template.
pub fn clones(pool: &Pool, template: &SandboxRecord) -> Result<Vec<SandboxRecord>> {
    let of_it = |r: &SandboxRecord| r.tracked && clone_of(r).is_some_and(|c| c.template == template.id);
    let all = list_sandboxes(pool)?.into_iter().filter_map(|l| l.record.ok());
    Ok(all.filter(of_it).collect())
}

/// Refuses what is for a template alone.
pub fn must_be_template(record: &SandboxRecord) -> Result<Template> {
    template(record).ok_or_else(|| EngineError::Refused {
        why: format!(
            "{} has no workspaces for each conversation",
            shown_path(&record.path)
        ),
        path: Some(record.path.clone()),
        hint: Some(format!(
            "respool track --per-conversation {}",
            crate::text::shell_word(&record.path)
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_folder() {
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "a/b",
            "a b",
            "\u{1b}[m",
            "\u{e4}",
            &"x".repeat(129),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["11111111-2222-3333-8444-555555555555", "x", "a.b_c"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        assert_eq!(
            folder_of(Path::new("/home/dev/project")),
            Path::new("/home/dev/project.workspaces")
        );
    }
}

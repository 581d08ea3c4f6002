//! `respool changes`.

use std::path::{Path, PathBuf};

use super::app::{App, Subject};
use super::output::{Done, Failure};
use crate::engine::{Change, ChangeKind, State};
use crate::failure::Kind;
use crate::rewind::plan::narrowed;
use crate::text::shown_path;

/// Paths of the command line, relative to the workspace.
pub fn relative(app: &App, subject: &Subject, paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    paths.iter().map(|p| one(app, subject.site.path(), p)).collect()
}

/// One path, relative to the workspace: absolute ones and ones that start with `./` or `../` are taken from
/// the current folder (where that is on the same machine), others from the workspace itself.
pub fn one(app: &App, workspace: &Path, path: &Path) -> Result<PathBuf, Failure> {
    use std::path::Component;
    let given = match path.components().next() {
        Some(Component::CurDir | Component::ParentDir) if !app.far() => app.cwd.join(path),
        _ => workspace.join(path),
    };
    let mut clean = PathBuf::new();
    for c in given.components() {
        match c {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            c => clean.push(c),
        }
    }
    let inside = clean.strip_prefix(workspace).map_err(|_| {
        Failure::new(
            Kind::NotFound,
            format!(
                "{} is not in the workspace {}",
                shown_path(path),
                shown_path(workspace)
            ),
        )
        .path(path)
    })?;
    Ok(if inside.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        inside.to_owned()
    })
}

/// The list between two states, narrowed to paths.
pub fn list(
    app: &App,
    subject: &Subject,
    a: &State,
    b: &State,
    paths: &[PathBuf],
    times: bool,
) -> Result<Vec<Change>, Failure> {
    let all = subject.site.vault.changes(a, b, times, &app.bar())?;
    if paths.is_empty() {
        return Ok(all);
    }
    Ok(narrowed(all, Some(&relative(app, subject, paths)?)))
}

/// Lists the paths that differ.
pub fn run(app: &App, a: &str, b: &str, paths: &[PathBuf], times: bool) -> Done {
    let subject = app.look_for(&[a, b])?;
    let (a, b) = (App::state(&subject, a)?, App::state(&subject, b)?);
    let list = list(app, &subject, &a.state, &b.state, paths, times)?;
    app.out
        .result(&list, || list.iter().map(|c| line(app, c)).collect())
}

/// One row for people.
pub fn line(app: &App, c: &Change) -> String {
    let (sign, sgr) = match c.kind {
        ChangeKind::Added => ("+", "32"),
        ChangeKind::Modified => ("~", "33"),
        ChangeKind::Deleted => ("-", "31"),
        ChangeKind::Renamed => (">", "36"),
        ChangeKind::Type => ("!", "35"),
        ChangeKind::Meta => (".", "33"),
    };
    let mut text = app.out.paint(sgr, &format!("{sign} {}", shown_path(&c.path)));
    if let Some(from) = &c.from {
        text += &format!("  (was {})", shown_path(from));
    }
    if matches!(c.kind, ChangeKind::Meta | ChangeKind::Renamed) && !c.what.is_empty() {
        let what: Vec<String> = c.what.iter().map(|w| format!("{w:?}").to_lowercase()).collect();
        text += &format!("  [{}]", what.join(", "));
    }
    text + "\n"
}

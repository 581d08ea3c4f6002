//! The hook of Claude Code for one run: by its own flag `--settings`, so that no file of the user's is touched.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use super::app::App;
use super::hooks::binary;
use super::output::Failure;
use crate::failure::Kind;
use crate::paths::read_file;
use crate::text::{shown, shown_path};
use crate::watch::agent::Agent;
use crate::watch::hooks::{HookError, command, for_one_run};

const FLAG: &str = "--settings";
/// What Claude Code takes as a command of its own, without settings.
const OTHER_COMMANDS: [&str; 9] = [
    "mcp",
    "doctor",
    "update",
    "install",
    "config",
    "plugin",
    "setup-token",
    "auth",
    "agents",
];

/// An agent's words, with the hook in them where it is given that way.
#[derive(Debug)]
pub struct Hooked {
    /// The words, the program first.
    pub words: Vec<OsString>,
    /// Holds the settings for the time of the run: those of a file of the user's are nobody else's to see, as the
    /// words of a process are.
    _file: Option<NamedTempFile>,
}

impl Hooked {
    /// The words as they are.
    pub fn plain(words: &[OsString]) -> Self {
        Self {
            words: words.to_vec(),
            _file: None,
        }
    }

    /// The words of Claude Code with our hook, and with the settings that they name.
    pub fn claude(app: &App, words: &[OsString]) -> Result<Self, Failure> {
        let first = words.get(1).and_then(|w| w.to_str());
        if first.is_some_and(|w| OTHER_COMMANDS.contains(&w)) {
            return Ok(Self::plain(words));
        }
        let command = command(Agent::Claude, &binary()?, app.desk.registry.named())
            .map_err(|e| Failure::from(HookError::Binary(e)))?;
        let given = Given::of(words)?;
        let text = given.as_ref().map(|g| g.text(&app.cwd)).transpose()?;
        let mut ours = for_one_run(text.as_deref(), &command).map_err(|why| {
            let why = format!("what {FLAG} names cannot be used: {}", shown(&why));
            Failure::new(Kind::Damaged, why).hint("it is a JSON object, or the path of a file that holds one")
        })?;
        let mut file = None;
        if given.as_ref().is_some_and(|g| !g.is_json()) {
            let kept = kept(app, &ours).map_err(|e| {
                Failure::new(
                    Kind::Failed,
                    format!("the settings cannot be kept for this run: {e}"),
                )
            })?;
            ours = kept.path().to_string_lossy().into_owned();
            file = Some(kept);
        }
        let mut words = words.to_vec();
        match given {
            // what stands last counts for Claude Code; the others stay as they are
            Some(Given { at, joined: true, .. }) => words[at] = format!("{FLAG}={ours}").into(),
            Some(Given { at, .. }) => words[at] = ours.into(),
            None => {
                words.splice(1..1, [OsString::from(FLAG), ours.into()]);
            }
        }
        Ok(Self { words, _file: file })
    }
}

/// A file that only the agent's user reads.
fn kept(app: &App, text: &str) -> std::io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("respool-claude-")
        .suffix(".json")
        .tempfile()?;
    file.write_all(text.as_bytes())?;
    if app.who.sudo {
        std::os::unix::fs::fchown(file.as_file(), Some(app.who.uid), Some(app.who.gid))?;
    }
    Ok(file)
}

/// The settings that the user gave.
struct Given {
    /// The word that holds them.
    at: usize,
    /// That word holds the flag too.
    joined: bool,
    value: String,
}

impl Given {
    fn of(words: &[OsString]) -> Result<Option<Self>, Failure> {
        let mut found = None;
        let mut i = 1;
        while let Some(word) = words.get(i) {
            let (at, joined, value) = match word.to_str() {
                Some("--") => break,
                Some(FLAG) => (i + 1, false, words.get(i + 1).and_then(|w| w.to_str())),
                Some(w) if w.starts_with("--settings=") => (i, true, w.strip_prefix("--settings=")),
                _ => {
                    i += 1;
                    continue;
                }
            };
            let value = value.ok_or_else(|| {
                Failure::new(Kind::Usage, format!("{FLAG} names no settings that can be read"))
            })?;
            found = Some(Self {
                at,
                joined,
                value: value.to_owned(),
            });
            i = at + 1;
        }
        Ok(found)
    }

    fn is_json(&self) -> bool {
        self.value.trim_start().starts_with('{')
    }

    /// The JSON: the value itself, or what stands in the file that it names.
    fn text(&self, from: &Path) -> Result<String, Failure> {
        if self.is_json() {
            return Ok(self.value.clone());
        }
        let path = from.join(&self.value);
        let failed = |why: String| {
            Failure::new(
                Kind::NotFound,
                format!("the settings {} cannot be read: {why}", shown_path(&path)),
            )
        };
        let bytes = read_file(&path).map_err(|e| failed(e.to_string()))?;
        String::from_utf8(bytes).map_err(|_| failed("they are not UTF-8".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &[&str]) -> Option<(usize, bool, String)> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let given = Given::of(&words).ok().flatten()?;
        Some((given.at, given.joined, given.value))
    }

    #[test]
    fn the_users_settings_are_found() {
        assert_eq!(given(&["claude", "-p", "x"]), None);
        assert_eq!(
            given(&["claude", "--settings", "s.json"]),
            Some((2, false, "s.json".into()))
        );
        assert_eq!(
            given(&["claude", "--settings={}", "x"]),
            Some((1, true, "{}".into()))
        );
        assert_eq!(
            given(&["claude", "--settings", "a", "--settings", "b"]),
            Some((4, false, "b".into()))
        );
        assert_eq!(given(&["claude", "--", "--settings", "a"]), None);
        assert_eq!(given(&["claude", "--settings"]), None);
    }
}

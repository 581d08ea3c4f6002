//! What every program of the user's that is started from here has in common: who it runs as, its environment, and
//! where it is looked for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::foreground::{Account, Start, find_program};

/// How programs of the user's are started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Starter {
    /// Who they run as; none = who this process is.
    pub account: Option<Account>,
    /// Variables that are set, or taken away.
    pub environment: Vec<(&'static str, Option<OsString>)>,
    /// Where programs are looked for by their name.
    pub folders: Vec<PathBuf>,
}

impl Starter {
    /// This program, in this folder; `None` if it is not found.
    pub fn of(&self, words: &[OsString], folder: &Path) -> Option<Start> {
        Some(Start {
            program: find_program(words.first()?, &self.folders, folder)?,
            arguments: words.to_vec(),
            account: self.account.clone(),
            environment: self.environment.clone(),
            folder: folder.to_owned(),
        })
    }
}

/// The words of the user's editor: `$VISUAL`, else `$EDITOR`, else `vi`; `None` if they cannot be understood.
pub fn editor(variable: impl Fn(&str) -> Option<OsString>) -> Option<Vec<OsString>> {
    let set = |name: &&str| {
        variable(name)?
            .into_string()
            .ok()
            .filter(|e| !e.trim().is_empty())
    };
    let named = ["VISUAL", "EDITOR"].iter().find_map(set);
    let words = shlex::split(named.as_deref().unwrap_or("vi"))?;
    (!words.is_empty()).then(|| words.into_iter().map(OsString::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editor_is_split_as_a_shell_would() {
        let of = |visual: &'static str, editor_: &'static str| {
            editor(move |name| match name {
                "VISUAL" => Some(visual.into()),
                _ => Some(editor_.into()),
            })
        };
        assert_eq!(of("", ""), Some(vec!["vi".into()]));
        assert_eq!(of(" ", "code -w"), Some(vec!["code".into(), "-w".into()]));
        assert_eq!(
            of("'/a b/ed' -x", "vi"),
            Some(vec!["/a b/ed".into(), "-x".into()])
        );
        assert_eq!(of("'", "vi"), None);
    }
}

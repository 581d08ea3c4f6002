//! Keys as data: `assets/keymap.toml` says which key does what where. Help, footer and documentation are
//! made from it.

use std::collections::HashMap;
use std::fmt::Write as _;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde::Deserialize;

use super::TuiError;

/// Where a key is pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// Everywhere.
    Any,
    /// The start screen.
    Start,
    /// The timeline pane.
    Timeline,
    /// The changed files.
    Files,
    /// The diff, also in full.
    Diff,
    /// A box of text: a message, the help, an error.
    Text,
    /// A plan that waits for a yes.
    Plan,
    /// The text of a message that is edited.
    Edit,
    /// What goes with such a message.
    Attached,
    /// A folder that is offered to be tracked, or is being tracked.
    Track,
    /// A rewind at work.
    Running,
    /// The result of a rewind.
    Outcome,
    /// The operation log.
    Log,
    /// A list with a search line.
    Picker,
    /// The line of the timeline's filter.
    Filter,
}

/// What a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(
    missing_docs,
    reason = "each is described in assets/keymap.toml, where people read it"
)]
pub enum Action {
    Down,
    Up,
    HalfDown,
    HalfUp,
    PageDown,
    PageUp,
    First,
    Last,
    Left,
    Right,
    NextPane,
    PreviousPane,
    Open,
    Back,
    MarkA,
    MarkB,
    ClearMarks,
    MarkNow,
    MarkStart,
    ShowBetween,
    OlderVersion,
    NewerVersion,
    Rewind,
    RewindEnd,
    Edit,
    Send,
    Editor,
    OldText,
    Attachments,
    DropAttachment,
    LeaveEdit,
    RunCommand,
    WindowCommand,
    CopyCommand,
    Checkpoint,
    Undo,
    Redo,
    Confirm,
    Reach,
    Track,
    TrackHere,
    OtherVault,
    Filter,
    NextMatch,
    PreviousMatch,
    Switch,
    Palette,
    Log,
    Help,
    Notices,
    Refresh,
    Close,
    Cancel,
    Suspend,
    Quit,
    ForceQuit,
    PickDown,
    PickUp,
    Accept,
    Dismiss,
    RubOut,
    ClearLine,
}

/// One entry of the keymap.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// What it does.
    pub action: Action,
    /// The keys, as written.
    pub keys: Vec<String>,
    /// Where.
    #[serde(rename = "in")]
    pub contexts: Vec<Context>,
    /// The heading in the help.
    pub group: String,
    /// One line of help.
    pub help: String,
    /// The word in the footer.
    #[serde(default)]
    pub footer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    binding: Vec<Binding>,
}

type Chord = (KeyCode, KeyModifiers);

/// What is wrong with a list of bindings, and which actions it is about.
struct Wrong {
    actions: (Action, Option<Action>),
    why: String,
}

impl Action {
    /// Its name in files: `half-down`.
    pub fn name(self) -> String {
        let mut out = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !out.is_empty() {
                out.push('-');
            }
            out.push(c.to_ascii_lowercase());
        }
        out
    }
}

/// All bindings.
#[derive(Debug, Clone)]
pub struct Keymap {
    /// In the order of the file.
    pub bindings: Vec<Binding>,
    lookup: HashMap<(Context, Chord), Action>,
}

impl Keymap {
    /// The default one.
    pub fn built_in() -> Result<Self, TuiError> {
        Self::parse(include_str!("../../assets/keymap.toml"))
    }

    /// Reads a keymap; a key bound twice in one place is an error that names both.
    pub fn parse(text: &str) -> Result<Self, TuiError> {
        let file: File = toml::from_str(text).map_err(|e| TuiError::Keymap(e.message().to_owned()))?;
        Self::of(file.binding).map_err(|wrong| TuiError::Keymap(wrong.why))
    }

    fn of(bindings: Vec<Binding>) -> Result<Self, Wrong> {
        let mut lookup: HashMap<(Context, Chord), Action> = HashMap::new();
        for binding in &bindings {
            let wrong = |why: String, other: Option<Action>| Wrong {
                actions: (binding.action, other),
                why,
            };
            for key in &binding.keys {
                let chord = parse_key(key).ok_or_else(|| wrong(format!("there is no key {key:?}"), None))?;
                for context in &binding.contexts {
                    let taken = lookup.insert((*context, chord), binding.action);
                    // one that works everywhere must not be hidden anywhere
                    let hidden = lookup.iter().find(|((c, other), action)| {
                        *other == chord
                            && **action != binding.action
                            && (*c == Context::Any) != (*context == Context::Any)
                    });
                    if let Some(other) = taken.or(hidden.map(|(_, action)| *action)) {
                        let why = format!("{key} is both {} and {}", other.name(), binding.action.name());
                        return Err(wrong(why, Some(other)));
                    }
                }
            }
        }
        Ok(Self { bindings, lookup })
    }

    /// With other keys for some actions, by their names. What is wrong is told with the name of the action that
    /// it was written for: an action or a key that does not exist, a key bound twice, and what would make a
    /// rewind start by mistake or `Ctrl-c` not end the program.
    pub fn with<'a>(
        mut self,
        changes: impl IntoIterator<Item = (&'a str, &'a [String])>,
    ) -> Result<Self, (String, TuiError)> {
        let mut changed = Vec::new();
        for (name, keys) in changes {
            let refused = |why: &str| (name.to_owned(), TuiError::Keymap(why.to_owned()));
            let found = self.bindings.iter_mut().find(|b| b.action.name() == name);
            let binding = found.ok_or_else(|| refused("there is no such action"))?;
            if binding.action == Action::ForceQuit {
                return Err(refused("Ctrl-c always quits"));
            }
            binding.keys = keys.to_vec();
            changed.push(binding.action);
        }
        let keys = |of: Action| -> Vec<Chord> {
            let all = self.bindings.iter().filter(|b| b.action == of);
            all.flat_map(|b| b.keys.iter().filter_map(|k| parse_key(k)))
                .collect()
        };
        let yes = keys(Action::Confirm);
        let opens = [
            Action::Rewind,
            Action::RewindEnd,
            Action::Open,
            Action::Edit,
            Action::Send,
        ];
        let opens = opens.map(keys).concat();
        if yes.iter().any(|k| k.0 == KeyCode::Enter || opens.contains(k)) {
            let why = "a rewind is confirmed by a key of its own: not Enter, not one that opens something";
            let of = changed
                .iter()
                .find(|a| **a == Action::Confirm)
                .or(changed.first());
            return Err((
                of.map_or_else(String::new, |a| a.name()),
                TuiError::Keymap(why.into()),
            ));
        }
        Self::of(self.bindings).map_err(|wrong| {
            let (action, other) = wrong.actions;
            let its = other.filter(|_| !changed.contains(&action)).unwrap_or(action);
            (its.name(), TuiError::Keymap(wrong.why))
        })
    }

    /// What this key does here.
    pub fn action(&self, context: Context, key: &KeyEvent) -> Option<Action> {
        let chord = chord(key);
        let found = |c| self.lookup.get(&(c, chord)).copied();
        found(context).or_else(|| found(Context::Any))
    }

    /// The first key of an action, for texts.
    pub fn key_of(&self, action: Action) -> &str {
        self.bindings
            .iter()
            .find(|b| b.action == action)
            .and_then(|b| b.keys.first())
            .map_or("", String::as_str)
    }

    /// The bindings that the footer shows here.
    pub fn footer(&self, context: Context) -> impl Iterator<Item = (&str, &str)> {
        self.bindings
            .iter()
            .filter(move |b| b.contexts.contains(&context))
            .filter_map(|b| Some((b.keys.first()?.as_str(), b.footer.as_deref()?)))
    }

    /// The bindings as a Markdown table, for the documentation.
    pub fn markdown(&self) -> String {
        let mut out = String::from("| Keys | What they do |\n|---|---|\n");
        for b in &self.bindings {
            let keys = if b.keys.is_empty() {
                format!("`{}` and its name", self.key_of(Action::Palette))
            } else {
                let keys: Vec<_> = b.keys.iter().map(|k| format!("`{k}`")).collect();
                keys.join(" ")
            };
            let _written = writeln!(out, "| {keys} | {} |", b.help);
        }
        out
    }
}

/// The key with what differs between terminals taken away: Shift is part of a character.
fn chord(key: &KeyEvent) -> Chord {
    let mut modifiers = key.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SHIFT);
    if matches!(key.code, KeyCode::Char(_) | KeyCode::BackTab) {
        modifiers.remove(KeyModifiers::SHIFT);
    }
    (key.code, modifiers)
}

/// `Ctrl-d`, `G`, `PgUp`, ... as crossterm names it.
fn parse_key(text: &str) -> Option<Chord> {
    if text == "Shift-Tab" {
        return Some((KeyCode::BackTab, KeyModifiers::NONE));
    }
    let (modifiers, name) = match text.strip_prefix("Ctrl-") {
        Some(rest) => (KeyModifiers::CONTROL, rest),
        None => match text.strip_prefix("Alt-") {
            Some(rest) => (KeyModifiers::ALT, rest),
            None => (KeyModifiers::NONE, text),
        },
    };
    let code = match name {
        "Enter" => KeyCode::Enter,
        "Esc" => KeyCode::Esc,
        "Tab" => KeyCode::Tab,
        "Space" => KeyCode::Char(' '),
        "Backspace" => KeyCode::Backspace,
        "Delete" => KeyCode::Delete,
        "Up" => KeyCode::Up,
        "Down" => KeyCode::Down,
        "Left" => KeyCode::Left,
        "Right" => KeyCode::Right,
        "PgUp" => KeyCode::PageUp,
        "PgDn" => KeyCode::PageDown,
        "Home" => KeyCode::Home,
        "End" => KeyCode::End,
        _ => {
            let mut chars = name.chars();
            match (chars.next(), chars.next()) {
                (Some(c), None) => KeyCode::Char(c),
                _ => return None,
            }
        }
    };
    Some((code, modifiers))
}

#[cfg(test)]
mod tests;

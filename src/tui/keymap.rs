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
    Checkpoint,
    Undo,
    Redo,
    Confirm,
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
        let mut lookup = HashMap::new();
        for binding in &file.binding {
            for key in &binding.keys {
                let chord =
                    parse_key(key).ok_or_else(|| TuiError::Keymap(format!("there is no key {key:?}")))?;
                for context in &binding.contexts {
                    if let Some(other) = lookup.insert((*context, chord), binding.action) {
                        let why = format!("{key} is both {other:?} and {:?}", binding.action);
                        return Err(TuiError::Keymap(why));
                    }
                }
            }
        }
        Ok(Self {
            bindings: file.binding,
            lookup,
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
mod tests {
    use super::*;

    #[test]
    fn the_built_in_keymap_is_right() {
        let map = Keymap::built_in().expect("parses");
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(
            map.action(Context::Timeline, &key(KeyCode::Char('r'))),
            Some(Action::Rewind)
        );
        let shifted = KeyEvent::new(KeyCode::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(map.action(Context::Timeline, &shifted), Some(Action::Last));
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for context in [Context::Plan, Context::Filter, Context::Running, Context::Picker] {
            assert_eq!(map.action(context, &ctrl_c), Some(Action::ForceQuit));
        }
        assert_eq!(
            map.action(Context::Plan, &key(KeyCode::Enter)),
            None,
            "Enter never confirms"
        );
        assert_eq!(map.action(Context::Plan, &key(KeyCode::Char('r'))), None);
        assert!(
            map.markdown()
                .contains("| `r` | rewind to just before this message"),
            "{}",
            map.markdown()
        );
    }

    #[test]
    fn a_key_bound_twice_is_named() {
        let text = "[[binding]]\naction='up'\nkeys=['k']\nin=['timeline']\ngroup='g'\nhelp='h'\n";
        let twice = format!("{text}{}", text.replace("'up'", "'down'"));
        let error = Keymap::parse(&twice).expect_err("twice").to_string();
        assert!(error.contains("k is both"), "{error}");
    }
}

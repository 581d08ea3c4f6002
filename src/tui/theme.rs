//! Colours by role. The default uses the sixteen colours of the terminal; true colours are in themes only;
//! under `NO_COLOR` a theme of modifiers alone is used.

use std::collections::BTreeMap;
use std::ops::Index;

use ratatui::style::{Color, Modifier, Style};

use super::TuiError;

macro_rules! roles {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What a piece of text is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Role { $($(#[$doc])* $variant,)* }

        impl Role {
            /// All of them.
            pub const ALL: &'static [Role] = &[$(Role::$variant,)*];
            /// The name in a theme file.
            pub const fn name(self) -> &'static str {
                match self { $(Role::$variant => $name,)* }
            }
        }
    };
}

roles! {
    /// Plain text.
    Text = "text",
    /// Less important text.
    Dim = "dim",
    /// The program's name, the spinner.
    Accent = "accent",
    /// A pane's title.
    Title = "title",
    /// The title of the pane with the focus.
    TitleFocus = "title-focus",
    /// Lines between panes.
    Rule = "rule",
    /// The selected row in the pane with the focus.
    Selected = "selected",
    /// The selected row in another pane.
    SelectedDim = "selected-dim",
    /// A key in the footer and the help.
    Key = "key",
    /// Message numbers.
    Number = "number",
    /// Added paths.
    Added = "added",
    /// Modified paths.
    Modified = "modified",
    /// Deleted paths.
    Deleted = "deleted",
    /// Renamed paths.
    Renamed = "renamed",
    /// Changes of type or attributes.
    Other = "other",
    /// Inserted lines.
    LineAdded = "line-added",
    /// Deleted lines.
    LineDeleted = "line-deleted",
    /// The words of an inserted line that differ.
    WordAdded = "word-added",
    /// The words of a deleted line that differ.
    WordDeleted = "word-deleted",
    /// The head of a hunk.
    Hunk = "hunk",
    /// What a search found.
    Match = "match",
    /// Good.
    Ok = "ok",
    /// To be looked at.
    Warn = "warn",
    /// Bad.
    Bad = "bad",
    /// The user's own edits.
    Yours = "yours",
    /// The marks a and b.
    Mark = "mark",
    /// The agent is at work.
    Live = "live",
}

/// A style for each role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Theme {
    styles: Vec<Style>,
}

impl Index<Role> for Theme {
    type Output = Style;
    fn index(&self, role: Role) -> &Style {
        &self.styles[role as usize]
    }
}

/// The themes that are built in, by name.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("default", include_str!("../../assets/themes/default.toml")),
    ("dark", include_str!("../../assets/themes/dark.toml")),
    ("light", include_str!("../../assets/themes/light.toml")),
    ("mono", include_str!("../../assets/themes/mono.toml")),
];

impl Theme {
    /// A built-in theme.
    pub fn named(name: &str) -> Result<Self, TuiError> {
        let text = BUILT_IN.iter().find(|(n, _)| *n == name).ok_or_else(|| {
            let names: Vec<_> = BUILT_IN.iter().map(|(n, _)| *n).collect();
            TuiError::Theme(format!(
                "there is no theme {name:?}; there are {}",
                names.join(", ")
            ))
        })?;
        Self::parse(text.1)
    }

    /// Reads a theme file: `role = "fg on bg modifiers"`, every role once.
    pub fn parse(text: &str) -> Result<Self, TuiError> {
        let table: BTreeMap<String, String> =
            toml::from_str(text).map_err(|e| TuiError::Theme(e.message().to_owned()))?;
        if let Some(unknown) = table.keys().find(|k| !Role::ALL.iter().any(|r| r.name() == *k)) {
            return Err(TuiError::Theme(format!("there is no role {unknown:?}")));
        }
        let mut styles = Vec::with_capacity(Role::ALL.len());
        for role in Role::ALL {
            let words = table
                .get(role.name())
                .ok_or_else(|| TuiError::Theme(format!("the role {:?} is missing", role.name())))?;
            styles.push(style(words)?);
        }
        Ok(Self { styles })
    }

    /// With another style for one role, by its name.
    pub fn set(&mut self, role: &str, words: &str) -> Result<(), TuiError> {
        let found = Role::ALL.iter().find(|r| r.name() == role);
        let role = found.ok_or_else(|| TuiError::Theme(format!("there is no role {role:?}")))?;
        self.styles[*role as usize] = style(words)?;
        Ok(())
    }
}

fn style(words: &str) -> Result<Style, TuiError> {
    let mut style = Style::new();
    let mut background = false;
    for word in words.split_whitespace() {
        if let Some(modifier) = modifier(word) {
            style = style.add_modifier(modifier);
        } else if word == "on" {
            background = true;
        } else {
            let color = color(word)
                .ok_or_else(|| TuiError::Theme(format!("{word:?} is no colour and no modifier")))?;
            style = if std::mem::take(&mut background) {
                style.bg(color)
            } else {
                style.fg(color)
            };
        }
    }
    Ok(style)
}

fn modifier(word: &str) -> Option<Modifier> {
    Some(match word {
        "bold" => Modifier::BOLD,
        "dim" => Modifier::DIM,
        "italic" => Modifier::ITALIC,
        "underline" => Modifier::UNDERLINED,
        "reverse" => Modifier::REVERSED,
        _ => return None,
    })
}

fn color(word: &str) -> Option<Color> {
    if let Some(hex) = word.strip_prefix('#').filter(|h| h.len() == 6) {
        return u32::from_str_radix(hex, 16).ok().map(Color::from_u32);
    }
    Some(match word {
        "black" => Color::Black,
        "red" => Color::Red,
        "green" => Color::Green,
        "yellow" => Color::Yellow,
        "blue" => Color::Blue,
        "magenta" => Color::Magenta,
        "cyan" => Color::Cyan,
        "gray" => Color::Gray,
        "gray-dark" => Color::DarkGray,
        "white" => Color::White,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_theme_is_whole_and_mono_has_no_colour() {
        for (name, _) in BUILT_IN {
            let theme = Theme::named(name).expect(name);
            if *name == "mono" {
                for role in Role::ALL {
                    assert_eq!(
                        (theme[*role].fg, theme[*role].bg),
                        (None, None),
                        "{}",
                        role.name()
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_in_a_theme_is_named() {
        let error = Theme::parse("texxt = \"\"")
            .expect_err("unknown role")
            .to_string();
        assert!(error.contains("texxt"), "{error}");
        let mut theme = Theme::named("dark").expect("dark");
        theme.set("bad", "#ff0000 bold").expect("valid");
        assert_eq!(theme[Role::Bad].fg, Some(Color::from_u32(0x00ff_0000)));
        let error = theme.set("baad", "red").expect_err("unknown role").to_string();
        assert!(error.contains("baad"), "{error}");
        let error = style("purplish").expect_err("unknown colour").to_string();
        assert!(error.contains("purplish"), "{error}");
    }
}

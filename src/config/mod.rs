//! The user's configuration (TOML), and the part of it that a workspace may set for itself.

pub mod project;
pub mod run;
pub mod values;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::failure::{Explain, Kind};
use crate::text::shown_path;
use values::{Age, Size};

/// The configuration with nothing set, every key described: what `respool man` shows.
pub const DEFAULT: &str = include_str!("../../assets/config.toml");

/// The config file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", shown_path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is not what it must be.
    #[error("{}: {}", shown_path(path), crate::text::shown(reason))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        reason: String,
    },
}

impl Explain for ConfigError {
    fn kind(&self) -> Kind {
        match self {
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Kind::NotFound,
            Self::Io { .. } => Kind::Failed,
            Self::Invalid { .. } => Kind::Usage,
        }
    }
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } | Self::Invalid { path, .. } => Some(path),
        }
    }
    fn hint(&self) -> Option<String> {
        match self {
            Self::Invalid { .. } => Some("respool man describes every key".into()),
            Self::Io { .. } => None,
        }
    }
}

/// The vault to use for a new sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VaultSetting {
    /// What fits.
    #[default]
    Auto,
    /// Snapshots.
    Btrfs,
    /// Copies.
    Copy,
}

/// `[sandbox]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The vault of new sandboxes.
    pub vault: VaultSetting,
    /// Docker's data is to be in a pool, or not; `None` where nothing is said.
    pub docker_snapshots: Option<bool>,
    /// Folders of a btrfs vault that are in no checkpoint; relative paths.
    #[serde(deserialize_with = "no_caches")]
    pub caches: Vec<String>,
    /// What copies take although `exclude` leaves it out; patterns as in a `.gitignore`.
    #[serde(deserialize_with = "patterns")]
    pub include: Vec<String>,
    /// What copies leave out; patterns as in a `.gitignore`.
    #[serde(deserialize_with = "patterns")]
    pub exclude: Vec<String>,
}

/// Why `caches` is refused.
pub const NO_CACHES: &str = "caches is not supported yet: leave it out, or use exclude with the copy vault";

fn no_caches<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let list = Vec::<String>::deserialize(d)?;
    if list.is_empty() {
        return Ok(list);
    }
    Err(serde::de::Error::custom(NO_CACHES))
}

fn patterns<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let list = Vec::<String>::deserialize(d)?;
    match list.iter().find_map(|p| crate::patterns::wrong(p)) {
        Some(why) => Err(serde::de::Error::custom(why)),
        None => Ok(list),
    }
}

/// `[retention]`: the defaults of `prune`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Keep the newest so many.
    pub keep: Option<usize>,
    /// Keep those younger than this.
    pub keep_within: Option<Age>,
    /// Bytes that the checkpoints may take.
    pub max_bytes: Option<Size>,
}

impl RetentionConfig {
    /// With what a workspace asks for, as far as it makes more stay: a rule of the user's may grow, a rule that
    /// keeps may come to those that there are. Where the user has no rule, the workspace's have no say: alone
    /// they would decide what goes.
    #[must_use]
    pub fn with_project(self, other: Self) -> Self {
        let rules = self.keep.is_some() || self.keep_within.is_some();
        Self {
            keep: if rules { self.keep.max(other.keep) } else { None },
            keep_within: if rules {
                self.keep_within.max(other.keep_within)
            } else {
                None
            },
            max_bytes: self
                .max_bytes
                .map(|own| other.max_bytes.map_or(own, |o| own.max(o))),
        }
    }
}

/// `[hooks]`: commands of the user's, each a list of words; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Run before a checkpoint is taken.
    #[serde(deserialize_with = "command")]
    pub pre_checkpoint: Vec<String>,
    /// Run after a rewind was checked.
    #[serde(deserialize_with = "command")]
    pub post_rewind: Vec<String>,
}

fn command<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    let words = Vec::<String>::deserialize(d)?;
    let Some(program) = words.first() else {
        return Ok(words);
    };
    if program.is_empty() || (program.contains('/') && !program.starts_with('/')) {
        let why = "the program is named by its absolute path, or by its name alone";
        return Err(serde::de::Error::custom(why));
    }
    if words.iter().any(|w| w.contains('\0')) {
        return Err(serde::de::Error::custom("a word of a command has no NUL in it"));
    }
    Ok(words)
}

/// `[agents.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The command that opens a conversation again; empty: the agent's own.
    #[serde(deserialize_with = "command")]
    pub resume: Vec<String>,
    /// The file that holds the key of its server.
    pub api_key_file: Option<PathBuf>,
    /// The address of its server.
    pub url: Option<String>,
}

/// The keys of an action: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a key or a list of keys")]
pub enum Keys {
    /// One.
    One(String),
    /// Several, or none.
    Many(Vec<String>),
}

impl Keys {
    /// All of them.
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

/// The configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// New sandboxes, and what copies cover.
    pub sandbox: SandboxConfig,
    /// What `prune` keeps.
    pub retention: RetentionConfig,
    /// The user's commands.
    pub hooks: HooksConfig,
    /// What is to be known of an agent, by its name.
    pub agents: BTreeMap<String, AgentConfig>,
    /// Keys of the TUI, by action.
    pub keys: BTreeMap<String, Keys>,
    /// Colours of the TUI: `name` = the theme, anything else = a role.
    pub theme: BTreeMap<String, String>,
    /// The file that it came from.
    #[serde(skip)]
    pub file: Option<ConfigFile>,
}

/// The file that a configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// Whose it is.
    pub uid: u32,
    /// Others than its owner can write to it.
    pub shared: bool,
    text: String,
}

/// The sections whose lines are looked up later.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Lines {
    keys: BTreeMap<String, Spanned<IgnoredAny>>,
    theme: BTreeMap<String, Spanned<IgnoredAny>>,
}

impl Config {
    /// Reads the named file, or `config.toml` in the config folder if it is there.
    pub fn load(named: Option<&Path>, dir: &Path) -> Result<Self, ConfigError> {
        let path = named.map_or_else(|| dir.join("config.toml"), Path::to_owned);
        let (bytes, meta) = match crate::paths::read_with_meta(&path) {
            Ok(read) => read,
            Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => return Err(ConfigError::Io { path, source }),
        };
        let invalid = |reason: String| ConfigError::Invalid {
            path: path.clone(),
            reason,
        };
        let text = String::from_utf8(bytes).map_err(|e| invalid(e.utf8_error().to_string()))?;
        let mut config: Self = toml::from_str(&text).map_err(|e| invalid(in_one_line(&text, &e)))?;
        config.file = Some(ConfigFile {
            path,
            uid: meta.uid(),
            shared: meta.mode() & 0o022 != 0,
            text,
        });
        Ok(config)
    }

    /// The error for a value of `[keys]` or `[theme]` that those who use it refuse.
    pub fn refused(&self, section: &str, key: &str, why: &str) -> ConfigError {
        let Some(file) = &self.file else {
            return ConfigError::Invalid {
                path: PathBuf::new(),
                reason: format!("{section}.{key}: {why}"),
            };
        };
        let lines: Lines = toml::from_str(&file.text).unwrap_or_default();
        let found = match section {
            "keys" => lines.keys.get(key),
            _ => lines.theme.get(key),
        };
        let line = found.map_or(1, |s| line_at(&file.text, s.span().start));
        ConfigError::Invalid {
            path: file.path.clone(),
            reason: format!("line {line}: {section}.{key}: {why}"),
        }
    }
}

/// The number of the line with this byte, from 1.
fn line_at(text: &str, byte: usize) -> usize {
    text.get(..byte).map_or(1, |b| b.matches('\n').count() + 1)
}

/// What is wrong and in which line, without the picture of it that TOML errors print.
fn in_one_line(text: &str, e: &toml::de::Error) -> String {
    let line = e.span().map_or(1, |s| line_at(text, s.start));
    format!("line {line}: {}", e.message().trim().replace('\n', ", "))
}

#[cfg(test)]
mod tests;

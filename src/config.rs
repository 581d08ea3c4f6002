//! The user's and the project's configuration (TOML).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::failure::{Explain, Kind};
use crate::text::shown_path;

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
}

/// `[retention]`: the defaults of `prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionConfig {
    /// Keep the newest so many.
    pub keep: Option<usize>,
    /// Keep those younger than this.
    pub keep_within: Option<String>,
    /// Bytes that the pool may hold.
    pub max_bytes: Option<u64>,
}

/// The configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// New sandboxes.
    pub sandbox: SandboxConfig,
    /// What `prune` keeps.
    pub retention: RetentionConfig,
    /// Keys of the TUI: action = "key".
    pub keys: std::collections::BTreeMap<String, toml::Value>,
    /// Colours of the TUI.
    pub theme: std::collections::BTreeMap<String, toml::Value>,
    /// The file that it came from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Config {
    /// Reads the named file, or `config.toml` in the config folder if it is there.
    pub fn load(named: Option<&Path>, dir: &Path) -> Result<Self, ConfigError> {
        let path = named.map_or_else(|| dir.join("config.toml"), Path::to_owned);
        let text = match crate::paths::read_text(&path) {
            Ok(text) => text,
            Err(e) if named.is_none() && e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => return Err(ConfigError::Io { path, source }),
        };
        let mut config: Self = toml::from_str(&text).map_err(|e| ConfigError::Invalid {
            path: path.clone(),
            reason: in_one_line(&text, &e),
        })?;
        config.file = Some(path);
        Ok(config)
    }
}

/// What is wrong and in which line, without the picture of it that TOML errors print.
fn in_one_line(text: &str, e: &toml::de::Error) -> String {
    let before = e.span().and_then(|s| text.get(..s.start));
    let line = before.map_or(1, |b| b.matches('\n').count() + 1);
    format!("line {line}: {}", e.message().trim().replace('\n', ", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_default_is_fine_a_missing_named_one_is_not() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(
            Config::load(None, dir.path()).expect("default"),
            Config::default()
        );
        let e = Config::load(Some(&dir.path().join("x.toml")), dir.path()).expect_err("named");
        assert_eq!(e.kind(), Kind::NotFound);
    }

    #[test]
    fn an_unknown_key_is_named() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("config.toml"), "[sandbox]\nvualt = \"copy\"\n").expect("write");
        let e = Config::load(None, dir.path()).expect_err("unknown");
        assert!(e.to_string().contains("vualt"), "{e}");
        std::fs::write(dir.path().join("config.toml"), "[sandbox]\nvault = \"copy\"\n").expect("write");
        assert_eq!(
            Config::load(None, dir.path()).expect("valid").sandbox.vault,
            VaultSetting::Copy
        );
    }
}

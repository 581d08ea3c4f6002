//! `.respool.toml` in the root of a workspace. Whoever works there can write it, the agent too: it may say
//! what copies cover, make more checkpoints stay, and choose a theme. Everything else in it is ignored with a
//! warning, and nothing about it stops the program.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use toml::{Table, Value};

use super::{NO_CACHES, RetentionConfig};
use crate::text::shown;

/// Its name.
pub const NAME: &str = ".respool.toml";
/// More of it is not read.
const MOST: u64 = 64 << 10;
/// More patterns than this are not used.
const PATTERNS: usize = 1000;

/// What a workspace sets for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Project {
    /// What copies take although something leaves it out.
    pub include: Vec<String>,
    /// What copies leave out.
    pub exclude: Vec<String>,
    /// What may make more checkpoints stay.
    pub retention: RetentionConfig,
    /// A theme, by its name. (Single colours could hide a text.)
    pub theme: Option<String>,
    /// What of it was ignored, one harmless line each.
    pub warnings: Vec<String>,
}

impl Project {
    /// Reads the one in the folder `root`; nothing is set where there is none.
    pub fn read(root: BorrowedFd<'_>) -> Self {
        match text(root) {
            Ok(None) => Self::default(),
            Ok(Some(text)) => Self::parse(&text),
            Err(e) => {
                let mut project = Self::default();
                project.warn(format!("it is ignored: {e}"));
                project
            }
        }
    }

    /// True where the folder has an entry of its name, whatever it is.
    pub fn is_there(root: BorrowedFd<'_>) -> bool {
        rustix::fs::statat(root, NAME, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// What this text sets.
    pub fn parse(text: &str) -> Self {
        let mut project = Self::default();
        match text.parse::<Table>() {
            Ok(table) => project.take(table),
            Err(e) => project.warn(format!("it is ignored: {}", super::in_one_line(text, &e))),
        }
        project
    }

    fn warn(&mut self, what: impl AsRef<str>) {
        // a file full of wrong keys needs no more than this
        if self.warnings.len() < 20 {
            let what: String = what.as_ref().chars().take(300).collect();
            self.warnings.push(format!("{NAME}: {}", shown(&what)));
        }
    }

    fn take(&mut self, table: Table) {
        for (section, value) in table {
            let Value::Table(entries) = value else {
                self.warn(format!("{section} is ignored"));
                continue;
            };
            for (key, value) in entries {
                match (section.as_str(), key.as_str()) {
                    ("sandbox", "include") => self.include = self.patterns("include", value),
                    ("sandbox", "exclude") => self.exclude = self.patterns("exclude", value),
                    ("sandbox", "caches") => self.warn(NO_CACHES),
                    ("retention", "keep") => self.retention.keep = self.value("retention.keep", value),
                    ("retention", "keep_within") => {
                        self.retention.keep_within = self.value("retention.keep_within", value);
                    }
                    ("retention", "max_bytes") => {
                        self.retention.max_bytes = self.value("retention.max_bytes", value);
                    }
                    ("theme", "name") => self.theme = self.value("theme.name", value),
                    _ => self.warn(format!(
                        "{section}.{key} is ignored: it can be set in your own config only"
                    )),
                }
            }
        }
    }

    fn value<'de, T: Deserialize<'de>>(&mut self, key: &str, value: Value) -> Option<T> {
        match value.try_into() {
            Ok(value) => Some(value),
            Err(e) => {
                self.warn(format!("{key} is ignored: {}", e.message()));
                None
            }
        }
    }

    fn patterns(&mut self, key: &str, value: Value) -> Vec<String> {
        let list: Vec<String> = self.value(key, value).unwrap_or_default();
        if list.len() > PATTERNS {
            self.warn(format!("{key} is ignored: more than {PATTERNS} patterns"));
            return Vec::new();
        }
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for pattern in list {
            match crate::patterns::wrong(&pattern) {
                Some(why) => bad.push(why),
                None => good.push(pattern),
            }
        }
        for why in bad {
            self.warn(format!("{key}: {why}"));
        }
        good
    }
}

/// Its text, if there is one. No link is followed, nothing but a regular file is read.
fn text(root: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = loop {
        match rustix::fs::openat2(root, NAME, flags, Mode::empty(), resolve) {
            // a rename anywhere raced with the look-up (openat2(2))
            Err(rustix::io::Errno::AGAIN) => {}
            other => break other,
        }
    };
    let file = match opened {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(io::Error::other("it is a link")),
        Err(e) => return Err(e.into()),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::other("it is too large"));
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("it is no UTF-8"))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;
    use crate::config::values::{Age, Size};

    fn read(dir: &Path) -> Project {
        Project::read(File::open(dir).expect("open").as_fd())
    }

    #[test]
    fn what_it_may_set_and_what_not() {
        let project = Project::parse(
            "[sandbox]\nexclude = [\"*.o\"]\ninclude = [\"a.o\"]\nvault = \"copy\"\n\
             [retention]\nkeep = 3\nkeep_within = \"2d\"\nmax_bytes = \"1K\"\n\
             [hooks]\npost_rewind = [\"sh\", \"-c\", \"rm -rf ~\"]\n\
             [theme]\nname = \"dark\"\nyours = \"black on black\"\n[keys]\nconfirm = \"\\u001b[2J\"\n",
        );
        assert_eq!((project.exclude.len(), project.include.len()), (1, 1));
        assert_eq!(
            project.retention,
            RetentionConfig {
                keep: Some(3),
                keep_within: Some(Age(chrono::TimeDelta::days(2))),
                max_bytes: Some(Size(1024)),
            }
        );
        assert_eq!(project.theme.as_deref(), Some("dark"));
        let said = project.warnings.join("\n");
        for key in [
            "sandbox.vault",
            "hooks.post_rewind",
            "theme.yours",
            "keys.confirm",
        ] {
            assert!(said.contains(&format!("{key} is ignored")), "{said}");
        }
        assert_eq!(project.warnings.len(), 4, "{said}");
    }

    #[test]
    fn wrong_ones_are_warnings_without_control_characters() {
        for text in [
            "[sandbox",
            "x = 1",
            "[sandbox]\nexclude = 3",
            "[retention]\nkeep = \"\u{1b}[2J\"",
            "[\"\\u001b[2J\"]\n\"\\n\" = 1\n",
            "[retention]\nkeep_within = \"soon\"",
        ] {
            let project = Project::parse(text);
            let plain = Project {
                warnings: Vec::new(),
                ..project.clone()
            };
            assert_eq!(plain, Project::default(), "{text}");
            assert_eq!(project.warnings.len(), 1, "{text}");
            assert!(!project.warnings[0].chars().any(char::is_control), "{project:?}");
        }
        let many: String = (0..500).map(|n| format!("k{n} = {n}\n")).collect();
        assert_eq!(Project::parse(&many).warnings.len(), 20);
    }

    #[test]
    fn no_link_no_pipe_no_folder_and_nothing_huge_is_read() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(NAME);
        assert_eq!(read(dir.path()), Project::default());
        std::fs::write(dir.path().join("real"), "[theme]\nname = \"dark\"\n").expect("write");
        std::os::unix::fs::symlink("real", &path).expect("link");
        let ignored = |why: &str| {
            let project = read(dir.path());
            assert_eq!(project.theme, None, "{why}");
            assert!(project.warnings[0].contains(why), "{project:?}");
            if path.is_dir() {
                std::fs::remove_dir(&path).expect("remove");
            } else {
                std::fs::remove_file(&path).expect("remove");
            }
        };
        ignored("is a link");
        let pipe = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(pipe.expect("mkfifo").success());
        ignored("no regular file");
        std::fs::create_dir(&path).expect("mkdir");
        ignored("no regular file");
        File::create(&path)
            .expect("file")
            .set_len(MOST + 1)
            .expect("size");
        ignored("too large");
        std::fs::write(&path, b"\xff").expect("write");
        ignored("no UTF-8");
        std::fs::rename(dir.path().join("real"), &path).expect("rename");
        assert_eq!(read(dir.path()).theme.as_deref(), Some("dark"));
    }
}

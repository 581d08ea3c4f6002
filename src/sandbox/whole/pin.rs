//! Docker's `daemon.json`: the storage driver is named there while the data is in a pool, as a daemon chooses by the
//! file system otherwise and would find no images. All other bytes stay as they are.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::text::{ExactPath, shown_path};

const KEY: &str = "storage-driver";

/// An edit of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The file.
    pub path: ExactPath,
    /// What it was; `None` if it was not there.
    pub before: Option<String>,
    /// What it is while the data is in a pool.
    pub after: String,
    /// The driver.
    pub driver: String,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("it is no JSON object".into()),
        Err(e) => Err(e.to_string()),
    }
}

/// The text with the key right behind the first brace, in the way that the rest is laid out.
fn with_key(text: &str, driver: &str) -> Option<String> {
    let brace = text.find('{')? + 1;
    let (head, rest) = text.split_at(brace);
    let empty = object(text).ok()?.is_empty();
    let value = Value::String(driver.to_owned());
    let pair = format!("\"{KEY}\": {value}{}", if empty { "" } else { "," });
    let line = rest.split_once('\n').filter(|(blank, _)| blank.trim().is_empty());
    let added = match line {
        Some((blank, below)) => {
            let indent: String = below.chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
            let indent = if empty { "  " } else { &indent };
            format!("{blank}\n{indent}{pair}\n{below}")
        }
        None if empty => format!("{pair}{rest}"),
        None => format!("{pair} {}", rest.trim_start_matches(' ')),
    };
    Some(head.to_owned() + &added)
}

fn read(path: &Path) -> Result<Option<String>, String> {
    match crate::paths::read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// The file itself, where the path is a link to it.
fn settled(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

impl Pin {
    /// The edit that names this driver, which the daemon uses; `None` if the file says so already. Nothing is written.
    pub fn plan(path: &Path, driver: &str) -> Result<Option<Self>, String> {
        let path = settled(path);
        let wrong = |why: String| format!("{}: {why}", shown_path(&path));
        let before = read(&path).map_err(wrong)?;
        let known = before
            .as_deref()
            .map_or_else(|| Ok(Map::new()), object)
            .map_err(wrong)?;
        match known.get(KEY).map(Value::as_str) {
            Some(Some(set)) if set == driver => return Ok(None),
            Some(set) => {
                let set = crate::text::shown(set.unwrap_or("something else"));
                return Err(wrong(format!(
                    "it names the storage driver {set}, and the daemon uses {driver}"
                )));
            }
            None => {}
        }
        let after = match &before {
            None => format!("{{\n  \"{KEY}\": \"{driver}\"\n}}\n"),
            Some(text) => with_key(text, driver).ok_or_else(|| wrong("it has no brace".into()))?,
        };
        let mut should = known;
        should.insert(KEY.into(), driver.into());
        if object(&after).map_err(wrong)? != should {
            return Err(wrong("the key cannot be added without changing the rest".into()));
        }
        Ok(Some(Self {
            path: ExactPath(path),
            before,
            after,
            driver: driver.to_owned(),
        }))
    }

    /// Writes it. An error if the file was changed since.
    pub fn set(&self) -> Result<(), String> {
        let path = &self.path.0;
        let wrong = |why: String| format!("{}: {why}", shown_path(path));
        let now = read(path).map_err(wrong)?;
        if now.as_deref() == Some(&self.after) {
            return Ok(());
        }
        if now != self.before {
            return Err(wrong("it was changed meanwhile".into()));
        }
        replace(path, &self.after).map_err(|e| wrong(e.to_string()))
    }

    /// Takes it back: byte for byte where nobody changed the file since; else our key alone. What could not be done, one
    /// harmless line.
    pub fn unset(&self) -> Result<Option<String>, String> {
        let path = &self.path.0;
        let wrong = |why: String| format!("{}: {why}", shown_path(path));
        let now = read(path).map_err(wrong)?;
        if now == self.before {
            return Ok(None);
        }
        let Some(now) = now else {
            return Ok(Some(wrong("it was removed meanwhile".into())));
        };
        if now != self.after {
            return self.take_key(&now);
        }
        let done = match &self.before {
            Some(before) => replace(path, before),
            None => fs::remove_file(path),
        };
        done.map(|()| None).map_err(|e| wrong(e.to_string()))
    }

    /// Our key out of a file that somebody changed since.
    fn take_key(&self, now: &str) -> Result<Option<String>, String> {
        let path = &self.path.0;
        let left = |why: &str| {
            Ok(Some(format!(
                "{}: it was changed since, and {why}: \"{KEY}\" stays in it",
                shown_path(path)
            )))
        };
        let Ok(mut map) = object(now) else {
            return left("is no JSON now");
        };
        match map.remove(KEY).as_ref().and_then(Value::as_str) {
            None => return Ok(None),
            Some(set) if set != self.driver => return left("names another driver"),
            Some(_) => {}
        }
        let Some(text) = without_key(now, &map) else {
            return left("the key cannot be taken out without changing the rest");
        };
        replace(path, &text)
            .map(|()| None)
            .map_err(|e| format!("{}: {e}", shown_path(path)))
    }
}

/// The text without the key and its comma, if what is left says `map`.
fn without_key(text: &str, map: &Map<String, Value>) -> Option<String> {
    let name = format!("\"{KEY}\"");
    text.match_indices(&name).find_map(|(at, _)| {
        let (mut from, rest) = (at, text.get(at + name.len()..)?);
        let value = rest.trim_start().strip_prefix(':')?.trim_start();
        let end = value.get(1..)?.find('"')? + 2;
        let mut to = text.len() - value.len() + end;
        let after = text.get(to..)?;
        if let Some(rest) = after.trim_start().strip_prefix(',') {
            to = text.len() - rest.len();
        } else {
            // the last one: the comma before it goes
            let before = text.get(..from)?.trim_end();
            from = before.strip_suffix(',').map_or(from, str::len);
        }
        // and the line that it had for itself
        let line = text.get(..from)?.rfind('\n').map_or(0, |n| n + 1);
        if text.get(line..from)?.trim().is_empty() && text.get(to..)?.starts_with('\n') {
            (from, to) = (line, to + 1);
        }
        let out = text.get(..from)?.to_owned() + text.get(to..)?;
        (object(&out).ok()? == *map).then_some(out)
    })
}

/// Writes a file in one step, durably, with the owner and the mode that it has.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let temp = parent.join(format!(".daemon.json.respool-{}", std::process::id()));
    let meta = fs::metadata(path).ok();
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .mode(0o600)
            .open(&temp)?;
        file.write_all(text.as_bytes())?;
        let mode = meta.as_ref().map_or(0o644, |m| m.mode() & 0o7777);
        if let Some(m) = &meta {
            fchown(&file, Some(m.uid()), Some(m.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        fs::File::open(parent)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&temp)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(before: Option<&str>) -> String {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().canonicalize().expect("real").join("daemon.json");
        if let Some(text) = before {
            fs::write(&path, text).expect("write");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("mode");
        }
        let pin = Pin::plan(&path, "overlay2").expect("a plan").expect("an edit");
        assert_eq!(
            read(&path).expect("read").as_deref(),
            before,
            "nothing is written"
        );
        pin.set().expect("set");
        pin.set().expect("again");
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(object(&text).expect("JSON")[KEY], "overlay2");
        assert_eq!(Pin::plan(&path, "overlay2"), Ok(None));
        if before.is_some() {
            assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o640);
        }
        assert_eq!(pin.unset(), Ok(None));
        assert_eq!(read(&path).expect("read").as_deref(), before, "byte for byte");
        assert_eq!(
            fs::read_dir(dir.path()).expect("list").count(),
            usize::from(before.is_some())
        );
        text
    }

    #[test]
    fn all_other_bytes_stay() {
        assert_eq!(there_and_back(None), "{\n  \"storage-driver\": \"overlay2\"\n}\n");
        assert_eq!(there_and_back(Some("{}")), "{\"storage-driver\": \"overlay2\"}");
        assert_eq!(
            there_and_back(Some("{\n}\n")),
            "{\n  \"storage-driver\": \"overlay2\"\n}\n"
        );
        assert_eq!(
            there_and_back(Some("{\n\t\"debug\" : true ,\n\t\"dns\":[ \"1.1.1.1\"]}")),
            "{\n\t\"storage-driver\": \"overlay2\",\n\t\"debug\" : true ,\n\t\"dns\":[ \"1.1.1.1\"]}"
        );
        assert_eq!(
            there_and_back(Some(" { \"log-level\":\"warn\"}")),
            " {\"storage-driver\": \"overlay2\", \"log-level\":\"warn\"}"
        );
    }

    #[test]
    fn what_others_changed_since_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().canonicalize().expect("real").join("daemon.json");
        let edited = |text: &str| {
            fs::write(&path, "{\n  \"debug\": true\n}\n").expect("write");
            let pin = Pin::plan(&path, "btrfs").expect("a plan").expect("an edit");
            pin.set().expect("set");
            fs::write(&path, text).expect("edit");
            let told = pin.unset().expect("unset");
            (fs::read_to_string(&path).expect("read"), told)
        };
        let (text, told) = edited("{\n  \"storage-driver\": \"btrfs\",\n  \"debug\": false\n}\n");
        assert_eq!((text.as_str(), told), ("{\n  \"debug\": false\n}\n", None));
        let (text, told) = edited("{\n  \"debug\": false,\n  \"storage-driver\": \"btrfs\"\n}\n");
        assert_eq!((text.as_str(), told), ("{\n  \"debug\": false\n}\n", None));
        let other = "{\"storage-driver\": \"vfs\"}";
        let (text, told) = edited(other);
        assert_eq!(text, other);
        assert!(told.is_some_and(|t| t.contains("another driver")));
        let (text, told) = edited("{ no");
        assert_eq!(text, "{ no");
        assert!(told.is_some_and(|t| t.contains("no JSON")));
    }

    #[test]
    fn another_driver_and_what_is_no_json_are_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("daemon.json");
        for bad in ["{\"storage-driver\":\"vfs\"}", "", "[]", "{\"a\":1,}"] {
            fs::write(&path, bad).expect("write");
            assert!(Pin::plan(&path, "overlay2").is_err(), "{bad}");
        }
    }
}

//! What is in Docker's data, read from its files, so that a state that no daemon runs on can be asked: containers,
//! tags of images, volumes. All of it is written by others, and may be damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::OFlags;
use serde::Deserialize;

use crate::engine::catalog::names;
use crate::engine::subvolume::{open_beneath, open_dir};

/// The most that is read of one file.
const MOST: u64 = 4 << 20;

/// A container in the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its name (hostile).
    pub name: String,
    /// It ran.
    pub running: bool,
    /// It is removed once it is stopped.
    pub auto_remove: bool,
}

/// What is in the data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The containers, by id.
    pub containers: BTreeMap<String, Seen>,
    /// The tags of images.
    pub tags: BTreeSet<String>,
    /// The volumes.
    pub volumes: BTreeSet<String>,
}

/// `containers/ID/config.v2.json`.
#[derive(Deserialize)]
struct Config {
    #[serde(rename = "Name", default)]
    name: String,
    #[serde(rename = "State", default)]
    state: Running,
}

#[derive(Deserialize, Default)]
struct Running {
    #[serde(rename = "Running", default)]
    running: bool,
}

/// `containers/ID/hostconfig.json`.
#[derive(Deserialize, Default)]
struct Host {
    #[serde(rename = "AutoRemove", default)]
    auto_remove: bool,
}

/// `image/DRIVER/repositories.json`.
#[derive(Deserialize, Default)]
struct Repositories {
    #[serde(rename = "Repositories", default)]
    all: BTreeMap<String, BTreeMap<String, String>>,
}

fn read<T: for<'de> Deserialize<'de>>(root: impl AsFd, path: &Path) -> Option<T> {
    let file = open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let file = File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn listed(root: impl AsFd, path: &str) -> Vec<String> {
    let Ok(dir) = open_dir(root, path) else {
        return Vec::new();
    };
    let all = names(&dir, Path::new(path)).unwrap_or_default();
    all.into_iter()
        .filter_map(|n| String::from_utf8(n).ok())
        .collect()
}

impl Inventory {
    /// Of the data below an open folder. What cannot be read is not in it.
    pub fn of(root: impl AsFd, driver: &str) -> Self {
        let root = root.as_fd();
        let mut out = Self::default();
        for id in listed(root, "containers") {
            let at = Path::new("containers").join(&id);
            let Some(config) = read::<Config>(root, &at.join("config.v2.json")) else {
                continue;
            };
            let host: Host = read(root, &at.join("hostconfig.json")).unwrap_or_default();
            let seen = Seen {
                name: config.name.trim_start_matches('/').to_owned(),
                running: config.state.running,
                auto_remove: host.auto_remove,
            };
            out.containers.insert(id, seen);
        }
        let tags = Path::new("image").join(driver).join("repositories.json");
        let tags: Repositories = read(root, &tags).unwrap_or_default();
        let names = tags.all.into_values().flat_map(BTreeMap::into_keys);
        out.tags = names.filter(|n| !n.contains("@sha256:")).collect();
        let volumes = listed(root, "volumes").into_iter();
        out.volumes = volumes
            .filter(|n| open_dir(root, Path::new("volumes").join(n)).is_ok())
            .collect();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_read_and_what_is_damaged_left_out() {
        let dir = tempfile::tempdir().expect("tempdir");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        };
        write(
            "containers/aa/config.v2.json",
            r#"{"Name":"/one","State":{"Running":true}}"#,
        );
        write("containers/aa/hostconfig.json", r#"{"AutoRemove":true}"#);
        write("containers/bb/config.v2.json", r#"{"Name":"/two"}"#);
        write("containers/cc/config.v2.json", "{");
        write(
            "image/overlay2/repositories.json",
            r#"{"Repositories":{"box":{"box:1":"sha256:1","box@sha256:2":"sha256:2"}}}"#,
        );
        write("volumes/v1/_data/f", "");
        write("volumes/metadata.db", "");
        let root = File::open(dir.path()).expect("open");
        let found = Inventory::of(&root, "overlay2");
        let seen = |name: &str, on| Seen {
            name: name.into(),
            running: on,
            auto_remove: on,
        };
        let want = [
            ("aa".to_owned(), seen("one", true)),
            ("bb".to_owned(), seen("two", false)),
        ];
        assert_eq!(found.containers, BTreeMap::from(want));
        assert_eq!(found.tags, BTreeSet::from(["box:1".to_owned()]));
        assert_eq!(found.volumes, BTreeSet::from(["v1".to_owned()]));
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir_all(dir.path().join("containers/aa")).expect("folder");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, r#"{"Name":"/stolen"}"#).expect("write");
        std::os::unix::fs::symlink(&secret, dir.path().join("containers/aa/config.v2.json")).expect("link");
        let root = File::open(dir.path().join(".")).expect("open");
        assert_eq!(Inventory::of(&root, "overlay2"), Inventory::default());
    }
}

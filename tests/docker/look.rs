//! What a container is and does.

use std::path::PathBuf;

use serde_json::Value;

use crate::engine::{Engine, Layout};

impl Layout {
    pub fn technique(self) -> &'static str {
        match self {
            Self::Btrfs => "subvolume-root",
            Self::OverlayOnBtrfs => "overlay-on-btrfs",
            Self::OverlayOnExt4 => "overlay-copy",
        }
    }
}

impl Engine {
    pub fn inspect(&self, name: &str) -> Value {
        let text = self.docker(&["inspect", name]);
        let mut all: Vec<Value> = serde_json::from_str(&text).expect("inspect");
        all.remove(0)
    }

    pub fn id(&self, name: &str) -> String {
        self.inspect(name)["Id"].as_str().expect("id").to_owned()
    }

    pub fn state(&self, name: &str) -> String {
        self.inspect(name)["State"]["Status"]
            .as_str()
            .expect("state")
            .to_owned()
    }

    /// The root file system as a process in the running container sees it.
    pub fn root(&self, name: &str) -> PathBuf {
        let pid = self.inspect(name)["State"]["Pid"].as_i64().expect("pid");
        assert!(pid > 0, "{name} does not run");
        PathBuf::from(format!("/proc/{pid}/root/."))
    }
}

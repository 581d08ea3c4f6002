//! What a container sees of the folders here: a mount of it stays where it is when the folder is exchanged or unmounted.

use std::path::{Path, PathBuf};

use super::containers;
use super::engine::Engine;
use super::inspect::{ContainerMount, Inspect};
use crate::engine::mounts::Mount;
use crate::sandbox::mounts::{identity, mounts};
use crate::text::shown;

/// The mount namespace of a process.
fn namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// The containers that live here, by what they see.
#[derive(Debug, Default)]
pub struct Residents(Vec<(PathBuf, String)>);

impl Residents {
    /// Asks the engine. Of one that does not answer nothing is known.
    pub fn look() -> Self {
        let listed = containers().map_or_else(
            |e| {
                tracing::debug!("which containers run is not known: {e}");
                Vec::new()
            },
            |(engine, all)| {
                if engine.out_of_reach().is_some() {
                    Vec::new()
                } else {
                    all
                }
            },
        );
        let own = namespace(std::process::id() as i32);
        let one = |c: Inspect| {
            let space = (c.pid > 0).then(|| namespace(c.pid)).flatten()?;
            (Some(&space) != own.as_ref()).then_some((space, c.name))
        };
        Self(listed.into_iter().filter_map(one).collect())
    }

    /// The name (hostile) of the container that a process is in.
    pub fn of(&self, pid: i32) -> Option<&str> {
        let space = namespace(pid)?;
        self.0
            .iter()
            .find(|(s, _)| *s == space)
            .map(|(_, name)| name.as_str())
    }
}

/// True if what is mounted at `destination` there is another folder than the one that is at `source` here now.
fn differs(own: &[Mount], source: &Path, theirs: &[Mount], destination: &Path) -> bool {
    let Some(should) = identity(own, source) else {
        return false;
    };
    let same = |m: &Mount| m.device == should.0 && m.root == should.1;
    match theirs.iter().rev().find(|m| m.point == destination) {
        Some(m) => !same(m),
        // it is under another name there, by a link
        None => !theirs.iter().any(same),
    }
}

/// Why a container that lives does not see the folder that is at the place of a mount here now, one harmless line;
/// `None` if it does, or if that cannot be told.
pub fn older(engine: &Engine, c: &Inspect, m: &ContainerMount) -> Option<String> {
    if c.pid <= 0 || engine.out_of_reach().is_some() {
        return None;
    }
    let (own, theirs) = (mounts(None).ok()?, mounts(Some(c.pid)).ok()?);
    let source = m.source.canonicalize().unwrap_or_else(|_| m.source.clone());
    differs(&own, &source, &theirs, &m.destination).then(|| {
        format!(
            "it sees an older folder at that place: docker restart {}",
            shown(&c.name)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::mounts::parse;

    #[test]
    fn another_subvolume_is_another_folder() {
        let own = parse(b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 /s/b/live /w rw - btrfs b rw\n");
        let sees = |text: &[u8]| !differs(&own, Path::new("/w"), &parse(text), Path::new("/in"));
        assert!(sees(b"9 8 0:2 /s/b/live /in rw - btrfs b rw\n"));
        assert!(!sees(b"9 8 0:2 /s/a/live /in rw - btrfs b rw\n"));
        assert!(!sees(b"9 8 0:2 /s/b/live//deleted /in rw - btrfs b rw\n"));
        assert!(!sees(b"9 8 0:1 /w /in rw - ext4 a rw\n"));
        // the last one mounted there counts
        assert!(!sees(
            b"9 8 0:2 /s/b/live /in rw - btrfs b rw\n10 9 0:1 /w /in rw - ext4 a rw\n"
        ));
        assert!(sees(b"9 8 0:2 /s/b/live /run/in rw - btrfs b rw\n"));
        assert!(!sees(b"9 8 0:5 / /proc rw - proc p rw\n"));
    }
}

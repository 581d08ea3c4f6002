//! Whether respool itself runs in a container, such as a dev container, and what that means.

use std::path::Path;

use crate::engine::attach::CONTAINER_FLAGS;
use crate::engine::mounts::{self, Mount};
use crate::engine::nodes::Loops;

/// Bits of a capability set (capabilities(7)).
const SYS_ADMIN: u32 = 21;
const MKNOD: u32 = 27;

/// What is known of the container that this is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// Whose it is: `docker`, `podman`, or another word.
    pub kind: String,
    /// Root may mount here.
    pub mounts: bool,
    /// Root may make device nodes here.
    pub nodes: bool,
    /// Loop devices.
    pub loops: Loops,
    /// A Docker socket that was mounted into it: its containers stand beside this one.
    pub beside: bool,
}

/// Looks; `None` outside of containers.
pub fn look() -> Option<Inside> {
    let kind = kind()?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bounds = bounds(&status);
    let nodes = bounds & (1 << MKNOD) != 0;
    Some(Inside {
        kind,
        mounts: bounds & (1 << SYS_ADMIN) != 0,
        nodes,
        loops: Loops::look(nodes),
        beside: mounts::list().is_ok_and(|all| socket(&all)),
    })
}

/// The engine's own mark, or what its init was told (systemd: the container interface).
fn kind() -> Option<String> {
    let there = |p: &str| Path::new(p).exists();
    if there("/.dockerenv") {
        return Some("docker".into());
    }
    if there("/run/.containerenv") {
        return Some("podman".into());
    }
    let told = std::fs::read_to_string("/run/systemd/container").ok()?;
    Some(crate::text::first_line(&told)).filter(|k| !k.is_empty())
}

/// The rights that root can have here at most.
fn bounds(status: &str) -> u64 {
    let line = status.lines().find_map(|l| l.strip_prefix("CapBnd:"));
    line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or(0)
}

fn socket(all: &[Mount]) -> bool {
    let named = |m: &Mount| {
        m.point
            .file_name()
            .is_some_and(|n| n == "docker.sock" || n == "docker-host.sock")
    };
    all.iter().any(named)
}

/// The check: whether it is all right, what to tell, what helps.
pub fn told(inside: &Inside) -> (bool, String, String) {
    let here = format!("in a container: {}", inside.kind);
    let lacks = match (inside.mounts, inside.nodes, inside.loops) {
        (false, ..) => Some("it has no right to mount (CAP_SYS_ADMIN)"),
        (_, false, _) => Some("it has no right to make device nodes (CAP_MKNOD)"),
        (.., Loops::Forbidden) => Some("it may not use loop devices"),
        (.., Loops::None) => Some("its kernel has no loop devices"),
        _ => None,
    };
    if let Some(lacks) = lacks {
        let hint = format!("start it with {CONTAINER_FLAGS}; copies work without");
        return (false, format!("{here}; {lacks}"), hint);
    }
    if inside.beside {
        let detail = format!(
            "{here}; its docker socket is another machine's: containers that it starts see folders as they are there, without what is mounted here"
        );
        let hint = "give this container a dockerd of its own (docker-in-docker), or run respool where that dockerd runs";
        return (false, detail, hint.into());
    }
    let detail = format!(
        "{here}; what is mounted here is seen in it and by containers of a dockerd in it, and nowhere else"
    );
    (true, detail, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_lacks_is_named_with_its_flags() {
        let whole = Inside {
            kind: "docker".into(),
            mounts: true,
            nodes: true,
            loops: Loops::CanBeMade,
            beside: false,
        };
        assert!(told(&whole).0);
        let poor: [fn(&mut Inside); 4] = [
            |i| i.mounts = false,
            |i| i.nodes = false,
            |i| i.loops = Loops::Forbidden,
            |i| i.loops = Loops::None,
        ];
        for edit in poor {
            let mut inside = whole.clone();
            edit(&mut inside);
            let (ok, detail, hint) = told(&inside);
            assert!(
                !ok && detail.starts_with("in a container: docker; it"),
                "{detail}"
            );
            assert!(
                hint.contains("--privileged") && hint.contains("'a *:* rwm'"),
                "{hint}"
            );
        }
        let beside = Inside {
            beside: true,
            ..whole
        };
        let (ok, detail, _) = told(&beside);
        assert!(!ok && detail.contains("socket"), "{detail}");
    }

    #[test]
    fn rights_are_read_from_the_bounding_set() {
        let status = "Name:\tx\nCapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n";
        let all = bounds(status);
        assert!(all & (1 << SYS_ADMIN) != 0 && all & (1 << MKNOD) != 0 && all & (1 << 24) == 0);
        assert_eq!(bounds("CapBnd:\tzz\n"), 0);
    }
}

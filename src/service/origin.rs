//! The container that a process is in, by the kernel's word.

use std::path::PathBuf;

use super::peer::Peer;
use crate::sandbox::site::Site;
use crate::watch::hook::words;

/// The container that it comes from. Where the sandbox has containers, it must be one of them.
pub(super) fn origin(site: &Site, peer: &Peer) -> Result<Option<String>, String> {
    let id = container_of(peer.pid);
    let parts = site.parts().map_err(|e| words(&e))?;
    if parts.is_empty() {
        return Ok(id);
    }
    let namespace = namespace_of(peer.pid);
    for found in parts.open() {
        let now = found.part.as_ref().ok().map(|p| &p.container);
        let own = now.map_or(&found.record.id, |c| &c.id);
        let same_room =
            now.is_some_and(|c| c.pid > 0 && namespace.is_some() && namespace_of(c.pid) == namespace);
        if id.as_ref() == Some(own) || same_room {
            return Ok(Some(found.record.name));
        }
    }
    Err(match id {
        Some(id) => format!(
            "the hook was called in container {}, which is none of this sandbox's",
            &id[..12]
        ),
        None => "the hook was not called in a container of this sandbox".into(),
    })
}

fn namespace_of(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// The container that a process is in, by its control groups: the last 64 hexadecimal digits in them.
fn container_of(pid: i32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    in_groups(&text)
}

fn in_groups(text: &str) -> Option<String> {
    let mut runs = text.split(|c: char| !c.is_ascii_hexdigit());
    runs.rfind(|r| r.len() == 64).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_its_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        for text in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("12:pids:/docker/{id}\n1:name=systemd:/docker/{id}\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
        ] {
            assert_eq!(in_groups(&text).as_deref(), Some(id.as_str()), "{text}");
        }
        assert_eq!(in_groups("0::/user.slice/user-1000.slice\n"), None);
        assert_eq!(
            in_groups(&format!("0::/{id}0\n")),
            None,
            "longer is another thing"
        );
    }
}

//! Where OpenHands keeps conversations. The places are those of the CLI 1.16, the agent server 1.58, Agent
//! Canvas 1.20, the V1 app 1.11 and V0 0.20 to 0.62.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Roots;

/// Folders that hold V1 stores.
pub(super) fn v1(roots: &Roots) -> Vec<PathBuf> {
    let home = roots.home.join(".openhands");
    let canvas = |dir: PathBuf| [dir.join("dev_conversations"), dir.join("conversations")];
    let mut dirs = Vec::new();
    dirs.extend(of_env(roots, "OPENHANDS_CONVERSATIONS_DIR"));
    dirs.extend(of_env(roots, "OPENHANDS_PERSISTENCE_DIR").map(|d| d.join("conversations")));
    dirs.extend(of_env(roots, "OH_CONVERSATIONS_PATH"));
    dirs.push(home.join("conversations"));
    dirs.extend(
        of_env(roots, "OH_CANVAS_SAFE_STATE_DIR")
            .into_iter()
            .flat_map(canvas),
    );
    dirs.extend(canvas(home.join("agent-canvas")));
    dirs.push(roots.cwd.join("workspace/conversations"));
    dirs.extend(servers(roots));
    // inside a container of OpenHands
    dirs.push("/workspace/conversations".into());
    dirs.push("/var/openhands/conversations".into());
    dirs
}

/// Folders that hold V0 stores.
pub(super) fn v0(roots: &Roots) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for store in file_stores(roots) {
        dirs.push(store.join("sessions"));
        dirs.extend(
            folders(&store.join("users"))
                .into_iter()
                .map(|user| user.join("conversations")),
        );
    }
    dirs
}

/// Folders that hold the V1 app's copies.
pub(super) fn app(roots: &Roots) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for store in file_stores(roots) {
        dirs.push(store.join("v1_conversations"));
        dirs.extend(
            folders(&store)
                .into_iter()
                .map(|user| user.join("v1_conversations")),
        );
    }
    dirs
}

fn file_stores(roots: &Roots) -> Vec<PathBuf> {
    let mut stores: Vec<PathBuf> = ["OH_PERSISTENCE_DIR", "FILE_STORE_PATH"]
        .iter()
        .filter_map(|name| of_env(roots, name))
        .collect();
    stores.push(roots.home.join(".openhands"));
    stores.push(roots.home.join(".openhands-state"));
    stores.push("/tmp/openhands_file_store".into());
    stores
}

/// The folders in each of `dirs` that `is_store` recognises. A link is no store of its own.
pub(super) fn stores(dirs: &[PathBuf], is_store: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut seen = std::collections::HashSet::new();
    let mut found = Vec::new();
    for dir in dirs {
        // one folder under two names is one folder
        let Ok(facts) = fs::metadata(dir) else { continue };
        if seen.insert((facts.dev(), facts.ino())) {
            found.extend(folders(dir).into_iter().filter(|d| is_store(d)));
        }
    }
    found
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect();
    folders.sort_unstable();
    folders
}

/// The path that an environment variable holds; `~` and relative ones resolved.
fn of_env(roots: &Roots, name: &str) -> Option<PathBuf> {
    let value = roots.env.get(name).filter(|v| !v.is_empty())?;
    Some(resolve(value, &roots.home, &roots.cwd))
}

fn resolve(value: &OsStr, home: &Path, cwd: &Path) -> PathBuf {
    let path = Path::new(value);
    match path.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => cwd.join(path),
    }
}

/// The conversation folders of the agent servers that run on this machine for the same user, in the same
/// mount namespace (those in containers have paths of their own).
fn servers(roots: &Roots) -> Vec<PathBuf> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let owner = fs::metadata(&roots.home).map(|m| m.uid()).ok();
    let namespace = fs::read_link("/proc/self/ns/mnt").ok();
    processes
        .filter_map(Result::ok)
        .filter(|e| e.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .map(|e| e.path())
        .filter(|p| is_server(&fs::read(p.join("cmdline")).unwrap_or_default()))
        .filter(|p| fs::metadata(p).map(|m| m.uid()).ok() == owner)
        .filter(|p| fs::read_link(p.join("ns/mnt")).ok() == namespace)
        .filter_map(|p| served_at(&p, &roots.home))
        .collect()
}

/// The conversation folder of the agent server whose folder in /proc this is.
fn served_at(process: &Path, home: &Path) -> Option<PathBuf> {
    let cwd = fs::read_link(process.join("cwd")).ok()?;
    let env = environment(&fs::read(process.join("environ")).unwrap_or_default());
    let set = env.get("OH_CONVERSATIONS_PATH").filter(|v| !v.is_empty());
    let path = set.map_or(OsStr::new("workspace/conversations"), OsString::as_os_str);
    Some(resolve(path, home, &cwd))
}

/// The conversation folder of this process, if it is an agent server.
pub fn served_by(pid: i32, home: &Path) -> Option<PathBuf> {
    let process = Path::new("/proc").join(pid.to_string());
    is_server(&fs::read(process.join("cmdline")).ok()?).then(|| served_at(&process, home))?
}

/// True for the command line of an agent server: `agent-server ...`, `python -m openhands.agent_server ...`.
pub fn is_server(cmdline: &[u8]) -> bool {
    let mut words = cmdline.split(|&b| b == 0).take(4);
    words.any(|w| {
        let name = w.rsplit(|&b| b == b'/').next().unwrap_or(w);
        name == b"openhands.agent_server"
            || name.starts_with(b"agent-server")
            || name.starts_with(b"agent_server")
    })
}

fn environment(bytes: &[u8]) -> BTreeMap<String, OsString> {
    bytes
        .split(|&b| b == 0)
        .filter_map(|pair| {
            let eq = pair.iter().position(|&b| b == b'=')?;
            let name = std::str::from_utf8(&pair[..eq]).ok()?;
            Some((name.to_owned(), OsStr::from_bytes(&pair[eq + 1..]).to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_servers_are_told_by_their_command_line() {
        for yes in [
            "python\0-m\0openhands.agent_server\0--port\08000",
            "/x/bin/python3\0/x/bin/agent-server\0",
            "agent-server\0--host\0x",
        ] {
            assert!(is_server(yes.as_bytes()), "{yes}");
        }
        for no in [
            "vi\0notes-agent-server.md",
            "python\0-m\0http.server",
            "",
            "\0\0\0\0agent-server",
        ] {
            assert!(!is_server(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn variables_move_the_places() {
        let env = [
            ("OPENHANDS_CONVERSATIONS_DIR", "~/c"),
            ("OH_CONVERSATIONS_PATH", "rel"),
            ("FILE_STORE_PATH", "/fs"),
        ];
        let roots = Roots {
            home: "/h".into(),
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect(),
            cwd: "/w".into(),
        };
        let dirs = v1(&roots);
        for dir in [
            "/h/c",
            "/w/rel",
            "/h/.openhands/conversations",
            "/w/workspace/conversations",
        ] {
            assert!(dirs.contains(&PathBuf::from(dir)), "{dir}");
        }
        assert!(v0(&roots).contains(&PathBuf::from("/fs/sessions")));
        assert!(app(&roots).contains(&PathBuf::from("/h/.openhands/v1_conversations")));
    }
}

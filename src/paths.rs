//! Where things are: the invoking user's home, config and state folders. Started through sudo, it is the
//! invoking user whose home counts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};

use crate::conversation::Roots;

/// The state folder of root, and the second place where pools are looked for.
pub const SYSTEM_STATE: &str = "/var/lib/respool";

/// The most that is read of a file that holds settings or a list.
const MOST: u64 = 16 << 20;

/// The bytes of a regular file, at most 16 MiB. Never waits for a pipe, never starts a device.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_with_meta(path).map(|(bytes, _)| bytes)
}

/// As [`read_file`], with what the file system says of the file that was read.
pub fn read_with_meta(path: &Path) -> io::Result<(Vec<u8>, std::fs::Metadata)> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let open = |flags: i32, path: &Path| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(flags).open(path)
    };
    // only to look at: already opening some devices starts them
    let handle = open(nix::libc::O_PATH, path)?;
    if !handle.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = open(nix::libc::O_NONBLOCK, Path::new(&same))?;
    let meta = file.metadata()?;
    if meta.len() > MOST {
        return Err(io::Error::other("it is too large"));
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok((bytes, meta))
}

/// As [`read_file`], as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_file(path)?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
}

/// The user on whose behalf this process works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The home folder.
    pub home: PathBuf,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Started through sudo: files made in the home belong to `uid`.
    pub sudo: bool,
}

/// The name of a user's account.
pub fn account_name(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|u| u.name)
}

/// An environment to look things up in; the real one, or a test's.
pub type Env = BTreeMap<String, OsString>;

/// The environment of this process (variables whose names are UTF-8).
pub fn environment() -> Env {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v)))
        .collect()
}

fn set<'a>(env: &'a Env, name: &str) -> Option<&'a OsString> {
    env.get(name).filter(|v| !v.is_empty())
}

impl Who {
    /// The invoking user: `SUDO_USER`'s account if this process is root and the variable is not empty, else
    /// the user of this process with `$HOME`.
    pub fn invoking(env: &Env) -> Self {
        let own = Uid::effective();
        if own.is_root()
            && let Some(name) = set(env, "SUDO_USER").and_then(|v| v.to_str())
            && name != "root"
            && let Ok(Some(user)) = User::from_name(name)
        {
            return Self {
                home: user.dir,
                uid: user.uid.as_raw(),
                gid: user.gid.as_raw(),
                sudo: true,
            };
        }
        let account = User::from_uid(own).ok().flatten();
        let home = set(env, "HOME")
            .map(PathBuf::from)
            .or_else(|| account.as_ref().map(|u| u.dir.clone()));
        Self {
            home: home.unwrap_or_else(|| PathBuf::from("/")),
            uid: own.as_raw(),
            gid: account.map_or(own.as_raw(), |u| u.gid.as_raw()),
            sudo: false,
        }
    }

    /// The folder of the config file.
    pub fn config_dir(&self, env: &Env) -> PathBuf {
        self.xdg(env, "XDG_CONFIG_HOME", ".config").join("respool")
    }

    /// The state folder when none is named: `/var/lib/respool` for root, else below `XDG_STATE_HOME`.
    pub fn state_dir(&self, env: &Env) -> PathBuf {
        if Uid::effective().is_root() {
            return PathBuf::from(SYSTEM_STATE);
        }
        self.own_state_dir(env)
    }

    /// The state folder in the user's home, also where another one is used: for what is the user's alone.
    pub fn own_state_dir(&self, env: &Env) -> PathBuf {
        self.xdg(env, "XDG_STATE_HOME", ".local/state").join("respool")
    }

    fn xdg(&self, env: &Env, variable: &str, below_home: &str) -> PathBuf {
        // under sudo the variable, if it came through, is root's or the user's: only a path in the home counts
        set(env, variable)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute() && (!self.sudo || p.starts_with(&self.home)))
            .unwrap_or_else(|| self.home.join(below_home))
    }

    /// Where conversations of this user are looked for.
    pub fn roots(&self, env: &Env, cwd: &Path) -> Roots {
        Roots {
            home: self.home.clone(),
            env: env.clone(),
            cwd: cwd.to_owned(),
        }
    }
}

/// Makes a path absolute without following its last component; the parent is resolved.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(path),
    }
}

/// Makes a path absolute, with all links and `..` of the part that exists resolved: it means the same in any
/// folder, later too.
pub fn settled(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for there in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (there.canonicalize(), path.strip_prefix(there)) {
            return Ok(if rest.as_os_str().is_empty() {
                real
            } else {
                real.join(rest)
            });
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), OsString::from(v)))
            .collect()
    }

    #[test]
    fn settled_paths_have_no_dots_and_no_links() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("real");
        std::fs::create_dir_all(real.join("a/b")).expect("folders");
        std::os::unix::fs::symlink("a", real.join("l")).expect("link");
        for (given, want) in [("a/b/../../a", "a"), ("l/b", "a/b"), ("l/new/er", "a/new/er")] {
            assert_eq!(settled(&real.join(given)).ok(), Some(real.join(want)), "{given}");
        }
    }

    #[test]
    fn an_empty_sudo_user_counts_as_absent() {
        let who = Who::invoking(&env(&[("SUDO_USER", ""), ("HOME", "/home/dev")]));
        assert_eq!((who.home.as_path(), who.sudo), (Path::new("/home/dev"), false));
    }

    #[test]
    fn config_follows_xdg_but_not_into_another_home_under_sudo() {
        let e = env(&[("XDG_CONFIG_HOME", "/x/cfg"), ("HOME", "/home/dev")]);
        let mut who = Who::invoking(&e);
        assert_eq!(who.config_dir(&e), Path::new("/x/cfg/respool"));
        who.sudo = true;
        assert_eq!(who.config_dir(&e), Path::new("/home/dev/.config/respool"));
    }
}

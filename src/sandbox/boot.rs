//! What brings pools and workspaces back when the machine starts: a systemd unit that calls `respool pool mount`
//! before anybody can log in.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::engine::{EngineError, Result};
use crate::text::{shown, shown_path};

/// The unit's name.
pub const UNIT: &str = "respool-pools.service";
/// The unit as it ships.
const TEXT: &str = include_str!("../../assets/units/respool-pools.service");
/// The program in it.
const SHIPPED: &str = "/usr/bin/respool";
/// The first line of a unit that this program wrote: no other is ever changed or removed.
const MARK: &str = "# Written by respool: untrack of the last workspace takes it out again.\n";
/// The first line of a drop-in that this program wrote.
const NEEDS_MARK: &str = "# Written by respool: docker disable takes it out again.\n";

/// The systemd of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Systemd {
    /// Where the administrator's units are.
    pub units: PathBuf,
    /// Where units of packages are.
    pub packaged: PathBuf,
    /// The program.
    pub systemctl: PathBuf,
}

impl Systemd {
    /// That of this machine; `None` where another program starts it (sd_booted(3)), or where there is no systemctl.
    pub fn here() -> Option<Self> {
        Path::new("/run/systemd/system").is_dir().then_some(())?;
        let places = ["/usr/bin/systemctl", "/bin/systemctl"];
        let systemctl = places.iter().map(Path::new).find(|p| p.exists())?;
        Some(Self {
            units: "/etc/systemd/system".into(),
            packaged: "/usr/lib/systemd/system".into(),
            systemctl: systemctl.to_owned(),
        })
    }

    fn unit(&self) -> PathBuf {
        self.units.join(UNIT)
    }

    /// The unit that is there was written by somebody else, or came with a package.
    fn is_foreign(&self) -> bool {
        let own = |text: String| text.starts_with(MARK);
        match crate::paths::read_text(&self.unit()) {
            Ok(text) => !own(text),
            Err(e) => e.kind() != io::ErrorKind::NotFound || self.packaged.join(UNIT).exists(),
        }
    }

    /// True if the unit is there and enabled.
    pub fn is_set(&self) -> bool {
        (self.unit().exists() || self.packaged.join(UNIT).exists())
            && self.units.join("multi-user.target.wants").join(UNIT).is_symlink()
    }

    /// Writes the unit so that it calls `program`, unless one is there that this program did not write, and enables
    /// it. Does nothing where that is done.
    pub fn set(&self, program: &Path) -> Result<()> {
        let path = self.unit();
        if !self.is_foreign() {
            let text = unit_text(program)?;
            if crate::paths::read_text(&path).ok().as_ref() != Some(&text) {
                write(&path, &text).map_err(EngineError::io("write", &path))?;
                self.call(&["daemon-reload"])?;
            }
        }
        if self.is_set() {
            return Ok(());
        }
        self.call(&["enable", UNIT])
    }

    /// Disables the unit, and removes it if this program wrote it. The workspaces that are mounted stay so.
    pub fn unset(&self) -> Result<()> {
        let path = self.unit();
        if self.is_set() {
            self.call(&["disable", UNIT])?;
        }
        if self.is_foreign() || !path.exists() {
            return Ok(());
        }
        std::fs::remove_file(&path).map_err(EngineError::io("remove", &path))?;
        self.call(&["daemon-reload"])
    }

    /// What systemd says of a property of a unit.
    pub fn show(&self, unit: &str, property: &str) -> io::Result<String> {
        let out = Command::new(&self.systemctl)
            .args(["show", "--property", property, "--value", "--", unit])
            .env_clear()
            .stdin(Stdio::null())
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    /// Stops or starts units, and waits until that is done.
    pub fn act(&self, verb: &str, units: &[&str]) -> Result<()> {
        let mut words = vec![verb, "--"];
        words.extend(units);
        self.call(&words)
    }

    fn drop_in(&self, unit: &str) -> PathBuf {
        self.units.join(format!("{unit}.d/respool.conf"))
    }

    /// From now on a unit is started after the pools are mounted. (Where one cannot be, what is needed of it fails by itself:
    /// another pool must not keep it down.)
    pub fn needs_pools(&self, unit: &str) -> Result<()> {
        let path = self.drop_in(unit);
        let text = format!("{NEEDS_MARK}[Unit]\nWants={UNIT}\nAfter={UNIT}\n");
        if crate::paths::read_text(&path).ok().as_ref() == Some(&text) {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(EngineError::io("make", folder))?;
        }
        write(&path, &text).map_err(EngineError::io("write", &path))?;
        self.call(&["daemon-reload"])
    }

    /// Takes [`Systemd::needs_pools`] back.
    pub fn needs_no_pools(&self, unit: &str) -> Result<()> {
        let path = self.drop_in(unit);
        let own = crate::paths::read_text(&path).is_ok_and(|t| t.starts_with(NEEDS_MARK));
        if !own {
            return Ok(());
        }
        std::fs::remove_file(&path).map_err(EngineError::io("remove", &path))?;
        // the folder is others', too
        let left = path.parent().map(std::fs::remove_dir);
        tracing::debug!(?left, "the folder of drop-ins");
        self.call(&["daemon-reload"])
    }

    /// Without a shell, a terminal, a question or an environment.
    fn call(&self, words: &[&str]) -> Result<()> {
        let out = Command::new(&self.systemctl)
            .args(["--no-ask-password", "--quiet"])
            .args(words)
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .map_err(EngineError::io("run", &self.systemctl))?;
        if out.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&out.stderr);
        Err(EngineError::Refused {
            why: format!(
                "systemctl {}: {}",
                words.join(" "),
                shown(said.lines().next().unwrap_or("it failed"))
            ),
            path: Some(self.unit()),
            hint: Some("after a restart of the machine, run: respool pool mount".into()),
        })
    }
}

/// The unit's text with this program in it, quoted as systemd.syntax(7) and systemd.service(5) ask.
fn unit_text(program: &Path) -> Result<String> {
    let refused = || EngineError::Refused {
        why: format!("{} cannot be named in a unit of systemd", shown_path(program)),
        path: Some(program.to_owned()),
        hint: Some("install the program at a plain path: /usr/local/bin/respool".into()),
    };
    let name = program
        .to_str()
        .filter(|n| n.starts_with('/'))
        .ok_or_else(refused)?;
    if name.chars().any(char::is_control) {
        return Err(refused());
    }
    let mut quoted = String::new();
    for c in name.chars() {
        match c {
            '%' => quoted += "%%",
            '$' => quoted += "$$",
            '"' | '\\' => quoted.extend(['\\', c]),
            _ => quoted.push(c),
        }
    }
    if quoted.contains([' ', '\'', '"', '\\', ';']) {
        quoted = format!("\"{quoted}\"");
    }
    let line = |p: &str| format!("ExecStart={p} pool mount\n");
    let rest: String = TEXT
        .lines()
        .skip_while(|l| l.starts_with('#'))
        .map(|l| format!("{l}\n"))
        .collect();
    Ok(MARK.to_owned() + &rest.replace(&line(SHIPPED), &line(&quoted)))
}

/// Whole or not at all. A link at its place is replaced, never followed.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    let temp = path.with_extension(format!("new-{}", std::process::id()));
    let written = || -> io::Result<()> {
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&temp)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temp, path)
    };
    written().inspect_err(|_| {
        let _not_made = std::fs::remove_file(&temp);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Explain;
    use std::os::unix::fs::PermissionsExt;

    /// A systemd that only notes what it is told, and links units as the real one does.
    fn fake(dir: &Path, script: &str) -> Systemd {
        let systemd = Systemd {
            units: dir.join("etc"),
            packaged: dir.join("lib"),
            systemctl: dir.join("systemctl"),
        };
        std::fs::create_dir_all(systemd.units.join("multi-user.target.wants")).expect("folders");
        std::fs::create_dir_all(&systemd.packaged).expect("folders");
        let link = systemd.units.join("multi-user.target.wants").join(UNIT);
        let text = format!(
            "#!/bin/sh\nPATH=/usr/bin:/bin\n[ -z \"$HOME\" ] || exit 9\nprintf '%s\\n' \"$*\" >> '{log}'\n{script}\n\
             case \"$3\" in enable) ln -sf ../{UNIT} '{link}';; disable) rm -f '{link}';; esac\n",
            log = dir.join("log").display(),
            link = link.display(),
        );
        std::fs::write(&systemd.systemctl, text).expect("write");
        std::fs::set_permissions(&systemd.systemctl, std::fs::Permissions::from_mode(0o755)).expect("mode");
        systemd
    }

    fn log(dir: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        let first = std::fs::remove_file(dir.join("log"));
        drop(first);
        let plain = |l: &str| l.replace("--no-ask-password --quiet ", "");
        text.lines().map(plain).collect()
    }

    #[test]
    fn set_once_and_taken_out_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let s = fake(dir.path(), "");
        let program = Path::new("/opt/my tools/100%/respool");
        assert!(!s.is_set());
        s.set(program).expect("set");
        assert!(s.is_set());
        assert_eq!(log(dir.path()), ["daemon-reload", &format!("enable {UNIT}")]);
        let text = std::fs::read_to_string(s.unit()).expect("the unit");
        assert!(
            text.contains("\nExecStart=\"/opt/my tools/100%%/respool\" pool mount\n"),
            "{text}"
        );
        let mode = s.unit().metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        s.set(program).expect("again");
        assert!(log(dir.path()).is_empty(), "nothing to do");
        // the program moved
        s.set(Path::new("/usr/local/bin/respool")).expect("moved");
        assert_eq!(log(dir.path()), ["daemon-reload"]);
        s.unset().expect("unset");
        assert_eq!(log(dir.path()), [&format!("disable {UNIT}"), "daemon-reload"]);
        assert!(!s.unit().exists() && !s.is_set());
        s.unset().expect("again");
        assert!(log(dir.path()).is_empty());
    }

    #[test]
    fn a_unit_of_others_is_never_written_or_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let s = fake(dir.path(), "");
        std::fs::write(s.unit(), "[Service]\nExecStart=/mine\n").expect("write");
        s.set(Path::new("/usr/local/bin/respool")).expect("set");
        assert_eq!(log(dir.path()), [format!("enable {UNIT}")]);
        s.unset().expect("unset");
        assert_eq!(log(dir.path()), [format!("disable {UNIT}")]);
        assert_eq!(
            std::fs::read_to_string(s.unit()).expect("there"),
            "[Service]\nExecStart=/mine\n"
        );
        // that of a package
        std::fs::rename(s.unit(), s.packaged.join(UNIT)).expect("move");
        s.set(Path::new("/usr/bin/respool")).expect("set");
        assert!(!s.unit().exists() && s.is_set());
    }

    #[test]
    fn a_unit_waits_for_the_pools_and_no_longer() {
        let dir = tempfile::tempdir().expect("a folder");
        let s = fake(dir.path(), "case \"$1\" in show) echo \"  $3 of $6 \";; esac");
        s.needs_pools("docker.service").expect("set");
        s.needs_pools("docker.service").expect("again");
        assert_eq!(log(dir.path()), ["daemon-reload"]);
        let file = s.units.join("docker.service.d/respool.conf");
        let text = std::fs::read_to_string(&file).expect("the drop-in");
        assert!(
            text.ends_with(&format!("[Unit]\nWants={UNIT}\nAfter={UNIT}\n")),
            "{text}"
        );
        std::fs::write(file.with_file_name("mine.conf"), "").expect("another's");
        s.needs_no_pools("docker.service").expect("unset");
        s.needs_no_pools("docker.service").expect("again");
        assert_eq!(log(dir.path()), ["daemon-reload"]);
        assert!(!file.exists() && file.with_file_name("mine.conf").exists());
        // one that this program did not write stays
        std::fs::write(&file, "[Unit]\n").expect("theirs");
        s.needs_no_pools("docker.service").expect("left");
        assert!(file.exists());
        s.act("stop", &["docker.socket", "docker.service"]).expect("stop");
        assert_eq!(log(dir.path()), ["stop -- docker.socket docker.service"]);
        assert_eq!(
            s.show("docker.service", "MainPID").expect("show"),
            "MainPID of docker.service"
        );
    }

    #[test]
    fn what_systemctl_says_is_told_harmlessly() {
        let dir = tempfile::tempdir().expect("a folder");
        let s = fake(dir.path(), "printf 'no \\033[31mbus\\n' >&2; exit 1");
        let e = s.set(Path::new("/usr/local/bin/respool")).expect_err("refused");
        assert!(e.to_string().starts_with("systemctl daemon-reload: no "), "{e}");
        assert!(!e.to_string().contains('\u{1b}'));
        assert!(e.hint().expect("a hint").contains("respool pool mount"));
    }

    #[test]
    fn paths_that_a_unit_cannot_name_are_refused() {
        use std::os::unix::ffi::OsStrExt;
        for bad in [&b"/a\nExecStart=/evil"[..], b"/a\xff", b"relative", b""] {
            let path = Path::new(std::ffi::OsStr::from_bytes(bad));
            assert!(unit_text(path).is_err(), "{bad:?}");
        }
        let text = unit_text(Path::new("/x\"y\\z$HOME")).expect("quoted");
        assert!(
            text.contains("ExecStart=\"/x\\\"y\\\\z$$HOME\" pool mount\n"),
            "{text}"
        );
    }
}

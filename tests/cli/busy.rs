//! Trees that other programs are in: by working folder and by mapping, as editors and file browsers are.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::common::wait_until;
use crate::lab::{Lab, SOON};
use crate::screen::Screen;

/// A program in a session of its own that stands in `src` and has `src/data` mapped, not open. It answers each line
/// with what it sees through the mapping, where it stands, and whether it can write there. Killed when dropped.
struct Browser {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const BROWSER: &str = "import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
# python's own mmap keeps the file open
fd = os.open('data', os.O_RDWR)
view = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
os.close(fd)
print('ready', flush=True)
for line in sys.stdin:
    try:
        open('by-browser', 'w').close()
        wrote = 'wrote'
    except OSError as e:
        wrote = e.strerror
    print(ctypes.string_at(view, 4).decode(), os.getcwd(), sorted(os.listdir('.')), wrote, flush=True)
";

impl Browser {
    fn start(lab: &Lab) -> Self {
        let mut child = Command::new("setsid")
            .args(["python3", "-c", BROWSER])
            .current_dir(lab.at("src"))
            .env("HOME", lab.dir().join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        let ask = child.stdin.take().expect("stdin");
        let answers = BufReader::new(child.stdout.take().expect("stdout"));
        let mut it = Self { child, ask, answers };
        assert_eq!(it.line(), "ready");
        it
    }
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }
    fn asks(&mut self) -> String {
        self.ask.write_all(b"?\n").expect("ask");
        self.line()
    }
    fn pid(&self) -> i64 {
        self.child.id().into()
    }
    fn folder(&self) -> PathBuf {
        std::fs::read_link(format!("/proc/{}/cwd", self.child.id())).expect("its folder")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

fn tree() -> impl Fn(&std::path::Path) {
    |ws| {
        std::fs::create_dir(ws.join("src")).expect("folder");
        std::fs::write(ws.join("src/data"), "one!").expect("write");
    }
}

fn listed(plan: &Value, pid: i64) -> Option<&Value> {
    let all = plan["plan"]["blockers"].as_array().expect("blockers");
    all.iter().find(|b| b["pid"] == pid)
}

/// P107: it is in the plan by its process id, in that of the command and in that of the screens; the rewind does not
/// stop half-way with a busy file; afterwards the program stands where it stood, sees the restored content and can
/// write there. So with undo.
#[test]
fn p107_a_program_in_the_tree_is_named_and_goes_on() {
    for (vault, lab) in [("btrfs", Lab::new(tree())), ("copy", Lab::copies(tree()))] {
        lab.message(1);
        let before = lab.manifest();
        lab.write("src/new", "x");
        std::fs::OpenOptions::new()
            .write(true)
            .open(lab.at("src/data"))
            .and_then(|mut f| f.write_all(b"two!"))
            .expect("write");
        let mut browser = Browser::start(&lab);
        let pid = browser.pid();
        assert!(
            std::fs::read_dir(format!("/proc/{pid}/fd"))
                .expect("its files")
                .all(|f| {
                    let to = std::fs::read_link(f.expect("entry").path()).unwrap_or_default();
                    !to.starts_with(lab.ws())
                }),
            "nothing is open, it is mapped only"
        );
        let plan = lab.ok(&["--dry-run", "rewind", "1", "--files"]);
        let row = listed(&plan, pid).unwrap_or_else(|| panic!("{vault}: {pid} is not in {plan}"));
        assert!(
            row["what"].as_str().is_some_and(|w| w.contains("python3")),
            "{row}"
        );
        let mut screen = Screen::open(&lab, &[]);
        screen.keys("r");
        screen.wait(&format!("process {pid}"));
        screen.keys("\x1b");
        screen.gone("Rewind to");
        screen.quit();
        let after = lab.manifest();
        let done = lab.ok(&["--yes", "rewind", "1", "--files"]);
        assert_eq!(done["verified"], true, "{vault}: {done}");
        assert!(
            done["notes"].to_string().contains(&format!("process {pid}")),
            "{vault}: {done}"
        );
        before.assert_same(&lab.manifest(), vault);
        assert_eq!(browser.folder(), lab.at("src"), "{vault}");
        lab.ok(&["--yes", "undo"]);
        after.assert_same(&lab.manifest(), vault);
        assert_eq!(browser.folder(), lab.at("src"), "{vault}");
        lab.ok(&["--yes", "redo"]);
        let answer = browser.asks();
        assert_eq!(
            answer,
            format!("one! {} ['by-browser', 'data'] wrote", lab.at("src").display()),
            "{vault}"
        );
        assert!(lab.at("src/by-browser").exists(), "{vault}: in the live tree");
    }
}

/// P107: what must exchange the folder refuses before it begins, with the process id, and leaves all as it was.
#[test]
fn p107_an_exchange_of_the_folder_is_refused_with_the_process() {
    let lab = Lab::plain(tree());
    let browser = Browser::start(&lab);
    let (pid, before) = (browser.pid(), lab.manifest());
    let track = ["--yes", "track", lab.ws_text(), "--size", "512M"];
    let said = lab.fails(3, &track);
    assert!(said.contains(&pid.to_string()), "{said}");
    before.assert_same(&lab.manifest(), "track");
    drop(browser);
    assert!(wait_until(SOON, || lab.run(&track).code == Some(0)), "without it");
    let browser = Browser::start(&lab);
    let pid = browser.pid();
    let said = lab.fails(3, &["--yes", "untrack", lab.ws_text()]);
    assert!(said.contains(&pid.to_string()), "{said}");
    before.assert_same(&lab.manifest(), "untrack");
    assert_eq!(browser.folder(), lab.at("src"));
    drop(browser);
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    before.assert_same(&lab.manifest(), "untracked");
}

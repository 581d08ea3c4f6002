//! A backend that plays scripted data, with delays, failures and gates. Shared by the tests of the screens,
//! the program that shows them in a pseudo terminal, and the benchmark.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use respool::conversation::{MessageKind, Summary};
use respool::diff::{FileDiff, Hunk, Line, Tag};
use respool::engine::{Change, ChangeKind, CheckpointId, Counts, FileType, PartKind, What};
use respool::failure::Kind;
use respool::packages::{Manager, PackageChange, Summary as Packages, Unread};
use respool::progress::Progress;
use respool::rewind::offer::{Offer, VaultKind, Wish};
use respool::rewind::track::{Means, TrackPlan};
use respool::rewind::{Blocker, Operation, OperationKind, OperationState, Outcome, Plan, Reach};
use respool::timeline::{CheckpointState, Row, RowCheckpoint, Timeline};
use respool::tui::backend::{
    Backend, Failure, Opening, Resent, Result, RowCounts, StateRef, Taken, TrackedHere, Unsent, Version,
    WatchGuard, Writing,
};

/// The time of all scripted data.
pub fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_770_000_000, 0).expect("a time")
}

/// The store of the scripted conversation.
pub fn store() -> PathBuf {
    PathBuf::from("/home/ada/.openhands/conversations/3f2a")
}

type Changed = Arc<dyn Fn() + Send + Sync>;

/// Everything that can be scripted.
#[derive(Default)]
pub struct Script {
    pub conversations: Vec<Summary>,
    pub timeline: Option<Timeline>,
    pub changes: HashMap<(StateRef, StateRef), Vec<Change>>,
    pub diffs: HashMap<PathBuf, FileDiff>,
    pub versions: Vec<Version>,
    pub plan: Option<Plan>,
    pub outcome: Option<Result<Outcome>>,
    pub operations: Vec<Operation>,
    pub counts: HashMap<String, RowCounts>,
    /// Failures by method.
    pub failures: HashMap<&'static str, Failure>,
    /// How long a method takes.
    pub delays: HashMap<&'static str, Duration>,
    /// Methods that wait until they are let go (or cancelled).
    pub gates: Vec<&'static str>,
    /// Methods that panic.
    pub panics: Vec<&'static str>,
    /// What was called.
    pub calls: Vec<String>,
    /// The vault that is offered first.
    pub vault: Option<VaultKind>,
    /// What stands in the way of tracking.
    pub in_the_way: Vec<Blocker>,
    /// What is kept in the place of messages.
    pub kept: HashMap<String, String>,
    /// What goes with messages, in words.
    pub attachments: Vec<String>,
    /// What was sent.
    pub sent: Vec<Writing>,
    /// No server sends it: this does, and its folder.
    pub command: Option<(Vec<std::ffi::OsString>, PathBuf)>,
}

/// The fake.
#[derive(Default)]
pub struct Fake {
    script: Mutex<Script>,
    moved: Condvar,
    watchers: Arc<Mutex<Vec<Changed>>>,
}

impl Fake {
    pub fn new(script: Script) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(script),
            ..Self::default()
        })
    }
    /// Changes the script.
    pub fn edit<T>(&self, f: impl FnOnce(&mut Script) -> T) -> T {
        let result = f(&mut self.script.lock().expect("script"));
        self.moved.notify_all();
        result
    }
    /// Lets a method go that waits.
    pub fn open_gate(&self, method: &str) {
        self.edit(|s| s.gates.retain(|g| *g != method));
    }
    /// Tells the watchers that the store changed.
    pub fn changed(&self) {
        let watchers = self.watchers.lock().expect("watchers").clone();
        for changed in &watchers {
            changed();
        }
    }
    /// How often a method was called.
    pub fn calls(&self, method: &str) -> usize {
        self.edit(|s| {
            s.calls
                .iter()
                .filter(|c| c.split(' ').next() == Some(method))
                .count()
        })
    }
    fn enter(&self, method: &'static str, what: &str, progress: Option<&dyn Progress>) -> Result<()> {
        let delay = self.edit(|s| {
            s.calls.push(format!("{method} {what}"));
            s.delays.get(method).copied()
        });
        assert!(!self.edit(|s| s.panics.contains(&method)), "{method} broke");
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        let mut script = self.script.lock().expect("script");
        while script.gates.contains(&method) {
            if progress.is_some_and(Progress::cancelled) {
                return Err(Failure::new(Kind::Cancelled, "cancelled", None));
            }
            let step = Duration::from_millis(5);
            script = self.moved.wait_timeout(script, step).expect("script").0;
        }
        match script.failures.get(method) {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }
}

impl Backend for Fake {
    fn conversations(&self) -> Result<Vec<Summary>> {
        self.enter("conversations", "", None)?;
        Ok(self.edit(|s| s.conversations.clone()))
    }
    fn tail(&self, store: &Path, rows: usize) -> Result<Timeline> {
        self.enter("tail", &rows.to_string(), None)?;
        let mut timeline = self.timeline_of(store)?;
        let from = timeline.rows.len().saturating_sub(rows);
        timeline.rows.drain(..from);
        timeline.rows.iter_mut().for_each(|r| r.message = None);
        timeline.partial = true;
        Ok(timeline)
    }
    fn timeline(&self, store: &Path, progress: &dyn Progress) -> Result<Timeline> {
        self.enter("timeline", "", Some(progress))?;
        self.timeline_of(store)
    }
    fn counts(&self, _store: &Path, row: &str, progress: &dyn Progress) -> Result<RowCounts> {
        self.enter("counts", row, Some(progress))?;
        Ok(self.edit(|s| s.counts.get(row).cloned().unwrap_or_default()))
    }
    fn changes(&self, _: &Path, a: &StateRef, b: &StateRef, progress: &dyn Progress) -> Result<Vec<Change>> {
        self.enter("changes", &format!("{a:?} {b:?}"), Some(progress))?;
        Ok(self.edit(|s| {
            s.changes
                .get(&(a.clone(), b.clone()))
                .cloned()
                .unwrap_or_default()
        }))
    }
    fn file_diff(&self, _: &Path, _: &StateRef, _: &StateRef, change: &Change) -> Result<FileDiff> {
        self.enter("file_diff", &change.path.display().to_string(), None)?;
        Ok(self.edit(|s| s.diffs.get(&change.path).cloned().unwrap_or(FileDiff::Same)))
    }
    fn file_versions(
        &self,
        _: &Path,
        _: PartKind,
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<Vec<Version>> {
        self.enter("file_versions", &path.display().to_string(), Some(progress))?;
        Ok(self.edit(|s| s.versions.clone()))
    }
    fn plan(&self, _: &Path, target: &StateRef, reach: Reach, progress: &dyn Progress) -> Result<Plan> {
        let reached = if reach == Reach::Auto {
            String::new()
        } else {
            format!(" {reach:?}")
        };
        self.enter("plan", &format!("{target:?}{reached}"), Some(progress))?;
        let none = || Failure::new(Kind::NotFound, "there is no such checkpoint", None);
        let mut plan = self.edit(|s| s.plan.clone()).ok_or_else(none)?;
        plan.reach = reach;
        if reach == Reach::Files {
            plan.chat = "kept";
        }
        Ok(plan)
    }
    fn rewind(&self, _: &Path, plan: &Plan, progress: &dyn Progress) -> Result<Outcome> {
        progress.step("restoring", 40, 100);
        self.enter("rewind", plan.target.as_str(), Some(progress))?;
        self.ended(OperationKind::Rewind, &plan.target_words)
    }
    fn undo(&self, _: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome> {
        self.enter("undo", operation, Some(progress))?;
        self.mark_undone(operation);
        self.ended(OperationKind::Undo, "just before the rewind")
    }
    fn redo(&self, _: &Path, operation: &str, progress: &dyn Progress) -> Result<Outcome> {
        self.enter("redo", operation, Some(progress))?;
        self.mark_undone(operation);
        self.ended(OperationKind::Redo, "just before message 3")
    }
    fn track_plan(&self, dir: &Path, vault: Option<VaultKind>, progress: &dyn Progress) -> Result<Offer> {
        let vault = vault.or(self.edit(|s| s.vault)).unwrap_or(VaultKind::Btrfs);
        let method = match vault {
            VaultKind::Btrfs => "track_plan_btrfs",
            VaultKind::Copy => "track_plan_copy",
        };
        self.enter("track_plan", &dir.display().to_string(), Some(progress))?;
        self.enter(method, "", Some(progress))?;
        let mut offer = offer(dir, vault);
        self.edit(|s| offer.plan.blockers.clone_from(&s.in_the_way));
        Ok(offer)
    }
    fn track(&self, offer: &Offer, progress: &dyn Progress) -> Result<TrackedHere> {
        progress.step("copying", 40, 100);
        let dir = offer.plan.path.display().to_string();
        self.enter(
            "track",
            &format!("{dir} {}", offer.wish.vault.word()),
            Some(progress),
        )?;
        self.edit(|s| {
            if let Some(t) = &mut s.timeline {
                t.sandbox = Some("sb-notes".into());
            }
        });
        Ok(TrackedHere {
            sandbox: "sb-notes".into(),
            hints: vec!["a shell that stands in the folder sees the old one: run cd \"$PWD\" there".into()],
            next: vec![
                (
                    format!("cd {dir} && sudo respool run -- openhands"),
                    "starts the agent there, under protection",
                ),
                (
                    format!("cd {dir} && sudo respool watch"),
                    "while an agent works that you started yourself",
                ),
            ],
        })
    }
    fn checkpoint(&self, _: &Path) -> Result<Taken> {
        self.enter("checkpoint", "", None)?;
        Ok(Taken {
            id: cp(90),
            ms: 12,
            warning: None,
        })
    }
    fn operations(&self, _: &Path) -> Result<Vec<Operation>> {
        self.enter("operations", "", None)?;
        Ok(self.edit(|s| s.operations.clone()))
    }
    fn opening(&self, _: &Path, row: &str) -> Result<Opening> {
        self.enter("opening", row, None)?;
        Ok(self.edit(|s| Opening {
            kept: s.kept.get(row).cloned(),
            attachments: s.attachments.clone(),
        }))
    }
    fn keep(&self, _: &Path, row: &str, text: Option<&str>) -> Result<()> {
        self.enter("keep", row, None)?;
        self.edit(|s| match text {
            Some(text) => drop(s.kept.insert(row.into(), text.into())),
            None => drop(s.kept.remove(row)),
        });
        Ok(())
    }
    fn to_editor(&self, _: &Path, row: &str, text: &str) -> Result<PathBuf> {
        self.enter("to_editor", row, None)?;
        let file = std::env::temp_dir().join(format!("respool-fake-{}-{row}", std::process::id()));
        std::fs::write(&file, text).expect("a file for the editor");
        Ok(file)
    }
    fn edited(&self, _: &Path, row: &str, file: &Path, before: &str) -> Result<String> {
        self.enter("edited", row, None)?;
        let new = std::fs::read_to_string(file).expect("the editor's file");
        std::fs::remove_file(file).expect("the editor's file");
        Ok(match new.strip_suffix('\n') {
            Some(short) if !before.ends_with('\n') => short.to_owned(),
            _ => new,
        })
    }
    fn resend(&self, _: &Path, plan: &Plan, writing: &Writing, progress: &dyn Progress) -> Result<Resent> {
        progress.step("restoring", 40, 100);
        self.enter(
            "resend",
            &format!("{} {:?}", writing.row, plan.reach),
            Some(progress),
        )?;
        let mut outcome = self.ended(OperationKind::Rewind, &plan.target_words)?;
        outcome.chat = "rewound";
        let command = self.edit(|s| s.command.clone());
        let unsent = command.map(|(words, folder)| Unsent {
            why: vec!["The message was not sent: no agent server has the conversation open.".into()],
            kept: "/home/ada/.local/state/respool/drafts/3f2a9c0d.0a1b2c3d4e5f.txt".into(),
            line: Some("cd /home/ada/src/notes && respool run -- openhands --resume 3f2a9c0d --task=\"$(cat /home/ada/.local/state/respool/drafts/3f2a9c0d.0a1b2c3d4e5f.txt)\"".into()),
            command: Some((words, folder)),
        });
        if unsent.is_none() {
            outcome.resent = true;
            outcome.notes.push(
                "the message was sent, by the agent server at http://127.0.0.1:8000, process 4711".into(),
            );
            self.edit(|s| {
                s.kept.remove(&writing.row);
                s.sent.push(writing.clone());
            });
        }
        Ok(Resent { outcome, unsent })
    }
    fn watch(&self, _: &Path, changed: Box<dyn Fn() + Send + Sync>) -> Result<WatchGuard> {
        self.enter("watch", "", None)?;
        self.watchers.lock().expect("watchers").push(Arc::from(changed));
        Ok(Box::new(()))
    }
}

impl Fake {
    fn timeline_of(&self, store: &Path) -> Result<Timeline> {
        let gone = || {
            Failure::new(
                Kind::NotFound,
                "there is no conversation 3f2a",
                Some("respool conversations lists what was found".into()),
            )
        };
        let mut timeline = self.edit(|s| s.timeline.clone()).ok_or_else(gone)?;
        timeline.conversation.store = store.to_path_buf();
        Ok(timeline)
    }
    fn mark_undone(&self, operation: &str) {
        self.edit(|s| {
            for op in s.operations.iter_mut().filter(|o| o.id == operation) {
                op.state = OperationState::Undone;
            }
        });
    }
    fn ended(&self, kind: OperationKind, words: &str) -> Result<Outcome> {
        self.edit(|s| {
            if let Some(result) = s.outcome.clone() {
                return result;
            }
            let n = s.operations.len() + 1;
            let id = format!("op-{n:010}");
            s.operations
                .insert(0, operation(&id, kind, OperationState::Done, words));
            Ok(Outcome {
                operation: id,
                safety: cp(80),
                changed: 3,
                verified: true,
                chat: "kept",
                conversation: None,
                store: None,
                resent: false,
                notes: Vec::new(),
                containers: Vec::new(),
            })
        })
    }
}

pub fn cp(n: u32) -> CheckpointId {
    CheckpointId(format!("cp-{n:010}"))
}

pub fn operation(id: &str, kind: OperationKind, state: OperationState, words: &str) -> Operation {
    Operation {
        id: id.to_owned(),
        kind,
        time: now() - TimeDelta::minutes(2),
        message: Some(words.to_owned()),
        state,
        safety: Some(cp(80)),
        target: Some(cp(3)),
    }
}

pub fn change(path: &str, kind: ChangeKind) -> Change {
    let (a, b) = match kind {
        ChangeKind::Added => (None, Some(1200)),
        ChangeKind::Deleted => (Some(640), None),
        ChangeKind::Modified => (Some(2100), Some(2460)),
        _ => (Some(800), Some(800)),
    };
    let what = match kind {
        ChangeKind::Modified => vec![What::Content],
        ChangeKind::Meta => vec![What::Mode],
        _ => Vec::new(),
    };
    Change {
        path: PathBuf::from(path),
        kind,
        from: None,
        what,
        type_a: a.map(|_| FileType::File),
        type_b: b.map(|_| FileType::File),
        size_a: a,
        size_b: b,
        part: PartKind::Workspace,
    }
}

pub fn line(tag: Tag, old: u32, new: u32, text: &str) -> Line {
    Line {
        tag,
        old: (tag != Tag::Insert).then_some(old),
        new: (tag != Tag::Delete).then_some(new),
        text: text.to_owned(),
        emphasis: Vec::new(),
        no_newline: false,
    }
}

/// A text diff of some lines of Python.
pub fn text_diff() -> FileDiff {
    let mut removed = line(
        Tag::Delete,
        12,
        0,
        "    return [n for n in notes if tag in n.tags]",
    );
    removed.emphasis = std::iter::once(32..45).collect();
    let mut added = line(
        Tag::Insert,
        0,
        12,
        "    return [n for n in notes if tag.lower() in n.lower_tags()]",
    );
    added.emphasis = std::iter::once(32..61).collect();
    let hunk = Hunk {
        old_start: 10,
        old_len: 5,
        new_start: 10,
        new_len: 6,
        lines: vec![
            line(Tag::Equal, 10, 10, "def by_tag(notes, tag):"),
            line(Tag::Equal, 11, 11, "\t\"\"\"All notes that have the tag.\"\"\""),
            removed,
            added,
            line(Tag::Equal, 13, 13, ""),
            line(Tag::Insert, 0, 14, "# 中文 and 👩‍👩‍👧 stay whole"),
            line(Tag::Equal, 14, 15, "def all_tags(notes):"),
        ],
    };
    let tail = Hunk {
        old_start: 40,
        old_len: 2,
        new_start: 42,
        new_len: 1,
        lines: vec![
            line(Tag::Equal, 40, 42, "if __name__ == \"__main__\":"),
            Line {
                no_newline: true,
                ..line(Tag::Delete, 41, 0, "    main()\r")
            },
        ],
    };
    FileDiff::Text {
        hunks: vec![hunk, tail],
        added: 2,
        removed: 2,
        note: None,
    }
}

pub fn row(n: u32, text: &str) -> Row {
    Row {
        message: Some(n),
        id: format!("event-{n:04}"),
        kind: MessageKind::Prompt,
        time: Some(now() - TimeDelta::minutes(i64::from(200u32.saturating_sub(n * 21)))),
        text: text.to_owned(),
        pictures: 0,
        active: true,
        branch: 0,
        checkpoint: Some(RowCheckpoint {
            id: Some(cp(n)),
            state: CheckpointState::Ok,
            reason: None,
            label: None,
            pinned: false,
            turn_end: Some(cp(100 + n)),
        }),
        changes: None,
        between: None,
        packages: None,
    }
}

pub fn summary() -> Summary {
    Summary {
        id: "3f2a9c0d".into(),
        agent: "openhands",
        store: store(),
        workspace: Some("/home/ada/src/notes".into()),
        title: Some("A small notes app".into()),
        messages: Some(8),
        updated_at: Some(now() - TimeDelta::minutes(3)),
        live: true,
    }
}

fn counts(added: u64, modified: u64, deleted: u64, renamed: u64) -> Counts {
    Counts {
        added,
        modified,
        deleted,
        renamed,
        other: 0,
    }
}

fn unusable(row: &mut Row, state: CheckpointState, reason: &str) {
    row.checkpoint = Some(RowCheckpoint {
        id: None,
        state,
        reason: Some(reason.to_owned()),
        label: None,
        pinned: false,
        turn_end: None,
    });
}

/// Eight messages with all that can be said of them.
pub fn rows() -> Vec<Row> {
    let mut rows = vec![
        row(
            1,
            "Write a small notes app in Python: add, list, search.\n\nKeep it in one file.",
        ),
        row(2, "Add tags to notes"),
        row(
            3,
            "Split it into modules and add tests, please; keep the command line as it is",
        ),
        row(4, "Make search ignore case"),
        row(5, "No: sort by date instead"),
        row(6, "Run the formatter over everything"),
        row(7, "pytest -q"),
        row(8, "Tag search is wrong for Ünïcode 中文 tags 👩‍👩‍👧, fix it"),
    ];
    rows[3].message = None;
    rows[3].active = false;
    rows[3].branch = 1;
    for (n, r) in rows.iter_mut().skip(4).enumerate() {
        r.message = Some(n as u32 + 4);
    }
    rows[6].kind = MessageKind::Shell;
    unusable(
        &mut rows[6],
        CheckpointState::None,
        "shell lines are no messages to the agent",
    );
    unusable(
        &mut rows[4],
        CheckpointState::Failed,
        "the hook ran out of time after 5 s",
    );
    if let Some(c) = &mut rows[5].checkpoint {
        c.state = CheckpointState::Late;
        c.reason = Some("2 paths had changed already".into());
    }
    if let Some(c) = &mut rows[2].checkpoint {
        c.label = Some("good state".into());
        c.pinned = true;
    }
    if let Some(c) = &mut rows[7].checkpoint {
        c.turn_end = None;
    }
    rows
}

pub fn timeline() -> Timeline {
    Timeline {
        conversation: summary(),
        rows: rows(),
        sandbox: Some("sb-notes".into()),
        at_work: false,
        notices: Vec::new(),
        partial: false,
    }
}

pub fn turn_changes() -> Vec<Change> {
    let mut renamed = change("src/notes/store.py", ChangeKind::Renamed);
    renamed.from = Some("notes.py".into());
    let mut tool = change("tools/run.sh", ChangeKind::Meta);
    tool.what = vec![What::Mode, What::Owner];
    vec![
        change("src/notes/__init__.py", ChangeKind::Added),
        change("src/notes/search.py", ChangeKind::Modified),
        renamed,
        change("tests/test_search.py", ChangeKind::Added),
        change("old_notes.py", ChangeKind::Deleted),
        tool,
    ]
}

/// What a turn installed, and what of it cannot be read.
pub fn packages() -> Packages {
    let one =
        |manager, name: &str, from: Option<&str>, to: Option<&str>, place: Option<&str>| PackageChange {
            manager,
            name: name.into(),
            from: from.map(Into::into),
            to: to.map(Into::into),
            place: place.map(Into::into),
        };
    Packages {
        packages: vec![
            one(Manager::Dpkg, "curl", Some("7.88.1-10"), Some("7.89.0-1"), None),
            one(Manager::Dpkg, "nano", Some("7.2-1"), None, None),
            one(Manager::Dpkg, "ripgrep", None, Some("13.0.0-4"), None),
            one(
                Manager::Pip,
                "requests",
                None,
                Some("2.32.0"),
                Some(".venv/lib/python3.11/site-packages"),
            ),
        ],
        packages_unread: vec![Unread {
            manager: Some(Manager::Rpm),
            place: "/var/lib/rpm/Packages".into(),
            why: "it is of an older kind".into(),
        }],
    }
}

pub fn plan(yours: &[&str]) -> Plan {
    let mut changes = turn_changes();
    changes.push(change("README.md", ChangeKind::Modified));
    Plan {
        sandbox: "sb-notes".into(),
        target: cp(3),
        target_words: "just before message 3".into(),
        message: Some(3),
        steps: vec![
            "take a safety checkpoint".into(),
            "restore 7 paths in place".into(),
            "check every path against the checkpoint".into(),
        ],
        changes,
        packages: Packages::default(),
        yours: yours.iter().map(PathBuf::from).collect(),
        blockers: Vec::new(),
        not_covered: Vec::new(),
        chat: "kept",
        chat_reason: None,
        reach: Reach::Auto,
        talk: None,
        sends: true,
    }
}

/// What tracking a folder would do.
pub fn offer(dir: &Path, vault: VaultKind) -> Offer {
    let shown = dir.display();
    let (means, steps) = match vault {
        VaultKind::Btrfs => (
            Means::Copy,
            vec![
                "copy 1204 files and folders (18 MiB) into /var/lib/respool/pool.img".into(),
                "compare the copy with the folder, every byte and attribute".into(),
                format!("set the content of {shown} aside, show the copy at the same path"),
                "take the first checkpoint, then remove what was set aside".into(),
            ],
        ),
        VaultKind::Copy => (
            Means::Keep,
            vec![
                format!("{shown} stays as it is: nothing is moved"),
                "copy 1204 files and folders (18 MiB) into /home/ada/.local/state/respool/copies".into(),
            ],
        ),
    };
    Offer {
        wish: Wish::of(vault),
        plan: TrackPlan {
            path: dir.to_owned(),
            means,
            entries: 1204,
            bytes: 18 << 20,
            steps,
            blockers: Vec::new(),
            only_of: None,
        },
        image: None,
        own: None,
        boot: respool::rewind::boot::Boot::Nothing,
    }
}

pub fn blocker(kind: &'static str, pid: Option<i32>, what: &str, stops: bool) -> Blocker {
    Blocker {
        kind,
        pid,
        what: what.into(),
        stops,
    }
}

fn other(n: u32, agent: &'static str, folder: &str, title: &str, hours: i64) -> Summary {
    Summary {
        id: format!("c{n:07}"),
        agent,
        store: PathBuf::from(format!("/home/ada/.openhands/conversations/c{n}")),
        workspace: Some(PathBuf::from(folder)),
        title: Some(title.into()),
        messages: Some(u64::from(n * 7)),
        updated_at: Some(now() - TimeDelta::hours(hours)),
        live: false,
    }
}

type Turn = (StateRef, StateRef);

fn turn(n: u32) -> Turn {
    (
        StateRef::Before(format!("event-{n:04}")),
        StateRef::End(format!("event-{n:04}")),
    )
}

fn listed() -> Vec<Summary> {
    vec![
        summary(),
        other(2, "openhands", "/home/ada/src/notes", "Try another storage", 5),
        other(
            3,
            "openhands",
            "/home/ada/src/website",
            "Dark mode for the website",
            26,
        ),
        other(4, "openhands", "/home/ada/src/notes", "First draft", 24 * 40),
    ]
}

fn diffs() -> HashMap<PathBuf, FileDiff> {
    let binary = FileDiff::Binary {
        size_a: None,
        size_b: Some(1200),
        hash_a: None,
        hash_b: Some("9f86d081884c7d65".into()),
    };
    let link = FileDiff::Link {
        a: Some("/etc/passwd".into()),
        b: None,
    };
    [
        ("src/notes/search.py", text_diff()),
        ("src/notes/__init__.py", added()),
        ("src/notes/store.py", text_diff()),
        ("tests/test_search.py", binary),
        ("old_notes.py", link),
    ]
    .into_iter()
    .map(|(path, diff)| (PathBuf::from(path), diff))
    .collect()
}

fn numbers() -> HashMap<String, RowCounts> {
    [
        (1, counts(3, 0, 0, 0), counts(0, 0, 0, 0)),
        (2, counts(0, 2, 0, 0), counts(1, 2, 0, 0)),
        (3, counts(4, 1, 1, 1), counts(0, 0, 0, 0)),
        (4, counts(0, 1, 0, 0), counts(0, 0, 0, 0)),
        (6, counts(120, 1430, 12, 3), counts(0, 1, 0, 0)),
        (8, counts(2, 1, 1, 1), counts(0, 0, 0, 0)),
    ]
    .into_iter()
    .map(|(n, turn, between)| {
        let counts = RowCounts {
            changes: Some(turn),
            between: Some(between),
            packages: None,
        };
        (format!("event-{n:04}"), counts)
    })
    .collect()
}

fn versions() -> Vec<Version> {
    let version = |n: u32| Version {
        words: format!("message {n}"),
        a: turn(n).0,
        b: turn(n).1,
        change: change(
            "src/notes/search.py",
            if n == 1 {
                ChangeKind::Added
            } else {
                ChangeKind::Modified
            },
        ),
    };
    [1, 2, 3].map(version).to_vec()
}

/// Everything that the screens can show.
pub fn script() -> Script {
    let done = (OperationKind::Rewind, OperationState::Done);
    let mut script = Script {
        conversations: listed(),
        timeline: Some(timeline()),
        plan: Some(plan(&[])),
        operations: vec![operation(
            "op-0000000001",
            done.0,
            done.1,
            "just before message 3",
        )],
        diffs: diffs(),
        counts: numbers(),
        versions: versions(),
        ..Script::default()
    };
    for n in 1..=8 {
        script.changes.insert(turn(n), turn_changes());
    }
    let last = (StateRef::Before("event-0008".into()), StateRef::Now);
    script.changes.insert(last, turn_changes());
    script
}

fn added() -> FileDiff {
    let lines: Vec<Line> = (1..=30)
        .map(|n| line(Tag::Insert, 0, n, &format!("from .m{n} import something_{n}")))
        .collect();
    FileDiff::Text {
        hunks: vec![Hunk {
            old_start: 0,
            old_len: 0,
            new_start: 1,
            new_len: 30,
            lines,
        }],
        added: 30,
        removed: 0,
        note: None,
    }
}

/// A long conversation.
pub fn long(n: u32) -> Script {
    let mut script = script();
    if let Some(t) = &mut script.timeline {
        t.rows = (1..=n)
            .map(|i| {
                row(
                    i,
                    &format!(
                        "Message number {i}: please look at module {} again and fix what is wrong",
                        i % 97
                    ),
                )
            })
            .collect();
    }
    script
}

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use respool::engine::flags::{IFlags, flags, set_flags};
use respool::engine::{ChangeKind, Selection, State};
use respool::progress::Silent;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat,
};

use crate::ground::{Disk, row};

fn run(program: &str, args: &[&OsStr]) {
    let out = Command::new(program).args(args).output().expect(program);
    assert!(
        out.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn touch(path: &Path, s: i64, ns: i64) {
    let time = Timespec {
        tv_sec: s,
        tv_nsec: ns,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

/// Every path with its inode, mode, owner, size, time and change time.
fn looks(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let m = path.symlink_metadata().expect("look");
        let look = format!(
            "{} {:o} {}:{} {} {}.{} {}.{}",
            m.ino(),
            m.mode(),
            m.uid(),
            m.gid(),
            if m.is_dir() { 0 } else { m.size() },
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec()
        );
        out.insert(path.strip_prefix(root).expect("below").to_owned(), look);
        if m.is_dir() {
            todo.extend(
                std::fs::read_dir(&path)
                    .expect("list")
                    .map(|e| e.expect("entry").path()),
            );
        }
    }
    out
}

pub fn every_attribute_comes_back(g: &impl Disk) {
    for f in ["mode", "owner", "xattr", "acl", "time", "suid", "type"] {
        g.write(f, f);
    }
    g.chmod("suid", 0o4755);
    rustix::fs::chown(
        g.at("owner"),
        Some(rustix::fs::Uid::from_raw(1234)),
        Some(rustix::fs::Gid::from_raw(4321)),
    )
    .expect("chown");
    setxattr(g.at("xattr"), "user.note", b"hello", XattrFlags::empty()).expect("xattr");
    run(
        "setfacl",
        &["-m".as_ref(), "u:1234:rwx".as_ref(), g.at("acl").as_os_str()],
    );
    touch(&g.at("time"), 981_173_106, 789_012_345);
    symlink("/nowhere", g.at("link")).expect("link");
    touch(&g.at("link"), 5, 6);
    let device = rustix::fs::makedev(1, 3);
    mknodat(
        CWD,
        g.at("null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        device,
    )
    .expect("device");
    mknodat(CWD, g.at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("pipe");
    std::fs::create_dir(g.at("sticky")).expect("folder");
    g.chmod("sticky", 0o1777);
    touch(&g.at("sticky"), 77, 88);
    let a = g.take();
    g.chmod("mode", 0o100);
    g.chmod("suid", 0o755);
    rustix::fs::chown(
        g.at("owner"),
        Some(rustix::fs::Uid::ROOT),
        Some(rustix::fs::Gid::ROOT),
    )
    .expect("chown");
    setxattr(g.at("xattr"), "user.note", b"bye", XattrFlags::empty()).expect("xattr");
    setxattr(g.at("xattr"), "user.more", b"1", XattrFlags::empty()).expect("xattr");
    run("setfacl", &["-b".as_ref(), g.at("acl").as_os_str()]);
    touch(&g.at("time"), 1, 1);
    for gone in ["link", "null", "pipe", "sticky"] {
        g.remove(gone);
    }
    let meta = |path| row(ChangeKind::Meta, path, None);
    let gone = |path| row(ChangeKind::Deleted, path, None);
    assert_eq!(
        g.rows(&a, &State::Now),
        [
            meta("acl"),
            gone("link"),
            meta("mode"),
            gone("null"),
            meta("owner"),
            gone("pipe"),
            gone("sticky"),
            meta("suid"),
            meta("xattr"),
        ]
    );
    g.back(&a, &Selection::All);
    let m = |path: &str| g.at(path).symlink_metadata().expect("there");
    assert_eq!(m("suid").mode() & 0o7777, 0o4755);
    assert_eq!((m("owner").uid(), m("owner").gid()), (1234, 4321));
    assert_eq!(
        (m("time").mtime(), m("time").mtime_nsec()),
        (981_173_106, 789_012_345)
    );
    assert_eq!((m("link").mtime(), m("link").mtime_nsec()), (5, 6));
    assert_eq!((m("sticky").mode() & 0o7777, m("sticky").mtime()), (0o1777, 77));
    assert_eq!(m("null").rdev(), device);
    let mut value = [0; 16];
    let n = rustix::fs::getxattr(g.at("xattr"), "user.note", &mut value[..]).expect("xattr");
    assert_eq!(&value[..n], b"hello");
    assert!(rustix::fs::getxattr(g.at("xattr"), "user.more", &mut value[..]).is_err());
}

pub fn hard_links_are_groups_again(g: &impl Disk) {
    g.write("a", "shared");
    std::fs::hard_link(g.at("a"), g.at("b")).expect("link");
    g.write("dir/c", "alone");
    let a = g.take();
    g.remove("b");
    g.write("b", "shared");
    std::fs::hard_link(g.at("b"), g.at("dir/d")).expect("link");
    g.back(&a, &Selection::All);
    let m = |path: &str| g.at(path).metadata().expect("there");
    assert_eq!((m("a").ino(), m("a").nlink()), (m("b").ino(), 2));
    assert!(!g.at("dir/d").exists());
}

pub fn inodes_that_both_states_have_stay(g: &impl Disk) {
    g.write("f", "one");
    let a = g.take();
    let mut held = File::open(g.at("f")).expect("open");
    let ino = g.at("f").metadata().expect("there").ino();
    g.write("f", "two, longer");
    g.rename("f", "moved");
    g.back(&a, &Selection::All);
    assert_eq!(g.at("f").metadata().expect("there").ino(), ino);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut held, &mut text).expect("read");
    assert_eq!(text, "one", "what was open before shows what is there now");
}

pub fn p093_same_size_and_time_other_content_is_found(g: &impl Disk) {
    g.write("f", "content a");
    touch(&g.at("f"), 1_000_000_000, 0);
    let a = g.take();
    let b = g.take();
    g.write("f", "content b");
    touch(&g.at("f"), 1_000_000_000, 0);
    for from in [&a, &b] {
        assert_eq!(g.rows(from, &State::Now), [row(ChangeKind::Modified, "f", None)]);
    }
    let c = State::Checkpoint(g.take());
    assert_eq!(g.rows(&a, &c), [row(ChangeKind::Modified, "f", None)]);
    g.back(&a, &Selection::All);
    assert_eq!(g.content(&State::Now, "f"), "content a");
    assert_eq!(g.content(&c, "f"), "content b");
}

pub fn p015_what_did_not_change_is_not_touched(g: &impl Disk) {
    for i in 0..100 {
        g.write(&format!("output/{i}"), &format!("result {i}"));
    }
    g.write("a.py", "one");
    let a = g.take();
    g.write("a.py", "two");
    let before = looks(&g.at("output"));
    g.back(&a, &Selection::All);
    assert_eq!(looks(&g.at("output")), before, "not even a change time");
    assert_eq!(g.content(&State::Now, "a.py"), "one");
}

pub fn holes_stay_holes(g: &impl Disk) {
    let file = File::create(g.at("sparse")).expect("create");
    file.set_len(4 << 30).expect("size");
    file.write_all_at(b"tail", 3 << 30).expect("write");
    let a = g.take();
    file.write_all_at(b"Tail", 3 << 30).expect("write");
    file.write_all_at(b"head", 0).expect("write");
    assert_eq!(
        g.rows(&a, &State::Now),
        [row(ChangeKind::Modified, "sparse", None)]
    );
    let safety = g.back(&a, &Selection::All);
    g.remove("sparse");
    g.back(&safety, &Selection::All);
    let meta = g.at("sparse").metadata().expect("there");
    assert_eq!(meta.len(), 4 << 30);
    assert!(meta.blocks() * 512 < 16 << 20, "{} bytes", meta.blocks() * 512);
    let mut tail = [0; 4];
    let file = File::open(g.at("sparse")).expect("open");
    file.read_exact_at(&mut tail, 3 << 30).expect("read");
    assert_eq!(&tail, b"Tail");
}

fn freeze(path: &Path, on: bool) {
    let fd = File::open(path).expect("open");
    let now = flags(&fd).expect("flags");
    let want = if on {
        now | IFlags::IMMUTABLE
    } else {
        now - IFlags::IMMUTABLE
    };
    set_flags(&fd, want).expect("chattr");
}

pub fn immutable_files_come_back(g: &impl Disk) {
    g.write("frozen", "one");
    freeze(&g.at("frozen"), true);
    let a = g.take();
    freeze(&g.at("frozen"), false);
    g.write("frozen", "two");
    g.write("made", "new");
    freeze(&g.at("made"), true);
    g.back(&a, &Selection::All);
    assert!(!g.at("made").exists());
    let fd = File::open(g.at("frozen")).expect("open");
    assert!(flags(&fd).expect("flags").contains(IFlags::IMMUTABLE));
    freeze(&g.at("frozen"), false);
    assert_eq!(g.content(&State::Now, "frozen"), "one");
}

pub fn links_are_never_followed(g: &impl Disk) {
    let outside = tempfile::tempdir().expect("a folder");
    std::fs::write(outside.path().join("x"), "untouched").expect("write");
    g.write("dir/x", "one");
    let a = g.take();
    g.remove("dir");
    symlink(outside.path(), g.at("dir")).expect("link");
    g.back(&a, &Selection::Paths(vec!["dir/x".into()]));
    assert_eq!(g.content(&State::Now, "dir/x"), "one");
    let text = std::fs::read_to_string(outside.path().join("x")).expect("read");
    assert_eq!(text, "untouched");
}

pub fn names_of_any_bytes(g: &impl Disk) {
    let names: [&[u8]; 5] = [b"bad\xff\xfe", b"new\nline", b"-rf", b"\x1b[31m", &[b'x'; 255]];
    let path = |name: &[u8]| g.at(Path::new(OsStr::from_bytes(name)));
    for name in names {
        std::fs::write(path(name), name).expect("write");
    }
    let a = g.take();
    for name in names {
        std::fs::remove_file(path(name)).expect("remove");
    }
    assert_eq!(g.changes(&a, &State::Now).len(), names.len());
    g.back(&a, &Selection::All);
    for name in names {
        assert_eq!(std::fs::read(path(name)).expect("read"), name);
    }
}

pub fn restore_twice_is_restore_once(g: &impl Disk) {
    for i in 0..20 {
        g.write(&format!("d/{i}"), &format!("{i}"));
    }
    let a = g.take();
    for i in 0..20 {
        let mut f = OpenOptions::new()
            .append(true)
            .open(g.at(format!("d/{i}")))
            .expect("open");
        f.write_all(b"more").expect("write");
    }
    g.back(&a, &Selection::All);
    let before = looks(g.root());
    let again = g
        .vault()
        .restore(&State::Now, &a, &Selection::All, &Silent)
        .expect("again");
    assert_eq!(again.changed, 0);
    assert_eq!(looks(g.root()), before);
}

/// What a program writes through a mapping changes no time while the page is dirty.
pub fn writes_through_a_mapping_are_seen(g: &impl Disk) {
    let python = "import mmap, sys\n\
        f = open(sys.argv[1], 'r+b')\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        for line in sys.stdin:\n\
        \x20   m[0:1] = line[0:1].encode()\n\
        \x20   print('done', flush=True)\n";
    g.write("mapped", "0123456789");
    let mut child = Command::new("python3")
        .args(["-c", python])
        .arg(g.at("mapped"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut to = child.stdin.take().expect("its input");
    let mut from = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut put = |c: char| {
        writeln!(to, "{c}").expect("ask");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut from, &mut line).expect("answer");
        assert_eq!(line, "done\n");
    };
    put('a');
    let written = g
        .at("mapped")
        .metadata()
        .expect("there")
        .modified()
        .expect("time");
    let old = || {
        written
            .elapsed()
            .is_ok_and(|t| t > std::time::Duration::from_millis(1500))
    };
    assert!(crate::common::wait_until(std::time::Duration::from_secs(10), old));
    let a = g.take();
    put('b');
    let b = g.take();
    put('c');
    for (id, text) in [(&a, "a123456789"), (&b, "b123456789")] {
        assert_eq!(g.content(&State::Checkpoint(id.clone()), "mapped"), text);
    }
    assert_eq!(
        g.rows(&b, &State::Now),
        [row(ChangeKind::Modified, "mapped", None)]
    );
    drop(to);
    child.wait().expect("wait");
}

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use respool::engine::pool::Pool;
use respool::engine::{
    CheckpointId, CheckpointKind, Content, EngineError, FileType, Health, How, NewCheckpoint, State, image,
    space,
};
use respool::failure::{Explain, Kind};
use respool::progress::Silent;

use crate::common::{BtrfsBox, Child, TestSandbox, given, vault, wait_until};

fn manual() -> NewCheckpoint {
    NewCheckpoint::of(CheckpointKind::Manual, How::Own)
}

/// The directory of a checkpoint.
fn dir_of(s: &TestSandbox, id: &CheckpointId) -> std::path::PathBuf {
    let snaps = s.live.with_file_name("snaps");
    let mut all = std::fs::read_dir(&snaps).expect("snaps").flatten();
    all.find(|e| e.file_name().to_string_lossy().ends_with(id.as_str()))
        .expect("its directory")
        .path()
}

fn content(b: &BtrfsBox, s: &TestSandbox, id: &CheckpointId, path: &str) -> String {
    match b
        .vault(s)
        .read(&State::Checkpoint(id.clone()), Path::new(path), 1 << 20)
        .expect("read")
    {
        Content::File { bytes, .. } => String::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn checkpoints_keep_each_state_and_everything_said_of_them() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let mut new = NewCheckpoint::of(CheckpointKind::Message, How::Hook);
    new.conversation = Some("conv\u{1b}[31m".into());
    new.message = Some("13".into());
    new.text_hash = Some("0123456789abcdef".into());
    new.label = Some("  before the change ".into());
    new.late = Some(3);
    s.write("f", "one");
    let one = v.checkpoint(&new).expect("one");
    s.write("f", "two");
    let two = v.checkpoint(&manual()).expect("two");
    s.write("f", "three");

    assert_eq!((one.meta.seq, two.meta.seq), (1, 2));
    assert_eq!(one.meta.label.as_deref(), Some("before the change"));
    assert_eq!(v.checkpoints().expect("list"), vec![one.clone(), two.clone()]);
    assert_eq!(content(&b, &s, &one.meta.id, "f"), "one");
    assert_eq!(content(&b, &s, &two.meta.id, "f"), "two");
    let size = rustix::fs::getxattr(
        dir_of(&s, &one.meta.id),
        "user.respool.checkpoint",
        &mut [0u8; 4096][..],
    )
    .expect("xattr");
    assert!(size < 4096);

    v.label(&two.meta.id, "x\u{1b}").expect("label");
    v.pin(&two.meta.id, true).expect("pin");
    let two = &v.checkpoints().expect("list")[1];
    assert_eq!(
        (two.meta.label.as_deref(), two.meta.pinned),
        (Some("x\u{1b}"), true)
    );
    v.label(&two.meta.id, "").expect("label");
    assert_eq!(v.checkpoints().expect("list")[1].meta.label, None);
}

/// P155: by the sequence, whatever the clock does.
#[test]
fn a_clock_that_stands_back_is_marked_and_the_order_stays() {
    let b = BtrfsBox::new();
    let v = b.vault(&b.sandbox());
    let at = |s: i64| DateTime::from_timestamp(1_800_000_000 + s, 0).expect("time");
    let back: Vec<bool> = [at(0), at(10), at(5), at(6)]
        .map(|t: DateTime<Utc>| v.checkpoint_at(&manual(), t).expect("checkpoint").meta.clock_back)
        .to_vec();
    assert_eq!(back, [false, false, true, false]);
    let seqs: Vec<u64> = v
        .checkpoints()
        .expect("list")
        .iter()
        .map(|c| c.meta.seq)
        .collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
}

#[test]
fn p022_a_missing_snapshot_is_named_and_never_replaced() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    s.write("f", "one");
    let one = v.checkpoint(&manual()).expect("one").meta.id;
    s.write("f", "two");
    let two = v.checkpoint(&manual()).expect("two").meta.id;
    respool::engine::subvolume::destroy(File::open(dir_of(&s, &one)).expect("open"), "workspace")
        .expect("by hand");

    let listed = v.checkpoints().expect("list");
    assert_eq!(
        listed[0].health,
        Health::Incomplete("its workspace is missing".into())
    );
    assert_eq!(listed[1].health, Health::Ok);
    let e = v.open_state(&State::Checkpoint(one.clone())).expect_err("gone");
    assert_eq!(e.kind(), Kind::Damaged);
    assert!(e.to_string().contains(one.as_str()), "{e}");
    let e = v
        .read(&State::Checkpoint(one), Path::new("f"), 10)
        .expect_err("gone");
    assert!(matches!(e, EngineError::DamagedCheckpoint { .. }), "{e}");
    let never = CheckpointId("cp-aaaaaaaaaa".into());
    let e = v
        .open_state(&State::Checkpoint(never.clone()))
        .expect_err("never");
    assert_eq!(e.kind(), Kind::NotFound);
    assert_eq!(e.to_string(), "there is no checkpoint cp-aaaaaaaaaa");
    assert!(v.label(&never, "x").is_err() && v.remove(&[never], &Silent).is_err());
    assert_eq!(content(&b, &s, &two, "f"), "two");
}

#[test]
fn p039_p042_damaged_checkpoints_are_listed_and_refused_by_name() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let ids: Vec<CheckpointId> = (0..6)
        .map(|i| {
            s.write("f", format!("{i}"));
            v.checkpoint(&manual()).expect("checkpoint").meta.id
        })
        .collect();
    let set = |id: &CheckpointId, value: &[u8]| {
        rustix::fs::setxattr(
            dir_of(&s, id),
            "user.respool.checkpoint",
            value,
            rustix::fs::XattrFlags::empty(),
        )
        .expect("xattr");
    };
    set(&ids[0], b"");
    set(&ids[1], &[0; 500]);
    set(&ids[2], b"{\"v\":1,\"id\":");
    // the record of another one
    let mut other = vec![0u8; 4096];
    let len =
        rustix::fs::getxattr(dir_of(&s, &ids[5]), "user.respool.checkpoint", &mut other[..]).expect("get");
    set(&ids[3], &other[..len]);
    // a writable subvolume in the snapshot's place
    let dir = File::open(dir_of(&s, &ids[4])).expect("open");
    respool::engine::subvolume::destroy(&dir, "workspace").expect("destroy");
    respool::engine::ioctl::subvol_create(&dir, b"workspace").expect("create");

    let listed = v.checkpoints().expect("list");
    assert_eq!(listed.iter().map(|c| c.meta.id.clone()).collect::<Vec<_>>(), ids);
    for c in &listed[..5] {
        assert!(matches!(c.health, Health::Damaged(_)), "{c:?}");
        let e = v
            .open_state(&State::Checkpoint(c.meta.id.clone()))
            .expect_err("damaged");
        assert!(e.to_string().contains(c.meta.id.as_str()), "{e}");
        assert_eq!(e.kind(), Kind::Damaged);
    }
    assert_eq!(listed[5].health, Health::Ok);
    // what is lost is rebuilt from the disk
    assert_eq!((listed[0].meta.seq, listed[0].meta.parts.len()), (1, 1));
    assert!((Utc::now() - listed[0].meta.time).num_seconds() < 60);
    assert_eq!(
        v.sweep().expect("sweep"),
        respool::engine::vault::btrfs::Swept::default()
    );
    assert_eq!(
        v.checkpoints().expect("list").len(),
        6,
        "nothing damaged is swept"
    );
    v.remove(&ids[..4], &Silent).expect("damaged ones can be removed");
    let e = v
        .remove(&ids[4..5], &Silent)
        .expect_err("what is no snapshot is not removed");
    assert_eq!(e.kind(), Kind::Damaged);
}

#[test]
fn pinned_checkpoints_stay_and_removed_ones_give_their_space_back() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let keep = v.checkpoint(&manual()).expect("keep").meta.id;
    v.pin(&keep, true).expect("pin");
    let mut random = vec![0u8; 24 << 20];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut random))
        .expect("random");
    s.write("big", &random);
    let big = v.checkpoint(&manual()).expect("big").meta.id;
    std::fs::remove_file(s.live.join("big")).expect("rm");

    let e = v
        .remove(&[big.clone(), keep.clone()], &Silent)
        .expect_err("pinned");
    assert_eq!(e.kind(), Kind::Refused);
    assert_eq!(v.checkpoints().expect("list").len(), 2, "all or nothing");
    let freed = space::measure_freed(b.pool().root(), b.pool().mount(), || v.remove(&[big], &Silent))
        .expect("remove");
    assert!((20 << 20..30 << 20).contains(&freed), "{freed}");
    v.pin(&keep, false).expect("unpin");
    v.remove(&[keep], &Silent).expect("remove");
    assert_eq!(v.checkpoints().expect("list"), vec![]);
    assert_eq!(v.checkpoint(&manual()).expect("again").meta.seq, 1);
}

fn write_until_told(v: &respool::engine::vault::BtrfsVault, live: &Path) {
    for i in 0u64.. {
        std::fs::write(live.join("f"), format!("{i}")).expect("write");
        let mut new = manual();
        new.label = Some(format!("{i}"));
        v.checkpoint(&new).expect("checkpoint");
    }
}

#[test]
#[ignore = "run by other tests in a child process"]
fn child_takes_checkpoints_for_ever() {
    let pool = Pool::open_image(&given("IMAGE"), &given("MNT")).expect("open");
    let id = given("SANDBOX").to_string_lossy().into_owned();
    let v = vault(&pool, &id);
    write_until_told(&v, &pool.base_path().join("s").join(&id).join("live"));
}

#[test]
fn kill_at_any_moment_leaves_whole_checkpoints_or_none() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let mut leftovers = 0;
    for round in 0..40u64 {
        let before = v.checkpoints().expect("list").len();
        let (img, mnt, id) = (b.image(), b.mnt(), Path::new(&s.id).to_owned());
        let mut child = Child::run(
            "vault::child_takes_checkpoints_for_ever",
            &[("IMAGE", &img), ("MNT", &mnt), ("SANDBOX", &id)],
        );
        let started = wait_until(Duration::from_secs(20), || {
            std::fs::read_dir(s.live.with_file_name("snaps"))
                .expect("snaps")
                .count()
                > before
        });
        assert!(started, "round {round}: the child takes none");
        // at a moment that differs from round to round
        std::thread::sleep(Duration::from_micros(311 * round));
        child.kill();
        let listed = v.checkpoints().expect("list");
        for c in &listed {
            match &c.health {
                Health::Ok => {
                    let f = content(&b, &s, &c.meta.id, "f");
                    assert_eq!(Some(f), c.meta.label, "the state belongs to its record");
                }
                Health::Incomplete(_) => leftovers += 1,
                Health::Damaged(why) => panic!("round {round}: {why}"),
            }
        }
        v.sweep().expect("sweep");
        assert!(
            v.checkpoints()
                .expect("list")
                .iter()
                .all(|c| c.health == Health::Ok)
        );
        std::fs::write(s.live.join("f"), "own").expect("write");
        let mut new = manual();
        new.label = Some("own".into());
        v.checkpoint(&new).expect("goes on");
    }
    eprintln!("{leftovers} leftovers in 40 kills");
}

#[test]
fn a_leftover_without_snapshot_is_told_and_swept() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let one = v.checkpoint(&manual()).expect("one");
    let snaps = s.live.with_file_name("snaps");
    std::fs::create_dir(snaps.join("00000002-cp-aaaaaaaaaa")).expect("as a kill leaves it");
    let listed = v.checkpoints().expect("list");
    assert_eq!(listed.len(), 2);
    assert!(matches!(listed[1].health, Health::Incomplete(_)));
    assert_eq!(v.checkpoint(&manual()).expect("next").meta.seq, 3);
    assert_eq!(v.sweep().expect("sweep").unmade, 1);
    let seqs: Vec<u64> = v
        .checkpoints()
        .expect("list")
        .iter()
        .map(|c| c.meta.seq)
        .collect();
    assert_eq!(seqs, [1, 3]);
    assert_eq!(v.checkpoints().expect("list")[0], one);
}

/// Gives a copy of an image its own file system id, so that it can be mounted beside the first.
fn as_another(copy: &Path) {
    let f = File::options().read(true).write(true).open(copy).expect("open");
    let mut block = [0u8; 4096];
    f.read_exact_at(&mut block, 0x10000).expect("superblock");
    block[0x20] ^= 0xff;
    let sum = crc32c::crc32c(&block[0x20..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
    f.write_all_at(&block, 0x10000).expect("superblock");
    if f.metadata().expect("stat").len() > (64 << 20) + 4096 {
        // the second copy of the superblock
        f.read_exact_at(&mut block, 64 << 20).expect("superblock");
        block[0x20] ^= 0xff;
        let sum = crc32c::crc32c(&block[0x20..]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
        f.write_all_at(&block, 64 << 20).expect("superblock");
    }
}

#[test]
fn a_checkpoint_is_durable_with_its_record_and_unsynced_data_when_it_returns() {
    let b = BtrfsBox::sized(image::MIN_SIZE);
    let s = b.sandbox();
    let v = b.vault(&s);
    s.write("f", "never synced");
    let made = v.checkpoint(&manual()).expect("checkpoint");
    v.label(&made.meta.id, "labelled").expect("label");
    s.write("f", "lost");
    // the image as it is at this moment: what a power cut would leave
    let copy = b.dir().join("copy.img");
    std::fs::copy(b.image(), &copy).expect("copy");
    as_another(&copy);
    let pool = Pool::open_image(&copy, &b.dir().join("mnt2")).expect("mount the copy");
    let after = vault(&pool, &s.id);
    let listed = after.checkpoints().expect("list");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].health, Health::Ok);
    assert_eq!(listed[0].meta.id, made.meta.id);
    assert_eq!(listed[0].meta.label.as_deref(), Some("labelled"));
    let state = State::Checkpoint(made.meta.id);
    let read = after.read(&state, Path::new("f"), 100).expect("read");
    assert_eq!(
        read,
        Content::File {
            bytes: b"never synced".to_vec(),
            size: 12
        }
    );
    drop(after);
    pool.unmount().expect("unmount");
}

#[test]
fn p122_checkpoints_at_the_same_moment_are_all_kept_in_order() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|t| {
                let (b, s) = (&b, &s);
                scope.spawn(move || {
                    let v = b.vault(s);
                    (0..5)
                        .map(|i| {
                            let mut new = manual();
                            new.conversation = Some(format!("{t}"));
                            new.message = Some(format!("{i}"));
                            v.checkpoint(&new).expect("checkpoint").meta
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().expect("thread"))
            .collect()
    });
    let seqs: BTreeSet<u64> = made.iter().map(|m| m.seq).collect();
    assert_eq!(seqs, (1..=25).collect());
    let listed = b.vault(&s).checkpoints().expect("list");
    assert!(listed.iter().all(|c| c.health == Health::Ok));
    for t in 0..5 {
        let order: Vec<String> = listed
            .iter()
            .filter(|c| c.meta.conversation.as_deref() == Some(&t.to_string()))
            .filter_map(|c| c.meta.message.clone())
            .collect();
        assert_eq!(order, ["0", "1", "2", "3", "4"]);
    }
    // the snapshots were made in the order of the sequence
    let v = b.vault(&s);
    let made: Vec<_> = listed
        .iter()
        .map(|c| {
            v.open_state(&State::Checkpoint(c.meta.id.clone()))
                .expect("open")
                .made()
        })
        .collect();
    assert!(made.windows(2).all(|w| w[0] <= w[1]));
}

#[test]
#[ignore = "run by other tests in a child process"]
fn child_looks_at_now() {
    let pool = Pool::open_image(&given("IMAGE"), &given("MNT")).expect("open");
    let v = vault(&pool, &given("SANDBOX").to_string_lossy());
    let _state = v.open_state(&State::Now).expect("now");
    File::create(given("READY"))
        .and_then(|mut f| f.write_all(b"x"))
        .expect("ready");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("wait for the end");
}

#[test]
fn p091_a_snapshot_of_now_goes_away_even_after_a_kill() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    let tmp = s.live.with_file_name("tmp");
    let count = || std::fs::read_dir(&tmp).expect("tmp").count();
    s.write("f", "now");
    {
        let now = v.open_state(&State::Now).expect("now");
        s.write("f", "later");
        let mut text = String::new();
        let fd = rustix::fs::openat(
            now.fd(),
            "f",
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        File::from(fd.expect("open"))
            .read_to_string(&mut text)
            .expect("read");
        assert_eq!((text.as_str(), count()), ("now", 1));
        assert!((Utc::now().timestamp() - now.made().0).abs() < 60);
        let write = rustix::fs::openat(
            now.fd(),
            "f",
            rustix::fs::OFlags::WRONLY,
            rustix::fs::Mode::empty(),
        );
        assert_eq!(write.expect_err("read-only"), rustix::io::Errno::ROFS);
    }
    assert_eq!(count(), 0);

    let ready = [b.dir().join("r1"), b.dir().join("r2")];
    let id = Path::new(&s.id).to_owned();
    let mut children: Vec<Child> = ready
        .iter()
        .map(|r| {
            Child::run(
                "vault::child_looks_at_now",
                &[
                    ("IMAGE", &b.image()),
                    ("MNT", &b.mnt()),
                    ("SANDBOX", &id),
                    ("READY", r),
                ],
            )
        })
        .collect();
    assert!(wait_until(Duration::from_secs(20), || ready
        .iter()
        .all(|r| r.exists())));
    assert_eq!(count(), 2);
    children[0].kill();
    // the killed one's is swept, the other's is in use
    let mine = v.open_state(&State::Now).expect("now");
    assert_eq!(count(), 2);
    drop(mine);
    assert_eq!(count(), 1);
    assert!(children[1].finish());
    assert_eq!(count(), 0);
    assert_eq!(
        v.checkpoints().expect("list"),
        vec![],
        "none of them is a checkpoint"
    );
}

/// Links out of the tree, a pipe, a socket, a device, and a plain file in `sub`.
fn strange_files(s: &TestSandbox) {
    std::os::unix::fs::symlink("/etc", s.live.join("d")).expect("link");
    std::os::unix::fs::symlink("../../../../../../etc/passwd", s.live.join("p")).expect("link");
    for (name, kind) in [
        ("fifo", rustix::fs::FileType::Fifo),
        ("sock", rustix::fs::FileType::Socket),
    ] {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            s.live.join(name),
            kind,
            rustix::fs::Mode::RUSR,
            0,
        )
        .expect("mknod");
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        s.live.join("null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RUSR,
        rustix::fs::makedev(1, 3),
    )
    .expect("mknod");
    s.write("sub/f", "0123456789");
}

#[test]
fn p064_p069_links_are_not_followed_and_pipes_not_opened() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    strange_files(&s);
    let id = v.checkpoint(&manual()).expect("checkpoint").meta.id;
    let start = Instant::now();
    for state in [State::Checkpoint(id), State::Now] {
        let read = |path: &str| v.read(&state, Path::new(path), 4);
        assert_eq!(read("d").expect("link"), Content::Link("/etc".into()));
        assert_eq!(
            read("p").expect("link"),
            Content::Link("../../../../../../etc/passwd".into())
        );
        assert_eq!(read("fifo").expect("fifo"), Content::Other(FileType::Fifo));
        assert_eq!(read("sock").expect("socket"), Content::Other(FileType::Socket));
        assert_eq!(
            read("null").expect("device"),
            Content::Other(FileType::CharDevice)
        );
        assert_eq!(read("sub").expect("folder"), Content::Other(FileType::Dir));
        assert_eq!(read(".").expect("root"), Content::Other(FileType::Dir));
        assert_eq!(
            read("sub/f").expect("file"),
            Content::File {
                bytes: b"0123".to_vec(),
                size: 10
            }
        );
        for bad in [
            "d/passwd",
            "d/hosts",
            "../live/sub/f",
            "/etc/passwd",
            "sub/f/x",
            "nothing",
            "sub/../../x",
        ] {
            let e = read(bad).expect_err(bad);
            assert_eq!(e.kind(), Kind::NotFound, "{bad}: {e}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(2), "nothing blocks");
}

#[test]
fn p064_p069_folders_list_strange_files_and_are_not_reached_through_links() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    strange_files(&s);
    let id = v.checkpoint(&manual()).expect("checkpoint").meta.id;
    let start = Instant::now();
    for state in [State::Checkpoint(id), State::Now] {
        for bad in ["d", "fifo", "p", "sub/f", "..", "/etc"] {
            assert_eq!(
                v.entries(&state, Path::new(bad)).expect_err(bad).kind(),
                Kind::NotFound,
                "{bad}"
            );
        }
        let names: Vec<(String, FileType)> = v
            .entries(&state, Path::new(""))
            .expect("entries")
            .into_iter()
            .map(|e| (e.name.to_string_lossy().into_owned(), e.file_type))
            .collect();
        let want = [
            ("d", FileType::Link),
            ("fifo", FileType::Fifo),
            ("null", FileType::CharDevice),
            ("p", FileType::Link),
            ("sock", FileType::Socket),
            ("sub", FileType::Dir),
        ];
        assert_eq!(names, want.map(|(n, t)| (n.to_owned(), t)));
        let f = &v.entries(&state, Path::new("sub")).expect("entries")[0];
        assert_eq!((f.size, f.mode & 0o400), (10, 0o400));
    }
    assert!(start.elapsed() < Duration::from_secs(2), "nothing blocks");
}

#[test]
fn a_live_tree_that_is_none_is_refused() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    s.write("sub/f", "x");
    for path in [s.live.join("sub"), b.dir().path().to_owned()] {
        let fd = File::open(path).expect("open");
        let e =
            respool::engine::vault::BtrfsVault::open(b.pool(), &s.id, fd.into()).expect_err("no subvolume");
        assert_eq!(e.kind(), Kind::Refused);
        assert!(matches!(e, EngineError::NotManaged { .. }), "{e}");
    }
}

#[test]
fn a_failed_snapshot_leaves_no_directory() {
    let b = BtrfsBox::new();
    let (s, other) = (b.sandbox(), BtrfsBox::new());
    // a live tree on another file system: the snapshot itself fails
    let foreign = other.sandbox();
    let live = File::open(&foreign.live).expect("open");
    let v = respool::engine::vault::BtrfsVault::open(b.pool(), &s.id, live.into()).expect("vault");
    let e = v.checkpoint(&manual()).expect_err("another file system");
    assert_eq!(e.kind(), Kind::Failed);
    assert_eq!(
        std::fs::read_dir(s.live.with_file_name("snaps"))
            .expect("snaps")
            .count(),
        0
    );
    assert!(v.open_state(&State::Now).is_err());
    assert_eq!(
        std::fs::read_dir(s.live.with_file_name("tmp"))
            .expect("tmp")
            .count(),
        0
    );
    drop(v);
}

#[test]
fn warm_makes_data_reach_the_disk() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    s.write("f", "x");
    v.warm().expect("warm");
}

#[test]
fn p095_a_full_pool_still_takes_checkpoints_and_comes_free_without_a_remount() {
    let b = BtrfsBox::sized(image::MIN_SIZE);
    let s = b.sandbox();
    let v = b.vault(&s);
    let mut random = vec![0u8; 4 << 20];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut random))
        .expect("random");
    let fill = |name: &str| {
        File::create(s.live.join(name)).and_then(|mut f| {
            f.write_all(&random)?;
            f.sync_all()
        })
    };
    let full = (0..100).find_map(|i| fill(&format!("big{i}")).err());
    let code = full.expect("it becomes full").raw_os_error();
    assert_eq!(code, Some(rustix::io::Errno::NOSPC.raw_os_error()));
    let kept = v.checkpoint(&manual()).expect("at 100 %").meta.id;
    drop(v.open_state(&State::Now).expect("now, at 100 %"));
    assert!(!b.pool().status().expect("status").read_only);
    for entry in std::fs::read_dir(&s.live).expect("list").flatten() {
        std::fs::remove_file(entry.path()).expect("rm");
    }
    let freed = space::measure_freed(b.pool().root(), b.pool().mount(), || v.remove(&[kept], &Silent));
    assert!(freed.expect("remove") > 100 << 20);
    fill("again").expect("a write works without a remount");
}

#[test]
fn an_immutable_or_append_only_root_hinders_neither_comparisons_nor_removal() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    s.write("f", "1");
    let v = b.vault(&s);
    for flag in ["i", "a"] {
        let chattr = |sign| {
            let mut c = std::process::Command::new("chattr");
            assert!(
                c.arg(format!("{sign}{flag}"))
                    .arg(&s.live)
                    .status()
                    .expect("chattr")
                    .success()
            );
        };
        chattr("+");
        let one = v.checkpoint(&manual()).expect("checkpoint").meta.id;
        let now = v.open_state(&State::Now).expect("now");
        drop(now);
        let tmp = s.live.with_file_name("tmp");
        assert_eq!(std::fs::read_dir(&tmp).expect("tmp").count(), 0, "{flag}");
        v.remove(&[one], &Silent).expect("removed");
        assert_eq!(v.checkpoints().expect("list"), vec![], "{flag}");
        chattr("-");
    }
}

#[test]
fn what_is_said_to_be_untouched_is_in_no_list() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    let v = b.vault(&s);
    for path in ["same", "content", "mode", "gone", "dir/inside", "a/renamed"] {
        s.write(path, "x");
    }
    let take = || v.checkpoint(&manual()).expect("checkpoint").meta.id;
    let untouched =
        |a: &CheckpointId, b: &CheckpointId, p: &str| v.untouched(a, b, Path::new(p)).expect("looked at");
    // just written, it could have been written again within the same tick of the clock
    let (a, z) = (take(), take());
    assert!(!untouched(&a, &z, "same"));
    assert!(untouched(&a, &z, "never/there"));
    let mut first = a;
    assert!(
        wait_until(Duration::from_secs(20), || {
            first = take();
            untouched(&first, &take(), "same")
        }),
        "it never settles"
    );
    s.write("content", "y");
    s.write("new", "x");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(s.live.join("mode"), mode).expect("chmod");
    std::fs::remove_file(s.live.join("gone")).expect("remove");
    std::fs::rename(s.live.join("a"), s.live.join("b")).expect("rename");
    let last = take();
    let states = [State::Checkpoint(first.clone()), State::Checkpoint(last.clone())];
    let list =
        respool::engine::vault::Vault::changes(&v, &states[0], &states[1], false, &Silent).expect("list");
    assert_eq!(list.len(), 5, "{list:?}");
    for change in &list {
        for path in [&*change.path, change.old_path()] {
            assert!(
                !v.untouched(&first, &last, path).expect("looked at"),
                "{change:?}"
            );
        }
    }
    for path in ["same", "dir/inside", "never/there"] {
        assert!(untouched(&first, &last, path), "{path}");
    }
}

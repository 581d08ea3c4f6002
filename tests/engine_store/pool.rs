use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use respool::engine::attach::attached;
use respool::engine::catalog::{Place, SandboxDir, create_sandbox, list_sandboxes};
use respool::engine::pool::{Pool, PoolKind, check_image, peek};
use respool::engine::{CheckpointKind, EngineError, Health, How, NewCheckpoint, image, subvolume};
use respool::failure::{Explain, Kind};

use crate::common::{
    BtrfsBox, Child, TestDir, given, loops_below, mounts_below, need_root, test_record, vault, wait_until,
};

fn btrfs_check(image: &Path) -> (bool, String) {
    let out = Command::new("btrfs")
        .args(["check", "--readonly"])
        .arg(image)
        .output()
        .expect("btrfs-progs is needed for this test");
    let text = [out.stdout, out.stderr].concat();
    (out.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_fresh_image_is_a_clean_file_system_and_stays_one_in_use() {
    need_root();
    let dir = TestDir::new();
    let img = dir.join("a.img");
    let fsid = image::create(&img, 300 << 20, false).expect("create");
    let (clean, text) = btrfs_check(&img);
    assert!(clean && text.contains("no error found"), "{text}");
    assert!(text.contains(&image::uuid_text(&fsid)), "{text}");

    let pool = Pool::open_image(&img, &dir.join("mnt")).expect("open");
    assert_eq!(pool.fsid(), fsid);
    let status = pool.status().expect("status");
    assert_eq!(
        (status.size, status.read_only, status.trouble),
        (300 << 20, false, None)
    );
    assert!(status.mounted && status.free_unallocated > 100 << 20);
    std::fs::write(pool.mount().join("f"), vec![7; 10 << 20]).expect("write");
    let report = pool.check().expect("scrub");
    assert_eq!(report.clean, Some(true), "{:?}", report.lines);
    assert_eq!(
        check_image(&img).expect_err("in use").kind(),
        Kind::Refused,
        "a mounted image is not checked"
    );
    pool.unmount().expect("unmount");
    assert_eq!(dir.left(), Vec::<String>::new());
    let report = check_image(&img).expect("check");
    assert_eq!(report.clean, Some(true), "{:?}", report.lines);
    let status = peek(&img, &dir.join("mnt")).expect("peek");
    assert!(!status.mounted && status.host_free.is_some());
}

#[test]
fn the_smallest_image_holds_a_sandbox_and_checkpoints() {
    let b = BtrfsBox::sized(image::MIN_SIZE);
    let s = b.sandbox();
    s.write("f", vec![1; 4 << 20]);
    let v = b.vault(&s);
    for _ in 0..3 {
        v.checkpoint(&NewCheckpoint::of(CheckpointKind::Manual, How::Own))
            .expect("checkpoint");
    }
}

#[test]
fn two_images_are_mounted_together() {
    need_root();
    let dir = TestDir::new();
    let pools = ["a", "b"].map(|n| {
        image::create(&dir.join(n), image::MIN_SIZE, false).expect("create");
        Pool::open_image(&dir.join(n), &dir.join("mnt")).expect("open")
    });
    assert_eq!(mounts_below(dir.path()).len(), 2);
    for pool in pools {
        pool.unmount().expect("unmount");
    }
}

#[test]
fn the_mount_is_roots_alone_and_has_the_options() {
    use std::os::unix::fs::MetadataExt;
    let b = BtrfsBox::new();
    assert_eq!(b.mnt().metadata().expect("stat").mode() & 0o777, 0o700);
    let all = respool::engine::mounts::list().expect("mounts");
    let m = all
        .iter()
        .find(|m| m.point == b.pool().mount())
        .expect("the mount");
    assert!(m.options.contains("noatime"), "{m:?}");
    for option in ["compress=zstd:1", "discard=async", "commit=5"] {
        assert!(m.super_options.contains(option), "{m:?}");
    }
    let device = attached(&b.image()).expect("look").expect("attached").device;
    let sys = Path::new("/sys/block").join(device.file_name().expect("a name"));
    let flag = |name: &str| {
        std::fs::read_to_string(sys.join(name))
            .expect("sysfs")
            .trim()
            .to_owned()
    };
    assert_eq!(flag("loop/autoclear"), "1");
    assert_eq!(flag("loop/partscan"), "0");
    assert_eq!(flag("queue/logical_block_size"), "4096");
    assert_eq!(
        std::fs::read_to_string(b.pool().base_path().join("format")).expect("marker"),
        "respool-pool 1\n"
    );
}

#[test]
fn p100_a_pool_that_was_unmounted_by_hand_comes_back_with_all_ids() {
    let mut b = BtrfsBox::new();
    let s = b.sandbox();
    s.write("f", "one");
    let made = b
        .vault(&s)
        .checkpoint(&NewCheckpoint::of(CheckpointKind::Manual, How::Own))
        .expect("checkpoint");
    let mount = b.pool().mount().to_owned();
    b.forget();
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::empty()).expect("by hand");
    assert!(wait_until(Duration::from_secs(5), || loops_below(b.dir().path()).is_empty()));

    b.mount();
    let v = b.vault(&s);
    let listed = v.checkpoints().expect("list");
    assert_eq!(listed, vec![made]);
    assert_eq!(list_sandboxes(b.pool()).expect("list")[0].id, s.id);
    // a second unmount by hand while another mount keeps the file system: the same one is used again
    drop(v);
    let again = b.open();
    assert_eq!(mounts_below(&b.mnt()).len(), 1);
    assert_eq!(again.mount(), b.pool().mount());
}

#[test]
fn an_image_attached_by_hand_is_used_and_let_go() {
    let mut b = BtrfsBox::new();
    b.unmount();
    let out = Command::new("losetup")
        .arg("-f")
        .arg("--show")
        .arg(b.image())
        .output()
        .expect("losetup");
    assert!(out.status.success());
    b.mount();
    assert_eq!(loops_below(b.dir().path()).len(), 1);
    b.unmount();
    assert_eq!(b.dir().left(), Vec::<String>::new());
}

#[test]
fn p101_a_damaged_image_is_named_and_leaks_no_loop_device() {
    need_root();
    let dir = TestDir::new();
    let (bad_super, bad_trees) = (dir.join("super.img"), dir.join("trees.img"));
    for img in [&bad_super, &bad_trees] {
        image::create(img, image::MIN_SIZE, false).expect("create");
    }
    let f = File::options().write(true).open(&bad_super).expect("open");
    f.write_all_at(&[0xff; 64], 0x10000 + 0x50).expect("damage");
    // the superblock stays right, all else is gone: only the mount can find out
    let f = File::options().write(true).open(&bad_trees).expect("open");
    for at in (0..image::MIN_SIZE).step_by(4096).filter(|at| *at != 0x10000) {
        f.write_all_at(&[0; 4096], at).expect("damage");
    }
    for img in [&bad_super, &bad_trees] {
        for _ in 0..10 {
            let e = Pool::open_image(img, &dir.join("mnt")).expect_err("damaged");
            assert!(e.to_string().contains(&*img.to_string_lossy()), "{e}");
            assert_eq!(e.path(), Some(img.as_path()));
        }
        assert!(wait_until(Duration::from_secs(5), || loops_below(dir.path()).is_empty()));
    }
    assert_eq!(
        Pool::open_image(&bad_super, &dir.join("mnt"))
            .expect_err("damaged")
            .kind(),
        Kind::Damaged
    );
    assert_eq!(mounts_below(dir.path()), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "run by other tests in a child process"]
fn child_holds_the_pool() {
    let _pool = Pool::open_image(&given("IMAGE"), &given("MNT")).expect("open");
    File::create(given("READY"))
        .and_then(|mut f| f.write_all(b"x"))
        .expect("ready");
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("wait for the end");
}

#[test]
fn p103_eight_processes_at_once_attach_once() {
    need_root();
    for round in 0..3 {
        let dir = TestDir::new();
        let (img, mnt) = (dir.join("pool.img"), dir.join("mnt"));
        image::create(&img, image::MIN_SIZE, false).expect("create");
        let ready: Vec<PathBuf> = (0..8).map(|i| dir.join(format!("ready{i}"))).collect();
        let mut children: Vec<Child> = ready
            .iter()
            .map(|r| {
                Child::run(
                    "pool::child_holds_the_pool",
                    &[("IMAGE", &img), ("MNT", &mnt), ("READY", r)],
                )
            })
            .collect();
        let all = wait_until(Duration::from_secs(20), || ready.iter().all(|r| r.exists()));
        assert!(all, "round {round}: not all opened it");
        assert_eq!(loops_below(dir.path()).len(), 1);
        assert_eq!(mounts_below(dir.path()).len(), 1);
        assert!(children.iter_mut().all(Child::finish));
        Pool::open_image(&img, &mnt)
            .expect("open")
            .unmount()
            .expect("unmount");
    }
}

#[test]
fn p103_eight_threads_and_two_state_dirs_share_one_attachment() {
    need_root();
    let dir = TestDir::new();
    let img = dir.join("pool.img");
    image::create(&img, image::MIN_SIZE, false).expect("create");
    let places = [dir.join("one"), dir.join("two")];
    let pools: Vec<Pool> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|i| {
                s.spawn({
                    let (img, at) = (&img, &places[i % 2]);
                    move || Pool::open_image(img, at)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("thread").expect("open"))
            .collect()
    });
    assert_eq!(loops_below(dir.path()).len(), 1);
    assert_eq!(mounts_below(dir.path()).len(), 2);
    // while the other state dir has it mounted, it is in use
    let mut pools = pools;
    let first = pools.remove(0);
    drop(pools);
    match first.unmount().expect_err("in use") {
        EngineError::Busy { mounts, .. } => assert_eq!(mounts.len(), 1),
        other => panic!("{other}"),
    }
    let other = mounts_below(&places[1]);
    rustix::mount::unmount(&other[0], rustix::mount::UnmountFlags::empty()).expect("unmount");
    Pool::open_image(&img, &places[0])
        .expect("open")
        .unmount()
        .expect("unmount");
}

#[test]
fn a_pool_in_use_is_not_unmounted() {
    let mut b = BtrfsBox::new();
    let s = b.sandbox();
    let held = File::create(s.live.join("open")).expect("a file");
    let pool = b.open();
    b.forget();
    let e = pool.unmount().expect_err("busy");
    assert!(matches!(e, EngineError::Busy { .. }), "{e}");
    assert_eq!(e.kind(), Kind::Refused);
    drop(held);
    b.mount();
    b.unmount();
}

#[test]
fn a_copy_of_a_mounted_image_is_refused() {
    let b = BtrfsBox::sized(image::MIN_SIZE);
    let copy = b.dir().join("copy.img");
    std::fs::copy(b.image(), &copy).expect("copy");
    let e = Pool::open_image(&copy, &b.mnt()).expect_err("a copy");
    assert_eq!((e.kind(), e.path()), (Kind::Refused, Some(copy.as_path())));
    assert_eq!(loops_below(b.dir().path()).len(), 1);
}

#[test]
fn a_pool_grows_in_use_and_never_shrinks() {
    let mut b = BtrfsBox::sized(image::MIN_SIZE);
    b.pool().grow(512 << 20).expect("grow");
    assert_eq!(b.pool().status().expect("status").size, 512 << 20);
    assert_eq!(
        b.pool().grow(300 << 20).expect_err("shrink").kind(),
        Kind::Refused
    );
    // a growth that was cut short after the file had grown is finished at the next mount
    b.unmount();
    let f = File::options().write(true).open(b.image()).expect("open");
    f.set_len(640 << 20).expect("grow the file");
    b.mount();
    assert_eq!(b.pool().status().expect("status").size, 640 << 20);
}

#[test]
fn a_preallocated_pool_keeps_its_space() {
    need_root();
    let dir = TestDir::new();
    let img = dir.join("pool.img");
    image::create(&img, 256 << 20, true).expect("create");
    let pool = Pool::open_image(&img, &dir.join("mnt")).expect("open");
    let all = respool::engine::mounts::list().expect("mounts");
    let m = all.iter().find(|m| m.point == pool.mount()).expect("the mount");
    assert!(!m.super_options.contains("discard=async"), "{m:?}");
    std::fs::write(pool.mount().join("f"), vec![7; 10 << 20]).expect("write");
    std::fs::remove_file(pool.mount().join("f")).expect("rm");
    pool.grow(320 << 20).expect("grow");
    let status = pool.status().expect("status");
    assert_eq!(
        (status.image_allocated, status.size),
        (Some(320 << 20), 320 << 20)
    );
    pool.unmount().expect("unmount");
}

#[test]
fn a_newer_format_is_refused_and_an_empty_marker_mended() {
    let mut b = BtrfsBox::sized(image::MIN_SIZE);
    let marker = b.pool().base_path().join("format");
    std::fs::write(&marker, "").expect("empty");
    b.mount();
    assert_eq!(
        std::fs::read_to_string(&marker).expect("marker"),
        "respool-pool 1\n"
    );
    std::fs::write(&marker, "respool-pool 2\n").expect("newer");
    let e = Pool::open_image(&b.image(), &b.mnt()).expect_err("newer");
    assert_eq!(e.kind(), Kind::Refused);
    assert!(e.to_string().contains("format 2"), "{e}");
    std::fs::write(&marker, "something else").expect("other");
    assert_eq!(
        Pool::open_image(&b.image(), &b.mnt()).expect_err("other").kind(),
        Kind::Damaged
    );
}

/// A host disk of `size` bytes that can be filled.
fn small_host(dir: &TestDir, size: u64) -> PathBuf {
    let host = dir.join("host");
    std::fs::create_dir(&host).expect("folder");
    let data = std::ffi::CString::new(format!("size={size}")).expect("options");
    rustix::mount::mount(
        "tmpfs",
        &host,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        data.as_c_str(),
    )
    .expect("a small disk");
    host
}

/// Takes what is free on the host but for `leave` bytes.
fn fill(host: &Path, leave: u64) -> PathBuf {
    let filler = host.join("filler");
    let vfs = rustix::fs::statvfs(host).expect("statvfs");
    let f = File::create(&filler).expect("filler");
    let len = (vfs.f_bavail * vfs.f_frsize).saturating_sub(leave);
    rustix::fs::fallocate(&f, rustix::fs::FallocateFlags::empty(), 0, len).expect("fill");
    filler
}

#[test]
fn p099_a_full_host_is_refused_before_and_survived_after() {
    need_root();
    let dir = TestDir::new();
    let host = small_host(&dir, 400 << 20);
    let (img, mnt) = (host.join("pool.img"), dir.join("mnt"));
    image::create(&img, 1 << 30, false).expect("create");
    let pool = Pool::open_image(&img, &mnt).expect("open");
    let (sandbox, record) = create_sandbox(&pool, test_record(Path::new("/w"))).expect("sandbox");
    let live = sandbox.path().join("live");
    std::fs::write(live.join("kept"), "kept").expect("write");
    let v = vault(&pool, &record.id);
    let new = NewCheckpoint::of(CheckpointKind::Manual, How::Own);
    let first = v.checkpoint(&new).expect("with space");

    let filler = fill(&host, 20 << 20);
    let e = v.checkpoint(&new).expect_err("too little space");
    assert_eq!(e.kind(), Kind::Refused);
    assert!(e.to_string().contains("pool.img") && e.hint().is_some(), "{e}");
    std::fs::remove_file(&filler).expect("rm");
    v.checkpoint(&new).expect("space again");

    // now it happens: the host fills up behind the guard's back
    let filler = fill(&host, 0);
    let mut random = vec![0u8; 8 << 20];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut random))
        .expect("random");
    let mut n = 0;
    let forced = wait_until(Duration::from_secs(60), || {
        n += 1;
        let _fails_at_some_time = std::fs::write(live.join(format!("big{n}")), &random)
            .and_then(|()| File::open(live.join(format!("big{n}")))?.sync_all());
        let _fails_at_some_time = respool::engine::ioctl::fs_sync(pool.root());
        pool.status().expect("status").read_only
    });
    assert!(forced, "the kernel makes it read-only");
    let e = v.checkpoint(&new).expect_err("read-only");
    assert!(e.to_string().contains("read-only"), "{e}");
    assert!(e.hint().expect("a hint").contains("unmount"), "{:?}", e.hint());
    assert!(pool.status().expect("status").trouble.is_some());
    assert_eq!(v.checkpoints().expect("still readable").len(), 2);

    std::fs::remove_file(&filler).expect("rm");
    drop((v, sandbox));
    pool.unmount().expect("unmount");
    let pool = Pool::open_image(&img, &mnt).expect("open again");
    let v = vault(&pool, &record.id);
    let listed = v.checkpoints().expect("list");
    assert_eq!(listed[0], first);
    assert!(listed.iter().all(|c| c.health == Health::Ok));
    v.checkpoint(&new).expect("works again");
    drop(v);
    assert_eq!(pool.check().expect("scrub").clean, Some(true));
    pool.unmount().expect("unmount");
    rustix::mount::unmount(&host, rustix::mount::UnmountFlags::empty()).expect("unmount the host");
}

#[test]
fn an_existing_btrfs_is_used_through_its_top_level() {
    let b = BtrfsBox::new();
    // the "existing" file system: only a subvolume of it is mounted, at a name that needs escapes
    respool::engine::ioctl::subvol_create(b.pool().root(), b"vol").expect("subvolume");
    let source = attached(&b.image()).expect("look").expect("attached").device;
    let place = b.dir().join("the disk\n\\x");
    std::fs::create_dir(&place).expect("folder");
    rustix::mount::mount(
        &source,
        &place,
        "btrfs",
        rustix::mount::MountFlags::empty(),
        c"subvol=vol",
    )
    .expect("mount");
    let work = place.join("work");
    std::fs::create_dir(&work).expect("folder");

    let mnt = b.dir().join("mnt2");
    let pool = Pool::open_existing(&work, &mnt).expect("open");
    assert_eq!(pool.fsid(), b.pool().fsid());
    assert_eq!(pool.kind(), &PoolKind::Existing { device: source });
    assert_eq!(pool.base_path(), pool.mount().join(".respool"));
    let again = Pool::open_existing(&work, &mnt).expect("again");
    assert_eq!(mounts_below(&mnt).len(), 1);
    drop(again);

    respool::engine::ioctl::subvol_create(File::open(&work).expect("open"), b"live").expect("subvolume");
    let live = File::open(work.join("live")).expect("open");
    let info = subvolume::root_info(&live).expect("info").expect("a subvolume");
    let mut record = test_record(&work.join("live"));
    record.place = Place::Own;
    record.live_uuid = subvolume::hex(&info.uuid);
    let (dir, record) = create_sandbox(&pool, record).expect("sandbox");
    assert!(dir.live().expect("look").is_none());
    let v = respool::engine::vault::BtrfsVault::open(&pool, &record.id, live.into()).expect("vault");
    std::fs::write(work.join("live/f"), "x").expect("write");
    let made = v
        .checkpoint(&NewCheckpoint::of(CheckpointKind::Start, How::Own))
        .expect("checkpoint");
    assert_eq!(v.checkpoints().expect("list"), vec![made]);
    drop((v, dir));
    assert_eq!(pool.grow(1 << 40).expect_err("no image").kind(), Kind::Refused);
    pool.unmount().expect("unmount");
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).expect("unmount");
    assert_eq!(
        Pool::open_existing(Path::new("/proc"), &mnt)
            .expect_err("no btrfs")
            .kind(),
        Kind::Refused
    );
}

#[test]
fn p039_damaged_records_do_not_hide_the_rest() {
    let b = BtrfsBox::new();
    let all: Vec<_> = (0..3).map(|_| b.sandbox()).collect();
    let set = |id: &str, value: &[u8]| {
        let path = b.pool().base_path().join("s").join(id);
        rustix::fs::setxattr(
            &path,
            "user.respool.sandbox",
            value,
            rustix::fs::XattrFlags::empty(),
        )
        .expect("xattr");
    };
    set(&all[0].id, b"");
    set(&all[1].id, &[0; 300]);
    let listed = list_sandboxes(b.pool()).expect("list");
    assert_eq!(listed.len(), 3);
    for s in &listed {
        assert_eq!(s.record.is_ok(), s.id == all[2].id, "{s:?}");
        assert!(s.live_uuid.is_some());
    }
    let dir = SandboxDir::open(b.pool(), &all[0].id).expect("open");
    let e = dir.record().expect_err("damaged");
    assert_eq!(e.kind(), Kind::Damaged);
    assert!(e.to_string().contains(&all[0].id), "{e}");
    let live = dir.live().expect("live").expect("there");
    let rebuilt = dir.rebuild(Path::new("/w"), &live, Place::Pool).expect("rebuild");
    dir.write_record(&rebuilt).expect("write");
    let now = dir.record().expect("mended");
    assert_eq!(now, rebuilt);
    assert_eq!(Some(now.live_uuid), dir.live_uuid().expect("uuid"));
}

#[test]
fn p050_a_sandbox_is_removed_with_the_subvolumes_inside() {
    let b = BtrfsBox::new();
    let s = b.sandbox();
    s.write("a/b/f", "x");
    let make = |path: &str, name: &str| {
        respool::engine::ioctl::subvol_create(File::open(s.live.join(path)).expect("open"), name.as_bytes())
            .expect("subvolume");
    };
    make("a/b", "cache");
    make("a/b/cache", "inner");
    make("", "top");
    s.write("a/b/cache/inner/g", "y");
    let live = File::open(&s.live).expect("open");
    let nested: Vec<PathBuf> = subvolume::nested(&live)
        .expect("nested")
        .into_iter()
        .map(|n| n.path)
        .collect();
    assert_eq!(nested, [PathBuf::from("a/b/cache"), PathBuf::from("top")]);
    drop(live);
    let v = b.vault(&s);
    v.checkpoint(&NewCheckpoint::of(CheckpointKind::Manual, How::Own))
        .expect("checkpoint");
    drop(v);
    let other = b.sandbox();
    SandboxDir::open(b.pool(), &s.id)
        .expect("open")
        .destroy(b.pool())
        .expect("destroy");
    let left: Vec<String> = list_sandboxes(b.pool())
        .expect("list")
        .into_iter()
        .map(|l| l.id)
        .collect();
    assert_eq!(left, [other.id]);
    let root = File::open(b.pool().mount()).expect("open");
    assert_eq!(
        subvolume::nested(&root).expect("nested").len(),
        1,
        "only the other sandbox's live tree"
    );
}

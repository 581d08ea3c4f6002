//! What got lost under a workspace: its image, the list of pools, the room to give it back.

use serde_json::json;

use crate::lab::Lab;
use crate::rounds::rich;

/// The image was deleted while it is mounted: what is there can be looked at, nothing new is kept in what goes away
/// with the mount, and the folder is given back.
#[test]
fn an_image_that_was_deleted_while_mounted() {
    let lab = Lab::new(rich);
    let id = lab.message(1);
    lab.write("new", "since then");
    let before = lab.manifest();
    std::fs::remove_file(lab.state().join("pool.img")).expect("remove");
    let rows = lab.ok(&["changes", &id, "now"]);
    assert!(rows.to_string().contains("new"), "{rows}");
    for args in [&["checkpoint"][..], &["--yes", "rewind", &id, "--files"]] {
        let e = lab.fails(3, args);
        assert!(
            e.contains("deleted while it is in use") && e.contains("untrack"),
            "{e}"
        );
    }
    before.assert_same(&lab.manifest(), "nothing was changed");
    let plan = lab.ok(&["--dry-run", "untrack", lab.ws_text()]);
    assert!(plan.to_string().contains("was deleted"), "{plan}");
    lab.ok(&["--yes", "untrack", lab.ws_text()]);
    before.assert_same(&lab.manifest(), "given back");
    lab.write("plain", "again");
    lab.ok(&["--yes", "pool", "unmount"]);
    lab.ok(&["--yes", "pool", "unmount"]);
}

/// A damaged list of pools is kept aside, never overwritten, and the mounted pools are in the new one, wherever their
/// images lie.
#[test]
fn a_damaged_list_of_pools_loses_no_mounted_one() {
    for junk in [&b"{\"v\":1,\"pools\":[{\"im"[..], b"", &[0; 300]] {
        let lab = Lab::on_btrfs(rich);
        lab.track();
        let folder = |name: &str| {
            let path = lab.dir().join(name);
            std::fs::create_dir(&path).expect("mkdir");
            path.to_str().expect("UTF-8").to_owned()
        };
        let (second, third) = (folder("second"), folder("third"));
        let image = lab.dir().join("elsewhere.img");
        let image = image.to_str().expect("UTF-8");
        lab.ok(&["--yes", "track", &second, "--size", "512M", "--image", image]);
        let list = lab.state().join("pools.json");
        std::fs::write(&list, junk).expect("write");
        let a = lab.run(&["--yes", "track", &third, "--size", "512M"]);
        assert_eq!(a.code, Some(0), "{} {}", a.text(), a.err);
        assert!(
            a.err.contains("is damaged") && a.err.contains("is kept as"),
            "{}",
            a.err
        );
        let kept: Vec<_> = std::fs::read_dir(lab.state())
            .expect("list")
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("pools.damaged-"))
            .collect();
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(std::fs::read(kept[0].path()).expect("read"), junk);
        // after a restart all three are known
        lab.reboot();
        lab.ok(&["pool", "mount"]);
        let rows = lab.ok(&["sandboxes"]);
        let mut paths: Vec<_> = rows
            .as_array()
            .expect("rows")
            .iter()
            .map(|r| r["path"].clone())
            .collect();
        paths.sort_by_key(ToString::to_string);
        let mut want = [json!(lab.ws_text()), json!(second), json!(third)];
        want.sort_by_key(ToString::to_string);
        assert_eq!(paths, want, "{rows}");
        assert!(
            rows.as_array()
                .expect("rows")
                .iter()
                .all(|r| r["mounted"] == true),
            "{rows}"
        );
    }
}

/// The disk that the folder lies on has no room for what the pool holds: refused before anything is copied.
#[test]
fn untrack_needs_room_on_the_folders_own_disk() {
    let lab = Lab::plain(|_| {});
    let small = lab.dir().join("small");
    std::fs::create_dir(&small).expect("mkdir");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &small, "tmpfs", flags, c"size=4M").expect("mount");
    let ws = small.join("ws");
    std::fs::create_dir(&ws).expect("mkdir");
    let text = ws.to_str().expect("UTF-8");
    lab.ok(&["--yes", "track", text, "--size", "512M"]);
    let bytes: Vec<u8> = (0..6_u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    std::fs::write(ws.join("large"), &bytes).expect("write");
    let plan = lab.ok(&["--dry-run", "untrack", text]);
    assert_eq!(plan["plan"]["blockers"][0]["kind"], "space", "{plan}");
    let e = lab.fails(3, &["--yes", "untrack", text]);
    assert!(
        e.contains("its content needs 6.") && e.contains("free space there"),
        "{e}"
    );
    assert!(std::fs::read(ws.join("large")).expect("read") == bytes);
    assert_eq!(
        std::fs::read_dir(&small).expect("list").count(),
        1,
        "nothing beside"
    );
    std::fs::remove_file(ws.join("large")).expect("remove");
    lab.ok(&["--yes", "untrack", text]);
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::empty()).expect("unmount");
}

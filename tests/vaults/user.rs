//! The btrfs vault of an ordinary user: each behaviour in a process of that user's, on a Btrfs that was mounted
//! before, without any option that would help.

use std::fs::File;
use std::path::{Path, PathBuf};

use respool::engine::catalog::{Place, create_sandbox};
use respool::engine::pool::Pool;
use respool::engine::vault::{BtrfsVault, Vault};
use respool::engine::{ioctl, subvolume};

use crate::common::{HostBtrfs, USER, as_user, given, test_record};
use crate::ground::{Disk, Ground};

const PLACE: &str = "RESPOOL_TEST_PLACE";

/// Made in the process of the user.
pub struct UserBtrfs {
    vault: BtrfsVault,
    root: PathBuf,
    _pool: Pool,
}

impl UserBtrfs {
    pub fn new() -> Self {
        assert_eq!(rustix::process::geteuid().as_raw(), USER, "it is for that user");
        let place = given(PLACE);
        let root = place.join("ws");
        ioctl::subvol_create(File::open(&place).expect("open"), b"ws").expect("subvolume");
        let live = File::open(&root).expect("open");
        let info = subvolume::root_info(&live).expect("look").expect("a subvolume");
        let pool = Pool::make_in_folder(&place.join("pool")).expect("pool");
        let mut record = test_record(&root);
        record.place = Place::Own;
        record.live_uuid = subvolume::hex(&info.uuid);
        let (_, record) = create_sandbox(&pool, record).expect("sandbox");
        Self {
            vault: BtrfsVault::open(&pool, &record.id, live.into()).expect("vault"),
            root,
            _pool: pool,
        }
    }
}

impl Disk for UserBtrfs {
    fn root(&self) -> &Path {
        &self.root
    }
}

crate::ground::ground_on_disk!(UserBtrfs);

/// Runs an ignored test of this program as the user. Nothing temporary may be left afterwards.
pub fn run(test: &str) {
    let host = HostBtrfs::new("noatime");
    let place = host.of_user("place");
    let program = host.dir.join("tests");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copy");
    let out = as_user(&program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(PLACE, &place)
        .env("TMPDIR", &place)
        .current_dir(&place)
        .output()
        .expect("setpriv");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && said.contains("1 passed"),
        "{test}: {said}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let sandboxes = std::fs::read_dir(place.join("pool/s")).expect("the pool");
    for sandbox in sandboxes {
        let tmp = sandbox.expect("entry").path().join("tmp");
        assert_eq!(
            std::fs::read_dir(tmp).expect("tmp").count(),
            0,
            "{test}: temporary snapshots are left"
        );
    }
}

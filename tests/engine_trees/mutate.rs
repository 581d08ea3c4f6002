//! Random damage to a tree, from a seed.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};

use crate::scratch::change_flags;

/// A small generator (xorshift): the same seed gives the same damage.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            rng.next();
        }
        rng
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }
    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn paths(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        let mut entries: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap()).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path());
            }
            all.push(entry.path());
        }
    }
    all
}

const OPS: [&str; 32] = [
    "create", "create", "write", "append", "trunc", "mv", "mv", "mvd", "mvd", "xchg", "rm", "rmtree", "ln",
    "sym", "mkdir", "mkdir", "chmod", "chown", "xattr", "replace", "swaptype", "clone", "big", "rmx",
    "touch", "stealth", "fifo", "sock", "flag", "unflag", "rewrite", "nocow",
];

/// Does `count` random things below `root`; what the file system refuses is skipped.
pub fn mutate(rng: &mut Rng, root: &Path, count: usize) {
    for _ in 0..count {
        let all = paths(root);
        let is = |p: &PathBuf, want: fn(&fs::FileType) -> bool| {
            want(&fs::symlink_metadata(p).unwrap().file_type())
        };
        let files: Vec<_> = all
            .iter()
            .filter(|p| is(p, fs::FileType::is_file))
            .cloned()
            .collect();
        let dirs: Vec<_> = all
            .iter()
            .filter(|p| is(p, fs::FileType::is_dir))
            .cloned()
            .collect();
        let op = rng.pick(&OPS);
        // refused by the file system (an immutable file, a folder into itself): another state, no failure
        let _refused = one(rng, op, root, &all, &files, &dirs);
    }
}

fn one(
    rng: &mut Rng,
    op: &str,
    root: &Path,
    all: &[PathBuf],
    files: &[PathBuf],
    dirs: &[PathBuf],
) -> std::io::Result<()> {
    let dir = if !dirs.is_empty() && rng.below(4) > 0 {
        rng.pick(dirs)
    } else {
        root.to_owned()
    };
    let new = dir.join(format!(
        "{}{}",
        rng.pick(&['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']),
        rng.below(30)
    ));
    let free = fs::symlink_metadata(&new).is_err();
    match op {
        "create" if free => {
            let n = rng.pick(&[0, 10, 2000, 5000, 20000]);
            return fs::write(new, rng.bytes(n));
        }
        "mkdir" => return fs::create_dir(new),
        "sym" => return symlink(format!("x{}", rng.below(9)), new),
        "fifo" => return Ok(rustix::fs::mknodat(CWD, new, FileType::Fifo, Mode::RUSR, 0)?),
        "sock" => return Ok(rustix::fs::mknodat(CWD, new, FileType::Socket, Mode::RUSR, 0)?),
        "mvd" if !dirs.is_empty() && free => return fs::rename(rng.pick(dirs), new),
        "rmtree" if !dirs.is_empty() && rng.below(5) < 2 => return fs::remove_dir_all(rng.pick(dirs)),
        "xchg" if all.len() > 1 => {
            let (a, b) = (rng.pick(all), rng.pick(all));
            return Ok(rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?);
        }
        "swaptype" if !all.is_empty() => return swap_type(&rng.pick(all)),
        "chmod" if !all.is_empty() => {
            let path = rng.pick(all);
            let mode = rng.pick(&[0o600, 0o755, 0o4755, 0o640]);
            if fs::symlink_metadata(&path)?.is_symlink() {
                return Ok(());
            }
            return fs::set_permissions(path, fs::Permissions::from_mode(mode));
        }
        "chown" if !all.is_empty() => {
            let (u, g) = (rng.pick(&[0, 1000]), rng.pick(&[0, 1000]));
            return std::os::unix::fs::lchown(rng.pick(all), Some(u), Some(g));
        }
        _ => {}
    }
    if files.is_empty() {
        return Ok(());
    }
    let file = rng.pick(files);
    on_file(rng, op, root, &file, &new, free)
}

fn on_file(rng: &mut Rng, op: &str, root: &Path, file: &Path, new: &Path, free: bool) -> std::io::Result<()> {
    let patch = |at: u64, bytes: Vec<u8>| -> std::io::Result<()> {
        let mut f = File::options().write(true).open(file)?;
        f.seek(SeekFrom::Start(at))?;
        f.write_all(&bytes)
    };
    match op {
        "write" => {
            let n = rng.pick(&[5, 3000, 9000]);
            patch(rng.below(9000) as u64, rng.bytes(n))
        }
        "big" => patch(rng.below(300_000) as u64, rng.bytes(70_000)),
        "append" => {
            let n = rng.pick(&[7, 4096]);
            File::options().append(true).open(file)?.write_all(&rng.bytes(n))
        }
        "trunc" => {
            let n = rng.pick(&[0, 3, 4096, 6001, 30000]);
            File::options().write(true).open(file)?.set_len(n)
        }
        "mv" if free || !new.is_dir() => fs::rename(file, new),
        "rm" => fs::remove_file(file),
        "ln" => fs::hard_link(file, new),
        "xattr" => {
            let name = rng.pick(&["user.a", "user.b", "trusted.c"]);
            Ok(rustix::fs::setxattr(
                file,
                name,
                &rng.bytes(4),
                XattrFlags::empty(),
            )?)
        }
        "rmx" => Ok(rustix::fs::removexattr(file, "user.a")?),
        "replace" => {
            let temporary = root.join("tmp~");
            // never through what an exchange has put there: it may be a pipe
            File::create_new(&temporary)?.write_all(&rng.bytes(3000))?;
            fs::rename(temporary, file)
        }
        "rewrite" => fs::write(file, fs::read(file)?),
        "clone" if free => {
            let (from, to) = (File::open(file)?, File::create(new)?);
            respool::engine::ioctl::clone_range(&from, 0, 0, &to, 0)
        }
        "touch" => set_mtime(file, (rng.below(1 << 30) as i64, rng.below(1_000_000_000) as i64)),
        "stealth" => stealth(file),
        "flag" => {
            change_flags(file, rng.pick(&[0x10, 0x20, 0x40]), 0);
            Ok(())
        }
        "unflag" => {
            change_flags(file, 0, 0x70);
            Ok(())
        }
        "nocow" if free => {
            fs::write(new, b"")?;
            change_flags(new, 0x80_0000, 0);
            fs::write(new, rng.bytes(9000))
        }
        _ => Ok(()),
    }
}

fn swap_type(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)?;
        fs::write(path, "was a folder")
    } else {
        fs::remove_file(path)?;
        fs::create_dir(path)?;
        fs::write(path.join("in"), "x")
    }
}

/// Another byte, the same size and the same modification time.
fn stealth(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let before = fs::metadata(path)?;
    let mut bytes = fs::read(path)?;
    let Some(last) = bytes.last_mut() else {
        return Ok(());
    };
    *last ^= 1;
    fs::write(path, bytes)?;
    set_mtime(path, (before.mtime(), before.mtime_nsec()))
}

/// Sets the modification time.
pub fn set_mtime(path: &Path, (s, ns): (i64, i64)) -> std::io::Result<()> {
    let t = Timespec {
        tv_sec: s,
        tv_nsec: ns,
    };
    let times = Timestamps {
        last_access: t,
        last_modification: t,
    };
    Ok(rustix::fs::utimensat(
        CWD,
        path,
        &times,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

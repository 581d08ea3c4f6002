//! The layers of an overlay, read without mounting it, and compared with the kernel's own view of them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use respool::packages::{Dirs, Hides, Kind, Marks, Node, Over, Tree, TreeError, Upper, system};
use respool::progress::Silent;

use crate::common::need_root;
use crate::roots::{Root, deb, lines, open, run};

fn overlay(layers: &[&Root]) -> Dirs {
    Dirs::overlay(layers.iter().map(|l| open(l.path())).collect(), Marks::Trusted)
}

fn whiteout(root: &Root, path: &str) {
    if let Some((folder, _)) = path.rsplit_once('/') {
        root.folder(folder);
    }
    run(Command::new("mknod").arg(root.at(path)).args(["c", "0", "0"]));
}

fn mark(root: &Root, path: &str, name: &str, value: &str) {
    run(Command::new("setfattr")
        .args(["-n", name, "-v", value])
        .arg(root.at(path)));
}

const STATUS: &str = "var/lib/dpkg/status";
const PLACE: &str = "usr/local/lib/python3.11/site-packages";

#[test]
fn the_upper_layer_hides_what_it_must() {
    need_root();
    let (upper, middle, lower) = (Root::new(), Root::new(), Root::new());
    lower.write(STATUS, deb("curl", "7.88"));
    lower
        .python(PLACE, "requests", "2.31")
        .python(PLACE, "idna", "3")
        .python(PLACE, "six", "1");
    lower.node("usr/local/lib/node_modules", "npm", "10");
    middle.python(PLACE, "black", "24");
    let image = overlay(&[&middle, &lower]);

    upper.write(STATUS, deb("curl", "7.88") + &deb("jq", "1.6"));
    upper.python(PLACE, "requests", "2.32");
    whiteout(&upper, &format!("{PLACE}/requests-2.31.dist-info"));
    whiteout(&upper, &format!("{PLACE}/black-24.dist-info"));
    // a folder that was removed and made again
    upper.node("usr/local/lib/node_modules", "typescript", "5");
    mark(
        &upper,
        "usr/local/lib/node_modules",
        "trusted.overlay.opaque",
        "y",
    );
    let container = overlay(&[&upper, &middle, &lower]);
    let summary = system(&image, &container, &Silent).expect("not cancelled");
    assert_eq!(
        lines(&summary),
        [
            "dpkg jq - 1.6".to_owned(),
            format!("pip black 24 - /{PLACE}"),
            format!("pip requests 2.31 2.32 /{PLACE}"),
            "npm npm 10 - /usr/local/lib/node_modules".to_owned(),
            "npm typescript - 5 /usr/local/lib/node_modules".to_owned(),
        ]
    );
    // a mark in the other namespace is the container's own, and hides nothing
    let forged = Root::new();
    forged.folder("usr/local/lib/node_modules");
    mark(&forged, "usr/local/lib/node_modules", "user.overlay.opaque", "y");
    let view = overlay(&[&forged, &lower]);
    let summary = system(&view, &overlay(&[&lower]), &Silent).expect("not cancelled");
    assert!(summary.is_empty(), "{summary:?}");
    let layers = vec![open(forged.path()), open(lower.path())];
    let rootless = Dirs::overlay(layers, Marks::User);
    let summary = system(&rootless, &overlay(&[&lower]), &Silent).expect("not cancelled");
    assert_eq!(lines(&summary), ["npm npm - 10 /usr/local/lib/node_modules"]);
}

#[test]
fn what_only_the_kernel_reads_is_said() {
    need_root();
    let (upper, lower) = (Root::new(), Root::new());
    lower.write(STATUS, deb("curl", "7"));
    upper.write(STATUS, "");
    mark(&upper, STATUS, "trusted.overlay.metacopy", "");
    upper.folder("usr/local/lib/node_modules");
    mark(
        &upper,
        "usr/local/lib/node_modules",
        "trusted.overlay.redirect",
        "old",
    );
    let summary = system(&overlay(&[&lower]), &overlay(&[&upper, &lower]), &Silent).expect("not cancelled");
    assert_eq!(
        lines(&summary),
        [
            format!("dpkg /{STATUS} unread: the overlay keeps it as attributes without content, which is not followed"),
            "npm /usr/local/lib/node_modules unread: the overlay keeps it as a renamed folder, which is not followed"
                .to_owned(),
        ]
    );
}

/// An upper layer that tells by itself what it hides, as one that is kept as copies does.
struct Told {
    root: PathBuf,
    tree: Dirs,
}

impl Tree for Told {
    fn node(&self, path: &Path) -> Result<Option<Node>, TreeError> {
        self.tree.node(path)
    }
    fn names(&self, path: &Path) -> Result<Option<Vec<(OsString, Kind)>>, TreeError> {
        self.tree.names(path)
    }
    fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TreeError> {
        self.tree.read(path, limit)
    }
}

impl Upper for Told {
    fn hides(&self, path: &Path) -> Result<Hides, TreeError> {
        let path = self.root.join(path);
        let Ok(meta) = path.symlink_metadata() else {
            return Ok(Hides::Usual);
        };
        if meta.file_type().is_char_device() && meta.rdev() == 0 {
            return Ok(Hides::Itself);
        }
        let mut value = [0; 8];
        let opaque = rustix::fs::lgetxattr(&path, "trusted.overlay.opaque", &mut value[..]);
        let opaque = opaque.is_ok_and(|n| &value[..n] == b"y");
        Ok(if opaque { Hides::Below } else { Hides::Usual })
    }
}

/// Everything in a tree, as it shows it.
fn all(tree: &dyn Tree, path: PathBuf, out: &mut Vec<String>) {
    let mut names = tree.names(&path).expect("a folder").expect("there");
    names.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, kind) in names {
        let path = path.join(name);
        let content = match kind {
            Kind::File => tree.read(&path, 100).expect("a file"),
            _ => None,
        };
        out.push(format!("{} {kind:?} {content:?}", path.display()));
        let node = tree.node(&path).expect("a node").expect("there");
        assert_eq!(node.kind, kind, "{}", path.display());
        if kind == Kind::Dir {
            all(tree, path, out);
        }
    }
}

/// The kernel makes the layers by the changes of a program, and shows the same as is read.
#[test]
fn the_kernel_shows_the_same() {
    need_root();
    let dir = Root::new();
    for name in ["lower", "upper", "work", "merged"] {
        dir.folder(name);
    }
    let lower = |path: &str| format!("lower/{path}");
    for n in 0..20 {
        dir.write(&lower(&format!("d{}/e{}/f{n}", n % 3, n % 5)), n.to_string());
    }
    symlink("d0", dir.at("lower/link")).expect("link");
    let options = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=off,metacopy=off",
        dir.at("lower").display(),
        dir.at("upper").display(),
        dir.at("work").display()
    );
    let script = r#"
        set -e
        mount -t overlay overlay -o "$1" "$2"
        cd "$2"
        rm d0/e0/f0 link
        rm -r d1
        mkdir -p d1/e1 new/deep
        echo again > d1/e1/f1
        echo x > new/deep/f
        rm -r d2/e2; echo file > d2/e2
        mv d0/e1/f6 d0/moved
        ln -s new link
        find . -type f -printf '%P\t' -exec cat {} \; -printf '\n' > /dev/null
    "#;
    // the mount lives in a namespace of its own, and goes with it
    let merged = dir.at("merged");
    let show = format!("{script}\nfind . -mindepth 1 -printf '%P %y\\n' | sort");
    let kernel = run(Command::new("unshare")
        .args(["-m", "sh", "-c", &show, "sh", &options])
        .arg(&merged));
    let tree = Dirs::overlay(
        vec![open(&dir.at("upper")), open(&dir.at("lower"))],
        Marks::Trusted,
    );
    let mut mine = Vec::new();
    all(&tree, PathBuf::new(), &mut mine);
    let upper = Told {
        root: dir.at("upper"),
        tree: Dirs::one(open(&dir.at("upper"))),
    };
    let below = Dirs::overlay(vec![open(&dir.at("lower"))], Marks::Trusted);
    let mut told = Vec::new();
    all(&Over::new(Box::new(upper), below), PathBuf::new(), &mut told);
    assert_eq!(told, mine, "an upper layer that is no folder");
    let names: Vec<String> = mine
        .iter()
        .map(|l| {
            let mut words = l.split(' ');
            let name = words.next().expect("a name");
            let kind = match words.next() {
                Some("Dir") => 'd',
                Some("File") => 'f',
                _ => 'l',
            };
            format!("{name} {kind}")
        })
        .collect();
    let mut names = names;
    names.sort();
    let mut kernel: Vec<&str> = kernel.lines().collect();
    kernel.sort_unstable();
    assert_eq!(names, kernel);
    assert!(names.iter().any(|n| n == "d2/e2 f") && !names.iter().any(|n| n == "d0/e0/f0 f"));
    assert_eq!(
        tree.read("d1/e1/f1".as_ref(), 9).expect("read"),
        Some(b"again\n".to_vec())
    );
    assert!(
        fs::read_dir(&merged).expect("merged").next().is_none(),
        "nothing is mounted here"
    );
}

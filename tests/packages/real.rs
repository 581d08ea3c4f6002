//! The managers themselves write, into folders of the test.

use std::path::Path;
use std::process::Command;

use respool::packages::{Dirs, Manager, system};
use respool::progress::Silent;

use crate::roots::{Root, open, run, said};

/// A package of Debian's, made here.
fn deb_file(dir: &Root, name: &str, version: &str) -> std::path::PathBuf {
    let folder = format!("{name}_{version}");
    dir.write(
        &format!("{folder}/DEBIAN/control"),
        format!("Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@a.invalid>\nDescription: it\n"),
    );
    dir.write(&format!("{folder}/usr/share/{name}/file"), version);
    let file = dir.at(&format!("{folder}.deb"));
    run(Command::new("dpkg-deb")
        .arg("--build")
        .arg(dir.at(&folder))
        .arg(&file));
    file
}

fn dpkg(root: &Root, args: &[&str], files: &[&Path]) {
    run(Command::new("dpkg")
        .arg(format!("--root={}", root.path().display()))
        .args(["--force-not-root", "--force-script-chrootless", "--log=/dev/null"])
        .args(args)
        .args(files));
}

#[test]
fn dpkg_itself() {
    let (made, root) = (Root::new(), Root::new());
    root.folder("var/lib/dpkg/updates").folder("var/lib/dpkg/info");
    root.write("var/lib/dpkg/status", "")
        .write("var/lib/dpkg/available", "");
    let empty = root.copy();
    dpkg(
        &root,
        &["-i"],
        &[&deb_file(&made, "one", "1.0"), &deb_file(&made, "two", "1:2-3")],
    );
    assert_eq!(said(&empty, &root), ["dpkg one - 1.0", "dpkg two - 1:2-3"]);
    let before = root.copy();
    assert_eq!(said(&before, &root), [""; 0]);
    dpkg(
        &root,
        &["-i"],
        &[&deb_file(&made, "one", "1.1"), &deb_file(&made, "three", "0~rc1")],
    );
    dpkg(&root, &["-r", "two"], &[]);
    assert_eq!(
        said(&before, &root),
        ["dpkg one 1.0 1.1", "dpkg three - 0~rc1", "dpkg two 1:2-3 -"]
    );
}

#[test]
fn pip_itself() {
    let (made, root) = (Root::new(), Root::new());
    let empty = root.copy();
    run(Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(root.at("opt/venv")));
    let pip = |args: &[&str]| {
        let mut c = Command::new("python3");
        c.args(["-m", "pip", "--python"])
            .arg(root.at("opt/venv/bin/python"));
        c.args(["--isolated", "--disable-pip-version-check", "--no-cache-dir"])
            .args(args);
        c.env("HOME", made.path()).env("PIP_ROOT_USER_ACTION", "ignore");
        run(&mut c)
    };
    let wheel = |version: &str| wheel(&made, "Some_Thing", version).display().to_string();
    pip(&["install", "--no-index", "--no-deps", &wheel("1.0")]);
    let place = root.at("opt/venv/lib");
    let python = std::fs::read_dir(place)
        .expect("lib")
        .next()
        .expect("python")
        .expect("entry");
    let place = format!("/opt/venv/lib/{}/site-packages", python.file_name().display());
    assert_eq!(said(&empty, &root), [format!("pip some-thing - 1.0 {place}")]);
    let before = root.copy();
    pip(&["install", "--no-index", "--no-deps", &wheel("1.1")]);
    assert_eq!(said(&before, &root), [format!("pip some-thing 1.0 1.1 {place}")]);
    pip(&["uninstall", "-y", "some-thing"]);
    assert_eq!(said(&before, &root), [format!("pip some-thing 1.0 - {place}")]);
}

/// A package of Python's, made here.
fn wheel(dir: &Root, name: &str, version: &str) -> std::path::PathBuf {
    const MAKE: &str = r"
import sys, zipfile
path, name, version = sys.argv[1:]
info = f'{name}-{version}.dist-info'
files = {
    f'{name}/__init__.py': '',
    f'{info}/METADATA': f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\n',
    f'{info}/WHEEL': 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
}
with zipfile.ZipFile(path, 'w') as z:
    for file, text in files.items():
        z.writestr(file, text)
    z.writestr(f'{info}/RECORD', ''.join(f'{f},,\n' for f in [*files, f'{info}/RECORD']))
";
    let file = dir.at(&format!("{name}-{version}-py3-none-any.whl"));
    run(Command::new("python3")
        .args(["-c", MAKE])
        .arg(&file)
        .args([name, version]));
    file
}

/// This machine's own packages, as dpkg lists them.
#[test]
fn dpkg_of_this_machine() {
    let list =
        run(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"]));
    let there = |l: &&str| !l.starts_with("not-installed ") && !l.starts_with("config-files ");
    let mut theirs: Vec<String> = list
        .lines()
        .filter(there)
        .filter_map(|l| l.split_once(' '))
        .map(|(_, rest)| rest.to_owned())
        .collect();
    theirs.sort();
    let tree = Dirs::one(open(Path::new("/")));
    let start = std::time::Instant::now();
    let summary = system(&Root::new().tree(), &tree, &Silent).expect("not cancelled");
    eprintln!("{} packages in {:?}", summary.packages.len(), start.elapsed());
    let dpkg = summary.packages.iter().filter(|p| p.manager == Manager::Dpkg);
    let mut mine: Vec<String> = dpkg
        .map(|p| {
            let name = p.name.split(':').next().unwrap_or_default();
            format!("{name} {}", p.to.as_deref().unwrap_or_default())
        })
        .collect();
    mine.sort();
    assert!(!mine.is_empty(), "this test needs a machine that dpkg manages");
    assert_eq!(mine, theirs);
    // what is the very same is not read again
    let start = std::time::Instant::now();
    let same = system(&tree, &tree, &Silent).expect("not cancelled");
    assert!(same.packages.is_empty(), "{same:?}");
    eprintln!("the same again in {:?}", start.elapsed());
}

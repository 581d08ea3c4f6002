//! Databases as each manager writes them.

use std::process::Command;

use crate::roots::{Root, deb, run, said};

#[test]
fn dpkg_installs_upgrades_and_removes() {
    let (a, b) = (Root::new(), Root::new());
    let status = "var/lib/dpkg/status";
    a.write(
        status,
        deb("curl", "7.88.1-10") + &deb("nano", "7.2-1") + &deb("libc6", "2.36-9"),
    );
    let gone = "Package: nano\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 7.2-1\n\n";
    b.write(
        status,
        deb("curl", "7.89.0-1") + gone + &deb("libc6", "2.36-9") + &deb("ripgrep", "13.0.0-4"),
    );
    assert_eq!(
        said(&a, &b),
        [
            "dpkg curl 7.88.1-10 7.89.0-1",
            "dpkg nano 7.2-1 -",
            "dpkg ripgrep - 13.0.0-4"
        ]
    );
    assert_eq!(
        said(&b, &a),
        [
            "dpkg curl 7.89.0-1 7.88.1-10",
            "dpkg nano - 7.2-1",
            "dpkg ripgrep 13.0.0-4 -"
        ]
    );
    // a run that was cut short has not written `status` yet
    b.write("var/lib/dpkg/updates/0001", deb("jq", "1.6"));
    assert_eq!(said(&a, &b)[1], "dpkg jq - 1.6");
    assert_eq!(said(&b, &b), [""; 0]);
}

#[test]
fn images_without_dpkg_have_a_file_for_each_package() {
    let (a, b) = (Root::new(), Root::new());
    a.write("var/lib/dpkg/status.d/tzdata", deb("tzdata", "2024a"));
    b.write("var/lib/dpkg/status.d/tzdata", deb("tzdata", "2024b"));
    b.write("var/lib/dpkg/status.d/tzdata.md5sums", "00  usr/share\n");
    assert_eq!(said(&a, &b), ["dpkg tzdata 2024a 2024b"]);
}

#[test]
fn apk_is_read_also_where_lib_is_a_link() {
    let (a, b) = (Root::new(), Root::new());
    let one = |v: &str| format!("C:Q1abc=\nP:jq\nV:{v}\nA:x86_64\nF:usr/bin\nR:jq\n\n");
    a.write("lib/apk/db/installed", one("1.7.0-r0"));
    b.write("usr/lib/apk/db/installed", one("1.7.1-r0"));
    std::os::unix::fs::symlink("usr/lib", b.at("lib")).expect("link");
    assert_eq!(said(&a, &b), ["apk jq 1.7.0-r0 1.7.1-r0"]);
}

/// A database as rpm has it, made by SQLite itself. Each package: name, epoch, version, release, architecture.
fn rpmdb(root: &Root, path: &str, packages: &[(&str, u32, &str, &str, &str)], journal: &str) {
    const MAKE: &str = r"
import json, sqlite3, struct, sys
path, packages, journal = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
def header(name, epoch, version, release, arch):
    entries, data = b'', b''
    def add(tag, kind, value):
        nonlocal entries, data
        entries += struct.pack('>IIII', tag, kind, len(data), 1)
        data += value
    # another field first, long enough for pages of overflow
    add(1004, 9, b'a summary ' * 1500 + b'\0')
    for tag, text in ((1000, name), (1001, version), (1002, release), (1022, arch)):
        add(tag, 6, text.encode() + b'\0')
    data += b'\0' * (-len(data) % 4)
    if epoch:
        add(1003, 4, struct.pack('>I', epoch))
    return struct.pack('>II', len(entries) // 16, len(data)) + entries + data
db = sqlite3.connect(path)
db.execute('PRAGMA journal_mode = ' + journal)
db.execute('PRAGMA wal_autocheckpoint = 0')
db.execute('CREATE TABLE Name (key TEXT NOT NULL, hnum INTEGER NOT NULL)')
db.execute('CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)')
db.executemany('INSERT INTO Packages (blob) VALUES (?)', [(header(*p),) for p in packages])
db.commit()
if journal == 'wal':
    import os
    os._exit(0)
db.close()
";
    let path = root.at(path);
    std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
    let list = serde_json::to_string(packages).expect("json");
    run(Command::new("python3")
        .args(["-c", MAKE])
        .arg(path)
        .args([&list, journal]));
}

/// A small one with three packages.
pub fn small_rpmdb(root: &Root, path: &str) {
    let one = |name| (name, 1, "1.0", "1", "noarch");
    rpmdb(root, path, &["bash", "curl", "jq"].map(one), "delete");
}

#[test]
fn rpm_is_read_from_its_sqlite_database() {
    let (a, b) = (Root::new(), Root::new());
    let path = "usr/lib/sysimage/rpm/rpmdb.sqlite";
    let mut many: Vec<(String, u32, &str, &str, &str)> = (0..400)
        .map(|n| (format!("lib{n:03}"), 0, "1.0", "1.fc40", "x86_64"))
        .collect();
    many.push(("vim".into(), 2, "9.1", "1.fc40", "x86_64"));
    many.push(("gpg-pubkey".into(), 0, "aa", "bb", "(none)"));
    many.push(("glibc".into(), 0, "2.39", "1", "x86_64"));
    let list = |all: &[(String, u32, &'static str, &'static str, &'static str)], root: &Root| {
        let all: Vec<_> = all.iter().map(|p| (p.0.as_str(), p.1, p.2, p.3, p.4)).collect();
        rpmdb(root, path, &all, "delete");
    };
    list(&many, &a);
    many[400].2 = "9.2";
    many.remove(7);
    many.push(("glibc".into(), 0, "2.39", "1", "i686"));
    many.push(("jq".into(), 0, "1.7", "2", "x86_64"));
    list(&many, &b);
    // Fedora's other name for the same folder
    b.folder("var/lib");
    std::os::unix::fs::symlink("../../usr/lib/sysimage/rpm", b.at("var/lib/rpm")).expect("link");
    assert_eq!(
        said(&a, &b),
        [
            "rpm glibc.x86_64 - 2.39-1",
            "rpm jq - 1.7-2",
            "rpm lib007 1.0-1.fc40 -",
            "rpm vim 2:9.1-1.fc40 2:9.2-1.fc40"
        ]
    );
}

#[test]
fn an_rpm_database_that_cannot_be_read_is_said_if_it_changed() {
    let (a, b) = (Root::new(), Root::new());
    let (old, new) = ("var/lib/rpm/Packages", "var/lib/rpm/Packages.db");
    a.write(old, "bdb one");
    b.write(old, "bdb one");
    assert_eq!(said(&a, &b), [""; 0], "the same bytes");
    b.write(old, "bdb two");
    let why = "it is of an older kind than SQLite (Berkeley DB or ndb)";
    assert_eq!(said(&a, &b), [format!("rpm /{old} unread: {why}")]);
    a.remove(old);
    b.remove(old).write(new, "ndb");
    assert_eq!(said(&a, &b), [format!("rpm /{new} unread: {why}")]);
    b.remove(new);
    rpmdb(
        &b,
        "var/lib/rpm/rpmdb.sqlite",
        &[("a", 0, "1", "1", "noarch")],
        "wal",
    );
    assert_eq!(
        said(&a, &b),
        ["rpm /var/lib/rpm/rpmdb.sqlite unread: a part of it is still in its write-ahead log"]
    );
}

#[test]
fn python_in_all_its_places() {
    let (a, b) = (Root::new(), Root::new());
    let (local, user) = (
        "usr/local/lib/python3.11/site-packages",
        "home/ada/.local/lib/python3.12/site-packages",
    );
    a.python(local, "requests", "2.31.0").python(local, "idna", "3.4");
    b.python(local, "Requests", "2.32.0").python(local, "idna", "3.4");
    b.python(user, "black", "24.1")
        .python("opt/tool/lib/python3.9/site-packages", "x", "1");
    // of the distribution's own ones its manager tells
    b.python("usr/lib/python3.11/site-packages", "dnf", "4");
    b.write(
        "usr/lib/python3.11/site-packages/dnf-4.dist-info/INSTALLER",
        "rpm\n",
    );
    b.python("usr/lib/python3/dist-packages", "apt", "2");
    // older kinds
    b.write(&format!("{local}/old-1.egg-info"), "Name: old\nVersion: 1\n");
    a.write(
        &format!("{local}/odd.egg-info/PKG-INFO"),
        "Name: odd\nVersion: 1\n",
    );
    b.write(
        &format!("{local}/odd.egg-info/PKG-INFO"),
        "Name: odd\nVersion: 2\n",
    );
    // half removed
    b.python(local, "~idna", "3.3");
    assert_eq!(
        said(&a, &b),
        [
            format!("pip black - 24.1 /{user}"),
            format!("pip odd 1 2 /{local}"),
            format!("pip old - 1 /{local}"),
            format!("pip requests 2.31.0 2.32.0 /{local}"),
            "pip x - 1 /opt/tool/lib/python3.9/site-packages".to_owned(),
        ]
    );
}

#[test]
fn node_ruby_rust_and_arch() {
    let (a, b) = (Root::new(), Root::new());
    let (place, nvm) = (
        "usr/local/lib/node_modules",
        "root/.nvm/versions/node/v20.1.0/lib/node_modules",
    );
    a.node(place, "npm", "10.1.0").node(place, "@scope/tool", "1.0.0");
    b.node(place, "npm", "10.2.0")
        .node(place, "@scope/other", "0.1.0")
        .node(nvm, "typescript", "5.4.0");
    b.folder(&format!("{place}/.bin"))
        .folder(&format!("{place}/empty"));
    std::os::unix::fs::symlink("../../../srv/mine", b.at(&format!("{place}/mine"))).expect("link");
    // a dependency of a package is none of the user's
    b.node(&format!("{place}/npm/node_modules"), "semver", "7");
    b.write("var/lib/gems/3.1.0/specifications/rake-13.0.6.gemspec", "");
    b.write(
        "var/lib/gems/3.1.0/specifications/nokogiri-1.15.4-x86_64-linux.gemspec",
        "",
    );
    let crates = |v: &str| {
        format!(r#"{{"installs":{{"ripgrep {v} (registry+https://example.com)":{{"bins":["rg"]}}}}}}"#)
    };
    a.write("root/.cargo/.crates2.json", crates("13.0.0"));
    b.write("root/.cargo/.crates2.json", crates("14.1.0"));
    a.write("var/lib/pacman/local/zlib-1:1.3-1/desc", "");
    b.write("var/lib/pacman/local/zlib-1:1.3-2/desc", "")
        .write("var/lib/pacman/local/ALPM_DB_VERSION", "9");
    let spec = "/var/lib/gems/3.1.0/specifications";
    assert_eq!(
        said(&a, &b),
        [
            "pacman zlib 1:1.3-1 1:1.3-2".to_owned(),
            format!("npm @scope/other - 0.1.0 /{place}"),
            format!("npm @scope/tool 1.0.0 - /{place}"),
            format!("npm mine - link /{place}"),
            format!("npm npm 10.1.0 10.2.0 /{place}"),
            format!("npm typescript - 5.4.0 /{nvm}"),
            format!("gem nokogiri - 1.15.4-x86_64-linux {spec}"),
            format!("gem rake - 13.0.6 {spec}"),
            "cargo ripgrep 13.0.0 14.1.0 /root/.cargo/.crates2.json".to_owned(),
        ]
    );
}

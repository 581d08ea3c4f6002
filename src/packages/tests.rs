//! The readers of databases, on text that no package manager wrote, too.

use proptest::prelude::*;

use super::stanzas::{apk, dpkg, python};
use super::{Installed, Manager, PackageChange, Summary, Unread, places, rpm};

fn shown(installed: &Installed) -> Vec<String> {
    let one = |(name, versions): (&String, &std::collections::BTreeSet<String>)| {
        format!(
            "{name} {}",
            versions.iter().cloned().collect::<Vec<_>>().join(",")
        )
    };
    installed.iter().map(one).collect()
}

#[test]
fn dpkg_tells_what_is_there_from_what_was() {
    let status = b"Package: curl\nStatus: install ok installed\nArchitecture: amd64\nVersion: 7.88.1-10\nDescription: a\n tool\n Version: 9\n\n\
        Package: nano\nStatus: deinstall ok config-files\nVersion: 7.2\n\n\n\
        Package: half\nStatus: install ok half-configured\nVersion: 1\n\n\
        Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36\n\n\
        Package: libc6\nStatus: install ok installed\nArchitecture: i386\nVersion: 2.35\n\n\
        Status: install ok installed\nVersion: 3\n";
    let listed = dpkg([&status[..]]);
    assert_eq!(
        shown(&listed.installed),
        ["curl 7.88.1-10", "half 1", "libc6 2.36", "libc6:i386 2.35"]
    );
    assert_eq!(listed.broken, 1);
    // what a run that was cut short left counts more than `status`
    let update = b"Package: curl\nStatus: install ok unpacked\nArchitecture: amd64\nVersion: 8\n";
    assert_eq!(shown(&dpkg([&status[..], &update[..]]).installed)[0], "curl 8");
}

#[test]
fn apk_fields_differ_by_case() {
    let listed =
        apk(b"C:Q1x=\nP:jq\nV:1.7.1-r0\np:cmd:jq=1.7.1-r0\nF:usr\nR:jq\n\nP:musl\nV:1.2.5-r1\n\nP:none\n\n");
    assert_eq!(shown(&listed.installed), ["jq 1.7.1-r0", "musl 1.2.5-r1"]);
    assert_eq!(listed.broken, 1);
}

#[test]
fn python_names_are_compared_as_its_tools_do() {
    let head = b"Metadata-Version: 2.1\nName: Foo_.Bar\nVersion: 1.0\n\nName: of the text\n";
    assert_eq!(python(head), Some(("foo-bar".into(), "1.0".into())));
    assert_eq!(python(b"Name: x\n\nVersion: 1\n"), None);
}

#[test]
fn names_and_versions_are_harmless_and_not_endless() {
    let long = "x".repeat(100_000);
    let text = format!("Package: \u{1b}[2J{long}\nVersion: 1\u{202e}\u{9b}\n");
    let listed = dpkg([text.as_bytes()]);
    let (name, versions) = listed.installed.first_key_value().expect("one");
    let all = format!("{name}{versions:?}");
    assert!(!all.chars().any(crate::text::is_unsafe_char), "{all}");
    assert!(all.len() < 400, "{}", all.len());
}

fn change(name: &str, from: Option<&str>, to: Option<&str>, manager: Manager) -> PackageChange {
    PackageChange {
        manager,
        name: name.into(),
        from: from.map(Into::into),
        to: to.map(Into::into),
        place: None,
    }
}

#[test]
fn a_line_names_few_and_counts_many() {
    use Manager::{Dpkg, Pip};
    let mut summary = Summary {
        packages: vec![
            change("ripgrep", None, Some("13"), Dpkg),
            change("requests", None, Some("2"), Pip),
            change("curl", Some("7.88"), Some("7.89"), Dpkg),
            change("vim", Some("2:9.0"), Some("2:8.2"), Dpkg),
            change("nano", Some("7"), None, Dpkg),
        ],
        packages_unread: Vec::new(),
    };
    assert_eq!(
        summary.line(),
        "installed ripgrep, requests (pip); upgraded curl 7.88 -> 7.89; downgraded vim 2:9.0 -> 2:8.2; removed nano"
    );
    summary.packages = (0..37)
        .map(|n| change(&format!("p{n}"), None, Some("1"), Dpkg))
        .collect();
    summary.packages_unread = vec![Unread {
        manager: Some(Manager::Rpm),
        place: "/var/lib/rpm/Packages".into(),
        why: "it is old".into(),
    }];
    assert_eq!(
        summary.line(),
        "installed 37 packages: p0, p1, p2, p3, ...; what rpm has in /var/lib/rpm/Packages cannot be read: it is old"
    );
    assert_eq!(Summary::default().line(), "");
}

#[test]
fn older_versions_are_told_from_newer_ones() {
    let verb = |a, b| {
        let packages = vec![change("x", Some(a), Some(b), Manager::Dpkg)];
        let summary = Summary {
            packages,
            packages_unread: Vec::new(),
        };
        summary.line().split(' ').next().map(str::to_owned)
    };
    for (old, new) in [
        ("1.9", "1.10"),
        ("1.0~rc1", "1.0"),
        ("1.0rc1", "1.0"),
        ("9.9", "1:0.1"),
        ("1.0-1", "1.0-1+b1"),
        ("1.0", "1.0.1"),
        ("007", "8"),
        ("1.0-r9", "1.0-r10"),
    ] {
        assert_eq!(verb(old, new).as_deref(), Some("upgraded"), "{old} {new}");
        assert_eq!(verb(new, old).as_deref(), Some("downgraded"), "{new} {old}");
    }
}

#[test]
fn packages_of_a_workspace_are_known_by_their_paths() {
    let of = |path: &str| {
        places::entry_of(path.as_ref())
            .map(|(m, place, entry)| format!("{} {} {}", m.word(), place.display(), entry.display()))
    };
    assert_eq!(
        of(".venv/lib/python3.11/site-packages/requests-2.dist-info/METADATA").as_deref(),
        Some("pip .venv/lib/python3.11/site-packages requests-2.dist-info")
    );
    assert_eq!(
        of("a/b/c/lib/node_modules/@x/y/package.json").as_deref(),
        Some("npm a/b/c/lib/node_modules @x/y")
    );
    for none in [
        "node_modules/left-pad/package.json",
        "a/b/c/d/lib/node_modules/x",
        "app/node_modules/lib/node_modules/x/package.json",
        "lib/node_modules/.bin",
        "lib/node_modules/@x",
        "lib/python3.11/site-packages/requests/api.py",
        "lib/python3.11/site-packages/~equests-2.dist-info",
        "lib",
        "../lib/node_modules/x",
    ] {
        assert_eq!(of(none), None, "{none}");
    }
}

proptest! {
    #[test]
    fn no_text_breaks_the_readers(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let all = [dpkg([&bytes[..]]), apk(&bytes)];
        let python = python(&bytes);
        let text = format!("{all:?} {python:?}");
        prop_assert!(!text.chars().any(crate::text::is_unsafe_char));
    }

    #[test]
    fn stanzas_with_odd_fields_are_read(
        fields in proptest::collection::vec(("(Package|Version|Status|P|V|)", "[ -~]{0,20}", any::<bool>()), 0..40)
    ) {
        let text: String = fields
            .iter()
            .map(|(n, v, end)| format!("{n}:{v}\n{}", if *end { "\n" } else { "" }))
            .collect();
        let read = dpkg([text.as_bytes()]);
        let stanzas = text.split("\n\n").count();
        prop_assert!(read.installed.len() + read.broken <= stanzas);
    }

    #[test]
    fn no_bytes_break_the_reader_of_rpm(
        head in proptest::bool::weighted(0.9),
        mut bytes in proptest::collection::vec(any::<u8>(), 512..4096)
    ) {
        if head {
            bytes[..16].copy_from_slice(b"SQLite format 3\0");
            bytes[16..18].copy_from_slice(&[2, 0]);
            bytes[20] = 0;
            bytes[100] = if bytes[101] & 1 == 0 { 5 } else { 13 };
        }
        let _read = rpm::sqlite(&bytes);
    }
}

//! The help texts, the manual page, the completions: part of the contract.

use std::process::Command;

use crate::common::respool;

fn text(args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let mut c: Command = respool(dir.path());
    let out = c.args(args).env("COLUMNS", "100").output().expect("run");
    assert!(out.status.success(), "{args:?}");
    assert!(out.stderr.is_empty(), "{args:?}");
    String::from_utf8(out.stdout).expect("UTF-8")
}

#[test]
fn help_of_every_command() {
    let all = text(&["--help"]);
    insta::assert_snapshot!("help", all);
    let start = all.find("Commands:").expect("commands");
    let names: Vec<&str> = all[start..]
        .lines()
        .skip(1)
        .take_while(|l| !l.trim().is_empty())
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert!(names.len() > 20, "{names:?}");
    let mut out = String::new();
    for name in names.into_iter().filter(|n| *n != "help") {
        out += &format!("=== {name}\n{}\n", text(&[name, "-h"]));
    }
    insta::assert_snapshot!("help_commands", out);
}

#[test]
fn help_by_a_word() {
    assert_eq!(text(&["help"]), text(&["--help"]));
    for name in ["rewind", "hook", "prune"] {
        assert_eq!(text(&["help", name]), text(&[name, "--help"]));
    }
}

#[test]
fn manual_page() {
    let page = text(&["man"]);
    insta::assert_snapshot!("man", page);
    // no line of a text is taken for a request
    let known = [
        ".ie ", ".el ", ".TH ", ".SH ", ".SS ", ".TP", ".PP", ".nf", ".fi", ".br", ".RS", ".RE", ".IP",
    ];
    for line in page.lines().filter(|l| l.starts_with(['.', '\''])) {
        assert!(known.iter().any(|k| line.starts_with(k)), "{line}");
    }
    for section in [
        "COMMANDS",
        "STATES",
        "EXIT STATUS",
        "FILES",
        "CONFIGURATION",
        "KEYS",
        "ENVIRONMENT",
    ] {
        assert!(
            page.contains(&format!(".SH {section}\n")) || page.contains(&format!(".SH \"{section}\"\n")),
            "{section}"
        );
    }
    for word in [
        "respool rewind [OPTIONS] STATE",
        "half\\-down",
        "pre_checkpoint",
        "\\-\\-keep\\-within AGE",
    ] {
        assert!(page.contains(word), "{word}");
    }
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&["completions", shell]);
        for word in ["rewind", "--dry-run", "untrack"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell}: {word}");
        }
        for hidden in ["__thaw", "__as"] {
            assert!(!script.contains(hidden), "{shell} shows a hidden command");
        }
        if shell == "bash" {
            let dir = tempfile::tempdir().expect("a folder");
            let file = dir.path().join("c");
            std::fs::write(&file, &script).expect("write");
            let status = Command::new(shell).arg("-n").arg(&file).status();
            assert!(status.expect("bash").success(), "{shell}");
        }
    }
}

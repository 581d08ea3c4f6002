use super::*;

fn load(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("config.toml"), text).expect("write");
    let mut config = Config::load(None, dir.path())?;
    config.file = None;
    Ok(config)
}

fn wrong(text: &str) -> String {
    load(text).expect_err(text).to_string()
}

#[test]
fn a_missing_default_is_fine_a_missing_named_one_is_not() {
    let dir = tempfile::tempdir().expect("tempdir");
    assert_eq!(
        Config::load(None, dir.path()).expect("default"),
        Config::default()
    );
    let e = Config::load(Some(&dir.path().join("x.toml")), dir.path()).expect_err("named");
    assert_eq!(e.kind(), Kind::NotFound);
}

#[test]
fn unknown_keys_are_named_with_file_and_line() {
    for (text, line, key) in [
        ("[sandbox]\nvualt = \"copy\"\n", 2, "vualt"),
        ("[retention]\n\nkeeep = 1\n", 3, "keeep"),
        ("[hooks]\npre = []\n", 2, "pre"),
        ("[agents.openhands]\nkey = \"x\"\n", 2, "key"),
        ("[tehme]\nname = \"dark\"\n", 1, "tehme"),
        ("sandbox = 3\n", 1, "expected"),
    ] {
        let e = wrong(text);
        assert!(
            e.contains("config.toml") && e.contains(&format!("line {line}:")) && e.contains(key),
            "{text}: {e}"
        );
    }
}

#[test]
fn values_are_checked_when_they_are_read() {
    for (text, words) in [
        ("[retention]\nkeep_within = \"soon\"\n", "is no age"),
        ("[retention]\nmax_bytes = \"much\"\n", "is no size"),
        ("[retention]\nkeep = -1\n", "line 2"),
        ("[hooks]\npre_checkpoint = [\"./x\"]\n", "absolute path"),
        ("[hooks]\npre_checkpoint = \"x y\"\n", "line 2"),
        ("[hooks]\npost_rewind = [\"\"]\n", "absolute path"),
        ("[sandbox]\ncaches = [\"target\"]\n", "not supported yet"),
        ("[sandbox]\nexclude = [\"a\", \"[z-a]\"]\n", "[z-a]"),
        ("[sandbox]\ninclude = [\"!a\"]\n", "without a !"),
        ("[keys]\nup = 3\n", "a key or a list of keys"),
    ] {
        let e = wrong(text);
        assert!(e.contains(words) && e.contains("line 2"), "{text}: {e}");
    }
}

#[test]
fn every_key_is_read() {
    let config = load(
        r#"
        [sandbox]
        vault = "copy"
        docker_snapshots = true
        include = ["a"]
        exclude = ["*.o", "/target/"]
        [retention]
        keep = 5
        keep_within = "30d"
        max_bytes = "10G"
        [hooks]
        pre_checkpoint = ["sync-db", "--now"]
        post_rewind = ["/usr/bin/true"]
        [agents.openhands]
        resume = ["openhands", "--resume"]
        api_key_file = "/k"
        url = "http://localhost:3000"
        [keys]
        up = "K"
        down = ["J", "Down"]
        [theme]
        name = "dark"
        bad = "red"
        "#,
    )
    .expect("valid");
    assert_eq!(config.sandbox.vault, VaultSetting::Copy);
    assert_eq!(config.sandbox.docker_snapshots, Some(true));
    assert_eq!(config.sandbox.exclude, ["*.o", "/target/"]);
    let retention = config.retention;
    assert_eq!(
        (retention.keep, retention.max_bytes),
        (Some(5), Some(Size(10 << 30)))
    );
    assert_eq!(config.hooks.pre_checkpoint, ["sync-db", "--now"]);
    assert_eq!(config.agents["openhands"].resume.len(), 2);
    assert_eq!(config.keys["down"].list(), ["J", "Down"]);
    assert_eq!(config.theme["name"], "dark");
}

/// The file that the manual page shows says what holds when nothing is set, and every line of it that is
/// commented out can be used.
#[test]
fn the_described_defaults_are_the_defaults() {
    assert_eq!(load(DEFAULT).expect("as it is"), Config::default());
    let uncommented: String = DEFAULT
        .lines()
        .map(|l| match l.strip_prefix('#') {
            Some(rest) if !rest.starts_with([' ', '#']) && !rest.is_empty() => format!("{rest}\n"),
            _ => format!("{l}\n"),
        })
        .collect();
    let all = load(&uncommented).expect("with every example");
    assert!(!all.hooks.pre_checkpoint.is_empty() && !all.agents.is_empty() && !all.keys.is_empty());
    assert!(!all.theme.is_empty() && all.retention.keep.is_some() && !all.sandbox.exclude.is_empty());
}

#[test]
fn a_refused_key_is_found_by_its_line() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    std::fs::write(
        &path,
        "[theme]\nname = \"dark\"\n\n[keys]\nup = \"k\"\nfly = \"f\"\n",
    )
    .expect("write");
    let config = Config::load(None, dir.path()).expect("valid");
    let e = config.refused("keys", "fly", "no such action").to_string();
    assert!(
        e.ends_with("config.toml: line 6: keys.fly: no such action"),
        "{e}"
    );
}

#[test]
fn a_workspace_can_only_make_more_stay() {
    let days = |n| Some(Age(chrono::TimeDelta::days(n)));
    let rules = |keep, keep_within, max: Option<u64>| RetentionConfig {
        keep,
        keep_within,
        max_bytes: max.map(Size),
    };
    let none = RetentionConfig::default();
    for (user, project, want) in [
        (none, rules(Some(1), days(1), Some(1)), none),
        (
            rules(Some(5), None, None),
            rules(Some(1), None, Some(1)),
            rules(Some(5), None, None),
        ),
        (
            rules(Some(5), None, None),
            rules(Some(9), days(1), None),
            rules(Some(9), days(1), None),
        ),
        (
            rules(None, days(1825), Some(10)),
            rules(None, days(1), Some(1)),
            rules(None, days(1825), Some(10)),
        ),
        (
            rules(None, None, Some(10)),
            rules(Some(1), None, Some(20)),
            rules(None, None, Some(20)),
        ),
    ] {
        assert_eq!(user.with_project(project), want, "{user:?} {project:?}");
    }
}

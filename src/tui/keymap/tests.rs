use super::*;

#[test]
fn the_built_in_keymap_is_right() {
    let map = Keymap::built_in().expect("parses");
    let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
    assert_eq!(
        map.action(Context::Timeline, &key(KeyCode::Char('r'))),
        Some(Action::Rewind)
    );
    let shifted = KeyEvent::new(KeyCode::Char('G'), KeyModifiers::SHIFT);
    assert_eq!(map.action(Context::Timeline, &shifted), Some(Action::Last));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for context in [Context::Plan, Context::Filter, Context::Running, Context::Picker] {
        assert_eq!(map.action(context, &ctrl_c), Some(Action::ForceQuit));
    }
    assert_eq!(
        map.action(Context::Plan, &key(KeyCode::Enter)),
        None,
        "Enter never confirms"
    );
    assert_eq!(map.action(Context::Plan, &key(KeyCode::Char('r'))), None);
    assert!(
        map.markdown()
            .contains("| `r` | rewind to just before this message"),
        "{}",
        map.markdown()
    );
}

/// What opens a plan, also that of a message that is sent again, is no yes to it.
#[test]
fn a_key_that_opens_a_plan_confirms_none() {
    for key in ["e", "Ctrl-s", "Alt-Enter", "r", "Enter"] {
        with(&[("confirm", &[key])]).expect_err(key);
    }
    with(&[("confirm", &["Ctrl-y"])]).expect("another one");
}

#[test]
fn a_key_bound_twice_is_named() {
    let text = "[[binding]]\naction='up'\nkeys=['k']\nin=['timeline']\ngroup='g'\nhelp='h'\n";
    let twice = format!("{text}{}", text.replace("'up'", "'down'"));
    let error = Keymap::parse(&twice).expect_err("twice").to_string();
    assert!(error.contains("k is both"), "{error}");
}

fn with(changes: &[(&str, &[&str])]) -> Result<Keymap, (String, String)> {
    let changes: Vec<(&str, Vec<String>)> = changes
        .iter()
        .map(|(a, keys)| (*a, keys.iter().map(ToString::to_string).collect()))
        .collect();
    let map = Keymap::built_in().expect("parses");
    map.with(changes.iter().map(|(a, keys)| (*a, &keys[..])))
        .map_err(|(action, e)| (action, e.to_string()))
}

#[test]
fn the_users_keys_replace_the_built_in_ones_everywhere() {
    let map = with(&[
        ("down", &["Ctrl-n", "Down"]),
        ("rewind", &["R"]),
        ("notices", &["!"]),
    ])
    .expect("valid");
    let key = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE);
    assert_eq!(map.action(Context::Timeline, &key('j')), None);
    assert_eq!(map.action(Context::Timeline, &key('r')), None);
    assert_eq!(map.action(Context::Files, &key('R')), Some(Action::Rewind));
    assert_eq!(map.action(Context::Diff, &key('!')), Some(Action::Notices));
    assert_eq!(map.key_of(Action::Rewind), "R");
    assert!(map.footer(Context::Timeline).any(|(key, _)| key == "R"));
    assert!(map.markdown().contains("| `R` | rewind"));
}

#[test]
fn every_name_in_the_file_is_that_of_its_action() {
    let text = include_str!("../../../assets/keymap.toml");
    for binding in Keymap::built_in().expect("parses").bindings {
        let line = format!("action = {:?}\n", binding.action.name());
        assert!(text.contains(&line), "{line}");
    }
}

#[test]
fn what_is_wrong_with_the_users_keys_names_the_action() {
    for (changes, action, words) in [
        (&[("fly", &["f"][..])][..], "fly", "no such action"),
        (&[("up", &["Hyper-x"])], "up", "no key \"Hyper-x\""),
        (&[("up", &["j"])], "up", "j is both"),
        // with itself bound anew in the same breath it is no conflict, with a third it is
        (&[("down", &["k"]), ("up", &["x"])], "up", "x is both"),
        (&[("checkpoint", &["Ctrl-c"])], "checkpoint", "force-quit"),
        (&[("suspend", &["j"])], "suspend", "j is both"),
        (&[("force-quit", &["Q"])], "force-quit", "always quits"),
        (&[("confirm", &["Enter"])], "confirm", "not Enter"),
        (&[("confirm", &["r"])], "confirm", "key of its own"),
        (&[("rewind", &["y"])], "rewind", "key of its own"),
    ] {
        let (found, why) = with(changes).err().unwrap_or_else(|| panic!("{changes:?}"));
        assert_eq!(found, action, "{why}");
        assert!(why.contains(words), "{changes:?}: {why}");
    }
    with(&[("down", &["k"]), ("up", &["j"])]).expect("exchanged");
    with(&[("confirm", &[])]).expect("no quick yes at all");
}

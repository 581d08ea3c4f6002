//! Our entries in the text of a hook file: put in, taken out, looked for, all else byte for byte as it was.
//! Strict JSON. OpenHands' `HookConfig` (SDK 1.21 to 1.58) has event names in PascalCase or snake_case, with or
//! without a `"hooks"` object around them; Claude Code's settings (2.1) have it always, beside other things.

use std::ops::Range;
use std::path::Path;

use jsonc_parser::ast::{Array, Object, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{Agent, State};

/// An event that we are called at.
struct Event {
    name: &'static str,
    /// Another spelling that is read too.
    other: &'static str,
    /// A matcher is needed.
    matcher: bool,
}

const fn event_of(name: &'static str, other: &'static str, matcher: bool) -> Event {
    Event { name, other, matcher }
}

const fn events(agent: Agent) -> [Event; 2] {
    match agent {
        Agent::OpenHands => [
            event_of("UserPromptSubmit", "user_prompt_submit", true),
            event_of("Stop", "stop", false),
        ],
        Agent::Claude => [
            event_of("UserPromptSubmit", "UserPromptSubmit", false),
            event_of("Stop", "Stop", false),
        ],
    }
}

/// Seconds after which the agent goes on without the hook.
const TIMEOUT: u32 = 60;

/// What taking our entries out leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// There were none.
    Nothing,
    /// The text without them.
    Text(String),
    /// Nothing but what we made: the file can go.
    File,
}

/// The shell command that the agent runs. The error is one harmless line.
/// `state_dir`: where respool keeps its state, if not at the usual place.
pub fn command(agent: Agent, binary: &Path, state_dir: Option<&Path>) -> Result<String, String> {
    let path = binary
        .to_str()
        .ok_or("the path of respool is not UTF-8, a hook cannot name it")?;
    let quoted = shlex::try_quote(path).map_err(|_| "the path of respool holds a NUL")?;
    let Some(dir) = state_dir else {
        return Ok(format!("{quoted} hook {}", agent.name()));
    };
    let dir = dir
        .to_str()
        .ok_or("the path of the state folder is not UTF-8, a hook cannot name it")?;
    let dir = shlex::try_quote(dir).map_err(|_| "the path of the state folder holds a NUL")?;
    Ok(format!("{quoted} --state-dir {dir} hook {}", agent.name()))
}

/// The path of the binary that a command of ours names (`PATH hook openhands`); nothing for any other command.
pub fn binary_of(agent: Agent, command: &str) -> Option<String> {
    match shlex::split(command)?.as_slice() {
        [path, hook, name] if hook == "hook" && name == agent.name() => Some(path.clone()),
        [path, flag, _, hook, name] if flag == "--state-dir" && hook == "hook" && name == agent.name() => {
            Some(path.clone())
        }
        _ => None,
    }
}

/// The text of a file that holds our entries alone. Their order is the reverse of that in which they are put
/// into a file that there is, so that only a file that we made equals it.
pub fn fresh(agent: Agent, command: &str) -> String {
    let mut lines = events(agent).map(|e| format!("    \"{}\": [{}]", e.name, entry(command, e.matcher)));
    lines.reverse();
    format!("{{\n  \"hooks\": {{\n{}\n  }}\n}}\n", lines.join(",\n"))
}

/// The object of our entries on one line: what is put into settings that have no hooks, so that it is known as ours.
fn line(agent: Agent, command: &str) -> String {
    let all = events(agent).map(|e| format!("\"{}\": [{}]", e.name, entry(command, e.matcher)));
    format!("{{{}}}", all.join(", "))
}

/// Claude Code's settings for one run, with our entries in them: nothing but those, or `given` (JSON) and those.
pub fn for_one_run(given: Option<&str>, command: &str) -> Result<String, String> {
    match given {
        None => Ok(format!("{{\"hooks\": {}}}", line(Agent::Claude, command))),
        Some(text) => with_ours(Agent::Claude, text, command),
    }
}

fn entry(command: &str, matcher: bool) -> String {
    let matcher = if matcher { "\"matcher\": \"*\", " } else { "" };
    let command = serde_json::Value::from(command);
    format!(
        "{{{matcher}\"hooks\": [{{\"type\": \"command\", \"command\": {command}, \"timeout\": {TIMEOUT}}}]}}"
    )
}

/// `text` with our entries in it; equal to `text` if they are there already. The error says why it cannot be
/// edited.
pub fn with_ours(agent: Agent, text: &str, command: &str) -> Result<String, String> {
    let mut text = with_hooks(agent, text, command)?;
    for event in events(agent).into_iter().rev() {
        text = with_event(agent, &text, &event, command)?;
    }
    // what was made must be read again as what was meant
    match state(agent, &text, command)? {
        State::Installed | State::SwitchedOff => Ok(text),
        _ => Err("our entries do not fit into it".into()),
    }
}

/// Puts the object of hooks with our entries into settings that have none.
fn with_hooks(agent: Agent, text: &str, command: &str) -> Result<String, String> {
    parsed(text, |root| {
        if events_in(agent, root)?.is_some() {
            return Ok(text.to_owned());
        }
        let root = root.as_object().ok_or("it is no JSON object")?;
        let indent = first_indent(text, root.range, root.properties.first().map(Ranged::range));
        let property = format!("\"hooks\": {}", line(agent, command));
        let empty = root.properties.is_empty();
        Ok(put_first(text, root.range.start, &indent, &property, empty))
    })?
}

fn with_event(agent: Agent, text: &str, of: &Event, command: &str) -> Result<String, String> {
    parsed(text, |root| {
        let events = events_in(agent, root)?.ok_or("it has no hooks")?;
        let new = entry(command, of.matcher);
        let Some(array) = event(events, of)? else {
            let indent = first_indent(text, events.range, events.properties.first().map(Ranged::range));
            let property = format!("\"{}\": [{new}]", of.name);
            return Ok(put_first(
                text,
                events.range.start,
                &indent,
                &property,
                events.properties.is_empty(),
            ));
        };
        let ours = ours_in(agent, array);
        if ours.is_empty() {
            let indent = first_indent(text, array.range, array.elements.first().map(Ranged::range));
            return Ok(put_first(
                text,
                array.range.start,
                &indent,
                &new,
                array.elements.is_empty(),
            ));
        }
        let mut out = text.to_owned();
        for found in ours.iter().rev().filter(|o| o.command != command) {
            out.replace_range(
                found.literal.clone(),
                &serde_json::Value::from(command).to_string(),
            );
        }
        Ok(out)
    })?
}

/// `text` without our entries, whatever binary they name.
pub fn without_ours(agent: Agent, text: &str) -> Result<Removal, String> {
    let mut left = text.to_owned();
    loop {
        match parsed(&left, |root| next_cut(agent, &left, root))?? {
            Some((command, _)) if left == fresh(agent, &command) => return Ok(Removal::File),
            Some((_, range)) => left.replace_range(range, ""),
            None if left == text => return Ok(Removal::Nothing),
            None => return Ok(Removal::Text(left)),
        }
    }
}

/// The first command of ours, and what must go with it.
fn next_cut(agent: Agent, text: &str, root: &Value<'_>) -> Result<Option<(String, Range<usize>)>, String> {
    let Some(hooks) = events_in(agent, root)? else {
        return Ok(None);
    };
    for of in events(agent) {
        let Some(array) = event(hooks, &of)? else {
            continue;
        };
        if let Some(ours) = ours_in(agent, array).first() {
            let command = ours.command.clone();
            let range =
                made(agent, text, root, hooks, &command).unwrap_or_else(|| cut(text, hooks, array, ours));
            return Ok(Some((command, range)));
        }
    }
    Ok(None)
}

/// The range of the whole object of hooks, where we made it.
fn made(
    agent: Agent,
    text: &str,
    root: &Value<'_>,
    hooks: &Object<'_>,
    command: &str,
) -> Option<Range<usize>> {
    let root = root.as_object().filter(|_| agent == Agent::Claude)?;
    let own = hooks.range.start..hooks.range.end;
    let i = root.properties.iter().position(|p| span(&p.value) == own)?;
    let properties: Vec<_> = root.properties.iter().map(span).collect();
    (text[own] == line(agent, command)).then(|| cut_one(text, root.range.start + 1, &properties, i))
}

/// What our entries in `text` are, for the binary that `command` names.
pub fn state(agent: Agent, text: &str, command: &str) -> Result<State, String> {
    parsed(text, |root| {
        let Some(hooks) = events_in(agent, root)? else {
            return Ok(State::Absent);
        };
        let mut missing = Vec::new();
        let mut other = None;
        for of in events(agent) {
            let ours = event(hooks, &of)?
                .map(|array| ours_in(agent, array))
                .unwrap_or_default();
            if !ours.iter().any(|o| o.command == command) {
                missing.push(of.name);
                other = other.or_else(|| ours.first().and_then(|o| binary_of(agent, &o.command)));
            }
        }
        Ok(match (missing.len(), other) {
            (0, _) if switched_off(agent, root) => State::SwitchedOff,
            (0, _) => State::Installed,
            (_, Some(binary)) => State::OtherBinary(binary),
            (n, None) if n == events(agent).len() => State::Absent,
            (_, None) => State::Incomplete(missing),
        })
    })?
}

fn switched_off(agent: Agent, root: &Value<'_>) -> bool {
    let object = root.as_object().filter(|_| agent == Agent::Claude);
    let set = object.and_then(|o| {
        o.properties
            .iter()
            .rfind(|p| p.name.as_str() == "disableAllHooks")
    });
    set.is_some_and(|p| matches!(&p.value, Value::BooleanLit(b) if b.value))
}

/// Parses strict JSON; deeper nesting than OpenHands writes is refused before anything recurses into it.
fn parsed<R>(text: &str, f: impl FnOnce(&Value<'_>) -> R) -> Result<R, String> {
    serde_json::from_str::<serde_json::Value>(text)
        .map_err(|e| format!("no valid JSON (line {}, column {})", e.line(), e.column()))?;
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let ast =
        parse_to_ast(text, &CollectOptions::default(), &strict).map_err(|_| "no valid JSON".to_owned())?;
    ast.value.as_ref().map(f).ok_or_else(|| "it is empty".into())
}

/// The object that holds the events: the one under `"hooks"`, else, in OpenHands' file, the outermost.
fn events_in<'a, 'b>(agent: Agent, root: &'b Value<'a>) -> Result<Option<&'b Object<'a>>, String> {
    let root = root.as_object().ok_or("it is no JSON object")?;
    // of several with one name the last counts, as in Python and in JavaScript
    match root
        .properties
        .iter()
        .rfind(|p| p.name.as_str() == "hooks")
        .map(|p| &p.value)
    {
        None if agent == Agent::OpenHands => Ok(Some(root)),
        None => Ok(None),
        Some(Value::Object(hooks)) => Ok(Some(hooks)),
        Some(_) => Err("its \"hooks\" is no object".into()),
    }
}

fn event<'a, 'b>(events: &'b Object<'a>, of: &Event) -> Result<Option<&'b Array<'a>>, String> {
    let found = events
        .properties
        .iter()
        .rfind(|p| [of.name, of.other].contains(&p.name.as_str()));
    match found.map(|p| &p.value) {
        None => Ok(None),
        Some(Value::Array(array)) => Ok(Some(array)),
        Some(_) => Err(format!("its \"{}\" is no list", of.name)),
    }
}

/// A command of ours: which element and which hook of it, and where its string stands.
struct Ours {
    element: usize,
    hook: usize,
    alone: bool,
    literal: Range<usize>,
    command: String,
}

fn ours_in(agent: Agent, array: &Array<'_>) -> Vec<Ours> {
    let mut ours = Vec::new();
    for (element, value) in array.elements.iter().enumerate() {
        let Some(hooks) = value.as_object().and_then(|o| o.get_array("hooks")) else {
            continue;
        };
        for (hook, value) in hooks.elements.iter().enumerate() {
            let literal = value.as_object().and_then(|o| o.get_string("command"));
            if let Some(literal) = literal.filter(|l| binary_of(agent, &l.value).is_some()) {
                ours.push(Ours {
                    element,
                    hook,
                    alone: hooks.elements.len() == 1,
                    literal: literal.range.start..literal.range.end,
                    command: literal.value.clone().into_owned(),
                });
            }
        }
    }
    ours
}

/// What must go so that `ours` is gone: the hook, its element if it holds no other, and the event if we made
/// it (its list then begins with the element, without a blank between).
fn cut(text: &str, events: &Object<'_>, array: &Array<'_>, ours: &Ours) -> Range<usize> {
    let ranges = |values: &[Value<'_>]| values.iter().map(span).collect::<Vec<_>>();
    if !ours.alone {
        let hooks = array.elements[ours.element]
            .as_object()
            .and_then(|o| o.get_array("hooks"));
        if let Some(hooks) = hooks {
            return cut_one(text, hooks.range.start + 1, &ranges(&hooks.elements), ours.hook);
        }
    }
    let made = array.elements.len() == 1 && span(&array.elements[0]).start == array.range.start + 1;
    let property = events
        .properties
        .iter()
        .position(|p| span(&p.value) == (array.range.start..array.range.end));
    match property.filter(|_| made) {
        Some(i) => {
            let properties: Vec<_> = events.properties.iter().map(span).collect();
            cut_one(text, events.range.start + 1, &properties, i)
        }
        None => cut_one(
            text,
            array.range.start + 1,
            &ranges(&array.elements),
            ours.element,
        ),
    }
}

fn span(node: &impl Ranged) -> Range<usize> {
    let range = node.range();
    range.start..range.end
}

/// The range of the `i`-th of `items` with one comma, so that it is the inverse of [`put_first`]. `open` is
/// right after the bracket.
fn cut_one(text: &str, open: usize, items: &[Range<usize>], i: usize) -> Range<usize> {
    let item = &items[i];
    if i > 0 {
        return items[i - 1].end..item.end;
    }
    let comma = text[item.end..].find(',').filter(|_| items.len() > 1);
    open..comma.map_or(item.end, |at| item.end + at + 1)
}

/// Puts `new` right after the bracket at `at`, on a line of its own.
fn put_first(text: &str, at: usize, indent: &str, new: &str, empty: bool) -> String {
    let comma = if empty { "" } else { "," };
    format!("{}{indent}{new}{comma}{}", &text[..=at], &text[at + 1..])
}

/// The line end and blanks that stand before the first item, or that suit a container that has none.
fn first_indent(
    text: &str,
    container: jsonc_parser::common::Range,
    first: Option<jsonc_parser::common::Range>,
) -> String {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let blanks = |at: usize| {
        let line = text[..at].rfind('\n').map_or(0, |i| i + 1);
        let text = &text[line..at];
        text[..text.len() - text.trim_start_matches([' ', '\t']).len()].to_owned()
    };
    match first {
        Some(first) if text[container.start..first.start].contains('\n') => {
            end.to_owned() + &blanks(first.start)
        }
        _ => end.to_owned() + &blanks(container.start) + "  ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const O: Agent = Agent::OpenHands;
    const C: Agent = Agent::Claude;
    const OURS: &str = "/usr/bin/respool hook openhands";

    fn round(text: &str) -> String {
        let with = with_ours(O, text, OURS).expect("installs");
        assert_eq!(state(O, &with, OURS), Ok(State::Installed), "{with}");
        assert_eq!(
            with_ours(O, &with, OURS).as_deref(),
            Ok(with.as_str()),
            "twice is once"
        );
        assert_eq!(
            without_ours(O, &with),
            Ok(Removal::Text(text.to_owned())),
            "{with}"
        );
        assert_eq!(without_ours(O, text), Ok(Removal::Nothing));
        let moved = with_ours(O, &with, "'/opt/a b/respool' hook openhands").expect("another binary");
        assert_eq!(
            state(O, &moved, OURS),
            Ok(State::OtherBinary("/opt/a b/respool".into()))
        );
        assert_eq!(
            without_ours(O, &moved),
            Ok(Removal::Text(text.to_owned())),
            "{moved}"
        );
        with
    }

    #[test]
    fn all_else_stays_byte_for_byte() {
        let user = r#"{"hooks": [{"command": "x"}]}"#;
        for text in [
            "{}",
            "{ }\n",
            "{\n}\n",
            "{\n  \"hooks\": {\n  }\n}\n",
            r#"{"hooks":{}}"#,
            "{\"hooks\": {\n  }\n}",
            r#"{"Stop":[]}"#,
            r#"{"stop":[ ],"user_prompt_submit":[]}"#,
            "{\r\n\t\"hooks\": {\r\n\t\t\"Stop\": [\r\n\t\t\t{\"hooks\": []}\r\n\t\t]\r\n\t}\r\n}\r\n",
            &format!("{{\"Stop\":[{user}], \"UserPromptSubmit\" : [ {user} , {user} ]}}"),
            &format!("{{\"hooks\":{{\"PreToolUse\":[{user}]}}, \"x\": [1.50, \"\\u00e9,\"]}}"),
            r#"{"é": "ü", "Stop": [{"hooks": []}]}"#,
            r#"{"hooks": 1, "hooks": {"Stop": 1, "Stop": []}}"#,
            include_str!("../../../tests/fixtures/openhands/v1_cli_1.16/.openhands/hooks.json"),
        ] {
            round(text);
        }
    }

    const CLAUDES: &str = "/usr/bin/respool hook claude";

    #[test]
    fn settings_keep_all_else_byte_for_byte() {
        let user = r#"{"hooks": [{"command": "x"}]}"#;
        for text in [
            "{}",
            "{ }\n",
            "{\n}\n",
            "{\n  \"hooks\": {\n  }\n}\n",
            r#"{"model":"opus"}"#,
            "{\n\t\"permissions\": {\"allow\": [\"Bash(ls:*)\"]},\n\t\"Stop\": 7\n}\n",
            &format!("{{\"hooks\":{{\"Stop\":[{user}], \"PreToolUse\" : [ {user} ]}}, \"x\": \"}}\"}}"),
            r#"{"a": {}, "hooks": {"Stop": []}}"#,
        ] {
            let with = with_ours(C, text, CLAUDES).expect("installs");
            assert_eq!(state(C, &with, CLAUDES), Ok(State::Installed), "{with}");
            assert_eq!(with_ours(C, &with, CLAUDES).as_deref(), Ok(with.as_str()));
            assert_eq!(
                without_ours(C, &with),
                Ok(Removal::Text(text.to_owned())),
                "{with}"
            );
            assert_eq!(without_ours(C, text), Ok(Removal::Nothing));
            let moved = with_ours(C, &with, "/opt/respool hook claude").expect("another binary");
            assert_eq!(
                without_ours(C, &moved),
                Ok(Removal::Text(text.to_owned())),
                "{moved}"
            );
            // what Claude Code reads is what was there, and the entries
            let read = |t: &str| serde_json::from_str::<serde_json::Value>(t).expect("JSON");
            let (mut now, before) = (read(&with), read(text));
            assert!(now["hooks"]["UserPromptSubmit"][0]["hooks"][0]["command"] == CLAUDES);
            now["hooks"] = before["hooks"].clone();
            for key in before.as_object().expect("object").keys() {
                assert_eq!(now[key], before[key]);
            }
        }
        assert_eq!(without_ours(C, &fresh(C, CLAUDES)), Ok(Removal::File));
        assert_eq!(state(C, r#"{"Stop": []}"#, CLAUDES), Ok(State::Absent));
        let off = with_ours(C, r#"{"disableAllHooks": true}"#, CLAUDES).expect("installs");
        assert_eq!(state(C, &off, CLAUDES), Ok(State::SwitchedOff));
        assert!(with_ours(C, r#"{"hooks": 1}"#, CLAUDES).is_err());
    }

    #[test]
    fn the_settings_of_one_run_keep_what_the_user_gave() {
        let alone = for_one_run(None, CLAUDES).expect("made");
        assert_eq!(state(C, &alone, CLAUDES), Ok(State::Installed));
        let both = for_one_run(Some(r#"{"model":"x"}"#), CLAUDES).expect("made");
        assert!(both.contains(r#""model":"x""#) && state(C, &both, CLAUDES) == Ok(State::Installed));
        assert!(for_one_run(Some("x"), CLAUDES).is_err());
    }

    #[test]
    fn what_we_add_looks_so() {
        let with = round("{\n  \"hooks\": {\n    \"Stop\": [\n      {\"hooks\": []}\n    ]\n  }\n}\n");
        insta::assert_snapshot!(with, @r#"
        {
          "hooks": {
            "UserPromptSubmit": [{"matcher": "*", "hooks": [{"type": "command", "command": "/usr/bin/respool hook openhands", "timeout": 60}]}],
            "Stop": [
              {"hooks": [{"type": "command", "command": "/usr/bin/respool hook openhands", "timeout": 60}]},
              {"hooks": []}
            ]
          }
        }
        "#);
    }

    #[test]
    fn a_file_of_ours_alone_goes() {
        assert_eq!(without_ours(O, &fresh(O, OURS)), Ok(Removal::File));
        assert_eq!(state(O, &fresh(O, OURS), OURS), Ok(State::Installed));
    }

    #[test]
    fn ours_is_found_wherever_the_user_moved_it() {
        let moved = format!(
            r#"{{"Stop":[{{"hooks":[{{"command":"a"}}, {{"command":"{OURS}"}} ,{{"command":"b"}}]}}],
                "UserPromptSubmit":[{{"hooks":[]}},{{"hooks":[{{"command":"{OURS}"}}]}}]}}"#
        );
        assert_eq!(state(O, &moved, OURS), Ok(State::Installed));
        let want = r#"{"Stop":[{"hooks":[{"command":"a"} ,{"command":"b"}]}],
                "UserPromptSubmit":[{"hooks":[]}]}"#;
        assert_eq!(without_ours(O, &moved), Ok(Removal::Text(want.into())));
    }

    #[test]
    fn states() {
        let half = format!(r#"{{"Stop":[{{"hooks":[{{"command":"{OURS}"}}]}}]}}"#);
        assert_eq!(
            state(O, &half, OURS),
            Ok(State::Incomplete(vec!["UserPromptSubmit"]))
        );
        for other in ["echo respool hook openhands", "respool hook claude", "'"] {
            let text = serde_json::json!({"Stop": [{"hooks": [{"command": other}]}]}).to_string();
            assert_eq!(state(O, &text, OURS), Ok(State::Absent), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "[]",
            "7",
            "{} x",
            "{\"a\":1,}",
            "// c\n{}",
            r#"{"hooks":[]}"#,
            r#"{"Stop":{}}"#,
            "\u{feff}{}",
            &deep,
        ] {
            assert!(with_ours(O, text, OURS).is_err(), "{text}");
            assert!(
                without_ours(O, text).is_err() && state(O, text, OURS).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn commands_are_quoted() {
        let path = Path::new("/home/it's $me/respool");
        let command = command(O, path, Some(Path::new("/x y"))).expect("quotes");
        assert_eq!(binary_of(O, &command).as_deref(), path.to_str());
        let text = with_ours(O, "{}", &command).expect("installs");
        assert_eq!(state(O, &text, &command), Ok(State::Installed));
    }
}

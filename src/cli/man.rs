//! `respool man`: the whole manual page, made from the arguments, the keymap and the described config.

use clap::{Arg, Command, CommandFactory};

use super::args::Cli;
use super::output::{Done, Failure, raw};
use crate::config::DEFAULT;
use crate::failure::Kind;
use crate::tui::keymap::Keymap;
use crate::tui::theme::{BUILT_IN, Role};

const STATES: &[(&str, &str)] = &[
    (
        "3, m3",
        "The state just before message 3 took effect; digits are the number on the active branch.",
    ),
    (
        "id:13, 6 or more characters",
        "The same, by the native id of the message, or a unique prefix of it: what logs, hooks and scripts use, as numbers move when a branch changes.",
    ),
    ("m3.end", "The end of the turn of message 3."),
    ("cp-xxxxxxxxxx", "A checkpoint, by its id."),
    ("now", "The files as they are."),
    ("start", "The checkpoint taken by track."),
];

const CODES: &[(&str, &str)] = &[
    ("0", "Done."),
    (
        "1",
        "Failed: everything is as before, or the message says what respool recover will finish.",
    ),
    ("2", "Wrong usage, or a wrong config."),
    (
        "3",
        "Refused: a decision is needed, and the message names the flag.",
    ),
    ("4", "No such conversation, message, checkpoint or path."),
    ("5", "Damaged or incomplete data was found, and is named."),
    ("130", "Cancelled."),
];

const FILES: &[(&str, &str)] = &[
    (
        "~/.config/respool/config.toml",
        "The config: see CONFIGURATION. Under sudo, that of the invoking user.",
    ),
    (
        "WORKSPACE/.respool.toml",
        "What a workspace sets for itself: [sandbox] include and exclude, [retention] as far as it makes more checkpoints stay, [theme] name. All else in it is ignored with a warning.",
    ),
    (
        "/var/lib/respool",
        "The state folder of root: the image of the pool (pool.img), the list of pools, the copies, and under mnt the mounted pools.",
    ),
    (
        "~/.local/state/respool",
        "The state folder of other users. --state-dir names another one.",
    ),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "HOME, XDG_CONFIG_HOME, XDG_STATE_HOME",
        "Where config and state are.",
    ),
    (
        "PATH",
        "Where programs are looked for, the agents' too. Its empty and relative entries are ignored: they lead into whatever folder you are in.",
    ),
    (
        "SUDO_USER",
        "The invoking user, whose conversations and config count. An empty one counts as absent.",
    ),
    (
        "NO_COLOR, TERM",
        "No colours if NO_COLOR is set, or on a dumb terminal.",
    ),
    (
        "RESPOOL_LOG",
        "What is logged to stderr, for example respool=debug.",
    ),
    (
        "RESPOOL_WORKSPACE, RESPOOL_KIND, RESPOOL_CHECKPOINT, RESPOOL_OPERATION",
        "Set for the commands of [hooks]: the workspace; for pre_checkpoint message, turn-end or manual; for post_rewind the checkpoint that the files are at now and the operation.",
    ),
];

/// Prints the manual page.
pub fn man() -> Done {
    let mut out = Vec::new();
    let mut command = Cli::command();
    command.build();
    let page = clap_mangen::Man::new(command.clone());
    let head = page
        .render_title(&mut out)
        .and_then(|()| page.render_name_section(&mut out))
        .and_then(|()| page.render_synopsis_section(&mut out))
        .and_then(|()| page.render_description_section(&mut out))
        .and_then(|()| page.render_options_section(&mut out));
    head.map_err(|e| Failure::new(Kind::Failed, format!("cannot make the manual page: {e}")))?;
    let mut text = String::from(".SH COMMANDS\n");
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        describe(&mut text, "respool", sub);
    }
    list(&mut text, "STATES", STATES);
    list(&mut text, "EXIT STATUS", CODES);
    list(&mut text, "FILES", FILES);
    text += &format!(".SH CONFIGURATION\n.nf\n{}.fi\n", lines(DEFAULT));
    keys(&mut text)?;
    list(&mut text, "ENVIRONMENT", ENVIRONMENT);
    out.extend_from_slice(text.as_bytes());
    raw(&out)
}

/// Text that is shown as it is.
fn plain(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
}

/// Lines of text, none of them a request.
fn lines(text: &str) -> String {
    text.lines().map(|l| format!("\\&{}\n", plain(l))).collect()
}

fn list(out: &mut String, title: &str, entries: &[(&str, &str)]) {
    *out += &format!(".SH \"{title}\"\n");
    for (name, what) in entries {
        *out += &format!(".TP\n\\fB{}\\fR\n{}", plain(name), lines(what));
    }
}

/// A command with its own arguments, and those below it.
fn describe(out: &mut String, above: &str, command: &Command) {
    let name = format!("{above} {}", command.get_name());
    let own = |a: &&Arg| !a.is_global_set() && !matches!(a.get_id().as_str(), "help" | "version");
    if command.get_subcommands().all(|s| s.get_name() == "help") {
        let mut usage = name.clone();
        if command.get_arguments().filter(own).any(|a| !a.is_positional()) {
            usage += " [OPTIONS]";
        }
        for a in command.get_positionals() {
            usage += &format!(" {}", value(a, a.is_required_set()));
        }
        *out += &format!(".SS \"{}\"\n", plain(&usage));
        let aliases: Vec<&str> = command.get_all_aliases().collect();
        if !aliases.is_empty() {
            *out += &format!("Also called {}.\n.PP\n", plain(&aliases.join(", ")));
        }
        let about = command.get_long_about().or(command.get_about());
        *out += &lines(&about.map(ToString::to_string).unwrap_or_default());
        for a in command.get_arguments().filter(own) {
            *out += &argument(a);
        }
    }
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        describe(out, &name, sub);
    }
}

fn value(a: &Arg, required: bool) -> String {
    let names = a.get_value_names().unwrap_or_default();
    let mut text = names
        .iter()
        .map(clap::builder::Str::as_str)
        .collect::<Vec<_>>()
        .join(" ");
    if a.get_num_args().is_some_and(|n| n.max_values() > 1) {
        text += "...";
    }
    if required { text } else { format!("[{text}]") }
}

fn argument(a: &Arg) -> String {
    let mut name = match (a.get_short(), a.get_long()) {
        (Some(s), Some(l)) => format!("-{s}, --{l}"),
        (None, Some(l)) => format!("--{l}"),
        (Some(s), None) => format!("-{s}"),
        (None, None) => String::new(),
    };
    if a.get_action().takes_values() {
        if !name.is_empty() {
            name.push(' ');
        }
        name += &value(a, true);
    }
    let mut help = a.get_help().map(ToString::to_string).unwrap_or_default();
    let possible: Vec<String> = a
        .get_possible_values()
        .iter()
        .filter(|v| !v.is_hide_set())
        .map(|v| v.get_name().to_owned())
        .collect();
    if a.get_action().takes_values() && !possible.is_empty() {
        help += &format!(" (one of {})", possible.join(", "));
    }
    let default: Vec<String> = a
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .collect();
    if a.get_action().takes_values() && !default.is_empty() {
        help += &format!(" [default: {}]", default.join(", "));
    }
    format!(".TP\n\\fB{}\\fR\n{}", plain(&name), lines(&help))
}

/// The actions that `[keys]` names, with their keys, and the names of `[theme]`.
fn keys(out: &mut String) -> Done {
    *out += ".SH KEYS\nThe actions that [keys] can give other keys to.\n";
    for b in Keymap::built_in()?.bindings {
        let keys = if b.keys.is_empty() {
            "no key".into()
        } else {
            b.keys.join(" ")
        };
        *out += &format!(
            ".TP\n\\fB{}\\fR ({})\n{}",
            plain(&b.action.name()),
            plain(&keys),
            lines(&b.help)
        );
    }
    let themes: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let roles: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
    *out += &format!(
        ".PP\nThe themes of [theme]: {}. Its roles: {}.\n",
        plain(&themes.join(", ")),
        plain(&roles.join(", "))
    );
    Ok(())
}

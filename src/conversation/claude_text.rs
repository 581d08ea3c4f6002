//! What Claude Code writes around the words of the human, and what it puts in between in the human's name.

/// A turn that the human stopped.
pub(super) const INTERRUPTED: &str = "[Request interrupted by user";

/// A text of role `user`, unwrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrapped {
    /// Not the human's words.
    Noise,
    /// Not the human's words: what a shell line or a command of the program's own printed.
    Output,
    /// A shell line.
    Shell(String),
    /// A slash command with its arguments.
    Command(String),
    /// The human's words.
    Plain(String),
}

/// Takes the human's words out of what is stored.
pub(super) fn unwrapped(stored: &str) -> Wrapped {
    let text = stored.trim_start();
    let begins = |tags: &[&str]| tags.iter().any(|t| text.starts_with(t));
    if begins(&["<local-command-caveat>", "<task-notification>", INTERRUPTED]) {
        return Wrapped::Noise;
    }
    if begins(&[
        "<local-command-stdout>",
        "<local-command-stderr>",
        "<bash-stdout>",
        "<bash-stderr>",
    ]) {
        return Wrapped::Output;
    }
    if text.starts_with("<bash-input>") {
        return Wrapped::Shell(text.replace("<bash-input>", "").replace("</bash-input>", ""));
    }
    if begins(&["<command-name>", "<command-message>"]) {
        let name = between(text, "<command-name>", "</command-name>").unwrap_or("?");
        let arguments = between(text, "<command-args>", "</command-args>").filter(|a| !a.is_empty());
        return Wrapped::Command(match arguments {
            Some(arguments) => format!("{name} {arguments}"),
            None => name.to_owned(),
        });
    }
    Wrapped::Plain(without_paste(stored).to_owned())
}

/// A text that was pasted as a whole, without the tags around it (Claude Code 2.1.332).
pub(super) fn without_paste(text: &str) -> &str {
    let inner = || {
        let (open, rest) = text
            .trim_start()
            .strip_prefix("<pasted_content id=\"")?
            .split_once("\">\n")?;
        let rest = rest.trim_end().strip_suffix("\">")?;
        let (words, close) = rest.rsplit_once("\n</pasted_content id=\"")?;
        // several pastes are left as they are
        let one = !open.contains('"') && !close.contains('"') && !words.contains("\n</pasted_content id=\"");
        one.then_some(words)
    };
    inner().unwrap_or(text)
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    rest.split_once(close).map(|(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_humans_words_are_taken_out() {
        let plain = |s: &str| Wrapped::Plain(s.to_owned());
        for (stored, want) in [
            ("do it", plain("do it")),
            ("  do <bash-input>", plain("  do <bash-input>")),
            ("<bash-input>make</bash-input>", Wrapped::Shell("make".into())),
            ("<bash-stdout>x</bash-stdout>", Wrapped::Output),
            ("\n<local-command-caveat>x", Wrapped::Noise),
            ("[Request interrupted by user for tool use]", Wrapped::Noise),
            (
                "<command-message>go is running</command-message>\n<command-name>/go</command-name>\n<command-args>a b</command-args>",
                Wrapped::Command("/go a b".into()),
            ),
            (
                "<command-name>/clear</command-name><command-args></command-args>",
                Wrapped::Command("/clear".into()),
            ),
            ("<command-message>x", Wrapped::Command("?".into())),
            (
                "<pasted_content id=\"1\">\na\nb\n</pasted_content id=\"1\">\n",
                plain("a\nb"),
            ),
            (
                "<pasted_content id=\"1\">\na",
                plain("<pasted_content id=\"1\">\na"),
            ),
        ] {
            assert_eq!(unwrapped(stored), want, "{stored}");
        }
    }
}

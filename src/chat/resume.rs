//! The agent's own command that goes on with a conversation, with a message as its first one.
//!
//! Facts: OpenHands CLI 1.16 takes `--resume ID --task TEXT` (`--file` would put words of its own around the text),
//! V0 0.62 `python -m openhands.core.main -n NAME --task TEXT`; Claude Code 2.1 takes the text as its last argument
//! after `--resume ID`, or after `--session-id ID` where there is no such session yet.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::error::{ChatError, Result};
use super::{Hand, fork};
use crate::conversation::{OpenHandsV0, Source, Summary};
use crate::text::{shell_word, size};

/// The longest argument of a program, its NUL included (Linux, `MAX_ARG_STRLEN`).
const LONGEST: usize = 128 << 10;

/// The programs that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `openhands`.
    OpenHands,
    /// OpenHands V0, by its module.
    OpenHandsV0,
    /// `claude`.
    Claude,
}

impl Program {
    /// The program for a conversation of this agent in this store.
    pub fn of(agent: &str, store: &Path) -> Option<Self> {
        match agent {
            "openhands" if OpenHandsV0.recognises(store) => Some(Self::OpenHandsV0),
            "openhands" => Some(Self::OpenHands),
            "claude" => Some(Self::Claude),
            _ => None,
        }
    }

    fn own(self) -> &'static [&'static str] {
        match self {
            Self::OpenHands => &["openhands", "--resume"],
            Self::OpenHandsV0 => &["python", "-m", "openhands.core.main", "-n"],
            Self::Claude => &["claude", "--resume"],
        }
    }
}

/// How a conversation is gone on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The program.
    pub program: Program,
    /// The agent's own id of the conversation.
    pub conversation: String,
    /// There is no such conversation yet: it begins with this message (Claude Code alone has names for those).
    pub begins: bool,
    /// The user's own words before the id, from the config; empty: the program's own.
    pub own: Vec<String>,
    /// The folder that the agent works in: it is started there.
    pub folder: PathBuf,
    /// Words before all others: of what looks after the agent meanwhile (`respool run --`).
    pub under: Vec<String>,
}

impl Resume {
    /// Of this conversation, in this folder; `None` for an agent whose program is not known. `own`: the config's
    /// words.
    pub fn of(conversation: &Summary, folder: &Path, own: &[String]) -> Option<Self> {
        let program = Program::of(conversation.agent, &conversation.store)?;
        // Claude Code finds a conversation only from the folder in which it began
        let began = conversation.workspace.as_deref();
        let folder = began
            .filter(|w| program == Program::Claude && w.is_absolute())
            .unwrap_or(folder);
        Some(Self {
            program,
            conversation: conversation.id.clone(),
            begins: false,
            own: own.to_vec(),
            folder: folder.to_owned(),
            under: Vec::new(),
        })
    }

    /// The same for the conversation to which a rewind led, beside the one of this store.
    #[must_use]
    pub fn goes_on_in(self, conversation: &str, store: &Path, hand: Hand) -> Self {
        let begun = hand.run(|| Ok(fork::has_begun(store, conversation)));
        Self {
            conversation: conversation.to_owned(),
            begins: self.program == Program::Claude && matches!(begun, Ok(false)),
            ..self
        }
    }

    /// The words of the command: nothing here ever goes through a shell. `asks`: a person sits before it; else it
    /// does what the message says and ends.
    pub fn argv(&self, text: &str, asks: bool) -> Result<Vec<OsString>> {
        let mut words = self.before()?;
        if text.contains('\0') {
            return Err(ChatError::Uncarried(
                "has a NUL character in it, which no command line can carry".into(),
            ));
        }
        match (self.program, asks) {
            (Program::OpenHands, false) => {
                words.extend(["--headless", "--exit-without-confirmation"].map(str::to_owned));
            }
            (Program::Claude, false) => words.push("-p".into()),
            _ => {}
        }
        match self.program {
            Program::OpenHands | Program::OpenHandsV0 => words.push(format!("--task={text}")),
            Program::Claude => words.extend(["--".to_owned(), text.to_owned()]),
        }
        if words.last().is_some_and(|w| w.len() >= LONGEST) {
            return Err(ChatError::Uncarried(format!(
                "is too long for a command line ({} of at most {})",
                size(text.len() as u64),
                size(LONGEST as u64)
            )));
        }
        Ok(words.into_iter().map(OsString::from).collect())
    }

    /// Whether the program can be given this text. Of an agent that servers send to, too, that is seen when none does.
    pub fn carries(&self, text: &str) -> Result<()> {
        if self.program == Program::Claude {
            self.argv(text, true)?;
        }
        Ok(())
    }

    /// The same as a line for a shell, to show and to copy; the text comes from this file.
    pub fn line(&self, kept: &Path) -> Result<String> {
        let words: Vec<String> = self.before()?.iter().map(|w| shell_word(Path::new(w))).collect();
        let text = format!("\"$(cat {})\"", shell_word(kept));
        let last = match self.program {
            Program::OpenHands | Program::OpenHandsV0 => format!("--task={text}"),
            Program::Claude => format!("-- {text}"),
        };
        Ok(format!("{} {last}", self.place(&words)))
    }

    /// How a person goes on in it without a message: one harmless line, where there is such a command.
    pub fn told(&self) -> Option<String> {
        let words = self.before().ok()?;
        let words: Vec<String> = words.iter().map(|w| shell_word(Path::new(w))).collect();
        Some(format!("go on there: {}", self.place(&words)))
    }

    fn place(&self, words: &[String]) -> String {
        format!("cd {} && {}", shell_word(&self.folder), words.join(" "))
    }

    /// All words but the message.
    fn before(&self) -> Result<Vec<String>> {
        let id = &self.conversation;
        if id.is_empty() || id.starts_with('-') || id.chars().any(crate::text::is_unsafe_char) {
            return Err(ChatError::Unmovable(
                "its id is none that could be given to a program".into(),
            ));
        }
        let own = || self.program.own().iter().map(|w| (*w).to_owned()).collect();
        let mut words: Vec<String> = if self.own.is_empty() {
            own()
        } else {
            self.own.clone()
        };
        if self.begins && self.program == Program::Claude {
            if words.last().is_some_and(|w| w == "--resume" || w == "-r") {
                words.pop();
            }
            words.push("--session-id".into());
        }
        words.push(id.clone());
        words.splice(0..0, self.under.iter().cloned());
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resume(program: Program) -> Resume {
        Resume {
            program,
            conversation: "0a1b".into(),
            begins: false,
            own: Vec::new(),
            folder: "/w/my project".into(),
            under: Vec::new(),
        }
    }

    fn words(r: &Resume, text: &str, asks: bool) -> Vec<String> {
        let argv = r.argv(text, asks).expect("argv");
        argv.into_iter().map(|w| w.into_string().expect("text")).collect()
    }

    #[test]
    fn each_program_gets_the_text_as_one_word() {
        let text = "-x; $(rm) 'q'\n\"two\"";
        let task = format!("--task={text}");
        for (program, asks, want) in [
            (
                Program::OpenHands,
                true,
                vec!["openhands", "--resume", "0a1b", &task],
            ),
            (
                Program::OpenHands,
                false,
                vec![
                    "openhands",
                    "--resume",
                    "0a1b",
                    "--headless",
                    "--exit-without-confirmation",
                    &task,
                ],
            ),
            (
                Program::OpenHandsV0,
                true,
                vec!["python", "-m", "openhands.core.main", "-n", "0a1b", &task],
            ),
            (
                Program::Claude,
                true,
                vec!["claude", "--resume", "0a1b", "--", text],
            ),
            (
                Program::Claude,
                false,
                vec!["claude", "--resume", "0a1b", "-p", "--", text],
            ),
        ] {
            assert_eq!(words(&resume(program), text, asks), want);
        }
    }

    #[test]
    fn a_conversation_that_begins_gets_its_id() {
        let mut r = Resume {
            begins: true,
            ..resume(Program::Claude)
        };
        assert_eq!(
            words(&r, "hi", true),
            ["claude", "--session-id", "0a1b", "--", "hi"]
        );
        r.own = ["npx", "claude", "--resume"].map(str::to_owned).to_vec();
        assert_eq!(
            words(&r, "hi", true),
            ["npx", "claude", "--session-id", "0a1b", "--", "hi"]
        );
    }

    #[test]
    fn the_line_quotes_every_word() {
        let mut r = resume(Program::OpenHands);
        r.own = vec!["/opt/my tools/oh".into(), "--resume".into()];
        r.under = ["respool", "run", "--"].map(str::to_owned).to_vec();
        assert_eq!(
            r.line(Path::new("/s/it's.txt")).expect("line"),
            "cd '/w/my project' && respool run -- '/opt/my tools/oh' --resume 0a1b --task=\"$(cat \"/s/it's.txt\")\""
        );
        assert_eq!(
            r.told().as_deref(),
            Some("go on there: cd '/w/my project' && respool run -- '/opt/my tools/oh' --resume 0a1b")
        );
    }

    #[test]
    fn what_no_command_line_can_carry_is_refused() {
        let r = resume(Program::OpenHands);
        for text in ["a\0b".to_owned(), "x".repeat(LONGEST)] {
            r.argv(&text, true).expect_err("not a word");
        }
        r.argv(&"x".repeat(LONGEST - 8), true).expect("the longest");
        for id in ["", "-rf", "a\nb"] {
            let r = Resume {
                conversation: id.into(),
                ..resume(Program::Claude)
            };
            r.argv("hi", true).expect_err("no id");
            r.line(Path::new("/f")).expect_err("no id");
        }
    }
}

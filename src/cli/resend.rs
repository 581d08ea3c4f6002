//! `respool rewind --resend` and `--edit`: the message goes to the agent again, with another text.

use std::fs;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::Command;

use super::app::{App, Subject};
use super::args::RewindArgs;
use super::output::Failure;
use crate::chat::{Letter, by_server};
use crate::failure::{Explain, Kind};
use crate::rewind::{Outcome, Plan};
use crate::text::{shell_word, shown, shown_path};
use crate::timeline::select::Selected;

/// The longest text that is sent, in bytes.
const MOST: u64 = 4 << 20;

/// What is sent after the rewind. It is kept in a file until it was.
pub struct Draft {
    letter: Letter,
    conversation: String,
    kept: PathBuf,
}

/// The message to send, if one is wanted. Nothing was done yet.
pub fn draft(
    app: &App,
    args: &RewindArgs,
    subject: &Subject,
    target: &Selected,
    plan: &Plan,
) -> Result<Option<Draft>, Failure> {
    if args.resend.is_none() && !args.edit {
        return Ok(None);
    }
    let row = target.native.as_ref().and_then(|native| {
        let rows = subject.timeline().map(|t| &t.rows);
        rows.and_then(|rows| rows.iter().find(|r| r.id == *native))
    });
    let row = row
        .filter(|_| args.state.strip_suffix(".end").is_none())
        .ok_or_else(|| Failure::new(Kind::Usage, "only a message can be sent again").hint("name one: m3"))?;
    let Some(talk) = plan.talk.as_deref() else {
        let why = plan
            .chat_reason
            .clone()
            .unwrap_or_else(|| "--files was asked for".into());
        return Err(Failure::new(
            Kind::Refused,
            format!("the conversation stays as it is, so the message would come last of all: {why}"),
        )
        .hint("respool rewind --dry-run shows the plan"));
    };
    let conversation = subject
        .timeline()
        .map(|t| t.conversation.id.clone())
        .unwrap_or_default();
    let kept = place(app, &conversation)?;
    let text = match args.resend.as_deref() {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        None => edited(&kept, &row.text)?,
    };
    if text.trim().is_empty() {
        return Err(Failure::new(
            Kind::Cancelled,
            "the message is empty: nothing was done",
        ));
    }
    let letter = Letter::instead_of(&talk.store, &row.id, text, talk.hand)?;
    if (letter.pictures.len() as u64) < u64::from(row.pictures) {
        let what = format!(
            "the message has {} pictures, and they cannot be found",
            row.pictures
        );
        return Err(
            Failure::new(Kind::Refused, what).hint("rewind without --resend, and send it in the agent")
        );
    }
    keep(&kept, &letter.text)?;
    Ok(Some(Draft {
        letter,
        conversation,
        kept,
    }))
}

fn io(what: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Failure + use<> {
    let path = path.to_owned();
    move |e| Failure::new(Kind::Failed, format!("cannot {what} {}: {e}", shown_path(&path))).path(path)
}

fn place(app: &App, conversation: &str) -> Result<PathBuf, Failure> {
    let dir = app.desk.registry.state_dir().join("drafts");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(io("make", &dir))?;
    let name: String = conversation
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(64)
        .collect();
    Ok(dir.join(format!("{name}.txt")))
}

fn keep(path: &std::path::Path, text: &str) -> Result<(), Failure> {
    let temp = path.with_extension(format!("{}.tmp", std::process::id()));
    crate::durable::replace_file(path, &temp, text.as_bytes()).map_err(io("keep the message in", path))
}

fn stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MOST).read_to_string(&mut text);
    read.map_err(|e| Failure::new(Kind::Failed, format!("the message cannot be read: {e}")))?;
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// The text as it comes out of the user's editor.
fn edited(kept: &std::path::Path, text: &str) -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Kind::Usage, "the editor needs a terminal")
            .hint("without one: --resend TEXT, or --resend - for standard input"));
    }
    let named = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|v| std::env::var(v).ok().filter(|e| !e.trim().is_empty()));
    let words = shlex::split(named.as_deref().unwrap_or("vi")).unwrap_or_default();
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new(Kind::Usage, "EDITOR cannot be understood").hint("for example EDITOR=vi"));
    };
    let file = kept.with_extension("edit.txt");
    let write = || -> std::io::Result<()> {
        use std::io::Write as _;
        let mut options = fs::OpenOptions::new();
        let mut f = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&file)?;
        f.write_all(text.as_bytes())
    };
    write().map_err(io("write", &file))?;
    let status = Command::new(program).args(arguments).arg(&file).status();
    let ended =
        status.map_err(|e| Failure::new(Kind::Failed, format!("{} cannot be run: {e}", shown(program))))?;
    let new = fs::read_to_string(&file).map_err(io("read", &file));
    fs::remove_file(&file).map_err(io("remove", &file))?;
    if !ended.success() {
        return Err(Failure::new(
            Kind::Cancelled,
            "the editor failed: nothing was done",
        ));
    }
    let new = new?;
    // editors end the last line
    Ok(match new.strip_suffix('\n') {
        Some(short) if !text.ends_with('\n') => short.to_owned(),
        _ => new,
    })
}

/// Sends it, after a rewind that was done. Where no server holds the conversation, the agent's own command is told.
pub fn send(app: &App, draft: &Draft, plan: &Plan, outcome: &mut Outcome) -> Result<(), Failure> {
    let Some(talk) = plan.talk.as_deref() else {
        return Ok(());
    };
    match by_server(&talk.store, &draft.letter, &talk.access, talk.hand) {
        Ok(Some(server)) => {
            outcome.resent = true;
            outcome.notes.push(format!("the message was sent, by {server}"));
            fs::remove_file(&draft.kept).map_err(io("remove", &draft.kept))
        }
        Ok(None) => {
            outcome.notes.push(format!(
                "no server has the conversation: send the message yourself: {}   (it is kept in {})",
                command(app, draft),
                shown_path(&draft.kept)
            ));
            Ok(())
        }
        Err(e) => Err(Failure::new(
            Kind::Failed,
            format!(
                "the rewind is done (operation {}), the message was not sent: {e}",
                outcome.operation
            ),
        )
        .hint(format!(
            "it is kept in {}; {}",
            shown_path(&draft.kept),
            e.hint()
                .unwrap_or_else(|| "respool undo takes the rewind back".into())
        ))),
    }
}

/// The agent's own command that goes on with the conversation, with the text; the user's config may name another.
fn command(app: &App, draft: &Draft) -> String {
    let own = app.config.agents.get("openhands").map(|a| a.resume.clone());
    let mut words = own
        .filter(|w| !w.is_empty())
        .unwrap_or_else(|| ["openhands", "--resume"].map(str::to_owned).to_vec());
    words.push(draft.conversation.clone());
    let words: Vec<String> = words
        .iter()
        .map(|w| shell_word(std::path::Path::new(w)))
        .collect();
    let text = shell_word(&draft.kept);
    format!("{} -t \"$(cat {text})\"", words.join(" "))
}

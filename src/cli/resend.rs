//! `respool rewind --resend` and `--edit`: the message goes to the agent again, with another text.

use std::io::{IsTerminal, Read};

use super::app::{App, Subject};
use super::args::RewindArgs;
use super::output::Failure;
use super::run::starter;
use crate::chat::{Kept, Letter, MOST, Program, Resume, by_server};
use crate::conversation::MessageKind;
use crate::failure::{Explain, Kind};
use crate::rewind::{Outcome, Plan};
use crate::sandbox::starter::editor;
use crate::text::{shown, shown_path, size};
use crate::timeline::Row;
use crate::timeline::select::Selected;

/// What is sent after the rewind. It is kept in a file until it was.
pub struct Draft {
    letter: Letter,
    resume: Option<Resume>,
    kept: Kept,
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
        .filter(|r| !matches!(r.kind, MessageKind::Shell | MessageKind::Command))
        .ok_or_else(|| {
            Failure::new(Kind::Usage, "only a message to the agent can be sent again").hint("name one: m3")
        })?;
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
    let timeline = subject.timeline();
    let conversation = timeline
        .map(|t| &t.conversation)
        .ok_or_else(|| Failure::new(Kind::NotFound, "no conversation of this folder is known"))?;
    let kept = app.drafts().instead_of(conversation, &row.id);
    let text = match args.resend.as_deref() {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        None => edited(app, &kept, row, timeline.map_or(&[][..], |t| &t.rows))?,
    };
    if text.trim().is_empty() {
        return Err(Failure::new(
            Kind::Cancelled,
            "the message is empty: nothing was done",
        ));
    }
    // whatever comes now, it is not lost
    kept.keep(&text)?;
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
    let resume = app.resume(conversation, subject.site.path());
    if let Some(resume) = &resume {
        resume.carries(&letter.text)?;
    }
    Ok(Some(Draft { letter, resume, kept }))
}

fn stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let unread = |e: String| Failure::new(Kind::Failed, format!("the message cannot be read: {e}"));
    let read = std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(|e| unread(e.to_string()))?;
    if bytes.len() as u64 > MOST {
        let what = format!("the message is too long: more than {}", size(MOST));
        return Err(Failure::new(Kind::Refused, what));
    }
    let text = String::from_utf8(bytes).map_err(|e| unread(e.utf8_error().to_string()))?;
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

/// The text as it comes out of the user's editor. What is kept from an earlier time is what it begins with.
/// What was sent since (`rows`) is no such text.
fn edited(app: &App, kept: &Kept, row: &Row, rows: &[Row]) -> Result<String, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::new(Kind::Usage, "the editor needs a terminal")
            .hint("without one: --resend TEXT, or --resend - for standard input"));
    }
    let mut words = editor(|name| std::env::var_os(name)).ok_or_else(|| {
        Failure::new(Kind::Usage, "EDITOR cannot be understood").hint("for example EDITOR=vi")
    })?;
    let before = kept.unsent(rows.iter().map(|r| (&*r.text, r.time)))?;
    let text = before.as_deref().unwrap_or(&row.text);
    if before.is_some() {
        app.out
            .say("respool: the message that was not sent last time is there again");
    }
    let file = kept.for_editor(text)?;
    words.push(file.clone().into_os_string());
    let status = match starter(app).of(&words, &app.cwd) {
        Some(start) => start.direct().status(),
        None => Err(std::io::Error::other("there is no such program")),
    };
    let new = kept.edited(&file, text)?;
    match status {
        Ok(status) if status.success() => Ok(new),
        Ok(_) => Err(Failure::new(
            Kind::Cancelled,
            "the editor failed: nothing was done",
        )),
        Err(e) => Err(Failure::new(
            Kind::Failed,
            format!("{} cannot be run: {e}", shown(&words[0].to_string_lossy())),
        )),
    }
}

/// Sends it, after a rewind that was done. Where no server holds the conversation, the agent's own command is told.
pub fn send(draft: &Draft, plan: &Plan, outcome: &mut Outcome) -> Result<(), Failure> {
    let Some(talk) = plan.talk.as_deref() else {
        return Ok(());
    };
    let kept = shown_path(draft.kept.path());
    match by_server(&talk.store, &draft.letter, &talk.access, talk.hand) {
        Ok(Some(server)) => {
            outcome.resent = true;
            outcome.notes.push(format!("the message was sent, by {server}"));
            Ok(draft.kept.remove()?)
        }
        Ok(None) => {
            let resume = draft.resume.clone().map(|r| match &outcome.conversation {
                Some(id) => r.goes_on_in(id, &talk.store, talk.hand),
                None => r,
            });
            let why = match &resume {
                Some(r) if r.program == Program::Claude => "",
                _ => "no server has the conversation: ",
            };
            let line = |r: Resume| {
                r.argv(&draft.letter.text, true)?;
                r.line(draft.kept.path())
            };
            let how = match resume.map(line) {
                None => String::new(),
                Some(Ok(line)) => format!(": {line}"),
                Some(Err(e)) => format!(" ({e})"),
            };
            outcome.notes.push(format!(
                "{why}send the message yourself{how}   (it is kept in {kept})"
            ));
            if !draft.letter.pictures.is_empty() {
                outcome
                    .notes
                    .push("its pictures do not go with it: the agent's command takes text alone".into());
            }
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
            "it is kept in {kept}; {}",
            e.hint()
                .unwrap_or_else(|| "respool undo takes the rewind back".into())
        ))),
    }
}

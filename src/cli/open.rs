//! `respool [CONVERSATION]`: the TUI.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

use super::app::App;
use super::args::Global;
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::text::shown;
use crate::tui::real::RealBackend;
use crate::tui::state::End;
use crate::tui::{self, Options};

/// Opens the screens.
pub fn run(global: Global, open: Option<OsString>) -> Done {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if global.json || !terminal {
        let what = open.map_or_else(
            || "the timeline needs a terminal".to_owned(),
            |w| {
                format!(
                    "{} is no command, and the timeline needs a terminal",
                    shown(&w.to_string_lossy())
                )
            },
        );
        return Err(Failure::new(Kind::Usage, what)
            .hint("respool --help; without a terminal: respool timeline --json"));
    }
    let app = App::new(global)?;
    let named = open.as_ref().or(app.global.conversation.as_ref());
    let found = match named {
        // the screens start with all conversations there
        None if app.far() => Err(Failure::new(Kind::NotFound, "no conversation is named")),
        named => app.found(named.map(OsString::as_os_str)),
    };
    let store = match (found, named) {
        (Ok(found), _) => Some(found.1),
        // an unknown first word is usage, whatever it was meant to be
        (Err(e), Some(word)) if e.kind == Kind::NotFound && open.is_some() => {
            let what = format!(
                "{} is neither a command nor a conversation",
                shown(&word.to_string_lossy())
            );
            return Err(Failure::new(Kind::Usage, what).hint("respool --help; respool conversations"));
        }
        (Err(e), Some(_)) => return Err(e),
        (Err(e), None) if e.kind != Kind::NotFound => return Err(e),
        (Err(_), None) => None,
    };
    let options = options(&app, store)?;
    if let Some(talk) = &app.talk {
        talk.hold(true);
    }
    let shown = show(RealBackend::new(app.desk), options);
    if let Some(talk) = &app.talk {
        talk.hold(false);
    }
    end(&shown?)
}

/// The options of the screens, from the config.
pub fn options(app: &App, store: Option<PathBuf>) -> Result<Options, Failure> {
    let mut options = Options::built_in(store)?;
    if !app.far() {
        options.home = Some(app.who.home.clone());
    }
    if let Some(file) = &app.config.file {
        options.paths.push(("config", file.clone()));
    }
    options
        .paths
        .push(("state", app.desk.registry.state_dir().to_owned()));
    Ok(options)
}

/// Shows the screens until the user leaves.
pub fn show(backend: RealBackend, options: Options) -> Result<End, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Kind::Failed, format!("cannot start: {e}")))?;
    let end = runtime.block_on(tui::run(std::sync::Arc::new(backend), options));
    // what writes was waited for, unless the user would not; previews are not
    runtime.shutdown_background();
    Ok(end?)
}

/// How the process ends after the screens.
pub fn end(end: &End) -> Done {
    match end {
        End::Quit => Ok(()),
        End::Abandoned => std::process::exit(i32::from(Kind::Cancelled.exit_code())),
        End::Signal(n) => std::process::exit(128 + n),
    }
}

//! `respool [CONVERSATION]`: the TUI.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::app::App;
use super::args::Global;
use super::output::{Done, Failure};
use crate::config::project::{NAME, Project};
use crate::config::{Config, VaultSetting};
use crate::conversation::Found;
use crate::failure::Kind;
use crate::rewind::offer::VaultKind;
use crate::text::shown;
use crate::tui::keymap::Keymap;
use crate::tui::mail::Mail;
use crate::tui::real::RealBackend;
use crate::tui::state::End;
use crate::tui::theme::Theme;
use crate::tui::tracking::User;
use crate::tui::{self, Options, TuiError};

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
    let mut start = Start::default();
    let store = match (found, named) {
        (Ok(found), Some(_)) => Some(found.1),
        (Ok(found), None) => start.unless_tracked(&app, found),
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
    let mut options = options(&app, store)?;
    (options.select, options.notice) = (start.select, start.notice);
    if !app.far() {
        match app.desk.registry.find(&app.cwd) {
            Ok(Some(_)) if options.notice.is_none() && options.store.is_none() => {
                options.notice = Some("this folder is tracked; its conversations appear here".into());
            }
            Ok(Some(_)) => {}
            _ => options.folder = Some(app.cwd.clone()),
        }
    }
    let user = User {
        home: app.who.home.clone(),
        sudo: app.who.sudo,
        vault: match app.config.sandbox.vault {
            VaultSetting::Auto => None,
            VaultSetting::Btrfs => Some(VaultKind::Btrfs),
            VaultSetting::Copy => Some(VaultKind::Copy),
        },
    };
    if let Some(talk) = &app.talk {
        talk.hold(true);
    }
    let access = app.access();
    let mail = access.is_some().then(|| mail(&app));
    let backend = RealBackend::new(app.desk)
        .working_for(user)
        .reaching(access)
        .mailing(mail);
    let shown = show(backend, options);
    if let Some(talk) = &app.talk {
        talk.hold(false);
    }
    end(&shown?)
}

/// What the start screen begins with.
#[derive(Default)]
struct Start {
    /// The selected conversation.
    select: Option<PathBuf>,
    /// What there is to say.
    notice: Option<String>,
}

impl Start {
    /// The store of this folder's conversation if its workspace is tracked; else it is selected on the start screen.
    fn unless_tracked(&mut self, app: &App, found: Found) -> Option<PathBuf> {
        let workspace = found.0.workspace(&found.1).ok().flatten();
        let registry = &app.desk.registry;
        let site = workspace.as_deref().map(|w| registry.find(w));
        // of one that cannot be opened the timeline says why
        if let Some(Ok(Some(_)) | Err(_)) = site {
            return Some(found.1);
        }
        self.notice = registry
            .hidden()
            .map(|_| crate::timeline::desk::HIDDEN.to_owned());
        self.select = Some(found.1);
        None
    }
}

/// Where messages are kept, and what sends them.
fn mail(app: &App) -> Mail {
    let own = app
        .config
        .agents
        .iter()
        .map(|(name, a)| (name.clone(), a.resume.clone()));
    Mail {
        drafts: app.drafts(),
        own: own.collect(),
        under: super::run::under(app),
    }
}

/// The options of the screens, from the config.
pub fn options(app: &App, store: Option<PathBuf>) -> Result<Options, Failure> {
    let mut options = Options::built_in(store)?;
    if !app.far() {
        options.home = Some(app.who.home.clone());
    }
    options.starter = super::run::starter(app);
    options.keymap = Arc::new(keymap(&app.config)?);
    // without colours there is nothing to choose
    if !Options::plain() {
        options.theme = Arc::new(theme(app)?);
    }
    if let Some(file) = &app.config.file {
        options.paths.push(("config", file.path.clone()));
    }
    options
        .paths
        .push(("state", app.desk.registry.state_dir().to_owned()));
    Ok(options)
}

/// The keys: the built-in ones with those of `[keys]`.
fn keymap(config: &Config) -> Result<Keymap, Failure> {
    let changes = config
        .keys
        .iter()
        .map(|(action, keys)| (action.as_str(), keys.list()));
    Keymap::built_in()?
        .with(changes)
        .map_err(|(action, e)| config.refused("keys", &action, &e.to_string()).into())
}

/// The colours: a theme by its name, that of the user or else that of the workspace, with the user's own roles.
fn theme(app: &App) -> Result<Theme, Failure> {
    let config = &app.config;
    let refused = |key: &str, e: TuiError| config.refused("theme", key, &e.to_string());
    let mut theme = match config.theme.get("name") {
        Some(name) => Theme::named(name).map_err(|e| refused("name", e))?,
        None => of_the_workspace(app).map_or_else(|| Theme::named("default"), Ok)?,
    };
    for (role, words) in config.theme.iter().filter(|(key, _)| *key != "name") {
        theme.set(role, words).map_err(|e| refused(role, e))?;
    }
    Ok(theme)
}

/// The theme that the workspace around the current folder names. Nothing about it is an error.
fn of_the_workspace(app: &App) -> Option<Theme> {
    let above = app.cwd.ancestors().take_while(|p| *p != app.who.home);
    let root = above
        .filter_map(|p| File::open(p).ok())
        .find(|root| Project::is_there(root.as_fd()))?;
    let project = Project::read(root.as_fd());
    for warning in &project.warnings {
        app.out.say(format!("respool: {warning}"));
    }
    let named = Theme::named(&project.theme?);
    if let Err(e) = &named {
        app.out.say(format!(
            "respool: {NAME}: theme.name is ignored: {}",
            shown(&e.to_string())
        ));
    }
    named.ok()
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

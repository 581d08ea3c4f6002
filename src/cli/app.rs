//! What every command starts from: the user, the folders, the desk, and the answers to questions.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::args::Global;
use super::current;
use super::output::{Bar, Failure, Output, complain};
use crate::chat::{Access, Drafts, Hand, Resume};
use crate::config::Config;
use crate::conversation::{Found, Library, Summary};
use crate::engine::CheckpointId;
use crate::failure::{Explain as _, Kind};
use crate::paths::{self, Who};
use crate::progress::CancelFlag;
use crate::sandbox::registry::Registry;
use crate::sandbox::settings::Settings;
use crate::sandbox::site::Site;
use crate::service::client::Client;
use crate::service::host::Talk;
use crate::timeline::Timeline;
use crate::timeline::desk::{Desk, Opened};
use crate::timeline::notes::notes;
use crate::timeline::select::{self, Selected};

/// Set by Ctrl-C.
pub static CANCEL: CancelFlag = CancelFlag::new();

/// The ground of every command.
pub struct App {
    /// Where output goes.
    pub out: Output,
    /// The options.
    pub global: Global,
    /// The invoking user.
    pub who: Who,
    /// The current folder.
    pub cwd: PathBuf,
    /// The config.
    pub config: Config,
    /// Conversations and sandboxes.
    pub desk: Desk,
    /// What another machine says meanwhile, where the work is there.
    pub talk: Option<Talk>,
}

/// A conversation and a sandbox, either of which may be all that there is.
pub struct Subject {
    /// The conversation, joined.
    pub opened: Option<Opened>,
    /// The sandbox.
    pub site: Site,
}

impl Subject {
    /// The timeline, if there is a conversation.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.opened.as_ref().map(|o| &o.timeline)
    }
}

/// The variable that names another socket of the service.
const SOCKET: &str = "RESPOOL_SOCKET";

/// For an ordinary user, what this process may not do is asked of the service, where there is one.
pub fn with_service(registry: Registry, env: &paths::Env) -> Result<Registry, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(registry);
    }
    let socket = env.get(SOCKET).filter(|v| !v.is_empty()).map(PathBuf::from);
    let socket = socket.unwrap_or_else(|| crate::service::SOCKET.into());
    let client = Client::connect(&socket, registry.named())?;
    Ok(match client {
        Some(client) => registry.with_line(std::sync::Arc::new(client)),
        None => registry,
    })
}

/// The config. Where this is root on behalf of an ordinary user, only from a file of that user's: what is wrong in a
/// file is told with words of it, and a link may lead to one that is not for that user's eyes.
fn config_of(global: &Global, dir: &Path) -> Result<Config, Failure> {
    use std::os::unix::fs::MetadataExt;
    if let Some(behalf) = global.behalf.filter(|b| b.uid != 0) {
        let meta = std::fs::metadata(dir.join("config.toml"));
        if !meta.is_ok_and(|m| m.is_file() && m.uid() == behalf.uid) {
            return Ok(Config::default());
        }
    }
    Ok(Config::load(global.config.as_deref(), dir)?)
}

impl App {
    /// From the options.
    pub fn new(global: Global) -> Result<Self, Failure> {
        if let Some(host) = global.host.clone() {
            return super::host::app(global, &host);
        }
        let out = Output::new(&global);
        let env = paths::environment();
        let who = Who::invoking(&env);
        let cwd = std::env::current_dir().map_err(|e| {
            Failure::new(Kind::Failed, format!("there is no current folder: {e}"))
                .hint("cd to a folder that exists")
        })?;
        let config = config_of(&global, &who.config_dir(&env))?;
        let named = global.state_dir.is_some();
        let state = match &global.state_dir {
            Some(dir) => {
                paths::settled(dir).map_err(|e| Failure::new(Kind::Usage, format!("--state-dir: {e}")))?
            }
            None => who.state_dir(&env),
        };
        let registry = Registry::new(&state, named).with(Settings::of(&config, &who));
        let mut registry = with_service(registry, &env)?;
        if rustix::process::geteuid().is_root() && global.behalf.is_none() {
            // what the service keeps for users is root's to look after
            let users = crate::service::tenant::all_of(&registry);
            registry = registry.and(users);
        }
        let desk = Desk::new(Library::new(who.roots(&env, &cwd)), registry);
        Ok(Self {
            out,
            global,
            who,
            cwd,
            config,
            desk,
            talk: None,
        })
    }

    /// True if all is on another machine.
    pub fn far(&self) -> bool {
        self.desk.registry.far()
    }

    /// How respool is called so that it finds the same state again.
    pub fn program(&self) -> String {
        let named = self.desk.registry.named();
        let origin;
        let named = match named {
            // what the user named, where the service works for him
            Some(dir) if self.global.behalf.is_some() => {
                origin = crate::service::tenant::origin(dir);
                origin.as_deref()
            }
            named => named,
        };
        let host = super::host::words(&self.global);
        named.map_or_else(
            || format!("respool{host}"),
            |dir| format!("respool{host} --state-dir {}", crate::text::shell_word(dir)),
        )
    }

    /// What is known of the servers of agents; `None` where conversations cannot be moved from here: they are on
    /// another machine, or another process asks for this to be done.
    pub fn access(&self) -> Option<Access> {
        if self.far() || self.global.behalf.is_some() {
            return None;
        }
        let agent = self.config.agents.get("openhands").cloned().unwrap_or_default();
        let key_file = agent.api_key_file.map(|file| match file.strip_prefix("~") {
            Ok(rest) => self.who.home.join(rest),
            Err(_) => file,
        });
        Some(Access::new(&self.who.home, agent.url, key_file))
    }

    /// Where messages are kept until they were sent: in the user's home, also under sudo, since the agent that
    /// gets them is the user's, and so is the shell that reads them for the agent's command.
    pub fn drafts(&self) -> Drafts {
        if !self.who.sudo {
            return Drafts::new(self.desk.registry.state_dir(), Hand::own());
        }
        let hand = Hand {
            uid: self.who.uid,
            gid: self.who.gid,
        };
        Drafts::new(&self.who.own_state_dir(&paths::environment()), hand)
    }

    /// How a conversation is gone on with in the agent's own program, where that is known: under `respool run`, so
    /// that the message has a checkpoint.
    pub fn resume(&self, conversation: &Summary, folder: &Path) -> Option<Resume> {
        let own = self.config.agents.get(conversation.agent);
        let own = own.map_or(&[][..], |a| &a.resume);
        let mut resume = Resume::of(conversation, folder, own)?;
        resume.under = super::run::under(self);
        Some(resume)
    }

    /// Progress on stderr; Ctrl-C cancels.
    pub fn bar(&self) -> Bar {
        Bar::new(&self.out, &CANCEL)
    }

    /// The conversation that a selector names.
    pub fn found(&self, selector: Option<&OsStr>) -> Result<Found, Failure> {
        let library = &self.desk.library;
        Ok(match selector {
            None if self.far() => return Err(super::host::no_conversation(self)),
            None => current::of_folder(&self.desk, &self.cwd)?,
            Some(s) => match s.to_str() {
                Some(text) => library.find(Some(text))?,
                None => library.at(Path::new(s))?,
            },
        })
    }

    /// Reads the conversation of a command: the named one, `-c`, or the newest of this folder.
    pub fn opened(&self, named: Option<&OsString>) -> Result<Opened, Failure> {
        let selector = named.or(self.global.conversation.as_ref());
        let found = self.found(selector.map(OsString::as_os_str))?;
        Ok(self.desk.open(&found, &self.bar())?)
    }

    /// The sandbox that `-s` names.
    pub fn named_site(&self) -> Result<Option<Site>, Failure> {
        let Some(s) = &self.global.sandbox else {
            return Ok(None);
        };
        let text = s.to_string_lossy();
        if text.starts_with("sb-") && !text.contains('/') {
            let site = self.desk.registry.by_id(&text)?;
            return site.map(Some).ok_or_else(|| {
                Failure::new(
                    Kind::NotFound,
                    format!("there is no sandbox {}", crate::text::shown(&text)),
                )
                .hint("respool sandboxes lists them")
            });
        }
        if self.far() {
            super::host::absolute("-s", Path::new(s))?;
        }
        Ok(Some(self.desk.site_at(&self.cwd.join(s))?))
    }

    /// What a command that needs a sandbox works on: with `-c`, or without `-s` where this folder has a
    /// conversation, both; else the sandbox of `-s` or of this folder.
    pub fn subject(&self) -> Result<Subject, Failure> {
        let subject = self.seek()?;
        for warning in subject.site.project().warnings {
            self.out.say(format!("respool: {warning}"));
        }
        Ok(subject)
    }

    fn seek(&self) -> Result<Subject, Failure> {
        if let Some(site) = self.named_site()? {
            let opened = self
                .global
                .conversation
                .as_deref()
                .map(|c| {
                    Ok::<_, Failure>(
                        self.desk
                            .open_in(&self.found(Some(c))?, site.path(), &self.bar())?,
                    )
                })
                .transpose()?;
            return Ok(Subject { opened, site });
        }
        match self.opened(None) {
            Ok(mut opened) => {
                let site = match opened.site.take() {
                    Some(site) => site,
                    None => self.desk.site(&opened.conversation)?,
                };
                Ok(Subject {
                    opened: Some(opened),
                    site,
                })
            }
            Err(e) if self.global.conversation.is_none() && e.kind == Kind::NotFound => {
                let site = self.desk.registry.find(&self.cwd)?.ok_or(e)?;
                Ok(Subject { opened: None, site })
            }
            Err(e) => Err(e),
        }
    }

    /// As [`App::subject`], for a command that is given these states: where `-s` is named and `-c` is not, messages
    /// are those of the newest conversation of the sandbox's workspace.
    pub fn subject_for(&self, states: &[&str]) -> Result<Subject, Failure> {
        let mut subject = self.subject()?;
        if subject.opened.is_some() {
            return Ok(subject);
        }
        let names_message = states.iter().any(|s| select::is_message(s));
        let opened = match current::of_folder(&self.desk, subject.site.path()) {
            Ok(found) => self.desk.open(&found, &self.bar()),
            Err(e) => Err(e),
        };
        match opened {
            // it may be of a folder that holds the workspace, and in a sandbox of its own
            Ok(o) if o.timeline.sandbox.as_ref() == Some(&subject.site.record.id) => {
                subject.opened = Some(o);
            }
            Ok(_) => {}
            Err(e) if names_message && e.kind() != Kind::NotFound => return Err(e.into()),
            Err(e) => tracing::debug!("no conversation of the sandbox: {e}"),
        }
        Ok(subject)
    }

    /// As [`App::subject`], for commands that only read: says what waits for `recover`, and leaves it.
    pub fn look(&self) -> Result<Subject, Failure> {
        Ok(self.seen(self.subject()?))
    }

    /// As [`App::look`], for a command that is given these states; a conversation is read only if one of them
    /// is a message.
    pub fn look_for(&self, states: &[&str]) -> Result<Subject, Failure> {
        let subject = if states.iter().any(|s| select::is_message(s)) {
            self.subject_for(states)?
        } else {
            self.subject()?
        };
        Ok(self.seen(subject))
    }

    fn seen(&self, subject: Subject) -> Subject {
        let notice = match notes(&subject.site) {
            Ok(notes) => notes.interrupted,
            Err(e) => Some(e.to_string()),
        };
        if let Some(notice) = notice {
            self.out.say(format!("respool: {notice}"));
        }
        subject
    }

    /// The state that a selector names.
    pub fn state(subject: &Subject, selector: &str) -> Result<Selected, Failure> {
        let fresh;
        let checkpoints = match &subject.opened {
            Some(o) => &o.checkpoints,
            None => {
                fresh = subject.site.vault.checkpoints()?;
                &fresh
            }
        };
        Ok(select::state(subject.timeline(), checkpoints, selector)?)
    }

    /// A checkpoint by its id.
    pub fn checkpoint_id(text: &str) -> Result<CheckpointId, Failure> {
        if CheckpointId::looks_like(text) {
            return Ok(CheckpointId(text.to_owned()));
        }
        Err(Failure::new(
            Kind::Usage,
            format!("{} is no checkpoint id", crate::text::shown(text)),
        )
        .hint("respool timeline lists them"))
    }

    /// Asks, unless `--yes`. Without a terminal it refuses and says what it would have asked.
    pub fn confirm(&self, question: &str) -> Result<(), Failure> {
        self.ask(question, "[y/N] ", &["y", "Y", "yes"])
    }

    /// As [`App::confirm`], where a quick yes is not enough: the word itself must be typed.
    pub fn confirm_word(&self, question: &str, word: &str) -> Result<(), Failure> {
        self.ask(question, &format!("type {word}: "), &[word])
    }

    fn ask(&self, question: &str, how: &str, yes: &[&str]) -> Result<(), Failure> {
        if self.global.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(
                Failure::new(Kind::Refused, format!("it would ask: {question}")).hint("answer with --yes")
            );
        }
        complain(format_args!("{question} {how}"));
        std::io::stderr()
            .flush()
            .map_err(|e| Failure::new(Kind::Failed, format!("cannot ask: {e}")))?;
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|e| Failure::new(Kind::Failed, format!("no answer: {e}")))?;
        if yes.contains(&line.trim()) {
            Ok(())
        } else {
            Err(Failure::new(Kind::Cancelled, "nothing was changed"))
        }
    }
}

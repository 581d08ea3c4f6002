//! Conversations of another machine: the same questions, asked over a line. What is asked and answered is plain
//! data; the room `service` carries it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Conversation, ConversationError, Found, Library, Listing, Message, Result, Roots, Source, Summary,
};
use crate::failure::{Kind, Report};
use crate::progress::{Progress, Silent};
use crate::text::{self, ExactPath, shown};

/// The agents that sources are known for.
const AGENTS: &[&str] = &["openhands", "claude", "copilot", "gemini", "codex", "opencode"];

/// The name of an agent, as the sources have it; `unknown` for any other.
pub(super) fn agent(name: &str) -> &'static str {
    AGENTS.iter().find(|a| **a == name).copied().unwrap_or("unknown")
}

/// When what is watched of a store changed last: each time in nanoseconds since 1970, as text.
pub type Stamp = Vec<String>;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// [`Library::list`].
    List(Option<String>),
    /// [`Library::find`], with a selector: there is no current folder.
    Find(String),
    /// [`Library::at`].
    At(#[serde(with = "text::exact")] PathBuf),
    /// [`Library::newest_of`].
    NewestOf(#[serde(with = "text::exact")] PathBuf),
    /// [`Source::workspace`].
    Workspace(#[serde(with = "text::exact")] PathBuf),
    /// [`Source::summary`].
    Summary(#[serde(with = "text::exact")] PathBuf),
    /// [`Source::read`].
    Read(#[serde(with = "text::exact")] PathBuf),
    /// [`Source::tail`].
    Tail(#[serde(with = "text::exact")] PathBuf, usize),
    /// [`Source::since`].
    Since(#[serde(with = "text::exact")] PathBuf, u64),
    /// Returns a [`Stamp`] once it is another than this one, or after half a minute. Without one: at once.
    Wait(#[serde(with = "text::exact")] PathBuf, Option<Stamp>),
}

/// Where a conversation is, in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    agent: String,
    #[serde(with = "text::exact")]
    store: PathBuf,
}

/// A list, in an answer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Listed {
    conversations: Vec<Summary>,
    damaged: Vec<Report>,
}

/// The line to the machine that has the conversations.
pub trait Shelf: Send + Sync {
    /// Asks, and waits for the answer. Errors are [`ConversationError::Elsewhere`].
    fn ask(&self, ask: &Ask, progress: &dyn Progress) -> Result<Value>;
}

fn unclear(e: &serde_json::Error) -> ConversationError {
    ConversationError::Elsewhere(Report {
        kind: Kind::Failed,
        message: format!(
            "what the other machine says cannot be understood: {}",
            shown(&e.to_string())
        ),
        path: None,
        hint: Some("it may have another version of respool".into()),
    })
}

fn get<T: DeserializeOwned>(shelf: &dyn Shelf, ask: &Ask, progress: &dyn Progress) -> Result<T> {
    serde_json::from_value(shelf.ask(ask, progress)?).map_err(|e| unclear(&e))
}

pub(super) fn list(shelf: &dyn Shelf, agent: Option<&str>) -> Result<Listing> {
    let listed: Listed = get(shelf, &Ask::List(agent.map(str::to_owned)), &Silent)?;
    Ok(Listing {
        conversations: listed.conversations,
        damaged: listed
            .damaged
            .into_iter()
            .map(|r| ConversationError::Elsewhere(r.harmless()))
            .collect(),
    })
}

pub(super) fn find(shelf: &Arc<dyn Shelf>, selector: Option<&str>) -> Result<Found> {
    let Some(selector) = selector else {
        return Err(ConversationError::NotFound {
            what: "of the current folder on another machine".into(),
        });
    };
    found(shelf, &Ask::Find(selector.to_owned()))
}

pub(super) fn at(shelf: &Arc<dyn Shelf>, path: &Path) -> Result<Found> {
    found(shelf, &Ask::At(path.to_owned()))
}

pub(super) fn newest_of(shelf: &Arc<dyn Shelf>, path: &Path) -> Result<Found> {
    found(shelf, &Ask::NewestOf(path.to_owned()))
}

fn found(shelf: &Arc<dyn Shelf>, ask: &Ask) -> Result<Found> {
    let address: Address = get(&**shelf, ask, &Silent)?;
    let source = FarSource {
        shelf: Arc::clone(shelf),
        agent: agent(&address.agent),
    };
    Ok((Arc::new(source), address.store))
}

/// The stamp of a store once it differs from this one; the same if it did not change in half a minute.
pub fn wait(shelf: &dyn Shelf, store: &Path, stamp: Option<Stamp>, progress: &dyn Progress) -> Result<Stamp> {
    get(shelf, &Ask::Wait(store.to_owned(), stamp), progress)
}

/// When these were changed last.
pub fn stamp(paths: &[PathBuf]) -> Stamp {
    let changed = |p: &PathBuf| {
        let time = std::fs::symlink_metadata(p).ok()?.modified().ok()?;
        Some(time.duration_since(UNIX_EPOCH).ok()?.as_nanos().to_string())
    };
    paths.iter().map(|p| changed(p).unwrap_or_default()).collect()
}

/// Answers all but [`Ask::Wait`], which the caller answers: `None` for it.
pub fn answer(library: &Library, ask: &Ask, progress: &dyn Progress) -> Result<Option<Value>> {
    let address = |(source, store): Found| {
        serde_json::to_value(Address {
            agent: source.agent().to_owned(),
            store,
        })
    };
    let value = match ask {
        Ask::List(agent) => {
            let list = library.list(agent.as_deref());
            serde_json::to_value(Listed {
                conversations: list.conversations,
                damaged: list.damaged.iter().map(|e| Report::of(e)).collect(),
            })
        }
        Ask::Find(selector) => address(library.find(Some(selector))?),
        Ask::At(path) => address(library.at(path)?),
        Ask::NewestOf(path) => address(library.newest_of(path)?),
        Ask::Workspace(store) => {
            let (source, store) = library.at(store)?;
            serde_json::to_value(source.workspace(&store)?.map(ExactPath))
        }
        Ask::Summary(store) => {
            let (source, store) = library.at(store)?;
            serde_json::to_value(source.summary(&store)?)
        }
        Ask::Read(store) => {
            let (source, store) = library.at(store)?;
            serde_json::to_value(source.read(&store, progress)?)
        }
        Ask::Tail(store, rows) => {
            let (source, store) = library.at(store)?;
            serde_json::to_value(source.tail(&store, *rows)?)
        }
        Ask::Since(store, index) => {
            let (source, store) = library.at(store)?;
            serde_json::to_value(source.since(&store, *index)?)
        }
        Ask::Wait(..) => return Ok(None),
    };
    value.map(Some).map_err(|e| unclear(&e))
}

/// Reads the conversations of another machine.
struct FarSource {
    shelf: Arc<dyn Shelf>,
    agent: &'static str,
}

impl FarSource {
    fn get<T: DeserializeOwned>(&self, ask: &Ask, progress: &dyn Progress) -> Result<T> {
        get(&*self.shelf, ask, progress)
    }

    /// What is printed as it is holds nothing that could reach a terminal.
    fn conversation(&self, ask: &Ask, progress: &dyn Progress) -> Result<Conversation> {
        let mut it: Conversation = self.get(ask, progress)?;
        for notice in &mut it.notices {
            *notice = shown(notice);
        }
        it.status = it.status.as_deref().map(shown);
        it.summary.agent = self.agent;
        Ok(it)
    }
}

impl Source for FarSource {
    fn agent(&self) -> &'static str {
        self.agent
    }

    fn find(&self, _roots: &Roots) -> Vec<PathBuf> {
        let listed = list(&*self.shelf, Some(self.agent)).unwrap_or_default();
        listed.conversations.into_iter().map(|c| c.store).collect()
    }

    fn recognises(&self, store: &Path) -> bool {
        at(&self.shelf, store).is_ok()
    }

    fn workspace(&self, store: &Path) -> Result<Option<PathBuf>> {
        let path: Option<ExactPath> = self.get(&Ask::Workspace(store.to_owned()), &Silent)?;
        Ok(path.map(|p| p.0))
    }

    fn summary(&self, store: &Path) -> Result<Summary> {
        self.get(&Ask::Summary(store.to_owned()), &Silent)
    }

    fn read(&self, store: &Path, progress: &dyn Progress) -> Result<Conversation> {
        self.conversation(&Ask::Read(store.to_owned()), progress)
    }

    fn tail(&self, store: &Path, rows: usize) -> Result<Conversation> {
        self.conversation(&Ask::Tail(store.to_owned(), rows), &Silent)
    }

    fn since(&self, store: &Path, index: u64) -> Result<Conversation> {
        let mut it = self.conversation(&Ask::Since(store.to_owned(), index), &Silent)?;
        it.messages.retain(|m: &Message| m.index >= index);
        Ok(it)
    }

    /// It is not followed through this machine's files: see [`wait`].
    fn watched(&self, _store: &Path) -> Vec<PathBuf> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_has_a_known_agent() {
        let roots = Roots {
            home: "/nowhere".into(),
            env: std::collections::BTreeMap::new(),
            cwd: "/".into(),
        };
        for name in Library::new(roots).agents() {
            assert_eq!(agent(name), name);
        }
        assert_eq!(agent("\u{1b}[2J"), "unknown");
    }

    /// A shelf that is here.
    struct Near(Library);

    impl Shelf for Near {
        fn ask(&self, ask: &Ask, progress: &dyn Progress) -> Result<Value> {
            let ask: Ask = serde_json::from_value(serde_json::to_value(ask).expect("written")).expect("read");
            answer(&self.0, &ask, progress)
                .map(Option::unwrap_or_default)
                .map_err(|e| ConversationError::Elsewhere(Report::of(&e)))
        }
    }

    #[test]
    fn what_is_read_elsewhere_is_what_is_read_there() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openhands/v1_sdk_1.58");
        let roots = Roots {
            home: "/nowhere".into(),
            env: [(
                "OPENHANDS_CONVERSATIONS_DIR".to_owned(),
                home.join("conversations").into_os_string(),
            )]
            .into(),
            cwd: "/".into(),
        };
        let here = Library::new(roots.clone());
        let there = Library::elsewhere(Arc::new(Near(Library::new(roots))));
        let ids = |l: &Library| {
            l.list(None)
                .conversations
                .into_iter()
                .map(|c| c.id)
                .collect::<Vec<_>>()
        };
        assert!(!ids(&here).is_empty());
        assert_eq!(ids(&here), ids(&there));
        for id in ids(&here) {
            let (a, b) = (
                here.find(Some(&id)).expect("here"),
                there.find(Some(&id)).expect("there"),
            );
            assert_eq!(a.1, b.1);
            let read = |f: &Found| {
                let mut all = f.0.read(&f.1, &Silent).expect("read");
                all.summary.updated_at = None; // in milliseconds on the line
                all
            };
            assert_eq!(read(&a), read(&b));
            assert_eq!(
                a.0.workspace(&a.1).expect("here"),
                b.0.workspace(&b.1).expect("there")
            );
            let newest = |f: &Found| f.0.since(&f.1, 10).expect("read").messages;
            assert_eq!(newest(&a), newest(&b));
        }
        let none = |l: &Library| l.find(Some("zzz")).map(|f| f.1).expect_err("none").to_string();
        assert_eq!(none(&here), none(&there));
    }
}

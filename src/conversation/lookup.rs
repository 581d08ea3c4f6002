//! All conversations of this machine, and the one that a user means.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::elsewhere::{self, Shelf};
use super::{
    ClaudeCode, Codex, ConversationError, Copilot, Gemini, OpenHandsApp, OpenHandsV0, OpenHandsV1, Opencode,
    OpencodeTree, Result, Roots, Source, Summary,
};
use crate::text;

/// A store, and the source that reads it.
pub type Found = (Arc<dyn Source>, PathBuf);

/// What a list of conversations found.
#[derive(Debug, Default)]
pub struct Listing {
    /// The conversations, the newest first. One that cannot be read has its reason as title.
    pub conversations: Vec<Summary>,
    /// Why some of them cannot be read.
    pub damaged: Vec<ConversationError>,
}

/// Every source, and where to look.
pub struct Library {
    roots: Roots,
    sources: Vec<Arc<dyn Source>>,
    /// All of it is there in place of here.
    shelf: Option<Arc<dyn Shelf>>,
}

impl Library {
    /// All agents that are known, with the places of this user.
    pub fn new(roots: Roots) -> Self {
        let opencode = Arc::new(Opencode::default());
        let sources: Vec<Arc<dyn Source>> = vec![
            Arc::new(OpenHandsV1),
            Arc::new(OpenHandsV0),
            Arc::new(OpenHandsApp),
            Arc::new(ClaudeCode::default()),
            Arc::new(Codex::default()),
            Arc::new(Copilot),
            Arc::new(Gemini),
            Arc::new(OpencodeTree::beside(Arc::clone(&opencode))),
            opencode,
        ];
        Self {
            roots,
            sources,
            shelf: None,
        }
    }

    /// The agents whose conversations can be read.
    pub fn agents(&self) -> Vec<&'static str> {
        let mut agents: Vec<&'static str> = self.sources.iter().map(|s| s.agent()).collect();
        agents.sort_unstable();
        agents.dedup();
        agents
    }

    /// The conversations of another machine.
    pub fn elsewhere(shelf: Arc<dyn Shelf>) -> Self {
        let nowhere = Roots {
            home: "/".into(),
            env: std::collections::BTreeMap::new(),
            cwd: "/".into(),
        };
        Self {
            roots: nowhere,
            sources: Vec::new(),
            shelf: Some(shelf),
        }
    }

    /// The machine that the conversations are on, where it is not this one.
    pub fn shelf(&self) -> Option<&Arc<dyn Shelf>> {
        self.shelf.as_ref()
    }

    /// The stores of all agents, or of one. Cheap: no event is read. Those of this machine alone.
    pub fn stores(&self, agent: Option<&str>) -> Vec<Found> {
        let mut seen = std::collections::HashSet::new();
        self.sources
            .iter()
            .filter(|s| agent.is_none_or(|a| a == s.agent()))
            .flat_map(|s| {
                s.find(&self.roots)
                    .into_iter()
                    .map(|store| (Arc::clone(s), store))
            })
            .filter(|(_, store)| seen.insert(store.clone()))
            .collect()
    }

    /// The folders in which stores appear, whether they exist or not.
    pub fn places(&self) -> Vec<PathBuf> {
        let mut seen = std::collections::HashSet::new();
        self.sources
            .iter()
            .flat_map(|s| s.places(&self.roots))
            .filter(|p| seen.insert(p.clone()))
            .collect()
    }

    /// Files that hold many conversations each, whether they exist or not.
    pub fn shared(&self) -> Vec<PathBuf> {
        self.sources.iter().flat_map(|s| s.shared(&self.roots)).collect()
    }

    /// The conversations of all agents, or of one. A damaged store takes none of the others away.
    /// One that is elsewhere and cannot be asked is a damaged one.
    pub fn list(&self, agent: Option<&str>) -> Listing {
        if let Some(shelf) = &self.shelf {
            return elsewhere::list(&**shelf, agent).unwrap_or_else(|e| Listing {
                conversations: Vec::new(),
                damaged: vec![e],
            });
        }
        let read: Vec<_> = self
            .stores(agent)
            .into_par_iter()
            .map(|(source, store)| (source.summary(&store), source, store))
            .collect();
        let mut listing = Listing::default();
        for (summary, source, store) in read {
            match summary {
                Ok(summary) => listing.conversations.push(summary),
                Err(error) => {
                    listing.conversations.push(damaged_row(&*source, store, &error));
                    listing.damaged.push(error);
                }
            }
        }
        listing
            .conversations
            .sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.id.cmp(&b.id)));
        listing
    }

    /// The conversation that `selector` names: an id or a unique prefix of one (with or without dashes), a
    /// path to its store, or, left out, the newest one whose workspace is the current folder or a parent of
    /// it. A store whose own record cannot be parsed is [`ConversationError::Damaged`].
    pub fn find(&self, selector: Option<&str>) -> Result<Found> {
        if let Some(shelf) = &self.shelf {
            return elsewhere::find(shelf, selector);
        }
        match selector {
            None => self.newest_of(&self.roots.cwd),
            Some(s) if s.contains('/') || matches!(s, "." | "..") => self.at(Path::new(s)),
            Some(s) => match self.by_id(s) {
                Err(ConversationError::NotFound { .. }) if self.roots.cwd.join(s).is_dir() => {
                    self.at(Path::new(s))
                }
                found => found,
            },
        }
    }

    /// The store at a path that the user gave.
    pub fn at(&self, path: &Path) -> Result<Found> {
        if let Some(shelf) = &self.shelf {
            return elsewhere::at(shelf, path);
        }
        let store = self.roots.cwd.join(path);
        let none = || ConversationError::NotFound {
            what: format!("at {}", path.to_string_lossy()),
        };
        let source = self
            .sources
            .iter()
            .find(|s| s.recognises(&store))
            .ok_or_else(none)?;
        let store = source.store_of(&store);
        source.workspace(&store)?;
        Ok((Arc::clone(source), store))
    }

    /// What is told of the conversation in this store, if it can be read.
    pub fn summary_at(&self, store: &Path) -> Option<Summary> {
        let (source, store) = self.at(store).ok()?;
        source.summary(&store).ok()
    }

    fn by_id(&self, wanted: &str) -> Result<Found> {
        let not_found = || ConversationError::NotFound {
            what: wanted.to_owned(),
        };
        let key = plain(wanted);
        if key.is_empty() {
            return Err(not_found());
        }
        let mut fits: Vec<(String, Found)> = self
            .stores(None)
            .into_iter()
            .map(|found| (plain(&found.0.id(&found.1)), found))
            .filter(|(id, _)| id.starts_with(&key))
            .collect();
        if fits.iter().any(|(id, _)| *id == key) {
            fits.retain(|(id, _)| *id == key);
        }
        // one conversation may have several stores (a copy): the newest counts
        fits.sort_by_key(|(_, (source, store))| std::cmp::Reverse(source.changed(store)));
        let ids: std::collections::BTreeSet<&String> = fits.iter().map(|(id, _)| id).collect();
        match ids.len() {
            0 => Err(not_found()),
            1 => fits
                .into_iter()
                .next()
                .map(|(_, found)| found)
                .ok_or_else(not_found),
            count => Err(ConversationError::Ambiguous {
                what: wanted.to_owned(),
                count,
            }),
        }
    }

    /// The conversation of this store, where its workspace is this folder or a parent of it. On this machine alone.
    pub fn of_folder(&self, store: &Path, cwd: &Path) -> Option<Found> {
        let real = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
        let mut stores = self.stores(None).into_iter();
        stores.find(|found| found.1 == store && works_in(found, cwd, &real))
    }

    /// The newest conversation whose workspace is this folder or a parent of it.
    pub fn newest_of(&self, cwd: &Path) -> Result<Found> {
        if let Some(shelf) = &self.shelf {
            return elsewhere::newest_of(shelf, cwd);
        }
        let real = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
        let mut stores = self.stores(None);
        stores.sort_by_cached_key(|(source, store)| std::cmp::Reverse(source.changed(store)));
        stores
            .into_iter()
            .find(|found| works_in(found, cwd, &real))
            .ok_or_else(|| ConversationError::NotFound {
                what: format!("whose workspace is {} or holds it", text::shown_path(cwd)),
            })
    }
}

/// True if the workspace of a conversation is this folder or a parent of it; `real`: the folder without links.
fn works_in((source, store): &Found, cwd: &Path, real: &Path) -> bool {
    let workspace = source.workspace(store).ok().flatten();
    workspace
        .filter(|w| w.is_absolute())
        .is_some_and(|w| cwd.starts_with(&w) || w.canonicalize().is_ok_and(|w| real.starts_with(w)))
}

/// The name of a store, without the ending where it is a file.
pub(super) fn name(store: &Path) -> String {
    let name = match store.extension() {
        Some(e) if e == "jsonl" => store.file_stem(),
        _ => store.file_name(),
    };
    name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// An id without dashes, in lower case.
fn plain(id: &str) -> String {
    id.chars()
        .filter(|&c| c != '-')
        .flat_map(char::to_lowercase)
        .collect()
}

/// The row of a store that cannot be read: it is named, with the reason as its title.
fn damaged_row(source: &dyn Source, store: PathBuf, error: &ConversationError) -> Summary {
    Summary {
        id: source.id(&store),
        agent: source.agent(),
        workspace: None,
        title: Some(format!("damaged: {error}")),
        messages: None,
        updated_at: std::fs::symlink_metadata(&store)
            .and_then(|m| m.modified())
            .ok()
            .map(Into::into),
        live: false,
        store,
    }
}

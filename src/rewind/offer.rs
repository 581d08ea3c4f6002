//! What tracking a folder would do, offered before it is done: the checks, the plan, then the deed. The command
//! line and the screens both come here.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Blocker;
use super::boot::Boot;
use super::copies::{copy_plan, track_copy};
use super::error::{Result, RewindError};
use super::extent::extent;
use super::guard::{Reserved, check_place, stopped_by};
use super::track::{Means, TrackPlan, Tracked, means, track, track_plan};
use crate::engine::pool::Pool;
use crate::engine::{EngineError, image};
use crate::progress::Progress;
use crate::sandbox::manage::{Verb, order};
use crate::sandbox::registry::{Census, PoolEntry};
use crate::sandbox::remote::typed;
use crate::sandbox::user_pool::place;
use crate::text::{shell_word, shown_path};
use crate::timeline::desk::Desk;

/// The size of a new image where none is named, in bytes. It is sparse: it takes what is written to it.
pub const IMAGE_SIZE: u64 = 20 << 30;

/// What keeps the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VaultKind {
    /// Read-only snapshots on Btrfs.
    Btrfs,
    /// Copies; nothing is moved.
    Copy,
}

impl VaultKind {
    /// Its word on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Copy => "copy",
        }
    }
}

/// How a folder is to be tracked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// What keeps the checkpoints.
    pub vault: VaultKind,
    /// The loop image to use; none = the one of the state folder.
    pub image: Option<PathBuf>,
    /// The size of an image that must be made, in bytes.
    pub size: u64,
    /// Reserve all of it on the host's disk.
    pub preallocate: bool,
    /// The pool's folder, named.
    pub pool: Option<PathBuf>,
}

impl Wish {
    /// With nothing named but the vault.
    pub fn of(vault: VaultKind) -> Self {
        Self {
            vault,
            image: None,
            size: IMAGE_SIZE,
            preallocate: false,
            pool: None,
        }
    }
}

/// What tracking would do.
#[derive(Debug, Clone)]
pub struct Offer {
    /// As it was wished.
    pub wish: Wish,
    /// The plan.
    pub plan: TrackPlan,
    /// The image, where the folder's content goes into one.
    pub image: Option<PathBuf>,
    /// The folder of checkpoints that belong to the user alone.
    pub own: Option<PathBuf>,
    /// How it comes back after a restart of the machine.
    pub boot: Boot,
}

impl Offer {
    /// What is said once of checkpoints that are not out of the agent's reach.
    fn warning(&self) -> Option<String> {
        self.own.as_ref().map(|folder| {
            format!(
                "the checkpoints belong to you: your own processes, the agent's too, can remove them ({})",
                shown_path(folder)
            )
        })
    }
}

/// Whether this process may track with this vault; else why not, with the command to run as the hint. The one
/// place where that is decided.
pub fn permitted(desk: &Desk, vault: VaultKind, path: &Path) -> Result<()> {
    if vault == VaultKind::Copy || is_root() || by_service(desk, vault) || means(path)? != Means::Copy {
        return Ok(());
    }
    let word = shell_word(path);
    Err(RewindError::Refused {
        why: "tracking needs root: it mounts a file system".into(),
        path: None,
        hint: Some(format!(
            "run: sudo respool track {word}; or, without root: respool track --vault copy {word}"
        )),
    })
}

/// True where the service tracks for this user.
fn by_service(desk: &Desk, vault: VaultKind) -> bool {
    vault == VaultKind::Btrfs && !is_root() && desk.registry.line().is_some()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The vault that is offered first to this user where none is named.
pub fn preferred(desk: &Desk, path: &Path) -> VaultKind {
    if permitted(desk, VaultKind::Btrfs, path).is_ok() {
        VaultKind::Btrfs
    } else {
        VaultKind::Copy
    }
}

/// The folder itself, with all links above it resolved. A link or a file is refused.
pub fn folder(path: &Path) -> Result<PathBuf> {
    let gone = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => RewindError::NoFolder {
            path: path.to_owned(),
        },
        _ => EngineError::io("look at", path)(source).into(),
    };
    let refused = |why: String, hint: Option<&str>| RewindError::Refused {
        why,
        path: Some(path.to_owned()),
        hint: hint.map(ToOwned::to_owned),
    };
    let meta = std::fs::symlink_metadata(path).map_err(gone)?;
    let resolved = path.canonicalize().map_err(gone)?;
    if meta.is_symlink() {
        let why = format!("{} is a link to {}", shown_path(path), shown_path(&resolved));
        return Err(refused(why, Some("name the folder itself")));
    }
    if !meta.is_dir() {
        return Err(refused(format!("{} is no folder", shown_path(path)), None));
    }
    Ok(resolved)
}

/// Everything that a workspace must not touch.
fn reserved(desk: &Desk, image: Option<&Path>) -> Vec<Reserved> {
    let mut out = Vec::new();
    let mut add = |path: PathBuf, what: String| {
        let path = path.canonicalize().unwrap_or(path);
        out.push(Reserved { path, what });
    };
    for dir in [desk.registry.state_dir(), Path::new(crate::paths::SYSTEM_STATE)] {
        add(dir.to_owned(), "respool's state folder".into());
    }
    for (_, entry) in desk.registry.listed() {
        if let PoolEntry::Folder(folder) = entry {
            add(folder.0, "the folder of its checkpoints".into());
        }
    }
    if let Some(image) = image {
        add(image.to_owned(), "the image of the pool".into());
    }
    if let Ok(exe) = std::env::current_exe() {
        // a build folder may hold the program while it is worked on: only the exact file counts
        add(exe, "the respool program itself".into());
    }
    for (_, store) in desk.library.stores(None) {
        let what = format!("a conversation's store ({})", shown_path(&store));
        add(store, what);
    }
    if let Ok(Census {
        sandboxes, copies, ..
    }) = desk.registry.all()
    {
        let sandboxes = sandboxes.into_iter().map(|(_, l)| l);
        for record in sandboxes
            .chain(copies.into_iter().map(|(_, l)| l))
            .filter_map(|l| l.record.ok())
            .filter(|r| r.tracked)
        {
            let what = format!("the workspace of sandbox {}", record.id);
            add(record.path, what);
        }
    }
    out
}

fn not_tracked_already(desk: &Desk, path: &Path) -> Result<()> {
    // a folder that only lies in a tracked one is refused by the places, with its own words
    let site = desk.registry.find(path)?;
    let Some(site) = site.filter(|s| s.path() == path && s.record.tracked) else {
        return Ok(());
    };
    Err(RewindError::Refused {
        why: format!("{} is tracked already, as {}", shown_path(path), site.record.id),
        path: Some(path.to_owned()),
        hint: Some("respool sandboxes lists what is tracked".into()),
    })
}

/// Refuses a place that must not be tracked. With a home everything that its user has would go back: other projects,
/// settings, other conversations.
fn fit_place(path: &Path, home: &Path, reserved: &[Reserved]) -> Result<()> {
    let home = home.canonicalize().unwrap_or_default();
    let at_home = |what: &str| RewindError::Refused {
        why: format!("{} {what} your home folder{}", shown_path(path), extent(path)),
        path: Some(path.to_owned()),
        hint: Some("track the project's own folder".into()),
    };
    if home == path {
        return Err(at_home("is"));
    }
    check_place(path, reserved).map_err(|e| e.with_extent(path))?;
    if home.starts_with(path) {
        return Err(at_home("contains"));
    }
    Ok(())
}

/// Makes the plan; refuses a place that must not be tracked. `path`: see [`folder`]. `home`: the user's.
/// Nothing is changed. What stands in the way is in the plan.
pub fn offer(desk: &Desk, home: &Path, path: &Path, wish: Wish, progress: &dyn Progress) -> Result<Offer> {
    permitted(desk, wish.vault, path)?;
    let named = wish.image.is_some() || wish.pool.is_some() || wish.preallocate;
    if by_service(desk, wish.vault) && named {
        return Err(RewindError::Refused {
            why: "another image or pool is for root to choose".into(),
            path: None,
            hint: Some(format!("run: sudo respool track {}", shell_word(path))),
        });
    }
    not_tracked_already(desk, path)?;
    if by_service(desk, wish.vault) {
        let answer = order(&desk.registry, verb(path, &wish), true, progress)?;
        let plan: FarPlan = typed(answer["plan"].clone())?;
        return Ok(Offer {
            wish,
            plan: plan.here(path),
            image: None,
            own: None,
            boot: Boot::Nothing,
        });
    }
    if wish.vault == VaultKind::Copy {
        fit_place(path, home, &reserved(desk, None))?;
        let plan = copy_plan(path, &desk.registry.copies(), desk.registry.settings(), progress)?;
        return Ok(Offer {
            wish,
            plan,
            image: None,
            own: (!is_root()).then(|| desk.registry.copies()),
            boot: Boot::Nothing,
        });
    }
    let way = means(path)?;
    let image = wish
        .image
        .clone()
        .unwrap_or_else(|| desk.registry.default_image());
    let image = (way == Means::Copy).then_some(image);
    fit_place(path, home, &reserved(desk, image.as_deref()))?;
    let mut plan = track_plan(path, image.as_deref(), progress)?;
    let own = if is_root() {
        None
    } else {
        let folder = place(path, desk.registry.state_dir(), wish.pool.as_deref())?;
        plan.steps
            .push(format!("keep its checkpoints in {}", shown_path(&folder)));
        Some(folder)
    };
    let boot = Boot::of(&desk.registry, way);
    plan.steps.extend(boot.step());
    Ok(Offer {
        wish,
        plan,
        image,
        own,
        boot,
    })
}

/// The error for what stands in the way of this offer, if something does.
pub fn in_the_way(offer: &Offer) -> Result<()> {
    stopped_by(&offer.plan.path, &offer.plan.blockers).map_or(Ok(()), Err)
}

/// Does it. The user has seen the offer and said yes.
pub fn accept(desk: &Desk, offer: &Offer, progress: &dyn Progress) -> Result<Tracked> {
    if offer.wish.vault == VaultKind::Copy {
        desk.registry.prepare()?;
        let (copies, settings) = (desk.registry.copies(), desk.registry.settings());
        let mut tracked = track_copy(&copies, &offer.plan, settings, progress)?;
        tracked.hints.extend(offer.warning());
        return Ok(tracked);
    }
    if by_service(desk, offer.wish.vault) {
        let path = &offer.plan.path;
        order(&desk.registry, verb(path, &offer.wish), false, progress)?;
        let site = desk.site_at(path)?;
        return Ok(Tracked {
            record: site.record,
            hints: Vec::new(),
        });
    }
    let pool = match &offer.own {
        Some(folder) => desk.registry.open_folder(folder)?,
        None => open_pool(desk, offer)?,
    };
    let mut tracked = track(&pool, &offer.plan, progress)?;
    tracked.hints.extend(offer.boot.set(&desk.registry));
    tracked.hints.extend(offer.warning());
    Ok(tracked)
}

fn verb(path: &Path, wish: &Wish) -> Verb {
    Verb::Track(path.to_owned(), wish.size.to_string())
}

/// A plan of the service's making.
#[derive(Deserialize)]
struct FarPlan {
    means: Means,
    entries: u64,
    bytes: u64,
    steps: Vec<String>,
    blockers: Vec<FarBlocker>,
}

#[derive(Deserialize)]
struct FarBlocker {
    kind: String,
    pid: Option<i32>,
    what: String,
    stops: bool,
}

impl FarPlan {
    fn here(self, path: &Path) -> TrackPlan {
        const KINDS: &[&str] = &["holder", "cwd", "mount", "links", "nested", "rights", "space"];
        let blockers = self.blockers.into_iter().map(|b| Blocker {
            kind: KINDS.iter().find(|k| **k == b.kind).copied().unwrap_or("other"),
            pid: b.pid,
            what: b.what,
            stops: b.stops,
        });
        TrackPlan {
            path: path.to_owned(),
            means: self.means,
            entries: self.entries,
            bytes: self.bytes,
            steps: self.steps,
            blockers: blockers.collect(),
            only_of: None,
        }
    }
}

fn open_pool(desk: &Desk, offer: &Offer) -> Result<Pool> {
    let (registry, wish) = (&desk.registry, &offer.wish);
    let Some(image) = &offer.image else {
        return Ok(registry.open_existing(&offer.plan.path)?);
    };
    if let Some(folder) = &wish.pool {
        return Err(RewindError::Refused {
            why: format!("{} is on another file system than the folder", shown_path(folder)),
            path: None,
            hint: Some("a folder that is not on Btrfs needs a loop image: --image FILE".into()),
        });
    }
    if !image.exists() {
        registry.prepare()?;
        image::create(image, wish.size, wish.preallocate)?;
    }
    Ok(registry.open_image(image)?)
}

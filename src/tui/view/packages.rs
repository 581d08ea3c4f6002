//! The packages that differ between two states, one line each.

use crate::packages::{Manager, Summary};
use crate::text::shown;

/// So many are listed.
const MOST: usize = 200;

/// All of them, harmless lines: what was installed, removed or changed, and what cannot be read.
pub fn all(summary: &Summary) -> Vec<String> {
    let one = |p: &crate::packages::PackageChange| {
        let place = p.place.as_ref().map(|w| format!("  in {w}")).unwrap_or_default();
        let (sign, version) = match (&p.from, &p.to) {
            (Some(a), Some(b)) => ('~', format!("{a} -> {b}")),
            (Some(a), None) => ('-', a.clone()),
            (None, b) => ('+', b.clone().unwrap_or_default()),
        };
        format!("{sign} {} {} {version}{place}", p.manager.word(), p.name)
    };
    let mut lines: Vec<String> = summary.packages.iter().take(MOST).map(one).collect();
    if summary.packages.len() > MOST {
        lines.push(format!("... and {} more packages", summary.packages.len() - MOST));
    }
    let unread = summary.packages_unread.iter().take(MOST);
    lines.extend(unread.map(|u| {
        format!(
            "! {} in {} cannot be read: {}",
            u.manager.map_or("all", Manager::word),
            u.place,
            u.why
        )
    }));
    // they may come from another machine
    lines.iter().map(|l| shown(l)).collect()
}

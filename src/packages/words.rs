//! A summary in one line.

use std::cmp::Ordering;

use super::{PackageChange, Summary, Unread};
use crate::text::{count, shown};

/// Up to so many packages of a kind are named one by one.
const NAMED: usize = 4;

pub(super) fn line(summary: &Summary) -> String {
    let of = |verb: &str| -> Vec<&PackageChange> {
        summary
            .packages
            .iter()
            .filter(|p| self::verb(p) == verb)
            .collect()
    };
    let mut parts: Vec<String> = ["installed", "upgraded", "downgraded", "changed", "removed"]
        .into_iter()
        .filter_map(|verb| group(verb, &of(verb)))
        .collect();
    parts.extend(unread(&summary.packages_unread));
    // it may come from another machine
    shown(&parts.join("; "))
}

fn verb(p: &PackageChange) -> &'static str {
    match (&p.from, &p.to) {
        (None, _) => "installed",
        (_, None) => "removed",
        (Some(a), Some(b)) => match order(a, b) {
            Ordering::Less => "upgraded",
            Ordering::Greater => "downgraded",
            Ordering::Equal => "changed",
        },
    }
}

fn group(verb: &str, all: &[&PackageChange]) -> Option<String> {
    if all.is_empty() {
        return None;
    }
    let named = |p: &&PackageChange| {
        let by = if p.manager.of_distribution() {
            String::new()
        } else {
            format!(" ({})", p.manager.word())
        };
        match (&p.from, &p.to) {
            (Some(a), Some(b)) if all.len() <= NAMED => format!("{} {a} -> {b}{by}", p.name),
            _ => format!("{}{by}", p.name),
        }
    };
    let names: Vec<String> = all.iter().take(NAMED).map(named).collect();
    let names = names.join(", ");
    if all.len() > NAMED {
        let number = count(all.len() as u64, "package");
        return Some(format!("{verb} {number}: {names}, ..."));
    }
    Some(format!("{verb} {names}"))
}

fn unread(all: &[Unread]) -> Option<String> {
    let first = all.first()?;
    let more = match all.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    let (place, why) = (&first.place, &first.why);
    let what = match first.manager {
        Some(manager) => format!("what {} has in", manager.word()),
        None => "the packages of".to_owned(),
    };
    Some(format!("{what} {place} cannot be read: {why}{more}"))
}

/// Which of two versions is the older one: numbers as numbers, the rest as text, `~` before everything (near enough to
/// what each manager does to say "upgraded" or "downgraded").
fn order(a: &str, b: &str) -> Ordering {
    let (a, b) = (epoch(a), epoch(b));
    a.0.cmp(&b.0).then_with(|| {
        let (mut x, mut y) = (pieces(a.1).into_iter(), pieces(b.1).into_iter());
        loop {
            match (x.next(), y.next()) {
                (None, None) => return Ordering::Equal,
                (p, q) => match rank(p).cmp(&rank(q)) {
                    Ordering::Equal => {}
                    other => return other,
                },
            }
        }
    })
}

/// The number before a colon counts first.
fn epoch(version: &str) -> (u64, &str) {
    let found = version
        .split_once(':')
        .and_then(|(e, rest)| Some((e.parse().ok()?, rest)));
    found.unwrap_or((0, version))
}

/// Runs of digits, of letters; other characters one by one.
fn pieces(version: &str) -> Vec<&str> {
    let class = |c: char| match c {
        c if c.is_ascii_digit() => 0,
        c if c.is_alphabetic() => 1,
        _ => 2,
    };
    let mut out = Vec::new();
    let mut start = 0;
    let mut last = None;
    for (i, c) in version.char_indices() {
        if last.is_some_and(|l| l != class(c) || l == 2) {
            out.push(&version[start..i]);
            start = i;
        }
        last = Some(class(c));
    }
    if start < version.len() {
        out.push(&version[start..]);
    }
    out
}

/// A piece to be compared: `~` comes before the end, letters before other characters, numbers last.
fn rank(piece: Option<&str>) -> (u8, usize, &str) {
    match piece {
        Some("~") => (0, 0, ""),
        None => (2, 0, ""),
        Some(p) if p.starts_with(|c: char| c.is_ascii_digit()) => {
            let digits = p.trim_start_matches('0');
            (5, digits.len(), digits)
        }
        // 1.0rc1 comes before 1.0
        Some(p) if p.starts_with(char::is_alphabetic) && is_early(p) => (1, 0, p),
        Some(p) if p.starts_with(char::is_alphabetic) => (3, 0, p),
        Some(p) => (4, 0, p),
    }
}

fn is_early(word: &str) -> bool {
    matches!(word, "a" | "b" | "rc" | "alpha" | "beta" | "dev" | "pre")
}

//! What copies leave out: patterns as in a `.gitignore`, relative to the workspace.

use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// A list of patterns; the last one that fits a path decides. Below a folder that is left out nothing is
/// looked at.
#[derive(Debug, Clone)]
pub struct Patterns {
    lines: Vec<String>,
    matcher: Gitignore,
}

impl Default for Patterns {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            matcher: Gitignore::empty(),
        }
    }
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

/// Why this is no pattern; None if it is one.
pub fn wrong(pattern: &str) -> Option<String> {
    if pattern.trim().is_empty() {
        return Some("a pattern is empty".into());
    }
    if pattern.starts_with('!') {
        return Some(format!("{pattern:?}: include and exclude say it, without a !"));
    }
    if pattern.chars().any(char::is_control) {
        return Some(format!("{pattern:?} has a control character"));
    }
    build(&[line(pattern, false)]).err()
}

/// As a line of a `.gitignore`.
fn line(pattern: &str, taken: bool) -> String {
    match (taken, pattern.strip_prefix('#')) {
        (true, _) => format!("!{pattern}"),
        (false, Some(rest)) => format!("\\#{rest}"),
        (false, None) => pattern.to_owned(),
    }
}

fn build(lines: &[String]) -> Result<Gitignore, String> {
    let mut builder = GitignoreBuilder::new("");
    for line in lines {
        builder.add_line(None, line).map_err(|e| e.to_string())?;
    }
    builder.build().map_err(|e| e.to_string())
}

impl Patterns {
    /// From patterns in their order, each with whether what fits it is taken (true) or left out. Those that
    /// are none, see [`wrong`], have no say.
    pub fn new<'a>(patterns: impl IntoIterator<Item = (&'a str, bool)>) -> Self {
        let good = patterns.into_iter().filter(|(p, _)| wrong(p).is_none());
        let lines: Vec<String> = good.map(|(p, taken)| line(p, taken)).collect();
        if lines.iter().all(|l| l.starts_with('!')) {
            return Self::default();
        }
        Self::of_lines(lines).unwrap_or_default()
    }

    /// From its own [`Patterns::lines`].
    pub fn of_lines(lines: Vec<String>) -> Result<Self, String> {
        let matcher = build(&lines)?;
        Ok(Self { lines, matcher })
    }

    /// What makes the same patterns again.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether this path, of a folder or of anything else, is left out. No folder above it is.
    pub fn leaves_out(&self, path: &Path, folder: bool) -> bool {
        !self.is_empty() && self.matcher.matched(path, folder).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn they_mean_what_git_means() {
        let patterns = Patterns::new([
            ("target/", false),
            ("*.log", false),
            ("/top", false),
            ("a/**/deep", false),
            ("#x", false),
            ("keep.log", true),
        ]);
        for (path, folder, out) in [
            ("target", true, true),
            ("sub/target", true, true),
            ("target", false, false),
            ("x.log", false, true),
            ("sub/x.log", false, true),
            ("sub/keep.log", false, false),
            ("top", false, true),
            ("sub/top", false, false),
            ("a/b/c/deep", true, true),
            ("#x", false, true),
            ("TARGET", true, false),
        ] {
            assert_eq!(patterns.leaves_out(Path::new(path), folder), out, "{path}");
        }
        assert!(patterns.leaves_out(Path::new(OsStr::from_bytes(b"\xff.log")), false));
        let again = Patterns::of_lines(patterns.lines().to_vec()).expect("the same");
        assert!(again == patterns && again.leaves_out(Path::new("sub/x.log"), false));
    }

    #[test]
    fn what_is_no_pattern() {
        for bad in ["", " ", "!a", "a\nb", "[z-a]"] {
            assert!(wrong(bad).is_some(), "{bad:?}");
        }
        assert!(Patterns::new([("[z-a]", false), ("!x", false), ("a", true)]).is_empty());
        assert!(!Patterns::default().leaves_out(Path::new("a"), false));
    }
}

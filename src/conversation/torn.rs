//! A line that a crash has left half written, with the next record glued to it.

use super::jsonl::Line;

/// So many places in a hostile line are tried.
const TRIES: usize = 8;

/// What a line gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<R> {
    /// The record that it holds.
    Whole(R),
    /// The record behind a torn one.
    Torn(R),
    /// Nothing; why.
    Unreadable(String),
    /// It is being written.
    Unfinished,
}

/// Reads a line with `read`; of one that is torn, what stands behind the tear and begins as a record does.
pub(super) fn salvaged<R>(
    line: Line<'_>,
    beginnings: &[&[u8]],
    read: impl Fn(&[u8]) -> Result<R, String>,
) -> Parsed<R> {
    let reason = match read(line.bytes) {
        Ok(record) => return Parsed::Whole(record),
        Err(reason) => reason,
    };
    if !line.whole {
        return Parsed::Unfinished;
    }
    let mut tries = TRIES;
    for i in memchr::memchr_iter(b'{', line.bytes).filter(|&i| i > 0) {
        let rest = &line.bytes[i..];
        if !beginnings.iter().any(|b| rest.starts_with(b)) {
            continue;
        }
        if let Ok(record) = read(rest) {
            return Parsed::Torn(record);
        }
        tries -= 1;
        if tries == 0 {
            break;
        }
    }
    Parsed::Unreadable(reason)
}

/// What is said of a line of which only the second record can be read.
pub(super) fn notice(at: u64) -> String {
    format!("the line that ends at byte {at} begins with a torn record, which is left out")
}

#[cfg(test)]
mod tests {
    use super::super::jsonl::split;
    use super::*;

    #[test]
    fn what_stands_behind_a_tear_is_read() {
        let read = |line: &str| {
            let lines = split(line.as_bytes(), 0);
            salvaged(lines[0], &[b"{\"a\""], |bytes| match bytes {
                b"{\"a\":1}" => Ok(1),
                _ => Err("no".to_owned()),
            })
        };
        assert_eq!(read("{\"a\":1}"), Parsed::Whole(1));
        assert_eq!(read("{\"a\":{\"a\":1}\n"), Parsed::Torn(1));
        assert_eq!(read("{\"a\":{\"a\":1}"), Parsed::Unfinished);
        assert_eq!(read("{\"b\n"), Parsed::Unreadable("no".into()));
        assert_eq!(read("{\"b"), Parsed::Unfinished);
        let hostile = "{\"a\"".repeat(1000) + "{\"a\":1}\n";
        assert_eq!(read(&hostile), Parsed::Unreadable("no".into()));
    }
}

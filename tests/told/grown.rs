//! A file that grows while it is followed.

use std::path::Path;

use respool::conversation::{Message, Source};
use respool::progress::Silent;

/// A store whose one file grows piece by piece (`grow` appends the bytes of a range): whoever follows it by its newest
/// part sees each message once, and the same as who reads the whole.
pub fn followed(source: &dyn Source, store: &Path, whole: &[u8], mut grow: impl FnMut(usize, usize)) {
    let (mut seen, mut events, mut from): (Vec<Message>, u64, usize) = (Vec::new(), 0, 0);
    for cut in (997..whole.len()).step_by(997).chain([whole.len()]) {
        grow(from, cut);
        from = cut;
        let c = source.since(store, events.saturating_sub(8)).expect("since");
        assert!(c.events >= events && c.events <= cut as u64);
        for m in c.messages {
            if !seen.iter().any(|s| s.id == m.id) {
                seen.push(m);
            }
        }
        events = c.events;
    }
    let read = source.read(store, &Silent).expect("read");
    let key = |m: &Message| (m.id.clone(), m.text.clone(), m.kind);
    assert_eq!(
        seen.iter().map(key).collect::<Vec<_>>(),
        read.messages.iter().map(key).collect::<Vec<_>>()
    );
    assert_eq!(events, read.events);
}

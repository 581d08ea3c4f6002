//! Shows the screens on scripted data in a real terminal, for tests and for looking at them.
//! `RESPOOL_HOST` chooses the script: words separated by commas.

#[path = "../tui_fake/mod.rs"]
#[expect(dead_code, reason = "shared with tests that use the rest")]
mod tui_fake;

use std::time::Duration;

use respool::tui::{self, Options};
use tui_fake::{Fake, Script};

fn main() {
    let words = std::env::var("RESPOOL_HOST").unwrap_or_default();
    let has = |word: &str| words.split(',').any(|w| w == word);
    let mut script: Script = if has("long") {
        tui_fake::long(10_000)
    } else {
        tui_fake::script()
    };
    if has("slow") {
        for method in [
            "conversations",
            "timeline",
            "changes",
            "file_diff",
            "plan",
            "rewind",
        ] {
            script.delays.insert(method, Duration::from_millis(1500));
        }
    }
    if has("yours") {
        script.plan = Some(tui_fake::plan(&["README.md"]));
    }
    if has("hostile") {
        hostile(&mut script);
    }
    recent(&mut script);
    let store = (!has("start")).then(tui_fake::store);
    let fake = Fake::new(script);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let options = Options::built_in(store).expect("options");
    let result = runtime.block_on(async {
        if has("panic") {
            let shown = tui::run(fake, options);
            let broken = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                panic!("forced");
            };
            tokio::select! { r = shown => r, () = broken => unreachable!() }
        } else {
            tui::run(fake, options).await
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    match result {
        Ok(end) => println!("ended: {end:?}"),
        Err(error) => println!("failed: {error}"),
    }
}

/// Moves all times so that they end now.
fn recent(script: &mut Script) {
    let by = chrono::Utc::now() - tui_fake::now();
    let rows = script
        .timeline
        .iter_mut()
        .flat_map(|t| &mut t.rows)
        .filter_map(|r| r.time.as_mut());
    let listed = script
        .conversations
        .iter_mut()
        .filter_map(|s| s.updated_at.as_mut());
    let operations = script.operations.iter_mut().map(|o| &mut o.time);
    rows.chain(listed).chain(operations).for_each(|t| *t += by);
}

/// Puts what terminals act on into every text.
fn hostile(script: &mut Script) {
    let evil = "x\x1b]52;c;ZXZpbA==\x07\x1b]0;evil\x07\x1b[2J\x1b[6n\x1bPq\x1b\\\u{9b}31m\u{9d}0;t\u{9c}\u{202e}y\u{200b}z";
    if let Some(t) = &mut script.timeline {
        t.conversation.title = Some(evil.into());
        t.conversation.workspace = Some(evil.into());
        for row in &mut t.rows {
            row.text = format!("{evil}\n{evil} more\r\n\t{evil}");
            if let Some(c) = &mut row.checkpoint {
                c.label = Some(evil.into());
                c.reason = c.reason.as_ref().map(|_| evil.into());
            }
        }
    }
    for summary in &mut script.conversations {
        summary.title = Some(evil.into());
        summary.workspace = Some(evil.into());
    }
    let change = tui_fake::change(evil, respool::engine::ChangeKind::Modified);
    for list in script.changes.values_mut() {
        list.insert(0, change.clone());
    }
    let mut lines = vec![tui_fake::line(respool::diff::Tag::Insert, 0, 1, evil)];
    lines[0].emphasis = std::iter::once(1..9).collect();
    let hunk = respool::diff::Hunk {
        old_start: 0,
        old_len: 0,
        new_start: 1,
        new_len: 1,
        lines,
    };
    let diff = respool::diff::FileDiff::Text {
        hunks: vec![hunk],
        added: 1,
        removed: 0,
        note: Some(evil.into()),
    };
    script.diffs.insert(evil.into(), diff);
    if let Some(plan) = &mut script.plan {
        plan.changes.insert(0, change);
        plan.target_words = evil.into();
        plan.steps.push(evil.into());
        plan.not_covered.push(evil.into());
        plan.blockers
            .push(tui_fake::blocker("holder", Some(7), evil, false));
        plan.yours.push(evil.into());
    }
    for op in &mut script.operations {
        op.message = Some(evil.into());
    }
}

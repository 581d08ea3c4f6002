//! `respool conversations`.

use super::app::App;
use super::output::Done;
use crate::text::{age, first_line, shown, shown_path};

/// Lists what was found on this machine.
pub fn run(app: &App, agent: Option<&str>) -> Done {
    let mut listing = app.desk.library.list(agent);
    if app.far() && listing.conversations.is_empty() && !listing.damaged.is_empty() {
        return Err(listing.damaged.swap_remove(0).into());
    }
    for e in &listing.damaged {
        app.out.say(format!("respool: {e}"));
    }
    app.out.result(&listing.conversations, || {
        if listing.conversations.is_empty() {
            return "no conversation was found; respool looks where OpenHands keeps them\n".into();
        }
        let now = chrono::Utc::now();
        let mut text = String::new();
        for c in &listing.conversations {
            let age = c.updated_at.map_or_else(|| "?".into(), |t| age(t, now));
            let live = if c.live {
                app.out.paint("32", "live")
            } else {
                "    ".into()
            };
            let place = c.workspace.as_deref().map_or_else(|| "-".into(), shown_path);
            let title = c.title.as_deref().map(first_line).unwrap_or_default();
            text += &format!(
                "{age:>4} {live} {:<36} {:<10} {place}\n     {title}\n",
                shown(&c.id),
                c.agent
            );
        }
        text
    })
}

//! `respool log` and `respool recover`.

use super::app::App;
use super::output::{Done, Failure};
use crate::rewind::adopt::recover_adoption;
use crate::rewind::journal::Record;
use crate::rewind::recover::{How, Recovered};
use crate::rewind::tools::Tools;
use crate::rewind::{Operation, OperationState};
use crate::sandbox::registry::Census;
use crate::sandbox::site::Site;
use crate::text::{age, shown};

/// The operations of a sandbox, newest first.
pub fn log(app: &App) -> Done {
    let subject = app.subject()?;
    let tools = Tools::of(&subject.site)?;
    for e in tools.log.damaged()? {
        app.out.say(format!("respool: {e}"));
    }
    let operations: Vec<Operation> = tools.log.records()?.iter().rev().map(Record::operation).collect();
    app.out.result(&operations, || {
        let now = chrono::Utc::now();
        operations.iter().map(|o| line(o, now)).collect()
    })
}

fn line(o: &Operation, now: chrono::DateTime<chrono::Utc>) -> String {
    let state = match o.state {
        OperationState::Done => "done",
        OperationState::Undone => "undone",
        OperationState::Interrupted => "interrupted",
        OperationState::RolledBack => "rolled back",
    };
    let kind = format!("{:?}", o.kind).to_lowercase();
    format!(
        "{:>4}  {}  {kind:<8} {state:<11} {}\n",
        age(o.time, now),
        o.id,
        shown(o.message.as_deref().unwrap_or(""))
    )
}

/// Before a command that writes: finishes or rolls back what a crash left, and says so.
pub fn recover_first(app: &App, site: &Site) -> Result<(), Failure> {
    for r in recover_site(app, site)? {
        app.out.say(format!("respool: {}", said(&r)));
    }
    Ok(())
}

fn said(r: &Recovered) -> String {
    match r.outcome {
        How::Finished => format!("operation {} had been cut short; it is finished now", r.operation),
        How::RolledBack => format!(
            "operation {} had been cut short; everything is as before it",
            r.operation
        ),
    }
}

fn recover_site(app: &App, site: &Site) -> Result<Vec<Recovered>, Failure> {
    Ok(Tools::of(site)?.recover(&app.bar())?.into_iter().collect())
}

/// What interrupted `track` and `untrack` left in any pool. Said on stderr unless it is `recover` itself.
pub fn recover_adoptions(app: &App) -> Result<Vec<Recovered>, Failure> {
    let Census {
        pools,
        sandboxes: all,
        trouble: _,
    } = app.desk.registry.all()?;
    let mut out = Vec::new();
    for (i, listed) in all {
        match listed.record {
            Ok(record) => out.extend(recover_adoption(&pools[i], &record)?),
            Err(why) => app.out.say(format!("respool: {why}")),
        }
    }
    Ok(out)
}

/// As [`recover_adoptions`], said on stderr.
pub fn recover_adoptions_first(app: &App) -> Result<(), Failure> {
    for r in recover_adoptions(app)? {
        app.out.say(format!("respool: {}", said(&r)));
    }
    Ok(())
}

/// Finishes or rolls back everything that a crash left.
pub fn recover(app: &App) -> Done {
    let mut recovered = recover_adoptions(app)?;
    let Census {
        pools: _,
        sandboxes: all,
        trouble,
    } = app.desk.registry.all()?;
    for e in &trouble {
        app.out.say(format!("respool: {e}"));
    }
    for (_, listed) in all {
        let Ok(record) = listed.record else { continue };
        if !record.tracked {
            continue;
        }
        match app.desk.registry.by_id(&record.id) {
            Ok(Some(site)) => recovered.extend(recover_site(app, &site)?),
            Ok(None) => {}
            Err(e) => app.out.say(format!("respool: {e}")),
        }
    }
    app.out.result(&recovered, || {
        if recovered.is_empty() {
            return "nothing was interrupted\n".into();
        }
        recovered.iter().map(|r| said(r) + "\n").collect()
    })
}

//! What a crash left of moving Docker's data.

use super::super::error::Result;
use super::super::recover::{How, Recovered};
use super::{disable, enable, lock, out_of_pool};
use crate::sandbox::registry::Registry;
use crate::sandbox::whole::{Home, Keep, Phase, Record, Stopped};

/// True if a move was cut short, or Docker stands still since a rewind was.
pub fn interrupted(registry: &Registry) -> Result<bool> {
    let state = registry.state_dir();
    let moving = Record::load(state)?.is_some_and(|r| r.phase != Phase::On);
    Ok(moving || Stopped::load(state)?.is_some())
}

/// Finishes or takes back a move of Docker's data. Rewinds of sandboxes are recovered before.
pub fn recover(registry: &Registry) -> Result<Option<Recovered>> {
    let state = registry.state_dir();
    let Some(mut record) = Record::load(state)? else {
        return Ok(None);
    };
    if record.phase == Phase::On {
        return up_again(registry, &record);
    }
    let _lock = lock(state)?;
    let home = Home::open(state, &record);
    let id = record.id.clone();
    let outcome = match record.phase {
        Phase::Copying | Phase::Switching => {
            out_of_pool(state, &mut record, home.ok())?;
            How::RolledBack
        }
        Phase::Starting => {
            let home = home?;
            match record
                .show(&home)
                .map_err(Into::into)
                .and_then(|()| enable::come_up(state, &mut record))
            {
                Ok(_) => How::Finished,
                Err(e) => {
                    tracing::warn!("it is taken back: {e}");
                    out_of_pool(state, &mut record, Some(home))?;
                    How::RolledBack
                }
            }
        }
        Phase::Returning => {
            disable::stay(state, &mut record, &home?)?;
            How::RolledBack
        }
        Phase::GivingBack => {
            let home = home?;
            match disable::give(state, &mut record) {
                Ok(_) => {
                    disable::clean(registry, &mut record, Some(home))?;
                    How::Finished
                }
                Err(e) => {
                    tracing::warn!("it is taken back: {e}");
                    disable::stay(state, &mut record, &home)?;
                    How::RolledBack
                }
            }
        }
        Phase::Cleaning => {
            disable::clean(registry, &mut record, home.ok())?;
            How::Finished
        }
        Phase::On => return Ok(None),
    };
    Ok(Some(Recovered::new(id, outcome)))
}

/// Docker and its containers that nobody brought up again.
fn up_again(registry: &Registry, record: &Record) -> Result<Option<Recovered>> {
    let state = registry.state_dir();
    if Stopped::load(state)?.is_none() {
        return Ok(None);
    }
    let Some(keep) = Keep::find(state, "") else {
        return Ok(None);
    };
    keep.resume(&std::collections::BTreeSet::new())?;
    Ok(Some(Recovered::new(record.id.clone(), How::Finished)))
}

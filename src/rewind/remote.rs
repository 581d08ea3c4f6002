//! What of this room is asked of a sandbox behind the service, and the answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OperationKind;
use super::error::{Result, RewindError};
use super::run::Order;
use super::tools::Tools;
use crate::engine::NewCheckpoint;
use crate::progress::Progress;
use crate::sandbox::site::Site;

/// A question or an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operate {
    /// The entries of the log, oldest first.
    Records,
    /// What of the log cannot be read, one line each.
    Damaged,
    /// Whether somebody changes the sandbox now.
    Busy,
    /// Finishes or takes back what a crash left.
    Recover,
    /// Takes a checkpoint on the user's demand, under the sandbox's lock.
    Checkpoint(NewCheckpoint),
    /// What an undo or a redo does: an [`Order`].
    Reversal(OperationKind, Option<String>),
    /// A rewind, undo or redo.
    Run(Order),
    /// Closes one that was held open for its conversation.
    Settle {
        /// Its id.
        operation: String,
        /// The conversation was moved; else the files go back, too.
        done: bool,
        /// What went wrong with it.
        why: String,
    },
}

impl Operate {
    /// True if it changes files, so that an agent must not order it.
    pub fn goes_back(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Settle { .. })
    }

    /// True if what is in the sandbox's folder may change by it.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Recover | Self::Checkpoint(_)) || self.goes_back()
    }
}

/// Does what is asked, on a sandbox that is here.
pub fn answer(site: &Site, ask: &Operate, progress: &dyn Progress) -> Result<Value> {
    let tools = Tools::of(site)?;
    let value = match ask {
        Operate::Records => serde_json::to_value(tools.records()?),
        Operate::Damaged => serde_json::to_value(tools.damaged()?),
        Operate::Busy => serde_json::to_value(tools.busy()?),
        Operate::Recover => serde_json::to_value(tools.recover(progress)?),
        Operate::Checkpoint(new) => serde_json::to_value(tools.checkpoint(new)?),
        Operate::Reversal(kind, operation) => {
            serde_json::to_value(tools.reversal(*kind, operation.as_deref())?)
        }
        Operate::Run(order) => serde_json::to_value(tools.run(order, progress)?),
        Operate::Settle { operation, done, why } => {
            serde_json::to_value(tools.settle(operation, *done, why)?)
        }
    };
    value.map_err(|e| RewindError::NoOperation(format!("the answer cannot be written: {e}")))
}

//! respool: the messages that you sent to an AI coding agent as a timeline, each next to the checkpoint of
//! the files taken when it was sent; diff any file between two checkpoints, rewind to just before a
//! message, undo the rewind.
//!
//! # The words
//! - **conversation**: one session of an agent, as the agent stores it; read by a *source*.
//! - **message**: one message that the human sent in it. Tool results, injected reminders and the
//!   framework's own follow-ups are no messages.
//! - **branch**: the path from a leaf to the root of the conversation.
//! - **sandbox**: everything on disk that the agent can change and that is covered: its *parts*.
//! - **part**: one tree that is checkpointed as a unit.
//! - **vault**: what keeps the checkpoints of a part.
//! - **pool**: the Btrfs file system behind a btrfs vault; one that exists, or a loop *image*.
//! - **checkpoint**: the snapshots of all parts of a sandbox at one moment.
//! - **timeline**: the messages of a conversation, each with its checkpoint or the reason why it has none.
//! - **turn**: from a message's checkpoint to its turn-end. **between**: from there to the next message.
//! - **plan**, **rewind**, **safety checkpoint**, **holder**, **operation**: see [`rewind`].
//!
//! # The rooms and who may use whom
//! `cli`, `tui` -> `demo` -> `rewind`, `watch` -> `timeline`, `diff`, `chat` -> `engine`, `sandbox`,
//! `conversation`, `packages` -> `text`, `durable`, `process`, `progress`, `config`, `patterns`, `paths`, `failure`. No arrow up. `engine`
//! knows neither conversations nor Docker; `conversation` never writes, `chat` does; ureq and tungstenite are used in `chat` alone,
//! ratatui and crossterm are used in
//! `tui` alone, clap in `cli`, bollard in `sandbox`, ioctls in `engine`. `tests/architecture.rs` checks it.

pub mod chat;
pub mod cli;
pub mod config;
pub mod conversation;
pub mod demo;
pub mod diff;
pub mod durable;
pub mod engine;
pub mod failure;
pub mod packages;
pub mod paths;
pub mod patterns;
pub mod process;
pub mod progress;
pub mod rewind;
pub mod sandbox;
pub mod service;
pub mod text;
pub mod timeline;
pub mod tui;
pub mod watch;

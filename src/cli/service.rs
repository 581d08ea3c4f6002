//! `respool service`.

use std::io;
use std::path::{Path, PathBuf};

use super::app::{App, CANCEL, with_service};
use super::output::{Done, Failure};
use crate::conversation::Library;
use crate::failure::Kind;
use crate::paths;
use crate::progress::Progress;
use crate::sandbox::registry::Registry;
use crate::service::SOCKET;
use crate::service::manage::mount_all;
use crate::service::server::{Socket, serve};
use crate::service::stdio::serve as serve_stdio;
use crate::text::shown_path;

/// Serves one connection on standard input and output, for the user who started this.
pub fn stdio(app: App) -> Done {
    super::signals::cancel_on_signals();
    let library = Library::new(app.who.roots(&paths::environment(), &app.cwd));
    let own = app.desk.registry.clone();
    let state = own.without_line();
    let registry = move |named: Option<&Path>| match named {
        None => Ok(own),
        Some(dir) => with_service(Registry::new(dir, true), &paths::environment())
            .map_err(|e| io::Error::other(e.message)),
    };
    serve_stdio(library, registry, state, &CancelAlone)?;
    Ok(())
}

/// A signal, without anything on the terminal.
struct CancelAlone;

impl Progress for CancelAlone {
    fn step(&self, _what: &'static str, _done: u64, _total: u64) {}
    fn cancelled(&self) -> bool {
        CANCEL.is_set()
    }
}

/// Serves until it is told to end.
pub fn run(app: &App, socket: Option<PathBuf>) -> Done {
    if !rustix::process::geteuid().is_root() {
        return Err(
            Failure::new(Kind::Refused, "the service does what needs root").hint("run: sudo respool service")
        );
    }
    super::signals::cancel_on_signals();
    let path = socket.map_or_else(|| SOCKET.into(), |s| app.cwd.join(s));
    // what may be dumped, started and read is no business of those whom it serves
    if let Err(e) = rustix::thread::set_no_new_privs(true) {
        tracing::warn!("programs that it starts could gain rights: {e}");
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    app.desk.registry.prepare()?;
    let socket = Socket::open(&path)?;
    // nobody is served before what he may write to is there
    let own = app.desk.registry.alone();
    mount_all(&own);
    app.out.say(format!("respool: serving at {}", shown_path(&path)));
    let bar = app.bar();
    serve(&socket, own, &bar)?;
    Ok(())
}

//! `respool service`.

use std::path::PathBuf;

use super::app::App;
use super::output::{Done, Failure};
use crate::failure::Kind;
use crate::service::SOCKET;
use crate::service::manage::mount_all;
use crate::service::server::{Socket, serve};
use crate::text::shown_path;

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
    mount_all(&app.desk.registry);
    app.out.say(format!("respool: serving at {}", shown_path(&path)));
    let bar = app.bar();
    serve(&socket, app.desk.registry.clone(), &bar)?;
    Ok(())
}

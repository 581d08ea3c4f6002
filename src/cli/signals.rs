//! Signals: the first one asks the work to stop at its next step, a second one ends the process (the journal
//! says what to finish).

use super::app::CANCEL;
use crate::failure::Kind;

/// From now on SIGINT, SIGTERM and SIGHUP cancel. Without effect where the handlers cannot be set.
pub fn cancel_on_signals() {
    std::thread::spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return;
        };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ];
            let [Ok(mut int), Ok(mut term), Ok(mut hup)] = kinds.map(signal) else {
                return;
            };
            loop {
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                    _ = hup.recv() => {}
                }
                if CANCEL.is_set() {
                    std::process::exit(i32::from(Kind::Cancelled.exit_code()));
                }
                CANCEL.cancel();
            }
        });
    });
}

//! What root does in a user's store is done with the rights of that user: a store's path and what is in it are not
//! trusted, and what is made there is the user's.

use std::path::Path;

use rustix::fs::{Gid, Uid};

use super::error::{ChatError, Result};

/// In whose name stores are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hand {
    /// The user.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
}

impl Hand {
    /// In the name of whom this process is.
    pub fn own() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Does `work` in the name of this user. Where this process is that user already, or has no choice, it is simply
    /// done.
    pub(super) fn run<T: Send>(self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        if !rustix::process::geteuid().is_root() || self.uid == 0 {
            return work();
        }
        let fail = |e: rustix::io::Errno| {
            ChatError::io("take the rights of the owner of", Path::new("the store"))(e)
        };
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        std::thread::scope(|scope| {
            // the rights of one thread alone: it ends with the work
            let own = scope.spawn(move || {
                rustix::thread::set_thread_groups(&[]).map_err(fail)?;
                rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(fail)?;
                rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(fail)?;
                work()
            });
            own.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

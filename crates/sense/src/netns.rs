// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work inside another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Runs `work` in the network namespace at `path` (`None`: where the caller is), in a thread of its
/// own, so that the caller's namespace never changes. Sockets that `work` opens stay in that
/// namespace wherever they are used later.
///
/// # Errors
/// When the namespace cannot be entered (needs `CAP_SYS_ADMIN`), or what `work` returns.
pub fn in_namespace<T: Send>(
    path: Option<&Path>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(path) = path else { return work() };
    let namespace = File::open(path)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rustix::thread::move_into_link_name_space(
                namespace.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic inside the namespace")))
    })
}

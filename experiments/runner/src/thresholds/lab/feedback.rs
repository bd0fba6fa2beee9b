// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's feedback to a control node: a daemon is in force while the server's monitor says that it is
//! to be. That is the gate, which then keeps its gap, or the server's own, which then sends the gate a
//! remote limit. It is what an operator's script does: `tidegate release` and `tidegate release off`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_lab::{Product, QueueWatch, Result};

/// How often the monitor's words are read.
const PERIOD: Duration = Duration::from_millis(10);

/// Takes what the monitor says to the daemon, until `done`.
///
/// # Errors
/// When it does not do it.
pub(super) fn carry(watch: &QueueWatch, daemon: &Product, done: &AtomicBool) -> Result<()> {
    let mut place = 0;
    while !done.load(Ordering::Relaxed) {
        if let Some((_, ladders)) = watch.changes(&mut place).last() {
            daemon.release(!ladders.iter().any(|throttled| *throttled))?;
        }
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

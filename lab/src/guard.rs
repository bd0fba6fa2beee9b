// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: a small process that removes the lab when its owner is gone, however it went.
//!
//! It waits for the end of its standard input, whose other end only the owner holds. The kernel
//! closes that end on a normal exit, on a panic, on SIGINT and SIGTERM, and on `kill -9` alike, so
//! no signal handler is needed in whatever program uses the lab.

use crate::error::{LabError, Result};
use crate::helper::Helper;
use crate::os;
use crate::registry;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use tidegate_units::Nanos;

/// How long the guard may take to end once told to.
const END_LIMIT: Nanos = Nanos::from_secs(30);

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the guard of a lab.
    pub(crate) fn start(helper: &Helper, id: &str) -> Result<Self> {
        let mut command = Command::new(&helper.program);
        command.args(&helper.args).args(["guard", id]);
        // A group of its own: Ctrl-C on the terminal must not end it together with the owner.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(LabError::io("start the lab's guard"))?;
        Ok(Self { child })
    }

    /// The guard's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let ended = os::wait_until(END_LIMIT, || !matches!(self.child.try_wait(), Ok(None)));
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The guard's side: returns when the lab is gone; gives what resisted.
pub(crate) fn watch(id: &str) -> Vec<String> {
    let mut byte = [0_u8; 64];
    let mut input = std::io::stdin().lock();
    // Nothing is ever written; any byte would only make it wait on.
    while matches!(input.read(&mut byte), Ok(n) if n > 0) {}
    if registry::dir(id).exists() { registry::teardown(id) } else { Vec::new() }
}

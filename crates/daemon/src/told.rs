// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the process is told by signals: see run.rs for what each means.

use std::io;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long the runtime is given to see a signal that has come.
const LOOK: Duration = Duration::from_millis(1);

/// What the process is told by signals. Listened to before anything is attached: the default would
/// end the process and leave hooks in force.
pub(crate) struct Told {
    pub(crate) term: Signal,
    pub(crate) int: Signal,
    pub(crate) hup: Signal,
    /// Another daemon is started next.
    pub(crate) restart: Signal,
    /// A log that has reached the largest size of a file (`LimitFSIZE`): as with a full disk, the
    /// line is lost, and not the daemon.
    _file_size: Signal,
}

/// `SIGXFSZ`, whose default ends the process.
const FILE_SIZE: i32 = 25;

impl Told {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            restart: signal(SignalKind::user_defined2())?,
            _file_size: signal(SignalKind::from_raw(FILE_SIZE))?,
        })
    }

    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            _ = self.restart.recv() => {}
        }
    }

    /// During the start, when the runtime does not run. To be followed: it is not told again.
    pub(crate) fn stop_came(&mut self, runtime: &Runtime) -> bool {
        runtime.block_on(async { tokio::time::timeout(LOOK, self.stop()).await.is_ok() })
    }
}

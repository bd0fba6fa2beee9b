// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agents without sockets: what HAProxy says on one connection, and what it is told. For the fuzz target.

use super::{Agents, Board, TIME_MAX, linger, say};
use std::io;
use std::sync::{Arc, Mutex};
use tidegate_config::Config;
use tidegate_units::Nanos;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Bytes that are under way at once.
const UNDER_WAY: usize = 1 << 16;

/// The agents of a configuration.
pub struct UnboundAgents {
    agents: Agents,
    runtime: Runtime,
}

impl UnboundAgents {
    /// Those of this configuration.
    ///
    /// # Errors
    /// When there can be no runtime.
    pub fn new(config: &Config) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let board: Arc<Mutex<Board>> = Arc::default();
        let agents = Agents { board, wanted: None, thread: None };
        agents.follow(config);
        Ok(Self { agents, runtime })
    }

    /// What tells them their limits.
    #[must_use]
    pub const fn agents(&self) -> &Agents {
        &self.agents
    }

    /// A connection to the agent with this place, which says these bytes and closes: what it is told until
    /// the other side closes, too. `None`: that does not close.
    #[must_use]
    pub fn connection(&self, at: usize, now: Nanos, bytes: &[u8]) -> Option<Vec<u8>> {
        let line = self.agents.board().line(at, now);
        self.runtime.block_on(async {
            let (mut client, mut server) = duplex(bytes.len().max(UNDER_WAY));
            let told = tokio::spawn(async move {
                say(&mut server, line).await?;
                timeout(TIME_MAX, linger(&mut server)).await.unwrap_or(Ok(()))
            });
            // Closed before all was said.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut said = Vec::new();
            let ended = async {
                let _ = client.read_to_end(&mut said).await;
                let _ = told.await;
            };
            timeout(2 * TIME_MAX, ended).await.ok().map(|()| said)
        })
    }
}

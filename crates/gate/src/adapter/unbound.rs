// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gateway without its socket: what one connection says, and what it is answered. For the fuzz target.

use super::{Context, attend};
use crate::Gate;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::GatewayConfig;
use tidegate_units::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Longest connection: no time-out of an adapter is as short.
const TIME_MAX: Duration = Duration::from_secs(5);

/// So often the server is let work before the connection ends.
const TURNS: usize = 16;

/// One gateway of a configuration.
pub struct Unbound {
    runtime: Runtime,
    context: Context,
}

impl Unbound {
    /// One gateway of the configuration of `gate`.
    ///
    /// # Errors
    /// When there can be no runtime.
    pub fn new(
        gate: Arc<Gate>,
        clock: Arc<dyn Clock + Send + Sync>,
        config: &GatewayConfig,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let context = Context {
            gate,
            clock,
            told: Arc::default(),
            reread: watch::channel(()).1,
            closed: Arc::default(),
            config: Arc::new(config.clone()),
        };
        Ok(Self { runtime, context })
    }

    /// A connection that says these bytes and then nothing more: what it is answered until it is closed.
    /// `None`: it is not closed.
    #[must_use]
    pub fn connection(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.runtime.block_on(async {
            let (mut client, server) = duplex(bytes.len().max(1 << 16));
            let served = tokio::spawn(attend(self.context.clone(), Box::new(server)));
            // Closed before all was said.
            let _ = client.write_all(bytes).await;
            // A proxy waits for its answer.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            let _ = client.shutdown().await;
            let mut said = Vec::new();
            let ended = async {
                let _ = client.read_to_end(&mut said).await;
                let _ = served.await;
            };
            tokio::time::timeout(TIME_MAX, ended).await.ok().map(|()| said)
        })
    }
}

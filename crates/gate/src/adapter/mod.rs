// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The adapters: each gateway's listeners, in a thread of their own without privileges.
//!
//! An adapter of another protocol is one more arm in [`serve`]: a future that runs until it is
//! dropped, opens what [`Context::config`] says, asks [`Context::ask`], reports by
//! [`Context::complete`], and tells by [`Context::problem`] what keeps it from serving. What it does
//! not understand it counts ([`Context::misunderstood`]), closes the connection, and does nothing else.

mod caddy;
mod envoy;
mod forward_auth;
mod haproxy;
mod headers;
mod http;
mod listen;
mod nginx;
mod secured;
mod syslog;
mod traefik;
mod unbound;

pub use caddy::caddy_report;
pub use envoy::{envoy_check, envoy_rate_limit, envoy_reports};
pub use forward_auth::client as forwarded_client;
pub use haproxy::Talk as HaproxyTalk;
pub use headers::Joined;
pub use syslog::{haproxy_report, nginx_report};
pub use traefik::{traefik_export, traefik_report};
pub use unbound::Unbound;

use crate::asked::Listener;
use crate::{Answer, Ask, Completion, Gate, Id};
use secured::Refused;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tidegate_config::{Adapter, GatewayConfig};
use tidegate_model::snapshot::TlsCounts;
use tidegate_units::{Clock, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// What keeps each gateway from serving, by its place in the configuration: of which socket, and why.
type Problems = Arc<Mutex<Vec<Vec<(String, String)>>>>;

/// Before anything was tried.
const NOT_YET: &str = "not open yet";

/// What an adapter works with.
#[derive(Clone)]
pub(crate) struct Context {
    gate: Arc<Gate>,
    clock: Arc<dyn Clock + Send + Sync>,
    problems: Problems,
    refused: Refused,
    /// A reload says that files may have changed.
    reread: watch::Receiver<()>,
    /// The place of the gateway in the configuration.
    pub(crate) index: usize,
    pub(crate) config: Arc<GatewayConfig>,
}

impl Context {
    /// Asks the gate, now.
    pub(crate) fn ask(&self, ask: &Ask<'_>) -> Answer {
        self.gate.ask(self.clock.now(), ask)
    }

    /// Reports, now.
    pub(crate) fn complete(&self, id: Id<'_>, completion: &Completion) {
        self.gate.complete(self.clock.now(), id, completion);
    }

    /// A proxy of it can be told what share to ask about, until what this gives is dropped.
    pub(crate) fn listen(&self) -> Option<Listener> {
        self.gate.listen(self.index)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Counts what was not understood.
    pub(crate) fn misunderstood(&self) {
        self.gate.misunderstood();
    }

    /// What keeps one of its sockets from serving; `None`: nothing. What was said of the others stays.
    pub(crate) fn problem(&self, socket: &str, why: Option<String>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problems) = problems.get_mut(self.index) {
            problems.retain(|(of, why)| of != socket && why != NOT_YET);
            problems.extend(why.map(|why| (socket.to_owned(), why)));
        }
    }
}

/// The listeners of all gateways; closed when it is dropped.
pub struct Adapters {
    wanted: Option<mpsc::UnboundedSender<Vec<GatewayConfig>>>,
    problems: Problems,
    refused: Refused,
    thread: Option<JoinHandle<()>>,
}

impl Adapters {
    /// Starts the thread; it serves nothing before [`Self::follow`].
    ///
    /// # Errors
    /// When there can be no thread, or no runtime in it.
    pub fn start(gate: Arc<Gate>, clock: Arc<dyn Clock + Send + Sync>) -> io::Result<Self> {
        let (wanted, configs) = mpsc::unbounded_channel();
        let (problems, refused) = (Problems::default(), Refused::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let told = (Arc::clone(&problems), Arc::clone(&refused));
        let thread = std::thread::Builder::new()
            .name("tidegate-gate".into())
            .spawn(move || runtime.block_on(follow(configs, (gate, clock, told))))?;
        Ok(Self { wanted: Some(wanted), problems, refused, thread: Some(thread) })
    }

    /// Serves these gateways from now on; where they are the same nothing is closed, and their certificates
    /// are read again.
    pub fn follow(&self, gateways: &[GatewayConfig]) {
        if let Some(wanted) = &self.wanted {
            // The thread ends only with this.
            let _ = wanted.send(gateways.to_vec());
        }
    }

    /// What keeps each gateway from serving, in the order of the configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<Option<String>> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.iter().map(|of| of.first().map(|(_, why)| why.clone())).collect()
    }

    /// What TLS has refused at each gateway since it was opened, in the order of the configuration; `None`:
    /// its listener speaks none.
    #[must_use]
    pub fn refused(&self) -> Vec<Option<TlsCounts>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        drop(self.wanted.take());
        // One that panicked serves no more either.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn follow(
    mut configs: mpsc::UnboundedReceiver<Vec<GatewayConfig>>,
    (gate, clock, told): (Arc<Gate>, Arc<dyn Clock + Send + Sync>, (Problems, Refused)),
) {
    let (mut tasks, mut current) = (JoinSet::new(), Vec::new());
    let (problems, refused) = told;
    let (reread, files) = watch::channel(());
    while let Some(gateways) = configs.recv().await {
        if gateways == current {
            reread.send_replace(());
            continue;
        }
        tasks.shutdown().await;
        let mut all = problems.lock().unwrap_or_else(PoisonError::into_inner);
        *all = vec![vec![(String::new(), NOT_YET.to_owned())]; gateways.len()];
        drop(all);
        let counts =
            gateways.iter().map(|gateway| gateway.tls.as_ref().map(|_| TlsCounts::default()));
        *refused.lock().unwrap_or_else(PoisonError::into_inner) = counts.collect();
        for (index, config) in gateways.iter().enumerate() {
            let context = Context {
                gate: Arc::clone(&gate),
                clock: Arc::clone(&clock),
                problems: Arc::clone(&problems),
                refused: Arc::clone(&refused),
                reread: files.clone(),
                index,
                config: Arc::new(config.clone()),
            };
            tasks.spawn(serve(context));
        }
        current = gateways;
    }
}

/// Serves one connection of a gateway to its end.
async fn attend(context: Context, stream: Box<dyn listen::Stream>) {
    match context.config.adapter {
        Adapter::Nginx => nginx::attend(context, stream).await,
        Adapter::Haproxy => haproxy::attend(context, stream).await,
        Adapter::Caddy => caddy::attend(context, stream).await,
        Adapter::Traefik => traefik::attend(context, stream).await,
        Adapter::Envoy => envoy::attend(context, stream).await,
        Adapter::Proxy => {}
    }
}

/// Serves one gateway until it is dropped.
async fn serve(context: Context) {
    match context.config.adapter {
        Adapter::Nginx => nginx::serve(context).await,
        Adapter::Haproxy => haproxy::serve(context).await,
        Adapter::Caddy => caddy::serve(context).await,
        Adapter::Traefik => traefik::serve(context).await,
        Adapter::Envoy => envoy::serve(context).await,
        // It asks in process: crates/proxy.
        Adapter::Proxy => context.problem("", None),
    }
}

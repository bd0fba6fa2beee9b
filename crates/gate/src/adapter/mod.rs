// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The adapters: each gateway's listeners, in a thread of their own without privileges.
//!
//! An adapter of another protocol is one more arm in [`serve`]: a future that runs until it is
//! dropped, opens what [`Context::config`] says, asks [`Context::ask`], reports by
//! [`Context::complete`], and tells by [`Context::problem`] what keeps it from serving. What it does
//! not understand it counts ([`Context::misunderstood`]), closes the connection, and does nothing else.

mod caddy;
mod closed;
mod envoy;
mod forward_auth;
mod haproxy;
mod headers;
mod http;
mod listen;
mod nginx;
mod overlong;
mod secured;
mod syslog;
mod traefik;
mod unbound;
mod unheard;

pub use caddy::caddy_report;
pub use envoy::{envoy_check, envoy_rate_limit, envoy_reports};
pub use forward_auth::client as forwarded_client;
pub use haproxy::Talk as HaproxyTalk;
pub use headers::Joined;
pub use syslog::{haproxy_report, nginx_report};
pub use traefik::{traefik_export, traefik_report};
pub use unbound::Unbound;

use crate::asked::{Listener, PARTS};
use crate::{Answer, Ask, Completion, Gate, Id, Token};
use closed::{Closed, Slot};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tidegate_config::{Adapter, GatewayConfig, StayAway};
use tidegate_model::snapshot::TlsCounts;
use tidegate_units::{Clock, DayClock, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::task;

/// What one gateway tells.
#[derive(Default)]
struct Told {
    name: String,
    /// What keeps it from serving: of which socket, and why.
    problems: Vec<(String, String)>,
    /// What its TLS has refused; `None`: its listener speaks none.
    refused: Option<TlsCounts>,
    /// What its proxy is told without an answer.
    closed: Arc<Closed>,
}

/// What all tell, in the order of the configuration.
type AllTold = Arc<Mutex<Vec<Told>>>;

/// Before anything was tried.
const NOT_YET: &str = "not open yet";

/// What an adapter works with.
#[derive(Clone)]
pub(crate) struct Context {
    gate: Arc<Gate>,
    clock: Arc<dyn Clock + Send + Sync>,
    told: AllTold,
    /// A reload says that files may have changed.
    reread: watch::Receiver<()>,
    /// What its proxy is told without an answer.
    closed: Arc<Closed>,
    /// As it was when the gateway was opened: what a reload may change meanwhile ([`opened`]) is not in it.
    pub(crate) config: Arc<GatewayConfig>,
}

impl Context {
    /// Asks the gate, now.
    pub(crate) fn ask(&self, ask: &Ask<'_>) -> Answer {
        self.gate.ask(self.clock.now(), ask)
    }

    /// Asks the gate, now, for a proxy that looks which slots are closed: it says which one the request is in.
    fn ask_of_slot(&self, slot: Option<Slot>, ask: Ask<'_>) -> Answer {
        let share = slot.and_then(|slot| self.closed.share(slot));
        let answer = self.ask(&Ask { share, ..ask });
        if let Some(slot) = slot {
            self.closed.tell((slot, DayClock.now()), answer.share.unwrap_or(PARTS));
        }
        answer
    }

    /// Reports, now.
    pub(crate) fn complete(&self, id: Id<'_>, completion: &Completion) {
        self.gate.complete(self.clock.now(), id, completion);
    }

    /// The proxy has not read the answer that let this request pass.
    pub(crate) fn unheard(&self, token: Token) {
        self.gate.unheard(token);
    }

    /// A proxy of it can be told what share to ask about, until what this gives is dropped.
    pub(crate) fn listen(&self) -> Option<Listener> {
        self.gate.listen(&self.config.name)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether nothing that comes by this gateway is refused now.
    pub(crate) fn refuses_nothing(&self) -> bool {
        self.gate.refuses_nothing(self.clock.now(), &self.config.name)
    }

    /// Counts what was not understood.
    pub(crate) fn misunderstood(&self) {
        self.gate.misunderstood();
    }

    /// What keeps one of its sockets from serving; `None`: nothing. What was said of the others stays.
    pub(crate) fn problem(&self, socket: &str, why: Option<String>) {
        self.tell(|told| {
            told.problems.retain(|(of, why)| of != socket && why != NOT_YET);
            told.problems.extend(why.map(|why| (socket.to_owned(), why)));
        });
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = all.iter_mut().find(|told| told.name == self.config.name) {
            what(told);
        }
    }
}

/// The listeners of all gateways; closed when it is dropped.
pub struct Adapters {
    wanted: Option<mpsc::UnboundedSender<Vec<GatewayConfig>>>,
    told: AllTold,
    thread: Option<JoinHandle<()>>,
}

impl Adapters {
    /// Starts the thread; it serves nothing before [`Self::follow`].
    ///
    /// # Errors
    /// When there can be no thread, or no runtime in it.
    pub fn start(gate: Arc<Gate>, clock: Arc<dyn Clock + Send + Sync>) -> io::Result<Self> {
        let (wanted, configs) = mpsc::unbounded_channel();
        let told = AllTold::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let of = Arc::clone(&told);
        let thread = std::thread::Builder::new()
            .name("tidegate-gate".into())
            .spawn(move || runtime.block_on(follow(configs, (gate, clock, of))))?;
        Ok(Self { wanted: Some(wanted), told, thread: Some(thread) })
    }

    /// Serves these gateways from now on. One that is opened as before keeps its listeners and connections, whatever
    /// its routes and the other gateways are; its certificate is read again.
    pub fn follow(&self, gateways: &[GatewayConfig]) {
        if let Some(wanted) = &self.wanted {
            // The thread ends only with this.
            let _ = wanted.send(gateways.to_vec());
        }
    }

    /// What keeps each gateway from serving, in the order of the configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<Option<String>> {
        let all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|told| told.problems.first().map(|(_, why)| why.clone())).collect()
    }

    /// What TLS has refused at each gateway since it was opened, in the order of the configuration; `None`:
    /// its listener speaks none.
    #[must_use]
    pub fn refused(&self) -> Vec<Option<TlsCounts>> {
        let all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|told| told.refused.clone()).collect()
    }

    /// Why a proxy is not told what to refuse by itself although it could be, in the order of the configuration.
    #[must_use]
    pub fn untold(&self) -> Vec<Option<String>> {
        let all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|told| told.closed.problem()).collect()
    }
}

impl Drop for Adapters {
    fn drop(&mut self) {
        drop(self.wanted.take());
        // One that panicked serves no more either.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What a gateway is opened by. The rest is the gate's, or the own proxy's: for it no listener is closed.
fn opened(gateway: &GatewayConfig) -> GatewayConfig {
    GatewayConfig {
        insecure: false,
        upstream: None,
        clients: None,
        queue: None,
        retry_after: StayAway::default(),
        rate_limit_fields: false,
        routes: Vec::new(),
        ..gateway.clone()
    }
}

async fn follow(
    mut configs: mpsc::UnboundedReceiver<Vec<GatewayConfig>>,
    (gate, clock, told): (Arc<Gate>, Arc<dyn Clock + Send + Sync>, AllTold),
) {
    let mut tasks: BTreeMap<String, (GatewayConfig, task::JoinHandle<()>)> = BTreeMap::new();
    let (reread, files) = watch::channel(());
    while let Some(gateways) = configs.recv().await {
        let wanted: Vec<GatewayConfig> = gateways.iter().map(opened).collect();
        // First what ends: another gateway may take over its sockets.
        let stays = |(config, _): &(GatewayConfig, task::JoinHandle<()>)| wanted.contains(config);
        let ended: Vec<String> =
            tasks.iter().filter(|(_, of)| !stays(of)).map(|(name, _)| name.clone()).collect();
        for (_, task) in ended.iter().filter_map(|name| tasks.remove(name)) {
            task.abort();
            // Aborted, or it has panicked: it serves no more.
            let _ = task.await;
        }
        {
            let mut all = told.lock().unwrap_or_else(PoisonError::into_inner);
            let mut before = std::mem::take(&mut *all);
            all.extend(wanted.iter().map(|config| {
                let known = before.iter_mut().find(|told| told.name == config.name);
                match known.filter(|_| tasks.contains_key(&config.name)) {
                    Some(known) => std::mem::take(known),
                    None => Told {
                        name: config.name.clone(),
                        problems: vec![(String::new(), NOT_YET.to_owned())],
                        refused: config.tls.as_ref().map(|_| TlsCounts::default()),
                        closed: Arc::new(Closed::beside(&config.listen)),
                    },
                }
            }));
        }
        reread.send_replace(());
        let closed: Vec<Arc<Closed>> = {
            let all = told.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().map(|told| Arc::clone(&told.closed)).collect()
        };
        for (config, closed) in wanted.into_iter().zip(closed) {
            let context = Context {
                gate: Arc::clone(&gate),
                clock: Arc::clone(&clock),
                told: Arc::clone(&told),
                reread: files.clone(),
                closed,
                config: Arc::new(config.clone()),
            };
            let name = config.name.clone();
            tasks.entry(name).or_insert_with(|| (config, tokio::spawn(serve(context))));
        }
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

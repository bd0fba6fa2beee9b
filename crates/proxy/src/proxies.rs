// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All proxies of a configuration, in threads of their own without privileges.

use crate::connection::Told;
use crate::front::{Front, SharedClock, Site};
use crate::listener;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_config::{Adapter, Endpoint, GatewayConfig};
use tidegate_gate::Gate;
use tidegate_model::snapshot::ProxyCounts;
use tidegate_units::Nanos;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Threads at least: while one is busy with a handshake, another serves.
const THREADS_MIN: usize = 2;
/// How long a proxy that ends goes on to take connections: a successor opens its socket meanwhile.
const LINGER: Duration = Duration::from_millis(300);
/// How often what cannot be followed is tried again.
const RETRY: Nanos = Nanos::SECOND;
/// Longest time in which proxies end: a little longer than what is under way is given.
const END_MAX: Duration = Duration::from_secs(11);

/// One proxy that is served.
struct Running {
    address: SocketAddr,
    front: Arc<Front>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// What keeps it from being opened.
    closed: Arc<Mutex<Option<String>>>,
    /// What keeps it from following the configuration.
    stale: Option<String>,
}

/// The proxies of a configuration. Dropped, they end: nothing new is taken, what is under way has 10 s.
pub struct Proxies {
    runtime: Option<Runtime>,
    gate: Arc<Gate>,
    clock: SharedClock,
    running: Mutex<Vec<Running>>,
    /// By the place in the configuration: the address of a proxy, or why there is none.
    places: Mutex<Vec<Option<Result<SocketAddr, String>>>>,
    wanted: Mutex<Vec<GatewayConfig>>,
    /// When what cannot be followed is tried again.
    again: Mutex<Nanos>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxies {
    /// Starts the threads; they serve nothing before [`Self::follow`].
    ///
    /// # Errors
    /// When there can be no threads.
    pub fn start(gate: Arc<Gate>, clock: SharedClock) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(THREADS_MIN, Into::into);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.max(THREADS_MIN))
            .thread_name("tidegate-proxy")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
            gate,
            clock,
            running: Mutex::default(),
            places: Mutex::default(),
            wanted: Mutex::default(),
            again: Mutex::default(),
        })
    }

    /// Serves those of these gateways that are proxies from now on. One whose address stays keeps its
    /// connections; its certificate is read again.
    pub fn follow(&self, gateways: &[GatewayConfig]) {
        let mut running = lock(&self.running);
        let mut places = vec![None; gateways.len()];
        for (at, gateway) in gateways.iter().enumerate() {
            if gateway.adapter != Adapter::Proxy {
                continue;
            }
            let Endpoint::Ip(address) = gateway.listen else {
                places[at] = Some(Err("it listens on no address".into()));
                continue;
            };
            let known = running.iter_mut().find(|running| running.address == address);
            places[at] = Some(match known {
                Some(known) => {
                    let site = Site::new(gateway, Some(&known.front.site()), &self.clock);
                    known.stale = site.map(|site| known.front.set(Arc::new(site))).err();
                    Ok(address)
                }
                None => Site::new(gateway, None, &self.clock).and_then(|site| {
                    running.push(self.open(address, site)?);
                    Ok(address)
                }),
            });
        }
        let wanted =
            |running: &Running| places.iter().flatten().any(|place| *place == Ok(running.address));
        running.retain(|running| wanted(running) || running.stop.send(true).is_ok_and(|()| false));
        *lock(&self.places) = places;
        *lock(&self.wanted) = gateways.to_vec();
    }

    /// Tries again what could not be followed: a certificate that is half renewed is whole later. To be
    /// called now and then.
    pub fn mend(&self) {
        let stale = lock(&self.running).iter().any(|running| running.stale.is_some());
        let missing = lock(&self.places).iter().flatten().any(Result::is_err);
        let now = self.clock.now();
        if (stale || missing) && self.is_due(now) {
            let wanted = lock(&self.wanted).clone();
            self.follow(&wanted);
        }
    }

    fn is_due(&self, now: Nanos) -> bool {
        let mut again = lock(&self.again);
        let due = now >= *again;
        if due {
            *again = now + RETRY;
        }
        due
    }

    fn open(&self, address: SocketAddr, site: Site) -> Result<Running, String> {
        let runtime = self.runtime.as_ref().ok_or("it has ended")?;
        let parts = (Arc::clone(&self.gate), Arc::clone(&self.clock));
        let front = Arc::new(Front::new(parts, Arc::new(site)));
        let closed = Arc::new(Mutex::new(Some("not open yet".to_owned())));
        let (stop, stopped) = watch::channel(false);
        let problem = {
            let closed = Arc::clone(&closed);
            move |why| *lock(&closed) = why
        };
        let (told, _) = watch::channel(Told::default());
        let served = listener::serve(Arc::clone(&front), address, told, stopped, problem);
        let task = runtime.spawn(served);
        Ok(Running { address, front, stop, task, closed, stale: None })
    }

    /// What keeps each gateway from serving, in the order of the configuration; of one that is no proxy
    /// nothing does.
    #[must_use]
    pub fn problems(&self) -> Vec<Option<String>> {
        let running = lock(&self.running);
        let of = |address: &SocketAddr| {
            let found = running.iter().find(|running| running.address == *address)?;
            lock(&found.closed).clone().or_else(|| found.stale.clone())
        };
        let places = lock(&self.places);
        let problem = |place: &Option<Result<SocketAddr, String>>| match place {
            None => None,
            Some(Ok(address)) => of(address),
            Some(Err(why)) => Some(why.clone()),
        };
        places.iter().map(problem).collect()
    }

    /// What each gateway has counted, in the order of the configuration; `None`: it is no proxy.
    #[must_use]
    pub fn counts(&self) -> Vec<Option<ProxyCounts>> {
        let running = lock(&self.running);
        let of = |place: &Option<Result<SocketAddr, String>>| {
            let address = place.as_ref()?.as_ref().ok()?;
            let found = running.iter().find(|running| running.address == *address)?;
            Some(found.front.counters.read())
        };
        lock(&self.places).iter().map(of).collect()
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let running: Vec<Running> = lock(&self.running).drain(..).collect();
        let (done, ended) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            if !running.is_empty() {
                tokio::time::sleep(LINGER).await;
            }
            for running in &running {
                // Nobody hears it only where the proxy has ended.
                let _ = running.stop.send(true);
            }
            for running in running {
                let _ = running.task.await;
            }
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(END_MAX);
        runtime.shutdown_background();
    }
}

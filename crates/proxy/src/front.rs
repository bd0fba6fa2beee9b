// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One proxy: what all its connections share, and what a reload changes.

use crate::counters::Counters;
use crate::expected::Expected;
use crate::pool::Pool;
use crate::queue::Queue;
use hyper::header::HeaderValue;
use rustls::ServerConfig;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tidegate_config::{GatewayConfig, ProxyClients, ProxyQueue, Upstream};
use tidegate_gate::{Gate, Unguessable, load_tls};
use tidegate_units::{Clock, Nanos};

/// What is offered to clients, the preferred first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(crate) type SharedClock = Arc<dyn Clock + Send + Sync>;

/// What the configuration says of a proxy, at the moment.
pub(crate) struct Site {
    /// The name of the gateway.
    pub(crate) name: String,
    pub(crate) clients: ProxyClients,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) queue: Option<ProxyQueue>,
    /// Names of the headers that routes ask for, in lower case: each once, since a value that is read twice
    /// is taken for two.
    pub(crate) asked: BTreeSet<String>,
}

impl Site {
    /// From the configuration of a gateway. What stays the same keeps its connections to servers.
    ///
    /// # Errors
    /// When its certificate cannot be used.
    pub(crate) fn new(
        gateway: &GatewayConfig,
        before: Option<&Self>,
        clock: &SharedClock,
    ) -> Result<Self, String> {
        let tls = gateway.tls.as_ref().map(|files| load_tls(files, &ALPN)).transpose();
        let tls = tls.map_err(|error| error.to_string())?.map(|loaded| loaded.server);
        let upstream = gateway.upstream.as_ref().ok_or("it has no upstream")?;
        let pool = match before.filter(|before| before.pool.is_of(upstream)) {
            Some(before) => Arc::clone(&before.pool),
            None => Arc::new(Pool::new(Upstream::clone(upstream), Arc::clone(clock))),
        };
        let headers = gateway.routes.iter().filter_map(|route| route.header.as_ref());
        let cookie = gateway.routes.iter().any(|route| route.cookie.is_some());
        let cookie = cookie.then(|| "cookie".to_owned());
        let headers = headers.map(|header| header.name.to_ascii_lowercase());
        Ok(Self {
            name: gateway.name.clone(),
            clients: gateway.clients.clone().unwrap_or_default(),
            queue: gateway.queue,
            tls,
            pool,
            asked: headers.chain(cookie).collect(),
        })
    }
}

/// What all connections of a proxy share.
pub(crate) struct Front {
    pub(crate) gate: Arc<Gate>,
    clock: SharedClock,
    pub(crate) counters: Counters,
    pub(crate) queue: Queue,
    pub(crate) expected: Expected,
    site: RwLock<Arc<Site>>,
    /// Of requests: clients see them.
    ids: Unguessable,
}

impl Front {
    pub(crate) fn new((gate, clock): (Arc<Gate>, SharedClock), site: Arc<Site>) -> Self {
        let (counters, queue, expected) = Default::default();
        let (site, ids) = (RwLock::new(site), Unguessable::default());
        Self { gate, clock, counters, queue, expected, site, ids }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    pub(crate) fn site(&self) -> Arc<Site> {
        Arc::clone(&self.site.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, site: Arc<Site>) {
        *self.site.write().unwrap_or_else(PoisonError::into_inner) = site;
    }

    /// A name for the next request: 128 bits.
    pub(crate) fn id(&self) -> HeaderValue {
        let text = format!("{:016x}{:016x}", self.ids.next(), self.ids.next());
        // Digits are no fault in a header.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("-"))
    }
}

pub(crate) const fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}

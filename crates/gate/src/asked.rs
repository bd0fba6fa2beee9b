// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The share of the requests that a proxy asks about, while far more come than are admitted.
//!
//! A question costs a proxy more than a refusal of its own. Ten times what a service can take is asked
//! about for nothing nine times in ten, and the proxy becomes the bottleneck. So a proxy that can be
//! told (see adapter/envoy/runtime.rs) asks about a random share, and refuses the rest by itself:
//!
//! ```text
//! share = max(1.5 · what is admitted a second, 300/s) / (what comes a second)
//! ```
//!
//! The half more that is asked about is what the chain chooses from, and what chance needs. 300 questions
//! a second cost little, and tell within a third of a second that a crowd has left. A proxy refuses blindly. So it does only where the gate has no choice either: every request of the gateway
//! goes to one service, at one priority, through no bucket, and no client is exempt. What a proxy refuses is
//! not seen; it is reckoned from those that are asked about, and counts as offered and as refused.
//!
//! The share holds for as long as limits do: without the heartbeat of the control loop, in shadow and
//! under the kill switch all are asked about. The proxy forgets it by itself when nobody renews it.

use crate::service::Service;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_config::{Config, GatewayConfig};
use tidegate_model::PRIORITY_DEFAULT;
use tidegate_units::Nanos;

/// A share is a number of these parts.
pub(crate) const PARTS: u32 = 10_000;
/// So many times what is admitted is asked about.
const SURPLUS: f64 = 1.5;
/// A share below the first one begins it, and one above the second ends it: a question more is cheap.
const BEGINS: f64 = 0.6;
const ENDS: f64 = 0.8;
/// The least share: less would say too little about what comes.
const LEAST: f64 = 0.01;
/// Time in which what comes is averaged, in seconds: a crowd that leaves is refused for little longer.
const AVERAGE_SECONDS: f64 = 0.3;
/// Questions per second, at least: 90 in such a time, so the average errs by a tenth.
const ASKED_MIN: f64 = 300.0;

/// What comes, tick by tick.
#[derive(Debug, Default)]
struct Pace {
    at: Option<Nanos>,
    offered: u64,
    per_second: f64,
}

/// What the proxies of one gateway are told.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Proxies that can be told.
    listeners: AtomicUsize,
    /// The parts that are not asked about.
    withheld: AtomicU32,
    pace: Mutex<Pace>,
}

/// A proxy that can be told; until it is dropped.
pub(crate) struct Listener(Arc<Asked>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Relaxed);
    }
}

impl Asked {
    pub(crate) fn listen(of: &Arc<Self>) -> Listener {
        of.listeners.fetch_add(1, Relaxed);
        Listener(Arc::clone(of))
    }

    /// The parts that are asked about.
    pub(crate) fn parts(&self) -> u32 {
        PARTS - self.withheld.load(Relaxed).min(PARTS - 1)
    }

    pub(crate) fn all(&self) {
        self.withheld.store(0, Relaxed);
    }

    /// How many requests the proxies have refused by themselves for each that is asked about: rounded
    /// by chance, so that it is right on average.
    pub(crate) fn unseen(&self, random: u64) -> u64 {
        let parts = u64::from(self.parts());
        let withheld = u64::from(PARTS) - parts;
        if withheld == 0 {
            return 0;
        }
        withheld / parts + u64::from(random % parts < withheld % parts)
    }

    /// Once a tick: what the service admits and what comes to it.
    pub(crate) fn tick(&self, now: Nanos, service: &Service) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let offered = service.offered();
        let more = offered.saturating_sub(std::mem::replace(&mut pace.offered, offered)) as f64;
        let Some(at) = pace.at.replace(now) else { return };
        let seconds = now.since(at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let weight = 1.0 - (-seconds / AVERAGE_SECONDS).exp();
        pace.per_second += weight * (more / seconds - pace.per_second);
        let listens = self.listeners.load(Relaxed) > 0;
        let admits = service.sheds().filter(|_| listens);
        let before = f64::from(self.parts()) / f64::from(PARTS);
        let wanted = |admits: f64| (SURPLUS * admits).max(ASKED_MIN);
        let share = admits.map_or(1.0, |admits| wanted(admits) / pace.per_second.max(1.0));
        let most = if before < 1.0 { ENDS } else { BEGINS };
        let share = if share < most { share.max(LEAST) } else { 1.0 };
        let parts = (share * f64::from(PARTS)).round() as u32;
        self.withheld.store(PARTS - parts.min(PARTS), Relaxed);
    }
}

/// The service of a gateway all of whose requests are alike; `None`: they are not, or some are exempt.
pub(crate) fn alike(gateway: &GatewayConfig, config: &Config) -> Option<usize> {
    let first = gateway.routes.first()?;
    let service = config.services.iter().position(|service| service.name == first.service)?;
    let classes = &config.services[service].classes;
    let alike = gateway.routes.iter().all(|route| {
        route.service == first.service
            && route.bucket.is_none()
            && route.priority.is_none_or(|priority| priority == PRIORITY_DEFAULT)
    });
    let every = gateway.routes.iter().any(|route| {
        route.host.is_none()
            && route.methods.is_empty()
            && route.cookie.is_none()
            && route.header.is_none()
            && route.path.as_ref().is_some_and(|path| path.to_string() == "/")
    });
    let one_priority = classes.iter().all(|class| class.priority == PRIORITY_DEFAULT);
    let nobody_exempt = config.never_shed.sources.is_empty();
    (alike && every && one_priority && nobody_exempt).then_some(service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_proxy_refuses_is_reckoned_from_what_it_asks() {
        let asked = Asked::default();
        assert_eq!((asked.parts(), asked.unseen(7)), (PARTS, 0));
        asked.withheld.store(PARTS * 9 / 10, Relaxed);
        assert_eq!((asked.parts(), asked.unseen(7)), (1_000, 9));
        asked.withheld.store(PARTS / 3, Relaxed);
        let all: u64 = (0..100_000_u64).map(|n| asked.unseen(n.wrapping_mul(0x9e37_79b9))).sum();
        assert!(
            (49_000..51_000).contains(&all),
            "one in three is half as many as the others: {all}"
        );
        asked.withheld.store(u32::MAX, Relaxed);
        assert_eq!(asked.parts(), 1, "never none");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator should know of the listeners of gateways, for as long as it is so.

use crate::plane::Plane;
use crate::warnings::Warnings;
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_config::{Config, Endpoint, GatewayConfig, SystemFault};
use tidegate_model::snapshot::{GatewaysState, ResponseCounts};
use tidegate_units::Nanos;

/// A longer tick is a gap.
const SPAN_MAX: Nanos = Nanos::from_secs(3);
/// From so many lost reports on, in percent, and from so late ones, somebody is told.
const LOST_PERCENT: u8 = 10;
const LATE: Nanos = Nanos::from_millis(300);
/// A busy proxy ends so many requests before tidegate runs again.
const QUEUE_MIN: u64 = 128;
/// Sums are kept in the one and shown in the other: no part of a tick is lost.
const NANOS_PER_MS: u128 = 1_000_000;

/// What was told already.
#[derive(Debug, Default)]
pub(crate) struct GatewayWatch {
    /// Handshakes that have failed, by gateway.
    failed: BTreeMap<String, u64>,
    /// When it looked last, and the connections and the queue of each proxy, summed over time in
    /// nanoseconds, by gateway.
    looked: Option<Nanos>,
    sums: BTreeMap<String, (u128, u128)>,
    /// How many datagrams wait at a Unix socket, where they are few. It is read once, at the first tick: a
    /// socket keeps what held when it was made, and most are made then.
    short: Option<Option<u64>>,
    /// Whether each service was limited at the gate in the last tick, by name.
    at_gate: BTreeMap<String, bool>,
}

impl GatewayWatch {
    /// Once a tick: services that are limited at another place than before. What was learned there is in
    /// other units. Also tells of those whose gateways are closed.
    pub(crate) fn moved(
        &mut self,
        now: Nanos,
        (config, plane): (&Config, &dyn Plane),
        warnings: &mut Warnings,
    ) -> Vec<usize> {
        let mut moved = Vec::new();
        let mut places = BTreeMap::new();
        for (at, service) in config.services.iter().enumerate() {
            let at_gate = plane.at_gate(at);
            if self.at_gate.get(&service.name).is_some_and(|before| *before != at_gate) {
                moved.push(at);
            }
            if !at_gate && config.is_routed(&service.name) && !config.interfaces.is_empty() {
                let text = "no gateway of it is open: its connections are limited by the kernel, as without one";
                warnings.raise(now, &format!("{}: gateways", service.name), text);
            }
            places.insert(service.name.clone(), at_gate);
        }
        self.at_gate = places;
        moved
    }

    /// Once a tick: gateways that are not served, whose proxies pass everything; whose certificate is not
    /// taken; and listeners that anybody may use.
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        (config, state): (&Config, GatewaysState),
        warnings: &mut Warnings,
    ) {
        self.sum_up(now, &state);
        let mut failed = BTreeMap::new();
        for gateway in &state.gateways {
            let subject = format!("gateway {}", gateway.name);
            if gateway.problem.is_empty() {
                warnings.clear(&subject);
            } else {
                warnings.raise(now, &subject, gateway.problem.clone());
            }
            if !gateway.untold.is_empty() {
                let text = format!("the proxy asks about every request: {}", gateway.untold);
                warnings.raise(now, &format!("{subject}: share"), text);
            }
            let Some(tls) = &gateway.tls else { continue };
            if tls.handshakes_failed > self.failed.get(&gateway.name).copied().unwrap_or_default() {
                let text = format!(
                    "connections are closed in their TLS handshake, {} so far; the last: {}",
                    tls.handshakes_failed, tls.last
                );
                warnings.raise(now, &format!("{subject}: tls"), text);
            }
            failed.insert(gateway.name.clone(), tls.handshakes_failed);
        }
        self.failed = failed;
        for responses in &state.responses {
            if let Some(text) = reported_badly(responses) {
                warnings.raise(now, &format!("{}: reports", responses.service), text);
            }
        }
        let short = *self.short.get_or_insert_with(|| queue(Path::new("/proc")));
        for (subject, fault) in open(config).into_iter().chain(of_short(config, short)) {
            warnings.raise(now, &subject, fault.to_string());
        }
    }

    /// What each proxy holds, times the time since the last look. After a gap nobody knows what was so.
    fn sum_up(&mut self, now: Nanos, state: &GatewaysState) {
        let span = self.looked.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        let ns = if span <= SPAN_MAX { u128::from(span.0) } else { 0 };
        self.sums.retain(|name, _| state.gateways.iter().any(|gateway| gateway.name == *name));
        for gateway in &state.gateways {
            let Some(proxy) = &gateway.proxy else { continue };
            let (connections, waiting) = self.sums.entry(gateway.name.clone()).or_default();
            *connections += u128::from(proxy.connections) * ns;
            *waiting += u128::from(proxy.waiting) * ns;
        }
    }

    /// The state with these sums.
    pub(crate) fn summed(&self, mut state: Option<GatewaysState>) -> Option<GatewaysState> {
        for gateway in state.iter_mut().flat_map(|state| &mut state.gateways) {
            if let (Some(proxy), Some(sums)) = (&mut gateway.proxy, self.sums.get(&gateway.name)) {
                let ms = |sum: u128| u64::try_from(sum / NANOS_PER_MS).unwrap_or(u64::MAX);
                (proxy.connections_ms, proxy.waiting_ms) = (ms(sums.0), ms(sums.1));
            }
        }
        state
    }
}

/// Reports on which limits can rely less than they might: many never come, or all are late.
fn reported_badly(responses: &ResponseCounts) -> Option<String> {
    let (lost, late) = (responses.lost_percent, responses.late);
    if lost >= LOST_PERCENT {
        return Some(format!(
            "{lost} % of the requests of the last minute were not reported: limits are less exact. Is the queue of \
             `completions` too short (net.unix.max_dgram_qlen), or does the proxy not log all? Clients that are slow to \
             receive are reported later"
        ));
    }
    (late >= LATE).then(|| {
        format!(
            "reports come {late} after the end of the response, on average: limits follow as late. A proxy that collects \
             them is to send them within 100 ms (Envoy: buffer_flush_interval); one without \
             CPU time left is late itself"
        )
    })
}

/// How many datagrams this host lets wait at a Unix socket, where they are few.
fn queue(proc: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join("sys/net/unix/max_dgram_qlen")).ok()?;
    text.trim().parse().ok().filter(|datagrams| *datagrams < QUEUE_MIN)
}

/// Gateways that take reports by such a queue, each with a subject.
pub(crate) fn short_queues(config: &Config, proc: &Path) -> Vec<(String, SystemFault)> {
    of_short(config, queue(proc))
}

fn of_short(config: &Config, short: Option<u64>) -> Vec<(String, SystemFault)> {
    let Some(datagrams) = short else { return Vec::new() };
    let unix = |of: &&GatewayConfig| matches!(of.completions, Some(Endpoint::Unix(_)));
    let fault = |gateway: &GatewayConfig| {
        let gateway = gateway.name.clone();
        (format!("gateway {gateway}: completions"), SystemFault::ShortQueue { gateway, datagrams })
    };
    config.gateways.iter().filter(unix).map(fault).collect()
}

/// Listeners that other hosts reach without TLS, each with a subject.
pub(crate) fn open(config: &Config) -> Vec<(String, SystemFault)> {
    let mut open = Vec::new();
    for gateway in &config.gateways {
        for (key, endpoint) in gateway.open_endpoints() {
            let (gateway, endpoint) = (gateway.name.clone(), endpoint.clone());
            let subject = format!("gateway {gateway}: {key}");
            open.push((subject, SystemFault::OpenGateway { gateway, key, endpoint }));
        }
    }
    for service in &config.services {
        if let Some(agent) = service.agent_check.as_ref().filter(|agent| !agent.listen.is_local()) {
            let (service, endpoint) = (service.name.clone(), agent.listen.clone());
            let subject = format!("{service}: agent_check");
            open.push((subject, SystemFault::OpenAgent { service, endpoint }));
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};
    use tidegate_model::snapshot::{GatewayState, ProxyCounts, TlsCounts};

    const CONFIG: &str = "interfaces: [{name: lo}]
services:
  shop: {mode: shadow}
  mail: {mode: shadow, listen: ['*:25'], agent_check: {listen: '192.0.2.1:9490', insecure: true}}
  news: {mode: shadow, listen: ['*:81'], agent_check: {listen: '127.0.0.1:9491'}}
gateways:
  own: {adapter: proxy, listen: '0.0.0.0:80', upstream: {servers: ['127.0.0.1:8080']}, routes: [{service: shop}]}
  mesh: {adapter: envoy, listen: '192.0.2.1:9471', insecure: true, routes: [{service: shop}]}
  sock: {adapter: envoy, listen: 'unix:/run/a.sock', routes: [{service: shop}]}
  edge:
    adapter: nginx
    listen: '0.0.0.0:9472'
    tls: {certificate: /c.pem, key: /c.key, ca_file: /ca.pem}
    completions: '192.0.2.1:9472'
    insecure: true
    routes: [{service: shop}]
";

    fn sentences(watch: &mut GatewayWatch, second: u64, failed: u64) -> String {
        let config = parse(CONFIG, &Registry::new(["fresh_first"], controllers::NAMES));
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let tls = TlsCounts { handshakes_failed: failed, last: "192.0.2.7: no certificate".into() };
        let edge = GatewayState { name: "edge".into(), tls: Some(tls), ..GatewayState::default() };
        let state = GatewaysState { gateways: vec![edge], ..GatewaysState::default() };
        let (now, mut warnings) = (Nanos::from_secs(second), Warnings::default());
        watch.look(now, (&config, state), &mut warnings);
        warnings.sentences(now).join("\n")
    }

    #[test]
    fn open_listeners_and_refused_certificates_are_told() {
        let mut watch = GatewayWatch::default();
        let told = sentences(&mut watch, 1, 0);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 3, "{told}");
        assert!(lines[0].starts_with("gateway edge: completions: found 192.0.2.1:9472"), "{told}");
        assert!(lines[1].starts_with("gateway mesh: listen: found 192.0.2.1:9471"), "{told}");
        assert!(lines[2].starts_with("mail: agent_check: found 192.0.2.1:9490"), "{told}");
        let told = sentences(&mut watch, 2, 3);
        let refused = "gateway edge: tls: connections are closed in their TLS handshake, 3 so far; \
                       the last: 192.0.2.7: no certificate";
        assert!(told.contains(refused), "{told}");
        assert!(!sentences(&mut watch, 3, 3).contains("handshake"), "no more came");
        assert!(sentences(&mut watch, 4, 4).contains("4 so far"));
    }

    #[test]
    fn a_short_queue_for_reports_is_told() {
        let text = "services: {shop: {mode: shadow}}
gateways:
  edge: {adapter: nginx, listen: 'unix:/run/e.sock', completions: 'unix:/run/e.log', routes: [{service: shop}]}
  far: {adapter: nginx, listen: '127.0.0.1:81', completions: '127.0.0.1:82', routes: [{service: shop}]}
";
        let config = parse(text, &Registry::new(["fresh_first"], controllers::NAMES));
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let proc = tempfile::tempdir().unwrap();
        let told = || short_queues(&config, proc.path());
        assert!(told().is_empty(), "no such file");
        std::fs::create_dir_all(proc.path().join("sys/net/unix")).unwrap();
        let set =
            |text: &str| std::fs::write(proc.path().join("sys/net/unix/max_dgram_qlen"), text);
        for enough in ["512\n", "128\n"] {
            set(enough).unwrap();
            assert!(told().is_empty(), "{enough}");
        }
        set("127\n").unwrap();
        let found = told();
        let [(subject, fault)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(subject, "gateway edge: completions");
        assert!(fault.to_string().contains("512"), "{fault}");
    }

    #[test]
    fn a_proxy_that_is_told_nothing_is_a_reason_to_warn() {
        let (name, untold) = ("edge".into(), "it does not look".into());
        let edge = GatewayState { name, untold, ..GatewayState::default() };
        let state = GatewaysState { gateways: vec![edge], ..GatewaysState::default() };
        let (now, mut warnings) = (Nanos::SECOND, Warnings::default());
        let config = parse(CONFIG, &Registry::new(["fresh_first"], controllers::NAMES)).unwrap();
        GatewayWatch::default().look(now, (&config, state), &mut warnings);
        let told = warnings.sentences(now).join("\n");
        let wanted = "gateway edge: share: the proxy asks about every request: it does not look";
        assert!(told.contains(wanted), "{told}");
    }

    #[test]
    fn reports_that_are_lost_or_late_are_told() {
        let of = |lost_percent, late| {
            let of = ResponseCounts { lost_percent, late, ..ResponseCounts::default() };
            reported_badly(&of).unwrap_or_default()
        };
        assert_eq!(of(LOST_PERCENT - 1, Nanos::from_millis(299)), "");
        assert!(of(30, Nanos::SECOND).starts_with("30 % of the requests of the last minute"));
        assert!(of(0, Nanos::SECOND).starts_with("reports come 1.00 s after the end"));
    }

    /// Ticks are never of whole milliseconds: what is left of each is not lost.
    #[test]
    fn parts_of_milliseconds_add_up() {
        let proxy = ProxyCounts { connections: 3, waiting: 1, ..ProxyCounts::default() };
        let own = GatewayState { proxy: Some(proxy), ..GatewayState::default() };
        let state = GatewaysState { gateways: vec![own], ..GatewaysState::default() };
        let mut watch = GatewayWatch::default();
        (0..=1000).for_each(|n| watch.sum_up(Nanos(n * 1_900_000), &state));
        let proxy = watch.summed(Some(state)).unwrap().gateways[0].proxy.unwrap();
        assert_eq!((proxy.connections_ms, proxy.waiting_ms), (3 * 1_900, 1_900));
    }

    #[test]
    fn what_a_proxy_holds_is_summed_over_time_but_not_over_a_gap() {
        let state = |name: &str, connections, waiting| {
            let proxy = ProxyCounts { connections, waiting, ..ProxyCounts::default() };
            let (name, proxy) = (name.into(), Some(proxy));
            let gateways = vec![GatewayState { name, proxy, ..GatewayState::default() }];
            GatewaysState { gateways, ..GatewaysState::default() }
        };
        let mut watch = GatewayWatch::default();
        let mut look = |ms, state: &GatewaysState| {
            watch.sum_up(Nanos::from_millis(ms), state);
            let proxy = watch.summed(Some(state.clone())).unwrap().gateways[0].proxy.unwrap();
            (proxy.connections_ms, proxy.waiting_ms)
        };
        assert_eq!(look(1_000, &state("own", 10, 4)), (0, 0));
        assert_eq!(look(1_100, &state("own", 10, 4)), (1_000, 400));
        assert_eq!(look(61_100, &state("own", 90, 9)), (1_000, 400), "nobody looked");
        assert_eq!(look(61_200, &state("own", 0, 1)), (1_000, 500));
        assert_eq!(look(61_300, &state("other", 1, 0)), (100, 0), "another gateway");
    }
}

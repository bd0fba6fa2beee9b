// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The senses of a host that has peers: what back-ends report comes into the signals of the
//! services that they serve, and the signals of this host's services go out.

use crate::bus::{BusWatch, bus_config, warning};
use crate::plane::{Heard, Said, Senses};
use crate::sources;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use tidegate_config::{
    ClusterConfig, Config, PeerConfig, SentLimitConfig, ServiceConfig, SharingRouterConfig,
    VALIDITY_DEFAULT,
};
use tidegate_control::fleet::under_most_pressure;
use tidegate_model::record::What;
use tidegate_model::remote::Scope;
use tidegate_model::sharing::{BusState, DestinationReport, RouterReports};
use tidegate_model::signals::{Backend, LinkUse, Signals};
use tidegate_model::snapshot::PeerState;
use tidegate_model::totals::Totals;
use tidegate_peer::frame::{WITH_LIMITS, WITH_REQUESTS};
use tidegate_peer::node::{Node, NodeConfig, Outgoing, Target};
use tidegate_peer::table::{Grant, UNKNOWN};
use tidegate_peer::tls::{Credentials, Files, TlsError};
use tidegate_peer::{Delegation, DelegationFiles};
use tidegate_sense::{Problem, RouteSource, Sensed, ServiceSource};
use tidegate_units::{Clock, Nanos};

/// What is local to a host and says nothing of a service that runs elsewhere.
const ELSEWHERE: [&str; 6] =
    ["cpu", "cpu pressure", "memory pressure", "io pressure", "accept queue", "interface queue"];

/// Most peers without a session that have a warning of their own.
const PEER_LINES_MAX: usize = 8;

/// How often a configuration is tried again whose certificates could not be used: an unfinished renewal
/// is over by then.
const RETRY_EVERY: Nanos = Nanos::from_secs(30);

/// The host's own senses, and its peers. The thread of the peers starts with the first
/// configuration that has any: after privileges were given up, so that it has none.
pub(crate) struct ClusterSenses {
    inner: Box<dyn Senses>,
    clock: Arc<dyn Clock + Send + Sync>,
    node: Option<Node>,
    services: Vec<Service>,
    reports: bool,
    /// Receivers that are given limits, and those of them that need more than rates of connections.
    limited: Vec<String>,
    fine: Vec<String>,
    problem: Option<String>,
    again: Option<Again>,
    /// Names of the interfaces to the servers.
    links: Vec<String>,
    /// Opened when there is one.
    route: Option<RouteSource>,
    bus: BusWatch,
}

/// What could not be followed, and when it is tried again.
struct Again {
    config: Box<Config>,
    at: Nanos,
}

struct Service {
    name: String,
    /// Peer and name of the service there.
    backends: Vec<(String, String)>,
    completed: u64,
}

impl ClusterSenses {
    /// Without peers until [`Senses::join`].
    pub(crate) fn new(inner: Box<dyn Senses>, clock: Arc<dyn Clock + Send + Sync>) -> Self {
        let (services, limited, fine) = (Vec::new(), Vec::new(), Vec::new());
        let (node, reports, problem, again) = (None, false, None, None);
        let (links, route, bus) = (Vec::new(), None, BusWatch::default());
        Self {
            inner,
            clock,
            node,
            services,
            reports,
            limited,
            fine,
            problem,
            again,
            links,
            route,
            bus,
        }
    }

    fn follow(&mut self, config: &Config) -> Result<(), String> {
        let mut old = std::mem::take(&mut self.services);
        self.services = config.services.iter().map(|s| Service::new(s, &mut old)).collect();
        let wanted = config.cluster.as_ref().map(|cluster| node_config(cluster, config));
        let targets = || config.cluster.iter().flat_map(|cluster| &cluster.report_to);
        let limited = targets().filter(|target| !target.limits.is_empty());
        self.limited = limited.map(|target| target.name.clone()).collect();
        let fine = targets().filter(|target| target.limits.iter().any(SentLimitConfig::is_fine));
        self.fine = fine.map(|target| target.name.clone()).collect();
        let services = |wanted: &NodeConfig| wanted.targets.iter().any(|t| !t.services.is_empty());
        self.reports = wanted.as_ref().is_some_and(services);
        if self.node.is_none() && wanted.is_some() {
            let started = Node::start(Arc::clone(&self.clock));
            self.node = Some(started.map_err(|error: io::Error| error.to_string())?);
        }
        match &self.node {
            Some(node) => node.follow(wanted).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Certificates that are being renewed are no reason to stay without peers for good.
    fn try_again(&mut self, now: Nanos) {
        if let Some(again) = self.again.take_if(|again| now >= again.at) {
            self.attempt(now, again.config);
        }
    }

    fn attempt(&mut self, now: Nanos, config: Box<Config>) {
        self.problem = self.follow(&config).err();
        self.again = self.problem.as_ref().map(|_| Again { config, at: now + RETRY_EVERY });
    }

    /// Signals of this host's services go out.
    fn tell(&mut self, sensed: &[Sensed]) {
        let Some(node) = self.node.as_ref().filter(|_| self.reports) else { return };
        let services = self.services.iter_mut().zip(sensed);
        let outgoing = services.map(|(service, sensed)| {
            let counts = sensed.signals.balance.counts;
            let completed = counts.map(|counts| {
                service.completed = service.completed.saturating_add(counts.value.done());
                service.completed
            });
            let signals = sensed.signals.clone();
            Outgoing { service: service.name.clone(), signals, completed }
        });
        node.tell(outgoing.collect());
    }

    /// What back-ends reported comes in.
    fn hear(&self, now: Nanos, sensed: &mut [Sensed]) {
        let Some(node) = &self.node else { return };
        let services = self.services.iter().zip(sensed);
        for (service, sensed) in services.filter(|(service, _)| !service.backends.is_empty()) {
            let ask = |(peer, there): &(String, String)| node.backend(now, peer, there);
            take(sensed, service.backends.iter().map(ask).collect());
        }
    }
}

impl Service {
    fn new(config: &ServiceConfig, old: &mut Vec<Self>) -> Self {
        // A counter that began anew would look like a server that began anew.
        let before = old.iter().position(|was| was.name == config.name);
        let completed = before.map_or(0, |at| old.swap_remove(at).completed);
        let backends = config.backends.iter().map(|b| (b.peer.clone(), b.service.clone()));
        Self { name: config.name.clone(), backends: backends.collect(), completed }
    }
}

impl Senses for ClusterSenses {
    fn tick(&mut self, now: Nanos, totals: &dyn Totals) -> Vec<Sensed> {
        self.try_again(now);
        let mut sensed = self.inner.tick(now, totals);
        self.tell(&sensed);
        self.hear(now, &mut sensed);
        sensed
    }

    fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        self.inner.reconfigure(services);
    }

    fn rename_interfaces(&mut self, names: Vec<String>) {
        self.inner.rename_interfaces(names);
    }

    fn sample(&mut self, now: Nanos) {
        self.inner.sample(now);
    }

    fn links(&mut self) -> Result<Vec<LinkUse>, String> {
        if self.links.is_empty() {
            return Ok(Vec::new());
        }
        let route = match &mut self.route {
            Some(route) => route,
            none => none.insert(RouteSource::open(None).map_err(|error| error.to_string())?),
        };
        route.links(&self.links, Path::new("/sys")).map_err(|error| error.to_string())
    }

    fn join(&mut self, config: &Config) {
        self.links = config.links().map(|link| link.name.clone()).collect();
        self.attempt(self.clock.now(), Box::new(config.clone()));
    }

    fn remote(&mut self) -> Heard {
        let Some(node) = &self.node else { return Heard::default() };
        let (limits, sessions, ended) = node.take_limits();
        Heard { sessions, limits, ended, notices: node.notices(), hits: node.hits() }
    }

    fn say(&mut self, said: Said) {
        let Some(node) = &self.node else { return };
        if !said.limits.is_empty() {
            node.limit(said.limits);
        }
        if !said.hits.is_empty() {
            node.tell_hits(said.hits);
        }
        if !said.notices.is_empty() {
            node.notify(said.notices);
        }
    }

    fn shared(&mut self) -> Vec<RouterReports> {
        self.node.as_ref().map(Node::shared).unwrap_or_default()
    }

    fn share(&mut self, reports: Vec<DestinationReport>) {
        if let Some(node) = &self.node {
            node.share(reports);
        }
    }

    fn bus(&self, now: Nanos) -> Option<BusState> {
        self.node.as_ref().and_then(|node| node.bus(now))
    }

    fn events(&mut self, now: Nanos) -> Vec<What> {
        let state = Senses::bus(self, now);
        self.bus.look(state.as_ref()).into_iter().collect()
    }

    fn peers(&self, now: Nanos) -> Vec<PeerState> {
        self.node.as_ref().map(|node| node.states(now)).unwrap_or_default()
    }

    fn problems(&self, now: Nanos) -> Vec<(String, String)> {
        let mut problems: Vec<(String, String)> =
            self.problem.iter().map(|text| ("cluster".into(), text.clone())).collect();
        let Some(node) = &self.node else { return problems };
        let own = node.problems().into_iter();
        problems.extend(own.map(|(subject, text)| (subject.to_owned(), text)));
        problems.extend(node.bus(now).as_ref().and_then(warning));
        let states = node.states(now);
        problems.extend(silent_peers(&states));
        let limits = (1..WITH_LIMITS, "it takes no remote limits");
        problems.extend(self.limited.iter().filter_map(|name| too_old(name, &states, &limits)));
        let fine = (
            WITH_LIMITS..WITH_REQUESTS,
            "it is told rates for all priorities, and nothing of request buckets",
        );
        problems.extend(self.fine.iter().filter_map(|name| too_old(name, &states, &fine)));
        problems
    }
}

/// A control node whose version of the protocol is one of these, and what follows.
fn too_old(
    name: &str,
    states: &[PeerState],
    (versions, what): &(Range<u8>, &str),
) -> Option<(String, String)> {
    let peer = states.iter().find(|peer| peer.role == "receives" && peer.name == name)?;
    let version = peer.version;
    (peer.up && versions.contains(&version)).then(|| {
        let text = format!("speaks version {version} of the protocol: {what}");
        (format!("peer {name}"), text)
    })
}

/// A line for each peer without a session; those above [`PEER_LINES_MAX`] share one.
fn silent_peers(states: &[PeerState]) -> Vec<(String, String)> {
    let unknown = states.iter().find(|peer| peer.name == UNKNOWN);
    let silent: Vec<_> = states.iter().filter(|peer| !peer.up && peer.name != UNKNOWN).collect();
    let (shown, more) = silent.split_at(silent.len().min(PEER_LINES_MAX));
    let line = |peer: &&PeerState| {
        let text = match (peer.problem.as_str(), unknown) {
            ("", None) => "no session".to_owned(),
            // It may well be this one.
            ("", Some(unknown)) => format!("no session; refused last: {}", unknown.problem),
            (problem, _) => problem.to_owned(),
        };
        (format!("peer {}", peer.name), text)
    };
    let mut lines: Vec<_> = shown.iter().map(line).collect();
    if !more.is_empty() {
        let names: Vec<&str> = more.iter().map(|peer| peer.name.as_str()).collect();
        let text = format!("{} more without a session: {}", more.len(), names.join(", "));
        lines.push(("peers".to_owned(), text));
    }
    lines
}

/// Whether the files of a cluster can be used, and our certificate is in its time, before anything
/// is changed.
///
/// # Errors
/// The file, and what is wrong with it.
pub(crate) fn examine(config: &Config) -> Result<(), TlsError> {
    let Some(cluster) = &config.cluster else { return Ok(()) };
    Delegation::load(&delegation(cluster))?;
    let credentials = Credentials::load(&files(cluster))?;
    let own = |router: &&SharingRouterConfig| router.identity == *credentials.identity();
    if let Some(router) = cluster.routers.iter().find(own) {
        let (name, path) = (&router.name, cluster.certificate.clone());
        let why = format!(
            "it names {}, which is {name:?} under cluster.routers: a router does not share with itself",
            router.identity
        );
        return Err(TlsError { path, why });
    }
    if let Some(bus) = cluster.bus.as_ref().map(bus_config) {
        bus.examine()?;
        if !bus.can_sign(&credentials) {
            let path = cluster.certificate.clone();
            let why = "reports over cluster.bus cannot be signed with it: a key of another kind, or certificates too long";
            return Err(TlsError { path, why: why.into() });
        }
    }
    credentials.in_time()
}

/// The interfaces whose queues and bytes somebody reads: all where a bucket lives on bandwidth, here
/// or, for all that is known, on a front-end; else none, because asking may wait for the kernel.
pub(crate) fn interfaces_read(config: &Config) -> Vec<String> {
    let here = config.services.iter().any(sources::needs_interface);
    let told = config.cluster.as_ref().is_some_and(|cluster| !cluster.report_to.is_empty());
    // Those of other namespaces are not read.
    let own = config.hooked().filter(|interface| interface.namespace.is_none());
    let names = own.map(|interface| interface.name.clone());
    if here || told { names.collect() } else { Vec::new() }
}

fn files(cluster: &ClusterConfig) -> Files {
    Files {
        certificate: cluster.certificate.clone(),
        key: cluster.key.clone(),
        authority: cluster.ca_file.clone(),
    }
}

fn delegation(cluster: &ClusterConfig) -> DelegationFiles {
    let (grants, signing) = (cluster.grants.as_ref(), cluster.signing.as_ref());
    DelegationFiles {
        operator: grants.map(|grants| grants.operator.clone()),
        grants: grants.map(|grants| grants.files.clone()).unwrap_or_default(),
        revoked: grants.and_then(|grants| grants.revoked.clone()),
        key: signing.map(|signing| signing.key.clone()),
        grant: signing.map(|signing| signing.grant.clone()),
    }
}

/// How many limits a peer may tell this host: of each service in its scopes one of connections and, where there are
/// requests, one of them and one of each bucket; in answer to a notice one of connections and one of datagrams.
fn limits_of(peer: &PeerConfig, config: &Config) -> usize {
    let reached = |scope: &Scope, each: &dyn Fn(&ServiceConfig) -> usize| {
        let of = config.services.iter().filter(|of| scope.reaches(&of.name, &of.listen));
        of.map(each).sum::<usize>().max(1)
    };
    let always = |service: &ServiceConfig| {
        let buckets = service.requests.as_ref().map_or(0, |requests| requests.buckets.len());
        let requests = service.requests.is_some() || config.is_routed(&service.name);
        1 + usize::from(requests) + buckets
    };
    let plain = peer.limits.iter().map(|scope| reached(scope, &always)).sum::<usize>();
    let signed = peer.limits_when_congested.iter();
    plain + signed.map(|scope| reached(scope, &|_: &ServiceConfig| 2).max(2)).sum::<usize>()
}

fn node_config(cluster: &ClusterConfig, config: &Config) -> NodeConfig {
    let all = || config.services.iter().map(|service| service.name.clone()).collect();
    let grants = cluster.peers.iter().map(|peer| Grant {
        name: peer.name.clone(),
        identity: peer.identity.clone(),
        services: peer.services.clone(),
        limits: peer.limits.clone(),
        when_congested: peer.limits_when_congested.clone(),
        targets: limits_of(peer, config),
    });
    let routers = cluster.routers.iter().map(|router| Grant {
        name: router.name.clone(),
        identity: router.identity.clone(),
        services: Vec::new(),
        limits: Vec::new(),
        when_congested: Vec::new(),
        targets: 0,
    });
    let targets = cluster.report_to.iter().map(|target| Target {
        name: target.name.clone(),
        address: target.address.0,
        identity: target.identity.clone(),
        services: if target.services.is_empty() { all() } else { target.services.clone() },
        validity: target.validity(config.daemon.tick),
    });
    // Over a bus nobody is connected to another router.
    let told = cluster.routers.iter().filter_map(|router| {
        let address = router.address.filter(|_| cluster.bus.is_none())?.0;
        let (name, identity) = (router.name.clone(), router.identity.clone());
        Some(Target { name, address, identity, services: Vec::new(), validity: VALIDITY_DEFAULT })
    });
    NodeConfig {
        files: files(cluster),
        listen: cluster.listen.map(|address| address.0),
        grants: grants.chain(routers).collect(),
        targets: targets.chain(told).collect(),
        delegation: delegation(cluster),
        routers: cluster.routers.iter().map(|router| router.identity.clone()).collect(),
        bus: cluster.bus.as_ref().map(bus_config),
    }
}

/// The signals of a service are those of its back-ends: resources and queues of this host are not
/// its own. Shown is the back-end under the most pressure; each of them has its own controllers.
fn take(sensed: &mut Sensed, backends: Vec<Backend>) {
    sensed.problems.retain(|problem| !ELSEWHERE.contains(&problem.signal));
    let silent: Vec<String> = backends.iter().filter(|b| !b.valid).map(silence).collect();
    if !silent.is_empty() {
        sensed.problems.push(Problem { signal: "reports", why: silent.join("; ") });
    }
    let Signals { resource, queue, .. } = &mut sensed.signals;
    (*resource, *queue) = under_most_pressure(&backends);
    sensed.signals.backends = backends;
}

fn silence(backend: &Backend) -> String {
    let peer = &backend.peer;
    match backend.age {
        Some(age) => format!("no valid report of {peer} for {age}: it cannot tighten anything"),
        None => format!("no report of {peer} yet: everything passes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Registry;
    use tidegate_model::signals::{AcceptQueue, Reading};
    use tidegate_units::Share;

    #[test]
    fn many_silent_peers_are_few_warnings() {
        let peer = |i| PeerState { name: format!("b{i}"), ..PeerState::default() };
        let states: Vec<PeerState> = (0..64).map(peer).collect();
        assert_eq!(silent_peers(&states[..8]).len(), 8);
        let lines = silent_peers(&states);
        assert_eq!(lines.len(), 9);
        let (subject, text) = &lines[8];
        assert_eq!(subject, "peers");
        assert!(text.starts_with("56 more without a session: b8, b9"), "{text}");
    }

    #[test]
    fn interfaces_are_looked_at_where_a_bucket_or_a_front_end_needs_it() {
        let rules = "requests: {buckets: {a: {resource: RESOURCE}}, rules: [{path: /, bucket: a}]}";
        let report = "cluster:\n  certificate: /c\n  key: /k\n  ca_file: /a\n  report_to: \
                      {f: {address: '192.0.2.1:7416', identity: 'spiffe://a.example/f'}}\n";
        let (queue, cpu) =
            (rules.replace("RESOURCE", "bandwidth"), rules.replace("RESOURCE", "cpu"));
        for (more, cluster, read) in
            [(&*queue, "", true), (&*cpu, "", false), (&*cpu, report, true)]
        {
            let text = format!(
                "interfaces: [{{name: lo}}]\nservices:\n  shop:\n    mode: enforce\n    \
                 listen: ['*:80']\n    {more}\n{cluster}"
            );
            let registry = Registry::new(["fresh_first"], ["default"]);
            let config = tidegate_config::parse(&text, &registry).unwrap();
            let wanted: &[&str] = if read { &["lo"] } else { &[] };
            assert_eq!(interfaces_read(&config), wanted, "{more} {cluster}");
        }
    }

    #[test]
    fn limits_of_each_bucket_count_for_the_quota() {
        let of = |limits: &str| {
            let text = format!(
                "interfaces: [{{name: lo}}]
services:
  shop:
    mode: enforce
    listen: ['192.0.2.11:80']
    requests:
      buckets: {{a: {{resource: cpu}}, b: {{resource: cpu}}, c: {{resource: cpu}}}}
      rules:
        - {{path: /a, bucket: a}}
        - {{path: /b, bucket: b}}
        - {{path: /c, bucket: c}}
        - {{unevaluable: true, action: allow}}
  mail: {{mode: enforce, listen: ['192.0.2.11:25']}}
cluster:
  certificate: /c
  key: /k
  ca_file: /a
  listen: 192.0.2.1:7416
  peers: {{b1: {{identity: 'spiffe://a.example/b1', services: [shop], limits: [{limits}]}}}}
"
            );
            let registry = Registry::new(["fresh_first"], ["default"]);
            let config = tidegate_config::parse(&text, &registry).unwrap();
            limits_of(&config.cluster.as_ref().unwrap().peers[0], &config)
        };
        for (limits, count) in [
            ("shop", 5),
            ("shop/a", 1),
            ("mail", 1),
            ("'192.0.2.11:80'", 5),
            ("'192.0.2.0/24:*'", 6),
            ("shop, mail", 6),
        ] {
            assert_eq!(of(limits), count, "{limits}");
        }
    }

    #[test]
    fn over_a_bus_no_router_connects_to_another() {
        let text = "interfaces: [{name: lo}]\nservices: {shop: {mode: enforce, listen: ['*:80']}}\n\
             router: {destinations: ['192.0.2.0/24:80']}\n\
             cluster:\n  certificate: /c\n  key: /k\n  ca_file: /a\n  \
             routers: {r2: {identity: 'spiffe://a.example/r2'}}\n  \
             bus: {servers: ['n:4222'], tls: {ca_file: /n/a}, credentials_file: /n/c}\n";
        let registry = Registry::new(["fresh_first"], ["default"]);
        let config = tidegate_config::parse(text, &registry).unwrap();
        let node = node_config(config.cluster.as_ref().unwrap(), &config);
        assert!(node.listen.is_none() && node.targets.is_empty());
        assert_eq!((node.grants.len(), node.routers.len()), (1, 1));
        let expected = tidegate_peer::BusConfig {
            servers: vec!["n:4222".into()],
            subject: "tidegate.routers".into(),
            authority: Some("/n/a".into()),
            certificate: None,
            credentials: Some("/n/c".into()),
        };
        assert_eq!(node.bus, Some(expected));
    }

    struct Nothing;
    impl Senses for Nothing {
        fn tick(&mut self, _: Nanos, _: &dyn Totals) -> Vec<Sensed> {
            vec![Sensed::default()]
        }

        fn reconfigure(&mut self, _: Vec<ServiceSource>) {}
    }

    impl Totals for Nothing {
        fn totals(&self, _: usize) -> io::Result<tidegate_model::totals::ServiceTotals> {
            Ok(tidegate_model::totals::ServiceTotals::default())
        }
    }

    #[test]
    fn a_certificate_that_cannot_be_used_is_a_warning_and_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name).display().to_string();
        let (certificate, authority) = (file("pem"), file("authority"));
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices: {{shop: {{mode: enforce, listen: ['*:80']}}}}\n\
             cluster:\n  certificate: {certificate}\n  key: {}\n  ca_file: {authority}\n  \
             report_to: {{f: {{address: '192.0.2.1:7416', identity: 'spiffe://a.example/f'}}}}\n",
            file("key")
        );
        let registry = Registry::new(["fresh_first"], ["default"]);
        let config = tidegate_config::parse(&text, &registry).unwrap();
        let clock = Arc::new(tidegate_units::ManualClock::default());
        let mut senses = ClusterSenses::new(Box::new(Nothing), clock);
        senses.join(&config);
        let problem = |senses: &ClusterSenses| senses.problems(Nanos::ZERO).remove(0);
        let first = problem(&senses);
        assert_eq!(first.0, "cluster");
        assert!(first.1.contains("No such file"), "{}", first.1);
        // Half of a renewal.
        std::fs::write(&authority, "").unwrap();
        let just_before = Nanos(RETRY_EVERY.0 - 1);
        assert_eq!(senses.tick(just_before, &Nothing).len(), 1, "the host's own senses go on");
        assert_eq!(problem(&senses), first);
        senses.tick(RETRY_EVERY, &Nothing);
        assert!(problem(&senses).1.contains("no certificate in it"), "{}", problem(&senses).1);
        senses.join(&tidegate_config::Config { cluster: None, ..config });
        assert!(senses.problems(Nanos::ZERO).is_empty() && senses.again.is_none());
    }

    #[test]
    fn what_is_local_does_not_pass_for_the_back_ends() {
        let mut sensed = Sensed::default();
        let here = Some(Reading::fresh(Share::new(0.2)));
        sensed.signals.resource.cpu = here;
        sensed.signals.resource.memory_pressure = here;
        for signal in ["accept queue", "cpu", "counters"] {
            sensed.problems.push(Problem { signal, why: String::new() });
        }
        let mut short = Backend { peer: "b1".into(), valid: true, ..Backend::default() };
        short.resource.cpu = Some(Reading::fresh(Share::new(0.97)));
        short.queue.accept = Some(Reading::fresh(AcceptQueue { length: 90, limit: 100 }));
        let mut calm = Backend { peer: "b2".into(), valid: true, ..Backend::default() };
        calm.resource.cpu = Some(Reading::fresh(Share::new(0.3)));
        calm.queue.accept = Some(Reading::fresh(AcceptQueue { length: 0, limit: 100 }));
        let gone = Backend { peer: "b3".into(), ..Backend::default() };
        take(&mut sensed, vec![calm, short, gone]);
        let Signals { resource, queue, backends, .. } = &sensed.signals;
        assert_eq!(resource.cpu, Some(Reading::fresh(Share::new(0.97))));
        assert_eq!(resource.memory_pressure, None, "nobody reported it");
        assert_eq!(queue.accept.map(|q| (q.value.length, q.value.limit)), Some((90, 200)));
        assert_eq!(backends.len(), 3);
        let left: Vec<_> = sensed.problems.iter().map(|t| t.signal).collect();
        assert_eq!(left, ["counters", "reports"]);
        assert!(sensed.problems[1].why.contains("b3"), "{}", sensed.problems[1].why);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits between the senses, which know the peers, and the limits that are written: what
//! peers ask of this host's services is joined with what their controllers decided, and what this
//! host's services can take goes to their control nodes. What decides is
//! [`tidegate_control::fleet::remote`].

use crate::controllers;
use crate::datagrams::Datagrams;
use crate::flowspec::{self, Flowspec};
use crate::given::{self, Given};
use crate::limited::Limited;
use crate::links::Links;
use crate::plane::{Said, Senses};
use crate::pushback::Pushback;
use crate::remote_requests::RemoteRequests;
use crate::remote_sums::RemoteSums;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use tidegate_bpf::HostMarks;
use tidegate_config::{Config, ServiceConfig};
use tidegate_control::apart::{without_refused, without_remote};
use tidegate_control::congestion::Arrivals;
use tidegate_control::fleet::remote::join::{self, left_out};
use tidegate_control::fleet::remote::{
    Flow, Grant, InForce, Inbound, PUSHBACK, Protected, PushbackSpec,
};
use tidegate_model::Listen;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::What;
use tidegate_model::remote::{Arrived, Unit};
use tidegate_model::signals::Signals;
use tidegate_model::snapshot::{PeerState, RemoteState, RemoteSum};
use tidegate_peer::table::Ended;
use tidegate_sense::Sensed;
use tidegate_units::{Nanos, Rate};

/// Refusals that are older are not told by marks.
const FRESH: Nanos = Nanos::SECOND;

/// The remote limits of this host, in both directions.
pub(crate) struct Remote {
    inbound: Inbound,
    /// By service, in the order of the configuration.
    in_force: Vec<Option<InForce>>,
    /// The same of limits on datagrams.
    datagrams: Inbound,
    datagrams_in_force: Vec<Option<InForce>>,
    requests: RemoteRequests,
    counted: Datagrams,
    limited: Limited,
    turns: Vec<What>,
    /// Services whose remote limit was the tighter one in the round before.
    binds: BTreeSet<usize>,
    given: Vec<Given>,
    last: Option<Nanos>,
    pub(crate) links: Links,
    pub(crate) flowspec: Flowspec,
    pushback: Pushback,
    sums: RemoteSums,
}

impl Default for Remote {
    fn default() -> Self {
        Self {
            inbound: Inbound::default(),
            in_force: Vec::new(),
            datagrams: Inbound::of(Unit::Datagrams),
            datagrams_in_force: Vec::new(),
            requests: RemoteRequests::default(),
            counted: Datagrams::default(),
            limited: Limited::default(),
            turns: Vec::new(),
            binds: BTreeSet::new(),
            given: Vec::new(),
            last: None,
            links: Links::default(),
            flowspec: Flowspec::default(),
            pushback: Pushback::default(),
            sums: RemoteSums::default(),
        }
    }
}

/// Whether what the service's controller decides is only shown.
pub(crate) fn only_shown(service: &ServiceConfig) -> bool {
    service.canary.is_only_shown(service.mode)
}

impl Remote {
    pub(crate) fn new(config: &Config) -> Self {
        let mut remote = Self::default();
        remote.follow(config);
        remote
    }

    /// Follows another configuration. Limits stay whose sender still owns their scope.
    pub(crate) fn follow(&mut self, config: &Config) {
        let peers = config.cluster.iter().flat_map(|cluster| &cluster.peers);
        let grants: Vec<Grant> = peers
            .map(|peer| Grant {
                peer: peer.name.clone(),
                scopes: peer.limits.clone(),
                when_congested: peer.limits_when_congested.clone(),
            })
            .collect();
        let protected = config.services.iter().map(|service| Protected {
            name: service.name.clone(),
            listens: service.listen.clone(),
            min_rate: min_rate(service),
            ..Protected::default()
        });
        let protected: Vec<Protected> = protected.collect();
        self.inbound.follow(&grants, protected.clone());
        self.requests.follow(config, &grants, &protected);
        // `min_rate` is of connections.
        let min_rate = Rate::per_second(tidegate_model::RATE_MIN);
        let datagrams = protected.into_iter().map(|of| Protected { min_rate, ..of });
        self.datagrams.follow(&grants, datagrams.collect());
        let grants = config.cluster.as_ref().and_then(|cluster| cluster.grants.as_ref());
        let ages = grants.map_or(PUSHBACK, |grants| {
            let (delta, steps) = grants.relaxation();
            PushbackSpec { delta, steps, ..PUSHBACK }
        });
        self.inbound.age(ages);
        self.datagrams.age(ages);
        self.links.follow(config);
        self.flowspec.follow(config);
        self.pushback.follow(config);
        self.sums.follow(config);
        self.in_force = vec![None; config.services.len()];
        self.datagrams_in_force = self.in_force.clone();
        self.binds.clear();
        self.given = given::follow(config, std::mem::take(&mut self.given));
    }

    /// A round: the limits of all services, joined with those of peers; peers are told theirs.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        (config, released): (&Config, bool),
        (sensed, own): (&[Sensed], Vec<ServiceLimits>),
        senses: &mut dyn Senses,
    ) -> Vec<ServiceLimits> {
        let period = self.last.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        let heard = senses.remote();
        let flows = self.flows(period, (config, released), sensed);
        let came = self.counted.tick((config, released), sensed);
        let refused_bytes = came.refused_bytes;
        let arrivals = Arrivals { refused_bytes, ..arrivals(&flows) };
        self.links.tick(now, senses.links(), arrivals);
        self.take(&heard.sessions, heard.limits);
        self.end(&heard.ended);
        let decided = self.inbound.tick(now, period, &flows);
        log(config, (&self.in_force, &decided), Unit::Connections);
        self.in_force = decided;
        self.turns.extend(self.limited.turns(now, config, (&flows, &self.in_force)));
        let decided = self.datagrams.tick(now, period, &came.flows);
        log(config, (&self.datagrams_in_force, &decided), Unit::Datagrams);
        self.datagrams_in_force = decided;
        self.turns.extend(self.counted.turns(now, config, &self.datagrams_in_force));
        self.requests.tick((now, period), (config, released), sensed);
        let mut said = Said { hits: self.inbound.hits(now), ..Said::default() };
        said.hits.extend(self.datagrams.hits(now));
        said.hits.extend(self.requests.inbound.hits(now));
        let inbound = [&self.inbound, &self.datagrams];
        self.pushback.notices(now, (&self.links, inbound), &mut said);
        self.pushback.hear(now, &heard.notices, &heard.hits);
        for (target, hits) in &heard.hits {
            self.given.iter_mut().for_each(|given| given.hear(now, target, hits));
        }
        let enforced = |index: usize| {
            let is = config.services.get(index).is_some_and(|service| !only_shown(service));
            (is && !released).then(|| own.get(index).and_then(|limits| limits.rate))
        };
        for given in &mut self.given {
            let limit = given.own((config, released), sensed, &own);
            given.say((now, period), limit, &mut said.limits);
        }
        self.pushback.say((now, period), enforced, (sensed, &came.flows), &mut said);
        let datagrams = config.services.iter().zip(&came.flows);
        let datagrams = datagrams.map(|(service, flow)| flowspec::Datagrams {
            takes: service.datagrams,
            arrived: flow.map(|flow| flow.offered),
        });
        let datagrams: Vec<_> = datagrams.collect();
        self.flowspec.say((now, period), enforced, (sensed, &datagrams));
        senses.say(said);
        for (index, service) in config.services.iter().enumerate() {
            let states = self.states(now, index);
            self.sums.add(&service.name, period, &states);
        }
        self.join(config, own)
    }

    /// What this host says by marks: as a router, and as a server that refuses.
    pub(crate) fn says(&self, (config, released): (&Config, bool), sensed: &[Sensed]) -> HostMarks {
        let refuses = |(service, sensed): (&ServiceConfig, &Sensed)| {
            let counts = sensed.signals.balance.counts;
            !only_shown(service) && counts.is_some_and(|c| c.value.refused > 0 && c.age <= FRESH)
        };
        let overloaded = !released && config.services.iter().zip(sensed).any(refuses);
        HostMarks { congested: self.links.congested(), overloaded }
    }

    /// Servers have said by marks that they are overloaded: at most a notice is sent sooner. Only those count whose
    /// addresses stand in the configuration.
    pub(crate) fn marked(&mut self, now: Nanos, config: &Config, servers: &[Ipv4Addr]) {
        let mut listens = config.services.iter().flat_map(|service| &service.listen);
        let known = |listen: &Listen| matches!(listen.address, Some(IpAddr::V4(address)) if servers.contains(&address));
        if listens.any(known) {
            self.pushback.marked(now);
        }
    }

    /// Limits that arrived, and the sessions in which they did.
    fn take(&mut self, sessions: &[(String, Option<(u64, u64)>)], limits: Vec<Arrived>) {
        let congested = self.links.episode().is_some();
        let requests = &mut self.requests.inbound;
        for inbound in [&mut self.inbound, &mut self.datagrams, requests] {
            for (peer, session) in sessions {
                inbound.session(peer, *session);
            }
            inbound.congested(congested);
        }
        for arrived in limits {
            // What is not taken is counted, and shown with the peer.
            let _ = match arrived.received().limit.restriction.unit() {
                Unit::Connections => self.inbound.arrived(arrived),
                Unit::Datagrams => self.datagrams.arrived(arrived),
                Unit::Requests => self.requests.inbound.arrived(arrived),
            };
        }
    }

    /// Removes the limits whose grant has ended.
    fn end(&mut self, ended: &Ended) {
        for (peer, scope, unit) in ended {
            let inbound = match unit {
                Unit::Connections => &mut self.inbound,
                Unit::Datagrams => &mut self.datagrams,
                Unit::Requests => &mut self.requests.inbound,
            };
            if inbound.revoke(peer, scope) {
                tracing::info!(peer, %scope, "the grant of a remote limit has ended");
            }
        }
    }

    fn flows(
        &self,
        period: Nanos,
        (config, released): (&Config, bool),
        sensed: &[Sensed],
    ) -> Vec<Option<Flow>> {
        let flow = |(index, service): (usize, &ServiceConfig)| {
            let counts = sensed.get(index).and_then(|sensed| sensed.signals.balance.counts)?.value;
            let rate = self.in_force.get(index).copied().flatten().map(|limit| limit.rate);
            let most = left_out(counts.offered, rate, period);
            let binds = self.binds.contains(&index);
            Some(Flow {
                offered: counts.offered,
                repeated: counts.repeated,
                passed: counts.admitted,
                refused: if binds { counts.refused.min(most) } else { 0 },
                shadow: released || only_shown(service),
            })
        };
        config.services.iter().enumerate().map(flow).collect()
    }

    /// The tighter of the two holds: an operator's own limit always does. Datagrams have no other limit.
    fn join(&mut self, config: &Config, mut own: Vec<ServiceLimits>) -> Vec<ServiceLimits> {
        self.binds.clear();
        for (limits, in_force) in own.iter_mut().zip(&self.datagrams_in_force) {
            limits.datagrams = in_force.map(join::datagrams);
        }
        let services = own.iter_mut().zip(&self.in_force).zip(&config.services).enumerate();
        for (index, ((limits, in_force), service)) in services {
            let Some(remote) = in_force else { continue };
            let shares = service.policy.name == "percent";
            if join::connections(limits, remote, (shares, service.reserved())) {
                self.binds.insert(index);
            }
        }
        self.requests.join(config, &mut own);
        own
    }

    /// What began and ended since the last call: congestion, limits on datagrams, and routes.
    pub(crate) fn events(&mut self) -> Vec<What> {
        let mut events = self.links.turns();
        events.append(&mut self.turns);
        events.extend(self.flowspec.events());
        events
    }

    /// What is wrong: subjects and sentences.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (String, String)> {
        self.links.problems().chain(self.flowspec.problems())
    }

    /// Whether a limit of a peer is the tightest of a service.
    pub(crate) fn holds(&self, index: usize) -> bool {
        self.binds.contains(&index) || self.requests.holds(index)
    }

    /// The signals of a service without what limits of peers have refused: that is no sign of an overload of this
    /// host's. `None`: they have refused nothing.
    pub(crate) fn apart(&self, index: usize, signals: &Signals) -> Option<Signals> {
        // Of connections one bucket has the tighter rate of both.
        let mut apart = match self.binds.contains(&index) {
            true => Some(without_refused(signals)),
            false => without_remote(signals),
        };
        if self.requests.holds_bucket(index) {
            self.requests.leave_out(index, apart.get_or_insert_with(|| signals.clone()));
        }
        apart
    }

    /// The remote limits of a service, in both directions.
    pub(crate) fn states(&self, now: Nanos, index: usize) -> Vec<RemoteState> {
        let mut states = self.inbound.states(now, index);
        states.extend(self.datagrams.states(now, index));
        states.extend(self.requests.inbound.states_at(now, &self.requests.of(index)));
        let given = self.given.iter().filter(|given| given.index == index);
        states.extend(given.flat_map(|given| given.states(now)));
        states.extend(self.pushback.states(now, index));
        states
    }

    /// They, summed over time.
    pub(crate) fn sums(&self, service: &str) -> Vec<RemoteSum> {
        self.sums.of(service)
    }

    /// Adds what the second check refused to what is known of the peers.
    pub(crate) fn count_refused(&self, peers: &mut [PeerState]) {
        for peer in peers.iter_mut().filter(|peer| peer.role == "reports") {
            let all = [&self.inbound, &self.datagrams, &self.requests.inbound];
            for more in all.iter().flat_map(|inbound| inbound.refused(&peer.name)) {
                match peer.refused.iter_mut().find(|count| count.reason == more.reason) {
                    Some(count) => count.count = count.count.saturating_add(more.count),
                    None => peer.refused.push(more),
                }
            }
        }
    }
}

/// What came for the servers, all services together. In shadow nothing is refused.
fn arrivals(flows: &[Option<Flow>]) -> Arrivals {
    flows.iter().flatten().fold(Arrivals::default(), |sum, flow| Arrivals {
        passed: sum.passed.saturating_add(flow.passed),
        refused: sum.refused.saturating_add(flow.turned_away()),
        ..sum
    })
}

fn min_rate(service: &ServiceConfig) -> Rate {
    controllers::operator(service).service.min_rate
}

/// One line for each beginning and each end.
fn log(config: &Config, (before, after): (&[Option<InForce>], &[Option<InForce>]), unit: Unit) {
    let of = if unit.is_usual() { "" } else { " on datagrams" };
    for ((service, was), is) in config.services.iter().zip(before).zip(after) {
        let service = &service.name;
        match (was, is) {
            (None, Some(limit)) => {
                tracing::info!(service, rate = %limit.rate, "remote limit{of} begins");
            }
            (Some(_), None) => tracing::info!(service, "remote limit{of} is over"),
            _ => {}
        }
    }
}

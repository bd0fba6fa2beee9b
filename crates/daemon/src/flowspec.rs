// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of this host's services as BGP FlowSpec routes, for routers that are not ours. What a rate is decides
//! [`tidegate_control::fleet::remote::Uncounted`]; which routes are told decides [`tidegate_flowspec::Plan`].
//!
//! ```text
//!  own limit ─► Uncounted ─► routes ─► thread: Exporter ─► keeper ─► gobgpd | exabgp ═ BGP ═ routers
//!  what arrives ──┘                └─► in shadow: a plan, and nobody is told
//! ```
//!
//! The same speaker brings the routes of a router that are enforced here ([`import`]).

mod events;
mod import;
mod lister;
mod speaker;

pub(crate) use speaker::{options, password};

use self::import::Import;
use self::lister::Lister;
use self::speaker::Handle;
use crate::outlet::Outlet;
use std::collections::BTreeMap;
use tidegate_config::{Config, FlowspecConfig, RouteUnit, SpeakerPeerConfig};
use tidegate_control::fleet::remote::{Steps, Uncounted};
use tidegate_flowspec::{
    Action, Bounds, Change, Plan, Route, Session, Stand, Unit, What as Packets, Withheld, route,
};
use tidegate_model::record::What;
use tidegate_model::remote::{RemoteLimit, Restriction, Scope};
use tidegate_model::snapshot::{FlowspecState, RouteState, SessionState};
use tidegate_sense::Sensed;
use tidegate_units::{Nanos, Rate};

/// Why routes end by themselves.
const UNNEEDED: &str =
    "it is not needed: less than half of its rate arrives, or it exceeds all that has come";
/// Subject of warnings.
const SUBJECT: &str = "flowspec";

/// The routes of this host.
#[derive(Default)]
pub(crate) struct Flowspec {
    config: Option<FlowspecConfig>,
    given: Vec<Given>,
    /// The service, by its place in `given`, of each rule as text.
    rules: BTreeMap<String, usize>,
    teller: Teller,
    /// The last round.
    now: Nanos,
    /// Whether the speaker may start: privileges are given up.
    opened: bool,
    problem: String,
    events: Vec<What>,
    import: Option<Import>,
    /// Ports of ssh.
    ssh: Vec<u16>,
    /// No import, and the hooks have no rules: not even those of an earlier process.
    cleared: bool,
    /// Why they have; empty: it is done.
    uncleared: String,
}

/// Who is told.
#[derive(Default)]
enum Teller {
    #[default]
    Nobody,
    /// It is only planned.
    Shadow(Plan),
    Routers(Handle),
}

/// The routes of one service, of its connections or its datagrams.
struct Given {
    service: String,
    index: usize,
    of: Packets,
    destinations: Vec<Scope>,
    law: Uncounted,
    /// Why it has routes, and why it has none any more.
    why: String,
    gone: String,
}

/// What the speaker's thread knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) up: bool,
    pub(crate) started: u64,
    pub(crate) refused: u64,
    pub(crate) problem: String,
    /// Sessions with routers; `None`: not known.
    pub(crate) sessions: Option<Vec<Session>>,
    pub(crate) stands: Vec<Stand>,
    /// What was done since the last look.
    pub(crate) done: Vec<Done>,
}

/// What was done, and why, if the limit is not the reason.
pub(crate) type Done = (Change, Option<String>);

pub(crate) fn bounds(config: &FlowspecConfig) -> Bounds {
    Bounds {
        routes: config.routes.into(),
        hysteresis: config.hysteresis,
        between: config.between,
        lease: config.lease,
    }
}

impl Flowspec {
    /// Follows another configuration. Services that stay keep what is known of them; a speaker whose
    /// configuration stays goes on.
    pub(crate) fn follow(&mut self, config: &Config) {
        let wanted = config.flowspec.as_ref();
        let same = self.config.as_ref() == wanted;
        let mut old = std::mem::take(&mut self.given);
        for export in wanted.iter().flat_map(|wanted| &wanted.export) {
            let mut services = config.services.iter().enumerate();
            let service = services.find(|(_, service)| service.name == export.service);
            let Some((index, service)) = service else { continue };
            let destinations = export.destinations(service).unwrap_or_default();
            let datagrams = wanted.is_some_and(|wanted| wanted.tells_datagrams(service));
            let kinds = datagrams.then_some(Packets::Datagrams);
            for of in std::iter::once(Packets::Connections).chain(kinds) {
                let is = |given: &Given| (&given.service, given.of) == (&service.name, of);
                let before = old.iter().position(|given| is(given) && same);
                let destinations = destinations.clone();
                self.given.push(match before {
                    Some(at) => Given { index, destinations, ..old.swap_remove(at) },
                    None => Given::new((&service.name, of), (index, destinations), wanted),
                });
            }
        }
        if same {
            self.spare(config);
            self.know_rules();
            // What kept the speaker from starting may be mended.
            if self.opened && matches!(self.teller, Teller::Nobody) {
                self.open(config);
            }
            return;
        }
        // Drop ends the speaker, and with it the routes.
        for stand in self.told().stands.iter().filter(|stand| stand.told.is_some()) {
            self.events.extend(self.withdrawn(&stand.rule.to_string(), "another configuration"));
        }
        self.teller = Teller::Nobody;
        self.config = wanted.cloned();
        self.import = wanted.and_then(Import::new);
        self.spare(config);
        self.know_rules();
        if self.opened {
            self.open(config);
        }
    }

    fn spare(&mut self, config: &Config) {
        if let Some(import) = &mut self.import {
            let mut ports = [&config.exempt.ports[..], &self.ssh].concat();
            ports.sort_unstable();
            ports.dedup();
            import.spare(ports);
        }
    }

    /// Rules touch these ports no more than those of `exempt`.
    pub(crate) fn never_limit(&mut self, ports: &[u16]) {
        self.ssh = ports.to_vec();
        if let Some(import) = &mut self.import {
            import.also_spare(ports);
        }
    }

    fn know_rules(&mut self) {
        let (one, mut rules) = (Rate::per_second(1.0), BTreeMap::new());
        for (at, given) in self.given.iter().enumerate() {
            let routes = self.config.iter().flat_map(|config| given.routes(one, config));
            rules.extend(routes.map(|route| (route.rule.to_string(), at)));
        }
        self.rules = rules;
    }

    /// Starts the speaker. To be called once privileges are given up: it has none of ours.
    pub(crate) fn open(&mut self, config: &Config) {
        self.opened = true;
        self.problem.clear();
        if !matches!(self.teller, Teller::Nobody) {
            return;
        }
        let Some(wanted) = config.flowspec.as_ref() else { return };
        if wanted.shadow {
            self.teller = Teller::Shadow(Plan::new(bounds(wanted)));
            return;
        }
        match options(wanted, &config.daemon.socket)
            .and_then(|of| Handle::start(of, bounds(wanted), Lister::new(wanted)))
        {
            Ok(handle) => self.teller = Teller::Routers(handle),
            Err(why) => self.problem = why,
        }
    }

    /// A round. `own` is what each service limits itself to; `None`: it refuses nobody (shadow mode, kill switch),
    /// and then no router is to refuse for it.
    pub(crate) fn say(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: impl Fn(usize) -> Option<Option<Rate>>,
        (sensed, datagrams): (&[Sensed], &[Datagrams]),
    ) {
        self.now = now;
        let Some(config) = &self.config else { return };
        let mut routes = Vec::new();
        for given in &mut self.given {
            let (at, time) = (given.index, (now, period));
            let rate = match given.of {
                Packets::Connections => {
                    let counts = sensed.get(at).and_then(|s| s.signals.balance.counts);
                    given.rate(time, own(at), counts.map(|counts| counts.value.offered))
                }
                Packets::Datagrams => {
                    let of = datagrams.get(at).copied().unwrap_or_default();
                    given.datagrams(time, own(at).and(of.takes), of.arrived)
                }
            };
            routes.extend(rate.into_iter().flat_map(|rate| given.routes(rate, config)));
        }
        let done = match &mut self.teller {
            Teller::Nobody => Vec::new(),
            Teller::Shadow(plan) => planned(plan, now, &routes),
            Teller::Routers(handle) => handle.want(now, routes),
        };
        for (change, why) in done {
            self.note(&change, why);
        }
    }

    /// A round of the import.
    pub(crate) fn enforce(&mut self, now: Nanos, plane: &mut (impl Outlet + ?Sized)) {
        let Some(import) = &mut self.import else {
            // Hooks that are loaded for an import may be there for a while.
            if !self.cleared {
                self.clear(plane);
            }
            return;
        };
        let (news, session) = match &self.teller {
            Teller::Routers(handle) => (handle.news(), handle.has_session(import.router())),
            Teller::Nobody | Teller::Shadow(_) => (None, None),
        };
        self.cleared = false;
        self.uncleared.clear();
        import.meet(now, session);
        import.tick(now, news, plane);
        self.events.extend(import.events(now));
    }

    fn clear(&mut self, plane: &mut (impl Outlet + ?Sized)) {
        let cleared = plane.clear_imported();
        self.cleared = cleared.is_ok();
        self.uncleared = match cleared {
            Ok(()) => String::new(),
            Err(why) => format!("rules of an earlier import hold on, though there is none: {why}"),
        };
    }

    /// The successor did not come, and may have written rules of its own.
    pub(crate) fn resume(&mut self) {
        self.cleared = false;
        self.import.iter_mut().for_each(Import::resume);
    }

    fn note(&mut self, change: &Change, why: Option<String>) {
        let what = match change {
            Change::Withdraw(rule) => {
                let rule = rule.to_string();
                let gone = self.of(&rule).map(|given| given.gone.clone());
                self.withdrawn(&rule, &why.or(gone).unwrap_or_default())
            }
            Change::Announce(route) => {
                let (rule, shadow) = (route.rule.to_string(), self.is_shadow());
                self.of(&rule).map(|given| What::RouteAnnounced {
                    service: given.service.clone(),
                    route: rule.clone(),
                    rate: route.action.to_string(),
                    why: given.why.clone(),
                    shadow,
                })
            }
        };
        if let Some(what) = &what {
            tracing::info!("{}", what.sentence());
        }
        self.events.extend(what);
    }

    fn withdrawn(&self, rule: &str, why: &str) -> Option<What> {
        let (service, shadow) = (self.of(rule)?.service.clone(), self.is_shadow());
        Some(What::RouteWithdrawn { service, route: rule.into(), why: why.into(), shadow })
    }

    fn is_shadow(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.shadow)
    }

    fn of(&self, rule: &str) -> Option<&Given> {
        self.given.get(*self.rules.get(rule)?)
    }

    /// What was announced and withdrawn since the last call.
    pub(crate) fn events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }

    fn told(&self) -> Told {
        match &self.teller {
            Teller::Nobody => Told::default(),
            Teller::Shadow(plan) => Told { stands: plan.stands(self.now), ..Told::default() },
            Teller::Routers(handle) => handle.told(),
        }
    }

    /// What is wrong: a subject and a sentence.
    pub(crate) fn problems(&self) -> Option<(String, String)> {
        let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let import = || said(self.import.as_ref()?.problem());
        let problem = said(&self.uncleared).or_else(|| self.problem(self.told())).or_else(import);
        problem.map(|text| (SUBJECT.to_owned(), text))
    }

    fn problem(&self, told: Told) -> Option<String> {
        let endless = self.endless(&told);
        let problem = if self.problem.is_empty() { told.problem } else { self.problem.clone() };
        match (problem.is_empty(), endless.is_empty()) {
            (false, _) => Some(format!("no route is announced or imported: {problem}")),
            (true, false) => Some(format!(
                "{} has switched the hold time off, and GoBGP cannot keep such a session: configure 9 s there",
                endless.join(", ")
            )),
            (true, true) => None,
        }
    }

    /// Names of routers whose session never ends by silence.
    fn endless(&self, told: &Told) -> Vec<String> {
        let peers = self.config.iter().flat_map(|config| &config.peers);
        let is = |of: &Session, peer: &SpeakerPeerConfig| {
            of.router == peer.address && of.hold_time.is_none()
        };
        let sessions = told.sessions.as_deref().unwrap_or_default();
        let endless = peers.filter(|peer| sessions.iter().any(|of| is(of, peer)));
        endless.map(|peer| peer.name.clone()).collect()
    }

    /// For people.
    pub(crate) fn state(&self) -> Option<FlowspecState> {
        let config = self.config.as_ref()?;
        let told = self.told();
        let peer = |peer: &SpeakerPeerConfig| SessionState {
            name: peer.name.clone(),
            address: peer.address.to_string(),
            up: told.sessions.as_ref().map(|up| up.iter().any(|of| of.router == peer.address)),
        };
        let route = |stand: &Stand| {
            let rule = stand.rule.to_string();
            let service = self.of(&rule).map(|given| given.service.clone());
            let action = stand.wanted.or(stand.told);
            RouteState {
                service: service.unwrap_or_default(),
                rule,
                unit: action.map_or("", unit).to_owned(),
                wanted: stand.wanted.map(value),
                told: stand.told.map(value),
                withheld: stand.withheld.map_or("", Withheld::name).to_owned(),
            }
        };
        Some(FlowspecState {
            speaker: config.speaker.name().into(),
            shadow: config.shadow,
            up: told.up,
            started: told.started,
            refused: told.refused,
            problem: if self.problem.is_empty() { told.problem } else { self.problem.clone() },
            peers: config.peers.iter().map(peer).collect(),
            budget: config.routes.into(),
            routes: told.stands.iter().map(route).collect(),
            import: self.import.as_ref().map(Import::state),
        })
    }
}

/// What a speaker would be told now: it counts as told.
fn planned(plan: &mut Plan, now: Nanos, routes: &[Route]) -> Vec<Done> {
    if let Err(why) = plan.want(now, routes) {
        tracing::warn!(%why, "a route cannot be encoded");
    }
    let changes = plan.changes(now);
    changes.iter().for_each(|change| plan.done(now, change));
    changes.into_iter().map(|change| (change, None)).collect()
}

const fn unit(action: Action) -> &'static str {
    match action {
        Action::Packets(_) => "packets",
        Action::Bytes(_) => "bytes",
    }
}

const fn value(action: Action) -> f64 {
    let (Action::Packets(rate) | Action::Bytes(rate)) = action;
    rate.get()
}

/// Datagrams of a service in a round: what it can take, and what arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Datagrams {
    pub(crate) takes: Option<Rate>,
    pub(crate) arrived: Option<u64>,
}

impl Given {
    fn new(
        (service, of): (&str, Packets),
        (index, destinations): (usize, Vec<Scope>),
        config: Option<&FlowspecConfig>,
    ) -> Self {
        let steps = config.map_or_else(Steps::default, |config| Steps {
            by: config.hysteresis,
            between: config.between,
        });
        let (service, law) = (service.to_owned(), Uncounted::new(steps));
        Self { service, index, of, destinations, law, why: String::new(), gone: String::new() }
    }

    fn rate(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: Option<Option<Rate>>,
        arrived: Option<u64>,
    ) -> Option<Rate> {
        let before = self.law.rate();
        let Some(own) = own else { return self.clear() };
        let rate = self.law.tick((now, period), own, arrived);
        match (before, rate, own) {
            (Some(_), None, _) => self.gone = UNNEEDED.into(),
            (Some(before), Some(rate), None) if rate > before => {
                self.why = "the service is calm, and the rate grows".into();
            }
            (_, Some(_), Some(own)) => self.why = format!("the service limits itself to {own}"),
            _ => {}
        }
        rate
    }

    /// The same of datagrams; `takes`: `None` where nobody is to be refused.
    fn datagrams(
        &mut self,
        time: (Nanos, Nanos),
        takes: Option<Rate>,
        arrived: Option<u64>,
    ) -> Option<Rate> {
        let before = self.law.rate();
        let Some(takes) = takes else { return self.clear() };
        let rate = self.law.tick_beyond(time, takes, arrived);
        match (before, rate) {
            (Some(_), None) => self.gone = UNNEEDED.into(),
            (None, Some(_)) => self.why = format!("it can take {takes} of datagrams"),
            (Some(before), Some(rate)) if rate > before => {
                self.why = "fewer datagrams come than it can take, and the rate grows".into();
            }
            _ => {}
        }
        rate
    }

    fn clear(&mut self) -> Option<Rate> {
        if self.law.rate().is_some() {
            self.gone =
                "this host refuses nobody (shadow mode, a canary, or the kill switch)".into();
        }
        self.law.clear();
        None
    }

    fn routes(&self, rate: Rate, config: &FlowspecConfig) -> Vec<Route> {
        let unit = match config.unit {
            RouteUnit::Packets => Unit::Packets,
            RouteUnit::Bytes => Unit::Bytes,
        };
        let limit = |scope: &Scope| RemoteLimit {
            scope: scope.clone(),
            restriction: Restriction::Rate(rate),
            validity: config.lease,
            sequence: 0,
            priority: 0,
        };
        let routes = self.destinations.iter().map(limit);
        routes.filter_map(|limit| route(&limit, self.of, unit).ok()).collect()
    }
}

/// Whether the section can be followed.
///
/// # Errors
/// What is wrong.
pub(crate) fn examine(config: &Config) -> Result<(), String> {
    let live = config.flowspec.as_ref().filter(|flowspec| !flowspec.shadow);
    live.map_or(Ok(()), |flowspec| options(flowspec, &config.daemon.socket).map(drop))
}

/// Of each of these services, who is refused by a router and not, or last, by this host.
pub(crate) fn alike(config: &Config) -> BTreeMap<usize, String> {
    let exports = config.flowspec.iter().flat_map(|flowspec| &flowspec.export).enumerate();
    let exempt = !config.exempt.sources.is_empty();
    let whose = |(index, export): (usize, &tidegate_config::ExportConfig)| {
        let service = config.services.iter().find(|service| service.name == export.service)?;
        let whose = match (exempt, !service.classes.is_empty()) {
            (false, false) => return None,
            (true, false) => "exempt sources",
            (false, true) => "connections of its classes",
            (true, true) => "exempt sources and connections of its classes",
        };
        Some((index, whose.to_owned()))
    };
    exports.filter_map(whose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Registry;

    #[test]
    fn a_router_without_a_hold_time_is_named() {
        let text = "interfaces: [{name: lo}]\nservices: {shop: {mode: enforce, listen: ['192.0.2.11:80']}}\nflowspec:\n  \
                    speaker: gobgp\n  as: 65001\n  router_id: 192.0.2.11\n  export: [{service: shop}]\n  peers: {r1: {address: \
                    192.0.2.1, local: 192.0.2.11, as: 65002}, r2: {address: 192.0.2.2, local: 192.0.2.11, as: 65002}}\n";
        let registry = Registry::new(["fresh_first"], crate::controllers::NAMES);
        let config = tidegate_config::parse(text, &registry).unwrap();
        let flowspec = Flowspec { config: config.flowspec, ..Flowspec::default() };
        let session = |last: u8, hold_time| Session { router: [192, 0, 2, last].into(), hold_time };
        let told = |sessions| Told { sessions: Some(sessions), ..Told::default() };
        let good = session(1, Some(Nanos::from_secs(9)));
        assert_eq!(flowspec.problem(told(vec![good])), None);
        let said = flowspec.problem(told(vec![good, session(2, None)])).unwrap();
        assert!(said.starts_with("r2 has switched the hold time off"), "{said}");
    }
}

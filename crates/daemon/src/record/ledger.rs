// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What would have been refused while services were in shadow, by class and reason, and how each service
//! was then: a row a minute, and an hour where that is more than [`MINUTES_MAX`] ago.
//!
//! ```text
//! tidegate-shadow 1 MACHINE   one line; MACHINE: a checksum of the machine's id, where it has one
//! {"service":"web","at":…}    a row a line, of each service the oldest first
//! ```
//!
//! A minute is `overloaded` if the accept queue was more than half full in more than 1 % of its ticks, or
//! if the 99th percentile of the times to first bytes was above the objective. It is `healthy` if neither
//! was so and at least [`TIMED_MIN`] exchanges were timed: of fewer there is no 99th percentile. Else
//! nothing is known.

use super::writer::Content;
use crate::plane::Counted;
use crate::state::checksum;
use std::collections::{BTreeMap, VecDeque};
use tidegate_config::{Config, Exempt, GatewayConfig, ServiceConfig};
use tidegate_model::Mode;
use tidegate_model::record::Moment;
use tidegate_model::shadow::{Health, Of, ShadowRow, ShadowSums, Tallies, Tally};
use tidegate_model::signals::AcceptQueue;
use tidegate_model::snapshot::{RuleCounts, VerdictCount};
use tidegate_model::totals::{Histogram, ServiceTotals};
use tidegate_units::Nanos;

/// Most bytes of the file. 100 services of a few classes find room.
pub const BYTES_MAX: usize = 8 << 20;
/// Longest row, in bytes.
const ROW_BYTES_MAX: usize = 32 << 10;
/// How long a row is.
const SLICE: Nanos = Nanos::from_secs(60);
/// So many rows of a service are by the minute: `--since` is exact for as long.
const MINUTES_MAX: usize = 120;
const HOUR: Nanos = Nanos::from_secs(3600);
/// And so many by the hour: a week, and a day more.
const HOURS_MAX: usize = 192;
/// See the head of this file.
const TIMED_MIN: u64 = 100;
/// The accept queue is long from this share of its limit on.
const QUEUE_SHARE: f64 = 0.5;
/// In more than this share of the ticks it is so for more than a moment.
const QUEUE_TICKS: f64 = 0.01;
const HEAD: &str = "tidegate-shadow 1";

/// What was counted, in the order of the configuration.
pub(crate) struct Shadowed<'a> {
    pub(crate) config: &'a Config,
    pub(crate) released: bool,
    pub(crate) counts: &'a Counted,
    /// Of the request rules of a service.
    pub(crate) rules: &'a dyn Fn(usize) -> &'a [RuleCounts],
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Of this machine, for the head; empty: it has no id.
    machine: String,
    services: BTreeMap<String, Account>,
    changed: bool,
}

/// One service.
#[derive(Debug, Default)]
struct Account {
    hours: VecDeque<ShadowRow>,
    minutes: VecDeque<ShadowRow>,
    open: Option<Open>,
    sums: ShadowSums,
}

/// A row that is not over yet.
#[derive(Debug)]
struct Open {
    at: Moment,
    period: u64,
    identity: u64,
    objective: Nanos,
    watched: Watched,
    /// When it began, and as it was read last.
    base: Counts,
    last: Counts,
    lasted: Nanos,
    /// Ticks in which the accept queue was known, and was long.
    queue: (u64, u64),
}

/// What the dataplane had counted of a service.
#[derive(Clone, Debug, Default)]
struct Counts {
    verdicts: Vec<VerdictCount>,
    /// By the label of a rule: what met it, and what would have been refused.
    rules: BTreeMap<String, (u64, u64)>,
    times: Option<Histogram>,
}

/// Of what comes, the share whose refusals are only counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Watched {
    /// Of new connections, and of a gateway's requests.
    classes: f64,
    /// Of requests that meet a rule.
    rules: f64,
}

impl Ledger {
    /// An empty one of this machine.
    pub(crate) fn new(machine: &str) -> Self {
        Self { machine: machine.to_owned(), ..Self::default() }
    }

    /// What a file holds, and how many of its lines are none of ours. [`Self::is_foreign`] comes first.
    pub(crate) fn decode(bytes: &[u8], machine: &str) -> (Self, usize) {
        let mut ledger = Self::new(machine);
        let mut lost = 0;
        let lines = bytes.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty());
        for line in lines {
            match serde_json::from_slice::<ShadowRow>(line) {
                Ok(row) if line.len() <= ROW_BYTES_MAX => {
                    ledger.services.entry(row.service.clone()).or_default().put(row);
                }
                _ => lost += 1,
            }
        }
        (ledger, lost)
    }

    /// Whether a file is something else: of another version or machine, cut, or none of ours. What was counted
    /// elsewhere says nothing of the services here. A file or a machine without an id is not told apart.
    pub(crate) fn is_foreign(bytes: &[u8], machine: &str) -> bool {
        let head = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let of = match head.strip_prefix(HEAD.as_bytes()) {
            Some([]) => return false,
            Some([b' ', of @ ..]) => of,
            _ => return !bytes.is_empty(),
        };
        let is_id = of.len() == 16 && of.iter().all(u8::is_ascii_hexdigit);
        !is_id || !machine.is_empty() && of != machine.as_bytes()
    }

    fn head(&self) -> Vec<u8> {
        match &*self.machine {
            "" => HEAD.into(),
            machine => [HEAD, " ", machine].concat().into(),
        }
    }

    /// A tick: how long the accept queue of a service is.
    pub(crate) fn look(&mut self, service: &str, queue: Option<AcceptQueue>) {
        let account = self.services.get_mut(service);
        if let (Some(open), Some(AcceptQueue { length, limit })) =
            (account.and_then(|account| account.open.as_mut()), queue)
        {
            open.queue.0 += 1;
            open.queue.1 += u64::from(limit > 0 && length as f64 > QUEUE_SHARE * limit as f64);
        }
    }

    /// What was counted since the last call.
    pub(crate) fn see(
        &mut self,
        at: &Moment,
        shadowed: &Shadowed<'_>,
        totals: &BTreeMap<String, ServiceTotals>,
    ) {
        let Shadowed { config, released, counts, rules } = shadowed;
        for (index, service) in config.services.iter().enumerate() {
            let watched = watched(service);
            let account = match self.services.get_mut(&service.name) {
                Some(account) => account,
                // Whatever is enforced and has no past needs no place.
                None if watched.is_none() => continue,
                None => self.services.entry(service.name.clone()).or_default(),
            };
            let verdicts = counts.services.get(index).map_or(&[][..], |counts| counts);
            let now = Counts::new(service, verdicts, rules(index))
                .timed(totals.get(&service.name).map(|totals| &totals.first_byte));
            self.changed |= account.see(at, (config, service), (watched, *released), now);
        }
    }

    /// Nothing is known from here on: rows that are not over end with what was read last.
    pub(crate) fn close(&mut self) {
        for (name, account) in &mut self.services {
            self.changed |= account.close(name);
        }
    }

    /// Another configuration. Counters may be others', or begin anew.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.close();
        let before = self.services.len();
        self.services.retain(|name, _| config.services.iter().any(|s| s.name == *name));
        self.changed |= before != self.services.len();
    }

    /// All rows of a service, the oldest first, also of what is not over yet.
    pub(crate) fn rows(&self, service: &str) -> Vec<ShadowRow> {
        let Some(account) = self.services.get(service) else { return Vec::new() };
        let open = account.open.as_ref().map(|open| open.row(service));
        account.hours.iter().chain(&account.minutes).cloned().chain(open).collect()
    }

    /// What its rows came to since the process began.
    pub(crate) fn sums(&self, service: &str) -> Option<ShadowSums> {
        let account = self.services.get(service)?;
        let any = account.open.is_some() || account.sums != ShadowSums::default();
        any.then_some(account.sums)
    }
}

impl Content for Ledger {
    fn changed(&mut self) -> &mut bool {
        &mut self.changed
    }

    /// Of each service the newest rows that find room in its part.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head();
        let part = (BYTES_MAX - bytes.len() - 1) / self.services.len().max(1);
        for account in self.services.values() {
            let mut room = part;
            let mut lines = Vec::new();
            for row in account.minutes.iter().rev().chain(account.hours.iter().rev()) {
                // Our types have no map with other keys than strings, so this does not fail.
                let line = serde_json::to_vec(row).unwrap_or_default();
                if line.len() > ROW_BYTES_MAX {
                    continue;
                }
                let Some(left) = room.checked_sub(line.len() + 1) else { break };
                room = left;
                lines.push(line);
            }
            for line in lines.iter().rev() {
                bytes.push(b'\n');
                bytes.extend_from_slice(line);
            }
        }
        bytes.push(b'\n');
        bytes
    }
}

impl Account {
    /// True if a row is over.
    fn see(
        &mut self,
        at: &Moment,
        (config, service): (&Config, &ServiceConfig),
        (watched, released): (Option<Watched>, bool),
        now: Counts,
    ) -> bool {
        let mut changed = false;
        if let Some(open) = &mut self.open {
            // Not known when it began: known from now on.
            if open.base.times.is_none() {
                open.base.times.clone_from(&now.times);
            }
            open.last = now.clone();
            open.lasted = at.up.since(open.at.up);
            if open.lasted >= SLICE || watched != Some(open.watched) || released {
                changed |= self.close(&service.name);
            }
        }
        let Some(watched) = watched else { return changed | self.leave(&service.name, at) };
        if self.open.is_none() && !released {
            let identity = identity(config, service);
            let last = self.minutes.back().or(self.hours.back());
            let goes_on = last.is_some_and(|row| !row.left && row.identity == identity);
            let period = last.map_or(0, |row| row.period).saturating_add(u64::from(!goes_on));
            self.open = Some(Open {
                at: at.clone(),
                period,
                identity,
                objective: service.objective,
                watched,
                base: now.clone(),
                last: now,
                lasted: Nanos::ZERO,
                queue: (0, 0),
            });
        }
        changed
    }

    fn close(&mut self, service: &str) -> bool {
        let Some(row) = self.open.take().map(|open| open.row(service)) else { return false };
        if row.lasted == Nanos::ZERO {
            return false;
        }
        self.sums.add(&row.tallies);
        self.put(row);
        true
    }

    /// It is enforced: the next time in shadow is another one.
    fn leave(&mut self, service: &str, at: &Moment) -> bool {
        let last = self.minutes.back().or(self.hours.back());
        let Some(last) = last.filter(|row| !row.left) else { return false };
        let (service, at, period) = (service.to_owned(), at.clone(), last.period);
        let identity = last.identity;
        self.put(ShadowRow { service, at, period, identity, left: true, ..ShadowRow::default() });
        true
    }

    /// Minutes of long ago become part of an hour.
    fn put(&mut self, row: ShadowRow) {
        self.minutes.push_back(row);
        while self.minutes.len() > MINUTES_MAX {
            let Some(oldest) = self.minutes.pop_front() else { return };
            match self.hours.back_mut().filter(|hour| joins(hour, &oldest)) {
                Some(hour) => {
                    let end = oldest.at.up.since(hour.at.up) + oldest.lasted;
                    hour.lasted = Nanos(hour.lasted.0.max(end.0));
                    hour.tallies.add(&oldest.tallies);
                }
                None => self.hours.push_back(oldest),
            }
        }
        while self.hours.len() > HOURS_MAX {
            self.hours.pop_front();
        }
    }
}

/// Whether a minute is of the hour that begins with `hour`.
fn joins(hour: &ShadowRow, minute: &ShadowRow) -> bool {
    let (same, left) = (hour.at.boot == minute.at.boot, hour.left || minute.left);
    let alike = hour.period == minute.period && hour.identity == minute.identity;
    same && !left && alike && minute.at.up.since(hour.at.up) < HOUR
}

impl Open {
    fn row(&self, service: &str) -> ShadowRow {
        let mut tallies = Tallies::default();
        let tally = tallies.of_mut(self.health());
        tally.span = self.lasted;
        self.last.since(&self.base, self.watched, tally);
        ShadowRow {
            service: service.to_owned(),
            at: self.at.clone(),
            lasted: self.lasted,
            period: self.period,
            identity: self.identity,
            left: false,
            tallies,
        }
    }

    fn health(&self) -> Health {
        let (known, long) = self.queue;
        if long as f64 > QUEUE_TICKS * known as f64 {
            return Health::Overloaded;
        }
        let times = match (&self.last.times, &self.base.times) {
            (Some(now), Some(then)) if now.count >= then.count => now.since(then),
            // It counts from zero again.
            (Some(now), _) => now.clone(),
            (None, _) => Histogram::default(),
        };
        match times.quantile(0.99) {
            _ if times.count < TIMED_MIN => Health::Unknown,
            p99 if p99 > self.objective => Health::Overloaded,
            _ => Health::Healthy,
        }
    }
}

impl Counts {
    fn new(service: &ServiceConfig, verdicts: &[VerdictCount], rules: &[RuleCounts]) -> Self {
        let mut by_label = BTreeMap::<String, (u64, u64)>::new();
        let configured = service.requests.iter().flat_map(|requests| &requests.rules);
        for (rule, counts) in configured.zip(rules) {
            let known = by_label.entry(rule.label()).or_default();
            known.0 = known.0.saturating_add(counts.met());
            known.1 = known.1.saturating_add(counts.shadowed);
        }
        Self { verdicts: verdicts.to_vec(), rules: by_label, times: None }
    }

    fn timed(self, times: Option<&Histogram>) -> Self {
        Self { times: times.cloned(), ..self }
    }

    /// Adds what was counted since `before`. Of a canary only refusals say whether their source was spared; of
    /// what came as large a share counts as of the sources.
    fn since(&self, before: &Self, watched: Watched, tally: &mut Tally) {
        let of_share = |all: u64, share: f64| match share {
            1.0.. => all,
            share => (all as f64 * share).round() as u64,
        };
        let mut classes = BTreeMap::<&str, (u64, u64)>::new();
        for now in self.verdicts.iter().filter(|_| watched.classes > 0.0) {
            let same = |then: &&VerdictCount| {
                (&then.class, &then.verdict, &then.reason, then.shadow)
                    == (&now.class, &now.verdict, &now.reason, now.shadow)
            };
            let then = before.verdicts.iter().find(same).map_or(0, |then| then.count);
            let more = grown(now.count, then);
            let (came, refused) = classes.entry(&now.class).or_default();
            *came = came.saturating_add(more);
            if now.shadow && matches!(&*now.verdict, "drop" | "reject") {
                *refused = refused.saturating_add(more);
                tally.refuse(&Of::Class(now.class.clone()), Some(&now.reason), more);
            }
        }
        for (class, (came, refused)) in classes {
            tally.offer(&Of::Class(class.to_owned()), of_share(came, watched.classes).max(refused));
        }
        for (label, (met, shadowed)) in self.rules.iter().filter(|_| watched.rules > 0.0) {
            let then = before.rules.get(label).copied().unwrap_or_default();
            let (of, refused) = (Of::Rule(label.clone()), grown(*shadowed, then.1));
            tally.offer(&of, of_share(grown(*met, then.0), watched.rules).max(refused));
            tally.refuse(&of, None, refused);
        }
    }
}

/// How much a counter grew; one that is smaller than it was began anew.
const fn grown(now: u64, then: u64) -> u64 {
    if now >= then { now - then } else { now }
}

/// Of which share of what comes to a service refusals are only counted; `None`: of nothing.
fn watched(service: &ServiceConfig) -> Option<Watched> {
    let spared = 1.0 - service.canary.percent() / 100.0;
    let share = |mode: Mode| if mode == Mode::Shadow { 1.0 } else { spared };
    let rules = service.requests.as_ref().map_or(0.0, |r| share(r.mode_within(service.mode)));
    let watched = Watched { classes: share(service.mode), rules };
    (watched.classes > 0.0 || watched.rules > 0.0).then_some(watched)
}

/// What decides about a service: what was counted under another one says nothing of it.
fn identity(config: &Config, service: &ServiceConfig) -> u64 {
    let ServiceConfig { listen, objective, policy, control, classes, reserve, .. } = service;
    let ServiceConfig { backends, agent_check, .. } = service;
    let requests = service.requests.as_ref().map(|r| (&r.buckets, &r.rules));
    // Its ports are none of a service's.
    let Exempt { sources, presets, .. } = &config.exempt;
    let leads = |gateway: &&GatewayConfig| gateway.routes.iter().any(|r| r.service == service.name);
    let routes: Vec<_> = config
        .gateways
        .iter()
        .filter(leads)
        .map(|gateway| (&gateway.name, gateway.adapter, gateway.client_hop, &gateway.routes))
        .collect();
    let own =
        (listen, objective, policy, control, classes, reserve, requests, backends, agent_check);
    checksum(format!("{own:?} {:?} {routes:?}", (sources, presets)).as_bytes())
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

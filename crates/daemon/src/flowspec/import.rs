// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec routes of a router as rules at the ingress hooks. Which routes count decides
//! [`tidegate_flowspec::Importer`], in the speaker's thread ([`super::lister`]); each list of routes replaces the one
//! before.
//!
//! ```text
//!  router ═ BGP ═ gobgpd ─► thread: a list each second ─► Importer ─► rules ─► hooks ─► hit counters
//! ```

use super::events::{Cause, Events};
use super::lister::{News, Table};
use crate::outlet::Outlet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_bpf::{Imported, ImportedHits, ImportedRule};
use tidegate_config::{FlowspecConfig, ImportConfig};
use tidegate_flowspec::import::Entry;
use tidegate_model::Mode;
use tidegate_model::record::What;
use tidegate_model::snapshot::{ImportState, ImportedState};
use tidegate_units::{Nanos, Rate};

/// Without a list for so long all rules end.
const LIST_MAX: Nanos = Nanos::from_secs(3);
/// Without a session for so long something is wrong. GoBGP tries again after 5 s, and a start takes 8 to 10 s until
/// there is one.
const SESSION_MAX: Nanos = Nanos::from_secs(20);
/// How often counters are read.
const COUNT_EVERY: Nanos = Nanos::SECOND;
/// After a failed write it waits so long.
const AGAIN: Nanos = Nanos::SECOND;

/// Slot and generation of a rule, as the hooks count it.
type Place = (u16, u32);

/// The rules of a router.
pub(crate) struct Import {
    config: ImportConfig,
    router: IpAddr,
    /// All routers of the speaker.
    peers: Vec<IpAddr>,
    /// Ports that are exempt.
    never: Vec<u16>,
    /// What the last list made.
    table: Arc<Table>,
    /// When it was asked for.
    heard: Option<Nanos>,
    /// What the hooks were told; `None`: nothing yet, and they may have rules of an earlier process.
    in_force: Option<Imported>,
    /// The last write, if it failed.
    failed: Option<Nanos>,
    hits: BTreeMap<Place, ImportedHits>,
    /// Added to generations: counters of an earlier process are of other rules.
    first: u32,
    counted: Nanos,
    /// Since when there is no session; `None`: there is one, or it is not known.
    alone: Option<Nanos>,
    /// Why there is no list, no session, why rules are not written, why they are not counted; empty: it is done.
    unlisted: String,
    unheard: String,
    /// Whether that is an event: who fails again within ten minutes is one later.
    told_unlisted: bool,
    told_unheard: bool,
    unwritten: String,
    uncounted: String,
    events: Events,
}

impl Import {
    /// Without rules. `None`: nothing is imported, or the router is not known.
    pub(crate) fn new(of: &FlowspecConfig) -> Option<Self> {
        let config = of.import.clone()?;
        let router = of.peers.iter().find(|peer| peer.name == config.peer)?.address;
        let events = Events::new(&config.peer, config.mode == Mode::Shadow);
        Some(Self {
            config,
            router,
            peers: of.peers.iter().map(|peer| peer.address).collect(),
            never: Vec::new(),
            table: Arc::default(),
            heard: None,
            in_force: None,
            failed: None,
            hits: BTreeMap::new(),
            first: 0,
            counted: Nanos::ZERO,
            alone: None,
            unlisted: String::new(),
            unheard: String::new(),
            told_unlisted: false,
            told_unheard: false,
            unwritten: String::new(),
            uncounted: String::new(),
            events,
        })
    }

    /// Follows what no rule may touch.
    pub(crate) fn spare(&mut self, ports: Vec<u16>) {
        self.never = ports;
    }

    /// And these.
    pub(crate) fn also_spare(&mut self, ports: &[u16]) {
        self.never.extend(ports);
        self.never.sort_unstable();
        self.never.dedup();
    }

    /// Whose rules they are.
    pub(crate) const fn router(&self) -> IpAddr {
        self.router
    }

    /// Somebody else may have written rules, or ended them: a successor that did not come.
    pub(crate) fn resume(&mut self) {
        self.in_force = None;
    }

    /// Whether the router has a session; `None`: it is not known.
    pub(crate) fn meet(&mut self, now: Nanos, session: Option<bool>) {
        self.alone = (session == Some(false)).then(|| self.alone.unwrap_or(now));
        if self.alone.is_none_or(|since| now.since(since) < SESSION_MAX) {
            self.unheard.clear();
        } else if self.unheard.is_empty() || !self.told_unheard {
            self.unheard = format!("there is no session with the router {}", self.config.peer);
            self.told_unheard = self.events.unlisted(now, Cause::Session, "there is no session");
        }
    }

    /// A round: takes a list if there is one, and tells the hooks what has changed.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        news: Option<News>,
        plane: &mut (impl Outlet + ?Sized),
    ) {
        if self.in_force.is_none() {
            self.first = (now.0 / Nanos::from_millis(1).0) as u32;
        }
        self.hear(now, news);
        let wanted = self.wanted();
        let again = self.failed.is_none_or(|at| now.since(at) >= AGAIN);
        if again && self.in_force.as_ref() != Some(&wanted) {
            self.failed = None;
            self.write(now, wanted, plane);
        }
        if now.since(self.counted) >= COUNT_EVERY {
            self.counted = now;
            self.count(plane);
        }
    }

    fn hear(&mut self, now: Nanos, news: Option<News>) {
        let mut ended = self.heard.is_some_and(|at| now.since(at) >= LIST_MAX);
        match news {
            Some(News::Listed(at, table)) => {
                (self.heard, self.table, ended) = (Some(at), table, false);
                self.unlisted.clear();
            }
            Some(News::Failed(why)) => self.fail(now, Cause::List, why),
            Some(News::Ended(why)) => {
                self.fail(now, Cause::Speaker, why);
                ended = true;
            }
            None => {}
        }
        if ended {
            self.heard = None;
            // Routes that were refused stay told.
            let refused = self.table.refused.clone();
            self.table = Arc::new(Table { entries: Vec::new(), refused });
        }
    }

    fn fail(&mut self, now: Nanos, cause: Cause, why: String) {
        if self.unlisted != why || !self.told_unlisted {
            self.told_unlisted = self.events.unlisted(now, cause, &why);
            self.unlisted = why;
        }
    }

    fn write(&mut self, now: Nanos, wanted: Imported, plane: &mut (impl Outlet + ?Sized)) {
        match plane.set_imported(&wanted) {
            Ok(()) => {
                self.unwritten.clear();
                self.note(now, &wanted);
                self.in_force = Some(wanted);
            }
            // Rules whose routes are gone must not hold on: rather none.
            Err(why) => {
                self.unwritten = format!("rules of the router are not written: {why}");
                self.failed = Some(now);
                match plane.clear_imported() {
                    Ok(()) => {
                        let none = Imported::default();
                        self.note(now, &none);
                        self.in_force = Some(none);
                    }
                    Err(why) => {
                        self.unwritten =
                            format!("rules of the router hold on, whatever it says: {why}");
                    }
                }
            }
        }
    }

    fn wanted(&self) -> Imported {
        Imported {
            rules: self.table.entries.iter().map(|entry| self.rule(entry)).collect(),
            shadow: self.config.mode == Mode::Shadow,
            peers: self.peers.clone(),
            never: self.never.clone(),
        }
    }

    fn place(&self, entry: &Entry) -> Place {
        (entry.slot, self.first.wrapping_add(entry.generation))
    }

    fn rule(&self, entry: &Entry) -> ImportedRule {
        let rule = &entry.rule;
        ImportedRule {
            slot: entry.slot,
            generation: self.first.wrapping_add(entry.generation),
            destination: rule.destination,
            source: rule.source,
            protocol: rule.protocol,
            to: rule.to.clone(),
            from: rule.from.clone(),
            flags: rule.flags.map(|flags| (flags.mask, flags.value)),
            packets: entry.packets,
            bytes: entry.bytes,
        }
    }

    fn count(&mut self, plane: &(impl Outlet + ?Sized)) {
        match plane.imported_hits() {
            Ok(all) => {
                self.hits = all.into_iter().map(|of| ((of.slot, of.generation), of)).collect();
                self.uncounted.clear();
            }
            Err(why) => {
                self.uncounted = format!("counters of imported rules are not read: {why}");
            }
        }
    }

    /// What differs from what was in force.
    fn note(&mut self, now: Nanos, wanted: &Imported) {
        let of = |imported: &Imported| -> BTreeMap<Place, String> {
            imported.rules.iter().map(|rule| ((rule.slot, rule.generation), rates(rule))).collect()
        };
        let before = self.in_force.as_ref().map(of).unwrap_or_default();
        let names = self.table.entries.iter().map(|entry| (self.place(entry), &entry.rule));
        let (names, after): (BTreeMap<Place, _>, _) = (names.collect(), of(wanted));
        for (place, rate) in &after {
            if before.get(place) != Some(rate) {
                let rule = names.get(place).map(ToString::to_string).unwrap_or_default();
                self.events.begin(now, rule, rate.clone());
            }
        }
        let gone = before.keys().filter(|key| !after.contains_key(*key)).count();
        self.events.end(now, gone as u64);
    }

    pub(crate) fn events(&mut self, now: Nanos) -> Vec<What> {
        self.events.take(now)
    }

    /// What is wrong, in a sentence; empty: nothing.
    pub(crate) fn problem(&self) -> &str {
        let all = [&self.unwritten, &self.unlisted, &self.unheard, &self.uncounted];
        all.into_iter().find(|problem| !problem.is_empty()).map_or("", |problem| problem)
    }

    /// For people: rules that are in force.
    pub(crate) fn state(&self) -> ImportState {
        let in_force = |place: Place| {
            let rules = self.in_force.iter().flat_map(|imported| &imported.rules);
            rules.into_iter().any(|rule| (rule.slot, rule.generation) == place)
        };
        let rule = |entry: &Entry| {
            let hits = self.hits.get(&self.place(entry)).copied().unwrap_or_default();
            ImportedState {
                rule: entry.rule.to_string(),
                packets_rate: entry.packets.map(Rate::get),
                bytes_rate: entry.bytes.map(Rate::get),
                packets: hits.packets,
                bytes: hits.bytes,
                refused: hits.refused,
            }
        };
        let entries = self.table.entries.iter().filter(|entry| in_force(self.place(entry)));
        ImportState {
            peer: self.config.peer.clone(),
            shadow: self.config.mode == Mode::Shadow,
            heard: self.heard.is_some() && self.alone.is_none(),
            problem: self.problem().to_owned(),
            rules: entries.map(rule).collect(),
            refused: self.table.refused.clone(),
        }
    }
}

fn rates(rule: &ImportedRule) -> String {
    let rates = [(rule.packets, "packets/s"), (rule.bytes, "bytes/s")];
    let rates =
        rates.into_iter().filter_map(|(rate, unit)| Some(format!("{} {unit}", rate?.get())));
    let rates = rates.collect::<Vec<_>>().join(" and ");
    if rates.is_empty() { "everything".into() } else { rates }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec routes of a router as rules at the ingress hooks. Which routes count decides
//! [`tidegate_flowspec::Importer`]; each list of routes replaces the one before.
//!
//! ```text
//!  router ═ BGP ═ gobgpd ─► thread: a list each second ─► Importer ─► rules ─► hooks ─► hit counters
//! ```

use crate::plane::Plane;
use std::collections::BTreeMap;
use std::net::IpAddr;
use tidegate_bpf::{Imported, ImportedRule};
use tidegate_config::{FlowspecConfig, ImportConfig};
use tidegate_flowspec::import::{Entry, Hits};
use tidegate_flowspec::{Importer, Path, Policy, Unicast};
use tidegate_model::Mode;
use tidegate_model::record::What;
use tidegate_model::snapshot::{ImportState, ImportedState, RefusedRoutes};
use tidegate_units::{Nanos, Rate};

/// Without a list for so long all rules end.
const LIST_MAX: Nanos = Nanos::from_secs(3);
/// After a longer pause somebody else may have written rules: a successor that did not come.
const PAUSE_MAX: Nanos = Nanos::from_secs(2);
/// How often counters are read.
const COUNT_EVERY: Nanos = Nanos::SECOND;

/// What the speaker has of routers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    pub(crate) at: Nanos,
    pub(crate) paths: Vec<Path>,
    pub(crate) unicast: Vec<Unicast>,
}

/// The rules of a router.
pub(crate) struct Import {
    config: ImportConfig,
    importer: Importer,
    /// All routers of the speaker.
    peers: Vec<IpAddr>,
    /// Ports that are never shed.
    never: Vec<u16>,
    /// When the last list was made.
    heard: Option<Nanos>,
    /// What the hooks were told; `None`: nothing yet, and they may have rules of an earlier process.
    in_force: Option<Imported>,
    /// Added to generations: counters of an earlier process are of other rules.
    first: u32,
    counted: Nanos,
    last: Nanos,
    problem: String,
    events: Vec<What>,
}

impl Import {
    /// Without rules. `None`: nothing is imported, or the router is not known.
    pub(crate) fn new(of: &FlowspecConfig) -> Option<Self> {
        let config = of.import.clone()?;
        let peer = of.peers.iter().find(|peer| peer.name == config.peer)?;
        let policy = Policy::new(config.prefixes.clone(), of.own_as, (peer.address, peer.peer_as));
        let policy = Policy { discard: config.discard, established: config.established, ..policy };
        Some(Self {
            config,
            importer: Importer::new(policy),
            peers: of.peers.iter().map(|peer| peer.address).collect(),
            never: Vec::new(),
            heard: None,
            in_force: None,
            first: 0,
            counted: Nanos::ZERO,
            last: Nanos::ZERO,
            problem: String::new(),
            events: Vec::new(),
        })
    }

    /// Follows what no rule may touch.
    pub(crate) fn spare(&mut self, ports: &[u16]) {
        self.never = ports.to_vec();
    }

    /// A round: takes a list if there is one, and tells the hooks what has changed.
    pub(crate) fn tick(&mut self, now: Nanos, listed: Option<Listed>, plane: &mut dyn Plane) {
        if self.in_force.is_none() {
            self.first = (now.0 / Nanos::from_millis(1).0) as u32;
        }
        if let Some(Listed { at, paths, unicast }) = listed {
            self.heard = Some(at);
            self.importer.update(&paths, &unicast);
        } else if self.heard.is_some_and(|at| now.since(at) >= LIST_MAX) {
            self.heard = None;
            self.importer.update(&[], &[]);
        }
        let (wanted, paused) = (self.wanted(), now.since(self.last) >= PAUSE_MAX);
        self.last = now;
        if paused || self.in_force.as_ref() != Some(&wanted) {
            match plane.set_imported(&wanted) {
                Ok(()) => {
                    self.problem.clear();
                    self.note(&wanted);
                    self.in_force = Some(wanted);
                }
                // Rules whose routes are gone must not hold on: rather none.
                Err(why) => {
                    self.last = Nanos::ZERO;
                    let none = Imported::default();
                    if plane.set_imported(&none).is_ok() {
                        self.in_force = Some(none);
                    }
                    self.problem = format!("imported rules are not enforced: {why}");
                }
            }
        }
        if now.since(self.counted) >= COUNT_EVERY {
            self.counted = now;
            self.count(plane);
        }
    }

    fn wanted(&self) -> Imported {
        Imported {
            rules: self.importer.entries().iter().map(|entry| self.rule(entry)).collect(),
            shadow: self.config.mode == Mode::Shadow,
            peers: self.peers.clone(),
            never: self.never.clone(),
        }
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

    fn count(&mut self, plane: &dyn Plane) {
        match plane.imported_hits() {
            Ok(all) => {
                for of in all {
                    let hits = Hits { packets: of.packets, bytes: of.bytes, refused: of.refused };
                    let generation = of.generation.wrapping_sub(self.first);
                    self.importer.counted(of.slot, generation, hits);
                }
            }
            Err(why) => self.problem = format!("counters of imported rules are not read: {why}"),
        }
    }

    /// What differs from what was in force.
    fn note(&mut self, wanted: &Imported) {
        let shadow = wanted.shadow;
        let of = |imported: &Imported| -> BTreeMap<(u16, u32), String> {
            let rates =
                imported.rules.iter().map(|rule| ((rule.slot, rule.generation), rates(rule)));
            rates.collect()
        };
        let before = self.in_force.as_ref().map(of).unwrap_or_default();
        let names: BTreeMap<(u16, u32), String> = self
            .importer
            .entries()
            .iter()
            .map(|entry| {
                let generation = self.first.wrapping_add(entry.generation);
                ((entry.slot, generation), entry.rule.to_string())
            })
            .collect();
        let (peer, after) = (self.config.peer.clone(), of(wanted));
        for (key, rate) in after.iter().filter(|(key, rate)| before.get(key) != Some(rate)) {
            let rule = names.get(key).cloned().unwrap_or_default();
            let (peer, rate) = (peer.clone(), rate.clone());
            self.events.push(What::RuleImported { peer, rule, rate, shadow });
        }
        let gone = before.keys().filter(|key| !after.contains_key(*key)).count();
        if gone > 0 {
            self.events.push(What::RulesEnded { peer, count: gone as u64, shadow });
        }
        for what in &self.events {
            tracing::info!("{}", what.sentence());
        }
    }

    pub(crate) fn events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }

    /// What is wrong, in a sentence; empty: nothing.
    pub(crate) fn problem(&self) -> &str {
        &self.problem
    }

    /// For people.
    pub(crate) fn state(&self) -> ImportState {
        let rule = |entry: &Entry| ImportedState {
            rule: entry.rule.to_string(),
            packets_rate: entry.packets.map(Rate::get),
            bytes_rate: entry.bytes.map(Rate::get),
            packets: entry.hits.packets,
            bytes: entry.hits.bytes,
            refused: entry.hits.refused,
        };
        let refused = self.importer.refused().iter();
        ImportState {
            peer: self.config.peer.clone(),
            shadow: self.config.mode == Mode::Shadow,
            heard: self.heard.is_some(),
            rules: self.importer.entries().iter().map(rule).collect(),
            refused: refused
                .map(|(why, count)| RefusedRoutes { reason: why.name().into(), count: *count })
                .collect(),
        }
    }
}

fn rates(rule: &ImportedRule) -> String {
    let rates = [(rule.packets, "packets/s"), (rule.bytes, "bytes/s")];
    let rates =
        rates.into_iter().filter_map(|(rate, unit)| Some(format!("{} {unit}", rate?.get())));
    rates.collect::<Vec<_>>().join(" and ")
}

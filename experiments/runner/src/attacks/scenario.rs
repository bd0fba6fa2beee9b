// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of an experiment with attacks.

use crate::survival::ServerSpec;
use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use tidegate_lab::Manner;

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `attacks`.
    pub kind: String,
    /// `none`, `drop`, `reject`, and what [`crate::survival`] knows beside: for all attacks.
    pub arms: Vec<String>,
    /// Load of honest clients, where an attack does not say otherwise.
    pub load: f64,
    /// Addresses of the honest who have been here before, and as many who have not.
    pub addresses: u32,
    /// Clients give up after so long.
    pub patience_s: f64,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
    /// What is done to the server, one after the other.
    pub attacks: Vec<Attack>,
}

/// How much of it is run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Attacks by name; empty for all.
    #[serde(default)]
    pub attacks: Vec<String>,
    /// Before the attack.
    pub before_s: f64,
    /// An attack, where it does not say otherwise.
    pub attack_s: f64,
    /// Rounds.
    pub rounds: u32,
    /// Whether the arms of single attacks are run, too.
    #[serde(default)]
    pub own_arms: bool,
}

/// One attack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attack {
    /// Its name: the first part of the variants.
    pub name: String,
    /// The server.
    pub server: ServerSpec,
    /// Arms of this attack beside those of all.
    #[serde(default)]
    pub arms: Vec<String>,
    /// Load of honest clients during it.
    #[serde(default)]
    pub load: Option<f64>,
    /// Hostile clients.
    #[serde(default)]
    pub hostile: Vec<Hostile>,
    /// SYNs per second of senders that nobody has.
    #[serde(default)]
    pub flood: f64,
    /// What happens to the product.
    #[serde(default)]
    pub fault: Option<Fault>,
    /// Request rules of the service.
    #[serde(default)]
    pub requests: Value,
    /// Clients give up connecting after so long; 0: with their patience.
    #[serde(default)]
    pub connect_s: f64,
}

/// One group of hostile clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hostile {
    /// How they send their requests.
    #[serde(default)]
    pub manner: Manner,
    /// What they ask for; absent: the server's usual page.
    #[serde(default)]
    pub path: Option<String>,
    /// Connections per second.
    #[serde(default)]
    pub rate: f64,
    /// The same as a multiple of the capacity.
    #[serde(default)]
    pub of_capacity: f64,
    /// All of them within the first second instead.
    #[serde(default)]
    pub at_once: f64,
    /// Clients that ask again as soon as they have their response, on kept connections, from the
    /// beginning of the run.
    #[serde(default)]
    pub hammering: u32,
    /// Addresses that they come from.
    pub addresses: u32,
    /// Source ports that each address uses in turn; 0: the kernel chooses.
    #[serde(default)]
    pub ports: u16,
}

/// Something happens to the product, and is over before what counts begins.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// How long after the attack's beginning.
    pub at_s: f64,
    /// How long it lasts; of a kill, how long until the supervisor starts the product again.
    pub lasts_s: f64,
    /// How long after its end the responses count; 0 where they count from its beginning on.
    pub settle_s: f64,
    /// How long they count.
    pub count_s: f64,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The daemon is stopped and goes on (SIGSTOP, SIGCONT).
    Pause,
    /// The kill switch is on and off again.
    Release,
    /// The daemon is killed, and started again by its supervisor.
    Kill,
    /// It is restarted, as by `systemctl restart`.
    Restart,
    /// Another one takes over from it.
    Upgrade,
    /// It is started only now, and finds no CPU signal.
    Start,
}

impl FaultKind {
    /// Whether something is done at its end, too.
    #[must_use]
    pub const fn has_end(self) -> bool {
        matches!(self, Self::Pause | Self::Release | Self::Kill)
    }

    /// Whether its responses count from its beginning on: nothing may be missing meanwhile.
    #[must_use]
    pub const fn counts_at_once(self) -> bool {
        matches!(self, Self::Kill | Self::Restart | Self::Upgrade)
    }
}

/// The ranges of addresses lie so far apart: known, new and hostile clients.
pub(super) const RANGE: u32 = 1 << 16;
/// So many ranges has the lab's prefix of clients (10.16.0.0/12).
const RANGES: usize = (1 << 20) / RANGE as usize;

impl Scenario {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// Names the attack.
    pub fn check(&self) -> Result<()> {
        ensure!(self.addresses >= 1_000, "honest clients come from 1,000 addresses or more");
        for attack in &self.attacks {
            let does = !attack.hostile.is_empty() || attack.flood > 0.0 || attack.fault.is_some();
            ensure!(does, "{}: nothing is done", attack.name);
            let settles = |f: Fault| !f.kind.counts_at_once() || f.settle_s <= 0.0;
            ensure!(attack.fault.is_none_or(settles), "{}: it counts at once", attack.name);
            let one = |h: &Hostile| {
                let rates = [h.rate, h.of_capacity, h.at_once, f64::from(h.hammering)];
                rates.iter().filter(|rate| **rate > 0.0).count() == 1
            };
            ensure!(attack.hostile.iter().all(one), "{}: one rate for each", attack.name);
            let fits = attack.hostile.iter().all(|h| h.addresses <= RANGE);
            let fits = fits && attack.hostile.len() + 2 <= RANGES && self.addresses <= RANGE;
            ensure!(fits, "{}: clients outside of the lab's prefix", attack.name);
        }
        Ok(())
    }

    /// The attacks of an extent, or those of a name with `*` for anything.
    ///
    /// # Errors
    /// When there is none.
    pub fn chosen(&self, extent: &Extent, filter: Option<&str>) -> Result<Vec<&Attack>> {
        let named = |attack: &&Attack| match filter {
            Some(filter) => crate::judge::fits(filter, &attack.name),
            None => extent.attacks.is_empty() || extent.attacks.contains(&attack.name),
        };
        let chosen: Vec<&Attack> = self.attacks.iter().filter(named).collect();
        ensure!(!chosen.is_empty(), "no attack is named {:?}", filter.unwrap_or_default());
        Ok(chosen)
    }
}

impl Attack {
    /// Whether all goodput is compared with the capacity: then it is measured after the runs, too.
    #[must_use]
    pub fn is_beside_capacity(&self) -> bool {
        self.fault.is_some() || self.hostile.iter().any(|hostile| hostile.of_capacity >= 1.0)
    }

    /// How long it lasts.
    #[must_use]
    pub fn attack_s(&self, extent: &Extent) -> f64 {
        self.fault.map_or(extent.attack_s, |f| f.counts_from_s() + f.count_s)
    }

    /// From when on its responses count, since its beginning.
    #[must_use]
    pub fn counts_from_s(&self) -> f64 {
        self.fault.map_or(0.0, Fault::counts_from_s)
    }

    /// The arms: what happens to the product happens to nothing where there is none.
    #[must_use]
    pub fn arms<'a>(&'a self, scenario: &'a Scenario, extent: &Extent) -> Vec<&'a str> {
        let own = if extent.own_arms { &*self.arms } else { &[] };
        let all = scenario.arms.iter().chain(own).map(String::as_str);
        all.filter(|arm| self.fault.is_none() || *arm != "none").collect()
    }
}

impl Fault {
    fn counts_from_s(self) -> f64 {
        let lasts = if self.kind.counts_at_once() { 0.0 } else { self.lasts_s };
        self.at_s + lasts + self.settle_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    /// Seconds of a run beyond its load, and of the capacity of an attack's server.
    const START_S: f64 = 2.5;
    const CAPACITY_S: f64 = 20.0;
    const AGAIN_S: f64 = 9.0;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/attacks").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    fn minutes(scenario: &Scenario, extent: &Extent) -> f64 {
        let of = |attack: &&Attack| {
            let runs = attack.arms(scenario, extent).len() as f64 * f64::from(extent.rounds);
            // The load runs on for a client's patience at most, where clients wait.
            let waits =
                if attack.hostile.iter().any(|h| h.manner != Manner::Plain) { 0.5 } else { 0.2 };
            let tail = waits * scenario.patience_s;
            runs * (extent.before_s + attack.attack_s(extent) + tail + START_S)
                + CAPACITY_S
                + if attack.is_beside_capacity() { AGAIN_S } else { 0.0 }
        };
        let chosen = scenario.chosen(extent, None).unwrap();
        chosen.iter().map(of).sum::<f64>() / 60.0
    }

    #[test]
    fn all_of_it_fits_in_its_time() {
        let scenario = scenario();
        scenario.check().unwrap();
        let (full, quick) =
            (minutes(&scenario, &scenario.full), minutes(&scenario, &scenario.quick));
        println!("{full} minutes, quick {quick}");
        assert!(full > 30.0 && full <= 75.0, "{full} minutes");
        assert!(quick <= 5.0, "{quick} minutes");
    }

    #[test]
    fn an_attack_that_contradicts_itself_is_named() {
        type Break = fn(&mut Scenario);
        let settle = |s: &mut Scenario| {
            let all = s.attacks.iter_mut().filter_map(|attack| attack.fault.as_mut());
            all.for_each(|fault| fault.settle_s = 5.0);
        };
        let cases: [(Break, &str); 6] = [
            (settle, "at once"),
            (|s| s.addresses = 10, "1,000 addresses"),
            (|s| s.attacks[0].hostile.clear(), "nothing is done"),
            (|s| s.attacks[0].hostile[0].at_once = 5.0, "one rate"),
            (|s| s.attacks[0].hostile[0].addresses = RANGE + 1, "outside of"),
            (
                |s| {
                    let more = vec![s.attacks[0].hostile[0].clone(); RANGES - 2];
                    s.attacks[0].hostile.extend(more);
                },
                "outside of",
            ),
        ];
        for (change, word) in cases {
            let mut wrong = scenario();
            change(&mut wrong);
            let message = wrong.check().unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        assert!(scenario().chosen(&scenario().full, Some("no-such")).is_err());
    }

    /// What happens to the product is over and settled before anything counts.
    #[test]
    fn a_fault_is_over_before_it_counts() {
        let fault =
            Fault { kind: FaultKind::Pause, at_s: 4.0, lasts_s: 15.0, settle_s: 5.0, count_s: 8.0 };
        assert!((fault.counts_from_s() - 24.0).abs() < 1e-9);
        // Of a kill every response counts.
        let kill = Fault { kind: FaultKind::Kill, lasts_s: 0.2, settle_s: 0.0, ..fault };
        assert!((kill.counts_from_s() - 4.0).abs() < 1e-9);
        let all = scenario();
        let paused = all.attacks.iter().find(|attack| attack.fault.is_some()).unwrap();
        assert!(!paused.arms(&all, &all.full).contains(&"none"));
        let beside = all.attacks.iter().filter(|attack| attack.is_beside_capacity());
        let names: Vec<&str> = beside.map(|attack| attack.name.as_str()).collect();
        assert_eq!(names, ["time-wait", "pause", "release", "start", "kill", "restart", "upgrade"]);
    }
}

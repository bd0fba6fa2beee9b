// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of the gateways.

use super::arm::{Arm, arms};
use crate::judge::fits;
use crate::rivals::{Ramp, Shape, Sweep};
use crate::survival::ServerSpec;
use anyhow::{Result, ensure};
use serde::Deserialize;
use tidegate_lab::Transport;

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `gateways`.
    pub kind: String,
    /// Which server; it speaks cleartext to the proxies.
    pub server: ServerSpec,
    /// Length of its listen queue.
    pub backlog: u32,
    /// The proxies.
    pub proxies: Vec<Proxy>,
    /// How clients speak.
    pub transports: Vec<Transport>,
    /// Load before, between and after the steps.
    pub around: f64,
    /// Loads that are there at once, in the order of the course.
    pub steps: Vec<f64>,
    /// A load that rises, at the end of the course.
    pub ramp: Ramp,
    /// Burst of nginx, as the share of a second's capacity.
    pub burst: f64,
    /// How long requests wait in a queue where that is not swept, in milliseconds.
    pub queue_ms: f64,
    /// When clients give up.
    pub timeout_s: f64,
    /// Connections that all clients hold at most.
    pub connections: u32,
    /// The settings that are tried.
    pub sweep: Sweep,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
}

/// A proxy that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Envoy.
    Envoy,
    /// The Go proxy with failsafe-go.
    Failsafe,
    /// Caddy.
    Caddy,
    /// tidegate's own.
    Own,
}

/// How much of it is run. What is empty is as in the scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Proxies.
    #[serde(default)]
    pub proxies: Vec<Proxy>,
    /// Arms by name, beside `none`; empty for all.
    #[serde(default)]
    pub arms: Vec<String>,
    /// Transports.
    #[serde(default)]
    pub transports: Vec<Transport>,
    /// Steps.
    #[serde(default)]
    pub steps: Vec<f64>,
    /// Rates, places and queues that are tried at most, from the first.
    pub tried: usize,
    /// Rounds.
    pub rounds: u32,
    /// How long the load before lasts.
    pub before_s: f64,
    /// How long a step below the capacity.
    pub calm_s: f64,
    /// How long another.
    pub step_s: f64,
    /// How long the ramp; 0 leaves it out.
    pub ramp_s: f64,
    /// How long the load after a step up to the capacity.
    pub between_s: f64,
    /// How long after another.
    pub after_s: f64,
    /// How long the load of a setting that is tried.
    pub try_s: f64,
    /// All the time that there is, in minutes; none for as long as it takes.
    #[serde(default)]
    pub minutes: Option<f64>,
}

impl Proxy {
    /// The word of the variants.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Failsafe => "failsafe",
            Self::Caddy => "caddy",
            Self::Own => "own",
        }
    }
}

/// The word of a transport in the variants.
pub(super) const fn spoken(transport: Transport) -> &'static str {
    match transport {
        Transport::Clear => "clear",
        Transport::Tls => "tls",
        Transport::H2 => "h2",
    }
}

/// What is run next to each other: the arms of a proxy, by one transport.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) proxy: Proxy,
    pub(super) transport: Transport,
    pub(super) arms: Vec<Arm>,
}

impl Group {
    /// `nginx-h2`.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.proxy.name(), spoken(self.transport))
    }
}

fn or_all<'a, T>(some: &'a [T], all: &'a [T]) -> &'a [T] {
    if some.is_empty() { all } else { some }
}

impl Scenario {
    /// Looks for contradictions.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<()> {
        ensure!(self.ramp.from < self.ramp.to, "a ramp rises");
        ensure!(!self.proxies.is_empty() && !self.transports.is_empty(), "proxies and transports");
        ensure!(self.connections > 0, "connections: clients need one");
        ensure!(self.timeout_s > 1.0, "timeout_s is longer than the objective");
        let Sweep { rates, places, queues_ms, .. } = &self.sweep;
        let some = !rates.is_empty() && !places.is_empty() && !queues_ms.is_empty();
        ensure!(some && !places.contains(&0), "the sweep has rates, places and queues");
        let known = |name: &String| Arm::ALL.iter().any(|arm| arm.name() == name);
        let arms = || self.full.arms.iter().chain(&self.quick.arms);
        ensure!(arms().all(known), "an extent names arms that there are");
        Ok(())
    }

    /// The groups of an extent, those with arms of a variant's name (`*` for anything) and the proxy
    /// without a limit beside them.
    ///
    /// # Errors
    /// When no arm has the name.
    pub(super) fn groups(&self, extent: &Extent, filter: Option<&str>) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        for proxy in or_all(&extent.proxies, &self.proxies) {
            for transport in or_all(&extent.transports, &self.transports) {
                let chosen = |arm: &&Arm| {
                    let name = variant(*proxy, *transport, **arm);
                    let wanted = filter.is_none_or(|filter| fits(filter, &name));
                    let some =
                        extent.arms.is_empty() || extent.arms.iter().any(|a| a == arm.name());
                    **arm == Arm::None || (wanted && some)
                };
                let arms: Vec<Arm> = arms(*proxy).iter().filter(chosen).copied().collect();
                if arms.len() > 1 {
                    groups.push(Group { proxy: *proxy, transport: *transport, arms });
                }
            }
        }
        ensure!(!groups.is_empty(), "no arm is named {:?}", filter.unwrap_or_default());
        Ok(groups)
    }

    /// The loads of an arm: without a limit only those below the capacity.
    pub(super) fn shapes(&self, extent: &Extent, arm: Arm) -> Vec<Shape> {
        let steps = or_all(&extent.steps, &self.steps).iter();
        let ramp = (extent.ramp_s > 0.0).then_some(Shape::Ramp(self.ramp.from, self.ramp.to));
        let all = steps.map(|load| Shape::Step(*load)).chain(ramp);
        all.filter(|shape| arm != Arm::None || is_calm(*shape)).collect()
    }
}

/// Whether it stays below the capacity.
pub(super) fn is_calm(shape: Shape) -> bool {
    matches!(shape, Shape::Step(load) if load < 1.0)
}

/// `nginx-h2-gate`.
pub(super) fn variant(proxy: Proxy, transport: Transport, arm: Arm) -> String {
    format!("{}-{}-{}", proxy.name(), spoken(transport), arm.name())
}

impl Extent {
    /// How long a load lasts, and the one after it.
    pub(super) fn lasts(&self, shape: Shape) -> (f64, f64) {
        match shape {
            Shape::Ramp(..) => (self.ramp_s, self.after_s),
            Shape::Step(load) if load < 1.0 => (self.calm_s, self.between_s),
            Shape::Step(load) if load <= 1.0 => (self.step_s, self.between_s),
            Shape::Step(_) => (self.step_s, self.after_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arm::settings;
    use super::*;
    use crate::catalog;
    use crate::survival::arm::Known;

    /// Seconds of a run beyond its load: starting server, proxy and gate, the generator's lead, those
    /// who wait on.
    const START_S: f64 = 3.5;
    /// The search for the capacity, and a measurement with known clients.
    const SEARCH_S: f64 = 15.0;
    const CAPACITY_S: f64 = 8.0;
    /// Requests at 0.9 that the claim needs for each proxy, at the least capacity that is allowed.
    const POOLED: f64 = 30_000.0;
    const CAPACITY: f64 = 800.0;

    fn scenario(name: &str) -> Scenario {
        let experiment = catalog::find(name).unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    fn minutes(scenario: &Scenario, extent: &Extent) -> f64 {
        let known = Known { capacity: 800.0, clients: 8 };
        let groups = scenario.groups(extent, None).unwrap();
        let course = |arm: &Arm| {
            let shapes = scenario.shapes(extent, *arm);
            let loads: f64 =
                shapes.iter().map(|shape| extent.lasts(*shape)).map(|(a, b)| a + b).sum();
            extent.before_s + loads + START_S
        };
        let round: f64 = groups
            .iter()
            .map(|group| group.arms.iter().map(course).sum::<f64>() + 2.0 * CAPACITY_S)
            .sum();
        let mut seen = Vec::new();
        let mut sweep = 0.0;
        for (proxy, arm) in groups.iter().flat_map(|g| g.arms.iter().map(|arm| (g.proxy, *arm))) {
            let tried = settings(scenario, extent, arm, known).len();
            if tried > 1 && !seen.contains(&(proxy, arm)) {
                seen.push((proxy, arm));
                sweep += tried as f64 * (extent.before_s + extent.try_s + START_S);
            }
        }
        let search = (SEARCH_S - CAPACITY_S) * groups.len() as f64;
        (round * f64::from(extent.rounds) + sweep + search) / 60.0
    }

    /// All of it takes at most 75 minutes, the quick run at most 5; at 0.9 there are requests enough.
    #[test]
    fn all_of_it_fits_in_its_time() {
        let scenario = scenario("product/gateways");
        scenario.check().unwrap();
        let (full, quick) =
            (minutes(&scenario, &scenario.full), minutes(&scenario, &scenario.quick));
        println!("{full} minutes, quick {quick}");
        assert!(full > 40.0 && full <= 75.0, "{full} minutes");
        assert!(quick <= 5.0, "{quick} minutes");
        let Extent { calm_s, rounds, .. } = scenario.full;
        let pooled = 0.9 * CAPACITY * calm_s * f64::from(rounds) * scenario.transports.len() as f64;
        assert!(pooled >= POOLED, "{pooled} requests at 0.9");
    }

    /// The matrix has ramps, more rounds and all proxies, and takes less than a night.
    #[test]
    fn the_matrix_is_larger() {
        let (matrix, usual) = (scenario("product/gateways-matrix"), scenario("product/gateways"));
        matrix.check().unwrap();
        let (full, quick) = (minutes(&matrix, &matrix.full), minutes(&matrix, &matrix.quick));
        println!("{full} minutes, quick {quick}");
        assert!(full < 240.0 && quick <= 5.0, "{full} minutes, quick {quick}");
        assert!(matrix.full.rounds > usual.full.rounds && matrix.full.minutes.is_none());
        let ramp = Shape::Ramp(matrix.ramp.from, matrix.ramp.to);
        for extent in [&matrix.full, &matrix.quick] {
            assert_eq!(matrix.shapes(extent, Arm::Gate).last(), Some(&ramp));
        }
        assert!(usual.proxies.iter().all(|proxy| matrix.proxies.contains(proxy)));
        assert!(matrix.proxies.contains(&Proxy::Caddy) && matrix.proxies.contains(&Proxy::Own));
        assert_eq!(matrix.transports, usual.transports);
    }

    #[test]
    fn a_scenario_that_contradicts_itself_is_named() {
        type Break = fn(&mut Scenario);
        let cases: [(Break, &str); 6] = [
            (|s| s.ramp.to = 0.1, "ramp"),
            (|s| s.proxies.clear(), "proxies"),
            (|s| s.timeout_s = 1.0, "timeout_s"),
            (|s| s.connections = 0, "connections"),
            (|s| s.sweep.places = vec![0], "sweep"),
            (|s| s.quick.arms = vec!["squid".into()], "extent"),
        ];
        for (change, word) in cases {
            let mut wrong = scenario("product/gateways");
            change(&mut wrong);
            let message = wrong.check().unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    /// The proxy without a limit is always there: its p99 at 0.9 stands beside the others.
    #[test]
    fn what_is_chosen_stands_beside_the_proxy_without_a_limit() {
        let scenario = scenario("product/gateways");
        let of = |filter| scenario.groups(&scenario.full, filter);
        let nginx = of(Some("nginx-h2-gate")).unwrap();
        assert_eq!((nginx.len(), nginx[0].name().as_str()), (1, "nginx-h2"));
        assert_eq!(nginx[0].arms, [Arm::None, Arm::Gate]);
        let names: Vec<String> = of(None).unwrap().iter().map(Group::name).collect();
        assert_eq!(names.len(), 8, "{names:?}");
        assert!(of(Some("squid-*")).is_err());
        assert_eq!(scenario.shapes(&scenario.full, Arm::None), [Shape::Step(0.9)]);
        assert_eq!(scenario.shapes(&scenario.full, Arm::Gate).len(), 5);
    }
}

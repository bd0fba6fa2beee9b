// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What limits the requests behind a proxy: a fresh server, the proxy, and the gate where it asks. tidegate's own
//! proxy is in the gate's process.

use super::course::Watched;
use super::scenario::{Extent, Group, Proxy, Scenario};
use crate::rivals::Tried;
use crate::survival::arm::{ENVOY, FAILSAFE, Known, Setting, installed};
use anyhow::{Context, Result};
use serde_json::{Map, json};
use std::path::Path;
use tidegate_lab::{
    Arrive, EdgeLimit, EdgeOptions, EdgeProxy, FailsafePolicy, Gate, GateOptions, GateProxy, Lab,
    Server, Stream, Transport,
};
use tidegate_units::Nanos;

/// Port of the server behind the proxy, and of the proxy.
const BEHIND: u16 = 8080;
const EDGE: u16 = 443;
/// Port of our own proxy, which has no privileges.
const OWN: u16 = 8443;
/// A later response is a failure, for those who limit by failures: the objective.
const LATE: Nanos = Nanos::SECOND;

/// What limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// Nothing.
    None,
    /// tidegate.
    Gate,
    /// `limit_conn`.
    LimitConn,
    /// `limit_req`.
    LimitReq,
    /// `maxconn`.
    Maxconn,
    /// Adaptive concurrency.
    Adaptive,
    /// Admission control.
    Admission,
    /// failsafe-go's limiter.
    Limiter,
    /// failsafe-go's throttler.
    Throttler,
}

/// Which arms a proxy has: a proxy that learns to ask is one more word here.
pub(super) const fn arms(proxy: Proxy) -> &'static [Arm] {
    match proxy {
        Proxy::Nginx => &[Arm::None, Arm::Gate, Arm::LimitConn, Arm::LimitReq],
        Proxy::Haproxy => &[Arm::None, Arm::Gate, Arm::Maxconn],
        Proxy::Envoy => &[Arm::None, Arm::Gate, Arm::Adaptive, Arm::Admission],
        Proxy::Failsafe => &[Arm::None, Arm::Limiter, Arm::Throttler],
        // What Debian builds of Caddy has no limit of its own.
        Proxy::Caddy | Proxy::Own => &[Arm::None, Arm::Gate],
    }
}

impl Arm {
    pub(super) const ALL: [Self; 9] = [
        Self::None,
        Self::Gate,
        Self::LimitConn,
        Self::LimitReq,
        Self::Maxconn,
        Self::Adaptive,
        Self::Admission,
        Self::Limiter,
        Self::Throttler,
    ];

    /// The word of the variants.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gate => "gate",
            Self::LimitConn => "limit-conn",
            Self::LimitReq => "limit-req",
            Self::Maxconn => "maxconn",
            Self::Adaptive => "adaptive",
            Self::Admission => "admission",
            Self::Limiter => "limiter",
            Self::Throttler => "throttler",
        }
    }

    /// Whether it is no product of ours and finds its limit by itself.
    pub(super) const fn is_self_tuning_rival(self) -> bool {
        matches!(self, Self::Adaptive | Self::Admission | Self::Limiter | Self::Throttler)
    }

    fn limit<'a>(self, setting: &Setting, gate: Option<&'a Gate>) -> Result<EdgeLimit<'a>> {
        let Setting { places, queue, burst, rate } = *setting;
        Ok(match self {
            Self::None => EdgeLimit::None,
            Self::Gate => EdgeLimit::Gate(gate.context("a gate")?),
            Self::LimitConn | Self::Maxconn => EdgeLimit::Places { connections: places, queue },
            Self::LimitReq => EdgeLimit::Rate { rate: rate.floor().max(1.0) as u32, burst },
            Self::Adaptive => EdgeLimit::AdaptiveConcurrency,
            Self::Admission => EdgeLimit::AdmissionControl { late: LATE },
            Self::Limiter => EdgeLimit::Failsafe(FailsafePolicy::Limiter, queue),
            Self::Throttler => EdgeLimit::Failsafe(FailsafePolicy::Throttler, LATE),
        })
    }
}

/// What is tried for an arm, from the scenario alone; one setting where nothing is to choose.
pub(super) fn settings(scenario: &Scenario, extent: &Extent, arm: Arm, known: Known) -> Vec<Tried> {
    let queue = |ms: f64| Nanos::from_secs_f64(ms / 1e3);
    let burst = (scenario.burst * known.capacity).round().max(1.0) as u32;
    let usual = Setting { burst, queue: queue(scenario.queue_ms), ..Setting::of(known) };
    let one = |setting, x, queue_ms| Tried { setting, x, queue_ms };
    let sweep = &scenario.sweep;
    let rates = sweep.rates.iter().take(extent.tried);
    let places = sweep.places.iter().take(extent.tried);
    let with = |n: u32| Setting { places: known.clients.saturating_mul(n), ..usual };
    match arm {
        Arm::LimitReq => {
            rates.map(|r| one(Setting { rate: r * known.capacity, ..usual }, *r, None)).collect()
        }
        Arm::LimitConn => places.map(|n| one(with(*n), f64::from(*n), None)).collect(),
        Arm::Maxconn => {
            let queues = || sweep.queues_ms.iter().take(extent.tried);
            let each = |n: &u32| {
                let (setting, x) = (with(*n), f64::from(*n));
                let waits = |ms: &f64| one(Setting { queue: queue(*ms), ..setting }, x, Some(*ms));
                queues().map(waits).collect::<Vec<Tried>>()
            };
            places.flat_map(each).collect()
        }
        _ => vec![one(usual, 1.0, None)],
    }
}

/// The numbers of a setting, for a note.
pub(super) fn numbers(arm: Arm, tried: &Tried) -> String {
    let Setting { places, queue, rate, burst } = tried.setting;
    match arm {
        Arm::LimitConn => format!("limit_conn {places}"),
        Arm::Maxconn => format!("maxconn {places}, timeout queue {queue}"),
        _ => format!("{:.0}/s ({} x C), burst {burst}", rate.floor(), tried.x),
    }
}

/// Where the program of a proxy is, if it is not tidegate itself.
///
/// # Errors
/// When it was not installed.
pub(super) fn program(proxy: Proxy) -> Result<Option<EdgeProxy>> {
    Ok(Some(match proxy {
        Proxy::Nginx => EdgeProxy::Nginx,
        Proxy::Haproxy => EdgeProxy::Haproxy,
        Proxy::Envoy => EdgeProxy::Envoy { program: installed(ENVOY)? },
        Proxy::Failsafe => EdgeProxy::Failsafe { program: installed(FAILSAFE)? },
        Proxy::Caddy => EdgeProxy::Caddy,
        Proxy::Own => return Ok(None),
    }))
}

/// Our own proxy as docs/proxy.md has it; without a limit it refuses nobody.
fn own(server: &Server, transport: Transport, arm: Arm) -> GateOptions {
    let mode = if arm == Arm::Gate { "enforce" } else { "shadow" };
    GateOptions {
        proxy: GateProxy::own(OWN, server, None, transport),
        services: json!({"shop": {"mode": mode}}),
        routes: json!([{"service": "shop"}]),
        others: Map::new(),
    }
}

/// What runs; ended by [`Stand::end`], or by drop.
pub(super) struct Stand {
    // In this order they are dropped: what stands in front goes first.
    /// The proxy; none: it is our own, in the gate's process.
    edge: Option<Server>,
    gate: Option<Gate>,
    server: Server,
    transport: Transport,
}

impl Stand {
    pub(super) fn start(
        (lab, scenario, tidegate): (&Lab, &Scenario, &Path),
        (group, arm): (&Group, Arm),
        setting: &Setting,
    ) -> Result<Self> {
        let proxy = program(group.proxy)?;
        let server = &scenario.server;
        let server = server.start(lab, BEHIND, Some(scenario.backlog)).context("the server")?;
        let transport = group.transport;
        let Some(proxy) = proxy else {
            let options = own(&server, transport, arm);
            let gate = lab.start_gate_with(tidegate, &options).context("our own proxy")?;
            return Ok(Self { edge: None, gate: Some(gate), server, transport });
        };
        let gate = (arm == Arm::Gate).then(|| lab.start_gate(tidegate, &proxy)).transpose();
        let gate = gate.context("the gate")?;
        let limit = arm.limit(setting, gate.as_ref())?;
        let options = EdgeOptions { proxy, limit, transport };
        let edge = lab.start_edge(&options, &server, EDGE).context("the proxy")?;
        Ok(Self { edge: Some(edge), gate, server, transport })
    }

    /// Clients who keep their connections, up to so many, at the proxy.
    pub(super) fn stream(&self, name: &str, arrive: Arrive, connections: u32) -> Stream {
        if let Some(edge) = &self.edge {
            return edge.kept(name, arrive, connections);
        }
        let mut stream = self.server.kept(name, arrive, connections);
        stream.target.set_port(OWN);
        Stream { transport: self.transport, ..stream }
    }

    /// The processes whose CPU time is measured. Our own proxy and its gate are one, which counts as the proxy.
    pub(super) fn watched(&self, edge_cpu: usize) -> Watched<'_> {
        let gate = self.gate.as_ref().map(|gate| gate.product.process().group());
        let (proxy, gate) = match &self.edge {
            Some(edge) => (Some(edge.group()), gate),
            None => (gate, None),
        };
        Watched { server: self.server.group(), proxy, gate, edge: self.edge.as_ref(), edge_cpu }
    }

    /// Ends it in good order.
    pub(super) fn end(self) -> Result<()> {
        drop(self.edge);
        self.gate.map_or(Ok(()), |gate| gate.product.stop()).context("tidegate does not end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    const KNOWN: Known = Known { capacity: 800.0, clients: 8 };

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/gateways").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    /// Rates are around the capacity, bursts a tenth of a second of it, queues a quarter of the
    /// objective at most.
    #[test]
    fn settings_are_as_claimed() {
        let scenario = scenario();
        let of = |arm| settings(&scenario, &scenario.full, arm, KNOWN);
        let rates = of(Arm::LimitReq);
        assert_eq!(rates.len(), 4);
        assert!(rates.iter().all(|t| t.setting.burst == 80), "{rates:?}");
        assert!(rates.iter().any(|t| (t.setting.rate - 800.0).abs() < 1e-9), "{rates:?}");
        let places: Vec<u32> = of(Arm::LimitConn).iter().map(|t| t.setting.places).collect();
        assert_eq!(places, [8, 16, 32, 64]);
        let queued = of(Arm::Maxconn);
        assert_eq!(queued.len(), 8);
        assert!(queued.iter().all(|t| t.setting.queue <= Nanos::from_millis(250)), "{queued:?}");
        for arm in [Arm::None, Arm::Gate, Arm::Adaptive, Arm::Admission, Arm::Throttler] {
            assert_eq!(of(arm).len(), 1, "{arm:?}");
        }
        assert_eq!(of(Arm::Limiter)[0].setting.queue, Nanos::from_millis(250));
    }

    /// Each arm but ours belongs to one proxy, and names are words of variants.
    #[test]
    fn arms_are_told_apart_by_name() {
        let mut names = Arm::ALL.map(Arm::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Arm::ALL.len());
        assert!(!Arm::Gate.is_self_tuning_rival() && Arm::Adaptive.is_self_tuning_rival());
        assert!(arms(Proxy::Nginx).contains(&Arm::Gate));
        assert!(program(Proxy::Own).unwrap().is_none(), "it is tidegate");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of one run: one stream for each of the paper's clients.

use super::super::setting::{Arrivals, Control, Setting, Throttle};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use tidegate_lab::{
    Arrive, LoadPlan, Phase, SERVER_V4, Server, Sources, Stream, Throttle as Throttled,
};
use tidegate_units::{Nanos, Random};
use tidegate_workload::{Profile, Rng, Segment, Sessions};

/// Port of the server behind the proxy.
pub(super) const BEHIND: u16 = 8_080;
/// Port of the proxy.
pub(super) const EDGE: u16 = 8_000;
/// Where the load is told to throttle.
pub(super) const TOLD: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, 2), 7_000);
/// Clients have 10.16.0.0/16 and those after it, one each.
pub(super) const PREFIXES: u8 = 16;
/// Addresses of a client.
const ADDRESSES: u32 = 60_000;
/// The measured part.
pub(super) const MEASURED: &str = "measured";
/// Length of the steps in which results are told: some three requests of the server.
pub(super) const SLOT: Nanos = Nanos::from_millis(50);
/// A client gives up so long after it began, in seconds: the last SYN of the classic schedule goes out
/// after 7 s here, and is answered within 8 s at most; then the server's queue is before it.
const TIMEOUT_S: u64 = 25;

/// Whose requests: by Host, which the routes of the gate look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Uncontrolled,
    High,
    Low,
}

impl Client {
    pub(super) const fn host(self) -> &'static str {
        match self {
            Self::Uncontrolled => "preferred.lab.test",
            Self::High => "high.lab.test",
            Self::Low => "low.lab.test",
        }
    }

    pub(super) const fn priority(self) -> u8 {
        match self {
            Self::Uncontrolled => 0,
            Self::High => 1,
            Self::Low => 2,
        }
    }
}

/// The clients of a setting, the uncontrolled one first.
pub(super) fn clients(setting: &Setting) -> Vec<Client> {
    let n = setting.controlled_clients();
    // As the simulator: the second half is low; with shares all but the first.
    let low = |index: u32| {
        let shares = setting.control == Control::DropShare && index > 0;
        shares || setting.priorities && index >= n.div_ceil(2)
    };
    let controlled = (0..n).map(|index| if low(index) { Client::Low } else { Client::High });
    std::iter::once(Client::Uncontrolled).chain(controlled).collect()
}

/// The first address of a client's prefix.
pub(super) const fn prefix(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 16 + index % PREFIXES, 0, 0)
}

/// When a run is measured, in its own seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) lead: f64,
    pub(super) from: f64,
    pub(super) to: f64,
}

/// What a load is made of.
pub(super) struct Wanted<'a> {
    pub(super) setting: &'a Setting,
    /// How much faster than the paper's the server is.
    pub(super) faster: f64,
    pub(super) span: Span,
    pub(super) seed: u64,
}

/// The plan of a run against a server behind a proxy.
pub(super) fn plan(wanted: &Wanted<'_>, server: &Server) -> LoadPlan {
    let Wanted { setting, span, seed, .. } = *wanted;
    let clients = clients(setting);
    let streams =
        (0_u8..).zip(&clients).map(|(index, client)| wanted.stream(server, index, *client));
    let seconds = Nanos::from_secs_f64;
    let phase = Phase { name: MEASURED.into(), start: seconds(span.from), end: seconds(span.to) };
    LoadPlan {
        seed,
        streams: streams.collect(),
        phases: vec![phase],
        slot: SLOT,
        timeout: Nanos::from_secs(TIMEOUT_S),
        shards: 1,
        told_at: adds_gap(setting).then_some(TOLD),
        ..LoadPlan::default()
    }
}

/// Whether the clients themselves are told, and add the gap.
pub(super) fn adds_gap(setting: &Setting) -> bool {
    let throttles = matches!(setting.control, Control::Throttle | Control::Combined);
    throttles && setting.throttle == Throttle::GapAdded
}

impl Wanted<'_> {
    fn stream(&self, server: &Server, index: u8, client: Client) -> Stream {
        let Self { setting, faster, span, seed } = self;
        let own = setting.uncontrolled.min(setting.load);
        let rest = (setting.load - own) / f64::from(setting.controlled_clients());
        let (start, rate) = match client {
            Client::Uncontrolled => (0.0, own * faster),
            _ => (span.lead, rest * faster),
        };
        let arrive = match setting.arrivals {
            Arrivals::Deterministic => {
                // Clients are not in step.
                let mut rng = Rng::new(*seed, u64::from(index));
                let start = start + rng.next_f64() / rate.max(1e-3);
                let calm = Segment::constant(Nanos::from_secs_f64(start), 0.0);
                let lasts = Nanos::from_secs_f64(span.to - start);
                Arrive::constant(Profile::new(&[calm, Segment::constant(lasts, rate)]))
            }
            Arrivals::SelfSimilar => self.self_similar(index, start, rate),
        };
        let ladder = usize::from(setting.priorities && client == Client::Low);
        let gap = Nanos::from_secs_f64(setting.gap_ms / 1e3 / faster);
        let throttled = adds_gap(setting) && client != Client::Uncontrolled;
        Stream {
            target: SocketAddr::new(SERVER_V4, EDGE),
            sources: Sources { first: IpAddr::V4(prefix(index)), count: ADDRESSES },
            host: client.host().into(),
            throttle: throttled.then_some(Throttled { ladder, gap }),
            ..server.stream(&format!("client{index}"), arrive)
        }
    }

    /// M/G/∞: so many in each slot, as the simulator draws them.
    fn self_similar(&self, index: u8, start: f64, rate: f64) -> Arrive {
        let period = Nanos::from_secs_f64(self.setting.slot_s / self.faster);
        let slot = period.as_secs_f64();
        let slots = |seconds: f64| (seconds / slot).round().max(0.0) as usize;
        let mut counts = vec![0; slots(start)];
        let mut rng = Rng::new(self.seed, u64::from(index));
        if let Some(sessions) = Sessions::new(rate * slot, self.setting.hurst) {
            counts.extend(sessions.counts(slots(self.span.to - start), &mut rng));
        }
        Arrive::Trace { counts, period }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's clients, by priority; rates are those of a faster server.
    #[test]
    fn clients_are_those_of_the_setting() {
        let hosts = |setting: &Setting| {
            clients(setting).iter().map(|client| client.host()).collect::<Vec<_>>()
        };
        let two = Setting { load: 67.5, controlled: 2, priorities: true, ..Setting::default() };
        assert_eq!(hosts(&two), ["preferred.lab.test", "high.lab.test", "low.lab.test"]);
        let shares = Setting { load: 71.42, control: Control::DropShare, ..Setting::default() };
        assert_eq!(hosts(&shares), ["preferred.lab.test", "high.lab.test", "low.lab.test"]);
        let three = Setting { load: 99.55, ..Setting::default() };
        assert_eq!(hosts(&three).iter().filter(|host| **host == "high.lab.test").count(), 3);
        let priorities = clients(&two).into_iter().map(Client::priority).collect::<Vec<_>>();
        assert_eq!(priorities, [0, 1, 2]);
    }

    /// A burst of a slot is as large as in the paper's slot, which is longer.
    #[test]
    fn bursts_scale_with_the_server() {
        let setting = Setting { arrivals: Arrivals::SelfSimilar, ..Setting::default() };
        let span = Span { lead: 0.0, from: 1.0, to: 200.0 };
        let wanted = Wanted { setting: &setting, faster: 2.0, span, seed: 5 };
        let Arrive::Trace { counts, period } = wanted.self_similar(1, 100.0, 40.0) else {
            panic!("a trace")
        };
        assert_eq!((period, counts.len()), (Nanos::from_millis(500), 400));
        assert!(counts[..200].iter().all(|count| *count == 0));
        let mean = counts[200..].iter().sum::<u64>() as f64 / 200.0;
        assert!((10.0..30.0).contains(&mean), "20 in half a second: {mean}");
    }
}

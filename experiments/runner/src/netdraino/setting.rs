// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the experiments on NetDraino. The defaults are the paper's where it prints a number
//! (table I), else ours with a reason (`sim/src/netdraino/spec.rs`).

use crate::setting::within;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tidegate_sim::netdraino::{Control as Sim, NetdrainoSpec, Shift};
use tidegate_units::{Nanos, Share};

/// What protects servers and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nothing.
    None,
    /// Each server drops what is above its rate.
    ServerOnly,
    /// The whole rule goes to all routers within `hops` links.
    Naive,
    /// As published. Marks and options of anybody lead to limits here, so it needs
    /// `unsafe_marks_make_limits`.
    InBand,
    /// Ours.
    OutOfBand,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// What is in force.
    pub control: Control,
    /// TCP connections of a client to S0 (table I).
    pub connections: f64,
    /// To each other server.
    pub connections_each: f64,
    /// How many servers are overloaded: S0, and others of which each then has the same part of S0's load and limits.
    pub overloaded: f64,
    /// UDP of a client to S0, KB/s (table I).
    pub udp: f64,
    /// Beside `connections`, UDP to S0 grows with it: so many KB/s more for each connection above 10. In
    /// figure 10 both grow together: 0 to 78 KB/s, with 10 to 400 connections.
    pub udp_each_connection: f64,
    /// UDP to each other server.
    pub udp_each: f64,
    /// Packets per second of a connection while it is on.
    pub on_rate: f64,
    /// S0's limits, packets per second.
    pub rate_tcp: f64,
    /// See above.
    pub rate_udp: f64,
    /// k.
    pub k: f64,
    /// Average queue from which on a router is congested.
    pub th: f64,
    /// `p_a`.
    pub append: f64,
    /// Weight of the present queue in the average.
    pub weight: f64,
    /// Share of the packets that a congested router marks.
    pub mark: f64,
    /// Servers in `CServs`, and how long one stays there, seconds.
    pub cservs: f64,
    /// See above.
    pub cservs_s: f64,
    /// Estimated packets after which a rule is sent.
    pub samples: f64,
    /// δ, seconds.
    pub delta_s: f64,
    /// Steps of the relaxation.
    pub steps: f64,
    /// N of the naive way.
    pub hops: f64,
    /// Length of a turn of S0's clients; 0: all send alike.
    pub shift_s: f64,
    /// How much more the side sends whose turn it is.
    pub shift_times: f64,
    /// Packets to clients pass no congested router.
    pub asymmetric: bool,
    /// Clients relay SCN.
    pub relay: bool,
    /// Clients that forge marks and options.
    pub forging: f64,
    /// Whoever sends packets may make limits.
    pub unsafe_marks_make_limits: bool,
    /// When all ends.
    pub lasts_s: f64,
    /// Counted from here on.
    pub from_s: f64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            control: Control::ServerOnly,
            connections: 100.0,
            connections_each: 10.0,
            overloaded: 1.0,
            udp: 18.0,
            udp_each_connection: 0.0,
            udp_each: 4.0,
            on_rate: 0.6,
            rate_tcp: 200.0,
            rate_udp: 200.0,
            k: 1.2,
            th: 15.0,
            append: 0.1,
            weight: 0.002,
            mark: 0.1,
            cservs: 8.0,
            cservs_s: 5.0,
            samples: 200.0,
            delta_s: 2.0,
            steps: 4.0,
            hops: 2.0,
            shift_s: 0.0,
            shift_times: 4.0,
            asymmetric: false,
            relay: false,
            forging: 0.0,
            unsafe_marks_make_limits: false,
            lasts_s: 80.0,
            from_s: 20.0,
        }
    }
}

impl Setting {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self) -> Result<()> {
        for (name, value, range) in [
            ("connections", self.connections, (0.0, 2000.0)),
            ("connections_each", self.connections_each, (0.0, 2000.0)),
            ("overloaded", self.overloaded, (1.0, 5.0)),
            ("udp", self.udp, (0.0, 1e4)),
            ("udp_each_connection", self.udp_each_connection, (0.0, 100.0)),
            ("udp_each", self.udp_each, (0.0, 1e4)),
            ("on_rate", self.on_rate, (0.01, 1e4)),
            ("rate_tcp", self.rate_tcp, (1.0, 1e6)),
            ("rate_udp", self.rate_udp, (1.0, 1e6)),
            ("k", self.k, (0.1, 16.0)),
            ("th", self.th, (0.1, 1e4)),
            ("append", self.append, (0.001, 1.0)),
            ("weight", self.weight, (1e-5, 1.0)),
            ("mark", self.mark, (0.001, 1.0)),
            ("cservs", self.cservs, (1.0, 64.0)),
            ("cservs_s", self.cservs_s, (0.1, 600.0)),
            ("samples", self.samples, (1.0, 1e6)),
            ("delta_s", self.delta_s, (0.1, 600.0)),
            ("steps", self.steps, (1.0, 16.0)),
            ("hops", self.hops, (1.0, 2.0)),
            ("shift_s", self.shift_s, (0.0, 1e4)),
            ("shift_times", self.shift_times, (1.0, 100.0)),
            ("forging", self.forging, (0.0, 25.0)),
            ("lasts_s", self.lasts_s, (self.from_s + 1.0, 1e4)),
            ("from_s", self.from_s, (4.0, 1e4)),
        ] {
            within(name, value, range)?;
        }
        ensure!(self.udp_to_s0() >= 0.0, "udp to S0 is below 0");
        let whole = |value: f64| value.fract() == 0.0;
        ensure!(
            whole(self.overloaded) && whole(self.connections / self.overloaded),
            "overloaded servers divide the connections to S0: {} by {}",
            self.connections,
            self.overloaded
        );
        ensure!(
            (self.control == Control::InBand) == self.unsafe_marks_make_limits,
            "in-band lets packets make limits: it needs unsafe_marks_make_limits, and nothing else does"
        );
        Ok(())
    }

    fn udp_to_s0(&self) -> f64 {
        self.udp + self.udp_each_connection * (self.connections - 10.0)
    }

    /// What S0 accepts, packets per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate_tcp + self.rate_udp
    }

    /// The simulator's setting.
    #[must_use]
    pub fn spec(&self, seed: u64) -> NetdrainoSpec {
        let control = match self.control {
            Control::None => Sim::None,
            Control::ServerOnly => Sim::ServerOnly,
            Control::Naive => Sim::Naive(self.hops as u32),
            Control::InBand => Sim::InBand,
            Control::OutOfBand => Sim::OutOfBand,
        };
        let mut spec = NetdrainoSpec::new(seed, control);
        spec.congestion = match self.control {
            Control::InBand | Control::Naive => {
                tidegate_sim::netdraino::CongestionSpec::published(self.th, self.weight)
            }
            _ => {
                let weight = Share::new(self.weight);
                let queue = self.th;
                tidegate_sim::netdraino::CongestionSpec { queue, weight, ..spec.congestion }
            }
        };
        spec.pushback.delta = Nanos::from_secs_f64(self.delta_s);
        spec.pushback.steps = self.steps as u32;
        NetdrainoSpec {
            lasts: Nanos::from_secs_f64(self.lasts_s),
            connections: (self.connections as u32, self.connections_each as u32),
            overloaded: self.overloaded as u32,
            udp: (self.udp_to_s0(), self.udp_each),
            on_rate: self.on_rate,
            rates: (self.rate_tcp, self.rate_udp),
            k: self.k,
            append: self.append,
            mark: self.mark,
            cservs: (self.cservs as usize, Nanos::from_secs_f64(self.cservs_s)),
            samples: self.samples as u64,
            shift: (self.shift_s > 0.0).then(|| Shift {
                period: Nanos::from_secs_f64(self.shift_s),
                times: self.shift_times,
            }),
            asymmetric: self.asymmetric,
            relay: self.relay,
            forging: self.forging as u32,
            ..spec
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published mode is unsafe, and whoever wants it says so.
    #[test]
    fn packets_make_limits_only_where_that_is_wanted() {
        let published = Setting { control: Control::InBand, ..Setting::default() };
        let why = published.check().expect_err("nobody has said so").to_string();
        assert!(why.contains("unsafe_marks_make_limits"), "{why}");
        assert!(Setting { unsafe_marks_make_limits: true, ..published }.check().is_ok());
        let other = Setting { unsafe_marks_make_limits: true, ..Setting::default() };
        assert!(other.check().is_err());
        assert!(Setting::default().check().is_ok());
        for (overloaded, is) in [(4.0, true), (3.0, false), (2.5, false)] {
            let setting = Setting { overloaded, ..Setting::default() };
            assert_eq!(setting.check().is_ok(), is, "{overloaded}");
        }
    }
}

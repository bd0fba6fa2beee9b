// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the testbed. The defaults are the paper's where it prints a number (section 7.1), else ours
//! with a reason.

use crate::setting::within;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use tidegate_lab::{AttackKind, RoadHost};

/// k: a constant of the product, and the paper's (table II).
pub(super) const K: f64 = 1.2;
/// Frames of a request beside its own bytes: SYN (74), and with 66 each the last of the handshake, the head of
/// the request's segment, the acknowledgement of the response, and the client's FIN. Ethernet's head included.
const FRAMES_BYTES: f64 = 74.0 + 4.0 * 66.0;
/// Ethernet's head of a datagram.
const ETHERNET_BYTES: f64 = 14.0;

/// What protects servers and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nothing: S0 takes what its program can serve.
    None,
    /// S0 drops what is above its rate.
    ServerOnly,
    /// Its whole rule holds at all routers within `hops` links, whatever happens (section 2.1).
    Naive,
    /// The product: the routers within `hops` links have a daemon, and S0 limits those that are congested.
    OutOfBand,
    /// As published: marks and options of packets lead to limits at R2. Nothing of the product limits. Only with
    /// `unsafe_marks_make_limits`.
    InBand,
    /// The product: S0 announces its limit by BGP FlowSpec to R3, which is not ours, and R2 enforces what R3 sends.
    Flowspec,
}

/// Who attacks the limits meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Nobody.
    None,
    /// Hosts without a certificate of the authority.
    Strangers,
    /// S1, which is compromised, limits S0.
    Forged,
    /// The same repeats its own limits.
    Replays,
    /// In the place of R1 somebody else.
    Impostor,
    /// R1, which is compromised; what it passes comes through R2.
    LiarBehind,
    /// R3, which is compromised: the router nearest to the servers.
    Liar,
    /// Clients send marks and options, and S1 the marks of an overloaded server.
    Marks,
}

impl Attack {
    /// How it is done, where it speaks the protocol of peers.
    #[must_use]
    pub const fn kind(self) -> Option<AttackKind> {
        match self {
            Self::None | Self::Marks => None,
            Self::Strangers => Some(AttackKind::Strangers),
            Self::Forged => Some(AttackKind::Forged),
            Self::Replays => Some(AttackKind::Replays),
            Self::Impostor => Some(AttackKind::Impostor),
            Self::LiarBehind | Self::Liar => Some(AttackKind::Liar),
        }
    }

    /// The router in whose place it stands.
    #[must_use]
    pub const fn place(self) -> Option<RoadHost> {
        match self {
            Self::Impostor | Self::LiarBehind => Some(RoadHost::R1),
            Self::Liar => Some(RoadHost::R3),
            _ => None,
        }
    }
}

/// The BGP speaker of S0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speaker {
    /// GoBGP.
    Gobgp,
    /// ExaBGP.
    Exabgp,
}

impl Speaker {
    /// As the product's configuration says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gobgp => "gobgp",
            Self::Exabgp => "exabgp",
        }
    }
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// What is in force.
    pub control: Control,
    /// The link between R2 and R3.
    pub link_mbit: f64,
    /// Packets that its queue holds. The threshold of congestion is half of it in the product, the paper's 25.
    pub queue: f64,
    /// Each agent's own link. One kernel sends the SYNs of many clients again in bursts, which would be lost together
    /// in the narrow link's queue; here they come apart, as those of many hosts do. 100: the paper's, no matter.
    pub access_mbit: f64,
    /// Connections per second that S0 takes.
    pub s0_rate: f64,
    /// Datagrams per second that S0 takes. The paper does not print it: so few that `K` times both rates of S0 and
    /// S1's load fit the link, which is checked.
    pub s0_datagrams: f64,
    /// Requests per second for S0, of both agents together.
    pub s0_requests: f64,
    /// For S1.
    pub s1_requests: f64,
    /// Datagrams for S0.
    pub udp_mbit: f64,
    /// Bytes of a datagram's IP packet.
    pub datagram_bytes: f64,
    /// Bytes of a request. The paper does not print it: a short one of a browser.
    pub request_bytes: f64,
    /// Requests per second that the program of S0 can serve, one at a time: a little more than its rate, so that
    /// the rate is what limits it.
    pub s0_serves: f64,
    /// Links from S0 to the last router with a daemon: 3 reaches all. The paper does not print N.
    pub hops: f64,
    /// Clients give up after so long; in the lab 10 s everywhere.
    pub patience_s: f64,
    /// Whether S1 has a grant for itself, and routers know its service.
    pub neighbour: bool,
    /// Who attacks.
    pub attack: Attack,
    /// How S0 announces, with `flowspec`.
    pub speaker: Speaker,
    /// Whoever can send packets can make limits: the published mode (`in-band`) wants this to be said.
    pub unsafe_marks_make_limits: bool,
    /// Average queue above which R2 is congested, with `in-band` (table II).
    pub th: f64,
    /// `p_a`, with `in-band` (table II).
    pub append: f64,
    /// Estimated packets of a class before R2 gets a limit, with `in-band`. The paper does not print it: as in the
    /// simulator.
    pub samples: f64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            control: Control::ServerOnly,
            link_mbit: 2.0,
            queue: 50.0,
            access_mbit: 100.0,
            s0_rate: 100.0,
            s0_datagrams: 50.0,
            s0_requests: 0.0,
            s1_requests: 200.0,
            udp_mbit: 0.0,
            datagram_bytes: 1_000.0,
            request_bytes: 300.0,
            s0_serves: 110.0,
            hops: 3.0,
            patience_s: 10.0,
            neighbour: false,
            attack: Attack::None,
            speaker: Speaker::Gobgp,
            unsafe_marks_make_limits: false,
            th: 25.0,
            append: 0.125,
            samples: 200.0,
        }
    }
}

impl Setting {
    /// Whether every value is in its range, and what S0 takes leaves S1 its share of the link.
    ///
    /// # Errors
    /// Names what is not.
    pub fn check(&self) -> Result<()> {
        for (name, value, range) in [
            ("link_mbit", self.link_mbit, (0.1, 1e3)),
            ("queue", self.queue, (1.0, 1e4)),
            ("access_mbit", self.access_mbit, (0.1, 1e3)),
            ("s0_rate", self.s0_rate, (1.0, 1e4)),
            ("s0_datagrams", self.s0_datagrams, (1.0, 1e4)),
            ("s0_requests", self.s0_requests, (0.0, 2e3)),
            ("s1_requests", self.s1_requests, (1.0, 2e3)),
            ("udp_mbit", self.udp_mbit, (0.0, 100.0)),
            ("datagram_bytes", self.datagram_bytes, (28.0, 1_500.0)),
            ("request_bytes", self.request_bytes, (100.0, 1_400.0)),
            ("s0_serves", self.s0_serves, (self.s0_rate, 1e4)),
            ("hops", self.hops, (2.0, 3.0)),
            ("patience_s", self.patience_s, (1.0, 60.0)),
            ("th", self.th, (0.1, 1e4)),
            ("append", self.append, (0.001, 1.0)),
            ("samples", self.samples, (1.0, 1e6)),
        ] {
            within(name, value, range)?;
        }
        self.combine()?;
        let (bytes, link) = (self.wanted_bytes(), self.link_bytes());
        ensure!(
            bytes <= link,
            "k times what S0 takes, and S1's load: {bytes:.0} of {link:.0} bytes/s"
        );
        Ok(())
    }

    fn combine(&self) -> Result<()> {
        let in_band = self.control == Control::InBand;
        ensure!(
            in_band == self.unsafe_marks_make_limits,
            "in-band lets packets make limits: it needs unsafe_marks_make_limits, and nothing else does"
        );
        let attacked = self.attack != Attack::None;
        let whole = self.control == Control::OutOfBand && self.neighbour && self.hops >= 3.0;
        ensure!(!attacked || whole, "attacks are on out-of-band with all routers and a neighbour");
        Ok(())
    }

    /// What is made once for all runs: width and queue of the narrow link, width of the agents'.
    #[must_use]
    pub const fn links(&self) -> (f64, f64, f64) {
        (self.link_mbit, self.queue, self.access_mbit)
    }

    /// Bytes per second that the link carries.
    #[must_use]
    pub fn link_bytes(&self) -> f64 {
        self.link_mbit * 1e6 / 8.0
    }

    /// Datagrams per second that are sent.
    #[must_use]
    pub fn datagrams(&self) -> f64 {
        self.udp_mbit * 1e6 / 8.0 / self.datagram_bytes
    }

    /// What `K` times the rates of S0, and S1's load, put on the link.
    fn wanted_bytes(&self) -> f64 {
        let request = FRAMES_BYTES + self.request_bytes;
        let datagrams = if self.udp_mbit > 0.0 { self.s0_datagrams } else { 0.0 };
        let of_s0 = self.s0_rate * request + datagrams * (ETHERNET_BYTES + self.datagram_bytes);
        K * of_s0 + self.s1_requests * request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_s0_takes_leaves_s1_its_share() {
        Setting::default().check().unwrap();
        let attacked = Setting { s1_requests: 100.0, udp_mbit: 4.0, ..Setting::default() };
        attacked.check().unwrap();
        assert_eq!(attacked.datagrams(), 500.0);
        let greedy = Setting { s0_datagrams: 200.0, ..attacked };
        assert!(greedy.check().unwrap_err().to_string().contains("of 250000 bytes/s"));
        Setting { udp_mbit: 0.0, ..greedy }.check().unwrap();
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let wrong = Setting { hops: 1.0, ..Setting::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("hops"));
        let wrong = Setting { append: 2.0, ..Setting::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("append"));
        let wrong = Setting { s0_serves: 90.0, ..Setting::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("s0_serves"));
    }

    /// The published mode is unsafe, and whoever wants it says so.
    #[test]
    fn packets_make_limits_only_where_that_was_wanted() {
        let published = Setting { control: Control::InBand, ..Setting::default() };
        let why = published.check().unwrap_err().to_string();
        assert!(why.contains("unsafe_marks_make_limits"), "{why}");
        let wanted = Setting { unsafe_marks_make_limits: true, ..published };
        wanted.check().unwrap();
        let ours = Setting { control: Control::OutOfBand, ..wanted };
        assert!(ours.check().is_err());
    }

    #[test]
    fn attacks_are_on_ours() {
        let attacked = Setting { attack: Attack::Forged, neighbour: true, ..Setting::default() };
        assert!(attacked.check().is_err());
        Setting { control: Control::OutOfBand, ..attacked }.check().unwrap();
    }
}

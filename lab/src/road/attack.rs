// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attackers on the road, and where marks of theirs would be seen.

use super::peers::{GRANTS, Pushback, identity, scope, signer};
use super::{PEERS, Road, RoadHost};
use crate::attack::{self, Attack, AttackCounts, AttackKind, Limiter, Receiver};
use crate::error::Result;
use crate::graph::clients;
use crate::process::Managed;
use crate::server::nft;
use crate::topology::{self, Role};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Datagrams with marks and an option.
const MARKED: &str = include_str!("marked.py");
/// How many a second.
const MARKED_RATE: u32 = 50;
/// Marks as a DSCP: a router's, a server's, both (bits 1 and 2).
const MARKS: [u8; 3] = [2, 4, 6];
/// Port at which nobody listens.
const NOBODY: u16 = 9;
/// The table that sees marks at S0.
const TABLE: &str = "tgmarks";

/// Attacks until it is dropped.
#[derive(Debug)]
pub struct Attacker(Vec<Managed>);

impl Attacker {
    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> AttackCounts {
        let all = self.0.iter().map(|process| attack::last(process.log()));
        all.fold(AttackCounts::default(), |sum, one| AttackCounts {
            sent: sum.sent + one.sent,
            allowed: sum.allowed + one.allowed,
            taken: sum.taken + one.taken,
            answers: sum.answers + one.answers,
        })
    }
}

/// What came to S0 although a border should have cleared it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkCounts {
    /// Packets with option 158.
    pub options: u64,
    /// Packets that say that a server is overloaded.
    pub marks: u64,
}

/// Counts marks at S0; gone by drop.
#[derive(Debug)]
pub struct MarkMeter {
    net: String,
}

impl MarkMeter {
    /// What it has counted.
    ///
    /// # Errors
    /// When the rules are not there.
    pub fn counts(&self) -> Result<MarkCounts> {
        let counts = nft::counts_of(&self.net, TABLE)?;
        let packets = |place: usize| counts.get(place).map_or(0, |(packets, _)| *packets);
        Ok(MarkCounts { options: packets(0), marks: packets(1) })
    }
}

impl Drop for MarkMeter {
    fn drop(&mut self) {
        nft::delete(&self.net, TABLE);
    }
}

impl Road<'_> {
    /// Attacks limits, from S1 or in the place of this router, until what it gives is dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn attack(
        &self,
        kind: AttackKind,
        router: RoadHost,
        pushback: &Pushback,
    ) -> Result<Attacker> {
        let server =
            matches!(kind, AttackKind::Strangers | AttackKind::Forged | AttackKind::Replays);
        let host = if server { RoadHost::S1 } else { router };
        let limiter = |(host, grant): (RoadHost, u64)| Limiter {
            service: host.name().to_owned(),
            scope: scope(host),
            grant,
            key: pushback.keys.join(format!("{}.key", signer(host))),
        };
        let receiver = |host: RoadHost| Receiver {
            identity: identity(host),
            address: SocketAddrV4::new(host.address(), PEERS),
        };
        let [victim, own] = GRANTS.map(limiter);
        let plan = Attack {
            kind,
            name: host.name().to_owned(),
            keys: pushback.keys.clone(),
            foreign: pushback.foreign.clone(),
            // The one before the narrow link, and another one.
            routers: vec![receiver(RoadHost::R2), receiver(RoadHost::R3)],
            listen: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PEERS),
            own,
            victim,
        };
        let mut command = self.lab.helper().command("attack");
        command.push(plan.json()?);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        Ok(Attacker(vec![self.lab.start_beside(self.net(host), "attack", &words)?]))
    }

    /// Sends datagrams with marks and with option 158, until what it gives is dropped: from clients to S0 all of
    /// them, from S1 to clients what an overloaded server would say.
    ///
    /// # Errors
    /// When they cannot be started.
    pub fn forge_marks(&self) -> Result<Attacker> {
        let [a, b, ..] = clients(0).octets();
        let client = Ipv4Addr::new(a, b, 255, 254);
        let words = |from: Ipv4Addr, (to, port): (Ipv4Addr, u16), option: String, marks: &[u8]| {
            let head = ["python3", "-c", MARKED].map(str::to_owned);
            let numbers = [from.to_string(), to.to_string(), port.to_string()];
            let rest = [MARKED_RATE.to_string(), option];
            let marks = marks.iter().map(ToString::to_string);
            head.into_iter().chain(numbers).chain(rest).chain(marks).collect::<Vec<String>>()
        };
        let target = RoadHost::S0.target();
        let option = option(RoadHost::R2.address());
        let outside = words(client, (*target.ip(), target.port()), option, &MARKS);
        let inside = words(RoadHost::S1.address(), (client, NOBODY), "-".to_owned(), &[MARKS[1]]);
        let start = |net: String, words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.lab.start_beside(net, "marks", &words)
        };
        let outside = start(Role::Client.path(self.lab.id()), &outside)?;
        Ok(Attacker(vec![outside, start(self.net(RoadHost::S1), &inside)?]))
    }

    /// Counts marks and options that come to S0.
    ///
    /// # Errors
    /// What nft says.
    pub fn see_marks(&self) -> Result<MarkMeter> {
        let net = self.net(RoadHost::S0);
        topology::within(&net, &["nft", "-f", "-"], &seen())?;
        let marks = MarkMeter { net };
        marks.counts()?;
        Ok(marks)
    }
}

/// An option that says that packets pass this router, each second of which says so (papers/netdraino.txt, figure 14).
fn option(router: Ipv4Addr) -> String {
    let address = router.octets().map(|byte| format!("{byte:02x}")).concat();
    format!("9e0c0000{address}80000001")
}

/// A router's mark may be one of a router of ours; a server's is none of ours at S0.
fn seen() -> String {
    let [_, server, both] = MARKS;
    format!(
        "table inet {TABLE} {{\n chain seen {{\n  type filter hook prerouting priority -300; policy accept;\n  \
         ip hdrlength > 5 @nh,160,8 158 counter\n  ip dscp {{ {server}, {both} }} counter\n }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_the_form_of_the_paper() {
        assert_eq!(option(Ipv4Addr::new(10, 64, 4, 1)), "9e0c00000a40040180000001");
        assert!(seen().contains("ip dscp { 4, 6 } counter"), "{}", seen());
    }
}

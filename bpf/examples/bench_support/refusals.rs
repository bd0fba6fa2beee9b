// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a refused SYN costs on the receive path: ours, and what else an operator could take. Each
//! has an arena of its own; each is believed only as far as its own counter went.

use super::arena::{Answers, Arena, Flood, SERVICE, swallowed, tcp_counter};
use super::compile::Object;
use super::haproxy;
use super::space::{Guard, last_cpu};
use super::worker::{Subject, Subjects};
use anyhow::{Context, Result, ensure};
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, bind, listen, socket};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use tidegate_bpf::testing::bench::{Attachment, Bench};
use tidegate_bpf::testing::plans;
use tidegate_bpf::{Dataplane, Interface, Plan, ServiceParams};
use tidegate_config::{Attach, InterfaceConfig, ServiceConfig};
use tidegate_policy::{Action, BucketSpec, Params, Policy, VerdictKind};
use tidegate_units::Rate;

/// A cap that no bench reaches.
const ANSWERS_MANY: u32 = 100_000_000;
/// Of the frames that were sent, so many per cent must have been counted by what refused them.
const COUNTED_MIN: u64 = 98;
/// A backlog nobody exceeds.
const BACKLOG: i32 = 128;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// SYNs of one measurement.
    pub frames: u32,
    /// Connections of one measurement of the proxy.
    pub connections: u32,
}

impl Scale {
    /// Under a second for the slowest.
    pub const FULL: Self = Self { frames: 1 << 18, connections: 6000 };
    /// Enough to see that everything works.
    pub const SMOKE: Self = Self { frames: 1 << 12, connections: 50 };
}

/// Who refuses.
enum Refuser {
    /// Nobody: the generator itself is measured.
    Nobody,
    /// The dataplane, and a listener behind it.
    Ours { plane: Box<Dataplane>, kind: VerdictKind, _listener: OwnedFd },
    /// The least that XDP can do.
    Floor { bench: Bench, _attached: Attachment, _listener: OwnedFd },
    /// A rule with the counter `refused` in the table `bench` of this family.
    Nft { family: &'static str },
    /// A listener whose accept queue is full.
    Full { _listener: OwnedFd, _waiting: Vec<TcpStream> },
}

impl Refuser {
    /// Called before each measurement: renews what runs out.
    fn ready(&mut self) -> Result<()> {
        if let Self::Ours { plane, .. } = self {
            plane.heartbeat()?;
        }
        Ok(())
    }

    /// How many it refused so far.
    fn refused(&self, arena: &Arena) -> Result<u64> {
        match self {
            Self::Nobody => Ok(0),
            Self::Ours { plane, kind, .. } => {
                let counts = plane.counts()?;
                let ours = counts.iter().filter(|c| c.verdict == *kind && !c.shadow);
                Ok(ours.map(|count| count.count).sum())
            }
            Self::Floor { bench, .. } => swallowed(bench),
            Self::Nft { family } => {
                let arguments = ["list", "counter", family, "bench", "refused"];
                let text = arena.server.run("nft", &arguments, "")?;
                let number = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
                number.and_then(|number| number.parse().ok()).context("nft shows no counter")
            }
            Self::Full { .. } => tcp_counter(&arena.server, "ListenOverflows"),
        }
    }
}

struct Refusal {
    name: &'static str,
    about: &'static str,
    arena: Arena,
    flood: Flood,
    refuser: Refuser,
}

impl Subject for Refusal {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn measure(&mut self) -> Result<f64> {
        let alone = self.flood.alone(&self.arena)?;
        if matches!(self.refuser, Refuser::Nobody) {
            return Ok(alone);
        }
        self.refuser.ready()?;
        let refused = self.refuser.refused(&self.arena)?;
        let answered = self.flood.swallowed()?;
        let both = self.flood.received(&self.arena)?;
        let refused = self.refuser.refused(&self.arena)? - refused;
        self.check("refused", refused)?;
        if let Some((before, after)) = answered.zip(self.flood.swallowed()?) {
            self.check("answered", after - before)?;
        }
        // Less than nothing is noise, of the floor at most.
        Ok((both - alone).max(0.0))
    }
}

impl Refusal {
    fn check(&self, what: &str, count: u64) -> Result<()> {
        let frames = u64::from(self.flood.frames());
        let enough = count * 100 >= frames * COUNTED_MIN;
        ensure!(enough, "{frames} SYNs were sent, but only {count} {what}");
        Ok(())
    }
}

/// A listener at the service's port of all addresses.
fn listener(arena: &Arena, backlog: i32) -> Result<OwnedFd> {
    arena.server.on_cpu(last_cpu(), || {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVICE.port());
        bind(&fd, &SocketAddrAny::from(any))?;
        listen(&fd, backlog)?;
        Ok(fd)
    })
}

fn plan(interface: Interface, action: Action) -> Plan {
    let policy = plans::policy(Policy::FreshFirst, action);
    let service = plans::service("bench", &[&SERVICE.to_string()]);
    let mut plan = plans::plan(vec![ServiceConfig { policy, ..service }]);
    plan.config.interfaces = vec![InterfaceConfig { attach: Attach::Xdp, ..interface.config }];
    plan.config.replies.rst_per_second = ANSWERS_MANY;
    plan.settings.namespace = interface.namespace;
    plan
}

/// The product with its default policy, which refuses all but one SYN a second.
fn ours(arena: &Arena, action: Action) -> Result<Refuser> {
    let listener = listener(arena, BACKLOG)?;
    let mut plane = Box::new(Dataplane::start(&plan(arena.s0(), action))?);
    let params = Params::fresh_first(&BucketSpec::new(Rate::per_second(1.0), 1, action))?;
    plane.set_limits(&[ServiceParams::new(0, params)], &[], 1)?;
    let kind = if action == Action::Drop { VerdictKind::Drop } else { VerdictKind::Reject };
    Ok(Refuser::Ours { plane, kind, _listener: listener })
}

fn floor(arena: &Arena, program: &str) -> Result<Refuser> {
    let bench = Object::compile("flood")?.load()?;
    let attached = bench.attach(program, &arena.s0())?;
    Ok(Refuser::Floor { bench, _attached: attached, _listener: listener(arena, BACKLOG)? })
}

/// A rule of nftables that refuses all but one SYN a second.
fn nft(arena: &Arena, family: &'static str, hook: &str, refuse: &str) -> Result<Refuser> {
    let port = SERVICE.port();
    let rules = format!(
        "table {family} bench {{
            counter refused {{ }}
            chain refuse {{
                type filter hook {hook} priority 0; policy accept;
                tcp dport {port} tcp flags & (syn | ack) == syn \
                    limit rate over 1/second burst 1 packets counter name refused {refuse}
            }}
        }}"
    );
    arena.receive_without_xdp()?;
    arena.server.run("nft", &["-f", "-"], &rules)?;
    Ok(Refuser::Nft { family })
}

/// A listener with room for one, two connections that nobody accepts, no cookies.
fn full(arena: &Arena) -> Result<Refuser> {
    arena.receive_without_xdp()?;
    arena.server.run("sysctl", &["-q", "-w", "net.ipv4.tcp_syncookies=0"], "")?;
    let listener = listener(arena, 1)?;
    let waiting = arena.server.on_cpu(last_cpu(), || {
        let connect = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, SERVICE.port()));
        Ok((0..2).map(connect).collect::<std::io::Result<Vec<_>>>()?)
    })?;
    Ok(Refuser::Full { _listener: listener, _waiting: waiting })
}

type Refuse = fn(&Arena) -> Result<Refuser>;

const REFUSALS: [(&str, &str, Refuse); 9] = [
    ("generator", "making and sending a SYN (already subtracted from all others)", |_| {
        Ok(Refuser::Nobody)
    }),
    ("floor", "an XDP program that drops everything", |arena| floor(arena, "swallow")),
    ("socket-floor", "the same, but it asks the kernel for the socket first", |arena| {
        floor(arena, "ask_and_swallow")
    }),
    ("drop", "tidegate, default policy, silent", |arena| ours(arena, Action::Drop)),
    ("reset", "tidegate, default policy, RST from XDP", |arena| ours(arena, Action::Reject)),
    ("nft-input-limit", "nftables, input: limit rate over, drop", |arena| {
        nft(arena, "ip", "input", "drop")
    }),
    ("nft-input-reject", "nftables, input: limit rate over, reject with tcp reset", |arena| {
        nft(arena, "ip", "input", "reject with tcp reset")
    }),
    ("nft-netdev-reject", "nftables, netdev ingress: the same", |arena| {
        nft(arena, "netdev", "ingress device \"s0\"", "reject with tcp reset")
    }),
    ("accept-queue-overflow", "the kernel: accept queue full, no cookies", full),
];

/// All subjects.
pub fn subjects(scale: &Scale) -> Result<Subjects> {
    let guard = Guard::start()?;
    let object = Object::compile("flood")?;
    let mut subjects = Subjects::new();
    for (name, about, refuse) in REFUSALS {
        let arena = Arena::new(&guard, Answers::ToNobody)?;
        let refuser = refuse(&arena).with_context(|| format!("setting up {name}"))?;
        let mut flood = Flood::new(&object, &arena, scale.frames)?;
        if matches!(refuser, Refuser::Ours { kind: VerdictKind::Reject, .. }) {
            flood.swallow_answers(&arena)?;
        }
        subjects.push(Box::new(Refusal { name, about, arena, flood, refuser }));
    }
    subjects.push(Box::new(haproxy::Proxy::new(&guard, scale.connections)?));
    Ok(subjects)
}

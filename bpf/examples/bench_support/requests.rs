// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Subjects of `cargo xtask bench requests`: nanoseconds per run of the hooks for requests, by kind of
//! packet, as the kernel counts them (`kernel.bpf_stats_enabled`; some 20 ns of counting included).
//! Every run is of another connection. A refusal sends its clone to the loopback device.

use super::worker::{Subject, Subjects};
use anyhow::{Context, Result, ensure};
use tidegate_bpf::testing::{TestHook, TestPlane, plans};
use tidegate_bpf::{BucketParams, Plan};
use tidegate_config::{RuleConfig, ServiceConfig};
use tidegate_units::Rate;

/// Rules that stand at one path, each for a host of its own.
const TENANTS: usize = 1000;
/// Where the kernel is told to count.
const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Of the connections, how many must have met what is said: the table of flows forgets some where two
/// of them meet.
const MET: f64 = 0.9;
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The server's initial sequence number (0 would be none).
const ISN: u32 = 1000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;
const FIELDS: &str = "Host: shop.example\r\nUser-Agent: bench\r\nAccept: text/html,*/*\r\n\
    Accept-Encoding: gzip\r\nCookie: session=1234567890\r\n\r\n";
const ANSWER: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Connections.
    pub connections: u32,
}

impl Scale {
    /// For figures.
    pub const FULL: Self = Self { connections: 8000 };
    /// For a test that only wants to see that it works.
    pub const SMOKE: Self = Self { connections: 100 };
}

/// A segment of a connection: who, flags, sequence and acknowledgement number, data.
#[derive(Clone, Debug)]
struct Segment {
    client: bool,
    flags: u8,
    seq: u32,
    ack: u32,
    data: String,
}

fn frame(connection: u32, segment: &Segment) -> Vec<u8> {
    let port = (1024 + connection % 50_000) as u16;
    let (client, server) = ([198, 51, 100, 1], [192, 0, 2, 10]);
    let ends = if segment.client {
        [(SERVER, CLIENT), (CLIENT, SERVER)]
    } else {
        [(CLIENT, SERVER), (SERVER, CLIENT)]
    };
    let mut bytes = [ends[0].0, ends[0].1].concat();
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(((40 + segment.data.len()) as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    let (addresses, ports) = if segment.client {
        ([client, server], [port, 80])
    } else {
        ([server, client], [80, port])
    };
    bytes.extend(addresses.concat());
    bytes.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    bytes.extend([segment.seq, segment.ack].into_iter().flat_map(u32::to_be_bytes));
    bytes.extend([0x50, segment.flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend_from_slice(segment.data.as_bytes());
    bytes
}

/// `/free` has tokens, `/busy` one; `/tenants` a rule for each of many hosts.
fn plan() -> Plan {
    let tenant = |n: usize| RuleConfig {
        host: format!("tenant{n}.example").parse().ok(),
        ..plans::rule("/tenants", Some("full"))
    };
    let rules = [plans::rule("/free", Some("full")), plans::rule("/busy", Some("empty"))];
    let rules = rules.into_iter().chain((0..TENANTS).map(tenant)).collect();
    let requests = Some(plans::requests(&["full", "empty"], rules));
    plans::plan(vec![ServiceConfig { requests, ..plans::service("shop", &["*:80"]) }])
}

/// Longer than the pause between two 503s of one request.
const REPEATED_AFTER: std::time::Duration = std::time::Duration::from_millis(150);

/// What a connection says, in its order. What stands before a kind has been said when it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    HandshakeEnd,
    EstablishedSyn,
    Established,
    Admitted,
    FirstHost,
    LastHost,
    Answer,
    Acknowledged,
    Refused,
    Repeated,
    Fin,
}

const KINDS: [(Kind, &str, &str); 11] = [
    (Kind::HandshakeEnd, "handshake-end", "the end of a handshake"),
    (Kind::EstablishedSyn, "established-syn-hook", "established, no request: the hook for SYNs"),
    (Kind::Established, "established", "established, no request"),
    (Kind::Admitted, "request-admitted", "a request, evaluated and admitted"),
    (Kind::FirstHost, "request-first-host", "the same, for the first of 1000 hosts at one path"),
    (Kind::LastHost, "request-last-host", "the same, for the last of them"),
    (Kind::Answer, "answer", "an answer of the server, to its end"),
    (Kind::Acknowledged, "answer-acknowledged", "the client's acknowledgement of it"),
    (Kind::Refused, "request-refused", "a request, refused with a 503"),
    (Kind::Repeated, "refused-again", "a refused request that comes again"),
    (Kind::Fin, "refused-fin", "the client's FIN before it has the 503"),
];

impl Kind {
    /// Of three requests a connection has one.
    fn is_said_before(self, measured: Self) -> bool {
        self < measured
            && !matches!(self, Self::FirstHost | Self::LastHost)
            && !(self == Self::Admitted && matches!(measured, Self::FirstHost | Self::LastHost))
    }

    /// The hook that sees it, and the segment.
    fn segment(self) -> (TestHook, Segment) {
        let free = format!("GET /free/page HTTP/1.1\r\n{FIELDS}");
        let busy = format!("GET /busy/page HTTP/1.1\r\n{FIELDS}");
        let at = 1 + free.len() as u32;
        let said = ISN + 1 + ANSWER.len() as u32;
        let client = |flags, seq, ack, data: &str| {
            let data = data.to_owned();
            (TestHook::RequestIn, Segment { client: true, flags, seq, ack, data })
        };
        let tenant = |n: usize| {
            let text =
                format!("GET /tenants HTTP/1.1\r\nHost: tenant{n}.example\r\nAccept: */*\r\n\r\n");
            client(ACK, 1, ISN + 1, &text)
        };
        match self {
            Self::HandshakeEnd | Self::Established => client(ACK, 1, ISN + 1, ""),
            Self::EstablishedSyn => (TestHook::Tc, client(ACK, 1, ISN + 1, "").1),
            Self::Admitted => client(ACK, 1, ISN + 1, &free),
            Self::FirstHost => tenant(0),
            Self::LastHost => tenant(TENANTS - 1),
            Self::Answer => {
                let data = ANSWER.to_owned();
                let segment = Segment { client: false, flags: ACK, seq: ISN + 1, ack: at, data };
                (TestHook::RequestOut, segment)
            }
            Self::Acknowledged => client(ACK, at, said, ""),
            Self::Refused | Self::Repeated => client(ACK, at, said, &busy),
            Self::Fin => client(ACK | FIN, at + busy.len() as u32, said, ""),
        }
    }

    /// Which cell of which rule counts it, if one does.
    fn counted(self, plane: &TestPlane) -> Result<Option<u64>> {
        let rules = plane.rule_counts()?;
        let of = |rule: usize| {
            rules.iter().find(|count| count.rule == rule).context("a rule has its counts")
        };
        Ok(match self {
            Self::Admitted => Some(of(0)?.admitted),
            Self::FirstHost => Some(of(2)?.admitted),
            Self::LastHost => Some(of(1 + TENANTS)?.admitted),
            Self::Answer => Some(of(0)?.ended),
            Self::Refused => Some(of(1)?.refused),
            Self::Repeated => Some(of(1)?.repeated),
            Self::HandshakeEnd | Self::EstablishedSyn | Self::Established => None,
            Self::Acknowledged | Self::Fin => None,
        })
    }
}

/// The kernel counts while this lives.
#[derive(Debug)]
pub struct Counting(String);

impl Counting {
    pub fn start() -> Result<Self> {
        let before = std::fs::read_to_string(STATS).context(STATS)?;
        std::fs::write(STATS, "1").context(STATS)?;
        Ok(Self(before))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = std::fs::write(STATS, self.0.trim());
    }
}

#[derive(Debug)]
struct Packet {
    kind: Kind,
    name: &'static str,
    about: &'static str,
    scale: Scale,
}

impl Packet {
    /// Gives a hook one packet of every connection; the mean of its runs, ns.
    fn give(&self, plane: &mut TestPlane, hook: TestHook, segment: &Segment) -> Result<f64> {
        plane.heartbeat()?;
        let before = plane.runs(hook)?;
        for connection in 0..self.scale.connections {
            plane.run(hook, &frame(connection, segment))?;
        }
        let after = plane.runs(hook)?;
        let runs = after.0 - before.0;
        ensure!(runs >= u64::from(self.scale.connections), "{runs} runs were counted");
        Ok((after.1 - before.1) as f64 / runs as f64)
    }

    fn handshakes(&self, plane: &mut TestPlane) -> Result<()> {
        let segment =
            |client, flags, seq, ack| Segment { client, flags, seq, ack, data: String::new() };
        self.give(plane, TestHook::Tc, &segment(true, SYN, 0, 0))?;
        self.give(plane, TestHook::Egress, &segment(false, SYN | ACK, ISN, 1))?;
        self.give(plane, TestHook::Tc, &segment(true, ACK, 1, ISN + 1)).map(drop)
    }
}

impl Subject for Packet {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn measure(&mut self) -> Result<f64> {
        let mut plane = plane()?;
        let _counting = Counting::start()?;
        self.handshakes(&mut plane)?;
        for (kind, ..) in KINDS.iter().filter(|(kind, ..)| kind.is_said_before(self.kind)) {
            let (hook, segment) = kind.segment();
            self.give(&mut plane, hook, &segment)?;
        }
        if self.kind == Kind::Repeated {
            // the 503 goes out again after 100 ms only (request/refusal.h)
            std::thread::sleep(REPEATED_AFTER);
        }
        let before = self.kind.counted(&plane)?;
        let (hook, segment) = self.kind.segment();
        let ns = self.give(&mut plane, hook, &segment)?;
        if let (Some(before), Some(after)) = (before, self.kind.counted(&plane)?) {
            let met = (after - before) as f64 / f64::from(self.scale.connections);
            ensure!(met >= MET, "{:.0} % were what is said", 100.0 * met);
        }
        Ok(ns)
    }
}

/// The hooks; a bucket that is full, and one that is empty but for its first token.
fn plane() -> Result<TestPlane> {
    let mut plane = TestPlane::load(&plan())?;
    let bucket = |bucket, rate, burst| {
        BucketParams::tokens((0, bucket), Some(Rate::per_second(rate)), burst, [0; 3])
    };
    plane.set_limits(&[], &[bucket(0, 1e6, 1_000_000)?, bucket(1, 0.001, 1)?], 2)?;
    Ok(plane)
}

/// All kinds.
pub fn subjects(scale: &Scale) -> Subjects {
    let packet = |(kind, name, about)| {
        Box::new(Packet { kind, name, about, scale: *scale }) as Box<dyn Subject>
    };
    KINDS.into_iter().map(packet).collect()
}

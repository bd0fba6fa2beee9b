// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds per run of the request hooks, by kind of packet, over a table of connections: what
//! the kernel counts (`kernel.bpf_stats_enabled`), about 20 ns of counting included. A refusal sends
//! its clone to the loopback device. Run as root: `cargo run --release -p tidegate-bpf --example
//! bench_requests`.

use anyhow::Context;
use tidegate_bpf::testing::{TestHook, TestPlane};
use tidegate_bpf::{
    BucketParams, HeaderRule, Host, HttpMatch, Listen, ListenAddress, Plan, Refuse, Requests,
    Service, Subject,
};
use tidegate_policy::{Action, Policy};
use tidegate_units::Rate;

/// Rules that stand at one path, each for a host of its own.
const TENANTS: usize = 1000;
/// Connections; each packet of a kind is of another.
const CONNECTIONS: u32 = 20_000;
const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The server's initial sequence number (0 would be none).
const ISN: u32 = 1000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment of a connection: who, flags, sequence and acknowledgement number, data.
struct Segment<'a> {
    client: bool,
    flags: u8,
    seq: u32,
    ack: u32,
    data: &'a [u8],
}

fn frame(connection: u32, segment: &Segment<'_>) -> Vec<u8> {
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
    bytes.extend_from_slice(segment.data);
    bytes
}

fn plan() -> Plan {
    let rule = |path: &str, bucket| HeaderRule {
        subject: Subject::Http(HttpMatch { path: path.into(), ..HttpMatch::default() }),
        bucket: Some(bucket),
        refuse: Refuse::Answer503,
        close_persistent: false,
    };
    let tenant = |n: usize| {
        let host = Some(Host::Exact(format!("tenant{n}.example")));
        HeaderRule {
            subject: Subject::Http(HttpMatch {
                path: "/tenants".into(),
                host,
                ..HttpMatch::default()
            }),
            ..rule("/", 0)
        }
    };
    let rules = [rule("/free", 0), rule("/busy", 1)];
    let requests = Requests {
        buckets: vec!["full".into(), "empty".into()],
        rules: rules.into_iter().chain((0..TENANTS).map(tenant)).collect(),
        ..Requests::default()
    };
    let service = Service {
        name: "shop".into(),
        listen: vec![Listen::tcp(ListenAddress::Any, 80)],
        shadow: false,
        policy: Policy::TokenBucket,
        action: Action::Drop,
        classes: vec![],
        requests: Some(requests),
    };
    Plan { services: vec![service], ..Plan::default() }
}

/// Gives a hook one packet of every connection; prints the mean where there is something to say.
fn give(
    plane: &mut TestPlane,
    (about, hook): (&str, TestHook),
    segment: &Segment<'_>,
) -> anyhow::Result<()> {
    plane.heartbeat()?;
    let before = plane.runs(hook)?;
    for connection in 0..CONNECTIONS {
        plane.run(hook, &frame(connection, segment))?;
    }
    let after = plane.runs(hook)?;
    if !about.is_empty() {
        let runs = after.0 - before.0;
        println!("{about:<52} {:>6} ns ({runs} runs)", (after.1 - before.1) / runs.max(1));
    }
    Ok(())
}

/// The same packet again and again: everything is in the cache.
fn hot(plane: &TestPlane, segment: &Segment<'_>) -> anyhow::Result<()> {
    for (about, hook) in
        [("the SYN hook", TestHook::Tc), ("established, no request", TestHook::RequestIn)]
    {
        let mean = plane.time(hook, &frame(7, segment), 1_000_000)?;
        println!("{:<52} {:>6} ns (hot)", about, mean.as_nanos());
    }
    Ok(())
}

/// A handshake of every connection.
fn establish(plane: &mut TestPlane) -> anyhow::Result<()> {
    let client = |flags, seq, ack| Segment { client: true, flags, seq, ack, data: b"" };
    let server = Segment { client: false, flags: SYN | ACK, seq: ISN, ack: 1, data: b"" };
    give(plane, ("", TestHook::Tc), &client(SYN, 0, 0))?;
    give(plane, ("", TestHook::Egress), &server)?;
    give(plane, ("", TestHook::Tc), &client(ACK, 1, ISN + 1))
}

/// What it costs to look for a rule among many at one path.
fn tenants() -> anyhow::Result<()> {
    for (about, n) in [
        ("the same, for the first of 1000 hosts at one path", 0),
        ("the same, for the last of them", TENANTS - 1),
    ] {
        let mut plane = plane()?;
        establish(&mut plane)?;
        let bare = Segment { client: true, flags: ACK, seq: 1, ack: ISN + 1, data: b"" };
        give(&mut plane, ("", TestHook::RequestIn), &bare)?;
        let text =
            format!("GET /tenants HTTP/1.1\r\nHost: tenant{n}.example\r\nAccept: */*\r\n\r\n");
        let request = Segment { data: text.as_bytes(), ..bare };
        give(&mut plane, (about, TestHook::RequestIn), &request)?;
    }
    Ok(())
}

fn measure(plane: &mut TestPlane) -> anyhow::Result<()> {
    let free = b"GET /free/page HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: bench\r\n\
        Accept: text/html,*/*\r\nAccept-Encoding: gzip\r\nCookie: session=1234567890\r\n\r\n";
    let busy = [&b"GET /busy"[..], &free[9..]].concat();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
    let (inward, outward) = (TestHook::RequestIn, TestHook::RequestOut);
    let client = |flags, seq, ack, data| Segment { client: true, flags, seq, ack, data };
    let server = |flags, seq, ack, data| Segment { client: false, flags, seq, ack, data };
    let at = 1 + free.len() as u32;
    let said = ISN + 1 + answer.len() as u32;
    let all = at + busy.len() as u32;
    establish(plane)?;
    give(plane, ("the end of a handshake", inward), &client(ACK, 1, ISN + 1, b""))?;
    let bare = client(ACK, 1, ISN + 1, b"");
    give(plane, ("the SYN hook: established", TestHook::Tc), &bare)?;
    give(plane, ("established, no request", inward), &bare)?;
    hot(plane, &bare)?;
    give(plane, ("a request, judged and admitted", inward), &client(ACK, 1, ISN + 1, free))?;
    give(plane, ("an answer, to its end", outward), &server(ACK, ISN + 1, at, answer))?;
    give(plane, ("an acknowledgement of the server's", outward), &server(ACK, said, at, b""))?;
    give(plane, ("a request, refused with a 503", inward), &client(ACK, at, said, &busy))?;
    give(plane, ("refused: the request again", inward), &client(ACK, at, said, &busy))?;
    give(
        plane,
        ("refused: FIN before it has the 503", inward),
        &client(ACK | FIN, all, said, b""),
    )?;
    Ok(())
}

/// The hooks; a bucket that is full, and one that is empty but for its first token.
fn plane() -> anyhow::Result<TestPlane> {
    let mut plane = TestPlane::load(&plan())?;
    let bucket = |bucket, rate, burst| BucketParams {
        service: 0,
        bucket,
        rate: Some(Rate::per_second(rate)),
        burst,
        reserve: [0; 3],
    };
    plane.set_bucket_limits(&[bucket(0, 1e6, 1_000_000), bucket(1, 0.001, 1)], 2)?;
    Ok(plane)
}

fn main() -> anyhow::Result<()> {
    let mut plane = plane()?;
    std::fs::write(STATS, "1").context(STATS)?;
    let measured = measure(&mut plane).and_then(|()| tenants());
    for count in plane.rule_counts()?.iter().take(2) {
        println!("{count:?}");
    }
    std::fs::write(STATS, "0").context(STATS)?;
    measured
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Subjects of `cargo xtask bench turns`: what a packet with payload costs, by its place in an
//! exchange, and beside it the packets without payload of the same connections.
//!
//! Every packet is of another connection; the kernel counts the time of its run
//! (`kernel.bpf_stats_enabled`, some 20 ns of counting included). The median of blocks is taken: an
//! interrupt within a run is no cost of it. `…-hot`: one packet again and again, by a test run, for
//! packets that leave a connection as it is.

use super::requests::Counting;
use super::worker::{Subject, Subjects, median};
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tidegate_bpf::Plan;
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::{TestHook, TestPlane};

/// What a subject's name ends with where one packet is given again and again.
const HOT: &str = "-hot";
/// Connections of one block.
const BLOCK: u32 = 250;
/// Of the connections, how many must be where the conversation says: the table of flows forgets some
/// where more than four meet.
const MET: f64 = 0.9;
const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The server's initial sequence number (0 would be none).
const ISN: u32 = 1000;
const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// Where the bytes of a HTTP/2 client begin.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Payload of a full segment.
const MSS: usize = 1448;
/// Extensions of the long ClientHello: as many as are walked (track/said.h), the protocols last.
const EXTENSIONS_MANY: usize = 32;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Connections: a multiple of [`BLOCK`].
    pub connections: u32,
    /// Runs of a hot packet.
    pub hot: u32,
}

impl Scale {
    /// For figures.
    pub const FULL: Self = Self { connections: 8000, hot: 400_000 };
    /// For a test that only wants to see that it works.
    pub const SMOKE: Self = Self { connections: BLOCK, hot: 100 };
}

/// What the connections must show after a packet: the share of them that waits for a response, and
/// the responses that each has had.
#[derive(Clone, Copy, Debug)]
struct After {
    waiting: u32,
    responses: u32,
}

/// A packet of a conversation.
#[derive(Clone, Debug)]
struct Said {
    /// What it is called where it is measured; with `…-hot` beside it or not.
    subject: Option<(&'static str, &'static str, Hot)>,
    client: bool,
    flags: u8,
    data: Vec<u8>,
    after: Option<After>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hot {
    Too,
    No,
}

/// A conversation: its packets in their order, with a handshake before them.
#[derive(Clone, Debug, Default)]
struct Talk(Vec<Said>);

impl Talk {
    fn open() -> Self {
        Self::default()
            .say(true, SYN, vec![])
            .named("syn", "a SYN, admitted without a limit", Hot::No)
            .say(false, SYN | ACK, vec![])
            .named("syn-ack", "the server's SYN-ACK", Hot::No)
            .say(true, ACK, vec![])
            .named("handshake-end", "the end of a handshake", Hot::No)
    }

    fn say(mut self, client: bool, flags: u8, data: Vec<u8>) -> Self {
        self.0.push(Said { subject: None, client, flags, data, after: None });
        self
    }

    fn ask(self, data: impl Into<Vec<u8>>) -> Self {
        self.say(true, PSH | ACK, data.into())
    }

    fn reply(self, data: impl Into<Vec<u8>>) -> Self {
        self.say(false, PSH | ACK, data.into())
    }

    /// The name of the packet that was said last: it is a subject.
    fn named(mut self, name: &'static str, about: &'static str, hot: Hot) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.subject = Some((name, about, hot));
        }
        self
    }

    fn then(mut self, waiting: u32, responses: u32) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.after = Some(After { waiting, responses });
        }
        self
    }

    /// One packet of one connection.
    fn frame(&self, index: usize, connection: u32) -> Vec<u8> {
        let said = &self.0[index];
        let spoken = |client: bool| -> u32 {
            let before = self.0[..index].iter().filter(|said| said.client == client);
            let length = |said: &Said| said.data.len() as u32 + u32::from(said.flags & SYN != 0);
            before.map(length).sum()
        };
        let (theirs, ours) = (spoken(true), ISN + spoken(false));
        let (seq, ack) = if said.client { (theirs, ours) } else { (ours, theirs) };
        let ack = if said.flags & ACK == 0 { 0 } else { ack };
        frame(connection, said, [seq, ack])
    }
}

fn frame(connection: u32, said: &Said, numbers: [u32; 2]) -> Vec<u8> {
    let port = (1024 + connection % 50_000) as u16;
    let (client, server) = ([198, 51, 100, 1], [192, 0, 2, 10]);
    let (macs, addresses, ports) = if said.client {
        ([SERVER, CLIENT], [client, server], [port, 80])
    } else {
        ([CLIENT, SERVER], [server, client], [80, port])
    };
    let mut bytes = macs.concat();
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend(((40 + said.data.len()) as u16).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    bytes.extend(addresses.concat());
    bytes.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    bytes.extend(numbers.into_iter().flat_map(u32::to_be_bytes));
    bytes.extend([0x50, said.flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend_from_slice(&said.data);
    bytes
}

/// A record of TLS with so many bytes of content; one of data in TLS 1.3.
fn record(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![kind, 3, 3, (length >> 8) as u8, length as u8];
    bytes.resize(5 + length, 0xee);
    bytes
}

fn sealed(content: usize) -> Vec<u8> {
    record(23, content + 17)
}

/// A ClientHello with so many extensions, of which the last one names the protocols.
fn hello(extensions: usize) -> Vec<u8> {
    let mut list: Vec<u8> = (1..extensions).flat_map(|_| [0x2a, 0x2a, 0, 4, 1, 2, 3, 4]).collect();
    list.extend([0, 16, 0, 14, 0, 12, 2, b'h', b'2', 8]);
    list.extend(b"http/1.1");
    let mut body = vec![1, 0, 0, 0, 3, 3];
    body.extend([7; 32]);
    body.push(32);
    body.extend([9; 32]);
    body.extend([0, 4, 0x13, 1, 0x13, 2, 1, 0]);
    body.extend((list.len() as u16).to_be_bytes());
    body.extend(list);
    let length = (body.len() - 4) as u16;
    body[2..4].copy_from_slice(&length.to_be_bytes());
    let mut bytes = record(22, body.len());
    bytes.truncate(5);
    bytes.extend(body);
    bytes
}

/// A frame of HTTP/2: its type, and zeros.
fn h2(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0, (length >> 8) as u8, length as u8, kind, 0, 0, 0, 0, 1];
    bytes.resize(9 + length, 0);
    bytes
}

/// HTTP/1.1 in the clear: an upload, its response, the next request.
fn cleartext() -> Talk {
    let post = "POST /up HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 2896\r\n\r\n";
    let mut page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n".to_vec();
    page.resize(MSS, b'x');
    Talk::open()
        .say(true, ACK, vec![])
        .named("silent-ack", "no payload: of a client that is silent", Hot::Too)
        .ask(post)
        .named("http1-request", "first payload: a request of HTTP/1", Hot::No)
        .then(0, 0)
        .say(false, ACK, vec![])
        .named("waiting-ack", "no payload: the server takes the connection", Hot::Too)
        .then(1, 0)
        .ask(vec![b'x'; MSS])
        .named("http1-upload", "inside a turn: more of a request's body", Hot::Too)
        .then(1, 0)
        .reply(page)
        .named("http1-response", "first payload: a response of HTTP/1", Hot::No)
        .then(0, 1)
        .say(true, ACK, vec![])
        .named("idle-ack", "no payload: the client takes the response", Hot::Too)
        .reply(vec![b'x'; MSS])
        .named("http1-body", "inside a turn: more of a response's body", Hot::Too)
        .then(0, 1)
        .ask("GET /next HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n\r\n")
        .named("http1-next-request", "first payload: the next request", Hot::No)
        .then(1, 1)
        .reply("HTTP/1.1 304 Not Modified\r\n\r\n")
        .then(0, 2)
        .say(false, FIN | ACK, vec![])
        .named("server-fin", "the end of a connection", Hot::No)
}

/// TLS 1.3 with tickets of two records, and HTTP/2 within.
fn tls13() -> Talk {
    let flight = [record(22, 122), record(20, 1), sealed(40), sealed(900), sealed(300)].concat();
    let finished = [record(20, 1), sealed(36), sealed(64), sealed(110)].concat();
    Talk::open()
        .ask(hello(10))
        .named("tls-hello", "first payload: a ClientHello of 10 extensions", Hot::No)
        .then(0, 0)
        .say(false, ACK, vec![])
        .then(1, 0)
        .reply(flight)
        .named("tls13-flight", "first payload: the server's part of the handshake", Hot::No)
        .then(0, 0)
        .ask(finished)
        .named("tls13-request", "first payload: Finished, preface and request", Hot::No)
        .then(1, 0)
        .reply([sealed(233), sealed(233), sealed(40), sealed(9)].concat())
        .named("tls13-tickets", "tickets and SETTINGS while a request waits", Hot::No)
        .then(1, 0)
        .reply([sealed(60), sealed(1200)].concat())
        .named("tls13-response", "first payload: HEADERS and DATA in TLS 1.3", Hot::No)
        .then(0, 1)
        .reply(vec![0xaa; MSS])
        .named("tls13-body", "inside a turn: more of a record", Hot::Too)
        .then(0, 1)
        .ask(sealed(13))
        .named("tls13-window", "a WINDOW_UPDATE between turns", Hot::No)
        .then(0, 1)
        .ask(sealed(52))
        .named("tls13-next-request", "first payload: the next request", Hot::No)
        .then(1, 1)
}

/// A ClientHello that takes the longest walk.
fn long_hello() -> Talk {
    Talk::open()
        .ask(hello(EXTENSIONS_MANY))
        .named("tls-hello-long", "first payload: a ClientHello of 32 extensions", Hot::No)
        .then(0, 0)
        .say(false, ACK, vec![])
        .then(1, 0)
}

/// HTTP/2 in the clear: as many frames as are looked at.
fn cleartext_h2() -> Talk {
    let windows: Vec<u8> = (0..7).flat_map(|_| h2(8, 4)).collect();
    Talk::open()
        .ask([PREFACE, &h2(4, 18), &h2(8, 4), &h2(1, 60)].concat())
        .named("h2-request", "first payload: preface, SETTINGS, HEADERS in the clear", Hot::No)
        .then(0, 0)
        .say(false, ACK, vec![])
        .then(1, 0)
        .reply([h2(4, 18), windows.clone()].concat())
        .named("h2-control", "eight control frames while a request waits", Hot::No)
        .then(1, 0)
        .reply([windows, h2(1, 40)].concat())
        .named("h2-response", "first payload: HEADERS behind seven frames", Hot::No)
        .then(0, 1)
}

/// A conversation that is played once a round: every packet of it is measured then.
#[derive(Debug)]
struct Play {
    talk: Talk,
    scale: Scale,
    /// What was measured and not asked for yet.
    measured: BTreeMap<String, f64>,
}

impl Play {
    fn hook(&self, index: usize) -> TestHook {
        if self.talk.0[index].client { TestHook::Xdp } else { TestHook::Egress }
    }

    fn play(&mut self) -> Result<()> {
        let mut plane = TestPlane::load(&plan())?;
        for index in 0..self.talk.0.len() {
            let ns = self.give(&mut plane, index)?;
            self.check(&plane, index)?;
            let Some((name, _, hot)) = self.talk.0[index].subject else { continue };
            self.measured.insert(name.to_owned(), ns);
            if hot == Hot::Too {
                let frame = self.talk.frame(index, 0);
                let mean = plane.time(self.hook(index), &frame, self.scale.hot)?;
                self.measured.insert(format!("{name}{HOT}"), mean.as_nanos() as f64);
                self.check(&plane, index)?;
            }
        }
        Ok(())
    }

    /// Gives a packet of every connection; the median of the blocks' means, ns.
    fn give(&self, plane: &mut TestPlane, index: usize) -> Result<f64> {
        let _counting = Counting::start()?;
        plane.heartbeat()?;
        let hook = self.hook(index);
        let mut means = Vec::new();
        for block in 0..self.scale.connections / BLOCK {
            let before = plane.runs(hook)?;
            for connection in block * BLOCK..(block + 1) * BLOCK {
                plane.run(hook, &self.talk.frame(index, connection))?;
            }
            let after = plane.runs(hook)?;
            let runs = after.0 - before.0;
            ensure!(runs == u64::from(BLOCK), "{runs} runs were counted");
            means.push((after.1 - before.1) as f64 / runs as f64);
        }
        median(means).context("no block")
    }

    /// Whether the connections are where the conversation says.
    fn check(&self, plane: &TestPlane, index: usize) -> Result<()> {
        let Some(after) = self.talk.0[index].after else { return Ok(()) };
        let totals = plane.totals(0)?;
        let all = f64::from(self.scale.connections);
        let near = |seen: f64, each: u32| {
            let wanted = f64::from(each) * all;
            seen >= MET * wanted && seen <= wanted + (1.0 - MET) * all
        };
        let (waiting, responses) = (totals.waiting as f64, totals.first_byte.count as f64);
        ensure!(
            near(waiting, after.waiting) && near(responses, after.responses),
            "{waiting} wait and {responses} had a response of {all}; wanted {after:?} each"
        );
        Ok(())
    }
}

/// One packet of a conversation.
struct Packet {
    play: Rc<RefCell<Play>>,
    name: String,
    about: &'static str,
}

impl Subject for Packet {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    /// Who is asked first in a round plays; the others were measured with it.
    fn measure(&mut self) -> Result<f64> {
        let mut play = self.play.borrow_mut();
        if !play.measured.contains_key(&self.name) {
            play.play()?;
        }
        play.measured.remove(&self.name).context("the conversation has no such packet")
    }
}

fn plan() -> Plan {
    plans::plan(vec![plans::service("shop", &["*:80"])])
}

/// All packets that have a name; one that several conversations have belongs to the first.
pub fn subjects(scale: &Scale) -> Subjects {
    let mut subjects = Subjects::new();
    let mut offered = BTreeSet::new();
    for talk in [cleartext(), tls13(), long_hello(), cleartext_h2()] {
        let named: Vec<_> = talk.0.iter().filter_map(|said| said.subject).collect();
        let play = Play { talk, scale: *scale, measured: BTreeMap::new() };
        let play = Rc::new(RefCell::new(play));
        for (name, about, hot) in named.into_iter().filter(|(name, ..)| offered.insert(*name)) {
            let packet =
                |name: String, about| Box::new(Packet { play: Rc::clone(&play), name, about });
            subjects.push(packet(name.to_owned(), about));
            if hot == Hot::Too {
                let about = "the same, one packet again and again";
                subjects.push(packet(format!("{name}{HOT}"), about));
            }
        }
    }
    subjects
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a connection, packet by packet, as both tc hooks see it.

use super::engine::Arrival;
use super::native::{How, NOW, Native, Ran, Signals};
use super::packet::{ACK, CLIENT4, CLIENT6, FIN, PSH, Packet, RST, SERVER4, SERVER6, eth};
use super::reference::{Socket, TimeWait};
use super::setup::{SECOND, Setup};

/// One packet of it.
pub struct Step {
    pub about: &'static str,
    pub frame: Vec<u8>,
    /// What the server sends.
    pub egress: bool,
    /// What the signals are afterwards.
    pub signals: Said,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    ServerFin,
    ServerReset,
    ClientReset,
    /// With the last byte of the answer.
    FinWithData,
}

impl End {
    pub const ALL: [Self; 4] =
        [Self::ServerFin, Self::ServerReset, Self::ClientReset, Self::FinWithData];
}

/// What is said of a step: waiting, open, first bytes and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said(pub i32, pub i32, pub u32, pub u32);

impl Said {
    pub const fn of(s: &Signals) -> Self {
        Self(s.waiting, s.open, s.first_bytes, s.ends)
    }
}

/// The client's end: its address of this family, its port.
fn client(ipv6: bool, port: u16) -> Packet {
    if ipv6 { eth().ipv6().tcp(port, 80) } else { eth().ipv4().tcp(port, 80) }
}

fn server(ipv6: bool, port: u16) -> Packet {
    if ipv6 {
        let packet = eth().ipv6().from6(&SERVER6.to_string()).to6(&CLIENT6.to_string());
        packet.tcp(80, port)
    } else {
        eth().ipv4().from4(SERVER4.octets()).to4(CLIENT4.octets()).tcp(80, port)
    }
}

/// The three packets of a handshake; the second is the server's.
pub fn handshake(port: u16) -> [(Vec<u8>, bool); 3] {
    let syn_ack = server(false, port).syn().seq(500).ack(1);
    [
        (client(false, port).syn().bytes(), false),
        (syn_ack.bytes(), true),
        (client(false, port).ack(501).bytes(), false),
    ]
}

/// A request that comes in two pieces, the second of them slowly, and how the server ends it.
pub fn slow(port: u16) -> [(Vec<u8>, bool); 4] {
    let piece = |seq, text: &[u8]| client(false, port).flags(PSH).seq(seq).ack(501).data(text);
    [
        (piece(1, b"POST /up HTTP/1.1").bytes(), false),
        (server(false, port).seq(501).ack(18).bytes(), true),
        (piece(18, b"\r\nHost: a").bytes(), false),
        (server(false, port).flags(FIN).seq(501).ack(27).bytes(), true),
    ]
}

/// Nothing of it matters to a RST.
const WAITS: TimeWait = TimeWait { next: 0, stamp: None, closing: false, listener: None };

/// A client's RST for an open connection: what the stack knows of the tuple, the sequence number,
/// and whether the connection is over then. The window of the socket is 1000 … 1500.
pub const RESETS: [(&str, Socket, u32, bool); 14] = [
    ("two before the window", Socket::CloseWait, 998, false),
    ("one before it, after a FIN", Socket::CloseWait, 999, true),
    ("one before it, and there was no FIN", Socket::Established, 999, false),
    ("at its start", Socket::Established, 1000, true),
    ("at its start, after a FIN", Socket::CloseWait, 1000, true),
    ("in it: the stack sends an ACK", Socket::Established, 1001, false),
    ("at its end", Socket::Established, 1500, false),
    ("just behind it", Socket::Established, 1501, false),
    ("half a turn away", Socket::Established, 1000 + (1 << 31), false),
    ("no socket to ask: a router", Socket::Nothing, 77, true),
    (
        "a listener: nobody can say, and a gauge that is too small refuses nobody",
        Socket::Listener { length: 0, limit: 1 },
        77,
        true,
    ),
    ("a request, at its start", Socket::Request, 1, true),
    ("a request, elsewhere", Socket::Request, 1000, false),
    ("TIME_WAIT", Socket::TimeWait(WAITS), 1000, true),
];

/// Opens a connection, gives it one of [`RESETS`]; how many are open then. `fail_at`: of the RST.
pub fn reset(native: &mut Native, (socket, seq): (Socket, u32), fail_at: u32) -> Ran {
    native.set(&super::setup::base());
    for (frame, egress) in &handshake(40_000) {
        give(native, (frame, *egress), How::default());
    }
    native.window(1000, 500);
    let frame = client(false, 40_000).flags(RST).seq(seq).bytes();
    let how = How { fail_at, ..How::default() };
    native.run(&Arrival { frame: &frame, socket, loopback: false }, how)
}

const HALF: u64 = SECOND / 2;

/// A SYN that comes again after one that passed, with copies every half a second before it while
/// they may: how many ns after the first, with which sequence number, and whether it passes.
pub const COPIES: [(u64, u32, bool); 9] = [
    (HALF - 1, 7, false),
    (HALF, 8, false),
    (HALF, 7, true),
    (2 * HALF - 1, 7, false),
    (2 * HALF, 7, true),
    (10 * HALF, 7, true),
    (11 * HALF, 7, false),
    (70 * SECOND, 7, true),
    (70 * SECOND + 1, 7, false),
];

/// The set-up of [`copy`]: one token, and none comes back.
pub fn spent() -> Setup {
    super::setup::dropping().bucket(1, 0)
}

/// What is said of one of [`COPIES`].
pub fn copy(native: &mut Native, at: (u64, u32)) -> String {
    copy_in(native, &spent(), at)
}

/// The same in another set-up, which is in force.
pub fn copy_in(native: &mut Native, setup: &Setup, (at, seq): (u64, u32)) -> String {
    let mut say = |at: u64, seq: u32, used: u32| {
        native.use_tokens(0, used);
        native.advance_to(NOW + at);
        let frame = client(false, 40_000).syn().seq(seq).bytes();
        let arrival = Arrival { frame: &frame, socket: Socket::Nothing, loopback: false };
        native.run(&arrival, How::default()).seen.unwrap().words(setup)
    };
    say(0, 7, 0);
    // what is more than a few seconds later is the first copy
    let before = if at > 12 * HALF { 0 } else { at / HALF };
    for half in (1..before).chain((at % HALF != 0 && before > 0).then_some(before)) {
        say(half * HALF, 7, 1);
    }
    say(at, seq, 1)
}

/// Handshake, two requests with their responses, the end.
pub fn life(ipv6: bool, end: End) -> Vec<Step> {
    let (client, server) = (|| client(ipv6, 40_000), || server(ipv6, 40_000));
    let mut life = Vec::new();
    let mut step = |about, (packet, egress): (Packet, bool), said| {
        life.push(Step { about, frame: packet.bytes(), egress, signals: said });
    };
    let first = || client().flags(PSH).seq(1).ack(501).data(b"GET / HTTP/1.1");
    let second = || client().flags(PSH).seq(15).ack(506).data(b"GET / HTTP/1.1");
    step("a SYN", (client().syn().seq(0), false), Said(0, 0, 0, 0));
    step("the SYN again", (client().syn().seq(0), false), Said(0, 0, 0, 0));
    step("an ACK too early", (client().seq(1).ack(501), false), Said(0, 0, 0, 0));
    step("the SYN-ACK", (server().syn().seq(500).ack(1), true), Said(0, 0, 0, 0));
    step("an ACK that guesses", (client().seq(1).ack(77), false), Said(0, 0, 0, 0));
    step("the ACK", (client().seq(1).ack(501), false), Said(0, 1, 0, 0));
    step("the ACK again", (client().seq(1).ack(501), false), Said(0, 1, 0, 0));
    step("a request", (first(), false), Said(0, 1, 0, 0));
    step("the request again", (first(), false), Said(0, 1, 0, 0));
    step("its ACK", (server().seq(501).ack(15), true), Said(1, 1, 0, 0));
    step("a response", (server().seq(501).ack(15).data(b"200"), true), Said(0, 1, 1, 0));
    step("the rest of it", (server().seq(504).ack(15).data(b"OK"), true), Said(0, 1, 1, 0));
    step("its ACK", (client().seq(15).ack(506), false), Said(0, 1, 1, 0));
    step("a probe", (client().seq(14).ack(506).data(b"\0"), false), Said(0, 1, 1, 0));
    step("a second request", (second(), false), Said(1, 1, 1, 0));
    match end {
        End::FinWithData => {
            let last = server().seq(506).ack(29).flags(FIN).data(b"200");
            step("a response with FIN", (last, true), Said(0, 0, 2, 1));
        }
        End::ServerFin => {
            step("a response", (server().seq(506).ack(29).data(b"200"), true), Said(0, 1, 2, 0));
            step("FIN", (server().seq(509).ack(29).flags(FIN), true), Said(0, 0, 2, 1));
        }
        End::ServerReset => {
            step("RST", (server().seq(506).flags(RST | ACK), true), Said(0, 0, 1, 1));
        }
        End::ClientReset => step("RST", (client().seq(29).flags(RST), false), Said(0, 0, 1, 1)),
    }
    step("an ACK after the end", (client().seq(29).ack(509), false), life_end(end));
    life
}

const fn life_end(end: End) -> Said {
    match end {
        End::ServerFin | End::FinWithData => Said(0, 0, 2, 1),
        End::ServerReset | End::ClientReset => Said(0, 0, 1, 1),
    }
}

/// One packet in the tc program.
pub fn give(native: &mut Native, (frame, egress): (&[u8], bool), how: How) -> Ran {
    if egress {
        return native.run_egress(frame, how);
    }
    native.run(&Arrival { frame, socket: Socket::Nothing, loopback: false }, how)
}

/// Plays a life in which another CPU is faster with one swap, in this step this one.
pub fn play_losing(
    native: &mut Native,
    setup: &Setup,
    (life, (losing, swap)): (&[Step], (usize, u32)),
) -> Vec<Signals> {
    native.set(setup);
    let mut seen = Vec::new();
    for (at, step) in life.iter().enumerate() {
        native.advance_to(NOW + at as u64 * SECOND);
        native.lose_swap(if losing == at { swap } else { 0 });
        seen.push(give(native, (&step.frame, step.egress), How::default()).signals);
    }
    seen
}

/// Plays a life in the tc program, a second between two packets; `fails`: in this step this call.
pub fn play(
    native: &mut Native,
    setup: &Setup,
    (life, fails): (&[Step], Option<(usize, u32)>),
) -> Vec<Ran> {
    native.set(setup);
    let mut ran = Vec::new();
    for (at, step) in life.iter().enumerate() {
        native.advance_to(NOW + at as u64 * SECOND);
        let fail_at = fails.map_or(0, |(failing, call)| if failing == at { call } else { 0 });
        let how = How { fail_at, ..How::default() };
        ran.push(give(native, (&step.frame, step.egress), how));
    }
    ran
}

/// A request that came before anybody knew that its client is verified, and its response.
pub fn early(port: u16) -> Vec<(Vec<u8>, bool)> {
    let [syn, syn_ack, ack] = handshake(port);
    let data = client(false, port).flags(PSH).seq(1).ack(501).data(b"GET / HTTP/1.1").bytes();
    let [taken, response] = [b"".as_slice(), b"200"]
        .map(|data| (server(false, port).seq(501).ack(15).data(data).bytes(), true));
    vec![syn, (data, false), syn_ack, ack, taken, response]
}

/// A connection whose handshake ends with its request, which the server acknowledges.
pub fn together(port: u16) -> Vec<(Vec<u8>, bool)> {
    let [syn, syn_ack, _] = handshake(port);
    let data = client(false, port).flags(PSH).seq(1).ack(501).data(b"GET / HTTP/1.1").bytes();
    vec![syn, syn_ack, (data, false), (server(false, port).seq(501).ack(15).bytes(), true)]
}

/// Opens this many connections, more than the table of the native build holds, each with one more
/// ACK; and later, when those are idle, as many again; what was seen after each.
pub fn crowd(native: &mut Native, setup: &Setup, ports: std::ops::Range<u16>) -> [Signals; 2] {
    native.set(setup);
    [NOW, NOW + 1000 * SECOND].map(|now| {
        let mut last = Signals::default();
        for port in ports.clone() {
            // other ports the second time
            let port = if now == NOW { port } else { port + ports.len() as u16 };
            let [syn, syn_ack, ack] = handshake(port);
            for (frame, egress) in [&syn, &syn_ack, &ack, &ack] {
                native.advance_to(now);
                let ran = give(native, (frame, *egress), How::default());
                last = ran.signals;
            }
        }
        last
    })
}

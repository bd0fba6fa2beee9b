// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources that completed a handshake, or did not, and SYNs of theirs that are refused when the cap
//! on answers is reached.

use super::connection::give;
use super::engine::Arrival;
use super::native::{How, NOW, Native, Ran};
use super::packet::{PSH, Packet, between};
use super::reference::{Action, Socket};
use super::setup::{SECOND, Setup, rejecting};
use std::net::IpAddr;

/// Tokens of the service's bucket.
const BURST: u32 = 1_000_000;
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// What the server's SYN-ACK begins with.
const ISN: u32 = 5_000;
/// RSTs beyond the cap per second and CPU in these tests: ten at once, two of them to one source.
pub const PROVED: u32 = 40;
/// After which SYNs that nobody proved count: five cohorts of 67 ms.
const KNOWN: u64 = 400 * SECOND / 1000;
/// Enough SYNs to be a flood.
const SPOOFED: u16 = 300;

/// Everybody is refused, and no answer is left for who is not proved.
pub fn capped() -> Setup {
    rejecting().bucket(BURST, BURST).answers(4, 0).proved(PROVED)
}

/// An address of the network that the clients are in.
pub fn v4(last: u8) -> IpAddr {
    [198, 51, 100, last].into()
}

/// A first SYN.
pub fn syn(from: IpAddr, port: u16) -> Packet {
    syn_to(from, (port, 80))
}

/// The same to any port.
pub fn syn_to(from: IpAddr, ports: (u16, u16)) -> Packet {
    between(from, ports, false).syn().seq(1_000)
}

/// The server's reply to it, and the end of the handshake.
pub fn handshake(from: IpAddr, port: u16) -> [Packet; 2] {
    [
        between(from, (80, port), true).syn().seq(ISN).ack(1_001),
        between(from, (port, 80), false).seq(1_001).ack(ISN + 1),
    ]
}

/// What became of a refused SYN: `rst`, or the reason why there is none.
pub fn outcome(ran: &Ran, setup: &Setup) -> String {
    let seen = ran.seen.clone().unwrap();
    let words = seen.words(setup);
    let told = match (&seen.action, words.contains("reject")) {
        (Action::Answer(_), true) => "rst",
        (Action::Drop, false) => words.rsplit(' ').next().unwrap(),
        _ => panic!("{}: {words}", seen.action),
    };
    told.to_owned()
}

/// A host, and the time.
pub struct World<'a> {
    pub native: &'a mut Native,
    pub setup: Setup,
    now: u64,
    port: u16,
}

impl<'a> World<'a> {
    pub fn new(native: &'a mut Native, setup: Setup) -> Self {
        native.set(&setup);
        Self { native, setup, now: NOW, port: 10_000 }
    }

    pub fn after(&mut self, ns: u64) {
        self.now += ns;
        self.native.advance_to(self.now);
        self.native.use_tokens(0, BURST);
    }

    fn port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }

    /// A connection of this client is admitted; its handshake is completed, or not. The client's port.
    fn begin(&mut self, from: IpAddr, completed: bool) -> u16 {
        let port = self.port();
        self.native.use_tokens(0, 0);
        give(self.native, (&syn(from, port).bytes(), false), How::default());
        let [reply, end] = handshake(from, port);
        give(self.native, (&reply.bytes(), true), How::default());
        if completed {
            give(self.native, (&end.bytes(), false), How::default());
        }
        self.native.use_tokens(0, BURST);
        port
    }

    /// A client completes a handshake.
    pub fn open(&mut self, from: IpAddr) {
        let _ = self.begin(from, true);
    }

    /// A client is served.
    pub fn served(&mut self, from: IpAddr) {
        let port = self.begin(from, true);
        let ask = between(from, (port, 80), false).flags(PSH).seq(1_001).ack(ISN + 1).data(GET);
        let seq = 1_001 + GET.len() as u32;
        let say = between(from, (80, port), true).flags(PSH).seq(ISN + 1).ack(seq).data(OK);
        for (packet, egress) in [(ask, false), (say, true)] {
            give(self.native, (&packet.bytes(), egress), How::default());
        }
    }

    /// The server replies to a SYN, and hears no more.
    pub fn half_open(&mut self, from: IpAddr) {
        let _ = self.begin(from, false);
    }

    /// Spoofed SYNs until it is known that they are.
    pub fn flood(&mut self) {
        (0..SPOOFED).for_each(|_| self.half_open([203, 0, 113, 7].into()));
        self.after(KNOWN);
    }

    /// Uses what has come back of the answers for all, with a client that nobody knows.
    pub fn drain(&mut self) {
        while self.refused([203, 0, 113, 250].into()) == "rst" {}
    }

    pub fn run(&mut self, from: IpAddr, how: How) -> Ran {
        let frame = syn(from, self.port()).bytes();
        self.native.run(&Arrival { frame: &frame, socket: Socket::Nothing, loopback: false }, how)
    }

    /// What is said of a SYN that is refused.
    pub fn refused(&mut self, from: IpAddr) -> String {
        let ran = self.run(from, How::default());
        outcome(&ran, &self.setup)
    }

    /// How many of so many SYNs are sent a RST.
    pub fn rsts(&mut self, from: IpAddr, syns: u32) -> u32 {
        (0..syns).map(|_| u32::from(self.refused(from) == "rst")).sum()
    }
}

/// Everything that decides about an answer beyond the cap, and every failure in it.
pub fn exercise(native: &mut Native) {
    let known = |native: &mut Native, setup: Setup, fail_at: u32| {
        let mut world = World::new(native, setup);
        world.open(v4(1));
        world.run(v4(1), How { fail_at, ..How::default() }).calls.len() as u32
    };
    for fail_at in 0..=known(native, capped(), 0) {
        known(native, capped(), fail_at);
    }
    known(native, capped().proved(0), 0);
    known(native, capped().proved(1), 0);
    let mut world = World::new(native, capped());
    (1..=8).for_each(|last| world.open(v4(last)));
    assert_eq!((1..=8).map(|last| world.rsts(v4(last), 3)).sum::<u32>(), PROVED / 4);
    world.after(SECOND / 10);
    world.drain();
    world.refused(v4(1));
    world.after(301 * SECOND);
    world.drain();
    world.refused(v4(1));
    world.flood();
    world.drain();
    world.refused(v4(1));
}

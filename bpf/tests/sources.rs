// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources, in the native build: who holds silent or slow connections, who is refused more of them,
//! and who is sent no RST. (With real connections: sources_live.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use support::connection::give;
use support::engine::{Arrival, Hook};
use support::native::{How, NOW, Native, Program, Signals, Sources};
use support::packet::{FIN, PSH, Packet, RST, SERVER4, between, eth};
use support::reference::Socket;
use support::setup::{SECOND, Setup, base, dropping};
use tidegate_policy::{Action, VerdictKind};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// What the server's SYN-ACK begins with.
const ISN: u32 = 5_000;
/// How many silent connections a source may have in these tests.
const MAX: u32 = 4;

/// A host of one service, and the time.
struct World<'a> {
    native: &'a mut Native,
    setup: Setup,
    now: u64,
    ports: u16,
}

/// One connection.
#[derive(Clone, Copy)]
struct Conn {
    from: IpAddr,
    port: u16,
    client: u32,
    server: u32,
}

/// One native build for all tests: it takes longer to build than all that they say.
fn with(setup: Setup, test: impl FnOnce(World<'_>)) {
    static NATIVE: Mutex<Option<Native>> = Mutex::new(None);
    let mut native = NATIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let native = native.get_or_insert_with(|| Native::start(Program::Ingress(Hook::Tc)));
    native.set(&setup);
    test(World { native, setup, now: NOW, ports: 10_000 });
}

fn capped() -> Setup {
    base().each(|service| service.source_max = MAX)
}

fn v4(last: u8) -> IpAddr {
    [198, 51, 100, last].into()
}

impl World<'_> {
    fn packet(conn: Conn, egress: bool) -> Packet {
        let ports = if egress { (80, conn.port) } else { (conn.port, 80) };
        let (seq, ack) =
            if egress { (conn.server, conn.client) } else { (conn.client, conn.server) };
        let packet = between(conn.from, ports, egress).seq(seq);
        if ack == ISN && !egress { packet } else { packet.ack(ack) }
    }

    fn give(&mut self, conn: Conn, egress: bool, change: impl FnOnce(Packet) -> Packet) -> Signals {
        self.native.advance_to(self.now);
        let frame = change(Self::packet(conn, egress)).bytes();
        give(self.native, (&frame, egress), How::default()).signals
    }

    fn fresh(&mut self, from: IpAddr) -> Conn {
        self.ports += 1;
        Conn { from, port: self.ports, client: 1_000, server: ISN }
    }

    /// What a new connection of this source is told.
    fn syn(&mut self, conn: Conn) -> String {
        self.native.advance_to(self.now);
        let frame = Self::packet(conn, false).syn().bytes();
        let arrival = Arrival { frame: &frame, socket: Socket::Nothing, loopback: false };
        self.native.run(&arrival, How::default()).seen.unwrap().words(&self.setup)
    }

    fn verdict(&mut self, from: IpAddr) -> String {
        let conn = self.fresh(from);
        self.syn(conn)
    }

    /// A connection whose handshake is complete.
    fn open(&mut self, from: IpAddr) -> Conn {
        let mut conn = self.fresh(from);
        self.give(conn, false, |p| p.syn());
        conn.client += 1;
        self.give(conn, true, |p| p.syn());
        conn.server += 1;
        self.give(conn, false, |p| p);
        self.give(conn, true, |p| p); // the stack has the connection
        conn
    }

    fn ask(&mut self, conn: &mut Conn, bytes: &[u8]) -> Signals {
        let signals = self.give(*conn, false, |p| p.flags(PSH).data(bytes));
        conn.client += bytes.len() as u32;
        signals
    }

    fn say(&mut self, conn: &mut Conn, bytes: &[u8]) -> Signals {
        let signals = self.give(*conn, true, |p| p.flags(PSH).data(bytes));
        conn.server += bytes.len() as u32;
        signals
    }

    fn end(&mut self, conn: Conn) -> Signals {
        self.give(conn, true, |p| p.flags(FIN))
    }

    /// A connection that is served and ends.
    fn served(&mut self, from: IpAddr) -> Signals {
        let mut conn = self.open(from);
        self.ask(&mut conn, GET);
        self.say(&mut conn, OK);
        self.end(conn)
    }

    fn silent(&mut self, from: IpAddr, count: u32) -> Vec<Conn> {
        (0..count).map(|_| self.open(from)).collect()
    }

    fn refused(&mut self, from: IpAddr) -> bool {
        self.verdict(from).contains("source")
    }
}

#[test]
fn a_source_is_counted_while_its_connections_are_open_and_remembered_after() {
    with(base(), |mut w| {
        let mut conn = w.open(v4(1));
        let silent = w.give(conn, false, |p| p);
        let of = |open, held, good, bad, exchanges| Sources {
            open,
            held,
            good,
            bad,
            exchanges,
            none: 0,
        };
        assert_eq!(silent.sources, of(1, 1, 0, 0, 0));
        assert_eq!(w.ask(&mut conn, GET).sources, of(1, 0, 0, 0, 0), "it waits for the server");
        assert_eq!(w.say(&mut conn, OK).sources, of(1, 0, 1, 0, 1));
        w.ask(&mut conn, GET);
        assert_eq!(w.say(&mut conn, OK).sources, of(1, 0, 1, 0, 2), "one connection");
        assert_eq!(w.end(conn).sources, of(0, 0, 1, 0, 2));
        let silent = w.open(v4(1));
        let s = w.give(silent, false, |p| p.flags(RST));
        assert_eq!((s.sources, s.open), (of(0, 0, 1, 1, 2), 0), "it asked for nothing");
    });
}

#[test]
fn a_slow_request_is_held_until_its_response() {
    with(base(), |mut w| {
        let mut conn = w.open(v4(1));
        assert_eq!(w.ask(&mut conn, b"POST /up HTTP/1.1\r\n").sources.held, 0);
        w.now += 3 * SECOND;
        let s = w.ask(&mut conn, b"Host: a\r\n");
        assert_eq!((s.slow, s.silent, s.waiting, s.sources.held), (1, 0, 0, 1));
        w.now += 3 * SECOND;
        assert_eq!(w.ask(&mut conn, b"X-Slow: 1\r\n").sources.held, 1, "once");
        let s = w.say(&mut conn, OK);
        assert_eq!((s.slow, s.sources.held, s.sources.good), (0, 0, 1), "it was served in the end");
        let mut other = w.open(v4(1));
        w.ask(&mut other, b"POST /up HTTP/1.1\r\n");
        w.now += 3 * SECOND;
        w.ask(&mut other, b"Host: a\r\n");
        let s = w.end(other);
        assert_eq!((s.slow, s.sources.held, s.sources.bad), (0, 0, 1), "the server gave up");
    });
}

#[test]
fn a_source_that_holds_silent_connections_opens_no_more_until_some_end() {
    with(capped(), |mut w| {
        let held = w.silent(v4(1), MAX - 1);
        assert!(!w.refused(v4(1)), "one below the limit");
        let last = w.open(v4(1));
        assert!(w.refused(v4(1)), "at the limit");
        assert!(!w.refused(v4(2)), "others open theirs");
        w.end(last);
        assert!(!w.refused(v4(1)), "one has ended");
        for conn in held {
            w.end(conn);
        }
        assert!(!w.refused(v4(1)));
    });
}

#[test]
fn without_a_limit_nobody_is_refused() {
    with(base(), |mut w| {
        w.silent(v4(1), 10 * MAX);
        assert!(!w.refused(v4(1)));
    });
}

#[test]
fn who_completes_no_handshake_is_no_source() {
    with(capped(), |mut w| {
        for _ in 0..10 * MAX {
            assert!(!w.refused(v4(1)), "a spoofed SYN says nothing about its address");
        }
        let conn = w.fresh(v4(1));
        w.syn(conn);
        w.give(conn, true, |p| p.syn());
        let s = w.give(conn, false, |p| p.seq(1_001).ack(ISN + 7));
        assert_eq!(s.sources, Sources::default(), "a guessed number proves nothing");
    });
}

#[test]
fn a_source_whose_exchanges_complete_is_not_capped() {
    with(capped(), |mut w| {
        for _ in 0..20 {
            w.served(v4(1));
        }
        w.silent(v4(1), 19);
        assert!(!w.refused(v4(1)), "more of its connections complete than are held");
        let mut last = w.open(v4(1));
        assert!(w.refused(v4(1)), "no more");
        w.ask(&mut last, GET);
        assert!(!w.refused(v4(1)), "one more asks");
    });
}

#[test]
fn what_waits_for_a_hanging_server_counts_for_its_source() {
    with(capped(), |mut w| {
        let mut asks = w.silent(v4(1), 6);
        w.silent(v4(1), MAX);
        assert!(w.refused(v4(1)));
        for conn in &mut asks {
            w.ask(conn, GET);
        }
        assert!(!w.refused(v4(1)), "six wait, four are silent");
    });
}

#[test]
fn a_source_that_turns_hostile_is_capped_whatever_it_did_before() {
    with(capped(), |mut w| {
        for _ in 0..2_000 {
            w.served(v4(1));
        }
        let before = w.silent(v4(1), 1).len();
        let opened = (0..400).find(|_| {
            let refused = w.refused(v4(1));
            if !refused {
                w.open(v4(1));
            }
            refused
        });
        let opened = opened.unwrap() + before;
        assert!(opened <= 128, "{opened}: no more is remembered");
    });
}

#[test]
fn an_ipv6_source_is_a_prefix_of_64_bits() {
    let from = |text: &str| -> IpAddr { text.parse().unwrap() };
    with(capped(), |mut w| {
        for n in 0..MAX {
            w.silent(from(&format!("2001:db8:7:1::{n:x}")), 1);
        }
        assert!(w.refused(from("2001:db8:7:1:ffff::1")));
        assert!(!w.refused(from("2001:db8:7:2::1")));
    });
}

#[test]
fn the_sources_of_another_service_are_others() {
    let two = capped();
    assert!(two.services.len() > 1 && two.services[1].listen[0].port == 443);
    with(two, |mut w| {
        w.silent(v4(1), MAX);
        assert!(w.refused(v4(1)));
        let conn = w.fresh(v4(1));
        w.native.advance_to(w.now);
        let frame = eth().ipv4().from4([198, 51, 100, 1]).to4(SERVER4.octets());
        let frame = frame.tcp(conn.port, 443).seq(1_000).syn().bytes();
        let arrival = Arrival { frame: &frame, socket: Socket::Nothing, loopback: false };
        let seen = w.native.run(&arrival, How::default()).seen.unwrap().words(&w.setup);
        assert_eq!(seen, "any/default admit no-limit");
    });
}

#[test]
fn a_limit_in_shadow_is_counted_and_refuses_nobody() {
    let setup = capped().each(|service| service.shadow = true);
    with(setup, |mut w| {
        w.silent(v4(1), MAX);
        let said = w.verdict(v4(1));
        assert!(said.contains("source") && said.contains("shadow"), "{said}");
    });
}

#[test]
fn where_the_table_is_full_its_connections_have_no_source_and_no_limit() {
    with(capped(), |mut w| {
        // 1024 places in the native build
        let mut none = 0;
        for n in 0..3_000_u32 {
            let [_, _, high, low] = n.to_be_bytes();
            let conn = w.open([203, 0, high, low].into());
            none = w.give(conn, false, |p| p).sources.none;
            if none > 0 {
                w.silent([203, 0, high, low].into(), MAX + 1);
                assert!(!w.refused([203, 0, high, low].into()), "nothing is known of it");
                break;
            }
        }
        assert!(none > 0, "the table was never full");
    });
}

#[test]
fn a_source_with_open_connections_keeps_its_place_among_any_number_of_others() {
    with(capped(), |mut w| {
        w.silent(v4(1), MAX);
        for n in 0..2_000_u32 {
            let [_, _, high, low] = n.to_be_bytes();
            w.served([203, 0, high, low].into());
        }
        assert!(w.refused(v4(1)));
    });
}

/// What a source that is refused gets, under `action: auto`.
fn auto(test: impl FnOnce(World<'_>)) {
    let setup = dropping().each(|service| service.action = Action::Auto).bucket(1_000_000, 0);
    with(setup, test);
}

impl World<'_> {
    fn refusal(&mut self, from: IpAddr) -> VerdictKind {
        self.native.use_tokens(0, 1_000_000);
        let said = self.verdict(from);
        self.native.use_tokens(0, 0);
        match (said.contains("drop"), said.contains("reject")) {
            (true, false) => VerdictKind::Drop,
            (false, true) => VerdictKind::Reject,
            _ => panic!("{said}"),
        }
    }
}

#[test]
fn auto_sends_a_rst_to_a_single_client_and_to_nobody_else() {
    auto(|mut w| {
        assert_eq!(w.refusal(v4(1)), VerdictKind::Drop, "nothing is known of it");
        w.open(v4(1));
        assert_eq!(w.refusal(v4(1)), VerdictKind::Drop, "nothing that it was served");
        w.served(v4(1));
        assert_eq!(w.refusal(v4(1)), VerdictKind::Reject, "a client that was served");
        w.silent(v4(1), 5);
        assert_eq!(w.refusal(v4(1)), VerdictKind::Reject, "as many as a browser opens");
        w.silent(v4(1), 1);
        assert_eq!(w.refusal(v4(1)), VerdictKind::Drop, "a proxy, or many clients");
    });
}

#[test]
fn auto_takes_a_source_with_many_requests_on_each_connection_for_a_proxy() {
    auto(|mut w| {
        let mut conn = w.open(v4(1));
        for n in 1..=9 {
            w.ask(&mut conn, GET);
            w.say(&mut conn, OK);
            let kind = if n <= 8 { VerdictKind::Reject } else { VerdictKind::Drop };
            assert_eq!(w.refusal(v4(1)), kind, "{n} requests on one connection");
        }
    });
}

#[test]
fn auto_remembers_how_many_connections_a_source_had() {
    auto(|mut w| {
        let many = w.silent(v4(1), 7);
        w.served(v4(1));
        for conn in many {
            w.end(conn);
        }
        assert_eq!(w.refusal(v4(1)), VerdictKind::Drop, "between two of its rushes");
    });
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exchanges, in the native build: what counts as a request and as a response on cleartext, TLS 1.2
//! and 1.3, HTTP/2, long polls, uploads and upgraded connections. (With real clients and servers:
//! exchanges_live.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "turns/proof.rs"]
mod proof;
#[path = "turns/shapes.rs"]
mod shapes;

mod support;

use std::sync::{Mutex, PoisonError};
use support::dialog::{Dialog, hello, record, sealed};
use support::engine::Hook;
use support::native::{Native, Program, Signals};
use support::setup::base;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// A Finished of TLS 1.3 is this long, with SHA-256.
const FINISHED: usize = 36;
const TICKET: usize = 233;

/// One native build for all tests: it takes longer to build than all that they say.
fn with(test: impl FnOnce(Dialog<'_>)) {
    let Some(test) = proof::instead(test) else { return };
    static NATIVE: Mutex<Option<Native>> = Mutex::new(None);
    let mut native = NATIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let native = native.get_or_insert_with(|| Native::start(Program::Ingress(Hook::Tc)));
    test(Dialog::new(native, &base()));
}

/// Waiting, silent, exchanges that were timed, exchanges that could not be.
const fn what(s: Signals) -> (i32, i32, u32, u32) {
    (s.waiting, s.silent, s.first_bytes, s.unknown)
}

/// Connections that asked, and that were answered.
const fn who(s: Signals) -> (u32, u32) {
    (s.connections.asked, s.connections.answered)
}

/// ClientHello and the server's flight of TLS 1.3.
fn handshake13(d: &mut Dialog<'_>, alpn: &[&str]) {
    assert_eq!(d.ask(&hello(alpn)).waiting, 1, "the server owes its part");
    let flight = [record(22, 122), record(20, 1), sealed(40), sealed(900), sealed(300)].concat();
    assert_eq!(what(d.wait_ms(10).say(&flight)).0, 0, "and has given it");
}

fn finished() -> Vec<u8> {
    [record(20, 1), sealed(FINISHED)].concat()
}

#[test]
fn a_silent_connection_waits_for_nothing_and_is_counted() {
    with(|mut d| {
        assert_eq!(what(d.wait_ms(5_000).ack()), (0, 1, 0, 0));
        assert_eq!(what(d.probe()), (0, 1, 0, 0), "whether the server is there");
        let s = d.ask(GET);
        assert_eq!((what(s), who(s)), ((1, 0, 0, 0), (1, 0)));
        let s = d.wait_ms(30).say(OK);
        assert_eq!((what(s), who(s)), ((0, 0, 1, 0), (1, 1)));
        assert_eq!(s.first_bytes_ms, 30, "from the first data byte, not from the SYN");
    });
}

#[test]
fn a_connection_counts_once_and_its_exchanges_each() {
    with(|mut d| {
        for n in 1..=5 {
            assert_eq!(d.ask(GET).waiting, 1);
            let s = d.wait_ms(10).say(OK);
            assert_eq!((what(s), who(s)), ((0, 0, n, 0), (1, 1)));
            d.wait_ms(300);
        }
        let s = d.server_fin();
        assert_eq!((s.connections.ended, s.connections.ended_exchanges), (1, 5));
        assert_eq!((s.open, s.silent, s.first_bytes_ms), (0, 0, 50));
        assert_eq!((s.connections.replied, s.connections.proved), (1, 1));
    });
}

#[test]
fn retransmitted_bytes_and_more_of_a_body_open_no_turn() {
    with(|mut d| {
        d.ask(GET);
        d.say(OK);
        assert_eq!(d.ask_again(GET).waiting, 0, "sent again");
        // sent before the client had the response: the rest of its request
        assert_eq!(d.ask_behind(b"GETTING ON WITH THE BODY", OK.len() as u32).waiting, 0);
        assert_eq!(d.ask(b"more of a body").waiting, 0, "no method");
        assert_eq!(d.ask(GET).waiting, 1);
    });
}

#[test]
fn a_client_that_leaves_waits_no_more_and_its_late_response_is_counted() {
    with(|mut d| {
        d.ask(GET);
        assert_eq!(what(d.wait_ms(10_000).client_fin()), (0, 0, 0, 0));
        let s = d.wait_ms(2_000).say(OK);
        assert_eq!((what(s), who(s)), ((0, 0, 1, 0), (1, 1)));
    });
    with(|mut d| {
        d.ask(GET);
        let s = d.client_reset();
        assert_eq!((s.waiting, s.open, s.connections.ended), (0, 0, 0), "it had no exchange");
        assert_eq!(s.connections.lost, 1, "and what it asked for is lost");
    });
}

#[test]
fn an_interim_response_is_none() {
    with(|mut d| {
        d.ask(b"POST /up HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(what(d.say(b"HTTP/1.1 100 Continue\r\n\r\n")), (1, 0, 0, 0));
        assert_eq!(d.ask(&[b'x'; 900]).waiting, 1);
        assert_eq!(what(d.wait_ms(40).say(OK)), (0, 0, 1, 0));
        d.ask(GET);
        assert_eq!(what(d.say(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")), (1, 0, 1, 0));
        assert_eq!(what(d.say(OK)), (0, 0, 2, 0));
        d.ask(GET);
        let both = [b"HTTP/1.1 100 Continue\r\n\r\n", OK].concat();
        assert_eq!(what(d.say(&both)), (0, 0, 3, 0), "with its response behind it");
    });
}

#[test]
fn after_an_upgrade_there_are_no_turns() {
    with(|mut d| {
        d.ask(GET);
        let s = d.say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n");
        assert_eq!(what(s), (0, 0, 1, 0));
        for _ in 0..3 {
            assert_eq!(what(d.wait_ms(3_000).ask(b"GET me something")), (0, 0, 1, 0));
            assert_eq!(what(d.wait_ms(3_000).say(b"HTTP/1.1 200 pushed")), (0, 0, 1, 0));
        }
    });
}

#[test]
fn an_event_stream_is_one_exchange_and_a_long_poll_waits() {
    with(|mut d| {
        d.ask(GET);
        d.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        for _ in 0..4 {
            assert_eq!(what(d.wait_ms(20_000).say(b"data: 1\n\n")), (0, 0, 1, 0));
        }
        d.ask(GET);
        assert_eq!(what(d.wait_ms(50_000).ack()), (1, 0, 1, 0), "a long poll is owed");
        assert_eq!(d.say(OK).first_bytes_ms, 50_000);
    });
}

#[test]
fn a_slow_upload_is_not_the_servers_debt() {
    with(|mut d| {
        d.ask(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        assert_eq!(d.wait_ms(900).ask(&[b'x'; 500]).waiting, 1, "within a second");
        assert_eq!(d.wait_ms(1_100).ask(&[b'x'; 500]).waiting, 0);
        assert_eq!(d.wait_ms(9_000).ask(&[b'x'; 500]).waiting, 0);
        let s = d.wait_ms(100).say(OK);
        assert_eq!((what(s), who(s)), ((0, 0, 0, 1), (1, 1)), "counted, and not timed");
        assert_eq!(d.ask(GET).waiting, 1, "the next one is evaluated anew");
        assert_eq!(what(d.say(OK)), (0, 0, 1, 1));
    });
    // a server that does not take the request: the client only sends it again
    with(|mut d| {
        d.ask(GET);
        for _ in 0..3 {
            assert_eq!(d.wait_ms(1_500).ask_again(GET).waiting, 1);
        }
    });
}

#[test]
fn a_server_that_greets_is_counted_and_not_timed() {
    with(|mut d| {
        let s = d.wait_ms(5).say(b"220 mail.example ESMTP\r\n");
        assert_eq!((what(s), who(s)), ((0, 0, 0, 1), (1, 1)));
        assert_eq!(d.ask(b"EHLO a\r\n").waiting, 1, "any payload is a turn");
        assert_eq!(what(d.wait_ms(7).say(b"250 ok\r\n")), (0, 0, 1, 1));
        assert_eq!(d.ask(b"quit\r\n").waiting, 1);
    });
}

#[test]
fn tls13_is_timed_from_the_hello_without_what_the_client_takes() {
    with(|mut d| {
        handshake13(&mut d, &[]);
        let s = d.wait_ms(200).ask(&[finished(), sealed(120)].concat());
        assert_eq!((what(s), who(s)), ((1, 0, 0, 0), (1, 0)));
        let s = d.wait_ms(30).say(&sealed(5_000)[..1400]);
        assert_eq!((what(s), who(s)), ((0, 0, 1, 0), (1, 1)));
        assert_eq!(s.first_bytes_ms, 40, "10 for the handshake, 30 for the page");
        d.wait_ms(50).ask(&sealed(120));
        assert_eq!(d.wait_ms(5).say(&sealed(200)).first_bytes_ms, 45, "no handshake in it");
    });
}

#[test]
fn a_finished_alone_is_no_request() {
    for end in [sealed(FINISHED), sealed(52)] {
        with(|mut d| {
            handshake13(&mut d, &[]);
            let s = d.ask(&[record(20, 1), end].concat());
            assert_eq!((what(s), who(s)), ((0, 1, 0, 0), (0, 0)), "a browser preconnects");
            let s = d.say(&[sealed(TICKET), sealed(TICKET)].concat());
            assert_eq!((what(s), who(s)), ((0, 1, 0, 0), (0, 0)), "tickets, and nobody asked");
            assert_eq!(d.wait_ms(3_000).ask(&sealed(90)).waiting, 1);
            assert_eq!(d.wait_ms(20).say(&sealed(800)).first_bytes_ms, 30);
        });
    }
}

/// Plays TLS connections whose tickets come before the response until they are known.
fn learn<'a>(mut d: Dialog<'a>, tickets: &[Vec<u8>], response: &[u8]) -> Dialog<'a> {
    for _ in 0..10 {
        handshake13(&mut d, &[]);
        d.ask(&[finished(), sealed(120)].concat());
        for segment in tickets {
            d.say(segment);
        }
        d.wait_ms(30).say(response);
        d.server_fin();
        d = d.next();
    }
    d
}

#[test]
fn tickets_are_learned_and_then_the_request_still_waits() {
    let both = [sealed(TICKET), sealed(TICKET)].concat();
    let apart = [sealed(TICKET), sealed(TICKET)];
    for tickets in [&[both][..], &apart[..], &apart[..1]] {
        with(|d| {
            let mut d = learn(d, tickets, &sealed(700));
            let before = d.ack();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            for segment in tickets {
                assert_eq!(d.wait_ms(1).say(segment).waiting, 1, "behind a ticket");
            }
            let s = d.wait_ms(600).say(&sealed(700));
            assert_eq!(s.waiting, 0);
            let took = s.first_bytes_ms - before.first_bytes_ms;
            assert_eq!(took, 610 + tickets.len() as u32, "the page, not the tickets");
            // tickets and response in one segment
            let mut d = d.next();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&[tickets.concat(), sealed(90)].concat()).waiting, 0);
            // a resumption with one ticket, or none
            let mut d = d.next();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&sealed(TICKET)).waiting, 1);
            assert_eq!(d.say(&sealed(150)).waiting, 0);
            let mut d = d.next();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&[sealed(TICKET), sealed(150)].concat()).waiting, 0);
            let mut d = d.next();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&sealed(150)).waiting, 0);
        });
    }
}

/// Two tickets, each in a segment of its own, behind Finished messages alone: clients that connect in
/// advance teach both, and who asks at once then waits behind both.
#[test]
fn tickets_apart_are_learned_from_clients_that_ask_nothing() {
    with(|mut d| {
        for _ in 0..10 {
            handshake13(&mut d, &[]);
            d.ask(&finished());
            for _ in 0..2 {
                let s = d.say(&sealed(TICKET));
                assert_eq!((s.silent, s.connections.asked), (1, 0), "nobody has asked");
            }
            d.server_fin();
            d = d.next();
        }
        handshake13(&mut d, &[]);
        d.ask(&[finished(), sealed(120)].concat());
        for ticket in 1..=2 {
            assert_eq!(d.say(&sealed(TICKET)).waiting, 1, "behind ticket {ticket}");
        }
        assert_eq!(d.say(&sealed(700)).waiting, 0);
    });
}

/// Its body, which leaves while the tickets are on their way, or which the server asks for.
#[test]
fn more_of_a_request_behind_tickets_is_no_request() {
    let both = [sealed(TICKET), sealed(TICKET)].concat();
    for expected in [false, true] {
        with(|d| {
            let mut d = learn(d, std::slice::from_ref(&both), &sealed(700));
            let before = d.ack();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(200)].concat());
            assert_eq!(d.say(&both).waiting, 1);
            if expected {
                assert_eq!(d.say(&sealed(25)).waiting, 1, "100 Continue");
                assert_eq!(d.ask(&sealed(900)).waiting, 1);
            } else {
                assert_eq!(d.ask_behind(&sealed(900), both.len() as u32).waiting, 1);
            }
            let s = d.wait_ms(20).say(&sealed(700));
            assert_eq!((s.waiting, s.unknown), (0, before.unknown));
            assert_eq!(s.first_bytes - before.first_bytes, 1);
            assert_eq!(d.server_fin().connections.ended_exchanges, 11);
        });
    }
}

#[test]
fn what_the_server_sends_again_says_nothing_new() {
    let both = [sealed(TICKET), sealed(TICKET)].concat();
    with(|d| {
        let mut d = learn(d, std::slice::from_ref(&both), &sealed(700));
        let before = d.ack();
        for _ in 0..2 {
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&both).waiting, 1);
            assert_eq!(d.wait_ms(200).say_again(&both).waiting, 1);
            assert_eq!(d.say(&sealed(700)).waiting, 0);
            d.server_fin();
            d = d.next();
        }
        let s = d.ack();
        assert_eq!((s.first_bytes - before.first_bytes, s.unknown), (2, before.unknown));
        assert_eq!(
            s.first_bytes_ms - before.first_bytes_ms,
            420,
            "with the handshake, to the page"
        );
    });
}

/// One response whose head has the size of a ticket teaches a flight that is too long; the next one of
/// this size, which is taken for a ticket, mends that.
#[test]
fn a_flight_that_was_learned_too_long_is_mended() {
    let both = [sealed(TICKET), sealed(TICKET)].concat();
    with(|d| {
        let mut d = learn(d, std::slice::from_ref(&both), &sealed(700));
        let small = |d: &mut Dialog<'_>, body: bool| {
            handshake13(d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            d.say(&both);
            let waiting = d.say(&sealed(TICKET)).waiting;
            if body {
                d.say(&sealed(700));
            } else {
                d.ask(&sealed(120));
                d.say(&sealed(700));
            }
            d.server_fin();
            waiting
        };
        assert_eq!(small(&mut d, true), 0, "its head");
        let mut d = d.next();
        assert_eq!(small(&mut d, false), 1, "taken for a third ticket");
        let mut d = d.next();
        assert_eq!(small(&mut d, false), 0, "the response");
    });
}

/// A server that waits for an acknowledgement of its first ticket (Nagle) sends the second behind the request.
#[test]
fn tickets_on_both_sides_of_a_request_are_learned() {
    for known in [false, true] {
        with(|mut d| {
            if known {
                d = learn(d, &[sealed(TICKET)], &sealed(700));
            }
            for n in 0..12 {
                handshake13(&mut d, &[]);
                d.ask(&finished());
                d.say(&sealed(TICKET));
                assert_eq!(d.ask(&sealed(120)).waiting, 1);
                let s = d.say(&sealed(TICKET));
                // two votes a connection
                let learned = if known { 1 } else { 4 };
                assert_eq!(s.waiting, i32::from(n >= learned), "connection {n}");
                let s = d.wait_ms(20).say(&sealed(700));
                assert_eq!((s.waiting, s.unknown), (0, 0));
                d.server_fin();
                d = d.next();
            }
        });
    }
}

/// The same with HTTP/2: its settings are released with the second ticket.
#[test]
fn a_ticket_and_settings_behind_a_request_are_neither_its_response() {
    with(|mut d| {
        for n in 0..10 {
            let before = d.ack();
            handshake13(&mut d, &["h2", "http/1.1"]);
            d.ask(&finished());
            d.say(&sealed(TICKET));
            d.ask(&[sealed(PREFACE), sealed(61)].concat());
            let s = d.say(&[sealed(TICKET), sealed(18)].concat());
            assert_eq!(s.waiting, 1, "connection {n}");
            let s = d.wait_ms(20).say(&sealed(700));
            assert_eq!((s.waiting, s.first_bytes - before.first_bytes), (0, 1));
            assert_eq!(d.ask(&sealed(18)).waiting, 1, "connection {n}: still HTTP/2");
            d.say(&sealed(700));
            let s = d.server_fin();
            assert_eq!(s.unknown, 0, "connection {n}");
            d = d.next();
        }
    });
}

/// Tickets, and control frames of HTTP/2, are on their way to the client while its request is on the way to
/// the server: on any line that is longer than this machine.
#[test]
fn a_request_may_cross_tickets_and_control_frames() {
    let both = [sealed(TICKET), sealed(TICKET)].concat();
    let apart = [sealed(TICKET), sealed(TICKET)];
    for tickets in [&[both][..], &apart[..]] {
        with(|d| {
            let mut d = learn(d, tickets, &sealed(700));
            let before = d.ack();
            handshake13(&mut d, &[]);
            d.ask(&finished());
            let mut unseen = 0;
            for segment in tickets {
                d.say(segment);
                unseen += segment.len() as u32;
            }
            assert_eq!(d.ask_behind(&sealed(120), unseen).waiting, 1, "it has no ticket yet");
            let s = d.wait_ms(20).say(&sealed(700));
            assert_eq!((s.waiting, s.unknown), (0, before.unknown));
            assert_eq!(s.first_bytes - before.first_bytes, 1);
            assert_eq!(d.ask_behind(&sealed(500), 722).waiting, 0, "during the response");
        });
    }
    with(|mut d| {
        handshake13(&mut d, &["h2", "http/1.1"]);
        d.ask(&[finished(), sealed(PREFACE)].concat());
        d.say(&sealed(24)); // SETTINGS
        assert_eq!(d.ask_behind(&sealed(61), 46).waiting, 1, "it has no settings yet");
        assert_eq!(what(d.say(&sealed(700))), (0, 0, 1, 0));
    });
}

/// The second ticket shares its segment with the beginning of HTTP/2.
#[test]
fn a_ticket_alone_and_one_with_settings_are_a_flight_of_two() {
    with(|mut d| {
        for n in 0..10 {
            let before = d.ack();
            handshake13(&mut d, &["h2", "http/1.1"]);
            d.ask(&[finished(), sealed(61)].concat());
            d.say(&sealed(265));
            d.say(&[sealed(265), sealed(9)].concat());
            d.say(&sealed(700));
            for _ in 0..2 {
                assert_eq!(
                    d.wait_ms(5).ask(&sealed(18)).waiting,
                    1,
                    "connection {n}: still HTTP/2"
                );
                d.say(&sealed(700));
            }
            let s = d.server_fin();
            let ended = |s: Signals| s.connections.ended_exchanges;
            assert_eq!((ended(s) - ended(before), s.unknown), (3, 0), "connection {n}");
            d = d.next();
        }
    });
}

#[test]
fn without_tickets_a_small_response_is_one() {
    with(|mut d| {
        for n in 1..=40 {
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            let s = d.say(&sealed(TICKET));
            assert_eq!((s.waiting, s.first_bytes), (0, n), "204: a segment of the same size");
            d.say(&sealed(2)); // close_notify
            d.server_fin();
            d = d.next();
        }
    });
}

#[test]
fn a_response_of_the_size_of_a_ticket_is_found_out() {
    // What was learned is wrong now: the same size is the whole response.
    with(|d| {
        let mut d = learn(d, &[sealed(TICKET)], &sealed(700));
        let before = d.ack();
        handshake13(&mut d, &[]);
        d.ask(&[finished(), sealed(120)].concat());
        assert_eq!(d.say(&sealed(TICKET)).waiting, 1);
        let s = d.wait_ms(200).ask(&sealed(120));
        assert_eq!((s.waiting, s.unknown - before.unknown), (1, 1), "the client goes on");
        assert_eq!(s.connections.answered - before.connections.answered, 1);
        d.server_fin();
        let mut d = d.next();
        handshake13(&mut d, &[]);
        d.ask(&[finished(), sealed(120)].concat());
        d.say(&sealed(TICKET));
        let s = d.server_fin();
        assert_eq!((s.open, s.unknown - before.unknown), (0, 2), "the server closes");
        // and after a few of them it is no ticket any more
        for _ in 0..6 {
            d = d.next();
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            d.say(&sealed(TICKET));
            d.server_fin();
        }
        let mut d = d.next();
        handshake13(&mut d, &[]);
        let waiting = d.ack().waiting;
        d.ask(&[finished(), sealed(120)].concat());
        assert_eq!(d.say(&sealed(TICKET)).waiting, waiting);
    });
}

#[test]
fn hello_retry_client_certificates_and_early_data() {
    with(|mut d| {
        assert_eq!(d.ask(&hello(&[])).waiting, 1);
        assert_eq!(d.wait_ms(5).say(&[record(22, 88), record(20, 1)].concat()).waiting, 0);
        let again = [record(20, 1), hello(&[])].concat();
        assert_eq!(d.wait_ms(50).ask(&again).waiting, 1, "the second hello is owed a reply");
        let flight = [record(22, 122), sealed(40), sealed(900)].concat();
        assert_eq!(d.wait_ms(5).say(&flight).waiting, 0);
        d.ask(&[finished(), sealed(120)].concat());
        assert_eq!(d.wait_ms(20).say(&sealed(900)).first_bytes_ms, 30);
    });
    // its own records, and one record for all of it
    let apart = [sealed(900), sealed(264), sealed(FINISHED)].concat();
    with(|mut d| {
        handshake13(&mut d, &[]);
        assert_eq!(who(d.ask(&[record(20, 1), apart].concat())), (0, 0));
        assert_eq!(d.ask(&sealed(120)).waiting, 1);
        assert_eq!(what(d.say(&sealed(900))), (0, 0, 1, 0));
    });
    with(|mut d| {
        handshake13(&mut d, &[]);
        assert_eq!(who(d.ask(&[record(20, 1), sealed(1_200)].concat())), (0, 0));
        assert_eq!(d.ask(&sealed(120)).waiting, 1, "a segment of its own");
        assert_eq!(what(d.say(&sealed(900))), (0, 0, 1, 0));
    });
    with(|mut d| {
        let early = [hello(&[]), record(20, 1), sealed(120)].concat();
        assert_eq!(what(d.ask(&early)), (1, 0, 0, 0));
        let flight = [record(22, 128), record(20, 1), sealed(80), sealed(52)].concat();
        assert_eq!(d.say(&flight).waiting, 0);
        d.ask(&[sealed(4), sealed(FINISHED)].concat());
        let s = d.say(&sealed(900));
        assert_eq!((what(s), who(s)), ((0, 0, 0, 1), (1, 1)), "0-RTT is left out");
        assert_eq!(d.ask(&sealed(120)).waiting, 1);
    });
    // the server replies to late early data before it has the client's Finished
    with(|mut d| {
        handshake13(&mut d, &[]);
        assert_eq!(d.ask(&[record(20, 1), sealed(120)].concat()).waiting, 0);
        let s = d.say(&[sealed(90), sealed(900)].concat());
        assert_eq!((what(s), who(s)), ((0, 0, 0, 1), (1, 1)));
        let s = d.ask(&[sealed(4), sealed(FINISHED)].concat());
        assert_eq!(s.waiting, 0, "its Finished is no request");
        d.say(&sealed(TICKET));
        assert_eq!(d.ask(&sealed(120)).waiting, 1);
        assert_eq!(what(d.say(&sealed(900))), (0, 0, 1, 1));
    });
    // a Finished of a length that nobody knows, and a server that replies all the same
    with(|mut d| {
        handshake13(&mut d, &[]);
        assert_eq!(d.ask(&[record(20, 1), sealed(30)].concat()).waiting, 0);
        assert_eq!(d.say(&[sealed(90), sealed(900)].concat()).unknown, 1);
        assert_eq!(d.ask(&sealed(60)).waiting, 1, "its handshake is over");
    });
}

#[test]
fn tls12_in_full_and_resumed() {
    with(|mut d| {
        assert_eq!(d.ask(&hello(&[])).waiting, 1);
        let flight = [record(22, 90), record(22, 900), record(22, 300), record(22, 4)].concat();
        assert_eq!(d.wait_ms(10).say(&flight).waiting, 0);
        let keys = [record(22, 70), record(20, 1), record(22, 40)].concat();
        let s = d.wait_ms(50).ask(&keys);
        assert_eq!((s.waiting, who(s)), (1, (0, 0)), "the rest of the handshake is owed");
        let end = [record(22, 200), record(20, 1), record(22, 40)].concat();
        assert_eq!(d.wait_ms(5).say(&end).waiting, 0);
        assert_eq!(d.wait_ms(50).ask(&record(23, 150)).waiting, 1);
        let s = d.wait_ms(20).say(&record(23, 900));
        assert_eq!((what(s), s.first_bytes_ms), ((0, 0, 1, 0), 35));
        assert_eq!(d.ask(&record(21, 26)).waiting, 0, "an alert");
    });
    with(|mut d| {
        d.ask(&hello(&[]));
        d.wait_ms(3).say(&[record(22, 90), record(20, 1), record(22, 40)].concat());
        let mut end = [record(20, 1), record(22, 40)].concat();
        end[11] = 1; // sealed: its first byte may look like a ClientHello
        assert_eq!(d.ask(&end).waiting, 0, "the server has sent its Finished");
        assert_eq!(d.ask(&record(23, 150)).waiting, 1);
        assert_eq!(what(d.say(&record(23, 900))), (0, 0, 1, 0));
    });
}

#[test]
fn http1_in_tls_knows_alerts_interim_responses_and_key_updates() {
    with(|mut d| {
        handshake13(&mut d, &["h2", "http/1.1"]);
        d.ask(&[finished(), sealed(120)].concat());
        assert_eq!(what(d.say(&sealed(300))), (0, 0, 1, 0), "HTTP/1.1 was chosen");
        for small in [2, 5] {
            assert_eq!(d.ask(&sealed(small)).waiting, 0, "{small} bytes are no request");
        }
        assert_eq!(d.ask(&sealed(200)).waiting, 1, "Expect");
        assert_eq!(d.say(&sealed(25)).waiting, 1, "100 Continue");
        assert_eq!(what(d.say(&sealed(300))), (0, 0, 2, 0));
        // a record that began in the segment before
        assert_eq!(d.ask(&[0xaa; 500]).waiting, 0);
    });
}

/// What an HTTP/2 client says first: preface, SETTINGS with three entries, a window.
const PREFACE: usize = 24 + 9 + 18 + 13;

#[test]
fn http2_in_tls_makes_no_phantoms() {
    with(|d| {
        let tickets = [sealed(TICKET), sealed(TICKET)].concat();
        let mut d = learn(d, std::slice::from_ref(&tickets), &sealed(700));
        let before = d.ack();
        handshake13(&mut d, &["h2", "http/1.1"]);
        let s = d.ask(&[finished(), sealed(PREFACE)].concat());
        assert_eq!(what(s).0, 0, "a preface is no request");
        assert_eq!(d.say(&tickets).waiting, 0);
        assert_eq!(d.say(&[sealed(9 + 18 + 13), sealed(9)].concat()).waiting, 0, "SETTINGS");
        assert_eq!(d.ask(&sealed(9)).waiting, 0, "their ACK");
        assert_eq!(d.wait_ms(1_000).ask(&sealed(52)).waiting, 1, "HEADERS");
        assert_eq!(d.say(&sealed(9)).waiting, 1, "an ACK");
        assert_eq!(d.say(&sealed(13)).waiting, 1, "a window");
        let s = d.wait_ms(20).say(&[sealed(60), sealed(4_000)].concat());
        assert_eq!((s.waiting, s.first_bytes - before.first_bytes), (0, 1));
        for control in [13, 17, 26, 22] {
            let s = d.wait_ms(100).ask(&sealed(control));
            assert_eq!(s.waiting, 0, "{control} bytes are control frames");
        }
        let s = d.wait_ms(10).say(&sealed(17));
        assert_eq!((s.waiting, s.first_bytes - before.first_bytes), (0, 1), "a PING's ACK");
        assert_eq!(d.ask(&sealed(33)).waiting, 1, "a short request");
        assert_eq!(d.say(&sealed(40)).waiting, 0);
    });
    // all of it in one segment
    with(|mut d| {
        handshake13(&mut d, &["h2"]);
        let s = d.ask(&[finished(), sealed(PREFACE), sealed(110)].concat());
        assert_eq!((s.waiting, who(s)), (1, (1, 0)));
        assert_eq!(d.say(&sealed(9 + 12)).waiting, 1, "SETTINGS are no response");
        assert_eq!(d.say(&sealed(300)).waiting, 0);
        assert_eq!(d.wait_ms(1_500).ask(&sealed(52)).waiting, 1);
        assert_eq!(d.wait_ms(1_500).ask(&sealed(52)).waiting, 1, "another stream is not slow");
    });
}

/// Tickets before anybody knows them, and the beginning of HTTP/2 behind them: both are told apart,
/// whether they come in one segment or in two.
#[test]
fn http2_behind_unknown_tickets_is_seen_and_teaches_them() {
    let tickets = [sealed(265), sealed(265)].concat();
    for together in [true, false] {
        with(|mut d| {
            for n in 0..10 {
                let before = d.ack();
                handshake13(&mut d, &["h2", "http/1.1"]);
                d.ask(&finished());
                assert_eq!(d.ask(&sealed(61)).waiting, 1, "preface, SETTINGS and a request");
                if together {
                    let s = d.say(&[tickets.clone(), sealed(18)].concat());
                    assert_eq!(s.waiting, 1, "tickets and SETTINGS, connection {n}");
                } else {
                    let s = d.say(&tickets);
                    assert_eq!(s.waiting, i32::from(n >= 8), "tickets alone, connection {n}");
                    d.say(&sealed(9));
                }
                d.ask(&sealed(9));
                d.wait_ms(50).say(&sealed(700));
                for _ in 0..2 {
                    assert_eq!(d.wait_ms(5).ask(&sealed(18)).waiting, 1, "connection {n}");
                    d.wait_ms(50).say(&sealed(700));
                }
                let s = d.server_fin();
                let ended = |s: Signals| s.connections.ended_exchanges;
                assert_eq!(ended(s) - ended(before), 3, "connection {n}");
                assert_eq!(s.unknown, 0);
                if together || n >= 8 {
                    assert_eq!(s.first_bytes_ms - before.first_bytes_ms, 160, "with a handshake");
                }
                d = d.next();
            }
        });
    }
}

#[test]
fn what_a_listener_chooses_is_learned() {
    // A listener that chooses HTTP/1.1: a request of the length of a preface is one.
    with(|mut d| {
        for n in 0..4 {
            handshake13(&mut d, &["h2", "http/1.1"]);
            let length = if n < 3 { 200 } else { PREFACE };
            d.ask(&[finished(), sealed(length)].concat());
            assert_eq!(d.ack().waiting, 1, "connection {n}");
            d.say(&sealed(3_000));
            d.server_fin();
            d = d.next();
        }
    });
}

/// A frame of HTTP/2: its type, and zeros.
fn frame(kind: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0, (length >> 8) as u8, length as u8, kind, 0, 0, 0, 0, 1];
    bytes.resize(9 + length, 0);
    bytes
}

#[test]
fn http2_in_the_clear() {
    const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    with(|mut d| {
        let s = d.ask(&[PRI, &frame(4, 18), &frame(8, 4)].concat());
        assert_eq!((what(s), who(s)), ((0, 1, 0, 0), (0, 0)), "nobody asked");
        let s = d.say(&[frame(4, 18), frame(4, 0)].concat());
        assert_eq!((what(s), who(s)), ((0, 1, 0, 0), (0, 0)), "SETTINGS");
        assert_eq!(d.ask(&[frame(4, 0), frame(1, 40)].concat()).waiting, 1);
        assert_eq!(d.say(&frame(6, 8)).waiting, 1, "PING");
        assert_eq!(what(d.wait_ms(9).say(&[frame(1, 20), frame(0, 90)].concat())), (0, 0, 1, 0));
        assert_eq!(d.ask(&frame(8, 4)).waiting, 0, "a window");
        assert_eq!(d.ask(&frame(0, 1000)).waiting, 0, "data of a body");
        assert_eq!(d.ask(&frame(1, 40)).waiting, 1);
        assert_eq!(d.say(&[0xff; 600]).waiting, 0, "the middle of a frame");
    });
    with(|mut d| {
        let s = d.ask(&[PRI, &frame(4, 18), &frame(1, 40)].concat());
        assert_eq!((what(s), who(s)), ((1, 0, 0, 0), (1, 0)));
    });
}

#[test]
fn whatever_is_said_in_pieces_moves_gauges_by_one_at_most() {
    let conversation: Vec<(bool, Vec<u8>)> = vec![
        (false, hello(&["h2"])),
        (true, [record(22, 122), record(20, 1), sealed(40), sealed(900)].concat()),
        (false, [finished(), sealed(PREFACE), sealed(90)].concat()),
        (true, [sealed(TICKET), sealed(TICKET)].concat()),
        (true, sealed(27)),
        (true, sealed(500)),
        (false, sealed(40)),
        (true, sealed(500)),
    ];
    for cut in 1..60 {
        with(|mut d| {
            for (egress, bytes) in &conversation {
                for piece in bytes.chunks(cut * 11) {
                    let s = if *egress { d.say(piece) } else { d.ask(piece) };
                    assert!((0..=1).contains(&s.waiting), "cut at {}: {s:?}", cut * 11);
                    assert!((0..=1).contains(&s.silent), "cut at {}: {s:?}", cut * 11);
                    assert!(s.connections.answered <= s.connections.asked, "{s:?}");
                }
            }
            let s = d.server_fin();
            assert_eq!((s.waiting, s.silent, s.open), (0, 0, 0), "cut at {}", cut * 11);
        });
    }
}

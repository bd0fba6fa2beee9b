// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What segments look like that begin a request or a response, and what only looks so: every bound of
//! track/said.h on both sides.

use super::support::dialog::{Dialog, hello, record, sealed};
use super::{GET, OK, PREFACE, TICKET, finished, frame, handshake13, learn, what, who, with};

#[test]
pub(super) fn the_first_bytes_say_what_a_connection_talks() {
    const METHOD: bool = true;
    for (first, only_methods) in [
        (b"POST /up HTTP/1.1\r\n".to_vec(), METHOD),
        (b"PUT / HTTP/1.1\r\n".to_vec(), METHOD),
        (b"PRY / HTTP/1.1\r\n".to_vec(), METHOD),
        (b"PROPFIND / HTTP/1.1\r\n".to_vec(), METHOD),
        (b"PRI".iter().copied().chain(*b"NT / HTTP/1.1\r\n").collect(), METHOD),
        (b"G3T / HTTP/1.1\r\n".to_vec(), !METHOD),
        (b"GE1 / HTTP/1.1\r\n".to_vec(), !METHOD),
        (b"3ET / HTTP/1.1\r\n".to_vec(), !METHOD),
        (b"GET /".to_vec(), !METHOD),
        (record(22, 90), !METHOD),
        (vec![22, 2, 1, 0, 90, 1, 0, 0], !METHOD),
        (vec![21, 3, 1, 0, 90, 1, 0, 0], !METHOD),
    ] {
        with(|mut d| {
            assert_eq!(d.ask(&first).waiting, 1, "{first:x?}");
            assert_eq!(what(d.say(OK)), (0, 0, 1, 0), "{first:x?}");
            for (later, method) in [
                ("no method", false),
                ("GE", false),
                ("G1T x", false),
                ("GE1 x", false),
                ("PUT x", true),
            ] {
                let s = d.ask(later.as_bytes());
                let waits = method || !only_methods;
                assert_eq!(s.waiting, i32::from(waits), "{later:?} after {first:x?}");
                d.say(OK);
            }
        });
    }
}

#[test]
pub(super) fn the_first_bytes_of_a_response_say_what_it_is() {
    const RESPONSE: (i32, bool) = (0, true);
    const INTERIM: (i32, bool) = (1, false);
    for (head, (waits, turns)) in [
        ("HTTP/1.1 100 Continue\r\n\r\n", INTERIM),
        ("HTTP/1.1 102 Processing\r\n\r\n", INTERIM),
        ("HTTP/1.1 111 Whatever\r\n\r\n", INTERIM),
        ("HTTP/1.0 110 Anything at all, and so on", INTERIM),
        ("HTTP/1.1 101 Switching\r\n\r\n", (0, false)),
        ("HTTP/1.1 200 OK\r\n\r\n", RESPONSE),
        ("HTTP/1.1 1", RESPONSE),
        ("XTTP/1.1 100 Continue\r\n\r\n", RESPONSE),
        ("HTTP 1.1 100 Continue\r\n\r\n", RESPONSE),
        ("HTTP/1.1-100 Continue\r\n\r\n", RESPONSE),
        ("HTTP/1.1 500 No\r\n\r\n", RESPONSE),
    ] {
        with(|mut d| {
            d.ask(GET);
            assert_eq!(d.say(head.as_bytes()).waiting, waits, "{head:?}");
            d.say(OK);
            assert_eq!(d.ask(GET).waiting, i32::from(turns || waits == 1), "{head:?}");
        });
    }
}

#[test]
pub(super) fn what_is_no_frame_of_http2_is_more_of_a_body() {
    const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let broken = |at: usize, byte: u8| {
        let mut bytes = frame(4, 18);
        bytes[at] = byte;
        bytes
    };
    for (about, bytes, of_server) in [
        ("HEADERS", frame(1, 40), true),
        ("the beginning of a frame", frame(1, 40)[..8].to_vec(), false),
        ("a type that nobody knows", broken(3, 17), true),
        ("a stream beyond the last", broken(5, 0x80), true),
        ("longer than any", broken(0, 0x11), true),
        ("SETTINGS, and less than a frame", [frame(4, 18), vec![0, 0, 4]].concat(), false),
        ("nine control frames", (0..9).flat_map(|_| frame(8, 4)).collect(), false),
        (
            "HEADERS behind eight",
            (0..8).flat_map(|_| frame(8, 4)).chain(frame(1, 9)).collect(),
            false,
        ),
    ] {
        with(|mut d| {
            d.ask(&[PRI, &frame(4, 18), &frame(1, 40)].concat());
            assert_eq!(d.say(&bytes).waiting, i32::from(!of_server), "{about}");
            d.say(&frame(1, 40));
            // of a client's, only HEADERS begin anything
            let begins = about == "HEADERS";
            assert_eq!(d.ask(&bytes).waiting, i32::from(begins), "{about}");
        });
    }
}

#[test]
pub(super) fn what_is_no_record_of_tls_is_more_of_one() {
    let broken = |at: usize, byte: u8| {
        let mut bytes = sealed(120);
        bytes[at] = byte;
        bytes
    };
    let empty = vec![23, 3, 3, 0, 0, 0];
    for (about, bytes, request) in [
        ("a record", sealed(120), true),
        ("the beginning of one", sealed(120)[..5].to_vec(), false),
        ("below change_cipher_spec", broken(0, 19), false),
        ("above data", broken(0, 24), false),
        ("another protocol", broken(1, 2), false),
        ("a version that is none", broken(2, 5), false),
        ("longer than any", broken(3, 0x42), false),
        ("empty", empty, false),
        ("an alert", record(21, 2), false),
        (
            "behind six others",
            [(0..6).flat_map(|_| sealed(5)).collect(), sealed(120)].concat(),
            false,
        ),
        ("behind five", [(0..5).flat_map(|_| sealed(5)).collect(), sealed(120)].concat(), true),
    ] {
        with(|mut d| {
            handshake13(&mut d, &[]);
            d.ask(&[finished(), sealed(120)].concat());
            d.say(&sealed(900));
            assert_eq!(d.ask(&bytes).waiting, i32::from(request), "{about}");
        });
    }
}

#[test]
pub(super) fn http2_in_tls12() {
    // the seal has no byte for the type: of 24 bytes with AES-GCM
    let sealed12 = |content: usize| record(23, content + 24);
    with(|mut d| {
        d.ask(&hello(&["h2", "http/1.1"]));
        d.say(&[record(22, 90), record(22, 900), record(22, 4)].concat());
        d.ask(&[record(22, 70), record(20, 1), record(22, 40)].concat());
        d.say(&[record(22, 200), record(20, 1), record(22, 40)].concat());
        assert_eq!(d.ask(&sealed12(PREFACE)).waiting, 0, "a preface");
        assert_eq!(d.ask(&sealed12(9)).waiting, 0, "an ACK");
        let s = d.wait_ms(20).ask(&sealed12(52));
        assert_eq!((s.waiting, who(s)), (1, (1, 0)), "HEADERS");
        assert_eq!(d.say(&record(22, 200)).waiting, 1, "a ticket is no response");
        assert_eq!(what(d.wait_ms(5).say(&sealed12(300))), (0, 0, 1, 0));
    });
}

#[test]
pub(super) fn only_h2_first_is_an_offer_of_it() {
    for (offers, h2) in [
        (&["h2"][..], true),
        (&["h2", "http/1.1"], true),
        (&["http/1.1"], false),
        (&["h3"], false),
        (&["x2"], false),
        (&["h2c"], false),
        (&[], false),
    ] {
        with(|mut d| {
            handshake13(&mut d, offers);
            // as long as a preface: with HTTP/1.1 it can only be a request
            let s = d.ask(&[finished(), sealed(PREFACE)].concat());
            assert_eq!(s.waiting, i32::from(!h2), "{offers:?}");
        });
    }
    // a hello that goes on in the next segment may offer it, once its extensions have begun
    for (cut, may) in [(44, false), (77, false), (85, false), (86, true), (100, true), (400, false)]
    {
        with(|mut d| {
            assert_eq!(d.ask(&hello(&["http/1.1"])[..cut]).waiting, 1, "cut at {cut}");
            let flight = [record(22, 122), record(20, 1), sealed(40), sealed(900)].concat();
            assert_eq!(d.say(&flight).waiting, 0, "cut at {cut}");
            let s = d.ask(&[finished(), sealed(PREFACE)].concat());
            assert_eq!(s.waiting, i32::from(!may), "cut at {cut}");
        });
    }
}

/// A connection on which a record of this size comes before anybody asked: it teaches it.
fn unasked(mut d: Dialog<'_>, size: usize) -> Dialog<'_> {
    handshake13(&mut d, &[]);
    d.ask(&finished());
    d.say(&sealed(size));
    d.server_fin();
    d.next()
}

#[test]
pub(super) fn the_largest_flight_is_remembered_and_the_likeliest_sizes() {
    // one ticket first, then two: both are known
    with(|d| {
        let mut d = learn(d, &[sealed(TICKET)], &sealed(700));
        d = learn(d, &[[sealed(TICKET), sealed(TICKET)].concat()], &sealed(700));
        handshake13(&mut d, &[]);
        let waiting = d.ack().waiting;
        d.ask(&[finished(), sealed(120)].concat());
        for ticket in 0..2 {
            let s = d.say(&sealed(TICKET));
            assert_eq!(s.waiting, waiting + 1, "ticket {ticket}");
        }
        assert_eq!(d.say(&sealed(TICKET)).waiting, waiting, "a third one is the response");
    });
    // sizes beyond those that have a place must come more often than the least of them
    with(|mut d| {
        for size in [200, 220, 240, 260, 280] {
            d = unasked(d, size);
        }
        for _ in 0..9 {
            d = unasked(d, 300);
        }
        handshake13(&mut d, &[]);
        let waiting = d.ack().waiting;
        d.ask(&[finished(), sealed(120)].concat());
        assert_eq!(d.say(&sealed(300)).waiting, waiting + 1, "learned in the end");
        assert_eq!(d.say(&sealed(900)).waiting, waiting);
    });
}

#[test]
pub(super) fn what_a_flight_cannot_be() {
    // larger than a ticket, smaller than one, more than four, not alone in a segment, of two sizes
    for first in [
        sealed(2_100),
        sealed(40),
        (0..5).flat_map(|_| sealed(TICKET)).collect(),
        [sealed(TICKET), sealed(TICKET)[..100].to_vec()].concat(),
        [sealed(TICKET), sealed(TICKET + 1)].concat(),
    ] {
        with(|d| {
            let mut d = learn(d, std::slice::from_ref(&first), &sealed(700));
            handshake13(&mut d, &[]);
            let waiting = d.ack().waiting;
            d.ask(&[finished(), sealed(120)].concat());
            assert_eq!(d.say(&first).waiting, waiting, "{} bytes are a response", first.len());
        });
    }
}

#[test]
pub(super) fn a_reset_that_the_stack_would_not_believe_changes_nothing() {
    with(|mut d| {
        d.ask(GET);
        assert_eq!(what(d.client_reset_ahead(1_001)), (1, 0, 0, 0));
        assert_eq!(what(d.say(OK)), (0, 0, 1, 0));
        let s = d.server_reset();
        assert_eq!((s.open, s.connections.ended), (0, 1));
    });
}

#[test]
pub(super) fn a_reset_that_the_stack_may_not_believe_ends_waiting_only() {
    with(|mut d| {
        let s = d.client_reset_ahead(1);
        assert_eq!((s.open, s.silent), (1, 1), "it still holds a worker");
        d.ask(GET);
        let s = d.client_reset_ahead(1_000);
        assert_eq!((s.waiting, s.open, s.connections.ended), (0, 1, 0));
        assert_eq!(what(d.say(OK)), (0, 0, 1, 0), "it was alive");
        let s = d.client_reset_ahead(0);
        assert_eq!((s.open, s.connections.ended), (0, 1));
    });
}

#[test]
pub(super) fn a_server_that_speaks_behind_its_handshake_is_counted() {
    // server speaks first inside TLS, and in two segments; the client's next is a turn
    with(|mut d| {
        handshake13(&mut d, &[]);
        d.ask(&finished());
        let s = d.say(&[sealed(TICKET), sealed(30)].concat());
        assert_eq!((what(s), who(s)), ((0, 0, 0, 1), (1, 1)), "a greeting");
        assert_eq!(what(d.say(&sealed(30))), (0, 0, 0, 1), "more of it");
        assert_eq!(d.ask(&sealed(120)).waiting, 1);
        assert_eq!(what(d.say(&sealed(30))), (0, 0, 1, 1));
    });
}

#[test]
pub(super) fn segments_of_one_byte_are_data_and_probes_are_none() {
    with(|mut d| {
        for n in 1..=3 {
            assert_eq!(d.ask(b"G").waiting, 1, "exchange {n}");
            for byte in &GET[1..] {
                assert_eq!(d.ask(&[*byte]).waiting, 1);
            }
            assert_eq!(what(d.wait_ms(10).say(OK)), (0, 0, n, 0));
        }
    });
    with(|mut d| {
        d.ask(b"G");
        assert_eq!(d.wait_ms(1_500).ask(b"E").waiting, 0, "the server waits for its client");
    });
    with(|mut d| {
        d.ask(&GET[..9]);
        d.ask(&GET[9..]);
        for _ in 0..3 {
            assert_eq!(d.wait_ms(1_500).probe().waiting, 1, "the client waits for its server");
        }
        assert_eq!(what(d.say(OK)), (0, 0, 1, 0));
    });
    with(|mut d| {
        d.ask(b"?");
        d.ask(b"what else");
        d.say(b"nothing");
        assert_eq!(d.wait_ms(9_000).probe().waiting, 0, "all of it has a response");
    });
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harness of the fuzz target `proxy`, bounded, without a fuzzer: random bytes, and what is nearly a
//! request. Each seed is one that proxies and servers have read in two ways, or a whole request.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../fuzz/fuzz_targets/support/near.rs"]
mod near;
#[path = "../../../fuzz/fuzz_targets/support/proxy.rs"]
mod proxy;

use near::Near;
use proxy::Harness;
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const RUNS: usize = 1_500;
/// The preface of HTTP/2, SETTINGS, and HEADERS of `GET http://shop.example/`.
const H2: &[u8] = b"\x81PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x11\x01\x05\0\0\0\x01\x82\x86\x84\x41\x0cshop.example";
/// The same with a field of a connection, a length that is wrong, and a name that is no token.
const H2_ODD: &[u8] = b"\x81PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x36\x01\x05\0\0\0\x01\x83\x86\x84\x41\x0cshop.example\
    \0\x0econtent-length\x01\x37\0\x0bx_real_ip: \x05a\r\nb:";
const SEEDS: [&[u8]; 16] = [
    b"\x80GET /a?b HTTP/1.1\r\nHost: shop.example\r\n\r\nGET /c HTTP/1.1\r\nHost: shop.example\r\nX_Real-IP: 1\r\nX-Forwarded_For: 10.0.0.1\r\n\r\n",
    b"\x40POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\xc0POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\x0b: chunked\r\nContent-Length: 3\r\n\r\nabc",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x80GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\nX_Forwarded_For: 10.0.0.1\r\n\r\n",
    b"\x80GET / HTTP/1.1\nHost: a\nX-Real-IP: 1\n\nGET /b HTTP/1.1\nHost: a\n\n",
    b"\x80GET http://shop.example/b HTTP/1.1\r\nHost: shop.example\r\nConnection: Host, X-Request-Id, close\r\nTE: trailers\r\n\r\n",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n3;a=\"\r\n\"\r\nabc\r\n0\r\nHost: b\r\n\r\n",
    b"\x80POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    b"\x80GET / HTTP/1.0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    H2,
    H2_ODD,
];

/// A seed that nobody understands finds nothing: these are served, all of them.
#[test]
fn whole_requests_reach_the_server() {
    for (seed, requests) in [(0, 2), (1, 2), (2, 1), (10, 1), (12, 1), (13, 1), (14, 1)] {
        let mut harness = Harness::default();
        let stream = harness.say(SEEDS[seed]);
        let clock = MonotonicClock;
        let late = clock.now() + Nanos::from_secs(10);
        while harness.served() < requests && clock.now() < late {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        let answered = harness.end(stream, Vec::new());
        assert_eq!(harness.served(), requests, "{seed}: {}", answered.escape_ascii());
    }
}

#[test]
fn random_bytes_and_near_requests_do_no_harm() {
    let mut near = Near::new(0x9e37_79b9_7f4a_7c15);
    let mut harness = Harness::default();
    for run in 0..RUNS {
        let mut bytes = SEEDS[run % SEEDS.len()].to_vec();
        if run % 11 == 0 {
            bytes = near.any();
        }
        for _ in 0..near.below(4) {
            if near.below(2) == 0 {
                near.change(&mut bytes, 0);
                continue;
            }
            // A piece of another, anywhere.
            let other = SEEDS[near.below(SEEDS.len())];
            let (at, from) = (near.below(bytes.len() + 1), near.below(other.len()));
            let length = near.below(40).min(other.len() - from);
            bytes.splice(at..at, other[from..from + length].iter().copied());
        }
        harness.run(&bytes);
    }
    assert!(harness.served() > RUNS as u64 / 5, "{} have come through", harness.served());
}

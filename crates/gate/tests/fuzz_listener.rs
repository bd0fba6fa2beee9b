// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harnesses of the fuzz targets `listener` and `agent`, bounded, without a fuzzer: connections of each
//! adapter and of HAProxy's agent-check, and what is nearly one.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

#[path = "../../../fuzz/fuzz_targets/support/agent.rs"]
mod agent;
#[path = "../../../fuzz/fuzz_targets/support/listener.rs"]
mod listener;
#[path = "../../../fuzz/fuzz_targets/support/near.rs"]
mod near;

use listener::{ADAPTERS, Harness};
use near::Near;

const RUNS: usize = 20_000;
const AGENT_RUNS: usize = 10_000;

const NGINX: &[u8] =
    b"GET /tidegate HTTP/1.1\r\nHost: gate\r\nX-Tidegate-Method: GET\r\nX-Tidegate-Uri: /a?b\r\n\
    X-Tidegate-Client: 192.0.2.7\r\nX-Tidegate-Request: 1\r\nCookie: s=1\r\n\r\n";
const FORWARD: &[u8] =
    b"GET / HTTP/1.1\r\nHost: gate\r\nX-Forwarded-Method: POST\r\nX-Forwarded-Uri: /a\r\n\
    X-Forwarded-Host: shop.example\r\nX-Forwarded-For: 192.0.2.7, 192.0.2.8\r\n\r\n";
const OTLP: &[u8] = b"POST /v1/logs HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n\
    16\r\n\x0a\x14\x12\x12\x12\x07\x2a\x05\x0a\x03one\x12\x07\x2a\x05\x0a\x03two\r\n0\r\n\r\n";
const SPOP: &[u8] = b"\x00\x00\x00\x40\x01\x00\x00\x00\x01\x00\x00\x12supported-versions\x08\x032.0\
    \x0emax-frame-size\x03\xf0\x31\x0ccapabilities\x08\x00\
    \x00\x00\x00\x4d\x03\x00\x00\x00\x01\x05\x01\x03ask\x04\x06method\x08\x03GET\x06target\x08\x02/a\
    \x07headers\x08\x14host: x\r\ncookie: s=1\x06client\x06\x7f\x00\x00\x01";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection of Envoy with one call of this method: its head without Huffman's code, and a message.
fn grpc(path: &str, message: &[u8]) -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    for (name, value) in [(0x01, "gate"), (0x04, path), (0x0f, "application/grpc")] {
        // An index of 15 and more takes a second byte.
        let index = if name == 0x0f { vec![0x0f, 31 - 15] } else { vec![name] };
        head.extend(index);
        head.push(u8::try_from(value.len()).unwrap());
        head.extend(value.as_bytes());
    }
    head.extend(b"\x00\x02te\x08trailers");
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0][..], &length, message].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    [preface, frame(4, 0, 0, &[]), frame(1, 4, 1, &head), frame(0, 1, 1, &data)].concat()
}

/// What is said to each adapter, and whether it asks.
fn seeds() -> Vec<(u8, Vec<u8>, bool)> {
    const CHECK: &[u8] =
        b"\x0a\x4d\x0a\x0f\x0a\x0d\x0a\x0b\x12\x09192.0.2.7\x22\x3a\x12\x38\x0a\x02id\
        \x12\x03GET\x1a\x06\x0a\x01a\x12\x011\x22\x02/a\x2a\x0cshop.example\
        \x6a\x13\x0a\x11\x0a\x06cookie\x1a\x07s=1;t=2";
    vec![
        (0, NGINX.to_vec(), true),
        (1, SPOP.to_vec(), true),
        (2, FORWARD.to_vec(), true),
        (3, FORWARD.to_vec(), true),
        (3, OTLP.to_vec(), false),
        (4, grpc("/envoy.service.auth.v3.Authorization/Check", CHECK), true),
        (4, grpc("/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", b""), false),
    ]
}

/// A seed that is no question finds nothing.
#[test]
fn the_seeds_are_understood() {
    for (to, said, asks) in seeds() {
        let mut harness = Harness::default();
        let answered = harness.run(&[vec![to], said].concat());
        assert!(!answered.is_empty(), "{to}");
        assert_eq!(harness.asked(), u64::from(asks), "{to}: {}", answered.escape_ascii());
    }
}

#[test]
fn what_no_proxy_says_is_counted_and_closed_and_nothing_else() {
    for to in 0..ADAPTERS {
        for said in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"GET\r\n\r\n",
        ] {
            let mut harness = Harness::default();
            let bytes = [&[u8::try_from(to).unwrap()], said].concat();
            let _ = harness.run(&bytes);
            assert_eq!((harness.misunderstood(), harness.asked()), (1, 0), "{to}: {said:?}");
        }
    }
}

#[test]
fn random_and_nearly_right_connections_do_no_harm() {
    let mut near = Near::new(0x2545_f491_4f6c_dd1d);
    let (mut harness, seeds) = (Harness::default(), seeds());
    for run in 0..RUNS {
        let (to, said, _) = &seeds[run % seeds.len()];
        let mut bytes = [vec![*to], said.clone()].concat();
        if run % 11 == 0 {
            bytes.extend(said);
        }
        for _ in 0..near.below(4) {
            // The first byte says to whom.
            near.change(&mut bytes, 1);
        }
        let _ = harness.run(&bytes);
    }
    assert!(harness.asked() > 1000, "{} were questions", harness.asked());
}

/// What holds by the first three bytes: `LIMITED` a limit, and its age.
const LIMITED: u8 = 4;

#[test]
fn the_agent_tells_what_holds() {
    let mut harness = agent::Harness::default();
    for ([how, limit, age], line) in [
        ([LIMITED, 5, 3], "maxconn:20\n"),
        ([LIMITED, 0, 0], "maxconn:1\n"),
        ([LIMITED, 255, 0], "maxconn:500\n"),
        ([LIMITED, 5, 4], "maxconn:500\n"),
        ([LIMITED | 1, 5, 0], "maxconn:500\n"),
        ([LIMITED | 2, 5, 0], "maxconn:500\n"),
        ([0, 5, 0], "maxconn:500\n"),
    ] {
        for said in [&b""[..], b"shop\n", b"GET / HTTP/1.1\r\n\r\n", &[0; 1 << 17]] {
            let bytes = [&[how, limit, age][..], said].concat();
            assert_eq!(harness.run(&bytes), line.as_bytes(), "{how} {limit} {age}");
        }
    }
}

#[test]
fn random_connections_change_nothing_that_the_agent_tells() {
    let mut near = Near::new(0x2545_f491_4f6c_dd1d);
    let mut harness = agent::Harness::default();
    for run in 0..AGENT_RUNS {
        let mut bytes = [&[LIMITED, 5, 0][..], b"agent-send shop\n"].concat();
        if run % 3 == 0 {
            bytes = near.any();
        }
        for _ in 0..near.below(4) {
            near.change(&mut bytes, 0);
        }
        let _ = harness.run(&bytes);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harness of the fuzz target `gate`, bounded, without a fuzzer: random bytes, and what is nearly a
//! message.

#[path = "../../../fuzz/fuzz_targets/support/gate.rs"]
mod gate;
#[path = "../../../fuzz/fuzz_targets/support/near.rs"]
mod near;

use gate::Harness;
use near::Near;

/// HAPROXY-HELLO (version 2.0, frames of 1,024 bytes), and NOTIFY of one question.
const SPOP: &[u8] = b"\x00\x00\x00\x40\x01\x00\x00\x00\x01\x00\x00\x12supported-versions\x08\x032.0\
    \x0emax-frame-size\x03\xf0\x31\x0ccapabilities\x08\x00\
    \x00\x00\x00\x4d\x03\x00\x00\x00\x01\x05\x01\x03ask\x04\x06method\x08\x03GET\x06target\x08\x02/a\
    \x07headers\x08\x14host: x\r\ncookie: s=1\x06client\x06\x7f\x00\x00\x01";

/// CheckRequest of Envoy: a peer, and a request with two headers.
const CHECK: &[u8] = b"\x0a\x4d\x0a\x0f\x0a\x0d\x0a\x0b\x12\x09192.0.2.7\x22\x3a\x12\x38\x0a\x02id\
    \x12\x03GET\x1a\x06\x0a\x01a\x12\x011\x22\x02/a\x2a\x0cshop.example\
    \x6a\x13\x0a\x11\x0a\x06cookie\x1a\x07s=1;t=2";

/// RateLimitRequest of Envoy: two descriptors, of three entries.
const RATE_LIMIT: &[u8] =
    b"\x0a\x01d\x12\x1f\x0a\x0d\x0a\x06method\x12\x03GET\x0a\x0e\x0a\x04path\x12\x06/cart/\
    \x12\x1d\x0a\x1b\x0a\x0eremote_address\x12\x09192.0.2.7\x18\x02";

/// StreamAccessLogsMessage of Envoy: one entry, with a token, a status and two times.
const LOG: &[u8] = b"\x12\x63\x0a\x61\x0a\x58\x52\x04\x10\x80\x89\x7a\xba\x01\x04\x08\x01\x10\x01\
    \x8a\x01\x48\x0a\x46\x0a\x1cenvoy.filters.http.ext_authz\x12\x26\x0a\x24\
    \x0a\x0etidegate_token\x12\x12\x1a\x1000000000000000ff\x22\x05\x0a\x03\x08\xc8\x01";

/// An export of OTLP with two records.
const EXPORT: &[u8] = b"\x0a\x14\x12\x12\x12\x07\x2a\x05\x0a\x03one\x12\x07\x2a\x05\x0a\x03two";

const RUNS: usize = 200_000;
const SEEDS: [&[u8]; 13] = [
    CHECK,
    RATE_LIMIT,
    LOG,
    EXPORT,
    b"{\"user_id\":\"00000000000000ff\",\"duration\":0.006,\"status\":200}",
    b"{\"ClientUsername\":\"00000000000000ff\",\"DownstreamStatus\":200,\"Duration\":7,\"OriginDuration\":6}",
    b"tidegate=00000000000000ff|200|0|1|10|2",
    SPOP,
    b"<190>Nov 25 22:00:00 tidegate: 00000000000000ff|200|0.050|0.010, 0.020|0.020 : 0.030",
    b"POST\0/cart/1?x\0shop.example\0id\0s=1; t=2",
    b"GET\0/a/./b/../b\0x.shop.example:443\0\0gold",
    b"GET\0/%61%2e%2E/%zz\0[::1]:80\0i\0",
    b"OPTIONS\0*\0\0x\0;=;",
];

#[test]
fn the_seed_of_traefik_is_an_export() {
    let mut found = Vec::new();
    let understood = tidegate_gate::traefik_export(EXPORT, |text| found.push(text.to_vec()));
    assert_eq!((understood, found), (Ok(()), vec![b"one".to_vec(), b"two".to_vec()]));
}

/// A seed that is no message finds nothing.
#[test]
fn the_seeds_of_envoy_are_messages() {
    let found = tidegate_gate::envoy_reports(LOG).expect("a message");
    assert_eq!(found.len(), 1);
    let passes = || tidegate_gate::Answer {
        service: None,
        reason: tidegate_policy::Reason::NoRule,
        refused: false,
        token: None,
        refusal: None,
        share: None,
    };
    let told = tidegate_gate::envoy_check(CHECK, |ask| {
        let header = |name| ask.headers.get(name).unwrap_or_default();
        assert_eq!((ask.method, ask.target, header("cookie")), ("GET", "/a", "s=1;t=2"));
        passes()
    });
    assert!(told.is_some());
    let told = tidegate_gate::envoy_rate_limit(RATE_LIMIT, |ask| {
        let client = Some([192, 0, 2, 7].into());
        assert_eq!((ask.method, ask.target, ask.client), ("GET", "/cart/", client));
        passes()
    });
    assert!(told.is_some());
}

#[test]
fn random_bytes_and_near_messages_do_no_harm() {
    let mut near = Near::new(0x2545_f491_4f6c_dd1d);
    let mut harness = Harness::default();
    for run in 0..RUNS {
        let mut bytes = SEEDS[run % SEEDS.len()].to_vec();
        if run % 7 == 0 {
            bytes = near.any();
        }
        for _ in 0..near.below(4) {
            near.change(&mut bytes, 0);
        }
        harness.run(&bytes);
    }
}

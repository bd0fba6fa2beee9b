// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harness of the fuzz target `gate`, bounded, without a fuzzer: random bytes, and what is nearly a
//! message.

#[path = "../../../fuzz/fuzz_targets/support/gate.rs"]
mod gate;

use gate::Harness;

/// HAPROXY-HELLO (version 2.0, frames of 1,024 bytes), and NOTIFY of one question.
const SPOP: &[u8] = b"\x00\x00\x00\x40\x01\x00\x00\x00\x01\x00\x00\x12supported-versions\x08\x032.0\
    \x0emax-frame-size\x03\xf0\x31\x0ccapabilities\x08\x00\
    \x00\x00\x00\x4d\x03\x00\x00\x00\x01\x05\x01\x03ask\x04\x06method\x08\x03GET\x06target\x08\x02/a\
    \x07headers\x08\x14host: x\r\ncookie: s=1\x06client\x06\x7f\x00\x00\x01";

const RUNS: usize = 200_000;
const SEEDS: [&[u8]; 7] = [
    b"tidegate=00000000000000ff|200|0|1|10|2",
    SPOP,
    b"<190>Nov 25 22:00:00 tidegate: 00000000000000ff|200|0.050|0.010, 0.020|0.020 : 0.030",
    b"POST\0/cart/1?x\0shop.example\0id\0s=1; t=2",
    b"GET\0/a/./b/../b\0x.shop.example:443\0\0gold",
    b"GET\0/%61%2e%2E/%zz\0[::1]:80\0i\0",
    b"OPTIONS\0*\0\0x\0;=;",
];

#[test]
fn random_bytes_and_near_messages_do_no_harm() {
    let mut dice = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice >> 33) as usize % below
    };
    let mut harness = Harness::default();
    for run in 0..RUNS {
        let mut bytes = SEEDS[run % SEEDS.len()].to_vec();
        if run % 7 == 0 {
            bytes = (0..random(200)).map(|_| random(256) as u8).collect();
        }
        for _ in 0..random(4) {
            let (at, with) = (random(bytes.len() + 1), random(256) as u8);
            match random(3) {
                0 => bytes.insert(at, with),
                1 if at < bytes.len() => bytes[at] = with,
                _ => bytes.truncate(at),
            }
        }
        harness.run(&bytes);
    }
}

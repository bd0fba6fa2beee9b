// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harnesses of the fuzz targets, bounded, without a fuzzer: bytes at random, and what is
//! near to well-made ones.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

#[path = "../../../fuzz/fuzz_targets/support/authority.rs"]
mod authority;
#[path = "../../../fuzz/fuzz_targets/support/bus.rs"]
mod bus;
mod common;
#[path = "../../../fuzz/fuzz_targets/support/peer.rs"]
mod peer;

use proptest::prelude::*;
use tidegate_peer::frame::{Frame, Hello, VERSION, Welcome};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..600)
}

/// Few of all possible steps, so that sessions get somewhere.
fn steps() -> impl Strategy<Value = Vec<u8>> {
    let step = (0..11_u8, any::<u8>()).prop_map(|(what, value)| vec![what, value]);
    let begin = Just(vec![5, 0]);
    let raw = prop_oneof![
        (0..4_u64).prop_map(|session| Frame::Hello(Hello { session, services: vec![] })),
        (0..4_u64).prop_map(|session| Frame::Welcome(Welcome { session, epoch: 1 })),
    ];
    let raw = raw.prop_map(|frame| {
        let frame = frame.encode(VERSION).unwrap();
        [vec![2, (frame.len() - 4) as u8], frame].concat()
    });
    let one = prop_oneof![6 => step, 2 => begin, 1 => raw];
    proptest::collection::vec(one, 0..120).prop_map(|steps| steps.concat())
}

/// Mostly routers that talk, so that their sessions get somewhere.
fn bus_steps() -> impl Strategy<Value = Vec<u8>> {
    let talk =
        (any::<bool>(), any::<u8>()).prop_map(|(at, value)| vec![2 + 16 * u8::from(at), value]);
    let time = any::<u8>().prop_map(|value| vec![0, value]);
    let step = (0..32_u8, any::<u8>()).prop_map(|(what, value)| vec![what, value]);
    let one = prop_oneof![5 => talk, 1 => time, 3 => step];
    proptest::collection::vec(one, 0..60).prop_map(|steps| steps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn frames(bytes in bytes()) {
        peer::frame(&bytes);
    }

    #[test]
    fn authorities(bytes in bytes()) {
        authority::bytes(&bytes);
    }

    #[test]
    fn buses(steps in bus_steps(), bytes in bytes()) {
        bus::message(&bytes);
        bus::bus(&steps);
        bus::bus(&bytes);
    }

    #[test]
    fn sessions(steps in steps(), bytes in bytes()) {
        peer::session(&steps);
        peer::session(&bytes);
    }
}

#[test]
fn certificates_with_any_byte_changed() {
    let authority = common::Authority::new();
    let files = authority.host("b1");
    let pem = std::fs::read(&files.certificate).unwrap();
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let good = CertificateDer::from_pem_slice(&pem).unwrap();
    for at in 0..good.len() {
        for change in [0x01, 0x20, 0x80, 0xff] {
            let mut bytes = good.to_vec();
            bytes[at] ^= change;
            peer::identity(&bytes);
        }
    }
    assert!(authority.dir().join("authority.pem") == authority.authority());
}

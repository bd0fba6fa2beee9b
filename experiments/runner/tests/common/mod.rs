// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of experiments in virtual time share.
#![allow(dead_code, reason = "no file of tests uses all of it")]

use tidegate_experiments::survival::Watch;

/// Shows nothing.
pub(crate) struct Quiet;

impl Watch for Quiet {
    fn step(&mut self, _what: &str) {}
    fn second(&mut self, _progress: &tidegate_lab::Progress) {}
}

/// Compares with a golden file; `TIDEGATE_BLESS` writes it anew.
pub(crate) fn compare(file: &str, text: &str) {
    let path = format!("{}/../golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, text).expect("golden is writable");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "cargo xtask golden --bless, and explain the difference");
}

/// FNV-1a, 64 bits.
pub(crate) fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

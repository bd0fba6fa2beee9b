// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tidegate binary: wiring only.
fn main() {}

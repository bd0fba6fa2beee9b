// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A target whose harness is C (harness/): build.rs links it, libfuzzer-sys calls it.
#![no_main]

use libfuzzer_sys as _;

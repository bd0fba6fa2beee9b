// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's helper as a program of its own: load generator, small server, guard.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    tidegate_lab::helper::main(&args)
}

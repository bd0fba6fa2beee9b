// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer of the comparison that nobody brings as a program: failsafe-go is a library. The proxy around
//! it (`lab/go/failsafe`) is compiled, with its sums pinned in go.sum.

use anyhow::{Context, Result, bail};

use crate::process;

/// The proxy around failsafe-go: its source, and where the lab finds the program.
const FAILSAFE: (&str, &str) = ("lab/go/failsafe", "target/rivals/failsafe");

/// Compiles the proxy around failsafe-go. It needs Go 1.22, which is newer than what Debian 12 has.
pub(super) fn build() -> Result<()> {
    let root = process::root();
    if !process::is_installed("go") {
        bail!("{} needs Go, 1.22 or newer, on the path", FAILSAFE.0);
    }
    let program = root.join(FAILSAFE.1);
    let mut command = process::command("go");
    command.current_dir(root.join(FAILSAFE.0)).args(["build", "-trimpath", "-o"]).arg(&program);
    process::run(command.arg(".")).context("the proxy around failsafe-go")?;
    println!("setup: {}", FAILSAFE.1);
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build` and `clean`.

use anyhow::{Context, Result};

use crate::process;

/// The product, where the lab, the demo and the operator find it.
pub(crate) const BINARY: &str = "target/release/tidegate";
/// Where experiments and the demo write.
pub(crate) const OUT: &str = "out";

/// Builds [`BINARY`].
pub(crate) fn run() -> Result<()> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "tidegate",
    ]))?;
    println!("built: {BINARY}");
    Ok(())
}

/// Removes what building and running left behind.
pub(crate) fn clean() -> Result<()> {
    let out = process::root().join(OUT);
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("removing {OUT}"))?;
    }
    process::run(process::cargo().arg("clean"))
}

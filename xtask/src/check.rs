// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask check`: everything that needs no root and no running system.

use anyhow::{Result, bail};

use crate::{process, tidy};

/// Its name, and what it does.
type Check = (&'static str, fn() -> Result<()>);

/// Runs every check, also after one has failed, and then says which failed.
pub(crate) fn run() -> Result<()> {
    let checks: [Check; 4] = [
        ("format", format),
        ("lints", lints),
        ("tidy", || tidy::run(false)),
        ("dependencies", dependencies),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        println!("check: {name}");
        if let Err(error) = check() {
            eprintln!("check: {name}: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("check: all is well");
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

fn format() -> Result<()> {
    process::run(process::cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    process::run(process::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Advisories, licences and sources of what we depend on (deny.toml).
fn dependencies() -> Result<()> {
    if !process::is_installed("cargo-deny") {
        println!("check: dependencies: skipped, cargo-deny is not installed (CI does not run it)");
        return Ok(());
    }
    process::run(process::cargo().args(["deny", "check"]))
}

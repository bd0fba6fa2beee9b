// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Embeds which revision it was built from, so that results say what they are of.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rustc-env=TIDEGATE_REVISION={}", revision());
}

/// The commit that is checked out, where this is a clone.
fn revision() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // Changes with every commit and every check-out.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
}

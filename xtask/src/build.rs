// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build` and `clean`.
//!
//! Programs are stripped. What a debugger, a profiler or a backtrace needs stands beside each in NAME.debug,
//! which the program names (`.gnu_debuglink`). Cargo's own split (`split-debuginfo`) leaves tables of lines in
//! the program, and stripping by cargo loses them.

use anyhow::{Context, Result};
use std::path::Path;

use crate::process;

/// Where the programs are, for the lab, the demo and the operator.
const FOLDER: &str = "target/release";
/// The product.
const PRODUCT: &str = "tidegate";
/// What runs experiments: it starts the product that lies beside it.
const LAB: &str = "tidegate-lab";
/// [`LAB`], relative to the root.
pub(crate) const LAB_PATH: &str = "target/release/tidegate-lab";
/// Where experiments and the demo write.
pub(crate) const OUT: &str = "out";

/// Builds both programs.
pub(crate) fn run() -> Result<()> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "tidegate",
        "--package",
        "tidegate-lab-cli",
    ]))?;
    for name in [PRODUCT, LAB] {
        split(&process::root().join(FOLDER), name)?;
        println!("built: {FOLDER}/{name}");
    }
    Ok(())
}

/// Parts a program from what only debuggers read. Cargo puts the whole one back with the next build, so this
/// never meets one that is parted.
fn split(folder: &Path, name: &str) -> Result<()> {
    let objcopy = |arguments: &[&str]| {
        process::run(process::command("objcopy").current_dir(folder).args(arguments))
            .with_context(|| format!("parting {name} from its debug information"))
    };
    let (debug, bare) = (format!("{name}.debug"), format!("{name}.stripped"));
    objcopy(&["--only-keep-debug", "--compress-debug-sections=zlib", name, &debug])?;
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={debug}"), name, &bare])?;
    // Not in place: the file is the one that cargo keeps below target/release/deps, and may be running.
    std::fs::rename(folder.join(&bare), folder.join(name)).with_context(|| bare.clone())
}

/// Removes what building and running left behind.
pub(crate) fn clean() -> Result<()> {
    let out = process::root().join(OUT);
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("removing {OUT}"))?;
    }
    process::run(process::cargo().arg("clean"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A stripped program that still says where a line of its source is.
    #[test]
    fn a_stripped_program_names_what_holds_its_lines() {
        let folder = std::env::temp_dir().join(format!("tidegate-split-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        std::fs::write(folder.join("a.c"), "int main(void) { return 7; }\n").expect("writable");
        let cc = Command::new("cc").current_dir(&folder).args(["-g", "a.c", "-o", "a"]).status();
        assert!(cc.expect("cc runs").success());
        split(&folder, "a").expect("parted");
        let sections = |name: &str| {
            let output = Command::new("readelf").current_dir(&folder).args(["-SW", name]).output();
            String::from_utf8_lossy(&output.expect("readelf runs").stdout).into_owned()
        };
        let (bare, debug) = (sections("a"), sections("a.debug"));
        assert!(bare.contains(".gnu_debuglink") && !bare.contains(".debug_line"), "{bare}");
        assert!(debug.contains(".debug_line"), "{debug}");
        assert!(!folder.join("a.stripped").exists());
        let ran = Command::new(folder.join("a")).status().expect("it still runs");
        assert_eq!(ran.code(), Some(7));
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask build` and `clean`.
//!
//! Programs are stripped. What a debugger, a profiler or a backtrace needs stands beside each in NAME.debug,
//! which the program names (`.gnu_debuglink`). Cargo's own split (`split-debuginfo`) leaves tables of lines in
//! the program, and stripping by cargo loses them.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

use crate::process;

/// Where the programs are, for the lab, the demo and the operator.
const FOLDER: &str = "target/release";
/// The product.
const PRODUCT: &str = "tidegate";
/// What runs experiments: it starts the product that lies beside it.
const LAB: &str = "tidegate-lab";
/// [`LAB`], relative to the root.
pub(crate) const LAB_PATH: &str = "target/release/tidegate-lab";
/// The section that names the debug information, and the one that holds lines of the source.
const LINK: &str = ".gnu_debuglink";
const LINES: &str = ".debug_line";
/// Where experiments and the demo write.
pub(crate) const OUT: &str = "out";

/// The program of the product.
pub(crate) fn product() -> PathBuf {
    process::root().join(FOLDER).join(PRODUCT)
}

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
        let folder = process::root().join(FOLDER);
        split(&folder, name)?;
        is_split(&folder, name)?;
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

/// Whether the program names what debuggers read and has none of it, and the file beside it has the lines of
/// its source: a profile without debug information would leave nothing to part.
fn is_split(folder: &Path, name: &str) -> Result<()> {
    let sections = |file: &str| {
        let mut readelf = process::command("readelf");
        let output = readelf.current_dir(folder).args(["-SW", file]).output();
        let output = output.with_context(|| format!("reading {file}"))?;
        ensure!(output.status.success(), "readelf {file}: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (bare, debug) = (sections(name)?, sections(&format!("{name}.debug"))?);
    let parted = bare.contains(LINK) && !bare.contains(LINES) && !bare.contains(".symtab");
    ensure!(parted, "{name} is not stripped, or does not name its debug information");
    ensure!(
        debug.contains(LINES),
        "{name}.debug has no lines: see [profile.release] in Cargo.toml"
    );
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
        let make = |debug: &str| {
            let cc =
                Command::new("cc").current_dir(&folder).args([debug, "a.c", "-o", "a"]).status();
            assert!(cc.expect("cc runs").success());
        };
        make("-g");
        std::fs::copy(folder.join("a"), folder.join("a.debug")).expect("writable");
        assert!(is_split(&folder, "a").is_err(), "nobody has stripped it");
        make("-g0");
        split(&folder, "a").expect("parted");
        let why = is_split(&folder, "a").expect_err("there was nothing to part");
        assert!(why.to_string().contains("no lines"), "{why}");
        make("-g");
        split(&folder, "a").expect("parted");
        is_split(&folder, "a").expect("stripped, with what a debugger needs beside it");
        assert!(!folder.join("a.stripped").exists());
        let ran = Command::new(folder.join("a")).status().expect("it still runs");
        assert_eq!(ran.code(), Some(7));
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    /// What `split` parts is there: cargo makes tables of lines, and strips nothing itself.
    #[test]
    fn the_release_profile_makes_what_is_parted() {
        let manifest = include_str!("../../Cargo.toml");
        let begin = manifest.find("\n[profile.release]\n").expect("a profile for releases");
        let profile = manifest[begin + 2..].split("\n[").next().unwrap_or_default();
        assert!(profile.lines().any(|line| line == "debug = \"line-tables-only\""), "{profile}");
        for key in ["strip", "split-debuginfo"] {
            assert!(!profile.lines().any(|line| line.starts_with(key)), "{profile}");
        }
    }
}

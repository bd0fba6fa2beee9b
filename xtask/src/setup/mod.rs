// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask setup`: what the build, the tests and the demo need from the distribution.
//!
//! With them comes Envoy, which the distribution does not have. Does nothing, in a fraction of a second,
//! when all is there. Installing never starts a service: see [`quiet`].

mod envoy;
mod packages;
mod quiet;
mod rivals;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::process;
use packages::{CLIENTS, GUEST, PACKAGES, Package, RIVALS};

/// Installs what is missing; with `rivals`, also what only the comparison runs against; with
/// `clients`, also the large ones among the real clients.
pub(crate) fn run(rivals: bool, clients: bool) -> Result<()> {
    install_packages(PACKAGES)?;
    envoy::install()?;
    if clients {
        install_packages(CLIENTS)?;
    }
    if rivals {
        install_packages(RIVALS)?;
        rivals::build()?;
    }
    Ok(())
}

/// Installs what boots another kernel.
pub(crate) fn install_for_guest() -> Result<()> {
    install_packages(GUEST)
}

fn install_packages(packages: &[Package]) -> Result<()> {
    if !process::is_installed("dpkg-query") {
        println!(
            "setup: no dpkg here, so nothing is installed. What is needed, as Debian names it:"
        );
        print_needed(packages.iter());
        return Ok(());
    }
    let installed = installed()?;
    let missing: Vec<&Package> =
        packages.iter().filter(|package| !installed.contains(package.name)).collect();
    if missing.is_empty() {
        println!("setup: all {} packages are there", packages.len());
        return Ok(());
    }
    if !process::is_root() || !process::is_installed("apt-get") {
        print_needed(missing.iter().copied());
        bail!("packages are missing (above), and installing them needs root and apt-get");
    }
    install(&missing)
}

fn print_needed<'a>(packages: impl Iterator<Item = &'a Package>) {
    for package in packages {
        println!("  {:<14} {}", package.name, package.reason);
    }
}

/// Names of all installed packages of the distribution.
fn installed() -> Result<BTreeSet<String>> {
    let list = process::output(
        process::command("dpkg-query")
            .args(["--show", "--showformat=${db:Status-Status} ${Package}\n"]),
    )?;
    Ok(parse_installed(&list))
}

fn parse_installed(list: &str) -> BTreeSet<String> {
    list.lines().filter_map(|line| line.strip_prefix("installed ")).map(str::to_owned).collect()
}

fn install(missing: &[&Package]) -> Result<()> {
    process::run(apt_get().args(["update", "-q"])).context("the lists of packages")?;
    let (offered, absent): (Vec<&Package>, Vec<&Package>) =
        missing.iter().copied().partition(|package| is_offered(package.name));
    if !absent.is_empty() {
        print_needed(absent.into_iter());
        bail!("the package mirror does not offer the packages above (Debian 12 does)");
    }
    if offered.is_empty() {
        return Ok(());
    }
    let _quiet = quiet::Guard::new()?;
    let names = offered.iter().map(|package| package.name);
    process::run(apt_get().args(["install", "-y", "-q", "--no-install-recommends"]).args(names))
}

fn is_offered(name: &str) -> bool {
    process::command("apt-cache")
        .args(["show", "--no-all-versions", name])
        .output()
        .is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
}

fn apt_get() -> std::process::Command {
    let mut command = process::command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let list = "installed gcc\nconfig-files nginx\nnot-installed vim\ninstalled make\n";
        let names = parse_installed(list);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["gcc", "make"]);
    }

    #[test]
    fn every_package_stands_once_with_a_reason() {
        let mut names = BTreeSet::new();
        for package in PACKAGES.iter().chain(RIVALS).chain(CLIENTS).chain(GUEST) {
            assert!(names.insert(package.name), "{} stands twice", package.name);
            assert!(package.reason.len() > 10, "{}: why?", package.name);
        }
    }

    #[test]
    fn an_unknown_package_is_not_offered() {
        assert!(!is_offered("no-such-package-of-any-distribution"));
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A kernel of the distribution, and what else boots, unpacked below `target/guest` and never installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process;

/// Modules that the guest needs before it sees the machine's files, where they are not part of its kernel.
const EARLY: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// The newest of the distribution's kernels of a series (`6.1`), fetched if it is not there.
    pub(super) fn of_series(series: &str, place: &Path) -> Result<Self> {
        let package = newest(series)?;
        let root = place.join(&package);
        let release = package.trim_start_matches("linux-image-").to_owned();
        fetch(&package, &root, |half| {
            process::run(process::command("depmod").arg("--basedir").arg(half).arg(&release))
        })?;
        Ok(Self { root, release })
    }

    /// Its release, as `uname -r` says it.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    /// What boots.
    pub(super) fn image(&self) -> PathBuf {
        self.root.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// What the guest sees as /lib/modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules")
    }

    /// Paths of the early modules, each after those that it needs.
    pub(super) fn early(&self) -> Result<Vec<PathBuf>> {
        let folder = self.modules().join(&self.release);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).context(name.to_owned());
        let order = in_order(&read("modules.dep")?, &read("modules.builtin")?, &EARLY)?;
        Ok(order.into_iter().map(|path| folder.join(path)).collect())
    }
}

/// The package's name, by the lists that apt has.
fn newest(series: &str) -> Result<String> {
    let prefix = format!("linux-image-{series}.");
    let names = process::output(process::command("apt-cache").args(["pkgnames", &prefix]))?;
    let newest = newest_of(names.lines(), &prefix);
    newest.with_context(|| {
        format!("no package {prefix}*-amd64 in apt's lists: `apt-get update`, or another --kernel")
    })
}

/// Of packages for plain PCs (9p is not in the kernels for clouds), the highest version.
fn newest_of<'a>(names: impl Iterator<Item = &'a str>, prefix: &str) -> Option<String> {
    let plain = |name: &&str| {
        let version = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix("-amd64"));
        version
            .is_some_and(|version| !version.contains(char::is_alphabetic) || is_backport(version))
    };
    let numbers = |name: &&str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    names.filter(plain).max_by_key(numbers).map(str::to_owned)
}

/// `117+deb12`: a newer kernel, built for this release.
fn is_backport(version: &str) -> bool {
    version.split_once("+deb").is_some_and(|(number, release)| {
        [number, release].iter().all(|part| part.chars().all(|c| c.is_ascii_digit() || c == '.'))
    })
}

/// A package of the distribution, unpacked into a folder unless it is there; `finish` is done to it
/// before.
pub(super) fn fetch(
    package: &str,
    root: &Path,
    finish: impl Fn(&Path) -> Result<()>,
) -> Result<()> {
    if root.is_dir() {
        return Ok(());
    }
    let place = root.parent().context("a folder above")?;
    std::fs::create_dir_all(place)?;
    let mut download = process::command("apt-get");
    process::run(download.current_dir(place).args(["download", "-q", package]))?;
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    let entries = std::fs::read_dir(place)?.flatten().map(|entry| entry.path());
    let archives: Vec<PathBuf> = entries.filter(is_it).collect();
    let [archive] = &archives[..] else {
        bail!("{} archives of {package} in {}", archives.len(), place.display());
    };
    // Unpacked beside and moved there: a run that is interrupted leaves no half of it.
    let half = place.join(format!("{package}.half"));
    let _ = std::fs::remove_dir_all(&half);
    process::run(process::command("dpkg-deb").arg("--extract").arg(archive).arg(&half))?;
    finish(&half)?;
    std::fs::rename(&half, root)?;
    std::fs::remove_file(archive)?;
    Ok(())
}

/// Lines of modules.dep: `path: path path`, what is needed last first. `builtin`: paths of what is part of the
/// kernel.
fn in_order(list: &str, builtin: &str, wanted: &[&str]) -> Result<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        if builtin.lines().any(|path| path.ends_with(&file)) {
            continue;
        }
        let line = list.lines().find_map(|line| {
            let (path, needs) = line.split_once(':')?;
            let plain = path.trim_end_matches(".xz").trim_end_matches(".zst");
            plain.ends_with(&file).then_some((path, needs))
        });
        let Some((path, needs)) = line else { bail!("this kernel has no module {name}") };
        for one in needs.split_whitespace().rev().chain([path]) {
            if seen.insert(one.to_owned()) {
                order.push(one.to_owned());
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_is_taken() {
        let names = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-58-rt-amd64",
            "linux-image-6.1.0-59-amd64-unsigned",
            "linux-image-6.12.9+deb12-amd64",
        ];
        let of = |prefix| newest_of(names.into_iter(), prefix);
        assert_eq!(of("linux-image-6.1.").as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(of("linux-image-6.12.").as_deref(), Some("linux-image-6.12.9+deb12-amd64"));
        assert_eq!(of("linux-image-5.10."), None);
    }

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let list = "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache.ko kernel/netfs.ko\n\
                    kernel/net/9p/9pnet.ko:\n\
                    kernel/v.ko.xz: kernel/net/9p/9pnet.ko\n";
        let builtin = "kernel/drivers/in.ko\n";
        let order = in_order(list, builtin, &["in", "9p", "v"]).expect("all there");
        let names = ["kernel/netfs.ko", "kernel/fs/fscache.ko", "kernel/net/9p/9pnet.ko"];
        assert_eq!(order[..3], names);
        assert_eq!(order[3..], ["kernel/fs/9p/9p.ko", "kernel/v.ko.xz"]);
        assert!(in_order(list, builtin, &["absent"]).is_err());
    }
}

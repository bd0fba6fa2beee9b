// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cgroup of a service: its CPU usage, its quota, its pressure files.
//!
//! Version 2 counts CPU time for every group, with or without the `cpu` controller. On hybrid
//! mounts version 2 lies in `unified/` and a service may have a group of its own only in version
//! 1: then `cpuacct` counts and `cpu` holds the quota. The root group is no group of anyone.

use crate::file::{Probe, malformed};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Deepest group whose ancestors are asked for a quota.
const DEPTH_MAX: usize = 32;

/// Where a group's CPU time is counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    V2(PathBuf),
    V1 { cpuacct: PathBuf, cpu: Option<PathBuf> },
}

impl Group {
    /// The group in `path`, whichever version it is.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        if path.join("cpu.stat").exists()
            && path.join("cgroup.procs").exists()
            && !path.join("cpuacct.usage").exists()
        {
            return Some(Self::V2(path.to_owned()));
        }
        path.join("cpuacct.usage").exists().then(|| Self::V1 {
            cpuacct: path.to_owned(),
            cpu: path.join("cpu.cfs_quota_us").exists().then(|| path.to_owned()),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::V2(path) | Self::V1 { cpuacct: path, .. } => path,
        }
    }

    /// The directory with the pressure files, if this group has them.
    pub(crate) fn pressure(&self) -> Option<&Path> {
        match self {
            Self::V2(path) if path.join("cpu.pressure").exists() => Some(path),
            _ => None,
        }
    }

    /// CPUs' worth of time that the group may use, by the tightest quota of itself and its
    /// ancestors below `root`; `None` without a quota.
    pub(crate) fn quota(&self, root: &Path) -> Option<f64> {
        let (start, read): (&Path, fn(&Path) -> Option<f64>) = match self {
            Self::V2(path) => (path, quota_v2),
            Self::V1 { cpu, .. } => (cpu.as_deref()?, quota_v1),
        };
        start
            .ancestors()
            .take(DEPTH_MAX)
            .take_while(|group| group.starts_with(root) && *group != root)
            .filter_map(read)
            .reduce(f64::min)
    }
}

/// `cpu.max`: `max 100000` or `50000 100000`.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    cpus(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_v1(group: &Path) -> Option<f64> {
    let read = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<i64>().ok();
    cpus(
        u64::try_from(read("cpu.cfs_quota_us")?).ok()?,
        u64::try_from(read("cpu.cfs_period_us")?).ok()?,
    )
}

fn cpus(quota: u64, period: u64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// A group's CPU time, read again and again.
#[derive(Debug)]
pub(crate) struct Usage {
    probe: Probe,
    v2: bool,
}

impl Usage {
    pub(crate) fn new(group: &Group) -> Self {
        match group {
            Group::V2(path) => Self { probe: Probe::new(path.join("cpu.stat")), v2: true },
            Group::V1 { cpuacct, .. } => {
                Self { probe: Probe::new(cpuacct.join("cpuacct.usage")), v2: false }
            }
        }
    }

    /// CPU time of all its tasks since the group was made, in nanoseconds.
    pub(crate) fn read_ns(&mut self, buffer: &mut [u8]) -> io::Result<u64> {
        let text = self.probe.read(buffer)?;
        let value = match self.v2 {
            true => text
                .lines()
                .find_map(|line| line.strip_prefix("usage_usec "))
                .and_then(|value| value.trim().parse::<u64>().ok())
                .map(|us| us.saturating_mul(1000)),
            false => text.trim().parse().ok(),
        };
        value.ok_or_else(|| malformed(self.probe.path(), "no CPU usage"))
    }
}

/// The mount of version 2 below `root` (`root` itself, or `unified/` on a hybrid system).
pub(crate) fn mount_v2(root: &Path) -> Option<PathBuf> {
    [root.to_owned(), root.join("unified")]
        .into_iter()
        .find(|mount| mount.join("cgroup.controllers").exists())
}

/// The group of a process from its `/proc/PID/cgroup`; `None` if it is in the root of everything.
pub(crate) fn of_process(text: &str, root: &Path) -> Option<Group> {
    let mut v2 = None;
    let mut cpuacct = None;
    let mut cpu = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // A path out of our cgroup namespace names no directory that we can see.
        let path = path.trim_start_matches('/');
        if path.is_empty() || path.starts_with("..") {
            continue;
        }
        let has = |name| controllers.split(',').any(|controller| controller == name);
        if hierarchy == "0" {
            v2 = mount_v2(root).map(|mount| mount.join(path));
        }
        if has("cpuacct") {
            cpuacct = mount_v1(root, "cpuacct").map(|mount| mount.join(path));
        }
        if has("cpu") {
            cpu = mount_v1(root, "cpu").map(|mount| mount.join(path));
        }
    }
    if let Some(path) = v2.filter(|path| path.join("cpu.stat").exists()) {
        return Some(Group::V2(path));
    }
    let cpuacct = cpuacct.filter(|path| path.join("cpuacct.usage").exists())?;
    Some(Group::V1 { cpuacct, cpu })
}

fn mount_v1(root: &Path, controller: &str) -> Option<PathBuf> {
    [controller, "cpu,cpuacct", "cpuacct,cpu"]
        .into_iter()
        .map(|name| root.join(name))
        .find(|mount| mount.is_dir())
}

/// The processes in a group and, for a group without processes of its own, below it.
pub(crate) fn processes(group: &Group, most: usize) -> Vec<u32> {
    let mut pids = Vec::new();
    let mut open = vec![group.path().to_owned()];
    for _ in 0..DEPTH_MAX {
        let Some(path) = open.pop() else { break };
        let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        pids.extend(
            text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0),
        );
        let below = fs::read_dir(&path).into_iter().flatten().flatten();
        open.extend(
            below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()),
        );
    }
    pids.truncate(most);
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn version_2_with_a_quota_in_an_ancestor() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(&root.join("cgroup.controllers"), "cpu\n");
        let group = root.join("web.slice/shop.service");
        write(&group.join("cpu.stat"), "usage_usec 1234\nuser_usec 1000\n");
        write(&group.join("cpu.max"), "max 100000\n");
        write(&root.join("web.slice/cpu.max"), "150000 100000\n");
        let found = of_process("0::/web.slice/shop.service\n", root).unwrap();
        assert_eq!(found, Group::V2(group));
        assert_eq!(found.quota(root), Some(1.5));
        assert_eq!(Usage::new(&found).read_ns(&mut [0; 256]).unwrap(), 1_234_000);
    }

    #[test]
    fn a_hybrid_mount_falls_back_to_version_1_when_version_2_says_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(&root.join("unified/cgroup.controllers"), "");
        write(&root.join("unified/cpu.stat"), "usage_usec 1\n");
        let group = root.join("cpu,cpuacct/shop");
        write(&group.join("cpuacct.usage"), "987654321\n");
        write(&group.join("cpu.cfs_quota_us"), "50000\n");
        write(&group.join("cpu.cfs_period_us"), "100000\n");
        let found = of_process("4:cpu,cpuacct:/shop\n1:name=systemd:/\n0::/\n", root).unwrap();
        assert_eq!(found.quota(root), Some(0.5));
        assert_eq!(Usage::new(&found).read_ns(&mut [0; 256]).unwrap(), 987_654_321);
        write(&group.join("cpu.cfs_quota_us"), "-1\n");
        assert_eq!(found.quota(root), None);
    }

    #[test]
    fn the_root_and_what_lies_outside_of_our_namespace_is_no_group() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("cgroup.controllers"), "");
        write(&dir.path().join("cpu.stat"), "usage_usec 1\n");
        for text in ["0::/\n", "0::/../other\n", "", "garbage"] {
            assert_eq!(of_process(text, dir.path()), None, "{text:?}");
        }
    }

    #[test]
    fn the_processes_of_a_group_are_those_in_it_and_below() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("cgroup.procs"), "12\n34\n0\n");
        write(&dir.path().join("below/cgroup.procs"), "56\n");
        let group = Group::V2(dir.path().to_owned());
        assert_eq!(processes(&group, 10), [12, 34, 56]);
        assert_eq!(processes(&group, 2), [12, 34]);
    }
}

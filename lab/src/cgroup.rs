// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Private cgroups: version 2 to hold, kill and account processes; the cpu controller (of version 2,
//! or of version 1 where that still has it) to take CPU time away from a server.

use crate::error::{LabError, Result};
use crate::os;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_units::{Nanos, Share};

/// Period of the CPU quota. Short, so that a halved CPU looks like a slower CPU and not like one
/// The largest weight of a group, of version 2 and of version 1.
const WEIGHT_MAX: u32 = 10_000;
const SHARES_MAX: u32 = 262_144;
/// that stops for 50 ms at a time.
const QUOTA_PERIOD_US: u64 = 10_000;
/// The default period, written back when the quota is lifted.
const QUOTA_PERIOD_DEFAULT_US: u64 = 100_000;
/// Most child cgroups a lab makes.
const CHILDREN_MAX: usize = 1_000;

/// Where the cpu controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cpu {
    /// In the unified hierarchy.
    V2,
    /// In a hierarchy of version 1: path of the lab's cgroup there.
    V1(PathBuf),
    /// Nowhere within reach.
    None,
}

/// The cgroups of one lab.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    unified: PathBuf,
    cpu: Cpu,
}

/// One group of processes inside a lab (a server, the product, the load).
#[derive(Clone, Debug)]
pub struct Group {
    unified: PathBuf,
    cpu: Option<(PathBuf, bool)>,
}

/// The mount point of a cgroup hierarchy in the text of mountinfo; `option` is `None` for version 2.
fn mount_of(mountinfo: &str, option: Option<&str>) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let fits = match option {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|o| o == name),
        };
        fits.then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

fn has_word(path: &Path, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|w| w == word))
}

impl Cgroups {
    /// The paths for a lab, whether they exist or not; `None` without a cgroup2 mount.
    pub(crate) fn of(id: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let root = mount_of(&mounts, None)?;
        let v1 = mount_of(&mounts, Some("cpu")).map(|m| m.join(id));
        let cpu = if has_word(&root.join("cgroup.controllers"), "cpu") {
            Cpu::V2
        } else {
            v1.map_or(Cpu::None, Cpu::V1)
        };
        Some(Self { unified: root.join(id), cpu })
    }

    /// Makes the lab's cgroups.
    pub(crate) fn create(id: &str) -> Result<Self> {
        let mut this = Self::of(id).ok_or_else(|| LabError::Missing("a cgroup2 mount".into()))?;
        if this.cpu == Cpu::V2 {
            // Fails where another manager owns the root: the lab then does without CPU quotas.
            let root = this.unified.parent().unwrap_or(Path::new("/")).to_path_buf();
            os::make_dir(&this.unified)?;
            let on = |dir: &Path| {
                let file = dir.join("cgroup.subtree_control");
                has_word(&file, "cpu") || fs::write(&file, "+cpu").is_ok()
            };
            if !(on(&root) && on(&this.unified)) {
                this.cpu = Cpu::None;
            }
        }
        os::make_dir(&this.unified)?;
        if let Cpu::V1(dir) = &this.cpu {
            os::make_dir(dir)?;
        }
        Ok(this)
    }

    /// The root of the hierarchy that shares out the CPU.
    pub(crate) fn cpu_root(&self) -> PathBuf {
        let lab = match &self.cpu {
            Cpu::V1(dir) => dir,
            _ => &self.unified,
        };
        lab.parent().unwrap_or(Path::new("/")).to_path_buf()
    }

    /// Makes a group named `name` inside the lab.
    pub(crate) fn group(&self, name: &str) -> Result<Group> {
        let unified = self.unified.join(name);
        os::make_dir(&unified)?;
        let cpu = match &self.cpu {
            Cpu::V2 => Some((unified.clone(), true)),
            Cpu::V1(dir) => Some((dir.join(name), false)),
            Cpu::None => None,
        };
        if let Some((dir, _)) = &cpu {
            os::make_dir(dir)?;
        }
        Ok(Group { unified, cpu })
    }

    /// Kills every process of the lab; whether all were gone within `limit`.
    pub(crate) fn kill_all(&self, limit: Nanos) -> bool {
        kill_below(&self.unified, limit)
    }

    /// Removes the cgroups, children first; gives what resisted.
    pub(crate) fn remove(&self) -> Vec<String> {
        let v1 = match &self.cpu {
            Cpu::V1(dir) => Some(dir.as_path()),
            _ => None,
        };
        let tops = [Some(self.unified.as_path()), v1];
        tops.into_iter().flatten().flat_map(remove_tree).collect()
    }

    /// The cgroups that still exist.
    pub(crate) fn remains(&self) -> Vec<String> {
        let mut tops = vec![self.unified.clone()];
        if let Cpu::V1(dir) = &self.cpu {
            tops.push(dir.clone());
        }
        tops.iter().filter(|d| d.exists()).map(|d| os::text(d)).collect()
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.map(|e| e.path()).take(CHILDREN_MAX).collect()
}

fn remove_tree(top: &Path) -> Vec<String> {
    if !top.exists() {
        return Vec::new();
    }
    let mut problems: Vec<String> = children(top).iter().flat_map(|c| remove_tree(c)).collect();
    // A cgroup stays busy for a moment after its last process was killed.
    if !os::wait_until(Nanos::from_secs(2), || fs::remove_dir(top).is_ok() || !top.exists()) {
        problems.push(format!("{}: cannot be removed", top.display()));
    }
    problems
}

fn kill_below(dir: &Path, limit: Nanos) -> bool {
    if !dir.exists() {
        return true;
    }
    os::wait_until(limit, || {
        if !populated(dir) {
            return true;
        }
        let _ = fs::write(dir.join("cgroup.kill"), "1");
        !populated(dir)
    })
}

fn populated(dir: &Path) -> bool {
    fs::read_to_string(dir.join("cgroup.events")).is_ok_and(|t| t.contains("populated 1"))
}

impl Group {
    /// The cgroup in the unified hierarchy: what a configuration of the product names.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.unified
    }

    /// The files into which a process writes itself to join.
    pub(crate) fn joins(&self) -> Vec<PathBuf> {
        let second = self.cpu.iter().filter(|(_, v2)| !v2).map(|(dir, _)| dir.as_path());
        std::iter::once(self.unified.as_path())
            .chain(second)
            .map(|d| d.join("cgroup.procs"))
            .collect()
    }

    /// Limits the group to a share of one CPU; `None` lifts the limit.
    ///
    /// # Errors
    /// When no cpu controller is within reach, or the kernel refuses.
    pub fn limit_cpu(&self, share: Option<Share>) -> Result<()> {
        let missing = || LabError::Missing("a cgroup cpu controller (version 1 or 2)".into());
        let (dir, v2) = self.cpu.as_ref().ok_or_else(missing)?;
        let quota = share.map(|s| ((s.get() * QUOTA_PERIOD_US as f64) as u64).max(1_000));
        let period = if quota.is_some() { QUOTA_PERIOD_US } else { QUOTA_PERIOD_DEFAULT_US };
        if *v2 {
            let quota = quota.map_or("max".to_owned(), |q| q.to_string());
            return os::write(&dir.join("cpu.max"), format!("{quota} {period}"));
        }
        // The quota first goes to "none": no pair of old and new values may contradict.
        os::write(&dir.join("cpu.cfs_quota_us"), "-1")?;
        os::write(&dir.join("cpu.cfs_period_us"), period.to_string())?;
        quota.map_or(Ok(()), |q| os::write(&dir.join("cpu.cfs_quota_us"), q.to_string()))
    }

    /// Gives the group nearly all of a CPU that others want, too, for as much as it needs: by weight,
    /// which the kernel takes into account when somebody wakes. Without a cpu controller nothing is
    /// changed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn prefer(&self) -> Result<()> {
        match &self.cpu {
            Some((dir, true)) => os::write(&dir.join("cpu.weight"), WEIGHT_MAX.to_string()),
            Some((dir, false)) => os::write(&dir.join("cpu.shares"), SHARES_MAX.to_string()),
            None => Ok(()),
        }
    }

    /// Whether groups of equal weight share a CPU fairly here (a cpu controller is within reach).
    #[must_use]
    pub const fn shares_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// CPU time used by the group so far.
    #[must_use]
    pub fn cpu_used(&self) -> Option<Nanos> {
        let text = fs::read_to_string(self.unified.join("cpu.stat")).ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("usage_usec "))?;
        line.trim().parse().ok().map(Nanos::from_micros)
    }

    /// How many processes are in the group.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.unified.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|l| l.trim().parse().ok()).collect()
    }

    /// Kills all processes of the group and removes it; whether that succeeded within `limit`.
    pub(crate) fn kill_and_remove(&self, limit: Nanos) -> bool {
        let gone = kill_below(&self.unified, limit);
        let tops = std::iter::once(&self.unified).chain(self.cpu.iter().map(|(dir, _)| dir));
        gone && tops.flat_map(|d| remove_tree(d)).next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_in_mountinfo() {
        let text = "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                    31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
                    32 30 0:28 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of(text, None), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount_of(text, Some("cpu")), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(mount_of(text, Some("memory")), None);
        assert_eq!(mount_of("", None), None);
    }
}

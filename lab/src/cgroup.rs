// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Private cgroups: version 2 to hold, kill and account processes; the cpu controller (of version 2,
//! or of version 1 where that still has it) to take CPU time away from a server; the memory controller,
//! where it is too, for servers that are to have little.

use crate::error::{LabError, Result};
use crate::os;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_units::{Nanos, Share};

/// The largest weight of a group, of version 2 and of version 1.
const WEIGHT_MAX: u32 = 10_000;
const SHARES_MAX: u32 = 262_144;
/// Period of the CPU quota. Short, so that a halved CPU looks like a slower CPU and not like one
/// that stops for 50 ms at a time.
const QUOTA_PERIOD_US: u64 = 10_000;
/// The default period, written back when the quota is lifted.
const QUOTA_PERIOD_DEFAULT_US: u64 = 100_000;
/// Most child cgroups a lab makes.
const CHILDREN_MAX: usize = 1_000;

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Controller {
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
    cpu: Controller,
    memory: Controller,
}

/// One group of processes inside a lab (a server, the product, the load).
#[derive(Clone, Debug)]
pub struct Group {
    unified: PathBuf,
    cpu: Option<(PathBuf, bool)>,
    /// Only of a group whose memory is limited, and only of version 1.
    memory: Option<PathBuf>,
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
        let place = |name: &str| {
            if has_word(&root.join("cgroup.controllers"), name) {
                return Controller::V2;
            }
            let v1 = mount_of(&mounts, Some(name)).map(|mount| mount.join(id));
            v1.map_or(Controller::None, Controller::V1)
        };
        Some(Self { unified: root.join(id), cpu: place("cpu"), memory: place("memory") })
    }

    /// Makes the lab's cgroups.
    pub(crate) fn create(id: &str) -> Result<Self> {
        let mut this = Self::of(id).ok_or_else(|| LabError::Missing("a cgroup2 mount".into()))?;
        os::make_dir(&this.unified)?;
        // Fails where another manager owns the root: the lab then does without CPU quotas.
        if this.cpu == Controller::V2 && !this.delegate("cpu") {
            this.cpu = Controller::None;
        }
        if let Controller::V1(dir) = &this.cpu {
            os::make_dir(dir)?;
        }
        Ok(this)
    }

    /// Lets the lab's groups have a controller of version 2; whether they do.
    fn delegate(&self, name: &str) -> bool {
        let root = self.unified.parent().unwrap_or(Path::new("/"));
        let on = |dir: &Path| {
            let file = dir.join("cgroup.subtree_control");
            has_word(&file, name) || fs::write(&file, format!("+{name}")).is_ok()
        };
        on(root) && on(&self.unified)
    }

    /// The root of the hierarchy that shares out the CPU.
    pub(crate) fn cpu_root(&self) -> PathBuf {
        let lab = match &self.cpu {
            Controller::V1(dir) => dir,
            _ => &self.unified,
        };
        lab.parent().unwrap_or(Path::new("/")).to_path_buf()
    }

    /// Makes a group named `name` inside the lab. With `memory` it has so many bytes, its share of the page
    /// cache included; without, its memory is accounted as on a plain host, which costs nothing.
    pub(crate) fn group(&self, name: &str, memory: Option<u64>) -> Result<Group> {
        let unified = self.unified.join(name);
        os::make_dir(&unified)?;
        let cpu = match &self.cpu {
            Controller::V2 => Some((unified.clone(), true)),
            Controller::V1(dir) => Some((dir.join(name), false)),
            Controller::None => None,
        };
        if let Some((dir, _)) = &cpu {
            os::make_dir(dir)?;
        }
        let memory = memory.map(|bytes| self.limit_memory((name, &unified), bytes)).transpose()?;
        Ok(Group { unified, cpu, memory: memory.flatten() })
    }

    /// Limits the memory of a group; where it joins, too, if that is a hierarchy of version 1.
    fn limit_memory(&self, (name, unified): (&str, &Path), bytes: u64) -> Result<Option<PathBuf>> {
        let missing = || LabError::Missing("a cgroup memory controller (version 1 or 2)".into());
        match &self.memory {
            Controller::V2 if self.delegate("memory") => {
                os::write(&unified.join("memory.high"), bytes.to_string())?;
                Ok(None)
            }
            Controller::V1(dir) => {
                let dir = dir.join(name);
                os::make_dir(&dir)?;
                os::write(&dir.join("memory.limit_in_bytes"), bytes.to_string())?;
                Ok(Some(dir))
            }
            Controller::V2 | Controller::None => Err(missing()),
        }
    }

    /// The lab's directories in hierarchies of version 1.
    fn tops_v1(&self) -> impl Iterator<Item = &Path> {
        [&self.cpu, &self.memory].into_iter().filter_map(|controller| match controller {
            Controller::V1(dir) => Some(dir.as_path()),
            Controller::V2 | Controller::None => None,
        })
    }

    /// Kills every process of the lab; whether all were gone within `limit`.
    pub(crate) fn kill_all(&self, limit: Nanos) -> bool {
        kill_below(&self.unified, limit)
    }

    /// Removes the cgroups, children first; gives what resisted.
    pub(crate) fn remove(&self) -> Vec<String> {
        let tops = std::iter::once(self.unified.as_path()).chain(self.tops_v1());
        tops.flat_map(remove_tree).collect()
    }

    /// The cgroups that still exist.
    pub(crate) fn remains(&self) -> Vec<String> {
        let tops = std::iter::once(self.unified.as_path()).chain(self.tops_v1());
        tops.filter(|d| d.exists()).map(os::text).collect()
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
            .chain(self.memory.as_deref())
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

    /// Bytes of memory that the group has now, its share of the page cache included; `None` where it is not limited.
    #[must_use]
    pub fn memory_used(&self) -> Option<u64> {
        let file = match &self.memory {
            Some(dir) => dir.join("memory.usage_in_bytes"),
            None => self.unified.join("memory.current"),
        };
        fs::read_to_string(file).ok()?.trim().parse().ok()
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
        let cpu = self.cpu.iter().map(|(dir, _)| dir);
        let tops = std::iter::once(&self.unified).chain(cpu).chain(&self.memory);
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

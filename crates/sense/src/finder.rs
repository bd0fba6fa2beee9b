// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processes serve a listener, found from its inode in `/proc/PID/fd`.
//!
//! A search looks at every process once, a slice per tick. It runs when the listeners change, and
//! again from time to time, because workers come and go. It needs the right to look into other
//! users' processes (`CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH`); without it, the processes are
//! those of the cgroup in which the listener was made, which the kernel tells anyone.

use crate::cgroup;
use crate::groups::{Groups, Sought};
use crate::listeners::Listener;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_model::CpuList;
use tidegate_units::Nanos;

/// Time between two searches while nothing changes.
const SEARCH_EVERY: Nanos = Nanos::from_secs(10);
/// Descriptors (and processes, counted as [`PROCESS_COST`]) that are looked at in one tick.
const BUDGET_PER_TICK: usize = 1024;
/// What opening a process's directory counts.
const PROCESS_COST: usize = 8;
/// Most descriptors of one process that are looked at. Listeners are opened early and have low
/// numbers; a proxy with 100,000 connections must not cost a tick.
const DESCRIPTORS_MAX: usize = 512;
/// Most processes of one service that are asked for their CPUs and cgroups.
const PROCESSES_MAX: usize = 512;
/// Most processes of the machine that are looked at.
const PIDS_MAX: usize = 65_536;

/// The processes that hold each listener, by the listener's inode.
pub(crate) type Holders = BTreeMap<u32, BTreeSet<u32>>;

/// A search that is spread over ticks.
#[derive(Debug)]
pub(crate) struct Finder {
    proc: PathBuf,
    wanted: BTreeSet<u32>,
    /// Processes that remain to be looked at; `None` between searches.
    left: Option<Vec<u32>>,
    found: Holders,
    result: Holders,
    started: Option<Nanos>,
}

impl Finder {
    pub(crate) fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            wanted: BTreeSet::new(),
            left: None,
            found: Holders::new(),
            result: Holders::new(),
            started: None,
        }
    }

    /// Searches a slice further; true when a search has just ended and [`Self::holders`] are new.
    pub(crate) fn tick(&mut self, now: Nanos, wanted: &BTreeSet<u32>) -> bool {
        self.advance(now, wanted, BUDGET_PER_TICK)
    }

    /// Searches to the end at once: for the start, where the first decision wants to know.
    pub(crate) fn complete(&mut self, now: Nanos, wanted: &BTreeSet<u32>) -> bool {
        self.advance(now, wanted, usize::MAX)
    }

    /// What the last complete search found.
    pub(crate) fn holders(&self) -> &Holders {
        &self.result
    }

    fn advance(&mut self, now: Nanos, wanted: &BTreeSet<u32>, budget: usize) -> bool {
        let due = self.started.is_none_or(|at| now.since(at) >= SEARCH_EVERY);
        if *wanted != self.wanted || (due && self.left.is_none()) {
            self.wanted.clone_from(wanted);
            self.started = Some(now);
            self.found.clear();
            self.left = Some(pids(&self.proc));
        }
        let Some(mut left) = self.left.take() else { return false };
        let mut spent = 0;
        while spent < budget
            && let Some(pid) = left.pop()
        {
            spent += PROCESS_COST + self.look_at(pid);
        }
        if left.is_empty() {
            self.finish();
            return true;
        }
        self.left = Some(left);
        false
    }

    /// Takes the new result. A listener that was found before and is not now, though it is still
    /// there, is one that may not be looked at any more (privileges were given up): those of its
    /// processes that live still hold it.
    fn finish(&mut self) {
        let before = std::mem::replace(&mut self.result, std::mem::take(&mut self.found));
        for (inode, mut pids) in before {
            pids.retain(|pid| self.proc.join(pid.to_string()).exists());
            if self.wanted.contains(&inode) && !pids.is_empty() {
                self.result.entry(inode).or_insert(pids);
            }
        }
    }

    /// Looks at the descriptors of one process; how many there were.
    fn look_at(&mut self, pid: u32) -> usize {
        let path = self.proc.join(pid.to_string()).join("fd");
        // Gone, a kernel thread, or not ours to look at: no holder that we can name.
        let Ok(descriptors) = fs::read_dir(path) else { return 0 };
        let mut count = 0;
        for descriptor in descriptors.take(DESCRIPTORS_MAX).flatten() {
            count += 1;
            let inode = fs::read_link(descriptor.path()).ok().and_then(|target| socket(&target));
            if let Some(inode) = inode.filter(|inode| self.wanted.contains(inode)) {
                self.found.entry(inode).or_default().insert(pid);
            }
        }
        count
    }
}

/// `socket:[12345]`
fn socket(target: &Path) -> Option<u32> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

pub(crate) fn pids(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(PIDS_MAX).collect()
}

/// Where a service runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// CPUs that its processes may use; `None` when not known.
    pub(crate) cpus: Option<CpuList>,
    /// Its groups, none of them the root; empty when it has none of its own.
    pub(crate) groups: Vec<cgroup::Group>,
    /// How many processes this is known from.
    pub(crate) processes: usize,
    /// Of these, those that serve: no masters, and no helpers that only are in the same group.
    pub(crate) serving: Vec<u32>,
}

/// Most groups of one service.
const GROUPS_MAX: usize = 8;

/// The place of a service from the processes that hold its listeners. Nothing while a group of
/// theirs is being looked for, because a part of the place is not the place.
pub(crate) fn place(
    listeners: &[Listener],
    holders: &Holders,
    proc: &Path,
    tree: &mut Groups,
) -> Place {
    let mut pids: BTreeSet<u32> = listeners
        .iter()
        .filter_map(|listener| holders.get(&listener.inode))
        .flatten()
        .copied()
        .take(PROCESSES_MAX)
        .collect();
    let mut groups: BTreeSet<cgroup::Group> = BTreeSet::new();
    if pids.is_empty() {
        let ids: BTreeSet<u64> = listeners.iter().filter_map(|l| l.cgroup_id).collect();
        // All of them are asked for, so that one walk finds all.
        let sought: Vec<Sought> = ids.iter().take(GROUPS_MAX).map(|id| tree.by_id(*id)).collect();
        if sought.contains(&Sought::Searching) {
            return Place::default();
        }
        groups = sought.into_iter().filter_map(Sought::group).collect();
        pids = groups.iter().flat_map(|group| cgroup::processes(group, PROCESSES_MAX)).collect();
    }
    let members: Vec<Member> = pids.iter().filter_map(|pid| member(proc, *pid)).collect();
    let workers = workers(&members);
    if groups.is_empty() {
        groups = workers
            .iter()
            .filter_map(|w| fs::read_to_string(proc.join(w.pid.to_string()).join("cgroup")).ok())
            .map(|text| cgroup::of_process(&text, tree.root()))
            // One worker in the root group, and the group's usage is not the service's.
            .collect::<Option<_>>()
            .unwrap_or_default();
    }
    let groups = outermost(groups);
    Place {
        cpus: union(workers.iter().map(|w| &w.cpus)),
        groups,
        processes: workers.len(),
        serving: workers.iter().map(|worker| worker.pid).collect(),
    }
}

/// The place of a service whose cgroup is configured.
pub(crate) fn place_in(
    group: cgroup::Group,
    (listeners, holders): (&[Listener], &Holders),
    proc: &Path,
) -> Place {
    let pids = cgroup::processes(&group, PROCESSES_MAX);
    let members: Vec<Member> = pids.iter().filter_map(|pid| member(proc, *pid)).collect();
    let cpus = union(members.iter().map(|member| &member.cpus));
    let held = listeners.iter().filter_map(|listener| holders.get(&listener.inode)).flatten();
    let held: BTreeSet<u32> = held.copied().collect();
    // Without a look at who holds the listeners (privileges were given up) all may serve.
    let serves = |worker: &&Member| held.is_empty() || held.contains(&worker.pid);
    let serving = workers(&members).into_iter().filter(serves).map(|worker| worker.pid).collect();
    Place { cpus, groups: vec![group], processes: members.len(), serving }
}

#[derive(Debug)]
struct Member {
    pid: u32,
    parent: u32,
    cpus: CpuList,
}

fn member(proc: &Path, pid: u32) -> Option<Member> {
    let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some(Member {
        pid,
        parent: field("PPid:")?.parse().ok()?,
        cpus: field("Cpus_allowed_list:")?.parse().ok()?,
    })
}

/// A process whose children hold the same listeners has them only to hand down (a master, or an
/// init that opened the socket for its service): its CPUs and its group say nothing.
fn workers(members: &[Member]) -> Vec<&Member> {
    let parents: BTreeSet<u32> = members.iter().map(|member| member.parent).collect();
    members.iter().filter(|member| !parents.contains(&member.pid)).collect()
}

fn union<'a>(lists: impl Iterator<Item = &'a CpuList>) -> Option<CpuList> {
    let all: BTreeSet<u16> = lists.flat_map(|list| list.0.iter().copied()).collect();
    (!all.is_empty()).then(|| CpuList(all.into_iter().collect()))
}

/// A group counts what the groups below it use: those must not be counted twice. Nothing when
/// there are more than [`GROUPS_MAX`], because a part of the usage is not the usage.
fn outermost(groups: BTreeSet<cgroup::Group>) -> Vec<cgroup::Group> {
    let mut kept: Vec<cgroup::Group> = Vec::new();
    for group in groups {
        if !kept.iter().any(|outer| group.path().starts_with(outer.path())) {
            kept.push(group);
        }
    }
    if kept.len() > GROUPS_MAX { Vec::new() } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A process in a fixture tree.
    fn process(proc: &Path, pid: u32, parent: u32, cpus: &str, sockets: &[u32]) {
        let dir = proc.join(pid.to_string());
        fs::create_dir_all(dir.join("fd")).unwrap();
        let status = format!("Name:\tapache2\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n");
        fs::write(dir.join("status"), status).unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
        for (fd, inode) in sockets.iter().enumerate() {
            symlink(format!("socket:[{inode}]"), dir.join("fd").join(fd.to_string())).unwrap();
        }
        symlink("/dev/null", dir.join("fd/99")).unwrap();
    }

    fn listener(inode: u32) -> Listener {
        Listener {
            address: "0.0.0.0".parse().unwrap(),
            port: 80,
            v6_only: false,
            queue: 0,
            limit: 1,
            inode,
            cgroup_id: None,
        }
    }

    #[test]
    fn a_master_that_only_hands_the_listener_down_does_not_widen_the_cpus() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
        process(proc, 1, 0, "0-7", &[11]);
        process(proc, 10, 1, "0-7", &[11]);
        process(proc, 21, 10, "2", &[11, 12]);
        process(proc, 22, 10, "3", &[11]);
        process(proc, 30, 1, "6", &[99]);
        let mut finder = Finder::new(proc);
        assert!(finder.complete(Nanos::ZERO, &BTreeSet::from([11])));
        let place = place(&[listener(11)], finder.holders(), proc, &mut Groups::new(proc));
        assert_eq!(place.cpus.unwrap().to_string(), "2-3");
        assert_eq!((place.groups, place.processes), (Vec::new(), 2));
    }

    #[test]
    fn a_search_is_spread_over_ticks_and_repeated_when_listeners_change() {
        let dir = tempfile::tempdir().unwrap();
        let processes = u32::try_from(3 * BUDGET_PER_TICK / PROCESS_COST).unwrap();
        (1..=processes).for_each(|pid| process(dir.path(), pid, 0, "0", &[]));
        process(dir.path(), 100_000, 0, "0", &[5]);
        let mut finder = Finder::new(dir.path());
        let mut ticks = 1;
        while !finder.tick(Nanos::ZERO, &BTreeSet::from([5])) {
            ticks += 1;
            assert!(ticks < 20, "the search does not end");
        }
        assert!(ticks > 2, "{ticks} ticks: not spread");
        assert_eq!(finder.holders()[&5], BTreeSet::from([100_000]));
        assert!(!finder.tick(Nanos::from_millis(100), &BTreeSet::from([5])), "nothing is due");
        assert!(finder.left.is_none());
        finder.tick(Nanos::from_millis(200), &BTreeSet::from([5, 6]));
        assert!(finder.left.is_some(), "new listeners start a new search");
        assert_eq!(finder.holders().len(), 1, "the old result stands until then");
    }

    #[test]
    fn what_was_known_is_kept_when_it_may_not_be_looked_at_any_more() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), 7, 1, "0", &[5]);
        process(dir.path(), 8, 7, "1", &[5]);
        let wanted = BTreeSet::from([5]);
        let mut finder = Finder::new(dir.path());
        finder.complete(Nanos::ZERO, &wanted);
        fs::remove_dir_all(dir.path().join("7/fd")).unwrap();
        fs::remove_dir_all(dir.path().join("8")).unwrap();
        assert!(finder.complete(SEARCH_EVERY, &wanted));
        assert_eq!(finder.holders()[&5], BTreeSet::from([7]), "8 has ended");
        finder.complete(SEARCH_EVERY + SEARCH_EVERY, &BTreeSet::new());
        assert!(finder.holders().is_empty(), "a listener that is gone is forgotten");
    }

    #[test]
    fn the_group_of_a_listener_whose_holders_cannot_be_seen_is_looked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, tree) = (dir.path().join("proc"), dir.path().join("cgroup"));
        process(&proc, 7, 1, "3", &[]);
        let path = tree.join("shop");
        fs::create_dir_all(&path).unwrap();
        fs::write(tree.join("cgroup.controllers"), "").unwrap();
        fs::write(path.join("cpu.stat"), "usage_usec 1\n").unwrap();
        fs::write(path.join("cgroup.procs"), "7\n").unwrap();
        let id = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
        let of = |id| Listener { cgroup_id: Some(id), ..listener(11) };
        let mut groups = Groups::new(&tree);
        let look = |ids: &[u64], groups: &mut Groups| {
            let listeners: Vec<Listener> = ids.iter().map(|id| of(*id)).collect();
            place(&listeners, &Holders::new(), &proc, groups)
        };
        assert_eq!(look(&[id], &mut groups), Place::default(), "not known yet");
        assert!(groups.tick(Nanos::ZERO));
        let found = look(&[id], &mut groups);
        assert_eq!(found.groups, [cgroup::Group::V2(path)]);
        assert_eq!(
            (found.cpus.map(|cpus| cpus.to_string()), found.processes),
            (Some("3".into()), 1)
        );
        assert!(!groups.tick(Nanos::ZERO), "no search for what is known");
        assert_eq!(look(&[id, u64::MAX], &mut groups), Place::default(), "a part is not the place");
        assert!(groups.tick(Nanos::ZERO));
        assert_eq!(look(&[id, u64::MAX], &mut groups).processes, 1, "the other is nowhere");
    }

    #[test]
    fn groups_below_groups_are_counted_once() {
        let group = |path: &str| cgroup::Group::V2(path.into());
        let kept = outermost(BTreeSet::from([group("/c/a/x"), group("/c/a"), group("/c/b")]));
        assert_eq!(kept, [group("/c/a"), group("/c/b")]);
        let many = (0..=GROUPS_MAX).map(|i| group(&format!("/c/{i}"))).collect();
        assert_eq!(outermost(many), []);
    }
}

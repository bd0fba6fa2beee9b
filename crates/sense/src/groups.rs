// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups by their ids, which are the inodes of their directories.
//!
//! The kernel tells in which group a listener was made, as an id; where that lies, only a walk
//! through the tree tells. A walk looks for all ids that are wanted, a slice per tick; what it found
//! is remembered, and looked at again, not for.

use crate::cgroup::{Group, mount_v2};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;

/// Most directories that are read in one walk.
const DIRECTORIES_MAX: usize = 16_384;
/// Of these, in one tick.
const BUDGET_PER_TICK: usize = 128;
/// When an id is looked for again that was not found: ids are not used twice, and a group is there
/// before what is made in it, so it hardly ever comes.
const MISSING_AGAIN: Nanos = Nanos::from_secs(60);
/// Most ids that are remembered, several times those of all services at once. Above, all are
/// forgotten: those that are still wanted are looked for again.
const KNOWN_MAX: usize = 1024;

/// What is known of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    /// The group.
    At(Group),
    /// No group that we can see, or the root of everything.
    Nowhere,
    /// Not known yet: [`Groups::tick`] will find it.
    Searching,
}

impl Sought {
    pub(crate) fn group(self) -> Option<Group> {
        match self {
            Self::At(group) => Some(group),
            Self::Nowhere | Self::Searching => None,
        }
    }
}

/// Groups by their ids.
#[derive(Debug)]
pub(crate) struct Groups {
    root: PathBuf,
    known: BTreeMap<u64, PathBuf>,
    /// Not found, and when.
    missing: BTreeMap<u64, Nanos>,
    /// For the next walk.
    wanted: BTreeSet<u64>,
    walk: Option<Walk>,
}

/// A walk that is spread over ticks.
#[derive(Debug)]
struct Walk {
    sought: BTreeSet<u64>,
    /// Directories that remain to be read.
    open: Vec<PathBuf>,
    read: usize,
}

impl Groups {
    /// Of the tree at `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            known: BTreeMap::new(),
            missing: BTreeMap::new(),
            wanted: BTreeSet::new(),
            walk: None,
        }
    }

    /// Where the tree is mounted.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The group with this id; it is looked for from the next tick on if it is not known.
    pub(crate) fn by_id(&mut self, id: u64) -> Sought {
        if let Some(path) = self.known.get(&id) {
            if inode(path) == Some(id) {
                return Group::at(path).map_or(Sought::Nowhere, Sought::At);
            }
            self.known.remove(&id);
        }
        // The root of everything lies in no directory: no walk would find it.
        let is_root = || mount_v2(&self.root).as_deref().and_then(inode) == Some(id);
        if self.missing.contains_key(&id) || is_root() {
            return Sought::Nowhere;
        }
        if self.walk.as_ref().is_none_or(|walk| !walk.sought.contains(&id)) {
            self.wanted.insert(id);
        }
        Sought::Searching
    }

    /// Walks a slice further; true when a walk has just ended and more is known.
    pub(crate) fn tick(&mut self, now: Nanos) -> bool {
        self.advance(now, BUDGET_PER_TICK)
    }

    /// Walks to the end at once: for the start.
    pub(crate) fn complete(&mut self, now: Nanos) -> bool {
        self.advance(now, DIRECTORIES_MAX)
    }

    fn advance(&mut self, now: Nanos, budget: usize) -> bool {
        self.missing.retain(|_, at| now.since(*at) < MISSING_AGAIN);
        let begun = self.walk.take().or_else(|| Walk::begin(&self.root, &mut self.wanted));
        let Some(mut walk) = begun else { return false };
        for _ in 0..budget {
            let Some(path) = walk.next() else { break };
            for (id, path) in walk.read(&path) {
                remember(&mut self.known, id, path);
            }
        }
        if !walk.is_over() {
            self.walk = Some(walk);
            return false;
        }
        for id in walk.sought {
            remember(&mut self.missing, id, now);
        }
        true
    }
}

impl Walk {
    /// For all that is wanted; `None` when nothing is.
    fn begin(root: &Path, wanted: &mut BTreeSet<u64>) -> Option<Self> {
        let sought = std::mem::take(wanted);
        // Without a tree nothing is open, and nothing is found.
        let open = mount_v2(root).into_iter().collect();
        (!sought.is_empty()).then_some(Self { sought, open, read: 0 })
    }

    fn is_over(&self) -> bool {
        self.sought.is_empty() || self.open.is_empty() || self.read >= DIRECTORIES_MAX
    }

    /// The directory to read next.
    fn next(&mut self) -> Option<PathBuf> {
        if self.is_over() { None } else { self.open.pop() }
    }

    /// Reads a directory: what was found in it. One that is gone meanwhile has nothing in it.
    fn read(&mut self, path: &Path) -> Vec<(u64, PathBuf)> {
        self.read += 1;
        let mut found = Vec::new();
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = entry.path();
            if let Some(id) = entry.metadata().ok().map(|meta| meta.ino())
                && self.sought.remove(&id)
            {
                found.push((id, path.clone()));
            }
            self.open.push(path);
        }
        found
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

fn remember<T>(map: &mut BTreeMap<u64, T>, id: u64, value: T) {
    if map.len() >= KNOWN_MAX {
        map.clear();
    }
    map.insert(id, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group in a fixture tree; its id.
    fn group(path: &Path) -> u64 {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cpu.stat"), "usage_usec 1\n").unwrap();
        fs::write(path.join("cgroup.procs"), "12\n34\n").unwrap();
        inode(path).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Groups) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "").unwrap();
        let groups = Groups::new(dir.path());
        (dir, groups)
    }

    #[test]
    fn a_group_is_found_by_its_id_once_and_only_looked_at_from_then_on() {
        let (dir, mut groups) = tree();
        let path = dir.path().join("a/b");
        let id = group(&path);
        assert_eq!(groups.by_id(id), Sought::Searching);
        assert!(groups.tick(Nanos::ZERO), "a small tree is one slice");
        let found = Sought::At(Group::V2(path.clone()));
        for _ in 0..3 {
            assert_eq!(groups.by_id(id), found);
            assert!(!groups.tick(Nanos::ZERO) && groups.walk.is_none(), "nothing is looked for");
        }
        // A restart makes it anew, in the same place.
        fs::rename(&path, dir.path().join("old")).unwrap();
        let other = group(&path);
        assert_eq!(groups.by_id(other), Sought::Searching);
        assert_eq!(groups.by_id(id), Sought::Searching, "it lies elsewhere now");
        assert!(groups.tick(Nanos::ZERO));
        assert_eq!(groups.by_id(other), found);
        assert_eq!(groups.by_id(id), Sought::At(Group::V2(dir.path().join("old"))));
    }

    #[test]
    fn a_walk_is_spread_over_ticks_and_looks_for_all_at_once() {
        let (dir, mut groups) = tree();
        let mut ids = Vec::new();
        for i in 0..3 * BUDGET_PER_TICK {
            ids.push(group(&dir.path().join(format!("g{i}/x"))));
        }
        for id in [ids[0], ids[BUDGET_PER_TICK], ids[2 * BUDGET_PER_TICK], u64::MAX] {
            assert_eq!(groups.by_id(id), Sought::Searching);
        }
        let mut ticks = 1;
        while !groups.tick(Nanos::ZERO) {
            ticks += 1;
            assert!(ticks < 20, "the walk does not end");
            // What is wanted meanwhile is for the next walk, if this one has passed it.
            groups.by_id(ids[1]);
        }
        assert!(ticks > 3, "{ticks} ticks: not spread");
        assert!(matches!(groups.by_id(ids[0]), Sought::At(_)));
        assert!(matches!(groups.by_id(ids[2 * BUDGET_PER_TICK]), Sought::At(_)));
        assert!(groups.complete(Nanos::ZERO), "the next walk");
        assert!(matches!(groups.by_id(ids[1]), Sought::At(_)));
    }

    #[test]
    fn what_is_nowhere_is_looked_for_again_after_a_while_only() {
        let (dir, mut groups) = tree();
        assert_eq!(groups.by_id(inode(dir.path()).unwrap()), Sought::Nowhere, "the root");
        assert!(!groups.tick(Nanos::ZERO), "it is not looked for");
        assert_eq!(groups.by_id(u64::MAX), Sought::Searching);
        assert!(groups.tick(Nanos::ZERO));
        assert_eq!(groups.by_id(u64::MAX), Sought::Nowhere);
        let just_before = Nanos(MISSING_AGAIN.0 - 1);
        assert!(!groups.tick(just_before) && groups.walk.is_none());
        assert_eq!(groups.by_id(u64::MAX), Sought::Nowhere);
        assert!(!groups.tick(MISSING_AGAIN), "nobody asks for it");
        assert_eq!(groups.by_id(u64::MAX), Sought::Searching);
        assert!(groups.tick(MISSING_AGAIN));
    }

    #[test]
    fn without_a_tree_nothing_is_found_and_nothing_fails() {
        let dir = tempfile::tempdir().unwrap();
        let mut groups = Groups::new(&dir.path().join("nothing"));
        groups.by_id(1);
        assert!(groups.tick(Nanos::ZERO));
        assert_eq!(groups.by_id(1), Sought::Nowhere);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut map = BTreeMap::new();
        (0..=KNOWN_MAX as u64).for_each(|id| remember(&mut map, id, ()));
        assert_eq!(map.len(), 1);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bugs planted into a copy of the sources.

use super::place::{HOOK_FOLDERS, root};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What is planted: a file, what it says, what it says then.
pub type Canary = (&'static str, &'static str, &'static str);

/// The sources that a native build needs, in a directory of their own.
pub struct Copy(tempfile::TempDir);

impl Copy {
    #[allow(clippy::new_without_default, reason = "it costs a copy")]
    pub fn new() -> Self {
        let copy = tempfile::tempdir().unwrap();
        let beside = ["policy", "bpf/abi", "bpf/vmlinux", "bpf/tests/native"];
        // links are followed: what is changed below must be a copy
        let mut cp = Command::new("cp");
        cp.args(["-rL", "--parents"]).args(HOOK_FOLDERS).args(beside).arg(copy.path());
        assert!(cp.current_dir(root()).status().unwrap().success(), "{cp:?}");
        Self(copy)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Replaces the only place where a file says this.
    pub fn replace(&self, (file, from, to): Canary) {
        let path = self.0.path().join(file).canonicalize().unwrap();
        assert!(path.starts_with(self.0.path().canonicalize().unwrap()), "{}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{file} must say once: {from}");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    }
}

/// Plants each alone, as many at a time as there are processors; each must be found.
pub fn plant(canaries: &[Canary], found: impl Fn(&Path) -> Option<String> + Sync) {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some(canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let copy = Copy::new();
            copy.replace(*canary);
            let found = found(copy.path());
            println!("{canary:?}: {}", found.as_deref().unwrap_or("not found"));
            if found.is_none() {
                missed.lock().unwrap().push(canary);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get().min(canaries.len()) {
            scope.spawn(work);
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

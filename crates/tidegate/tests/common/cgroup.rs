// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cgroup (version 2) of a test's own.

use std::fs;
use std::path::PathBuf;

/// So that the load of the machine is not the server's; gone when it is dropped.
pub(crate) struct Cgroup(pub(crate) PathBuf);

impl Cgroup {
    pub(crate) fn new(of: &str, number: u32) -> Self {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = fields.find(|fields| fields[2] == "cgroup2").expect("cgroup version 2");
        let name = format!("tidegate-{of}-{}-{number}", std::process::id());
        let path = PathBuf::from(root[1]).join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Moves a process into it.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

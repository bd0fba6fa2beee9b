// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file that stands for a network namespace at the moment.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_model::Namespace;

/// Most cgroups below the one that is named that are looked into.
const GROUPS_MAX: usize = 256;

/// Where a network namespace is entered: a process of a container, say, has another number after each
/// start, so it is asked anew each time.
///
/// # Errors
/// When there is no such process, or none in the cgroup.
pub fn namespace_path(namespace: &Namespace) -> io::Result<PathBuf> {
    let of = |pid: u32| PathBuf::from(format!("/proc/{pid}/ns/net"));
    match namespace {
        Namespace::Path(path) => Ok(path.clone()),
        Namespace::Pid(pid) => Ok(of(*pid)),
        Namespace::Cgroup(path) => first(path).map(of),
    }
}

/// A process of a cgroup or of one below it: where there are such, those above have none.
fn first(path: &Path) -> io::Result<u32> {
    let mut left = vec![path.to_owned()];
    for _ in 0..GROUPS_MAX {
        let Some(group) = left.pop() else { break };
        let text = fs::read_to_string(group.join("cgroup.procs"));
        // 0 is a process of another pid namespace, which has no number here.
        let pids = text.iter().flat_map(|text| text.lines()).filter_map(|pid| pid.parse().ok());
        if let Some(pid) = pids.into_iter().find(|pid| *pid != 0) {
            return Ok(pid);
        }
        let below = fs::read_dir(&group)?.flatten().map(|entry| entry.path());
        left.extend(below.filter(|path| path.is_dir()));
    }
    let why = format!("no process is in the cgroup {}", path.display());
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_of_a_cgroup_or_below_it_says_which() {
        let dir = tempfile::tempdir().unwrap();
        let pod = Namespace::Cgroup(dir.path().to_owned());
        fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        let error = namespace_path(&pod).unwrap_err();
        assert!(error.to_string().contains("no process is in the cgroup"), "{error}");
        fs::create_dir(dir.path().join("container")).unwrap();
        fs::write(dir.path().join("container/cgroup.procs"), "0\n41\n42\n").unwrap();
        assert_eq!(namespace_path(&pod).unwrap(), Path::new("/proc/41/ns/net"));
        assert_eq!(namespace_path(&Namespace::Pid(7)).unwrap(), Path::new("/proc/7/ns/net"));
        let path = Namespace::Path("/run/netns/web".into());
        assert_eq!(namespace_path(&path).unwrap(), Path::new("/run/netns/web"));
        assert!(namespace_path(&Namespace::Cgroup("/nowhere".into())).is_err());
    }
}

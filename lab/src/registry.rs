// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which labs exist, whose they are, and how one is removed.
//!
//! Everything a lab makes is named after its id (`tg<pid of the owner>-<number>`): a directory
//! under [`ROOT`] (which holds the private BPF file system), three network namespaces and one cgroup
//! per hierarchy, in which all its processes live. So whoever knows the id can remove all of it, and
//! it happens three times over: by `Drop`, by the guard process when the owner ends in any other way
//! (signal, panic, `kill -9`), and by [`sweep`] at the start of the next lab, should the guard have
//! been killed too.

use crate::cgroup::Cgroups;
use crate::error::{LabError, Result};
use crate::os;
use rustix::fs::{FlockOperation, flock, statfs};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;

/// Where labs keep their state.
pub const ROOT: &str = "/run/tidegate-lab";
/// Most labs of one process at a time.
const LABS_MAX: u32 = 1_000;
/// Most labs looked at by one sweep.
const SWEEP_MAX: usize = 1_000;
/// How long the processes of a lab may take to die after SIGKILL.
const KILL_LIMIT: Nanos = Nanos::from_secs(10);
/// The three namespaces of a lab: client, router, server.
pub(crate) const ROLES: [&str; 3] = ["cl", "rt", "sv"];

/// Serialises the creation of namespaces: two `ip netns add` at the same time race for the first
/// mount of their directory. Released by drop.
pub(crate) struct Lock(#[expect(dead_code, reason = "holds the lock")] File);

/// Takes the lock that all labs of the machine share.
pub(crate) fn lock() -> Result<Lock> {
    os::make_dir(Path::new(ROOT))?;
    let path = Path::new(ROOT).join(".lock");
    let file = File::create(&path).map_err(LabError::io(os::text(&path)))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|e| LabError::Io { what: os::text(&path), source: e.into() })?;
    Ok(Lock(file))
}

/// When a process started, in clock ticks since boot: with the pid it names a process for good.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold blanks and brackets: fields count from the last bracket; start time is 22.
    let fields = &stat[stat.rfind(')')? + 2..];
    let state = fields.split(' ').next()?;
    (state != "Z").then(|| fields.split(' ').nth(19)?.parse().ok())?
}

/// Reserves an id for this process and makes its directory.
pub(crate) fn reserve() -> Result<String> {
    os::make_dir(Path::new(ROOT))?;
    let pid = std::process::id();
    for number in 0..LABS_MAX {
        let id = format!("tg{pid}-{number}");
        match fs::create_dir(dir(&id)) {
            Ok(()) => {
                keep_in_memory(&dir(&id))?;
                let started = start_time(pid).unwrap_or(0);
                os::write(&dir(&id).join("owner"), format!("{pid} {started}\n"))?;
                // Servers read their files as other users, whatever our umask.
                os::run("chmod", &["a+rx", ROOT, &os::text(&dir(&id))])?;
                return Ok(id);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(LabError::io(format!("mkdir {}", dir(&id).display()))(e)),
        }
    }
    Err(LabError::Plan(format!("more than {LABS_MAX} labs in one process")))
}

/// `/run` is in memory on the hosts of users, and not in every container. On a disk a rename may wait for others that
/// write there, and the control loop of what is measured with it.
fn keep_in_memory(dir: &Path) -> Result<()> {
    let path = os::text(dir);
    let on = statfs(dir).map_err(|e| LabError::Io { what: path.clone(), source: e.into() })?;
    if !os::IN_MEMORY.contains(&on.f_type) {
        os::run("mount", &["-t", "tmpfs", "-o", "mode=0755", "tidegate-lab", &path])?;
    }
    Ok(())
}

/// The directory of a lab.
pub(crate) fn dir(id: &str) -> PathBuf {
    Path::new(ROOT).join(id)
}

/// The name of one of a lab's namespaces.
pub(crate) fn namespace(id: &str, role: &str) -> String {
    format!("{id}-{role}")
}

/// The ids of all labs on the machine, dead or alive.
#[must_use]
pub fn labs() -> Vec<String> {
    let Ok(entries) = fs::read_dir(ROOT) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    names.filter(|name| owner_pid(name).is_some()).take(SWEEP_MAX).collect()
}

/// The pid in a lab's id; `None` when it is no lab's id.
fn owner_pid(id: &str) -> Option<u32> {
    let (pid, number) = id.strip_prefix("tg")?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Whether the process that made the lab still runs.
#[must_use]
pub fn owner_alive(id: &str) -> bool {
    let Some(pid) = owner_pid(id) else { return false };
    let Some(now) = start_time(pid) else { return false };
    let noted = fs::read_to_string(dir(id).join("owner")).unwrap_or_default();
    // Not written yet: the lab is being made this very moment.
    noted.split_whitespace().nth(1).and_then(|t| t.parse().ok()).is_none_or(|then: u64| then == now)
}

/// Removes every lab whose owner is dead; gives the ids removed and what resisted.
pub fn sweep() -> (Vec<String>, Vec<String>) {
    let dead: Vec<String> = labs().into_iter().filter(|id| !owner_alive(id)).collect();
    let problems = dead.iter().flat_map(|id| teardown(id)).collect();
    (dead, problems)
}

/// Removes everything of one lab: processes, mounts, namespaces, cgroups, files. Repeatable; what
/// is gone already is fine. Gives what resisted.
pub fn teardown(id: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if owner_pid(id).is_none() {
        return vec![format!("{id} is no lab")];
    }
    let cgroups = Cgroups::of(id);
    if let Some(cgroups) = &cgroups
        && !cgroups.kill_all(KILL_LIMIT)
    {
        problems.push(format!("{id}: processes outlive SIGKILL"));
    }
    for mounted in [dir(id).join("bpf"), dir(id)] {
        let gone = || !is_mount(&mounted);
        if !gone() && os::run("umount", &["-l", &os::text(&mounted)]).is_err() && !gone() {
            problems.push(format!("{}: still mounted", mounted.display()));
        }
    }
    remove_namespaces(id, &mut problems);
    if let Some(cgroups) = cgroups {
        problems.extend(cgroups.remove());
    }
    if let Err(e) = fs::remove_dir_all(dir(id))
        && e.kind() != std::io::ErrorKind::NotFound
    {
        problems.push(format!("{}: {e}", dir(id).display()));
    }
    problems
}

fn remove_namespaces(id: &str, problems: &mut Vec<String>) {
    let _lock = lock();
    for role in ROLES {
        let name = namespace(id, role);
        let path = Path::new("/run/netns").join(&name);
        if path.exists()
            && let Err(e) = os::run("ip", &["netns", "del", &name])
            && path.exists()
        {
            problems.push(e.to_string());
        }
    }
}

/// Whether something is mounted on `path`.
pub(crate) fn is_mount(path: &Path) -> bool {
    let path = os::text(path);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str()))
}

/// What is left of a lab, one line each: for tests and for reports. Empty when it is gone.
#[must_use]
pub fn remains(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    for role in ROLES {
        let path = Path::new("/run/netns").join(namespace(id, role));
        found.extend(path.exists().then(|| os::text(&path)));
    }
    found.extend(dir(id).exists().then(|| os::text(&dir(id))));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let inside = format!("{}/", os::text(&dir(id)));
    found.extend(mounts.lines().filter(|l| l.contains(&inside)).map(|l| format!("mount {l}")));
    found.extend(Cgroups::of(id).map(|c| c.remains()).unwrap_or_default());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_labs_are_ever_touched() {
        for name in ["", "tg", "tg1", "tgx-1", "tg1-", "tg1-x", ".lock", "../tg1-0"] {
            assert_eq!(owner_pid(name), None, "{name}");
            assert!(!teardown(name).is_empty(), "{name}");
        }
        assert_eq!(owner_pid("tg42-7"), Some(42));
    }

    #[test]
    fn a_process_is_known_by_pid_and_start_time() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
        assert!(!owner_alive(&format!("tg{}-0", u32::MAX)));
    }
}

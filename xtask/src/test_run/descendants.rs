// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends a process and all that descend from it, by number, never by name.

use std::collections::BTreeMap;
use std::fs;

use crate::process;

/// Kills the descendants first, so that none is orphaned and escapes, then the process.
pub(super) fn kill(pid: u32) {
    let mut doomed = vec![pid];
    let parents = parents();
    let mut next = 0;
    while let Some(parent) = doomed.get(next).copied() {
        doomed.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(child, _)| *child));
        next += 1;
    }
    for pid in doomed.into_iter().rev() {
        // One that has ended by itself meanwhile is no error.
        let _ = process::command("sh")
            .args(["-c", "kill -KILL \"$1\" 2>/dev/null", "kill", &pid.to_string()])
            .status();
    }
}

/// Process → its parent, as /proc has it now.
fn parents() -> BTreeMap<u32, u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect()
}

/// The fourth field of /proc/PID/stat; the second, a name, may hold spaces and parentheses.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        assert_eq!(parent("7 (a) b) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent("garbage"), None);
    }

    #[test]
    fn our_own_parent_is_found() {
        assert_eq!(parents().get(&std::process::id()), Some(&std::os::unix::process::parent_id()));
    }
}

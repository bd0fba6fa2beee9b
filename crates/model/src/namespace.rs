// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a configuration names a network namespace.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// The file that stands for it, such as `/run/netns/web`.
    Path(PathBuf),
    /// That of a process.
    Pid(u32),
    /// That of the processes of a cgroup, such as a container's.
    Cgroup(PathBuf),
}

impl FromStr for Namespace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(pid) = text.strip_prefix("pid:") {
            let number = pid.parse().ok().filter(|number| *number > 0_u32);
            return number.map(Self::Pid).ok_or_else(|| format!("{pid:?} is no process"));
        }
        let (path, of): (_, fn(PathBuf) -> Self) = match text.strip_prefix("cgroup:") {
            Some(path) => (Path::new(path), Self::Cgroup),
            None => (Path::new(text), Self::Path),
        };
        let plain = path.components().all(|part| part != Component::ParentDir);
        if !path.is_absolute() || !plain {
            return Err("it is no absolute path without \"..\"".into());
        }
        Ok(of(path.to_owned()))
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Pid(pid) => write!(f, "pid:{pid}"),
            Self::Cgroup(path) => write!(f, "cgroup:{}", path.display()),
        }
    }
}

crate::written_as_text!(Namespace, "namespace");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read_again_and_nothing_else_is_a_namespace() {
        for text in ["/run/netns/web", "pid:77", "cgroup:/sys/fs/cgroup/docker/1f"] {
            assert_eq!(text.parse::<Namespace>().unwrap().to_string(), text);
        }
        for text in ["", "web", "pid:", "pid:0", "pid:-1", "pid:web", "cgroup:docker", "/run/../x"]
        {
            assert!(text.parse::<Namespace>().is_err(), "{text}");
        }
    }
}

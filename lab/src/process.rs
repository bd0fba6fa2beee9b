// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes of a lab: in their namespace, on their CPU, in their cgroup, and gone with their owner.

use crate::cgroup::Group;
use crate::error::{LabError, Result};
use crate::os;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tidegate_units::Nanos;

/// How long processes may take to die after SIGKILL.
const KILL_LIMIT: Nanos = Nanos::from_secs(10);

/// How to start a process.
pub(crate) struct Launch {
    /// Namespace to enter.
    pub(crate) net: String,
    /// CPUs to stay on, as `taskset` takes them.
    pub(crate) cpus: String,
    /// Its cgroup.
    pub(crate) group: Group,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Where its errors go, and its output unless piped.
    pub(crate) log: PathBuf,
    /// Whether standard input and output are pipes of ours.
    pub(crate) piped: bool,
}

/// A running process with all its descendants; killed by drop.
#[derive(Debug)]
pub struct Managed {
    child: Child,
    group: Group,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Managed {
    pub(crate) fn start(launch: Launch) -> Result<Self> {
        let what = launch.command.join(" ");
        let log = File::create(&launch.log)
            .and_then(|f| Ok((f.try_clone()?, f)))
            .map_err(LabError::io(format!("log {}", launch.log.display())))?;
        // The shell joins the cgroups before it becomes the program, so that no descendant can
        // ever be outside of them; every step is an exec, so the pid is the program's.
        let script =
            "set -e\nwhile [ \"$1\" != -- ]; do echo $$ >\"$1\"; shift; done\nshift\nexec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(launch.group.joins()).arg("--");
        command.arg("nsenter").arg(format!("--net={}", launch.net));
        command.args(["taskset", "-c", &launch.cpus]).args(&launch.command);
        if launch.piped {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(log.0);
        }
        let child = command.stderr(log.1).spawn().map_err(LabError::io(what))?;
        Ok(Self { child, group: launch.group, log: launch.log, status: None })
    }

    /// The process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its cgroup.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.group
    }

    /// Where it logs.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether the process itself (not its descendants) still runs.
    pub fn running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// How it ended, if it did.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.running();
        self.status
    }

    /// Sends a signal to the process; none when it has ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.running() {
            return Ok(());
        }
        self.signal_now(signal)
    }

    /// Sends a signal to a process that is known to run.
    pub(crate) fn signal_now(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|e| LabError::io(format!("kill {pid:?}"))(e.into()))
    }

    /// Asks the process to end and waits for it.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub fn stop(&mut self, signal: Signal, limit: Nanos) -> Result<()> {
        self.signal(signal)?;
        let what = format!("end of process {} after {signal:?}", self.pid());
        let log = self.log.clone();
        os::wait_or_fail(&what, limit, Some(&log), || !self.running())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Killed as a group; the child itself is reaped here, or the group would stay busy.
        let group = self.group.clone();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !group.kill_and_remove(KILL_LIMIT) {
            tracing::warn!(group = %group.path().display(), "processes or cgroup resist removal");
        }
    }
}

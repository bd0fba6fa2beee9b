// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Network namespaces that are gone when the worker is, however it ends.

use anyhow::{Context, Result, bail};
use rustix::thread::CpuSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_bpf::testing::bench;

/// Reads names of namespaces until its input ends, then removes what runs in them, and them.
const GUARD: &str = "
while read -r name; do names=\"$names $name\"; done
for name in $names; do
    pids=$(ip netns pids \"$name\" 2>/dev/null)
    [ -z \"$pids\" ] || kill -9 $pids 2>/dev/null
    ip netns delete \"$name\" 2>/dev/null
done
";

/// A small process that cleans up. The kernel closes its input when the worker ends, panics, or is
/// killed: no signal handler is needed.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it.
    pub fn start() -> Result<Rc<Self>> {
        let mut command = Command::new("sh");
        // A group of its own: Ctrl-C on the terminal must not end it before its work is done.
        command.args(["-c", GUARD]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Rc::new(Self { child: command.spawn().context("starting the guard")? }))
    }

    fn watch(&self, name: &str) -> Result<()> {
        let mut input = self.child.stdin.as_ref().context("the guard has no input")?;
        writeln!(input, "{name}").context("the guard is gone")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A network namespace.
#[derive(Debug)]
pub struct Space {
    name: String,
    path: PathBuf,
    _guard: Rc<Guard>,
}

impl Space {
    /// A new one, its loopback device up.
    pub fn new(guard: &Rc<Guard>) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("tgbench-{}-{serial}", std::process::id());
        guard.watch(&name)?;
        run(Command::new("ip").args(["netns", "add", &name]), "")?;
        let path = Path::new("/run/netns").join(&name);
        let space = Self { name, path, _guard: Rc::clone(guard) };
        space.ip("link set lo up")?;
        Ok(space)
    }

    /// For `ip link … netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it can be entered.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        let mut command = Command::new("ip");
        run(command.args(["-n", &self.name]).args(arguments.split_whitespace()), "")
    }

    /// A command that will run in it (in its network, not under another /sys).
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path.display())).arg(program);
        command
    }

    /// Runs a command in it with this input.
    pub fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        run(self.command(program).args(arguments), input)
    }

    /// Runs `work` in it, in a thread that stays on one CPU.
    pub fn on_cpu<T: Send>(
        &self,
        cpu: usize,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        bench::within(&self.path, || Ok(pin(cpu).and_then(|()| work())))?
    }
}

/// Keeps the calling thread on one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// The CPU to measure on: the last, as the first has most of the interrupts.
pub fn last_cpu() -> usize {
    std::thread::available_parallelism().map_or(0, |cpus| cpus.get() - 1)
}

/// Runs a command with this input to its end; what it said.
pub fn run(command: &mut Command, input: &str) -> Result<String> {
    let shown = format!("{command:?}");
    let mut start = || -> std::io::Result<std::process::Output> {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = start().with_context(|| shown.clone())?;
    if !output.status.success() {
        bail!("{shown}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

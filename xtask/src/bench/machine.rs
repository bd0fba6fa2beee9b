// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On what it was measured: without that, a figure means nothing.

use std::fs;

use serde::Serialize;

use crate::process;

/// Facts of the machine; `unknown` where one is not to be had.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    kernel: String,
    processor: String,
    processors: usize,
    governor: String,
    jit: String,
    compiler: String,
    rustc: String,
    commit: String,
}

impl Machine {
    pub(super) fn read() -> Self {
        let unknown = |fact: Option<String>| fact.unwrap_or_else(|| "unknown".to_owned());
        let line = |path: &str| {
            let text = fs::read_to_string(path).ok()?;
            text.lines().next().map(str::to_owned)
        };
        Self {
            kernel: unknown(line("/proc/sys/kernel/osrelease")),
            processor: unknown(
                fs::read_to_string("/proc/cpuinfo").ok().as_deref().and_then(processor),
            ),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            governor: unknown(line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            jit: unknown(line("/proc/sys/net/core/bpf_jit_enable")),
            compiler: unknown(process::fact("clang-19", &["--version"])),
            rustc: unknown(process::fact("rustc", &["--version"])),
            commit: unknown(process::fact("git", &["describe", "--always", "--dirty"])),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "kernel {} · {} × {}", self.kernel, self.processors, self.processor)?;
        writeln!(f, "governor {} · BPF JIT {}", self.governor, self.jit)?;
        writeln!(f, "{} · {} · commit {}", self.compiler, self.rustc, self.commit)
    }
}

fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_and_a_missing_one_is_not_invented() {
        assert_eq!(
            processor("x: 1\nmodel name\t: Some CPU @ 2 GHz\n").as_deref(),
            Some("Some CPU @ 2 GHz")
        );
        assert_eq!(processor("x: 1\n"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_processors() {
        let machine = Machine::read();
        assert!(machine.processors > 0 && machine.kernel != "unknown", "{machine}");
    }
}

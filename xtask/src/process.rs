// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Running other programs: one place for their environment, their failure, and where the
//! repository lies.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Set by the `cargo run` that started us. They would make a cargo below believe that its
/// environment changed, and so build again what is built.
const INHERITED_FROM_CARGO: [&str; 8] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_PRIMARY_PACKAGE",
    "CARGO_BIN_EXE_xtask",
    "OUT_DIR",
    "LD_LIBRARY_PATH",
];

/// The error of a command that has already said all there is to say.
#[derive(Debug)]
pub(crate) struct Said;

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("see above")
    }
}

impl std::error::Error for Said {}

/// The root of the repository.
#[must_use]
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that runs in the root of the repository, without input.
#[must_use]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for name in INHERITED_FROM_CARGO {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            command.env_remove(name);
        }
    }
    command
}

/// What cargo says of the workspace's own crates, as JSON.
pub(crate) fn metadata() -> Result<String> {
    output(cargo().args(["metadata", "--no-deps", "--format-version=1", "--offline"]))
}

/// The cargo that runs us.
#[must_use]
pub(crate) fn cargo() -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs it; an exit code other than zero is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// Runs it and returns what it printed; its errors go to ours.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed no text"))
}

/// The first line that it prints, if it runs and succeeds; for facts that may be missing.
#[must_use]
pub(crate) fn fact(program: &str, args: &[&str]) -> Option<String> {
    let output = command(program).args(args).stderr(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// How long this machine has been up; zero where nobody says so. Only differences of it are used: how long something
/// took, and when the time of a group is over.
#[must_use]
pub(crate) fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default()
}

/// True if a program of this name is in PATH.
#[must_use]
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// True for root: who may make namespaces, load BPF programs, install packages.
#[must_use]
pub(crate) fn is_root() -> bool {
    // The owner of our own entry in /proc is our effective user.
    std::fs::metadata("/proc/self")
        .is_ok_and(|entry| std::os::unix::fs::MetadataExt::uid(&entry) == 0)
}

/// Fails with the reason why root is needed.
pub(crate) fn need_root(what_for: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!("this needs root ({what_for}): run it with sudo, or as root")
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let error = run(command("sh").args(["-c", "exit 3"])).expect_err("exit 3 is a failure");
        let text = error.to_string();
        assert!(text.contains("sh -c exit 3") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut command("no-such-program-here")).expect_err("it does not exist");
        assert!(error.to_string().contains("no-such-program-here"));
        assert!(!is_installed("no-such-program-here"));
        assert!(is_installed("sh"));
    }

    #[test]
    fn time_passes() {
        let before = uptime();
        run(command("sleep").arg("0.1")).expect("sleeps");
        assert!(uptime() - before >= Duration::from_millis(90), "since {before:?}");
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.toml").is_file());
    }
}

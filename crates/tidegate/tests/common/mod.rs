// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of the program share.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]
#![allow(dead_code, reason = "no file of tests uses all of it")]

pub(crate) mod authority;
pub(crate) mod cgroup;
pub(crate) mod congested;
pub(crate) mod flash;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod nginx;
pub(crate) mod proxied;
pub(crate) mod relay;
pub(crate) mod routed;
pub(crate) mod routers;
pub(crate) mod space;
pub(crate) mod star;
pub(crate) mod world;

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Longest wait for anything that shall happen; under emulation all takes longer.
pub(crate) const PATIENCE: Nanos = Nanos::from_secs(if cfg!(feature = "guest") { 300 } else { 40 });

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}

/// The same of `ip`.
pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Waits until `done` gives something.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = MonotonicClock.now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(MonotonicClock.now().since(begin) < PATIENCE, "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Removes the directory of pins: these are files that only `unlink` removes.
pub(crate) fn remove_pins(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_pins(&entry.path());
        } else {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

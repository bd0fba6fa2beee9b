// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask guest`: the dataplane's tests on another kernel, under software emulation.
//!
//! A kernel of the distribution boots in QEMU without KVM, with the machine's own files below it
//! (9p, read only, memory above), no network and a time limit. It runs the test programs that
//! were built here, so what passes there is what was built. Numbers from there say nothing about
//! speed.

mod kernel;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::test_run::{Program, Tally};
use crate::{process, setup, test_run};
use kernel::Kernel;

/// What runs where nobody names anything: all that loads, attaches, answers and survives.
const TESTS: [&str; 16] = [
    "budget",
    "hooks",
    "attach",
    "request_hooks",
    "requests_live",
    "requests_odd_live",
    "tls_live",
    "request_reload",
    "reload",
    "takeover",
    "signals",
    "sockets",
    "lost",
    "live",
    "interface",
    NEEDS_CARD,
];
/// Linux has tcx since then; before, the loader takes clsact.
const TCX_SINCE: (u32, u32) = (6, 6);
/// Tests that look at tcx itself, left out where there is none.
const NEED_TCX: [&str; 13] = [
    "a_foreign_xdp_program_is_never_replaced",
    "a_new_process_adopts_links_limits_and_counters_and_uninstall_leaves_nothing",
    "an_interface_that_is_no_longer_planned_is_let_go",
    "a_new_process_adopts_hooks_rules_and_limits",
    "after_a_plan_that_cannot_be_attached_going_back_needs_no_programs_and_rules_evaluate",
    "hooks_of_request_rules_come_and_go_with_the_rules_and_the_others_stay",
    "requests_are_evaluated_behind_syns_also_where_they_were_there_first",
    "rules_that_break_a_bound_change_nothing",
    "a_start_that_fails_or_is_given_up_leaves_the_hooks_of_whoever_is_in_charge",
    "every_syn_is_evaluated_once_while_an_interface_moves_to_another_hook",
    "what_a_successor_left_that_died_is_put_back_without_privileges",
    "with_the_capabilities_of_the_unit_everything_is_adopted",
    "an_interface_that_is_made_anew_is_told_and_its_hooks_come_back",
];
/// Folders of the crates whose tests may be named.
const CRATES: [&str; 4] = ["bpf", "crates/sense", "crates/daemon", "crates/tidegate"];
/// What only the guest has tests for.
const FEATURES: &str = "tidegate/guest,tidegate-sense/guest";
/// Its tests need a card with byte queue limits. At the other end of its cable there is nobody.
const NEEDS_CARD: &str = "guest_queues";
const CARD: [&str; 4] =
    ["-netdev", "hubport,id=cable,hubid=0", "-device", "e1000,netdev=cable,romfile="];
const PLACE: &str = "target/guest";
/// What is run under systemd where nobody names anything.
const TESTS_OF_UNIT: [&str; 1] = ["guest_systemd"];
/// For init.sh, and for tests that are not to be run on any other machine.
const UNDER_SYSTEMD: &str = "tidegate.systemd";
/// Boots the unit with the tests and what that starts, none of the machine's other units. Without a network a time server
/// is of no use, and nobody but the tests is to set the clock.
const SYSTEMD: &str = "systemd.unit=tidegate-guest.service systemd.mask=systemd-timesyncd.service";
/// The package with the first program in there.
const BUSYBOX: &str = "busybox-static";
const MEMORY: &str = "6144";

/// Options of the command.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Series of the kernel; the newest that the distribution has of it
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Minutes after which the guest is switched off
    #[arg(long, default_value_t = 40)]
    minutes: u64,
    /// The machine's own systemd as first process, for tests of the unit; with no names those alone
    #[arg(long)]
    systemd: bool,
    /// Names of test programs, as `cargo test --test` takes them; none: those of the dataplane
    tests: Vec<String>,
}

/// Errors: no root, nothing to boot, a test that failed there, or none that ran.
pub(crate) fn run(options: &Options) -> Result<()> {
    process::need_root("apt, and the machine's files as root of the guest")?;
    setup::install_for_guest()?;
    let place = process::root().join(PLACE);
    std::fs::create_dir_all(&place)?;
    let kernel = Kernel::of_series(&options.kernel, &place)?;
    let wanted: Vec<&str> = match &options.tests[..] {
        [] if options.systemd => TESTS_OF_UNIT.to_vec(),
        [] => TESTS.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let programs = programs(&wanted)?;
    let left_out = left_out(&options.kernel)?;
    let share = share(&place, &programs, left_out)?;
    let initramfs = initramfs(&place, &kernel)?;
    println!("guest: {} under software emulation, {} programs", kernel.release(), programs.len());
    for test in left_out {
        println!("guest: this kernel has no tcx, left out: {test}");
    }
    let mut tally = Tally::default();
    let files = [("host", Path::new("/")), ("modules", &kernel.modules()), ("guest", &share)];
    let mut qemu = qemu(&kernel, &initramfs, files, &place.join("console"));
    if wanted.contains(&NEEDS_CARD) {
        qemu.args(CARD);
    }
    qemu.arg("-append").arg(command_line(options.systemd));
    let limit = Duration::from_secs(60 * options.minutes);
    let ran = test_run::watch(qemu, limit, "", &mut tally);
    tally.end_of_programs(process::uptime());
    if let Err(error) = ran {
        tally.broken(&format!("guest: {error:#}"));
    }
    let ended = tally.closing_lines().len();
    if ended < programs.len() {
        tally.broken(&format!("guest: {ended} of {} programs ran", programs.len()));
    }
    test_run::report(&tally)
}

/// Builds the test programs of these names: from the packages that `cargo xtask test` builds at once, so that
/// what it has built is used again.
fn programs(wanted: &[&str]) -> Result<Vec<Program>> {
    let mut cargo = process::cargo();
    cargo.args(["test", "--locked", "--workspace", "--features", FEATURES]);
    cargo.args(wanted.iter().flat_map(|name| ["--test", name]));
    let mut found = test_run::build(&mut cargo)?;
    let folders = CRATES.map(|folder| process::root().join(folder));
    found.retain(|program| folders.contains(&program.folder));
    let place = |program: &Program| wanted.iter().position(|name| *name == program.test.name);
    found.retain(|program| place(program).is_some());
    for name in wanted {
        ensure!(found.iter().any(|program| program.test.name == *name), "no test program `{name}`");
    }
    found.sort_by_key(place);
    Ok(found)
}

/// Tests that a kernel of this series cannot pass.
fn left_out(series: &str) -> Result<&'static [&'static str]> {
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
    let mut parts = series.split('.');
    let (Some(major), Some(minor)) = (number(parts.next()), number(parts.next())) else {
        bail!("--kernel {series}: a series as 6.1");
    };
    Ok(if (major, minor) < TCX_SINCE { &NEED_TCX } else { &[] })
}

/// What the guest reads: what to run, and how.
fn share(place: &Path, programs: &[Program], left_out: &[&str]) -> Result<PathBuf> {
    let share = place.join("share");
    std::fs::create_dir_all(&share)?;
    let mut list = String::new();
    for program in programs {
        let source = program.source.strip_prefix(&program.folder).unwrap_or(&program.source);
        let (folder, executable) = (program.folder.display(), program.executable.display());
        writeln!(list, "{folder}\t{} ({executable})\t{executable}", source.display())?;
    }
    std::fs::write(share.join("list"), list)?;
    let skip: Vec<String> = left_out.iter().map(|test| format!("--skip={test}")).collect();
    std::fs::write(share.join("skip"), skip.join(" "))?;
    std::fs::write(share.join("tests.sh"), include_str!("tests.sh"))?;
    std::fs::write(share.join("tidegate-guest.service"), include_str!("tidegate-guest.service"))?;
    Ok(share)
}

/// Busybox, the early modules, and what mounts the rest.
fn initramfs(place: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let (folder, packed) = (place.join("initramfs"), place.join("initramfs.gz"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("bin"))?;
    std::fs::create_dir_all(folder.join("modules"))?;
    // Not installed: it would take the place of the machine's own busybox.
    let unpacked = place.join(BUSYBOX);
    kernel::fetch(BUSYBOX, &unpacked, |_| Ok(()))?;
    let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
    let busybox = busybox.iter().find(|path| path.exists()).context("busybox in its package")?;
    std::fs::copy(busybox, folder.join("bin/busybox"))?;
    let mut order = String::new();
    for module in kernel.early()? {
        let name = module.file_name().context("a module has a name")?;
        std::fs::copy(&module, folder.join("modules").join(name))?;
        writeln!(order, "{}", name.to_string_lossy())?;
    }
    std::fs::write(folder.join("modules/order"), order)?;
    std::fs::write(folder.join("init"), include_str!("init.sh"))?;
    let script = "chmod 755 init && find . | bin/busybox cpio -o -H newc | gzip -1 > \"$1\"";
    let mut pack = process::command("sh");
    let ended = pack.args(["-ec", script, "pack"]).arg(&packed).current_dir(&folder).output()?;
    if !ended.status.success() {
        bail!("packing the guest's first files: {}", String::from_utf8_lossy(&ended.stderr));
    }
    Ok(packed)
}

fn command_line(systemd: bool) -> String {
    let plain = "console=ttyS0 quiet panic=-1";
    if systemd { format!("{plain} {UNDER_SYSTEMD} {SYSTEMD}") } else { plain.to_owned() }
}

/// Kernel messages go to `console`, what the tests say to our output. `files`: what it reads, by the names that
/// init.sh mounts.
fn qemu(
    kernel: &Kernel,
    initramfs: &Path,
    files: [(&str, &Path); 3],
    console: &Path,
) -> std::process::Command {
    let folder = |tag: &str, path: &Path| {
        let path = path.display();
        format!("local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap")
    };
    let mut qemu = process::command("qemu-system-x86_64");
    // Software only: KVM may be missing, or be for other kernels than these.
    qemu.args(["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", MEMORY]);
    qemu.args(["-display", "none", "-no-reboot", "-nic", "none", "-monitor", "none"]);
    qemu.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initramfs);
    qemu.arg("-serial").arg(format!("file:{}", console.display())).args(["-serial", "stdio"]);
    for (tag, path) in files {
        qemu.arg("-virtfs").arg(folder(tag, path));
    }
    qemu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_6_6_the_tests_of_tcx_are_left_out() {
        assert_eq!(left_out("6.1").expect("a series").len(), NEED_TCX.len());
        assert!(left_out("6.12").expect("a series").is_empty());
        assert!(left_out("six").is_err());
    }

    /// A name that no test has any more would leave nothing out.
    #[test]
    fn the_tests_of_tcx_are_called_so() {
        let folders = CRATES.map(|folder| process::root().join(folder).join("tests"));
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("tests"));
        let text: String = files
            .map(|file| file.expect("a file").path())
            .filter(|path| path.extension().is_some_and(|end| end == "rs"))
            .map(|path| std::fs::read_to_string(path).expect("text"))
            .collect();
        for name in NEED_TCX {
            assert!(text.contains(&format!("fn {name}()")), "{name}");
        }
    }

    /// Its tests set the clock and install a unit: they look for that word.
    #[test]
    fn only_a_guest_under_systemd_is_told_so() {
        let guard = include_str!("../../../crates/tidegate/tests/guest_systemd.rs");
        assert!(guard.contains(&format!("{UNDER_SYSTEMD:?}")));
        assert!(include_str!("init.sh").contains(UNDER_SYSTEMD));
        assert!(command_line(true).contains(UNDER_SYSTEMD));
        assert!(!command_line(false).contains("systemd"));
    }
}

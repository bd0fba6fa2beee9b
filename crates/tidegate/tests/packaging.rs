// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What packaging/ says about the binary is true of it.

use std::process::Command;
use tidegate_api::exit::Exit;

/// The unit's commands exist, with the options that it gives them. (An unknown option in front of
/// `--help` is an error.)
#[test]
fn the_unit_starts_commands_that_exist() {
    let unit = include_str!("../../../packaging/tidegate.service");
    let commands: Vec<&str> = unit
        .lines()
        .filter(|l| l.starts_with("Exec"))
        .filter_map(|l| l.split_once('='))
        .map(|l| l.1)
        .collect();
    assert_eq!(commands.len(), 2, "run, reload");
    for command in commands {
        let mut words = command.split(' ');
        assert_eq!(words.next(), Some("!/usr/bin/tidegate"), "{command}");
        let out = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words)
            .arg("--help")
            .output()
            .unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// Nothing in front of `run` may refuse what `run` accepts (`check` calls a bad certificate of peers
/// an error, `run` begins without peers), and no number of failed starts is the last. Only what a person has
/// to change is not tried again: wrong arguments and a wrong file.
#[test]
fn the_unit_starts_whatever_run_accepts_and_gives_up_only_on_a_wrong_file() {
    let unit = include_str!("../../../packaging/tidegate.service");
    let before = ["ExecStartPre", "ExecCondition", "Condition", "Assert"];
    let refuses = |line: &&str| before.iter().any(|key| line.starts_with(key));
    assert_eq!(unit.lines().find(refuses), None);
    let section = unit.split("\n[").find(|text| text.starts_with("Unit]")).unwrap();
    assert!(section.lines().any(|line| line == "StartLimitIntervalSec=0"), "{section}");
    assert_eq!(unit.lines().filter(|line| line.starts_with("StartLimit")).count(), 1);
    let prevent = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    let wrong = [Exit::Usage, Exit::Config].map(|exit| exit.code().to_string());
    assert_eq!(prevent, Some(wrong.join(" ").as_str()));
    assert!(unit.lines().any(|line| line == "Restart=on-failure"));
}

/// A daemon that was started beside the unit ends the unit's; the directory of its socket must stay,
/// and nobody is told to start one.
#[test]
fn the_unit_is_restarted_and_keeps_the_directory_of_the_socket() {
    let unit = include_str!("../../../packaging/tidegate.service");
    assert!(unit.lines().any(|line| line == "RuntimeDirectory=tidegate"));
    assert!(unit.lines().any(|line| line == "RuntimeDirectoryPreserve=yes"));
    let rules = include_str!("../../../docs/requests.md");
    for (page, text, times) in [("the unit", unit, 1), ("docs/requests.md", rules, 2)] {
        let told = text.matches("systemctl restart tidegate").count();
        assert_eq!(told, times, "{page}");
    }
}

/// Limits hold for 3 s without a daemon: a crash and a restart must be over by then, and a restart
/// must not take the dataplane off.
#[test]
fn the_unit_keeps_limits_in_force_through_a_crash_and_a_restart() {
    let unit = include_str!("../../../packaging/tidegate.service");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    // Before systemd 254 it is also the pause between starts that fail again and again.
    assert_eq!(value("RestartSec"), Some("1s"));
    assert_eq!(value("RestartMaxDelaySec"), Some("5s"));
    assert_eq!(value("RestartKillSignal"), Some("SIGUSR2"));
    assert_eq!(value("KillSignal"), None, "a stop is SIGTERM, and takes everything off");
}

/// `namespace:` enters network namespaces, the control socket is given to a group, and the daemon becomes the
/// user of the example, whom a file of packaging/ makes.
#[test]
fn the_unit_allows_what_the_configuration_may_ask_for() {
    let unit = include_str!("../../../packaging/tidegate.service");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    assert_eq!(value("RestrictNamespaces"), Some("net"));
    let capabilities: Vec<&str> = value("CapabilityBoundingSet").unwrap().split(' ').collect();
    for needed in ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE"] {
        assert!(capabilities.contains(&needed), "{capabilities:?}");
    }
    let (example, users) = (
        include_str!("../../../packaging/tidegate.yaml"),
        include_str!("../../../packaging/tidegate.sysusers"),
    );
    assert!(example.contains("\n  user: tidegate ") && users.contains("\nu tidegate "));
    // Else a reload would give the directories back to root, and with them what lies there.
    assert_eq!(value("User"), Some("tidegate"));
}

/// Without an answer from the loop the unit ends the daemon, and within the time that limits last.
#[test]
fn the_unit_watches_the_loop() {
    let unit = include_str!("../../../packaging/tidegate.service");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    assert_eq!((value("Type"), value("WatchdogSignal")), (Some("notify"), Some("SIGKILL")));
    let watchdog: u32 = value("WatchdogSec").unwrap().strip_suffix('s').unwrap().parse().unwrap();
    assert!((1..10).contains(&watchdog), "{watchdog} s");
}

/// The examples pass their own check (without a look at this system).
#[test]
fn the_examples_are_sound_configurations() {
    for name in ["tidegate.yaml", "docker.yaml"] {
        let example = format!("{}/../../packaging/{name}", env!("CARGO_MANIFEST_DIR"));
        let out = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["check", "--no-system", "-c", &example])
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// What systemd itself finds in the unit: keys that it does not know, values that it does not take.
#[test]
fn systemd_takes_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    // systemd 254 knows these; the one of Debian 12 ignores them, and names them.
    let newer =
        |line: &&str| ["RestartSteps=", "RestartMaxDelaySec="].iter().any(|k| line.starts_with(k));
    let unit = include_str!("../../../packaging/tidegate.service");
    assert_eq!(unit.lines().filter(newer).count(), 2);
    let unit: Vec<&str> = unit.lines().filter(|line| !newer(line)).collect();
    // It wants to find the program.
    let unit = unit.join("\n").replace("/usr/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    let verify = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(path);
        let verified = command.output().unwrap();
        (verified.status.success(), String::from_utf8_lossy(&verified.stderr).into_owned())
    };
    let (sound, said) = verify("tidegate.service", &unit);
    assert!(sound && said.is_empty(), "{said}");
    for (from, to) in [("Type=notify", "Type=notfiy"), ("ProtectHome=", "ProtectHoem=")] {
        let (sound, said) = verify("wrong.service", &unit.replace(from, to));
        assert!(!sound && said.contains("wrong.service"), "{to}: {said}");
    }
}

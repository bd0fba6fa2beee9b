// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the cases, their failures and the dice reach of the ingress hooks' C: every line, and all
//! branches but those that are named here with a reason.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use support::cases::all;
use support::connection::{
    COPIES, End, RESETS, copy, crowd, give, handshake, life, play, play_losing, reset, spent,
};
use support::engine::{Arrival, Hook};
use support::frames::frame;
use support::native::{How, Mode, Native, Program};
use support::place::root;
use support::random::{Dice, seed};
use support::scene;
use support::setup::base;
use support::setups::{answering, setup};

/// Set-ups by the dice, and frames for each.
const SETUPS: usize = 150;
const FRAMES: usize = 200;
/// The files that are measured, and the share of their branches that must be taken, in percent.
/// What is missing there is said beside it; policies have their own tests (policy/tests).
const FILES: [(&str, f64); 14] = [
    ("answer.h", 100.0),
    ("classify.h", 97.0), // the verifier wants a pointer checked
    ("emit.h", 100.0),
    ("flow.h", 85.0), // two CPUs at once
    ("hash.h", 100.0),
    ("judge.h", 96.0), // no policy delays yet; what fails only after a look-up that fails
    ("lease.h", 100.0),
    ("limits.h", 95.0), // the verifier wants a pointer checked
    ("packet.h", 100.0),
    ("parse.h", 99.0),
    ("queue.h", 100.0),
    ("tc.h", 75.0), // the same
    ("tc.bpf.c", 95.0),
    ("xdp.bpf.c", 80.0), // the verifier wants bounds checked that were made just before
];
/// Lines that nothing can reach here, by what they say, with the reason.
const UNREACHABLE: [(&str, &str, &str); 6] = [
    ("judge.h", "v = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);", "no policy delays yet"),
    ("xdp.bpf.c", "return XDP_DROP;", "the verifier wants bounds checked"),
    ("limits.h", "return TG_REASON_LOOKUP_FAILED;", "the verifier wants a pointer checked"),
    ("flow.h", "return;", "two CPUs at once"),
    ("flow.h", "return 0;", "two CPUs at once"),
    ("flow.h", "return meta;", "two CPUs at once, twice"),
];

#[derive(Default)]
struct Covered {
    /// Line to times executed, and its branches to times taken.
    lines: BTreeMap<u64, (u64, BTreeMap<usize, u64>)>,
}

impl Covered {
    /// Lines that were never executed, and what they say.
    fn missed_lines(&self, file: &str) -> Vec<(u64, String)> {
        let folder = if file.ends_with(".bpf.c") { "bpf/hook" } else { "bpf/lib" };
        let source = std::fs::read_to_string(root().join(folder).join(file)).unwrap();
        let source: Vec<&str> = source.lines().collect();
        let missed = self.lines.iter().filter(|(_, (times, _))| *times == 0);
        missed.map(|(line, _)| (*line, source[*line as usize - 1].trim().to_owned())).collect()
    }

    /// How many branches there are, and the lines of those that were never taken.
    fn branches(&self) -> (usize, Vec<u64>) {
        let lines = self.lines.iter();
        let all = lines.flat_map(|(line, (_, taken))| taken.values().map(|n| (*line, *n)));
        let (count, missed) = (all.clone().count(), all.filter(|(_, n)| *n == 0));
        (count, missed.map(|(line, _)| line).collect())
    }
}

/// Everything that we can make an ingress hook do.
fn exercise(native: &mut Native) {
    for case in all().iter().flat_map(|(_, cases)| cases) {
        let frame = case.packet.bytes();
        let socket = scene::socket(&frame);
        let arrival = Arrival { frame: &frame, socket, loopback: case.loopback };
        native.set(&case.setup);
        let how = How { linear: 54, ..How::default() };
        for fail_at in 1..=native.run(&arrival, how).calls.len() as u32 {
            native.set(&case.setup);
            native.run(&arrival, How { fail_at, ..how });
        }
    }
    let mut dice = Dice::new(seed());
    for _ in 0..SETUPS {
        let setup = setup(&mut dice, true);
        let sample_every = *dice.pick(&[0, 1, 1000]);
        native.set_mode(&setup, Mode { answering: answering(&mut dice), sample_every });
        for _ in 0..FRAMES {
            let frame = frame(&mut dice);
            let socket = scene::listener(&frame);
            let arrival = Arrival { frame: &frame, socket, loopback: dice.one_in(2) };
            let how = How { dice: [dice.u32(), dice.u32()], ..How::default() };
            native.run(&arrival, how);
        }
    }
}

/// The lives of connections, and every failure in them.
fn exercise_connections(native: &mut Native) {
    for end in End::ALL {
        let life = life(false, end);
        let normal = play(native, &base(), (&life, None));
        for (at, ran) in normal.iter().enumerate() {
            for call in 1..=ran.calls.len() as u32 {
                play(native, &base(), (&life, Some((at, call))));
            }
            play_losing(native, &base(), (&life, (at, 1)));
        }
    }
    for (frame, egress) in handshake(40_000).iter().chain(&handshake(40_000)) {
        give(native, (frame, *egress), How::default());
    }
    for (_, socket, seq, _) in RESETS {
        let calls = reset(native, (socket, seq), 0).calls.len() as u32;
        for fail_at in 1..=calls {
            reset(native, (socket, seq), fail_at);
        }
    }
    crowd(native, &base(), 10_000..16_000);
}

/// What gcov says of the files of the product.
fn gcov(directory: &Path, program: &str, into: &mut BTreeMap<String, Covered>) {
    let data = format!("native-{program}-host.gcda");
    let output = Command::new("gcov")
        .args(["--branch-probabilities", "--json-format", "--stdout", &data])
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("gcov (comes with gcc): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for file in report["files"].as_array().unwrap() {
        let path = file["file"].as_str().unwrap();
        let name = path.rsplit('/').next().unwrap();
        let ours = path.contains("/hook/") || path.contains("/lib/");
        let measured = FILES.iter().any(|(known, _)| *known == name);
        if !ours || !measured {
            continue;
        }
        let covered = into.entry(name.to_owned()).or_default();
        for line in file["lines"].as_array().unwrap() {
            let number = line["line_number"].as_u64().unwrap();
            let (times, branches) = covered.lines.entry(number).or_default();
            *times += line["count"].as_u64().unwrap();
            for (at, branch) in line["branches"].as_array().unwrap().iter().enumerate() {
                *branches.entry(at).or_default() += branch["count"].as_u64().unwrap();
            }
        }
    }
}

#[test]
fn every_line_and_nearly_every_branch_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let mut covered = BTreeMap::new();
    for (hook, name) in [(Hook::Xdp, "xdp"), (Hook::Tc, "tc")] {
        let mut native = Native::start_covered(Program::Ingress(hook), directory.path());
        exercise(&mut native);
        if hook == Hook::Tc {
            exercise_connections(&mut native);
        }
        for (at, seq, _) in COPIES {
            native.set(&spent());
            copy(&mut native, (at, seq));
        }
        native.finish();
        gcov(directory.path(), name, &mut covered);
    }
    let mut wrong = Vec::new();
    for (file, least) in FILES {
        let Some(covered) = covered.get(file) else {
            wrong.push(format!("{file} was not measured"));
            continue;
        };
        let (branches, missed) = covered.branches();
        let share = 100.0 * (branches - missed.len()) as f64 / branches.max(1) as f64;
        let share = if branches == 0 { 100.0 } else { share };
        println!("{file}: {share:.1} % of {branches} branches, not taken in lines {missed:?}");
        if share < least {
            wrong.push(format!("{file}: {share:.1} % of the branches, {least} % wanted"));
        }
        for (line, text) in covered.missed_lines(file) {
            println!("{file}:{line}: not reached: {text}");
            if !UNREACHABLE.iter().any(|(at, known, _)| *at == file && *known == text) {
                wrong.push(format!("{file}:{line} is not reached: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

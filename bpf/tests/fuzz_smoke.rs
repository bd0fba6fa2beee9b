// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The harnesses of fuzz/, bounded and without a fuzzer: every case as a seed, damaged again and
//! again. What a real fuzzer needs (a nightly compiler, hours) is in fuzz/README.md.
//!
//! `TIDEGATE_CORPUS=DIR cargo test -p tidegate-bpf --test fuzz_smoke` writes the seeds for it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use support::cases::all;
use support::dialog::{hello, record, sealed};
use support::engine::Hook;
use support::harness::{HEAD, differential};
use support::heads;
use support::native::{Native, Program};
use support::place::root;
use support::random::{Dice, seed};

/// How often each seed is damaged.
const ROUNDS: usize = 300;
/// Inputs of the differential harness.
const DIFFERENTIAL: usize = 15_000;
/// Bytes before the frame in an input of harness/hook.c (`FUZZ_HEAD`).
const HOOK_HEAD: usize = 12;
/// Longer cases are no seeds: they only differ in their payload.
const SEED_MAX: usize = 600;
/// Seeds of the policies: each a whole life of random bytes, some with sane parameters.
const POLICY_SEEDS: usize = 400;
/// Conversations at random among the seeds of exchanges, and segments in each.
const TURNS_SEEDS: usize = 120;
const TURNS_STEPS: usize = 24;
/// Seeds of the recogniser, of each kind: requests, answers, hellos, bodies.
const REQUEST_SEEDS: usize = 150;
/// The longest input of a harness (harness/smoke.c).
const SMOKE_INPUT_MAX: usize = 8192;
/// The environment variable that names a directory for the seeds.
const CORPUS: &str = "TIDEGATE_CORPUS";

/// Compiles a harness with smoke.c, as fuzz/build.rs does with libFuzzer.
fn build(harness: &str, defines: &[&str], directory: &Path) -> std::path::PathBuf {
    let binary = directory.join("smoke");
    let include = |folder: &str| format!("-I{}", root().join(folder).display());
    let file = |name: &str| root().join("fuzz/harness").join(name);
    let built = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
        .args(["-Wno-unused-function", "-Wno-address-of-packed-member"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize=alignment"])
        .arg("-fno-sanitize-recover=all")
        .args([include("bpf/tests/native"), include("bpf"), include("policy")])
        .args(defines)
        .args([file(harness), file("smoke.c")])
        .arg("-o")
        .arg(&binary)
        .output()
        .unwrap_or_else(|error| panic!("cc (`make setup` installs it): {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    binary
}

/// Runs a harness over all seeds, each damaged many times; how many inputs that were.
fn run(binary: &Path, seeds: &[Vec<u8>]) -> usize {
    let seed = seed();
    let mut child = Command::new(binary)
        .args([ROUNDS.to_string(), seed.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for input in seeds {
        stdin.write_all(&(input.len() as u32).to_le_bytes()).unwrap();
        // a program that died says why itself
        let _ = stdin.write_all(input);
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "TIDEGATE_SEED={seed}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn write_corpus(target: &str, seeds: &[Vec<u8>]) {
    let Ok(directory) = std::env::var(CORPUS) else { return };
    let directory = Path::new(&directory).join(target);
    std::fs::create_dir_all(&directory).unwrap();
    for (at, seed) in seeds.iter().enumerate() {
        std::fs::write(directory.join(format!("case-{at:04}")), seed).unwrap();
    }
}

fn frames() -> impl Iterator<Item = Vec<u8>> {
    let cases = all().into_iter().flat_map(|(_, cases)| cases);
    cases.map(|case| case.packet.bytes()).filter(|frame| frame.len() <= SEED_MAX)
}

/// Every case's frame behind a set-up at random, refusing ones preferred.
fn hook_seeds() -> Vec<Vec<u8>> {
    let mut dice = Dice::new(seed());
    let behind = |frame: Vec<u8>| {
        let mut head = [0; HOOK_HEAD];
        let any = dice.u8();
        head[0] = *dice.pick(&[6, 6, 4, 14, 7, 22, 134, any]);
        head[1] = dice.u8() & 0x87;
        head[4] = dice.u8();
        [&head[..], &frame].concat()
    };
    frames().map(behind).collect()
}

fn hook(target: &str, defines: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let binary = build("hook.c", defines, directory.path());
    let seeds = hook_seeds();
    write_corpus(target, &seeds);
    let count = run(&binary, &seeds);
    println!("{target}: {count} inputs");
    assert!(count > 100_000, "{count} inputs");
}

#[test]
fn the_xdp_hook() {
    let hook_file = "-DTG_HOOK=\"hook/xdp.bpf.c\"";
    hook("hook_xdp", &[hook_file, "-DTG_HOOK_FN=tg_xdp", "-DTG_AT_XDP"]);
}

#[test]
fn the_tc_hook() {
    hook("hook_tc", &["-DTG_HOOK=\"hook/tc.bpf.c\"", "-DTG_HOOK_FN=tg_ingress"]);
}

#[test]
fn the_recogniser() {
    let directory = tempfile::tempdir().unwrap();
    let binary = build("request.c", &[], directory.path());
    let mut dice = Dice::new(seed());
    let mut seeds = Vec::new();
    let kinds: [fn(&mut Dice) -> Vec<u8>; 4] =
        [heads::request, heads::answer, heads::any_hello, heads::chunked];
    for (kind, make) in kinds.iter().enumerate() {
        for _ in 0..REQUEST_SEEDS {
            let head = [kind as u8 | dice.u8() << 2, dice.u8(), dice.u8()];
            seeds.push([&head[..], &make(&mut dice)].concat());
        }
    }
    write_corpus("request", &seeds);
    let count = run(&binary, &seeds);
    println!("request: {count} inputs");
    assert!(count > 100_000, "{count} inputs");
}

/// What clients and servers say, at random: both as input of harness/turns.c.
fn said(dice: &mut Dice) -> Vec<u8> {
    let h2 = |kind: u8, length: usize| {
        let mut bytes = vec![0, 0, length as u8, kind, 0, 0, 0, 0, 1];
        bytes.resize(9 + length, 0);
        bytes
    };
    let length = *dice.pick(&[2, 9, 13, 17, 18, 36, 52, 61, 90, 120, 233, 700]);
    match dice.below(12) {
        0 => b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(),
        1 => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(),
        2 => b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec(),
        3 => [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*h2(4, 18)].concat(),
        4 => [h2(8, 4), h2(1, 40)].concat(),
        5 => hello(&["h2", "http/1.1"][dice.below(3)..]),
        6 => [record(22, 122), record(20, 1), sealed(40), sealed(900)].concat(),
        7 => [record(20, 1), sealed(36), sealed(length)].concat(),
        8 => [record(22, 70), record(20, 1), record(22, 40)].concat(),
        9 => [sealed(233), sealed(233), sealed(length)].concat(),
        10 => vec![0xaa; length],
        _ => sealed(length),
    }
}

/// A segment: eight bytes (`struct fuzz_step`) and its payload.
fn step(flags: u8, who: u8, pause: u8, payload: &[u8]) -> Vec<u8> {
    let [low, high] = (payload.len() as u16).to_le_bytes();
    [&[flags, who, pause, 0, 0, 0, low, high], payload].concat()
}

#[test]
fn exchanges() {
    let directory = tempfile::tempdir().unwrap();
    let hooks = ["-DTG_HOOK=\"hook/tc.bpf.c\"", "-DTG_HOOK_EGRESS=\"hook/egress.bpf.c\""];
    let binary =
        build("turns.c", &[hooks[0], hooks[1], "-DTG_HOOK_FN=tg_ingress"], directory.path());
    let mut dice = Dice::new(seed());
    let mut seeds = Vec::new();
    for _ in 0..TURNS_SEEDS {
        let who = (dice.below(4) as u8) << 1;
        let mut input = [step(2, who, 0, &[]), step(18, who | 1, 0, &[])].concat();
        input.extend(step(16, who, 0, &[]));
        for _ in 0..TURNS_STEPS {
            let server = u8::from(dice.one_in(2));
            let flags = if dice.one_in(12) { 17 } else { 24 };
            let pause = if dice.one_in(6) { 80 } else { 1 };
            input.extend(step(flags, who | server, pause, &said(&mut dice)));
        }
        input.truncate(SMOKE_INPUT_MAX);
        seeds.push(input);
    }
    write_corpus("turns", &seeds);
    let count = run(&binary, &seeds);
    println!("turns: {count} inputs");
    assert!(count > 30_000, "{count} inputs");
}

#[test]
fn the_policies() {
    let directory = tempfile::tempdir().unwrap();
    let binary = build("policy.c", &[], directory.path());
    let mut dice = Dice::new(seed());
    let seeds: Vec<Vec<u8>> = (0..POLICY_SEEDS)
        .map(|_| {
            let length = 145 + dice.below(1800);
            let mut bytes = dice.bytes(length);
            // the number of a policy, and numbers that are small more often than not
            bytes[0] = dice.u8() & 1;
            bytes[1..9].copy_from_slice(&(dice.u64() % 4).to_le_bytes());
            for byte in &mut bytes[9..] {
                *byte = if dice.one_in(3) { *byte } else { 0 };
            }
            bytes
        })
        .collect();
    write_corpus("policy", &seeds);
    let count = run(&binary, &seeds);
    println!("policy: {count} inputs");
    assert!(count > 100_000, "{count} inputs");
}

#[test]
fn the_hook_against_the_reference() {
    let mut native = Native::start(Program::Ingress(Hook::Xdp));
    let mut dice = Dice::new(seed());
    let seeds: Vec<Vec<u8>> =
        frames().map(|frame| [&dice.bytes(HEAD)[..], &frame].concat()).collect();
    write_corpus("differential", &seeds);
    for _ in 0..DIFFERENTIAL {
        let mut input = dice.pick(&seeds).clone();
        for _ in 0..dice.below(5) {
            let at = dice.below(input.len());
            input[at] = dice.u8();
        }
        differential(&mut native, &input);
    }
    native.finish();
}

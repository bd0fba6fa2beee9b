// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate replay` as its users run it: the binary, files, what it prints and how it ends.
//! Messages are golden (`tests/golden/replay_messages.txt`; TIDEGATE_BLESS=1 writes them), and so
//! is the reference in docs/replay.md.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const CONFIG: &str = "interfaces: [{name: eth0}]\nservices:\n  web:\n    mode: enforce\n    \
    listen: [\"*:80\"]\n    classes:\n      - {name: gold, sources: [198.51.100.0/24], priority: 0}\n";

/// A folder of inputs.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let world = Self(TempDir::new().unwrap());
        world.file("tidegate.yaml", CONFIG.as_bytes());
        world
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.path().join(name), bytes).unwrap();
    }

    /// Exit code, standard output, standard error.
    fn replay(&self, args: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("replay")
            .args(args)
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Who does not read its input may close it.
        let _ = child.stdin.take().unwrap().write_all(input);
        let done = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }

    /// With a server of 50/s; must succeed.
    fn answers(&self, log: &str, more: &[&str], input: &[u8]) -> String {
        let args = [&[log, "-c", "tidegate.yaml", "--capacity", "50"], more].concat();
        let (code, out, err) = self.replay(&args, input);
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    }
}

fn line(second: u32, client: &str) -> String {
    let (m, s) = (second / 60, second % 60);
    format!(
        "{client} - - [01/Jan/2026:00:{m:02}:{s:02} +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"x\"\n"
    )
}

/// 30/s for 20 s, 150/s for 40 s, 30/s for 20 s; every tenth client is gold.
fn crowd() -> String {
    let mut log = String::new();
    for second in 0..80 {
        let rate = if (20..60).contains(&second) { 150 } else { 30 };
        for k in 0..rate {
            let net = if k % 10 == 0 { "198.51.100" } else { "203.0.113" };
            log += &line(second, &format!("{net}.{k}"));
        }
    }
    log
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(text).unwrap();
    packer.finish().unwrap()
}

/// The answer to the question: more is answered in time, the right class is served first, refusals
/// lie where the crowd was. As file, packed, and from standard input: the same.
#[test]
fn a_crowd_is_refused_where_it_was_and_the_better_class_is_served() {
    let world = World::new();
    let log = crowd();
    world.file("access.log", log.as_bytes());
    world.file("access.log.gz", &packed(log.as_bytes()));
    let json = world.answers("access.log", &["-o", "json", "--out", "out"], b"");
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let number = |path: &str| {
        report.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{path}"))
    };
    assert_eq!(report["schema"], "tidegate-replay/1");
    assert_eq!((number("/input/requests"), number("/input/skipped")), (7200.0, 0.0));
    assert_eq!(number("/without/refused"), 0.0);
    assert!(number("/with/good") > 1.3 * number("/without/good"), "{}", report["with"]);
    let classes = report["classes"].as_array().unwrap();
    let share = |class: &serde_json::Value| {
        class["with"]["refused"].as_f64().unwrap() / class["with"]["offered"].as_f64().unwrap()
    };
    assert_eq!((&classes[0]["name"], &classes[1]["name"]), (&"gold".into(), &"default".into()));
    assert!(share(&classes[0]) < 0.2 && share(&classes[1]) > 0.4, "{classes:?}");
    let (from, to) = (number("/episodes/0/from_s"), number("/episodes/0/to_s"));
    assert!((20.0..26.0).contains(&from) && (55.0..66.0).contains(&to), "{from} to {to}");
    let same = |other: &str| other.replace(".gz", "").replace("standard input", "access.log");
    assert_eq!(same(&world.answers("access.log.gz", &["-o", "json"], b"")), json);
    assert_eq!(same(&world.answers("-", &["-o", "json"], log.as_bytes())), json);
    folder(&world.0.path().join("out"), &json);
    documented(&report);
}

/// With an operator's own limits, and by what the control loop tells them: thresholds on what waits (a
/// second of work is 50 requests), a gap, a share.
#[test]
fn the_policies_that_throttle_protect_the_modelled_server() {
    let world = World::new();
    world.file("access.log", crowd().as_bytes());
    for policy in [
        "policy: {name: threshold, discard: 30, abatement: 20}\n    control: {name: fixed}",
        "policy: {name: threshold, level: accept-queue, onset: 10, share: 90%, discard: 30}\n    control: {name: fixed}",
        "policy: {name: threshold, level: waiting-time, onset: 300ms, gap: 20ms, discard: 600ms}\n    control: {name: fixed}",
        "policy: {name: gap, gap: 21ms, tolerance: 10}\n    control: {name: fixed}",
        "policy: {name: gap}",
        "policy: {name: percent}",
    ] {
        world.file("tidegate.yaml", format!("{CONFIG}    {policy}\n").as_bytes());
        let json = world.answers("access.log", &["-o", "json"], b"");
        let report: serde_json::Value = serde_json::from_str(&json).unwrap();
        let number = |path: &str| report.pointer(path).and_then(serde_json::Value::as_f64).unwrap();
        let (with, without) = (number("/with/good"), number("/without/good"));
        assert!(number("/with/refused") > 1000.0, "{policy}: {}", report["with"]);
        assert!(with > 1.3 * without, "{policy}: {with} of {without}");
    }
}

fn folder(dir: &Path, json: &str) {
    assert_eq!(fs::read_to_string(dir.join("replay.json")).unwrap(), json);
    let csv = fs::read_to_string(dir.join("results.csv")).unwrap();
    assert!(csv.starts_with("experiment,world,variant,x_name,x,metric,unit,value,ci95,runs\n"));
    for start in ["replay,sim,none,time_s,30,goodput,", "replay,sim,tidegate,time_s,30,refused,"] {
        assert!(csv.lines().any(|line| line.starts_with(start)), "{start}");
    }
    let figures = tidegate_experiments::replay::draw(dir).unwrap();
    assert_eq!(figures.len(), 3);
    for (figure, words) in [
        ("load.svg", ["refused with tidegate", "capacity"]),
        ("goodput.svg", ["with tidegate", "without"]),
        ("times.svg", ["p99 with tidegate", "p99 without"]),
    ] {
        let svg = fs::read_to_string(dir.join("figures").join(figure)).unwrap();
        assert!(words.iter().all(|word| svg.contains(word)), "{figure}");
    }
}

/// Every field of the document stands in docs/replay.md.
fn documented(report: &serde_json::Value) {
    let page = fs::read_to_string(page_path()).unwrap();
    let mut left = vec![report];
    while let Some(value) = left.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    assert!(page.contains(&format!("`{name}`")), "{name} is not documented");
                    left.push(value);
                }
            }
            serde_json::Value::Array(values) => left.extend(values),
            _ => {}
        }
    }
}

#[test]
fn options_change_the_load_and_below_the_capacity_nothing_is_refused() {
    let world = World::new();
    world.file("counts", "20\n".repeat(60).as_bytes());
    let calm = world.answers("counts", &[], b"");
    assert!(calm.contains("\nNothing would have been refused.\n"), "{calm}");
    assert!(calm.contains("the log has no addresses of clients"), "{calm}");
    for (more, wanted) in [
        (&["--scale", "4"][..], "4800 requests in 0:01:00.0"),
        (&["--speed", "4"], "1200 requests in 0:00:15.0"),
        (&["--from", "10s", "--until", "20s"], "200 requests in 0:00:10.0"),
        (&["--period", "2s"], "1200 requests in 0:02:00.0"),
        (&["--seed", "7"], "seed 7"),
    ] {
        let out = world.answers("counts", more, b"");
        assert!(out.contains(wanted), "{more:?}: {out}");
        assert_eq!(out, world.answers("counts", more, b""), "the same twice");
    }
}

/// Inputs that cannot be used, with their options: each ends with its message.
fn bad_inputs(world: &World) -> Vec<(&'static str, Vec<&'static str>)> {
    let good = line(1, "203.0.113.1");
    let lines = |all: &[&str]| all.concat().into_bytes();
    world.file("garbage", &lines(&[&good, "hello world\n", &good]));
    world.file("only-garbage", b"what\nis this\n");
    world.file("back", &lines(&[&line(300, "203.0.113.1"), &good, &line(301, "203.0.113.1")]));
    world.file("jump", &lines(&[&good, &good.replace("2026", "2099"), &good]));
    world.file("empty", b"");
    let gz = packed(crowd().as_bytes());
    world.file("cut.gz", &gz[..gz.len() / 2]);
    world
        .file("bytes", &lines(&[&good]).into_iter().chain([0xff, 0xfe, b'\n']).collect::<Vec<_>>());
    world.file("negative", b"5\n-1\n7\n");
    world.file("dense", b"2026-01-01 00:00:00,999999999\n2026-01-01 00:00:01,5\n");
    world.file("bad.yaml", b"services: 1\n");
    world.file("two.yaml", b"interfaces: [{name: lo}]\nservices: {a: {mode: enforce, listen: [\"*:80\"]}, b: {mode: enforce, listen: [\"*:81\"]}}\n");
    fs::create_dir(world.0.path().join("folder")).unwrap();
    let mut cases: Vec<(&str, Vec<&str>)> = Vec::new();
    for log in ["garbage", "back", "jump", "cut.gz", "bytes", "negative", "dense", "empty"] {
        cases.push((log, vec![]));
        cases.push((log, vec!["--on-bad", "skip"]));
    }
    cases.push(("only-garbage", vec![]));
    cases.push(("only-garbage", vec!["--format", "log", "--on-bad", "skip"]));
    cases.push(("folder", vec![]));
    cases.push(("nowhere", vec![]));
    cases.push(("garbage", vec!["--service", "shop"]));
    cases.push(("garbage", vec!["-c", "two.yaml"]));
    cases.push(("garbage", vec!["-c", "bad.yaml"]));
    cases.push(("garbage", vec!["--clients", "beos"]));
    cases.push(("negative", vec!["--from", "2s", "--until", "1s"]));
    cases.push(("negative", vec!["--from", "5h", "--on-bad", "skip"]));
    cases
}

/// What is said about bad input, and with which exit code: with file and line, or counted.
#[test]
fn bad_input_is_named_or_counted() {
    let world = World::new();
    let mut said = String::from(
        "What `tidegate replay` says about bad input: arguments, exit code, messages.\n",
    );
    for (log, more) in bad_inputs(&world) {
        let config: &[&str] = if more.contains(&"-c") { &[] } else { &["-c", "tidegate.yaml"] };
        let args = [&[log, "--capacity", "50"], config, &more].concat();
        let (code, out, err) = world.replay(&args, b"");
        let _ = writeln!(said, "\n{log} {} -> {code}", more.join(" "));
        let told = out.lines().filter(|line| line.starts_with("log") || line.starts_with("note"));
        let all = told.chain(err.lines()).map(|line| format!("  {}\n", line.trim_end()));
        said.extend(all);
    }
    golden("tests/golden/replay_messages.txt", &said);
}

fn page_path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/replay.md")
}

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == found, "{name} differs (TIDEGATE_BLESS=1 writes it); found:\n{found}");
}

#[test]
fn the_reference_is_made_from_the_command() {
    let (code, help, _) = World::new().replay(&["--help"], b"");
    assert_eq!(code, 0);
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let block = format!("\n```text\n{}\n```\n", help.join("\n").trim());
    let page = fs::read_to_string(page_path()).unwrap();
    let (begin, end) = ("<!-- help: begin -->", "<!-- help: end -->");
    let (head, rest) = page.split_once(begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    golden("../../docs/replay.md", &format!("{head}{begin}{block}{end}{tail}"));
}

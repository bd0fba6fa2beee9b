// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of an overload, against what its clients saw; and what may go wrong with the file of it
//! while hooks are in place (needs root).
//!
//! ```text
//!  cl: 100/s, for 60 s 400/s, 100/s ── rt ── sv: a limit of 200/s, a server that waits about 20 ms
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::World;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_lab::{
    Arrive, Cost, CostKind, Helper, Lab, LabOptions, LoadPlan, LoadReport, Phase, Product,
    ProductConfig, Role, Script, TinyOptions,
};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, DayClock, Nanos};
use tidegate_workload::{Profile, Segment, Shape};

const INTENT: &str = "interfaces: [{name: v0}]\n\
                      services:\n  shop: {mode: enforce, listen: [\"*:8000\"]}\n";

/// A directory for what the daemon keeps, on a disk of its own; unmounted when it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(world: &World) -> Self {
        let path = world.file("disk");
        std::fs::create_dir(&path).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "tidegate-test"];
        assert!(Command::new("mount").args(mount).arg(&path).status().unwrap().success());
        std::fs::create_dir(path.join("state")).unwrap();
        Self(path)
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn history(&self) -> PathBuf {
        self.state().join("history")
    }

    fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &how]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Runs the daemon with its history on that disk, and standard output in a pipe that nobody reads.
fn run(world: &mut World, disk: &Disk) {
    let mut command = world.command(INTENT, &[]);
    command.env("STATE_DIRECTORY", disk.state()).stdout(Stdio::piped());
    world.adopt(command.stderr(std::fs::File::create(world.file("log")).unwrap()).spawn().unwrap());
    world.ready();
}

/// Something to remember; and the mode that is set is in force, whatever the disk does.
fn act(world: &World, mode: &str) {
    let done = world.tidegate(&["mode", "shop", mode]);
    assert!(done.status.success(), "{done:?}");
    let history = world.history();
    assert!(history.lines().last().unwrap().contains(&format!("shop: {mode}")), "{history}");
}

fn kept(disk: &Disk) -> String {
    std::fs::read_to_string(disk.history()).unwrap_or_default()
}

fn is_kept(disk: &Disk, mode: &str) -> bool {
    kept(disk).lines().last().is_some_and(|line| line.contains(&format!("\"mode\":\"{mode}\"")))
}

/// A disk that takes nothing, in three ways: each is told, and neither hooks nor events are lost.
#[test]
fn a_disk_that_takes_nothing_costs_no_event_and_no_protection() {
    let mut world = World::new(0);
    let disk = Disk::new(&world);
    run(&mut world, &disk);
    let warned = || world.status().contains("history: cannot be written");
    let holds = |mode: &str| {
        wait_for("a warning", || warned().then_some(()));
        assert!(!is_kept(&disk, mode));
        world.ready();
        world.assert_healthy_soon();
    };
    let recovers = |mode: &str| {
        wait_for("it is written", || is_kept(&disk, mode).then_some(()));
        wait_for("no warning", || (!warned()).then_some(()));
    };
    let filler = disk.0.join("filler");
    let _ = std::fs::File::create(&filler).unwrap().write_all(&[1; 128 << 10]);
    act(&world, "shadow");
    holds("shadow");
    std::fs::remove_file(&filler).unwrap();
    recovers("shadow");

    disk.remount("ro");
    act(&world, "enforce");
    holds("enforce");
    disk.remount("rw");
    recovers("enforce");

    std::fs::remove_dir_all(disk.state()).unwrap();
    act(&world, "shadow");
    holds("shadow");
    std::fs::create_dir(disk.state()).unwrap();
    recovers("shadow");
}

/// What a restart finds: a file that is cut in half, damaged, or of another version.
#[test]
fn a_file_that_cannot_be_read_costs_what_is_damaged_and_is_told() {
    let mut world = World::new(1);
    let disk = Disk::new(&world);
    run(&mut world, &disk);
    for _ in 0..4 {
        act(&world, "shadow");
        act(&world, "enforce");
    }
    wait_for("it is written", || (kept(&disk).lines().count() == 10).then_some(()));
    let whole = kept(&disk);
    let again = |world: &mut World, text: &str| {
        world.daemon().kill().unwrap();
        world.daemon().wait().unwrap();
        std::fs::write(disk.history(), text).unwrap();
        run(world, &disk);
        world.history()
    };
    let half = again(&mut world, &whole[..whole.len() / 2]);
    assert!(world.log().contains("lines of it are damaged"), "{}", world.log());
    assert!((3..9).contains(&half.lines().count()), "{half}");
    let one = again(&mut world, &whole.replacen("\"event\":\"mode\"", "\"event\":\"mo", 1));
    assert_eq!(one.lines().count(), 10 - 2 + 1, "one less, and a start more: {one}");

    let newer = whole.replacen("tidegate-history 1", "tidegate-history 2", 1);
    let begun = again(&mut world, &newer);
    assert_eq!(begun.lines().count(), 1, "{begun}");
    assert!(world.log().contains("another version"), "{}", world.log());
    let aside = disk.state().join("history.other");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), newer, "who goes back to it finds it");
    world.ready();
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

/// What was scraped at a time.
struct Scrape {
    text: String,
}

impl Scrape {
    fn take(lab: &Lab) -> std::io::Result<Self> {
        let text = in_namespace(Some(&lab.namespace(Role::Server)), || {
            let mut stream = TcpStream::connect("127.0.0.1:7118")?;
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        })?;
        Ok(Self { text })
    }

    /// The sum of all samples of a metric with these labels.
    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let samples = self.text.lines().filter_map(|line| {
            let (with, value) = line.rsplit_once(' ')?;
            let rest = with.strip_prefix(name)?.strip_prefix('{')?;
            labels.iter().all(|label| rest.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        samples.sum()
    }

    /// A quantile of the response times since another scrape, as Prometheus computes it.
    fn quantile(&self, before: &Self, share: f64) -> f64 {
        let name = "tidegate_service_first_byte_time_seconds_bucket";
        let buckets = self.text.lines().filter_map(|line| {
            let bound = line.strip_prefix(name)?.split_once("le=\"")?.1.split_once('"')?.0;
            let label = format!("le=\"{bound}\"");
            let count = self.sum(name, &[&label]) - before.sum(name, &[&label]);
            Some((bound.parse::<f64>().ok()?, count))
        });
        let mut buckets: Vec<(f64, f64)> = buckets.collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rank = share * buckets.last().unwrap().1;
        let (mut from, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= rank && count > below {
                return from + (bound - from) * (rank - below) / (count - below);
            }
            (from, below) = (bound, count);
        }
        f64::INFINITY
    }
}

const CALM: u64 = 5;
const OVERLOAD: u64 = 60;
const AFTER: u64 = 9;

fn load(lab: &Lab, target: &tidegate_lab::Server, script: &mut Script<'_>) -> LoadReport {
    let span = |seconds, rate| Segment::constant(Nanos::from_secs(seconds), rate);
    let profile = Profile::new(&[span(CALM, 100.0), span(OVERLOAD, 400.0), span(AFTER, 100.0)]);
    let (start, end) = (Nanos::from_secs(CALM), Nanos::from_secs(CALM + OVERLOAD));
    let plan = LoadPlan {
        streams: vec![target.stream("all", Arrive::constant(profile))],
        phases: vec![Phase { name: "overload".into(), start, end }],
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let report = lab.run_script(&plan, script, &mut |_| {}).unwrap();
    assert!(report.void.is_empty(), "{:?}", report.void);
    for event in &report.events {
        assert_eq!(event.error, None, "{} at {}", event.name, event.at);
    }
    report
}

fn history(product: &Product) -> Value {
    let mut command = Command::new(program());
    command.args(["history", "-o", "json", "--socket"]).arg(product.socket());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn seconds(nanos: &Value) -> f64 {
    nanos.as_u64().unwrap() as f64 / 1e9
}

/// The only event of a kind.
fn only<'v>(history: &'v Value, kind: &str) -> &'v Value {
    let all = history["events"].as_array().unwrap();
    let mut of = all.iter().filter(|event| event["event"] == kind);
    let one = of.next().unwrap_or_else(|| panic!("no {kind}: {history}"));
    assert!(of.next().is_none(), "{kind} twice: {history}");
    one
}

/// A service that admits 200/s and rejects the rest.
fn at_most_200() -> ProductConfig {
    let web = json!({
        "mode": "enforce",
        "listen": ["*:80"],
        "policy": {"name": "token_bucket", "action": "reject"},
        "control": {"name": "fixed", "rate": 200, "burst": 20},
    });
    let others = json!({"answers": {"rst_per_second": 10_000}});
    ProductConfig { services: json!({"web": web}), others, ..ProductConfig::one("web", &[]) }
}

/// Begin, end, cause, and who was refused why, as the first and the last scrape have it; `overload` is its begin.
fn told_by_metrics((first, last): (&Scrape, &Scrape), overload: f64, refused: f64) {
    let web = "service=\"web\"";
    let gauge =
        |what| last.sum(&format!("tidegate_service_shedding_{what}_timestamp_seconds"), &[web]);
    let (begin, end) = (gauge("began") - overload, gauge("ended") - overload - OVERLOAD as f64);
    assert!((-0.5..3.0).contains(&begin), "began {begin} s after the overload did");
    assert!((-3.0..3.0).contains(&end), "ended {end} s after the overload did");
    let shed = |cause: &str| last.sum("tidegate_service_shedding_seconds_total", &[web, cause]);
    let shedding = shed("cause=\"limit\"");
    assert!((shedding - OVERLOAD as f64).abs() < 6.0 && shed("") == shedding, "{shedding} s");
    let by_rate = ["reason=\"rate\"", "verdict=\"reject\"", "shadow=\"false\""];
    let counted = |labels: &[&str]| {
        let name = "tidegate_service_verdicts_syns_total";
        last.sum(name, labels) - first.sum(name, labels)
    };
    assert_eq!(counted(&by_rate), refused);
    assert_eq!(counted(&["verdict=\"reject\""]), refused, "for no other reason");
}

/// A history as it would be, had the clock been a day late while it was written.
fn a_day_early(text: &str) -> String {
    let mut lines = text.lines();
    let mut stepped = lines.next().unwrap().to_owned();
    for line in lines {
        let mut event: Value = serde_json::from_str(line).unwrap();
        let unix = event["at"]["unix"].as_u64().unwrap();
        event["at"]["unix"] = json!(unix - 86_400_000_000_000);
        stepped += &format!("\n{event}");
    }
    stepped + "\n"
}

/// From scrapes every 15 s alone, and from the history after a restart under a clock that was wrong by a
/// day: begin, end, cause, who was refused and why. The clients' own counts are the measure.
#[test]
fn an_overload_between_scrapes_is_told_by_metrics_and_history() {
    let lab = Lab::new(LabOptions::new(Helper::beside(program()).unwrap())).unwrap();
    let cost =
        Cost { mean: Nanos::from_millis(20), shape: Shape::Exponential, kind: CostKind::Wait };
    let tiny = TinyOptions { workers: 64, cost, ..TinyOptions::default() };
    let server = lab.start_tiny(&tiny).unwrap();
    let config = at_most_200();
    let mut product = lab.start_product(program(), &config).unwrap();
    let (scrapes, began) = (RefCell::new(Vec::new()), RefCell::new(0.0));
    let mut script = Script::new().at(Nanos::ZERO, "begin", || {
        *began.borrow_mut() = DayClock.now().as_secs_f64();
        Ok::<(), std::io::Error>(())
    });
    for at in (0..=CALM + OVERLOAD + AFTER).step_by(15) {
        script = script.at(Nanos::from_secs(at), "scrape", || {
            scrapes.borrow_mut().push(Scrape::take(&lab)?);
            Ok::<(), std::io::Error>(())
        });
    }
    let report = load(&lab, &server, &mut script);
    let last = Scrape::take(&lab).unwrap();
    let (first, clients) = (&scrapes.borrow()[0], &report.streams[0].total);
    let refused = clients.counts.refused_connect as f64;
    let overload = *began.borrow() + CALM as f64;
    told_by_metrics((first, &last), overload, refused);
    // How near the times are is measured by the experiment product/record; here that they are there.
    let of_clients = report.streams[0].phase("overload").unwrap().totals.first_byte;
    for (name, share, of_clients) in [("p50", 0.5, of_clients.p50), ("p99", 0.99, of_clients.p99)] {
        let of_metrics = last.quantile(first, share);
        println!("{name}: {of_metrics:.4} s by metrics, {of_clients:.4} s by clients");
        assert!(of_metrics > of_clients / 2.0 && of_metrics < 2.0 * of_clients, "{name}");
    }

    let told = history(&product);
    let (begun, ended) = (only(&told, "shedding-began"), only(&told, "shedding-ended"));
    assert_eq!((&begun["cause"], &ended["cause"]), (&json!("limit"), &json!("limit")));
    assert_eq!(ended["outcome"]["refused"].as_f64(), Some(refused));
    assert_eq!(
        ended["outcome"]["refused_by"],
        json!([{"reason": "rate", "count": refused as u64}])
    );
    let begin = seconds(&begun["at"]["unix"]) - overload;
    assert!((-0.5..3.0).contains(&begin), "{begin}");

    // The file as it would be, had the clock been a day late while it was written.
    product.end_for_restart().unwrap();
    let mut file = product.socket().as_os_str().to_owned();
    file.push(".history");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, a_day_early(&text)).unwrap();
    let product = lab.start_product_like(program(), &product).unwrap();
    let later = history(&product);
    for kind in ["shedding-began", "shedding-ended"] {
        let (before, after) = (only(&told, kind), only(&later, kind));
        let moved = seconds(&after["at"]["unix"]) - seconds(&before["at"]["unix"]);
        assert!(moved.abs() < 0.5, "{kind} moved by {moved} s");
        let body = |event: &Value| {
            let mut event = event.clone();
            event["at"] = Value::Null;
            event
        };
        assert_eq!(body(after), body(before));
    }
}

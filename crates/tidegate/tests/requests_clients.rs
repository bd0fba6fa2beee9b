// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real clients and refusals from the kernel: each sees a complete 503 or a reset, none hangs, and
//! nothing stays behind.
//!
//! ```text
//!   cl: curl, wget, Python requests, Node, Chromium ── rt ── sv: Apache (TCP_DEFER_ACCEPT), tidegate
//!       /503: answered by 503      /reset: by RST      /page.html: never refused
//! ```
//!
//! In CI curl, wget and Python requests load some hundreds each. The full number, Node and Chromium
//! (`cargo xtask setup --clients`), the 100,000 refusals and the minute after them:
//! `cargo build --release -p tidegate-lab &&
//! TIDEGATE_CLIENTS=full cargo test --release -p tidegate --test requests_clients -- --nocapture`
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_lab::{
    ApacheOptions, Arrive, Cost, Helper, Lab, LabOptions, LoadPlan, Mpm, Product, ProductConfig,
    Role, Server,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Profile;

/// Refused in a bucket of 1/s all but one or two of these.
const SERVER: &str = "http://10.2.0.2";
/// How long one client may take for all its loads, in seconds.
const CLIENT_LIMIT_S: &str = "900";
/// A refused connection is forgotten within this.
const FORGOTTEN: Nanos = Nanos::from_secs(60);
/// What a bucket of 1/s with a depth of one admits beyond its rate: its depth, and a part of a second
/// at either end.
const ADMITTED_MORE: u64 = 2;
/// Loads that one page of Chromium makes; there are as many pages as it takes.
const CHROMIUM_LOADS: u64 = 2_000;

fn full() -> bool {
    std::env::var("TIDEGATE_CLIENTS").is_ok_and(|value| value == "full")
}

/// Loads of each client and answer.
fn loads() -> u64 {
    if full() { 10_000 } else { 300 }
}

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

struct Bench {
    // Dropped in this order.
    product: Product,
    server: Server,
    lab: Lab,
    /// How long the clients ran since [`Bench::check`] asked.
    took: Cell<Nanos>,
    /// Refusals of each rule that [`Bench::check`] has seen.
    refused: Cell<[u64; 2]>,
}

fn bench() -> Bench {
    let helper = Helper::beside(program()).unwrap();
    let lab = Lab::new(LabOptions::new(helper)).unwrap();
    let options =
        ApacheOptions { cgi: None, ..ApacheOptions::cgi(Mpm::Prefork, Cost::busy(Nanos::ZERO)) };
    let server = lab.start_apache(&options).unwrap();
    for (name, text) in [("503", "ok\n".into()), ("reset", "ok\n".into()), page()] {
        std::fs::write(www(&lab).join(name), text).unwrap();
    }
    let bucket = || {
        json!({"resource": "cpu", "min_rate": "1/s", "burst": 1,
               "control": {"name": "fixed", "rate": "1/s"}})
    };
    let services = json!({"web": {
        "mode": "enforce",
        "listen": ["*:80"],
        "control": {"name": "fixed", "rate": "1000000/s", "burst": 1_000_000},
        "requests": {
            "buckets": {"busy": bucket(), "reset": bucket()},
            "rules": [
                {"path": "/503", "bucket": "busy", "action": "503"},
                {"path": "/reset", "bucket": "reset", "action": "reset"},
            ],
        },
    }});
    let config = ProductConfig { services, ..ProductConfig::one("web", &[]) };
    let product = lab.start_product(program(), &config).unwrap();
    Bench { product, server, lab, took: Cell::default(), refused: Cell::default() }
}

fn page() -> (&'static str, String) {
    ("page.html", std::fs::read_to_string(script("page.html")).unwrap())
}

/// The document root of the lab's one Apache.
fn www(lab: &Lab) -> PathBuf {
    let entries = std::fs::read_dir(lab.dir()).unwrap().flatten();
    let found = entries.map(|entry| entry.path().join("www")).find(|path| path.is_dir());
    found.unwrap()
}

type Found = BTreeMap<String, u64>;

impl Bench {
    /// Runs a client to its end; each line of its output is a word and a count (1 if not said).
    fn client(&self, command: &[&str]) -> Found {
        let limited: Vec<&str> =
            ["timeout", CLIENT_LIMIT_S].into_iter().chain(command.iter().copied()).collect();
        let began = MonotonicClock.now();
        let output = self.lab.run_in(Role::Client, &limited, "").unwrap();
        let mut found = Found::new();
        for line in output.lines().filter(|line| !line.trim().is_empty()) {
            let (word, count) = line.trim().rsplit_once(' ').unwrap_or((line.trim(), "1"));
            *found.entry(word.to_owned()).or_default() += count.parse::<u64>().unwrap_or(1);
        }
        let took = MonotonicClock.now() - began;
        self.took.set(self.took.get() + took);
        println!("{}: {found:?} in {took}", command[0]);
        found
    }

    fn curl(&self, url: &str, loads: u64) -> Found {
        let urls = format!("{url}?n=[1-{loads}]");
        let words = "%{http_code}/%header{retry-after}/%{exitcode}\\n";
        let curl = format!("curl -s -m 30 -o /dev/null -w '{words}' '{urls}'; true");
        let found = self.client(&["sh", "-c", &curl]);
        let mut sums = Found::new();
        for (word, count) in found {
            let parts: Vec<&str> = word.split('/').collect();
            let name = match parts[..] {
                ["503", after, "0"] if after.parse::<u32>().is_ok_and(|s| s >= 1) => "503",
                ["200", _, "0"] => "200",
                // Receive failure: connection reset by peer.
                ["000", _, "56"] => "reset",
                _ => &word,
            };
            *sums.entry(name.to_owned()).or_default() += count;
        }
        sums
    }

    fn wget(&self, url: &str, loads: u64) -> Found {
        let script = format!(
            "seq -f '{url}?n=%.0f' {loads} | \
             wget -S -t 1 -T 30 -O /dev/null --content-on-error -i - 2>&1 | \
             sed -n -e 's|^  HTTP/1.1 \\([0-9]*\\).*|\\1|p' \
             -e 's|.*Connection reset by peer.*|reset|p' -e 's|.*timed out.*|timeout|p'"
        );
        self.client(&["sh", "-c", &script])
    }

    fn chromium(&self, url: &str, loads: u64) -> Found {
        let profile = self.lab.dir().join("chromium");
        let profile = format!("--user-data-dir={}", profile.display());
        let page = format!("{SERVER}/page.html?url={url}&times={loads}");
        let output = self.client(&[
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--virtual-time-budget=100000000",
            &profile,
            "--dump-dom",
            &page,
        ]);
        assert!(output.keys().any(|line| line.contains("done")), "{output:?}");
        // Markup stands before the first of them.
        let words = output
            .into_iter()
            .map(|(word, count)| (word.rsplit('>').next().unwrap_or_default().to_owned(), count));
        let known = ["200", "503", "reset", "unclean", "TimeoutError", "TypeError"];
        words.filter(|(word, _)| known.contains(&&**word)).collect()
    }

    /// What tidegate itself counts, by rule.
    fn status(&self) -> String {
        let snapshot = self.product.status().unwrap();
        snapshot["services"][0]["requests"]["rules"].to_string()
    }

    /// Requests that each rule refused so far, as tidegate counts them.
    fn refused(&self) -> [u64; 2] {
        let snapshot = self.product.status().unwrap();
        let rules = &snapshot["services"][0]["requests"]["rules"];
        [0, 1].map(|rule: usize| rules[rule]["counts"]["refused"].as_u64().unwrap())
    }

    /// All are refused as wanted but those that the bucket has tokens for; nothing else happens; and
    /// tidegate has refused by this rule what the client says, and nothing by the other.
    fn check(&self, client: &str, refusal: &str, found: &Found, loads: u64) {
        let count = |word: &str| found.get(word).copied().unwrap_or(0);
        let (refused, admitted) = (count(refusal), count("200"));
        let seconds = self.took.take().as_secs_f64().ceil() as u64;
        let said = format!("{client}, {refusal}: {found:?} in {seconds} s");
        assert_eq!(refused + admitted, loads, "{said}");
        assert!(admitted <= seconds + ADMITTED_MORE, "{said}");
        let (rule, other) = if refusal == "503" { (0, 1) } else { (1, 0) };
        let before = self.refused.get();
        // It counts for people once a second.
        let counted = || self.refused()[rule] - before[rule];
        let all = eventually(Nanos::from_secs(5), || counted() >= refused);
        assert!(all, "{said}: tidegate counts {}", counted());
        let now = self.refused();
        assert_eq!(now[other], before[other], "{said}");
        self.refused.set(now);
    }
}

/// Each client gets each refusal clean, so often as it asks, one after the other.
#[test]
fn clients_see_clean_refusals() {
    let _one = one_at_a_time();
    let bench = bench();
    let loads = loads();
    let number = loads.to_string();
    let (python, node) = (script("loads.py"), script("loads.js"));
    let (python, node) = (python.to_str().unwrap(), node.to_str().unwrap());
    for refusal in ["503", "reset"] {
        let url = format!("{SERVER}/{refusal}");
        bench.check("curl", refusal, &bench.curl(&url, loads), loads);
        bench.check("wget", refusal, &bench.wget(&url, loads), loads);
        let found = bench.client(&["/usr/bin/python3", python, &url, &number]);
        bench.check("Python requests", refusal, &found, loads);
        if full() {
            let found = bench.client(&["node", node, &url, &number]);
            bench.check("Node", refusal, &found, loads);
            let mut found = Found::new();
            for _ in 0..loads / CHROMIUM_LOADS {
                for (word, count) in bench.chromium(&url, CHROMIUM_LOADS) {
                    *found.entry(word).or_default() += count;
                }
            }
            bench.check("Chromium", refusal, &found, loads);
        }
    }
}

/// The first 503 of every connection is lost: the client asks again and gets it.
#[test]
fn a_lost_503_is_repeated() {
    let _one = one_at_a_time();
    let bench = bench();
    // Bytes 9 to 11 of the payload: the status.
    let rules = "table inet lost {\n set seen { type inet_service; flags dynamic; size 10000; }\n\
                 chain c {\n type filter hook input priority 0;\n \
                 tcp sport 80 @ih,72,24 0x353033 tcp dport != @seen add @seen { tcp dport } \
                 counter drop\n }\n}\n";
    bench.lab.run_in(Role::Client, &["nft", "-f", "-"], rules).unwrap();
    let python = script("loads.py");
    let (url, loads) = (format!("{SERVER}/503"), 20);
    let command = ["/usr/bin/python3", python.to_str().unwrap(), &url, "20"];
    let found = bench.client(&command);
    let count = |word: &str| found.get(word).copied().unwrap_or(0);
    assert_eq!(count("503") + count("200"), loads, "{found:?}");
    let seconds = bench.took.take().as_secs_f64().ceil() as u64;
    assert!(count("200") <= seconds + ADMITTED_MORE, "{found:?} in {seconds} s");
    let table = bench.lab.run_in(Role::Client, &["nft", "list", "table", "inet", "lost"], "");
    let lost = table.unwrap();
    let packets = format!("counter packets {} ", count("503"));
    assert!(lost.contains(&packets), "one of each connection was lost ({packets}): {lost}");
}

/// Many refusals at once leave no socket at the server, half-open ones included, and what the
/// kernel remembers of them is gone at once: all of them have ended.
#[test]
fn refusals_leave_nothing_behind() {
    let _one = one_at_a_time();
    let bench = bench();
    let (rate, seconds) = if full() { (2_000.0, 50) } else { (500.0, 4) };
    let mut stream = bench
        .server
        .stream("all", Arrive::constant(Profile::constant(Nanos::from_secs(seconds), rate)));
    stream.path = "/503".into();
    let before = memory(&bench.lab);
    let plan =
        LoadPlan { streams: vec![stream], lag_bound: Nanos::from_secs(5), ..LoadPlan::default() };
    let report = bench.lab.run_load(&plan, &mut |_| {}).unwrap();
    let counts = report.streams[0].total.counts;
    assert_eq!(counts.answered + counts.refused_http, counts.offered, "{counts:?}");
    assert!(counts.refused_http as f64 > 0.9 * rate * seconds as f64, "{counts:?}");
    let sockets = || {
        let command = ["ss", "-Htan", "state", "all", "exclude", "listening"];
        let all = bench.lab.run_in(Role::Server, &command, "").unwrap();
        // Those of the few that were admitted end by themselves.
        all.lines().filter(|line| !line.starts_with("TIME-WAIT")).count()
    };
    assert!(eventually(Nanos::from_secs(10), || sockets() == 0), "{} sockets", sockets());
    let time_wait = bench.lab.run_in(Role::Server, &["ss", "-Htan", "state", "time-wait"], "");
    let time_wait = time_wait.unwrap().lines().count() as u64;
    assert!(time_wait <= counts.answered, "{time_wait} in TIME-WAIT, {} admitted", counts.answered);
    let after = memory(&bench.lab);
    println!("TCP memory in pages: {before} before, {after} after; {counts:?}");
    assert!(after <= before + 64, "{before} pages before, {after} after");
    let entries = connections(&bench).expect("the map is pinned");
    println!("{entries} connections remembered; {}", bench.status());
    // Long before the sweep would: all of them have ended.
    let forgotten = eventually(Nanos::from_secs(10), || connections(&bench) == Some(0));
    assert!(forgotten, "{:?} after 10 s", connections(&bench));
}

/// Clients that vanish without a FIN leave an entry each, and no socket; in a full run: for a minute.
#[test]
fn vanished_clients_are_forgotten() {
    let _one = one_at_a_time();
    let bench = bench();
    let rules = "table inet mute {\n chain c {\n type filter hook output priority 0;\n \
                 tcp dport 80 tcp flags & (fin|rst) != 0 drop\n }\n}\n";
    bench.lab.run_in(Role::Client, &["nft", "-f", "-"], rules).unwrap();
    let profile = Profile::constant(Nanos::from_secs(1), 200.0);
    let mut stream = bench.server.stream("all", Arrive::constant(profile));
    stream.path = "/503".into();
    let lag_bound = Nanos::from_secs(5);
    let plan = LoadPlan { streams: vec![stream], lag_bound, ..LoadPlan::default() };
    let report = bench.lab.run_load(&plan, &mut |_| {}).unwrap();
    let counts = report.streams[0].total.counts;
    assert!(counts.refused_http > 150, "{counts:?}");
    let entries = connections(&bench).unwrap();
    println!("{entries} connections remembered; {counts:?}");
    assert!(entries > 0 && entries <= counts.offered, "{entries}: {counts:?}");
    if full() {
        let forgotten = eventually(FORGOTTEN, || connections(&bench) == Some(0));
        assert!(forgotten, "{:?} after {FORGOTTEN}", connections(&bench));
    }
}

/// Pages that TCP holds for the server's sockets.
fn memory(lab: &Lab) -> u64 {
    let text = lab.run_in(Role::Server, &["cat", "/proc/net/sockstat"], "").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("TCP: ")).unwrap_or_default();
    let mut words = line.split(' ').skip_while(|word| *word != "mem");
    words.nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Connections that the kernel remembers, as bpftool counts the pinned map's entries; none where it
/// is not pinned.
fn connections(bench: &Bench) -> Option<u64> {
    let command = "set -e; f=$(find \"$1\" -name tg_conns | head -1); test -n \"$f\"; \
                   d=$(bpftool -j map dump pinned \"$f\"); \
                   printf %s \"$d\" | grep -o '\"key\":\\[' | wc -l";
    let pins = bench.lab.pins().display().to_string();
    let output = bench.lab.run_in(Role::Server, &["sh", "-c", command, "sh", &pins], "");
    output.ok()?.trim().parse().ok()
}

/// Waits until a condition holds.
fn eventually(limit: Nanos, mut condition: impl FnMut() -> bool) -> bool {
    let end = MonotonicClock.now() + limit;
    while MonotonicClock.now() < end {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    condition()
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules as an operator has them: a real Apache, the real program, real clients.
//!
//! ```text
//!   cl: curl, 200 connections/s ── rt ── sv: Apache with a CGI, tidegate with a rule on /cgi-bin/
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{PATIENCE, wait_for};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::Command;
use tidegate_lab::{
    ApacheOptions, Arrive, Cost, Helper, Lab, LabError, LabOptions, LoadPlan, Mpm, Product,
    ProductConfig, Role, Script, Server,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Profile;

const STATIC: &str = "/index.html";
const SCRIPT: &str = "/cgi-bin/work?kind=busy&mean_us=10&shape=constant";

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tidegate"))
}

/// An Apache whose requests go through these rules.
struct World {
    lab: Lab,
    server: Server,
    product: RefCell<Option<Product>>,
}

/// One bucket with this rate, one rule, and what else `requests` says.
fn config(rate: f64, mode: &str, more: &Value) -> ProductConfig {
    let mut requests = json!({
        "mode": mode,
        "buckets": {
            "scripts": {"resource": "cpu", "burst": 2, "control": {"name": "fixed", "rate": rate}},
        },
        "rules": [{"path": "/cgi-bin/", "bucket": "scripts"}],
        "retry_after": {"min": "2s", "max": "9s"},
        "response_body": "Come back later.\n",
    });
    for (key, value) in more.as_object().unwrap() {
        requests[key] = value.clone();
    }
    let services = json!({"web": {"mode": "enforce", "listen": ["*:80"], "requests": requests}});
    ProductConfig { services, ..ProductConfig::one("web", &[]) }
}

impl World {
    fn new(config: &ProductConfig) -> Self {
        Self::with(config, |_| {})
    }

    /// With an Apache that is set up otherwise.
    fn with(config: &ProductConfig, change: impl Fn(&mut ApacheOptions)) -> Self {
        let helper = Helper::beside(program()).unwrap();
        let lab = Lab::new(LabOptions::new(helper)).unwrap();
        let mut cgi = ApacheOptions::cgi(Mpm::Event, Cost::busy(Nanos::from_micros(10)));
        change(&mut cgi);
        let server = lab.start_apache(&cgi).unwrap();
        let product = lab.start_product(program(), config).unwrap();
        Self { lab, server, product: RefCell::new(Some(product)) }
    }

    /// A request by curl: status, Retry-After, body. An answer that is not whole, or a connection
    /// that ends without one, is an error of curl and so of the test.
    fn curl(&self, path: &str) -> (u16, Option<u64>, String) {
        let url = format!("http://{}{path}", self.server.target());
        let command = ["curl", "-s", "-S", "-i", "--max-time", "10", &url];
        let text = self.lab.run_in(Role::Client, &command, "").unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let field = |line: &str| line.strip_prefix("Retry-After: ").map(|v| v.parse().unwrap());
        (status, head.lines().find_map(field), body.to_owned())
    }

    fn status(&self, path: &str) -> u16 {
        self.curl(path).0
    }

    /// What the rules counted: the snapshot's `requests` of the service.
    fn requests(&self) -> Value {
        let product = self.product.borrow();
        product.as_ref().unwrap().status().unwrap()["services"][0]["requests"].clone()
    }

    fn counted(&self, rule: usize, outcome: &str) -> u64 {
        self.requests()["rules"][rule]["counts"][outcome].as_u64().unwrap()
    }

    /// Writes another configuration and reloads it, as an operator does.
    fn reload(&self, change: impl Fn(&mut Value)) -> Result<(), LabError> {
        let product = self.product.borrow();
        let product = product.as_ref().unwrap();
        let text = fs::read_to_string(product.config()).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        change(&mut config["services"]["web"]["requests"]);
        fs::write(product.config(), config.to_string()).unwrap();
        let asked = Command::new(program())
            .args(["reload", "--socket"])
            .arg(product.socket())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        if asked.status.success() { Ok(()) } else { Err(LabError::Product(said)) }
    }
}

#[test]
fn above_the_rate_a_client_sees_a_clean_503_and_below_it_the_page() {
    let scripts = json!({"resource": "cpu", "burst": 2, "control": {"name": "fixed", "rate": 1.0}});
    let more = json!({
        "buckets": {"scripts": scripts, "line": {"resource": "bandwidth"}},
        "rules": [{"path": "/cgi-bin/", "bucket": "scripts"}, {"path": "/large/", "bucket": "line"}],
    });
    let world = World::new(&config(1.0, "enforce", &more));
    wait_for("the limit is in force", || (world.status(SCRIPT) == 503).then_some(()));
    let (status, retry_after, body) =
        wait_for("one more", || Some(world.curl(SCRIPT)).filter(|(status, ..)| *status == 503));
    assert_eq!((status, body.as_str()), (503, "Come back later.\n"));
    assert!((2..=9).contains(&retry_after.unwrap()), "{retry_after:?}");
    assert!((0..20).all(|_| world.status(STATIC) == 200), "what no rule names passes");
    let (status, retry_after, _) = wait_for("below the rate", || {
        Some(world.curl(SCRIPT)).filter(|(status, ..)| *status == 200)
    });
    assert_eq!((status, retry_after), (200, None));
    wait_for("it is counted", || {
        (world.counted(0, "refused") >= 2 && world.counted(0, "admitted") >= 1).then_some(())
    });
    assert_eq!(world.counted(0, "shadowed"), 0);
    wait_for("what the interface sends is seen", || {
        let product = world.product.borrow();
        let signals = product.as_ref().unwrap().status().unwrap()["services"][0]["signals"].take();
        signals["resource"]["bandwidth"]["value"].as_f64()
    });
    world.reload(|requests| requests["mode"] = "shadow".into()).unwrap();
    wait_for("the reload is shown", || (world.requests()["mode"] == "shadow").then_some(()));
    let in_shadow = |counted: u64| {
        assert!((0..20).all(|_| world.status(SCRIPT) == 200), "in shadow nothing is refused");
        wait_for("it is counted", || (world.counted(0, "shadowed") >= counted).then_some(()));
        world.counted(0, "refused")
    };
    // What is shown may be a tick old. Where the first of these are in it, all that was refused before is.
    let refused = in_shadow(10);
    assert_eq!(in_shadow(25), refused);
    assert_eq!(world.requests()["mode"], "shadow");
}

/// Ten reloads under load: every request is answered, and the rules are those of the file.
#[test]
fn a_reload_changes_rules_and_loses_no_request() {
    let world = World::new(&config(1000.0, "enforce", &json!({})));
    let mut script = Script::new();
    for turn in 0..10_u64 {
        let world = &world;
        let to = if turn % 2 == 0 { "/other/" } else { "/cgi-bin/" };
        script = script.at(Nanos::from_millis(1000 + 500 * turn), "reload", move || {
            world.reload(|requests| {
                requests["rules"] = json!([
                    {"path": to, "bucket": "scripts"},
                    {"path": format!("/t{turn}/"), "methods": ["GET"], "bucket": "scripts"},
                ]);
            })
        });
    }
    let arrive = Arrive::constant(Profile::constant(Nanos::from_secs(7), 200.0));
    let mut stream = world.server.stream("crowd", arrive);
    stream.path = STATIC.to_owned();
    let plan =
        LoadPlan { streams: vec![stream], lag_bound: Nanos::from_secs(5), ..LoadPlan::default() };
    let report = world.lab.run_script(&plan, &mut script, &mut |_| {}).unwrap();
    report.sound().unwrap();
    assert_eq!(report.events.len(), 10);
    let counts = report.streams[0].total.counts;
    assert_eq!(counts.answered, counts.offered, "{counts:?}");
    let requests = world.requests();
    assert_eq!(requests["rules"][0]["rule"], "/cgi-bin/", "the last file holds");
    assert_eq!(requests["defer_accept"], true, "Apache's own default is seen in its handshakes");
    // The same files under a rate that nothing gets through: the rules are really others.
    world
        .reload(|requests| {
            requests["buckets"]["scripts"]["control"]["rate"] = 1.into();
            requests["rules"] = json!([{"path": "/index", "bucket": "scripts"}]);
        })
        .unwrap();
    wait_for("the new rule", || (world.status(STATIC) == 503).then_some(()));
    assert!((0..10).all(|_| world.status(SCRIPT) == 200), "the old rule is gone");
}

/// A server that accepts before there are data pays for every refusal: that is seen in its handshakes,
/// and told for as long as rules may refuse.
#[test]
fn a_server_that_does_not_defer_accept_is_warned_of() {
    let world = World::with(&config(1000.0, "enforce", &json!({})), |apache| {
        apache.defer_accept = false;
    });
    let warned = || {
        let status = world.product.borrow().as_ref().unwrap().status().unwrap();
        let warnings = status["warnings"].as_array().unwrap();
        warnings.iter().any(|text| text.as_str().unwrap().contains("TCP_DEFER_ACCEPT"))
    };
    wait_for("it is seen", || {
        assert_eq!(world.status(STATIC), 200);
        (world.requests()["defer_accept"] == false).then_some(())
    });
    wait_for("it is told", || warned().then_some(()));
    world.reload(|requests| requests["mode"] = "shadow".into()).unwrap();
    wait_for("it is not told in shadow, though it is known", || {
        (!warned() && world.requests()["defer_accept"] == false).then_some(())
    });
}

/// Rules need hooks, and a running daemon gave up the privilege to put them on: it says so and
/// changes nothing, and a daemon that takes over brings them.
#[test]
fn the_first_rules_come_with_a_take_over() {
    let mut config = config(1.0, "enforce", &json!({}));
    let requests = config.services["web"]["requests"].take();
    config.services["web"].as_object_mut().unwrap().remove("requests");
    let world = World::new(&config);
    let refused = world.reload(|empty| *empty = requests.clone()).unwrap_err().to_string();
    assert!(refused.contains("privileges"), "{refused}");
    assert!(refused.contains("nothing was changed"), "{refused}");
    assert!((0..20).all(|_| world.status(SCRIPT) == 200), "nothing was changed");
    let before = world.product.borrow_mut().take().unwrap();
    // The file that was refused is there, and right.
    let next = world.lab.start_product_like(program(), &before).unwrap();
    before.wait_end(PATIENCE).unwrap();
    *world.product.borrow_mut() = Some(next);
    wait_for("the limit is in force", || (world.status(SCRIPT) == 503).then_some(()));
    world.reload(|requests| requests["rules"][0]["action"] = "reset".into()).unwrap();
    wait_for("the other answer", || {
        let url = format!("http://{}{SCRIPT}", world.server.target());
        let curl = ["curl", "-s", "-S", "--max-time", "10", &url];
        let error = world.lab.run_in(Role::Client, &curl, "").err()?.to_string();
        // With curl 56 a reset connection.
        error.contains("reset").then_some(())
    });
    wait_for("it is counted", || (world.counted(0, "refused") >= 2).then_some(()));
}

/// The program says before, without any packet, what the kernel then does.
#[test]
fn rules_test_foretells_which_rule_a_request_meets() {
    let rules = json!([
        {"path": "/", "methods": ["HEAD", "OTHER"], "bucket": "scripts"},
        {"path": "/", "host": "*.shop.example", "bucket": "scripts"},
        {"path": "/index", "cookie": {"name": "s", "value": "1"}, "action": "allow"},
        {"path": "/index", "cookie": {"name": "s", "absent": true}, "host": "a.b", "bucket": "scripts"},
        {"path": "/index.html", "methods": ["GET"], "cookie": {"name": "t"}, "bucket": "scripts"},
    ]);
    let world = World::new(&config(1e6, "shadow", &json!({"rules": rules})));
    let met = |rule: usize| {
        let outcomes = ["admitted", "refused", "shadowed", "lease", "failed"];
        outcomes.iter().map(|outcome| world.counted(rule, outcome)).sum::<u64>()
    };
    let url = format!("http://{}{STATIC}?x=/cgi-bin/", world.server.target());
    let file = world.product.borrow().as_ref().unwrap().config().to_owned();
    let mut rules_met = Vec::new();
    for (method, headers) in [
        ("GET", &["Host: a.shop.example:80"][..]),
        ("GET", &["Host: A.Shop.Example"]),
        ("GET", &["Host: a.b.shop.example"]),
        ("GET", &["Host: shop.example", "Cookie: s=1"]),
        ("GET", &["Cookie: x=y; s=1; t=2"]),
        ("GET", &["Cookie: S=1; s=2"]),
        ("GET", &["Host: a.b"]),
        ("GET", &["Host: a.b", "Cookie: s"]),
        ("BREW", &[]),
        ("HEAD", &["Host: a.shop.example"]),
        ("OPTIONS", &["Host: a.shop.example"]),
    ] {
        let line = format!("{method} {STATIC}?x=/cgi-bin/ HTTP/1.1");
        let mut asked = Command::new(program());
        asked.args(["rules", "test", &line, "-o", "json", "--config"]).arg(&file);
        let mut curl = vec!["curl", "-s", "-o", "/dev/null", "--max-time", "10", &url];
        curl.extend(if method == "HEAD" { vec!["-I"] } else { vec!["-X", method] });
        for header in headers {
            asked.args(["-H", header]);
            curl.extend(["-H", header]);
        }
        let told: Value = serde_json::from_slice(&asked.output().unwrap().stdout).unwrap();
        let told = told["services"][0]["rule"].as_u64().map(|rule| rule as usize);
        let before: Vec<u64> = (0..5).map(met).collect();
        world.lab.run_in(Role::Client, &curl, "").unwrap();
        let Some(rule) = told else { continue };
        wait_for(&line, || (met(rule) > before[rule]).then_some(()));
        let others = (0..5).filter(|other| *other != rule && met(*other) != before[*other]);
        assert_eq!(others.count(), 0, "{line} {headers:?} meets rule {rule} and no other");
        rules_met.push(rule);
    }
    rules_met.sort_unstable();
    assert_eq!(rules_met, [0, 0, 1, 1, 1, 2, 3, 4], "every rule is met");
    let all = (0..5).map(met).sum::<u64>();
    assert_eq!(all, rules_met.len() as u64, "what no rule matches is counted by none");
}

#[test]
fn after_kill_9_requests_pass_within_ten_seconds() {
    let world = World::new(&config(1.0, "enforce", &json!({})));
    wait_for("the limit is in force", || (world.status(SCRIPT) == 503).then_some(()));
    let killed = MonotonicClock.now();
    world.product.borrow_mut().take().unwrap().kill9().unwrap();
    let opened = wait_for("everything passes", || {
        let now = MonotonicClock.now();
        (0..20).all(|_| world.status(SCRIPT) == 200).then_some(now)
    });
    let after = opened.since(killed);
    assert!(after < Nanos::from_secs(11), "the lease opened only after {after}");
}

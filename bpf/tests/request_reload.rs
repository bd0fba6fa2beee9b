// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules changed while requests flow, with the real hooks: what a request meets before and
//! after, what a bucket keeps, and who executes a refusal.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_bpf::testing::plans::{self, plan};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
use tidegate_bpf::{BucketParams, Plan};
use tidegate_config::{RequestsConfig, RuleAction, RuleConfig, RuleRefusal, ServiceConfig};
use tidegate_model::Mode;
use tidegate_policy::Reason;
use tidegate_units::{Clock, MonotonicClock, Rate};

/// A TCP segment between 198.51.100.7 and 192.0.2.10.
struct Segment<'a> {
    ports: (u16, u16),
    flags: u8,
    numbers: (u32, u32),
    payload: &'a [u8],
}

impl Segment<'_> {
    fn frame(&self, from_server: bool) -> Vec<u8> {
        let (client, server) = ([198, 51, 100, 7], [192, 0, 2, 10]);
        let (src, dst) = if from_server { (server, client) } else { (client, server) };
        let (from, to) = if from_server { (self.ports.1, self.ports.0) } else { self.ports };
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((40 + self.payload.len() as u16).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(src.into_iter().chain(dst));
        frame.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()));
        frame.extend(self.numbers.0.to_be_bytes().into_iter().chain(self.numbers.1.to_be_bytes()));
        frame.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend(self.payload);
        frame
    }
}

/// What sees the client's packets.
const CLIENT: [TestHook; 2] = [TestHook::Xdp, TestHook::RequestIn];
/// What sees the server's.
const SERVER: [TestHook; 2] = [TestHook::Egress, TestHook::RequestOut];

/// Clients of the plane, each with its own connection.
struct Clients {
    plane: TestPlane,
    port: u16,
}

impl Clients {
    fn new(plan: &Plan) -> Self {
        Self { plane: TestPlane::load(plan).unwrap(), port: 1024 }
    }

    /// Whether a frame passes both hooks as it is.
    fn give(&self, hooks: [TestHook; 2], frame: &[u8]) -> bool {
        let runs = hooks.map(|hook| self.plane.run(hook, frame).unwrap());
        assert_eq!(runs[0].outcome, Outcome::Pass, "SYNs have no limit here");
        runs[1].outcome == Outcome::Pass && runs[1].packet == frame
    }

    /// A new connection to a port of the server; its ports.
    fn open(&mut self, port: u16) -> (u16, u16) {
        self.port += 1;
        let ports = (self.port, port);
        let bare = |flags, numbers| Segment { ports, flags, numbers, payload: b"" };
        self.give(CLIENT, &bare(0x02, (10, 0)).frame(false));
        self.give(SERVER, &bare(0x12, (77, 11)).frame(true));
        self.give(CLIENT, &bare(0x10, (11, 78)).frame(false));
        ports
    }

    /// The first request of a connection: whether it passes. (One that is refused becomes a reset.)
    fn ask(&self, ports: (u16, u16), path: &str) -> bool {
        // On a loaded machine a test takes longer than a lease.
        self.plane.set_lease(MonotonicClock.now()).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
        let payload = request.as_bytes();
        let segment = Segment { ports, flags: 0x18, numbers: (11, 78), payload };
        self.give(CLIENT, &segment.frame(false))
    }

    /// The same on a connection of its own.
    fn get(&mut self, port: u16, path: &str) -> bool {
        let ports = self.open(port);
        self.ask(ports, path)
    }

    /// One token for a bucket, the next in a thousand seconds.
    fn one_token(&mut self, service: usize, bucket: usize) {
        let rate = Some(Rate::per_second(0.001));
        let limit = BucketParams::tokens((service, bucket), rate, 1, [0; 3]).unwrap();
        self.plane.set_limits(&[], &[limit], 7).unwrap();
    }

    /// Admitted, refused, refused in shadow, of a service's rule.
    fn counts(&self, service: usize, rule: usize) -> [u64; 3] {
        let counts = self.plane.rule_counts().unwrap();
        let found = counts.iter().find(|c| (c.service, c.rule) == (service, rule)).unwrap();
        [found.admitted, found.refused, found.shadowed]
    }
}

fn service(name: &str, port: u16, requests: Option<RequestsConfig>) -> ServiceConfig {
    ServiceConfig { requests, ..plans::service(name, &[&format!("0.0.0.0:{port}")]) }
}

fn rule(path: &str, bucket: Option<&str>) -> RuleConfig {
    RuleConfig { action: Some(RuleAction::Refuse(RuleRefusal::Drop)), ..plans::rule(path, bucket) }
}

/// Rules that drop: path and place of the bucket.
fn rules(buckets: &[&str], rules: &[(&str, Option<usize>)]) -> Option<RequestsConfig> {
    let named = |(path, bucket): &(&str, Option<usize>)| rule(path, bucket.map(|at| buckets[at]));
    Some(plans::requests(buckets, rules.iter().map(named).collect()))
}

#[test]
fn tokens_and_limits_go_with_the_name_of_a_bucket_and_counts_with_the_rule() {
    let with = |requests| plan(vec![service("shop", 80, requests)]);
    let mut clients = Clients::new(&with(rules(&["cgi"], &[("/cgi/", Some(0)), ("/", None)])));
    clients.one_token(0, 0);
    assert!(clients.get(80, "/cgi/a"));
    assert!(!clients.get(80, "/cgi/a"));
    assert!(clients.get(80, "/other"));
    assert_eq!((clients.counts(0, 0), clients.counts(0, 1)), ([1, 1, 0], [1, 0, 0]));
    // The bucket stands elsewhere, the rule behind another, which takes a part of its paths.
    let moved = rules(&["new", "cgi"], &[("/cgi/free/", Some(0)), ("/cgi/", Some(1))]);
    clients.plane.apply(&with(moved)).unwrap();
    assert!(!clients.get(80, "/cgi/a"), "the token stays used");
    assert!(clients.get(80, "/cgi/free/a"), "a bucket without a limit yet");
    assert!(clients.get(80, "/other"), "no rule any more");
    assert_eq!((clients.counts(0, 0), clients.counts(0, 1)), ([1, 0, 0], [1, 2, 0]));
    // Another bucket under the same rule: another rule, with fresh tokens and no limit.
    clients.plane.apply(&with(rules(&["other"], &[("/cgi/", Some(0))]))).unwrap();
    assert!(clients.get(80, "/cgi/a"));
    assert_eq!(clients.counts(0, 0), [1, 0, 0]);
    let reasons = clients.plane.request_reasons().unwrap();
    let counted: Vec<_> = reasons.iter().map(|r| (r.reason, r.count)).collect();
    assert_eq!(counted, [(Reason::NoRule, 1)]);
}

/// What they sent before, nobody noted: it may be a request that is outstanding.
#[test]
fn connections_that_are_older_than_the_first_rules_of_their_service_pass() {
    let strict = || rules(&["all"], &[("/", Some(0))]);
    let with = |requests| plan(vec![service("shop", 80, requests), service("other", 81, strict())]);
    let mut clients = Clients::new(&with(None));
    let (early, other) = (clients.open(80), clients.open(81));
    clients.plane.apply(&with(strict())).unwrap();
    clients.one_token(0, 0);
    clients.one_token(1, 0);
    assert!(clients.get(80, "/") && clients.get(81, "/"));
    assert!(clients.ask(early, "/"), "older than the rules");
    assert!(!clients.ask(other, "/"), "it has its place from before");
    assert!(!clients.get(80, "/"));
    let reasons = clients.plane.request_reasons().unwrap();
    let counted: Vec<_> = reasons.iter().map(|r| (r.service, r.reason, r.count)).collect();
    assert_eq!(counted, [(0, Reason::Opaque, 1)]);
    // Other rules for the same services change nothing about who is known.
    let kept = clients.open(80);
    clients.plane.apply(&with(rules(&["all"], &[("/a", None), ("/", Some(0))]))).unwrap();
    assert!(!clients.ask(kept, "/"));
}

/// The same where a port comes to a service that has rules already.
#[test]
fn connections_of_a_port_that_comes_to_a_service_with_rules_pass() {
    let strict = || rules(&["all"], &[("/", Some(0))]);
    let mut clients =
        Clients::new(&plan(vec![service("shop", 80, strict()), service("plain", 81, None)]));
    let early = clients.open(81);
    let mut shop = service("shop", 80, strict());
    shop.listen.push("0.0.0.0:81".parse().unwrap());
    clients.plane.apply(&plan(vec![shop])).unwrap();
    clients.one_token(0, 0);
    assert!(clients.get(81, "/"));
    assert!(clients.ask(early, "/"), "older than the rules");
    assert!(!clients.get(81, "/"));
}

/// Nobody saw what a connection did while its service had no rules, or its port was not the service's:
/// what its client seems to leave out is no evasion. Those of another service keep their place.
#[test]
fn connections_of_which_packets_were_missed_pass() {
    let strict = || rules(&["all"], &[("/", Some(0))]);
    let with = |requests, port| {
        plan(vec![service("shop", port, requests), service("other", 81, strict())])
    };
    let mut clients = Clients::new(&with(strict(), 80));
    for (about, gap) in [("no rules", with(None, 80)), ("another port", with(strict(), 82))] {
        let (shop, other) = (clients.open(80), clients.open(81));
        clients.plane.apply(&gap).unwrap();
        clients.plane.apply(&with(strict(), 80)).unwrap();
        for service in [0, 1] {
            clients.one_token(service, 0);
            clients.get(80 + service as u16, "/");
        }
        assert!(clients.ask(shop, "/"), "{about}");
        assert!(!clients.ask(other, "/"), "{about}: another service");
        assert!(!clients.get(80, "/"), "{about}: a new connection");
    }
}

/// A table of rules that stand at one path, each for a host of its own: the last is found as the first
/// is, and a host that none names meets none.
#[test]
fn a_thousand_hosts_at_one_path() {
    let host = |n: usize| RuleConfig {
        host: Some(format!("tenant{n}.example").parse().unwrap()),
        ..rule("/", Some("all"))
    };
    let requests = plans::requests(&["all"], (0..1000).map(host).collect());
    let mut clients = Clients::new(&plan(vec![service("shop", 80, Some(requests))]));
    clients.one_token(0, 0);
    let mut passes = |name: &str| {
        let ports = clients.open(80);
        let request = format!("GET /a HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let (flags, numbers, payload) = (0x18, (11, 78), request.as_bytes());
        clients.give(CLIENT, &Segment { ports, flags, numbers, payload }.frame(false))
    };
    assert!(passes("tenant999.example"), "the token");
    assert!(!passes("TENANT999.example:80") && !passes("tenant0.example"));
    assert!(!passes("tenant500.example"));
    assert!(passes("tenant1000.example"), "no rule");
    let counts = |rule| clients.counts(0, rule);
    assert_eq!((counts(0), counts(500), counts(999)), ([0, 1, 0], [0, 1, 0], [1, 1, 0]));
    assert_eq!(counts(1), [0, 0, 0]);
}

#[test]
fn rules_never_meet_the_requests_of_another_service() {
    let strict = || rules(&["all"], &[("/", Some(0))]);
    let mut clients = Clients::new(&plan(vec![
        service("a", 80, strict()),
        service("b", 81, None),
        service("c", 82, strict()),
    ]));
    clients.one_token(0, 0);
    clients.one_token(2, 0);
    for port in [80, 81, 82, 80, 81, 82] {
        clients.get(port, "/");
    }
    assert_eq!((clients.counts(0, 0), clients.counts(2, 0)), ([1, 1, 0], [1, 1, 0]));
    // "b" takes the index of "a", which goes; "c" keeps its own.
    clients
        .plane
        .apply(&plan(vec![
            service("b", 81, rules(&["all"], &[("/", Some(0))])),
            service("d", 80, None),
            service("c", 82, strict()),
        ]))
        .unwrap();
    for port in [80, 81, 82] {
        assert_eq!(clients.get(port, "/"), port != 82, "{port}");
    }
    assert_eq!(clients.counts(0, 0), [1, 0, 0], "b begins at zero, without a's limit");
    assert_eq!(clients.counts(2, 0), [1, 2, 0], "c goes on");
}

#[test]
fn a_refusal_is_executed_as_the_service_or_the_rules_own_mode_says() {
    let mut own = rules(&["all"], &[("/", Some(0))]);
    own.as_mut().unwrap().mode = Some(Mode::Shadow);
    let mut clients = Clients::new(&plan(vec![
        service("a", 80, rules(&["all"], &[("/", Some(0))])),
        service("b", 81, own),
    ]));
    clients.one_token(0, 0);
    clients.one_token(1, 0);
    clients.get(80, "/");
    clients.get(81, "/");
    assert!(!clients.get(80, "/"));
    assert!(clients.get(81, "/"));
    clients.plane.set_shadow(0, true).unwrap();
    assert!(clients.get(80, "/"));
    for service in [0, 1] {
        clients.plane.set_shadow(service, false).unwrap();
    }
    assert!(!clients.get(80, "/"));
    assert!(clients.get(81, "/"), "its rules have a mode of their own");
    assert_eq!((clients.counts(0, 0), clients.counts(1, 0)), ([1, 2, 1], [1, 0, 2]));
    let totals = clients.plane.totals(0).unwrap();
    assert_eq!((totals.buckets[0].offered, totals.buckets[0].refused), ([0, 4, 0], [0, 3, 0]));
    assert_eq!(totals.buckets[0].refused_first, 3, "each is the first of its connection");
}

#[test]
fn connections_that_are_followed_are_counted_by_the_sweep() {
    let mut clients = Clients::new(&plan(vec![service("a", 80, rules(&[], &[("/", None)]))]));
    clients.plane.heartbeat().unwrap();
    for _ in 0..5 {
        clients.get(80, "/");
    }
    assert_eq!(clients.plane.followed().connections, 0, "looked at before");
    let start = clients.plane.heartbeat().unwrap();
    while clients.plane.followed().connections != 5 {
        let now = clients.plane.heartbeat().unwrap();
        assert!(now.since(start) < tidegate_units::Nanos::from_secs(5), "never looked at");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    assert_eq!(clients.plane.followed().limit, 131_072);
}

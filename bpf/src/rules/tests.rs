// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rule sets in tables that a test can look into: what a packet finds, also between any two writes.

use super::*;
use crate::testing::plans::{self, plan, requests, rule, tls_rule, unevaluable_rule};
use tidegate_config::{BucketConfig, ControlledResource, RuleAction, ServiceConfig};
use zerocopy::FromBytes;

/// The tables, and what a packet must find in them after every write.
struct Model<'a> {
    tables: BTreeMap<(&'static str, Vec<u8>), Vec<u8>>,
    /// Slots that a packet may still use.
    read: Vec<u32>,
    writes: usize,
    check: &'a dyn Fn(&Model<'_>),
}

impl Tables for Model<'_> {
    fn control(&self) -> Result<RequestControl, Error> {
        let bytes = self.get("tg_request_control", &0_u32.to_ne_bytes());
        Ok(bytes.and_then(|bytes| abi::read(&bytes)).unwrap_or_default())
    }

    fn keys(&self, table: &'static str) -> Vec<Vec<u8>> {
        self.tables.keys().filter(|(name, _)| *name == table).map(|(_, key)| key.clone()).collect()
    }

    fn write(&mut self, table: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.tables.insert((table, key.to_vec()), value.to_vec());
        self.read.push(self.control()?.slot);
        self.writes += 1;
        (self.check)(self);
        Ok(())
    }

    fn delete(&mut self, table: &'static str, key: &[u8]) -> Result<(), Error> {
        self.tables.remove(&(table, key.to_vec()));
        self.writes += 1;
        (self.check)(self);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.read = vec![self.control()?.slot];
        Ok(())
    }
}

/// A request, or a connection with TLS: no path.
#[derive(Clone, Debug)]
struct Probe {
    service: u8,
    path: Option<&'static str>,
    method: u8,
    host: &'static str,
    cookies: &'static [(&'static str, &'static str)],
}

fn get(path: &'static str) -> Probe {
    Probe { service: 0, path: Some(path), method: 1, host: "", cookies: &[] }
}

/// What a packet finds: number of the rule, and whether a cookie protects it.
type Found = Option<(u32, bool)>;

fn hash(bytes: &[u8]) -> u64 {
    let mut identity = Identity::default();
    identity.write(bytes);
    identity.finish()
}

impl Model<'_> {
    fn new(check: &dyn Fn(&Model<'_>)) -> Model<'_> {
        Model { tables: BTreeMap::new(), read: vec![0], writes: 0, check }
    }

    fn get(&self, table: &'static str, key: &[u8]) -> Option<Vec<u8>> {
        self.tables.get(&(table, key.to_vec())).cloned()
    }

    fn entry<T: FromBytes>(
        &self,
        table: &'static str,
        slot: u32,
        (size, number): (usize, u32),
    ) -> T {
        let key = (slot * size as u32 + number).to_ne_bytes();
        self.get(table, &key).and_then(|bytes| abi::read(&bytes)).expect("an entry")
    }

    /// What http/rule.h does, in the slot that is in force.
    fn find(&self, probe: &Probe) -> Found {
        self.find_in(self.control().unwrap().slot, probe)
    }

    fn find_in(&self, slot: u32, probe: &Probe) -> Found {
        if self.control().unwrap().services >> probe.service & 1 == 0 {
            return None;
        }
        let mut next = self.longest(slot, probe)?;
        for _ in 0..abi::RULE_STEPS {
            let rule: Rule = self.entry("tg_rules", slot, (abi::RULES_MAX, next));
            if self.matches(slot, &rule, probe) {
                return Some((next, self.any(slot, rule.protect, probe)));
            }
            next = rule.next.into();
            if next == 0 {
                return None;
            }
        }
        panic!("more rules than a packet may look at");
    }

    fn longest(&self, slot: u32, probe: &Probe) -> Option<u32> {
        let path = probe.path.unwrap_or_default().as_bytes();
        let lengths = (0..=path.len()).rev();
        lengths
            .into_iter()
            .find_map(|length| {
                let key = PathKey { slot: slot as u8, ..path_key(probe.service, &path[..length]) };
                self.get("tg_paths", key.as_bytes())
            })
            .map(|first| u32::from_ne_bytes(first.try_into().unwrap()))
    }

    fn matches(&self, slot: u32, rule: &Rule, probe: &Probe) -> bool {
        let rest = probe.host.find('.').map(|dot| &probe.host[dot..]).unwrap_or_default();
        let id = |name: &str| {
            let key =
                HostKey { hash: hash(name.as_bytes()), slot: slot as u8, ..HostKey::default() };
            self.get("tg_hosts", key.as_bytes())
        };
        let fits = |name: &str| id(name) == Some(rule.host.to_ne_bytes().to_vec());
        (rule.flags & abi::RULE_TLS != 0) == probe.path.is_none()
            && (probe.path.is_none() || rule.methods & probe.method != 0)
            && (rule.host == 0 || fits(probe.host) || fits(rest))
            && self.passed(slot, probe) & rule.cookies_all == rule.cookies_all
            && !self.any(slot, rule.cookies_none, probe)
    }

    /// The tests that a request passes.
    fn passed(&self, slot: u32, probe: &Probe) -> u32 {
        let holds = |test: CookieTest| {
            probe.cookies.iter().any(|(name, value)| {
                hash(name.as_bytes()) == test.name
                    && (test.value == 0 || hash(value.as_bytes()) == test.value)
            })
        };
        let tests = 0..self.control().unwrap().cookies;
        let place = |test| (abi::COOKIE_TESTS_MAX, test);
        tests
            .filter(|test| holds(self.entry("tg_cookie_tests", slot, place(*test))))
            .fold(0, |all, test| all | 1 << test)
    }

    fn any(&self, slot: u32, tests: u32, probe: &Probe) -> bool {
        self.passed(slot, probe) & tests != 0
    }
}

/// Seats in the order of the plan: rules from `first` on, one bucket each, a text each.
fn seats(plan: &Plan, first: u32) -> Vec<Seats> {
    let mut next = first;
    let mut seat = |(at, service): (usize, &ServiceConfig)| {
        let rules = service.requests.as_ref().map_or(0, |requests| requests.rules.len() as u32);
        next += rules;
        let buckets = service.requests.as_ref().map_or(0, |r| r.buckets.len() as u32);
        Seats {
            rules: (next - rules..next).collect(),
            buckets: (0..buckets).map(|bucket| bucket + 10 * at as u32).collect(),
            answer: Some(at as u32),
        }
    };
    plan.config.services.iter().enumerate().map(&mut seat).collect()
}

/// A service with rules; it listens nowhere.
fn service(name: &str, requests: RequestsConfig) -> ServiceConfig {
    ServiceConfig { requests: Some(requests), ..plans::service(name, &[]) }
}

fn plan_of(rules: Vec<RuleConfig>) -> Plan {
    plan(vec![service("shop", requests(&["a"], rules))])
}

fn in_force(plan: &Plan) -> Model<'static> {
    let mut model = Model::new(&|_| ());
    put_in_force(&mut model, &compile(plan, &seats(plan, 1), &hash)).unwrap();
    model
}

fn with(path: &str, change: impl Fn(&mut RuleConfig)) -> RuleConfig {
    let mut rule = rule(path, Some("a"));
    change(&mut rule);
    rule
}

fn cookie(name: &str, value: Option<&str>) -> Cookie {
    Cookie { name: name.into(), value: value.map(Into::into) }
}

fn asks(name: &str, value: Option<&str>, absent: bool) -> Option<CookieMatch> {
    Some(CookieMatch { name: name.into(), value: value.map(Into::into), absent })
}

#[test]
fn the_longest_path_wins_then_the_order_of_the_file_then_shorter_paths() {
    let get_only = |m: &mut RuleConfig| m.methods = vec![Method::Get];
    let post_only = |m: &mut RuleConfig| m.methods = vec![Method::Post];
    // Numbers 1 … 6.
    let model = in_force(&plan_of(vec![
        with("/a/b", get_only),
        rule("/", None),
        with("/a", post_only),
        with("/a/b", post_only),
        with("/a", |m| m.host = "x.example".parse().ok()),
        rule("/a/b/c/d", None),
    ]));
    let probe = |path, method, host| Probe { method, host, ..get(path) };
    let cases = [
        (probe("/a/b/c", 1, ""), 1),
        (probe("/a/b/c", 4, ""), 4),
        (probe("/a/b", 4, ""), 4),
        // Neither rule of /a/b takes a PUT: those of /a are next, then those of /.
        (probe("/a/b/c", 8, "x.example"), 5),
        (probe("/a/b/c", 8, "y.example"), 2),
        (probe("/a/bc", 1, ""), 1),
        (probe("/a/", 4, "x.example"), 3),
        (probe("/b", 1, ""), 2),
        (probe("/a/b/c/d/e", 8, ""), 6),
        (probe("/a/b/c/", 8, ""), 2),
    ];
    for (probe, rule) in cases {
        assert_eq!(model.find(&probe), Some((rule, false)), "{probe:?}");
    }
}

#[test]
fn hosts_below_a_name_are_those_with_one_label_more() {
    let host = |host: &'static str| with("/", move |m| m.host = Some(host.parse().unwrap()));
    let model =
        in_force(&plan_of(vec![host("Shop.Example"), host("*.shop.example"), host("*.example")]));
    let cases = [
        ("shop.example", Some(1)),
        ("a.shop.example", Some(2)),
        ("a.b.shop.example", None),
        ("other.example", Some(3)),
        ("example", None),
        ("", None),
    ];
    for (host, rule) in cases {
        let found = model.find(&Probe { host, ..get("/") });
        assert_eq!(found.map(|(rule, _)| rule), rule, "{host}");
    }
}

#[test]
fn cookies_are_asked_for_absent_or_protect() {
    let model = in_force(&plan_of(vec![
        with("/", |m| m.cookie = asks("k", Some("v"), false)),
        with("/", |m| {
            m.cookie = asks("bot", None, true);
            m.protect = vec![cookie("tier", Some("gold")), cookie("s", None)];
        }),
    ]));
    let cases: [(&'static [(&str, &str)], Found); 6] = [
        (&[("s", "1"), ("k", "v")], Some((1, false))),
        (&[("s", "1"), ("k", "w")], Some((2, true))),
        (&[("tier", "gold")], Some((2, true))),
        (&[("tier", "silver")], Some((2, false))),
        (&[("bot", "x"), ("tier", "gold")], None),
        (&[], Some((2, false))),
    ];
    for (cookies, found) in cases {
        assert_eq!(model.find(&Probe { cookies, ..get("/") }), found, "{cookies:?}");
    }
}

#[test]
fn tls_is_a_world_of_its_own_and_a_rule_without_a_bucket_names_none() {
    let tls = tls_rule("api.example", None);
    let plan = plan_of(vec![tls, with("/", |m| m.host = "x".parse().ok())]);
    let model = in_force(&plan);
    let hello = |host| Probe { path: None, host, ..get("/") };
    assert_eq!(model.find(&hello("api.example")), Some((1, false)));
    assert_eq!(model.find(&hello("x")), None, "HTTP's rules do not follow those of TLS");
    assert_eq!(model.find(&Probe { host: "api.example", ..get("/") }), None);
    let rule: Rule = model.entry("tg_rules", 1, (abi::RULES_MAX, 1));
    assert_eq!((rule.bucket, rule.flags, rule.refuse), (128, abi::RULE_TLS, 2));
}

#[test]
fn retry_after_is_spread_from_first_to_last_and_the_texts_are_whole() {
    let model = in_force(&plan_of(vec![rule("/", Some("a"))]));
    let rule: Rule = model.entry("tg_rules", 1, (abi::RULES_MAX, 1));
    assert_eq!((rule.answer, rule.refuse), (0, 1));
    let mut spread = Vec::new();
    for variant in 0..8 {
        let text: AnswerText = model.entry("tg_answer_texts", 1, (abi::ANSWERS_MAX, variant));
        let all = String::from_utf8(text.text[..text.bytes.into()].to_vec()).unwrap();
        let (head, body) = all.split_at(text.head.into());
        assert_eq!(body, "The server is busy. Please try again.\n");
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
        assert!(head.ends_with("Connection: close\r\n\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        let after = head.split("Retry-After: ").nth(1).unwrap().split('\r').next().unwrap();
        spread.push(after.parse::<u32>().unwrap());
    }
    assert_eq!(spread, [2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn sums_are_those_of_the_internet_checksum() {
    // RFC 1071, section 3, of which an even and an odd number of bytes.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum(&bytes).to_ne_bytes(), [0xdd, 0xf2]);
    assert_eq!(sum(&bytes[..7]), sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0x00]));
    assert_eq!(sum(&[0xff; 2000]), 0xffff);
    assert_eq!(sum(&[]), 0);
}

/// Two plans of three services that differ in everything, and what must be found in each.
struct Two {
    plans: [Plan; 2],
    probes: Vec<Probe>,
    found: [Vec<Found>; 2],
}

impl Two {
    fn new() -> Self {
        let session = |m: &mut RuleConfig| m.cookie = asks("s", None, false);
        let plans = [
            three([
                vec![with("/a", session), rule("/a", Some("a")), rule("/b", None)],
                vec![rule("/", Some("a"))],
                vec![],
            ]),
            three([
                vec![rule("/b", Some("a")), with("/a", |m| m.protect = vec![cookie("p", None)])],
                vec![],
                vec![with("/", session)],
            ]),
        ];
        let of_service = |service| {
            ["/a", "/a/x", "/b", "/c"].into_iter().flat_map(move |path| {
                let cookies: [&'static [(&str, &str)]; 3] = [&[], &[("s", "1")], &[("p", "1")]];
                cookies.map(|cookies| Probe { service, cookies, ..get(path) })
            })
        };
        let probes: Vec<Probe> = (0..3).flat_map(of_service).collect();
        let mut two = Self { plans, probes, found: [vec![], vec![]] };
        for which in [0, 1] {
            let mut model = Model::new(&|_| ());
            put_in_force(&mut model, &two.set(which)).unwrap();
            two.found[which] = two.all(&model);
        }
        assert_ne!(two.found[0], two.found[1]);
        two
    }

    fn set(&self, which: usize) -> RuleSet {
        let plan = &self.plans[which];
        compile(plan, &seats(plan, [1, 50][which]), &hash)
    }

    fn all(&self, model: &Model<'_>) -> Vec<Found> {
        self.probes.iter().map(|probe| model.find(probe)).collect()
    }

    /// For each service a packet finds all of the old rules or all of the new ones, in whichever
    /// slot it began.
    fn check(&self, model: &Model<'_>) {
        for slot in &model.read {
            let found: Vec<Found> = self.probes.iter().map(|p| model.find_in(*slot, p)).collect();
            let each = self.probes.len() / 3;
            for service in 0..3 {
                let of = |all: &[Found]| all[service * each..(service + 1) * each].to_vec();
                let whole = self.found.iter().any(|expected| of(&found) == of(expected));
                assert!(whole, "service {service} after write {}: {found:?}", model.writes);
            }
        }
    }

    /// The first plan in force, and every write behind it looked at.
    fn watched<'a>(&self, check: &'a dyn Fn(&Model<'_>)) -> Model<'a> {
        let mut model = Model::new(&|_| ());
        put_in_force(&mut model, &self.set(0)).unwrap();
        Model { check, ..model }
    }
}

fn three(rules: [Vec<RuleConfig>; 3]) -> Plan {
    let service =
        |(n, rules): (usize, Vec<RuleConfig>)| service(&format!("s{n}"), requests(&["a"], rules));
    plan(rules.into_iter().enumerate().map(service).collect())
}

#[test]
fn between_any_two_writes_no_packet_sees_half_a_rule_set() {
    let two = Two::new();
    let check = |model: &Model<'_>| two.check(model);
    let mut model = two.watched(&check);
    for which in [1, 0, 1] {
        put_in_force(&mut model, &two.set(which)).unwrap();
        assert_eq!(two.all(&model), two.found[which]);
    }
    assert!(model.writes > 150, "{} writes were looked behind", model.writes);
    // Nothing of the old set is left to be found.
    let slot = model.control().unwrap().slot;
    assert!(
        model.keys("tg_paths").iter().all(|key| u32::from(key[offset_of!(PathKey, slot)]) == slot)
    );
}

/// The check above can fail: rules written into the slot in force.
#[test]
#[should_panic(expected = "after write")]
fn rules_written_where_packets_look_are_noticed() {
    let two = Two::new();
    let check = |model: &Model<'_>| two.check(model);
    fill(&mut two.watched(&check), &two.set(1), 1).unwrap();
}

/// And so does a slot that is emptied before the last packet is through.
#[test]
#[should_panic(expected = "after write")]
fn a_slot_emptied_under_a_packet_is_noticed() {
    let two = Two::new();
    let check = |model: &Model<'_>| two.check(model);
    let mut model = two.watched(&check);
    fill(&mut model, &two.set(1), 0).unwrap();
    let control = model.control().unwrap();
    put(&mut model, RequestControl { slot: 0, ..control }).unwrap();
    empty(&mut model, 1).unwrap();
}

#[test]
fn a_paused_service_has_no_rules_until_the_next_set() {
    let plan = plan_of(vec![rule("/", Some("a"))]);
    let mut model = in_force(&plan);
    assert!(model.find(&get("/")).is_some());
    pause(&mut model, 0b10).unwrap();
    assert!(model.find(&get("/")).is_some(), "another service");
    pause(&mut model, 0b01).unwrap();
    assert_eq!(model.find(&get("/")), None);
    put_in_force(&mut model, &compile(&plan, &seats(&plan, 1), &hash)).unwrap();
    assert!(model.find(&get("/")).is_some());
}

#[test]
fn a_service_that_gets_rules_waits_until_the_hooks_listen() {
    let plan = plan_of(vec![rule("/", Some("a"))]);
    let mut model = in_force(&plan);
    let since = |model: &Model<'_>| model.control().unwrap().since_ns;
    assert_eq!(since(&model), NOBODY);
    listen_from(&mut model, Nanos(7)).unwrap();
    put_in_force(&mut model, &compile(&plan, &seats(&plan, 1), &hash)).unwrap();
    assert_eq!(since(&model), 7, "the same services");
    pause(&mut model, 1).unwrap();
    assert_eq!(since(&model), 7);
    put_in_force(&mut model, &compile(&plan, &seats(&plan, 1), &hash)).unwrap();
    assert_eq!(since(&model), NOBODY);
}

#[test]
fn who_a_rule_is_does_not_depend_on_its_place_or_its_answer() {
    let of = |buckets: [&str; 2], rules: &[&RuleConfig]| {
        let rules = rules.iter().copied().cloned().collect();
        identities(&plan(vec![service("shop", requests(&buckets, rules))]))
    };
    let (a, b) = (rule("/a", Some("x")), rule("/b", Some("y")));
    let first = of(["x", "y"], &[&a, &b]);
    let turned = of(["x", "y"], &[&b, &a]);
    assert_eq!(first.rules, [turned.rules[1], turned.rules[0]]);
    let same = of(["y", "x"], &[&a]);
    assert_eq!(same.rules[0], first.rules[0], "the same bucket at another place");
    let moved = rule("/a", Some("y"));
    let other = of(
        ["x", "y"],
        &[&moved, &RuleConfig { action: Some(RuleAction::Refuse(RuleRefusal::Drop)), ..b }],
    );
    assert_ne!(other.rules[0], first.rules[0], "another bucket");
    assert_eq!(other.rules[1], first.rules[1], "another answer");
    let written = |methods: &[Method]| {
        of(["x", "y"], &[&RuleConfig { methods: methods.to_vec(), ..a.clone() }]).rules[0]
    };
    let both = [Method::Get, Method::Post];
    assert_eq!(written(&both), written(&[Method::Post, Method::Get]), "the same methods");
    assert_eq!(written(&Method::ALL), first.rules[0], "all of them, written or not");
    assert_ne!(written(&both), first.rules[0]);
}

/// Every key of a rule, as the hooks have it.
#[test]
fn a_rule_becomes_what_it_says() {
    let text = "interfaces: [{name: lo}]
services:
  web:
    mode: enforce
    listen: ['*:80']
    requests:
      buckets: {a: {resource: cpu}, b: {resource: bandwidth}}
      rules:
        - {path: /a, methods: [GET, OTHER], host: '*.x.example', cookie: {name: s}, protect: [{name: p, value: gold}], close_persistent: true, bucket: b}
        - {path: /a, cookie: {name: s, value: v, absent: true}, action: allow}
        - {server_name: y.example, bucket: a}
        - {path: /b, bucket: a, action: drop}
        - {unevaluable: true, action: allow}
";
    let model = in_force(&Plan { config: config(text), ..Plan::default() });
    let raw = |number: u32| -> Rule { model.entry("tg_rules", 1, (abi::RULES_MAX, number)) };
    let (first, second, tls, drop, rest) = (raw(1), raw(2), raw(3), raw(4), raw(5));
    assert_eq!((first.methods, first.flags), (0b1000_0001, abi::RULE_CLOSE));
    assert_eq!((first.bucket, first.refuse), (1, refusal(RuleRefusal::Busy)));
    assert_eq!(
        [first.cookies_all, first.cookies_none, first.protect].map(u32::count_ones),
        [1, 0, 1]
    );
    assert_eq!(
        (second.methods, usize::from(second.bucket)),
        (abi::METHOD_ANY, abi::RULE_BUCKETS_MAX)
    );
    assert_eq!([second.cookies_all, second.cookies_none].map(u32::count_ones), [0, 1]);
    assert_eq!((tls.flags, tls.bucket), (abi::RULE_TLS, 0));
    assert_eq!(tls.refuse, refusal(RuleRefusal::Reset), "no 503 can be put into TLS");
    assert_eq!(drop.refuse, refusal(RuleRefusal::Drop));
    assert_eq!((rest.methods, usize::from(rest.bucket)), (0, abi::RULE_BUCKETS_MAX));
    let unevaluable: [u8; 4] = model
        .get("tg_unevaluable", &(SERVICES_MAX as u32).to_ne_bytes())
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap();
    assert_eq!(u32::from_ne_bytes(unevaluable), 5);
}

fn config(text: &str) -> tidegate_config::Config {
    let registry = tidegate_config::Registry::new(["fresh_first", "abacus"], ["default"]);
    tidegate_config::parse(text, &registry).unwrap()
}

/// The bounds of the configuration are those of the tables: what fills them to the last entry is
/// compiled, and one more is refused before it comes here.
#[test]
fn what_fills_the_tables_is_compiled_and_one_more_is_refused() {
    type Rules<'a> = &'a dyn Fn(usize) -> RuleConfig;
    let spread: Rules<'_> = &|n| rule(&format!("/p{n}/"), Some("a"));
    let hosts: Rules<'_> = &|n| with("/p/", |m| m.host = format!("*.h{n}.example").parse().ok());
    let values: Rules<'_> = &|n| with("/p", |m| m.cookie = asks(&format!("c{n}"), None, true));
    let protects: Rules<'_> =
        &|n| with(&format!("/p{n}"), |m| m.protect = vec![cookie("c", Some(&format!("v{n}")))]);
    for (what, most, rules) in [
        ("rules", abi::RULES_MAX - 1, spread),
        ("rules", abi::RULES_MAX - 1, hosts),
        ("different cookies", abi::COOKIE_TESTS_MAX, values),
        ("different cookies", abi::COOKIE_TESTS_MAX, protects),
    ] {
        let plan = |n: usize| plan_of((0..n).map(rules).collect());
        plan(most).policies().unwrap();
        in_force(&plan(most));
        let refused = plan(most + 1).policies().unwrap_err().to_string();
        let wanted = format!("there are {} {what} in all services; at most {most}", most + 1);
        assert!(refused.contains(&wanted), "{refused}");
    }
    let body = |n: usize| {
        let mut requests = requests(&["a"], vec![rule("/", Some("a"))]);
        requests.response_body = "x".repeat(n);
        plan(vec![service("shop", requests)])
    };
    let longest = |n: usize| -> AnswerText {
        in_force(&body(n)).entry("tg_answer_texts", 1, (abi::ANSWERS_MAX, 7))
    };
    let room = abi::ANSWER_BYTES_MAX - usize::from(longest(100).head);
    body(room).policies().unwrap();
    assert_eq!(usize::from(longest(room).bytes), abi::ANSWER_BYTES_MAX);
    let refused = body(room + 1).policies().unwrap_err().to_string();
    assert!(refused.contains(&format!("so the body at most {room}")), "{refused}");
    let many = |n: usize| {
        let mut all = requests(&["a"], vec![rule("/", Some("a"))]);
        let bucket = |n: usize| BucketConfig::new(&format!("b{n}"), ControlledResource::Cpu);
        all.buckets.extend((1..n).map(bucket));
        plan(vec![service("shop", all)])
    };
    many(abi::RULE_BUCKETS_MAX).policies().unwrap();
    let refused = many(abi::RULE_BUCKETS_MAX + 1).policies().unwrap_err().to_string();
    assert!(refused.contains("there are 129 buckets in all services; at most 128"), "{refused}");
}

#[test]
fn texts_and_cookies_are_counted_once_however_often_they_are_named() {
    let texts = |n: usize, different: usize| {
        let service_of = |n: usize| {
            let mut requests = requests(&["a"], vec![rule("/", Some("a"))]);
            requests.response_body = format!("busy {}", n % different);
            service(&format!("s{n}"), requests)
        };
        plan((0..n).map(service_of).collect())
    };
    texts(20, 16).policies().unwrap();
    in_force(&texts(16, 16));
    let refused = texts(17, 17).policies().unwrap_err().to_string();
    assert!(refused.contains("there are 17 different texts of a 503"), "{refused}");
    let cookies = |n: usize, different: usize| {
        let asking = |n: usize| {
            let name = format!("c{}", n % different);
            with(&format!("/{n}/"), |m| m.cookie = asks(&name, None, false))
        };
        plan_of((0..n).map(asking).collect())
    };
    cookies(64, 32).policies().unwrap();
    in_force(&cookies(64, 32));
    let refused = cookies(33, 33).policies().unwrap_err().to_string();
    assert!(refused.contains("there are 33 different cookies"), "{refused}");
}

/// The annotated configuration and the one with everything, from the file to the tables.
#[test]
fn what_the_configuration_takes_is_compiled() {
    let everything = include_str!("../../../crates/config/tests/config/good/requests.yaml");
    in_force(&Plan { config: config(everything), ..Plan::default() });
    let alone = plan_of(vec![unevaluable_rule(Some("a"))]);
    assert_eq!(in_force(&alone).find(&get("/")), None);
}

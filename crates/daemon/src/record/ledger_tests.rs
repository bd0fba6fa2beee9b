// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger in virtual time.

use super::*;
use proptest::prelude::*;
use tidegate_config::{Registry, parse};
use tidegate_model::shadow::{ShadowQuestion, ShadowReport, Verdict};

const SHADOW: &str = "
interfaces: [{name: lo}]
services:
  web: {mode: shadow, listen: ['*:80'], objective: 100ms}
";

fn config(text: &str) -> Config {
    parse(text, &Registry::new(["fresh_first", "token_bucket"], ["default"])).unwrap()
}

/// One service, `web`, and what the dataplane says of it.
struct World {
    ledger: Ledger,
    config: Config,
    at: Moment,
    counts: Counted,
    rules: Vec<RuleCounts>,
    totals: BTreeMap<String, ServiceTotals>,
    released: bool,
}

impl World {
    fn new(text: &str) -> Self {
        let at = Moment {
            boot: "b".into(),
            up: Nanos::from_secs(1000),
            unix: Nanos::from_secs(1_800_000_000),
        };
        Self::after(Ledger::default(), text, at)
    }

    /// A process that starts with what another one left.
    fn after(ledger: Ledger, text: &str, at: Moment) -> Self {
        let totals = BTreeMap::from([("web".to_owned(), ServiceTotals::default())]);
        let counts = Counted { services: vec![Vec::new()], ..Counted::default() };
        let (config, rules) = (config(text), Vec::new());
        let mut world = Self { ledger, config, at, counts, rules, totals, released: false };
        world.see();
        world
    }

    fn see(&mut self) {
        let Self { ledger, config, at, counts, rules, totals, released } = self;
        let (released, rules) = (*released, &|_| rules.as_slice());
        ledger.see(at, &Shadowed { config, released, counts, rules }, totals);
    }

    fn count(&mut self, verdict: &str, shadow: bool, reason: &str, more: u64) {
        let verdicts = &mut self.counts.services[0];
        let same = |known: &&mut VerdictCount| {
            (&*known.verdict, known.shadow, &*known.reason) == (verdict, shadow, reason)
        };
        match verdicts.iter_mut().find(same) {
            Some(known) => known.count += more,
            None => verdicts.push(VerdictCount {
                class: "default".into(),
                verdict: verdict.into(),
                shadow,
                reason: reason.into(),
                count: more,
            }),
        }
    }

    /// A second in which so many are admitted and would be refused, with responses after `took`, and the
    /// accept queue at this share.
    fn second(&mut self, (admitted, refused): (u64, u64), took: Nanos, queue: f64) {
        self.at.up += Nanos::SECOND;
        self.at.unix += Nanos::SECOND;
        self.count("admit", false, "token", admitted);
        self.count("reject", true, "rate", refused);
        let totals = self.totals.get_mut("web").unwrap();
        (0..admitted + refused).for_each(|_| totals.first_byte.record(took));
        let queue = AcceptQueue { length: (queue * 100.0) as u64, limit: 100 };
        self.ledger.look("web", Some(queue));
        self.see();
    }

    fn seconds(&mut self, seconds: u64, flow: (u64, u64), took: Nanos) {
        (0..seconds).for_each(|_| self.second(flow, took, 0.0));
    }

    fn report(&self, since: Option<Nanos>) -> ShadowReport {
        let rows = self.ledger.rows("web");
        let mode = self.config.services[0].mode;
        let (service, now, percent, class) = ("web", &self.at, None, None);
        let asked = ShadowQuestion { service, mode, percent, since, class, now };
        ShadowReport::of(&asked, rows.iter())
    }

    fn restart(mut self, text: &str) -> Self {
        self.ledger.close();
        let (ledger, lost) = Ledger::decode(&self.ledger.encode(), "");
        assert_eq!(lost, 0);
        Self::after(ledger, text, self.at)
    }
}

const FAST: Nanos = Nanos::from_millis(20);
const SLOW: Nanos = Nanos::from_millis(200);

/// What is refused of a healthy service is wrong, what is refused of an overloaded one is not, and of few
/// exchanges nothing is said.
#[test]
fn each_minute_counts_by_how_the_service_was() {
    let mut world = World::new(SHADOW);
    world.seconds(60, (9, 1), FAST);
    world.seconds(60, (40, 60), SLOW);
    world.seconds(60, (1, 0), FAST);
    // A long accept queue for a moment is none; for two ticks of a minute it is.
    for queues in [1, 2] {
        (0..60).for_each(|s| {
            let queue = if s < queues { 0.9 } else { 0.1 };
            world.second((9, 2), FAST, queue);
        });
    }
    let report = world.report(None);
    let parts = [&report.healthy, &report.overloaded, &report.unknown];
    let found = parts.map(|part| (part.watched_s as u64, part.offered, part.refused));
    // 1 of 60 ticks is more than 1 %: in a second tick of 100 ms it would not be.
    assert_eq!(found, [(60, 600, 60), (180, 6000 + 1320, 3600 + 240), (60, 60, 0)]);
    assert_eq!(report.verdict, Some(Verdict::Unsafe), "{}", report.sentence);
    let line = &report.refused_by[0];
    assert_eq!((line.reason.as_deref(), line.refused, line.healthy), (Some("rate"), 3900, 60));
    let sums = world.ledger.sums("web").unwrap();
    assert_eq!((sums.refused, sums.offered[2]), ([60, 3840, 0], 60));
}

#[test]
fn a_moment_of_a_long_queue_is_no_overload() {
    for (long, health) in [(1, Health::Healthy), (2, Health::Overloaded)] {
        let mut world = World::new(SHADOW);
        let queue = |long| AcceptQueue { length: if long { 51 } else { 50 }, limit: 100 };
        (0..100).for_each(|tick| world.ledger.look("web", Some(queue(tick < long))));
        world.seconds(60, (9, 0), FAST);
        let rows = world.ledger.rows("web");
        // The ticks of `seconds` are short ones, too.
        let share = long as f64 / 160.0;
        assert_eq!(share > QUEUE_TICKS, health == Health::Overloaded);
        assert!(rows[0].tallies.of(health).span > Nanos::ZERO, "{long}: {rows:?}");
    }
}

/// p99 and the number of exchanges, on both sides of their bounds.
#[test]
fn the_bounds_of_health_are_those_that_are_told() {
    let of = |count: u64, slow: u64| {
        let mut world = World::new(SHADOW);
        let totals = world.totals.get_mut("web").unwrap();
        (0..count).for_each(|n| totals.first_byte.record(if n < slow { SLOW } else { FAST }));
        world.seconds(60, (0, 0), FAST);
        let rows = world.ledger.rows("web");
        Health::ALL.into_iter().find(|h| !rows[0].tallies.of(*h).is_empty())
    };
    assert_eq!(of(TIMED_MIN - 1, 0), Some(Health::Unknown));
    assert_eq!(of(TIMED_MIN - 1, 50), Some(Health::Unknown));
    assert_eq!(of(TIMED_MIN, 1), Some(Health::Healthy));
    assert_eq!(of(TIMED_MIN, 2), Some(Health::Overloaded));
}

/// Whoever kills the process loses a minute; whoever restarts it nothing, also under another clock.
#[test]
fn a_restart_and_a_clock_that_was_set_lose_nothing() {
    let mut world = World::new(SHADOW);
    world.seconds(90, (100, 10), SLOW);
    let before = world.report(None);
    assert_eq!(before.all.refused, 900, "the half minute counts as well");
    world.at.unix = Nanos::from_secs(5);
    let mut world = world.restart(SHADOW);
    let after = world.report(None);
    assert_eq!((after.all, after.overloaded), (before.all, before.overloaded));
    assert_eq!(after.since_unix_s, Some(0.0), "times of day are those of the clock now");
    world.seconds(60, (100, 10), SLOW);
    assert_eq!(world.report(None).all.refused, 1500);
    // Another boot: its own clock, and what was before is there.
    world.at.boot = "c".into();
    (world.at.up, world.at.unix) = (Nanos::from_secs(9), Nanos::from_secs(1_900_000_000));
    let mut world = world.restart(SHADOW);
    world.seconds(61, (100, 10), SLOW);
    assert_eq!(world.report(None).all.refused, 1500 + 610);
    assert_eq!(world.report(Some(HOUR)).all.refused, 610);
}

/// What was enforced meanwhile, or is another policy, begins another time in shadow.
#[test]
fn a_time_in_shadow_ends_when_it_is_enforced_or_configured_otherwise() {
    let mut world = World::new(SHADOW);
    world.seconds(60, (100, 10), SLOW);
    world.released = true;
    world.seconds(60, (0, 0), SLOW);
    world.released = false;
    world.seconds(60, (100, 10), SLOW);
    let report = world.report(None);
    // The second in which it is seen to be back counts for nothing, that in which it is thrown does.
    assert_eq!((report.all.refused, report.all.watched_s), (600 + 590, 120.0));
    let enforce = SHADOW.replace("shadow", "enforce");
    let mut world = world.restart(&enforce);
    world.count("reject", false, "rate", 500);
    world.seconds(60, (100, 0), FAST);
    assert_eq!(world.report(None).all.refused, 1190, "of the last time in shadow");
    // Also if nobody ran when it was enforced again.
    let mut world = world.restart(SHADOW);
    world.seconds(60, (100, 1), FAST);
    let report = world.report(None);
    assert_eq!((report.all.refused, report.all.watched_s), (60, 60.0));
    let other = SHADOW.replace("objective", "policy: {name: token_bucket}, objective");
    let mut world = world.restart(&other);
    world.seconds(10, (100, 3), FAST);
    assert_eq!(world.report(None).all.refused, 30);
    assert_eq!(world.report(Some(HOUR)).all.refused, 30, "another policy says nothing of it");
}

/// Of a canary what is only counted, of a mode of the rules what the rules would refuse.
#[test]
fn canaries_and_request_rules_count_as_shadow() {
    let canary = SHADOW.replace("shadow", "enforce");
    let mut world = World::new(&canary);
    assert!(world.ledger.rows("web").is_empty() && world.ledger.sums("web").is_none());
    world.config.services[0].canary = tidegate_model::Canary::of_percent(5.0).unwrap();
    world.see();
    world.count("reject", false, "rate", 77);
    world.seconds(60, (100, 2), SLOW);
    let report = world.report(None);
    // Of 77 + 60 · 102 that came, 95 % are of sources that are spared.
    assert_eq!((report.all.offered, report.all.refused), (5887, 120));

    let rules = "
interfaces: [{name: lo}]
services:
  web:
    mode: enforce
    listen: ['*:80']
    requests:
      mode: shadow
      buckets: {b: {resource: cpu}}
      rules: [{path: /search, bucket: b}]
";
    let mut world = World::new(rules);
    let counts = RuleCounts { admitted: 50, shadowed: 7, ..RuleCounts::default() };
    world.rules = vec![RuleCounts::default(), counts];
    world.rules.swap(0, 1);
    world.seconds(60, (100, 0), FAST);
    let report = world.report(None);
    assert_eq!((report.all.offered, report.all.refused), (57, 7), "connections are enforced");
    let Of::Rule(label) = &report.refused_by[0].of else { panic!("{report:?}") };
    assert!(label.contains("search"), "{label}");
    let before = world.ledger.rows("web");
    let world = world.restart(rules);
    assert_eq!(world.ledger.rows("web")[..before.len()], before[..], "as it was in a file");
}

/// What is executed proves nothing: a canary counts what it spares, and as much of what came. Each share is
/// a row of its own.
#[test]
fn what_came_counts_as_far_as_refusals_are_only_counted() {
    let mut world = World::new(SHADOW);
    let share = |world: &mut World, percent: f64| {
        world.config.services[0].canary = tidegate_model::Canary::of_percent(percent).unwrap();
        world.see();
    };
    world.config.services[0].mode = Mode::Enforce;
    share(&mut world, 90.0);
    world.seconds(30, (98, 2), FAST);
    let report = world.report(None);
    // The share of a canary is one in 65,536 parts.
    assert_eq!((report.healthy.offered, report.healthy.refused), (300, 60));
    share(&mut world, 50.0);
    world.seconds(30, (98, 2), FAST);
    let report = world.report(None);
    assert_eq!((report.healthy.offered, report.healthy.refused), (300 + 1500, 120));
    assert_eq!(world.ledger.rows("web").len(), 2);
    assert_eq!(report.verdict, Some(Verdict::Unsafe));
    // Never less than what was refused of it.
    share(&mut world, 99.0);
    world.seconds(30, (0, 2), FAST);
    let offered = world.report(None).all.offered;
    assert_eq!(offered, 1800 + 60);
}

/// A rule of the kernel is spared as its service is.
#[test]
fn rules_of_a_canary_count_by_its_share() {
    let text = "
interfaces: [{name: lo}]
services:
  web:
    mode: enforce
    listen: ['*:80']
    requests: {buckets: {b: {resource: cpu}}, rules: [{path: /search, bucket: b}]}
";
    let mut world = World::new(text);
    assert!(world.ledger.rows("web").is_empty(), "all of it is enforced");
    world.config.services[0].canary = tidegate_model::Canary::of_percent(75.0).unwrap();
    world.see();
    world.rules =
        vec![RuleCounts { admitted: 300, refused: 90, shadowed: 10, ..RuleCounts::default() }];
    world.seconds(60, (0, 0), FAST);
    let report = world.report(None);
    assert_eq!((report.all.offered, report.all.refused), (100, 10));
}

/// What changes who is refused begins another time in shadow; what does not, does not.
#[test]
fn evidence_belongs_to_all_that_decides() {
    let gateway = |routes: &str| {
        format!(
            "\ngateways:\n  edge: {{adapter: traefik, listen: '127.0.0.1:9', routes: [{routes}]}}\n"
        )
    };
    let base = SHADOW.replace("objective: 100ms", "objective: 100ms, reserve: 0.25");
    let routed = base.clone() + &gateway("{service: web}");
    for (before, after, anew) in [
        (base.clone(), base.replace("0.25", "0.5"), true),
        (base.clone(), base.clone() + "exempt: {sources: [192.0.2.0/24]}\n", true),
        (base.clone(), base.clone() + "exempt: {presets: [azure-load-balancer]}\n", true),
        // That of sshd is no matter of a service, wherever sshd is.
        (base.clone(), base.clone() + "exempt: {ports: [22, 6010]}\n", false),
        (base.clone(), routed.clone(), true),
        (routed.clone(), base.clone() + &gateway("{path: /a, service: web}"), true),
        (routed.clone(), routed.clone(), false),
        (base.clone(), base.replace("name: lo", "name: lo, trust_dscp: false"), false),
    ] {
        let mut world = World::new(&before);
        world.seconds(60, (10, 1), FAST);
        let mut world = world.restart(&after);
        world.seconds(60, (10, 1), FAST);
        let refused = world.report(None).all.refused;
        assert_eq!(refused, if anew { 60 } else { 120 }, "{before}\n-> {after}");
    }
}

/// Another version, another machine, a head that was cut, or no ledger: it is not read as one.
#[test]
fn a_foreign_file_is_known_by_its_head() {
    let (own, other) = ("00000000000000aa", "00000000000000bb");
    let mut ledger = Ledger::new(own);
    let empty = ledger.encode();
    assert_eq!(empty, format!("{HEAD} {own}\n").as_bytes());
    ledger.machine = String::new();
    let nowhere = ledger.encode();
    assert_eq!(nowhere, format!("{HEAD}\n").as_bytes(), "as it was before");
    for (bytes, machine, foreign) in [
        (&b""[..], own, false),
        (&empty, own, false),
        (&empty, other, true),
        // What cannot be told apart is not.
        (&empty, "", false),
        (&nowhere, own, false),
        (&empty[..empty.len() - 2], own, true),
        (&nowhere[..5], "", true),
        (b"tidegate-shadow 2\n{}", own, true),
        (b"tidegate-shadow 10\n{}", own, true),
        (b"tidegate-shadow 1 \n", own, true),
        (b"#!/bin/sh\n", own, true),
        (b"\0", "", true),
    ] {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(Ledger::is_foreign(bytes, machine), foreign, "{text:?} at {machine:?}");
    }
}

/// A counter that is smaller than before began anew.
#[test]
fn counters_that_begin_anew_are_no_flood() {
    let mut world = World::new(SHADOW);
    world.seconds(30, (100, 10), FAST);
    world.counts.services[0].clear();
    *world.totals.get_mut("web").unwrap() = ServiceTotals::default();
    world.seconds(30, (100, 0), FAST);
    let report = world.report(None);
    assert!(report.all.offered <= 6600 && report.all.refused <= 300, "{report:?}");
    assert!(report.healthy.watched_s > 0.0);
}

#[test]
fn eight_days_find_room_and_the_file_has_a_bound() {
    let mut world = World::new(SHADOW);
    for _ in 0..10 * 24 * 60 {
        world.at.up += Nanos::from_secs(60);
        world.at.unix += Nanos::from_secs(60);
        world.count("admit", false, "token", 10);
        world.count("reject", true, "rate", 1);
        world.see();
    }
    let rows = world.ledger.rows("web");
    let account = &world.ledger.services["web"];
    assert_eq!((account.hours.len(), account.minutes.len()), (HOURS_MAX, MINUTES_MAX));
    assert!(rows.iter().all(|row| row.lasted <= HOUR));
    let report = world.report(None);
    assert!((report.all.watched_s / 3600.0 - 194.0).abs() < 1.0, "{}", report.all.watched_s);
    assert_eq!(report.all.refused as f64, report.all.watched_s / 60.0);
    let bytes = world.ledger.encode();
    assert!(bytes.len() < 150_000, "{} bytes a service", bytes.len());
    let (read, lost) = Ledger::decode(&bytes, "");
    assert_eq!((read.rows("web").len(), lost), (HOURS_MAX + MINUTES_MAX, 0));
    assert_eq!(read.encode(), bytes);
    // More services than find room: the newest rows of each.
    let many: Vec<u8> = (0..120_u32).fold(HEAD.as_bytes().to_vec(), |mut file, n| {
        let text =
            String::from_utf8(bytes.clone()).unwrap().replace("\"web\"", &format!("\"s{n}\""));
        file.extend_from_slice(text.as_bytes().strip_prefix(HEAD.as_bytes()).unwrap());
        file
    });
    let (ledger, lost) = Ledger::decode(&many, "");
    let written = ledger.encode();
    assert!(lost == 0 && written.len() <= BYTES_MAX && written.len() > BYTES_MAX / 2);
    let (read, lost) = Ledger::decode(&written, "");
    assert_eq!((read.services.len(), lost), (120, 0));
    let newest = |ledger: &Ledger| ledger.rows("s7").last().cloned();
    assert_eq!(newest(&read), newest(&ledger));
}

#[test]
fn a_damaged_line_costs_that_line() {
    let mut world = World::new(SHADOW);
    world.seconds(180, (100, 10), FAST);
    let text = String::from_utf8(world.ledger.encode()).unwrap();
    let (read, lost) = Ledger::decode(text.replacen("\"period\":1", "\"peri", 1).as_bytes(), "");
    assert_eq!((read.rows("web").len(), lost), (2, 1));
    let (read, lost) = Ledger::decode(&text.as_bytes()[..text.len() - 5], "");
    assert_eq!((read.rows("web").len(), lost), (2, 1));
    assert_eq!(Ledger::decode(b"", "").1, 0);
    // Numbers of a file may be anything: nothing overflows.
    let wild = format!(
        "{HEAD}\n{{\"service\":\"web\",\"at\":{{\"boot\":\"b\",\"up\":{m},\"unix\":{m}}},\"lasted\":{m},\"period\":{m},\
         \"identity\":{m},\"healthy\":{{\"span\":{m},\"offered\":[{{\"class\":\"x\",\"count\":{m}}}]}}}}\n",
        m = u64::MAX
    );
    let (ledger, lost) = Ledger::decode(wild.repeat(2).as_bytes(), "");
    assert_eq!(lost, 1, "the second head");
    let mut world = World::after(ledger, SHADOW, world.at);
    world.seconds(120, (100, 1), FAST);
    assert!(world.report(Some(HOUR)).all.refused >= 60, "{:?}", world.report(None));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Ledger::decode(&[HEAD.as_bytes(), b"\n", &bytes].concat(), "");
        let _ = (Ledger::decode(&bytes, ""), Ledger::is_foreign(&bytes, "0123456789abcdef"));
    }
}

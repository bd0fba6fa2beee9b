// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a router refuses: by the class of the client, silently, with a RST, or as Abacus says.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use ipnet::IpNet;
use std::net::IpAddr;
use support::decode::describe;
use support::netns::wait_for;
use support::packet::{Packet, between};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_bpf::{Router, RouterHooks, RouterOutcome, ServiceParams};
use tidegate_config::{
    ClassConfig, Config, Replies, RouterAction, RouterClassConfig, RouterConfig, RouterLimitConfig,
};
use tidegate_model::Mode;
use tidegate_policy::{Action, BucketSpec, Params, Policy};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const V4: &str = "198.51.100.7";
const V6: &str = "2001:db8:7::7";
const WHERE: [&str; 2] = ["192.0.2.0/24:*", "[2001:db8::/48]:*"];
const HOT: u16 = 80;
/// The sequence number of SYNs, and the rest of whoever opens a destination.
const ISN: u32 = 7000;
const OPENER: &str = "203.0.113.9";
const OPENER6: &str = "2001:db8:9::9";
/// A token in 100 s: no test takes as long.
const SLOW: f64 = 0.01;

/// Classes by prefix, and by a DSCP.
fn limit(action: RouterAction, classes: &[(&str, Option<u8>, RouterAction)]) -> RouterLimitConfig {
    let class = |(n, (source, dscp, action)): (usize, &(&str, Option<u8>, RouterAction))| {
        let sources = source.split_whitespace().map(net).collect();
        RouterClassConfig { name: format!("c{n}"), sources, dscp: *dscp, action: *action }
    };
    let classes = classes.iter().enumerate().map(class).collect();
    RouterLimitConfig { action, classes, ..RouterLimitConfig::new(Mode::Enforce) }
}

/// A prefix, or an address alone.
fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into())
}

fn config(limit: RouterLimitConfig) -> RouterConfig {
    RouterConfig { limit: Some(limit), ..plans::router(&WHERE) }
}

/// A router that knows a destination with a limit of so many tokens.
struct World {
    router: Router,
    hooks: RouterHooks,
}

impl World {
    fn new(limit: RouterLimitConfig) -> Self {
        Self::of(Router::load(&config(limit)).unwrap(), &Replies::default())
    }

    fn of(mut router: Router, replies: &Replies) -> Self {
        TestPlane::stay_on_one_cpu();
        router.refuse(replies).unwrap();
        let hooks = router.hooks().unwrap();
        let world = Self { router, hooks };
        world.opens(OPENER, HOT);
        world.opens(OPENER6, HOT);
        world.renew(Some(Mode::Enforce));
        world
    }

    /// Both destinations, of IPv4 and of IPv6, have so many tokens.
    fn with_tokens(self, rate: f64, tokens: u32) -> Self {
        (0..2).for_each(|place| self.limit(place, rate, tokens));
        self
    }

    fn limit(&self, place: usize, rate: f64, burst: u32) {
        let bucket = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
        self.router.set_limit(place, Some(&bucket)).unwrap();
    }

    fn renew(&self, mode: Option<Mode>) {
        self.router.renew(MonotonicClock.now(), mode).unwrap();
    }

    /// A connection whose handshake is complete.
    fn opens(&self, client: &str, port: u16) {
        let known = self.router.known().unwrap();
        let of = |egress| {
            let ports = if egress { (port, 9) } else { (9, port) };
            between(client.parse().unwrap(), ports, egress)
        };
        self.hooks.give(false, &of(false).syn().seq(ISN).bytes()).unwrap();
        self.hooks.give(true, &of(true).syn().seq(100).ack(ISN + 1).bytes()).unwrap();
        self.hooks.give(false, &of(false).seq(ISN + 1).ack(101).bytes()).unwrap();
        assert_eq!(self.router.known().unwrap(), known + 1, "{client}:{port}");
    }

    fn syn(&self, client: &str, from: u16) -> RouterOutcome {
        self.becomes(&syn(client, (from, HOT)))
    }

    fn becomes(&self, packet: &Packet) -> RouterOutcome {
        self.hooks.becomes(false, &packet.bytes()).unwrap()
    }

    /// Refused, and those of them with a RST, at both destinations.
    fn refused(&self) -> (u64, u64) {
        let counts = [0, 1].map(|place| self.router.counts(place).unwrap());
        (counts[0].refused + counts[1].refused, counts[0].reset + counts[1].reset)
    }
}

fn syn(client: &str, ports: (u16, u16)) -> Packet {
    between(client.parse().unwrap(), ports, false).syn().seq(ISN)
}

/// So many of each outcome: passed, dropped, replied to.
fn count(outcomes: impl Iterator<Item = RouterOutcome>) -> [usize; 3] {
    let mut counts = [0; 3];
    for outcome in outcomes {
        counts[match outcome {
            RouterOutcome::Passes => 0,
            RouterOutcome::Dropped => 1,
            RouterOutcome::Reply(_) => 2,
        }] += 1;
    }
    counts
}

/// The RST goes back to where the SYN came from, acknowledges it, and is no longer than it.
#[test]
fn a_syn_without_a_token_is_replied_to_with_a_rst() {
    let world = World::new(limit(RouterAction::Reset, &[])).with_tokens(SLOW, 1);
    for (client, said) in [
        (
            V4,
            "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 | ipv4 192.0.2.10 > 198.51.100.7 ttl 64 len 40 df sum ok | \
             tcp 80 > 2001 RST ACK seq 0x00000000 ack 0x00001b59 win 0 sum ok",
        ),
        (
            V6,
            "eth 02:00:00:00:00:02 > 02:00:00:00:00:01 | ipv6 2001:db8::10 > 2001:db8:7::7 hops 64 len 20 | \
             tcp 80 > 2001 RST ACK seq 0x00000000 ack 0x00001b59 win 0 sum ok",
        ),
    ] {
        assert_eq!(world.syn(client, 2000), RouterOutcome::Passes, "{client}");
        let packet = syn(client, (2001, HOT));
        let RouterOutcome::Reply(reply) = world.becomes(&packet) else { panic!("{client}") };
        assert_eq!(describe(&reply), said);
        assert!(reply.len() <= packet.bytes().len());
        // What is longer is cut, tags stay.
        let tagged = support::packet::eth().vlan(7).ipv4().tcp(2002, HOT).syn().seq(ISN);
        let RouterOutcome::Reply(reply) = world.becomes(&tagged.data(&[b'x'; 200])) else {
            panic!("{client}")
        };
        assert!(describe(&reply).contains("vlan 7 |") && reply.len() == 58, "{}", describe(&reply));
    }
    assert_eq!(world.refused(), (4, 4));
}

/// The opener of the destination came over a connection, and so does what is sent on it.
#[test]
fn only_what_is_refused_gets_a_rst() {
    let world = World::new(limit(RouterAction::Reset, &[])).with_tokens(SLOW, 1);
    assert_eq!(world.syn(V4, 2000), RouterOutcome::Passes);
    assert_eq!(world.syn(V4, 2000), RouterOutcome::Passes, "a copy of one that passed");
    let open = between(OPENER.parse().unwrap(), (9, HOT), false).seq(ISN + 1).ack(101).data(b"x");
    assert_eq!(world.becomes(&open), RouterOutcome::Passes);
    // A RST of ours would end the connection here.
    let forged = syn(OPENER, (9, HOT)).seq(ISN + 9);
    assert_eq!(world.becomes(&forged), RouterOutcome::Dropped, "on a tuple that is open");
    // Nobody is there to be replied to: a group.
    let group = syn("224.0.0.1", (2001, HOT));
    assert_eq!(world.becomes(&group), RouterOutcome::Dropped);
    world.renew(Some(Mode::Shadow));
    assert_eq!(world.syn(V4, 2003), RouterOutcome::Passes, "in shadow");
    world.renew(None);
    assert_eq!(world.syn(V4, 2004), RouterOutcome::Passes, "open");
    assert_eq!(world.refused(), (2, 0));
}

/// Another SYN has taken the place of the note of one that passed: its copy looks like a new attempt, and the server may
/// still reply to it.
#[test]
fn where_a_note_was_lost_nobody_gets_a_rst() {
    let replies = Replies { rst_per_second: 10_000_000, rst_per_second_proved: 0 };
    let router = Router::load(&config(limit(RouterAction::Reset, &[]))).unwrap();
    let world = World::of(router, &replies).with_tokens(SLOW, 1);
    let copy = syn(V4, (2000, HOT));
    assert_eq!(world.becomes(&copy), RouterOutcome::Passes);
    let other = |n: u32| {
        let [_, a, b, c] = n.to_be_bytes();
        world.syn(&format!("10.{a}.{b}.{c}"), 3000)
    };
    // As many as there are notes for, several times.
    let found = (1..2_000_000).find_map(|n| {
        let replied = matches!(other(n), RouterOutcome::Reply(_));
        assert!(n > 1_000 || replied, "{n}: a new client");
        if n % 64 > 0 {
            return None;
        }
        world.renew(Some(Mode::Enforce));
        Some(world.becomes(&copy)).filter(|one| *one != RouterOutcome::Passes)
    });
    assert_eq!(found, Some(RouterOutcome::Dropped));
    assert_eq!(world.becomes(&copy), RouterOutcome::Dropped, "nor later");
    let replied = (0..64).filter(|n| matches!(other(3_000_000 + n), RouterOutcome::Reply(_)));
    assert!(replied.count() > 56, "where no note was lost");
}

/// As [`Config::refused_at_router`] says of addresses, the kernel does.
#[test]
fn the_longest_prefix_of_a_client_says_how_it_is_refused() {
    use RouterAction::{Drop, Reset};
    let classes = [
        ("198.51.100.0/24", None, Reset),
        ("198.51.100.64/26 2001:db8:7::/64", None, Drop),
        ("2001:db8::/32", None, Reset),
    ];
    let limit = limit(Drop, &classes);
    let config = Config { router: Some(config(limit.clone())), ..Config::default() };
    let mut world = World::new(limit).with_tokens(SLOW, 1);
    let clients = [
        "198.51.100.63",
        "198.51.100.64",
        "198.51.100.127",
        "198.51.100.128",
        "198.51.99.255",
        "203.0.113.200",
        V6,
        "2001:db8:8::1",
        "2001:db9::1",
    ];
    assert_eq!(
        (world.syn(V4, 1), world.syn(V6, 1)),
        (RouterOutcome::Passes, RouterOutcome::Passes)
    );
    let mut seen = [0; 2];
    let mut look = |world: &World, config: &Config, from: u16| {
        for client in clients {
            let (_, action) = config.refused_at_router(client.parse().unwrap()).unwrap();
            let found = world.syn(client, from);
            let resets = matches!(found, RouterOutcome::Reply(_));
            assert_eq!(
                (resets, resets || found == RouterOutcome::Dropped),
                (action == Reset, true),
                "{client}"
            );
            seen[usize::from(resets)] += 1;
        }
    };
    look(&world, &config, 2000);
    assert_eq!(seen, [6, 3]);
    // Others are exempt whatever their class is.
    world.router.exempt(&["198.51.100.0/24".parse().unwrap()]).unwrap();
    assert_eq!(world.syn("198.51.100.128", 3000), RouterOutcome::Passes);
    world.router.exempt(&[]).unwrap();
    // A reload: what is not named any more is dropped again.
    let router =
        RouterConfig { limit: Some(self::limit(Drop, &classes[1..2])), ..plans::router(&WHERE) };
    world.router.follow(&router).unwrap();
    world.router.refuse(&Replies::default()).unwrap();
    let config = Config { router: Some(router), ..Config::default() };
    for client in clients {
        let (_, action) = config.refused_at_router(client.parse().unwrap()).unwrap();
        assert_eq!(action, Drop);
        assert_eq!(world.syn(client, 4000), RouterOutcome::Dropped, "{client}");
    }
}

/// A reload that begins with another class, and fails when it has written some: no client has the action of another one.
#[test]
fn a_reload_that_fails_halfway_mixes_no_actions() {
    use RouterAction::{Drop, Reset};
    let mut world = World::new(limit(Reset, &[(V4, None, Drop)])).with_tokens(SLOW, 1);
    assert_eq!(world.syn("203.0.113.1", 1), RouterOutcome::Passes);
    assert_eq!(world.syn(V4, 2), RouterOutcome::Dropped);
    // Before the other class in the order of writing.
    let more = limit(Reset, &[(&too_many(), None, Reset), (V4, None, Drop)]);
    world.router.follow(&config(more)).unwrap();
    world.router.refuse(&Replies::default()).unwrap_err();
    assert_eq!(world.syn(V4, 3), RouterOutcome::Dropped);
    assert!(matches!(world.syn("203.0.113.1", 3), RouterOutcome::Reply(_)));
}

/// More addresses than there is room for.
fn too_many() -> String {
    let all = (0..1 << 14).map(|n| format!("223.0.{}.{}", n >> 8, n & 255));
    all.collect::<Vec<_>>().join(" ")
}

/// The class of a prefix changes, and a part of it gets the class of before: this part never has another one.
#[test]
fn a_nested_prefix_is_written_before_what_is_around_it() {
    use RouterAction::{Drop, Reset};
    let mut world = World::new(limit(Reset, &[("10.0.0.0/8", None, Drop)])).with_tokens(SLOW, 1);
    assert_eq!(world.syn("203.0.113.1", 1), RouterOutcome::Passes);
    let many = too_many();
    let more =
        [("10.0.0.0/8", None, Reset), ("10.1.0.0/16", None, Drop), (many.as_str(), None, Reset)];
    world.router.follow(&config(limit(Reset, &more))).unwrap();
    world.router.refuse(&Replies::default()).unwrap_err();
    assert_eq!(world.syn("10.1.0.1", 2), RouterOutcome::Dropped);
}

/// Where the interface is trusted, what no prefix names; with the words of services.
#[test]
fn a_dscp_chooses_where_it_is_trusted() {
    use RouterAction::{Drop, Reset};
    let limit = limit(Drop, &[("198.51.100.0/24", None, Drop), ("", Some(46), Reset)]);
    let world = World::new(limit).with_tokens(SLOW, 1);
    let trusting = world.router.trusting_hooks().unwrap();
    assert_eq!(world.syn(V4, 1), RouterOutcome::Passes);
    let marked = |client: [u8; 4], dscp, from| {
        support::packet::eth().ipv4().dscp(dscp).from4(client).tcp(from, HOT).syn().bytes()
    };
    for (client, dscp, resets) in [
        ([203, 0, 113, 1], 46, true),
        ([203, 0, 113, 1], 45, false),
        ([198, 51, 100, 1], 46, false),
    ] {
        let found = trusting.becomes(false, &marked(client, dscp, 2000)).unwrap();
        assert_eq!(matches!(found, RouterOutcome::Reply(_)), resets, "{client:?} {dscp}");
        let distrusted = world.hooks.becomes(false, &marked(client, dscp, 3000)).unwrap();
        assert_eq!(distrusted, RouterOutcome::Dropped, "{client:?} {dscp}");
    }
}

/// Replies of the router and of the hooks take from one cap of this CPU.
#[test]
fn beyond_the_cap_on_replies_nothing_is_sent() {
    let service = tidegate_config::ServiceConfig {
        policy: plans::policy(Policy::TokenBucket, Action::Reject),
        ..plans::service("web", &["*:81"])
    };
    // A burst of two, and the third in half a second.
    let replies = Replies { rst_per_second: 8, rst_per_second_proved: 0 };
    let mut plan = plans::plan(vec![service]);
    plan.config.replies = replies.clone();
    let mut plane = TestPlane::load(&plan).unwrap();
    let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Reject);
    let params = Params::token_bucket(&spec).unwrap();
    plane.set_limits(&[ServiceParams::new(0, params)], &[], 2).unwrap();
    let router = Router::load_beside(&config(limit(RouterAction::Reset, &[])), &plane).unwrap();
    let world = World::of(router, &replies).with_tokens(SLOW, 1);
    assert_eq!(world.syn(V4, 1), RouterOutcome::Passes);
    let at_hook = |from| plane.run(TestHook::Tc, &syn(V4, (from, 81)).bytes()).unwrap().outcome;
    assert_eq!(at_hook(1), Outcome::Pass);
    assert_eq!(at_hook(2), Outcome::Redirect);
    let found = count((0..50).map(|n| world.syn(V4, 2000 + n)));
    assert!((1..=4).contains(&found[2]), "{found:?}");
    assert_eq!((found[0], at_hook(3)), (0, Outcome::Drop));
    assert_eq!(world.refused(), (50, found[2] as u64));
    let silent = Replies { rst_per_second: 0, rst_per_second_proved: 0 };
    let router = Router::load(&config(limit(RouterAction::Reset, &[]))).unwrap();
    let world = World::of(router, &silent).with_tokens(SLOW, 1);
    let found = count((0..20).map(|n| world.syn(V4, 2000 + n)));
    assert_eq!(found, [1, 19, 0]);
}

/// Of 100 SYNs at 20/s: a bucket of 20, and room for 60 when they come back. (How it decides: policy/tests.)
#[test]
fn abacus_drops_whom_it_can_serve_later_and_resets_the_rest() {
    for client in [V4, V6] {
        let world = World::new(limit(RouterAction::Abacus, &[])).with_tokens(20.0, 20);
        let place = usize::from(client == V6);
        assert_eq!(world.router.has_filter(place), Some(true));
        let found = count((0..100).map(|n| world.syn(client, 2000 + n)));
        // A machine that stops for a moment gets a few more tokens.
        let [passed, dropped, reset] = found;
        assert!((20..=24).contains(&passed) && (58..=62).contains(&dropped), "{client}: {found:?}");
        assert_eq!(world.refused(), (100 - passed as u64, reset as u64));
        let limited = world.router.limited(place).unwrap();
        assert_eq!(limited.tokens, passed as u64);
        assert_eq!(limited.refused_first, (dropped + reset) as u64);
    }
}

/// Who was dropped is known: its copies are never replied to with a RST, and get their token.
#[test]
fn a_client_that_abacus_dropped_passes_when_it_comes_again() {
    let world = World::new(limit(RouterAction::Abacus, &[])).with_tokens(2.0, 2);
    let found = count((0..2).map(|n| world.syn(V4, 2000 + n)));
    assert_eq!(found, [2, 0, 0]);
    assert_eq!(world.syn(V4, 2002), RouterOutcome::Dropped);
    // It is expected in a second; before that it does not age, and a token serves it as well.
    let mut tries = 0;
    wait_for("the token of the copy", || {
        tries += 1;
        world.renew(Some(Mode::Enforce));
        match world.syn(V4, 2002) {
            RouterOutcome::Passes => true,
            RouterOutcome::Dropped => false,
            RouterOutcome::Reply(_) => panic!("{tries}: a RST"),
        }
    });
    assert_eq!(world.syn(V4, 2002), RouterOutcome::Passes, "a copy of one that passed");
}

/// One bucket for all classes, with a filter and without one.
#[test]
fn classes_share_the_tokens_of_their_destination() {
    use RouterAction::{Abacus, Drop, Reset};
    let classes = [("198.51.100.0/25", None, Abacus), ("198.51.100.128/25", None, Reset)];
    let world = World::new(limit(Drop, &classes)).with_tokens(SLOW, 9);
    let of = |client, from: u16| count((from..from + 3).map(|from| world.syn(client, from)));
    for client in ["198.51.100.1", "198.51.100.200", "203.0.113.1"] {
        assert_eq!(of(client, 2000), [3, 0, 0], "{client}");
    }
    assert_eq!(of("203.0.113.1", 3000), [0, 3, 0]);
    assert_eq!(of("198.51.100.200", 3000), [0, 0, 3]);
    // With a token in 100 s there is no room for anybody within seven seconds.
    assert_eq!(of("198.51.100.1", 3000), [0, 0, 3]);
    // While the rate is moved, what was used stays used.
    world.limit(0, 0.02, 10);
    assert_eq!(of("203.0.113.1", 4000), [1, 2, 0]);
}

/// There are 16 filters: the limits of other destinations drop. One that is free again begins fresh.
#[test]
fn a_limit_that_finds_no_filter_drops_until_one_is_free() {
    let limit = limit(RouterAction::Abacus, &[]);
    let more = RouterConfig { destinations_max: 64, ..config(limit) };
    let world = World::of(Router::load(&more).unwrap(), &Replies::default());
    let ports = HOT + 1..HOT + 16;
    ports.for_each(|port| world.opens(OPENER, port));
    (0..17).for_each(|place| world.limit(place, SLOW, 1));
    let has = |place| world.router.has_filter(place).unwrap();
    assert_eq!((0..17).map(has).collect::<Vec<bool>>(), [[true; 16].as_slice(), &[false]].concat());
    let last = HOT + 15;
    let comes =
        |port, from: u16| count((from..from + 3).map(|n| world.becomes(&syn(V4, (n, port)))));
    assert_eq!(comes(last, 2000), [1, 2, 0], "dropped, and not replied to");
    assert_eq!(comes(HOT, 2000), [1, 0, 2]);
    world.router.set_limit(0, None).unwrap();
    assert_eq!(comes(HOT, 3000), [3, 0, 0], "without a limit");
    // Limits are written again and again.
    world.limit(16, SLOW, 1);
    assert!(has(16) && !has(0));
    assert_eq!(comes(last, 3000), [1, 0, 2], "nothing of the other destination is left");
    // The same again leaves it as it is.
    (0..3).for_each(|_| world.limit(16, SLOW, 1));
    assert_eq!(comes(last, 4000), [0, 0, 3]);
}

/// Filters are made at the start: a reload cannot bring them, and may leave them unused.
#[test]
fn a_reload_follows_all_but_the_first_abacus() {
    let [drop, abacus] =
        [RouterAction::Drop, RouterAction::Abacus].map(|one| config(limit(one, &[])));
    let without = Router::load(&drop).unwrap();
    assert!(
        !without.can_follow(&abacus)
            && without.can_follow(&config(limit(RouterAction::Reset, &[])))
    );
    assert_eq!(without.has_filter(0), None);
    assert!(Router::memory(&abacus) - Router::memory(&drop) > 4 << 20);
    let mut world =
        World::of(Router::load(&abacus).unwrap(), &Replies::default()).with_tokens(SLOW, 1);
    assert!(world.router.can_follow(&drop));
    assert_eq!(world.router.has_filter(0), Some(true));
    world.router.follow(&drop).unwrap();
    world.router.refuse(&Replies::default()).unwrap();
    world.limit(0, SLOW, 1);
    assert_eq!(world.router.has_filter(0), None);
    assert_eq!(count((0..9).map(|n| world.syn(V4, 2000 + n))), [1, 8, 0]);
    world.router.follow(&abacus).unwrap();
    world.router.refuse(&Replies::default()).unwrap();
    world.limit(0, SLOW, 1);
    assert_eq!(world.router.has_filter(0), Some(true));
    // Its bucket is that of the filter, which is fresh.
    assert_eq!(count((0..9).map(|n| world.syn(V4, 3000 + n))), [1, 0, 8]);
}

/// Classes of a router are told apart as those of a service are.
#[test]
fn the_class_of_a_client_is_that_of_a_service_with_the_same_classes() {
    let sources = [
        ("198.51.100.0/24", "gold"),
        ("198.51.100.16/28", "silver"),
        ("2001:db8::/32", "gold"),
        ("2001:db8:7::/64", "silver"),
    ];
    let of = |name: &str| -> Vec<_> {
        let own = sources.iter().filter(|(_, class)| *class == name);
        own.map(|(source, _)| source.parse().unwrap()).collect()
    };
    let service = |name: &str| ClassConfig {
        name: name.to_owned(),
        sources: of(name),
        dscp: None,
        priority: 0,
        weight: 1,
    };
    let router = |(name, action): (&str, RouterAction)| RouterClassConfig {
        name: name.to_owned(),
        sources: of(name),
        dscp: None,
        action,
    };
    let web = tidegate_config::ServiceConfig {
        classes: ["gold", "silver"].map(service).to_vec(),
        ..plans::service("web", &["*:80"])
    };
    let classes = [("gold", RouterAction::Reset), ("silver", RouterAction::Drop)].map(router);
    let limit =
        RouterLimitConfig { classes: classes.to_vec(), ..RouterLimitConfig::new(Mode::Enforce) };
    let mut config = plans::plan(vec![web]).config;
    config.router = Some(self::config(limit.clone()));
    let world = World::new(limit).with_tokens(SLOW, 1);
    assert_eq!(
        (world.syn(V4, 1), world.syn(V6, 1)),
        (RouterOutcome::Passes, RouterOutcome::Passes)
    );
    for client in ["198.51.100.15", "198.51.100.16", "203.0.113.1", V6, "2001:db8:8::1"] {
        let client_ip: IpAddr = client.parse().unwrap();
        let class = config.classify(client_ip).remove(0).class;
        assert_eq!(config.refused_at_router(client_ip).unwrap().0, class, "{client}");
        let resets = matches!(world.syn(client, 2000), RouterOutcome::Reply(_));
        assert_eq!(resets, class == "gold", "{client}");
    }
}

/// An old lease refuses less and less, and what is spared gets no reply.
#[test]
fn what_an_old_lease_spares_gets_no_rst() {
    let world = World::new(limit(RouterAction::Reset, &[])).with_tokens(SLOW, 1);
    assert_eq!(world.syn(V4, 1), RouterOutcome::Passes);
    let now = MonotonicClock.now();
    world.router.renew(Nanos(now.0 - Nanos::from_millis(6500).0), Some(Mode::Enforce)).unwrap();
    let [passed, dropped, reset] = count((0..200).map(|n| world.syn(V4, 2000 + n)));
    // Half of 200, within eight deviations.
    assert!((43..=157).contains(&passed) && dropped == 0, "{passed} {dropped} {reset}");
    assert_eq!(world.refused(), (reset as u64, reset as u64));
}

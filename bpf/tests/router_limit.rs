// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's limit on new connections to a destination: which SYNs it refuses, which never, and how it changes.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use support::netns::wait_for;
use support::packet::{ACK, Packet, between};
use tidegate_bpf::testing::{TestPlane, plans};
use tidegate_bpf::{Router, RouterHooks};
use tidegate_model::Mode;
use tidegate_model::router::DestinationCounts;
use tidegate_policy::{Action, BucketSpec};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const V4: &str = "198.51.100.7";
const V6: &str = "2001:db8:7::7";
const WHERE: [&str; 2] = ["192.0.2.0/24:*", "[2001:db8::/48]:*"];
/// The destination with a limit has the first place, its neighbour the second.
const HOT: u16 = 80;
const OTHER: u16 = 81;
const PORTS: [u16; 2] = [HOT, OTHER];
/// A token in 100 s: no test takes as long.
const SLOW: f64 = 0.01;

/// A router that knows both destinations.
struct World {
    router: Router,
    hooks: RouterHooks,
    client: &'static str,
}

impl World {
    fn new(client: &'static str) -> Self {
        Self::of(client, Router::load(&plans::router(&WHERE)).unwrap())
    }

    fn of(client: &'static str, router: Router) -> Self {
        let hooks = router.hooks().unwrap();
        let world = Self { router, hooks, client };
        for (place, port) in PORTS.into_iter().enumerate() {
            world.opens(9, port);
            assert_eq!(world.router.known().unwrap(), place + 1);
        }
        world
    }

    /// The same with so many tokens at the hot destination, and no more.
    fn with_tokens(client: &'static str, tokens: u32) -> Self {
        let world = Self::new(client);
        world.limit(0, SLOW, tokens);
        world.renew(Nanos::ZERO, Some(Mode::Enforce));
        world
    }

    fn limit(&self, place: usize, rate: f64, burst: u32) {
        let bucket = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
        self.router.set_limit(place, Some(&bucket)).unwrap();
    }

    /// The last heartbeat was so long ago.
    fn renew(&self, ago: Nanos, mode: Option<Mode>) {
        let now = MonotonicClock.now();
        self.router.renew(Nanos(now.0 - ago.0), mode).unwrap();
    }

    fn packet(&self, from: u16, to: u16, egress: bool) -> Packet {
        let ports = if egress { (to, from) } else { (from, to) };
        between(self.client.parse().unwrap(), ports, egress)
    }

    /// Whether a SYN passes; another one for each pair of port and sequence number.
    fn syn_of(&self, from: u16, to: u16, isn: u32) -> bool {
        self.hooks.passes(false, &self.packet(from, to, false).syn().seq(isn).bytes()).unwrap()
    }

    fn syn(&self, from: u16, to: u16) -> bool {
        self.syn_of(from, to, 7000)
    }

    fn replies(&self, from: u16, to: u16) {
        let syn_ack = self.packet(from, to, true).syn().seq(100).ack(7001);
        self.hooks.give(true, &syn_ack.bytes()).unwrap();
    }

    /// A connection whose handshake is complete.
    fn opens(&self, from: u16, to: u16) {
        assert!(self.syn(from, to));
        self.replies(from, to);
        let ack = self.packet(from, to, false).seq(7001).ack(101);
        self.hooks.give(false, &ack.bytes()).unwrap();
    }

    /// How many of so many SYNs of different clients pass.
    fn passing(&self, to: u16, clients: std::ops::Range<u16>) -> usize {
        clients.filter(|client| self.syn(1000 + client, to)).count()
    }

    fn counts(&self, place: usize) -> DestinationCounts {
        self.router.counts(place).unwrap()
    }

    /// Refused, and what would have been.
    fn refused(&self) -> (u64, u64) {
        let counts = self.counts(0);
        (counts.refused, counts.would_refuse)
    }
}

#[test]
fn beyond_its_tokens_the_hot_destination_is_refused_and_no_other() {
    for client in [V4, V6] {
        let world = World::with_tokens(client, 5);
        assert_eq!(world.passing(HOT, 0..30), 5, "{client}");
        assert_eq!(world.passing(OTHER, 0..30), 30, "{client}");
        assert_eq!((world.refused(), world.counts(1).refused), ((25, 0), 0));
        let limited = world.router.limited(0).unwrap();
        assert_eq!((limited.tokens, limited.refused_first), (5, 25));
        // A connection that is open is not touched, whatever is left.
        let data = world.packet(9, HOT, false).seq(7001).ack(101).flags(ACK).data(b"more");
        world.hooks.give(false, &data.bytes()).unwrap();
        assert_eq!(world.counts(0).begun, 1);
        world.router.set_limit(0, None).unwrap();
        assert_eq!(world.passing(HOT, 100..130), 30, "without a limit");
    }
}

#[test]
fn a_syn_in_a_vlan_is_refused_as_well() {
    let world = World::with_tokens(V4, 1);
    let tagged = |from: u16| {
        let packet = between_in_vlan(from).syn().seq(7000);
        world.hooks.passes(false, &packet.bytes()).unwrap()
    };
    assert!(tagged(2000) && !tagged(2001) && !world.syn(2002, HOT));
}

/// From the client of IPv4 to the hot destination, in a VLAN.
fn between_in_vlan(from: u16) -> Packet {
    let client: std::net::Ipv4Addr = V4.parse().unwrap();
    support::packet::eth().vlan(7).ipv4().from4(client.octets()).tcp(from, HOT)
}

/// Its SYN-ACK was lost, or is slow: the client must not wait for a token again.
#[test]
fn a_copy_of_a_syn_that_passed_passes_without_a_token() {
    let world = World::with_tokens(V4, 1);
    assert!(world.syn(2000, HOT));
    assert!(!world.syn(2001, HOT), "no token is left");
    for _ in 0..5 {
        assert!(world.syn(2000, HOT));
    }
    assert_eq!(world.router.limited(0).unwrap().tokens, 1);
    // Nothing is noted of the SYN any more, but the server has replied to its tuple.
    world.replies(2002, HOT);
    assert!(world.syn(2002, HOT) && !world.syn(2003, HOT));
}

/// A SYN is one connection: sent again after its handshake it needs a token as any other.
#[test]
fn a_syn_that_became_a_connection_does_not_pass_again() {
    for client in [V4, V6] {
        let world = World::with_tokens(client, 4);
        world.opens(40, HOT);
        let syns = world.counts(0).syns;
        // Who comes first finds no token any more, and who was refused even sooner.
        assert!(world.passing(HOT, 0..20) < 20);
        assert!(!world.syn(40, HOT), "{client}");
        assert_eq!(world.counts(0).syns, syns + 21, "a first attempt");
        // Nor does a SYN-ACK that is repeated let another SYN of that tuple pass.
        world.replies(40, HOT);
        assert!(!world.syn_of(40, HOT, 9000), "{client}");
        // A client may acknowledge with another sequence number than that of its SYN.
        let world = World::with_tokens(client, 4);
        assert!(world.syn(42, HOT));
        world.replies(42, HOT);
        let ack = world.packet(42, HOT, false).seq(7002).ack(101);
        world.hooks.give(false, &ack.bytes()).unwrap();
        world.passing(HOT, 0..20);
        assert!(!world.syn(42, HOT), "{client}");
        // One that has no handshake yet is a copy.
        let world = World::with_tokens(client, 4);
        assert!(world.syn(41, HOT));
        world.passing(HOT, 0..20);
        assert!(world.syn(41, HOT), "{client}");
    }
}

#[test]
fn first_attempts_come_first_and_who_was_refused_leaves_half_of_the_bucket() {
    let world = World::with_tokens(V4, 4);
    assert_eq!(world.passing(HOT, 0..4), 4);
    assert!(!world.syn(2000, HOT));
    world.limit(0, SLOW, 6);
    assert!(!world.syn(2000, HOT), "two tokens are left, and three have to be");
    assert!(
        world.syn(2001, HOT),
        "what was used stays used, and a first attempt may take the rest"
    );
    world.limit(0, SLOW, 20);
    assert!(world.syn(2000, HOT), "of fifteen one");
    world.limit(0, SLOW, 1);
    assert!(world.syn(2000, HOT), "from here on it is one that passed");
    assert_eq!((world.refused(), world.counts(0).syns_repeated), ((2, 0), 3));
    assert_eq!(world.router.limited(0).unwrap().refused_first, 1);
}

#[test]
fn exempt_sources_are_never_refused_and_take_no_token() {
    for (client, prefix, other) in [
        (V4, "198.51.100.0/28", "198.51.100.16/28"),
        (V6, "2001:db8:7::/64", "2001:db8:8::/64"),
        (V4, "0.0.0.0/0", "2001:db8::/32"),
        // All of IPv6 has IPv4 in it, as everywhere in the dataplane.
        (V4, "::/0", "2001:db8::/32"),
    ] {
        let mut world = World::with_tokens(client, 2);
        world.router.exempt(&[other.parse().unwrap(), prefix.parse().unwrap()]).unwrap();
        assert_eq!(world.passing(HOT, 0..20), 20, "{prefix}");
        world.router.exempt(&[other.parse().unwrap()]).unwrap();
        assert_eq!(world.passing(HOT, 100..120), 2, "{prefix}");
    }
}

/// Two ways to write a prefix are one entry: it stays as long as one of them is wanted.
#[test]
fn an_exemption_that_is_written_twice_ends_with_the_second() {
    let mut world = World::with_tokens(V4, 1);
    let both = ["198.51.100.0/24", "::ffff:198.51.100.0/120"].map(|one| one.parse().unwrap());
    world.router.exempt(&both).unwrap();
    world.router.exempt(&both[..1]).unwrap();
    assert_eq!(world.passing(HOT, 0..20), 20);
    world.router.exempt(&[]).unwrap();
    assert_eq!(world.passing(HOT, 100..120), 1);
}

/// The switch lies in a map of the dataplane: no daemon has to be there who reads it.
#[test]
fn the_kill_switch_of_the_dataplane_opens_limits_at_once() {
    let core = TestPlane::load(&plans::plan(vec![plans::service("web", &["*:80"])])).unwrap();
    let world = World::of(V4, Router::load_beside(&plans::router(&WHERE), &core).unwrap());
    world.limit(0, SLOW, 1);
    world.renew(Nanos::ZERO, Some(Mode::Enforce));
    assert_eq!(world.passing(HOT, 0..20), 1);
    core.release(true).unwrap();
    assert_eq!(world.passing(HOT, 100..120), 20);
    core.release(false).unwrap();
    assert_eq!(world.passing(HOT, 200..220), 0);
}

/// Whom a limit refuses is noted where the hooks note it, by destination, and apart from what is only computed.
#[test]
fn who_was_refused_is_found_by_destination() {
    for client in [V4, V6] {
        let plan = plans::plan(vec![plans::service("web", &["*:80"])]);
        let mut core = TestPlane::load(&plan).unwrap();
        let router = Router::load_beside(&plans::router(&WHERE), &core).unwrap();
        let world = World::of(client, router);
        core.heartbeat().unwrap();
        let places = world.router.destinations().unwrap();
        let address = |port| places.iter().find(|of| of.1.port() == port).unwrap().1;
        let found = |client: &str, port, shadow| {
            let lately = core.lately().unwrap();
            lately.find_at_router(client.parse().unwrap(), address(port), shadow).is_some()
        };
        let all = || {
            let of = |port| [found(client, port, false), found(client, port, true)];
            [of(HOT), of(OTHER)].concat()
        };
        (0..2).for_each(|place| world.limit(place, SLOW, 1));
        world.renew(Nanos::ZERO, Some(Mode::Enforce));
        assert!(world.syn(1000, HOT) && world.syn(1000, OTHER));
        assert_eq!(all(), [false; 4], "nobody was refused");
        assert!(!world.syn(1001, HOT));
        assert_eq!(all(), [true, false, false, false]);
        world.renew(Nanos::ZERO, Some(Mode::Shadow));
        assert!(world.syn(1002, OTHER));
        assert_eq!(all(), [true, false, false, true]);
        assert!(!found("198.51.100.8", HOT, false), "another client");
        assert_eq!(core.lately().unwrap().find(client.parse().unwrap(), "web", false), None);
    }
}

/// Without heartbeats it holds for three seconds, then less and less.
#[test]
fn a_limit_ends_with_its_lease() {
    for ago in [Nanos::ZERO, Nanos::SECOND] {
        let world = World::with_tokens(V4, 1);
        // Not once: a machine that stops for two seconds is not to end it.
        let passes = |client: u16| {
            world.renew(ago, Some(Mode::Enforce));
            world.syn(1000 + client, HOT)
        };
        assert_eq!((0..201).filter(|client| passes(*client)).count(), 1, "{ago}");
    }
    let world = World::with_tokens(V4, 1);
    assert_eq!(world.passing(HOT, 0..1), 1);
    // Half of 200, within eight deviations.
    world.renew(Nanos::from_millis(6500), Some(Mode::Enforce));
    let passed = world.passing(HOT, 1..201);
    assert!((43..=157).contains(&passed), "{passed}");
    assert_eq!(world.refused(), (200 - passed as u64, passed as u64));
    world.renew(Nanos::from_millis(10_001), Some(Mode::Enforce));
    assert_eq!(world.passing(HOT, 300..320), 20);
    world.renew(Nanos::ZERO, None);
    assert_eq!(world.passing(HOT, 400..420), 20, "open");
    assert_eq!(world.refused(), (200 - passed as u64, passed as u64), "and nothing is counted");
    // Nobody has ever renewed it.
    let fresh = World::new(V4);
    fresh.limit(0, SLOW, 1);
    assert_eq!(fresh.passing(HOT, 0..20), 20);
}

/// A copy of one that passed is none that would be refused. Two of twenty SYNs share a place in one world of 300, by its
/// random key, and then neither copy is known: so not in two worlds.
#[test]
fn in_shadow_everything_passes_and_is_counted() {
    let of_copies = || {
        let world = World::with_tokens(V4, 3);
        world.renew(Nanos::ZERO, Some(Mode::Shadow));
        assert_eq!(world.passing(HOT, 0..20), 20);
        assert_eq!(world.refused(), (0, 17));
        assert_eq!(world.passing(HOT, 0..20), 20);
        let refused = world.refused();
        world.renew(Nanos::ZERO, Some(Mode::Enforce));
        assert_eq!(world.passing(HOT, 100..120), 0);
        refused
    };
    let found = [of_copies(), of_copies()];
    assert!(found.contains(&(0, 17)), "{found:?}");
}

#[test]
fn two_limits_have_a_bucket_each() {
    let world = World::with_tokens(V4, 3);
    world.limit(1, SLOW, 7);
    assert_eq!((world.passing(HOT, 0..20), world.passing(OTHER, 0..20)), (3, 7));
    world.router.set_limit(1, None).unwrap();
    assert_eq!((world.passing(HOT, 100..120), world.passing(OTHER, 100..120)), (0, 20));
}

/// Two CPUs take tokens, for a third of a second: no more than the bucket and the rate give.
#[test]
fn the_rate_is_held_whichever_cpu_a_syn_comes_to() {
    let world = World::with_tokens(V4, 1);
    let (rate, burst) = (300.0, 5_u32);
    world.limit(0, rate, burst);
    let (passed, begun) = (AtomicU32::new(0), MonotonicClock.now());
    let (hooks, ends) = (&world.hooks, begun + Nanos::from_millis(330));
    let offer = &|client: &str, passed: &AtomicU32| {
        let mut isn = 0;
        while MonotonicClock.now() < ends {
            isn += 1;
            let syn = between(client.parse().unwrap(), (4000, HOT), false).syn().seq(isn);
            let passes = hooks.passes(false, &syn.bytes()).unwrap();
            passed.fetch_add(passes.into(), Ordering::Relaxed);
        }
        isn
    };
    let count = &passed;
    let offered = std::thread::scope(|scope| {
        let both = ["198.51.100.8", "198.51.100.9"]
            .map(|client| scope.spawn(move || offer(client, count)));
        both.into_iter().map(|one| one.join().unwrap()).sum::<u32>()
    });
    let most = f64::from(burst) + rate * MonotonicClock.now().since(begun).as_secs_f64();
    let passed = passed.into_inner();
    assert!(f64::from(passed) <= most, "{passed} of {offered}, {most} may");
    assert!(passed > burst && offered > 2 * passed, "{passed} of {offered}");
}

/// What is refused takes no lock, and leaves no trace in the bucket that all CPUs share.
#[test]
fn a_refused_syn_does_not_touch_the_bucket() {
    let world = World::with_tokens(V4, 3);
    let limits = world.router.limits().unwrap();
    assert_eq!(world.passing(HOT, 0..3), 3);
    let before = limits.used(0).unwrap();
    assert_eq!((world.passing(HOT, 3..50), limits.used(0).unwrap()), (0, before));
    world.limit(0, SLOW, 5);
    assert_eq!(world.passing(HOT, 50..60), 2);
    assert!(limits.used(0).unwrap().1 > before.1);
}

/// While one limit is written over the other, nobody finds parts of both.
#[test]
fn a_limit_changes_as_a_whole() {
    let world = World::new(V4);
    let bucket = |rate: f64, burst| BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
    let both = [bucket(1.0, 2), bucket(1000.0, 5000)];
    world.router.set_limit(0, Some(&both[0])).unwrap();
    let (mut seen, ends) = ([0, 0], AtomicBool::new(false));
    let limits = world.router.limits().unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut found = [0, 0];
            while !ends.load(Ordering::Relaxed) {
                match limits.of(0).unwrap() {
                    (1000, depth) => found[0] += usize::from(whole(depth, 2)),
                    (1_000_000, depth) => found[1] += usize::from(whole(depth, 5000)),
                    other => panic!("{other:?}"),
                }
            }
            found
        });
        let mut n = 0_usize;
        // An odd number: between two rounds each of both stays for a moment in turn.
        wait_for("20,000 changes", || {
            (0..999).for_each(|_| {
                n += 1;
                world.router.set_limit(0, Some(&both[n % 2])).unwrap();
            });
            n >= 20_000
        });
        ends.store(true, Ordering::Relaxed);
        seen = read.join().unwrap();
    });
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
}

fn whole(depth: u64, tokens: u64) -> bool {
    assert_eq!(depth, tokens * 1_000_000_000_000);
    true
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the law to the kernel: servers that carry 30 exchanges a second each, and clients that a limit refuses.

use super::*;
use tidegate_config::Registry;

/// A server completes so many in a sweep; with more than so many in flight it is slow.
const CARRIES: u64 = 3;
const QUEUE: u64 = 12;
/// New connections in a sweep.
const FEW: u64 = 2;
const MANY: u64 = 10;

/// A file with this section, and this service beside it.
fn intent(limit: &str, service: &str) -> LimitIntent {
    let text = format!(
        "interfaces: [{{name: eth0}}]\nservices:\n  web: {service}\nrouter: {{destinations: ['192.0.2.0/24:80']{limit}}}\n"
    );
    let registry = Registry::new(["fresh_first"], ["default"]);
    LimitIntent::of(&tidegate_config::parse(&text, &registry).unwrap())
}

pub(super) fn mode(mode: &str) -> LimitIntent {
    intent(&format!(", limit: {{mode: {mode}}}"), "{mode: shadow, listen: ['*:80']}")
}

/// Servers behind a router, in their usual load for two minutes.
struct Servers {
    world: World,
    tokens: Vec<f64>,
    sample: u32,
    /// Who comes completes no handshake.
    spoofed: bool,
    /// This one is slow because of the link, however few are in flight.
    link: Option<usize>,
    /// Sweeps after which a kernel that takes no limit was an error.
    failed: usize,
}

impl Servers {
    fn new(servers: usize, intent: &LimitIntent) -> Self {
        Self::sampled(servers, intent, 1)
    }

    fn sampled(servers: usize, intent: &LimitIntent, sample: u32) -> Self {
        let mut calm = Self {
            world: World::new(servers),
            tokens: vec![0.0; servers],
            sample,
            spoofed: false,
            link: None,
            failed: 0,
        };
        calm.intends(intent);
        assert_eq!(calm.run(120, |_| FEW), [""; 0]);
        calm
    }

    fn intends(&mut self, intent: &LimitIntent) {
        let World { fake, crowds, now } = &mut self.world;
        crowds.intend(fake, intent, *now).unwrap();
    }

    /// So many seconds, with so many new connections in a sweep at each; what happened.
    fn run(&mut self, seconds: u64, offered: impl Fn(usize) -> u64) -> Vec<String> {
        self.sweeps(seconds * 10, offered)
    }

    fn sweeps(&mut self, sweeps: u64, offered: impl Fn(usize) -> u64) -> Vec<String> {
        let mut told = Vec::new();
        for _ in 0..sweeps {
            let enforced = self.world.fake.2.get().1 == Some(Mode::Enforce);
            let mut places = self.world.fake.0.borrow_mut();
            for (at, (place, tokens)) in places.iter_mut().zip(&mut self.tokens).enumerate() {
                let queue = if self.link == Some(at) { 0 } else { QUEUE };
                place.offers(offered(at), queue, (enforced, self.spoofed, tokens));
            }
            drop(places);
            self.world.now += SWEEP;
            let World { fake, crowds, now } = &mut self.world;
            let swept = crowds.swept(fake, *now, self.sample);
            self.failed += usize::from(swept.is_err());
            assert!(swept.is_ok() || fake.3.get() || fake.4.get(), "{swept:?}");
            told.extend(crowds.events().iter().map(What::sentence));
        }
        told
    }

    fn limit(&self, at: usize) -> Option<f64> {
        self.world.fake.0.borrow()[at].limit
    }

    fn counts(&self, at: usize) -> DestinationCounts {
        self.world.fake.0.borrow()[at].counts
    }

    /// One that is in a crowd at the first server for half a minute.
    fn crowded(servers: usize, intent: &LimitIntent) -> Self {
        let mut crowded = Self::new(servers, intent);
        crowded.run(30, |at| if at == 0 { MANY } else { FEW });
        crowded
    }
}

impl Place {
    fn offers(
        &mut self,
        offered: u64,
        queue: u64,
        (enforced, spoofed, tokens): (bool, bool, &mut f64),
    ) {
        let room = self.limit.map_or(f64::MAX, |limit| (*tokens + limit / 10.0).min(5.0));
        let within = offered.min(room as u64);
        *tokens = if self.limit.is_some() { room - within as f64 } else { 0.0 };
        let beyond = offered - within;
        let admitted = if enforced { within } else { offered };
        if enforced {
            self.counts.refused += beyond;
            self.limited.refused_first += beyond;
        } else {
            self.counts.would_refuse += beyond;
        }
        self.limited.tokens += if self.limit.is_some() { within } else { 0 };
        let admitted = if spoofed { 0 } else { admitted };
        let waits = self.counts.in_flight() + admitted;
        let bucket = if waits > queue { SLOW } else { USUAL };
        let completed = (waits.min(CARRIES) as u32, bucket);
        self.comes(Came { admitted, begun: admitted, completed, ..NOTHING });
    }
}

#[test]
fn the_hot_destination_is_limited_to_what_it_carries_until_the_crowd_is_over() {
    let mut servers = Servers::new(2, &mode("enforce"));
    assert_eq!((servers.limit(0), servers.limit(1)), (None, None));
    let told = servers.run(60, |at| if at == 0 { MANY } else { FEW });
    let limited = "192.0.2.0:80: new connections are limited to ";
    assert!(told.len() == 2 && told[1].starts_with(limited), "{told:?}");
    let rate = servers.limit(0).unwrap();
    assert!((15.0..=42.0).contains(&rate), "{rate}");
    assert!(servers.counts(0).in_flight() < 30, "{:?}", servers.counts(0));
    let state = servers.world.crowd();
    assert!(state.limit == Some(rate) && state.refused > 1000, "{state:?}");
    assert_eq!((servers.limit(1), servers.counts(1).refused), (None, 0), "no bystander");
    assert_eq!(servers.world.fake.2.get(), (servers.world.now, Some(Mode::Enforce)));
    let told = servers.run(60, |_| FEW);
    assert!(told.len() == 2 && told[0].contains(": new connections are limited no longer"));
    assert!(told[0].contains(FITS) && told[0].ends_with(" SYNs were refused"), "{told:?}");
    assert!(told[1].contains("flash crowd ended after ") && told[1].ends_with(" SYNs refused"));
    assert_eq!(servers.limit(0), None);
    let (time, allowed) = servers.world.crowds.limits();
    assert!(time > Nanos::from_secs(50) && time < Nanos::from_secs(80), "{time}");
    assert!(allowed > 15.0 * time.as_secs_f64() && allowed < 42.0 * time.as_secs_f64());
}

#[test]
fn in_shadow_the_limit_is_what_completes_and_nobody_is_refused() {
    let mut servers = Servers::new(1, &mode("shadow"));
    let told = servers.run(40, |_| MANY);
    assert!(told.len() == 2 && told[1].contains("would be limited to"), "{told:?}");
    let rate = servers.limit(0).unwrap();
    assert!((27.0..=31.0).contains(&rate), "{rate}");
    let counts = servers.counts(0);
    assert!(counts.refused == 0 && counts.would_refuse > 1000, "{counts:?}");
    // Of the last look, which is less than half a second old.
    let shown = servers.world.crowd();
    assert!((1000..=counts.would_refuse).contains(&shown.would_refuse), "{shown:?}");
    assert_eq!(shown.refused, 0);
}

/// Where one connection in four is followed the law sees a quarter, and the kernel limits all.
#[test]
fn a_limit_of_a_sample_is_multiplied() {
    let mut servers = Servers::sampled(1, &mode("shadow"), 4);
    servers.run(40, |_| MANY);
    let rate = servers.limit(0).unwrap();
    assert!((108.0..=124.0).contains(&rate), "{rate}");
}

/// What is counted of all SYNs is a fraction for the law: one refused SYN is not as many as `sample`.
#[test]
fn what_is_counted_of_all_is_a_fraction_of_a_sample() {
    let world = World::new(1);
    let limited = RouterLimited { tokens: 3, refused_first: 1 };
    let new =
        DestinationCounts { refused: 2, admitted: 5, begun: 4, ..DestinationCounts::default() };
    let tick = Tick { new, ended: 0, in_flight: 0, took: Vec::new(), limited };
    let scale = Scale { period: TICK, sample: 64, enforced: true, flooded: false };
    let shown = world.crowds.watched[&0].shown(&tick, &scale);
    let found = (64.0 * shown.refused, 64.0 * shown.tokens, 64.0 * (shown.first_attempts - 4.0));
    assert_eq!(found, (2.0, 3.0, 1.0));
}

/// Spoofed SYNs have all tokens: the limit ends, and that is said. The crowd does not.
#[test]
fn a_limit_that_is_taken_back_is_told_with_its_reason() {
    let mut servers = Servers::crowded(1, &mode("enforce"));
    servers.spoofed = true;
    let told = (0..25).map(|_| servers.run(1, |_| 3 * MANY)).find(|told| !told.is_empty());
    let told = told.unwrap();
    assert!(told.len() == 1 && told[0].contains("limited no longer"), "{told:?}");
    assert!(told[0].contains(": hardly a SYN that passed led to a request"), "{told:?}");
    let state = servers.world.crowd();
    assert!(state.limit.is_none() && state.refused > 0, "{state:?}");
}

/// Nothing is renewed that could not be written: what the kernel has ends with the lease. Then it is tried again.
#[test]
fn a_kernel_that_takes_no_limit_is_told_again() {
    let mut intent = mode("enforce");
    let mut servers = Servers::crowded(1, &intent);
    let before = servers.world.fake.2.get();
    servers.world.fake.3.set(true);
    servers.run(2, |_| MANY);
    assert!(servers.failed > 0);
    let (renewed, _) = servers.world.fake.2.get();
    assert!(renewed.since(before.0) <= TICK, "{renewed} after {}", before.0);
    let why = servers.world.crowds.limits_open().1;
    assert!(why.contains("or told of limits"), "{why}");
    servers.world.fake.3.set(false);
    servers.run(2, |_| MANY);
    assert_eq!(servers.world.fake.2.get(), (servers.world.now, Some(Mode::Enforce)));
    // The kill switch opens all of them by itself; the limit is lifted as soon as that can be written.
    servers.world.fake.3.set(true);
    intent.release(true);
    let World { fake, crowds, now } = &mut servers.world;
    assert!(crowds.intend(fake, &intent, *now).is_err());
    assert_eq!(servers.world.fake.2.get().1, None);
    assert!(servers.limit(0).is_some());
    servers.world.fake.3.set(false);
    servers.run(1, |_| MANY);
    assert_eq!(servers.limit(0), None);
}

/// Shadow becomes enforce: until the limits of shadow are lifted nothing is executed.
#[test]
fn limits_of_shadow_are_not_executed() {
    let mut servers = Servers::crowded(1, &mode("shadow"));
    servers.world.fake.3.set(true);
    let World { fake, crowds, now } = &mut servers.world;
    assert!(crowds.intend(fake, &mode("enforce"), *now).is_err());
    assert_eq!(servers.world.fake.2.get().1, Some(Mode::Shadow));
}

#[test]
fn while_it_is_not_known_who_is_exempt_nobody_is_limited() {
    let mut intent = mode("enforce");
    let mut servers = Servers::crowded(1, &intent);
    intent.unexempt(true);
    servers.intends(&intent);
    let told = servers.run(2, |_| MANY);
    assert_eq!((servers.limit(0), servers.world.fake.2.get().1), (None, None));
    assert!(told.len() == 1 && told[0].contains("exemptions could not be written"), "{told:?}");
    let (mode, why) = servers.world.crowds.limits_open();
    assert!(mode == Some(Mode::Enforce) && why.contains("exemptions"), "{why}");
    intent.unexempt(false);
    servers.intends(&intent);
    servers.run(2, |_| MANY);
    assert!(servers.limit(0).is_some());
}

#[test]
fn the_kill_switch_opens_at_once_and_limits_come_back_after_it() {
    let mut intent = mode("enforce");
    let mut servers = Servers::crowded(1, &intent);
    assert!(servers.limit(0).is_some());
    intent.release(true);
    servers.intends(&intent);
    assert_eq!((servers.limit(0), servers.world.fake.2.get().1), (None, None));
    let (mode, why) = servers.world.crowds.limits_open();
    assert!(mode == Some(Mode::Enforce) && why.contains("released"), "{why}");
    let refused = servers.counts(0).refused;
    servers.run(20, |_| MANY);
    assert_eq!((servers.limit(0), servers.counts(0).refused), (None, refused));
    intent.release(false);
    servers.intends(&intent);
    servers.run(2, |_| MANY);
    assert!(servers.limit(0).is_some(), "the crowd is still there");
    assert_eq!(servers.world.crowds.limits_open().1, "");
}

#[test]
fn a_reload_begins_and_ends_limits_and_executes_those_of_shadow() {
    let nothing = intent("", "{mode: shadow, listen: ['*:80']}");
    let mut servers = Servers::crowded(1, &nothing);
    assert_eq!(servers.limit(0), None);
    let mut told = Vec::new();
    for (intent, limited) in
        [(mode("shadow"), true), (mode("enforce"), true), (nothing, false), (mode("enforce"), true)]
    {
        servers.intends(&intent);
        told.extend(servers.run(3, |_| MANY));
        assert_eq!(servers.limit(0).is_some(), limited, "{intent:?}");
    }
    let wanted = [
        "would be limited to",
        "would be limited no longer, ",
        "are limited to",
        "are limited no longer, ",
        "are limited to",
    ];
    assert_eq!(told.len(), wanted.len(), "it is one crowd: {told:?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.contains(wanted), "{told} is not {wanted}");
    }
    assert!(told[1].contains(": limits hold in another way now; "), "{}", told[1]);
    assert!(told[3].contains(": limits are not wanted any more; "), "{}", told[3]);
}

/// Spoofed SYNs to some other server: handshakes are overwritten, and more than is known comes.
fn flood(servers: &mut Servers, seconds: u64, offered: impl Fn(usize) -> u64) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..seconds * 10 {
        let overwritten = &servers.world.fake.1;
        overwritten.set(overwritten.get() + 1000);
        told.extend(servers.sweeps(1, &offered));
    }
    told
}

/// A limit that opened in a flood would be opened by whoever sends one.
#[test]
fn in_a_flood_limits_go_on_and_none_begins() {
    let crowd = |at| if at == 0 { MANY } else { FEW };
    let mut servers = Servers::crowded(2, &mode("enforce"));
    let refused = servers.counts(0).refused;
    assert_eq!(flood(&mut servers, 60, crowd), [""; 0]);
    assert!(servers.limit(0).is_some_and(|rate| (15.0..=42.0).contains(&rate)));
    assert!(servers.counts(0).refused > refused + 1000 && servers.counts(0).in_flight() < 30);
    // The other has a crowd as well: it begins only when what comes is known again.
    assert_eq!(flood(&mut servers, 30, |_| MANY), [""; 0]);
    assert_eq!(servers.limit(1), None);
    let told = servers.run(20, |_| MANY);
    assert!(servers.limit(1).is_some() && told.len() == 2, "{told:?}");
    let told = flood(&mut servers, 60, |_| 0);
    assert!(told.iter().filter(|told| told.contains("are limited no longer")).count() == 2);
    let crowds = servers.world.crowds.now(servers.world.now);
    assert!(crowds.values().all(|crowd| crowd.limit.is_none()), "{crowds:?}");
}

/// A crowd that was there before the flood has no limit in it, and says why.
#[test]
fn a_crowd_without_a_limit_gets_none_in_a_flood() {
    let mut intent = mode("enforce");
    intent.release(true);
    let mut servers = Servers::crowded(1, &intent);
    intent.release(false);
    servers.intends(&intent);
    assert_eq!(flood(&mut servers, 20, |_| MANY), [""; 0]);
    assert_eq!((servers.limit(0), servers.world.crowd().unlimited.as_str()), (None, FLOOD));
    servers.run(2, |_| MANY);
    assert!(servers.limit(0).is_some());
}

/// What came meanwhile is not known, so nothing is limited by it.
#[test]
fn a_pause_of_the_daemon_opens_limits_and_that_is_told() {
    let mut servers = Servers::crowded(1, &mode("enforce"));
    assert!(servers.limit(0).is_some());
    servers.world.now += Nanos::from_secs(20);
    let told = servers.sweeps(1, |_| MANY);
    assert_eq!(servers.limit(0), None);
    assert!(
        told.len() == 1 && told[0].contains("no longer") && told[0].contains(PAUSE),
        "{told:?}"
    );
    servers.run(5, |_| MANY);
    assert!(servers.limit(0).is_some(), "the crowd is still there");
}

/// What came is not known either where the kernel cannot be asked: the lease is not renewed.
#[test]
fn a_kernel_that_cannot_be_asked_ends_limits_by_their_lease() {
    let mut servers = Servers::crowded(1, &mode("enforce"));
    let renewed = servers.world.fake.2.get().0;
    servers.world.fake.4.set(true);
    servers.run(2, |_| MANY);
    assert!(servers.failed > 10, "{}", servers.failed);
    let since = servers.world.fake.2.get().0.since(renewed);
    assert!(since <= TICK, "{since}");
    assert!(servers.world.crowds.limits_open().1.contains("cannot be asked"));
    servers.world.fake.4.set(false);
    servers.run(2, |_| MANY);
    assert_eq!(servers.world.fake.2.get(), (servers.world.now, Some(Mode::Enforce)));
    assert_eq!(servers.world.crowds.limits_open().1, "");
}

/// What a limit has held for long is no usual load, also if the limit is away for a moment.
#[test]
fn a_crowd_that_was_limited_is_not_usual_after_an_hour() {
    let mut intent = mode("enforce");
    let mut servers = Servers::crowded(1, &intent);
    servers.run(USUAL_AFTER.as_secs_f64() as u64, |_| MANY);
    intent.release(true);
    servers.intends(&intent);
    servers.run(5, |_| MANY);
    intent.release(false);
    servers.intends(&intent);
    servers.run(2, |_| MANY);
    assert!(servers.limit(0).is_some(), "{:?}", servers.world.crowds.now(servers.world.now));
}

/// A daemon that is killed during a limit, and started again: of the kernel's part nothing is left.
#[test]
fn a_limit_holds_in_the_next_process() {
    let crowd = |at| if at == 0 { MANY } else { FEW };
    let mut servers = Servers::crowded(2, &mode("enforce"));
    let (kept, then) = (servers.world.crowds.kept(), servers.limit(0).unwrap());
    assert!(kept.len() == 1 && kept[0].limited, "{kept:?}");
    let refused = kept[0].refused;
    assert!(refused > 100 && refused <= servers.counts(0).refused, "{refused}");
    let addresses = Vec::from_iter(servers.world.crowds.watched.values().map(|one| one.address));
    let now = servers.world.now + Nanos::from_secs(2);
    let mut crowds = FlashCrowds::default();
    crowds.restore(kept, Nanos::from_secs(2));
    servers.world = World { fake: World::new(2).fake, crowds, now };
    servers.intends(&mode("enforce"));
    servers.sweeps(1, crowd);
    let World { fake, crowds, now } = &mut servers.world;
    crowds.watch(fake, addresses.iter().enumerate(), *now);
    let told = servers.sweeps(12, crowd);
    assert!(told.len() == 1 && told[0].contains("limited to"), "{told:?}");
    let limit = servers.limit(0).unwrap();
    assert!((0.6 * then..=1.7 * then).contains(&limit), "{limit} after {then}");
    servers.run(30, crowd);
    assert!(servers.limit(0).is_some() && servers.limit(1).is_none());
    let state = servers.world.crowds.now(servers.world.now).remove(&0).unwrap();
    assert!(state.refused > refused + 100 && state.lasts > Nanos::from_secs(50), "{state:?}");
    let told = servers.run(60, |_| FEW).join("; ");
    assert!(told.contains("limited no longer") && told.contains("crowd ended"), "{told}");
}

/// Limits that come and go in seconds fill no history.
#[test]
fn of_one_destination_few_limits_are_events() {
    let mut servers = Servers::crowded(1, &mode("enforce"));
    let mut told = Vec::new();
    for _ in 0..8 {
        servers.intends(&mode("shadow"));
        told.extend(servers.run(2, |_| MANY));
        servers.intends(&mode("enforce"));
        told.extend(servers.run(2, |_| MANY));
    }
    let begun = told.iter().filter(|text| text.contains("limited to")).count();
    assert!((2..=LIMIT_EVENTS_EACH).contains(&begun), "{told:?}");
    let ended = told.iter().filter(|text| text.contains("limited no longer")).count();
    assert!((begun..=begun + 1).contains(&ended), "{told:?}");
    assert!(servers.limit(0).is_some());
}

#[test]
fn a_service_that_limits_its_destination_is_not_limited_twice() {
    let limit = ", limit: {mode: enforce}";
    for (service, limited) in [
        ("{mode: enforce, listen: ['192.0.2.0:80']}", false),
        ("{mode: shadow, listen: ['192.0.2.0:80']}", true),
        ("{mode: enforce, listen: ['192.0.2.9:80']}", true),
    ] {
        let servers = Servers::crowded(1, &intent(limit, service));
        assert_eq!(servers.limit(0).is_some(), limited, "{service}");
        let why = servers.world.crowd().unlimited;
        assert_eq!(why.contains("the service that listens there"), !limited, "{why}");
    }
}

/// Behind a slow link all are slow and more comes to all: those are limited that fill it.
#[test]
fn only_who_has_a_tenth_of_what_is_slow_is_limited() {
    for (first, limited) in [(MANY, 0), (3 * MANY, 1)] {
        let mut servers = Servers::new(16, &mode("enforce"));
        servers.run(30, |at| if at == 0 { first } else { MANY });
        let found = (0..16).filter(|at| servers.limit(*at).is_some()).count();
        assert_eq!((found, servers.world.crowds.now(servers.world.now).len()), (limited, 16));
        assert_eq!(servers.limit(0).is_some(), limited == 1);
        let now = servers.world.crowds.now(servers.world.now);
        let small = now.values().filter(|crowd| crowd.unlimited.contains("less than a tenth"));
        assert_eq!(small.count(), 16 - limited);
    }
}

/// A neighbour suffers from a crowd behind the same slow link, and a fifth more comes to it by chance.
#[test]
fn a_bystander_of_a_crowd_is_not_limited() {
    let mut servers = Servers::new(2, &mode("enforce"));
    // Both are slow: the server of the bystander has a third of the room that it needs.
    servers.link = Some(1);
    let told = servers.run(60, |at| if at == 0 { 3 * MANY } else { FEW + 1 });
    assert!(servers.limit(0).is_some(), "{told:?}");
    let crowds = servers.world.crowds.now(servers.world.now);
    let beside = &crowds[&1];
    assert_eq!((beside.limit, beside.unlimited.as_str()), (None, Spared::Bystander.text()));
    assert_eq!(servers.counts(1).refused, 0);
    // A crowd of its own is limited, too.
    servers.run(60, |_| 3 * MANY);
    assert!(servers.limit(1).is_some(), "{:?}", servers.world.crowds.now(servers.world.now));
}

#[test]
fn a_limit_is_never_below_what_the_operator_wants() {
    let least =
        intent(", limit: {mode: enforce, min_rate: 70/s}", "{mode: shadow, listen: ['*:81']}");
    assert_eq!(Servers::crowded(1, &least).limit(0), Some(70.0));
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spoofed senders take nothing from honest ones, whatever the policy: honest clients, half of them
//! never seen before, beside a flood of SYNs whose handshake nobody completes. And the reverse:
//! clients who do complete theirs get no more than the rate, however cheap the flood before them was.
//!
//! Virtual time. A client's SYN that is dropped comes back as Linux sends it, a handshake takes a
//! round trip, and a client is served well if its handshake is complete within a second.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Event, GapSpec, Noted,
    Params, Policy, Reason, Senders, State, Verdict, VerdictKind, admit, refused,
};
use tidegate_units::{Nanos, Rate};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// When a SYN is sent again, since the first, in seconds: Linux since 6.5.
const AGAIN: [u16; 6] = [1, 2, 3, 4, 5, 7];
/// Connections a second that the limit allows.
const RATE: f64 = 400.0;
const BURST: u32 = 40;
/// SYNs a second of spoofed senders.
const FLOOD: f64 = 5_000.0;
/// From here on clients count: the share of the flood is known, and retransmissions are usual.
const COUNTS: u64 = 10 * SECOND;
const ENDS: u64 = 30 * SECOND;
/// A handshake takes so long.
const RTT: u64 = 40 * MS;
/// Tokens that may be prepaid by senders who prove nothing (`TG_SENDERS_PREPAID_MAX`).
const PREPAID_MAX: f64 = 16.0;
const ACTIONS: [Action; 2] = [Action::Drop, Action::Reject];

/// Whether a policy takes tokens, of which a flood could take too many. Thresholds go by what waits at
/// the server, and a share by nothing but chance: there is nothing to charge.
fn takes_tokens(policy: Policy) -> bool {
    !matches!(policy, Policy::Threshold | Policy::Percent)
}

/// Parameters of every policy that takes tokens.
fn every(action: Action) -> Vec<Params> {
    let bucket = BucketSpec::new(Rate::per_second(RATE), BURST, action);
    let schedule = AGAIN.to_vec();
    let policies: Vec<Policy> =
        Policy::ALL.iter().copied().filter(|policy| takes_tokens(*policy)).collect();
    let params: Vec<Params> = policies
        .iter()
        .map(|policy| match policy {
            Policy::TokenBucket => Params::token_bucket(&bucket),
            Policy::FreshFirst => Params::fresh_first(&bucket),
            Policy::Abacus => {
                let classic = AbacusSpec::classic(bucket.clone(), 7);
                Params::abacus(&AbacusSpec { schedule: schedule.clone(), ..classic })
            }
            Policy::AbacusExact => {
                let classic = AbacusExactSpec::classic(bucket.clone(), 7);
                Params::abacus_exact(&AbacusExactSpec { schedule: schedule.clone(), ..classic })
            }
            Policy::AbacusLearned => {
                let classic = AbacusLearnedSpec::classic(bucket.clone());
                Params::abacus_learned(&AbacusLearnedSpec { schedule: schedule.clone(), ..classic })
            }
            Policy::Gap => {
                let tau_milli = [(BURST - 1) * 1000; 8];
                Params::gap(&GapSpec { tau_milli, ..GapSpec::new(bucket.rate, action) })
            }
            Policy::Threshold | Policy::Percent => unreachable!("they take no tokens"),
        })
        .map(|params| params.expect("the parameters are valid"))
        .collect();
    assert_eq!(params.len(), policies.len());
    params
}

/// What comes. Rates per second.
#[derive(Clone, Copy)]
struct Traffic {
    /// New honest clients.
    honest: f64,
    /// More of them from then on.
    crowd: (f64, u64),
    /// Spoofed SYNs, until then.
    flood: (f64, u64),
    rtt: u64,
    /// Whether the server's replies are seen.
    replies_seen: bool,
    /// Whether SYNs are weighed at all.
    weighed: bool,
}

impl Traffic {
    fn of(load: f64, flood: f64) -> Self {
        Self {
            honest: load * RATE,
            crowd: (0.0, ENDS),
            flood: (flood, ENDS),
            rtt: RTT,
            replies_seen: true,
            weighed: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Spoofed,
    Arrival,
    Syn(usize),
    Proof(usize),
}

struct Client {
    key: u64,
    /// Seen before the flood: here it makes no difference, and must make none.
    known: bool,
    began: u64,
    attempt: usize,
    noted: Noted,
}

/// What honest clients got.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Served {
    /// Those who count, and those who were served well; known and new.
    offered: [u32; 2],
    good: [u32; 2],
    /// Handshakes completed: from the beginning, and since clients count.
    proved: u32,
    proved_since: u32,
}

impl Served {
    fn share(&self) -> f64 {
        f64::from(self.good[0] + self.good[1]) / f64::from(self.offered[0] + self.offered[1])
    }

    fn share_of_new(&self) -> f64 {
        f64::from(self.good[1]) / f64::from(self.offered[1])
    }
}

struct World {
    params: Params,
    state: State,
    senders: Senders,
    traffic: Traffic,
    queue: BinaryHeap<Reverse<(u64, Kind)>>,
    clients: Vec<Client>,
    verdicts: Vec<Verdict>,
    random: u64,
    keys: u64,
    served: Served,
}

fn run(params: Params, traffic: Traffic) -> World {
    let mut world = World {
        params,
        state: State::fresh(),
        senders: Senders::default(),
        traffic,
        queue: BinaryHeap::from([Reverse((SECOND / 10, Kind::Arrival))]),
        clients: Vec::new(),
        verdicts: Vec::new(),
        random: 1,
        keys: 0,
        served: Served::default(),
    };
    if traffic.flood.0 > 0.0 {
        world.queue.push(Reverse((SECOND / 10, Kind::Spoofed)));
    }
    while let Some(Reverse((now, kind))) = world.queue.pop()
        && now < ENDS
    {
        world.happen(now, kind);
    }
    world
}

/// `SplitMix64`.
fn mixed(seed: u64) -> u64 {
    let z = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl World {
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.random)
    }

    /// Time to the next of a Poisson process.
    fn after(&mut self, now: u64, rate: f64) -> u64 {
        let uniform = ((self.draw() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        now + (-uniform.ln() / rate * SECOND as f64) as u64
    }

    fn key(&mut self) -> u64 {
        self.keys += 1;
        mixed(self.keys.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn happen(&mut self, now: u64, kind: Kind) {
        match kind {
            Kind::Spoofed => self.spoofed(now),
            Kind::Arrival => self.arrival(now),
            Kind::Syn(client) => self.syn(now, client),
            Kind::Proof(client) => self.proof(now, client),
        }
    }

    fn spoofed(&mut self, now: u64) {
        let key = self.key();
        let (verdict, noted) = self.ask(now, key);
        if verdict.kind == VerdictKind::Admit && self.traffic.replies_seen {
            self.senders.replied(noted);
        }
        let (rate, until) = self.traffic.flood;
        let next = self.after(now, rate);
        if next < until {
            self.queue.push(Reverse((next, Kind::Spoofed)));
        }
    }

    fn arrival(&mut self, now: u64) {
        let (key, known) = (self.key(), self.draw() & 1 == 0);
        self.clients.push(Client { key, known, began: now, attempt: 0, noted: Noted::default() });
        self.served.offered[usize::from(!known)] += u32::from(counts(now));
        let (crowd, from) = self.traffic.crowd;
        let rate = self.traffic.honest + if now >= from { crowd } else { 0.0 };
        let next = self.after(now, rate);
        self.queue.push(Reverse((next, Kind::Arrival)));
        self.syn(now, self.clients.len() - 1);
    }

    /// What the chain says: the weight, the policy, the charge.
    fn ask(&mut self, now: u64, key: u64) -> (Verdict, Noted) {
        let random = self.draw() as u32;
        let mut event = Event { now_ns: now, key, random, ..Event::default() };
        if self.traffic.weighed {
            self.senders.weigh(&mut event);
        }
        let verdict = admit(&self.params, &mut self.state, &event);
        self.verdicts.push(verdict);
        (verdict, self.senders.settle(&event, &verdict))
    }

    fn syn(&mut self, now: u64, client: usize) {
        let Client { key, began, attempt, .. } = self.clients[client];
        let (verdict, noted) = self.ask(now, key);
        self.clients[client].attempt += 1;
        match verdict.kind {
            VerdictKind::Admit | VerdictKind::Delay => {
                self.clients[client].noted = noted;
                if self.traffic.replies_seen {
                    self.senders.replied(noted);
                }
                self.queue.push(Reverse((now + self.traffic.rtt, Kind::Proof(client))));
            }
            VerdictKind::Drop => {
                if let Some(after) = AGAIN.get(attempt) {
                    // Timers of clients are not exact: else who met no token would meet none again.
                    let next = began + u64::from(*after) * SECOND + self.draw() % (20 * MS);
                    self.queue.push(Reverse((next, Kind::Syn(client))));
                }
            }
            VerdictKind::Reject => {}
        }
    }

    fn proof(&mut self, now: u64, client: usize) {
        let Client { known, began, noted, .. } = self.clients[client];
        if self.traffic.replies_seen {
            self.senders.proved(noted);
        }
        self.served.proved += 1;
        self.served.proved_since += u32::from(now >= COUNTS);
        let good = counts(began) && now - began <= SECOND;
        self.served.good[usize::from(!known)] += u32::from(good);
    }
}

/// Whether a client who comes then is counted: it has a second left.
fn counts(began: u64) -> bool {
    (COUNTS..ENDS - SECOND).contains(&began)
}

/// At 0.3 of the rate a flood costs honest clients nothing, those who were never seen before included.
#[test]
fn beside_little_load_a_flood_costs_honest_clients_nothing() {
    for params in ACTIONS.iter().flat_map(|action| every(*action)) {
        let policy = params.policy();
        let alone = run(params, Traffic::of(0.3, 0.0)).served;
        let beside = run(params, Traffic::of(0.3, FLOOD)).served;
        let blind = Traffic { replies_seen: false, ..Traffic::of(0.3, FLOOD) };
        let blind = run(params, blind).served;
        println!(
            "{policy:?}: {:.3} alone, {:.3} beside the flood, {:.3} of the new; {:.3} if replies are not seen",
            alone.share(),
            beside.share(),
            beside.share_of_new(),
            blind.share(),
        );
        assert!(alone.share() >= 0.999, "{policy:?}: {alone:?}");
        assert!(beside.share() >= 0.999, "{policy:?}: {beside:?}");
        assert!(beside.share_of_new() >= 0.999, "{policy:?}: {beside:?}");
        assert!(blind.share() < 0.5, "{policy:?}: the flood must hurt whom nothing protects");
    }
}

/// At twice the rate honest clients complete as many handshakes beside a flood as without it, and as
/// many within a second.
#[test]
fn beside_an_overload_a_flood_takes_no_tokens() {
    for params in ACTIONS.iter().flat_map(|action| every(*action)) {
        let policy = params.policy();
        let alone = run(params, Traffic::of(2.0, 0.0)).served;
        let beside = run(params, Traffic::of(2.0, FLOOD)).served;
        println!(
            "{policy:?}: {:.3} served well alone, {:.3} beside the flood, {:.3} of the new; {} and {} connections",
            alone.share(),
            beside.share(),
            beside.share_of_new(),
            alone.proved_since,
            beside.proved_since,
        );
        let (proved, least) = (f64::from(beside.proved_since), f64::from(alone.proved_since));
        assert!(proved >= 0.97 * least, "{policy:?}: {proved} of {least}");
        assert!(beside.share() >= 0.95 * alone.share(), "{policy:?}: {beside:?}, {alone:?}");
        assert!(beside.share_of_new() >= 0.9 * beside.share(), "{policy:?}: {beside:?}");
    }
}

/// The limit stays a limit: after a flood that made SYNs cheap, many clients come who do complete
/// their handshakes.
#[test]
fn clients_who_prove_themselves_get_no_more_than_the_rate() {
    let begins = 5 * SECOND;
    for params in every(Action::Drop) {
        let policy = params.policy();
        for until in [begins, ENDS] {
            let traffic = Traffic {
                crowd: (FLOOD, begins),
                flood: (FLOOD, until),
                ..Traffic::of(0.3, FLOOD)
            };
            let served = run(params, traffic).served;
            // What is under way at the end is not paid for yet.
            let under_way = (RTT as f64 / SECOND as f64) * FLOOD;
            let seconds = ENDS as f64 / SECOND as f64;
            let most = RATE * seconds + f64::from(BURST) + PREPAID_MAX + under_way;
            println!("{policy:?}, flood to {} s: {} of {most:.0}", until / SECOND, served.proved);
            assert!(f64::from(served.proved) <= most, "{policy:?}: {served:?}");
            // Before the crowd they come at 0.3 of the rate.
            let least = RATE * (0.3 * 5.0 + 0.9 * (seconds - 5.0));
            assert!(f64::from(served.proved) >= least, "{policy:?}: {served:?}");
        }
    }
}

/// Without a flood nothing is different, in any load and with long round trips: not one verdict.
#[test]
fn without_a_flood_every_verdict_is_as_if_nobody_weighed() {
    for params in ACTIONS.iter().flat_map(|action| every(*action)) {
        for load in [0.3, 1.0, 3.0] {
            for rtt in [0, RTT, 250 * MS] {
                let traffic = Traffic { rtt, ..Traffic::of(load, 0.0) };
                let weighed = run(params, traffic);
                let plain = run(params, Traffic { weighed: false, ..traffic });
                assert_eq!(weighed.verdicts, plain.verdicts, "{:?} at {load}", params.policy());
            }
        }
    }
}

/// Where the server's replies are not seen, too, whatever comes.
#[test]
fn where_replies_are_not_seen_every_verdict_is_as_if_nobody_weighed() {
    for params in every(Action::Drop) {
        let traffic = Traffic { replies_seen: false, ..Traffic::of(0.3, FLOOD) };
        let plain = run(params, Traffic { weighed: false, ..traffic });
        assert_eq!(run(params, traffic).verdicts, plain.verdicts, "{:?}", params.policy());
    }
}

/// A server of few connections a second, which learns of few SYNs: the flood is known after seconds.
#[test]
fn a_slow_server_is_not_starved_either() {
    let bucket = BucketSpec::new(Rate::per_second(5.0), 5, Action::Drop);
    let params = Params::fresh_first(&bucket).expect("valid");
    let traffic = Traffic { honest: 1.5, ..Traffic::of(0.0, FLOOD) };
    let served = run(params, traffic).served;
    println!("{served:?}");
    assert!(served.share() >= 0.95, "{served:?}");
}

/// What a flood was charged, and what is owed, is gone soon after it: the share is one again once
/// honest clients have come for a while, and nothing is left after a silence.
#[test]
fn a_flood_that_is_over_is_forgotten() {
    for params in every(Action::Drop) {
        let traffic = Traffic { flood: (FLOOD, 8 * SECOND), ..Traffic::of(0.3, FLOOD) };
        let mut world = run(params, traffic);
        let mut event = Event { now_ns: ENDS, ..Event::default() };
        assert!(!world.senders.weigh(&mut event), "{:?}", params.policy());
        assert_eq!(event.spared, 0);
        let flooded = run(params, Traffic::of(0.3, FLOOD)).senders;
        let mut after = flooded;
        assert!(after.weigh(&mut Event { now_ns: ENDS, ..Event::default() }));
        assert!(!after.weigh(&mut Event { now_ns: ENDS + 10 * SECOND, ..Event::default() }));
    }
}

/// A clock that goes back by more than the ring is long, and memory of any content, do no lasting harm.
#[test]
fn clocks_that_jump_are_survived() {
    let mut senders = run(every(Action::Drop)[0], Traffic::of(0.3, FLOOD)).senders;
    let mut event = Event { now_ns: SECOND / 10, ..Event::default() };
    assert!(!senders.weigh(&mut event), "what is known is of another time");
    for now_ns in [0, u64::MAX, 1, u64::MAX / 2, ENDS] {
        let mut event = Event { now_ns, ..Event::default() };
        senders.weigh(&mut event);
        let verdict = Verdict {
            kind: VerdictKind::Admit,
            reason: Reason::Token,
            repeated: false,
            delay: Nanos::ZERO,
        };
        let noted = senders.settle(&event, &verdict);
        senders.replied(noted);
        senders.proved(noted);
    }
    assert!(!senders.weigh(&mut Event { now_ns: ENDS + SECOND, ..Event::default() }));
}

/// `fresh_first` knows whom a limit before it refused, as if it had done so itself: then first
/// attempts go first. The others do not care.
#[test]
fn a_refusal_by_a_limit_is_remembered() {
    for params in every(Action::Drop) {
        let mut state = State::fresh();
        let event = Event { now_ns: SECOND, key: 77 << 40 | 5, ..Event::default() };
        let remembers = params.policy() == Policy::FreshFirst;
        assert!(!refused(&params, &mut state, &event));
        assert_eq!(refused(&params, &mut state, &event), remembers);
        let other = Event { key: 78 << 48 | 5, ..event };
        assert!(!refused(&params, &mut state.clone(), &other));
        // half of the bucket is for first attempts
        let mut taken = 0;
        while admit(&params, &mut state.clone(), &event).kind == VerdictKind::Admit && taken < BURST
        {
            taken += 1;
            let next = Event { key: u64::from(taken) << 48 | 9, ..event };
            let _ = admit(&params, &mut state, &next);
        }
        assert_eq!(taken, if remembers { BURST / 2 } else { BURST }, "{:?}", params.policy());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: the next arrival or the next retransmission, a verdict, what follows from it.

use super::check::{Audit, Broken, Checked, Ledger, Watch};
use super::draws::Draws;
use super::filter::{Filter, Verdict};
use super::outcome::{Outcome, Series};
use super::queue::{Calendar, Client, Fifos, Queue};
use super::spec::{Plan, Spec};
use tidegate_units::Nanos;
use tidegate_workload::Jitter;

/// Simulates `arrivals` (times of first SYNs at the filter, never falling) in front of `filter`,
/// and follows every request to its end. The same arguments give the same outcome on any machine.
///
/// # Errors
/// [`Broken`], when the specification cannot be simulated, or when a checker found a fault in the
/// arrivals, the filter or the engine.
pub fn run<F: Filter>(
    spec: &Spec,
    filter: F,
    arrivals: impl Iterator<Item = Nanos>,
    seed: u64,
) -> Result<Outcome, Broken> {
    let plan = Plan::new(spec)?;
    match plan.exact_gaps().and_then(Fifos::new) {
        Some(fifos) => World::new(spec, plan, filter, fifos, seed)?.run(arrivals),
        None => {
            let calendar = Calendar::new(plan.reach);
            World::new(spec, plan, filter, calendar, seed)?.run(arrivals)
        }
    }
}

struct World<F, Q> {
    plan: Plan,
    exact: bool,
    filter: F,
    queue: Q,
    draws: Draws,
    watch: Watch,
    ledger: Ledger,
    audit: Audit,
    out: Outcome,
}

impl<F: Filter, Q: Queue> World<F, Q> {
    fn new(spec: &Spec, plan: Plan, filter: F, queue: Q, seed: u64) -> Result<Self, Broken> {
        let out = Outcome {
            offered: 0,
            connected: 0,
            rejected: 0,
            timed_out: 0,
            syns: 0,
            delay_ns: 0,
            connected_delay_ns: 0,
            last: Nanos::ZERO,
            cost: spec.cost,
            series: spec.series.map(Series::new).transpose()?,
        };
        Ok(Self {
            exact: plan.jitter == Jitter::NONE,
            plan,
            filter,
            queue,
            draws: Draws::new(seed),
            watch: Watch::default(),
            ledger: Ledger::default(),
            audit: Audit::new(spec.capacity.as_ref())?,
            out,
        })
    }

    fn run(mut self, mut arrivals: impl Iterator<Item = Nanos>) -> Result<Outcome, Broken> {
        let mut next = arrivals.next();
        loop {
            // at the same instant the older request, which repeats, goes first
            let limit = next.map_or(u64::MAX, |at| at.0);
            let client = match self.queue.pop(limit) {
                Some(client) => client,
                None if next.is_none() => break,
                None => {
                    next = arrivals.next();
                    self.fresh(limit)?
                }
            };
            self.evaluate(client).map_err(|broken| *broken)?;
        }
        let mut out = self.out;
        out.delay_ns += out.connected_delay_ns;
        self.ledger.close(out.connected + out.rejected + out.timed_out)?;
        Ok(out)
    }

    /// A new request.
    #[inline]
    fn fresh(&mut self, at: u64) -> Result<Client, Broken> {
        let id = u32::try_from(self.out.offered).map_err(|_| Broken::TooMany("requests"))?;
        self.out.offered += 1;
        self.ledger.begin(id);
        let kind = match self.plan.kinds.len() {
            1 => 0,
            _ => self.plan.kind(self.draws.client(id) >> 32),
        };
        Ok(Client { due: at, start: at, id, attempt: 0, kind })
    }

    #[inline]
    fn evaluate(&mut self, client: Client) -> Checked {
        let now = client.due;
        self.watch.see(now)?;
        self.out.syns += 1;
        let key = self.draws.client(client.id);
        let verdict = self.filter.evaluate(Nanos(now), key, client.attempt);
        if let Some(series) = &mut self.out.series {
            series.count(now, client.attempt > 0, verdict == Verdict::Admit)?;
        }
        self.out.last = Nanos(now);
        match verdict {
            Verdict::Admit => self.connect(&client)?,
            Verdict::Drop => self.refuse(client),
            Verdict::Reject => self.reject(client),
            Verdict::Delay => return Err(Box::new(Broken::Verdict { at: Nanos(now) })),
        }
        Ok(())
    }

    #[inline]
    fn connect(&mut self, client: &Client) -> Checked {
        self.audit.admit(client.due)?;
        self.ledger.end(client.id);
        self.out.connected += 1;
        self.out.connected_delay_ns += u128::from(client.due - client.start);
        Ok(())
    }

    /// Dropped: the client waits for its timer, or this was its last SYN.
    #[inline]
    fn refuse(&mut self, client: Client) {
        let kind = &self.plan.kinds[usize::from(client.kind)];
        let gap = kind.gaps.get(usize::from(client.attempt)).copied();
        let gives_up = kind.gives_up;
        if !self.again(client, gap) {
            self.ledger.end(client.id);
            self.out.timed_out += 1;
            self.out.delay_ns += u128::from(gives_up);
        }
    }

    /// Answered with a RST: the end, but for stacks that try as often as their schedule has SYNs.
    fn reject(&mut self, client: Client) {
        let kind = &self.plan.kinds[usize::from(client.kind)];
        let left = usize::from(client.attempt) < kind.gaps.len();
        let pause = kind.again.filter(|_| left);
        if !self.again(client, pause) {
            self.ledger.end(client.id);
            self.out.rejected += 1;
            self.out.delay_ns += u128::from(client.due - client.start);
        }
    }

    /// Puts the client's next SYN into the queue, `gap` after this one was sent; false if there is
    /// none, or if the client has given up by then.
    #[inline]
    fn again(&mut self, client: Client, gap: Option<u64>) -> bool {
        let Some(gap) = gap else { return false };
        let attempt = client.attempt + 1;
        let mut due = client.due + gap;
        if !self.exact {
            // The timer runs from the sending, so this SYN's delay does not move the next one.
            let (draws, jitter) = (&self.draws, &self.plan.jitter);
            let stray = draws.timer(client.id, attempt, jitter)
                + draws.delay(client.id, attempt, jitter)
                - draws.delay(client.id, client.attempt, jitter);
            due = due.saturating_add_signed(stray).max(client.due);
        }
        let gives_up = self.plan.kinds[usize::from(client.kind)].gives_up;
        if due - client.start >= gives_up {
            return false;
        }
        self.queue.push(Client { due, attempt, ..client });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syn::{Capacity, Clients};
    use std::cmp::Reverse;
    use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
    use tidegate_units::Rate;
    use tidegate_workload::{Jitter, Rng, SCHEDULES, Schedule, Trace};

    /// A client: due, serial number, start, attempt, kind.
    type Entry = (u64, u32, u64, u8, u8);

    /// The plainest queue: what the others must equal.
    #[derive(Default)]
    struct Heap(BinaryHeap<Reverse<Entry>>);

    impl Queue for Heap {
        fn push(&mut self, c: Client) {
            self.0.push(Reverse((c.due, c.id, c.start, c.attempt, c.kind)));
        }

        fn pop(&mut self, limit: u64) -> Option<Client> {
            if self.0.peek()?.0.0 > limit {
                return None;
            }
            let Reverse((due, id, start, attempt, kind)) = self.0.pop()?;
            Some(Client { due, start, id, attempt, kind })
        }
    }

    /// Refuses by key and time, and notes what it saw.
    #[derive(Default)]
    struct Noting(Vec<(u64, u64, u8)>);

    impl Filter for Noting {
        fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
            self.0.push((now.0, key, attempt));
            match (key >> 7).wrapping_add(now.0 >> 20).wrapping_add(u64::from(attempt)) % 8 {
                0 | 1 => Verdict::Admit,
                2 => Verdict::Reject,
                _ => Verdict::Drop,
            }
        }
    }

    /// Bursts, silences of minutes, many arrivals at one instant.
    fn arrivals(seed: u64) -> impl Iterator<Item = Nanos> {
        let mut counts: Vec<u64> = (0..60).map(|i| (i * 37 + seed) % 90).collect();
        counts.extend([0; 200]);
        counts.extend([300, 0, 1]);
        let trace = Trace::new(counts, Nanos::SECOND, Rng::new(seed, 1));
        std::iter::repeat_n(Nanos::ZERO, 50)
            .chain(trace.map(|t| Nanos(t.0 / 1_000_000 * 1_000_000)))
    }

    fn spec(schedules: &[Schedule], jitter: Jitter) -> Spec {
        let clients = schedules.iter().map(|s| Clients { schedule: *s, weight: 1.0 }).collect();
        Spec { clients, timeout: None, jitter, capacity: None, ..Spec::paper() }
    }

    fn with<Q: Queue>(spec: &Spec, queue: Q, seed: u64) -> (Outcome, Vec<(u64, u64, u8)>) {
        let mut noting = Noting::default();
        let plan = Plan::new(spec).expect("sound");
        let world = World::new(spec, plan, &mut noting, queue, seed).expect("sound");
        let out = world.run(arrivals(seed)).expect("sound");
        (out, noting.0)
    }

    /// Every queue gives the same order, to the nanosecond and at equal times, as a heap.
    #[test]
    fn all_queues_keep_the_declared_order() {
        let half = Nanos::from_millis(800);
        let mut staged = BTreeSet::new();
        for jitter in
            [Jitter::NONE, Jitter::PAPER, Jitter::uniform(half), Jitter::uniform(Nanos(3))]
        {
            for seed in 0..4 {
                let all = spec(SCHEDULES, jitter);
                let reach = Plan::new(&all).expect("sound").reach;
                let expected = with(&all, Heap::default(), seed);
                assert!(expected.1.len() > 5_000);
                assert_eq!(with(&all, Calendar::new(reach), seed), expected, "{jitter:?}");
                for one in SCHEDULES {
                    let few = spec(std::slice::from_ref(one), jitter);
                    let plan = Plan::new(&few).expect("sound");
                    let expected = with(&few, Heap::default(), seed);
                    assert_eq!(with(&few, Calendar::new(plan.reach), seed), expected);
                    let Some(fifos) = plan.exact_gaps().and_then(Fifos::new) else { continue };
                    assert_eq!(with(&few, fifos, seed), expected, "{}", one.name);
                    staged.insert(one.name);
                }
            }
        }
        let by_fifos = |name| staged.contains(name);
        assert!(by_fifos("classic") && by_fifos("apple"), "{staged:?}");
        assert!(!by_fifos("windows") && !by_fifos("linux-6.5"), "resets, and waits that fall");
    }

    /// One key a client, on all its SYNs; no two clients share one.
    #[test]
    fn keys_name_clients() {
        let spec = spec(&SCHEDULES[5..], Jitter::PAPER);
        let (out, seen) = with(&spec, Heap::default(), 1);
        let mut attempts: BTreeMap<u64, u8> = BTreeMap::new();
        for (_, key, attempt) in seen {
            let next = attempts.entry(key).or_insert(0);
            assert_eq!(*next, attempt);
            *next += 1;
        }
        assert_eq!(attempts.len() as u64, out.offered);
    }

    /// A queue with a fault: the engine's own canary.
    struct Faulty(Heap, Fault, u32);

    enum Fault {
        Loses,
        Doubles,
        Swaps,
        Late,
    }

    impl Queue for Faulty {
        fn push(&mut self, client: Client) {
            self.2 += 1;
            if self.2 != 100 {
                return self.0.push(client);
            }
            match self.1 {
                Fault::Loses => (),
                Fault::Doubles => (0..2).for_each(|_| self.0.push(client)),
                Fault::Swaps => self.0.push(Client { id: client.id - 1, ..client }),
                Fault::Late => self.0.push(Client { due: 1, start: 0, ..client }),
            }
        }

        fn pop(&mut self, limit: u64) -> Option<Client> {
            self.0.pop(limit)
        }
    }

    #[test]
    fn a_faulty_queue_is_caught() {
        for fault in [Fault::Loses, Fault::Doubles, Fault::Swaps, Fault::Late] {
            let spec = spec(&SCHEDULES[5..], Jitter::PAPER);
            let plan = Plan::new(&spec).expect("sound");
            let late = matches!(fault, Fault::Late);
            let queue = Faulty(Heap::default(), fault, 0);
            let world = World::new(&spec, plan, Noting::default(), queue, 1).expect("sound");
            let error = world.run(arrivals(1)).expect_err("a fault");
            assert_eq!(matches!(error, Broken::Past { .. }), late, "{error}");
            assert_eq!(matches!(error, Broken::Conservation { .. }), !late, "{error}");
        }
    }

    /// Admits one more than it may, now and then.
    struct Generous(crate::syn::PolicyFilter, u32);

    impl Filter for Generous {
        fn evaluate(&mut self, now: Nanos, key: u64, attempt: u8) -> Verdict {
            let verdict = self.0.evaluate(now, key, attempt);
            if verdict == Verdict::Drop {
                self.1 += 1;
                if self.1 == 1000 {
                    return Verdict::Admit;
                }
            }
            verdict
        }
    }

    /// The canary of the filters: one admission too many in thousands, and a verdict that loses
    /// the client, are caught; so are arrivals that go back in time.
    #[test]
    fn broken_filters_and_arrivals_are_caught() {
        let capacity = Capacity::continuous(Rate::per_second(40.0), 20);
        let base = spec(&SCHEDULES[5..], Jitter::PAPER);
        let spec = Spec { capacity: Some(capacity), ..base };
        let bucket = tidegate_policy::BucketSpec::new(capacity.rate, 20, crate::Action::Drop);
        let policy = || {
            let params = tidegate_policy::Params::token_bucket(&bucket).expect("in range");
            crate::syn::PolicyFilter::new(params)
        };
        assert!(run(&spec, policy(), arrivals(2), 2).is_ok());
        let error = run(&spec, Generous(policy(), 0), arrivals(2), 2).expect_err("too many");
        assert!(matches!(error, Broken::Capacity { .. }), "{error}");

        struct Loses;
        impl Filter for Loses {
            fn evaluate(&mut self, _: Nanos, _: u64, _: u8) -> Verdict {
                Verdict::Delay
            }
        }
        let error = run(&spec, Loses, arrivals(2), 2).expect_err("lost");
        assert!(matches!(error, Broken::Verdict { .. }), "{error}");

        let back = [5, 9, 8].map(Nanos).into_iter();
        let error = run(&spec, policy(), back, 2).expect_err("back in time");
        assert_eq!(error, Broken::Past { at: Nanos(8), now: Nanos(9) });
    }

    #[test]
    fn what_cannot_be_simulated_is_said() {
        let classic = *Schedule::named("classic").unwrap();
        let sound = spec(&[classic], Jitter::NONE);
        let falling = Schedule { at_ms: &[0, 3000, 3000], ..classic };
        let endless = Schedule { at_ms: &[0, 2_000_000], ..classic };
        let weightless = vec![Clients { schedule: classic, weight: 0.0 }];
        for wrong in [
            Spec { clients: vec![], ..sound.clone() },
            Spec { clients: weightless, ..sound.clone() },
            Spec { jitter: Jitter::uniform(Nanos::from_secs(400)), ..sound.clone() },
            Spec { series: Some(Nanos(999)), ..sound.clone() },
            sound.clone().with_clients(falling),
            sound.clone().with_clients(endless),
        ] {
            let error = run(&wrong, Noting::default(), arrivals(1), 1).expect_err("no sense");
            assert!(matches!(error, Broken::Spec(_)), "{error}");
        }
        let bins = Spec { series: Some(Nanos::from_micros(1)), ..sound };
        let error = run(&bins, Noting::default(), arrivals(1), 1).expect_err("too many");
        assert!(matches!(error, Broken::TooMany(_)), "{error}");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules as the kernel has them: the most special path wins; rank and bucket are the shipped
//! chain's.

use super::spec::RuleSpec;
use crate::world::gate::DICE_SEED;
use tidegate_model::limits::BucketLimits;
use tidegate_model::totals::BucketTotals;
use tidegate_policy::{Circumstances, Event, Rank, RequestChain, RequestLimits, VerdictKind};
use tidegate_units::{Nanos, Random, Rate};
use tidegate_workload::{RequestKind, Rng};

/// One rule with its bucket.
struct Bucket {
    spec: RuleSpec,
    chain: RequestChain,
    totals: BucketTotals,
    account: Account,
}

/// The checker's own account: between two changes of the limits a bucket admits at most its depth
/// and what its rate gives.
#[derive(Default)]
struct Account {
    limit: Option<(Rate, u32)>,
    since: Nanos,
    admitted: u64,
    broken: Option<String>,
}

impl Account {
    fn count(&mut self, now: Nanos) {
        self.admitted += 1;
        let Some((rate, burst)) = self.limit else { return };
        let seconds = now.since(self.since).as_secs_f64();
        // The policy counts rates in thousandths.
        let most = f64::from(burst) + (rate.get() + 0.001) * seconds + 1e-6;
        if self.broken.is_none() && self.admitted as f64 > most {
            let admitted = self.admitted;
            self.broken = Some(format!("{admitted} admitted in {seconds} s at {rate}, {burst}"));
        }
    }

    fn change(&mut self, now: Nanos, limit: Option<(Rate, u32)>) {
        (self.limit, self.since, self.admitted) = (limit, now, 0);
    }
}

/// All rules of the service.
pub(super) struct Rules {
    buckets: Vec<Bucket>,
    /// The bits that policies decide by.
    dice: Rng,
}

impl Rules {
    pub(super) fn new(rules: &[RuleSpec]) -> Self {
        let bucket = |spec: &RuleSpec| Bucket {
            spec: *spec,
            chain: RequestChain::default(),
            totals: BucketTotals::default(),
            account: Account::default(),
        };
        let dice = Rng::new(DICE_SEED, 1);
        Self { buckets: rules.iter().map(bucket).collect(), dice }
    }

    /// Writes new limits; what is in the buckets stays.
    ///
    /// # Errors
    /// When there are not as many as rules, or the policy does not take one.
    pub(super) fn set(&mut self, now: Nanos, limits: &[BucketLimits]) -> Result<(), String> {
        if limits.len() != self.buckets.len() {
            let (rules, got) = (self.buckets.len(), limits.len());
            return Err(format!("limits for {got} buckets, there are {rules}"));
        }
        for (bucket, limits) in self.buckets.iter_mut().zip(limits) {
            let BucketLimits { rate, burst, reserve, .. } = *limits;
            let limits = RequestLimits::bucket(rate, burst, reserve);
            bucket.chain.set(limits.map_err(|e| e.to_string())?);
            bucket.account.change(now, rate.map(|rate| (rate, burst)));
        }
        Ok(())
    }

    /// The bucket that is asked for such a request.
    pub(super) fn of(&self, kind: RequestKind) -> Option<usize> {
        let fitting = self.buckets.iter().enumerate().filter(|(_, b)| b.spec.matches.fits(kind));
        fitting.min_by_key(|(_, b)| b.spec.matches == super::spec::Match::Any).map(|(i, _)| i)
    }

    /// Whether a request is admitted by its bucket. `waiting`: requests of the service that wait for a
    /// response, this one apart.
    pub(super) fn evaluate(
        &mut self,
        now: Nanos,
        index: usize,
        cookie: bool,
        waiting: u64,
    ) -> bool {
        let bucket = &mut self.buckets[index];
        // A connection has one request in this world.
        let rank = Rank::of(cookie && bucket.spec.protect, true, false);
        let random = self.dice.next_u64() as u32;
        let event = Event { random, ..Event::at(now.0) };
        let (verdict, _) = bucket.chain.decide(&event, (rank, waiting), &Circumstances::default());
        let admitted = verdict.kind == VerdictKind::Admit;
        let rank = rank as usize;
        bucket.totals.offered[rank] += 1;
        if admitted {
            bucket.totals.begun += 1;
            bucket.account.count(now);
        } else {
            bucket.totals.refused[rank] += 1;
            bucket.totals.refused_first += 1;
        }
        admitted
    }

    /// The first byte of a request's answer has left.
    pub(super) fn answering(&mut self, index: usize, took: Nanos) {
        self.buckets[index].totals.first_byte.record(took);
    }

    /// An admitted request is over; `took` if it was answered.
    pub(super) fn ended(&mut self, index: usize, took: Option<Nanos>) {
        let totals = &mut self.buckets[index].totals;
        totals.ended += 1;
        if let Some(took) = took {
            totals.end.record(took);
        }
    }

    /// Totals, in the order of the rules.
    pub(super) fn totals(&self) -> impl Iterator<Item = &BucketTotals> {
        self.buckets.iter().map(|bucket| &bucket.totals)
    }

    /// Checks that every bucket kept to its rate, and that nothing is in flight.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        for (i, bucket) in self.buckets.iter().enumerate() {
            if let Some(broken) = &bucket.account.broken {
                return Err(format!("bucket {i}: {broken}"));
            }
            let totals = &bucket.totals;
            if totals.begun != totals.ended {
                return Err(format!("bucket {i}: {} begun, {} ended", totals.begun, totals.ended));
            }
            let offered: u64 = totals.offered.iter().sum();
            let refused: u64 = totals.refused.iter().sum();
            if offered != refused + totals.begun {
                return Err(format!("bucket {i}: {offered} offered, {refused} refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Match;
    use super::*;
    use tidegate_model::RANKS;

    fn rules(specs: &[(Match, bool)]) -> Rules {
        let specs: Vec<RuleSpec> = specs
            .iter()
            .map(|(matches, protect)| RuleSpec { matches: *matches, protect: *protect })
            .collect();
        Rules::new(&specs)
    }

    fn limit(rate: f64, burst: u32, reserve: [u32; RANKS]) -> BucketLimits {
        BucketLimits {
            rate: Some(Rate::per_second(rate)),
            burst,
            reserve,
            ..BucketLimits::default()
        }
    }

    /// `/cgi-bin/` before `/`, whatever their order; a request that no rule is for has no bucket.
    #[test]
    fn the_more_special_path_wins() {
        let rules = rules(&[(Match::Any, false), (Match::Dynamic, false)]);
        assert_eq!(rules.of(RequestKind::Dynamic), Some(1));
        assert_eq!(rules.of(RequestKind::Small), Some(0));
        assert_eq!(self::rules(&[(Match::Large, false)]).of(RequestKind::Small), None);
    }

    /// What is reserved goes to requests with the cookie only, and everything is counted.
    #[test]
    fn a_protected_request_is_refused_last() {
        let mut rules = rules(&[(Match::Any, true)]);
        rules.set(Nanos::ZERO, &[limit(1.0, 4, [0, 2, 2])]).unwrap();
        let verdicts: Vec<bool> = (0..3).map(|_| rules.evaluate(Nanos(1), 0, false, 0)).collect();
        assert_eq!(verdicts, [true, true, false]);
        assert!(rules.evaluate(Nanos(1), 0, true, 0) && rules.evaluate(Nanos(1), 0, true, 0));
        assert!(!rules.evaluate(Nanos(1), 0, true, 0));
        let totals = rules.totals().next().unwrap();
        assert_eq!((totals.offered, totals.refused), ([3, 3, 0], [1, 1, 0]));
        assert!(rules.check().is_err(), "four are in flight");
        for _ in 0..4 {
            rules.ended(0, Some(Nanos(1)));
        }
        assert_eq!(rules.check(), Ok(()));
    }

    /// The account is not the policy's: a bucket that gives more than it says is found.
    #[test]
    fn a_bucket_that_gives_too_much_is_found() {
        let mut account = Account::default();
        account.change(Nanos::ZERO, Some((Rate::per_second(10.0), 5)));
        for _ in 0..15 {
            account.count(Nanos::SECOND);
        }
        assert!(account.broken.is_none());
        account.count(Nanos::SECOND);
        assert!(account.broken.is_some());
    }

    #[test]
    fn limits_must_fit_the_rules() {
        let mut rules = rules(&[(Match::Any, false)]);
        assert!(rules.set(Nanos::ZERO, &[]).is_err());
        assert!(rules.set(Nanos::ZERO, &[limit(1.0, 0, [0; RANKS])]).is_err(), "no depth");
    }
}

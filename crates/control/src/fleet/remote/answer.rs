// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an overloaded server answers to notices of congested routers (papers/netdraino.txt, section 4.3).
//!
//! Each router gets k times the server's rate, times its share of the demand, and never more than the rate
//! (`policy/router/tailor.h`). Nobody is told anything without a notice, and each notice is answered once:
//! the server keeps no state of limits that it gave.

use super::super::split::Passed;
use super::divide::DEMAND_COUNTS;
use super::feedback::Feedback;
use std::collections::BTreeMap;
use tidegate_model::remote::{Hits, Notice};
use tidegate_policy::{Part, TailorSpec};
use tidegate_units::{Nanos, Rate};

/// k of the paper. The share is an estimate, and a router that gets a little too much does no harm.
pub const K: f64 = 1.2;
/// A notice counts for so long: three of them, as a router that is congested sends them.
pub const NOTICE_FOR: Nanos = Nanos::from_secs(3);
/// Most services of one router that lie in one scope: a host has no more.
const SERVICES_MAX: usize = 32;

/// A limit for a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reply {
    /// The router, by its place.
    pub router: usize,
    /// Admissions per second.
    pub rate: Rate,
    /// What the server can take in all.
    pub whole: Rate,
    /// The notice that it answers.
    pub notice: u64,
}

#[derive(Clone, Debug, Default)]
struct Router {
    /// The router behind this one, nearer to the server.
    before: Option<usize>,
    /// The last notice of each of its services, and when it came.
    told: BTreeMap<String, (Nanos, Part)>,
    /// The number of the last one, until it is answered.
    open: Option<u64>,
}

impl Router {
    fn notice(&mut self, now: Nanos, (number, notice): (u64, &Notice)) {
        self.told.retain(|_, (at, _)| now.since(*at) < NOTICE_FOR);
        if self.told.len() >= SERVICES_MAX && !self.told.contains_key(&notice.service) {
            return;
        }
        let part = Part { offered: notice.offered, refused: notice.refused, before: None };
        self.told.insert(notice.service.clone(), (now, part));
        self.open = Some(number);
    }

    /// What comes to it for all of its services; none: it has said nothing lately.
    fn part(&self, now: Nanos) -> Option<Part> {
        let fresh = self.told.values().filter(|(at, _)| now.since(*at) < NOTICE_FOR);
        let sum = |a: Rate, b: Rate| Rate::per_second(a.get() + b.get());
        fresh.map(|(_, part)| *part).reduce(|all, part| Part {
            offered: sum(all.offered, part.offered),
            refused: sum(all.refused, part.refused),
            before: None,
        })
    }
}

/// The limits of one service for the routers before it.
#[derive(Clone, Debug)]
pub struct Answer {
    feedback: Feedback,
    routers: Vec<Router>,
    /// What arrives, and the first attempts among it.
    arrived: Passed,
    first: Passed,
    min_rate: Rate,
}

impl Answer {
    /// Of a service with these routers before it, each with the place of the next one towards the server. None
    /// gets less than `min_rate`, but for the service's own rate.
    #[must_use]
    pub fn new(before: &[Option<usize>], min_rate: Rate) -> Self {
        let router = |before: &Option<usize>| Router { before: *before, ..Router::default() };
        let routers = before.iter().map(router).collect();
        let feedback = Feedback::new(before.len(), min_rate);
        let (arrived, first) = <(Passed, Passed)>::default();
        Self { feedback, routers, arrived, first, min_rate }
    }

    /// The hit counters of a router's limit.
    pub fn hear(&mut self, now: Nanos, router: usize, hits: &Hits) {
        self.feedback.hear(now, router, hits);
    }

    /// A notice has come.
    pub fn notice(&mut self, now: Nanos, router: usize, (number, notice): (u64, &Notice)) {
        if let Some(router) = self.routers.get_mut(router) {
            router.notice(now, (number, notice));
        }
    }

    /// What is known of the routers.
    #[must_use]
    pub fn feedback(&self) -> &Feedback {
        &self.feedback
    }

    /// A round: the limits for routers whose notice is not answered yet. `own` is what the service limits
    /// itself to, `arrived` how many new connections came in this round, and how many of them for the first time.
    pub fn tick(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: Option<Rate>,
        arrived: Option<(u64, u64)>,
    ) -> Vec<Reply> {
        if let Some((arrived, first)) = arrived.filter(|_| period > Nanos::ZERO) {
            self.arrived.see(period.as_secs_f64(), arrived);
            self.first.see(period.as_secs_f64(), first);
        }
        self.feedback.tick(now, period, own);
        // As it is sent, in thousandths: no limit is above it.
        let whole = self.feedback.total().map(|whole| whole.as_milli() as f64 / 1e3);
        let whole = whole.map(Rate::per_second);
        let open: Vec<Option<u64>> = self.routers.iter_mut().map(|r| r.open.take()).collect();
        let arrived = self.arrived.one_of(1).zip(self.first.one_of(1));
        let Some((arrived, first)) = arrived else { return Vec::new() };
        let (places, parts) = self.parts(now);
        // Overloaded: more comes, and would come, than it can take. Copies that pass count here: they
        // take places as well.
        let refused: f64 = parts.iter().map(|part| part.refused.get()).sum();
        let Some(whole) = whole.filter(|whole| arrived.get() + refused > whole.get()) else {
            return Vec::new();
        };
        let counts = |part: &Part| counted(part, whole, arrived);
        let parts: Vec<Part> = parts.iter().map(counts).collect();
        let limits =
            TailorSpec { rate: whole, min_rate: self.min_rate, k: K }.limits(&parts, first);
        let reply = |(router, rate): (usize, Rate)| {
            let notice = open.get(router).copied().flatten()?;
            Some(Reply { router, rate, whole, notice })
        };
        places.into_iter().zip(limits).filter_map(reply).collect()
    }

    /// The routers that are congested, with their places.
    fn parts(&self, now: Nanos) -> (Vec<usize>, Vec<Part>) {
        let told = self.routers.iter().enumerate();
        let told: Vec<(usize, Part)> =
            told.filter_map(|(at, router)| Some((at, router.part(now)?))).collect();
        let places: Vec<usize> = told.iter().map(|(at, _)| *at).collect();
        let place = |at: usize| places.iter().position(|known| *known == at);
        // A router in between that is not congested says nothing: the next one that does counts.
        let next = |from: usize| {
            let mut at = self.routers[from].before;
            for _ in 0..self.routers.len() {
                let here = at?;
                if let Some(place) = place(here) {
                    return Some(place);
                }
                at = self.routers.get(here)?.before;
            }
            None
        };
        let parts = told.iter().map(|(at, part)| Part { before: next(*at), ..*part }).collect();
        (places, parts)
    }
}

/// What counts of what a router says: no more passed it than arrives here, and what it refuses makes that no more than
/// [`DEMAND_COUNTS`] times the rate.
fn counted(part: &Part, whole: Rate, arrived: Rate) -> Part {
    let refused = part.refused.get().min(part.offered.get());
    let passed = (part.offered.get() - refused).min(arrived.get());
    let refused = refused.min((DEMAND_COUNTS * whole.get() - passed).max(0.0));
    let (offered, refused) = (Rate::per_second(passed + refused), Rate::per_second(refused));
    Part { offered, refused, ..*part }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(offered: f64, refused: f64) -> Notice {
        let rate = Rate::per_second;
        Notice { offered: rate(offered), refused: rate(refused), ..Notice::default() }
    }

    const PERIOD: Nanos = Nanos::from_millis(100);

    /// A round in which so many came; what is answered, as router, rate and notice.
    fn round(
        answer: &mut Answer,
        now: Nanos,
        own: Option<f64>,
        came: u64,
    ) -> Vec<(usize, f64, u64)> {
        let replies = answer.tick((now, PERIOD), own.map(Rate::per_second), Some((came, came)));
        replies.iter().map(|r| (r.router, (r.rate.get() * 10.0).round() / 10.0, r.notice)).collect()
    }

    #[test]
    fn each_notice_of_a_congested_router_is_answered_once_and_only_in_overload() {
        let mut answer = Answer::new(&[None, None], Rate::per_second(1.0));
        let mut now = Nanos::SECOND;
        assert!(round(&mut answer, now, Some(100.0), 20).is_empty(), "nobody is congested");
        answer.notice(now, 0, (1, &notice(150.0, 0.0)));
        // k · 100 · 150 / 200.
        assert_eq!(round(&mut answer, now, Some(100.0), 20), [(0, 90.0, 1)]);
        now += PERIOD;
        assert!(round(&mut answer, now, Some(100.0), 20).is_empty(), "answered");
        answer.notice(now, 0, (2, &notice(150.0, 0.0)));
        answer.notice(now, 1, (7, &notice(50.0, 0.0)));
        assert_eq!(round(&mut answer, now, Some(100.0), 20), [(0, 90.0, 2), (1, 30.0, 7)]);
        // Neither without a limit of its own, nor while all fits.
        let mut calm = Answer::new(&[None], Rate::per_second(1.0));
        for (own, came) in [(None, 20), (Some(300.0), 20)] {
            calm.notice(now, 0, (1, &notice(150.0, 0.0)));
            assert!(round(&mut calm, now, own, came).is_empty(), "{own:?}");
        }
    }

    /// A scope may hold several services of a router: each has notices of its own, and none takes the place of
    /// another's.
    #[test]
    fn what_a_router_says_of_one_service_does_not_hide_another() {
        let of =
            |service: &str, offered| Notice { service: service.into(), ..notice(offered, 0.0) };
        let mut answer = Answer::new(&[None, None], Rate::per_second(1.0));
        let now = Nanos::SECOND;
        answer.notice(now, 0, (1, &of("web", 100.0)));
        answer.notice(now, 0, (2, &of("api", 50.0)));
        answer.notice(now, 1, (1, &of("web", 50.0)));
        assert_eq!(round(&mut answer, now, Some(100.0), 20), [(0, 90.0, 2), (1, 30.0, 1)]);
        // One service says nothing for too long: what it said is gone, and nothing else.
        let later = now + NOTICE_FOR;
        answer.notice(later, 0, (3, &of("api", 50.0)));
        answer.notice(later, 1, (2, &of("web", 50.0)));
        assert_eq!(round(&mut answer, later, Some(100.0), 20), [(0, 30.0, 3), (1, 30.0, 2)]);
        // Nobody makes it remember more than a host has.
        (0..100).for_each(|n| answer.notice(later, 0, (4, &of(&format!("s{n}"), 1.0))));
        assert_eq!(answer.routers[0].told.len(), SERVICES_MAX);
    }

    /// A copy that a router let pass is no demand, but it takes a place: with it the server is overloaded.
    #[test]
    fn copies_that_pass_make_an_overload_and_no_share() {
        let mut answer = Answer::new(&[None, None], Rate::per_second(1.0));
        let now = Nanos::SECOND;
        for (router, offered) in [(0, 86.0), (1, 29.0)] {
            answer.notice(now, router, (1, &notice(offered, 0.0)));
        }
        // 95 first attempts and 25 copies a second, where it takes 100.
        let own = Some(Rate::per_second(100.0));
        let rates: Vec<f64> = answer
            .tick((now, Nanos::SECOND), own, Some((120, 95)))
            .iter()
            .map(|reply| reply.rate.get().round())
            .collect();
        assert_eq!(rates, [90.0, 30.0]);
    }

    #[test]
    fn what_routers_refuse_does_not_make_their_share_smaller() {
        let mut answer = Answer::new(&[None, None], Rate::per_second(1.0));
        let mut refused = [0.0, 0.0];
        let mut rates = Vec::new();
        for number in 1..50 {
            let now = Nanos::from_millis(500 * number);
            for (router, offered) in [(0, 300.0), (1, 100.0)] {
                answer.notice(now, router, (number, &notice(offered, refused[router])));
            }
            let arrived = 400.0 - refused[0] - refused[1];
            let replies = round(&mut answer, now, Some(100.0), (arrived / 10.0) as u64);
            rates = replies.iter().map(|reply| reply.1).collect();
            refused = [300.0 - rates[0], 100.0 - rates[1]];
        }
        assert_eq!(rates, [90.0, 30.0], "k times the rate in all");
    }

    #[test]
    fn a_router_that_claims_any_demand_leaves_the_others_their_part() {
        for lie in [(1e12, 0.0), (1e12, 1e12), (1e12, 9e11)] {
            let mut answer = Answer::new(&[None, None], Rate::per_second(1.0));
            let now = Nanos::SECOND;
            answer.notice(now, 0, (1, &notice(lie.0, lie.1)));
            answer.notice(now, 1, (1, &notice(100.0, 0.0)));
            // 150 arrive, of which 100 come by the honest one.
            let replies = round(&mut answer, now, Some(100.0), 15);
            assert!(replies[0].1 <= 100.0 && replies[1].1 >= 25.0, "{lie:?}: {replies:?}");
        }
    }

    #[test]
    fn a_router_behind_another_is_not_counted_twice_and_old_notices_do_not_count() {
        // 0 is behind 1, which is behind 2: the server's side is 2.
        let mut answer = Answer::new(&[Some(1), Some(2), None], Rate::per_second(1.0));
        let now = Nanos::SECOND;
        answer.notice(now, 0, (1, &notice(200.0, 100.0)));
        answer.notice(now, 2, (1, &notice(100.0, 0.0)));
        // Demand: 200 at router 0; 100 and the 100 that router 0 refuses at router 2; 200 in all.
        assert_eq!(round(&mut answer, now, Some(50.0), 10), [(0, 50.0, 1), (2, 50.0, 1)]);
        let later = now + NOTICE_FOR;
        answer.notice(later, 0, (2, &notice(60.0, 0.0)));
        // Of 100 that arrive 60 came by router 0; router 2 has said nothing for too long.
        assert_eq!(round(&mut answer, later, Some(50.0), 10), [(0, 36.0, 2)]);
    }

    #[test]
    fn a_server_that_is_calm_because_routers_refuse_goes_on_with_a_rate_that_grows() {
        let mut answer = Answer::new(&[None], Rate::per_second(1.0));
        let hits = |refused| Hits {
            scope: "192.0.2.1:80".parse().unwrap(),
            unit: tidegate_model::remote::Unit::Connections,
            span: Nanos::from_millis(200),
            offered: 60,
            refused,
            probe: false,
        };
        let mut last = 0.0;
        for step in 0..100_u64 {
            let now = Nanos::from_millis(1_000 + 100 * step);
            if step.is_multiple_of(2) {
                answer.hear(now, 0, &hits(40));
            }
            answer.notice(now, 0, (step + 1, &notice(300.0, 200.0)));
            let own = (step < 10).then_some(Rate::per_second(100.0));
            let reply = answer.tick((now, PERIOD), own, Some((10, 10))).remove(0);
            assert!(
                reply.rate <= reply.whole && reply.rate.get() >= last,
                "{reply:?} after {last}"
            );
            last = reply.rate.get();
        }
        assert!((120.0..200.0).contains(&last), "{last}");
    }
}

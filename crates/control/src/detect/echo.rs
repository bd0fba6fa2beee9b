// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The echo of an overload: new work fits again, and only repeated SYNs of refused clients are too many.
//!
//! A dropped SYN comes back for seconds after a flash crowd is gone. A server that is given as many of
//! them as it can serve works at its capacity, with a standing queue, so everybody waits as if the
//! crowd were still there. While the echo lasts, connections are admitted at [`HELD_SHARE`] of the
//! capacity: the server responds as it does at that load, and the clients who were refused before wait
//! a little longer. First attempts are fewer than that, and fresh_first gives them tokens first.
//!
//! A cumulative sum (Page 1954) of the first attempts that are missing to [`FITS_SHARE`] of the
//! capacity begins the echo when it is full, and ends it when it is empty again. A policy that cannot
//! tell repeated SYNs has no echo: all that comes is a first attempt, and either fits or does not.
//!
//! While the echo lasts, completions are what was let in, and teach nothing about the capacity: see
//! `Episode::observe`. The capacity here is what the server completed before; μ may be ahead of that.

use super::history::{History, Sums};
use super::scale::{LASTING_SECONDS, SOON_SECONDS};

/// This share of the capacity is admitted: somewhat less than the 0.9 at which the response times of a
/// server are called normal in this project, for at that very load they would be it by chance only.
const HELD_SHARE: f64 = 0.85;
/// First attempts below this share of the capacity fit. What is left up to [`HELD_SHARE`] is for chance
/// and for repeated SYNs.
const FITS_SHARE: f64 = 0.8;
/// While a queue drains, first attempts are given so much more than they were lately, as a share of the
/// capacity: one deviation of half a second of 80 arrivals.
const FIRST_SPARE: f64 = 0.1;
/// First attempts missing, in connections. Poisson arrivals at the capacity show so many with chance
/// exp(−0.46·16) = 6e-4 in each excursion (0.46 solves 1 − e^(−θ) = 0.8·θ). A wrong echo costs
/// 0.1·16/(1 − 0.8) = 8 connections until it ends, whatever the speed of the server.
const MISSING: f64 = 16.0;

/// What is known of the echo.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// First attempts missing to their share of the capacity.
    missing: f64,
    /// Connections per second that the server can serve.
    capacity: f64,
    /// First attempts per second.
    first: f64,
    /// First attempts fit.
    fits: bool,
    /// First attempts fit, and all that comes does not.
    on: bool,
}

impl Echo {
    /// Takes a tick, the last one of `history`, of a server that completes `mu` exchanges per second
    /// when saturated, `each` of them for a connection.
    pub(super) fn see(&mut self, tick: &Sums, history: &History, (mu, each): (f64, f64)) {
        if !self.fits {
            self.capacity = history.lasting(LASTING_SECONDS).rate() / each;
        }
        self.capacity = self.capacity.min(mu / each);
        let fitting = FITS_SHARE * self.capacity;
        self.missing = (self.missing + fitting * tick.seconds - tick.first).clamp(0.0, MISSING);
        // On average, so that the space between two bursts is no echo.
        let lately = history.lasting(SOON_SECONDS);
        self.first = lately.first / lately.seconds;
        if self.missing <= 0.0 {
            self.fits = false;
        } else if self.missing >= MISSING && lately.seconds >= SOON_SECONDS {
            self.fits |= self.first < fitting;
        }
        self.on = self.fits && lately.with_repeated() > HELD_SHARE * self.capacity * lately.seconds;
    }

    /// Connections per second to admit at most; so many fewer as long as a queue has to drain, but
    /// first attempts always fit.
    pub(super) fn limit(&self, surplus: f64) -> Option<f64> {
        let most = HELD_SHARE * self.capacity;
        let least = self.first + FIRST_SPARE * self.capacity;
        self.on.then(|| (most - surplus).clamp(least.min(most), most))
    }

    /// Whether only repeated SYNs are too many.
    pub(super) const fn is_on(&self) -> bool {
        self.on
    }
}

#[cfg(test)]
mod tests {
    use crate::{Controller, DefaultController, DefaultSpec, Mode};
    use tidegate_model::limits::ServiceLimits;
    use tidegate_model::signals::{Counts, Reading, Signals, Times};
    use tidegate_units::{Nanos, Rate};

    /// A server of 250 requests per second, one for each connection.
    struct World {
        controller: DefaultController,
        n: u64,
        /// The policy tells repeated SYNs.
        tells: bool,
    }

    impl World {
        /// A tick of 100 ms: first attempts, repeated SYNs, completions and what is in flight.
        fn tick(&mut self, (first, again): (u64, u64), done: u64, waiting: u64) -> ServiceLimits {
            self.n += 1;
            let period = Nanos::from_millis(100);
            let mut s = Signals { now: Nanos(period.0 * self.n), period, ..Signals::default() };
            let offered = first + again;
            let admitted = offered.min(done);
            s.balance.counts = Some(Reading::fresh(Counts {
                offered,
                repeated: if self.tells { again } else { 0 },
                admitted,
                refused: offered - admitted,
                completed: done,
                ..Counts::default()
            }));
            let took = Nanos::from_millis(20);
            let times = Times { count: done, sum: Nanos(took.0 * done), p50: took, p99: took };
            s.time.waiting = Some(Reading::fresh(waiting));
            s.time.first_byte = Some(Reading::fresh(times));
            self.controller.tick(&s, Mode::Enforce)
        }

        fn ticks(&mut self, ticks: u64, came: (u64, u64), done: u64, waiting: u64) -> Vec<f64> {
            let rate = |limits: ServiceLimits| limits.rate.map_or(f64::INFINITY, Rate::get);
            (0..ticks).map(|_| rate(self.tick(came, done, waiting))).collect()
        }

        /// Calm, then three times the capacity for 10 s, of which what was refused comes back.
        fn overloaded(tells: bool) -> Self {
            let controller = DefaultController::new(DefaultSpec::default());
            let mut world = Self { controller, n: 0, tells };
            world.ticks(400, (20, 0), 20, 1);
            for waiting in 1..40 {
                world.tick((75, 0), 25, 20 * waiting);
            }
            world.ticks(100, (75, 150), 25, 24);
            assert!(world.controller.detector.episode.is_some());
            world
        }

        fn mu(&self) -> f64 {
            self.controller.detector.episode.as_ref().expect("it sheds").mu
        }

        fn echo(&self) -> bool {
            self.controller.detector.episode.as_ref().is_some_and(|episode| episode.echo.is_on())
        }
    }

    #[test]
    fn repeated_syns_get_what_first_attempts_leave_of_the_held_share() {
        let mut world = World::overloaded(true);
        let before = world.ticks(1, (75, 150), 25, 24)[0];
        assert!(before > 230.0, "as much as the server can serve: {before}");
        world.ticks(6, (12, 150), 25, 24);
        assert!(world.echo(), "0.6 s after the fall");
        // 120 first attempts a second and a tenth of the capacity, until the queue is gone
        let drains = world.ticks(1, (12, 150), 25, 24)[0];
        assert!((145.0..200.0).contains(&drains), "{drains}");
        let held = world.ticks(50, (12, 150), 22, 4);
        assert!(held.iter().all(|rate| (rate / 212.5 - 1.0).abs() < 0.02), "{held:?}");
    }

    #[test]
    fn repeated_syns_count_although_few_are_let_in() {
        let mut world = World::overloaded(true);
        for n in 0..20 {
            world.tick((12, 150), 18, 10);
            assert!(n < 7 || world.echo(), "tick {n}");
        }
    }

    /// What is let in says nothing about the capacity: neither less, as completions are, nor more, as
    /// a server that is short of work would make it.
    #[test]
    fn the_capacity_stays_what_it_was() {
        let mut world = World::overloaded(true);
        world.ticks(10, (12, 150), 25, 24);
        let mu = world.mu();
        for waiting in [0, 4, 10] {
            world.ticks(20, (12, 150), 22, waiting);
            assert!((world.mu() / mu - 1.0).abs() < 1e-9, "{} after {mu}: {waiting}", world.mu());
        }
        // A server that lost half of its capacity is seen by what stands in it.
        world.ticks(50, (12, 150), 12, 30);
        assert!(world.mu() < 0.6 * mu, "{} after {mu}", world.mu());
    }

    #[test]
    fn it_ends_at_once_when_new_work_is_too_much_again() {
        for (first, ticks) in [(75, 1), (50, 1), (30, 2), (25, 4)] {
            let mut world = World::overloaded(true);
            world.ticks(20, (12, 150), 22, 4);
            assert!(world.echo());
            world.ticks(ticks, (first, 150), 22, 4);
            assert!(!world.echo(), "{first} in each of {ticks} ticks");
        }
    }

    /// Poisson arrivals (Knuth's method over a linear congruential generator), 160 s of each load.
    #[test]
    fn new_work_near_the_capacity_is_no_echo() {
        let mut state = 7_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut poisson = move |mean: f64| {
            let (mut product, mut n) = (next(), 0_u64);
            while product > libm::exp(-mean) {
                product *= next();
                n += 1;
            }
            n
        };
        for (load, most) in [(0.95, 0.03), (1.0, 0.01), (1.1, 0.001), (2.0, 0.0)] {
            let mut world = World::overloaded(true);
            let ticks = 1600;
            let on = (0..ticks).filter(|_| {
                world.tick((poisson(25.0 * load), 50), 25, 24);
                world.echo()
            });
            let share = on.count() as f64 / f64::from(ticks);
            assert!(share <= most, "{load}: {share}");
        }
    }

    /// Twice the capacity in bursts, three a second, and nothing between them.
    #[test]
    fn the_space_between_two_bursts_is_no_echo() {
        let mut world = World::overloaded(true);
        for n in 0..200 {
            world.tick((if n % 3 == 0 { 150 } else { 0 }, 150), 25, 24);
            assert!(!world.echo(), "tick {n}");
        }
    }

    #[test]
    fn without_repeated_syns_there_is_none() {
        let mut world = World::overloaded(false);
        let rates = world.ticks(50, (12, 150), 25, 24);
        assert!(!world.echo() && rates.iter().all(|rate| *rate > 230.0), "{rates:?}");
        // nor where all that comes fits, until the release
        let mut world = World::overloaded(true);
        let rates = world.ticks(50, (12, 2), 14, 1);
        assert!(rates[..6].iter().all(|rate| *rate > 230.0), "{rates:?}");
        assert!(rates[49].is_infinite(), "{rates:?}");
    }
}

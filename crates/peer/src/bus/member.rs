// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is kept of another router of a bus: numbers, its session, its certificates, and how much it may cost.

use tidegate_units::Nanos;

/// Messages a second, and at once, of which a signature is verified: for each router, more than it sends. All routers
/// together cost some 3.5 % of a processor then (decision 54).
const VERIFIED: (f64, f64) = (64.0, 192.0);
/// The same for certificates of a router that it has not shown before.
const NEW_CHAINS: (f64, f64) = (20.0, 40.0);
/// A number is given for so long, and counts for as long after.
const GIVEN_FOR: Nanos = Nanos::from_secs(5);
/// Processes of a router whose numbers are remembered: what is repeated of earlier ones does not displace the one that
/// runs.
pub(super) const PROCESSES_MAX: usize = 4;

/// How often something may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    per_second: f64,
    most: f64,
    left: f64,
    at: Nanos,
}

impl Bucket {
    pub(super) const fn new((per_second, most): (f64, f64)) -> Self {
        Self { per_second, most, left: most, at: Nanos::ZERO }
    }

    pub(super) fn takes(&mut self, now: Nanos) -> bool {
        let earned = now.since(self.at).as_secs_f64() * self.per_second;
        self.at = self.at.max(now);
        self.left = (self.left + earned).min(self.most);
        let takes = self.left >= 1.0;
        if takes {
            self.left -= 1.0;
        }
        takes
    }
}

/// The number that another router has to give back to begin a session, and the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) number: u64,
    before: u64,
    since: Nanos,
}

impl Given {
    const fn new(number: u64) -> Self {
        Self { number, before: number, since: Nanos::ZERO }
    }

    /// Another one, when it is time to: what was said long ago begins no session.
    pub(super) fn renew(&mut self, now: Nanos, random: &mut dyn FnMut() -> u64) {
        if now.since(self.since) >= GIVEN_FOR {
            (self.before, self.number, self.since) = (self.number, random(), now);
        }
    }

    /// Another one now: what was given before counts no more.
    pub(super) fn void(&mut self, random: &mut dyn FnMut() -> u64) {
        self.number = random();
        self.before = self.number;
    }

    pub(super) fn is_in(&self, told: &[u64]) -> bool {
        told.contains(&self.number) || told.contains(&self.before)
    }
}

/// The session of another router.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// Its own number.
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
}

/// The number that a process of another router gave to this host.
#[derive(Clone, Copy, Debug)]
struct Heard {
    process: u64,
    sequence: u64,
    given: u64,
}

/// Another router.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) given: Given,
    /// Of each process of it, the one that was heard last first.
    heard: Vec<Heard>,
    pub(super) session: Option<Session>,
    /// The certificates with which it signed last, and when they were looked at.
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) looked: Nanos,
    pub(super) verified: Bucket,
    pub(super) chains: Bucket,
}

impl Member {
    pub(super) fn new(given: u64) -> Self {
        Self {
            given: Given::new(given),
            heard: Vec::new(),
            session: None,
            chain: Vec::new(),
            looked: Nanos::ZERO,
            verified: Bucket::new(VERIFIED),
            chains: Bucket::new(NEW_CHAINS),
        }
    }

    /// A process of it gave this number in the message of this sequence.
    pub(super) fn hear(&mut self, (process, sequence): (u64, u64), given: u64) {
        let at = self.heard.iter().position(|heard| heard.process == process);
        let known = at.map(|at| self.heard.remove(at));
        let heard = known.filter(|known| known.sequence >= sequence);
        self.heard.insert(0, heard.unwrap_or(Heard { process, sequence, given }));
        self.heard.truncate(PROCESSES_MAX);
    }

    /// The numbers that this host gives back.
    pub(super) fn told(&self) -> Vec<u64> {
        self.heard.iter().map(|heard| heard.given).collect()
    }
}

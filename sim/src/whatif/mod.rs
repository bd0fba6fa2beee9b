// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What if: one load, two servers of the same kind side by side, one of them protected.
//!
//! The load is fed arrival by arrival, so that it may be longer than memory; what is kept is
//! bounded: [`bins::BINS_MAX`] periods, [`episodes::EPISODES_MAX`] episodes, the clients under way.

pub mod bins;
pub mod course;
pub mod episodes;
pub mod spread;

use crate::world::server::ServerSpec;
use crate::world::{Arrival, Protection, Scenario, World};
use course::Course;
use tidegate_units::Nanos;
use tidegate_workload::{Mixture, Process};

/// What both servers have in common.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The server.
    pub server: ServerSpec,
    /// Kinds of clients.
    pub clients: Mixture,
    /// A client leaves after this long.
    pub timeout: Nanos,
    /// A response within this long is good.
    pub objective: Nanos,
    /// Period of the control loop.
    pub period: Nanos,
    /// Classes of clients: an arrival's class is below.
    pub classes: u8,
    /// The seed of everything.
    pub seed: u64,
}

impl Spec {
    fn world(&self, protection: Option<Protection>) -> World<Course> {
        let scenario = Scenario {
            server: self.server.clone(),
            phases: Vec::new(),
            process: Process::Poisson,
            batches: None,
            changes: Vec::new(),
            clients: self.clients.clone(),
            timeout: self.timeout,
            objective: self.objective,
            period: self.period,
            control_from: Nanos::ZERO,
            seed: self.seed,
        };
        World::new(scenario, protection, Course::new(self.classes))
    }
}

/// Both servers.
pub struct WhatIf {
    with: World<Course>,
    without: World<Course>,
    last: Nanos,
    offered: u64,
}

/// What became of a load.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Behind the protection.
    pub with: Course,
    /// Without it.
    pub without: Course,
    /// When the last client came.
    pub last: Nanos,
    /// The most clients that were under way at once, in either.
    pub clients_most: usize,
}

impl WhatIf {
    /// Both servers, idle at time zero. They draw the same service times and kinds of clients for
    /// as long as their courses are the same.
    #[must_use]
    pub fn new(spec: &Spec, protection: Protection) -> Self {
        let (with, without) = (spec.world(Some(protection)), spec.world(None));
        Self { with, without, last: Nanos::ZERO, offered: 0 }
    }

    /// A client comes to both; times may not fall.
    ///
    /// # Errors
    /// When a checker finds a world wrong, or too many clients are under way.
    pub fn offer(&mut self, arrival: Arrival) -> Result<(), String> {
        self.last = arrival.at;
        self.offered += 1;
        self.with.offer(arrival)?;
        self.without.offer(arrival)
    }

    /// Clients that came so far.
    #[must_use]
    pub const fn offered(&self) -> u64 {
        self.offered
    }

    /// When the last of them came.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.last
    }

    /// Follows everybody to the end.
    ///
    /// # Errors
    /// When a checker finds a world wrong: nobody may end twice or never.
    pub fn finish(self) -> Result<Answer, String> {
        let last = self.last;
        let clients_most = self.with.clients_most().max(self.without.clients_most());
        let (with, without) = (self.with.finish(last)?, self.without.finish(last)?);
        for (name, course) in [("with", &with), ("without", &without)] {
            course.check(self.offered).map_err(|e| format!("{name} protection: {e}"))?;
        }
        Ok(Answer { with, without, last, clients_most })
    }
}

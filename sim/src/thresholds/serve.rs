// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's processor: responses "too busy" go first and interrupt a request, requests are served
//! one after the other. Times are whole nanoseconds, so that the account of CPU time is exact.

use super::spec::ServerSpec;
use std::collections::VecDeque;
use tidegate_units::Nanos;

/// A request; the number is the world's.
pub(super) type Request = usize;

/// What the processor has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// A request was served.
    Served(Request),
    /// "Too busy" was said.
    Busy(Request),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    spec: ServerSpec,
    /// Wait for the processor.
    queue: VecDeque<Request>,
    /// In service, with what it still wants.
    served: Option<(Request, Nanos)>,
    /// To be told "too busy"; what the first one still wants.
    busy: VecDeque<Request>,
    busy_left: Nanos,
    then: Nanos,
    epoch: u64,
    /// CPU time used.
    used: Nanos,
    /// CPU time of all that was finished.
    finished: Nanos,
    /// Requests waiting, times nanoseconds.
    waited: u128,
}

impl Server {
    pub(super) fn new(spec: ServerSpec) -> Self {
        Self {
            spec,
            queue: VecDeque::new(),
            served: None,
            busy: VecDeque::new(),
            busy_left: Nanos::ZERO,
            then: Nanos::ZERO,
            epoch: 0,
            used: Nanos::ZERO,
            finished: Nanos::ZERO,
            waited: 0,
        }
    }

    /// Requests that wait: the level of the thresholds.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// CPU time used, and requests waiting times nanoseconds, since the beginning.
    pub(super) fn account(&mut self, now: Nanos) -> (Nanos, u128) {
        self.advance(now);
        (self.used, self.waited)
    }

    /// A connection with its request is here.
    pub(super) fn accept(&mut self, now: Nanos, request: Request) {
        self.advance(now);
        if self.served.is_some() && self.queue.len() >= self.spec.queue_max {
            if self.busy.is_empty() {
                self.busy_left = self.spec.busy_work;
            }
            self.busy.push_back(request);
            return;
        }
        self.queue.push_back(request);
        self.begin();
    }

    /// When the processor finishes what it does, and the number of that plan; earlier plans are void.
    pub(super) fn plan(&mut self) -> Option<(Nanos, u64)> {
        let left = if self.busy.is_empty() { self.served?.1 } else { self.busy_left };
        self.epoch += 1;
        Some((self.then + left, self.epoch))
    }

    /// A plan's time has come.
    pub(super) fn fire(&mut self, now: Nanos, epoch: u64) -> Option<Done> {
        if epoch != self.epoch {
            return None;
        }
        self.advance(now);
        if let Some(request) = self.busy.pop_front() {
            self.busy_left = self.spec.busy_work;
            self.finished += self.spec.busy_work;
            return Some(Done::Busy(request));
        }
        let (request, _) = self.served.take()?;
        self.finished += self.spec.work;
        self.begin();
        Some(Done::Served(request))
    }

    /// Checks an idle server.
    ///
    /// # Errors
    /// When something is left, or the CPU time used is not that of what was finished.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.served.is_some() || !self.busy.is_empty() || !self.queue.is_empty() {
            return Err(format!("the server still has work: {self:?}"));
        }
        if self.used != self.finished {
            return Err(format!("CPU used {}, of finished work {}", self.used, self.finished));
        }
        Ok(())
    }

    fn begin(&mut self) {
        if self.served.is_none() {
            self.served = self.queue.pop_front().map(|request| (request, self.spec.work));
        }
    }

    fn advance(&mut self, now: Nanos) {
        let span = now.since(self.then);
        self.then = self.then.max(now);
        self.waited += u128::from(span.0) * self.queue.len() as u128;
        if !self.busy.is_empty() {
            self.busy_left = self.busy_left - span;
            self.used += span;
        } else if let Some((_, left)) = &mut self.served {
            *left = *left - span;
            self.used += span;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    /// "Too busy" interrupts, costs its time, and what was interrupted loses nothing.
    #[test]
    fn too_busy_goes_first_and_the_account_is_exact() {
        let spec = ServerSpec { work: MS(20), busy_work: MS(4), queue_max: 1 };
        let mut server = Server::new(spec);
        server.accept(MS(0), 1);
        server.accept(MS(0), 2);
        assert_eq!(server.plan(), Some((MS(20), 1)));
        server.accept(MS(5), 3);
        assert_eq!((server.waiting(), server.plan()), (1, Some((MS(9), 2))));
        assert_eq!(server.fire(MS(20), 1), None, "void");
        let mut server = Server::new(spec);
        (1..=2).for_each(|request| server.accept(MS(0), request));
        server.accept(MS(5), 3);
        let mut done = Vec::new();
        while let Some((at, epoch)) = server.plan() {
            done.push((at, server.fire(at, epoch).unwrap()));
        }
        let expected =
            [(MS(9), Done::Busy(3)), (MS(24), Done::Served(1)), (MS(44), Done::Served(2))];
        assert_eq!(done, expected);
        server.check().unwrap();
        // one waits from the beginning until the first is served
        assert_eq!(server.account(MS(50)), (MS(44), u128::from(MS(24).0)));
    }
}

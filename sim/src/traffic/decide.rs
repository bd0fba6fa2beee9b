// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control loop: totals become signals, as `tidegate-sense` makes them, and signals limits.

use super::kept::Kept;
use super::sense::{Accounting, Sample, Window};
use super::{Happening, World};
use crate::APPLY_DELAY;
use crate::governor::SimGovernor;
use crate::signals::{accept_queue, add_totals};
use crate::world::report::{Observer, Trace};
use tidegate_control::Controller;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{Reading, Signals};
use tidegate_model::totals::ServiceTotals;
use tidegate_units::{Nanos, Share};

/// The control loop of one service.
pub(super) struct Loop {
    governor: Option<SimGovernor>,
    window: Window,
    /// The same of a server's only thread.
    thread: Window,
    decided: Option<ServiceLimits>,
    /// What the tick before saw; `None` before the first.
    before: Option<(Nanos, ServiceTotals)>,
    stalled_s: f64,
    accounting: Accounting,
    successor: Option<Box<dyn Controller>>,
    kept: Kept,
}

impl Loop {
    pub(super) fn new(
        (governor, successor): (Option<SimGovernor>, Option<Box<dyn Controller>>),
        accounting: Accounting,
    ) -> Self {
        Self {
            governor,
            window: Window::new(accounting),
            thread: Window::new(Accounting::Group),
            decided: None,
            before: None,
            stalled_s: 0.0,
            accounting,
            successor,
            kept: Kept::default(),
        }
    }

    /// A new daemon begins: it has what was kept for it, and the limits in force stay for a while.
    pub(super) fn succeed(&mut self, now: Nanos) {
        if let Some(governor) = &mut self.governor {
            match self.successor.take() {
                Some(next) => governor.succeed(now, next, self.kept.take(now)),
                None => governor.hold(now),
            }
        }
        self.window = Window::new(self.accounting);
        self.thread = Window::new(Accounting::Group);
        (self.decided, self.before) = (None, None);
    }
}

impl World {
    pub(super) fn tick(&mut self, now: Nanos) -> Result<(), String> {
        if self.silent_since.is_some() {
            return Ok(());
        }
        for service in 0..self.loops.len() {
            if self.loops[service].governor.is_none() {
                continue;
            }
            let signals = self.signals(now, service);
            let own = &mut self.loops[service];
            let (Some(signals), Some(governor)) = (signals, &mut own.governor) else {
                continue;
            };
            let limits = governor.tick(&signals)?;
            own.kept.tick(now, limits.why.shedding, || governor.save());
            let stream = self.spec.streams.iter().position(|stream| stream.service == service);
            if let Some(stream) = stream {
                self.flows[stream].report.trace(Trace::of(&signals, &limits));
            }
            own.decided = Some(limits);
        }
        self.engine.after(APPLY_DELAY, Happening::Apply);
        if now < self.until + self.spec.patience {
            self.engine.after(self.spec.period, Happening::Tick);
        }
        Ok(())
    }

    pub(super) fn apply(&mut self) -> Result<(), String> {
        for (own, gate) in self.loops.iter_mut().zip(&mut self.gates) {
            let Some(limits) = own.decided.take() else { continue };
            gate.set(limits).map_err(|e| format!("limits not accepted: {e}"))?;
        }
        Ok(())
    }

    /// What happened since the tick before; the first look gives totals only.
    fn signals(&mut self, now: Nanos, service: usize) -> Option<Signals> {
        let totals = self.gates[service].totals().clone();
        let (used, all_s) = self.cpu.used(now, service);
        let own = &mut self.loops[service];
        let before = own.before.replace((now, totals));
        let stalled = used.stalled_s - std::mem::replace(&mut own.stalled_s, used.stalled_s);
        let period = before.as_ref().map_or(Nanos::ZERO, |(at, _)| now.since(*at));
        let pressure = Share::new(stalled / period.as_secs_f64().max(1e-9));
        let sample = Sample { at: now, own_s: used.used_s, irq_s: self.cpu.irq_s(), all_s };
        let cpu = own.window.tick(sample, self.cpu.cores(), pressure);
        let thread = own.thread.tick(sample, 1.0, Share::new(0.0));
        let ((_, before), (_, totals)) = (before?, own.before.as_ref()?);
        let mut s = Signals { now, period, ..Signals::default() };
        s.resource.cpu = cpu.map(Reading::fresh);
        if self.servers[service].is_one_thread() {
            s.resource.busiest_thread = thread.map(Reading::fresh);
        }
        s.resource.cpu_pressure = Some(Reading::fresh(pressure));
        let server = &self.servers[service];
        let queue = accept_queue((server.accept_length(), server.accept_limit()));
        s.queue.accept = Some(Reading::fresh(queue));
        add_totals(&mut s, totals, &before);
        Some(s)
    }
}

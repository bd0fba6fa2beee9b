// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service whose back-ends report: controllers of their own for each of them, fed with its
//! signals, and the sum of what they admit. See mod.rs.

use super::bounds::Operator;
use super::clamp::{Basis, Clamp};
use super::split::{Part, Passed, sum, view};
use crate::{Controller, Dual, Mode};
use tidegate_model::RANKS;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{Backend, Signals};

/// The controllers of all back-ends of a service.
pub struct Backends {
    make: Box<dyn Fn() -> Dual + Send>,
    each: Vec<Each>,
    rules_in_shadow: bool,
    /// Connections that passed, and requests of each bucket.
    connections: Passed,
    requests: Vec<Passed>,
    /// Counts that do not divide are handed round.
    ticks: usize,
}

struct Each {
    name: String,
    dual: Dual,
    clamp: Clamp,
    /// Fractions of completions that were not given yet.
    completed: f64,
}

impl Backends {
    /// Controllers for back-ends of these names, with what an operator said of the service.
    #[must_use]
    pub fn new(
        names: Vec<String>,
        operator: &Operator,
        make: impl Fn() -> Dual + Send + 'static,
    ) -> Self {
        let each = names.into_iter().map(|name| Each {
            name,
            dual: make(),
            clamp: Clamp::new(operator.clone()),
            completed: 0.0,
        });
        Self {
            each: each.collect(),
            make: Box::new(make),
            rules_in_shadow: false,
            connections: Passed::default(),
            requests: vec![Passed::default(); operator.buckets.len()],
            ticks: 0,
        }
    }

    /// Whether request rules only count.
    pub fn rules_in_shadow(&mut self, on: bool) {
        self.rules_in_shadow = on;
        self.each.iter_mut().for_each(|each| each.dual.rules_in_shadow(on));
    }

    fn learn(&mut self, signals: &Signals, mode: Mode) {
        let seconds = signals.period.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        if let Some(counts) = signals.balance.counts {
            self.connections.see(seconds, counts.value.admitted);
        }
        let shadow = self.rules_in_shadow || mode == Mode::Shadow;
        for (passed, bucket) in self.requests.iter_mut().zip(&signals.buckets) {
            let Some(counts) = bucket.counts.map(|counts| counts.value) else { continue };
            let sum = |ranks: [u64; RANKS]| ranks.into_iter().fold(0, u64::saturating_add);
            // What is only counted as refused has passed.
            let refused = if shadow { 0 } else { sum(counts.refused) };
            passed.see(seconds, sum(counts.offered).saturating_sub(refused));
        }
    }
}

impl Controller for Backends {
    /// The limits until the next tick; of no back-ends there are none.
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        let n = self.each.len();
        if n == 0 {
            return ServiceLimits::default();
        }
        self.learn(signals, mode);
        let passed = self.connections.one_of(n);
        let requests: Vec<_> = self.requests.iter().map(|passed| passed.one_of(n)).collect();
        self.ticks = self.ticks.wrapping_add(1);
        let silent = Backend::default();
        let mut parts = Vec::with_capacity(n);
        for (index, each) in self.each.iter_mut().enumerate() {
            let backend = signals.backends.get(index).unwrap_or(&silent);
            let part = Part { index: (index + self.ticks) % n, of: n };
            let view = view(signals, backend, part, &mut each.completed);
            let basis = Basis {
                now: signals.now,
                valid: backend.valid,
                passed,
                requests: &requests,
                waiting: view.time.waiting.map_or(0, |waiting| waiting.value),
            };
            // What is lifted has no effect, and a controller must not believe that it had.
            let lost = !basis.valid && each.clamp.lost(signals.now);
            let wanted = each.dual.tick(&view, if lost { Mode::Shadow } else { mode });
            let clamped = each.clamp.clamp(&wanted, basis);
            if !lost && !basis.valid && each.clamp.lost(signals.now) {
                // What it learned from reports that are long gone must not come back with the next.
                each.dual = (self.make)();
            }
            parts.push((each.name.as_str(), clamped));
        }
        sum(parts)
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happens to the product while clients come, as the script of a load.
//!
//! ```text
//!  pause     SIGSTOP ……… SIGCONT          kill     SIGKILL … the supervisor starts it again
//!  release   kill switch on ……… off       restart  SIGUSR2, its end, start (systemctl restart)
//!  start     (nothing runs) ……… start     upgrade  start beside it, which takes over
//! ```

use super::scenario::{Fault, FaultKind};
use crate::survival::arm::{self, Place};
use anyhow::{Context, Result};
use std::cell::RefCell;
use tidegate_lab::{LoadReport, Product, Script};
use tidegate_units::Nanos;

/// How long a daemon that was taken over from may take to end.
const END_LIMIT: Nanos = Nanos::from_secs(10);

/// The product of a run, that faults may end and start again.
pub(super) struct Held<'a> {
    place: &'a Place<'a>,
    action: &'a str,
    product: RefCell<Option<Product>>,
}

impl<'a> Held<'a> {
    /// Holds a product that runs, or none yet.
    pub(super) const fn new(
        place: &'a Place<'a>,
        action: &'a str,
        product: Option<Product>,
    ) -> Self {
        Self { place, action, product: RefCell::new(product) }
    }

    /// The product, if one runs.
    pub(super) fn into_product(self) -> Option<Product> {
        self.product.into_inner()
    }

    /// The fault at its times, `before_s` being the time of the attack's beginning.
    pub(super) fn script(&self, fault: Fault, before_s: f64) -> Script<'_> {
        let begin = before_s + fault.at_s;
        let told = |done: Result<()>| done.map_err(|error| format!("{error:#}"));
        let script = Script::new()
            .at(Nanos::from_secs_f64(begin), "begins", move || told(self.begin(fault.kind)));
        if !fault.kind.has_end() {
            return script;
        }
        let end = Nanos::from_secs_f64(begin + fault.lasts_s);
        script.at(end, "ends", move || told(self.end(fault.kind)))
    }

    fn begin(&self, kind: FaultKind) -> Result<()> {
        match kind {
            FaultKind::Pause => self.with(|product| Ok(product.pause(true)?)),
            FaultKind::Release => self.with(|product| Ok(product.release(true)?)),
            FaultKind::Kill => self.with(|product| Ok(product.crash()?)),
            FaultKind::Restart => {
                self.with(|product| Ok(product.end_for_restart()?))?;
                self.again().map(drop)
            }
            FaultKind::Upgrade => {
                let old = self.again()?;
                Ok(old.wait_end(END_LIMIT)?)
            }
            FaultKind::Start => {
                let product = arm::product_without_cpu(self.place, self.action)?;
                *self.product.borrow_mut() = Some(product);
                Ok(())
            }
        }
    }

    fn end(&self, kind: FaultKind) -> Result<()> {
        match kind {
            FaultKind::Pause => self.with(|product| Ok(product.pause(false)?)),
            FaultKind::Release => self.with(|product| Ok(product.release(false)?)),
            FaultKind::Kill => self.again().map(drop),
            FaultKind::Restart | FaultKind::Upgrade | FaultKind::Start => Ok(()),
        }
    }

    fn with(&self, act: impl FnOnce(&mut Product) -> Result<()>) -> Result<()> {
        let mut held = self.product.borrow_mut();
        act(held.as_mut().context("no product runs")?)
    }

    /// Starts another one with the configuration of the one held, which it replaces.
    fn again(&self) -> Result<Product> {
        let mut held = self.product.borrow_mut();
        let old = held.take().context("no product was there")?;
        *held = Some(self.place.lab.start_product_like(self.place.program, &old)?);
        Ok(old)
    }
}

/// Seconds from the fault until the product answers again.
pub(super) fn back_s(report: &LoadReport) -> f64 {
    match (report.events.first(), report.events.last()) {
        (Some(first), Some(last)) => last.at + last.took - first.at,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_lab::{EventDone, Percentiles};

    /// From the beginning of the first event to the end of the last.
    #[test]
    fn it_is_back_when_the_last_event_is_over() {
        let event = |at: f64, took: f64| EventDone {
            name: String::new(),
            planned: at,
            at,
            took,
            error: None,
        };
        let report = |events| LoadReport {
            started: Nanos::ZERO,
            shards: 1,
            lag: Percentiles::default(),
            cpu: vec![],
            void: vec![],
            streams: vec![],
            events,
        };
        assert!(back_s(&report(vec![])).abs() < 1e-9);
        assert!((back_s(&report(vec![event(10.0, 0.3)])) - 0.3).abs() < 1e-9);
        let both = report(vec![event(10.0, 0.1), event(10.2, 0.4)]);
        assert!((back_s(&both) - 0.6).abs() < 1e-9);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last looks at each service.

use std::collections::{BTreeMap, VecDeque};
use tidegate_model::snapshot::Snapshot;
use tidegate_telemetry::figures;

/// Looks that are kept.
pub(crate) const LOOKS_MAX: usize = 240;

/// One service's figures, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) offered: VecDeque<u64>,
    pub(crate) refused: VecDeque<u64>,
}

/// All services' figures, by name: a reload may reorder services.
#[derive(Debug, Default)]
pub(crate) struct History {
    series: BTreeMap<String, Series>,
}

impl History {
    /// Takes a look in; forgets services that are gone.
    pub(crate) fn record(&mut self, snapshot: &Snapshot) {
        self.series.retain(|name, _| snapshot.services.iter().any(|s| s.name == *name));
        for service in &snapshot.services {
            let rates = figures(service);
            let series = self.series.entry(service.name.clone()).or_default();
            push(&mut series.offered, rates.offered);
            push(&mut series.refused, rates.refused);
        }
    }

    pub(crate) fn of(&self, service: &str) -> Option<&Series> {
        self.series.get(service)
    }
}

fn push(values: &mut VecDeque<u64>, value: Option<f64>) {
    if values.len() == LOOKS_MAX {
        values.pop_front();
    }
    values.push_back(value.unwrap_or_default().round() as u64);
}

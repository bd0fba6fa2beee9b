// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole connections to the listeners of adapters, of any bytes.

use std::sync::Arc;
use tidegate_config::{Registry, parse};
use tidegate_gate::{Gate, Unbound};
use tidegate_model::limits::ServiceLimits;
use tidegate_units::{Clock, MonotonicClock, Rate};

const CONFIG: &str = "services: {shop: {mode: enforce}}
gateways:
  a: {adapter: nginx, listen: '127.0.0.1:9470', completions: '127.0.0.1:9470', routes: [{service: shop}]}
  b: {adapter: haproxy, listen: '127.0.0.1:9471', completions: '127.0.0.1:9471', routes: [{service: shop}]}
  c: {adapter: caddy, listen: '127.0.0.1:9472', completions: '127.0.0.1:9472', routes: [{service: shop}]}
  d: {adapter: traefik, listen: '127.0.0.1:9473', routes: [{service: shop}]}
  e: {adapter: envoy, listen: '127.0.0.1:9474', routes: [{service: shop}]}
";

/// How many adapters there are.
pub(crate) const ADAPTERS: usize = 5;

/// The listeners of one gate, without sockets.
pub(crate) struct Harness {
    gate: Arc<Gate>,
    listeners: Vec<Unbound>,
}

impl Default for Harness {
    fn default() -> Self {
        let config = parse(CONFIG, &Registry::new(["fresh_first"], ["default"]));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let gate = Arc::new(Gate::new(&config, 1));
        gate.tick(MonotonicClock.now());
        let rate = Some(Rate::per_second(1000.0));
        let limits = ServiceLimits { rate, burst: 30, ..ServiceLimits::default() };
        assert!(gate.set_limits(&config, &[limits]).is_empty());
        let listener = |of| Unbound::new(Arc::clone(&gate), Arc::new(MonotonicClock), of);
        let listeners = config.gateways.iter().map(listener);
        let listeners = listeners.map(|of| of.unwrap_or_else(|error| panic!("{error}"))).collect();
        Self { gate, listeners }
    }
}

impl Harness {
    /// The first byte says to which adapter; the rest is all that is said. The connection is closed,
    /// everything is counted once, and nothing else happens. Returns what was answered.
    pub(crate) fn run(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some((to, said)) = bytes.split_first() else { return Vec::new() };
        self.gate.tick(MonotonicClock.now());
        let listener = &self.listeners[usize::from(*to) % ADAPTERS];
        let answered = listener.connection(said);
        let totals = self.gate.totals(0).unwrap_or_default();
        assert_eq!(totals.offered, totals.admitted + totals.refused);
        let state = self.gate.state();
        assert!(state.completed + state.late <= totals.admitted, "nobody guesses a token");
        answered.unwrap_or_else(|| panic!("the connection is not closed"))
    }

    /// What was not understood so far.
    pub(crate) fn misunderstood(&self) -> u64 {
        self.gate.state().misunderstood
    }

    /// How many questions there were so far.
    pub(crate) fn asked(&self) -> u64 {
        self.gate.totals(0).unwrap_or_default().offered
    }
}

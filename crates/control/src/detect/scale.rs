// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers that a detector measures by. What is said of events is counted, so that it scales with
//! the server; what is said of seconds is what the control loop can see.

/// Events in a rate: it errs by 1/√64, 12 %. Of departures, arrivals, SYN-ACKs or ends of connections.
pub(crate) const RATE_EVENTS: f64 = 64.0;
/// Events in a mean that other numbers are made of: 13 % at a coefficient of variation of 3, and the
/// largest of many such windows errs by 3/√512.
pub(super) const MEAN_EVENTS: f64 = 512.0;
/// Fewer events say nothing, however long it takes.
pub(super) const EVENTS_MIN: f64 = 16.0;
/// So many more arrivals without a sign of an overload end it.
pub(super) const ENOUGH_ARRIVALS: f64 = 32.0;
/// Completions that are missing where nothing completes: by chance once in e^12, 160,000 times, and
/// with bursts of responses still once in some hundreds.
pub(super) const SILENT_COMPLETIONS: f64 = 12.0;
/// Standard deviations that are no chance: once in 30,000 windows, and a busy server's queue at 0.9
/// load drifts down, which makes it rarer still.
pub(super) const DEVIATIONS: f64 = 4.0;

/// What has been so for a second lasts: longer than one burst and its queue, ten ticks.
pub(crate) const LASTING_SECONDS: f64 = 1.0;
/// The same in ticks, where it is not known how long they are.
pub(super) const LASTING_TICKS: usize = 10;
/// Half a second, five ticks: the least in which a step shows in what completes.
pub(super) const SOON_SECONDS: f64 = 0.5;
/// Nothing of an overload is waited for longer than this, and what comes back within it is the same
/// overload.
pub(super) const LONG_SECONDS: f64 = 30.0;
/// No response and no round trip takes longer, nor does a trial pause for longer.
pub(super) const TIME_SECONDS_MAX: f64 = 60.0;

/// What a server may have in flight takes this share of the objective: the rest is for the way.
pub(super) const OBJECTIVE_SHARE: f64 = 0.8;
/// A squared coefficient of variation above this (5 times the mean) is taken for this.
pub(super) const SPREAD_MAX: f64 = 25.0;

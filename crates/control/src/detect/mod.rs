// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How overloaded a service is, and why: one [`Detector`] a service, for a server of which nothing is
//! known. It decides nothing; the laws (../law) turn what it says into limits.
//!
//! # What it measures
//! Each tick: connections that came, exchanges completed D, exchanges in flight N (exact), mean
//! response times, CPU, accept queue. From them, **while calm only** (a baseline learned under load
//! sheds healthy users):
//! - the baseline r0: mean response time of windows of some hundred responses. The mean, not the
//!   minimum: with many workers and a heavy tail, capacity times the minimum is far fewer jobs than the
//!   server needs;
//! - the idle: jobs in flight that Little's law does not explain (N above D·r0): connections opened
//!   and never used must not look like load;
//! - the peak of D: the capacity that was seen.
//!
//! # When it alarms
//! On any of four causes ([`Cause`](tidegate_model::limits::Cause)). More comes than completes for longer than by chance, or clients
//! leave without a response, and
//! 1. an excess E = N − idle − D·r0 is in flight, above what a healthy server shows; or
//! 2. it stands in the accept queue. Or
//! 3. the in-flight limit of calm refuses, and the CPU is used up: that does not wait for a trend. Or
//! 4. far more is in flight than by chance, and the CPU is used up for longer than a burst takes: a
//!    load a little above the capacity shows no imbalance for long.
//!
//! Everything is measured in departures, so it scales: at 0.9 load the jobs in a CPU-shared or single
//! server exceed n with chance 0.9^n, whatever its speed. An accept queue with a long response time is
//! one family in two places (a slow dependency looks so) and no alarm. Where connections that send
//! nothing hold the workers there is no alarm: refusing others frees no worker.
//!
//! # What it says of an overload
//! The capacity μ, exchanges completed per second under saturation, and a target for the jobs in
//! flight, N* = idle + (3/2)·μ·r0 + Q: what keeps all of an unknown number of workers busy, a half
//! more because r0 is an estimate, and a small standing queue Q that rides out chance.
//!
//! Requests of connections that stay (R, resident.rs) count beside the target, not in it. Refusing SYNs
//! cannot bring them down, and would only refuse others for them. A server shares itself among what it has,
//! so newcomers are given as long a queue as that, up to what they complete within the objective. What
//! they can have of the capacity is μ·(1 − R/N*), less where requests of those that stay are cheap.
//!
//! Without a baseline (started in mid-crisis) r0 begins at N/2μ, or at what the first responses in calm
//! said, and is halved for as long as completions do not fall. Where completions are far below what was
//! seen before (a slower dependency needs more jobs in flight; or the server lost capacity), N* is
//! doubled for a while: if completions follow, it stays; if not, it goes back, and the next try comes
//! later.
//!
//! # When it is over
//! When offered load has been below 0.97 of what newcomers can have of μ/k for long enough to be no chance
//! (a CUSUM; k exchanges a connection), when the limits have refused nothing for a while, or when the ceiling holds nothing off
//! while the server is free and fast (long polls: no queue that refusals shorten). Coming back soon
//! makes the next end slower, so that a load around the capacity does not swing. Signals that are
//! missing never tighten: old ones freeze what was said, lost ones end it.
//!
//! # Where to look
//!
//! | file | what it knows |
//! | --- | --- |
//! | `detector.rs`, `load.rs` | one tick from signals to [`Load`]: calm, overload, or unknown |
//! | `alarm.rs` | the four causes |
//! | `scale.rs` | the numbers that all of them measure by |
//! | `evidence.rs`, `history.rs` | imbalance and losses of the last ticks; CPU and queue that stand |
//! | `baseline.rs`, `exchanges.rs` | response times while calm; one unit for what is compared |
//! | `bursts.rs` | whether arrivals come in batches: gaps between them are no end |
//! | `refusals.rs` | refusals that are no client's doing |
//! | `episode.rs`, `trial.rs` | an overload: capacity and target; a try of more in flight |
//! | `echo.rs` | new work fits again, and only repeated SYNs are too many |
//! | `fall.rs` | jobs at a gateway that only wait: fewer in flight complete less |
//! | `usual.rs` | what is usual at a gateway; a crowd that is all in flight is not |
//! | `stall.rs`, `headroom.rs` | a moment without completions; what may pile up while calm |
//! | `resident.rs` | requests of connections that stay: SYN policing does not move them |
//! | `harmless.rs`, `probe.rs` | long polls; a full limit that nobody leaves |
//! | `silent.rs`, `coming.rs` | who says nothing yet, and who will ask in a moment |
//! | `seats.rs`, `held.rs` | who waits for a worker; workers that silent connections hold |
//! | `kept.rs` | what outlives the process |
//!
//! # Sources
//! Little's law; CoDel (RFC 8289): the standing queue, not the passing one; BBR: capacity measured
//! under saturation, round trip while idle; TCP Vegas: excess in packets; Breakwater (OSDI 2020):
//! admission by credits around measured capacity; Page 1954: cumulative sums.

mod alarm;
mod baseline;
mod bursts;
mod coming;
mod detector;
mod echo;
mod episode;
mod evidence;
mod exchanges;
mod fall;
mod harmless;
mod headroom;
mod held;
mod history;
mod kept;
mod load;
mod misfire;
mod probe;
mod refusals;
mod resident;
mod scale;
mod seats;
mod silent;
mod stall;
mod trial;
mod usual;
mod window;

pub use self::detector::Detector;
pub use self::held::{HeldWorkers, IdleWorkers};
pub use self::load::{Calm, Load, Overload};
pub use self::misfire::{Misfire, Misfired};
pub use self::refusals::Refusals;

#[cfg(test)]
pub(crate) use self::harmless::tests;

pub(crate) use self::detector::is_gap;
pub(crate) use self::episode::{QUEUE_MAX, TAU_SECONDS_MIN};
pub(crate) use self::evidence::{CPU_USED_UP, busy};
pub(crate) use self::refusals::residual;
pub(crate) use self::scale::{LASTING_SECONDS, RATE_EVENTS};
pub(crate) use self::window::Window;

use self::detector::Tick;

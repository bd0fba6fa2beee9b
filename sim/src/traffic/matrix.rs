// SPDX-License-Identifier: Apache-2.0 OR MIT
//! product/traffic in virtual time: every transport, number of requests and kind of server, at 0.9 to
//! 10 times the capacity of that very cell, beside the unprotected server with the same seed.

use super::sense::Accounting;
use super::spec::{
    Held, Load, PacketCost, ServerSpec, Service, Session, Spec, Stream, Transport, Work, constant,
};
use super::{Course, run};
use crate::survival::shipped;
use crate::world::Phase;
use crate::world::report::{PhaseReport, Report};
use tidegate_control::Mode;
use tidegate_policy::Action;
use tidegate_units::Nanos;
use tidegate_workload::Shape;

/// Loads above the calm one, in the order in which they come.
pub const LOADS: [f64; 4] = [1.0, 2.0, 3.0, 10.0];
/// The calm load, before all of them.
pub const CALM: f64 = 0.9;
/// The load before and after each of them.
const AROUND: f64 = 0.5;
/// Users of the closed loops that look for the capacity, from the first to the last.
const USERS: (usize, usize) = (8, 2048);
/// Each closed loop has this many times the users of the one before.
const USERS_GROWTH: f64 = 1.25;
/// A closed loop whose goodput is below this share of the best is past it.
const PAST: f64 = 0.98;
/// Seconds after a load: what drop's repeated SYNs and a backlog take, and some calm.
const AFTER_S: f64 = 15.0;
/// Seconds of a load that tell what its beginning costs: as long as the lab's loads last.
pub const ONSET_S: u64 = 10;
/// Closed loops past the best after which nobody looks further.
const PAST_MAX: u32 = 4;

/// How requests of the same kind differ. With constant ones clients with constant pauses fall into
/// step under processor sharing, which no real server does.
pub const NATURAL: Shape = Shape::Lognormal { cv: 0.5 };

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// `prefork-tls-5x0.5`: server, transport, requests and think time in seconds.
    pub name: String,
    /// The server.
    pub server: ServerSpec,
    /// Processors of its machine.
    pub cpus: u32,
    /// The sessions.
    pub session: Session,
}

/// How much is run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Connections at 0.9 in each cell, at least: 55 cells pool 100,000 for each action.
    pub calm_sessions: f64,
    /// Seconds of each load, at least, and of the calm after it.
    pub load_s: f64,
    /// Seconds in which each closed loop is measured.
    pub closed_s: f64,
    /// The seed.
    pub seed: u64,
}

impl Effort {
    /// What is judged.
    pub const FULL: Self = Self { calm_sessions: 2000.0, load_s: 30.0, closed_s: 30.0, seed: 1 };
    /// A quick look.
    pub const QUICK: Self = Self { calm_sessions: 200.0, load_s: 12.0, closed_s: 8.0, seed: 1 };
}

/// Apache prefork: a worker for each connection.
#[must_use]
pub fn prefork() -> ServerSpec {
    ServerSpec {
        held: Held::Connection,
        workers: 150,
        connections: 150,
        threads: None,
        accept_limit: 511,
        accept_s: 0.0,
        defer: Some(Nanos::from_secs(30)),
        first_data: Nanos::from_secs(20),
        keep_alive: Nanos::from_secs(5),
        handshake_s: 1.5e-3,
        wait: None,
        cpu: constant(4.0),
        upstream: None,
    }
}

/// Apache event: 400 workers, connections beyond them only while they are kept alive.
#[must_use]
pub fn event() -> ServerSpec {
    ServerSpec { held: Held::Turn, workers: 400, connections: 1200, ..prefork() }
}

/// nginx with two processes, in front of 16 places of 40 ms.
#[must_use]
pub fn nginx() -> ServerSpec {
    ServerSpec {
        held: Held::Nothing,
        workers: 0,
        connections: 2 * 768,
        threads: Some(2),
        accept_s: 20e-6,
        defer: None,
        first_data: Nanos::from_secs(60),
        keep_alive: Nanos::from_secs(75),
        handshake_s: 0.3e-3,
        cpu: constant(0.2),
        upstream: Some((16, constant(40.0))),
        ..prefork()
    }
}

/// Node: one thread on a machine with several processors.
#[must_use]
pub fn node() -> ServerSpec {
    ServerSpec {
        connections: 1 << 20,
        threads: Some(1),
        accept_s: 100e-6,
        keep_alive: Nanos::from_secs(5),
        handshake_s: 0.6e-3,
        cpu: constant(4.0),
        upstream: None,
        ..nginx()
    }
}

/// A session of so many requests, with so many seconds between a response and the next of them.
#[must_use]
pub fn session(transport: Transport, requests: u32, think_s: f64) -> Session {
    let think = (think_s > 0.0).then(|| constant(think_s * 1e3));
    Session { transport, requests, think, rtt: Nanos::from_millis(10), ..Session::one() }
}

/// A server whose requests differ: the means stay.
#[must_use]
pub fn shaped(server: ServerSpec, shape: Shape) -> ServerSpec {
    let cpu = Work { shape, ..server.cpu };
    let upstream = server.upstream.map(|(places, work)| (places, Work { shape, ..work }));
    ServerSpec { cpu, upstream, ..server }
}

/// All cells: HTTP/2 has no prefork, and one request has nothing to think about.
#[must_use]
pub fn cells(shape: Shape) -> Vec<Cell> {
    let servers = [("prefork", prefork(), 2), ("event", event(), 2), ("nginx", nginx(), 2)];
    let servers = servers.into_iter().chain([("node", node(), 4)]);
    let transports =
        [("clear", Transport::Cleartext), ("tls", Transport::Tls), ("h2", Transport::Http2)];
    let kinds = [(1, 0.0), (5, 0.0), (5, 0.5), (20, 0.0), (20, 0.5)];
    let mut cells = Vec::new();
    for (name, server, cpus) in servers {
        for (word, transport) in transports {
            if name == "prefork" && transport == Transport::Http2 {
                continue;
            }
            for (requests, think_s) in kinds {
                cells.push(Cell {
                    name: format!("{name}-{word}-{requests}x{think_s}"),
                    server: shaped(server.clone(), shape),
                    cpus,
                    session: session(transport, requests, think_s),
                });
            }
        }
    }
    cells
}

/// What stands in front of the server; `None` for nothing.
pub type Variant = Option<Action>;

impl Cell {
    /// A world of this cell under a load.
    #[must_use]
    pub fn world(&self, load: Load, variant: Variant, seed: u64) -> Spec {
        let protection = variant.map(|action| {
            let shipped = shipped(action, Mode::Enforce);
            (shipped.controller, shipped.gate)
        });
        let accounting = Accounting::Group;
        Spec {
            cpus: self.cpus,
            packets: PacketCost::default(),
            services: vec![Service {
                server: self.server.clone(),
                protection,
                successor: None,
                accounting,
            }],
            streams: vec![Stream { service: 0, session: self.session.clone(), load }],
            changes: Vec::new(),
            patience: Nanos::from_secs(10),
            objective: Nanos::SECOND,
            period: Nanos::from_millis(100),
            control_from: Nanos::ZERO,
            seed,
        }
    }

    /// Most good responses per second of a closed loop, over numbers of users.
    ///
    /// # Errors
    /// What the checkers found.
    pub fn capacity(&self, effort: &Effort) -> Result<f64, String> {
        let (mut best, mut past) = (0.0_f64, 0);
        let mut users = USERS.0;
        while users <= USERS.1 && past < PAST_MAX {
            let pauses = Nanos::from_secs_f64(self.session.thinks_s() + 2.0);
            let parts = [pauses, pauses + Nanos::from_secs_f64(effort.closed_s)];
            let world = self.world(Load::Closed(users, parts), None, effort.seed);
            let good = only(run(world)?).report.phases[1].goodput();
            past = if good < PAST * best { past + 1 } else { 0 };
            best = best.max(good);
            users = (users as f64 * USERS_GROWTH).ceil() as usize;
        }
        Ok(best)
    }

    /// Phases of the judged run: calm for as long as it takes to begin so many connections, then
    /// each load between lighter ones. A load counts once it has risen: where clients think, as many
    /// sessions as belong to it are under way only when the first of them are over.
    fn phases(&self, capacity: f64, effort: &Effort) -> Vec<Phase> {
        let sessions_s = |multiple: f64| multiple * capacity / f64::from(self.session.requests);
        let rise_s = self.session.thinks_s();
        let phase = |multiple: f64, seconds: f64| Phase {
            rate: sessions_s(multiple),
            lasts: Nanos::from_secs_f64(seconds),
        };
        let calm_s = (effort.calm_sessions / sessions_s(CALM)).max(effort.load_s + rise_s);
        let after_s = rise_s + AFTER_S;
        let mut phases = vec![phase(CALM, calm_s), phase(AROUND, after_s)];
        for load in LOADS {
            phases.extend([
                phase(load, rise_s),
                phase(load, effort.load_s),
                phase(AROUND, after_s),
            ]);
        }
        phases
    }
}

/// The course of the only stream.
///
/// # Panics
/// Never: each world of this file has one.
fn only(mut courses: Vec<Course>) -> Course {
    courses.pop().unwrap_or_default()
}

/// What one cell did at one load above the calm one.
#[derive(Clone, Copy, Debug, Default)]
pub struct At {
    /// Goodput over capacity.
    pub goodput: f64,
    /// p99 of the admitted in seconds.
    pub p99_s: f64,
    /// The same of the first [`ONSET_S`] seconds, which begin with the load's rise.
    pub onset_s: f64,
    /// Share of sessions refused.
    pub refused: f64,
    /// Share of sessions refused that the unprotected server would have served well.
    pub falsely: f64,
    /// Seconds from the beginning of the load to the first refusal; `None` if nobody was refused.
    pub first_s: Option<f64>,
    /// Starts of shedding, and ends of it while the load lasted.
    pub alarms: u32,
    /// See `alarms`.
    pub releases: u32,
    /// Seconds from the end of the load until times are normal, and until the last refusal.
    pub recovery_s: [f64; 2],
}

/// What one cell did under one variant.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Good responses per second of the best closed loop.
    pub capacity: f64,
    /// Sessions of the first calm, and those refused in it.
    pub calm: (u64, u64),
    /// Of the refused, those that the unprotected server would have served well.
    pub calm_falsely: u64,
    /// p99 in the first calm, in seconds.
    pub p99_calm_s: f64,
    /// By load, as [`LOADS`].
    pub at: [At; LOADS.len()],
    /// The whole run.
    pub course: Course,
}

/// Runs one cell under one variant, beside the unprotected run with the same seed; `None` if it is
/// that run.
///
/// # Errors
/// What the checkers found.
pub fn judge(
    cell: &Cell,
    (capacity, none): (f64, Option<&Outcome>),
    variant: Variant,
    effort: &Effort,
) -> Result<Outcome, String> {
    let phases = cell.phases(capacity, effort);
    let world = cell.world(Load::Open(phases), variant, effort.seed);
    let course = only(run(world)?);
    let report = &course.report;
    let calm = &report.phases[0];
    let p99_calm_s = calm.took(0.99);
    let normal_s = none.map_or(p99_calm_s, |none| none.p99_calm_s);
    let falsely =
        none.map_or_else(Vec::new, |none| course.report.refused_falsely(&none.course.report));
    let falsely = |phase: usize| falsely.get(phase).copied().unwrap_or(0);
    let mut at = [At::default(); LOADS.len()];
    for (index, at) in at.iter_mut().enumerate() {
        let from = 2 + 3 * index;
        *at = told(report, from, (capacity, normal_s));
        at.falsely = falsely(from + 1) as f64 / report.phases[from + 1].began.max(1) as f64;
    }
    let (calm, calm_falsely) = ((calm.began, calm.refused), falsely(0));
    Ok(Outcome { capacity, calm, calm_falsely, p99_calm_s, at, course })
}

/// What happened while a load rose, lasted, and after it: three phases from `index` on.
fn told(report: &Report, index: usize, (capacity, normal_s): (f64, f64)) -> At {
    let (rise, phase, after): (&PhaseReport, &PhaseReport, &PhaseReport) =
        (&report.phases[index], &report.phases[index + 1], &report.phases[index + 2]);
    let inside = |at: Nanos| at >= rise.from && at < phase.to;
    let first = report.traces.iter().find(|trace| inside(trace.at) && trace.refused > 0);
    let turns = |to: bool| {
        let pairs = report.traces.windows(2);
        pairs.filter(|w| inside(w[1].at) && w[0].shedding != to && w[1].shedding == to).count()
    };
    let span = Nanos::from_secs_f64((200.0 / capacity).max(2.0));
    let recovery = report.recovery_s(after.from, after.to, span, normal_s);
    let refusals = report.last_refused[index + 2].since(after.from).as_secs_f64();
    At {
        goodput: phase.goodput() / capacity,
        p99_s: phase.took(0.99),
        onset_s: report.took_within(rise.from, rise.from + Nanos::from_secs(ONSET_S), 0.99),
        refused: phase.refused_share(),
        falsely: 0.0,
        first_s: first.map(|trace| trace.at.since(rise.from).as_secs_f64()),
        alarms: turns(true) as u32,
        releases: turns(false) as u32,
        recovery_s: [recovery, refusals],
    }
}

/// One cell under nothing and under each of some actions.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The cell's name.
    pub name: String,
    /// The unprotected server.
    pub none: Outcome,
    /// The protected one, in the order of the actions.
    pub actions: Vec<(Action, Outcome)>,
}

/// Measures the capacity of a cell and runs it unprotected and under each action, with one seed.
///
/// # Errors
/// What the checkers found, with the cell's name.
pub fn compare(cell: &Cell, actions: &[Action], effort: &Effort) -> Result<Compared, String> {
    let named = |error: String| format!("{}: {error}", cell.name);
    let capacity = cell.capacity(effort).map_err(named)?;
    let none = judge(cell, (capacity, None), None, effort).map_err(named)?;
    let beside = (capacity, Some(&none));
    let mut compared = Vec::new();
    for action in actions {
        compared.push((*action, judge(cell, beside, Some(*action), effort).map_err(named)?));
    }
    Ok(Compared { name: cell.name.clone(), none, actions: compared })
}

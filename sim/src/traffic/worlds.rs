// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worlds in which a controller must do no harm, and those in which it must come back: pauses,
//! dependencies, other capacities, an old backlog, a stopped daemon, idle connections, long polls,
//! slow uploads, several services on one machine, very slow and very fast servers.

use super::matrix::{self, Variant, session, shaped};
use super::sense::Accounting;
use super::spec::{
    Change, Habit, Load, PacketCost, ServerSpec, Service, Session, Spec, Stream, Transport,
    constant, exponential,
};
use crate::survival::shipped;
use crate::world::Phase;
use tidegate_control::Mode;
use tidegate_units::Nanos;
use tidegate_workload::Shape;

/// What must hold in a world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asks {
    /// Nobody is refused whom the unprotected server would have served, and as much is good as there.
    NoHarm,
    /// As much is good as without protection.
    AsGood,
    /// In these phases of the load, so much of the capacity is good.
    Good(&'static [(usize, f64)]),
}

impl std::fmt::Display for Asks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoHarm => f.write_str("nobody refused falsely; as good as none"),
            Self::AsGood => f.write_str("as good as none"),
            Self::Good(phases) => {
                f.write_str("good")?;
                phases.iter().try_for_each(|(phase, least)| write!(f, " {least} in {}", phase + 1))
            }
        }
    }
}

/// A world with a name.
#[derive(Clone)]
pub struct Row {
    /// Name, for choosing and printing.
    pub name: &'static str,
    /// What must hold.
    pub asks: Asks,
    /// Requests per second that the first service can complete.
    pub capacity: f64,
    cpus: u32,
    /// Servers and the CPU signal of each.
    servers: Vec<(ServerSpec, Accounting)>,
    /// Streams; the first is that of the honest clients.
    streams: Vec<Stream>,
    changes: Vec<(Nanos, Change)>,
    control_from: Nanos,
    objective: Nanos,
}

impl Row {
    /// The world, protected or not; each seed is another course of the same story.
    #[must_use]
    pub fn world(&self, variant: Variant, seed: u64) -> Spec {
        let service = |(server, accounting): &(ServerSpec, Accounting)| Service {
            server: server.clone(),
            protection: variant.map(|action| {
                let shipped = shipped(action, Mode::Enforce);
                (shipped.controller, shipped.gate)
            }),
            successor: variant.map(|action| shipped(action, Mode::Enforce).controller),
            accounting: *accounting,
        };
        Spec {
            cpus: self.cpus,
            packets: PacketCost::default(),
            services: self.servers.iter().map(service).collect(),
            streams: self.streams.clone(),
            changes: self.changes.clone(),
            patience: Nanos::from_secs(10).max(self.objective),
            objective: self.objective,
            period: Nanos::from_millis(100),
            control_from: self.control_from,
            seed,
        }
    }

    /// A server of this capacity on two processors under loads (multiples, seconds) of a session.
    fn new(
        (name, asks): (&'static str, Asks),
        (server, capacity): (ServerSpec, f64),
        session: Session,
        loads: &[(f64, f64)],
    ) -> Self {
        let load = load(capacity / f64::from(session.requests.max(1)), loads);
        Self {
            name,
            asks,
            capacity,
            cpus: 2,
            servers: vec![(server, Accounting::Group)],
            streams: vec![Stream { service: 0, session, load }],
            changes: Vec::new(),
            control_from: Nanos::ZERO,
            objective: Nanos::SECOND,
        }
    }

    fn on(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    fn changed(mut self, changes: &[(u64, Change)]) -> Self {
        self.changes.extend(changes.iter().map(|(s, change)| (Nanos::from_secs(*s), *change)));
        self
    }

    fn beside(mut self, stream: Stream) -> Self {
        self.streams.push(stream);
        self
    }

    /// Without a CPU signal, and in an overload that is 15 s old.
    fn old_backlog(mut self) -> Self {
        self.servers[0].1 = Accounting::Absent;
        self.control_from = Nanos::from_secs(15);
        self
    }
}

fn load(rate: f64, loads: &[(f64, f64)]) -> Load {
    let phase = |(multiple, seconds): &(f64, f64)| Phase {
        rate: multiple * rate,
        lasts: Nanos::from_secs_f64(*seconds),
    };
    Load::Open(loads.iter().map(phase).collect())
}

fn one() -> Session {
    session(Transport::Cleartext, 1, 0.0)
}

/// So many connections of a habit per second, one after the other piece of time.
fn others(habit: Habit, rates: &[(f64, f64)]) -> Stream {
    let session = Session { habit, ..one() };
    Stream { service: 0, session, load: load(1.0, rates) }
}

/// The servers of the matrix, with requests that differ.
fn prefork() -> ServerSpec {
    shaped(matrix::prefork(), Shape::Exponential)
}

fn event() -> ServerSpec {
    shaped(matrix::event(), Shape::Exponential)
}

fn nginx() -> ServerSpec {
    shaped(matrix::nginx(), Shape::Exponential)
}

fn node() -> ServerSpec {
    shaped(matrix::node(), Shape::Exponential)
}

/// Seconds as a time.
const fn s(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// All worlds.
#[must_use]
pub fn table() -> Vec<Row> {
    let all = [
        pauses(),
        dependencies(),
        capacities(),
        backlogs(),
        holders(),
        kept(),
        machines(),
        distances(),
    ];
    all.concat()
}

/// Two seconds without progress at half the load.
fn pauses() -> Vec<Row> {
    let asks = Asks::NoHarm;
    let loads = [(0.5, 30.0), (0.5, 10.0), (0.5, 30.0), (0.5, 10.0), (0.5, 30.0)];
    let changes = [
        (30, Change::Speed(0.0)),
        (32, Change::Speed(1.0)),
        (70, Change::Speed(0.0)),
        (72, Change::Speed(1.0)),
    ];
    let five = || session(Transport::Tls, 5, 0.0);
    vec![
        Row::new(("pause-node", asks), (node(), 250.0), one(), &loads).on(4).changed(&changes),
        Row::new(("pause-node-tls-5", asks), (node(), 250.0), five(), &loads)
            .on(4)
            .changed(&changes),
        Row::new(("pause-event", asks), (event(), 500.0), one(), &loads).changed(&changes),
        Row::new(("pause-prefork-tls-5", asks), (prefork(), 460.0), five(), &loads)
            .changed(&changes),
    ]
}

/// A dependency that becomes five times slower and stays so: with room for it, and without.
fn dependencies() -> Vec<Row> {
    let waits = |ms| ServerSpec { wait: Some(exponential(ms)), cpu: exponential(3.0), ..event() };
    let upstream = |places, ms| ServerSpec { upstream: Some((places, exponential(ms))), ..nginx() };
    let loads = [(0.5, 60.0), (0.5, 20.0), (0.5, 60.0)];
    let asks = Asks::NoHarm;
    let full = Asks::Good(&[(2, 0.2)]);
    vec![
        Row::new(("slow-wait-event", asks), (waits(50.0), 660.0), one(), &loads)
            .changed(&[(60, Change::Wait(0, 0.25))]),
        Row::new(
            ("slow-upstream-nginx", asks),
            (upstream(200, 20.0), 1000.0),
            session(Transport::Tls, 5, 0.0),
            &loads,
        )
        .changed(&[(60, Change::Upstream(0, 0.1))]),
        Row::new(("full-upstream-nginx", full), (upstream(16, 40.0), 400.0), one(), &loads)
            .changed(&[(60, Change::Upstream(0, 0.2))]),
    ]
}

/// Capacity that doubles and halves under twice the load.
fn capacities() -> Vec<Row> {
    let loads = [(0.5, 20.0), (2.0, 30.0), (2.0, 30.0), (2.0, 30.0), (2.0, 30.0)];
    let changes = [(50, Change::Speed(2.0)), (80, Change::Speed(1.0)), (110, Change::Speed(0.5))];
    let asks = Asks::Good(&[(1, 1.0), (2, 2.0), (3, 1.0), (4, 0.5)]);
    let five = session(Transport::Tls, 5, 0.0);
    vec![
        Row::new(("capacity-event", asks), (event(), 500.0), one(), &loads).changed(&changes),
        Row::new(("capacity-event-tls-5", asks), (event(), 465.0), five, &loads).changed(&changes),
        Row::new(("capacity-nginx", asks), (nginx(), 400.0), one(), &loads).changed(&[
            (50, Change::Upstream(0, 0.02)),
            (80, Change::Upstream(0, 0.04)),
            (110, Change::Upstream(0, 0.08)),
        ]),
    ]
}

/// Started into an old backlog without a CPU signal; stopped for 15 s at three times the capacity.
fn backlogs() -> Vec<Row> {
    let old = [(3.0, 15.0), (3.0, 5.0), (3.0, 40.0), (0.5, 20.0)];
    let asks = Asks::Good(&[(2, 1.0)]);
    let tls5 = || session(Transport::Tls, 5, 0.0);
    let stopped = [(0.5, 20.0), (3.0, 20.0), (3.0, 15.0), (3.0, 5.0), (3.0, 30.0), (0.5, 20.0)];
    let stop = [(40, Change::Daemon(false)), (55, Change::Daemon(true))];
    let back = Asks::Good(&[(4, 1.0)]);
    let killed = [(0.5, 20.0), (3.0, 20.0), (3.0, 1.0), (3.0, 10.0), (3.0, 20.0), (0.5, 10.0)];
    let kill = [(40, Change::Daemon(false)), (41, Change::Restart)];
    let next = Asks::Good(&[(3, 1.0)]);
    vec![
        Row::new(("kill-prefork", next), (prefork(), 500.0), one(), &killed).changed(&kill),
        Row::new(("kill-event-tls-5", next), (event(), 465.0), tls5(), &killed).changed(&kill),
        Row::new(("kill-nginx", next), (nginx(), 400.0), one(), &killed).changed(&kill),
        Row::new(("kill-node", next), (node(), 250.0), one(), &killed).on(4).changed(&kill),
        Row::new(("old-prefork", asks), (prefork(), 500.0), one(), &old).old_backlog(),
        Row::new(("old-event-tls-5", asks), (event(), 465.0), tls5(), &old).old_backlog(),
        Row::new(("old-nginx", asks), (nginx(), 400.0), one(), &old).old_backlog(),
        Row::new(("old-node", asks), (node(), 250.0), one(), &old).on(4).old_backlog(),
        Row::new(("stop-prefork", back), (prefork(), 500.0), one(), &stopped).changed(&stop),
        Row::new(("stop-event-tls-5", back), (event(), 465.0), tls5(), &stopped).changed(&stop),
        Row::new(("stop-nginx", back), (nginx(), 400.0), one(), &stopped).changed(&stop),
        Row::new(("stop-node", back), (node(), 250.0), one(), &stopped).on(4).changed(&stop),
    ]
}

/// Connections that only hold something.
fn holders() -> Vec<Row> {
    let asks = Asks::NoHarm;
    let bare = |server: ServerSpec| ServerSpec { defer: None, ..server };
    let light = [(0.3, 20.0), (0.3, 120.0), (0.3, 30.0)];
    let idle = |rate, held| others(Habit::Silent(s(held)), &[(0.0, 20.0), (rate, 120.0)]);
    let uploads = |rates: &[(f64, f64)]| others(Habit::Uploads(s(10)), rates);
    let steady = |rate| uploads(&[(0.0, 20.0), (rate, 120.0)]);
    let at_once = || uploads(&[(0.0, 20.0), (1000.0, 0.1), (0.0, 40.0), (1000.0, 0.1)]);
    let polls = others(Habit::Polls(s(60)), &[(0.0, 20.0), (10_000.0 / 60.0, 120.0)]);
    let row = |name, server, capacity: f64, stream| {
        Row::new((name, asks), (server, capacity), one(), &light).beside(stream)
    };
    vec![
        // Closed before the kernel gives them to the server.
        row("idle-prefork-defer", prefork(), 500.0, idle(50.0, 25)),
        // Held for 20 s each, so that 100 of 150 workers are.
        row("idle-prefork-5", bare(prefork()), 500.0, idle(5.0, 60)),
        row("idle-prefork-50", bare(prefork()), 500.0, idle(50.0, 60)),
        row("idle-event-15", bare(event()), 500.0, idle(15.0, 60)),
        row("idle-event-640", bare(event()), 500.0, idle(640.0, 60)),
        row("idle-nginx-20", nginx(), 400.0, idle(20.0, 60)),
        row("upload-prefork-10", prefork(), 500.0, steady(10.0)),
        row("upload-event-20", event(), 500.0, steady(20.0)),
        row("upload-event-100", event(), 500.0, at_once()),
        row("polls-node", node(), 250.0, polls).on(4),
    ]
}

/// Fifty connections that stay, each with its next request as soon as it has a response: from the
/// beginning, or from the second phase on.
fn kept() -> Vec<Row> {
    let light = [(0.3, 20.0), (0.3, 120.0), (0.3, 30.0)];
    let fifty = |rates: &[(f64, f64)]| {
        let session = session(Transport::Cleartext, 1000, 0.0);
        Stream { service: 0, session, load: load(1.0, rates) }
    };
    let row = |name, rates: &[(f64, f64)]| {
        let server = (event(), 500.0);
        Row::new((name, Asks::NoHarm), server, one(), &light).beside(fifty(rates))
    };
    vec![
        row("kept-event", &[(1000.0, 0.05)]),
        row("kept-event-later", &[(0.0, 20.0), (1000.0, 0.05)]),
    ]
}

/// Several services on one machine, very slow and very fast servers.
fn machines() -> Vec<Row> {
    // Of the first of the two.
    let calm = Asks::NoHarm;
    let light = [(0.3, 20.0), (0.3, 40.0), (0.3, 20.0)];
    let neighbour = Stream {
        service: 1,
        session: one(),
        load: load(500.0, &[(0.3, 20.0), (3.0, 40.0), (0.3, 20.0)]),
    };
    let mut two = Row::new(("two-services", calm), (event(), 500.0), one(), &light);
    two.servers.push((prefork(), Accounting::Group));
    let slow = ServerSpec { cpu: constant(1000.0), threads: Some(1), ..node() };
    let steps = [(0.5, 600.0), (0.9, 2000.0), (3.0, 600.0), (0.5, 600.0)];
    let mut slow = Row::new(("one-a-second", Asks::Good(&[(2, 1.0)])), (slow, 1.0), one(), &steps);
    slow.objective = s(20);
    let fast = ServerSpec { cpu: exponential(0.16), connections: 40_000, ..nginx() };
    let fast = ServerSpec {
        upstream: None,
        accept_s: 0.0,
        threads: Some(16),
        accept_limit: 65_535,
        ..fast
    };
    let steps = [(0.9, 5.0), (3.0, 5.0), (0.9, 5.0)];
    let mut quick =
        Row::new(("100000-a-second", Asks::Good(&[(1, 1.0)])), (fast, 100_000.0), one(), &steps);
    // What a kernel that takes 300,000 SYNs/s can give to them.
    quick.cpus = 24;
    vec![two.beside(neighbour), slow, quick]
}

/// Far clients, and pools of connections.
fn distances() -> Vec<Row> {
    let steps = [(0.9, 40.0), (3.0, 40.0), (0.9, 20.0)];
    let good = Asks::Good(&[(1, 1.0)]);
    let far = Session { rtt: Nanos::from_millis(150), ..session(Transport::Tls, 1, 0.0) };
    let pooled = Session { think: Some(exponential(200.0)), ..session(Transport::Tls, 300, 0.0) };
    let pools = [(0.9, 240.0), (2.0, 240.0), (0.9, 120.0)];
    vec![
        Row::new(("far-prefork-tls", good), (prefork(), 360.0), far.clone(), &steps),
        Row::new(("far-nginx-tls", good), (nginx(), 400.0), far, &steps),
        Row::new(("pooled-event-tls-300", Asks::AsGood), (event(), 495.0), pooled, &pools),
    ]
}

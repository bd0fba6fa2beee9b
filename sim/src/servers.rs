// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of servers that the default controller must hold for, without a number tuned to one.

use crate::world::server::{ServerSpec, Work};
use tidegate_workload::Shape;

/// A server with a name.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name, for choosing and printing.
    pub name: String,
    /// The server.
    pub server: ServerSpec,
}

/// Exponential and heavy shapes: a log-normal with three times its mean as deviation.
const HEAVY: Shape = Shape::Lognormal { cv: 3.0 };

fn work(ms: f64, shape: Shape) -> Work {
    Work { mean_s: ms / 1e3, shape }
}

const fn empty(workers: usize, accept_limit: usize, cpus: u32) -> ServerSpec {
    ServerSpec { workers, accept_limit, cpus, wait: None, cpu: None, upstream: None }
}

/// Apache prefork: 150 workers, ListenBacklog 511.
fn prefork(cpus: u32, ms: f64, shape: Shape) -> ServerSpec {
    ServerSpec { cpu: Some(work(ms, shape)), ..empty(150, 511, cpus) }
}

/// Apache event: 400 workers.
fn event(cpus: u32, ms: f64, shape: Shape) -> ServerSpec {
    ServerSpec { cpu: Some(work(ms, shape)), ..empty(400, 511, cpus) }
}

/// nginx: accepts at once; its backend serves `places` requests at a time.
fn upstream(places: usize, ms: f64, shape: Shape) -> ServerSpec {
    ServerSpec { upstream: Some((places, work(ms, shape))), ..empty(8192, 511, 2) }
}

/// Workers that wait (for a database) and compute a little.
fn mixed(workers: usize, wait_ms: f64, cpu_ms: f64, shape: Shape) -> ServerSpec {
    let wait = Some(work(wait_ms, shape));
    ServerSpec { wait, cpu: Some(work(cpu_ms, shape)), ..empty(workers, 511, 2) }
}

fn single(ms: f64, shape: Shape) -> ServerSpec {
    ServerSpec { cpu: Some(work(ms, shape)), ..empty(1, 511, 1) }
}

/// All rows.
#[must_use]
pub fn table() -> Vec<Row> {
    let (constant, exponential) = (Shape::Constant, Shape::Exponential);
    let rows = [
        ("prefork-cpu-2ms-constant", prefork(2, 2.0, constant)),
        ("prefork-cpu-4ms-constant", prefork(1, 4.0, constant)),
        ("prefork-cpu-4ms-exponential", prefork(1, 4.0, exponential)),
        ("prefork-cpu-8ms-heavy", prefork(2, 8.0, HEAVY)),
        ("prefork-cpu-50ms-exponential", prefork(2, 50.0, exponential)),
        ("prefork-mixed-100ms-exponential", mixed(150, 100.0, 5.0, exponential)),
        ("prefork-waiting-200ms-constant", mixed(150, 200.0, 0.1, constant)),
        ("prefork-waiting-200ms-heavy", mixed(150, 200.0, 0.1, HEAVY)),
        ("event-cpu-4ms-exponential", event(2, 4.0, exponential)),
        ("event-cpu-20ms-heavy", event(2, 20.0, HEAVY)),
        ("event-mixed-50ms-exponential", mixed(400, 50.0, 3.0, exponential)),
        ("nginx-4x10ms-exponential", upstream(4, 10.0, exponential)),
        ("nginx-4x50ms-heavy", upstream(4, 50.0, HEAVY)),
        ("nginx-16x50ms-constant", upstream(16, 50.0, constant)),
        ("nginx-16x100ms-exponential", upstream(16, 100.0, exponential)),
        ("nginx-16x20ms-heavy", upstream(16, 20.0, HEAVY)),
        ("nginx-150x200ms-constant", upstream(150, 200.0, constant)),
        ("nginx-150x200ms-exponential", upstream(150, 200.0, exponential)),
        ("nginx-150x100ms-heavy", upstream(150, 100.0, HEAVY)),
        ("single-2ms-exponential", single(2.0, exponential)),
        ("single-20ms-constant", single(20.0, constant)),
        ("single-20ms-heavy", single(20.0, HEAVY)),
        ("single-200ms-constant", single(200.0, constant)),
        ("single-200ms-exponential", single(200.0, exponential)),
    ];
    rows.map(|(name, server)| Row { name: name.to_owned(), server }).into()
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small HTTP server of bounded concurrency: `workers` threads, each serving one connection at a
//! time. With one worker it is the single-threaded application server; behind nginx it is the slow
//! upstream.

use super::{Cost, CostKind};
use crate::error::{LabError, Result};
use crate::lab::Lab;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use tidegate_units::{Clock, Nanos, ThreadCpuClock};
use tidegate_workload::{Rng, Shape};

/// Most workers.
const WORKERS_MAX: u32 = 1_024;
/// How long a worker waits for a request before it closes the connection.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8_192;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";

/// How the small server is set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TinyOptions {
    /// Port, on all addresses of both families (default 80).
    pub port: u16,
    /// Threads (default 1, at most 1,024).
    pub workers: u32,
    /// Cost of a request (default: 2 ms of CPU time).
    pub cost: Cost,
    /// Length of its listen queue (default 128).
    pub backlog: i32,
    /// Seed of its service times.
    pub seed: u64,
}

impl Default for TinyOptions {
    fn default() -> Self {
        let cost =
            Cost { mean: Nanos::from_millis(2), shape: Shape::Constant, kind: CostKind::Busy };
        Self { port: 80, workers: 1, cost, backlog: 128, seed: 1 }
    }
}

/// The command line that serves these options.
pub(crate) fn command(lab: &Lab, options: &TinyOptions) -> Result<Vec<String>> {
    let json = serde_json::to_string(options).map_err(|e| LabError::Plan(e.to_string()))?;
    let mut command = lab.helper().command("serve");
    command.push(json);
    Ok(command)
}

/// Serves until killed.
pub(crate) fn serve(options: &TinyOptions) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port)).into())?;
    socket.listen(options.backlog)?;
    let listener: TcpListener = socket.into();
    let workers: Vec<_> = (0..options.workers.clamp(1, WORKERS_MAX))
        .map(|number| {
            let (listener, cost) = (listener.try_clone(), options.cost);
            let rng = Rng::new(options.seed, u64::from(number));
            std::thread::spawn(move || work(&listener?, cost, rng))
        })
        .collect();
    for worker in workers {
        let ended = worker.join();
        ended.map_err(|_| std::io::Error::other("a worker panicked"))??;
    }
    Ok(())
}

fn work(listener: &TcpListener, cost: Cost, mut rng: Rng) -> std::io::Result<()> {
    // Serves for ever: the lab kills it.
    loop {
        let Ok((stream, _)) = listener.accept() else { continue };
        let span = Nanos::from_secs_f64(cost.mean.as_secs_f64() * cost.shape.sample(&mut rng));
        // A client that went away is no reason to stop.
        let _ = answer(stream, cost.kind, span);
    }
}

fn answer(mut stream: TcpStream, kind: CostKind, span: Nanos) -> std::io::Result<()> {
    stream.set_read_timeout(Some(READ_LIMIT))?;
    let mut head = Vec::with_capacity(512);
    let mut buffer = [0_u8; 1_024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = stream.read(&mut buffer)?;
        if n == 0 || head.len() + n > HEAD_BYTES_MAX {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..n]);
    }
    match kind {
        CostKind::Wait => std::thread::sleep(span.into()),
        CostKind::Busy => burn(span),
    }
    stream.write_all(ANSWER)
}

/// Uses this much CPU time of the present thread.
fn burn(span: Nanos) {
    let end = ThreadCpuClock.now() + span;
    while ThreadCpuClock.now() < end {}
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small HTTP server of bounded concurrency: `workers` threads, each serving one connection at a
//! time. With one worker it is the single-threaded application server; behind nginx it is the slow
//! upstream. With `keep_alive` workers take requests instead: connections stay open, those that wait for
//! a worker wait in the order in which their requests came, and there may be any number of them.
//! It may have [`Body`]s of random size, and need [`Pages`] of a file for each request.

use super::pages::{Pages, PagesOptions};
use super::{Cost, CostKind};
use crate::error::{LabError, Result};
use crate::lab::Lab;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_units::{Clock, Nanos, ThreadCpuClock};
use tidegate_workload::{Rng, Shape};

/// Most workers.
const WORKERS_MAX: u32 = 1_024;
/// How long a worker waits for a request before it closes the connection.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8_192;
/// Marks the listener among the events.
const LISTENER: u64 = 0;
const ANSWER_KEPT: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";
/// Smallest and largest body.
const BODY_BYTES: (f64, f64) = (1.0, 4e6);
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
    /// Whether connections stay open, and wait for a worker by request (default: one request each).
    #[serde(default)]
    pub keep_alive: bool,
    /// Whether only one worker at a time spends its cost, as before one database (default: all at once). Not
    /// with `keep_alive`.
    #[serde(default)]
    pub serial: bool,
    /// The body of a response (default: three bytes). Not with `keep_alive`.
    #[serde(default)]
    pub body: Option<Body>,
    /// What a request reads while it spends its cost, and the memory for it (default: nothing, and as much as
    /// there is). Not with `keep_alive`.
    #[serde(default)]
    pub pages: Option<PagesOptions>,
}

/// Bodies of random size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// Mean, in bytes.
    pub mean: f64,
    /// Distribution around it.
    pub shape: Shape,
    /// The smallest and the largest, in bytes.
    pub range: (f64, f64),
}

impl Body {
    fn draw(&self, rng: &mut Rng) -> usize {
        let (low, high) = self.range;
        let bytes = (self.mean * self.shape.sample(rng)).max(low).min(high);
        bytes.clamp(BODY_BYTES.0, BODY_BYTES.1) as usize
    }
}

impl Default for TinyOptions {
    fn default() -> Self {
        let cost =
            Cost { mean: Nanos::from_millis(2), shape: Shape::Constant, kind: CostKind::Busy };
        Self {
            port: 80,
            workers: 1,
            cost,
            backlog: 128,
            seed: 1,
            keep_alive: false,
            serial: false,
            body: None,
            pages: None,
        }
    }
}

/// The command line that serves these options.
pub(crate) fn command(lab: &Lab, options: &TinyOptions) -> Result<Vec<String>> {
    let json = serde_json::to_string(options).map_err(|e| LabError::Plan(e.to_string()))?;
    let mut command = lab.helper().command("serve");
    command.push(json);
    Ok(command)
}

/// What all workers share.
struct Shop {
    cost: Cost,
    turn: Option<Mutex<()>>,
    body: Option<Body>,
    pages: Option<Pages>,
}

/// What a request is served with.
struct Served {
    span: Nanos,
    body: Option<usize>,
    worker: u32,
}

/// Serves until killed.
pub(crate) fn serve(options: &TinyOptions) -> std::io::Result<()> {
    let workers = options.workers.clamp(1, WORKERS_MAX);
    // Before it listens: whoever waits for that finds all pages there.
    let pages = options.pages.as_ref().map(|pages| Pages::make(pages, workers)).transpose()?;
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port)).into())?;
    socket.listen(options.backlog)?;
    let listener: TcpListener = socket.into();
    if options.keep_alive {
        return serve_kept(listener, options);
    }
    let turn = options.serial.then(Mutex::default);
    let shop = Arc::new(Shop { cost: options.cost, turn, body: options.body, pages });
    let workers: Vec<_> = (0..workers)
        .map(|number| {
            let (listener, shop) = (listener.try_clone(), Arc::clone(&shop));
            let rng = Rng::new(options.seed, u64::from(number));
            std::thread::spawn(move || shop.work(&listener?, rng, number))
        })
        .collect();
    for worker in workers {
        join(worker)?;
    }
    Ok(())
}

fn join(worker: std::thread::JoinHandle<std::io::Result<()>>) -> std::io::Result<()> {
    worker.join().map_err(|_| std::io::Error::other("a worker panicked"))?
}

/// Connections that stay, by number. Each event goes to one worker, which serves the connection and gives
/// it back: so the kernel's list of ready connections is the queue.
struct Kept {
    poll: rustix::fd::OwnedFd,
    listener: TcpListener,
    open: Mutex<(u64, HashMap<u64, Arc<TcpStream>>)>,
    kind: CostKind,
}

fn serve_kept(listener: TcpListener, options: &TinyOptions) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let kept = Kept { poll, listener, open: Mutex::default(), kind: options.cost.kind };
    let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    epoll::add(&kept.poll, &kept.listener, epoll::EventData::new_u64(LISTENER), events)?;
    let kept = Arc::new(kept);
    let workers: Vec<_> = (0..options.workers.clamp(1, WORKERS_MAX))
        .map(|number| {
            let (kept, cost) = (Arc::clone(&kept), options.cost);
            let mut rng = Rng::new(options.seed, u64::from(number));
            std::thread::spawn(move || {
                // Serves for ever: the lab kills it.
                loop {
                    kept.serve_next(|| cost.mean.as_secs_f64() * cost.shape.sample(&mut rng))?;
                }
            })
        })
        .collect();
    workers.into_iter().try_for_each(join)
}

impl Kept {
    fn serve_next(&self, cost_s: impl FnOnce() -> f64) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(1);
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(event) = events.first() else { return Ok(()) };
        let number = event.data.u64();
        if number == LISTENER {
            return self.accept();
        }
        let stream = self.open().1.get(&number).cloned();
        let Some(stream) = stream else { return Ok(()) };
        match request(&stream) {
            Ok(true) => {}
            // The rest comes later. A proxy sends a head at once; whoever drips it is served late.
            Ok(false) => return self.arm(&*stream, number),
            Err(_) => {
                self.open().1.remove(&number);
                return Ok(());
            }
        }
        spend(self.kind, Nanos::from_secs_f64(cost_s()));
        if (&*stream).write_all(ANSWER_KEPT).is_err() {
            self.open().1.remove(&number);
            return Ok(());
        }
        self.arm(&*stream, number)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, (u64, HashMap<u64, Arc<TcpStream>>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self, socket: impl std::os::fd::AsFd, number: u64) -> std::io::Result<()> {
        let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.poll, socket, data, events)?)
    }

    fn accept(&self) -> std::io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let mut open = self.open();
            open.0 += 1;
            let (number, stream) = (open.0, Arc::new(stream));
            open.1.insert(number, Arc::clone(&stream));
            drop(open);
            let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            epoll::add(&self.poll, &*stream, epoll::EventData::new_u64(number), events)?;
        }
        self.arm(&self.listener, LISTENER)
    }
}

/// Takes the head of a request, if it is there as a whole.
fn request(mut stream: &TcpStream) -> std::io::Result<bool> {
    let mut head = [0_u8; HEAD_BYTES_MAX];
    match stream.peek(&mut head) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(n) if !head[..n].windows(4).any(|w| w == b"\r\n\r\n") => {
            if n == HEAD_BYTES_MAX {
                Err(ErrorKind::InvalidData.into())
            } else {
                Ok(false)
            }
        }
        Ok(n) => stream.read_exact(&mut head[..n]).map(|()| true),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error),
    }
}

fn spend(kind: CostKind, span: Nanos) {
    match kind {
        CostKind::Wait => std::thread::sleep(span.into()),
        CostKind::Busy => burn(span),
    }
}

impl Shop {
    fn work(&self, listener: &TcpListener, mut rng: Rng, worker: u32) -> std::io::Result<()> {
        // Serves for ever: the lab kills it.
        loop {
            let Ok((stream, _)) = listener.accept() else { continue };
            let cost = self.cost;
            let span = Nanos::from_secs_f64(cost.mean.as_secs_f64() * cost.shape.sample(&mut rng));
            let body = self.body.map(|body| body.draw(&mut rng));
            // A client that went away is no reason to stop.
            let _ = self.answer(stream, &Served { span, body, worker });
        }
    }

    fn answer(&self, mut stream: TcpStream, served: &Served) -> std::io::Result<()> {
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
        let turn = self.turn.as_ref();
        let held = turn.map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let kind = self.cost.kind;
        match &self.pages {
            Some(pages) => pages.read(served.worker, served.span, |part| spend(kind, part))?,
            None => spend(kind, served.span),
        }
        drop(held);
        match served.body {
            Some(bytes) => stream.write_all(&response(bytes)),
            None => stream.write_all(ANSWER),
        }
    }
}

/// A response with a body of so many bytes.
fn response(bytes: usize) -> Vec<u8> {
    let mut whole = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n"
    )
    .into_bytes();
    whole.resize(whole.len() + bytes, b'x');
    whole
}

/// Uses this much CPU time of the present thread.
fn burn(span: Nanos) {
    let end = ThreadCpuClock.now() + span;
    while ThreadCpuClock.now() < end {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_mean_and_the_range_that_are_wanted() {
        let shape = Shape::Lognormal { cv: 2.0 };
        let body = Body { mean: 4_472.0, shape, range: (200.0, 500_000.0) };
        let mut rng = Rng::new(3, 0);
        let all: Vec<usize> = (0..50_000).map(|_| body.draw(&mut rng)).collect();
        assert!(all.iter().all(|bytes| (200..=500_000).contains(bytes)));
        let mean = all.iter().sum::<usize>() as f64 / all.len() as f64;
        assert!((mean / 4_472.0 - 1.0).abs() < 0.05, "{mean}");
        let text = response(1_000);
        let head = b"HTTP/1.1 200 OK\r\n";
        assert!(text.starts_with(head) && text.ends_with(&[b'x'; 1_000]));
    }
}

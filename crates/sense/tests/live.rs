// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel of this machine instead of fixture trees: a process that holds a listener and burns
//! one CPU is found and seen as saturated. Needs root for the cgroup.
//!
//! ```text
//!   test (binds the listener) ── child `sh` pinned to one CPU, inherits the listener, spins
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_model::CpuList;
use tidegate_model::signals::Signals;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_sense::{Roots, Sense, ServiceSource, SockDiag};
use tidegate_units::{Clock, MonotonicClock, Nanos};

struct NoTotals;
impl Totals for NoTotals {
    fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
        Err(io::Error::other("no dataplane in this test"))
    }
}

/// A child that spins on one CPU until it is dropped.
struct Burner(Child);

impl Burner {
    fn start(cpu: u16) -> Self {
        let child = Command::new("taskset")
            .args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup of version 2 that is removed when its process is gone.
struct TestGroup(PathBuf);

impl TestGroup {
    fn new() -> Self {
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .find(|root| Path::new(root).join("cgroup.controllers").exists())
            .unwrap();
        let path = Path::new(root).join(format!("tidegate-sense-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A listener that children inherit.
fn listener() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::io::fcntl_setfd(listener.as_fd(), rustix::io::FdFlags::empty()).unwrap();
    listener
}

fn source(listener: &TcpListener) -> ServiceSource {
    let listen = listener.local_addr().unwrap().to_string().parse().unwrap();
    ServiceSource { listen: vec![listen], ..ServiceSource::default() }
}

/// Ticks until the signals satisfy `done`, for at most 20 s.
fn tick_until(sense: &mut Sense, done: impl Fn(&Signals) -> bool) -> Signals {
    let clock = MonotonicClock;
    let begin = clock.now();
    loop {
        let sensed = sense.tick(clock.now(), &NoTotals).remove(0);
        assert!(sensed.problems.iter().any(|t| t.signal == "counters"), "{:?}", sensed.problems);
        if done(&sensed.signals) {
            return sensed.signals;
        }
        let spent = clock.now().since(begin);
        assert!(spent < Nanos::from_secs(20), "never happened: {sensed:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn cpu(signals: &Signals) -> f64 {
    signals.resource.cpu.map_or(-1.0, |reading| reading.value.get())
}

/// The last CPU that this process may use.
fn some_cpu() -> u16 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    *list.trim().parse::<CpuList>().unwrap().0.last().unwrap()
}

#[test]
fn a_service_pinned_to_one_cpu_of_several_is_seen_at_100_percent_of_it() {
    let listener = listener();
    let _burner = Burner::start(some_cpu());
    let mut sense = Sense::new(
        vec![source(&listener)],
        Box::new(SockDiag::open(None).unwrap()),
        Roots::default(),
    );
    sense.warm_up(MonotonicClock.now());
    let signals = tick_until(&mut sense, |signals| cpu(signals) > 0.95);
    assert_eq!(signals.balance.counts, None, "a missing source is none, never zero");
}

/// A child that holds the listener and works in one thread, as Node does.
#[test]
fn the_thread_of_a_service_that_works_in_one_is_found() {
    let listener = listener();
    let burner = Burner::start(some_cpu());
    let mut sense = Sense::new(
        vec![source(&listener)],
        Box::new(SockDiag::open(None).unwrap()),
        Roots::default(),
    );
    sense.warm_up(MonotonicClock.now());
    let thread = |signals: &Signals| {
        signals.resource.busiest_thread.map_or(-1.0, |reading| reading.value.get())
    };
    // Whatever else runs on that CPU takes its part: other tests burn it, too.
    tick_until(&mut sense, |signals| thread(signals) > 0.1);
    drop(burner);
    tick_until(&mut sense, |signals| thread(signals) < 0.05);
}

#[test]
fn the_group_of_a_service_is_found_and_its_pressure_is_its_own() {
    let listener = listener();
    let group = TestGroup::new();
    let burner = Burner::start(some_cpu());
    fs::write(group.0.join("cgroup.procs"), burner.0.id().to_string()).unwrap();
    let mut sense = Sense::new(
        vec![source(&listener)],
        Box::new(SockDiag::open(None).unwrap()),
        Roots::default(),
    );
    // Saturated: by its own use, or, where a neighbour takes a part, by use and pressure.
    let signals = tick_until(&mut sense, |signals| cpu(signals) > 0.9);
    assert!(signals.resource.cpu_pressure.is_some() && signals.resource.memory_pressure.is_some());
    drop(burner);
    tick_until(&mut sense, |signals| signals.resource.cpu.is_none() || cpu(signals) < 0.2);
}

#[test]
fn the_accept_queue_is_that_of_all_listeners_of_the_service() {
    let v4 = listener();
    let port = v4.local_addr().unwrap().port();
    let v6 = TcpListener::bind(("::1", port)).unwrap();
    let mut service = source(&v4);
    service.listen.push(v6.local_addr().unwrap().to_string().parse().unwrap());
    let mut sense =
        Sense::new(vec![service], Box::new(SockDiag::open(None).unwrap()), Roots::default());
    let _waiting: Vec<TcpStream> = ["127.0.0.1", "127.0.0.1", "::1"]
        .map(|host| TcpStream::connect((host, port)).unwrap())
        .into();
    let queue = |s: &Signals| s.queue.accept.map(|reading| reading.value);
    let signals = tick_until(&mut sense, |s| queue(s).is_some_and(|q| q.length == 3));
    assert!(queue(&signals).unwrap().limit >= 6);
    drop((v4, v6));
    let gone = sense.tick(MonotonicClock.now(), &NoTotals).remove(0);
    assert_eq!(gone.signals.queue.accept, None, "no listener, no queue");
    assert!(gone.problems.iter().any(|t| t.signal == "accept queue"), "{:?}", gone.problems);
}

#[test]
fn a_tick_costs_little() {
    let listener = listener();
    let mut sense = Sense::new(
        vec![source(&listener)],
        Box::new(SockDiag::open(None).unwrap()),
        Roots::default(),
    );
    let clock = MonotonicClock;
    sense.warm_up(clock.now());
    sense.tick(clock.now(), &NoTotals);
    let mut costs: Vec<Nanos> = (0..200)
        .map(|_| {
            let begin = clock.now();
            sense.tick(begin, &NoTotals);
            clock.now().since(begin)
        })
        .collect();
    costs.sort_unstable();
    eprintln!("a tick with one service: median {}, worst {}", costs[100], costs[199]);
    // Loose on purpose: other work shares the machine. 1 % of a tick of 100 ms is the aim.
    assert!(costs[100] < Nanos::from_millis(10), "median {}", costs[100]);
}

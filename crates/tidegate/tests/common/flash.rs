// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd: servers with so many workers, their clients, and a daemon between them that finds it (needs root).

use super::space::Space;
use super::wait_for;
use super::world::World;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// So many workers, each with 40 ms a request. Who has gone meanwhile is not worked for: what a collapse has left behind
/// is over in a moment.
const SERVER: &str = r"
import socket, sys, threading, time
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_server((host, int(port)), backlog=512)
workers = threading.Semaphore(int(sys.argv[2]))
def gone(c):
    try: return not c.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError: return False
def serve(c):
    try:
        c.recv(4096)
        with workers:
            here = not gone(c)
            if here: time.sleep(0.04)
        if here: c.sendall(b'x' * 3000)
    except OSError: pass
    c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

/// So many clients a second, each with one request. Each that has its response within two seconds adds a byte to a file.
const CLIENTS: &str = r"
import random, socket, sys, threading, time
host, port = sys.argv[1].rsplit(':', 1)
good = open(sys.argv[3], 'ab', buffering=0)
def come():
    began = time.monotonic()
    try:
        c = socket.create_connection((host, int(port)), timeout=4)
        c.sendall(b'GET /live HTTP/1.1\r\nHost: shop.example\r\nX: ' + b'x' * 53 + b'\r\n\r\n')
        while c.recv(65536): pass
        c.close()
        if time.monotonic() - began < 2: good.write(b'.')
    except OSError: pass
while True:
    threading.Thread(target=come, daemon=True).start()
    time.sleep(random.expovariate(float(sys.argv[2])))
";

/// Forty connections at once, from an address if one is given: it fails unless the SYN of each passes.
const PROBE: &str = r"
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
source = (sys.argv[2], 0) if sys.argv[2:] else None
for n in range(40): socket.create_connection((host, int(port)), 0.8, source).close()
";

/// Twenty connections one after the other, from an address: how many are there, refused with a RST, without a reply.
const OUTCOMES: &str = r"
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
found = [0, 0, 0]
for n in range(20):
    try:
        socket.create_connection((host, int(port)), 0.8, (sys.argv[2], 0)).close()
        found[0] += 1
    except ConnectionRefusedError: found[1] += 1
    except TimeoutError: found[2] += 1
print(*found)
";

fn python(namespace: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display())).args(["python3", "-c", program]);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A program in a namespace; killed when it is dropped.
pub(crate) struct Runs(Child);

impl Runs {
    /// A server at an `address:port`.
    pub(crate) fn server(namespace: &Path, at: &str, workers: &str) -> Self {
        Self(python(namespace, SERVER, &[at, workers]).spawn().unwrap())
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether every SYN of forty passes, from a namespace to an `address:port`.
pub(crate) fn all_pass_from(namespace: &Path, source: Option<&str>, at: &str) -> bool {
    let arguments: Vec<&str> = std::iter::once(at).chain(source).collect();
    let mut command = python(namespace, PROBE, &arguments);
    command.stderr(Stdio::null()).status().unwrap().success()
}

/// A daemon, clients that reach their servers by it, and the destination where the crowd will be.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) clients: Space,
    pub(crate) servers: Vec<Space>,
    pub(crate) hot: &'static str,
    pub(crate) runs: Vec<Runs>,
}

impl Scene {
    /// Clients of a destination from now on, so many a second.
    pub(crate) fn come(&self, at: &str, rate: &str) -> Runs {
        let file = self.world.file(at);
        let arguments = [at, rate, file.to_str().unwrap()];
        Runs(python(&self.clients.path(), CLIENTS, &arguments).spawn().unwrap())
    }

    /// Its usual clients, until the end.
    pub(crate) fn usual(&mut self, at: &str, rate: &str) {
        let clients = self.come(at, rate);
        self.runs.push(clients);
    }

    /// What is usual is known: 45 seconds.
    pub(crate) fn learn(&self) {
        let completed =
            format!("exchanges_total{{destination=\"{}\",state=\"completed\"}}", self.hot);
        for enough in [450.0, 900.0] {
            let known = || self.metric(&completed) >= enough;
            wait_for("what is usual is known", || known().then_some(()));
        }
        assert!(!self.world.history().contains("flash crowd"), "{}", self.world.history());
    }

    /// Clients of a destination that came in time, a second, over the next three seconds.
    pub(crate) fn goodput(&self, at: &str) -> f64 {
        let clock = MonotonicClock;
        let good = || std::fs::metadata(self.world.file(at)).unwrap().len();
        let (begun, before) = (clock.now(), good());
        wait_for("three seconds", || {
            (clock.now().since(begun) >= Nanos::from_secs(3)).then_some(())
        });
        (good() - before) as f64 / clock.now().since(begun).as_secs_f64()
    }

    /// Whether every SYN of forty passes.
    pub(crate) fn all_pass(&self, at: &str) -> bool {
        all_pass_from(&self.clients.path(), None, at)
    }

    /// Of twenty connections from an address to the hot destination: those that are there, those that a RST refused,
    /// those without a reply.
    pub(crate) fn outcomes(&self, source: &str) -> [u32; 3] {
        let arguments = [self.hot, source];
        let output = python(&self.clients.path(), OUTCOMES, &arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let counts: Vec<u32> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
        counts.try_into().unwrap()
    }

    /// Whether a limit refuses at the hot destination: some SYN of forty does not pass, and it is counted.
    pub(crate) fn refuses(&self) -> bool {
        let before = self.limited(self.hot, "refused");
        let refuses = !self.all_pass(self.hot);
        if refuses {
            let more = || self.limited(self.hot, "refused") > before;
            wait_for("refusals are counted", || more().then_some(()));
        }
        refuses
    }

    /// A counter or gauge of the router; zero as long as there is none.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.world.get("/metrics").unwrap_or_default();
        let name = format!("tidegate_router_{name} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// SYNs of a destination beyond its limit.
    pub(crate) fn limited(&self, at: &str, state: &str) -> f64 {
        self.metric(&format!("limited_syns_total{{destination=\"{at}\",state=\"{state}\"}}"))
    }

    /// It is measured, and no limit has refused anything there.
    pub(crate) fn assert_spared(&self, at: &str) {
        let none = format!("limited_syns_total{{destination=\"{at}\",state=\"refused\"}} 0");
        assert!(self.world.get("/metrics").unwrap().contains(&none), "{none}");
    }

    /// The same daemon with other interfaces, services and so on.
    pub(crate) fn reload(&self, intent: &str) {
        let file = self.world.file("config");
        let text = std::fs::read_to_string(&file).unwrap();
        let rest = text.split("daemon:").nth(1).unwrap();
        std::fs::write(&file, format!("{intent}daemon:{rest}")).unwrap();
        let output = self.world.tidegate(&["reload"]);
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn told(&self, part: &str) -> String {
        wait_for(part, || Some(self.world.history()).filter(|told| told.contains(part)))
    }

    /// What is shown is a picture that is taken a few times a second: it may be older than an event.
    pub(crate) fn shows(&self, part: &str) {
        wait_for(part, || self.world.status().contains(part).then_some(()));
    }
}

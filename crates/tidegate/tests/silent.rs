// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One source holds all workers of a server with connections on which it says nothing: in shadow the
//! others are not served, and in enforce they are, once its connections have timed out. A source
//! whose exchanges complete may open silent connections all the while (needs root).
//!
//! ```text
//!   127.0.0.66 silent ──┐
//!   127.0.0.9  honest ──┼─ lo ── server: 16 workers, each waits 2 s for a request
//!   127.0.0.50 a NAT ───┘
//! ```
//!
//! And clients whose connections stay idle after a response hold the workers of a server that waits 2 s
//! for their next request: that is told, and nobody gets a limit.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::cgroup::Cgroup;
use common::wait_for;
use common::world::World;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Workers that wait for a request: a prefork server without deferred accept. Told to keep connections,
/// a worker waits for the next request of the same one.
const SERVER: &str = r"
import socket, sys, threading
keeps = sys.argv[1] == 'keep'
s = socket.create_server(('127.0.0.1', 8000), backlog=32)
head = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n' + (b'' if keeps else b'Connection: close\r\n')
def work():
    while True:
        c, _ = s.accept()
        c.settimeout(2)
        try:
            while c.recv(4096):
                c.sendall(head + b'\r\nok')
                if not keeps: break
        except OSError: pass
        c.close()
for _ in range(16): threading.Thread(target=work).start()
";

/// Clients with one request, RATE a second, who keep their connection open. Says of each that it was
/// served.
const IDLE: &str = r"
import socket, sys, threading, time
def one(n):
    try:
        c = socket.socket()
        c.settimeout(20)
        c.bind(('127.0.0.%d' % (100 + n % 100), 0))
        c.connect(('127.0.0.1', 8000))
        c.sendall(b'GET / HTTP/1.1\r\nHost: a\r\n\r\n')
        if c.recv(4096): print('served', flush=True)
        c.recv(4096)
        c.close()
    except OSError: pass
for n in range(1000000):
    threading.Thread(target=one, args=(n,), daemon=True).start()
    time.sleep(1 / float(sys.argv[1]))
";

/// Connections on which nothing is said, 30 a second. Says how many were refused so far.
const SILENT: &str = r"
import socket, threading, time
refused, held = 0, []
def one():
    global refused
    c = socket.socket()
    c.settimeout(5)
    c.bind(('127.0.0.66', 0))
    try:
        c.connect(('127.0.0.1', 8000))
        held.append(c)
        c.settimeout(60)
        c.recv(1)
        c.close()
    except ConnectionRefusedError: refused += 1
    except OSError: pass
while True:
    threading.Thread(target=one, daemon=True).start()
    time.sleep(1 / 30)
    print(refused, flush=True)
";

/// Requests from 127.0.0.LAST, 20 a second; at each tenth one more connection that says nothing, if
/// told to. Says of each whether it was served, and whether it was refused.
const ASKING: &str = r"
import socket, sys, threading, time
last, idle = sys.argv[1], sys.argv[2] == 'idle'
def connect():
    c = socket.socket()
    c.settimeout(1)
    c.bind(('127.0.0.' + last, 0))
    c.connect(('127.0.0.1', 8000))
    return c
def one():
    try:
        c = connect()
        c.sendall(b'GET / HTTP/1.1\r\nHost: a\r\n\r\n')
        print('served' if c.recv(4096) else 'failed', flush=True)
        c.close()
    except ConnectionRefusedError: print('refused', flush=True)
    except OSError: print('failed', flush=True)
def silent():
    try:
        c = connect()
        c.settimeout(9)
        c.recv(1)
        c.close()
    except ConnectionRefusedError: print('refused', flush=True)
    except OSError: pass
n = 0
while True:
    threading.Thread(target=one, daemon=True).start()
    if idle and n % 10 == 0: threading.Thread(target=silent, daemon=True).start()
    n += 1
    time.sleep(1 / 20)
";

/// A program of the namespace and what it says; ended by drop.
struct Talker {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Talker {
    fn new(world: &World, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", world.namespace().display()));
        command.args(["python3", "-c", program]).args(arguments);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, heard) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).for_each(|line| heard.lock().unwrap().push(line));
        });
        Self { child, lines }
    }

    /// What was said since it was asked last.
    fn said(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    /// Waits for so many requests to end: how many were served, and how many were refused.
    fn outcome(&self, requests: usize) -> (usize, usize) {
        self.said();
        let said = wait_for("requests end", || {
            let ended = self.lines.lock().unwrap().len();
            (ended >= requests).then(|| self.said())
        });
        let count = |word: &str| said.iter().filter(|line| *line == word).count();
        (count("served") * requests / said.len(), count("refused"))
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The limit on silent connections of a source that is in force.
fn limit(world: &World) -> Option<u64> {
    let output = world.tidegate(&["status", "-o", "json"]);
    let snapshot: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let service =
        snapshot.pointer("/services/0").or_else(|| snapshot.pointer("/snapshot/services/0"));
    service?.pointer("/limits/source_max")?.as_u64()
}

/// Requests that are looked at together.
const REQUESTS: usize = 60;

/// A world with the server, whose connections are kept or not, which a daemon in shadow watches.
fn watched(number: u32, connections: &str) -> (Cgroup, World, Talker) {
    let cgroup = Cgroup::new("silent", number);
    let mut world = World::new(number);
    let server = Talker::new(&world, SERVER, &[connections]);
    fs::write(cgroup.0.join("cgroup.procs"), server.child.id().to_string()).unwrap();
    let intent = format!(
        "interfaces: [{{name: lo, attach: tcx}}]\nservices:\n  shop:\n    mode: shadow\n    \
         listen: [\"*:8000\"]\n    process: {{cgroup: {}}}\n    policy: {{action: reject}}\n",
        cgroup.0.display()
    );
    let log = fs::OpenOptions::new().append(true).create(true).open(world.file("log")).unwrap();
    world.run_intent(&intent, &["--keep-privileges"], log.into());
    world.ready();
    (cgroup, world, server)
}

/// 16 workers that each of 5 clients a second holds for 2 s are enough, for 20 they are not.
#[test]
fn idle_connections_that_hold_the_workers_are_told() {
    let (_cgroup, world, _server) = watched(8, "keep");
    let few = Talker::new(&world, IDLE, &["5"]);
    assert_eq!(few.outcome(REQUESTS / 4), (REQUESTS / 4, 0));
    assert!(!world.status().contains("idle connections"), "{}", world.status());
    drop(few);
    let _many = Talker::new(&world, IDLE, &["20"]);
    let status = wait_for("the remedy is named", || {
        Some(world.status()).filter(|status| status.contains("idle connections"))
    });
    assert!(status.contains("KeepAliveTimeout"), "{status}");
    assert!(!status.contains("silent connections"), "{status}");
    assert_eq!(limit(&world), None, "nobody is limited for it");
}

#[test]
fn a_source_of_silent_connections_starves_nobody() {
    let (_cgroup, world, _server) = watched(7, "close");
    let honest = Talker::new(&world, ASKING, &["9", "busy"]);
    let nat = Talker::new(&world, ASKING, &["50", "idle"]);
    let (served, _) = honest.outcome(REQUESTS);
    assert!(served * 10 >= REQUESTS * 9, "before: {served} of {REQUESTS}");
    assert_eq!(limit(&world), None, "a NAT's silent connections are no harm");

    let silent = Talker::new(&world, SILENT, &[]);
    wait_for("a limit is decided", || limit(&world));
    let status = world.status();
    assert!(status.contains("127.0.0.66/32") && !status.contains("127.0.0.50/32"), "{status}");
    assert!(status.contains("TCP_DEFER_ACCEPT"), "the remedy: {status}");
    let (served, refused) = honest.outcome(REQUESTS);
    assert!(served * 2 < REQUESTS && refused == 0, "in shadow: {served} of {REQUESTS}");

    let enforced = world.tidegate(&["mode", "shop", "enforce"]);
    assert!(enforced.status.success(), "{enforced:?}");
    wait_for("the silent source is refused", || {
        silent.said().last()?.parse().ok().filter(|refused: &u32| *refused > 30)
    });
    nat.said();
    wait_for("its connections have timed out", || {
        let (served, _) = honest.outcome(REQUESTS);
        (served * 10 >= REQUESTS * 9).then_some(())
    });
    let (served, refused) = nat.outcome(REQUESTS);
    assert!(served * 10 >= REQUESTS * 9, "{served} of {REQUESTS} requests of the NAT");
    assert_eq!(refused, 0, "of the NAT");
    assert!(limit(&world).is_some(), "it goes on, so the limit stays");
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server tells the HAProxy before it how many requests may be in flight, with packaging/haproxy-agent.cfg and the
//! real HAProxy (needs root).
//!
//! ```text
//!   clients ─► HAProxy :8088 ── lo, with the hooks ──► server :8000: one worker, 5 ms a request
//!                 ▲                                       │ measured
//!                 └── maxconn:N ── agent-check :9490 ── tidegate
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::wait_for;
use common::world::World;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, park_timeout, spawn};
use std::time::Duration;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const FRONT: &str = "127.0.0.1:8088";
const AGENT: &str = "127.0.0.1:9490";
const CAPACITY: f64 = 200.0;
const CLIENTS: u64 = 200;

/// Works on one request at a time, over connections that are kept.
const SERVER: &str = r"
import socket, threading, time
s = socket.create_server(('127.0.0.1', 8000), backlog=1024)
work = threading.Lock()
def serve(c):
    try:
        for line in c.makefile('rb'):
            if line == b'\r\n':
                with work: time.sleep(0.005)
                c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n')
    except OSError: pass
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

/// Programs beside the daemon; ended when it is dropped.
struct Beside(Vec<Child>);

impl Beside {
    fn new(world: &World) -> Self {
        let packaging = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        let mut text = fs::read_to_string(packaging.join("haproxy-agent.cfg")).unwrap();
        for (from, to) in
            [("bind :80 ", "bind 127.0.0.1:8088 "), ("127.0.0.1:8080   ", "127.0.0.1:8000   ")]
        {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let conf = world.file("haproxy.cfg");
        fs::write(&conf, format!("global\n    nbthread 1\n    maxconn 4096\n{text}")).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new("nsenter");
            command
                .arg(format!("--net={}", world.namespace().display()))
                .arg(program)
                .args(arguments);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let server = run("python3", &["-c", SERVER]);
        let haproxy = run("haproxy", &["-db", "-f", conf.to_str().unwrap()]);
        Self(vec![server, haproxy])
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn connect(namespace: &std::path::Path, address: &str) -> std::io::Result<TcpStream> {
    let stream = in_namespace(Some(namespace), || TcpStream::connect(address))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

/// Waits so long; a thread that has ended in between (`in_namespace`) unparks this one too early.
fn pause(time: Duration) {
    let end = MonotonicClock.now() + time.into();
    loop {
        let left = end.since(MonotonicClock.now());
        if left == Nanos::ZERO {
            return;
        }
        park_timeout(left.into());
    }
}

/// What an agent-check is told, as HAProxy reads it.
fn told(world: &World) -> Option<u32> {
    let mut stream = connect(&world.namespace(), AGENT).ok()?;
    let mut line = String::new();
    stream.read_to_string(&mut line).ok()?;
    line.strip_prefix("maxconn:")?.strip_suffix('\n')?.parse().ok()
}

/// One request of a kept connection: its status.
fn get(reader: &mut BufReader<TcpStream>) -> std::io::Result<u16> {
    reader.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")?;
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let begin = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[begin..].to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    Ok(head.split(' ').nth(1).unwrap().parse().unwrap())
}

/// Clients at a rate, and what became of them: good, slow, refused, failed.
#[derive(Default)]
struct Load {
    rate: AtomicU64,
    seen: [AtomicU64; 4],
    ending: AtomicBool,
}

impl Load {
    fn begin(self: &Arc<Self>, world: &World) -> Vec<JoinHandle<()>> {
        let client = |n: u64| {
            let (load, namespace) = (Arc::clone(self), world.namespace());
            spawn(move || load.client(n, &namespace))
        };
        (0..CLIENTS).map(client).collect()
    }

    fn client(&self, n: u64, namespace: &std::path::Path) {
        let each = || Duration::from_secs_f64(CLIENTS as f64 / self.rate.load(Relaxed) as f64);
        pause(each().mul_f64(n as f64 / CLIENTS as f64));
        let mut connection = None;
        while !self.ending.load(Relaxed) {
            let begin = MonotonicClock.now();
            let mut reader = match connection.take() {
                Some(reader) => reader,
                None => BufReader::new(connect(namespace, FRONT).unwrap()),
            };
            let status = get(&mut reader);
            let took = MonotonicClock.now().since(begin);
            let what = match status {
                Ok(200) if took <= Nanos::SECOND => 0,
                Ok(200) => 1,
                Ok(503) => 2,
                _ => 3,
            };
            self.seen[what].fetch_add(1, Relaxed);
            // HAProxy may close after an error.
            connection = (what < 2).then_some(reader);
            pause(each().saturating_sub(took.into()));
        }
    }

    fn run(&self, rate: f64, seconds: u64) -> [u64; 4] {
        self.rate.store(rate as u64, Relaxed);
        self.seen.iter().for_each(|seen| seen.store(0, Relaxed));
        pause(Duration::from_secs(seconds));
        self.seen.each_ref().map(|seen| seen.load(Relaxed))
    }
}

#[test]
fn haproxy_keeps_to_what_the_server_can_take_and_goes_around_an_agent_that_is_gone() {
    let mut world = World::new(1);
    let beside = Beside::new(&world);
    let intent = format!(
        "interfaces: [{{name: lo, attach: tcx}}]\nservices:\n  shop:\n    mode: enforce\n    listen: [\"127.0.0.1:8000\"]\n    \
         agent_check: {{listen: \"{AGENT}\"}}\n"
    );
    let log = fs::File::create(world.file("log")).unwrap();
    world.run_intent(&intent, &[], log.into());
    world.ready();
    wait_for("HAProxy serves", || {
        let mut reader = BufReader::new(connect(&world.namespace(), FRONT).ok()?);
        (get(&mut reader).ok()? == 200).then_some(())
    });
    let load = Arc::new(Load::default());
    load.rate.store((0.5 * CAPACITY) as u64, Relaxed);
    let clients = load.begin(&world);
    let half = load.run(0.5 * CAPACITY, 5);
    println!("half: {half:?} in 5 s, maxconn {:?}", told(&world));
    assert_eq!((half[2], half[3]), (0, 0), "nobody is refused at half");
    let over = load.run(3.0 * CAPACITY, 8);
    println!("three times: {over:?} in 8 s, maxconn {:?}\n{}", told(&world), world.status());
    assert!(told(&world).is_some_and(|limit| limit > 0), "there is a limit");
    assert!(over[2] > 0 && over[3] == 0, "HAProxy refuses, and nothing fails: {over:?}");
    load.ending.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());

    assert!(world.tidegate(&["release", "on"]).status.success());
    wait_for("the kill switch tells no limit", || (told(&world) == Some(0)).then_some(()));
    assert!(world.tidegate(&["release", "off"]).status.success());
    world.daemon().kill().unwrap();
    world.daemon().wait().unwrap();
    wait_for("requests go around it", || {
        let mut reader = BufReader::new(connect(&world.namespace(), FRONT).ok()?);
        reader
            .get_mut()
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut page = String::new();
        reader.read_to_string(&mut page).ok()?;
        page.contains("x-way: around").then_some(())
    });
    drop(beside);
}

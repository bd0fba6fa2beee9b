// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two routers to one server share over a NATS server, and divide the limit of its flash crowd (needs root and
//! nats-server). The server is lost and comes back, and a stranger publishes on the subject.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::flash::Scene;
use common::routers::{Domain, crowd, divide, intent, limit, usual};
use common::wait_for;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// In the namespace of the first router.
const NATS: &str = "10.85.0.1:4222";
const SUBJECT: &str = "tidegate.routers";

/// A server of the bus; killed when it is dropped.
struct Nats(Child);

impl Nats {
    fn start(namespace: &Path) -> Self {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", namespace.display())).args(["nats-server", "-a"]);
        let (address, port) = NATS.split_once(':').unwrap();
        command.args([address, "-p", port]).stdin(Stdio::null()).stdout(Stdio::null());
        let nats = Self(command.stderr(Stdio::null()).spawn().unwrap());
        wait_for("nats-server listens", || connect(namespace).ok().map(drop));
        nats
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(namespace: &Path) -> std::io::Result<TcpStream> {
    in_namespace(Some(namespace), || TcpStream::connect(NATS))
}

/// Whoever may publish on the subject, without a key: it records, and repeats.
struct Stranger(BufReader<TcpStream>);

impl Stranger {
    fn new(namespace: &Path) -> Self {
        let mut stranger = Self(BufReader::new(connect(namespace).unwrap()));
        stranger.say(b"CONNECT {\"verbose\":false}\r\nSUB tidegate.routers 1\r\n");
        stranger
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn publish(&mut self, message: &[u8]) {
        self.say(format!("PUB {SUBJECT} {}\r\n", message.len()).as_bytes());
        self.say(&[message, b"\r\n"].concat());
    }

    /// The next message of a router.
    fn record(&mut self) -> Vec<u8> {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the server ended");
            if line.starts_with("PING") {
                self.say(b"PONG\r\n");
            }
            if line.starts_with("MSG") {
                let length: usize = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
                let mut message = vec![0; length + 2];
                self.0.read_exact(&mut message).unwrap();
                message.truncate(length);
                return message;
            }
        }
    }
}

fn bus(scene: &Scene, name: &str) -> f64 {
    let page = scene.world.get("/metrics").unwrap_or_default();
    let name = format!("tidegate_bus_{name} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0.0, |value| value.parse().unwrap())
}

fn refused(scene: &Scene, reason: &str) -> f64 {
    bus(scene, &format!("refused_messages_total{{reason=\"{reason}\"}}"))
}

/// How often something is in the history.
fn times(scene: &Scene, part: &str) -> usize {
    scene.world.history().matches(part).count()
}

fn run(domain: Domain) -> [Scene; 2] {
    domain.run(|number, folder| {
        let other = 3 - number;
        let cluster = format!(
            "  routers: {{r{other}: {{identity: spiffe://example.org/r{other}}}}}\n  \
             bus: {{servers: [\"{NATS}\"]}}\n"
        );
        intent(number, folder, &cluster)
    })
}

/// The server of the bus is gone: each has the part that it had, and not more.
fn lost([first, second]: [&Scene; 2]) {
    for (scene, other) in [(first, "r2"), (second, "r1")] {
        scene.told("the bus (tidegate.routers) has not been connected for ");
        scene.told(&format!("the router {other} has not been heard for "));
        scene.shows("cluster.bus: no connection: ");
    }
    let (clock, begun) = (MonotonicClock, MonotonicClock.now());
    wait_for("ten seconds without a bus", || {
        let limits = (limit(first), limit(second));
        assert!(limits.0 > 0.0 && limits.1 > 0.0, "{limits:?}");
        assert!(limits.0 + limits.1 <= 75.0, "{limits:?}");
        (clock.now().since(begun) >= Nanos::from_secs(10)).then_some(())
    });
}

/// Garbage, and what was recorded before, are counted, and nothing else happens.
fn stranger(namespace: &Path, recorded: &[Vec<u8>], scenes: [&Scene; 2]) {
    let before = scenes.map(|scene| {
        ["malformed", "version", "stale", "other-session", "unknown-peer"]
            .map(|why| refused(scene, why))
    });
    let mut stranger = Stranger::new(namespace);
    stranger.publish(b"hello");
    stranger.publish(&[1; 70_000]);
    recorded.iter().for_each(|message| stranger.publish(message));
    for (scene, before) in scenes.into_iter().zip(before) {
        let [malformed, version, old @ ..] = before;
        wait_for("garbage is counted", || {
            let garbage = (refused(scene, "malformed"), refused(scene, "version"));
            (garbage == (malformed + 1.0, version + 1.0)).then_some(())
        });
        // Its own words come back to a router as those of a host that is no other router.
        wait_for("recordings are counted", || {
            let now = ["stale", "other-session", "unknown-peer"].map(|why| refused(scene, why));
            let more = now.iter().sum::<f64>() - old.iter().sum::<f64>();
            (more >= recorded.len() as f64).then_some(())
        });
    }
}

#[test]
fn two_routers_divide_the_limit_over_a_bus() {
    let domain = Domain::new([43, 44]);
    let namespace: PathBuf = domain.first();
    let nats = Nats::start(&namespace);
    let mut early = Stranger::new(&namespace);
    let [mut first, mut second] = run(domain);
    usual(&mut first, &mut second);
    let recorded: Vec<Vec<u8>> = (0..6).map(|_| early.record()).collect();
    for scene in [&first, &second] {
        scene.told("the bus is connected: routers share over tidegate.routers");
        scene.shows("bus tidegate.routers at 10.85.0.1:4222: connected for ");
        assert!(
            bus(scene, "up{}") == 1.0
                && bus(scene, "reports_messages_total{state=\"taken\"}") > 0.0
        );
    }
    let crowds = crowd(&first, &second);
    drop(nats);
    lost([&first, &second]);
    let _nats = Nats::start(&namespace);
    for (scene, other) in [(&first, "r2"), (&second, "r1")] {
        wait_for("they share again", || {
            let heard = format!("the router {other} shares what it measures");
            (times(scene, &heard) == 2 && times(scene, "the bus is connected") == 2).then_some(())
        });
    }
    divide(&first, &second);
    stranger(&namespace, &recorded, [&first, &second]);
    divide(&first, &second);
    assert_eq!(times(&first, "has not been heard"), 1, "{}", first.world.history());
    drop(crowds);
}

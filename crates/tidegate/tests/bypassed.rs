// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that is reached past the hooks is not protected, and whoever asks is told so (needs
//! root).
//!
//! ```text
//!  client namespace          the daemon's and the server's
//!  v1 10.79.0.2 ──────────── v0 10.79.0.1:8000     at tcx: a foreign program, then ours
//!  w1 ────────────────────── w0                    where the foreign program may redirect to
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::world::World;
use common::{ip, wait_for};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tidegate_bpf::Interface;
use tidegate_bpf::testing::{Foreign, ForeignVerdict};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const SERVER: &str = "10.79.0.1:8000";
/// Between two connections of a client.
const PAUSE: Duration = Duration::from_millis(100);
/// What is promised, in seconds.
const TOLD_MAX_S: f64 = 5.0;
/// Longer than it takes until a hook that sees nothing is warned of.
const CONNECTIONS: usize = 60;

/// `ip -o link show` of an interface.
fn shown(namespace: &str, link: &str) -> String {
    let output = Command::new("ip").args(["-n", namespace, "-o", "link", "show", link]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

struct Client(String);

impl Client {
    fn new(world: &World) -> Self {
        let (name, server) = (format!("{}c", world.name()), world.name());
        ip(&format!("netns add {name}"));
        ip(&format!("-n {server} link set v1 netns {name}"));
        ip(&format!("-n {server} address add 10.79.0.1/24 dev v0"));
        ip(&format!("-n {server} link set v0 up"));
        ip(&format!("-n {name} address add 10.79.0.2/24 dev v1"));
        ip(&format!("-n {name} link set v1 up"));
        Self(name)
    }

    /// A second way, on which the same addresses are taken; the number of its end at the server.
    fn second_way(&self, world: &World) -> u32 {
        let server = world.name();
        let mac = |namespace: &str, link: &str| {
            let shown = shown(namespace, link);
            shown.split("link/ether ").nth(1).unwrap()[..17].to_owned()
        };
        let (ours, theirs) = (mac(server, "v0"), mac(&self.0, "v1"));
        ip(&format!(
            "-n {server} link add w0 address {ours} type veth peer name w1 address {theirs}"
        ));
        ip(&format!("-n {server} link set w1 netns {}", self.0));
        ip(&format!("-n {server} link set w0 up"));
        ip(&format!("-n {} link set w1 up", self.0));
        for (namespace, link) in [(world.namespace(), "w0"), (self.path(), "w1")] {
            // Packets come by another interface than the route to their sender.
            for of in ["all", link] {
                let path = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
                in_namespace(Some(&namespace), || std::fs::write(&path, "0")).unwrap();
            }
        }
        shown(server, "w0").split(':').next().unwrap().trim().parse().unwrap()
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    /// One connection, which the server keeps open. What is said there is no request: such clients were waited for.
    fn connect(&self) -> TcpStream {
        let server: SocketAddr = SERVER.parse().unwrap();
        let patience = Duration::from_secs(5);
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&server, patience)?;
            stream.write_all(b"x")?;
            Ok(stream)
        };
        in_namespace(Some(&self.path()), connect).unwrap()
    }
}

/// A server that accepts all and says nothing, in a process of the namespace: where it runs is looked up there.
struct Server(Child);

impl Server {
    fn start(world: &World) -> Self {
        let program = "import socket\ns = socket.create_server(('0.0.0.0', 8000), backlog=128)\nheld = []\n\
                       while True: held.append(s.accept()[0])";
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", world.namespace().display()));
        let server = Self(command.args(["python3", "-c", program]).spawn().unwrap());
        let connect = || TcpStream::connect(SERVER);
        wait_for("the server", || in_namespace(Some(&world.namespace()), connect).ok());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Foreign programs before ours hide one of the directions, one after the other, and go again. How long it took
/// from outside.
fn is_told(
    world: &World,
    client: &Client,
    (egress, verdicts): (bool, [ForeignVerdict; 2]),
    held: &mut Vec<TcpStream>,
) -> [Nanos; 2] {
    let interface = Interface::named("v0", Some(world.namespace()));
    // What the page says, and what the log.
    let (says, logs, name) = match egress {
        false => ("the hooks saw none", "the hooks saw none", "bypassed"),
        true => ("the hooks saw no reply of the server", "the hooks saw no packet", "unreplied"),
    };
    let took = verdicts.map(|verdict| {
        let case = format!("{verdict:?}, egress {egress}");
        let foreign = Foreign { verdict, egress, first: true }.attach(&interface).unwrap();
        let begin = MonotonicClock.now();
        let page = wait_for(&case, || {
            std::thread::sleep(PAUSE);
            held.push(client.connect());
            world.get("/readyz").filter(|page| page.contains(" 503 "))
        });
        let took = MonotonicClock.now().since(begin);
        assert!(page.contains("service shop: ") && page.contains(says), "{case}: {page}");
        assert!(page.contains("reached by v0; `tidegate status` says what"), "{case}: {page}");
        let (status, check) = (world.status(), world.check_running());
        assert!(status.contains("shop: hooks: "), "{case}: {status}");
        for told in [&status, &check] {
            assert!(told.contains("bpftool net show dev v0"), "{case}: {told}");
        }
        let found = world.metric(&format!("service_{name}_connections"));
        assert!(found >= 5.0, "{case}: {found}");
        drop(foreign);
        held.push(client.connect());
        wait_for("ready", || world.get("/readyz").filter(|page| page.contains(" 200 ")));
        took
    });
    let unseen = world.unseen_when_told(logs);
    assert!(unseen <= TOLD_MAX_S, "{unseen} s: {}", world.log());
    took
}

fn come_at_once(client: &Client, held: &mut Vec<TcpStream>) {
    held.extend((0..CONNECTIONS).map(|_| client.connect()));
}

/// Whoever lets others see it is a good neighbour.
fn neighbours_are_no_reason_to_warn(world: &World, client: &Client, held: &mut Vec<TcpStream>) {
    let interface = Interface::named("v0", Some(world.namespace()));
    let _neighbours = [false, true].map(|egress| {
        let next = Foreign { verdict: ForeignVerdict::Next, egress, first: true };
        next.attach(&interface).unwrap()
    });
    let offered = world.metric("service_offered_syns_total");
    for _ in 0..CONNECTIONS {
        std::thread::sleep(PAUSE);
        held.push(client.connect());
    }
    let page = world.get("/readyz").unwrap();
    assert!(page.contains(" 200 "), "{page}");
    // Pages are kept for a moment.
    let all = offered + CONNECTIONS as f64;
    wait_for("each is seen", || (world.metric("service_offered_syns_total") >= all).then_some(()));
}

#[test]
fn a_foreign_program_that_hides_a_direction_is_warned_of_and_not_ready() {
    let mut world = World::new(0);
    let client = Client::new(&world);
    let other = client.second_way(&world);
    let _server = Server::start(&world);
    // Whoever is let in stays, and so too much is in flight at some time: nobody is to be refused for it.
    let log = OpenOptions::new().append(true).create(true).open(world.file("log"));
    let intent = "interfaces: [{name: v0}]\nservices: {shop: {mode: shadow, listen: ['*:8000']}}\n";
    world.run_intent(intent, &[], log.unwrap().into());
    world.ready();
    let mut held = vec![client.connect()];
    let verdicts = [ForeignVerdict::Pass, ForeignVerdict::Redirect(other)];
    let syns = is_told(&world, &client, (false, verdicts), &mut held);
    assert!(world.log().contains("the service is not protected"), "{}", world.log());
    // With 32 handshakes it is known that the server does not wait for requests.
    let begin = MonotonicClock.now();
    come_at_once(&client, &mut held);
    neighbours_are_no_reason_to_warn(&world, &client, &mut held);
    // Those of before may be late for 10 s, and a subject that is not over is not logged again.
    wait_for("over", || {
        let old = MonotonicClock.now().since(begin) > Nanos::from_secs(12);
        (old && !world.status().contains("shop: hooks: ")).then_some(())
    });
    // More than will come until it is to be told: none of them is late.
    come_at_once(&client, &mut held);
    let replies = is_told(&world, &client, (true, verdicts), &mut held);
    // From outside, and of most: others use the machine, too.
    let took = [syns, replies].concat();
    let in_time = took.iter().filter(|took| took.as_secs_f64() <= TOLD_MAX_S).count();
    assert!(in_time >= 3, "{took:?}");
}

/// Attached to an interface by which nobody comes.
#[test]
fn at_the_wrong_interface_everybody_is_told_where_to_attach() {
    let mut world = World::new(2);
    let client = Client::new(&world);
    let _server = Server::start(&world);
    ip(&format!("-n {} link add d0 type veth peer name d1", world.name()));
    let log = std::fs::File::create(world.file("log")).unwrap();
    let intent =
        "interfaces: [{name: d0}]\nservices: {shop: {mode: enforce, listen: ['*:8000']}}\n";
    world.run_intent(intent, &[], log.into());
    world.ready();
    let mut held = Vec::new();
    let page = wait_for("not ready", || {
        std::thread::sleep(PAUSE);
        held.push(client.connect());
        world.get("/readyz").filter(|page| page.contains(" 503 "))
    });
    assert!(page.contains("the hooks saw none; the last client is reached by v0;"), "{page}");
    for told in [world.status(), world.check_running()] {
        assert!(told.contains("attach there too (`interfaces: [{name: v0}]`)"), "{told}");
    }
    let unseen = world.unseen_when_told("the hooks saw none");
    assert!(unseen <= TOLD_MAX_S, "{unseen} s: {}", world.log());
}

/// What the host says to itself goes by no hook, and is no reason to warn.
#[test]
fn connections_of_the_host_to_itself_are_no_reason_to_warn() {
    let mut world = World::new(1);
    let _client = Client::new(&world);
    let _server = Server::start(&world);
    world.run(&[]);
    let held: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|i| {
            std::thread::sleep(PAUSE);
            let address = if i % 2 == 0 { SERVER } else { "127.0.0.1:8000" };
            in_namespace(Some(&world.namespace()), || TcpStream::connect(address)).unwrap()
        })
        .collect();
    let page = world.get("/readyz").unwrap();
    assert!(page.contains(" 200 "), "{page}");
    assert!(!world.status().contains("shop: hooks: "), "{}", world.status());
    drop(held);
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino: an overloaded server limits what a congested router lets through (needs root).
//!
//! ```text
//!   c ─────────── r: a router, tidegate on v0 ────── tbf 2 Mbit/s ── s: a server, tidegate
//!   10.79.0.2     10.79.0.1           10.79.1.1 v1                   10.79.1.2:8000, takes 20/s
//! ```
//!
//! More connections than the server takes: nothing travels while the link is not congested. Datagrams of
//! others fill it: the server's limit counts at the router, and its daemon's death ends it.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::authority::Authority;
use common::{run, wait_for};
use rcgen::{KeyPair, PKCS_ED25519};
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::record::What;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_model::snapshot::{PeerState, RemoteState, ServiceState, Snapshot};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Connections per second that the server takes, and that come. The link drops a third of them.
const TAKES: u64 = 20;
const OFFERED: u64 = 120;
/// Most that a sender that was held up makes good at once.
const AT_ONCE: u64 = 40;
/// Connections that the client keeps open at once.
const KEPT: usize = 200;
/// Datagrams of 1,000 bytes per second: 1.6 times what the link carries.
const DATAGRAMS: u64 = 400;
const SERVER: &str = "10.79.1.2:8000";
const HOSTS: [&str; 3] = ["c", "r", "s"];

/// The namespaces, certificates, keys; all gone when it is dropped.
struct World {
    name: String,
    dir: tempfile::TempDir,
    _listener: TcpListener,
}

impl World {
    fn new() -> Self {
        let name = format!("tgn{}", std::process::id());
        let dir = tempfile::tempdir().unwrap();
        HOSTS.iter().for_each(|host| run("ip", &format!("netns add {name}{host}")));
        for (i, host) in ["c", "s"].iter().enumerate() {
            run(
                "ip",
                &format!("link add v{i} netns {name}r type veth peer name v0 netns {name}{host}"),
            );
            for (side, device, last) in [("r", format!("v{i}"), 1), (host, "v0".to_owned(), 2)] {
                run("ip", &format!("-n {name}{side} addr add 10.79.{i}.{last}/24 dev {device}"));
                run("ip", &format!("-n {name}{side} link set {device} up"));
                run("ip", &format!("-n {name}{side} link set lo up"));
            }
            run("ip", &format!("-n {name}{host} route add default via 10.79.{i}.1"));
        }
        run("ip", &format!("netns exec {name}r sysctl -qw net.ipv4.ip_forward=1"));
        run(
            "ip",
            &format!(
                "netns exec {name}r tc qdisc add dev v1 root tbf rate 2mbit burst 5kb limit 50kb"
            ),
        );
        let bind = || TcpListener::bind(SERVER);
        let listener = in_namespace(Some(&namespace(&name, "s")), bind).unwrap();
        let world = Self { name, dir, _listener: listener };
        let authority = Authority::new(world.dir.path());
        ["r", "s"].iter().for_each(|host| authority.sign(world.dir.path(), host, host));
        for holder in ["operator", "holder"] {
            let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            fs::write(world.path(&format!("{holder}.key")), key.serialize_pem()).unwrap();
            fs::write(world.path(&format!("{holder}.pub")), key.public_key_pem()).unwrap();
        }
        let mut grants = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        grants.args(["grants", "issue", "--kind", "rate", "--waive-staging"]);
        grants.args(["--holder", "spiffe://example.org/s", "--scope", SERVER]);
        grants.arg("--operator-key").arg(world.path("operator.key"));
        let grant = grants.arg("--holder-key").arg(world.path("holder.pub")).output().unwrap();
        assert!(grant.status.success(), "{grant:?}");
        fs::write(world.path("grant"), grant.stdout).unwrap();
        world
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn pins(&self, host: &str) -> PathBuf {
        format!("/sys/fs/bpf/tidegate-test-{}{host}", self.name).into()
    }

    /// Starts a daemon on a host and waits until it answers.
    fn start(&self, host: &str, interfaces: &str, service: &str, cluster: &str) -> Daemon {
        let [certificate, key, authority] =
            [format!("{host}.pem"), format!("{host}.key"), "authority.pem".into()]
                .map(|file| self.path(&file).display().to_string());
        let socket = self.path(&format!("{host}.sock"));
        let text = format!(
            "interfaces: [{{name: v0, attach: tcx}}{interfaces}]\nservices:\n  shop: {service}\n\
             daemon: {{socket: {}, http: off, pins: {}}}\n\
             cluster:\n  certificate: {certificate}\n  key: {key}\n  authority: {authority}\n{cluster}",
            socket.display(),
            self.pins(host).display(),
        );
        let config = self.path(&format!("{host}.yaml"));
        fs::write(&config, text).unwrap();
        let log = self.path(&format!("{host}.log"));
        let child = Command::new("nsenter")
            .arg(format!("--net={}", namespace(&self.name, host).display()))
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut daemon = Daemon { child, socket };
        wait_for(&format!("the daemon of {host} answers"), || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "{host}: {}", fs::read_to_string(&log).unwrap());
            daemon.snapshot()
        });
        daemon
    }

    fn router(&self) -> Daemon {
        let [operator, grant] = ["operator.pub", "grant"].map(|file| self.path(file));
        let cluster = format!(
            "  listen: 0.0.0.0:7416\n  grants: {{operator: {}, files: [{}]}}\n  peers:\n    \
             s: {{identity: spiffe://example.org/s, services: [shop], limits: [\"{SERVER}\"]}}\n",
            operator.display(),
            grant.display()
        );
        let service = format!("{{mode: enforce, listen: [\"{SERVER}\"], control: {{floor: 5}}}}");
        self.start("r", ", {name: v1, side: servers}", &service, &cluster)
    }

    fn server(&self) -> Daemon {
        let [key, grant] = ["holder.key", "grant"].map(|file| self.path(file));
        let cluster = format!(
            "  signing: {{key: {}, grant: {}}}\n  report_to:\n    r: {{address: \"10.79.1.1:7416\", \
             identity: spiffe://example.org/r, services: [shop], \
             limits: [{{service: shop, scope: \"{SERVER}\", when: congested}}]}}\n",
            key.display(),
            grant.display()
        );
        let service = format!(
            "{{mode: enforce, listen: [\"*:8000\"], control: {{name: fixed, rate: {TAKES}}}}}"
        );
        self.start("s", "", &service, &cluster)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for host in HOSTS {
            let _ =
                Command::new("ip").args(["netns", "del", &format!("{}{host}", self.name)]).status();
            remove(&self.pins(host));
        }
    }
}

fn namespace(name: &str, host: &str) -> PathBuf {
    format!("/run/netns/{name}{host}").into()
}

/// Pins are files that only `unlink` removes.
fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        } else {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

/// A daemon; killed when it is dropped.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn ask(&self, request: &Request) -> Option<Reply> {
        Client::connect(&self.socket, TIMEOUT_DEFAULT).ok()?.ask(request).ok()
    }

    fn snapshot(&self) -> Option<Snapshot> {
        match self.ask(&Request::Status {}) {
            Some(Reply::Status { snapshot }) => Some(*snapshot),
            _ => None,
        }
    }

    fn service(&self) -> ServiceState {
        self.snapshot().unwrap().services.remove(0)
    }

    fn remote(&self) -> Option<RemoteState> {
        self.service().remote.first().cloned()
    }

    fn peer(&self) -> PeerState {
        self.snapshot().unwrap().peers.remove(0)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Something that the client sends until it is dropped.
struct Load {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(world: &World, per_second: u64, mut each: impl FnMut() + Send + 'static) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let (client, end) = (namespace(&world.name, "c"), Arc::clone(&ending));
        let thread = std::thread::spawn(move || {
            let run = || {
                let (begin, mut sent) = (MonotonicClock.now(), 0);
                while !end.load(Ordering::Relaxed) {
                    let spent = MonotonicClock.now().since(begin).as_secs_f64();
                    let due = (spent * per_second as f64) as u64;
                    sent = sent.max(due.saturating_sub(AT_ONCE));
                    for _ in sent..due {
                        each();
                    }
                    sent = sent.max(due);
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok::<_, io::Error>(())
            };
            in_namespace(Some(&client), run).unwrap();
        });
        Self { ending, thread: Some(thread) }
    }

    /// Connections, of which it waits for none.
    fn connections(world: &World) -> Self {
        let (mut open, server) = (VecDeque::new(), SERVER.parse::<SocketAddr>().unwrap().into());
        Self::start(world, OFFERED, move || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            // In progress is as good as refused: the router counts.
            let _ = socket.connect(&server);
            open.push_back(socket);
            if open.len() > KEPT {
                open.pop_front();
            }
        })
    }

    /// Datagrams of somebody else, for another port.
    fn datagrams(world: &World) -> Self {
        let mut socket = None;
        Self::start(world, DATAGRAMS, move || {
            let socket = socket.get_or_insert_with(|| UdpSocket::bind("10.79.0.2:0").unwrap());
            let _ = socket.send_to(&[0; 1000], "10.79.1.2:9");
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn refused(service: &ServiceState) -> u64 {
    let counts = service.counts.iter().filter(|c| c.verdict != "admit" && !c.shadow);
    counts.map(|c| c.count).sum()
}

#[test]
fn an_overloaded_server_limits_a_congested_router_and_no_other() {
    let world = World::new();
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || server.peer().up.then_some(()));
    let _connections = Load::connections(&world);
    wait_for("the server refuses", || (refused(&server.service()) > 100).then_some(()));
    let links = router.snapshot().unwrap().links;
    assert!(!links[0].congested && links[0].episodes == 0, "{links:?}");
    assert_eq!((server.peer().limits, router.peer().limits), (0, 0), "nothing has travelled");
    assert!(router.remote().is_none() && refused(&router.service()) == 0);

    let datagrams = Load::datagrams(&world);
    let congested = wait_for("the link is congested", || {
        let link = router.snapshot().unwrap().links.remove(0);
        link.congested.then_some(link)
    });
    assert!(!congested.signs.is_empty() && congested.capacity == Some(250_000.0), "{congested:?}");
    let began = MonotonicClock.now();
    let whole = Rate::per_second(TAKES as f64);
    let held = wait_for("the limit counts at the router", || {
        router.remote().filter(|limit| limit.rate.is_some_and(|rate| rate <= whole))
    });
    eprintln!("the limit is down to {:?} after {}", held.rate, MonotonicClock.now().since(began));
    assert_eq!((held.peer.as_str(), held.scope.as_str()), ("s", SERVER));
    wait_for("the router refuses", || (refused(&router.service()) > 50).then_some(()));
    let given = wait_for("hit counters come back", || {
        server.remote().filter(|limit| limit.refused > 30 && limit.rate.is_some())
    });
    assert_eq!((given.peer.as_str(), given.role.as_str()), ("r", "to"));

    drop(server);
    let killed = MonotonicClock.now();
    wait_for("the limit is gone", || router.service().limits.rate.is_none().then_some(()));
    let took = MonotonicClock.now().since(killed);
    eprintln!("gone {took} after the server's daemon was killed");
    assert!(took <= REMOTE_VALIDITY_MAX + Nanos::SECOND, "{took}");
    let link = router.snapshot().unwrap().links.remove(0);
    assert!(link.congested, "it has ended by its time, and not with the congestion");

    drop(datagrams);
    wait_for("the congestion ends", || {
        let link = router.snapshot().unwrap().links.remove(0);
        (!link.congested).then_some(())
    });
    let Some(Reply::History { events, .. }) = router.ask(&Request::History {}) else { panic!() };
    let told = |is: fn(&What) -> bool| events.iter().filter(|event| is(&event.what)).count();
    assert!(told(|what| matches!(what, What::CongestionBegan { .. })) >= 1, "{events:?}");
    assert!(told(|what| matches!(what, What::CongestionEnded { .. })) >= 1, "{events:?}");
}

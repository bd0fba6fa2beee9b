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
use common::star::{Daemon, Load, Star, refused};
use common::wait_for;
use rcgen::{KeyPair, PKCS_ED25519};
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;
use tidegate_api::protocol::{Reply, Request};
use tidegate_control::fleet::remote::K;
use tidegate_model::record::What;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_model::snapshot::{PeerState, RemoteState, ServiceState};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Connections per second that the server takes, and that come. The link drops a third of them.
const TAKES: u64 = 20;
const OFFERED: u64 = 120;
/// Seconds for which arrivals are counted.
const MEASURED: u64 = 6;
/// Most that a sender that was held up makes good at once.
const AT_ONCE: u64 = 40;
/// Connections that the client keeps open at once.
const KEPT: usize = 200;
/// Datagrams of 1,000 bytes per second: 1.6 times what the link carries.
const DATAGRAMS: u64 = 400;
const SERVER: &str = "10.79.1.2:8000";

/// The namespaces, certificates, keys; all gone when it is dropped.
struct World {
    star: Star,
    _listener: TcpListener,
}

impl World {
    fn new() -> Self {
        let star = Star::new("tgn", 79, "r", &["c", "s"]);
        let shaped = "qdisc add dev v1 root tbf rate 2mbit burst 5kb limit 50kb";
        star.inside("r", &["sh", "-c", &format!("tc {shaped}")]);
        let bind = || TcpListener::bind(SERVER);
        let listener = in_namespace(Some(&star.namespace("s")), bind).unwrap();
        let authority = Authority::new(&star.path("."));
        ["r", "s"].iter().for_each(|host| authority.sign(&star.path("."), host, host));
        for holder in ["operator", "holder"] {
            let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            fs::write(star.path(&format!("{holder}.key")), key.serialize_pem()).unwrap();
            fs::write(star.path(&format!("{holder}.pub")), key.public_key_pem()).unwrap();
        }
        let mut grants = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        grants.args(["grants", "issue", "--kind", "rate", "--waive-staging"]);
        grants.args(["--holder", "spiffe://example.org/s", "--scope", SERVER]);
        grants.arg("--operator-key").arg(star.path("operator.key"));
        let grant = grants.arg("--holder-key").arg(star.path("holder.pub")).output().unwrap();
        assert!(grant.status.success(), "{grant:?}");
        fs::write(star.path("grant"), grant.stdout).unwrap();
        Self { star, _listener: listener }
    }

    fn start(&self, host: &str, interfaces: &str, service: &str, cluster: &str) -> Daemon {
        let above = format!(
            "interfaces: [{{name: v0, attach: tcx}}{interfaces}]\nservices:\n  shop: {service}\n"
        );
        self.star.start(host, &above, cluster, ".")
    }

    fn router(&self) -> Daemon {
        let [operator, grant] = ["operator.pub", "grant"].map(|file| self.star.path(file));
        let cluster = format!(
            "  listen: 0.0.0.0:7416\n  grants: {{operator: {}, files: [{}]}}\n  peers:\n    \
             s: {{identity: spiffe://example.org/s, services: [shop], limits_when_congested: [\"{SERVER}\"]}}\n",
            operator.display(),
            grant.display()
        );
        let service = format!("{{mode: enforce, listen: [\"{SERVER}\"], control: {{floor: 5}}}}");
        self.start("r", ", {name: v1, side: servers}", &service, &cluster)
    }

    fn server(&self) -> Daemon {
        let [key, grant] = ["holder.key", "grant"].map(|file| self.star.path(file));
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

fn service(daemon: &Daemon) -> ServiceState {
    daemon.snapshot().unwrap().services.remove(0)
}

fn remote(daemon: &Daemon) -> Option<RemoteState> {
    service(daemon).remote.first().cloned()
}

fn peer(daemon: &Daemon) -> PeerState {
    daemon.snapshot().unwrap().peers.remove(0)
}

/// What arrives at the server in each of so many seconds, per second.
fn arrivals(server: &Daemon, seconds: u64) -> Vec<f64> {
    let seen = || {
        let counts = service(server).counts;
        (MonotonicClock.now(), counts.iter().map(|count| count.count).sum::<u64>())
    };
    let begin = seen();
    let ends = (1..=seconds).map(|n| begin.0 + Nanos::from_secs(n));
    let at =
        |end: Nanos| wait_for("a second is over", || Some(seen()).filter(|(at, _)| *at >= end));
    let all: Vec<_> = std::iter::once(begin).chain(ends.map(at)).collect();
    let rate = |pair: &[(Nanos, u64)]| {
        let [(from, before), (to, after)] = pair else { return 0.0 };
        (after - before) as f64 / to.since(*from).as_secs_f64()
    };
    all.windows(2).map(rate).collect()
}

/// What the client does so often a second, late or not.
fn load(world: &World, per_second: u64, mut each: impl FnMut() + Send + 'static) -> Load {
    Load::start(&world.star, "c", move |goes_on| {
        let (begin, mut sent) = (MonotonicClock.now(), 0);
        while goes_on() {
            let spent = MonotonicClock.now().since(begin).as_secs_f64();
            let due = (spent * per_second as f64) as u64;
            sent = sent.max(due.saturating_sub(AT_ONCE));
            for _ in sent..due {
                each();
            }
            sent = sent.max(due);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}

/// Connections, of which it waits for none.
fn connections(world: &World) -> Load {
    let (mut open, server) = (VecDeque::new(), SERVER.parse::<SocketAddr>().unwrap().into());
    load(world, OFFERED, move || {
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
fn datagrams(world: &World) -> Load {
    let mut socket = None;
    load(world, DATAGRAMS, move || {
        let socket = socket.get_or_insert_with(|| UdpSocket::bind("10.79.0.2:0").unwrap());
        let _ = socket.send_to(&[0; 1000], "10.79.1.2:9");
    })
}

#[test]
fn an_overloaded_server_limits_a_router_only_while_that_is_congested() {
    let world = World::new();
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || peer(&server).up.then_some(()));
    let _connections = connections(&world);
    wait_for("the server refuses", || (refused(&service(&server)) > 100).then_some(()));
    let links = router.snapshot().unwrap().links;
    assert!(!links[0].congested && links[0].episodes == 0, "{links:?}");
    assert_eq!((peer(&server).limits, peer(&router).limits), (0, 0), "nothing has travelled");
    assert!(remote(&router).is_none() && refused(&service(&router)) == 0);

    let datagrams = datagrams(&world);
    let congested = wait_for("the link is congested", || {
        let link = router.snapshot().unwrap().links.remove(0);
        link.congested.then_some(link)
    });
    assert!(!congested.signs.is_empty() && congested.capacity == Some(250_000.0), "{congested:?}");
    let began = MonotonicClock.now();
    wait_for("a limit counts", || remote(&router)?.rate);
    let course = arrivals(&server, MEASURED);
    eprintln!(
        "arrivals each second from the limit on: {course:.0?}; k times the rate is {:.0}",
        K * TAKES as f64
    );
    let whole = Rate::per_second(TAKES as f64);
    let held = wait_for("the limit counts at the router", || {
        remote(&router).filter(|limit| limit.rate.is_some_and(|rate| rate <= whole))
    });
    eprintln!("the limit is down to {:?} after {}", held.rate, MonotonicClock.now().since(began));
    let arrive = arrivals(&server, MEASURED).iter().sum::<f64>() / MEASURED as f64;
    assert!(arrive <= 1.1 * K * TAKES as f64, "{arrive} a second arrive at the server");
    assert_eq!((held.peer.as_str(), held.scope.as_str()), ("s", SERVER));
    wait_for("the router refuses", || (refused(&service(&router)) > 50).then_some(()));
    let given = wait_for("hit counters come back", || {
        remote(&server).filter(|limit| limit.refused > 30 && limit.rate.is_some())
    });
    assert_eq!((given.peer.as_str(), given.role.as_str()), ("r", "to"));

    drop(server);
    let killed = MonotonicClock.now();
    wait_for("the limit is gone", || service(&router).limits.rate.is_none().then_some(()));
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
    let began = told(|what| matches!(what, What::CongestionBegan { .. }));
    assert!(began >= 1, "{events:?}");
    // Each begin has its end, as it is over.
    assert_eq!(told(|what| matches!(what, What::CongestionEnded { .. })), began, "{events:?}");
}

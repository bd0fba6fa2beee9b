// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NetDraino with a router behind a router: each has a limit only while it is congested itself, and none is counted
//! twice (needs root).
//!
//! ```text
//!   c ─────────── o: outer ────────────────────── r: inner ──── tbf 2 Mbit/s ──── s: server
//!   10.84.3.2     v1 10.84.3.1    10.84.0.2 v0    v0 10.84.0.1      10.84.1.1 v1  10.84.1.2:8000, takes 20/s
//! ```
//!
//! All three have tidegate. At first only the way from the inner router to the server is narrow, then also that from
//! the outer one to the inner one. Then the outer router loses its session with the server, and at last only the outer
//! way is narrow.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::congested::{TAKES, authorize, connections, datagrams, limited_by, limits, looser};
use common::star::{Daemon, Load, Star, refused};
use common::wait_for;
use std::net::TcpListener;
use tidegate_control::fleet::remote::K;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_model::snapshot::{RemoteState, ServiceState};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const NET: u8 = 84;
const SERVER: &str = "10.84.1.2:8000";
/// Seconds for which arrivals are counted.
const MEASURED: u64 = 6;
/// Narrower than what the datagrams need, and wider than the way to the server.
const OUTER: &str = "tc qdisc add dev v0 root tbf rate 2500kbit burst 5kb limit 50kb";

const INNER_WIDE: &str = "tc qdisc replace dev v1 root tbf rate 20mbit burst 20kb limit 100kb";

struct Cascade {
    star: Star,
    outer: Daemon,
    inner: Daemon,
    server: Daemon,
    _listener: TcpListener,
}

/// The client moves behind the outer router.
fn lay(star: &Star) {
    let outer = star.namespace("o");
    let outer = outer.file_name().unwrap().to_str().unwrap();
    let one = |host: &str, command: &str| star.inside(host, &["sh", "-c", command]);
    one("c", "ip link del v0");
    one("c", &format!("ip link add v1 type veth peer name v1 netns {outer}"));
    for (host, own) in [("o", 1), ("c", 2)] {
        one(host, &format!("ip addr add 10.{NET}.3.{own}/24 dev v1 && ip link set v1 up"));
    }
    one("c", &format!("ip route add default via 10.{NET}.3.1"));
    one("o", "echo 1 >/proc/sys/net/ipv4/ip_forward");
    one("r", &format!("ip route add 10.{NET}.3.0/24 via 10.{NET}.0.2"));
    one("r", "tc qdisc add dev v1 root tbf rate 2mbit burst 5kb limit 50kb");
}

/// A router: `clients` and `servers` are its interfaces.
fn router(star: &Star, host: &str, (clients, servers): (&str, &str)) -> Daemon {
    let above = format!(
        "interfaces: [{{name: {clients}, attach: tcx}}, {{name: {servers}, side: servers}}]\n\
         services:\n  shop: {}\n",
        looser(SERVER)
    );
    star.start(host, &above, &limited_by(star, SERVER), ".")
}

fn server(star: &Star) -> Daemon {
    let above = format!(
        "interfaces: [{{name: v0, attach: tcx}}]\nservices:\n  shop: {{mode: enforce, listen: [\"{SERVER}\"], \
         control: {{name: fixed, rate: {TAKES}}}}}\n"
    );
    let to = |host: &str, address: &str, more: &str| {
        format!(
            "    {host}: {{address: \"10.{NET}.{address}:7416\", identity: spiffe://example.org/{host}, \
             services: [shop], {more}limits: [{{service: shop, scope: \"{SERVER}\", when: congested}}]}}\n"
        )
    };
    let (inner, outer) = (to("r", "1.1", ""), to("o", "0.2", "behind: r, "));
    star.start("s", &above, &format!("{}{inner}{outer}", limits(star)), ".")
}

impl Cascade {
    fn new() -> Self {
        let star = Star::new("tgz", NET, "r", &["o", "s", "c"]);
        lay(&star);
        let bind = || TcpListener::bind(SERVER);
        let listener = in_namespace(Some(&star.namespace("s")), bind).unwrap();
        authorize(&star, (&["o", "r", "s"], SERVER), false);
        let outer = router(&star, "o", ("v1", "v0"));
        let inner = router(&star, "r", ("v0", "v1"));
        let server = server(&star);
        Self { star, outer, inner, server, _listener: listener }
    }

    fn sessions(&self) -> usize {
        let peers = self.server.snapshot().unwrap().peers;
        peers.iter().filter(|peer| peer.up).count()
    }

    /// Load of others that fills both ways.
    fn crowd(&self) -> Load {
        let (from, to) = (format!("10.{NET}.3.2:0"), format!("10.{NET}.1.2:9"));
        datagrams(&self.star, from, to)
    }

    /// Connections that arrive at the server, and those that each router refuses, outer first, per second.
    fn course(&self) -> (f64, [f64; 2]) {
        let seen = || {
            let arrived = service(&self.server).counts.iter().map(|count| count.count).sum::<u64>();
            [arrived, refused(&service(&self.outer)), refused(&service(&self.inner))]
        };
        let (began, before) = (MonotonicClock.now(), seen());
        let over = began + Nanos::from_secs(MEASURED);
        let after = wait_for("the time is over", || (MonotonicClock.now() >= over).then(seen));
        let seconds = MonotonicClock.now().since(began).as_secs_f64();
        let [arrived, outer, inner] =
            std::array::from_fn(|at| (after[at] - before[at]) as f64 / seconds);
        (arrived, [outer, inner])
    }
}

fn service(daemon: &Daemon) -> ServiceState {
    daemon.snapshot().unwrap().services.remove(0)
}

fn congested(daemon: &Daemon) -> bool {
    daemon.snapshot().unwrap().links.iter().any(|link| link.congested)
}

/// The limit that the server gives to a router, where that is down to what the server takes.
fn limit(daemon: &Daemon) -> Option<RemoteState> {
    let whole = Rate::per_second(TAKES as f64);
    let mut limits = service(daemon).remote.into_iter();
    limits.find(|limit| limit.rate.is_some_and(|rate| rate <= whole))
}

#[test]
fn each_router_of_a_cascade_is_limited_while_it_is_congested_itself() {
    let cascade = Cascade::new();
    let Cascade { star, outer, inner, .. } = &cascade;
    wait_for("both sessions are up", || (cascade.sessions() == 2).then_some(()));
    let _connections = connections(star, SERVER);
    wait_for("the server refuses", || (refused(&service(&cascade.server)) > 100).then_some(()));
    let remotes = || [outer, inner].map(|router| service(router).remote);
    assert_eq!(remotes(), [vec![], vec![]], "nothing has travelled");

    // Only the inner router is congested.
    let most = 1.1 * K * TAKES as f64;
    let _crowd = cascade.crowd();
    wait_for("the inner router is limited", || limit(inner));
    let (arrived, [by_outer, by_inner]) = cascade.course();
    eprintln!("inner: {arrived:.1}/s arrive, refused {by_outer:.1} and {by_inner:.1}");
    assert!(arrived <= most, "{arrived} a second arrive at the server");
    assert!(!congested(outer) && service(outer).remote.is_empty(), "the outer one is not");
    assert!(by_outer == 0.0 && by_inner > 50.0, "{by_outer} and {by_inner}");

    // Both are: the outer one refuses before the inner one, and none of it is counted twice.
    star.inside("o", &["sh", "-c", OUTER]);
    wait_for("the outer router is limited", || limit(outer).filter(|_| congested(outer)));
    let (arrived, [by_outer, by_inner]) = cascade.course();
    eprintln!("both: {arrived:.1}/s arrive, refused {by_outer:.1} and {by_inner:.1}");
    assert!(arrived <= most, "{arrived} a second arrive at the server");
    assert!(congested(inner) && limit(inner).is_some(), "the inner one is, too");
    assert!(by_outer > 50.0 && by_inner < by_outer / 2.0, "{by_outer} and {by_inner}");
    let least = wait_for("both limits", || Some([limit(outer)?.rate?, limit(inner)?.rate?]));
    // Of a demand that is all there is, each gets the whole rate: the one before the other makes it no smaller.
    assert!(least.iter().all(|rate| rate.get() >= 0.9 * TAKES as f64), "{least:?}");

    // The outer router loses the server: its limit ages, and the inner one refuses again.
    let lost = MonotonicClock.now();
    let cut = |word: &str| format!("ip route {word} blackhole 10.{NET}.0.2/32");
    star.inside("s", &["sh", "-c", &cut("add")]);
    wait_for("its limit is gone", || service(outer).limits.rate.is_none().then_some(()));
    let took = MonotonicClock.now().since(lost);
    eprintln!("the limit of the outer router was gone after {took}");
    assert!(took <= REMOTE_VALIDITY_MAX + Nanos::SECOND, "{took}");
    assert!(congested(outer), "it has ended by its time, and not with the congestion");
    wait_for("the inner router is limited", || limit(inner));
    let (arrived, [by_outer, by_inner]) = cascade.course();
    eprintln!("without the outer: {arrived:.1}/s arrive, refused {by_outer:.1} and {by_inner:.1}");
    assert!(arrived <= most && by_inner > 30.0, "{arrived} arrive, {by_outer} and {by_inner}");
    star.inside("s", &["sh", "-c", &cut("del")]);
    wait_for("the outer router is limited again", || limit(outer));

    // The way from the inner router is wide now: only the outer one is congested.
    star.inside("r", &["sh", "-c", INNER_WIDE]);
    wait_for("the inner router has no limit", || {
        (!congested(inner) && service(inner).limits.rate.is_none()).then_some(())
    });
    wait_for("the outer router is limited", || limit(outer));
    let (arrived, [by_outer, by_inner]) = cascade.course();
    eprintln!("outer: {arrived:.1}/s arrive, refused {by_outer:.1} and {by_inner:.1}");
    assert!(arrived <= most && by_outer > 50.0, "{arrived} arrive, {by_outer} are refused");
    assert!(by_inner == 0.0 && service(inner).limits.rate.is_none(), "{by_inner} by the inner one");
}

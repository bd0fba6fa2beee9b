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
//!
//! And a router that is not ours, which has the server's limit by BGP FlowSpec ([`Bird`]).
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::congested::{TAKES, World, connections, load};
use common::star::{Daemon, Load, Star, refused};
use common::wait_for;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_control::fleet::remote::K;
use tidegate_model::record::What;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_model::snapshot::{ImportedState, PeerState, RemoteState, ServiceState};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Seconds for which arrivals are counted.
const MEASURED: u64 = 6;
const NET: u8 = 79;
const SERVER: &str = "10.79.1.2:8000";

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

#[test]
fn an_overloaded_server_limits_a_router_only_while_that_is_congested() {
    let world = World::new("tgn", NET, None);
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || peer(&server).up.then_some(()));
    let _connections = connections(&world.star, SERVER);
    wait_for("the server refuses", || (refused(&service(&server)) > 100).then_some(()));
    let links = router.snapshot().unwrap().links;
    assert!(!links[0].congested && links[0].episodes == 0, "{links:?}");
    assert_eq!((peer(&server).limits, peer(&router).limits), (0, 0), "nothing has travelled");
    assert!(remote(&router).is_none() && refused(&service(&router)) == 0);

    let datagrams = world.datagrams(9);
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

#[test]
fn a_server_at_an_address_of_ipv6_limits_a_congested_router_as_well() {
    let world = World::ipv6("tg6", NET + 9);
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || peer(&server).up.then_some(()));
    let _connections = connections(&world.star, &world.target);
    wait_for("the server refuses", || (refused(&service(&server)) > 50).then_some(()));
    assert!(remote(&router).is_none(), "not congested");
    let _datagrams = world.datagrams(9);
    let whole = Rate::per_second(TAKES as f64);
    let held = wait_for("the limit counts at the router", || {
        remote(&router).filter(|limit| limit.rate.is_some_and(|rate| rate <= whole))
    });
    assert_eq!((held.peer.as_str(), held.scope.as_str()), ("s", world.target.as_str()));
    wait_for("the router refuses", || (refused(&service(&router)) > 50).then_some(()));
    let arrive = arrivals(&server, MEASURED).iter().sum::<f64>() / MEASURED as f64;
    assert!(arrive <= 1.1 * K * TAKES as f64, "{arrive} a second arrive at the server");
}

/// A router that is not ours: BIRD. The server's daemon, which is no root any more, has GoBGP.
struct Bird {
    child: Child,
    control: PathBuf,
}

/// What the server limits itself to, for a router: packets per second, SYN without ACK.
const ROUTED: &str = "10.80.1.2:8000";
const FLOW: &str =
    "flow4 { dst 10.80.1.2/32; proto 6; dport 8000; tcp flags 0x2/0x2 && 0x0/0x10; }";
/// K times [`TAKES`], 24, as traffic-rate-packets.
const RATE: &str = "(generic, 0x800c0000, 0x41c00000)";
const PASSWORD: &str = "0badc0de";
/// Routes are gone within the hold time and a second.
const GONE: Nanos = Nanos::from_secs(10);

impl Bird {
    /// With a session to the server, of these channels, and with these protocols beside it.
    fn new(star: &Star, net: u8, channels: &str, beside: &str) -> Self {
        let text = format!(
            "log stderr all;\nrouter id 10.{net}.1.1;\nflow4 table f4;\nprotocol device {{ }}\n{beside}\
             protocol bgp server {{ local 10.{net}.1.1 as 65002; neighbor 10.{net}.1.2 as 65001; passive yes; hold time 9; \
             ttl security yes; password \"{PASSWORD}\"; {channels} }}\n"
        );
        fs::write(star.path("bird.conf"), text).unwrap();
        let control = star.path("bird.ctl");
        let child = Command::new("nsenter")
            .arg(format!("--net={}", star.namespace("r").display()))
            .args(["bird", "-f", "-c"])
            .arg(star.path("bird.conf"))
            .arg("-s")
            .arg(&control)
            .stderr(fs::File::create(star.path("bird.log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, control }
    }

    /// Switches a protocol.
    fn switch(&self, word: &str, protocol: &str) {
        let mut birdc = Command::new("birdc");
        let done = birdc.arg("-s").arg(&self.control).args([word, protocol]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    /// Its FlowSpec routes, each with its action.
    fn flows(&self) -> Vec<(String, String)> {
        let mut birdc = Command::new("birdc");
        let shown = birdc.arg("-s").arg(&self.control).args(["show", "route", "all"]).output();
        let shown = shown.unwrap();
        assert!(shown.status.success(), "BIRD does not answer, which is no answer: {shown:?}");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let mut found: Vec<(String, String)> = Vec::new();
        for line in shown.lines() {
            if line.starts_with("flow") {
                let rule = line.split_once(" [").map_or(line, |(rule, _)| rule).trim();
                found.push((rule.to_owned(), String::new()));
            } else if let (Some((_, community)), Some(last)) =
                (line.split_once("ext_community: "), found.last_mut())
            {
                last.1 = community.to_owned();
            }
        }
        found
    }

    /// Waits for the route, or for none; how long it took.
    fn until(&self, what: &str, there: bool) -> Nanos {
        let begin = MonotonicClock.now();
        let wanted = Vec::from_iter(there.then(|| (FLOW.to_owned(), RATE.to_owned())));
        wait_for(what, || (self.flows() == wanted).then_some(()));
        let took = MonotonicClock.now().since(begin);
        eprintln!("{what}: after {took}");
        took
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon with a speaker, as nobody; its files are in a directory that it may write.
fn speaking(star: &Star, net: u8, more: &str) -> Daemon {
    let (run, secret) = (star.path("run"), star.path("password"));
    fs::create_dir(&run).unwrap();
    fs::set_permissions(star.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&secret, PASSWORD).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&secret, Some(65_534), None).unwrap();
    let socket = run.join("s.sock");
    let text = format!(
        "interfaces: [{{name: v0, attach: tcx}}]\nservices:\n  shop: {{mode: enforce, listen: [\"10.{net}.1.2:8000\"], \
         control: {{name: fixed, rate: {TAKES}}}}}\ndaemon: {{user: nobody, {}}}\nflowspec:\n  speaker: gobgp\n  as: 65001\n  \
         router_id: 10.{net}.1.2\n  peers: {{r: {{address: 10.{net}.1.1, local: 10.{net}.1.2, as: 65002, ttl_security: true, \
         password_file: {}}}}}\n  {more}\n  between: 1s\n",
        star.places("s", &socket),
        secret.display()
    );
    star.launch("s", socket, &text)
}

#[test]
fn a_router_that_is_not_ours_has_the_route_of_an_overloaded_server_and_loses_it() {
    let star = Star::new("tgf", 80, "r", &["c", "s"]);
    let bind = || TcpListener::bind(ROUTED);
    let _listener = in_namespace(Some(&star.namespace("s")), bind).unwrap();
    let bird = Bird::new(&star, 80, "flow4 { table f4; import all; export none; };", "");
    let server = speaking(&star, 80, "export: [{service: shop}]");
    let flowspec = || server.snapshot().unwrap().flowspec.unwrap();
    wait_for("the session is up", || (flowspec().peers[0].up == Some(true)).then_some(()));
    assert!(bird.flows().is_empty() && flowspec().up, "{:?}", flowspec());
    an_import_needs_a_start(&star, &server);

    let overload = connections(&star, ROUTED);
    bird.until("the exact route", true);
    let told = wait_for("status says so", || flowspec().routes.pop().filter(|r| r.told.is_some()));
    assert_eq!((told.service.as_str(), told.told), ("shop", Some(1.2 * TAKES as f64)), "{told:?}");
    drop(overload);
    bird.until("the overload is over: no route", false);

    let _overload = connections(&star, ROUTED);
    bird.until("the next overload", true);
    server.ask(&Request::Release { on: true, lasts: None }).unwrap();
    let took = bird.until("released: no route", false);
    assert!(took < Nanos::from_secs(4), "at once: {took}");
    server.ask(&Request::Release { on: false, lasts: None }).unwrap();
    bird.until("not released any more", true);
    let Some(Reply::History { events, .. }) = server.ask(&Request::History {}) else { panic!() };
    let said = events.iter().map(|event| event.what.sentence()).collect::<Vec<_>>().join("\n");
    for wanted in [
        "shop: routers are told 24 packets/s to 10.80.1.2/32 protocol 6 port 8000 syn: the service limits itself \
         to 20.0/s",
        "is withdrawn: it is not needed",
        "is withdrawn: this host refuses nobody",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }

    let processes = server.processes();
    assert!(processes.len() >= 2, "keeper and speaker: {processes:?}");
    let user = |id: &u32| fs::metadata(format!("/proc/{id}")).map(|of| of.uid()).ok();
    assert!(processes.iter().all(|id| user(id) == Some(65_534)), "nobody's: {processes:?}");
    server.kill();
    let took = bird.until("no route after SIGKILL", false);
    assert!(took <= GONE, "{took}");
    let runs = |id: &u32| {
        // A zombie waits only for its parent.
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    wait_for("no process of it", || (!processes.iter().any(runs)).then_some(()));
}

/// Hooks that look for rules are loaded with the privileges of a start; nothing changes.
fn an_import_needs_a_start(star: &Star, server: &Daemon) {
    let config = star.path("s.yaml");
    let (text, flowspec) = (fs::read_to_string(&config).unwrap(), || server.snapshot()?.flowspec);
    let started = flowspec().unwrap().started;
    let import = "  import: {peer: r, mode: shadow, prefixes: [10.80.1.0/24]}\n  between:";
    fs::write(&config, text.replace("  between:", import)).unwrap();
    let mut client = Client::connect(&server.socket, TIMEOUT_DEFAULT).unwrap();
    let refused = client.ask(&Request::Reload { path: None }).unwrap_err().to_string();
    assert!(refused.starts_with("nothing was changed"), "{refused}");
    assert!(refused.contains("to begin with flowspec.import, start it anew"), "{refused}");
    fs::write(&config, text).unwrap();
    let after = flowspec().unwrap();
    assert!(after.import.is_none() && after.started == started, "{after:?}");
}

/// The router's rules for the server: 250 datagrams per second, of 1,028 bytes or of IPv6, and 20 first packets of
/// connections.
const SENT: &str = "ipv4 table r4;
ipv6 table r6;
flow6 table f6;
protocol static nets { ipv4 { table r4; }; route 10.81.1.0/24 blackhole; }
protocol static nets6 { ipv6 { table r6; }; route 2001:db8:81:1::/64 blackhole; }
protocol static rules6 {
  flow6 { table f6; };
  route flow6 { dst 2001:db8:81:1::2/128; next header = 17; dport = 9; } { bgp_ext_community.add((generic, 0x800c0000, 0x437a0000)); };
}
protocol static rules {
  flow4 { table f4; };
  route flow4 { dst 10.81.1.2/32; proto = 17; dport = 9; } { bgp_ext_community.add((generic, 0x80060000, 0x487afa00)); };
  route flow4 { dst 10.81.1.2/32; proto = 6; dport = 8000; tcp flags 0x2/0x12; } {
    bgp_ext_community.add((generic, 0x800c0000, 0x41a00000));
  };
}
";
const SENDS: &str = "ipv4 { table r4; import none; export all; next hop self; }; flow4 { table f4; import none; export all; };
  ipv6 { table r6; import none; export all; next hop address 2001:db8:81:1::1; }; flow6 { table f6; import none; export all; };";

/// The addresses of the star once more, as IPv6.
fn also_ipv6(star: &Star) {
    star.inside("r", &["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"]);
    for (host, at, net, last) in
        [("r", "v0", 0, 1), ("c", "v0", 0, 2), ("r", "v1", 1, 1), ("s", "v0", 1, 2)]
    {
        let address = format!("2001:db8:81:{net}::{last}/64");
        star.inside(host, &["ip", "addr", "add", &address, "dev", at, "nodad"]);
    }
    for (host, router) in [("c", "2001:db8:81::1"), ("s", "2001:db8:81:1::1")] {
        star.inside(host, &["ip", "-6", "route", "add", "default", "via", router]);
    }
}

/// Counts datagrams to port 9, by a socket that takes them all.
fn counted(star: &Star) -> (Load, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let inside = Arc::clone(&count);
    let load = Load::start(star, "s", move |goes_on| {
        let socket = UdpSocket::bind("[::]:9")?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        while goes_on() {
            inside.fetch_add(socket.recv(&mut [0; 2000]).map_or(0, |_| 1), Ordering::Relaxed);
        }
        Ok(())
    });
    (load, count)
}

/// Datagrams of 1,000 bytes to port 9, and how many of them come.
struct Offer<'a> {
    star: &'a Star,
    _sink: Load,
    received: Arc<AtomicU64>,
}

impl<'a> Offer<'a> {
    fn new(star: &'a Star) -> Self {
        let (_sink, received) = counted(star);
        Self { star, _sink, received }
    }

    /// For some seconds, 1,000 per second: sent, received, and the time that it took.
    fn send(&self, seconds: u64, to: &'static str) -> (u64, u64, Nanos) {
        let (before, sent, mut socket) =
            (self.received.load(Ordering::Relaxed), Arc::new(AtomicU64::new(0)), None);
        let (inside, begin) = (Arc::clone(&sent), MonotonicClock.now());
        let sending = load(self.star, 1000, move || {
            let socket = socket.get_or_insert_with(|| UdpSocket::bind("[::]:0").unwrap());
            inside.fetch_add(socket.send_to(&[0; 1000], to).is_ok().into(), Ordering::Relaxed);
        });
        wait_for("enough is sent", || {
            (MonotonicClock.now().since(begin) >= Nanos::from_secs(seconds)).then_some(())
        });
        drop(sending);
        let (sent, time) = (sent.load(Ordering::Relaxed), MonotonicClock.now().since(begin));
        (sent, self.received.load(Ordering::Relaxed) - before, time)
    }

    fn all_pass(&self, what: &str) {
        let (sent, came, _) = self.send(1, TO4);
        assert!(came + 20 >= sent, "{what}: {came} of {sent}");
    }

    fn until_all_pass(&self, what: &str, to: &'static str) {
        wait_for(what, || {
            let (sent, came, _) = self.send(1, to);
            (came + 20 >= sent).then_some(())
        });
    }

    /// Whether the rule for IPv6 holds, 250 per second.
    fn is_limited(&self) -> bool {
        let (sent, came, time) = self.send(1, TO6);
        came + 20 < sent && came as f64 <= 275.0 * time.as_secs_f64() + 20.0
    }

    /// Within 5 % of 250 per second pass, and the counters agree.
    fn holds(
        &self,
        to: &'static str,
        hits: impl Fn(u64) -> Option<ImportedState>,
    ) -> (u64, ImportedState) {
        let (sent, came, time) = self.send(5, to);
        let hits = wait_for("counters agree with the sender", || hits(sent));
        eprintln!("{came} of {sent} datagrams to {to} in {time}: {hits:?}");
        let most = 250.0 * time.as_secs_f64();
        assert!((0.95..=1.05).contains(&(came as f64 / most)), "{came} came, {most} may");
        assert_eq!(hits.packets - hits.refused, came);
        (sent, hits)
    }
}

const TO4: &str = "[::ffff:10.81.1.2]:9";
const TO6: &str = "[2001:db8:81:1::2]:9";

#[test]
fn rules_of_a_router_hold_at_the_interface_and_end_with_their_routes() {
    let star = Star::new("tgi", 81, "r", &["c", "s"]);
    also_ipv6(&star);
    let bird = Bird::new(&star, 81, SENDS, SENT);
    let import = "import: {peer: r, mode: enforce, prefixes: [10.81.1.0/24, \"2001:db8:81::/48\"]}";
    let server = speaking(&star, 81, import);
    let state = || server.snapshot().unwrap().flowspec.unwrap().import.unwrap();
    let rules = |count| wait_for("the rules", || Some(state().rules).filter(|r| r.len() == count));
    let offer = Offer::new(&star);
    offer.all_pass("no rule yet");

    eprintln!("{:?}", rules(3));
    let of = |ipv6: bool, sent| {
        let mut rules = state().rules.into_iter().filter(|rule| rule.packets_rate != Some(20.0));
        rules.find(|rule| rule.packets_rate.is_some() == ipv6 && rule.packets == sent)
    };
    let (sent, hits) = offer.holds(TO4, |sent| of(false, sent));
    assert_eq!(hits.bytes, sent * 1028);
    let (sent, hits) = offer.holds(TO6, |sent| of(true, sent));
    assert_eq!(hits.bytes, sent * 1048);
    let syns = connections(&star, "10.81.1.2:8000");
    wait_for("first packets are refused", || {
        state().rules.into_iter().find(|rule| rule.packets_rate == Some(20.0) && rule.refused > 100)
    });
    drop(syns);

    bird.switch("disable", "rules");
    rules(1);
    offer.all_pass("withdrawn");
    bird.switch("enable", "rules");
    rules(3);
    for wanted in [
        "the router r lets 257000 bytes/s to 10.81.1.2/32 protocol 17 port 9 pass",
        "rule(s) of the router r ended",
    ] {
        wait_for(wanted, || {
            let reply = server.ask(&Request::History {})?;
            let Reply::History { events, .. } = reply else { return None };
            events.iter().any(|event| event.what.sentence().contains(wanted)).then_some(())
        });
    }

    let killed = MonotonicClock.now();
    let speaker = *server.processes().last().unwrap();
    let id = rustix::process::Pid::from_raw(speaker.cast_signed()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
    rules(0);
    let problem = state().problem;
    let took = MonotonicClock.now().since(killed);
    eprintln!("gone {took} after the speaker was killed: {problem}");
    assert!(took <= GONE && problem.contains("the BGP speaker has ended"), "{took}: {problem}");
    rules(3);
    rules_follow_the_daemon(&offer, server);
}

/// A reload ends the rules, and a take-over begins them anew; after SIGKILL the lease ends them.
fn rules_follow_the_daemon(offer: &Offer<'_>, before: Daemon) {
    let config = offer.star.path("s.yaml");
    let text = fs::read_to_string(&config).unwrap();
    let without: Vec<_> = text.lines().filter(|line| !line.contains("import:")).collect();
    let without = without.join("\n").replace("  peers:", "  export: [{service: shop}]\n  peers:");
    let import = |of: &Daemon| of.snapshot()?.flowspec?.import;
    let reload = |of: &Daemon, text: &str| {
        fs::write(&config, text).unwrap();
        let done = of.ask(&Request::Reload { path: None });
        assert!(matches!(done, Some(Reply::Reload { .. })), "it needs no privileges: {done:?}");
    };
    let succeed = |before: Daemon| {
        let server = offer.star.launch("s", before.socket.clone(), &text);
        before.ended();
        let began = MonotonicClock.now();
        wait_for("the rules", || import(&server).filter(|of| of.rules.len() == 3));
        eprintln!("rules {} after a take-over", MonotonicClock.now().since(began));
        server
    };
    let server = succeed(before);
    wait_for("rules of a successor hold", || offer.is_limited().then_some(()));
    reload(&server, &text.replace("peer: r, mode: enforce", "peer: r, mode: shadow"));
    assert!(import(&server).is_some_and(|of| of.shadow));
    offer.until_all_pass("the reload ends the rules", TO6);
    wait_for("rules in shadow count and drop nothing", || {
        let (sent, came, _) = offer.send(1, TO6);
        let counted = import(&server)?.rules.iter().any(|rule| rule.refused > 0);
        (counted && came + 20 >= sent).then_some(())
    });

    let server = succeed(server);
    reload(&server, &without);
    assert!(server.snapshot().unwrap().flowspec.unwrap().import.is_none());
    offer.until_all_pass("a reload ends them with the next round", TO4);

    let server = succeed(server);
    let killed = MonotonicClock.now();
    server.kill();
    let (sent, came, _) = offer.send(1, TO6);
    assert!(came + 20 < sent, "the lease still holds: {came} of {sent}");
    offer.until_all_pass("rules end with the lease", TO6);
    let took = MonotonicClock.now().since(killed);
    eprintln!("all passes {took} after the daemon was killed");
    assert!(took <= Nanos::from_secs(13), "{took}");
}

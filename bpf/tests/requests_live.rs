// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules with real sockets, over veth and over the loopback device: what a client sees, and
//! what is left on either side.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, Net, inside, plan, says, sh, wait_for, within};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_bpf::testing::plans;
use tidegate_bpf::{BucketParams, Dataplane, Interface, Plan, RuleCount};
use tidegate_config::{RequestsConfig, RuleAction, RuleConfig, RuleRefusal};
use tidegate_model::Mode;
use tidegate_model::totals::Totals;
use tidegate_policy::{Action, Level, Params, Policy, RequestLimits, ThresholdSpec};
use tidegate_units::Rate;

const ADDRESSES: [&str; 2] = ["10.77.0.1:80", "[fd77::1]:80"];
/// The client's addresses, and one from which nothing comes.
const CLIENTS: [&str; 2] = ["10.77.0.2", "fd77::2"];
const ABSENT: &str = "10.77.0.3";
const MODES: [AttachMode; 3] = [AttachMode::Xdp, AttachMode::Tcx, AttachMode::Clsact];
const LIMIT: Duration = Duration::from_secs(5);

fn rule(path: &str, answer: RuleRefusal) -> RuleConfig {
    RuleConfig { action: Some(RuleAction::Refuse(answer)), ..plans::rule(path, Some("all")) }
}

/// `/busy` is answered with a 503, `/reset` reset, `/drop` dropped, TLS reset; everything else is free.
fn rules() -> RequestsConfig {
    let rules = vec![
        rule("/busy", RuleRefusal::Busy),
        rule("/reset", RuleRefusal::Reset),
        rule("/drop", RuleRefusal::Drop),
        plans::tls_rule("shop.example", Some("all")),
    ];
    plans::requests(&["all"], rules)
}

fn ruled(interface: Interface) -> Plan {
    let mut plan = plan(vec![interface], Action::Drop);
    plan.config.services[0].requests = Some(rules());
    plan
}

/// The hooks, with a bucket that has one token, and gets no other.
fn start(interface: Interface) -> Dataplane {
    start_plan(&ruled(interface))
}

fn start_plan(plan: &Plan) -> Dataplane {
    let mut dataplane = Dataplane::start(plan).unwrap();
    let slow = Some(Rate::per_second(0.001));
    let one = BucketParams::tokens((0, 0), slow, 1, [0; 3]).unwrap();
    dataplane.set_limits(&[], &[one], 2).unwrap();
    dataplane
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n")
}

fn connect(namespace: &Path, address: SocketAddr) -> TcpStream {
    let stream = within(namespace, || TcpStream::connect_timeout(&address, LIMIT).unwrap());
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// All that comes until the other side closes.
fn rest(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

fn is_whole_503(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    head.starts_with("HTTP/1.1 503 ")
        && field("Content-Length: ") == Some(&body.len().to_string())
        && field("Retry-After: ").is_some_and(|s| (1..=9).contains(&s.parse::<u32>().unwrap()))
        && field("Connection: ") == Some("close")
}

/// Sockets of the service's port in a namespace, listeners and TIME_WAIT excepted.
fn sockets(namespace: &Path) -> Vec<String> {
    let words = ["ss", "-Htan", "state", "connected", "exclude", "time-wait"];
    let text = says(namespace, &words);
    text.lines().filter(|line| line.contains(":80 ")).map(str::to_owned).collect()
}

fn count(dataplane: &Dataplane, rule: usize) -> RuleCount {
    dataplane.rule_counts().unwrap().into_iter().find(|c| c.rule == rule).unwrap()
}

/// A server of one namespace: answers every request with 200 and five bytes, on connections that
/// persist; counts requests.
struct Server<'a> {
    requests: &'a AtomicU32,
}

impl Server<'_> {
    fn serve(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut seen = Vec::new();
        let mut buffer = [0; 65_536];
        loop {
            let read = stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            seen.extend_from_slice(&buffer[..read]);
            while let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                seen.drain(..end + 4);
                self.requests.fetch_add(1, Ordering::Relaxed);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")?;
            }
        }
    }
}

/// Runs `work` beside a server at an address of a namespace; returns how many requests it saw.
fn beside_server(namespace: &Path, address: SocketAddr, work: impl FnOnce() + Send) -> u32 {
    let listener = within(namespace, || TcpListener::bind(address).unwrap());
    listener.set_nonblocking(true).unwrap();
    let requests = AtomicU32::new(0);
    let over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            while over.load(Ordering::Relaxed) == 0 {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        stream.set_nonblocking(false).unwrap();
                        let server = Server { requests: &requests };
                        scope.spawn(move || {
                            let _ = server.serve(&mut stream);
                        });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::park_timeout(Duration::from_millis(1));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(1, Ordering::Relaxed);
        accepting.join().unwrap();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    requests.into_inner()
}

/// The one token of the bucket.
fn use_token(namespace: &Path, address: SocketAddr) {
    let mut stream = connect(namespace, address);
    stream.write_all(get("/busy").as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
}

#[test]
fn a_client_sees_a_whole_503_and_no_socket_is_left() {
    for mode in MODES {
        let net = Net::new();
        let dataplane = start(net.interface(mode));
        for (at, address) in ADDRESSES.iter().enumerate() {
            let address: SocketAddr = address.parse().unwrap();
            let before = count(&dataplane, 0).refused;
            let seen = beside_server(&net.server, address, || {
                if at == 0 {
                    use_token(&net.client, address);
                }
                let mut client = connect(&net.client, address);
                client.write_all(get("/busy").as_bytes()).unwrap();
                let text = rest(&mut client).unwrap();
                assert!(is_whole_503(&text), "{mode:?} {address}: {text:?}");
                wait_for("the server's socket goes", || sockets(&net.server).is_empty());
                drop(client);
                wait_for("the client's socket goes", || sockets(&net.client).is_empty());
            });
            assert_eq!(seen, u32::from(at == 0), "{mode:?} {address}: requests of the server");
            assert_eq!(count(&dataplane, 0).refused, before + 1, "{mode:?} {address}");
            let found = [CLIENTS[at], ABSENT].map(|client| was_refused(&dataplane, client));
            assert_eq!(found, [[true, false], [false; 2]], "{mode:?} {address}");
        }
    }
}

/// What `explain` asks: whether a client was refused of late, and would have been in shadow.
fn was_refused(dataplane: &Dataplane, client: &str) -> [bool; 2] {
    let (lately, client) = (dataplane.lately().unwrap(), client.parse().unwrap());
    [false, true].map(|shadow| lately.find(client, "shop", shadow).is_some())
}

#[test]
fn a_client_is_found_that_rules_in_shadow_would_have_refused() {
    let net = Net::new();
    let mut plan = ruled(net.interface(AttachMode::Tcx));
    let rules = plan.config.services[0].requests.as_mut().unwrap();
    rules.mode = Some(Mode::Shadow);
    let dataplane = start_plan(&plan);
    let seen = beside_server(&net.server, ADDRESSES[0].parse().unwrap(), || {
        use_token(&net.client, ADDRESSES[0].parse().unwrap());
        assert_eq!(was_refused(&dataplane, CLIENTS[0]), [false; 2], "it was admitted");
        use_token(&net.client, ADDRESSES[0].parse().unwrap());
    });
    assert_eq!(seen, 2, "the server has both requests");
    assert_eq!(was_refused(&dataplane, CLIENTS[0]), [false, true]);
    assert_eq!(was_refused(&dataplane, ABSENT), [false; 2]);
}

#[test]
fn a_request_is_refused_on_a_connection_that_served_others() {
    let net = Net::new();
    let dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    let seen = beside_server(&net.server, address, || {
        use_token(&net.client, address);
        let mut client = connect(&net.client, address);
        for _ in 0..3 {
            client.write_all(get("/free").as_bytes()).unwrap();
            let mut answer = [0; 43];
            client.read_exact(&mut answer).unwrap();
            assert!(answer.ends_with(b"hello"));
        }
        client.write_all(get("/busy").as_bytes()).unwrap();
        assert!(is_whole_503(&rest(&mut client).unwrap()));
        wait_for("the server's socket goes", || sockets(&net.server).is_empty());
        drop(client);
        wait_for("the client's socket goes", || sockets(&net.client).is_empty());
    });
    assert_eq!(seen, 4);
    let busy = count(&dataplane, 0);
    assert_eq!((busy.admitted, busy.refused, busy.failed), (1, 1, 0));
    assert_eq!((busy.begun, busy.ended), (1, 1), "a refused request is nobody's work");
    assert_eq!((busy.started, busy.answered), (1, 1));
    assert!(0 < busy.started_ns && busy.started_ns <= busy.answered_ns, "{busy:?}");
}

/// Checksums that the sender has computed, and that the receiver checks or trusts.
#[test]
fn checksums_that_are_complete_are_right_in_the_answer_and_in_the_rst() {
    for offload in ["rx off", "rx on"] {
        let net = Net::new();
        let mut dataplane = start(net.interface(AttachMode::Tcx));
        let client = net.client.display();
        sh(&format!("nsenter --net={client} ethtool -K c0 tx off {offload}"));
        net.server_sh(&format!("ethtool -K s0 tx off {offload}"));
        for (at, address) in ADDRESSES.iter().enumerate() {
            let address: SocketAddr = address.parse().unwrap();
            dataplane.heartbeat().unwrap(); // on a slow machine this takes longer than the lease
            beside_server(&net.server, address, || {
                if at == 0 {
                    use_token(&net.client, address);
                }
                let mut client = connect(&net.client, address);
                client.write_all(get("/busy").as_bytes()).unwrap();
                assert!(is_whole_503(&rest(&mut client).unwrap()), "{offload} {address}");
                wait_for("the server's socket goes", || sockets(&net.server).is_empty());
            });
        }
    }
}

#[test]
fn the_loopback_device_refuses_as_well() {
    let net = Net::new();
    let mut interface = net.interface(AttachMode::Tcx);
    interface.config.name = "lo".into();
    let _dataplane = start(interface);
    let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let seen = beside_server(&net.server, address, || {
        use_token(&net.server, address);
        for _ in 0..10 {
            let mut client = connect(&net.server, address);
            client.write_all(get("/busy").as_bytes()).unwrap();
            assert!(is_whole_503(&rest(&mut client).unwrap()));
        }
        wait_for("all sockets go", || sockets(&net.server).is_empty());
    });
    assert_eq!(seen, 1);
}

#[test]
fn a_reset_and_a_drop_leave_no_socket_with_the_server() {
    let net = Net::new();
    let dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    beside_server(&net.server, address, || {
        use_token(&net.client, address);
        let mut client = connect(&net.client, address);
        client.write_all(get("/reset").as_bytes()).unwrap();
        assert_eq!(rest(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
        let mut client = connect(&net.client, address);
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client.write_all(get("/drop").as_bytes()).unwrap();
        assert_eq!(rest(&mut client).unwrap_err().kind(), ErrorKind::WouldBlock);
        wait_for("the server's sockets go", || sockets(&net.server).is_empty());
    });
    assert_eq!((count(&dataplane, 1).refused, count(&dataplane, 2).refused), (1, 1));
}

/// A client that sends a large body before it reads gets its answer all the same.
#[test]
fn a_large_body_does_not_hide_the_503() {
    let net = Net::new();
    let _dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    let body = vec![b'x'; 1 << 20];
    beside_server(&net.server, address, || {
        use_token(&net.client, address);
        let mut client = connect(&net.client, address);
        client.set_write_timeout(Some(LIMIT)).unwrap();
        let head =
            format!("POST /busy HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&body).unwrap();
        assert!(is_whole_503(&rest(&mut client).unwrap()));
        wait_for("the server's socket goes", || sockets(&net.server).is_empty());
    });
}

/// The first 503 is lost on its way to the client, which asks again.
#[test]
fn a_503_that_was_lost_is_sent_again() {
    let net = Net::new();
    let mut dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    beside_server(&net.server, address, || {
        use_token(&net.client, address);
        sh(&format!(
            "nsenter --net={} nft 'table ip loss {{ chain lossy {{ type filter hook input priority 0; \
             tcp sport 80 meta length > 100 quota until 250 bytes drop; }}; }}'",
            net.client.display()
        ));
        dataplane.heartbeat().unwrap(); // nft may have taken longer than the lease
        let mut client = connect(&net.client, address);
        client.write_all(get("/busy").as_bytes()).unwrap();
        assert!(is_whole_503(&rest(&mut client).unwrap()));
    });
    let counts = count(&dataplane, 0);
    assert_eq!(counts.refused, 1);
    assert!(counts.repeated >= 1, "{counts:?}");
}

#[test]
fn ten_thousand_refusals_leave_nothing_behind() {
    const REFUSALS: u64 = 10_000;
    let net = Net::new();
    let mut dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    beside_server(&net.server, address, || {
        use_token(&net.client, address);
        within(&net.client, || {
            for n in 0..REFUSALS {
                if n % 100 == 0 {
                    dataplane.heartbeat().unwrap(); // the lease
                }
                let mut client = TcpStream::connect_timeout(&address, LIMIT).unwrap();
                client.set_read_timeout(Some(LIMIT)).unwrap();
                client.write_all(get("/busy").as_bytes()).unwrap();
                assert!(is_whole_503(&rest(&mut client).unwrap()));
            }
        });
        wait_for("the server's sockets go", || sockets(&net.server).is_empty());
        wait_for("the client's sockets go", || sockets(&net.client).is_empty());
    });
    let counts = count(&dataplane, 0);
    assert_eq!((counts.refused, counts.failed), (REFUSALS, 0));
    wait_for("the table is empty", || {
        dataplane.heartbeat().unwrap();
        dataplane.followed().connections == 0
    });
    let totals = dataplane.totals(0).unwrap();
    assert_eq!((totals.open, totals.waiting), (0, 0));
    assert_eq!(totals.buckets[0].begun, totals.buckets[0].ended);
}

/// A back-end behind the server's namespace, which becomes a router.
///
/// ```text
///  client ns            router ns (the hooks)                back-end ns
///  c0 10.77.0.2 ─────── s0 10.77.0.1 | r0 10.78.0.1 ──────── b0 10.78.0.2
/// ```
struct BackEnd {
    name: String,
}

impl BackEnd {
    fn behind(net: &Net) -> Self {
        let router = net.server.file_name().unwrap().to_str().unwrap();
        let client = net.client.file_name().unwrap().to_str().unwrap();
        let name = format!("{router}b");
        sh(&format!(
            "ip netns add {name}
             ip -n {router} link add r0 type veth peer name b0 netns {name}
             ip -n {router} addr add 10.78.0.1/24 dev r0; ip -n {router} link set r0 up
             ip -n {name} addr add 10.78.0.2/24 dev b0; ip -n {name} link set b0 up
             ip -n {name} route add default via 10.78.0.1
             ip -n {client} route add 10.78.0.0/24 via 10.77.0.1"
        ));
        net.server_sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
        Self { name }
    }

    fn namespace(&self) -> std::path::PathBuf {
        Path::new("/run/netns").join(&self.name)
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// On a router nobody can be asked, and the RST goes on to the back-end; lost on its way, it is
/// sent again when the client acknowledges the 503.
#[test]
fn a_router_refuses_for_its_back_end() {
    let net = Net::new();
    let back_end = BackEnd::behind(&net);
    let dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = "10.78.0.2:80".parse().unwrap();
    let seen = beside_server(&back_end.namespace(), address, || {
        use_token(&net.client, address);
        let mut persistent = connect(&net.client, address);
        persistent.write_all(get("/free").as_bytes()).unwrap();
        persistent.read_exact(&mut [0; 43]).unwrap();
        persistent.write_all(get("/busy").as_bytes()).unwrap();
        assert!(is_whole_503(&rest(&mut persistent).unwrap()));
        let gone = || sockets(&back_end.namespace()).is_empty();
        wait_for("the back-end's socket goes", gone);
        net.server_sh(
            "nft \"table ip loss { chain lossy { type filter hook forward priority 0; \
             tcp dport 80 tcp flags & rst == rst quota until 60 bytes drop; }; }\"",
        );
        let mut client = connect(&net.client, address);
        client.write_all(get("/busy").as_bytes()).unwrap();
        assert!(is_whole_503(&rest(&mut client).unwrap()));
        wait_for("the back-end's socket goes though a RST was lost", gone);
    });
    assert_eq!((seen, count(&dataplane, 0).refused), (2, 2));
}

/// A nginx in the server's namespace that accepts only when a request is there.
struct Nginx {
    child: Child,
    directory: tempfile::TempDir,
}

impl Nginx {
    fn start(net: &Net) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().display();
        let config = format!(
            "daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;\n\
             events {{ }}\n\
             http {{ access_log {home}/access.log; client_body_temp_path {home}/b;\n\
             proxy_temp_path {home}/p; fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u;\n\
             scgi_temp_path {home}/s;\n\
             server {{ listen 10.77.0.1:80 deferred; return 200 hello; }} }}\n"
        );
        let path = directory.path().join("nginx.conf");
        std::fs::write(&path, config).unwrap();
        let child = inside(&net.server, &["nginx", "-p", &home.to_string(), "-c"])
            .arg(&path)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, directory }
    }

    /// How often the process went to sleep by itself: it did each time that it was woken.
    fn wakes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn served(&self) -> usize {
        let log = std::fs::read_to_string(self.directory.path().join("access.log"));
        log.map_or(0, |text| text.lines().count())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With `TCP_DEFER_ACCEPT` a refused request costs the server nothing but the end of a request
/// socket: its process never wakes.
/// A request is told of those before it that wait for a response, and of itself not.
#[test]
fn thresholds_of_a_bucket_follow_what_is_in_flight() {
    for mode in [AttachMode::Xdp, AttachMode::Clsact] {
        let net = Net::new();
        let mut ruled = ruled(net.interface(mode));
        let buckets = &mut ruled.config.services[0].requests.as_mut().unwrap().buckets;
        buckets[0].policy = Some(plans::policy(Policy::Threshold, Action::Reject));
        let mut dataplane = Dataplane::start(&ruled).unwrap();
        let spec = ThresholdSpec::dropping(2, 3, Action::Reject);
        let limits = RequestLimits::new(Params::threshold(&spec).unwrap()).unwrap();
        let limits = limits.with_level(Level::IN_FLIGHT);
        dataplane.set_limits(&[], &[BucketParams { service: 0, bucket: 0, limits }], 2).unwrap();
        let address: SocketAddr = ADDRESSES[0].parse().unwrap();
        let listener = within(&net.server, || TcpListener::bind(address).unwrap());
        let asks = || {
            let mut client = connect(&net.client, address);
            client.write_all(get("/busy").as_bytes()).unwrap();
            client
        };
        let waits = || dataplane.totals(0).unwrap().waiting;
        let served = |client: &mut TcpStream, server: &mut TcpStream| {
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
            client.read_exact(&mut [0; 43]).unwrap();
        };
        let mut pairs: Vec<(TcpStream, TcpStream)> = (0..3)
            .map(|n| {
                let pair = (asks(), listener.accept().unwrap().0);
                wait_for("it waits", || waits() == n + 1);
                pair
            })
            .collect();
        let refused = || is_whole_503(&rest(&mut asks()).unwrap());
        assert!(refused(), "{mode:?}: three are before it");
        wait_for("a refused one does not wait", || waits() == 3);
        assert_eq!(dataplane.bucket_rungs(0, 0).unwrap(), Some([4; 8]));
        let mut answer = || {
            let (mut client, mut server) = pairs.pop().unwrap();
            let left = pairs.len() as u64;
            served(&mut client, &mut server);
            wait_for("it is served", || waits() == left);
        };
        answer();
        assert!(refused(), "{mode:?}: two, not below the abatement");
        wait_for("a refused one does not wait", || waits() == 2);
        answer();
        let mut client = asks();
        let from = client.local_addr().unwrap();
        // those that were refused wait for accept(), too
        let mut server = std::iter::repeat_with(|| listener.accept().unwrap())
            .find_map(|(stream, peer)| (peer == from).then_some(stream))
            .unwrap();
        served(&mut client, &mut server);
        assert_eq!(dataplane.bucket_rungs(0, 0).unwrap(), Some([0; 8]), "{mode:?}");
    }
}

#[test]
fn a_server_that_defers_accept_never_wakes() {
    let net = Net::new();
    let mut dataplane = start(net.interface(AttachMode::Tcx));
    let address: SocketAddr = ADDRESSES[0].parse().unwrap();
    let nginx = Nginx::start(&net);
    wait_for("nginx listens", || {
        within(&net.client, || TcpStream::connect_timeout(&address, LIMIT).is_ok())
    });
    use_token(&net.client, address);
    wait_for("nginx has served the token", || nginx.served() == 1);
    // The connection of `use_token` ends, and nginx is told of that.
    wait_for("no connection is left", || sockets(&net.server).is_empty());
    let (mut wakes, mut before) = (nginx.wakes(), u64::MAX);
    wait_for("nginx sleeps", || {
        (before, wakes) = (wakes, nginx.wakes());
        before == wakes
    });
    for n in 0..200 {
        if n % 20 == 0 {
            dataplane.heartbeat().unwrap(); // the lease
        }
        let mut client = connect(&net.client, address);
        client.write_all(get("/busy").as_bytes()).unwrap();
        assert!(is_whole_503(&rest(&mut client).unwrap()));
    }
    wait_for("no connection is left", || sockets(&net.server).is_empty());
    assert_eq!(nginx.wakes(), wakes, "the server's process was woken");
    assert_eq!((nginx.served(), count(&dataplane, 0).refused), (1, 200));
}

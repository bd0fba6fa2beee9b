// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts that have only gateways: no interfaces, no privileges, no BPF. What the kernel keeps elsewhere,
//! they keep themselves; and one of them limits another.
//!
//! The tests ask as nginx does. Only loopback and Unix sockets are used.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::authority::Authority;
use common::gate::{self, NOBODY, free_port};
use common::relay::Relay;
use common::{run, wait_for};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Output};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::record::{Event, What};
use tidegate_model::remote::{Form, Unit};
use tidegate_model::shadow::{ShadowReport, Verdict};
use tidegate_model::snapshot::{RemoteState, ServiceState, Snapshot};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Requests per second of the server that limits another.
const LIMIT: f64 = 40.0;

/// One host: its files, and its daemon.
struct Host {
    dir: PathBuf,
    name: &'static str,
    /// Where /healthz is.
    pages: SocketAddr,
    daemon: Option<Child>,
}

impl Host {
    /// With one service, `shop`.
    fn new(dir: &tempfile::TempDir, name: &'static str, control: &str, more: &str) -> Self {
        Self::with(dir, name, &format!("mode: enforce, control: {control}"), more)
    }

    /// With these keys of the service.
    fn with(dir: &tempfile::TempDir, name: &'static str, service: &str, more: &str) -> Self {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut host = Self { dir: dir.path().to_owned(), name, pages: free_port(), daemon: None };
        let pages = host.pages;
        let path = |file: &str| host.path(file).display().to_string();
        let text = format!(
            "services:\n  shop: {{{service}}}\n\
             gateways:\n  edge: {{adapter: nginx, listen: 'unix:{}', completions: 'unix:{}', \
             routes: [{{service: shop}}]}}\n\
             daemon: {{socket: {}, http: '{pages}'}}\n{more}",
            path("edge"),
            path("log"),
            path("control"),
        );
        fs::write(host.path("yaml"), text).unwrap();
        host.start();
        host
    }

    fn path(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{}.{what}", self.name))
    }

    fn start(&mut self) {
        let daemon = gate::run(&self.path("yaml"), &self.path("stderr"));
        self.daemon = Some(daemon);
        wait_for("the gateway is served", || {
            let ended = self.daemon.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(self.path("stderr")).unwrap());
            let gateways = self.snapshot()?.gateways?.gateways;
            gateways.iter().all(|gateway| gateway.problem.is_empty()).then_some(())
        });
    }

    /// An end in order.
    fn stop(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        run("kill", &format!("-TERM {}", daemon.id()));
        daemon.wait().unwrap();
    }

    fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    fn ask(&self, request: &Request) -> Option<Reply> {
        gate::ask(&self.path("control"), request)
    }

    fn snapshot(&self) -> Option<Snapshot> {
        gate::status(&self.path("control"))
    }

    /// What `/healthz` says, and how long that takes.
    fn health(&self) -> (String, Nanos) {
        let begin = MonotonicClock.now();
        let mut stream = TcpStream::connect(self.pages).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        (said, MonotonicClock.now().since(begin))
    }

    fn history(&self) -> Vec<Event> {
        match self.ask(&Request::History {}) {
            Some(Reply::History { events, .. }) => events,
            other => panic!("{other:?}"),
        }
    }

    fn service(&self) -> ServiceState {
        self.snapshot().unwrap().services.swap_remove(0)
    }

    fn remote(&self) -> Option<RemoteState> {
        self.service().remote.first().cloned()
    }

    /// What would have been refused in shadow.
    fn shadow(&self) -> ShadowReport {
        let asked = Request::ShadowReport { service: None, since: None, class: None };
        match self.ask(&asked) {
            Some(Reply::ShadowReport { mut services }) => services.swap_remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for so many requests at once; how many pass.
    fn requests(&self, number: usize) -> usize {
        self.answers(number).matches("HTTP/1.1 204 ").count()
    }

    /// Requests that pass, and that the server answers in 10 ms.
    fn served(&self, number: usize) {
        self.asks(number, "192.0.2.7");
    }

    /// The same, by this client; how many pass.
    fn asks(&self, number: usize, client: &str) -> usize {
        let log = UnixDatagram::unbound().unwrap();
        let answers = self.answers_to(number, client).to_ascii_lowercase();
        let tokens = answers.lines().filter_map(|line| line.strip_prefix("x-tidegate-token: "));
        let mut passed = 0;
        for token in tokens {
            let line = format!("<190>Nov 25 22:00:00 tidegate: {token}|200|0.010|0.010|0.010");
            log.send_to(line.as_bytes(), self.path("log")).unwrap();
            passed += 1;
        }
        passed
    }

    /// The command line, to this host.
    fn tidegate(&self, args: &[&str]) -> Output {
        let mut command = gate::tidegate();
        let socket = self.path("control");
        command.args(&args[..2]).arg("--socket").arg(socket).args(&args[2..]).output().unwrap()
    }

    fn answers(&self, number: usize) -> String {
        self.answers_to(number, "192.0.2.7")
    }

    fn answers_to(&self, number: usize, client: &str) -> String {
        let mut stream = UnixStream::connect(self.path("edge")).unwrap();
        let one = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Tidegate-Method: GET\r\nX-Tidegate-Uri: /\r\n\
             X-Tidegate-Client: {client}\r\n"
        );
        for at in 0..number {
            let last = if at + 1 == number { "Connection: close\r\n\r\n" } else { "\r\n" };
            stream.write_all([&one, last].concat().as_bytes()).unwrap();
        }
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        let of = |status: &str| answers.matches(&format!("HTTP/1.1 {status} ")).count();
        assert_eq!(of("204") + of("403"), number, "{answers}");
        answers
    }
}

/// An address that nobody uses.
impl Drop for Host {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Who threw it sleeps: a crash and a supervisor must not undo it.
#[test]
fn the_kill_switch_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(&dir, "h", "{name: fixed, rate: 1}", "");
    assert!(host.requests(100) < 50, "the limit holds");
    let released = |reply| matches!(reply, Some(Reply::Release { .. }));
    assert!(released(host.ask(&Request::Release { on: true, lasts: None })));
    assert_eq!(host.requests(100), 100);
    wait_for("the autoscaler sees them", || {
        let demand: u64 = host.service().counts.iter().map(|of| of.count).sum();
        (demand == 200).then_some(())
    });
    host.kill();
    host.start();
    assert!(host.snapshot().unwrap().released);
    assert_eq!(host.requests(100), 100, "the next process knows");
    assert!(released(host.ask(&Request::Release { on: false, lasts: None })));
    host.kill();
    host.start();
    assert!(!host.snapshot().unwrap().released);
    assert!(host.requests(100) < 50, "the limit holds again");
}

/// A gateway, and a server behind another one that tells it its limit, with these keys.
fn pair(dir: &tempfile::TempDir, front: &str, limit: &str) -> (Host, Host) {
    pair_by(dir, (front, limit), |peers| peers)
}

/// The same; the server calls at another address than that at which the gateway listens.
fn pair_by(
    dir: &tempfile::TempDir,
    (front, limit): (&str, &str),
    called: impl FnOnce(SocketAddr) -> SocketAddr,
) -> (Host, Host) {
    let authority = Authority::new(dir.path());
    for host in ["front", "back"] {
        authority.sign(dir.path(), host, host);
        chown(dir.path().join(format!("{host}.key")), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let peers = free_port();
    let cluster = |host: &str, more: &str| {
        let file = |end: &str| dir.path().join(end).display().to_string();
        let (certificate, key) = (file(&format!("{host}.pem")), file(&format!("{host}.key")));
        let authority = file("authority.pem");
        format!(
            "cluster:\n  certificate: {certificate}\n  key: {key}\n  ca_file: {authority}\n{more}"
        )
    };
    let grants = format!(
        "  listen: {peers}\n  peers:\n    back: {{identity: spiffe://example.org/back, services: [shop], \
         limits: [shop]}}\n"
    );
    let front = Host::with(dir, "front", front, &cluster("front", &grants));
    let called = called(peers);
    let reports = format!(
        "  report_to:\n    front: {{address: \"{called}\", identity: spiffe://example.org/front, \
         services: [shop], limits: [{{service: shop, scope: shop{limit}}}]}}\n"
    );
    let control = format!("{{name: fixed, rate: {LIMIT}}}");
    let back = Host::new(dir, "back", &control, &cluster("back", &reports));
    (front, back)
}

/// A server behind a gateway tells another gateway what it can take, by the name of the service there.
#[test]
fn a_gateway_enforces_the_limit_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let (front, mut back) = pair(&dir, "mode: enforce, control: {min_rate: 5}", "");

    let wanted = Some(Rate::per_second(LIMIT));
    wait_for("the limit is in force", || {
        // What passes says where a limit begins, so something has to.
        front.requests(5);
        (front.remote()?.rate == wanted && front.service().limits.rate == wanted).then_some(())
    });
    assert!(front.requests(200) < 150, "more than the rate is refused");
    let said = wait_for("the server hears what was refused", || {
        front.requests(50);
        back.remote().filter(|limit| limit.refused > 0)
    });
    assert_eq!((said.peer.as_str(), said.role.as_str()), ("front", "to"));
    back.kill();
    wait_for("without the server it opens", || {
        front.requests(5);
        front.service().limits.rate.is_none().then_some(())
    });
}

/// A gateway with a limit in force that comes by a relay.
fn relayed(dir: &tempfile::TempDir) -> (Host, Host, Relay) {
    let mut relay = None;
    let called = |peers| relay.insert(Relay::new(peers)).at;
    let (front, back) = pair_by(dir, ("mode: enforce, control: {min_rate: 5}", ""), called);
    wait_for("the limit is in force", || {
        front.requests(5);
        (front.remote()?.rate == Some(Rate::per_second(LIMIT))).then_some(())
    });
    (front, back, relay.unwrap())
}

/// How long a limit is valid, where nothing is said.
const VALIDITY: Nanos = Nanos::from_millis(500);
/// Steps in which it opens.
const STEPS: u64 = 8;

/// The bounds of issue 20 for a link that is cut, over a session of two daemons: the first step comes within the validity and a second
/// after the last message, all is open eight validities later, and it never falls meanwhile.
#[test]
fn a_limit_opens_in_steps_and_in_time_when_the_link_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (front, _back, relay) = relayed(&dir);
    relay.cut(true);
    let clock = MonotonicClock;
    let (mut sequence, mut told, mut first, mut rate) = (0, clock.now(), None, LIMIT);
    let open = wait_for("it is open", || {
        front.requests(1);
        let state = front.remote()?;
        let now = clock.now();
        if state.sequence != sequence {
            (sequence, told) = (state.sequence, now);
        }
        if state.steps > 0 {
            first.get_or_insert(now);
        }
        let Some(is) = state.rate else { return Some(now) };
        assert!(is.get() >= rate, "{is} after {rate}");
        rate = is.get();
        None
    });
    let (first, open) = (first.unwrap().since(told), open.since(told));
    eprintln!("first step after {first}, open after {open}, at {rate}/s before");
    assert!(first <= VALIDITY + Nanos::SECOND, "{first}");
    assert!(open <= VALIDITY + Nanos::SECOND + Nanos(STEPS * VALIDITY.0), "{open}");
    relay.cut(false);
    wait_for("it is in force again", || {
        front.requests(5);
        (front.remote()?.rate == Some(Rate::per_second(LIMIT))).then_some(())
    });
}

/// Of a class of the highest priority, and of none.
const GOLD: &str = "198.51.100.7";
const OTHER: &str = "192.0.2.7";

/// Every 50 ms so many requests of each, for so long: what passed of those that came. Those above come first
/// where they are many, so that they find what there is.
fn load(front: &Host, [gold, other]: [usize; 2], seconds: u64) -> [(usize, usize); 2] {
    let ends = MonotonicClock.now() + Nanos::from_secs(seconds);
    let mut seen = [(0, 0); 2];
    while MonotonicClock.now() < ends {
        let mut each = [(0, gold, GOLD), (1, other, OTHER)];
        if gold < other {
            each.reverse();
        }
        for (at, number, client) in each {
            seen[at].0 += front.asks(number, client);
            seen[at].1 += number;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    seen
}

/// A limit on requests with these keys is in force at a gateway that knows two priorities.
fn told(dir: &tempfile::TempDir, keys: &str) -> (Host, Host, RemoteState) {
    let classes = "classes: [{name: gold, sources: [198.51.100.0/24], priority: 0}]";
    let front = format!("mode: enforce, control: {{min_rate: 5}}, {classes}");
    let (front, back) = pair(dir, &front, keys);
    let state = wait_for("the limit is in force", || {
        load(&front, [10, 10], 1);
        let state = front.remote()?;
        // A loss is a rate of what came lately.
        let near = |rate: Rate| (0.4 * LIMIT..2.0 * LIMIT).contains(&rate.get());
        (front.service().limits.requests.is_some() && state.rate.is_some_and(near)).then_some(state)
    });
    assert_eq!(
        (state.unit, state.peer.as_str(), state.role.as_str()),
        (Unit::Requests, "back", "from")
    );
    (front, back, state)
}

/// Whoever is above is refused only once all below are, in every form.
fn lowest_first(keys: &str, form: Form) {
    let dir = tempfile::tempdir().unwrap();
    let (front, back, state) = told(&dir, keys);
    assert_eq!(state.restriction.map(|of| of.form()), Some(form));
    load(&front, [10, 10], 3);
    let [gold, other] = load(&front, [10, 10], 2);
    assert_eq!(other.0, 0, "of {}: {gold:?}", other.1);
    assert!(gold.0 > 20 && gold.0 < gold.1, "{gold:?}: some of them fit, and not all");
    // Those above fit now.
    load(&front, [1, 10], 4);
    let [gold, other] = load(&front, [1, 10], 2);
    assert_eq!(gold.0, gold.1, "none is refused");
    assert!(other.0 > 0 && other.0 < other.1, "{other:?}");
    let said = wait_for("the server hears what was refused", || {
        load(&front, [10, 10], 1);
        back.remote().filter(|limit| limit.refused > 0)
    });
    assert_eq!(
        (said.unit, said.role.as_str(), said.scope.as_str()),
        (Unit::Requests, "to", "shop")
    );
    let explained = front.ask(&Request::Explain { address: [192, 0, 2, 7].into(), port: None });
    let Some(Reply::Explain { explanation }) = explained else { panic!("no explanation") };
    let words = explanation.words.join("\n");
    assert!(words.contains("a peer limits requests to"), "{words}");
    assert!(words.contains("the peer back limits shop ("), "{words}");
}

#[test]
fn a_rate_of_requests_refuses_the_lowest_priority_first() {
    lowest_first(", counts: requests", Form::Rate);
}

#[test]
fn a_loss_of_requests_refuses_the_lowest_priority_first() {
    lowest_first(", counts: requests, kind: loss", Form::Loss);
}

#[test]
fn a_gap_of_requests_refuses_the_lowest_priority_first() {
    lowest_first(", counts: requests, kind: gap", Form::Gap);
}

/// About the lowest priority alone: those above are never refused, and leave nothing.
#[test]
fn a_limit_from_a_priority_on_refuses_none_above() {
    let dir = tempfile::tempdir().unwrap();
    let (front, _back, state) = told(&dir, ", counts: requests, priority: 7");
    assert_eq!(state.priority, 7);
    load(&front, [10, 10], 1);
    let [gold, other] = load(&front, [10, 10], 2);
    assert_eq!((gold.0, other.0), (gold.1, 0), "{other:?}");
}

/// A file that cannot be written, half requests that never end, a crowd at the control socket: limits hold,
/// and whoever asks for its health hears of it within a second.
#[test]
fn what_fails_around_it_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(&dir, "f", "{name: fixed, rate: 1}", "");
    // In the way of the file that takes its place: as on a full disk.
    fs::create_dir(host.path("control.history.new")).unwrap();
    let half: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(host.pages).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").unwrap();
            stream
        })
        .collect();
    // Who finds no room at the socket is turned away; as many as get in stay.
    let crowd: Vec<UnixStream> =
        (0..1000).filter_map(|_| UnixStream::connect(host.path("control")).ok()).collect();
    assert!(crowd.len() > 100, "{} came in", crowd.len());
    for _ in 0..20 {
        let (said, took) = host.health();
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        assert!(took < Nanos::SECOND, "{took}");
        assert!(host.requests(50) < 25, "the limit holds");
    }
    drop((half, crowd));
    let warned =
        |what: &str| host.snapshot()?.warnings.iter().any(|w| w.starts_with(what)).then_some(());
    wait_for("the file of the history is missed", || warned("history: cannot be written"));
    let sheds = |event: &Event| matches!(event.what, What::SheddingBegan(_));
    assert!(host.history().iter().any(sheds), "in memory it is there");
    host.kill();
}

/// A process that is killed leaves what happened to the next one.
#[test]
fn what_happened_outlives_the_process_and_its_clients_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(&dir, "r", "{name: fixed, rate: 1}", "");
    host.requests(100);
    let Some(Reply::Explain { explanation }) =
        host.ask(&Request::Explain { address: [192, 0, 2, 7].into(), port: None })
    else {
        panic!("no explanation")
    };
    let said = explanation.words.join("\n");
    assert!(said.contains("probably has refused"), "{said}");
    assert!(explanation.refused.iter().all(|found| found.service == "shop"), "{said}");
    assert!(!explanation.refused.is_empty(), "{said}");
    let ended = wait_for("the refusals are over", || {
        host.history().into_iter().find(|event| matches!(event.what, What::SheddingEnded(_)))
    });
    let What::SheddingEnded(told) = &ended.what else { unreachable!() };
    let by: u64 = told.outcome.refused_by.iter().map(|by| by.count).sum();
    assert!(told.outcome.refused > 50 && by == told.outcome.refused, "{told:?}");
    wait_for("it is written", || {
        let file = fs::read_to_string(host.path("control.history")).ok()?;
        file.contains("shedding-ended").then_some(())
    });
    host.kill();
    host.start();
    let events = host.history();
    assert!(events.iter().any(|event| event.what == ended.what), "{events:?}");
    let starts = events.iter().filter(|event| matches!(event.what, What::Started { .. }));
    assert_eq!(starts.count(), 2);
}

/// What a policy would refuse of a service that is healthy is wrong, and a report says so. It outlives the
/// process; a damaged file is told, and costs what was in it.
#[test]
fn what_would_be_refused_in_shadow_is_reported_with_a_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let service = "mode: shadow, objective: 1s, control: {name: fixed, rate: 1}";
    let mut host = Host::with(&dir, "s", service, "");
    let idle = host.shadow();
    assert_eq!((idle.all.offered, idle.all.refused), (0, 0), "{}", idle.sentence);
    assert_ne!(idle.verdict, Some(Verdict::Safe));
    host.served(200);
    let wrong = wait_for("it was seen to be healthy", || {
        let report = host.shadow();
        (report.healthy.offered == 200).then_some(report)
    });
    assert!(wrong.healthy.refused > 100 && wrong.overloaded.refused == 0, "{wrong:?}");
    assert_eq!(wrong.verdict, Some(Verdict::Unsafe), "{}", wrong.sentence);
    assert_eq!(wrong.refused_by[0].reason.as_deref(), Some("rate"));
    let said = host.tidegate(&["shadow", "report"]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success() && text.contains("enforce is not safe"), "{text}");
    replay_of_the_same_hours(&host, &wrong);

    host.stop();
    host.start();
    assert_eq!(host.shadow().healthy.refused, wrong.healthy.refused, "the next process knows");
    host.stop();
    fs::write(host.path("control.shadow"), "tidegate-shadow 1\n{\"service\":\n").unwrap();
    host.start();
    let warned = |w: &String| w.contains("shadow ledger: 1 lines of it are damaged");
    assert!(host.snapshot().unwrap().warnings.iter().any(warned));
    assert_eq!(host.shadow().all.offered, 0);
    host.stop();
    let newer = "tidegate-shadow 2\n{}\n";
    fs::write(host.path("control.shadow"), newer).unwrap();
    host.start();
    let warned =
        |w: &String| w.contains("shadow ledger: is of another version") && w.contains(".other");
    assert_eq!(host.snapshot().unwrap().warnings.iter().filter(|w| warned(w)).count(), 1);
    assert_eq!(fs::read_to_string(host.path("control.shadow.other")).unwrap(), newer);
    let said = host.tidegate(&["shadow", "report", "shpo"]);
    assert_eq!(said.status.code(), Some(7), "{said:?}");
    host.stop();
}

/// A log with a request in every 10 ms of what the report is about, and before and after it.
fn replay_of_the_same_hours(host: &Host, report: &ShadowReport) {
    let (since, until) = (report.since_unix_s.unwrap(), report.until_unix_s.unwrap());
    let times = (0..).map(|n| since - 100.0 + f64::from(n) / 100.0);
    let lines = times.take_while(|at| *at < until + 100.0).map(|at| format!("{at:.2}\n"));
    let log = host.path("times");
    fs::write(&log, lines.collect::<String>()).unwrap();
    let (config, log) = (host.path("yaml"), log.display().to_string());
    let config = config.display().to_string();
    let report = |log: &str, options: &[&str]| {
        let args = ["shadow", "report", "shop", "-o", "json", "-c", &config, "--log", log, "--"];
        host.tidegate(&[&args[..], options].concat())
    };
    let said = report(&log, &["--format", "times", "--capacity", "50"]);
    let json: serde_json::Value = serde_json::from_slice(&said.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&said.stderr)));
    let replay = &json["replay"];
    let expected = (until - since) * 100.0;
    // The daemon went on meanwhile.
    let offered = replay["offered"].as_f64().unwrap();
    assert!((expected - 2.0..expected + 3000.0).contains(&offered), "{replay}, {expected}");
    assert!(replay["refused"].as_u64().unwrap() > 0, "one a second is admitted: {replay}");
    // What has no dates, and what is wrong for replay, is told.
    let counts = host.path("counts");
    fs::write(&counts, "3\n4\n").unwrap();
    let counts = counts.display().to_string();
    let said = report(&counts, &["--format", "counts", "--capacity", "50"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stderr).contains("no dates"), "{said:?}");
    for wrong in ["--capacitance=50", "--from=1h", "--until=2h", "--out=/tmp", "--output=json"] {
        let said = report(&log, &["--capacity", "50", wrong]);
        assert_eq!(said.status.code(), Some(2), "{wrong}: {said:?}");
    }
}

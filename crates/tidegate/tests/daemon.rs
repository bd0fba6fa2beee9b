// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon as a process, in namespaces of its own (needs root): start, take-over, kill, stop,
//! commands.
//!
//! ```text
//!   client namespace ── veth ── server namespace: v0 with the hooks, a server, the daemon
//!     10.77.0.2                   10.77.0.1:8000
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{PATIENCE, ip, remove_pins, wait_for};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{HandoverPhase, Reply, Request};
use tidegate_model::snapshot::Snapshot;
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const SERVER: &str = "10.77.0.1:8000";

/// Two namespaces, a server, a directory, pins; all gone when it is dropped.
struct World {
    name: String,
    dir: tempfile::TempDir,
    pins: PathBuf,
    ending: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tgt{}-{number}", std::process::id());
        let mut world = Self {
            pins: format!("/sys/fs/bpf/tidegate-test-{name}").into(),
            dir: tempfile::tempdir().unwrap(),
            ending: Arc::default(),
            server: None,
            name,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        let name = self.name.clone();
        ip(&format!("netns add {name}s"));
        ip(&format!("netns add {name}c"));
        ip(&format!("link add v0 netns {name}s type veth peer name v1 netns {name}c"));
        for (side, device, address) in [("s", "v0", "10.77.0.1/24"), ("c", "v1", "10.77.0.2/24")] {
            ip(&format!("-n {name}{side} addr add {address} dev {device}"));
            ip(&format!("-n {name}{side} link set {device} up"));
            ip(&format!("-n {name}{side} link set lo up"));
        }
        let listener = in_namespace(Some(&self.namespace("s")), || TcpListener::bind(SERVER));
        self.server = Some(serve(listener.unwrap(), Arc::clone(&self.ending)));
    }

    fn namespace(&self, side: &str) -> PathBuf {
        format!("/run/netns/{}{side}", self.name).into()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    /// Writes the configuration; `control` is the value of that key.
    fn configure(&self, control: &str) -> PathBuf {
        let path = self.path("tidegate.yaml");
        let text = format!(
            "interfaces: [{{name: v0, attach: tcx}}]\n\
             services:\n  shop: {{mode: enforce, listen: [\"{SERVER}\"], control: {control}}}\n\
             daemon: {{socket: {}, http: off, pins: {}}}\n",
            self.socket().display(),
            self.pins.display()
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// `tidegate run` in the server's namespace, by way of a command that becomes it.
    fn command(&self, way: &[String], config: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace("s").display()))
            .args(way)
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["run", "--config"])
            .arg(config);
        command
    }

    /// Starts a daemon and waits until it is in charge.
    fn run(&self, config: &Path, more: &[&str]) -> Daemon {
        self.run_by(&[], config, more)
    }

    fn run_by(&self, way: &[String], config: &Path, more: &[&str]) -> Daemon {
        let daemon = self.spawn_by(way, config, more);
        wait_for("the daemon answers", || self.answers(&daemon).then_some(()));
        daemon
    }

    /// Starts a daemon and does not wait.
    fn spawn_by(&self, way: &[String], config: &Path, more: &[&str]) -> Daemon {
        let log = fs::File::create(self.path(&format!("log-{:04}", unique()))).unwrap();
        let child = self
            .command(way, config)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Daemon(child)
    }

    /// Whether it is this daemon that answers on the socket.
    fn answers(&self, daemon: &Daemon) -> bool {
        // nsenter becomes the daemon: the process id stays.
        let pid = daemon.0.id();
        let client = Client::connect(&self.socket(), TIMEOUT_DEFAULT);
        let reply = client.and_then(|mut client| client.ask(&Request::Ping {}));
        matches!(reply, Ok(Reply::Pong { pid: of, .. }) if of == pid)
    }

    /// What the daemon said that was started last.
    fn log(&self) -> String {
        let files = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_log =
            |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("log-");
        fs::read_to_string(files.filter(is_log).max().unwrap()).unwrap()
    }

    fn status(&self) -> Snapshot {
        let mut client = Client::connect(&self.socket(), TIMEOUT_DEFAULT).unwrap();
        match client.ask(&Request::Status {}).unwrap() {
            Reply::Status { snapshot } => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// The program as an operator calls it.
    fn tidegate(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .arg("--socket")
            .arg(self.socket())
            .output()
            .unwrap()
    }

    /// One request from the client's namespace.
    fn request(&self) -> io::Result<()> {
        in_namespace(Some(&self.namespace("c")), request)
    }

    fn rate(&self) -> Option<f64> {
        self.status().services[0].limits.rate.map(tidegate_units::Rate::get)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // Whoever waits for a connection gets one.
        let _ = in_namespace(Some(&self.namespace("s")), request);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        for side in ["s", "c"] {
            let _ =
                Command::new("ip").args(["netns", "del", &format!("{}{side}", self.name)]).status();
        }
        remove_pins(&self.pins);
    }
}

fn unique() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A server that answers each byte with a byte, each connection in a thread.
fn serve(listener: TcpListener, ending: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            if ending.load(Ordering::Relaxed) {
                return;
            }
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    })
}

/// Connects, asks, is answered.
fn request() -> io::Result<()> {
    let address: SocketAddr = SERVER.parse().map_err(io::Error::other)?;
    ask(&mut TcpStream::connect_timeout(&address, Duration::from_secs(5))?)
}

fn ask(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

/// A daemon; killed when it is dropped.
struct Daemon(Child);

impl Daemon {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end; whether it ended well.
    fn ended(&mut self) -> bool {
        wait_for("the daemon ends", || self.0.try_wait().unwrap()).success()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client that asks again and again, on new connections and on one that stays open.
struct Load {
    ending: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<Vec<String>>>>,
}

impl Load {
    fn start(world: &World) -> Self {
        let (ending, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let namespace = world.namespace("c");
        let (end, count) = (Arc::clone(&ending), Arc::clone(&asked));
        let thread = std::thread::spawn(move || {
            in_namespace(Some(&namespace), || {
                let mut failures = Vec::new();
                let mut kept = TcpStream::connect(SERVER)?;
                while !end.load(Ordering::Relaxed) {
                    for (kind, outcome) in [("new", request()), ("kept", ask(&mut kept))] {
                        if let Err(error) = outcome {
                            failures.push(format!("{kind}: {error}"));
                        }
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(failures)
            })
        });
        Self { ending, asked, thread: Some(thread) }
    }

    /// Waits until so many more rounds were asked.
    fn rounds(&self, more: u64) {
        let goal = self.asked.load(Ordering::Relaxed) + more;
        wait_for("the load goes on", || (self.asked.load(Ordering::Relaxed) >= goal).then_some(()));
    }

    fn end(mut self) -> (u64, Vec<String>) {
        self.ending.store(true, Ordering::Relaxed);
        let failures = self.thread.take().unwrap().join().unwrap().unwrap();
        (self.asked.load(Ordering::Relaxed), failures)
    }
}

#[test]
fn take_overs_kills_and_restarts_lose_no_connection() {
    let world = World::new();
    let config = world.configure("{name: default}");
    let load = Load::start(&world);
    load.rounds(50);
    let mut daemon = world.run(&config, &[]);
    for _ in 0..5 {
        let next = world.run(&config, &[]);
        let mut before = std::mem::replace(&mut daemon, next);
        assert!(before.ended(), "the old daemon ends well");
        load.rounds(50);
    }
    for _ in 0..5 {
        daemon.kill();
        load.rounds(20);
        daemon = world.run(&config, &[]);
        load.rounds(20);
    }
    for more in [&["--keep"][..], &[]] {
        daemon.signal("-TERM");
        assert!(daemon.ended());
        load.rounds(20);
        daemon = world.run(&config, more);
        load.rounds(20);
    }
    let snapshot = world.status();
    assert_eq!(snapshot.interfaces[0].attached, "tcx");
    let (asked, failures) = load.end();
    assert!(failures.is_empty(), "{} of {asked}: {:?}", failures.len(), &failures[..1]);
}

#[test]
fn after_kill_9_limits_hold_for_a_while_and_then_everything_passes() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    let killed = MonotonicClock.now();
    daemon.kill();
    let refused = (0..10).filter(|_| world.request().is_err()).count();
    let elapsed = MonotonicClock.now().since(killed);
    assert!(elapsed > Nanos::from_secs(3) || refused >= 5, "{refused} of 10 after {elapsed}");
    assert!(world.pins.read_dir().unwrap().next().is_some(), "everything stays pinned");
    let opened = wait_for("everything passes", || {
        let now = MonotonicClock.now();
        (0..30).all(|_| world.request().is_ok()).then_some(now)
    });
    let after = opened.since(killed);
    assert!(after > Nanos::from_secs(3), "the lease opened after {after} already");
    assert!(after < Nanos::from_secs(11), "the lease opened only after {after}");
    let _daemon = world.run(&config, &[]);
    wait_for("limits are in force again", || world.request().is_err().then_some(()));
}

/// The file says `fixed` first only to have a limit at once: of what is in force a daemon that finds
/// it knows nothing but that, as of one that was learned.
#[test]
fn after_a_crash_limits_stay_until_the_new_daemon_knows_better() {
    let world = World::new();
    let mut fresh = world.run(&world.configure("{name: default}"), &[]);
    let why = world.status().services[0].limits.why.text.clone();
    assert!(!why.contains("before the start"), "nothing was: {why}");
    fresh.signal("-TERM");
    assert!(fresh.ended());
    let daemon = world.run(&world.configure("{name: fixed, rate: 1, burst: 1}"), &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    daemon.kill();
    let _daemon = world.run(&world.configure("{name: default}"), &[]);
    let refused = (0..10).filter(|_| world.request().is_err()).count();
    assert!(refused >= 5, "{refused} of 10 right after the restart");
    let why = world.status().services[0].limits.why.text.clone();
    assert!(why.contains("before the start"), "{why}");
    wait_for("nothing sheds, and so everything passes", || {
        (0..30).all(|_| world.request().is_ok()).then_some(())
    });
    let why = world.status().services[0].limits.why.text.clone();
    assert!(!why.contains("before the start"), "{why}");
}

#[test]
fn a_successor_that_cannot_start_leaves_the_old_daemon_in_charge() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 7, burst: 3}");
    let daemon = world.run(&config, &[]);
    // The interface exists, so the check before passes, and native XDP on the loopback does not.
    let text = fs::read_to_string(&config).unwrap();
    let wrong = world.path("wrong.yaml");
    fs::write(&wrong, text.replace("name: v0, attach: tcx", "name: lo, attach: xdp")).unwrap();
    let output = Command::new("nsenter")
        .arg(format!("--net={}", world.namespace("s").display()))
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .args(["run", "--config"])
        .arg(&wrong)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let before = world.status().limits_generation;
    wait_for("the old daemon decides again", || {
        let snapshot = world.status();
        (snapshot.limits_generation >= before && world.rate() == Some(7.0)).then_some(())
    });
    assert_eq!(world.status().interfaces[0].name, "v0");
    wait_for("its limits hold", || world.request().is_err().then_some(()));
    daemon.kill();
}

/// What was attached on the first interface is not given up for a second that fails.
#[test]
fn a_successor_that_fails_on_its_second_interface_leaves_the_first_to_the_old_daemon() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    let text = fs::read_to_string(&config).unwrap();
    let wrong = world.path("wrong.yaml");
    let (old, new) =
        ("{name: v0, attach: tcx}", "{name: v0, attach: xdp}, {name: lo, attach: xdp}");
    assert!(text.contains(old));
    fs::write(&wrong, text.replace(old, new)).unwrap();
    let output = world.command(&[], &wrong).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("interface lo"), "{said}");
    wait_for("the old daemon decides again", || {
        let snapshot = world.status();
        let refused = (0..5).any(|_| world.request().is_err());
        (snapshot.interfaces[0].attached == "tcx" && refused).then_some(())
    });
    let link = Command::new("ip")
        .args(["-d", "-n", &format!("{}s", world.name), "link", "show", "v0"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&link.stdout).contains("prog/xdp"), "its own hook is off");
    let warnings = world.status().warnings;
    assert!(!warnings.iter().any(|w| w.starts_with("take-over")), "{warnings:?}");
    daemon.kill();
}

#[test]
fn the_kill_switch_is_served_while_another_daemon_takes_over() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 7, burst: 3}");
    let daemon = world.run(&config, &[]);
    wait_for("limits hold", || world.request().is_err().then_some(()));
    let mut successor = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
    successor.ask(&Request::Handover { phase: HandoverPhase::Begin }).unwrap();
    let mut operator = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
    operator.ask(&Request::Reload { path: None }).unwrap_err();
    let reply = operator.ask(&Request::Release { on: true, lasts: None }).unwrap();
    assert_eq!(reply, Reply::Release { on: true, before: false, lasts: None });
    assert!((0..30).all(|_| world.request().is_ok()), "everything passes");
    daemon.kill();
}

#[test]
fn a_daemon_hands_over_to_one_other_only_and_not_to_one_that_comes_too_late() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 7, burst: 3}");
    let daemon = world.run(&config, &[]);
    let phase = |phase| {
        let mut client = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
        client.ask(&Request::Handover { phase })
    };
    phase(HandoverPhase::Finish).unwrap_err();
    // Who begins stays connected: one that leaves does not come.
    let mut first = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
    first.ask(&Request::Handover { phase: HandoverPhase::Begin }).unwrap();
    let output = Command::new("nsenter")
        .arg(format!("--net={}", world.namespace("s").display()))
        .args(["timeout", "10", env!("CARGO_BIN_EXE_tidegate"), "run", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("taking over already"), "{said}");
    phase(HandoverPhase::Abort).unwrap();
    wait_for("the old daemon goes on", || (world.rate() == Some(7.0)).then_some(()));
    wait_for("its limits hold", || world.request().is_err().then_some(()));
    daemon.kill();
}

#[test]
fn a_second_daemon_with_another_socket_is_refused() {
    let world = World::new();
    let config = world.configure("{name: default}");
    let _daemon = world.run(&config, &[]);
    let text = fs::read_to_string(&config).unwrap();
    let other = world.path("other.yaml");
    fs::write(&other, text.replace("control.sock", "other.sock")).unwrap();
    let error = wait_for("the lock is held", || {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", world.namespace("s").display()))
            .args(["timeout", "2", env!("CARGO_BIN_EXE_tidegate"), "run", "--config"])
            .arg(&other)
            .output()
            .unwrap();
        (output.status.code() == Some(1)).then(|| String::from_utf8(output.stderr).unwrap())
    });
    assert!(error.contains("another control socket"), "{error}");
}

/// The filter of the hooks is pinned, and its seed; what a command set is kept in a file.
#[test]
fn who_was_refused_and_what_was_commanded_outlives_the_daemon() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let old = world.run(&config, &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    let said = |client| String::from_utf8(world.tidegate(&["explain", client]).stdout).unwrap();
    let found = |when: &str| {
        let (client, other) = (said("10.77.0.2"), said("10.77.0.3"));
        assert!(client.contains("shop: it probably has refused this address"), "{when}: {client}");
        assert!(!other.contains("probably"), "{when}: {other}");
    };
    found("by the daemon that ran then");
    let mut next = world.run(&config, &[]);
    found("after a take-over");
    drop(old);
    assert!(world.tidegate(&["mode", "shop", "shadow", "--for", "1h"]).status.success());
    next.signal("-TERM");
    assert!(next.ended());
    let _last = world.run(&config, &[]);
    assert_eq!(world.status().services[0].mode, "shadow");
    assert!((0..5).all(|_| world.request().is_ok()), "also after a clean stop");
}

#[test]
fn commands_change_what_they_say_and_a_wrong_file_changes_nothing() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 5, burst: 2}");
    let daemon = world.run(&config, &[]);
    wait_for("limits are in force", || (world.rate() == Some(5.0)).then_some(()));

    fs::write(world.path("wrong.yaml"), "interfaces: 3\n").unwrap();
    let wrong = world.path("wrong.yaml");
    let output = world.tidegate(&["reload", "-c", wrong.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!((world.rate(), world.status().config_generation), (Some(5.0), 1));
    assert!(world.status().warnings.iter().any(|w| w.starts_with("reload")));

    world.configure("{name: fixed, rate: 9, burst: 2}");
    daemon.signal("-HUP");
    wait_for("the new rate", || (world.rate() == Some(9.0)).then_some(()));
    // On a busy machine a tick may be late.
    let warnings = world.status().warnings;
    assert!(warnings.iter().all(|warning| warning.starts_with("tick: ")), "{warnings:?}");

    assert!(world.tidegate(&["mode", "shop", "shadow"]).status.success());
    assert_eq!(world.status().services[0].mode, "shadow");
    assert!((0..20).all(|_| world.request().is_ok()), "in shadow nothing is refused");
    assert_eq!(world.tidegate(&["mode", "shp", "shadow"]).status.code(), Some(7));
    assert!(world.tidegate(&["mode", "shop", "enforce"]).status.success());
    wait_for("limits are in force", || world.request().is_err().then_some(()));

    let demand = || world.status().services[0].totals.as_ref().map_or(0, |of| of.offered);
    assert!(world.tidegate(&["release", "on"]).status.success());
    let before = demand();
    assert!((0..20).all(|_| world.request().is_ok()), "released: everything passes");
    wait_for("the autoscaler sees them", || (demand() >= before + 20).then_some(()));
    assert!(world.tidegate(&["release", "off"]).status.success());
    wait_for("limits are in force", || world.request().is_err().then_some(()));
}

#[test]
fn the_kill_switch_works_without_a_daemon_and_a_new_one_respects_it() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    daemon.kill();
    let begin = MonotonicClock.now();
    let pins = world.pins.to_str().unwrap();
    let output = world.tidegate(&["release", "on", "--pins", pins]);
    let took = MonotonicClock.now().since(begin);
    assert!(output.status.success() && took < Nanos::SECOND, "{took}: {output:?}");
    assert!((0..20).all(|_| world.request().is_ok()), "everything passes at once");
    let _daemon = world.run(&config, &[]);
    assert!(world.status().released);
    assert!((0..20).all(|_| world.request().is_ok()));
}

#[test]
fn a_clean_stop_takes_everything_off() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let mut daemon = world.run(&config, &[]);
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    daemon.signal("-TERM");
    assert!(daemon.ended());
    assert!((0..20).all(|_| world.request().is_ok()), "everything passes at once");
    assert!(!world.pins.exists() && !world.socket().exists(), "nothing is left");
}

/// What a killed daemon left goes, and what a daemon has in use does not.
#[test]
fn detach_takes_off_what_a_killed_daemon_left_and_nothing_of_one_that_runs() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    let detach = |more: &[&str]| {
        let pins = world.pins.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["detach", "--pins", pins]).args(more).output().unwrap()
    };
    let refused = detach(&[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("is in charge"), "{said}");
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    daemon.kill();
    let told = detach(&["--dry-run"]);
    assert!(told.status.success() && world.pins.exists(), "{told:?}");
    let done = detach(&[]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{done:?}");
    for word in ["interface v0", "tcx ingress", "tcx egress", "maps", "programs"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!world.pins.exists(), "{said}");
    assert!((0..20).all(|_| world.request().is_ok()), "everything passes at once");
}

/// What gives a program the capabilities that packaging/tidegate.service leaves it, as systemd does.
fn as_the_unit() -> Vec<String> {
    let unit = include_str!("../../../packaging/tidegate.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = set.split_whitespace().map(|name| name.strip_prefix("CAP_").unwrap());
    let bounds = names.fold("-all".to_owned(), |all, name| all + ",+" + &name.to_lowercase());
    ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set", &bounds]
        .map(str::to_owned)
        .to_vec()
}

/// Every thread of a process has empty sets of capabilities.
fn has_none(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let status: String =
        tasks.map(|task| fs::read_to_string(task.join("status")).unwrap_or_default()).collect();
    ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].iter().all(|field| {
        let mut values = status.lines().filter_map(|line| line.strip_prefix(field)).peekable();
        values.peek().is_some()
            && values.all(|value| value.trim().bytes().all(|digit| digit == b'0'))
    })
}

#[test]
fn under_the_units_capabilities_a_restart_after_a_crash_adopts_what_is_in_force() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let unit = as_the_unit();
    let daemon = world.run_by(&unit, &config, &[]);
    for _ in 0..5 {
        assert!(world.tidegate(&["reload"]).status.success());
    }
    wait_for("limits are in force", || world.request().is_err().then_some(()));
    let generation = || Some(world.status().limits_generation).filter(|number| *number > 5);
    let before = wait_for("a number that no start begins with", generation);
    daemon.kill();
    let daemon = world.run_by(&unit, &config, &[]);
    let after = world.status().limits_generation;
    assert!(after > before, "{after} after {before}: what was in force is known");
    assert!(!world.log().contains("CAP_SYS_ADMIN"), "{}", world.log());
    wait_for("no thread has a capability", || has_none(daemon.0.id()).then_some(()));
    daemon.kill();

    let less: Vec<String> = unit.iter().map(|word| word.replace(",+sys_admin", "")).collect();
    assert_ne!(less, unit);
    let daemon = world.run_by(&less, &config, &[]);
    assert!(world.log().contains("CAP_SYS_ADMIN"), "a loss is told: {}", world.log());
    wait_for("it protects all the same", || world.request().is_err().then_some(()));
    daemon.kill();
}

#[test]
fn after_its_start_the_daemon_has_no_capabilities() {
    let world = World::new();
    let daemon = world.run(&world.configure("{name: default}"), &[]);
    let status = || fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
    let none = |field: &str| {
        status().lines().any(|line| {
            line.strip_prefix(field).is_some_and(|value| value.trim().bytes().all(|b| b == b'0'))
        })
    };
    wait_for("no capabilities", || (none("CapEff:") && none("CapPrm:")).then_some(()));
    assert!(status().contains("NoNewPrivs:\t1"));
}

/// As it is when a successor dies, or is refused, after it has put its socket in the place of ours.
#[test]
fn a_daemon_whose_successor_is_gone_is_reachable_again_at_once() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    for bound in [true, false] {
        let mut successor = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
        successor.ask(&Request::Handover { phase: HandoverPhase::Begin }).unwrap();
        let begun = MonotonicClock.now();
        fs::remove_file(world.socket()).unwrap();
        let socket = bound.then(|| UnixListener::bind(world.socket()).unwrap());
        drop((socket, successor));
        wait_for("the old daemon answers", || world.answers(&daemon).then_some(()));
        let reload = || world.tidegate(&["reload"]).status.success();
        wait_for("it is in charge", || reload().then_some(()));
        let took = MonotonicClock.now().since(begun);
        assert!(took < Nanos::from_secs(15), "{took}: it did not wait for whoever is gone");
        wait_for("its limits are in force", || world.request().is_err().then_some(()));
    }
    let mut next = world.run(&config, &[]);
    let mut daemon = daemon;
    assert!(daemon.ended(), "and it can be succeeded");
    next.signal("-TERM");
    assert!(next.ended() && !world.socket().exists());
}

#[test]
fn a_successor_that_is_told_to_stop_leaves_the_old_daemon_in_charge() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    let mut operator = Client::connect(&world.socket(), TIMEOUT_DEFAULT).unwrap();
    let mut successor = world.spawn_by(&[], &config, &[]);
    let begin = MonotonicClock.now();
    while operator.ask(&Request::Reload { path: None }).is_ok() {
        assert!(MonotonicClock.now().since(begin) < PATIENCE, "nobody took over");
    }
    successor.signal("-TERM");
    assert!(successor.ended(), "it ends well: {}", world.log());
    wait_for("the old daemon is in charge", || {
        (world.answers(&daemon) && world.tidegate(&["reload"]).status.success()).then_some(())
    });
    wait_for("its limits are in force", || world.request().is_err().then_some(()));
}

/// It would find none of the pins, put its hooks beside those that are there, and evaluate twice.
#[test]
fn a_successor_with_other_pins_is_refused_and_changes_nothing() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let daemon = world.run(&config, &[]);
    let text = fs::read_to_string(&config).unwrap();
    let (pins, others) = (world.pins.to_str().unwrap(), format!("{}-2", world.pins.display()));
    let other = world.path("other.yaml");
    fs::write(&other, text.replace(pins, &others)).unwrap();
    assert!(world.tidegate(&["reload", "-c", other.to_str().unwrap()]).status.success());
    let warnings = world.status().warnings;
    assert!(warnings.iter().any(|w| w.contains("daemon.pins") && w.contains("stopped first")));
    let output = world.command(&[], &other).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("has its pins at"), "{said}");
    assert!(!Path::new(&others).exists());
    assert!(world.answers(&daemon));
    wait_for("its limits are in force", || world.request().is_err().then_some(()));
}

/// Both find nobody in charge. Without the lock before the first pin one would put its maps in the
/// place of the other's, and whoever stays would renew a lease that no hook looks at.
#[test]
fn of_two_daemons_that_start_together_one_lives_and_its_limits_last() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let mut both = [world.spawn_by(&[], &config, &[]), world.spawn_by(&[], &config, &[])];
    let gone = |daemon: &mut Daemon| daemon.0.try_wait().unwrap();
    let (lost, status) = wait_for("one gives up", || {
        both.iter_mut().enumerate().find_map(|(at, daemon)| Some((at, gone(daemon)?)))
    });
    // On a slow machine the second may come when the first is reachable, and take over from it.
    assert!(matches!(status.code(), Some(0 | 1)), "{status}");
    let [a, b] = both;
    let mut alive = if lost == 0 { b } else { a };
    wait_for("the other answers", || world.answers(&alive).then_some(()));
    let since = MonotonicClock.now();
    wait_for("a lease that nobody renews has ended", || {
        (MonotonicClock.now().since(since) > Nanos::from_secs(11)).then_some(())
    });
    wait_for("its limits are in force", || world.request().is_err().then_some(()));
    assert!(gone(&mut alive).is_none() && world.answers(&alive));
}

#[test]
fn a_stop_in_the_middle_of_the_start_leaves_nothing_in_force() {
    let world = World::new();
    let config = world.configure("{name: fixed, rate: 1, burst: 1}");
    let mut daemon = world.spawn_by(&[], &config, &[]);
    let pinned = || {
        let mut below = world.pins.read_dir().into_iter().flatten().flatten();
        below.any(|entry| entry.path().read_dir().is_ok_and(|mut pins| pins.next().is_some()))
    };
    let begin = MonotonicClock.now();
    while !pinned() {
        assert!(MonotonicClock.now().since(begin) < PATIENCE, "nothing was ever pinned");
        std::thread::yield_now();
    }
    daemon.signal("-TERM");
    assert!(daemon.ended(), "it ends by itself: {}", world.log());
    assert!(!world.pins.exists() && !world.socket().exists(), "nothing is left");
    assert!((0..20).all(|_| world.request().is_ok()), "everything passes");
}

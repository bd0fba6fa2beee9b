// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon in a namespace of its own, as an operator runs it (needs root).

use super::{ip, wait_for};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const HTTP: &str = "127.0.0.1:9911";
const DAY_S: f64 = 86_400.0;

/// Interface and service where nothing else is said.
const INTENT: &str = "interfaces: [{name: v0}]\n\
    services:\n  shop: {mode: enforce, listen: [\"*:8000\"]}\n";

/// A service on the loopback of the namespace of which nearly every connection is refused, whatever else
/// happens.
pub(crate) const STRICT: &str = "interfaces: [{name: lo, attach: tcx}]\n\
    services:\n  shop: {mode: enforce, listen: [\"*:8000\"], policy: {name: token_bucket, action: reject}, \
    control: {name: fixed, rate: 1/s, burst: 1}}\n";
/// The server of that service.
const SHOP: &str = "127.0.0.1:8000";
/// How many clients come at once to see that it refuses.
const CLIENTS: usize = 20;

/// A namespace with one end of a veth pair and a daemon; gone when it is dropped.
pub(crate) struct World {
    name: String,
    directory: tempfile::TempDir,
    daemon: Option<Child>,
}

impl World {
    pub(crate) fn new(number: u32) -> Self {
        let name = format!("tgl{}-{number}", std::process::id());
        let world = Self { name, directory: tempfile::tempdir().unwrap(), daemon: None };
        std::fs::create_dir(world.file("bpf")).unwrap();
        let mount =
            Command::new("mount").args(["-t", "bpf", "bpf"]).arg(world.file("bpf")).status();
        assert!(mount.unwrap().success());
        ip(&format!("netns add {}", world.name));
        ip(&format!("-n {} link set lo up", world.name));
        world.plug();
        world
    }

    /// Makes the interface; anew, where it was deleted.
    pub(crate) fn plug(&self) {
        ip(&format!("-n {} link add v0 type veth peer name v1", self.name));
    }

    pub(crate) fn namespace(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs the daemon until it is ready; its log is shown if the test fails.
    pub(crate) fn run(&mut self, more: &[&str]) {
        let log = OpenOptions::new().append(true).create(true).open(self.file("log"));
        self.run_with(more, log.unwrap().into());
        self.ready();
    }

    pub(crate) fn ready(&self) {
        wait_for("ready", || self.get("/readyz").filter(|page| page.contains(" 200 ")));
    }

    /// Starts the daemon, with its log where `log` says.
    pub(crate) fn run_with(&mut self, more: &[&str], log: Stdio) {
        self.run_intent(INTENT, more, log);
    }

    /// Runs the daemon as the journal's service, if `journal`, with its log in a file.
    pub(crate) fn run_logged(&mut self, more: &[&str], journal: bool) {
        let log = std::fs::File::create(self.file("log")).unwrap();
        let metadata = log.metadata().unwrap();
        let mut command = self.command(INTENT, more);
        if journal {
            command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
        }
        self.adopt(command.stderr(log).spawn().unwrap());
        self.ready();
    }

    /// The same with these interfaces and services.
    pub(crate) fn run_intent(&mut self, intent: &str, more: &[&str], log: Stdio) {
        let mut command = self.command(intent, more);
        self.daemon = Some(command.stderr(log).spawn().unwrap());
    }

    /// How the daemon is started with these interfaces and services.
    pub(crate) fn command(&self, intent: &str, more: &[&str]) -> Command {
        let text = format!(
            "{intent}\
             daemon: {{socket: {}, http: \"{HTTP}\", pins: {}}}\n",
            self.file("socket").display(),
            self.file("bpf/tidegate").display()
        );
        std::fs::write(self.file("config"), text).unwrap();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.namespace().display()))
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["run", "--config"])
            .arg(self.file("config"))
            .args(more)
            .stdout(Stdio::null());
        command
    }

    /// A daemon that was started by another way.
    pub(crate) fn adopt(&mut self, daemon: Child) {
        self.daemon = Some(daemon);
    }

    /// It says that it lives, at each of three times, and within a second at most of them: others use the
    /// machine, too.
    pub(crate) fn assert_healthy_soon(&self) {
        let times = std::iter::repeat_with(|| {
            let begin = MonotonicClock.now();
            let page = self.get("/healthz").unwrap_or_default();
            (page.contains(" 200 "), MonotonicClock.now().since(begin))
        });
        let seen: Vec<_> = times.take(3).collect();
        let soon = seen.iter().filter(|(_, took)| *took < Nanos::SECOND).count();
        assert!(seen.iter().all(|(well, _)| *well) && soon >= 2, "{seen:?}");
    }

    /// A daemon of [`STRICT`] protects: of clients that come at once most are refused, by it and no one else.
    pub(crate) fn assert_protects(&self) {
        let come = || {
            let _server = TcpListener::bind(SHOP)?;
            let come = |_: &usize| TcpStream::connect(SHOP).is_err();
            Ok((0..CLIENTS).filter(come).count())
        };
        let refused = in_namespace(Some(&self.namespace()), come).unwrap();
        // A token a second: those that are there, and what comes while they are asked for.
        assert!(refused >= CLIENTS / 2, "of {CLIENTS} only {refused} are refused");
    }

    /// Makes room for another daemon beside the one that runs.
    pub(crate) fn replace_daemon(&mut self) -> Child {
        self.daemon.take().unwrap()
    }

    /// The daemon, while there is one.
    pub(crate) fn daemon(&mut self) -> &mut Child {
        self.daemon.as_mut().unwrap()
    }

    /// A page of the daemon, with its head.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        let asked = in_namespace(Some(&self.namespace()), || {
            let mut stream = TcpStream::connect(HTTP)?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page)
        });
        asked.ok()
    }

    /// The program as an operator calls it.
    pub(crate) fn tidegate(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).arg("--socket").arg(self.file("socket")).output().unwrap()
    }

    /// What `tidegate check` says of such a configuration in this namespace.
    pub(crate) fn check(&self, intent: &str) -> String {
        let pins = self.file("bpf/tidegate");
        self.check_file(&format!("{intent}daemon: {{pins: {}}}\n", pins.display())).1
    }

    /// The same of a whole file, with the exit code.
    pub(crate) fn check_file(&self, config: &str) -> (Option<i32>, String) {
        let file = self.file("checked");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace().display()));
        command.arg(env!("CARGO_BIN_EXE_tidegate")).args(["check", "-c"]).arg(&file);
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    }

    /// What `check` says of the file of the daemon that runs.
    pub(crate) fn check_running(&self) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace().display()));
        command.arg(env!("CARGO_BIN_EXE_tidegate")).args(["check", "-c"]).arg(self.file("config"));
        told(&mut command)
    }

    /// A metric of the service `shop`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let name = format!("tidegate_{name}{{service=\"shop\"}} ");
        let page = self.get("/metrics").unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap()
    }

    /// Seconds from one line of the log to a later one, by the times that the daemon wrote.
    pub(crate) fn seconds_between(&self, first: &str, later: &str) -> f64 {
        // Over midnight, too.
        (self.written(later) - self.written(first)).rem_euclid(DAY_S)
    }

    /// The same from a time of day on.
    pub(crate) fn seconds_since(&self, begin: Nanos, later: &str) -> f64 {
        (self.written(later) - begin.as_secs_f64()).rem_euclid(DAY_S)
    }

    /// Seconds without any such packet when the daemon first told of connections past its hooks, as it says.
    pub(crate) fn unseen_when_told(&self, hooks_saw: &str) -> f64 {
        let log = self.log();
        let told = |line: &&str| line.contains("connections were accepted in the last");
        let line = log.lines().filter(told).find(|line| line.contains(hooks_saw));
        let line = line.unwrap_or_else(|| panic!("no {hooks_saw}: {log}"));
        let span = line.split("in the last ").nth(1).unwrap().split(" s ").next().unwrap();
        span.parse().unwrap_or_else(|_| panic!("{line}"))
    }

    /// The time of day at which the daemon wrote the first such line, in seconds.
    fn written(&self, part: &str) -> f64 {
        let log = self.log();
        let line = log.lines().find(|line| line.contains(part));
        let time = line.unwrap_or_else(|| panic!("no {part}: {log}")).split(['T', 'Z']).nth(1);
        let parts = time.unwrap().split(':').map(|part| part.parse::<f64>().unwrap());
        parts.fold(0.0, |sum, part| 60.0 * sum + part)
    }

    pub(crate) fn history(&self) -> String {
        String::from_utf8(self.tidegate(&["history"]).stdout).unwrap()
    }

    pub(crate) fn status(&self) -> String {
        String::from_utf8(self.tidegate(&["status"]).stdout).unwrap()
    }
}

/// All that a program says.
fn told(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    text(output.stdout) + &text(output.stderr)
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.file("log")).unwrap_or_default());
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        let _ = Command::new("umount").arg("-l").arg(self.file("bpf")).status();
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two namespaces with a link, BIRD in one and the daemon in the other. All of it goes by drop.

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use tidegate_flowspec::Kind;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Within this time routes have to be gone: the hold time and a second.
pub(crate) const HOLD_TIME: Duration = Duration::from_secs(10);

/// BIRD takes FlowSpec, over IPv4 or IPv6.
pub(crate) const RECEIVES: &str = "
template bgp flows {
  password \"0badc0de\";
  hold time 9;
  ttl security yes;
  passive yes;
  flow4 { table f4; import all; export none; };
  flow6 { table f6; import all; export none; };
}
protocol bgp four from flows {
  local 10.9.0.2 port 1179 as 65002;
  neighbor 10.9.0.1 as 65001;
}
protocol bgp six from flows {
  local fd00:9::2 port 1179 as 65002;
  neighbor fd00:9::1 as 65001;
}
";

/// BIRD sends FlowSpec, and the unicast routes to which it belongs. A second session is that of another router, which
/// sends more unicast routes of the same prefix than are read.
pub(crate) fn sends() -> String {
    let routes = (0..1_100).map(|host| format!("  route 2001:db8:f::{host:x}/128 blackhole;\n"));
    let routes: String = routes.collect();
    format!("{SENDS}protocol static many6 {{\n  ipv6 {{ table others6; }};\n{routes}}}\n")
}

const SENDS: &str = "
ipv4 table r4;
ipv6 table r6;
flow4 table other4;
flow6 table other6;
ipv6 table others6;
protocol static nets4 { ipv4 { table r4; }; route 192.0.2.0/24 blackhole; }
protocol static more4 { ipv4 { table r4; }; route 198.51.100.0/24 blackhole; }
protocol static nets6 { ipv6 { table r6; }; route 2001:db8::/32 blackhole; }
protocol static flows4 {
  flow4 { table f4; };
  route flow4 { dst 192.0.2.7/32; proto = 6; dport = 80; tcp flags 0x2/0x12; } {
    bgp_ext_community.add((generic, 0x800c0000, 0x447a0000));
  };
  route flow4 { dst 203.0.113.7/32; proto = 6; } {
    bgp_ext_community.add((generic, 0x80060000, 0x447a0000));
  };
  route flow4 { dst 198.51.100.7/32; fragment is_fragment; } {
    bgp_ext_community.add((generic, 0x80060000, 0x447a0000));
  };
  route flow4 { dst 198.51.100.8/32; } {
    bgp_ext_community.add((generic, 0x80090000, 0x0000000a));
  };
  route flow4 { dst 198.51.100.9/32; } {
    bgp_ext_community.add((generic, 0x80060000, 0x00000000));
  };
}
protocol static flows6 {
  flow6 { table f6; };
  route flow6 { dst 2001:db8:1::/48; next header = 17; dport 1000..2000; } {
    bgp_ext_community.add((generic, 0x80060000, 0x479c4000));
  };
}
protocol bgp up {
  local 10.9.0.2 port 1179 as 65002;
  neighbor 10.9.0.1 as 65001;
  password \"0badc0de\";
  hold time 9;
  ttl security yes;
  passive yes;
  ipv4 { table r4; import none; export all; next hop self; };
  ipv6 { table r6; import none; export all; next hop address 2001:db8:9::2; };
  flow4 { table f4; import none; export all; };
  flow6 { table f6; import none; export all; };
}
protocol bgp aside {
  local fd00:9::2 port 1179 as 65003;
  neighbor fd00:9::1 as 65001;
  # GoBGP sends nothing of a router back to it, and knows it by this.
  router id 10.9.0.3;
  password \"0badc0de\";
  hold time 6;
  ttl security yes;
  passive yes;
  ipv6 { table others6; import none; export all; next hop self; };
  flow4 { table other4; import all; export none; };
  flow6 { table other6; import all; export none; };
}
";

/// How names of namespaces begin; then comes the id of the process that made them.
const PREFIX: &str = "tgfs-";

/// The namespaces, and a directory for all files.
pub(crate) struct World {
    us: String,
    router: String,
    dir: TempDir,
}

impl World {
    pub(crate) fn new(name: &str) -> Self {
        sweep();
        let prefix = format!("{PREFIX}{}-{name}", std::process::id());
        let (us, router) = (format!("{prefix}-us"), format!("{prefix}-rt"));
        let dir = tempfile::tempdir().expect("a directory");
        // From here on drop removes what there is.
        let world = Self { us, router, dir };
        let (us, rt) = (&world.us, &world.router);
        ip(&["netns", "add", us]);
        ip(&["netns", "add", rt]);
        ip(&["link", "add", "u0", "netns", us, "type", "veth", "peer", "name", "r0", "netns", rt]);
        for (space, name, host) in [(us, "u0", 1), (rt, "r0", 2)] {
            let (v4, v6) = (format!("10.9.0.{host}/24"), format!("fd00:9::{host}/64"));
            ip(&["-n", space, "addr", "add", &v4, "dev", name]);
            ip(&["-n", space, "addr", "add", &v6, "dev", name, "nodad"]);
            ip(&["-n", space, "link", "set", name, "up"]);
        }
        world
    }

    /// Starts BIRD with these protocols and waits until it answers.
    pub(crate) fn bird(&self, protocols: &str) -> Bird {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let text = format!(
            "log stderr all;\nrouter id 10.9.0.2;\nflow4 table f4;\nflow6 table f6;\n\
             protocol device {{ }}\n{protocols}"
        );
        std::fs::write(path("bird.conf"), text).expect("a configuration");
        let log = File::create(path("bird.log")).expect("a log");
        let control = path("bird.ctl");
        let child = inside(&self.router, OsStr::new("bird"))
            .args(["-f", "-c", &path("bird.conf"), "-s", &control])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("bird");
        let bird = Bird { child, control, log: path("bird.log") };
        until("bird", HOLD_TIME, || bird.answer("show status").contains("is up"));
        bird
    }

    pub(crate) fn export(&self, kind: Kind) -> Daemon {
        let kind = match kind {
            Kind::GoBgp => "gobgp",
            Kind::ExaBgp => "exabgp",
        };
        self.daemon(&["export", kind])
    }

    pub(crate) fn import(&self) -> Daemon {
        self.daemon(&["import"])
    }

    /// With a program that starts another one, and speaks no BGP.
    pub(crate) fn wrapped(&self) -> Daemon {
        use std::os::unix::fs::PermissionsExt;
        let file = self.dir.path().join("wrapper");
        std::fs::write(&file, "#!/bin/sh\nsleep 1000 &\nwait\n").expect("a script");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&file, mode).expect("a script");
        self.daemon(&["wrapped"])
    }

    /// With a program that is not there.
    pub(crate) fn without_speaker(&self) -> Daemon {
        self.daemon(&["missing"])
    }

    fn daemon(&self, words: &[&str]) -> Daemon {
        let program = std::env::current_exe().expect("this program");
        // Every step becomes the next one: its process id is the daemon's.
        let mut child = inside(&self.us, program.as_os_str())
            .arg("daemon")
            .args(words)
            .arg(self.dir.path().join("bgp"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon");
        let shown = Arc::new(Mutex::new(String::new()));
        let (last, output) = (Arc::clone(&shown), child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = line.replace('|', "\n");
            }
        });
        let log = self.dir.path().join("bgp/speaker.log").display().to_string();
        Daemon { child, shown, log }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in [&self.us, &self.router] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Removes namespaces of tests that were killed.
fn sweep() {
    let listed = Command::new("ip").args(["netns", "list"]).output().expect("ip");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    for name in names {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let owner = owner.and_then(|owner| owner.parse().ok());
        if owner.is_some_and(|owner: u32| !runs(owner)) {
            // Another test may be quicker.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A command in a namespace that ends with this program, however that ends.
fn inside(namespace: &str, program: &OsStr) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(this);
    command.args(["keeper", "exec", "ip", "netns", "exec", namespace]).arg(program);
    command.env("TIDEGATE_KEEPER", std::process::id().to_string());
    command
}

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip");
    assert!(status.success(), "ip {words:?} (needs root)");
}

/// Waits for a condition, at most so long; gives how long it took.
pub(crate) fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Nanos {
    let begin = MonotonicClock.now();
    while !condition() {
        let waited = MonotonicClock.now() - begin;
        assert!(waited < limit.into(), "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    MonotonicClock.now() - begin
}

pub(crate) fn runs(id: u32) -> bool {
    // A zombie waits only for its parent.
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub(crate) fn kill(id: u32) {
    signal(id, Signal::KILL);
}

pub(crate) fn pause(id: u32) {
    signal(id, Signal::STOP);
}

fn signal(id: u32, signal: Signal) {
    let id = Pid::from_raw(id.cast_signed()).expect("a process id");
    kill_process(id, signal).expect("a process of ours");
}

/// Ids of the children of a process, then of theirs.
fn descendants(id: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children: Vec<u32> =
        children.unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let more: Vec<u32> = children.iter().flat_map(|id| descendants(*id)).collect();
    [children, more].concat()
}

pub(crate) struct Bird {
    child: Child,
    control: String,
    log: String,
}

impl Bird {
    /// What BIRD answers; it has to understand.
    pub(crate) fn ask(&self, command: &str) -> String {
        let answer = self.answer(command);
        assert!(!answer.is_empty() && !answer.contains("syntax error"), "{command}: {answer}");
        answer
    }

    fn answer(&self, command: &str) -> String {
        let words = command.split(' ');
        let output = Command::new("birdc").args(["-s", &self.control]).args(words).output();
        output.map_or_else(|_| String::new(), |done| String::from_utf8_lossy(&done.stdout).into())
    }

    /// The FlowSpec routes with their extended communities, in the order of the tables.
    pub(crate) fn flows(&self) -> Vec<(String, String)> {
        self.shown("show route all")
    }

    /// Those that the other router has.
    pub(crate) fn others(&self) -> Vec<(String, String)> {
        ["other4", "other6"]
            .map(|table| self.shown(&format!("show route all table {table}")))
            .concat()
    }

    fn shown(&self, command: &str) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for line in self.ask(command).lines() {
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

    pub(crate) fn until(
        &self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(Vec<(String, String)>) -> bool,
    ) {
        let begin = MonotonicClock.now();
        while !condition(self.flows()) {
            let waited = MonotonicClock.now() - begin;
            if waited >= limit.into() {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let sessions = self.answer("show protocols");
                panic!("{what}: not within {limit:?}: {:#?}\n{sessions}\n{log}", self.flows());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("{what}: after {}", MonotonicClock.now() - begin);
    }
}

impl Drop for Bird {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program as the daemon; killed by drop.
pub(crate) struct Daemon {
    child: Child,
    shown: Arc<Mutex<String>>,
    log: String,
}

impl Daemon {
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("the daemon reads");
    }

    /// The keeper, the speaker, and whatever that has started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        descendants(self.child.id())
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn runs(&self) -> bool {
        runs(self.child.id())
    }

    pub(crate) fn stop(&self) {
        pause(self.child.id());
    }

    /// Waits for the last line that it has shown.
    pub(crate) fn until(&mut self, what: &str, limit: Duration, condition: impl Fn(&str) -> bool) {
        let begin = MonotonicClock.now();
        loop {
            let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if condition(&shown) {
                println!("{what}: after {}", MonotonicClock.now() - begin);
                return;
            }
            if MonotonicClock.now() - begin >= limit.into() {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                panic!("{what}: not within {limit:?}:\n{shown}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two network namespaces and a veth pair, for one test; gone when dropped.
//!
//! ```text
//!  client namespace              server namespace
//!  c0 10.77.0.2, fd77::2 ─────── s0 10.77.0.1, fd77::1   (the hooks go here)
//! ```
//!
//! Or two TAP devices, and a process between them that keeps each frame back for a while: a line.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tidegate_bpf::testing::plans;
use tidegate_bpf::{Interface, Plan, ServiceParams, Settings};
use tidegate_config::{Attach, InterfaceConfig, ServiceConfig};
use tidegate_policy::{Action, BucketSpec, Params, Policy};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();
/// How the names of our namespaces begin; the number of their process follows.
const PREFIX: &str = "tgbpf";

/// A test that was killed drops nothing: removes the namespaces of processes that are gone.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('x')).map(|of| of.0);
        if process.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

pub(crate) struct Net {
    pub(crate) client: PathBuf,
    pub(crate) server: PathBuf,
    names: [String; 2],
    line: Option<Child>,
}

/// A line between two namespaces (the files of both, and the delay in milliseconds): what comes from one
/// end is given to the other after that delay. It ends with its standard input. Kernels without netem have TAP.
const LINE: &str = r"
import ctypes, fcntl, os, select, struct, sys, time
from collections import deque
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 0x0002, 0x1000
libc = ctypes.CDLL(None, use_errno=True)
def tap(space, name):
    with open(space) as file:
        if libc.setns(file.fileno(), 0): raise OSError(ctypes.get_errno(), 'setns')
    device = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack('16sH22x', name, IFF_TAP | IFF_NO_PI))
    return device
DELAY_S, FRAMES_MAX = float(sys.argv[3]) / 1000, 10000
ends = [tap(sys.argv[1], b'c0'), tap(sys.argv[2], b's0')]
other = {ends[0]: ends[1], ends[1]: ends[0]}
on_the_way = {end: deque(maxlen=FRAMES_MAX) for end in ends}
while True:
    dues = [frames[0][0] for frames in on_the_way.values() if frames]
    patience = max(0, min(dues) - time.monotonic()) if dues else None
    for end in select.select([*ends, 0], [], [], patience)[0]:
        if not end: sys.exit()
        try:
            while True: on_the_way[other[end]].append((time.monotonic() + DELAY_S, os.read(end, 65536)))
        except OSError: pass
    for end, frames in on_the_way.items():
        while frames and frames[0][0] <= time.monotonic():
            try: os.write(end, frames.popleft()[1])
            except OSError: pass
";

pub(crate) fn sh(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A program in a network namespace.
pub(crate) fn inside(namespace: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display())).args(words);
    command
}

/// What a program says in a network namespace.
pub(crate) fn says(namespace: &Path, words: &[&str]) -> String {
    String::from_utf8(inside(namespace, words).output().unwrap().stdout).unwrap()
}

/// The pinned links, sorted by name: the name, and what the kernel says of it and its program.
pub(crate) fn links(pins: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(pins.join("links")).unwrap();
    let link = |path: PathBuf| {
        let show = Command::new("bpftool").args(["link", "show", "pinned"]).arg(&path).output();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, String::from_utf8(show.unwrap().stdout).unwrap())
    };
    let mut links: Vec<_> = entries.map(|entry| link(entry.unwrap().path())).collect();
    links.sort();
    links
}

/// Key and certificate of a server, in PEM.
pub(crate) fn certificate(place: &Path) -> (String, String) {
    let name = |file: &str| place.join(file).display().to_string();
    let (key, cert) = (name("key.pem"), name("cert.pem"));
    sh(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 \
         -subj /CN=any.example -keyout {key} -out {cert}"
    ));
    (key, cert)
}

/// A server at 10.77.0.1:80; ended when dropped.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn new(net: &Net, words: &[&str]) -> Self {
        let mut command = inside(&net.server, words);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(child.spawn().unwrap());
        wait_for("the server listens", || {
            within(&net.server, || std::net::TcpStream::connect("10.77.0.1:80")).is_ok()
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Net {
    pub(crate) fn new() -> Self {
        let net = Self::spaces();
        net.plug();
        net
    }

    /// Both ends of a line that takes so long one way.
    pub(crate) fn far(ms: u32) -> Self {
        let mut net = Self::spaces();
        let line = Command::new("python3")
            .args(["-c", LINE])
            .args([&net.client, &net.server])
            .arg(ms.to_string())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        net.line = Some(line);
        let [c, s] = net.names.clone();
        let has = |space: &str, device: &str| {
            let words = ["-n", space, "link", "show", device];
            Command::new("ip").args(words).output().unwrap().status.success()
        };
        let line = net.line.as_mut().unwrap();
        wait_for("the line is there", || {
            assert!(line.try_wait().unwrap().is_none(), "the line ended: it says why above");
            has(&c, "c0") && has(&s, "s0")
        });
        net.address();
        net
    }

    fn spaces() -> Self {
        SWEPT.call_once(sweep);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{PREFIX}{}x{n}", std::process::id());
        let names = [format!("{id}c"), format!("{id}s")];
        let path = |name: &String| Path::new("/run/netns").join(name);
        let net = Self { client: path(&names[0]), server: path(&names[1]), names, line: None };
        let [c, s] = &net.names;
        sh(&format!(
            "ip netns add {c}; ip netns add {s}; ip -n {s} link set lo up; ip -n {c} link set lo up"
        ));
        net
    }

    /// Makes the veth pair; anew, where it was deleted.
    pub(crate) fn plug(&self) {
        let [c, s] = &self.names;
        sh(&format!(
            "ip -n {s} link add s0 type veth peer name c0 netns {c}
             nsenter --net=/run/netns/{c} ethtool -K c0 gro on"
        ));
        self.address();
    }

    fn address(&self) {
        let [c, s] = &self.names;
        sh(&format!(
            "ip -n {s} addr add 10.77.0.1/24 dev s0; ip -n {s} addr add fd77::1/64 dev s0 nodad
             ip -n {c} addr add 10.77.0.2/24 dev c0; ip -n {c} addr add fd77::2/64 dev c0 nodad
             ip -n {s} link set s0 up; ip -n {c} link set c0 up"
        ));
    }

    /// Runs a shell command in the server's namespace.
    pub(crate) fn server_sh(&self, command: &str) {
        sh(&format!("nsenter --net={} sh -ec '{command}'", self.server.display()));
    }

    /// The filters of the server's interface.
    pub(crate) fn filters(&self) -> String {
        let show = "tc filter show dev s0 ingress; tc filter show dev s0 egress";
        says(&self.server, &["sh", "-ec", show])
    }

    pub(crate) fn interface(&self, attach: AttachMode) -> Interface {
        attach.interface("s0", Some(self.server.clone()))
    }
}

/// Which ingress hook an interface gets: what can be configured, and clsact by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachMode {
    Auto,
    Xdp,
    XdpGeneric,
    Tcx,
    Clsact,
}

impl AttachMode {
    pub(crate) fn interface(self, name: &str, namespace: Option<PathBuf>) -> Interface {
        let attach = match self {
            Self::Auto => Attach::Auto,
            Self::Xdp => Attach::Xdp,
            Self::XdpGeneric => Attach::XdpGeneric,
            Self::Tcx | Self::Clsact => Attach::Tcx,
        };
        let config = InterfaceConfig { name: name.into(), attach, ..InterfaceConfig::default() };
        let clsact = self == Self::Clsact;
        Interface { config, namespace, clsact, import: false, datagrams: false, border: 0 }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(line) = &mut self.line {
            let _ = line.kill();
            let _ = line.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Runs `work` inside a network namespace, in a thread of its own.
pub(crate) fn within<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(namespace).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            use std::os::fd::AsFd;
            rustix::thread::move_into_link_name_space(file.as_fd(), None).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// Waits for a condition, at most five seconds.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = MonotonicClock;
    let end = clock.now() + Nanos::from_secs(5);
    while !condition() {
        assert!(clock.now() < end, "waited for 5 s: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

pub(crate) fn plan(interfaces: Vec<Interface>, action: Action) -> Plan {
    let policy = plans::policy(Policy::TokenBucket, action);
    let mut plan = plans::plan(vec![ServiceConfig { policy, ..plans::service("shop", &["*:80"]) }]);
    let first = interfaces.first();
    plan.settings = Settings {
        sample_admitted: 1,
        sample_refused: 1,
        namespace: first.and_then(|interface| interface.namespace.clone()),
        clsact: first.is_some_and(|interface| interface.clsact),
        ..Settings::default()
    };
    plan.config.interfaces = interfaces.into_iter().map(|interface| interface.config).collect();
    plan
}

/// One token now, the next in a thousand seconds.
pub(crate) fn one_token(action: Action) -> ServiceParams {
    let spec = BucketSpec::new(Rate::per_second(0.001), 1, action);
    ServiceParams::new(0, Params::token_bucket(&spec).unwrap())
}

/// A BPF filesystem of one test.
pub(crate) struct BpfFs {
    directory: tempfile::TempDir,
}

impl BpfFs {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        sh(&format!("mount -t bpf bpf {}", directory.path().display()));
        Self { directory }
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.directory.path().join("tidegate")
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.directory.path()).output();
    }
}

/// A program that is not ours.
pub(crate) fn foreign_object(directory: &Path) -> PathBuf {
    let source = directory.join("foreign.bpf.c");
    let text = "__attribute__((section(\"xdp\"), used)) int stranger(void *c) { return 2; }\n\
                char l[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";
    std::fs::write(&source, text).unwrap();
    let object = directory.join("foreign.o");
    let clang = std::env::var("TIDEGATE_CLANG").unwrap_or_else(|_| "clang-19".into());
    sh(&format!("{clang} -g -O2 -target bpf -c {} -o {}", source.display(), object.display()));
    object
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts around a router, each in a namespace of its own: `v0` of a host is at the router's end `v0`, `v1` …,
//! in the order of the hosts. The third byte of their addresses is that number; the router's end in .1, theirs in .2.

use super::{remove_pins, run, wait_for};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::snapshot::{ServiceState, Snapshot};
use tidegate_sense::in_namespace;

/// The namespaces, and a directory for files; all gone when it is dropped.
pub(crate) struct Star {
    name: String,
    hosts: Vec<&'static str>,
    dir: tempfile::TempDir,
    daemons: AtomicU32,
}

impl Star {
    /// The router comes first. `prefix` begins the names of the namespaces, `net` is the second byte of all
    /// addresses.
    pub(crate) fn new(prefix: &str, net: u8, router: &'static str, hosts: &[&'static str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let star = Self {
            name: format!("{prefix}{}-{number}", std::process::id()),
            hosts: [&[router], hosts].concat(),
            dir: tempfile::tempdir().unwrap(),
            daemons: AtomicU32::new(0),
        };
        let n = &star.name;
        star.hosts.iter().for_each(|host| run("ip", &format!("netns add {n}{host}")));
        for (i, host) in hosts.iter().enumerate() {
            run(
                "ip",
                &format!("link add v{i} netns {n}{router} type veth peer name v0 netns {n}{host}"),
            );
            let sides = [(router, format!("v{i}"), 1), (*host, "v0".to_owned(), 2)];
            for (side, device, last) in sides {
                run("ip", &format!("-n {n}{side} addr add 10.{net}.{i}.{last}/24 dev {device}"));
                run("ip", &format!("-n {n}{side} link set {device} up"));
                run("ip", &format!("-n {n}{side} link set lo up"));
            }
            run("ip", &format!("-n {n}{host} route add default via 10.{net}.{i}.1"));
        }
        star.inside(router, &["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
        star
    }

    pub(crate) fn namespace(&self, host: &str) -> PathBuf {
        format!("/run/netns/{}{host}", self.name).into()
    }

    pub(crate) fn inside(&self, host: &str, command: &[&str]) {
        let net = format!("--net={}", self.namespace(host).display());
        let output = Command::new("nsenter").arg(net).args(command).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn pins(&self, host: &str) -> PathBuf {
        format!("/sys/fs/bpf/tidegate-test-{}{host}", self.name).into()
    }

    /// Starts a daemon on a host and waits until it answers: `above` is what its file says of interfaces and
    /// services, `cluster` of peers; its certificate lies in `folder`.
    pub(crate) fn start(&self, host: &str, above: &str, cluster: &str, folder: &str) -> Daemon {
        let file = |end: &str| self.path(folder).join(end).display().to_string();
        let socket = self.path(&format!("{host}.sock"));
        let text = format!(
            "{above}daemon: {{{}}}\n\
             cluster:\n  certificate: {}\n  key: {}\n  ca_file: {}\n{cluster}",
            self.places(host, &socket),
            file(&format!("{host}.pem")),
            file(&format!("{host}.key")),
            file("authority.pem"),
        );
        self.launch(host, socket, &text)
    }

    /// What the file of a daemon of this host says of where it keeps its things.
    pub(crate) fn places(&self, host: &str, socket: &Path) -> String {
        let (socket, pins) = (socket.display(), self.pins(host));
        format!("socket: {socket}, http: off, pins: {}", pins.display())
    }

    /// The same with this file, and with this socket in it. The daemon may give the socket's directory to its user.
    pub(crate) fn launch(&self, host: &str, socket: PathBuf, text: &str) -> Daemon {
        let config = self.path(&format!("{host}.yaml"));
        fs::write(&config, text).unwrap();
        let number = self.daemons.fetch_add(1, Ordering::Relaxed);
        let log = self.path(&format!("{host}-{number}.log"));
        let child = Command::new("nsenter")
            .arg(format!("--net={}", self.namespace(host).display()))
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .args(["run", "--config"])
            .arg(config)
            .env("RUNTIME_DIRECTORY", socket.parent().unwrap())
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
}

impl Drop for Star {
    fn drop(&mut self) {
        for host in &self.hosts {
            let name = format!("{}{host}", self.name);
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
            remove_pins(&self.pins(host));
        }
    }
}

/// A daemon; killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    pub(crate) fn ask(&self, request: &Request) -> Option<Reply> {
        Client::connect(&self.socket, TIMEOUT_DEFAULT).ok()?.ask(request).ok()
    }

    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        match self.ask(&Request::Status {}) {
            Some(Reply::Status { snapshot }) => Some(*snapshot),
            _ => None,
        }
    }

    /// The processes that it has started, and those that these have.
    pub(crate) fn processes(&self) -> Vec<u32> {
        descendants(self.child.id())
    }

    #[allow(dead_code, reason = "not every program of tests needs it")]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends by itself.
    #[allow(dead_code, reason = "not every program of tests needs it")]
    pub(crate) fn ended(mut self) {
        wait_for("the daemon ends", || self.child.try_wait().unwrap());
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Each thread has the children that it has started.
fn descendants(id: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children = children.flat_map(|all| {
        all.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    });
    children.flat_map(|id| [vec![id], descendants(id)].concat()).collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Something that a host does until it is dropped.
pub(crate) struct Load {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// `work` is given whether to go on.
    pub(crate) fn start(
        star: &Star,
        host: &str,
        work: impl FnOnce(&dyn Fn() -> bool) -> io::Result<()> + Send + 'static,
    ) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let (namespace, end) = (star.namespace(host), Arc::clone(&ending));
        let thread = std::thread::spawn(move || {
            in_namespace(Some(&namespace), || work(&|| !end.load(Ordering::Relaxed))).unwrap();
        });
        Self { ending, thread: Some(thread) }
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

/// SYNs of a service that were refused.
pub(crate) fn refused(service: &ServiceState) -> u64 {
    let counts = service.counts.iter().filter(|c| c.verdict != "admit" && !c.shadow);
    counts.map(|c| c.count).sum()
}

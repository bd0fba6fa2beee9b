// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate behind real proxies, with the configurations of packaging/.

use super::gate::{self, ENVOY, application, example, free_port};
use super::http::{Http, Response};
use super::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_model::snapshot::Snapshot;

/// How long the application works on a request; one at a time.
const WORK: Duration = Duration::from_millis(5);
pub(crate) const CAPACITY: f64 = 200.0;

/// The proxy that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proxy {
    Nginx,
    Haproxy,
    Envoy,
    /// The same with TLS.
    EnvoyTls,
    /// By the rate limit service.
    EnvoyRatelimit,
    /// It reports nothing.
    EnvoySilent,
    Caddy,
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) proxy: Child,
    pub(crate) daemon: Option<Child>,
    pub(crate) front: SocketAddr,
    /// Where the proxy reports.
    pub(crate) completions: String,
}

/// Where Caddy serves TLS: the port of `front`, at another address of this host.
pub(crate) fn with_tls(front: SocketAddr) -> SocketAddr {
    SocketAddr::new([127, 0, 0, 2].into(), front.port())
}

impl Proxy {
    const fn adapter(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            _ => "envoy",
        }
    }

    /// Where it reports, as the configuration says it; Envoy reports where it asks.
    fn completions(self, dir: &Path) -> String {
        match self {
            Self::Nginx | Self::Haproxy => format!("unix:{}", dir.join("edge.log").display()),
            Self::Caddy => free_port().to_string(),
            _ => String::new(),
        }
    }

    /// Starts it in front of `back`.
    fn start(self, dir: &Path, reports: &str, front: SocketAddr, back: SocketAddr) -> Child {
        let path = |file: &str| dir.join(file).display().to_string();
        let (shown, reports) = match (self, reports.strip_prefix("unix:")) {
            (Self::Haproxy, Some(path)) => ("127.0.0.1:9471", path),
            (_, Some(path)) => ("/run/tidegate/edge.log", path),
            (_, None) => ("127.0.0.1:9471", reports),
        };
        let asked = match self {
            Self::Haproxy => ("127.0.0.1:9470", format!("unix@{}", path("edge.sock"))),
            _ => ("/run/tidegate/edge.sock", path("edge.sock")),
        };
        let sockets = [asked, (shown, reports.to_owned()), ("127.0.0.1:8080", back.to_string())];
        match self {
            Self::Nginx => Self::nginx(dir, &sockets, front),
            Self::Haproxy => Self::haproxy(dir, &sockets, front),
            Self::Caddy => Self::caddy(dir, &sockets, front),
            _ => self.envoy(dir, front, back),
        }
    }

    /// The site twice: without TLS at `front`, with it at [`with_tls`], by certificates of its own below `dir`.
    fn caddy(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let tls = with_tls(front);
        let text = example("Caddyfile", sockets);
        let (before, site) = text.split_once("\nshop.example {").unwrap();
        let site = |name: String, at: SocketAddr| format!("{name} {{\n\tbind {}{site}", at.ip());
        let (plain, secret) = (
            format!("http://shop.example:{}", front.port()),
            format!("https://shop.example:{}", tls.port()),
        );
        let site = [
            before,
            &site(plain, front),
            &site(secret, tls).replacen('\n', "\n\ttls internal\n", 1),
        ];
        let site = site.join("\n");
        let conf = dir.join("Caddyfile");
        fs::write(
            &conf,
            format!(
                "{{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}}\n{site}"
            ),
        )
        .unwrap();
        let log = fs::File::create(dir.join("error.log")).unwrap();
        let mut caddy = Command::new("caddy");
        caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(&conf);
        caddy.env("HOME", dir).env("XDG_DATA_HOME", dir).env("XDG_CONFIG_HOME", dir);
        caddy.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn nginx(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let mut nginx = Command::new("nginx");
        nginx.args(super::nginx::arguments(dir, sockets, front));
        nginx.stderr(Stdio::null()).spawn().unwrap()
    }

    fn haproxy(dir: &Path, sockets: &[(&str, String)], front: SocketAddr) -> Child {
        let spoe = dir.join("spoe.cfg");
        fs::write(&spoe, example("haproxy-spoe.cfg", &[])).unwrap();
        let own = [
            ("/etc/haproxy/tidegate-spoe.cfg", spoe.display().to_string()),
            ("bind :80 ", format!("bind {front} ")),
        ];
        let text = example("haproxy.cfg", &[sockets, &own].concat());
        let conf = dir.join("haproxy.cfg");
        fs::write(&conf, format!("global\n    nbthread 2\n    maxconn 4096\n{text}")).unwrap();
        let log = fs::File::create(dir.join("error.log")).unwrap();
        let mut haproxy = Command::new("haproxy");
        haproxy.args(["-db", "-f"]).arg(&conf).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn envoy(self, dir: &Path, front: SocketAddr, back: SocketAddr) -> Child {
        let file = match self {
            Self::EnvoyRatelimit => "envoy-ratelimit.yaml",
            _ => "envoy.yaml",
        };
        let listen = format!("{{address: 127.0.0.1, port_value: {}}}", front.port());
        let mut own = vec![
            ("/run/tidegate/edge.sock", dir.join("edge.sock").display().to_string()),
            ("port_value: 8080", format!("port_value: {}", back.port())),
            ("{address: 0.0.0.0, port_value: 80}", listen),
        ];
        match self {
            Self::EnvoyTls => own.push(("- filters:", chain_with_tls(dir))),
            Self::EnvoySilent => {
                let indent = " ".repeat(24);
                let seldom =
                    format!("buffer_flush_interval: 600s\n{indent}buffer_size_bytes: 100000000");
                own.push(("buffer_flush_interval: 0.05s", seldom));
            }
            _ => {}
        }
        let conf = dir.join("envoy.yaml");
        fs::write(&conf, example(file, &own)).unwrap();
        let mut envoy = Command::new(ENVOY);
        envoy.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c"]);
        envoy.arg(&conf).arg("--log-path").arg(dir.join("error.log"));
        envoy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

/// A filter chain of Envoy with TLS, and HTTP/2 inside.
fn chain_with_tls(dir: &Path) -> String {
    let signed = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("tls.pem"), dir.join("tls.key"));
    fs::write(&certificate, signed.cert.pem()).unwrap();
    fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let context =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    format!(
        "- transport_socket: {{name: envoy.transport_sockets.tls, typed_config: {{\"@type\": {context}, \
         common_tls_context: {{alpn_protocols: [h2], tls_certificates: [{{certificate_chain: {{filename: {}}}, \
         private_key: {{filename: {}}}}}]}}}}}}\n          filters:",
        certificate.display(),
        key.display(),
    )
}

impl World {
    pub(crate) fn new(proxy: Proxy, control: &str) -> Self {
        Self::telling(proxy, control, true)
    }

    /// Whether clients are told of limits by RateLimit fields is said by `fields`.
    pub(crate) fn telling(proxy: Proxy, control: &str, fields: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let back = busy_application();
        let front = free_port();
        let path = |file: &str| dir.path().join(file).display().to_string();
        let completions = proxy.completions(dir.path());
        let reports = match completions.as_str() {
            "" => String::new(),
            at => format!("    completions: {at}\n"),
        };
        let text = format!(
            "services:\n  shop: {{mode: enforce, control: {control}}}\ngateways:\n  edge:\n    adapter: {}\n    \
             listen: unix:{}\n{reports}    rate_limit_fields: {fields}\n    routes: [{{service: shop}}]\n\
             daemon: {{socket: {}, http: off}}\n",
            proxy.adapter(),
            path("edge.sock"),
            path("control.sock"),
        );
        fs::write(dir.path().join("tidegate.yaml"), text).unwrap();
        let proxy = proxy.start(dir.path(), &completions, front, back);
        let mut world = Self { dir, proxy, daemon: None, front, completions };
        wait_for("the proxy listens", || TcpStream::connect(front).ok());
        world.start();
        world
    }

    pub(crate) fn start(&mut self) {
        let path = |file: &str| self.dir.path().join(file);
        let daemon = gate::run(&path("tidegate.yaml"), &path("log"));
        self.daemon = Some(daemon);
        wait_for("the gateway is served", || {
            let snapshot = self.status()?;
            let gateways = snapshot.gateways?.gateways;
            gateways.iter().all(|gateway| gateway.problem.is_empty()).then_some(())
        });
    }

    pub(crate) fn status(&self) -> Option<Snapshot> {
        gate::status(&self.dir.path().join("control.sock"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.daemon.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    /// Stops it. One thread gets the signal and tells the others: until they all stand, it may answer.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.daemon.as_ref().unwrap().id());
        wait_for("all threads stand", || {
            let stands = |task: std::io::Result<fs::DirEntry>| {
                let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
                stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
            };
            fs::read_dir(&tasks).ok()?.map(stands).collect::<Option<Vec<()>>>().map(|_| ())
        });
    }

    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// So many requests, one after the other: their responses.
    pub(crate) fn requests(&self, n: usize) -> Vec<Response> {
        let mut client = Http::connect(self.front);
        (0..n).map(|_| client.get()).collect()
    }

    pub(crate) fn log(&self) -> String {
        let read = |file: &str| fs::read_to_string(self.dir.path().join(file)).unwrap_or_default();
        format!("{}\n{}", read("log"), read("error.log"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // Its workers end with the master only if that is told to.
        let _ = kill_process(Pid::from_child(&self.proxy), Signal::TERM);
        let _ = self.proxy.wait();
    }
}

/// A server that works on one request at a time.
fn busy_application() -> SocketAddr {
    let worker = Arc::new(Mutex::new(()));
    application(move || {
        let busy = worker.lock().unwrap();
        std::thread::park_timeout(WORK);
        drop(busy);
    })
}

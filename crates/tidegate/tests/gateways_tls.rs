// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate on another host, behind the real nginx, HAProxy, Envoy and Caddy: they ask by mutual TLS, as the
//! lines `#tls` of the examples in packaging/ say. The other host is another address of loopback.
//!
//! ```text
//!   client ─► proxy ─► application
//!              │  certificate of the authority: refused by tidegate (503)
//!              │  another one, or none:         not asked, so it passes (200), and is counted
//!              ▼
//!           tidegate
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::gate::{self, ENVOY, application, example, free_port};
use common::{PATIENCE, wait_for};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidegate_model::snapshot::Snapshot;

/// Where the gate listens: no proxy speaks from there.
const GATE: [u8; 4] = [127, 0, 0, 3];
#[derive(Clone, Copy, Debug)]
enum Proxy {
    Nginx,
    Haproxy,
    Envoy,
    Caddy,
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Files with this name in `dir`: `.pem`, `.key`, and `.both` for HAProxy.
    fn sign(&self, dir: &Path, name: &str) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // OpenSSL takes one whose issuer has the same name for its own authority.
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let (certificate, key) =
            (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem());
        for (end, text) in
            [("pem", &certificate), ("key", &key), ("both", &format!("{certificate}{key}"))]
        {
            fs::write(dir.join(format!("{name}.{end}")), text).unwrap();
        }
    }
}

/// A proxy that runs.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

struct World {
    dir: tempfile::TempDir,
    proxy: Proxy,
    daemon: Child,
    gate: SocketAddr,
    back: SocketAddr,
    completions: String,
}

impl World {
    fn new(proxy: Proxy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = |file: &str| dir.path().join(file).display().to_string();
        let trusted = Authority::new("proxies");
        fs::write(path("authority.pem"), trusted.0.pem()).unwrap();
        trusted.sign(dir.path(), "tidegate");
        trusted.sign(dir.path(), "proxy");
        Authority::new("elsewhere").sign(dir.path(), "stranger");
        let gate = SocketAddr::new(GATE.into(), free_port().port());
        let completions = match proxy {
            Proxy::Envoy => String::new(),
            Proxy::Caddy => free_port().to_string(),
            _ => format!("unix:{}", path("edge.log")),
        };
        let reports = match completions.as_str() {
            "" => String::new(),
            at => format!("    completions: {at}\n"),
        };
        let adapter = format!("{proxy:?}").to_lowercase();
        let text = format!(
            "services:\n  shop: {{mode: enforce, control: {{name: fixed, rate: 1/s, burst: 1}}}}\ngateways:\n  \
             edge:\n    adapter: {adapter}\n    listen: {gate}\n{reports}    \
             tls: {{certificate: {}, key: {}, ca_file: {}}}\n    routes: [{{service: shop}}]\n\
             daemon: {{socket: {}, http: off}}\n",
            path("tidegate.pem"),
            path("tidegate.key"),
            path("authority.pem"),
            path("control.sock"),
        );
        fs::write(path("tidegate.yaml"), text).unwrap();
        let daemon = gate::run(path("tidegate.yaml").as_ref(), path("log").as_ref());
        let back = application(|| ());
        let world = Self { dir, proxy, daemon, gate, back, completions };
        wait_for("the limit is in force", || {
            let snapshot = world.status()?;
            let served = snapshot.gateways?.gateways[0].problem.is_empty();
            snapshot.services[0].limits.rate.filter(|_| served)
        });
        world
    }

    fn path(&self, file: &str) -> String {
        self.dir.path().join(file).display().to_string()
    }

    fn status(&self) -> Option<Snapshot> {
        gate::status(&self.dir.path().join("control.sock"))
    }

    /// Handshakes that have failed.
    fn failed(&self) -> u64 {
        let gateways = self.status().unwrap().gateways.unwrap().gateways;
        gateways[0].tls.as_ref().unwrap().handshakes_failed
    }

    fn log(&self) -> String {
        let read = |file: &str| fs::read_to_string(self.path(file)).unwrap_or_default();
        let last = |text: String| text.lines().rev().take(20).collect::<Vec<_>>().join("\n");
        format!("{}\n{}", last(read("log")), last(read("error.log")))
    }

    /// Starts the proxy, which shows the certificate of this name, or none: where it listens.
    fn start(&self, shown: Option<&str>) -> (Running, SocketAddr) {
        let front = free_port();
        let child = match self.proxy {
            Proxy::Nginx => self.nginx(shown, front),
            Proxy::Haproxy => self.haproxy(shown, front),
            Proxy::Envoy => self.envoy(shown, front),
            Proxy::Caddy => self.caddy(shown, front),
        };
        let running = Running(child);
        wait_for("the proxy listens", || TcpStream::connect(front).ok());
        (running, front)
    }

    fn run(&self, program: &str, args: &[&str], conf: &str) -> Child {
        fs::write(self.path("conf"), conf).unwrap();
        let log = fs::File::create(self.path("error.log")).unwrap();
        let mut command = Command::new(program);
        command.args(args).arg(self.path("conf")).current_dir(self.dir.path());
        command.env("HOME", self.dir.path()).env("XDG_DATA_HOME", self.dir.path());
        command.env("XDG_CONFIG_HOME", self.dir.path());
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn nginx(&self, shown: Option<&str>, front: SocketAddr) -> Child {
        let folder = "/etc/nginx/tidegate/";
        let own = match shown {
            Some(name) => ("proxy_ssl_certificate", format!("{folder}{name}.")),
            None => ("# no certificate: proxy_ssl_certificate", format!("{folder}proxy.")),
        };
        let http = example(
            "nginx.conf",
            &[
                ("#tls proxy_ssl_certificate", format!("#tls {}", own.0)),
                ("/etc/nginx/tidegate/proxy.", own.1),
                ("server unix:/run/tidegate/edge.sock;", String::new()),
                (
                    "        proxy_pass http://tidegate/?slot=$tidegate_slot_high$tidegate_slot_low&at=$tidegate_tenth&turn=$pid-$msec;\n",
                    String::new(),
                ),
                ("#tls ", String::new()),
                ("192.0.2.10:9470", self.gate.to_string()),
                (folder, format!("{}/", self.dir.path().display())),
                ("/run/tidegate/edge.log", self.path("edge.log")),
                ("127.0.0.1:8080", self.back.to_string()),
                ("listen 80;", format!("listen {front};")),
            ],
        );
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|of| format!("{of}_temp_path {};\n", self.path(of)));
        let conf = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {};\nerror_log stderr warn;\n\
             events {{}}\nhttp {{\n{}{http}}}\n",
            self.path("nginx.pid"),
            temporary.concat(),
        );
        self.run("nginx", &["-p", &self.path(""), "-c"], &conf)
    }

    fn haproxy(&self, shown: Option<&str>, front: SocketAddr) -> Child {
        fs::write(self.path("spoe.cfg"), example("haproxy-spoe.cfg", &[])).unwrap();
        let show = shown
            .map_or(String::new(), |name| format!("crt {} ", self.path(&format!("{name}.both"))));
        let text = example(
            "haproxy.cfg",
            &[
                ("    server gate 127.0.0.1:9470\n", String::new()),
                ("crt /etc/haproxy/tidegate/proxy.pem ", show),
                ("#tls ", String::new()),
                ("192.0.2.10:9470", self.gate.to_string()),
                ("/etc/haproxy/tidegate/", format!("{}/", self.dir.path().display())),
                ("/etc/haproxy/tidegate-spoe.cfg", self.path("spoe.cfg")),
                ("127.0.0.1:9471", self.path("edge.log")),
                ("127.0.0.1:8080", self.back.to_string()),
                ("bind :80 ", format!("bind {front} ")),
            ],
        );
        let conf = format!("global\n    nbthread 1\n    maxconn 256\n{text}");
        self.run("haproxy", &["-db", "-f"], &conf)
    }

    fn envoy(&self, shown: Option<&str>, front: SocketAddr) -> Child {
        let folder = "/etc/envoy/tidegate/";
        let indent = "      #tls       ";
        let certificate = format!(
            "{indent}tls_certificates:\n{indent}  - certificate_chain: {{filename: {folder}proxy.pem}}\n\
             {indent}    private_key: {{filename: {folder}proxy.key}}\n"
        );
        let own =
            shown.map_or(String::new(), |name| certificate.replace("proxy.", &format!("{name}.")));
        let pipe = "              - endpoint: {address: {pipe: {path: /run/tidegate/edge.sock}}} # `listen` of the gateway\n";
        let at = format!("address: {}, port_value: {}", self.gate.ip(), self.gate.port());
        let conf = example(
            "envoy.yaml",
            &[
                (certificate.as_str(), own),
                (pipe, String::new()),
                ("#tls ", String::new()),
                ("address: 192.0.2.10, port_value: 9470", at),
                (folder, format!("{}/", self.dir.path().display())),
                ("port_value: 8080", format!("port_value: {}", self.back.port())),
                (
                    "{address: 0.0.0.0, port_value: 80}",
                    format!("{{address: 127.0.0.1, port_value: {}}}", front.port()),
                ),
            ],
        );
        fs::write(self.path("conf.yaml"), &conf).unwrap();
        let args = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"];
        let conf = self.path("conf.yaml");
        let mut envoy = Command::new(ENVOY);
        envoy.args(args).args(["--log-path", &self.path("error.log"), "-c", &conf]);
        envoy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn caddy(&self, shown: Option<&str>, front: SocketAddr) -> Child {
        let folder = "/etc/caddy/tidegate/";
        let show =
            "#tls tls_client_auth /etc/caddy/tidegate/proxy.pem /etc/caddy/tidegate/proxy.key\n";
        let own = shown.map_or("\n".into(), |name| show.replace("proxy.", &format!("{name}.")));
        let text = example(
            "Caddyfile",
            &[
                (show, own),
                ("\t\tforward_auth unix//run/tidegate/edge.sock {\n", String::new()),
                ("#tls ", String::new()),
                ("192.0.2.10:9470", self.gate.to_string()),
                (folder, format!("{}/", self.dir.path().display())),
                ("127.0.0.1:9471", self.completions.clone()),
                ("127.0.0.1:8080", self.back.to_string()),
                ("\nshop.example {", format!("\nhttp://shop.example:{} {{", front.port())),
            ],
        );
        let conf = format!("{{\n\tadmin off\n\tskip_install_trust\n}}\n{text}");
        self.run("caddy", &["run", "--adapter", "caddyfile", "--config"], &conf)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{:?}", self.log(), self.status().and_then(|status| status.gateways));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// So many requests, each by a connection of its own: their statuses.
fn statuses(front: SocketAddr, n: usize) -> Vec<u16> {
    let ask = |_| {
        let mut stream = TcpStream::connect(front).unwrap();
        stream.set_read_timeout(Some(PATIENCE.into())).unwrap();
        let port = front.port();
        let request =
            format!("GET / HTTP/1.1\r\nHost: shop.example:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    };
    (0..n).map(ask).collect()
}

fn asks_by_mutual_tls_only(proxy: Proxy) {
    let world = World::new(proxy);
    let (running, front) = world.start(Some("proxy"));
    wait_for("it is asked", || statuses(front, 5).contains(&503).then_some(()));
    assert_eq!(world.failed(), 0, "{}", world.log());
    wait_for("it reports", || {
        statuses(front, 1);
        (world.status()?.gateways?.reports.completed > 0).then_some(())
    });
    drop(running);
    for shown in [Some("stranger"), None] {
        let before = world.failed();
        let (_running, front) = world.start(shown);
        let told = statuses(front, 10);
        assert!(told.iter().all(|status| *status == 200), "{shown:?}: {told:?}\n{}", world.log());
        wait_for("it is counted", || {
            statuses(front, 1);
            (world.failed() > before).then_some(())
        });
    }
    wait_for("somebody is told", || {
        let warnings = world.status()?.warnings;
        let told = |warning: &String| {
            warning.starts_with("gateway edge: tls: ") && warning.contains("127.0.0.")
        };
        warnings.iter().any(told).then_some(())
    });
    let log = fs::read_to_string(world.path("log")).unwrap();
    assert!(log.contains("closed in their TLS handshake"), "{log}");
}

#[test]
fn nginx_asks_by_mutual_tls_only() {
    asks_by_mutual_tls_only(Proxy::Nginx);
}

#[test]
fn haproxy_asks_by_mutual_tls_only() {
    asks_by_mutual_tls_only(Proxy::Haproxy);
}

#[test]
fn envoy_asks_by_mutual_tls_only() {
    asks_by_mutual_tls_only(Proxy::Envoy);
}

#[test]
fn caddy_asks_by_mutual_tls_only() {
    asks_by_mutual_tls_only(Proxy::Caddy);
}

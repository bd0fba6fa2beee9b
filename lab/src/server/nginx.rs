// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx: static files, or in front of a slow upstream of bounded concurrency.

use super::tiny::{TinyOptions, command as tiny_command};
use super::{Server, listens, tls};
use crate::error::Result;
use crate::lab::{Lab, START_LIMIT};
use crate::load::Transport;
use crate::os;
use std::path::Path;

/// How nginx is set up.
#[derive(Clone, Debug, PartialEq)]
pub struct NginxOptions {
    /// Port (default 80).
    pub port: u16,
    /// `worker_connections` (default 768, Debian's).
    pub connections: u32,
    /// What it passes requests on to; `None` serves a static file.
    pub upstream: Option<TinyOptions>,
    /// How requests to it are carried (default: in cleartext); to the upstream they are in
    /// cleartext, one a connection.
    pub transport: Transport,
}

impl Default for NginxOptions {
    fn default() -> Self {
        Self { port: 80, connections: 768, upstream: None, transport: Transport::Clear }
    }
}

/// The frame of a configuration: so many workers with so many connections each, all files in
/// `dir`. `http` goes into the http block.
pub(crate) fn frame(dir: &Path, (workers, connections): (usize, u32), http: &str) -> String {
    let dir = os::text(dir);
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nworker_processes {workers};\nuser www-data;\npid {dir}/nginx.pid;\n\
         error_log {dir}/error.log;\nevents {{ worker_connections {connections}; epoll_events 4096; }}\n\
         http {{\n{temporary}log_format lab '$remote_addr $status $request_time';\n\
         access_log {dir}/access.log lab;\n{http}}}\n"
    )
}

/// Writes a configuration that nginx's workers may read.
pub(crate) fn write(dir: &Path, config: &str) -> Result<()> {
    os::write(&dir.join("nginx.conf"), config)?;
    os::share(dir)
}

/// The words that start nginx with the configuration of a directory.
pub(crate) fn command(dir: &Path) -> Result<Vec<String>> {
    let program = os::text(&os::find_program("nginx")?);
    let path = |name: &str| os::text(&dir.join(name));
    // -e: until the configuration is read, nginx would log to the system's place.
    let words = ["-p", &os::text(dir), "-e", &path("error.log"), "-c", &path("nginx.conf")];
    Ok(std::iter::once(program).chain(words.map(str::to_owned)).collect())
}

/// Starts nginx with a configuration and waits until it listens.
pub(crate) fn start_with(
    lab: &Lab,
    dir: &Path,
    config: &str,
    port: u16,
) -> Result<crate::process::Managed> {
    write(dir, config)?;
    let command = command(dir)?;
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let process = lab.start_on_server("nginx", &words)?;
    let pid = process.pid();
    os::wait_or_fail("nginx to listen", START_LIMIT, Some(&dir.join("error.log")), || {
        listens(pid, port)
    })?;
    Ok(process)
}

pub(crate) fn start(lab: &Lab, options: &NginxOptions) -> Result<Server> {
    let dir = lab.private_dir("nginx")?;
    os::make_dir(&dir.join("www"))?;
    os::write(&dir.join("www/index.html"), "ok\n")?;
    let mut behind = Vec::new();
    let place = match &options.upstream {
        None => format!("root {}/www;", dir.display()),
        Some(upstream) => {
            let command = tiny_command(lab, upstream)?;
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let process = lab.start_on_server("upstream", &words)?;
            let (pid, log) = (process.pid(), process.log().to_path_buf());
            os::wait_or_fail("the upstream to listen", START_LIMIT, Some(&log), || {
                listens(pid, upstream.port)
            })?;
            behind.push(process);
            format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", upstream.port)
        }
    };
    let port = options.port;
    let (listen, ssl) = match options.transport {
        Transport::Clear => ("", String::new()),
        Transport::Tls => (" ssl", secured(&dir)?),
        Transport::H2 => (" ssl http2", secured(&dir)?),
    };
    let http = format!(
        "server {{ listen {port}{listen}; listen [::]:{port}{listen}; server_name lab.test; \
         {ssl}{place} }}\n"
    );
    let process = start_with(lab, &dir, &frame(&dir, (1, options.connections), &http), port)?;
    let (access_log, path) = (Some(dir.join("access.log")), "/index.html".to_owned());
    let transport = options.transport;
    Ok(Server { behind, path, access_log, transport, ..Server::new(process, port) })
}

/// Makes a certificate; gives what the configuration says of it.
fn secured(dir: &Path) -> Result<String> {
    let files = tls::make(dir)?;
    let (certificate, key) = (os::text(&files.certificate), os::text(&files.key));
    Ok(format!("ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3; "))
}

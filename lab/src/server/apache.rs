// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Apache httpd with the multi-processing modules that Debian ships, at Debian's defaults.

use super::{Cost, Server, listens, tls};
use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::load::{Mix, Transport};
use crate::os;
use std::fmt::Write;
use std::path::Path;
use tidegate_units::Nanos;
use tidegate_workload::{DYNAMIC_PREFIX, DYNAMIC_PROGRAM, Surge, SurgeSpec};

/// The source of the CGI program, built when a server is set up.
const WORK_C: &str = include_str!("../../c/work.c");
/// The file of the hook that takes `work`.
const WORK_LUA: &str = "work.lua";
/// What one of `checks` hashes.
const CHECK_BYTES: usize = 1024;
/// Most of `checks`.
const CHECKS_MAX: u32 = 10_000;
/// Where Debian keeps the modules.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Which multi-processing module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpm {
    /// One process a connection, CGI by fork (mod_cgi).
    Prefork,
    /// Threads, CGI through a daemon (mod_cgid).
    Event,
}

/// How Apache starts CGI programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cgi {
    /// As Debian does: threads through a daemon, else by fork.
    ByMpm,
    /// Through a daemon (mod_cgid), also with one process a connection: the fork is of a small
    /// process then.
    Daemon,
}

/// How Apache is set up. The defaults are those of Debian's packages.
#[derive(Clone, Debug, PartialEq)]
pub struct ApacheOptions {
    /// Which module.
    pub mpm: Mpm,
    /// Cost of the CGI; `None` serves a static file.
    pub cgi: Option<Cost>,
    /// Port (default 80).
    pub port: u16,
    /// `ListenBacklog` (default: not set, which is 511).
    pub listen_backlog: Option<u32>,
    /// `MaxRequestWorkers` (default 150).
    pub workers: u32,
    /// Files as SURGE makes them, with a CGI that answers dynamic requests: its usual requests are
    /// drawn from them then, and `cgi` is what a dynamic one costs beyond its start.
    pub files: Option<SurgeSpec>,
    /// How CGI programs are started.
    pub start: Cgi,
    /// Whether the kernel wakes it only for requests, not for connections (TCP_DEFER_ACCEPT:
    /// `AcceptFilter http data`, Apache's own default).
    pub defer_accept: bool,
    /// Whether it refuses everything by its own 503 (mod_rewrite).
    pub busy: bool,
    /// Hashes of 1 KiB that every request costs (`SetEnvIfExpr`), as sites do that sign their
    /// links: CPU time that files cost, too. At most 10,000.
    pub checks: u32,
    /// CPU time that every request costs besides (mod_lua), by the process's clock instead of by a
    /// count of instructions: a machine whose speed goes up and down serves about as many. For
    /// prefork: threads share that clock.
    pub work: Nanos,
    /// How requests are carried; HTTP/2 needs threads (mod_http2).
    pub transport: Transport,
    /// Whether mod_reqtimeout bounds how long a request's head may take, as Debian has it
    /// (default: it does not, and a silent connection waits for `Timeout`).
    pub request_timeout: bool,
}

impl ApacheOptions {
    /// Debian's defaults with a CGI of this cost.
    #[must_use]
    pub const fn cgi(mpm: Mpm, cost: Cost) -> Self {
        Self {
            mpm,
            cgi: Some(cost),
            port: 80,
            listen_backlog: None,
            workers: 150,
            files: None,
            start: Cgi::ByMpm,
            defer_accept: true,
            busy: false,
            checks: 0,
            work: Nanos::ZERO,
            transport: Transport::Clear,
            request_timeout: false,
        }
    }

    /// Debian's defaults with SURGE's files and a CGI that costs what its start costs.
    #[must_use]
    pub fn surge(files: SurgeSpec) -> Self {
        let cost = Cost::busy(Nanos::ZERO);
        Self { cgi: None, files: Some(files), ..Self::cgi(Mpm::Prefork, cost) }
    }

    /// What its usual requests are, and the path of the simplest.
    fn usual(&self) -> (String, Option<Mix>) {
        if let Some(files) = &self.files {
            let query = self.cgi.map_or("mean_us=0".to_owned(), |cost| cost.query());
            let small = Surge::new(files).files().first().map(tidegate_workload::SurgeFile::path);
            let mix = Mix { files: files.clone(), query: format!("&{query}") };
            return (small.unwrap_or_default(), Some(mix));
        }
        let path = self.cgi.map(|cost| format!("{DYNAMIC_PREFIX}work?{}", cost.query()));
        (path.unwrap_or_else(|| "/index.html".to_owned()), None)
    }

    fn works(&self) -> bool {
        self.work > Nanos::ZERO
    }

    /// The hook that takes a request's CPU time.
    fn hook(&self) -> String {
        format!(
            "function work()\n\
             local till = os.clock() + {}\n\
             while os.clock() < till do end\n\
             return apache2.DECLINED\n\
             end\n",
            self.work.as_secs_f64()
        )
    }

    fn transport_config(&self, text: &mut String, dir: &str) {
        if self.transport != Transport::Clear {
            let _ = writeln!(
                text,
                "SSLEngine on\nSSLProtocol TLSv1.3\nSSLSessionCache none\n\
                 SSLCertificateFile {dir}/cert.pem\nSSLCertificateKeyFile {dir}/key.pem"
            );
        }
        if self.transport == Transport::H2 {
            let _ = writeln!(text, "Protocols h2 http/1.1");
        }
        if self.request_timeout {
            let limits = "header=20-40,minrate=500 body=10,minrate=500";
            let _ = writeln!(text, "RequestReadTimeout {limits}");
        }
    }

    fn config(&self, dir: &str) -> String {
        let Self { port, workers, .. } = self;
        let (module, sizes) = match self.mpm {
            Mpm::Prefork => {
                ("mpm_prefork", "StartServers 5\nMinSpareServers 5\nMaxSpareServers 10")
            }
            Mpm::Event => (
                "mpm_event",
                "StartServers 2\nMinSpareThreads 25\nMaxSpareThreads 75\nThreadLimit 64\n\
                 ThreadsPerChild 25",
            ),
        };
        let daemon = self.mpm == Mpm::Event || self.start == Cgi::Daemon;
        let modules = [module, if daemon { "cgid" } else { "cgi" }];
        let listen = if self.transport == Transport::Clear { "" } else { " https" };
        let mut text = format!(
            "ServerRoot {dir}\nDefaultRuntimeDir {dir}\nPidFile {dir}/httpd.pid\n\
             ServerName lab.test\nListen {port}{listen}\nUser www-data\nGroup www-data\n"
        );
        let rewrite = self.busy.then_some("rewrite");
        let checks = (self.checks > 0).then_some("setenvif");
        let work = self.works().then_some("lua");
        let http2 = (self.transport == Transport::H2).then_some("http2");
        let ssl = (self.transport != Transport::Clear).then_some("ssl");
        let timeout = self.request_timeout.then_some("reqtimeout");
        let always = ["authz_core", "alias"];
        let chosen = [rewrite, checks, work, ssl, http2, timeout].into_iter().flatten();
        for name in modules.into_iter().chain(always).chain(chosen) {
            let _ = writeln!(text, "LoadModule {name}_module {MODULES}/mod_{name}.so");
        }
        let _ = writeln!(text, "{sizes}\nMaxRequestWorkers {workers}\nMaxConnectionsPerChild 0");
        if self.workers > 256 && self.mpm == Mpm::Prefork {
            let _ = writeln!(text, "ServerLimit {workers}");
        }
        if daemon {
            let _ = writeln!(text, "ScriptSock {dir}/cgisock");
        }
        if !self.defer_accept {
            let _ = writeln!(text, "AcceptFilter http none\nAcceptFilter https none");
        }
        self.transport_config(&mut text, dir);
        if self.busy {
            let _ = writeln!(text, "RewriteEngine On\nRewriteRule ^ - [R=503,L]");
        }
        for number in 0..self.checks.min(CHECKS_MAX) {
            let link = format!("{number:0>CHECK_BYTES$}");
            let _ = writeln!(text, "SetEnvIfExpr \"sha1('{link}') == 'signature'\" signed");
        }
        if self.works() {
            let _ = writeln!(
                text,
                "LuaScope thread\nLuaCodeCache forever\nLuaHookFixups {dir}/{WORK_LUA} work"
            );
        }
        if let Some(backlog) = self.listen_backlog {
            let _ = writeln!(text, "ListenBacklog {backlog}");
        }
        let _ = write!(
            text,
            "ErrorLog {dir}/error.log\nLogFormat \"%h %>s %D\" lab\nCustomLog {dir}/access.log lab\n\
             DocumentRoot {dir}/www\nScriptAlias /cgi-bin/ {dir}/cgi-bin/\n\
             <Directory {dir}>\nRequire all granted\n</Directory>\n"
        );
        text
    }
}

/// Builds the CGI program; statically where the C library allows, as that halves its start-up.
fn build_cgi(dir: &Path) -> Result<()> {
    let source = dir.join("work.c");
    os::write(&source, WORK_C)?;
    let (source, program) = (os::text(&source), os::text(&dir.join("cgi-bin/work")));
    let dynamic = ["-O2", "-o", &program, &source, "-lm"];
    let fixed = ["-O2", "-static", "-o", &program, &source, "-lm"];
    os::run("cc", &fixed).or_else(|_| os::run("cc", &dynamic))?;
    // The same program under the name by which SURGE's dynamic requests ask for it.
    let other = dir.join("cgi-bin").join(DYNAMIC_PROGRAM);
    std::fs::copy(&program, &other).map_err(LabError::io(os::text(&other))).map(drop)
}

/// Makes the files of a catalogue. Their bytes are no holes: they are read from memory.
fn make_files(www: &Path, spec: &SurgeSpec) -> Result<()> {
    let line = b"SURGE-like file of the lab: what it says is of no matter, only how long.\n";
    for file in Surge::new(spec).files() {
        let path = www.join(file.path().trim_start_matches('/'));
        path.parent().map_or(Ok(()), os::make_dir)?;
        let bytes: Vec<u8> = line.iter().copied().cycle().take(file.size as usize).collect();
        os::write(&path, bytes)?;
    }
    Ok(())
}

pub(crate) fn start(lab: &Lab, options: &ApacheOptions) -> Result<Server> {
    let program = os::text(&os::find_program("apache2")?);
    let dir = lab.private_dir("apache")?;
    for sub in ["www", "cgi-bin"] {
        os::make_dir(&dir.join(sub))?;
    }
    os::write(&dir.join("www/index.html"), "ok\n")?;
    if options.transport != Transport::Clear {
        tls::make(&dir)?;
    }
    if options.cgi.is_some() || options.files.is_some() {
        build_cgi(&dir)?;
    }
    if let Some(spec) = &options.files {
        make_files(&dir.join("www"), spec)?;
    }
    if options.works() {
        os::write(&dir.join(WORK_LUA), options.hook())?;
    }
    let (path, mix) = options.usual();
    let config = dir.join("httpd.conf");
    os::write(&config, options.config(&os::text(&dir)))?;
    os::share(&dir)?;
    let config = os::text(&config);
    let command = [program.as_str(), "-f", &config, "-DFOREGROUND"];
    let mut process = lab.start_on_server("apache", &command)?;
    let (pid, log) = (process.pid(), process.log().to_path_buf());
    let ready = os::wait_until(START_LIMIT, || listens(pid, options.port) || !process.running());
    if !ready || !process.running() {
        let said = format!("{}{}", os::log_tail(&log), os::log_tail(&dir.join("error.log")));
        let what = "Apache to listen".to_owned();
        return Err(LabError::Timeout { what, limit_s: START_LIMIT.as_secs_f64(), said });
    }
    let access_log = Some(dir.join("access.log"));
    let transport = options.transport;
    Ok(Server { path, access_log, mix, transport, ..Server::new(process, options.port) })
}

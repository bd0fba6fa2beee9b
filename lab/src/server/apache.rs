// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Apache httpd with the multi-processing modules that Debian ships, at Debian's defaults.

use super::{Cost, Server, listens};
use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use std::fmt::Write;
use std::path::Path;

/// The source of the CGI program, built when a server is set up.
const WORK_C: &str = include_str!("../../c/work.c");
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
}

impl ApacheOptions {
    /// Debian's defaults with a CGI of this cost.
    #[must_use]
    pub const fn cgi(mpm: Mpm, cost: Cost) -> Self {
        Self { mpm, cgi: Some(cost), port: 80, listen_backlog: None, workers: 150 }
    }

    fn config(&self, dir: &str) -> String {
        let Self { port, workers, .. } = self;
        let (modules, sizes) = match self.mpm {
            Mpm::Prefork => (
                ["mpm_prefork", "cgi"],
                "StartServers 5\nMinSpareServers 5\nMaxSpareServers 10".to_owned(),
            ),
            Mpm::Event => (
                ["mpm_event", "cgid"],
                format!(
                    "StartServers 2\nMinSpareThreads 25\nMaxSpareThreads 75\nThreadLimit 64\n\
                     ThreadsPerChild 25\nScriptSock {dir}/cgisock"
                ),
            ),
        };
        let mut text = format!(
            "ServerRoot {dir}\nDefaultRuntimeDir {dir}\nPidFile {dir}/httpd.pid\n\
             ServerName lab.test\nListen {port}\nUser www-data\nGroup www-data\n"
        );
        for name in modules.iter().chain(&["authz_core", "alias"]) {
            let _ = writeln!(text, "LoadModule {name}_module {MODULES}/mod_{name}.so");
        }
        let _ = writeln!(text, "{sizes}\nMaxRequestWorkers {workers}\nMaxConnectionsPerChild 0");
        if self.workers > 256 && self.mpm == Mpm::Prefork {
            let _ = writeln!(text, "ServerLimit {workers}");
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
    os::run("cc", &fixed).or_else(|_| os::run("cc", &dynamic)).map(drop)
}

pub(crate) fn start(lab: &Lab, options: &ApacheOptions) -> Result<Server> {
    let program = os::text(&os::find_program("apache2")?);
    let dir = lab.private_dir("apache")?;
    for sub in ["www", "cgi-bin"] {
        os::make_dir(&dir.join(sub))?;
    }
    os::write(&dir.join("www/index.html"), "ok\n")?;
    let path = match &options.cgi {
        Some(cost) => {
            build_cgi(&dir)?;
            format!("/cgi-bin/work?{}", cost.query())
        }
        None => "/index.html".to_owned(),
    };
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
    Ok(Server { process, behind: Vec::new(), port: options.port, path, access_log })
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Apache with a script engine that has a bounded queue: one request is in service, so many wait in the
//! order in which they came, and the rest is told "too busy" by the engine itself, at a cost that is set.
//!
//! ```text
//!  clients ─► Apache (event, 400 threads) ─► mod_cgid ─► a program for each request:
//!               a place free?  no ─► busy_us of CPU, 503
//!                              yes ─► wait for one's turn ─► work_us of CPU, 200
//!  monitor ── every 5 ms: how many wait? ── UDP: "throttle", "resume" ─► who listens
//! ```
//!
//! `ListenBacklog` cannot be that queue, because nobody answers what does not fit into it. The queue
//! is a set of System V semaphores in an IPC namespace of this server's own, so nothing of it outlives it.

use super::{Server, listens};
use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use crate::process::Managed;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddrV4;
use std::path::Path;
use tidegate_units::Nanos;

/// The source of program and monitor, built when a server is set up.
const QUEUE_C: &str = include_str!("../../c/queue.c");
/// Where Debian keeps the modules.
const MODULES: &str = "/usr/lib/apache2/modules";
/// Requests that Apache has at a time: more than wait, so that "too busy" finds a thread.
const WORKERS: u32 = 400;
/// Most places: each is a process while it is taken.
const PLACES_MAX: u32 = 300;
/// How often the monitor looks at the queue.
const PERIOD: Nanos = Nanos::from_millis(5);

/// How such a server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedOptions {
    /// Port.
    pub port: u16,
    /// Requests that wait or are served; 0: all are told "too busy".
    pub places: u32,
    /// CPU time of the program for a request, beside its start.
    pub work: Nanos,
    /// The same for "too busy".
    pub busy: Nanos,
}

/// Thresholds on the requests that wait: throttled from `onset` on until fewer than `abatement` wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rungs {
    /// Below it the clients resume.
    pub abatement: u32,
    /// From it on they are throttled.
    pub onset: u32,
}

/// What the monitor saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSeen {
    /// On the machine's monotonic clock, in seconds.
    pub at_s: f64,
    /// Requests that wait.
    pub waiting: u32,
    /// Requests served since the start.
    pub served: u32,
    /// Requests told "too busy" since the start.
    pub busy: u32,
}

/// The monitor of a queue; ended by drop.
#[derive(Debug)]
pub struct QueueWatch {
    process: Managed,
}

/// A change: when (monotonic, in seconds), and whether each ladder is throttled from then on.
pub type Change = (f64, Vec<bool>);

pub(crate) fn start(lab: &Lab, options: &QueuedOptions) -> Result<Server> {
    if options.places > PLACES_MAX {
        return Err(LabError::Plan(format!("{} places, at most {PLACES_MAX}", options.places)));
    }
    let apache = os::text(&os::find_program("apache2")?);
    let dir = lab.private_dir("queued")?;
    os::make_dir(&dir.join("www"))?;
    os::make_dir(&dir.join("cgi-bin"))?;
    build(&dir)?;
    let config = dir.join("httpd.conf");
    os::write(&config, config_of(options.port, &os::text(&dir)))?;
    os::share(&dir)?;
    let (program, config) = (os::text(&dir.join("cgi-bin/queue")), os::text(&config));
    let script = format!(
        "'{program}' init {} && exec '{apache}' -f '{config}' -DFOREGROUND",
        options.places
    );
    let command = ["unshare", "--ipc", "sh", "-c", &script];
    let mut process = lab.start_on_server("queued", &command)?;
    // Whatever else the machine does comes after it: else C is what others leave.
    process.group().prefer()?;
    let (pid, log) = (process.pid(), process.log().to_path_buf());
    let ready = os::wait_until(START_LIMIT, || listens(pid, options.port) || !process.running());
    if !ready || !process.running() {
        let said = format!("{}{}", os::log_tail(&log), os::log_tail(&dir.join("error.log")));
        let what = "Apache to listen".to_owned();
        return Err(LabError::Timeout { what, limit_s: START_LIMIT.as_secs_f64(), said });
    }
    let micros = |time: Nanos| time.0 / 1_000;
    let (work, busy) = (micros(options.work), micros(options.busy));
    let path = format!("/cgi-bin/queue?work_us={work}&busy_us={busy}");
    let access_log = Some(dir.join("access.log"));
    Ok(Server { path, access_log, ..Server::new(process, options.port) })
}

/// Statically where the C library allows: it halves what the start of a program costs.
fn build(dir: &Path) -> Result<()> {
    let (source, program) = (dir.join("queue.c"), dir.join("cgi-bin/queue"));
    os::write(&source, QUEUE_C)?;
    let (source, program) = (os::text(&source), os::text(&program));
    let dynamic = ["-O2", "-o", &program, &source];
    let fixed = ["-O2", "-static", "-o", &program, &source];
    os::run("cc", &fixed).or_else(|_| os::run("cc", &dynamic)).map(drop)
}

/// Debian's defaults but for the threads, which are all there from the start: a process that starts
/// while the server is measured is CPU time of nobody.
fn config_of(port: u16, dir: &str) -> String {
    let modules: String = ["mpm_event", "cgid", "authz_core", "alias"]
        .iter()
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"))
        .collect();
    format!(
        "ServerRoot {dir}\nDefaultRuntimeDir {dir}\nPidFile {dir}/httpd.pid\nServerName lab.test\n\
         Listen {port}\nUser www-data\nGroup www-data\n{modules}ScriptSock {dir}/cgisock\n\
         ServerLimit 8\nStartServers 8\nThreadLimit 64\nThreadsPerChild 50\nMinSpareThreads 50\n\
         MaxSpareThreads {WORKERS}\nMaxRequestWorkers {WORKERS}\nMaxConnectionsPerChild 0\n\
         ErrorLog {dir}/error.log\nLogFormat \"%h %>s %D\" lab\nCustomLog {dir}/access.log lab\n\
         DocumentRoot {dir}/www\nScriptAlias /cgi-bin/ {dir}/cgi-bin/\n\
         <Directory {dir}>\nRequire all granted\n</Directory>\n"
    )
}

/// Starts the monitor beside the load. It tells `to` of each change, and again while it lasts, every
/// `repeat`.
pub(crate) fn watch(
    lab: &Lab,
    server: &Server,
    (ladders, repeat): (&[Rungs], Nanos),
    to: SocketAddrV4,
) -> Result<QueueWatch> {
    let log = server.access_log.as_deref().and_then(Path::parent);
    let program = log.map(|dir| dir.join("cgi-bin/queue")).filter(|path| path.is_file());
    let program = program.ok_or_else(|| LabError::Missing("a server with a queue".into()))?;
    let ipc = format!("--ipc=/proc/{}/ns/ipc", server.process.pid());
    let (period, repeat) = ((PERIOD.0 / 1_000).to_string(), (repeat.0 / 1_000_000).to_string());
    let (address, port) = (to.ip().to_string(), to.port().to_string());
    let rungs = ladders.iter().map(|r| format!("{}:{}", r.abatement, r.onset));
    let program = os::text(&program);
    let words = ["nsenter", &ipc, &program, "watch", &period, &repeat, &address, &port];
    let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).chain(rungs).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let process = lab.start_on_edge("watch", &words)?;
    let watch = QueueWatch { process };
    let said = watch.process.log();
    os::wait_or_fail("the queue's monitor", START_LIMIT, Some(said), || !watch.seen().is_empty())?;
    Ok(watch)
}

impl QueueWatch {
    /// The lines of a kind from a place of its log on; the place moves to the end of what was read.
    fn lines(&self, kind: &str, from: &mut u64) -> Vec<Vec<f64>> {
        let mut text = String::new();
        let read = File::open(self.process.log()).and_then(|mut log| {
            log.seek(SeekFrom::Start(*from))?;
            log.read_to_string(&mut text)
        });
        // The last line may be half written.
        let whole = read.ok().and_then(|_| text.rfind('\n')).map_or("", |end| &text[..=end]);
        *from += whole.len() as u64;
        let of_kind = whole.lines().filter_map(|line| line.strip_prefix(kind));
        of_kind.filter_map(|line| line.split(' ').map(|word| word.parse().ok()).collect()).collect()
    }

    /// Everything that it saw, twenty times a second.
    #[must_use]
    pub fn seen(&self) -> Vec<QueueSeen> {
        let seen = |line: &Vec<f64>| match line[..] {
            [at_s, waiting, served, busy] => Some(QueueSeen {
                at_s,
                waiting: waiting as u32,
                served: served as u32,
                busy: busy as u32,
            }),
            _ => None,
        };
        self.lines("q ", &mut 0).iter().filter_map(seen).collect()
    }

    /// All changes from a place of its log on, 0 for all; the place moves on.
    #[must_use]
    pub fn changes(&self, from: &mut u64) -> Vec<Change> {
        let change = |line: &Vec<f64>| {
            let (at, on) = line.split_first()?;
            Some((*at, on.iter().map(|on| *on > 0.0).collect()))
        };
        self.lines("t ", from).iter().filter_map(change).collect()
    }
}

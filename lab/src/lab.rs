// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab itself: what holds everything together and takes it away.

use crate::cgroup::{Cgroups, Group};
use crate::error::{LabError, Result};
use crate::flood::{Flood, SPOOFED};
use crate::gate::{self, Gate, GateOptions};
use crate::graph::{Graph, GraphSpec};
use crate::guard::Guard;
use crate::helper::Helper;
use crate::idle::IdleMeter;
use crate::load::{
    self, Arrive, Capacity, CapacityOptions, LoadPlan, LoadReport, Place, Progress, Script, Stream,
};
use crate::os;
use crate::process::{Launch, Managed};
use crate::product::{self, Product, ProductConfig};
use crate::registry;
use crate::road::Road;
use crate::server::tiny::TinyOptions;
use crate::server::{
    ApacheOptions, EdgeOptions, EdgeProxy, Front, FrontKind, NftLimit, NftRule, NginxOptions,
    NodeOptions, QueueWatch, QueuedOptions, Rungs, Server, apache, edge, front, listens, nft,
    nginx, node, queued, tiny,
};
use crate::shape::{self, Shaped, Shaping};
use crate::site::{self, Foreign, Site, SiteKind};
use crate::topology::{self, NetworkOptions, Role};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use tidegate_units::{Nanos, Share};

/// How long a server or the product may take until it listens.
pub(crate) const START_LIMIT: Nanos = Nanos::from_secs(15);

/// How a lab is made.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// The program behind guard, load and small server.
    pub helper: Helper,
    /// CPU of the servers and of rivals (default 0).
    pub server_cpu: usize,
    /// CPU of the load (default 1; 0 on a machine with one CPU).
    pub load_cpu: usize,
    /// CPU of the product's daemon; `None` (default) is the server's, so that its cost is charged
    /// to the server.
    pub product_cpu: Option<usize>,
    /// Servers, rivals and the product may use every CPU, that of the load included (default
    /// `false`). Then whatever a packet costs in the kernel is taken from the server, too. The load
    /// goes first on its CPU, so that arrivals stay punctual.
    pub shared: bool,
    /// Something else runs on the load's CPU, proxies for example ([`Lab::start_edge`]): the load goes
    /// first there, so that arrivals stay punctual (default `false`).
    pub load_first: bool,
    /// The network.
    pub network: NetworkOptions,
}

impl LabOptions {
    /// The defaults with this helper.
    #[must_use]
    pub fn new(helper: Helper) -> Self {
        Self {
            helper,
            server_cpu: 0,
            load_cpu: usize::from(all_cpus() > 1),
            product_cpu: None,
            shared: false,
            load_first: false,
            network: NetworkOptions::default(),
        }
    }
}

/// How many CPUs there are.
fn all_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How a server's CPU is taken away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CpuCut {
    /// By quota of its cgroup: it gets this share of its CPU, which looks idle for the rest.
    Quota(Share),
    /// By a competitor of equal weight on the same CPU, which then looks busy: the server gets half.
    Competitor,
}

/// CPU time taken away; given back by drop.
#[derive(Debug)]
pub struct CpuCutGuard {
    limited: Vec<Group>,
    _competitor: Option<Managed>,
}

impl Drop for CpuCutGuard {
    fn drop(&mut self) {
        for group in &self.limited {
            // The group is gone where the server is.
            if let Err(error) = group.limit_cpu(None)
                && group.path().exists()
            {
                tracing::warn!(%error, "cannot give the CPU back");
            }
        }
    }
}

/// A laboratory: client, router and server in namespaces of their own. Removed by drop, and by its
/// guard when this process ends in any other way.
///
/// Servers, product and load keep no reference to it: drop it last, or they die with it.
#[derive(Debug)]
pub struct Lab {
    id: String,
    options: LabOptions,
    cgroups: Cgroups,
    guard: Option<Guard>,
    names: AtomicU32,
    /// Where servers stand, if not on the plain host.
    serves_in: Mutex<Option<String>>,
}

impl Lab {
    /// Makes a lab. First it removes the labs of processes that are dead.
    ///
    /// # Errors
    /// Without root, cgroup2 or one of the programs needed; or what the failing step said. Nothing
    /// is left behind then.
    pub fn new(options: LabOptions) -> Result<Self> {
        topology::check_programs()?;
        let (swept, problems) = registry::sweep();
        if !swept.is_empty() || !problems.is_empty() {
            tracing::info!(?swept, ?problems, "removed labs whose owners are dead");
        }
        let id = registry::reserve()?;
        let made = Self::make(&id, options);
        if made.is_err() {
            registry::teardown(&id);
        }
        made
    }

    fn make(id: &str, options: LabOptions) -> Result<Self> {
        // The guard comes first: from here on whatever is made has someone to remove it.
        let guard = Guard::start(&options.helper, id)?;
        let cgroups = Cgroups::create(id)?;
        topology::create(id, &options.network)?;
        let bpf = registry::dir(id).join("bpf");
        os::make_dir(&bpf)?;
        os::run("mount", &["-t", "bpf", "-o", "mode=0700", "bpf", &os::text(&bpf)])?;
        let (id, names) = (id.to_owned(), AtomicU32::new(0));
        let serves_in = Mutex::default();
        Ok(Self { id, options, cgroups, guard: Some(guard), names, serves_in })
    }

    /// The lab's id: prefix of its namespaces, name of its directory and cgroups.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The lab's directory: configurations, logs, sockets.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        registry::dir(&self.id)
    }

    /// Where the product pins, on a BPF file system of the lab's own.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.dir().join("bpf/tidegate")
    }

    /// The path of a namespace: for `nsenter --net=` and for setns.
    #[must_use]
    pub fn namespace(&self, role: Role) -> PathBuf {
        role.path(&self.id).into()
    }

    /// The guard's process id.
    #[must_use]
    pub fn guard_pid(&self) -> u32 {
        self.guard.as_ref().map_or(0, Guard::pid)
    }

    /// Where servers that are started next stand.
    pub(crate) fn serve_in(&self, namespace: Option<String>) {
        *self.serves_in.lock().unwrap_or_else(PoisonError::into_inner) = namespace;
    }

    /// The CPU of the load.
    pub(crate) const fn load_cpu(&self) -> usize {
        self.options.load_cpu
    }

    /// The CPU of the servers.
    pub(crate) const fn server_cpu(&self) -> usize {
        self.options.server_cpu
    }

    pub(crate) const fn helper(&self) -> &Helper {
        &self.options.helper
    }

    /// A name not used in this lab before.
    fn unique(&self, name: &str) -> String {
        format!("{name}-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// A new directory for a server's files.
    pub(crate) fn private_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir().join(self.unique(name));
        os::make_dir(&dir)?;
        Ok(dir)
    }

    /// Runs a program to its end in a namespace, with text on its standard input; gives its output.
    ///
    /// # Errors
    /// When it cannot be started or ends badly, with what it said.
    pub fn run_in(&self, role: Role, command: &[&str], input: &str) -> Result<String> {
        topology::inside(&self.id, role, command, input)
    }

    /// Starts a process in a namespace, on a CPU, in a cgroup of its own; killed by drop.
    ///
    /// # Errors
    /// When cgroup or log cannot be made, or the shell not started. A program that is missing shows
    /// by its end and in its log.
    pub fn start_in(
        &self,
        role: Role,
        cpu: usize,
        name: &str,
        command: &[&str],
    ) -> Result<Managed> {
        self.start_at(role.path(&self.id), cpu, name, command)
    }

    /// The same in the namespace that lies at `net`.
    pub(crate) fn start_at(
        &self,
        net: String,
        cpu: usize,
        name: &str,
        command: &[&str],
    ) -> Result<Managed> {
        self.launch(net, cpu.to_string(), name, (command, false))
    }

    fn launch(
        &self,
        net: String,
        cpus: String,
        name: &str,
        command: (&[&str], bool),
    ) -> Result<Managed> {
        self.launch_within(None, (net, cpus), name, command)
    }

    /// Launches it with so much memory, if that is limited.
    fn launch_within(
        &self,
        memory: Option<u64>,
        (net, cpus): (String, String),
        name: &str,
        (command, piped): (&[&str], bool),
    ) -> Result<Managed> {
        let name = self.unique(name);
        Managed::start(Launch {
            net,
            cpus,
            group: self.cgroups.group(&name, memory)?,
            command: command.iter().map(|w| (*w).to_owned()).collect(),
            log: self.dir().join(format!("{name}.log")),
            piped,
        })
    }

    pub(crate) fn start_on_server(&self, name: &str, command: &[&str]) -> Result<Managed> {
        self.start_on_server_within(None, name, command)
    }

    fn start_on_server_within(
        &self,
        memory: Option<u64>,
        name: &str,
        command: &[&str],
    ) -> Result<Managed> {
        let cpus = self.cpus_of(self.options.server_cpu);
        let stands = self.serves_in.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let net = stands.unwrap_or_else(|| Role::Server.path(&self.id));
        self.launch_within(memory, (net, cpus), name, (command, false))
    }

    /// Threads of a proxy: one for each CPU that it may use, as their documentation has it.
    pub(crate) fn front_threads(&self) -> usize {
        if self.options.shared { all_cpus() } else { 1 }
    }

    /// The CPUs of what usually stays on one.
    fn cpus_of(&self, cpu: usize) -> String {
        if self.options.shared { format!("0-{}", all_cpus() - 1) } else { cpu.to_string() }
    }

    /// Starts a proxy on the load's CPU: so it takes nothing from the server.
    pub(crate) fn start_on_edge(&self, name: &str, command: &[&str]) -> Result<Managed> {
        let net = Role::Server.path(&self.id);
        self.launch(net, self.options.load_cpu.to_string(), name, (command, false))
    }

    pub(crate) fn start_product_process(&self, command: &[&str]) -> Result<Managed> {
        self.start_product_process_in(Role::Server.path(&self.id), command)
    }

    pub(crate) fn start_product_process_in(
        &self,
        net: String,
        command: &[&str],
    ) -> Result<Managed> {
        let cpu = self.options.product_cpu.unwrap_or(self.options.server_cpu);
        self.launch(net, self.cpus_of(cpu), "daemon", (command, false))
    }

    /// Starts a process in a namespace, on the load's CPU.
    pub(crate) fn start_beside(&self, net: String, name: &str, words: &[&str]) -> Result<Managed> {
        self.start_at(net, self.options.load_cpu, name, words)
    }

    /// Starts Apache and waits until it listens.
    ///
    /// # Errors
    /// When it does not, with the end of its logs.
    pub fn start_apache(&self, options: &ApacheOptions) -> Result<Server> {
        apache::start(self, options)
    }

    /// Starts Apache with a bounded queue in front of its script engine and waits until it listens.
    ///
    /// # Errors
    /// When it does not, with the end of its logs.
    pub fn start_queued(&self, options: &QueuedOptions) -> Result<Server> {
        queued::start(self, options)
    }

    /// Starts the monitor of such a server's queue. It tells `to`, in the client's namespace, by UDP
    /// which ladders are throttled: at each change, and every `repeat` while one is.
    ///
    /// # Errors
    /// When the server has no queue, or the monitor sees none.
    pub fn watch_queue(
        &self,
        server: &Server,
        (ladders, repeat): (&[Rungs], Nanos),
        to: SocketAddrV4,
    ) -> Result<QueueWatch> {
        queued::watch(self, server, (ladders, repeat), to)
    }

    /// Starts nginx (and its upstream) and waits until it listens.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub fn start_nginx(&self, options: &NginxOptions) -> Result<Server> {
        nginx::start(self, options)
    }

    /// Starts Node.js and waits until it listens.
    ///
    /// # Errors
    /// When it does not, with the end of its log; or without Node.
    pub fn start_node(&self, options: &NodeOptions) -> Result<Server> {
        node::start(self, options)
    }

    /// Starts the small server and waits until it listens.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub fn start_tiny(&self, options: &TinyOptions) -> Result<Server> {
        let command = tiny::command(self, options)?;
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let memory = options.pages.as_ref().map(|pages| pages.memory);
        let process = self.start_on_server_within(memory, "tiny", &words)?;
        let (pid, log) = (process.pid(), process.log().to_path_buf());
        os::wait_or_fail("the small server to listen", START_LIMIT, Some(&log), || {
            listens(pid, options.port)
        })?;
        Ok(Server::new(process, options.port))
    }

    /// Starts a proxy on `port` in front of a server (which then listens on another port).
    ///
    /// # Errors
    /// When it does not listen in time, or the program is missing.
    pub fn start_front(&self, kind: &FrontKind, behind: &Server, port: u16) -> Result<Front> {
        front::start(self, kind, behind, port)
    }

    /// Starts a proxy of a gateway on `port`, on the load's CPU, in front of a server.
    ///
    /// # Errors
    /// When it does not listen in time, the program is missing, or it has no such limit.
    pub fn start_edge(
        &self,
        options: &EdgeOptions<'_>,
        behind: &Server,
        port: u16,
    ) -> Result<Server> {
        edge::start(self, options, behind, port)
    }

    /// Starts the product as the gate of a proxy, without interfaces and without privileges, and
    /// waits until it serves.
    ///
    /// # Errors
    /// As [`Lab::start_product`].
    pub fn start_gate(&self, program: &Path, proxy: &EdgeProxy) -> Result<Gate> {
        gate::start(self, program, proxy)
    }

    /// The same as an operator's file says: services, routes, and tidegate's own proxy as well.
    ///
    /// # Errors
    /// As [`Lab::start_product`].
    pub fn start_gate_with(&self, program: &Path, options: &GateOptions) -> Result<Gate> {
        gate::start_with(self, program, options)
    }

    /// The sections `cluster` of a server's daemon and of a gate's, so that the server gives remote limits
    /// to these services of the gate, with certificates made anew.
    ///
    /// # Errors
    /// When they cannot be made or written.
    pub fn cluster(&self, services: &[&str]) -> Result<(serde_json::Value, serde_json::Value)> {
        gate::cluster(self, services)
    }

    /// Floods with SYNs of spoofed senders, until what it gives is dropped. The senders' prefix leads
    /// back to the client's namespace and ends there.
    ///
    /// # Errors
    /// What ip says of the routes; or a rate that cannot be sent.
    pub fn flood(&self, flood: &Flood) -> Result<Managed> {
        let prefix = format!("{}/{}", SPOOFED.0, SPOOFED.1);
        let back = ["ip", "route", "replace", &prefix, "via", topology::CLIENT_V4];
        self.run_in(Role::Router, &back, "")?;
        let end = ["ip", "route", "replace", "blackhole", &prefix];
        self.run_in(Role::Client, &end, "")?;
        let mut command = self.helper().command("flood");
        command.push(flood.json()?);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        self.start_in(Role::Client, self.options.load_cpu, "flood", &words)
    }

    /// Limits new connections by nftables in the server's namespace.
    ///
    /// # Errors
    /// What nft says; also when the rule is not there afterwards.
    pub fn limit_by_nft(&self, limit: &NftLimit) -> Result<NftRule> {
        nft::apply(&self.id, limit)
    }

    /// Makes a place for the servers that are started next: one for each lab.
    ///
    /// # Errors
    /// What ip, nft or a helper says.
    pub fn site(&self, kind: SiteKind) -> Result<Site> {
        site::make(self, kind)
    }

    /// Attaches somebody's tcx program before all others on the server's interface, until what it gives is
    /// dropped.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn foreign(&self, foreign: Foreign) -> Result<Managed> {
        site::foreign(self, foreign)
    }

    /// Makes four routers and two servers, with a narrow link on the way. `access`: how wide the links of the
    /// agents are, if not as wide as the machine can.
    ///
    /// # Errors
    /// What ip, ethtool or tc says.
    pub fn road(&self, narrow: &Shaping, access: Option<&Shaping>) -> Result<Road<'_>> {
        Road::make(self, narrow, access)
    }

    /// Makes a graph of hosts and links beside the lab's own three.
    ///
    /// # Errors
    /// A link to a host that there is not, or what ip, ethtool or tc says.
    pub fn graph(&self, spec: &GraphSpec) -> Result<Graph<'_>> {
        Graph::make(self, spec)
    }

    /// Makes the server's outgoing interface a bottleneck.
    ///
    /// # Errors
    /// What tc says; also when the queue is not there afterwards.
    pub fn shape(&self, shaping: &Shaping) -> Result<Shaped> {
        let net = Role::Server.path(&self.id);
        shape::apply(net, topology::SERVER_INTERFACE, (shaping, shape::BURST_BYTES))
    }

    /// Starts loops that tell how busy the CPUs are; nothing else should run for `calibration`.
    ///
    /// # Errors
    /// Without `chrt`, or when a loop does not begin.
    pub fn idle_meter(&self, calibration: Nanos) -> Result<IdleMeter> {
        let root = self.cgroups.cpu_root();
        IdleMeter::start(self.helper(), &self.dir(), &root, calibration)
    }

    /// Starts the product's daemon beside the server and waits until it answers; with one running
    /// already it takes over from it.
    ///
    /// # Errors
    /// When it ends or does not answer in time, with the end of its log.
    pub fn start_product(&self, program: &Path, config: &ProductConfig) -> Result<Product> {
        product::start(self, program, config)
    }

    /// Starts another daemon with the configuration of a running or dead one.
    ///
    /// # Errors
    /// As [`Lab::start_product`].
    pub fn start_product_like(&self, program: &Path, other: &Product) -> Result<Product> {
        product::start_with(self, program, other.config(), other.socket())
    }

    /// Takes CPU time away from a server and what is behind it, until the guard is dropped.
    ///
    /// # Errors
    /// Without a cpu controller within reach; then neither way works: many workers against one
    /// competitor would lose almost nothing.
    pub fn cut_cpu(&self, server: &Server, cut: CpuCut) -> Result<CpuCutGuard> {
        match cut {
            CpuCut::Quota(share) => {
                let groups = std::iter::once(server.group()).chain(server.groups_behind());
                let mut guard = CpuCutGuard { limited: Vec::new(), _competitor: None };
                for group in groups {
                    group.limit_cpu(Some(share))?;
                    guard.limited.push(group.clone());
                }
                Ok(guard)
            }
            CpuCut::Competitor if !server.group().shares_cpu() => {
                Err(LabError::Missing("a cgroup cpu controller (version 1 or 2)".into()))
            }
            CpuCut::Competitor => {
                let spin = ["sh", "-c", "while :; do :; done"];
                let competitor = Some(self.start_on_server("competitor", &spin)?);
                Ok(CpuCutGuard { limited: Vec::new(), _competitor: competitor })
            }
        }
    }

    /// Halves a server's CPU by quota, until the guard is dropped.
    ///
    /// # Errors
    /// As [`Lab::cut_cpu`].
    pub fn halve_cpu(&self, server: &Server) -> Result<CpuCutGuard> {
        self.cut_cpu(server, CpuCut::Quota(Share::new(0.5)))
    }

    /// Runs a load from the client's namespace; `on_progress` is called once a second.
    ///
    /// # Errors
    /// A plan that contradicts itself, or a load process that cannot be started or talks nonsense.
    /// Whether the run may be judged says [`LoadReport::void`].
    pub fn run_load(
        &self,
        plan: &LoadPlan,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<LoadReport> {
        self.run_script(plan, &mut Script::new(), on_progress)
    }

    /// The same with events at set times.
    ///
    /// # Errors
    /// As [`Lab::run_load`]; an event that fails makes the run void.
    pub fn run_script(
        &self,
        plan: &LoadPlan,
        script: &mut Script<'_>,
        on_progress: &mut dyn FnMut(&Progress),
    ) -> Result<LoadReport> {
        load::run(&mut Inside(self), plan, script, on_progress)
    }

    /// Measures a server's capacity with its usual requests.
    ///
    /// # Errors
    /// When the server gives no good answer, or the load fails.
    pub fn capacity(&self, server: &Server, options: &CapacityOptions) -> Result<Capacity> {
        // Only the kind of request counts: the closed loop replaces the arrivals.
        let stream = server.stream("capacity", Arrive::Closed { clients: 1 });
        self.capacity_of(&stream, options)
    }

    /// Measures a server's capacity with the requests or sessions of a stream, whatever its
    /// arrivals: clients of a closed loop begin the next session as soon as one is over.
    ///
    /// # Errors
    /// As [`Lab::capacity`].
    pub fn capacity_of(&self, stream: &Stream, options: &CapacityOptions) -> Result<Capacity> {
        load::measure(stream, options, |plan| self.run_load(plan, &mut |_| {}))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut problems = registry::teardown(&self.id);
        // The guard sees the end of its input, finds nothing left and goes.
        drop(self.guard.take());
        problems.extend(registry::remains(&self.id));
        if !problems.is_empty() {
            tracing::warn!(id = %self.id, ?problems, "the lab resists removal");
        }
    }
}

/// Load processes in the client's namespace, on the load's CPU.
struct Inside<'a>(&'a Lab);

impl Place for Inside<'_> {
    type Process = Managed;

    fn start(&mut self, shard: u32) -> Result<Managed> {
        let mut command = self.0.options.helper.command("shard");
        let first = self.0.options.shared || self.0.options.load_first;
        if first {
            command.splice(0..0, ["nice", "-n", "-20"].map(str::to_owned));
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = format!("load{shard}");
        let cpu = self.0.options.load_cpu.to_string();
        let net = Role::Client.path(&self.0.id);
        let process = self.0.launch(net, cpu, &name, (&words, true))?;
        if first {
            // Beside others that take its CPU, arrivals would wait for their turn: the load
            // goes first, and its CPU time is in its report. By weight, since in a cgroup of
            // version 1 there is no real-time priority without a budget.
            process.group().prefer()?;
        }
        Ok(process)
    }

    fn child(process: &mut Managed) -> &mut Child {
        process.child()
    }
}

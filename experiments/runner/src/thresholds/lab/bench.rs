// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs are made on: the server, fitted to the paper's, and what stands before it.

use super::super::setting::{Control, Setting};
use super::load::{self, BEHIND, Client, EDGE, MEASURED, SLOT};
use super::product::{self, Gated, SHOP, Told};
use super::{FASTER, LabVariant, Proxy};
use crate::survival::arm::{ENVOY, installed};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::path::PathBuf;
use tidegate_lab::{
    Arrive, EdgeLimit, EdgeOptions, EdgeProxy, Gate, GateOptions, GateProxy, Group, Helper, Lab,
    LabOptions, LoadPlan, LoadReport, Phase, Product, QueueWatch, QueuedOptions, Role, Rungs,
    Script, Server, Transport,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Profile;

/// Clients of the closed loop that measures C: one is in service, and the others are at hand.
const CLIENTS: u32 = 8;
/// Seconds of that loop before it is measured.
const SETTLE_S: f64 = 1.0;
/// The first guess of a request's own CPU time, beside what its start costs.
const GUESS: Nanos = Nanos::from_millis(13);
/// Least CPU time that is set, so that a machine whose starts are slow has a server all the same.
const LEAST: Nanos = Nanos::from_micros(1);
/// Requests per second that are told "too busy" while that is measured.
const BUSY_RATE: f64 = 60.0;

/// The lab, and what its server costs.
pub(super) struct Bench {
    pub(super) lab: Lab,
    program: PathBuf,
    queue_max: u32,
    work: Nanos,
    busy: Nanos,
    /// CPU time of a response "too busy", as measured, in seconds.
    pub(super) busy_s: f64,
    /// How much faster than the paper's the server was when C was measured last.
    pub(super) faster: f64,
}

/// What a closed loop reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Capacity {
    /// Good responses per second.
    pub(super) rate: f64,
    /// CPU time that the server used for them, per second.
    pub(super) cpu: f64,
}

impl Capacity {
    /// How much faster than the paper's the server is.
    pub(super) fn faster(self, setting: &Setting) -> f64 {
        self.rate / setting.capacity
    }
}

/// What runs; dropped in this order.
pub(super) struct Stand {
    pub(super) watch: Option<QueueWatch>,
    /// The server's tidegate: at the interface, or as who gives remote limits.
    pub(super) interface: Option<Product>,
    edge: Option<Server>,
    gate: Option<Gate>,
    pub(super) server: Server,
    told: Told,
}

impl Stand {
    pub(super) fn gate(&self) -> Option<&Product> {
        self.gate.as_ref().map(|gate| &gate.product)
    }

    /// Who is in force while the monitor says so.
    pub(super) fn told(&self) -> Option<&Product> {
        match self.told {
            Told::Nobody => None,
            Told::Gate => self.gate(),
            Told::Server => self.interface.as_ref(),
        }
    }

    /// Ends it in good order.
    pub(super) fn end(self) -> Result<()> {
        drop((self.watch, self.edge));
        let mut all = self.interface.into_iter().chain(self.gate.map(|gate| gate.product));
        all.try_for_each(Product::stop).context("tidegate does not end")
    }
}

fn used(group: &Group) -> f64 {
    group.cpu_used().map_or(f64::NAN, Nanos::as_secs_f64)
}

impl Bench {
    /// Makes the lab and fits its server: a request and "too busy" cost what they cost the paper's, in
    /// units of a request.
    pub(super) fn new(helper: &Helper, program: PathBuf, setting: &Setting) -> Result<Self> {
        let usual = LabOptions::new(helper.clone());
        // Proxy, gate and monitor are on the load's CPU, which goes first there.
        let product_cpu = Some(usual.load_cpu);
        let lab = Lab::new(LabOptions { load_first: true, product_cpu, ..usual });
        let lab = lab.context("the lab")?;
        let queue_max = u32::try_from(setting.queue_max)?;
        let (work, busy) = (GUESS, LEAST);
        let (busy_s, faster) = (0.0, FASTER);
        let mut bench = Self { lab, program, queue_max, work, busy, busy_s, faster };
        let wanted = 1.0 / (setting.capacity * FASTER);
        let plain = LabVariant::plain();
        let stand = bench.stand(&plain, setting, FASTER)?;
        let found = bench.capacity(&stand, 4.0)?;
        stand.end()?;
        let seconds = |s: f64| Nanos::from_secs_f64(s).max(LEAST);
        // By CPU time: what others take of the machine just then does not change it.
        bench.work = seconds(GUESS.as_secs_f64() + wanted - found.cpu / found.rate);
        let start = bench.measure_busy()?;
        bench.busy = seconds(setting.busy_ms / 1e3 / FASTER - start);
        bench.busy_s = bench.measure_busy()?;
        Ok(bench)
    }

    fn server(&self, places: u32) -> Result<Server> {
        let (work, busy) = (self.work, self.busy);
        let options = QueuedOptions { port: BEHIND, places, work, busy };
        self.lab.start_queued(&options).context("Apache")
    }

    /// A fresh server with what stands before it in a variant.
    pub(super) fn stand(
        &self,
        variant: &LabVariant,
        setting: &Setting,
        faster: f64,
    ) -> Result<Stand> {
        // One is in service, and does not wait.
        let server = self.server(self.queue_max + 1)?;
        let gated = product::at_gate(variant, setting, faster);
        let told = gated.as_ref().map_or(Told::Nobody, |gated| gated.told);
        let (of_server, of_gate) = self.lab.cluster(&[SHOP]).context("certificates")?;
        let mut others = Map::new();
        if told == Told::Server {
            others.insert("cluster".into(), of_gate);
        }
        let gate = self.gate(variant.proxy, (gated, others), &server).context("the gate")?;
        let proxy = edge_of(variant.proxy)?;
        let limit = gate.as_ref().map_or(EdgeLimit::None, EdgeLimit::Gate);
        let edge = proxy.map(|proxy| {
            let options = EdgeOptions { proxy, limit, transport: Transport::Clear };
            self.lab.start_edge(&options, &server, EDGE).context("the proxy")
        });
        let edge = edge.transpose()?;
        self.syns(setting)?;
        let config = match told {
            Told::Server => Some(product::at_server(setting, faster, &of_server)),
            Told::Nobody | Told::Gate => product::at_interface(setting),
        };
        let start = |config| self.lab.start_product(&self.program, &config).context("tidegate");
        let interface = config.map(start).transpose()?;
        // The kill switch of hooks outlives a daemon: that of the variant before may be on.
        if let Some(interface) = &interface {
            interface.release(told == Told::Server)?;
        }
        Ok(Stand { watch: None, interface, edge, gate, server, told })
    }

    fn gate(
        &self,
        proxy: Proxy,
        (gated, others): (Option<Gated>, Map<String, Value>),
        server: &Server,
    ) -> Result<Option<Gate>> {
        let (proxy, gated) = match (edge_of(proxy)?, gated) {
            (Some(_), None) => return Ok(None),
            (Some(edge), Some(gated)) => (GateProxy::Edge(edge), gated),
            (None, gated) => {
                let gated = gated.unwrap_or_else(product::open);
                (GateProxy::own(EDGE, server, gated.queue, Transport::Clear), gated)
            }
        };
        let Gated { services, routes, .. } = gated;
        let options = GateOptions { proxy, services, routes, others };
        Ok(Some(self.lab.start_gate_with(&self.program, &options)?))
    }

    /// How the clients' kernel sends SYNs again: doubling, as often as the setting says, or as it does
    /// today.
    fn syns(&self, setting: &Setting) -> Result<()> {
        let classic = setting.clients == super::super::setting::Clients::Classic;
        let (linear, retries) = if classic { (0, setting.syn_retries) } else { (4, 6) };
        let (linear, retries) = (
            format!("net.ipv4.tcp_syn_linear_timeouts={linear}"),
            format!("net.ipv4.tcp_syn_retries={retries}"),
        );
        let command = ["sysctl", "-q", "-w", &linear, &retries];
        let done = self.lab.run_in(Role::Client, &command, "");
        let drops = !matches!(setting.control, Control::None | Control::Throttle);
        match done {
            // Kernels before 6.5 double always.
            Err(error) if drops && !classic => Err(error).context("today's SYNs"),
            _ => Ok(()),
        }
    }

    /// Starts the monitor, with the ladders of a setting.
    pub(super) fn watch(&self, stand: &mut Stand, setting: &Setting, faster: f64) -> Result<()> {
        let repeat = Nanos::from_secs_f64(setting.feedback_s / faster);
        let rungs = ladders(setting);
        let watch = self.lab.watch_queue(&stand.server, (&rungs, repeat), load::TOLD);
        stand.watch = Some(watch.context("the monitor")?);
        Ok(())
    }

    /// C through what stands there, with nothing refused.
    pub(super) fn capacity(&self, stand: &Stand, seconds: f64) -> Result<Capacity> {
        if let Some(gate) = stand.gate() {
            gate.release(true)?;
        }
        let arrive = Arrive::Closed { clients: CLIENTS };
        let (report, cpu) = self.load(stand, arrive, seconds)?;
        let good = counted(&report, seconds, |counts| counts.answered);
        ensure!(good > 0, "no good response");
        if let Some(gate) = stand.gate().filter(|_| stand.told != Told::Gate) {
            gate.release(false)?;
        }
        let rate = good as f64 / seconds;
        Ok(Capacity { rate, cpu })
    }

    /// CPU time of one response "too busy", by a server that says nothing else.
    fn measure_busy(&self) -> Result<f64> {
        let seconds = 4.0;
        let server = self.server(0)?;
        let stand = Stand {
            watch: None,
            interface: None,
            edge: None,
            gate: None,
            server,
            told: Told::Nobody,
        };
        let lasts = Nanos::from_secs_f64(SETTLE_S + seconds);
        let arrive = Arrive::constant(Profile::constant(lasts, BUSY_RATE));
        let (report, cpu) = self.load(&stand, arrive, seconds)?;
        let busy = counted(&report, seconds, |counts| counts.refused_http);
        ensure!(busy > 0, "nobody was told \"too busy\"");
        Ok(cpu * seconds / busy as f64)
    }

    /// A load of one stream; and the share of its CPU that the server used while it was measured.
    fn load(&self, stand: &Stand, arrive: Arrive, seconds: f64) -> Result<(LoadReport, f64)> {
        let mut stream = stand.server.stream("all", arrive);
        if stand.gate.is_some() || stand.edge.is_some() {
            stream.target.set_port(EDGE);
        }
        Client::Uncontrolled.host().clone_into(&mut stream.host);
        let (from, to) = (Nanos::from_secs_f64(SETTLE_S), Nanos::from_secs_f64(SETTLE_S + seconds));
        let plan = LoadPlan {
            streams: vec![stream],
            phases: vec![Phase { name: MEASURED.into(), start: from, end: to }],
            slot: SLOT,
            closed_until: to,
            ..LoadPlan::default()
        };
        let group = stand.server.group();
        let (begin, end) = (Cell::new((0.0, 0.0)), Cell::new((0.0, 0.0)));
        let note = |cell: &Cell<(f64, f64)>| {
            cell.set((MonotonicClock.now().as_secs_f64(), used(group)));
            Ok::<(), std::convert::Infallible>(())
        };
        let mut script =
            Script::new().at(from, "begin", || note(&begin)).at(to, "end", || note(&end));
        let report = self.lab.run_script(&plan, &mut script, &mut |_| {})?;
        drop(script);
        ensure!(report.void.is_empty(), "the load was late: {}", report.void.join("; "));
        // A look may be late.
        let ((from, first), (to, last)) = (begin.get(), end.get());
        Ok((report, (last - first) / (to - from).max(1e-9)))
    }
}

/// What ended while it was measured.
fn counted(report: &LoadReport, seconds: f64, of: fn(&tidegate_lab::Counts) -> u64) -> u64 {
    let inside = |start: f64| start >= SETTLE_S - 1e-6 && start < SETTLE_S + seconds - 1e-6;
    let slots = report.streams.iter().flat_map(|stream| &stream.slots);
    slots.filter(|slot| inside(slot.start)).map(|slot| of(&slot.ended.counts)).sum()
}

/// The proxy's program, where it is not tidegate itself.
fn edge_of(proxy: Proxy) -> Result<Option<EdgeProxy>> {
    Ok(match proxy {
        Proxy::Own => None,
        Proxy::Envoy => Some(EdgeProxy::Envoy { program: installed(ENVOY)? }),
        Proxy::Haproxy => Some(EdgeProxy::Haproxy),
    })
}

/// The ladders that the monitor goes by, the higher priority's first; none without feedback.
fn ladders(setting: &Setting) -> Vec<Rungs> {
    if !matches!(setting.control, Control::Throttle | Control::Combined) {
        return Vec::new();
    }
    let rungs = |abatement: u32, onset: u32| {
        let abatement = if abatement > 0 { abatement } else { (onset / 2).max(1) };
        Rungs { abatement, onset }
    };
    let mut all = vec![rungs(setting.abatement, setting.onset)];
    if setting.priorities {
        all.push(rungs(setting.low_abatement, setting.low_onset));
    }
    all
}

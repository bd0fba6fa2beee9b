// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplanes of this host as one [`Plane`]: the kernel, where there are interfaces, and the gate,
//! where there are gateways.
//!
//! A service that a route leads to is limited at the gate, and only there: its proxies pool their
//! connections to it, so a limit on SYNs would refuse proxies, not clients. The kernel gets no limits
//! for it. Without interfaces there is no kernel's part, and no privileges are needed.

use crate::interface_lock::InterfaceLocks;
use crate::kernel::Kernel;
use crate::kill_switch::KillSwitch;
use crate::lately;
use crate::outlet::{Kept, Outlet, Refused};
use crate::places::Places;
use crate::plane::{Counted, Counters, Lifecycle, Plane, PlaneError, RequestCounts, Rungs};
use crate::state::KeptCrowd;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tidegate_bpf::{HostMarks, Imported, ImportedHits};
use tidegate_config::{Adapter, CLASS_DEFAULT, Config, GatewayConfig, ServiceConfig};
use tidegate_gate::{Adapters, Agents, Gate, Seen};
use tidegate_model::limits::{BucketLimits, Limits, ServiceLimits};
use tidegate_model::record::What;
use tidegate_model::sharing::{DestinationReport, RouterReports};
use tidegate_model::snapshot::{
    Followed, GatewayState, GatewaysState, InterfaceState, Lately, ReasonCount, ReportCounts,
    ResponseCounts, Sample, VerdictCount,
};
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_model::{Canary, Mode};
use tidegate_proxy::Proxies;
use tidegate_units::{Clock, Nanos};

/// What is said where interfaces come or go.
const NEEDS_START: &str = "whether there are interfaces is decided at the start: stop the daemon, and \
    start it with this configuration";

/// All dataplanes of this host.
pub(crate) struct Planes {
    kernel: Option<Box<dyn Plane>>,
    /// On the interfaces.
    locks: InterfaceLocks,
    gate: Arc<Gate>,
    /// Where each service is limited.
    places: Places,
    /// Of the configuration that is followed.
    gateways: Vec<GatewayConfig>,
    /// What a restart knows of it, where no kernel does.
    kill_switch: KillSwitch,
    adapters: Option<Adapters>,
    proxies: Option<Proxies>,
    /// What HAProxies are told of services of the kernel.
    agents: Option<Agents>,
    /// Whether listeners may open: privileges are given up.
    opened: bool,
    clock: Arc<dyn Clock + Send + Sync>,
    /// Number of the limits at the gate, where there is no kernel to say.
    generation: u64,
    sampled: Nanos,
    /// Why there are no adapters.
    failed: Option<String>,
}

impl Planes {
    /// Loads and attaches what the configuration wants of the kernel, on interfaces that were locked;
    /// listeners open later, by [`Lifecycle::open`].
    ///
    /// # Errors
    /// What the dataplane refuses, in its words.
    pub(crate) fn start(
        config: &Config,
        locks: InterfaceLocks,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Result<Self, PlaneError> {
        let kernel = match config.interfaces.is_empty() {
            true => None,
            false => Some(Kernel::start(config)?),
        };
        let mut seed = [0; 8];
        getrandom(&mut seed)?;
        let mut gate = Gate::new(config, u64::from_ne_bytes(seed));
        if let Some(kernel) = &kernel {
            gate = gate.with_sources(kernel.source_key()?);
        }
        let kernel = kernel.map(|kernel| Box::new(kernel) as Box<dyn Plane>);
        Ok(Self { locks, ..Self::new((kernel, gate), config, clock) })
    }

    fn new(
        (kernel, gate): (Option<Box<dyn Plane>>, Gate),
        config: &Config,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Self {
        let gate = Arc::new(gate);
        let kill_switch = KillSwitch::beside(&config.daemon.socket);
        gate.release(kernel.is_none() && kill_switch.is_on());
        let (adapters, proxies, failed, sampled) = (None, None, None, clock.now());
        let mut places = Places::default();
        places.follow(config, kernel.is_some());
        Self {
            kernel,
            locks: InterfaceLocks::default(),
            gate,
            places,
            gateways: config.gateways.clone(),
            kill_switch,
            adapters,
            proxies,
            clock,
            generation: 0,
            sampled,
            failed,
            agents: None,
            opened: false,
        }
    }

    /// The limits that the kernel gets: none for what the gate limits.
    fn for_kernel(&self, config: &Config, limits: &Limits) -> Limits {
        let mut limits = limits.clone();
        for (at, service) in limits.services.iter_mut().enumerate() {
            // HAProxy pools its connections as well.
            let told = config.services.get(at).is_some_and(|service| service.agent_check.is_some());
            if self.places.at_gate(at) || told {
                let buckets = vec![BucketLimits::default(); service.buckets.len()];
                *service = ServiceLimits { buckets, ..ServiceLimits::default() };
            }
        }
        limits
    }

    /// The limits that the gate gets: none for what the kernel limits, which has other units.
    fn for_gate(&self, limits: &Limits) -> Vec<ServiceLimits> {
        let mut services = limits.services.clone();
        for (at, service) in services.iter_mut().enumerate() {
            if self.gate.serves(at) && !self.places.at_gate(at) {
                let buckets = vec![BucketLimits::default(); service.buckets.len()];
                *service = ServiceLimits { buckets, ..ServiceLimits::default() };
            }
        }
        services
    }

    /// Starts what serves gateways, where there are any of its kind.
    fn start_missing(&mut self, gateways: &[GatewayConfig]) -> io::Result<()> {
        let is_proxy = |gateway: &GatewayConfig| gateway.adapter == Adapter::Proxy;
        if self.adapters.is_none() && !gateways.iter().all(is_proxy) {
            let (gate, clock) = (Arc::clone(&self.gate), Arc::clone(&self.clock));
            self.adapters = Some(Adapters::start(gate, clock)?);
        }
        if self.proxies.is_none() && gateways.iter().any(is_proxy) {
            let (gate, clock) = (Arc::clone(&self.gate), Arc::clone(&self.clock));
            self.proxies = Some(Proxies::start(gate, clock)?);
        }
        Ok(())
    }

    /// What keeps each gateway from being served.
    fn problems(&self, gateways: &[GatewayConfig]) -> Vec<Option<String>> {
        let adapters = self.adapters.as_ref().map(Adapters::problems).unwrap_or_default();
        let proxies = self.proxies.as_ref().map(Proxies::problems).unwrap_or_default();
        let problem = |(at, gateway): (usize, &GatewayConfig)| {
            let all = if gateway.adapter == Adapter::Proxy { &proxies } else { &adapters };
            match (&self.failed, all.get(at)) {
                (Some(why), _) => Some(format!("cannot be served: {why}")),
                (None, Some(problem)) => problem.clone(),
                (None, None) => Some("not open yet".into()),
            }
        };
        gateways.iter().enumerate().map(problem).collect()
    }

    fn sample(&self, config: &Config, seen: Seen) -> Option<Sample> {
        let service = config.services.iter().find(|service| *service.name == *seen.service)?;
        Some(Sample {
            at: seen.at,
            client: seen.client.map_or_else(String::new, |client| client.to_string()),
            request: (!seen.request_id.is_empty()).then(|| seen.request_id.to_string()),
            service: seen.service.to_string(),
            class: class_name(service, seen.class).into(),
            verdict: if seen.refused { "reject" } else { "admit" }.into(),
            shadow: !seen.executed(),
            reason: seen.reason.name().into(),
        })
    }
}

/// Random bytes of the system, for what the gate randomises.
fn getrandom(seed: &mut [u8]) -> Result<(), PlaneError> {
    let failed = |error| PlaneError(format!("no random numbers: {error}"));
    let file = std::fs::File::open("/dev/urandom").map_err(failed)?;
    io::Read::read_exact(&mut &file, seed).map_err(failed)
}

fn class_name(service: &ServiceConfig, class: usize) -> &str {
    let named = class.checked_sub(1).and_then(|index| service.classes.get(index));
    named.map_or(CLASS_DEFAULT, |class| &class.name)
}

impl Totals for Planes {
    fn totals(&self, service: usize) -> io::Result<ServiceTotals> {
        if self.places.changed(service) {
            let to = if self.places.at_gate(service) { "gate" } else { "kernel" };
            let why = format!("it is limited at the {to} from now on, which counts by itself");
            return Err(io::Error::other(why));
        }
        if let Some(totals) = self.gate.totals(service).filter(|_| self.places.at_gate(service)) {
            if self.gate.reports_missing(service) {
                return Err(io::Error::other(
                    "requests pass and nothing is reported of them, so that nothing is known of what is \
                     in flight: does the proxy send its access log to `completions`?",
                ));
            }
            return Ok(totals);
        }
        match &self.kernel {
            Some(kernel) => kernel.totals(service),
            None => Err(io::Error::other("no route leads to it, and there are no interfaces")),
        }
    }

    fn sees_answers(&self) -> bool {
        self.kernel.as_ref().is_none_or(|kernel| kernel.sees_answers())
    }
}

impl Outlet for Planes {
    fn set_limits(
        &mut self,
        config: &Config,
        limits: &Limits,
        kept: &Kept,
    ) -> Result<Vec<Refused>, PlaneError> {
        // The gate first: a service is limited at one of the two only, so a kernel that cannot be written may
        // not keep the others at their limits of before.
        let for_gate = self.for_gate(limits);
        let mut refused = self.gate.set_limits(config, &for_gate);
        if let Some(agents) = &self.agents {
            agents.set_limits(config, &limits.services);
        }
        let for_kernel = self.for_kernel(config, limits);
        if let Some(kernel) = &mut self.kernel {
            refused.extend(kernel.set_limits(config, &for_kernel, kept)?);
        }
        self.generation = limits.generation;
        Ok(refused)
    }

    fn generation(&self) -> u64 {
        self.kernel.as_ref().map_or(0, |kernel| kernel.generation()).max(self.generation)
    }

    fn adopted(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.adopted())
    }

    fn heartbeat(&mut self) -> Result<(), PlaneError> {
        self.gate.tick(self.clock.now());
        if let Some(agents) = &self.agents {
            agents.renew(self.clock.now());
        }
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.heartbeat())
    }

    fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) -> Result<(), PlaneError> {
        self.gate.set_mode(service, mode, canary);
        if let Some(agents) = &self.agents {
            agents.set_mode(service, mode, canary);
        }
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.set_mode(service, mode, canary))
    }

    fn set_imported(&mut self, imported: &Imported) -> Result<(), PlaneError> {
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.set_imported(imported))
    }

    fn clear_imported(&mut self) -> Result<(), PlaneError> {
        self.kernel.as_mut().map_or(Ok(()), |kernel| kernel.clear_imported())
    }

    fn imported_hits(&self) -> Result<Vec<ImportedHits>, PlaneError> {
        self.kernel.as_ref().map_or_else(|| Ok(Vec::new()), |kernel| kernel.imported_hits())
    }

    fn release(&mut self, on: bool) -> Result<(), PlaneError> {
        self.gate.release(on);
        if let Some(agents) = &self.agents {
            agents.release(on);
        }
        if let Some(kernel) = &mut self.kernel {
            return kernel.release(on);
        }
        // It works all the same.
        if let Err(error) = self.kill_switch.remember(on) {
            tracing::warn!(on, %error, "the kill switch works, but a restart will not know of it");
        }
        Ok(())
    }

    /// The kernel's word holds for the gate as well: its kill switch may be thrown past the daemon.
    fn released(&self) -> Result<bool, PlaneError> {
        let Some(kernel) = &self.kernel else { return Ok(self.gate.released()) };
        let on = kernel.released()?;
        self.gate.release(on);
        if let Some(agents) = &self.agents {
            agents.release(on);
        }
        Ok(on)
    }
}

impl Counters for Planes {
    fn counts(&self, config: &Config) -> Result<Counted, PlaneError> {
        let mut counted = match &self.kernel {
            Some(kernel) => kernel.counts(config)?,
            None => {
                Counted { services: vec![Vec::new(); config.services.len()], ..Counted::default() }
            }
        };
        for (at, service) in
            config.services.iter().enumerate().filter(|(at, _)| self.gate.serves(*at))
        {
            let counts = self.gate.counts(at).into_iter().map(|count| VerdictCount {
                class: class_name(service, count.class).into(),
                verdict: if count.refused() { "reject" } else { "admit" }.into(),
                shadow: !count.executed(),
                reason: count.reason.name().into(),
                count: count.count,
            });
            if let Some(of) = counted.services.get_mut(at) {
                of.extend(counts);
            }
        }
        for (reason, count) in self.gate.state().passed {
            let known = counted.passed.iter_mut().find(|passed| passed.reason == reason.name());
            match known {
                Some(passed) => passed.count += count,
                None => counted.passed.push(ReasonCount { reason: reason.name().into(), count }),
            }
        }
        Ok(counted)
    }

    fn request_counts(
        &self,
        config: &Config,
    ) -> Result<(Vec<RequestCounts>, Option<Followed>), PlaneError> {
        let Some(kernel) = &self.kernel else {
            return Ok((config.services.iter().map(no_counts).collect(), None));
        };
        kernel.request_counts(config)
    }

    fn rungs(&self, service: usize) -> Result<Option<Rungs>, PlaneError> {
        if self.places.at_gate(service) {
            return Ok(self.gate.rungs(service));
        }
        self.kernel.as_ref().map_or(Ok(None), |kernel| kernel.rungs(service))
    }

    fn bucket_rungs(&self, service: usize, bucket: usize) -> Result<Option<Rungs>, PlaneError> {
        if self.places.at_gate(service) {
            return Ok(self.gate.bucket_rungs(service, bucket));
        }
        self.kernel.as_ref().map_or(Ok(None), |kernel| kernel.bucket_rungs(service, bucket))
    }

    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError> {
        self.kernel.as_ref().map_or_else(|| Ok(Vec::new()), |kernel| kernel.sources())
    }

    fn decisions(&self, config: &Config, request_id: &str) -> Vec<Sample> {
        let seen = self.gate.seen(request_id).into_iter();
        seen.filter_map(|seen| self.sample(config, seen)).collect()
    }

    fn refused_lately(&self, config: &Config, client: IpAddr) -> Lately {
        let kernel = self.kernel.as_ref().map(|kernel| kernel.refused_lately(config, client));
        lately::join(kernel, (&self.gate, self.agents.as_ref(), self.clock.now()), config, client)
    }

    fn samples(&mut self, config: &Config, most: usize) -> Result<Vec<Sample>, PlaneError> {
        let now = self.clock.now();
        let then = std::mem::replace(&mut self.sampled, now);
        let seen = self.gate.seen_since(then, most);
        let mut samples: Vec<Sample> =
            seen.into_iter().filter_map(|seen| self.sample(config, seen)).collect();
        if let Some(kernel) = &mut self.kernel {
            samples.extend(kernel.samples(config, most)?);
        }
        Ok(samples)
    }
}

impl Planes {
    /// Listens for the agent-checks of HAProxies.
    fn open_agents(&mut self, config: &Config) {
        let wanted = config.services.iter().any(|service| service.agent_check.is_some());
        if self.agents.is_none() && wanted {
            match Agents::start(Arc::clone(&self.clock)) {
                Ok(agents) => self.agents = Some(agents),
                Err(error) => tracing::warn!(%error, "no agent-check can be answered"),
            }
        }
        if let Some(agents) = &self.agents {
            agents.follow(config);
        }
    }
}

fn no_counts(service: &ServiceConfig) -> RequestCounts {
    let rules = service.requests.as_ref().map_or(0, |requests| requests.rules.len());
    RequestCounts { rules: vec![Default::default(); rules], unevaluated: Vec::new() }
}

impl Lifecycle for Planes {
    fn examine(&self, config: &Config) -> Result<(), PlaneError> {
        if self.kernel.is_none() != config.interfaces.is_empty() {
            return Err(PlaneError(NEEDS_START.into()));
        }
        for gateway in &config.gateways {
            if let Some(Err(error)) = gateway.tls.as_ref().map(tidegate_gate::examine_tls) {
                return Err(PlaneError(error.to_string()));
            }
        }
        self.kernel.as_ref().map_or(Ok(()), |kernel| kernel.examine(config))
    }

    fn apply(&mut self, config: &Config) -> Result<(), PlaneError> {
        self.locks.follow(config).map_err(|held| PlaneError(held.to_string()))?;
        if let Some(kernel) = &mut self.kernel {
            kernel.apply(config)?;
        }
        self.locks.keep(config);
        self.gate.reconfigure(config);
        self.places.follow(config, self.kernel.is_some());
        self.gateways.clone_from(&config.gateways);
        if self.opened {
            self.open(config);
        }
        Ok(())
    }

    fn open(&mut self, config: &Config) {
        self.opened = true;
        self.failed = self.start_missing(&config.gateways).err().map(|error| error.to_string());
        if let Some(adapters) = &self.adapters {
            adapters.follow(&config.gateways);
        }
        if let Some(proxies) = &self.proxies {
            proxies.follow(&config.gateways);
        }
        self.open_agents(config);
    }

    fn commit(&mut self) -> Vec<String> {
        self.kernel.as_mut().map_or_else(Vec::new, |kernel| kernel.commit())
    }

    fn reassert(&mut self) -> Vec<String> {
        self.kernel.as_mut().map_or_else(Vec::new, |kernel| kernel.reassert())
    }

    fn mend(&mut self) -> Vec<String> {
        if let Some(proxies) = &self.proxies {
            proxies.mend();
        }
        let problems = self.problems(&self.gateways);
        self.places.look(self.clock.now(), &problems);
        self.locks.look(self.clock.now());
        self.kernel.as_mut().map_or_else(Vec::new, |kernel| kernel.mend())
    }

    fn kept_crowds(&self) -> Vec<KeptCrowd> {
        self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.kept_crowds())
    }

    fn restore_crowds(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        if let Some(kernel) = &mut self.kernel {
            kernel.restore_crowds(kept, age);
        }
    }

    fn share(&mut self, now: Nanos, heard: Vec<RouterReports>) -> Option<Vec<DestinationReport>> {
        self.kernel.as_mut()?.share(now, heard)
    }

    fn mark(&mut self, now: Nanos, says: HostMarks) -> Vec<Ipv4Addr> {
        self.kernel.as_mut().map_or_else(Vec::new, |kernel| kernel.mark(now, says))
    }

    fn events(&mut self) -> Vec<What> {
        self.kernel.as_mut().map_or_else(Vec::new, |kernel| kernel.events())
    }

    fn doubts(&self) -> Vec<String> {
        let mut doubts = self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.doubts());
        doubts.extend(self.agents.iter().flat_map(Agents::problems));
        doubts.extend(self.locks.doubts());
        doubts
    }

    fn at_gate(&self, service: usize) -> bool {
        self.places.at_gate(service)
    }

    fn hooks(&self) -> Vec<InterfaceState> {
        let mut hooks = self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.hooks());
        for hook in &mut hooks {
            if let Some(shared) = self.locks.shared(&hook.name, &hook.namespace) {
                shared.clone_into(&mut hook.blind);
            }
        }
        hooks
    }

    fn gateways(&self, config: &Config) -> Option<GatewaysState> {
        let problems = self.problems(&config.gateways);
        let counts = self.proxies.as_ref().map(Proxies::counts).unwrap_or_default();
        let refused = self.adapters.as_ref().map(Adapters::refused).unwrap_or_default();
        let untold = self.adapters.as_ref().map(Adapters::untold).unwrap_or_default();
        let state = self.gate.state();
        let of = |(at, gateway): (usize, &GatewayConfig)| GatewayState {
            name: gateway.name.clone(),
            adapter: gateway.adapter.name().into(),
            listen: gateway.listen.to_string(),
            problem: problems[at].clone().unwrap_or_default(),
            untold: untold.get(at).cloned().flatten().unwrap_or_default(),
            tls: refused.get(at).cloned().flatten(),
            proxy: counts.get(at).copied().flatten(),
        };
        let responses = |(at, service): (usize, &ServiceConfig)| {
            let (service, by_hundreds) = (service.name.clone(), self.gate.statuses(at));
            let (lost, late) = self.gate.reports_quality(at)?;
            let lost_percent = (100.0 * lost).round() as u8;
            self.gate.serves(at).then_some(ResponseCounts {
                service,
                by_hundreds,
                lost_percent,
                late,
            })
        };
        let now = self.clock.now();
        let agents = self.agents.as_ref().map(|agents| agents.states(now)).unwrap_or_default();
        (!config.gateways.is_empty() || !agents.is_empty()).then(|| GatewaysState {
            gateways: config.gateways.iter().enumerate().map(of).collect(),
            agents,
            reports: ReportCounts {
                completed: state.completed,
                late: state.late,
                unknown: state.unknown,
                untracked: state.untracked,
            },
            misunderstood: state.misunderstood,
            responses: config.services.iter().enumerate().filter_map(responses).collect(),
        })
    }

    fn detach(self: Box<Self>) -> Result<(), PlaneError> {
        drop(self.adapters);
        drop(self.agents);
        let detached = self.kernel.map_or(Ok(()), |kernel| kernel.detach());
        // Last: requests under way are given time to end.
        drop(self.proxies);
        detached
    }
}

#[cfg(test)]
#[path = "planes_tests.rs"]
mod tests;

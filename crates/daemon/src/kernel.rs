// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's dataplane as a [`Plane`](crate::plane::Plane): configuration becomes a plan, limits
//! become parameters, numbers become names.

mod asked;
mod away;
mod crowds;
mod limiting;
mod marked;
mod requests;
mod router;
mod sides;
mod watch;

use crate::account::{Account, Reached};
use crate::lately;
use crate::outlet::{Kept, Outlet, Refused};
use crate::plane::{Counted, Counters, Lifecycle, PlaneError, RequestCounts, Rungs};
use crate::preflight::{Above, above, listens, on_top};
use crate::privileges;
use crate::state::KeptCrowd;
use away::Away;
use marked::Marked;
use router::Measured;
use sides::Sides;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use tidegate_bpf::policy::{DatagramLimit, MinRate, Params, Policy, Reason, SourceKey};
use tidegate_bpf::{
    Attached, Dataplane, Hook, HostMarks, Imported, ImportedHits, Interface, Plan, Router,
    ServiceParams, Settings,
};
use tidegate_config::{CLASS_DEFAULT, Config, PolicyConfig, ServiceConfig, Side};
use tidegate_model::limits::{Limits, ServiceLimits};
use tidegate_model::record::What;
use tidegate_model::sharing::{DestinationReport, RouterReports};
use tidegate_model::snapshot::{
    Followed, InterfaceState, Lately, ReasonCount, Sample, VerdictCount,
};
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_model::{Canary, Listen, Mode};
use tidegate_sense::links;
use tidegate_units::Nanos;
use watch::Watch;

/// The dataplane of this machine.
pub struct Kernel {
    dataplane: Dataplane,
    /// Every interface has its egress hook.
    sees_answers: bool,
    watch: Watch,
    sides: Sides,
    away: Away,
    measured: Measured,
    marked: Marked,
    /// How many services there are, and where those listen that run here.
    services: usize,
    listens: Vec<Listen>,
    /// Interfaces in other namespaces that have no hooks of their own, as far as anybody could look.
    above: Vec<Above>,
    /// The directory of the pins, where their path leads nowhere once the process is another user's.
    _pins: Option<Reached>,
}

/// What to do when hooks cannot be changed any more.
pub(crate) const HOOKS_NEED_PRIVILEGES: &str = "the daemon gave up its privileges after the start: to \
    change interfaces, to begin with request rules or with datagrams, or to begin with flowspec.import, start it anew with them: under systemd \
    `systemctl restart tidegate`, elsewhere `tidegate run` beside it, which takes over without a gap";

/// The number that the first plan gives to limits in maps that are new; in those that are adopted it
/// goes on.
const GENERATION_FIRST: u64 = 1;

/// One admission in so many is sampled for `explain`, and one refusal in so many: a few hundred a
/// second at 10,000 SYNs/s.
const SAMPLES: (u32, u32) = (64, 16);

fn sees_answers(dataplane: &Dataplane) -> bool {
    dataplane.hooks().iter().all(|hook| hook.egress.is_some())
}

/// The name of the ingress hook; empty as long as any hook of the interface is lost.
fn attached(hook: &Attached) -> &'static str {
    hook.ingress.filter(|_| hook.lost.is_empty()).map_or("", Hook::name)
}

fn failed(error: impl Display) -> PlaneError {
    PlaneError(error.to_string())
}

impl Kernel {
    /// Loads and attaches, or adopts what is pinned. Detaches nothing before [`Lifecycle::commit`].
    /// Dropped before that, it detaches its own new hooks: a predecessor goes on then, with the hooks
    /// that it had ([`Lifecycle::reassert`]).
    ///
    /// # Errors
    /// What the dataplane refuses, in its words.
    pub fn start(config: &Config) -> Result<Self, PlaneError> {
        let (mut plan, above) = plan_beside(config, &[]);
        // Who cannot be looked up is told when it is time to become that user.
        let changes = config.daemon.user.is_some()
            || Account::configured(config).is_ok_and(|account| account.is_some());
        let reached = changes.then(|| reached(&config.daemon.pins));
        let reached = reached.transpose()?;
        if let Some(reached) = &reached {
            plan.settings.pins = Some(reached.path());
        }
        // It takes its time, and hooks with a lease should not wait for it.
        let away = Away::start(config);
        let dataplane = Dataplane::begin(&plan).map_err(failed)?;
        for hook in dataplane.hooks() {
            let egress = hook.egress.map_or("none", Hook::name);
            let ingress = hook.ingress.map_or("none", Hook::name);
            tracing::info!(interface = hook.interface, ingress, egress, "attached");
            for note in hook.notes {
                tracing::info!(interface = hook.interface, "{note}");
            }
        }
        let measured = Measured::start(config, plan.interfaces(), &dataplane);
        let marked = Marked::start(config, marked_at(config, &plan), &dataplane);
        let sees_answers = sees_answers(&dataplane);
        let (watch, sides) = (Watch::default(), Sides::default());
        let (services, listens) = (config.services.len(), listens(config));
        Ok(Self {
            dataplane,
            sees_answers,
            watch,
            sides,
            away,
            measured,
            marked,
            services,
            listens,
            above,
            _pins: reached,
        })
    }

    /// By which canaries at the hooks choose among sources.
    ///
    /// # Errors
    /// When the dataplane does not tell.
    pub fn source_key(&self) -> Result<SourceKey, PlaneError> {
        self.dataplane.source_key().map_err(failed)
    }

    /// Why no hook sees any connection, or none of some service: one sentence an interface, or one for all, with
    /// the first. Those that are not `grave` are told, and no more.
    fn blind(&self, grave: bool) -> Vec<String> {
        let sides = self.sides.blind();
        if !sides.is_empty() {
            return sides.to_vec();
        }
        let doubt = self.away.doubt().filter(|_| !grave || self.away.is_grave());
        doubt.into_iter().collect()
    }

    /// What the hooks have seen of services that may be a container's.
    fn look_away(&mut self, now: Nanos) {
        if !self.away.is_open() {
            return;
        }
        let (Ok(passed), Ok(released)) = (self.dataplane.passed(), self.dataplane.released())
        else {
            return;
        };
        let counted = away::Counted {
            offered: &|service| Some(self.dataplane.totals(service).ok()?.offered),
            exempt: passed.iter().find(|of| of.reason == Reason::Exempt).map_or(0, |of| of.count),
            released,
        };
        self.away.look(now, &counted);
    }

    /// Whether following this configuration changes hooks.
    #[must_use]
    pub fn needs_attach(&self, config: &Config) -> bool {
        self.dataplane.needs_attach(&plan_beside(config, &self.above).0)
    }
}

/// The directory of the pins, on a BPF filesystem.
fn reached(pins: &Path) -> Result<Reached, PlaneError> {
    tidegate_bpf::prepare_pins(pins).map_err(failed)?;
    let made = std::fs::create_dir_all(pins).and_then(|()| Reached::open(pins));
    made.map_err(|error| PlaneError(format!("pins at {}: {error}", pins.display())))
}

impl Totals for Kernel {
    fn totals(&self, service: usize) -> io::Result<ServiceTotals> {
        self.dataplane.totals(service)
    }

    fn sees_answers(&self) -> bool {
        self.sees_answers
    }
}

impl Outlet for Kernel {
    fn set_limits(
        &mut self,
        config: &Config,
        limits: &Limits,
        kept: &Kept,
    ) -> Result<Vec<Refused>, PlaneError> {
        let (mut params, refused) = all_params(config, limits)?;
        params.retain(|params| !kept.services.contains(&params.service));
        let mut buckets = requests::params(config, limits)?;
        buckets.retain(|params| !kept.buckets.contains(&(params.service, params.bucket)));
        self.dataplane.set_limits(&params, &buckets, limits.generation).map_err(failed)?;
        Ok(refused)
    }

    fn generation(&self) -> u64 {
        self.dataplane.generation()
    }

    fn adopted(&self) -> bool {
        self.dataplane.generation() > GENERATION_FIRST
    }

    fn heartbeat(&mut self) -> Result<(), PlaneError> {
        let now = self.dataplane.heartbeat().map_err(failed)?;
        if self.watch.look(now, &mut self.dataplane) {
            self.sees_answers = sees_answers(&self.dataplane);
            self.sides.look(now, &self.dataplane, (self.services, &self.listens));
            self.look_away(now);
        }
        self.measured.heartbeat(now, &self.dataplane);
        Ok(())
    }

    fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) -> Result<(), PlaneError> {
        self.dataplane.set_mode(service, mode, canary).map_err(failed)?;
        self.measured.set_mode(service, mode);
        Ok(())
    }

    fn set_imported(&mut self, imported: &Imported) -> Result<(), PlaneError> {
        self.dataplane.set_imported(imported).map_err(failed)
    }

    fn clear_imported(&mut self) -> Result<(), PlaneError> {
        self.dataplane.clear_imported().map_err(failed)
    }

    fn imported_hits(&self) -> Result<Vec<ImportedHits>, PlaneError> {
        self.dataplane.imported_hits().map_err(failed)
    }

    fn release(&mut self, on: bool) -> Result<(), PlaneError> {
        self.dataplane.release(on).map_err(failed)
    }

    fn released(&self) -> Result<bool, PlaneError> {
        self.dataplane.released().map_err(failed)
    }
}

impl Counters for Kernel {
    fn counts(&self, config: &Config) -> Result<Counted, PlaneError> {
        let mut services = vec![Vec::new(); config.services.len()];
        for count in self.dataplane.counts().map_err(failed)? {
            let Some(service) = config.services.get(count.service) else { continue };
            services[count.service].push(VerdictCount {
                class: class_name(service, count.class).into(),
                verdict: count.verdict.name().into(),
                shadow: count.shadow,
                reason: count.reason.name().into(),
                count: count.count,
            });
        }
        let named = |reason: &str, count| ReasonCount { reason: reason.into(), count };
        let passed = self.dataplane.passed().map_err(failed)?;
        let border = config.has_border().then(|| self.dataplane.cleared());
        let cleared = border.transpose().map_err(failed)?;
        let losses = self.dataplane.table_losses().map_err(failed)?;
        Ok(Counted {
            services,
            passed: passed.into_iter().map(|p| named(p.reason.name(), p.count)).collect(),
            cleared,
            table_losses: vec![
                named("handshakes", losses.handshakes),
                named("connections", losses.connections),
                named("sources", losses.sources),
            ],
            router: self.measured.state(),
            in_band: self.marked.state(),
        })
    }

    fn request_counts(
        &self,
        config: &Config,
    ) -> Result<(Vec<RequestCounts>, Option<Followed>), PlaneError> {
        let counts = requests::counts(&self.dataplane, config)?;
        let followed = self.dataplane.followed();
        Ok((counts, (followed.limit > 0).then_some(followed)))
    }

    fn rungs(&self, service: usize) -> Result<Option<Rungs>, PlaneError> {
        self.dataplane.rungs(service).map_err(failed)
    }

    fn bucket_rungs(&self, service: usize, bucket: usize) -> Result<Option<Rungs>, PlaneError> {
        self.dataplane.bucket_rungs(service, bucket).map_err(failed)
    }

    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError> {
        self.dataplane.sources().map_err(failed)
    }

    fn refused_lately(&self, config: &Config, client: IpAddr) -> Lately {
        let limited = self.measured.limited_lately();
        let lately = lately::of_kernel(&self.dataplane, (config, &limited), client);
        let lately = lately.unwrap_or_else(|error| {
            tracing::warn!(%error, "who was refused lately cannot be read");
            Lately::default()
        });
        let complete = lately.complete && self.measured.knows_a_minute();
        Lately { complete, ..lately }
    }

    fn samples(&mut self, config: &Config, most: usize) -> Result<Vec<Sample>, PlaneError> {
        let samples = self.dataplane.samples(most).map_err(failed)?;
        let named = samples.into_iter().filter_map(|sample| {
            let service = config.services.get(sample.service)?;
            Some(Sample {
                at: sample.at,
                client: sample.client.to_string(),
                request: None,
                service: service.name.clone(),
                class: class_name(service, sample.class).into(),
                verdict: sample.verdict.name().into(),
                shadow: sample.shadow,
                reason: sample.reason.name().into(),
            })
        });
        Ok(named.collect())
    }
}

impl Lifecycle for Kernel {
    fn examine(&self, config: &Config) -> Result<(), PlaneError> {
        let refuses = self.measured.refuses(config).or_else(|| self.marked.refuses(config));
        if let Some(why) = refuses {
            return Err(failed(why));
        }
        if privileges::may_attach() || !self.needs_attach(config) {
            return Ok(());
        }
        Err(failed(HOOKS_NEED_PRIVILEGES))
    }

    fn apply(&mut self, config: &Config) -> Result<(), PlaneError> {
        let (plan, above) = plan_beside(config, &self.above);
        self.dataplane.apply(&plan).map_err(failed)?;
        self.above = above;
        self.measured.apply(config, plan.interfaces(), &self.dataplane);
        self.marked.apply(config, marked_at(config, &plan), &self.dataplane);
        self.sees_answers = sees_answers(&self.dataplane);
        self.services = config.services.len();
        self.listens = listens(config);
        self.away.follow(config);
        Ok(())
    }

    fn commit(&mut self) -> Vec<String> {
        self.dataplane.commit()
    }

    fn reassert(&mut self) -> Vec<String> {
        self.dataplane.reassert()
    }

    fn mend(&mut self) -> Vec<String> {
        self.watch.mend(privileges::may_attach(), &mut self.dataplane)
    }

    fn kept_crowds(&self) -> Vec<KeptCrowd> {
        self.measured.kept()
    }

    fn restore_crowds(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        self.measured.restore(kept, age);
    }

    fn share(&mut self, now: Nanos, heard: Vec<RouterReports>) -> Option<Vec<DestinationReport>> {
        self.measured.share(now, heard)
    }

    fn mark(&mut self, now: Nanos, says: HostMarks) -> Vec<Ipv4Addr> {
        self.marked.tick(now, says, &self.dataplane)
    }

    fn events(&mut self) -> Vec<What> {
        let mut events = self.watch.events();
        events.extend(self.measured.events());
        events
    }

    fn doubts(&self) -> Vec<String> {
        let hooks = self.dataplane.hooks().into_iter();
        let of = |hook: Attached| {
            let Attached { interface, warnings, .. } = hook;
            warnings.into_iter().map(move |text| format!("interface {interface}: {text}"))
        };
        let blind = self.blind(false);
        let beside = self.measured.doubts().chain(self.marked.doubts());
        hooks.flat_map(of).chain(blind).chain(beside).collect()
    }

    fn hooks(&self) -> Vec<InterfaceState> {
        let blind = self.blind(true);
        let hooks =
            self.dataplane.hooks().into_iter().enumerate().map(|(at, hook)| InterfaceState {
                blind: blind.get(at).cloned().unwrap_or_default(),
                attached: attached(&hook).into(),
                name: hook.interface,
                namespace: hook
                    .namespace
                    .map_or_else(String::new, |path| path.display().to_string()),
            });
        hooks.collect()
    }

    fn detach(self: Box<Self>) -> Result<(), PlaneError> {
        let left = self.dataplane.detach();
        if left.is_empty() { Ok(()) } else { Err(failed(left.join("; "))) }
    }
}

/// The kill switch without a daemon: works on what is pinned at `pins`.
///
/// # Errors
/// When nothing is pinned there or it cannot be written.
pub fn release_pinned(pins: &Path, on: bool) -> Result<(), PlaneError> {
    tidegate_bpf::release(pins, on).map_err(failed)
}

fn class_name(service: &ServiceConfig, class: usize) -> &str {
    let named = class.checked_sub(1).and_then(|index| service.classes.get(index));
    named.map_or(CLASS_DEFAULT, |class| &class.name)
}

/// The same without what is on top of others from another namespace, and what that is. To enter one takes
/// privileges: what was `known` holds later.
fn plan_beside(config: &Config, known: &[Above]) -> (Plan, Vec<Above>) {
    let mut plan = plan(config);
    let elsewhere = config.hooked().any(|interface| interface.namespace.is_some());
    if !elsewhere || plan.config.interfaces.len() < 2 {
        return (plan, Vec::new());
    }
    let found = links(Path::new("/sys")).map(|here| above(config, &here, known));
    let above = found.unwrap_or_else(|_| known.to_vec());
    plan.config.interfaces.retain(|interface| above.iter().all(|above| !above.is(interface)));
    (plan, above)
}

/// The plan of a configuration. What is on top of another interface of ours has no hooks of its own, and what
/// leads to servers none at all.
pub(crate) fn plan(config: &Config) -> Plan {
    let mut config = config.clone();
    config.interfaces.retain(|interface| interface.side == Side::Clients);
    if config.interfaces.len() > 1
        && let Ok(all) = links(Path::new("/sys"))
    {
        let above = on_top(&config, &all);
        config.interfaces.retain(|interface| {
            interface.namespace.is_some() || above.iter().all(|(name, _)| *name != interface.name)
        });
    }
    Plan { settings: settings(&config), config }
}

/// Where packets are marked: where hooks are, and at interfaces to servers.
fn marked_at(config: &Config, plan: &Plan) -> Vec<Interface> {
    let mut to_servers = plan.clone();
    to_servers.config.interfaces = config.links().cloned().collect();
    [plan.interfaces(), to_servers.interfaces()].concat()
}

fn settings(config: &Config) -> Settings {
    Settings {
        pins: Some(config.daemon.pins.clone()),
        sample_admitted: SAMPLES.0,
        sample_refused: SAMPLES.1,
        ..Settings::default()
    }
}

/// What a configuration takes of this machine's kernel memory, in about so many bytes: its tables by their
/// keys, states of services, counters of all CPUs; that of a router with its section.
#[must_use]
pub fn table_memory(config: &Config) -> Vec<(&'static str, u64)> {
    let router = config.router.as_ref().map(|router| ("router", Router::memory(router)));
    let memory = plan(config).memory(tidegate_bpf::cpus());
    memory.into_iter().chain(router).collect()
}

fn policy(config: &PolicyConfig) -> Result<Policy, PlaneError> {
    tidegate_bpf::policy_of(config).map_err(failed)
}

/// What is written for each service, and the services whose policy refused theirs: those get none,
/// so that they cannot keep the limits of others from being written.
type AllParams = (Vec<ServiceParams>, Vec<Refused>);

fn all_params(config: &Config, limits: &Limits) -> Result<AllParams, PlaneError> {
    let (mut all, mut refused) = (Vec::new(), Vec::new());
    for (service, (config, limits)) in config.services.iter().zip(&limits.services).enumerate() {
        let written = match params(config, limits) {
            Ok(params) => ServiceParams {
                service,
                params,
                waiting_max: tidegate_params::in_flight(limits),
                accept_queue_max_q10: limits.accept_queue_max_q10,
                source_max: limits.source_max,
                min_rate: limits.min_rate.map(MinRate::per),
                level: tidegate_params::level(config, limits),
                copies: limits.copies,
                until: limits.until,
                datagrams: datagrams(limits),
            },
            Err(error) => {
                refused.push((config.name.clone(), error.0));
                ServiceParams::new(service, Params::no_limit(policy(&config.policy)?))
            }
        };
        all.push(written);
    }
    Ok((all, refused))
}

/// The limit on datagrams; none where there is none, or no bucket could hold it.
fn datagrams(limits: &ServiceLimits) -> DatagramLimit {
    let Some(of) = limits.datagrams else { return DatagramLimit::default() };
    let mut limit = DatagramLimit::new(of.rate, of.burst).unwrap_or_default();
    limit.set_until(of.until);
    limit
}

/// The limits of a service as its policy takes them.
///
/// # Errors
/// When there is no such policy, or it refuses the parameters.
fn params(config: &ServiceConfig, limits: &ServiceLimits) -> Result<Params, PlaneError> {
    let action = tidegate_bpf::action_of(&config.policy);
    let params = tidegate_params::service(policy(&config.policy)?, action, &config.policy, limits);
    params.map_err(|error| PlaneError(format!("service {}: {error}", config.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Registry;
    use tidegate_units::Rate;

    /// Refused only when there is a rate: a schedule of 1, 3 and 7 s does not rise in periods of 2 s.
    #[test]
    fn a_service_whose_limits_are_refused_gets_none_and_the_others_get_theirs() {
        let text = "interfaces: [{name: lo}]\nservices:\n  \
                    odd: {mode: enforce, listen: ['*:80'], policy: {name: abacus}}\n  \
                    shop: {mode: enforce, listen: ['*:81'], policy: {name: token_bucket}}\n";
        let registry = Registry::new(["abacus", "token_bucket"], ["default"]);
        let mut config = tidegate_config::parse(text, &registry).unwrap();
        config.services[0].policy.period = Some(tidegate_units::Nanos::from_secs(2));
        let rate = Some(Rate::per_second(5.0));
        let decided = |waiting_max| ServiceLimits {
            rate,
            burst: 3,
            waiting_max,
            accept_queue_max_q10: 900,
            min_rate: Some(Rate::per_second(0.5)),
            ..ServiceLimits::default()
        };
        let limits = Limits { generation: 4, services: vec![decided(Some(7)), decided(None)] };
        let (all, refused) = all_params(&config, &limits).unwrap();
        assert_eq!(refused.len(), 1);
        assert!(refused[0].0 == "odd" && refused[0].1.contains("odd"), "{refused:?}");
        let nothing = ServiceParams::new(0, Params::no_limit(Policy::Abacus));
        assert_eq!(all[0], nothing, "everything passes");
        assert_eq!(all[1].params, params(&config.services[1], &limits.services[1]).unwrap());
        assert_eq!(all[1].accept_queue_max_q10, 900);
        assert_eq!(all[1].min_rate.map(MinRate::interval_us), Some(2_000_000));
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the dataplane follows: a configuration, and what only the daemon knows.

use crate::abi::{
    BucketCopy, BucketTotals, CLASSES_MAX, Chain, Conn, Counts, Datagrams, FLOW_WAYS, FlowSet,
    FlowSources, FlowTimes, IMPORT_RULES, ImportCounts, Listeners, Pending, RULE_BUCKETS_MAX,
    RULES_MAX, ReasonCounts, RequestChain, RuleCounts, SERVICES_MAX, SLOTS, SOURCE_WAYS, Source,
    SourceSet, SrcPrefixes, Totals,
};
use crate::{Error, lately};
use std::net::IpAddr;
use std::path::PathBuf;
use tidegate_config::{Attach, Config, InterfaceConfig, PolicyConfig, Refusal, namespace_path};
use tidegate_model::Listen;
use tidegate_policy::{Action, LatelyLine, LatelyTurn, Policy};
use tidegate_units::Nanos;

/// Bytes that a hash of the kernel takes for an entry beside its value: the element's head and key,
/// a bucket, its place in the list of free ones (Linux 6.1 to 6.18, x86-64).
pub(crate) const HASH_BYTES: usize = 48 + 8 + 16;

/// What is protected, where, and how.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What the operator wants, as [`tidegate_config::parse`] checked it. The place of a service is
    /// its index everywhere; state is kept across reloads for the same name at the same index.
    pub config: Config,
    /// What the configuration does not say.
    pub settings: Settings,
}

/// What the configuration does not say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One admission in so many is sampled; 0: none.
    pub sample_admitted: u32,
    /// One refusal in so many is sampled; 0: none.
    pub sample_refused: u32,
    /// A connection idle for longer is forgotten.
    pub flow_timeout: Nanos,
    /// Directory on a BPF filesystem; `None`: nothing is pinned, all ends with the process.
    pub pins: Option<PathBuf>,
    /// The network namespace of the interfaces, as a path (`/run/netns/…`, `/proc/…/ns/net`);
    /// `None`: our own.
    pub namespace: Option<PathBuf>,
    /// Where tcx is wanted: clsact, as below Linux 6.6. For tests of that.
    #[doc(hidden)]
    pub clsact: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sample_admitted: 256,
            sample_refused: 64,
            flow_timeout: Nanos::from_secs(60),
            pins: None,
            namespace: None,
            clsact: false,
        }
    }
}

/// One interface, and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// What the operator wants of it.
    pub config: InterfaceConfig,
    /// See [`Settings::namespace`].
    pub namespace: Option<PathBuf>,
    /// See [`Settings::clsact`].
    #[doc(hidden)]
    pub clsact: bool,
    /// Imported rules hold here: [`Plan::has_import`].
    pub import: bool,
    /// Datagrams to services are counted here.
    pub datagrams: bool,
    /// Bits of DSCP that are cleared here ([`Plan::border`]); 0: none.
    pub border: u32,
}

impl Interface {
    /// An interface by its name.
    #[must_use]
    pub fn named(name: impl Into<String>, namespace: Option<PathBuf>) -> Self {
        let config = InterfaceConfig { name: name.into(), ..InterfaceConfig::default() };
        Self { config, namespace, clsact: false, import: false, datagrams: false, border: 0 }
    }

    /// The file that stands for its namespace at the moment; `None`: it is in our own.
    pub(crate) fn path(&self) -> Result<Option<PathBuf>, Error> {
        let Some(namespace) = &self.config.namespace else { return Ok(self.namespace.clone()) };
        let failed = |source| Error::Namespace { path: namespace.to_string().into(), source };
        namespace_path(namespace).map(Some).map_err(failed)
    }

    /// Its namespace as it was planned.
    pub(crate) fn planned(&self) -> Option<PathBuf> {
        let named = self.config.namespace.as_ref();
        named.map_or_else(|| self.namespace.clone(), |of| Some(of.to_string().into()))
    }

    /// Whether clsact is asked for by itself.
    pub(crate) fn wants_clsact(&self) -> bool {
        self.clsact && self.config.attach == Attach::Tcx
    }
}

impl Plan {
    /// Where the hooks go.
    #[must_use]
    pub fn interfaces(&self) -> Vec<Interface> {
        let Settings { namespace, clsact, .. } = &self.settings;
        let interface = |config: &InterfaceConfig| Interface {
            config: config.clone(),
            namespace: namespace.clone(),
            clsact: *clsact,
            import: self.has_import(),
            datagrams: self.config.counts_datagrams(),
            border: self.border(config),
        };
        self.config.interfaces.iter().map(interface).collect()
    }

    /// The policies of the services, and that the tables have room for everything.
    pub(crate) fn policies(&self) -> Result<Vec<Policy>, Error> {
        self.config.fits().map_err(|errors| Error::Plan(errors.to_string()))?;
        self.config.services.iter().map(|service| policy_of(&service.policy)).collect()
    }

    /// About how many bytes of kernel memory this takes on a machine with so many CPUs. First the tables whose
    /// size is configured, by their keys, then the `states` of all services and buckets, both sets of tables that
    /// tell sources and listeners apart, and what each CPU counts for itself if it is known how many there are.
    /// What is left out is smaller than 1 MiB. That of requests is there once a service has rules.
    #[must_use]
    pub fn memory(&self, cpus: Option<usize>) -> Vec<(&'static str, u64)> {
        let tables = &self.config.tables;
        let of = |size: u32, bytes: usize| u64::from(size) * bytes as u64;
        let flows = size_of::<FlowSet>() + size_of::<FlowTimes>() + size_of::<FlowSources>();
        let place = size_of::<SourceSet>() / SOURCE_WAYS;
        let slices = LatelyTurn::SLICES as usize;
        let mut memory = vec![
            ("handshakes", of(tables.handshakes, size_of::<Pending>())),
            ("connections", of(tables.connections, flows / FLOW_WAYS)),
            ("sources", of(tables.sources, place + size_of::<Source>())),
            ("refusals", of(tables.refusals / lately::EACH, slices * size_of::<LatelyLine>())),
        ];
        if self.has_rules() {
            memory.push(("requests", of(tables.requests, size_of::<Conn>() + HASH_BYTES)));
        }
        let sets = SLOTS as usize * (size_of::<SrcPrefixes>() + size_of::<Listeners>());
        memory.extend([("states", self.states()), ("classification", sets as u64)]);
        memory.extend(cpus.map(|cpus| ("counters", self.counters() * cpus as u64)));
        memory
    }

    /// Bytes of what all CPUs share of policies: of each service, whichever its policy is.
    fn states(&self) -> u64 {
        let services = SERVICES_MAX * size_of::<Chain>();
        let buckets = RULE_BUCKETS_MAX * size_of::<RequestChain>();
        (services + if self.has_rules() { buckets } else { 0 }) as u64
    }

    /// Bytes of what each CPU has for itself, but for some KiB to work in.
    fn counters(&self) -> u64 {
        let connections = size_of::<BucketCopy>() + CLASSES_MAX * size_of::<Counts>();
        let service = connections + size_of::<Totals>() + size_of::<Datagrams>();
        let rules = SERVICES_MAX * size_of::<ReasonCounts>()
            + RULE_BUCKETS_MAX * size_of::<BucketTotals>()
            + SLOTS as usize * RULES_MAX * size_of::<RuleCounts>();
        // There is room for imported rules whether any are imported or not.
        let all = SERVICES_MAX * service + IMPORT_RULES * size_of::<ImportCounts>();
        (all + if self.has_rules() { rules } else { 0 }) as u64
    }

    /// Whether a service has request rules: then there are hooks for them.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.config.services.iter().any(tidegate_config::ServiceConfig::has_rules)
    }

    /// Whether rules of a router are imported: the ingress hooks look for them then.
    #[must_use]
    pub fn has_import(&self) -> bool {
        self.config.flowspec.as_ref().is_some_and(|flowspec| flowspec.import.is_some())
    }

    /// The bits of DSCP that are cleared at an interface; 0: none.
    #[must_use]
    pub fn border(&self, interface: &InterfaceConfig) -> u32 {
        let marks = self.config.in_band.as_ref().filter(|_| interface.border);
        marks.map_or(0, |in_band| in_band.marks().into())
    }

    /// Most answers beyond those for all: who is never to be answered is not, whoever asks.
    pub(crate) fn proved(&self) -> u32 {
        let replies = &self.config.replies;
        if replies.rst_per_second == 0 { 0 } else { replies.rst_per_second_proved }
    }
}

/// The CPUs that this machine may have: each counts for itself. `None`: the system does not say.
#[must_use]
pub fn cpus() -> Option<usize> {
    libbpf_rs::num_possible_cpus().ok()
}

/// The policy of a service.
///
/// # Errors
/// When none is called so; the check of a configuration knows the names.
pub fn policy_of(config: &PolicyConfig) -> Result<Policy, Error> {
    let name = &config.name;
    Policy::from_name(name).ok_or_else(|| Error::Plan(format!("no policy is called {name:?}")))
}

/// What happens to what a service refuses.
#[must_use]
pub fn action_of(config: &PolicyConfig) -> Action {
    match config.refusal() {
        Refusal::Drop => Action::Drop,
        Refusal::Reject => Action::Reject,
        Refusal::Auto => Action::Auto,
    }
}

/// The keys in the kernel's table: mapped address (zero: any) and port.
pub(crate) fn keys(listen: &Listen) -> impl Iterator<Item = ([u8; 16], u16)> {
    listen.entries().map(|(address, port)| (mapped(address), port))
}

/// An address as the kernel's tables have it.
pub(crate) fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

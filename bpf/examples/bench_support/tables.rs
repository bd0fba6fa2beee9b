// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Full tables: as many services, listen addresses, classes and prefixes as there may be, and
//! packets that hit them at random.

use super::frames::{ACK, SYN, Tuple, segment};
use super::random::SplitMix;
use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::{TestHook, TestPlane};
use tidegate_bpf::{Plan, ServiceParams};
use tidegate_config::{ClassConfig, Exempt, ServiceConfig};
use tidegate_model::{CLASSES_MAX, SERVICES_MAX};
use tidegate_model::{Listen, Protocol};
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, GapSpec, Params,
    PercentSpec, Policy, ThresholdSpec,
};
use tidegate_units::{Nanos, Random, Rate, Share};

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Different packets: a power of two, at most 65536 (`RING_MAX`).
    pub ring: usize,
    /// Runs of the whole ring in one measurement.
    pub turns: usize,
    /// Connections in the flow table.
    pub flows: u32,
    /// Listen addresses of each of the 32 services.
    pub listens: usize,
    /// Prefixes of each class.
    pub class_prefixes: usize,
    /// Prefixes that are exempt.
    pub exempt_prefixes: usize,
    /// Established connections of the namespace that has many.
    pub sockets: usize,
}

impl Scale {
    /// Everything as full as its bound allows: 1024 listen addresses, 8192 prefixes, 65536 flows.
    pub const FULL: Self = Self {
        ring: 65_536,
        turns: 9,
        flows: 65_536,
        listens: 32,
        class_prefixes: 8,
        exempt_prefixes: 8192 - 8 * 15 * 32,
        sockets: 7000,
    };
    /// Enough to see that everything works.
    pub const SMOKE: Self = Self {
        ring: 256,
        turns: 1,
        flows: 1024,
        listens: 2,
        class_prefixes: 1,
        exempt_prefixes: 100,
        sockets: 20,
    };
}

/// Where a service listens.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    pub address: Ipv4Addr,
    pub port: u16,
}

/// What is configured, and packets that fit it.
#[derive(Clone, Debug)]
pub struct Tables {
    pub listeners: Vec<Listener>,
    services: Vec<ServiceConfig>,
    never: BTreeSet<u16>,
    classes: Vec<u16>,
    flows: u32,
    random: SplitMix,
}

/// All sources lie in 10.0.0.0/8; a prefix is one of its 65536 networks of 24 bits.
fn network(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, high, low, 0)
}

fn prefix(number: u16) -> Result<ipnet::IpNet> {
    Ok(ipnet::Ipv4Net::new(network(number), 24)?.into())
}

impl Tables {
    /// Tables of this size; without prefixes (and so without classes) if so wished.
    pub fn new(scale: &Scale, prefixes: bool) -> Result<Self> {
        let mut random = SplitMix(7);
        let mut numbers: Vec<u16> = (0..=u16::MAX).collect();
        random.shuffle(&mut numbers);
        let classes = SERVICES_MAX * (CLASSES_MAX - 1) * scale.class_prefixes;
        let mut take = |count| numbers.split_off(numbers.len() - if prefixes { count } else { 0 });
        let mut tables = Self {
            listeners: Vec::new(),
            services: Vec::new(),
            never: take(scale.exempt_prefixes).into_iter().collect(),
            classes: take(classes),
            flows: scale.flows,
            random,
        };
        for index in 0..SERVICES_MAX {
            let service = tables.service(index, scale)?;
            tables.services.push(service);
        }
        Ok(tables)
    }

    fn service(&mut self, index: usize, scale: &Scale) -> Result<ServiceConfig> {
        let mut listen = Vec::new();
        for number in 0..scale.listens {
            let address = Ipv4Addr::new(198, 18, index as u8, number as u8);
            let port = 1024 + 61 * self.listeners.len() as u16 % 60_000;
            self.listeners.push(Listener { address, port });
            listen.push(Listen { address: Some(address.into()), port, protocol: Protocol::Tcp });
        }
        let mut classes = Vec::new();
        let each = scale.class_prefixes;
        let ours = self.classes.chunks(each).skip(index * (CLASSES_MAX - 1));
        for (number, sources) in ours.take(CLASSES_MAX - 1).enumerate() {
            let sources = sources.iter().map(|number| prefix(*number)).collect::<Result<_>>()?;
            let priority = (number % 8) as u8;
            let name = format!("class{number}");
            classes.push(ClassConfig { name, sources, dscp: None, priority, weight: 1 });
        }
        Ok(ServiceConfig { classes, listen, ..plans::service(&format!("service{index}"), &[]) })
    }

    /// The plan, all services under one policy.
    pub fn plan(&self, policy: Policy, answers: u32) -> Result<Plan> {
        let mut services = self.services.clone();
        let policy = plans::policy(policy, Action::Drop);
        services.iter_mut().for_each(|service| service.policy = policy.clone());
        let sources = self.never.iter().map(|number| prefix(*number)).collect::<Result<_>>()?;
        let mut plan = plans::plan(services);
        plan.config.tables.connections = self.flows;
        plan.config.replies.rst_per_second = answers;
        plan.config.exempt = Exempt { sources, ..Exempt::default() };
        // Longer than any bench: what was filled stays full.
        plan.settings.flow_timeout = Nanos::from_secs(24 * 3600);
        Ok(plan)
    }

    fn source(&mut self) -> Ipv4Addr {
        let number = loop {
            // Half of them in a class, if there are any.
            let some = self.random.next_u64();
            let number = match self.classes.len() {
                classes if classes > 0 && some & 1 == 0 => self.classes[self.random.below(classes)],
                _ => (some >> 8) as u16,
            };
            if !self.never.contains(&number) {
                break number;
            }
        };
        let [a, b, c, _] = network(number).octets();
        Ipv4Addr::new(a, b, c, self.random.next_u64() as u8)
    }

    /// Tuples of clients of the services.
    pub fn clients(&mut self, count: usize) -> Vec<Tuple> {
        let tuple = |tables: &mut Self| {
            let listener = tables.listeners[tables.random.below(tables.listeners.len())];
            let (src, sport) = (tables.source(), 1024 + tables.random.below(64_000) as u16);
            Tuple { src, dst: listener.address, sport, dport: listener.port }
        };
        (0..count).map(|_| tuple(self)).collect()
    }

    /// Tuples of clients of nothing that is configured.
    pub fn strangers(&mut self, count: usize) -> Vec<Tuple> {
        let ports: BTreeSet<u16> = self.listeners.iter().map(|listener| listener.port).collect();
        let mut tuples = self.clients(count);
        for tuple in &mut tuples {
            while ports.contains(&tuple.dport) {
                tuple.dport = self.random.next_u64() as u16;
            }
        }
        tuples
    }

    /// Fills the flow table by handshakes, as packets do; the tuples that found a place. Twice as
    /// many try as there are places.
    pub fn fill_flows(&mut self, plane: &TestPlane) -> Result<Vec<Tuple>> {
        let mut kept = Vec::new();
        for tuple in self.clients(2 * self.flows as usize) {
            let (isn, theirs) = (self.random.next_u64() as u32 | 1, self.random.next_u64() as u32);
            let service = usize::from(tuple.dst.octets()[2]);
            let before = plane.open(service)?;
            plane.run(TestHook::Xdp, &segment(&tuple, SYN, theirs, 0))?;
            let answer = segment(&tuple.reverse(), SYN | ACK, isn, theirs.wrapping_add(1));
            plane.run(TestHook::Egress, &answer)?;
            let ack = segment(&tuple, ACK, theirs.wrapping_add(1), isn.wrapping_add(1));
            plane.run(TestHook::Xdp, &ack)?;
            if plane.open(service)? > before {
                kept.push(tuple);
            }
        }
        if kept.len() * 10 < self.flows as usize * 9 {
            bail!("only {} of {} places of the flow table are taken", kept.len(), self.flows);
        }
        Ok(kept)
    }
}

/// Limits for all services: none is reached, or all are.
pub fn limits(policy: Policy, admit: bool, action: Action) -> Result<Vec<ServiceParams>> {
    let bucket = if admit {
        BucketSpec::new(Rate::per_second(1e9), 1_000_000, action)
    } else {
        BucketSpec::new(Rate::per_second(0.001), 1, action)
    };
    let params = match policy {
        Policy::TokenBucket => Params::token_bucket(&bucket)?,
        Policy::FreshFirst => Params::fresh_first(&bucket)?,
        Policy::Abacus => Params::abacus(&AbacusSpec::classic(bucket, 45))?,
        Policy::AbacusExact => Params::abacus_exact(&AbacusExactSpec::classic(bucket, 45))?,
        Policy::AbacusLearned => Params::abacus_learned(&AbacusLearnedSpec::classic(bucket))?,
        // no hook measures a level, so all are below it
        Policy::Threshold if admit => Params::threshold(&ThresholdSpec::dropping(1, 2, action))?,
        Policy::Threshold => bail!("without a level nothing is refused"),
        Policy::Gap => {
            let tau_milli = [(bucket.burst - 1) * 1000; 8];
            Params::gap(&GapSpec { tau_milli, ..GapSpec::new(bucket.rate, action) })?
        }
        // any share above none refuses somebody
        Policy::Percent if admit => Params::no_limit(policy),
        Policy::Percent => Params::percent(&PercentSpec::new(Share::ONE, action))?,
    };
    Ok((0..SERVICES_MAX).map(|service| ServiceParams::new(service, params)).collect())
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs are made on: the lab, its server, and how much that answers.

use super::run::Options;
use super::{Lab as Section, product};
use crate::dual::{Setting, Unit};
use crate::survival::Watch;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use tidegate_lab::{
    ApacheOptions, CapacityOptions, Cgi, Cost, CpuCut, CpuCutGuard, Helper, Lab, LabOptions,
    NetworkOptions, Product, Server, Shaped, Shaping,
};
use tidegate_units::{Nanos, Share};
use tidegate_workload::{Surge, SurgeSpec};

/// Dynamic share of the paper's server, to whose capacity its rates belong.
pub(super) const PAPER_DYNAMIC: f64 = 0.2;
/// Bytes per second of the paper's interface: 100 Mbit/s.
const PAPER_INTERFACE: f64 = 12.5e6;
/// A frame of 1514 bytes carries 1448 bytes of an answer.
const FRAME_OVER_PAYLOAD: f64 = 1514.0 / 1448.0;

/// The lab and what was measured in it.
pub(super) struct Bench<'a> {
    pub(super) lab: Lab,
    pub(super) section: &'a Section,
    pub(super) options: &'a Options,
    /// Answers per second by dynamic share (in millionths).
    capacities: BTreeMap<u32, f64>,
    clients: Option<u32>,
}

/// A fresh server and what protects it; dropped in this order.
pub(super) struct Arm {
    pub(super) product: Option<Product>,
    pub(super) shaped: Option<Shaped>,
    _cut: Option<CpuCutGuard>,
    pub(super) server: Server,
}

impl Arm {
    /// Ends it in good order.
    pub(super) fn end(mut self) -> Result<()> {
        self.product.take().map_or(Ok(()), Product::stop).context("tidegate does not end")
    }
}

fn key(dynamic: f64) -> u32 {
    (dynamic * 1e6).round() as u32
}

fn files(setting: &Setting, dynamic: f64) -> SurgeSpec {
    SurgeSpec { dynamic, ..setting.files.clone() }
}

impl<'a> Bench<'a> {
    pub(super) fn new(section: &'a Section, options: &'a Options) -> Result<Self> {
        // Queues are measured in packets.
        let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
        let helper: Helper = options.helper.clone();
        let lab = Lab::new(LabOptions { network, ..LabOptions::new(helper) }).context("the lab")?;
        let clients = section.clients;
        Ok(Self { lab, section, options, capacities: BTreeMap::new(), clients })
    }

    fn apache(&self, setting: &Setting, dynamic: f64) -> Result<(Server, Option<CpuCutGuard>)> {
        let section = self.section;
        let cost = Cost::busy(Nanos::from_secs_f64(section.cgi_ms / 1e3));
        let options = ApacheOptions {
            cgi: (section.cgi_ms > 0.0).then_some(cost),
            start: if section.cgi_daemon { Cgi::Daemon } else { Cgi::ByMpm },
            workers: section.workers,
            checks: section.checks,
            work: Nanos::from_secs_f64(section.work_ms.max(0.0) / 1e3),
            listen_backlog: Some(section.backlog),
            ..ApacheOptions::surge(files(setting, dynamic))
        };
        let server = self.lab.start_apache(&options).context("Apache")?;
        let cut = section.cpu_share.map(|share| {
            self.lab
                .cut_cpu(&server, CpuCut::Quota(Share::new(share)))
                .context("its share of the CPU")
        });
        Ok((server, cut.transpose()?))
    }

    /// Measures what the bare server answers with this share of dynamic requests.
    pub(super) fn measure(
        &mut self,
        setting: &Setting,
        dynamic: f64,
        watch: &mut dyn Watch,
    ) -> Result<f64> {
        watch.step(&format!("measuring the capacity, {} % dynamic", 100.0 * dynamic));
        let (server, _cut) = self.apache(setting, dynamic)?;
        let search = CapacityOptions {
            windows: self.section.windows,
            clients_max: self.section.workers,
            ..CapacityOptions::default()
        };
        let options = match self.clients {
            Some(clients) => {
                CapacityOptions { clients_from: clients, clients_max: clients, ..search }
            }
            None => CapacityOptions { clients_from: 4, ..search },
        };
        let capacity = self.lab.capacity(&server, &options).context("the capacity")?;
        self.clients = Some(capacity.clients);
        let rate = capacity.rate.get();
        self.capacities.insert(key(dynamic), rate);
        watch.step(&format!("capacity: {}", capacity.rate));
        Ok(rate)
    }

    /// The capacity as it was measured last; measured now if it was not yet.
    pub(super) fn capacity(
        &mut self,
        setting: &Setting,
        dynamic: f64,
        watch: &mut dyn Watch,
    ) -> Result<f64> {
        let known = self.capacities.get(&key(dynamic)).copied();
        known.map_or_else(|| self.measure(setting, dynamic, watch), Ok)
    }

    /// What was measured of other shares than this counts no more.
    pub(super) fn forget_but(&mut self, dynamic: f64) {
        self.capacities.retain(|known, _| *known == key(dynamic));
    }

    /// A fresh server and its tidegate, as the setting says.
    pub(super) fn arm(&self, setting: &Setting, scales: &Scales) -> Result<Arm> {
        let (server, cut) = self.apache(setting, setting.dynamic)?;
        let shaped = scales.shaping(setting).map(|shaping| self.lab.shape(&shaping)).transpose()?;
        let scales = product::Scale { server: scales.paper, interface: scales.interface(setting) };
        let config = product::config(setting, self.section, scales);
        let program = &self.options.program;
        let start = |config| self.lab.start_product(program, &config).context("tidegate");
        let product = config.map(start).transpose()?;
        Ok(Arm { product, shaped, _cut: cut, server })
    }

    /// How the setting's rates are to be taken on this server.
    pub(super) fn scales(&mut self, setting: &Setting, watch: &mut dyn Watch) -> Result<Scales> {
        let unit = match setting.unit {
            Unit::Mix => setting.dynamic,
            Unit::Static => 0.0,
        };
        let unit = self.capacity(setting, unit, watch)?;
        let paper = self.capacity(setting, PAPER_DYNAMIC, watch)? / setting.paper_capacity;
        let mean_size = Surge::new(&files(setting, setting.dynamic)).mean_size();
        Ok(Scales { unit, paper, mean_size })
    }
}

/// What the setting's figures mean here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales {
    /// Requests per second of a load of 1.
    pub(super) unit: f64,
    /// How much larger the server is than the paper's.
    pub(super) paper: f64,
    /// Bytes of a request's answer, on average.
    pub(super) mean_size: f64,
}

impl Scales {
    /// Payload that the interface carries, in bytes per second; none if it is no bottleneck.
    pub(super) fn payload(&self, setting: &Setting) -> Option<f64> {
        let share = setting.interface_share;
        (share > 0.0).then(|| setting.load * self.unit * self.mean_size / share)
    }

    /// The queue is as many times longer as the interface is faster than the paper's: it drains in
    /// the same time, and holds the first segments of as many answers as begin in that time.
    fn shaping(&self, setting: &Setting) -> Option<Shaping> {
        let payload = self.payload(setting)?;
        let bits_per_second = (payload * 8.0 * FRAME_OVER_PAYLOAD).round() as u64;
        let queue = f64::from(setting.interface_queue) * self.interface(setting);
        Some(Shaping { bits_per_second, queue: queue.round().max(1.0) as u32 })
    }

    /// How much faster the interface is than the paper's; as the server where it is no bottleneck.
    fn interface(&self, setting: &Setting) -> f64 {
        let payload = self.payload(setting);
        payload.map_or(self.paper, |payload| payload * FRAME_OVER_PAYLOAD / PAPER_INTERFACE)
    }

    /// Requests for the large file per second.
    pub(super) fn large_rate(&self, setting: &Setting) -> f64 {
        let payload = self.payload(setting).unwrap_or(0.0);
        setting.large_load * payload / (setting.large_size as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interface that the load fills to a half carries twice its bytes; the large file's share
    /// is of what it carries.
    #[test]
    fn the_interface_scales_with_the_load() {
        let scales = Scales { unit: 1000.0, paper: 2.0, mean_size: 10_000.0 };
        let setting = Setting {
            load: 0.8,
            interface_share: 0.5,
            large_load: 0.7,
            large_size: 140_000,
            ..Setting::default()
        };
        assert!((scales.payload(&setting).unwrap() - 16e6).abs() < 1.0);
        assert!((scales.large_rate(&setting) - 80.0).abs() < 1e-6);
        let shaping = scales.shaping(&setting).unwrap();
        let bits = shaping.bits_per_second as f64;
        assert!((bits / (16e6 * 8.0) - 1.0456).abs() < 1e-3);
        let faster = 16e6 * FRAME_OVER_PAYLOAD / PAPER_INTERFACE;
        assert_eq!(shaping.queue, (100.0 * faster).round() as u32, "it drains in the same time");
        assert!((scales.interface(&setting) - faster).abs() < 1e-9);
        assert!((scales.interface(&Setting::default()) - 2.0).abs() < 1e-9);
        assert!(scales.shaping(&Setting::default()).is_none());
    }
}

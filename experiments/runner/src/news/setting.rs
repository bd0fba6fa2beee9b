// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the experiments on flash crowds. The defaults are the paper's where it prints a number
//! (section named), else ours with a reason.

use super::traces::{CrowdSpec, Data, Rates, Trace};
use crate::setting::within;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tidegate_sim::news::{
    Adjust, Bystander, Control as Sim, NewsSpec, Protocol, PublishedSpec, Reset, ServerSpec, Static,
};
use tidegate_units::Nanos;
use tidegate_workload::Rng;

/// What is in force at the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nothing.
    None,
    /// A limit by hand: `rate`, or the best of the sweep where that is 0.
    Static,
    /// The published system without hot spots.
    News,
    /// The published system with them.
    NewsHsi,
    /// Ours.
    NewsFast,
}

/// The crowd's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// S1.
    Fast,
    /// S2: it swaps.
    Memory,
    /// S2 as it is in the lab: a request keeps its pages for a while.
    Pages,
    /// Limited by its CPU.
    Cpu,
}

/// Who is beside the crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bystanders {
    /// Nobody.
    None,
    /// B1 asks S3 for pages.
    Web,
    /// S3 sends bulk to B1.
    Bulk,
}

/// Which clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// Of 2003.
    Classic,
    /// Today's.
    Today,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// Who comes when: see [`super::traces`].
    pub trace: f64,
    /// Of the paper's crowd: clients per second before it (figure 9: about a fifth of 110).
    pub calm: f64,
    /// How many times that (section 5.1: about 5).
    pub times: f64,
    /// When it begins (section 5.1).
    pub at_s: f64,
    /// How long it takes to come ("in just several minutes").
    pub ramp_s: f64,
    /// When it ends. The paper's log ends with it.
    pub until_s: f64,
    /// When all ends.
    pub lasts_s: f64,
    /// Counted from here on, and until then; 0: 200 s after the crowd has begun to come, and 10 s before
    /// it ends.
    pub from_s: f64,
    /// See above.
    pub to_s: f64,
    /// The link, Mbit/s (section 5.1).
    pub link_mbit: f64,
    /// Packets in front of it. Not printed.
    pub queue: u32,
    /// The crowd's server.
    pub server: Server,
    /// Its capacity, responses per second. Not printed. 33 uses 60 % of the link (section 5.3).
    pub capacity: f64,
    /// Mean size of a response, bytes: 2 Mbit/s over 55.9/s (section 5.2).
    pub size: f64,
    /// Its coefficient of variation. Not printed.
    pub size_cv: f64,
    /// Which clients.
    pub clients: Clients,
    /// Who is beside the crowd.
    pub bystanders: Bystanders,
    /// Pages per second of B1. Not printed: "light load".
    pub web: f64,
    /// Bulk, kbit/s (section 5.6: 328.6 without a crowd).
    pub bulk_kbit: f64,
    /// Seconds within which a response is good. Ours.
    pub objective_s: f64,
    /// What is in force.
    pub control: Control,
    /// The limit by hand, per second; 0: the best of the sweep.
    pub rate: f64,
    /// Its bucket, in seconds of the rate: as ours has it.
    pub burst_s: f64,
    /// T (section 4.2: 64 s).
    pub interval_s: f64,
    /// Share of the connections that are the fastest (text: 5 %, authors' code: 10 %).
    pub fastest: f64,
    /// Weight of an interval in the averages (authors' code).
    pub gain: f64,
    /// The band of both (authors' code: 0.1).
    pub band: f64,
    /// Factor of the adjust state; 0: the authors' scored search.
    pub adjust: f64,
    /// Step of the release.
    pub release: f64,
    /// In the lab: how many times as fast as it was a trace goes by, its rates as they were. Of the paper's crowd the
    /// times above say it.
    pub compress: f64,
    /// Whether the alarm ends by the long-term average (authors' code) instead of the last interval.
    pub reset_by_average: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            trace: 0.0,
            calm: 22.0,
            times: 5.0,
            at_s: 1000.0,
            ramp_s: 120.0,
            until_s: 2000.0,
            lasts_s: 2000.0,
            from_s: 0.0,
            to_s: 0.0,
            link_mbit: 2.0,
            queue: 50,
            server: Server::Fast,
            capacity: 33.0,
            size: 4_472.0,
            size_cv: 2.0,
            clients: Clients::Classic,
            bystanders: Bystanders::None,
            web: 2.0,
            bulk_kbit: 330.0,
            objective_s: 2.0,
            control: Control::None,
            rate: 0.0,
            burst_s: 0.25,
            interval_s: 64.0,
            fastest: 0.1,
            gain: 0.125,
            band: 0.1,
            adjust: 0.9,
            release: 2.0,
            compress: 1.0,
            reset_by_average: false,
        }
    }
}

impl Setting {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self) -> Result<()> {
        Trace::numbered(self.trace)?;
        for (name, value, range) in [
            ("calm", self.calm, (0.1, 1e4)),
            ("times", self.times, (1.0, 100.0)),
            ("at_s", self.at_s, (20.0, 1e6)),
            ("ramp_s", self.ramp_s, (0.0, 1e5)),
            ("lasts_s", self.lasts_s, (self.at_s, 1e6)),
            ("until_s", self.until_s, (self.at_s, self.lasts_s)),
            ("link_mbit", self.link_mbit, (0.01, 1e4)),
            ("capacity", self.capacity, (0.1, 1e6)),
            ("size", self.size, (200.0, 1e6)),
            ("size_cv", self.size_cv, (0.0, 10.0)),
            ("web", self.web, (0.01, 1e4)),
            ("bulk_kbit", self.bulk_kbit, (1.0, 1e6)),
            ("objective_s", self.objective_s, (0.01, 10.0)),
            ("rate", self.rate, (0.0, 1e6)),
            ("burst_s", self.burst_s, (0.0, 10.0)),
            ("interval_s", self.interval_s, (0.5, 3600.0)),
            ("fastest", self.fastest, (0.0, 1.0)),
            ("gain", self.gain, (1e-6, 1.0)),
            ("band", self.band, (0.0, 0.99)),
            ("adjust", self.adjust, (0.0, 1.0)),
            ("release", self.release, (1.0, 100.0)),
            ("compress", self.compress, (1.0, 100.0)),
        ] {
            within(name, value, range)?;
        }
        ensure!((1..=100_000).contains(&self.queue), "queue: 1 to 100,000");
        Ok(())
    }

    /// The published detector of this setting, with another interval.
    #[must_use]
    pub fn published(&self, interval_s: f64) -> PublishedSpec {
        let spec = PublishedSpec::new(Nanos::from_secs_f64(interval_s));
        PublishedSpec {
            response_on: 1.0 - self.band,
            response_off: 1.0 + self.band,
            request_on: 1.0 + self.band,
            gain_calm: self.gain,
            gain_alarm: self.gain / 16.0,
            reset: if self.reset_by_average { Reset::Average } else { Reset::Rise },
            adjust: if self.adjust > 0.0 { Adjust::Reduce(self.adjust) } else { Adjust::Search },
            release: self.release,
            ..spec
        }
    }

    /// What is counted, seconds.
    #[must_use]
    pub fn window(&self, lasts: f64) -> (f64, f64) {
        let crowd = Trace::numbered(self.trace).is_ok_and(|trace| trace == Trace::Crowd);
        let (from, to) = if crowd {
            (self.at_s + self.ramp_s.max(200.0), self.until_s - 10.0)
        } else {
            (600.0, lasts - 10.0)
        };
        let or = |value: f64, usual: f64| if value > 0.0 { value } else { usual };
        (or(self.from_s, from), or(self.to_s, to))
    }

    /// Who comes when.
    ///
    /// # Errors
    /// When the trace cannot be made.
    pub fn rates(&self, data: &Data, seed: u64) -> Result<Rates> {
        let trace = Trace::numbered(self.trace)?;
        let crowd = CrowdSpec {
            calm: self.calm,
            times: self.times,
            at_s: self.at_s,
            ramp_s: self.ramp_s,
            until_s: self.until_s,
            lasts_s: self.lasts_s,
        };
        data.rates(trace, &crowd, seed).context("arrivals")
    }

    /// The simulator's setting, and whether the trace is real.
    ///
    /// # Errors
    /// When the trace cannot be made.
    pub fn spec(&self, data: &Data, seed: u64) -> Result<(NewsSpec, bool)> {
        let rates = self.rates(data, seed)?;
        let counts = rates.counts(&mut Rng::new(seed, 0x434f_554e));
        let (from, to) = self.window(counts.len() as f64);
        let spec = NewsSpec {
            link: (self.link_mbit * 1e6) as u64,
            queue: self.queue,
            server: match self.server {
                Server::Fast => ServerSpec::FAST,
                Server::Memory => ServerSpec::memory(self.capacity),
                Server::Pages => ServerSpec::pages(self.capacity),
                Server::Cpu => ServerSpec::cpu(self.capacity),
            },
            protocol: match self.clients {
                Clients::Classic => Protocol::Classic,
                Clients::Today => Protocol::Today,
            },
            size: self.size,
            size_cv: self.size_cv,
            bystander: match self.bystanders {
                Bystanders::None => Bystander::None,
                Bystanders::Web => Bystander::Web(self.web),
                Bystanders::Bulk => Bystander::Bulk(self.bulk_kbit * 1e3),
            },
            objective: Nanos::from_secs_f64(self.objective_s),
            control: self.control(),
            watched: vec![self.published(self.interval_s)],
            fastest: self.fastest,
            window: (Nanos::from_secs_f64(from), Nanos::from_secs_f64(to)),
            ..NewsSpec::new(seed, counts, Nanos::SECOND)
        };
        Ok((spec, rates.real))
    }

    fn control(&self) -> Sim {
        let burst = (self.rate * self.burst_s).round().max(2.0) as u32;
        match self.control {
            Control::None => Sim::None,
            Control::Static => Sim::Static(Static { rate: self.rate, burst }),
            Control::News => Sim::Published(self.published(self.interval_s)),
            Control::NewsHsi => Sim::PublishedHot(self.published(self.interval_s)),
            Control::NewsFast => Sim::Fast,
        }
    }
}

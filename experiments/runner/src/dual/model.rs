// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server of the experiments in virtual time: the paper's, as far as its figures tell.

use super::setting::{Control, Rule, Setting, Unit};
use crate::setting::Changes;
use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::Value;
use tidegate_sim::web::protect::{PaperSpec, shipped};
use tidegate_sim::web::{
    Costs, Interface, Known, LargeLoad, Match, RuleSpec, Sessions, WebProtection, WebScenario,
    WebServer,
};
use tidegate_units::{Nanos, Rate};
use tidegate_workload::{Mixture, Profile, Segment, Surge, SurgeSpec};

/// Keys of `sim.server`; the defaults are read off the paper: the load at which the server without
/// control gives way (figure 4), and at which SYN policing begins without dynamic requests (table
/// 1). What it does not give is ours: `byte_ns`, `refuse_us`, `police_us`, `rtt_us`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Requests per second without dynamic ones.
    pub capacity_static: f64,
    /// Requests per second with a share `dynamic_at` of the small ones dynamic.
    pub capacity_dynamic: f64,
    /// That share.
    pub dynamic_at: f64,
    /// CPU time of each byte of an answer, in nanoseconds.
    pub byte_ns: f64,
    /// CPU time of a connection whose request is refused, in microseconds.
    pub refuse_us: f64,
    /// CPU time of a refused SYN, in microseconds.
    pub police_us: f64,
    /// Cores.
    pub cpus: u32,
    /// Workers.
    pub workers: usize,
    /// Listen queue.
    pub accept_limit: usize,
    /// Round trip without queues, in microseconds.
    pub rtt_us: f64,
    /// Schedule of the clients' SYNs.
    pub clients: String,
    /// Period of the paper's controllers, in milliseconds.
    pub paper_period_ms: u64,
    /// Period of ours, in milliseconds.
    pub period_ms: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            capacity_static: 610.0,
            capacity_dynamic: 375.0,
            dynamic_at: 0.2,
            byte_ns: 10.0,
            refuse_us: 100.0,
            police_us: 5.0,
            cpus: 1,
            workers: 150,
            accept_limit: 1024,
            rtt_us: 300.0,
            clients: "classic".into(),
            paper_period_ms: 1000,
            period_ms: 100,
        }
    }
}

/// A point, ready to run once its seed is known.
#[derive(Debug)]
pub struct Point {
    /// The scenario, with a seed of 0.
    pub scenario: WebScenario,
    /// What a load of 1 is, in requests per second.
    pub capacity: f64,
    /// Requests per second that are offered (with `steps`, at a load of 1).
    pub offered: f64,
}

impl Model {
    /// The defaults with these changes.
    ///
    /// # Errors
    /// For keys that there are not, and values that do not fit.
    pub fn new(changes: &Changes) -> Result<Self> {
        let model: Self =
            serde_json::from_value(Value::Object(changes.clone())).context("sim.server")?;
        ensure!(
            model.capacity_dynamic > 0.0 && model.capacity_static >= model.capacity_dynamic,
            "sim.server: capacity_static at least capacity_dynamic, above 0"
        );
        ensure!(model.dynamic_at > 0.0 && model.dynamic_at <= 1.0, "sim.server: dynamic_at");
        ensure!(model.period_ms > 0 && model.paper_period_ms > 0, "sim.server: periods");
        Ok(model)
    }

    fn files(setting: &Setting, dynamic: f64) -> Surge {
        Surge::new(&SurgeSpec { dynamic, ..setting.files.clone() })
    }

    fn costs(&self, files: &Surge) -> Costs {
        let known = Known {
            without: self.capacity_static / f64::from(self.cpus.max(1)),
            with: self.capacity_dynamic / f64::from(self.cpus.max(1)),
            dynamic: self.dynamic_at,
        };
        Costs::of(
            known,
            files,
            Costs {
                file_s: 0.0,
                dynamic_s: 0.0,
                byte_s: self.byte_ns / 1e9,
                refuse_s: self.refuse_us / 1e6,
                police_s: self.police_us / 1e6,
            },
        )
    }

    /// Runs of a setting, but for their seed.
    ///
    /// # Errors
    /// For clients that nobody knows.
    pub fn point(&self, setting: &Setting) -> Result<Point> {
        let files = Self::files(setting, setting.dynamic);
        let costs = self.costs(&files);
        let cores = f64::from(self.cpus.max(1));
        let capacity = cores
            * match setting.unit {
                Unit::Mix => costs.capacity(&files),
                Unit::Static => costs.capacity(&Self::files(setting, 0.0)),
            };
        let offered = setting.load * capacity;
        let interface = (setting.interface_share > 0.0).then(|| Interface {
            rate: offered * files.mean_size() / setting.interface_share,
            limit: setting.interface_queue as usize,
        });
        let large = interface.filter(|_| setting.large_load > 0.0).map(|interface| LargeLoad {
            rate: setting.large_load * interface.rate / setting.large_size.max(1) as f64,
            size: setting.large_size,
        });
        let clients = Mixture::new(&[(self.clients.as_str(), 1.0)]).map_err(|e| anyhow!("{e}"))?;
        let period = match setting.control {
            Control::Default => self.period_ms,
            Control::None | Control::Paper => self.paper_period_ms,
        };
        let timeout = |s: f64| Nanos::from_secs_f64(s);
        let scenario = WebScenario {
            server: WebServer {
                cpus: self.cpus,
                workers: self.workers,
                accept_limit: self.accept_limit,
                costs,
            },
            interface,
            files,
            process: setting.arrivals,
            load: profile(setting, capacity / f64::from(setting.session_requests)),
            large,
            sessions: Sessions {
                requests: setting.session_requests,
                think: timeout(setting.think_s),
            },
            clients,
            connect_timeout: (setting.connect_timeout_s > 0.0)
                .then(|| timeout(setting.connect_timeout_s)),
            timeout: timeout(setting.timeout_s),
            rtt: Nanos::from_secs_f64(self.rtt_us / 1e6),
            measure_from: timeout(setting.measured_from()),
            period: Nanos::from_millis(period),
            seed: 0,
        };
        Ok(Point { scenario, capacity, offered })
    }

    /// What stands in front of the server.
    #[must_use]
    pub fn protection(&self, setting: &Setting) -> Option<WebProtection> {
        let rule = |rule: &Rule| RuleSpec {
            matches: match rule {
                Rule::Cgi => Match::Dynamic,
                Rule::Large => Match::Large,
                Rule::Any => Match::Any,
            },
            protect: setting.protect,
        };
        let rules: Vec<RuleSpec> = setting.rules.iter().map(rule).collect();
        let scale = self.capacity_dynamic / setting.paper_capacity;
        let paper = PaperSpec {
            scale,
            published: setting.published_hold,
            syn_start: setting.syn_start,
            header_start: Some(setting.header_start),
            min_rate: setting.minimum,
            burst_syn: setting.burst_syn,
            burst_header: setting.burst_header,
            cpu_reference: setting.cpu_reference,
        };
        match setting.control {
            Control::None => None,
            Control::Paper => Some(paper.protection(rules)),
            Control::Default => {
                let minimum = Rate::per_second(setting.minimum * scale);
                Some(shipped(rules, minimum, setting.burst_header))
            }
        }
    }
}

/// The load over time, in new clients per second, where a load of 1 is so many.
fn profile(setting: &Setting, unit: f64) -> Profile {
    let piece = |seconds: f64, from: f64, to: f64| Segment {
        lasts: Nanos::from_secs_f64(seconds),
        from: from * unit,
        to: to * unit,
    };
    if !setting.steps.is_empty() {
        let pieces: Vec<Segment> =
            setting.steps.iter().map(|(seconds, load)| piece(*seconds, *load, *load)).collect();
        return Profile::new(&pieces);
    }
    let load = setting.load;
    let ramp = piece(setting.ramp_s, load.min(0.5), load);
    Profile::new(&[ramp, piece(setting.warm_s + setting.seconds, load, load)])
}

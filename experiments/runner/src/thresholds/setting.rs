// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the experiments on thresholds. The defaults are the paper's where it prints a number
//! (section named), else ours with a reason.

use crate::setting::within;
use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use tidegate_sim::thresholds::{
    self, CLASSIC, ClientSpec, Feedback, Ladder, NodeBounds, RemoteLimits, ServerSpec, Spec,
    Spread, Throttling,
};
use tidegate_units::Nanos;
use tidegate_workload::Mixture;

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Nothing.
    None,
    /// From `discard` on SYNs of controlled clients are dropped, until fewer than `abatement` wait.
    Drop,
    /// From `onset` on `shares` of them are dropped.
    DropShare,
    /// From `onset` on they are throttled before the server.
    Throttle,
    /// Both: throttled from `onset` on, dropped from `discard` on until fewer than `onset` wait.
    Combined,
}

/// Where and how requests are throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Throttle {
    /// Each client lengthens its own interval by the gap: what the paper ran.
    GapAdded,
    /// A control node keeps the gap: what the paper describes.
    GapMinimum,
    /// A control node answers "too busy" to `percent` of the requests.
    Percent,
    /// Each client has a control node, which the server sends remote limits to, as the product does.
    RemoteLimit,
}

/// How requests are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At equal distances.
    Deterministic,
    /// M/G/∞.
    SelfSimilar,
}

/// How clients send their SYNs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// The paper's: after 1.5 s, doubling.
    Classic,
    /// A mixture of today's.
    Today,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// Requests per second of all clients together.
    pub load: f64,
    /// Of them those of the uncontrolled client (section 3.2); at most `load`.
    pub uncontrolled: f64,
    /// Controlled clients, which share the rest; 0: as many as come nearest to 20/s each (section
    /// 3.2), 1 at least.
    pub controlled: u32,
    /// Whether the second half of them has a lower priority, with the thresholds `low_abatement` and
    /// `low_onset` (section 5.5).
    pub priorities: bool,
    /// How requests are spread.
    pub arrivals: Arrivals,
    /// Hurst parameter of self-similar ones (section 1: around 0.8).
    pub hurst: f64,
    /// Width of their slots in seconds. Not printed. A second is a longer time than a request and a
    /// shorter one than the queue.
    pub slot_s: f64,
    /// C, requests per second (section 5.1).
    pub capacity: f64,
    /// RequestQueueMax (section 5.1; table 1 shows 253).
    pub queue_max: usize,
    /// CPU time of "too busy", in milliseconds: fitted to table 1, a calibration.
    pub busy_ms: f64,
    /// What is in force.
    pub control: Control,
    /// How requests are throttled.
    pub throttle: Throttle,
    /// Throttling begins (section 5.3: 150 and 200; 5.2: 20), in requests that wait.
    pub onset: u32,
    /// Throttling ends below it; 0: half the onset. Not printed. Half of 150 is 1.7 s of work, more than
    /// the second of a monitor and the delay of a message together, so the server does not run empty
    /// before the clients resume.
    pub abatement: u32,
    /// All are dropped from it on (section 5.2: 20, 5.4: 200). With `drop`, the abatement 0 means half
    /// of it.
    pub discard: u32,
    /// The onset of the lower priority.
    pub low_onset: u32,
    /// Its abatement; 0: half of `low_onset`.
    pub low_abatement: u32,
    /// The gap, in milliseconds (section 5.3: 50, 150, 250).
    pub gap_ms: f64,
    /// Factors of the gap, one for each severity: 1 to 3, not falling. The experiments of the paper have
    /// one severity.
    pub severities: Vec<f64>,
    /// From one severity's onset to the next, in requests.
    pub rise: u32,
    /// Shares that are dropped of the first and of the other controlled clients (section 5.2: 50 and
    /// 100 %).
    pub shares: (f64, f64),
    /// The share that a control node refuses with `percent`.
    pub percent: f64,
    /// Whether one control node serves all controlled clients; else each has its own.
    pub shared_node: bool,
    /// Requests that wait in a control node. Not printed. With a gap of 150 ms, 20 wait 3 s, as long as at
    /// the server at an onset of 150.
    pub node_queue: u32,
    /// The queue is sampled so often (seconds; section 3.3: 1 s); 0: in line with the packet.
    pub monitor_s: f64,
    /// Delay δ of a feedback message, in seconds. Not printed. 10 ms is a local network with a process at
    /// both ends.
    pub feedback_delay_s: f64,
    /// Up to so much more.
    pub feedback_jitter_s: f64,
    /// Share of the messages that is lost.
    pub feedback_loss: f64,
    /// n: while throttled, a message after so many requests; 0: none. Not printed. τ does the same at a
    /// cost that does not grow with the load.
    pub feedback_n: u32,
    /// τ: and after so many seconds. Not printed. A second is the monitor's period.
    pub feedback_s: f64,
    /// Share of C to which the server limits itself while throttled, with remote limits. Below 1, so that
    /// the queue drains.
    pub own: f64,
    /// How long a remote limit is valid, in seconds: five of the messages that renew it.
    pub validity_s: f64,
    /// No remote limit takes a control node below this, per second.
    pub min_rate: f64,
    /// The link is cut so many seconds after the beginning of the measurement.
    pub cut_from_s: f64,
    /// And for so long; 0: it is not.
    pub cut_s: f64,
    /// Messages to each control node in each tenth of a second that nobody may believe.
    pub forged: u32,
    /// How SYNs are sent again.
    pub clients: Clients,
    /// How often, of classic clients. Not printed ("a predefined maximum"). 3 is what Windows NT 4.0 does
    /// (TcpMaxConnectRetransmissions).
    pub syn_retries: usize,
    /// Controlled clients start so many seconds after the uncontrolled one (section 3.2).
    pub lead_s: f64,
    /// From then to the measurement. The longest schedule of classic clients is over by then, and the
    /// queue full.
    pub warm_s: f64,
    /// Seconds measured (section 3.2: 5 minutes).
    pub seconds: f64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            load: 45.0,
            uncontrolled: 30.0,
            controlled: 0,
            priorities: false,
            arrivals: Arrivals::Deterministic,
            hurst: 0.8,
            slot_s: 1.0,
            capacity: 45.0,
            queue_max: 253,
            busy_ms: 4.2,
            control: Control::None,
            throttle: Throttle::GapAdded,
            onset: 150,
            abatement: 0,
            discard: 200,
            low_onset: 100,
            low_abatement: 0,
            gap_ms: 150.0,
            severities: vec![1.0],
            rise: 25,
            shares: (0.5, 1.0),
            percent: 0.5,
            shared_node: true,
            node_queue: 20,
            monitor_s: 0.0,
            feedback_delay_s: 0.01,
            feedback_jitter_s: 0.0,
            feedback_loss: 0.0,
            feedback_n: 0,
            feedback_s: 1.0,
            own: 0.95,
            validity_s: 0.5,
            min_rate: 1.0,
            cut_from_s: 20.0,
            cut_s: 0.0,
            forged: 0,
            clients: Clients::Classic,
            syn_retries: 3,
            lead_s: 10.0,
            warm_s: 30.0,
            seconds: 300.0,
        }
    }
}

impl Setting {
    /// Controlled clients.
    #[must_use]
    pub fn controlled_clients(&self) -> u32 {
        let rest = (self.load - self.uncontrolled).max(0.0);
        match self.controlled {
            0 => (rest / 20.0).round().clamp(1.0, 1e3) as u32,
            n => n,
        }
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// Names what is out of its range.
    pub fn check(&self) -> Result<()> {
        within("load", self.load, (0.0, 1e4))?;
        within("uncontrolled", self.uncontrolled, (0.0, 1e4))?;
        within("controlled", f64::from(self.controlled), (0.0, 100.0))?;
        within("capacity", self.capacity, (0.1, 1e6))?;
        within("busy_ms", self.busy_ms, (0.0, 1e4))?;
        within("gap_ms", self.gap_ms, (0.001, 3.6e6))?;
        within("percent", self.percent, (0.0, 1.0))?;
        within("shares", self.shares.0, (0.0, 1.0))?;
        within("shares", self.shares.1, (self.shares.0, 1.0))?;
        within("monitor_s", self.monitor_s, (0.0, 1e3))?;
        within("feedback_delay_s", self.feedback_delay_s, (0.0, 1e3))?;
        within("feedback_jitter_s", self.feedback_jitter_s, (0.0, 1e3))?;
        within("feedback_s", self.feedback_s, (0.001, 1e6))?;
        within("cut_from_s", self.cut_from_s, (0.0, 1e5))?;
        within("cut_s", self.cut_s, (0.0, 1e5))?;
        within("syn_retries", self.syn_retries as f64, (0.0, 6.0))?;
        within("lead_s", self.lead_s, (0.0, 1e4))?;
        within("warm_s", self.warm_s, (0.0, 1e4))?;
        within("seconds", self.seconds, (1.0, 1e5))?;
        self.spec(0)?.check().map_err(|what| anyhow!(what))
    }

    /// The run with this seed.
    ///
    /// # Errors
    /// When there is no such mixture of clients.
    pub fn spec(&self, seed: u64) -> Result<Spec> {
        let own = self.uncontrolled.min(self.load);
        let (n, rest) = (self.controlled_clients(), self.load - own);
        let mut clients = vec![ClientSpec { rate: own, priority: 0 }];
        let low = |index: u32| self.priorities && index >= n.div_ceil(2);
        let shares = self.control == Control::DropShare;
        clients.extend((0..n).map(|index| ClientSpec {
            rate: rest / f64::from(n),
            priority: if low(index) || (shares && index > 0) { 2 } else { 1 },
        }));
        let spread = match self.arrivals {
            Arrivals::Deterministic => Spread::Constant,
            Arrivals::SelfSimilar => {
                Spread::Sessions { hurst: self.hurst, slot: Nanos::from_secs_f64(self.slot_s) }
            }
        };
        let (schedules, retries) = match self.clients {
            Clients::Classic => (Mixture::only(&CLASSIC), self.syn_retries),
            Clients::Today => (Mixture::today().context("today's clients")?, usize::MAX),
        };
        Ok(Spec {
            server: ServerSpec {
                work: Nanos::from_secs_f64(1.0 / self.capacity),
                busy_work: Nanos::from_secs_f64(self.busy_ms / 1e3),
                queue_max: self.queue_max,
            },
            clients,
            spread,
            schedules,
            retries,
            control: self.control(),
            lead: Nanos::from_secs_f64(self.lead_s),
            warm: Nanos::from_secs_f64(self.warm_s),
            lasts: Nanos::from_secs_f64(self.seconds),
            seed,
        })
    }

    fn control(&self) -> Option<thresholds::Control> {
        if self.control == Control::None {
            return None;
        }
        let throttling = match self.control {
            Control::DropShare => Throttling::Drop(self.shares.0, self.shares.1),
            Control::Throttle | Control::Combined => self.throttling(),
            Control::None | Control::Drop => Throttling::None,
        };
        let gap = |factor: &f64| Nanos::from_secs_f64(self.gap_ms * factor / 1e3);
        Some(thresholds::Control {
            ladders: self.ladders(),
            throttling,
            gaps: self.severities.iter().map(gap).collect(),
            rise: self.rise,
            monitor: (self.monitor_s > 0.0).then(|| Nanos::from_secs_f64(self.monitor_s)),
            feedback: Feedback {
                delay: Nanos::from_secs_f64(self.feedback_delay_s),
                jitter: Nanos::from_secs_f64(self.feedback_jitter_s),
                loss: self.feedback_loss,
                every: self.feedback_n,
                period: Nanos::from_secs_f64(self.feedback_s),
            },
        })
    }

    fn throttling(&self) -> Throttling {
        let node = NodeBounds { shared: self.shared_node, queue_max: self.node_queue };
        match self.throttle {
            Throttle::GapAdded => Throttling::AddedGap,
            Throttle::GapMinimum => Throttling::MinimumGap(node),
            Throttle::Percent => Throttling::Percent(self.percent, node),
            Throttle::RemoteLimit => Throttling::Remote(self.remote()),
        }
    }

    fn remote(&self) -> RemoteLimits {
        let cut = [self.cut_from_s, self.cut_s].map(Nanos::from_secs_f64);
        RemoteLimits {
            own: self.own,
            validity: Nanos::from_secs_f64(self.validity_s),
            min_rate: self.min_rate,
            cut: (self.cut_s > 0.0).then_some((cut[0], cut[1])),
            forged: self.forged,
        }
    }

    /// The highest controlled priority first.
    fn ladders(&self) -> Vec<Ladder> {
        let half = |own: u32, of: u32| if own > 0 { own } else { (of / 2).max(1) };
        if self.control == Control::Drop {
            let onset = half(self.abatement, self.discard);
            return vec![Ladder { abatement: onset, onset, discard: Some(self.discard) }];
        }
        let discard = (self.control == Control::Combined).then_some(self.discard);
        let ladder =
            |abatement, onset| Ladder { abatement: half(abatement, onset), onset, discard };
        let mut all = vec![ladder(self.abatement, self.onset)];
        if self.priorities {
            all.push(ladder(self.low_abatement, self.low_onset));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed loads have the printed numbers of clients.
    #[test]
    fn clients_are_those_of_the_paper() {
        let clients = |load| Setting { load, ..Setting::default() }.controlled_clients();
        assert_eq!([32.58, 43.97, 71.42, 90.0, 99.55].map(clients), [1, 1, 2, 3, 3]);
        let spec = Setting { load: 71.42, ..Setting::default() }.spec(1).unwrap();
        let rates: Vec<f64> = spec.clients.iter().map(|client| client.rate).collect();
        assert!((rates[0] - 30.0).abs() < 1e-9 && (rates[1] - 20.71).abs() < 1e-9, "{rates:?}");
        let low = Setting { load: 70.0, priorities: true, ..Setting::default() };
        let priorities = low.spec(1).unwrap().clients.into_iter().map(|client| client.priority);
        assert_eq!(priorities.collect::<Vec<u8>>(), [0, 1, 2]);
    }

    /// A value that is out of range is named; thresholds out of order are.
    #[test]
    fn settings_are_checked() {
        let refused = |change: fn(&mut Setting)| {
            let mut setting = Setting { control: Control::Combined, ..Setting::default() };
            change(&mut setting);
            setting.check().unwrap_err().to_string()
        };
        assert!(refused(|s| s.gap_ms = 0.0).contains("gap_ms"));
        assert!(refused(|s| s.discard = 149).contains("discard"));
        assert!(refused(|s| s.severities.clear()).contains("severities"));
        let unknown: crate::setting::Changes =
            [("onsett".to_owned(), 1.into())].into_iter().collect();
        assert!(crate::setting::merged::<Setting>(&[&unknown]).is_err());
    }
}

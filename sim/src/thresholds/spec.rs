// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run is made of. Defaults and reasons are where scenarios are read
//! (experiments/runner/src/thresholds/setting.rs).

use super::remote::TICK;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_policy::{
    Action, GapSpec, Params, ParamsError, PercentSpec, ThresholdSpec, Thresholds, Throttle,
};
use tidegate_units::{Nanos, Share};
use tidegate_workload::{Mixture, OnIcmp, OnReset, Schedule};

/// Most requests of one run.
pub const REQUESTS_MAX: usize = 1 << 22;
/// Most forged messages to a control node in a tick.
const FORGED_MAX: u32 = 10_000;
/// Priorities of the policies.
pub(super) const PRIORITIES: usize = 8;
/// Severities of the threshold policy.
pub const SEVERITIES_MAX: usize = 3;

/// A client's SYNs (section 4.2): again after 1.5 s, and after twice the time whenever that was in vain.
/// How often is not printed.
pub static CLASSIC: Schedule = Schedule {
    name: "thresholds-classic",
    at_ms: &[0, 1500, 4500, 10_500, 22_500, 46_500, 94_500],
    stretch_ms: &[],
    gives_up_ms: 190_500,
    on_reset: OnReset::Fail,
    on_icmp: OnIcmp::Ignore,
};

/// The server: one processor, and a queue in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerSpec {
    /// CPU time of a request that is served.
    pub work: Nanos,
    /// CPU time of the response "too busy". It goes first: the web server's own work does not queue.
    pub busy_work: Nanos,
    /// Requests that may wait (`RequestQueueMax`). Beyond it the response is "too busy".
    pub queue_max: usize,
}

/// How the requests of a client are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// At equal distances.
    Constant,
    /// As many in a slot as M/G/∞ sessions are under way at its beginning.
    Sessions {
        /// Hurst parameter, above 0.5 and below 1.
        hurst: f64,
        /// Width of a slot.
        slot: Nanos,
    },
}

/// One client machine, as the paper has them: it sends the requests of many users.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientSpec {
    /// Requests per second; 0: none.
    pub rate: f64,
    /// Priority, 0 to 7. Priority 0 is never dropped and never throttled: the paper's uncontrolled
    /// client.
    pub priority: u8,
}

/// The thresholds of one controlled priority, in requests that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Throttling ends below it.
    pub abatement: u32,
    /// Throttling begins at it.
    pub onset: u32,
    /// All are dropped from it on, until fewer than the onset wait.
    pub discard: Option<u32>,
}

/// What is done from the onset on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Throttling {
    /// Nothing.
    None,
    /// The interface drops this share of the client with priority 1, and that of all lower ones.
    Drop(f64, f64),
    /// The client itself lengthens the time between its requests by the gap (section 5.3).
    AddedGap,
    /// A control node keeps the gap between requests, with a queue (section 4.3).
    MinimumGap(Node),
    /// A control node answers "too busy" to this share.
    Percent(f64, Node),
    /// Each client has a control node, which the server sends remote limits to.
    Remote(Remote),
}

/// Remote limits, as the product has them; delay, jitter and loss are those of [`Feedback`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remote {
    /// Share of the capacity to which the server limits itself while its thresholds ask for throttling.
    pub own: f64,
    /// How long a limit is valid.
    pub validity: Nanos,
    /// No limit takes a control node below this, per second.
    pub min_rate: f64,
    /// The link is cut so long after the beginning of the measurement, and for so long.
    pub cut: Option<(Nanos, Nanos)>,
    /// Forged, replayed, stale and out-of-scope messages to each control node in each tick of 100 ms.
    pub forged: u32,
}

/// Where requests are throttled before the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// One node for all controlled clients; else each has its own.
    pub shared: bool,
    /// Requests that wait in it. Beyond it the node answers "too busy".
    pub queue_max: u32,
}

/// Messages from the server to those who throttle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// From sending to effect.
    pub delay: Nanos,
    /// Up to so much more, uniform.
    pub jitter: Nanos,
    /// Share of the messages that is lost.
    pub loss: f64,
    /// While the onset is crossed: again after so many requests (n); 0: not by a count.
    pub every: u32,
    /// And after so long (τ).
    pub period: Nanos,
}

/// The whole control.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// By controlled priority, 1 first; the last one holds for all lower ones. A higher priority has
    /// thresholds at least as high.
    pub ladders: Vec<Ladder>,
    /// What is done from the onset on.
    pub throttling: Throttling,
    /// Gap of each severity, the first from the onset on; not falling, 1 to 3.
    pub gaps: Vec<Nanos>,
    /// Requests that wait more than at the onset, from which on the next severity holds.
    pub rise: u32,
    /// The queue is sampled so often; `None`: it is read for each packet.
    pub monitor: Option<Nanos>,
    /// How those who throttle are told.
    pub feedback: Feedback,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The server.
    pub server: ServerSpec,
    /// The clients.
    pub clients: Vec<ClientSpec>,
    /// How their requests are spread.
    pub spread: Spread,
    /// How they send their SYNs again.
    pub schedules: Mixture,
    /// SYNs that are sent again, at most.
    pub retries: usize,
    /// Control; `None`: there is none.
    pub control: Option<Control>,
    /// Controlled clients start so much later than the uncontrolled one.
    pub lead: Nanos,
    /// From then to the beginning of the measurement.
    pub warm: Nanos,
    /// The measurement. Then nothing new arrives.
    pub lasts: Nanos,
    /// Seed.
    pub seed: u64,
}

impl Spec {
    /// When the measurement begins.
    #[must_use]
    pub fn from(&self) -> Nanos {
        self.lead + self.warm
    }

    /// When it ends.
    #[must_use]
    pub fn until(&self) -> Nanos {
        self.from() + self.lasts
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// Names what is out of range, and what the policies refuse.
    pub fn check(&self) -> Result<(), String> {
        let rate: f64 = self.clients.iter().map(|client| client.rate).sum();
        let rates = self.clients.iter().all(|client| client.rate >= 0.0);
        if !rates || rate * self.until().as_secs_f64() > REQUESTS_MAX as f64 / 2.0 {
            return Err(format!("{rate} requests per second: more than {REQUESTS_MAX} in a run"));
        }
        if self.clients.iter().any(|client| usize::from(client.priority) >= PRIORITIES) {
            return Err("a priority is 0 to 7".into());
        }
        if self.server.work == Nanos::ZERO || self.server.queue_max == 0 {
            return Err("a request takes time, and the queue has a place".into());
        }
        if let Spread::Sessions { hurst, slot } = self.spread
            && !(hurst > 0.5 && hurst < 1.0 && slot >= Nanos::from_millis(1))
        {
            return Err("M/G/infinity: H above 0.5 and below 1, slots of at least 1 ms".into());
        }
        self.control.as_ref().map_or(Ok(()), Control::check)
    }
}

impl Control {
    fn check(&self) -> Result<(), String> {
        let period = self.monitor.unwrap_or(Nanos::SECOND).min(self.feedback.period);
        if period < Nanos::from_millis(1) {
            return Err("monitor and feedback: periods of at least 1 ms".into());
        }
        if !(1..=SEVERITIES_MAX).contains(&self.gaps.len()) {
            return Err(format!("gaps of {} severities, 1 to {SEVERITIES_MAX}", self.gaps.len()));
        }
        if !(0.0..=1.0).contains(&self.feedback.loss) {
            return Err("feedback: loss is a share".into());
        }
        self.thresholds()?;
        if let Throttling::Remote(remote) = self.throttling {
            remote.check()?;
        }
        if let Some(node) = self.throttling.node() {
            for severity in 1..=self.gaps.len() {
                self.at_node(node, severity).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// The parameters of the policy at the server's interface. Where the throttling is elsewhere, its
    /// shares tell severities apart and refuse nothing (see [`super::watch`]).
    pub(super) fn thresholds(&self) -> Result<Params, String> {
        let last = self.ladders.last().ok_or("no thresholds")?;
        let uncontrolled = |ladder: &Ladder| Thresholds {
            abatement: ladder.abatement,
            onset: ladder.onset,
            discard: None,
            harder: 0,
        };
        let highest = uncontrolled(&self.ladders[0]);
        let mut priorities = [highest; PRIORITIES];
        for (priority, place) in priorities.iter_mut().enumerate().skip(1) {
            let ladder = self.ladders.get(priority - 1).unwrap_or(last);
            let harder = u8::from(matches!(self.throttling, Throttling::Drop(..)) && priority > 1);
            *place = Thresholds { discard: ladder.discard, harder, ..uncontrolled(ladder) };
        }
        let severities = self.gaps.len() as u32;
        let (rises, throttle) = match self.throttling {
            Throttling::None => (Vec::new(), Throttle::None),
            // The second share is that of the second severity, whose onset is out of reach.
            Throttling::Drop(first, rest) => {
                (vec![OUT_OF_REACH], Throttle::Share(vec![Share::new(first), Share::new(rest)]))
            }
            _ => {
                let rises = (1..severities).map(|n| n * self.rise).collect();
                let mark = |n| Share::new(f64::from(n) * super::watch::MARK);
                (rises, Throttle::Share((1..=severities).map(mark).collect()))
            }
        };
        let spec =
            ThresholdSpec { priorities, rises, throttle, preferred: 1, action: Action::Drop };
        Params::threshold(&spec).map_err(|e| e.to_string())
    }

    /// The parameters of a control node at this severity, from 1.
    pub(super) fn at_node(&self, node: Node, severity: usize) -> Result<Params, ParamsError> {
        if let Throttling::Percent(share, _) = self.throttling {
            let share = Share::new(share * severity as f64 / self.gaps.len() as f64);
            return Params::percent(&PercentSpec::new(share, Action::Reject));
        }
        let gap = self.gaps[severity.min(self.gaps.len()) - 1];
        let mut spec = GapSpec::least(gap, Action::Reject);
        spec.wait_max = Nanos(gap.0 * u64::from(node.queue_max));
        Params::gap(&spec)
    }
}

/// Above an onset, in requests: no queue is so long.
const OUT_OF_REACH: u32 = 1 << 24;

impl Remote {
    fn check(&self) -> Result<(), String> {
        if !(self.own > 0.0 && self.own <= 1.0 && self.min_rate > 0.0) {
            return Err("remote limits: own is a share above 0, min_rate above 0".into());
        }
        if self.validity < TICK || self.validity > REMOTE_VALIDITY_MAX {
            return Err(format!("remote limits: validity of {TICK} to {REMOTE_VALIDITY_MAX}"));
        }
        if self.forged > FORGED_MAX {
            return Err(format!("remote limits: at most {FORGED_MAX} forged messages"));
        }
        Ok(())
    }
}

impl Throttling {
    /// The control node, where there is one.
    #[must_use]
    pub const fn node(&self) -> Option<Node> {
        match self {
            Self::MinimumGap(node) | Self::Percent(_, node) => Some(*node),
            Self::None | Self::Drop(..) | Self::AddedGap | Self::Remote(_) => None,
        }
    }

    /// Whether the server tells somebody by the paper's messages.
    #[must_use]
    pub const fn by_feedback(&self) -> bool {
        matches!(self, Self::AddedGap | Self::MinimumGap(_) | Self::Percent(..))
    }
}

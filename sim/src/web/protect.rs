// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the experiments put in front of the server: the paper's controllers, and ours.

use super::spec::{Match, RuleSpec, WebProtection};
use crate::world::gate::GateSpec;
use tidegate_control::{
    BucketController, BucketSpec, DefaultBucket, DefaultController, DefaultSpec, Detector, Dual,
    Equation, Gauge, Interaction, Mode, PaperBucket, PaperBucketSpec, Syn, SynSpec, SynVariant,
    Variant as BucketVariant,
};
use tidegate_policy::{Action, Policy};
use tidegate_units::{Rate, Share};

/// The paper's controllers. Rates and gains are multiplied with `scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperSpec {
    /// Capacity of the server over that of the paper's: what absolute rates and gains are scaled by.
    pub scale: f64,
    /// As published: a SYN rate is held for ever while its queue is empty. Else as we ship them.
    pub published: bool,
    /// SYN policing at the start, per second.
    pub syn_start: f64,
    /// Request rules at the start, per second; `None`: no limit until their resource is at its
    /// reference.
    pub header_start: Option<f64>,
    /// Least rate of a request rule, per second.
    pub min_rate: f64,
    /// Bucket of SYN policing.
    pub burst_syn: u32,
    /// Buckets of request rules.
    pub burst_header: u32,
    /// Reference of the CPU.
    pub cpu_reference: f64,
}

impl Default for PaperSpec {
    fn default() -> Self {
        Self {
            scale: 1.0,
            published: true,
            syn_start: 1000.0,
            header_start: Some(75.0),
            min_rate: 10.0,
            burst_syn: 20,
            burst_header: 5,
            cpu_reference: 0.9,
        }
    }
}

const fn gauge(rule: &RuleSpec) -> Gauge {
    match rule.matches {
        Match::Large => Gauge::Bandwidth,
        Match::Dynamic | Match::Any => Gauge::Cpu,
    }
}

impl PaperSpec {
    fn rate(&self, rate: f64) -> Rate {
        Rate::per_second(rate * self.scale)
    }

    fn bucket(&self) -> BucketSpec {
        BucketSpec {
            min_rate: self.rate(self.min_rate),
            start: self.header_start.map(|start| self.rate(start)),
            burst: self.burst_header,
            ..BucketSpec::default()
        }
    }

    fn controller(&self, rule: &RuleSpec) -> Box<dyn BucketController> {
        let variant =
            if self.published { BucketVariant::Published } else { BucketVariant::Released };
        let paper = match gauge(rule) {
            Gauge::Bandwidth => PaperBucketSpec::pd(Gauge::Bandwidth),
            gauge => PaperBucketSpec::p(gauge),
        };
        let reference = match paper.equation {
            Equation::P => Share::new(self.cpu_reference),
            Equation::Pd => paper.reference,
        };
        Box::new(PaperBucket::new(PaperBucketSpec {
            bucket: self.bucket(),
            variant,
            gain_p: paper.gain_p * self.scale,
            gain_d: paper.gain_d * self.scale,
            reference,
            ..paper
        }))
    }

    fn syn(&self) -> Syn {
        let paper = SynSpec::default();
        let variant = if self.published { SynVariant::Published } else { SynVariant::Released };
        Syn::new(SynSpec {
            gain_p: paper.gain_p * self.scale,
            gain_d: paper.gain_d * self.scale,
            cpu_reference: Share::new(self.cpu_reference),
            rate_start: self.rate(self.syn_start),
            burst: self.burst_syn,
            variant,
            ..paper
        })
    }

    /// With these rules: a P or PD a rule, the SYN controller beside them, every refusal silent for
    /// SYNs and a reset for requests.
    #[must_use]
    pub fn protection(&self, rules: Vec<RuleSpec>) -> WebProtection {
        let buckets = rules.iter().map(|rule| self.controller(rule)).collect();
        let interaction =
            if self.published { Interaction::Published } else { Interaction::Released };
        let detector = Detector::of_rules(DefaultSpec::default().objective);
        WebProtection {
            controller: Box::new(Dual::new(buckets, detector, Box::new(self.syn()), interaction)),
            gate: GateSpec::new(Policy::TokenBucket, Action::Drop, Mode::Enforce),
            rules,
        }
    }
}

/// What tidegate does when nobody configures a controller, with these rules: `min_rate` is the least
/// rate of each, `burst` its bucket.
#[must_use]
pub fn shipped(rules: Vec<RuleSpec>, min_rate: Rate, burst: u32) -> WebProtection {
    let spec = BucketSpec { min_rate, burst, ..BucketSpec::default() };
    let bucket = |rule: &RuleSpec| -> Box<dyn BucketController> {
        Box::new(DefaultBucket::new(gauge(rule), spec, DefaultSpec::default()))
    };
    let buckets = rules.iter().map(bucket).collect();
    let detector = Detector::of_rules(DefaultSpec::default().objective);
    let syn = Box::new(DefaultController::new(DefaultSpec::default()));
    WebProtection {
        controller: Box::new(Dual::new(buckets, detector, syn, Interaction::Released)),
        gate: GateSpec::new(Policy::FreshFirst, Action::Drop, Mode::Enforce),
        rules,
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One setting of the SYN world: arrivals, clients, costs, filter. The defaults are those of
//! section 6 of the paper; where the paper is silent, those of our specification.
//!
//! A scenario gives a base, and variants and points that change single keys of it. The keys are
//! flat, so that a change is a line.

use serde::{Deserialize, Serialize};

/// How new requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrive {
    /// Multifractal wavelet model, one draw a second, uniform within it.
    Mwm,
    /// At equal distances.
    Regular,
    /// Independent of each other.
    Poisson,
}

/// Which filter judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterKind {
    /// The shipped token bucket, dropping.
    Tbf,
    /// The shipped token bucket, rejecting.
    Reject,
    /// The shipped Abacus filter, as published.
    Abacus,
    /// The shipped Abacus filter that recognises retransmissions.
    AbacusExact,
    /// The shipped filter of our own, which learns what waiting is worth.
    AbacusLearned,
    /// The predictive greedy policy of section 4.
    Greedy,
    /// Abacus in plain Rust, with the free choices as options.
    Free,
    /// None: a cost that no filter is below, by a bound that knows the future.
    Optimum,
    /// Nothing is admitted (figure 4).
    Wall,
}

/// When tokens come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refill {
    /// At every instant.
    Continuous,
    /// A period's worth at its beginning.
    Period,
}

/// What λ is estimated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    /// All SYNs: what a filter can count.
    All,
    /// First SYNs only: what the paper wants, and only an oracle knows.
    New,
    /// Nothing: λ stays what it was at the start.
    Fixed,
}

/// What becomes of a B[0] that is left when its period ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leftover {
    /// Forgotten.
    Drop,
    /// Added to the next period's.
    Carry,
}

/// Which bucket is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Walk {
    /// T_1 first, as printed.
    Earliest,
    /// The last one within the window first.
    Latest,
}

/// Equation 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Equation7 {
    /// Accepted arrivals take tokens.
    Consistent,
    /// All arrivals do, as printed: an overloaded second leaves a debt.
    Printed,
}

/// Which retransmission schedule a filter assumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Table {
    /// A named schedule; `today` for the union of the default mix; `drawn` and `known` only for
    /// the free filter: drawn for each SYN from the clients' mix, and each client's own.
    Named(String),
    /// Seconds since the first SYN.
    Seconds(Vec<u16>),
}

/// Everything that one run depends on, but its number and the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setting {
    /// Process of the new requests.
    pub arrive: Arrive,
    /// New requests per second.
    pub mean: f64,
    /// Their standard deviation between seconds (mwm).
    pub arrival_sd: f64,
    /// Hurst parameter (mwm).
    pub hurst: f64,
    /// Scales of the tree, 2^scales seconds (mwm).
    pub scales: u32,
    /// Whether each trace has exactly the mean (mwm).
    pub fixed_root: bool,
    /// Seconds of new requests.
    pub seconds: u32,
    /// A burst of so many on top.
    pub burst: u32,
    /// Spread over so many seconds.
    pub burst_over_s: f64,
    /// Beginning then.
    pub burst_at_s: f64,
    /// A named schedule, or `today` for the default mix.
    pub clients: String,
    /// First retransmissions come up to so much earlier or later, uniformly.
    pub rto_jitter_s: f64,
    /// Later ones up to so much.
    pub rto_later_jitter_s: f64,
    /// Each SYN is under way up to so much shorter or longer, uniformly.
    pub delay_jitter_s: f64,
    /// Seconds after which a client gives up; absent: its schedule's own.
    pub timeout_s: Option<f64>,
    /// Cost of a rejection, and of a time-out on top of its delay.
    pub reject_cost: f64,
    /// Cost of a second of delay.
    pub delay_cost: f64,
    /// The filter.
    pub filter: FilterKind,
    /// r_t, tokens per second.
    pub refill_rate: f64,
    /// W, tokens.
    pub bucket_size: u32,
    /// S, seconds.
    pub window_s: f64,
    /// S_G, seconds.
    pub greedy_window_s: f64,
    /// S = max{T_i ≤ r/h} instead of `window_s`.
    pub window_by_rule: bool,
    /// The schedule that the filter assumes.
    pub table: Table,
    /// λ moves by 1/2^shift a period.
    pub ewma_shift: u8,
    /// First estimate of λ, per second.
    pub lambda_start: f64,
    /// Free choice: when tokens come.
    pub refill: Refill,
    /// Free choice: what λ is estimated from.
    pub seen: Seen,
    /// Free choice: B[0] left over.
    pub leftover: Leftover,
    /// Free choice: order of the buckets.
    pub walk: Walk,
    /// Free choice: S is tested after the first look, as printed.
    pub test_late: bool,
    /// Free choice: equation 7 of the greedy policy.
    pub equation7: Equation7,
    /// Free choice: whether the greedy policy expects new requests in later periods, too.
    pub expects_new: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            arrive: Arrive::Mwm,
            mean: 100.0,
            arrival_sd: 80.0,
            hurst: 0.8,
            scales: 10,
            fixed_root: true,
            seconds: 600,
            burst: 0,
            burst_over_s: 1.0,
            burst_at_s: 0.0,
            clients: "classic".into(),
            rto_jitter_s: 0.05,
            rto_later_jitter_s: 0.0025,
            delay_jitter_s: 0.005,
            timeout_s: Some(75.0),
            reject_cost: 75.0,
            delay_cost: 1.0,
            filter: FilterKind::Tbf,
            refill_rate: 120.0,
            bucket_size: 120,
            window_s: 50.0,
            greedy_window_s: 50.0,
            window_by_rule: false,
            table: Table::Named("classic".into()),
            ewma_shift: 3,
            lambda_start: 0.0,
            refill: Refill::Continuous,
            seen: Seen::All,
            leftover: Leftover::Drop,
            walk: Walk::Earliest,
            test_late: false,
            equation7: Equation7::Consistent,
            expects_new: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::{Changes, merged};
    use serde_json::{Value, json};

    fn changes(value: Value) -> Changes {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn later_changes_win_and_strangers_are_refused() {
        let base = changes(json!({"reject_cost": 10, "filter": "abacus"}));
        let point = changes(json!({"reject_cost": 20, "table": [1, 3]}));
        let setting: Setting = merged(&[&base, &point]).unwrap();
        assert_eq!((setting.reject_cost, setting.filter), (20.0, FilterKind::Abacus));
        assert_eq!(setting.table, Table::Seconds(vec![1, 3]));
        assert!(merged::<Setting>(&[&changes(json!({"rejection": 1}))]).is_err());
    }

    /// Section 6: what the paper states is the default.
    #[test]
    fn the_defaults_are_the_papers() {
        let s: Setting = merged(&[]).unwrap();
        assert_eq!((s.mean, s.hurst, s.scales, s.seconds), (100.0, 0.8, 10, 600));
        assert_eq!((s.refill_rate, s.bucket_size, s.window_s), (120.0, 120, 50.0));
        assert_eq!((s.reject_cost, s.delay_cost), (75.0, 1.0));
    }
}

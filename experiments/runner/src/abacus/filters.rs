// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a setting to the clients, the checkers' capacity and the filter.

use super::free::{Choices, Free, Tables};
use super::setting::{Equation7, FilterKind, Refill, Seen, Setting, Table};
use anyhow::{Context, Result, bail, ensure};
use tidegate_sim::syn::{
    self, Capacity, Clients, Cost, Filter, Greedy, GreedySpec, PolicyFilter, Spec, Tokens,
};
use tidegate_sim::{AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Params};
use tidegate_units::{Nanos, Rate};
use tidegate_workload::{Jitter, Mixture, Schedule};

/// T0 of the paper's evaluation.
const PERIOD: Nanos = Nanos::SECOND;
/// Entries of a schedule that the shipped policies hold.
const STEPS_MAX: usize = 12;

/// A filter that can be handed to a run.
pub type AnyFilter = Box<dyn Filter>;

/// The world of a setting.
///
/// # Errors
/// For clients that there are not.
pub fn spec(setting: &Setting) -> Result<Spec> {
    let seconds = Nanos::from_secs_f64;
    Ok(Spec {
        clients: clients(&setting.clients)?,
        timeout: setting.timeout_s.map(seconds),
        jitter: Jitter {
            rto_first: seconds(setting.rto_jitter_s),
            rto_later: seconds(setting.rto_later_jitter_s),
            delay: seconds(setting.delay_jitter_s),
        },
        capacity: Some(capacity(setting)),
        cost: cost(setting),
        series: None,
    })
}

fn refill(setting: &Setting) -> syn::Refill {
    match setting.refill {
        Refill::Continuous => syn::Refill::Continuous,
        Refill::Period => syn::Refill::Every(PERIOD),
    }
}

fn capacity(setting: &Setting) -> Capacity {
    Capacity {
        rate: Rate::per_second(setting.refill_rate),
        burst: setting.bucket_size,
        refill: refill(setting),
    }
}

fn cost(setting: &Setting) -> Cost {
    Cost { reject: setting.reject_cost, delay: setting.delay_cost }
}

/// The kinds of clients by name: a schedule, or `today` for the default mix.
fn clients(name: &str) -> Result<Vec<Clients>> {
    if name == "today" {
        let parts = Mixture::today()?;
        return Ok(parts
            .parts()
            .iter()
            .map(|(schedule, weight)| Clients { schedule: **schedule, weight: *weight })
            .collect());
    }
    let schedule = Schedule::named(name).with_context(|| format!("no schedule is {name:?}"))?;
    Ok(vec![Clients { schedule: *schedule, weight: 1.0 }])
}

/// T_i of a schedule in whole periods, as its timers really fire.
#[must_use]
pub fn whole_seconds(schedule: &Schedule) -> Vec<u16> {
    let seconds = |n: usize| schedule.at(n).map(|at| (at.0 + PERIOD.0 / 2) / PERIOD.0);
    let mut table: Vec<u16> = (1..).map_while(seconds).map(|s| s as u16).collect();
    table.dedup();
    table
}

/// The table of a filter that knows one: what lies beyond the window does not count.
fn one_table(setting: &Setting) -> Result<Vec<u16>> {
    let mut table = match &setting.table {
        Table::Seconds(seconds) => seconds.clone(),
        Table::Named(name) => {
            clients(name)?.iter().flat_map(|c| whole_seconds(&c.schedule)).collect()
        }
    };
    table.sort_unstable();
    table.dedup();
    table.truncate(STEPS_MAX);
    Ok(table)
}

/// S in periods: as given, or max{T_i ≤ r/h} (figure 10).
///
/// # Errors
/// For a table that there is not.
pub fn window(setting: &Setting) -> Result<u16> {
    if !setting.window_by_rule {
        return Ok(setting.window_s as u16);
    }
    let worth = setting.reject_cost / setting.delay_cost;
    Ok(one_table(setting)?.into_iter().filter(|t| f64::from(*t) <= worth).max().unwrap_or(0))
}

fn bucket(setting: &Setting, action: Action) -> BucketSpec {
    BucketSpec::new(Rate::per_second(setting.refill_rate), setting.bucket_size, action)
}

fn abacus(setting: &Setting) -> Result<AbacusSpec> {
    Ok(AbacusSpec {
        bucket: bucket(setting, Action::Drop),
        schedule: one_table(setting)?,
        window: window(setting)?,
        period: PERIOD,
        lambda_start: Rate::per_second(setting.lambda_start),
        ewma_shift: setting.ewma_shift,
    })
}

/// The filter of a setting, fresh.
///
/// # Errors
/// For parameters that it cannot have.
pub fn filter(setting: &Setting) -> Result<AnyFilter> {
    let shipped = |params: Params| -> AnyFilter {
        Box::new(PolicyFilter::new(params).refilled(refill(setting)))
    };
    Ok(match setting.filter {
        FilterKind::Tbf => shipped(Params::token_bucket(&bucket(setting, Action::Drop))?),
        FilterKind::Reject => shipped(Params::token_bucket(&bucket(setting, Action::Reject))?),
        FilterKind::Abacus => shipped(Params::abacus(&abacus(setting)?)?),
        FilterKind::AbacusExact => {
            let AbacusSpec { bucket, schedule, window, period, .. } = abacus(setting)?;
            let spec = AbacusExactSpec { bucket, schedule, window, period };
            shipped(Params::abacus_exact(&spec)?)
        }
        FilterKind::AbacusLearned => {
            let AbacusSpec { bucket, schedule, period, .. } = abacus(setting)?;
            let reject = Nanos::from_secs_f64(setting.reject_cost / setting.delay_cost);
            let spec = AbacusLearnedSpec { bucket, schedule, reject, period };
            shipped(Params::abacus_learned(&spec)?)
        }
        FilterKind::Free => {
            ensure!(setting.refill == Refill::Continuous, "free: tokens come continuously");
            Box::new(Free::new(choices(setting)?))
        }
        FilterKind::Greedy => Box::new(greedy(setting)?),
        FilterKind::Wall => Box::new(Wall),
        other => bail!("{other:?} is no filter that judges SYNs here"),
    })
}

fn greedy(setting: &Setting) -> Result<Greedy> {
    let tokens = match (setting.equation7, setting.refill) {
        (Equation7::Printed, _) => Tokens::Printed,
        (Equation7::Consistent, Refill::Period) => Tokens::Accepted,
        (Equation7::Consistent, Refill::Continuous) => Tokens::Continuous,
    };
    let spec = GreedySpec {
        schedule: one_table(setting)?,
        timeout: setting.timeout_s.context("the greedy policy needs a timeout_s")? as u16,
        window: setting.greedy_window_s as u16,
        tokens,
        sees_attempts: setting.seen == Seen::New,
        expects_new: setting.expects_new,
        ..GreedySpec::paper(capacity(setting), cost(setting))
    };
    Greedy::new(&spec).map_err(|broken| anyhow::anyhow!("{broken}"))
}

fn choices(setting: &Setting) -> Result<Choices> {
    let milli = |per_second: f64| (per_second * 1e3).round() as u64;
    let mix = || -> Result<Vec<(Vec<u16>, f64)>> {
        let kinds = clients(&setting.clients)?;
        Ok(kinds.iter().map(|c| (whole_seconds(&c.schedule), c.weight)).collect())
    };
    let tables = match &setting.table {
        Table::Named(name) if name == "drawn" => Tables::Drawn(mix()?),
        Table::Named(name) if name == "known" => Tables::Known(mix()?),
        _ => Tables::One(one_table(setting)?),
    };
    Ok(Choices {
        rate_milli: milli(setting.refill_rate),
        burst: u64::from(setting.bucket_size),
        period: PERIOD,
        window: window(setting)?,
        tables,
        lambda_milli: milli(setting.lambda_start),
        ewma_shift: u32::from(setting.ewma_shift),
        seen: setting.seen,
        leftover: setting.leftover,
        walk: setting.walk,
        test_late: setting.test_late,
    })
}

/// Drops everything: figure 4.
struct Wall;

impl Filter for Wall {
    fn evaluate(&mut self, _now: Nanos, _key: u64, _attempt: u8) -> syn::Verdict {
        syn::Verdict::Drop
    }
}

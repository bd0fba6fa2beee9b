// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hooks counted of requests: by rule, by bucket, and by reason.

use crate::abi::{self, BucketTotals as Raw, RULES_MAX, SLOTS};
use crate::maps::Maps;
use crate::read::{add, reason, sum};
use crate::rules::Seats;
use crate::{Error, RequestReason, RuleCount};
use tidegate_model::totals::BucketTotals;

/// The counts of every rule, in the order of the plan.
pub(crate) fn rule_counts(maps: &Maps, seats: &[Seats]) -> Result<Vec<RuleCount>, Error> {
    let mut counts = Vec::new();
    for (service, seats) in seats.iter().enumerate() {
        for (rule, number) in seats.rules.iter().enumerate() {
            let mut count = RuleCount { service, rule, ..RuleCount::default() };
            for slot in 0..SLOTS {
                let index = slot * RULES_MAX as u32 + number;
                let cells = sum(&maps.read_percpu("tg_rule_counts", index)?);
                let fields = [
                    (abi::RULE_ADMITTED, &mut count.admitted),
                    (abi::RULE_REFUSED, &mut count.refused),
                    (abi::RULE_SHADOWED, &mut count.shadowed),
                    (abi::RULE_LEASE, &mut count.lease),
                    (abi::RULE_REPEATED, &mut count.repeated),
                    (abi::RULE_FAILED, &mut count.failed),
                    (abi::RULE_BEGUN, &mut count.begun),
                    (abi::RULE_ENDED, &mut count.ended),
                    (abi::RULE_STARTED, &mut count.started),
                    (abi::RULE_STARTED_NS, &mut count.started_ns),
                    (abi::RULE_ANSWERED, &mut count.answered),
                    (abi::RULE_ANSWERED_NS, &mut count.answered_ns),
                ];
                fields.into_iter().for_each(|(cell, field)| *field += cells[cell]);
            }
            counts.push(count);
        }
    }
    Ok(counts)
}

/// The totals of the buckets with these numbers.
pub(crate) fn bucket_totals(maps: &Maps, numbers: &[u32]) -> Result<Vec<BucketTotals>, Error> {
    numbers.iter().map(|number| totals(maps, *number)).collect()
}

fn totals(maps: &Maps, number: u32) -> Result<BucketTotals, Error> {
    let mut totals = BucketTotals::default();
    for value in maps.read_percpu("tg_bucket_totals", number)? {
        let Some(cpu) = abi::read::<Raw>(&value) else { continue };
        totals.offered.iter_mut().zip(cpu.offered).for_each(|(sum, count)| *sum += count);
        totals.refused.iter_mut().zip(cpu.refused).for_each(|(sum, count)| *sum += count);
        totals.refused_first += cpu.refused_first;
        totals.begun += cpu.begun;
        totals.ended += cpu.ended;
        add(&mut totals.first_byte, &cpu.first_byte);
        add(&mut totals.end, &cpu.end);
    }
    Ok(totals)
}

/// Why segments of the first `services` services had no rule of their own, where it is not zero.
pub(crate) fn reasons(maps: &Maps, services: usize) -> Result<Vec<RequestReason>, Error> {
    let mut counts = Vec::new();
    for service in 0..services {
        let percpu = maps.read_percpu("tg_request_reasons", service as u32)?;
        // The first is no reason: what a rule evaluated.
        for (number, count) in sum(&percpu).into_iter().enumerate().skip(1) {
            if count > 0
                && let Some(reason) = reason(number)
            {
                counts.push(RequestReason { service, reason, count });
            }
        }
    }
    Ok(counts)
}

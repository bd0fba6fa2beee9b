// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the hooks counted: verdicts, passed packets, totals, samples.

use crate::Error;
use crate::abi::{self, Gauges};
use crate::maps::Maps;
use libbpf_rs::RingBufferBuilder;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tidegate_model::CLASSES_MAX;
use tidegate_model::totals::{Histogram, ServiceTotals};
use tidegate_policy::{Reason, VerdictKind};
use tidegate_units::Nanos;
use zerocopy::transmute;

/// How often one class of one service got one verdict for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Index of the service.
    pub service: usize,
    /// Number of the class; 0: what no class names.
    pub class: usize,
    /// The verdict.
    pub verdict: VerdictKind,
    /// Whether it was only computed.
    pub shadow: bool,
    /// Why.
    pub reason: Reason,
    /// How many SYNs.
    pub count: u64,
}

/// How many packets passed without being evaluated, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Why.
    pub reason: Reason,
    /// How many packets.
    pub count: u64,
}

/// A verdict that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When, on the dataplane's clock.
    pub at: Nanos,
    /// Whose SYN.
    pub client: SocketAddr,
    /// To which local address.
    pub local: SocketAddr,
    /// Index of the service.
    pub service: usize,
    /// Number of the class.
    pub class: usize,
    /// Its priority.
    pub priority: u8,
    /// The verdict.
    pub verdict: VerdictKind,
    /// Why.
    pub reason: Reason,
    /// Whether it was only computed.
    pub shadow: bool,
    /// Whether it was known to be a copy of a refused SYN.
    pub repeated: bool,
    /// Length and limit of the listener's accept queue, where one was found.
    pub accept_queue: Option<(u32, u32)>,
    /// Connections of the service that waited for an answer.
    pub waiting: u64,
}

/// The reason with a number.
pub(crate) fn reason(number: usize) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| *reason as usize == number)
}

/// The verdict with a number.
pub(crate) fn verdict(number: u8) -> Option<VerdictKind> {
    VerdictKind::ALL.get(usize::from(number)).copied()
}

/// Verdict, shadow and reason of a cell (`tg_count_cell` in packet/count.h).
fn cell(index: usize) -> Option<(VerdictKind, bool, Reason)> {
    let Some(refused) = index.checked_sub(abi::COUNT_ADMIT) else {
        return Some((VerdictKind::Admit, false, reason(abi::REASON_FIRST + index)?));
    };
    let kind = refused / abi::COUNT_REFUSE;
    let reason = reason(abi::REASON_REFUSED + refused % abi::COUNT_REFUSE)?;
    Some((verdict(1 + (kind / 2) as u8)?, kind % 2 == 1, reason))
}

/// Sums the words of all CPUs, which have the same number of them.
pub(crate) fn sum(percpu: &[Vec<u8>]) -> Vec<u64> {
    let mut total = vec![0_u64; percpu.first().map_or(0, |value| value.len() / 8)];
    for value in percpu {
        for (sum, word) in total.iter_mut().zip(value.chunks_exact(8)) {
            *sum += word.try_into().map_or(0, u64::from_ne_bytes);
        }
    }
    total
}

/// All counters of the first `services` services that are not zero.
pub(crate) fn counts(maps: &Maps, services: usize) -> Result<Vec<Count>, Error> {
    let mut counts = Vec::new();
    for (service, class) in (0..services).flat_map(|s| (0..CLASSES_MAX).map(move |c| (s, c))) {
        let percpu = maps.read_percpu("tg_counts", (service * CLASSES_MAX + class) as u32)?;
        for (index, count) in sum(&percpu).into_iter().enumerate() {
            if count > 0
                && let Some((verdict, shadow, reason)) = cell(index)
            {
                counts.push(Count { service, class, verdict, shadow, reason, count });
            }
        }
    }
    Ok(counts)
}

/// Packets that passed without being evaluated, by reason.
pub(crate) fn passed(maps: &Maps) -> Result<Vec<Passed>, Error> {
    let percpu = maps.read_percpu("tg_passed", 0)?;
    let counts = sum(&percpu).into_iter().enumerate();
    let known = counts.filter(|(_, count)| *count > 0);
    Ok(known.filter_map(|(n, count)| Some(Passed { reason: reason(n)?, count })).collect())
}

/// Packets whose marks a border cleared.
pub(crate) fn cleared(maps: &Maps) -> Result<u64, Error> {
    let percpu = maps.read_percpu("tg_passed", 0)?;
    Ok(sum(&percpu).get(abi::PASSED_CLEARED).copied().unwrap_or_default())
}

/// The totals of one service.
pub(crate) fn totals(maps: &Maps, service: usize, gauge: u8) -> Result<ServiceTotals, Error> {
    let gauges: Gauges = maps.read("tg_gauges", gauge.into())?;
    let mut totals = ServiceTotals {
        waiting: gauges.waiting.max(0).unsigned_abs(),
        open: gauges.open.max(0).unsigned_abs(),
        silent: gauges.silent.max(0).unsigned_abs(),
        slow: gauges.slow.max(0).unsigned_abs(),
        unseen: gauges.untracked.saturating_add(gauges.forgotten),
        ..ServiceTotals::default()
    };
    for value in maps.read_percpu("tg_totals", service as u32)? {
        let Some(cpu) = abi::read::<abi::Totals>(&value) else { continue };
        totals.offered += cpu.offered;
        totals.repeated += cpu.repeated;
        totals.admitted += cpu.admitted;
        totals.refused += cpu.refused;
        totals.unknown += cpu.unknown;
        let connections = &mut totals.connections;
        connections.replied += cpu.replied;
        connections.proved += cpu.proved;
        connections.asked += cpu.asked;
        connections.answered += cpu.answered;
        connections.ended += cpu.ended;
        connections.lost += cpu.lost;
        connections.ended_exchanges += cpu.ended_exchanges;
        add(&mut totals.first_byte, &cpu.first_byte);
        add(&mut totals.end, &cpu.end);
    }
    Ok(totals)
}

pub(crate) fn add(histogram: &mut Histogram, cpu: &abi::Histogram) {
    histogram.count += cpu.count;
    histogram.sum_ns = histogram.sum_ns.saturating_add(cpu.sum_ns);
    for (sum, count) in histogram.buckets.iter_mut().zip(&cpu.bucket) {
        *sum += count;
    }
}

/// Up to `max` samples, oldest first; what came later stays for the next call.
pub(crate) fn samples(maps: &Maps, max: usize) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    if max == 0 {
        return Ok(samples);
    }
    let failed = || Error::map("tg_samples");
    let mut builder = RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        samples.extend(abi::read(bytes).as_ref().and_then(sample));
        0
    };
    builder.add(maps.get("tg_samples")?, take).map_err(failed())?;
    let ring = builder.build().map_err(failed())?;
    let result = ring.consume_raw_n(max);
    drop(ring);
    if result < 0 {
        let source = libbpf_rs::Error::from_raw_os_error(-result);
        return Err(Error::Map { map: "tg_samples".into(), source });
    }
    Ok(samples)
}

fn address(bytes: [u8; 16], port: u16) -> SocketAddr {
    let ip = Ipv6Addr::from(bytes);
    SocketAddr::new(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4), port)
}

fn sample(raw: &abi::Sample) -> Option<Sample> {
    Some(Sample {
        at: Nanos(raw.now_ns),
        client: address(transmute!(raw.src), raw.sport),
        local: address(transmute!(raw.dst), raw.dport),
        service: raw.service.into(),
        class: raw.class.into(),
        priority: raw.priority,
        verdict: verdict(raw.verdict)?,
        reason: reason(raw.reason.into())?,
        shadow: raw.shadow != 0,
        repeated: raw.repeated != 0,
        accept_queue: (raw.listener != 0).then_some((raw.accept_length, raw.accept_limit)),
        waiting: raw.waiting.max(0).unsigned_abs(),
    })
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of one run: the crowd, over four distances, and B1 beside it.

use super::super::setting::{Bystanders, Setting};
use super::super::traces::Data;
use super::stand::{B1, DISTANCES_MS, S3, Stand, is_crowd};
use anyhow::Result;
use tidegate_lab::{Arrive, LoadPlan, Phase, Stream};
use tidegate_units::{Nanos, Random};
use tidegate_workload::{Profile, Rng};

/// The measured part.
pub(super) const MEASURED: &str = "measured";
/// B1's stream.
pub(super) const BYSTANDER: &str = "bystander";
/// Clients without a response leave after this, as in the simulator.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// A trace goes on for so long after the measured part.
const AFTER_S: f64 = 10.0;
/// Bytes of a request, as in the simulator.
const REQUEST_BYTES: usize = 300;

/// The plan, and whether its trace is real.
pub(super) fn plan(
    stand: &Stand<'_>,
    (setting, data): (&Setting, &Data),
    seed: u64,
) -> Result<(LoadPlan, bool)> {
    let rates = setting.rates(data, seed)?;
    let real = rates.real;
    let rates = if is_crowd(setting) { rates } else { rates.compressed(setting.compress) };
    let mut counts = rates.counts(&mut Rng::new(seed, 0x434f_554e));
    if !is_crowd(setting) {
        counts.truncate((setting.to_s + AFTER_S).ceil() as usize);
    }
    let lasts = counts.len() as f64;
    let mut streams = Vec::new();
    for (door, counts) in split(&counts, &mut Rng::new(seed, 0x444f_4f52)).into_iter().enumerate() {
        let arrive = Arrive::Trace { counts, period: Nanos::SECOND };
        let to = (stand.hot_host, &stand.hot);
        streams.push(stand.graph.stream((&name(door), door), to, arrive).padded(REQUEST_BYTES));
    }
    if setting.bystanders == Bystanders::Web {
        let profile = Profile::constant(Nanos::from_secs_f64(lasts), setting.web);
        let to = (S3, &stand.quiet);
        let stream = stand.graph.stream((BYSTANDER, B1), to, Arrive::poisson(profile));
        streams.push(stream.padded(REQUEST_BYTES));
    }
    let phase = Phase {
        name: MEASURED.into(),
        start: Nanos::from_secs_f64(setting.from_s),
        end: Nanos::from_secs_f64(setting.to_s.min(lasts)),
    };
    let plan = LoadPlan {
        seed,
        streams,
        phases: vec![phase],
        objective: Nanos::from_secs_f64(setting.objective_s),
        timeout: PATIENCE,
        ..LoadPlan::default()
    };
    Ok((plan, real))
}

/// Requests that keep a server busy, to measure its capacity.
pub(super) fn busy(stand: &Stand<'_>) -> Stream {
    let arrive = Arrive::Closed { clients: 1 };
    stand.graph.stream(("capacity", 0), (stand.hot_host, &stand.hot), arrive).padded(REQUEST_BYTES)
}

/// The name of the crowd's stream over a link.
pub(super) fn name(door: usize) -> String {
    format!("crowd-{door}")
}

/// Each client comes from one of the distances, by chance.
fn split(counts: &[u64], rng: &mut Rng) -> Vec<Vec<u64>> {
    let mut doors = vec![vec![0; counts.len()]; DISTANCES_MS.len()];
    for (second, count) in counts.iter().enumerate() {
        for _ in 0..*count {
            let door = (rng.next_f64() * doors.len() as f64) as usize;
            doors[door.min(DISTANCES_MS.len() - 1)][second] += 1;
        }
    }
    doors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_one_distance() {
        let counts = vec![100; 200];
        let doors = split(&counts, &mut Rng::new(5, 0));
        for second in 0..counts.len() {
            assert_eq!(doors.iter().map(|door| door[second]).sum::<u64>(), 100);
        }
        for door in &doors {
            let all = door.iter().sum::<u64>() as f64;
            assert!((all / 5_000.0 - 1.0).abs() < 0.1, "{all}");
        }
    }
}

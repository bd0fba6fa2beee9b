// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The new requests of one run: the same for all variants and, but for the parameters of the
//! process, for all points (common random numbers).

use super::setting::{Arrive, Setting};
use anyhow::{Result, ensure};
use tidegate_units::{Nanos, Random};
use tidegate_workload::mwm::{Mwm, MwmSpec, Root, rates_to_counts};
use tidegate_workload::{Arrivals, Process, Profile, Rng, Trace};

/// New requests of one run, at most.
const REQUESTS_MAX: f64 = 1e8;
/// Streams of the seed that one run may use.
const STREAMS: u64 = 8;

/// What draws are for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Rates = 1,
    Rounding,
    Times,
    Clients,
}

fn stream(seed: u64, run: u32, purpose: Purpose) -> Rng {
    Rng::new(seed, u64::from(run) * STREAMS + purpose as u64)
}

/// The seed of what clients draw.
#[must_use]
pub fn client_seed(seed: u64, run: u32) -> u64 {
    stream(seed, run, Purpose::Clients).next_u64()
}

/// Whether two settings have the same new requests in the same run.
#[must_use]
pub fn same(a: &Setting, b: &Setting) -> bool {
    let key = |s: &Setting| {
        let numbers = [s.mean, s.arrival_sd, s.hurst, s.burst_over_s, s.burst_at_s];
        (s.arrive, numbers.map(f64::to_bits), s.scales, s.fixed_root, s.seconds, s.burst)
    };
    key(a) == key(b)
}

/// Times of the new requests, rising.
///
/// # Errors
/// For parameters that the process cannot have.
pub fn times(setting: &Setting, seed: u64, run: u32) -> Result<Vec<Nanos>> {
    let expected = setting.mean * f64::from(setting.seconds) + f64::from(setting.burst);
    ensure!(expected <= REQUESTS_MAX, "{expected} new requests are too many");
    let mut times = background(setting, seed, run)?;
    let (begin, n) = (setting.burst_at_s, setting.burst);
    let gap = setting.burst_over_s / f64::from(n.max(1));
    times.extend((0..n).map(|i| Nanos::from_secs_f64(begin + f64::from(i) * gap)));
    times.sort();
    Ok(times)
}

fn background(setting: &Setting, seed: u64, run: u32) -> Result<Vec<Nanos>> {
    let lasts = Nanos::from_secs(u64::from(setting.seconds));
    let draws = |purpose| stream(seed, run, purpose);
    let process = match setting.arrive {
        Arrive::Mwm => return mwm(setting, seed, run),
        Arrive::Regular => Process::Constant,
        Arrive::Poisson => Process::Poisson,
    };
    if setting.seconds == 0 || setting.mean <= 0.0 {
        return Ok(Vec::new());
    }
    let profile = Profile::constant(lasts, setting.mean);
    Ok(Arrivals::new(process, profile, draws(Purpose::Times)).collect())
}

/// The first `seconds` slots of a trace of 2^scales seconds.
fn mwm(setting: &Setting, seed: u64, run: u32) -> Result<Vec<Nanos>> {
    let model = Mwm::new(MwmSpec {
        mean: setting.mean,
        sd: setting.arrival_sd,
        hurst: setting.hurst,
        scales: setting.scales,
        root: if setting.fixed_root { Root::Fixed } else { Root::Random },
    })?;
    let draws = |purpose| stream(seed, run, purpose);
    let seconds = setting.seconds as usize;
    ensure!(seconds <= model.slots(), "{} slots are too few for {seconds} s", model.slots());
    let rates = model.rates(&mut draws(Purpose::Rates));
    let counts = rates_to_counts(&rates[..seconds], &mut draws(Purpose::Rounding));
    Ok(Trace::new(counts, Nanos::SECOND, draws(Purpose::Times)).collect())
}

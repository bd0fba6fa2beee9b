// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The estimators against a process that shares nothing with the wavelet model, and the arrival
//! processes against their published statistics by these estimators.

use tidegate_units::Nanos;
use tidegate_workload::estimate::{Ensemble, hurst_haar, hurst_variance, mean_sd};
use tidegate_workload::{FractionalNoise, OnOff, Rng, Sessions, Spread, Weibull, burst};

fn noise(hurst: f64, octaves: u32, series: usize) -> Ensemble {
    let noise = FractionalNoise::new(hurst, octaves).expect("in range");
    let mut rng = Rng::new(21, 0);
    let mut ensemble = Ensemble::default();
    for _ in 0..series {
        ensemble.add(&noise.sample(&mut rng));
    }
    ensemble
}

#[test]
fn both_estimators_find_the_hurst_parameter_of_fractional_noise() {
    for hurst in [0.55, 0.7, 0.8, 0.9] {
        let ensemble = noise(hurst, 10, 1000);
        let haar = ensemble.hurst_haar(1).expect("enough octaves");
        let variance = ensemble.hurst_variance(0).expect("enough octaves");
        println!("H {hurst}: Haar {haar:.4}, aggregated variance {variance:.4}");
        // Block means and Haar coefficients of this noise are exactly self-similar; what is left
        // is chance: a standard error of about 0.0015.
        assert!((haar - hurst).abs() < 0.005, "{hurst}: Haar {haar}");
        assert!((variance - hurst).abs() < 0.005, "{hurst}: aggregated variance {variance}");
        assert!((ensemble.sd() - 1.0).abs() < 0.03 && ensemble.mean().abs() < 0.03);
    }
}

#[test]
fn one_series_has_an_estimate_with_an_error_that_is_known() {
    let noise = FractionalNoise::new(0.8, 14).expect("in range");
    let mut rng = Rng::new(22, 0);
    let (mut haar, mut variance) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let series = noise.sample(&mut rng);
        haar.push(hurst_haar(&series).expect("enough octaves"));
        variance.push(hurst_variance(&series).expect("enough octaves"));
    }
    let ((haar, haar_sd), (variance, _)) = (mean_sd(&haar), mean_sd(&variance));
    println!("Haar {haar:.4} ± {haar_sd:.4}, aggregated variance {variance:.4}");
    assert!((haar - 0.8).abs() < 0.01 && haar_sd < 0.015, "{haar} ± {haar_sd}");
    // The series' own mean takes variance away: low, never high.
    assert!((0.74..0.805).contains(&variance), "{variance}");
}

#[test]
fn estimators_say_when_there_is_nothing_to_estimate() {
    assert_eq!(mean_sd(&[]), (0.0, 0.0));
    assert_eq!(mean_sd(&[3.0]), (3.0, 0.0));
    assert_eq!(mean_sd(&[1.0, 3.0]), (2.0, std::f64::consts::SQRT_2));
    for series in [&[][..], &[1.0; 8], &[1.0; 1024], &[f64::NAN; 1024]] {
        assert_eq!(hurst_haar(series), None);
        assert_eq!(hurst_variance(series), None);
    }
    assert_eq!(Ensemble::default().mean(), 0.0);
}

#[test]
fn independent_numbers_have_a_hurst_parameter_of_one_half() {
    let mut rng = Rng::new(23, 0);
    let series: Vec<f64> = (0..1 << 15).map(|_| tidegate_workload::normal(&mut rng)).collect();
    let (haar, variance) = (hurst_haar(&series), hurst_variance(&series));
    assert!(haar.is_some_and(|h| (h - 0.5).abs() < 0.03), "{haar:?}");
    assert!(variance.is_some_and(|h| (h - 0.5).abs() < 0.03), "{variance:?}");
}

fn per_slot(times: &[Nanos], slot: Nanos, slots: usize) -> Vec<f64> {
    let mut counts = vec![0.0; slots];
    for time in times {
        counts[(time.0 / slot.0) as usize] += 1.0;
    }
    counts
}

/// Mean of the products of deviations `lag` slots apart, over the variance.
fn correlation(series: &[f64], mean: f64, lag: usize) -> f64 {
    let product = |a: &f64, b: &f64| (a - mean) * (b - mean);
    let n = (series.len() - lag) as f64;
    series.iter().zip(&series[lag..]).map(|(a, b)| product(a, b)).sum::<f64>() / n / mean
}

#[test]
fn sessions_have_a_poisson_marginal_from_the_first_slot_and_long_memory() {
    let (mean, slots) = (25.0, 8192);
    let sessions = Sessions::new(mean, 0.8).expect("in range");
    let (mut ensemble, mut first, mut correlations) = (Ensemble::default(), Vec::new(), [0.0; 3]);
    let lags = [1, 4, 16];
    for stream in 0..64 {
        let counts = sessions.counts(slots, &mut Rng::new(31, stream));
        let counts: Vec<f64> = counts.iter().map(|c| *c as f64).collect();
        for (sum, lag) in correlations.iter_mut().zip(lags) {
            *sum += correlation(&counts, mean, lag) / 64.0;
        }
        first.push(counts[0]);
        ensemble.add(&counts);
    }
    // The mean of one series strays by about 5 · 8192^(H − 1) = 0.82, that of 64 by 0.1.
    assert!((ensemble.mean() - mean).abs() < 0.4, "mean {}", ensemble.mean());
    assert!((ensemble.sd() - 5.0).abs() < 0.1, "sd {}", ensemble.sd());
    let (start, sd) = mean_sd(&first);
    assert!((start - mean).abs() < 4.0 * 5.0 / 8.0 && (sd - 5.0).abs() < 1.8, "{start} ± {sd}");
    // The correlation is the tail of a residual life: lag^(1 − α)/α, with α = 1.4.
    for (got, lag) in correlations.iter().zip(lags) {
        let wanted = (lag as f64).powf(-0.4) / 1.4;
        assert!((got - wanted).abs() < 0.03, "lag {lag}: {got} for {wanted}");
    }
    // Not a self-similar process, it only becomes one: H is reached from above.
    let (near, far) = (ensemble.hurst_haar(2), ensemble.hurst_haar(6));
    println!("M/G/∞: Haar {near:?} from octave 2, {far:?} from octave 6");
    assert!(near > far && far.is_some_and(|h| (h - 0.8).abs() < 0.03), "{near:?}, {far:?}");
}

#[test]
fn sessions_out_of_range_are_refused() {
    for (mean, hurst) in [(0.0, 0.8), (f64::NAN, 0.8), (100.0, 0.5), (100.0, 1.0)] {
        assert_eq!(Sessions::new(mean, hurst), None);
    }
    let bad = Sessions { mean: -1.0, hurst: 0.8, shortest: 1.0 };
    assert_eq!(bad.counts(3, &mut Rng::new(1, 0)), [0, 0, 0]);
    let good = Sessions::new(10.0, 0.8).expect("in range");
    assert!(good.counts(0, &mut Rng::new(1, 0)).is_empty());
}

#[test]
fn weibull_gaps_have_the_rate_and_the_variation_of_their_shape() {
    // (shape, coefficient of variation): Γ(1 + 2/k)/Γ(1 + 1/k)² − 1.
    for (shape, cv) in [(0.5, 5.0_f64.sqrt()), (1.0, 1.0), (2.0, 0.522_723_200_877_5)] {
        let until = Nanos::from_secs(2000);
        let weibull = Weibull::new(100.0, shape, until, Rng::new(33, 0)).expect("in range");
        let times: Vec<Nanos> = weibull.collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]));
        assert!(times.last().is_some_and(|t| *t < until));
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
        let (mean, sd) = mean_sd(&gaps);
        let error = cv / (gaps.len() as f64).sqrt();
        assert!((mean * 100.0 - 1.0).abs() < 4.0 * error, "{shape}: mean gap {mean}");
        assert!((sd / mean / cv - 1.0).abs() < 0.03, "{shape}: variation {}", sd / mean);
    }
    for (rate, shape) in [(0.0, 1.0), (f64::INFINITY, 1.0), (1.0, 0.01), (1.0, f64::NAN)] {
        assert!(Weibull::new(rate, shape, Nanos::SECOND, Rng::new(1, 0)).is_none());
    }
}

#[test]
fn on_and_off_sources_have_their_rate_and_long_memory() {
    let sources = OnOff { sources: 50, ..OnOff::netdraino(20.0) };
    assert!((sources.mean_rate() - 1000.0 / 3.0).abs() < 1e-9);
    let seconds = 4096;
    let (mut ensemble, mut first) = (Ensemble::default(), Vec::new());
    for stream in 0..16 {
        let until = Nanos::from_secs(seconds);
        let arrivals = sources.arrivals(until, Rng::new(34, stream)).expect("in range");
        let times: Vec<Nanos> = arrivals.collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]));
        let counts = per_slot(&times, Nanos::SECOND, seconds as usize);
        first.push(counts[0]);
        ensemble.add(&counts);
    }
    // Tails of index 1.5 converge slowly: a few percent after two million periods.
    assert!((ensemble.mean() / sources.mean_rate() - 1.0).abs() < 0.02, "{}", ensemble.mean());
    let (mean, sd) = mean_sd(&first);
    assert!((mean - sources.mean_rate()).abs() < 4.0 * sd / 4.0, "{mean} ± {sd}");
    // (3 − 1.5)/2 = 0.75 for long times, reached from above.
    let (near, far) = (ensemble.hurst_haar(2), ensemble.hurst_haar(7));
    println!("on/off: Haar {near:?} from octave 2, {far:?} from octave 7");
    assert!(near > far && far.is_some_and(|h| (0.68..0.82).contains(&h)), "{near:?}, {far:?}");
}

#[test]
fn a_source_is_regular_while_it_is_on_and_silent_while_it_is_off() {
    let times: Vec<Nanos> = OnOff::netdraino(100.0)
        .arrivals(Nanos::from_secs(200), Rng::new(35, 0))
        .expect("in range")
        .collect();
    let gaps: Vec<u64> = times.windows(2).map(|w| (w[1] - w[0]).0 / 1000).collect();
    let regular = gaps.iter().filter(|us| (9_990..=10_010).contains(*us)).count();
    // The shortest time off is a third of the mean: 333 ms.
    let silent = gaps.iter().filter(|us| **us >= 333_000).count();
    assert!(silent > 20, "{silent}");
    assert_eq!(regular + silent, gaps.len(), "every gap is one or the other");
    for bad in [
        OnOff { sources: 0, ..OnOff::netdraino(1.0) },
        OnOff { shape: 1.0, ..OnOff::netdraino(1.0) },
        OnOff { off: Nanos::ZERO, ..OnOff::netdraino(1.0) },
        OnOff::netdraino(f64::NAN),
    ] {
        assert!(bad.arrivals(Nanos::SECOND, Rng::new(1, 0)).is_none(), "{bad:?}");
    }
}

#[test]
fn a_burst_has_its_size_its_place_and_its_order() {
    let (start, lasts) = (Nanos::from_secs(5), Nanos::from_millis(100));
    let mut rng = Rng::new(36, 0);
    let even = burst(100, start, lasts, (Spread::Even, &mut rng));
    assert_eq!((even.len(), even[0], even[1]), (100, start, start + Nanos::from_millis(1)));
    let uniform = burst(100, start, lasts, (Spread::Uniform, &mut rng));
    assert_eq!(uniform.len(), 100);
    assert!(uniform.windows(2).all(|w| w[0] <= w[1]));
    assert!(uniform.iter().all(|t| *t >= start && *t < start + lasts));
    assert_ne!(even, uniform);
    let at_once = burst(3, start, Nanos::ZERO, (Spread::Uniform, &mut rng));
    assert_eq!(at_once, [start; 3]);
    assert!(burst(0, start, lasts, (Spread::Even, &mut rng)).is_empty());
}

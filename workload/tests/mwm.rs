// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The multifractal wavelet model against its closed form and against its own statistics.

use tidegate_workload::estimate::{Ensemble, mean_sd};
use tidegate_workload::mwm::{Mwm, MwmError, MwmSpec, Root, rates_to_counts};
use tidegate_workload::{Rng, symmetric_beta};

/// 10 scales, mean 100, H 0.8: the Abacus paper's.
fn spec(sd: f64, root: Root) -> MwmSpec {
    MwmSpec { root, ..MwmSpec::paper(sd) }
}

fn model(sd: f64, root: Root) -> Mwm {
    Mwm::new(spec(sd, root)).expect("possible")
}

/// Reference: an independent evaluation of the closed form (mean 100, H 0.8, 10 scales).
const SHAPES: [(f64, [f64; 10]); 3] = [
    (
        25.0,
        [
            401.680_965_376_276_84,
            304.675_105_119_611_5,
            231.158_410_399_801_26,
            175.443_174_348_849_34,
            133.218_921_204_116_73,
            101.218_921_204_116_74,
            76.967_456_139_950_39,
            58.588_282_459_997_835,
            44.659_473_447_259_85,
            34.103_410_161_076_695,
        ],
    ),
    (
        50.0,
        [
            101.218_921_204_116_71,
            76.967_456_139_950_37,
            58.588_282_459_997_814,
            44.659_473_447_259_835,
            34.103_410_161_076_69,
            26.103_410_161_076_685,
            20.040_543_895_035_1,
            15.445_750_475_046_96,
            11.963_548_221_862_464,
            9.324_532_400_316_675,
        ],
    ),
    (
        100.0,
        [
            26.103_410_161_076_68,
            20.040_543_895_035_093,
            15.445_750_475_046_955,
            11.963_548_221_862_46,
            9.324_532_400_316_672,
            7.324_532_400_316_673,
            5.808_815_833_806_276_5,
            4.660_117_478_809_242,
            3.789_566_915_513_117_5,
            3.129_812_960_126_67,
        ],
    ),
];

#[test]
fn the_closed_form_gives_the_reference_shapes() {
    for (sd, wanted) in SHAPES {
        let model = model(sd, Root::Random);
        for (got, wanted) in model.shapes().iter().zip(wanted) {
            assert!((got / wanted - 1.0).abs() < 1e-13, "sd {sd}: {got} for {wanted}");
        }
    }
    // Far below the scale of the mean the shapes draw near (1/b − 1)/2 = 1.06490648…
    let rough = Mwm::new(MwmSpec { mean: 1e-6, sd: 1e6, ..spec(1.0, Root::Random) });
    let last = rough.expect("possible").shapes()[9];
    assert!((last - 1.064_906_480_063_334_3).abs() < 1e-12, "{last}");
    // Fixed root, sd 80: rounded reference values of an independent implementation.
    let fixed = model(80.0, Root::Fixed);
    for (scale, wanted) in [(0, 36.2), (4, 12.6), (9, 3.96)] {
        let got = fixed.shapes()[scale];
        assert!((got / wanted - 1.0).abs() < 0.005, "scale {scale}: {got} for {wanted}");
    }
}

/// What many traces look like.
struct Seen {
    ensemble: Ensemble,
    means: Vec<f64>,
    /// Mean square around the nominal mean, of each trace.
    squares: Vec<f64>,
    peaks: Vec<f64>,
}

fn see(model: &Mwm, traces: usize, seed: u64) -> Seen {
    let mut rng = Rng::new(seed, 0);
    let (mut means, mut squares, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    let mut ensemble = Ensemble::default();
    for _ in 0..traces {
        let rates = model.rates(&mut rng);
        ensemble.add(&rates);
        means.push(mean_sd(&rates).0);
        let square = rates.iter().map(|x| (x - 100.0) * (x - 100.0)).sum::<f64>();
        squares.push(square / rates.len() as f64);
        peaks.push(rates.iter().fold(0.0, |peak: f64, x| peak.max(*x)) / means[means.len() - 1]);
    }
    Seen { ensemble, means, squares, peaks }
}

impl Seen {
    /// Mean, and standard error of the mean, over independent traces.
    fn error_of(values: &[f64]) -> (f64, f64) {
        let (mean, sd) = mean_sd(values);
        (mean, sd / (values.len() as f64).sqrt())
    }

    fn show(&self, what: &str) -> (f64, f64) {
        let haar = self.ensemble.hurst_haar(1).expect("enough octaves");
        let variance = self.ensemble.hurst_variance(0).expect("enough octaves");
        println!(
            "{what}: mean {:.3}, sd {:.3}, Haar {haar:.4}, aggregated variance {variance:.4}",
            self.ensemble.mean(),
            self.ensemble.sd()
        );
        (haar, variance)
    }
}

#[test]
fn a_random_root_has_mean_deviation_and_long_memory_over_10_000_traces() {
    let seen = see(&model(50.0, Root::Random), 10_000, 1);
    let (haar, variance) = seen.show("random root, sd 50");
    let (mean, mean_error) = Seen::error_of(&seen.means);
    assert!((mean - 100.0).abs() < 4.0 * mean_error, "mean {mean} ± {mean_error}");
    let (square, square_error) = Seen::error_of(&seen.squares);
    let (sd, sd_error) = (square.sqrt(), square_error / (2.0 * square.sqrt()));
    assert!((sd - 50.0).abs() < 4.0 * sd_error, "sd {sd} ± {sd_error}");
    assert!(sd_error < 0.2, "an error of {sd_error} would prove little");
    assert!((0.78..=0.82).contains(&haar), "H by Haar {haar}");
    assert!((0.78..=0.82).contains(&variance), "H by aggregated variance {variance}");
    assert!((variance - haar).abs() < 0.01, "{haar} and {variance}");
}

/// Reference: 4000 traces of an independent implementation.
#[test]
fn a_random_root_agrees_with_the_reference_at_other_deviations() {
    for (sd, ref_mean, ref_sd, ref_peak) in
        [(25.0, 99.89, 24.93, 2.01), (50.0, 99.98, 49.99, 3.54), (100.0, 99.69, 99.74, 7.98)]
    {
        let mut seen = see(&model(sd, Root::Random), 4000, 2);
        let (haar, variance) = seen.show("random root");
        // Both sides are draws: √2 times the error of one.
        let allowed = 4.0 * std::f64::consts::SQRT_2;
        let (mean, mean_error) = Seen::error_of(&seen.means);
        assert!((mean - ref_mean).abs() < allowed * mean_error, "mean {mean} for {ref_mean}");
        let (square, error) = Seen::error_of(&seen.squares);
        let sd_error = error / (2.0 * square.sqrt());
        assert!((square.sqrt() - ref_sd).abs() < allowed * sd_error, "sd {}", square.sqrt());
        seen.peaks.sort_by(f64::total_cmp);
        let peak = seen.peaks[2000];
        assert!((peak / ref_peak - 1.0).abs() < 0.02, "median peak {peak} for {ref_peak}");
        assert!((0.78..=0.82).contains(&haar) && (0.78..=0.82).contains(&variance));
    }
}

#[test]
fn a_fixed_root_has_the_mean_in_every_trace_and_the_deviation_within_a_hundredth() {
    for (sd, traces) in [(40.0, 2000), (80.0, 3000), (160.0, 6000), (300.0, 10_000)] {
        let seen = see(&model(sd, Root::Fixed), traces, 3);
        let (haar, _) = seen.show("fixed root");
        assert!(seen.means.iter().all(|mean| (mean - 100.0).abs() < 1e-9), "sd {sd}");
        let got = seen.ensemble.sd();
        assert!((got / sd - 1.0).abs() < 0.01, "sd {got} for {sd}");
        assert!((haar - 0.8).abs() < 0.02, "sd {sd}: H by Haar {haar}");
    }
}

#[test]
fn rates_become_counts_with_the_same_mean_and_the_same_seed_the_same_trace() {
    let model = model(80.0, Root::Fixed);
    let trace = |seed| {
        let mut rng = Rng::new(seed, 7);
        let rates = model.rates(&mut rng);
        rates_to_counts(&rates, &mut rng)
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
    let sum: u64 = (0..200).flat_map(trace).sum();
    // Rounding adds less than 1/4 to the variance of a slot.
    let error = (200.0 * 1024.0 / 4.0_f64).sqrt();
    assert!((sum as f64 - 200.0 * 102_400.0).abs() < 4.0 * error, "{sum}");
    let odd = rates_to_counts(&[3.0, -1.0, f64::NAN, f64::INFINITY], &mut Rng::new(1, 0));
    assert_eq!(odd, [3, 0, 0, 0], "a whole rate is its count, what is no rate is none");
}

/// The first slots of one trace: a change of the generator or of the order of draws would change
/// every result of the simulator.
#[test]
fn the_traces_are_pinned() {
    let rates = model(80.0, Root::Fixed).rates(&mut Rng::new(42, 0));
    let first: Vec<u64> = rates.iter().take(4).map(|x| x.to_bits()).collect();
    assert_eq!(first, PINNED, "{:?}", &rates[..4]);
}

const PINNED: [u64; 4] = [
    4_634_275_922_877_624_196,
    4_628_529_773_757_863_417,
    4_631_196_109_765_720_870,
    4_633_185_811_675_549_649,
];

#[test]
fn the_multipliers_have_their_variance_from_tiny_to_huge_shapes() {
    for p in [0.01, 0.3, 0.5, 1.0, 1.06, 3.96, 36.2, 400.0, 5000.0, 1e9] {
        let mut rng = Rng::new(8, 0);
        let n = 200_000;
        let (mut sum, mut squares, mut fourths) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let a = symmetric_beta(p, &mut rng);
            assert!((-1.0..=1.0).contains(&a), "{p}: {a}");
            sum += a;
            squares += a * a;
            fourths += a * a * a * a;
        }
        let n = f64::from(n);
        let (variance, fourth) = (1.0 / (2.0 * p + 1.0), 3.0 / ((2.0 * p + 1.0) * (2.0 * p + 3.0)));
        let error = ((fourth - variance * variance) / n).sqrt();
        assert!((sum / n).abs() < 4.0 * (variance / n).sqrt(), "{p}: mean {}", sum / n);
        assert!((squares / n - variance).abs() < 4.0 * error.max(1e-12), "{p}: {}", squares / n);
        assert!((fourths / n / fourth - 1.0).abs() < 0.05, "{p}: fourth {}", fourths / n);
    }
}

#[test]
fn a_fit_finds_the_model_again() {
    let spec = MwmSpec { mean: 20.0, sd: 10.0, hurst: 0.75, scales: 16, root: Root::Random };
    let truth = Mwm::new(spec).expect("possible");
    let series = truth.rates(&mut Rng::new(12, 0));
    let found = Mwm::fit(&series, 4096).expect("fits");
    // The four finest scales of both: 4096 trees that the fit takes for independent.
    assert_eq!(found.slots(), 16);
    for (got, wanted) in found.shapes().iter().zip(&truth.shapes()[12..]) {
        assert!((got / wanted - 1.0).abs() < 0.15, "{got} for {wanted}");
    }
    let (mean, _) = mean_sd(&series);
    assert!((found.root().0 / mean - 1.0).abs() < 1e-12);
}

#[test]
fn impossible_models_are_refused_with_a_reason() {
    let base = spec(80.0, Root::Fixed);
    for (spec, error) in [
        (MwmSpec { mean: 0.0, ..base }, MwmError::Moments),
        (MwmSpec { sd: f64::NAN, ..base }, MwmError::Moments),
        (MwmSpec { hurst: 0.5, ..base }, MwmError::Hurst(0.5)),
        (MwmSpec { hurst: 1.0, ..base }, MwmError::Hurst(1.0)),
        (MwmSpec { scales: 0, ..base }, MwmError::Scales(0)),
        (MwmSpec { scales: 25, ..base }, MwmError::Scales(25)),
        (MwmSpec { sd: 1000.0, ..base }, MwmError::Multiplier(0)),
    ] {
        assert_eq!(Mwm::new(spec), Err(error));
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(Mwm::fit(&[1.0; 3], 2), Err(MwmError::Data));
    assert_eq!(Mwm::fit(&[1.0, f64::NAN, 1.0, 1.0], 2), Err(MwmError::Data));
    assert_eq!(Mwm::fit(&[], 0), Err(MwmError::Data));
    assert!(Mwm::fit(&[1.0; 8], 2).is_err(), "a constant has no energy at any scale");
}

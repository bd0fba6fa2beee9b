// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same seed gives the same numbers, in every build and on every machine: what each process
//! gives is pinned. A change here changes every result of the simulator.

use tidegate_units::Nanos;
use tidegate_workload::mwm::{Mwm, MwmSpec, Root, rates_to_counts};
use tidegate_workload::readers::{Format, OnBad, open, spread};
use tidegate_workload::{
    Arrivals, FractionalNoise, Jitter, Mixture, OnOff, Poisson, Process, Profile, Refine, Rng,
    Schedule, Segment, Sessions, Spread, Trace, Weibull, burst,
};

/// FNV-1a over 64-bit numbers.
fn hash(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, number| {
        number
            .to_le_bytes()
            .iter()
            .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    })
}

fn of_times(times: impl IntoIterator<Item = Nanos>) -> u64 {
    hash(times.into_iter().map(|time| time.0))
}

fn of_floats(values: Vec<f64>) -> u64 {
    hash(values.into_iter().map(f64::to_bits))
}

fn rng(stream: u64) -> Rng {
    Rng::new(2004, stream)
}

fn mwm(root: Root) -> Mwm {
    Mwm::new(MwmSpec { mean: 100.0, sd: 80.0, hurst: 0.8, scales: 10, root }).expect("possible")
}

fn trace() -> Trace {
    let mut rng = rng(3);
    let rates = mwm(Root::Fixed).rates(&mut rng);
    Trace::new(rates_to_counts(&rates, &mut rng), Nanos::SECOND, rng)
}

fn spread_counts() -> u64 {
    let reader = open(Format::Counts { period: Nanos::SECOND }, &b"3\n70000\n"[..], OnBad::Fail);
    of_times(spread(reader, rng(12)).map(|time| time.expect("sound")))
}

fn clients() -> u64 {
    let (mixture, mut rng) = (Mixture::today().expect("known names"), rng(13));
    let one = |_| {
        let schedule: &Schedule = mixture.draw(&mut rng);
        let gap = Jitter::PAPER.gap(schedule, 0, &mut rng).unwrap_or_default();
        gap + Jitter::PAPER.delay(&mut rng)
    };
    of_times((0..1000).map(one))
}

#[test]
fn every_process_gives_the_numbers_that_it_always_gave() {
    let minute = Nanos::from_secs(60);
    let ramp = Profile::new(&[Segment { lasts: minute, from: 10.0, to: 300.0 }]);
    let refine = Refine { slots: 60, hurst: 0.8, cv: 0.2 };
    let seen = [
        ("mwm, fixed root", of_floats(mwm(Root::Fixed).rates(&mut rng(1)))),
        ("mwm, random root", of_floats(mwm(Root::Random).rates(&mut rng(2)))),
        ("mwm as arrivals", of_times(trace())),
        ("poisson on a ramp", of_times(Arrivals::new(Process::Poisson, ramp, rng(4)))),
        ("poisson", of_times(Poisson::new(100.0, minute, rng(5)))),
        ("sessions", hash(Sessions::new(50.0, 0.8).expect("in range").counts(512, &mut rng(6)))),
        ("weibull", of_times(Weibull::new(50.0, 0.6, minute, rng(7)).expect("in range"))),
        ("on/off", of_times(OnOff::netdraino(50.0).arrivals(minute, rng(8)).expect("in range"))),
        ("burst", of_times(burst(99, minute, minute, (Spread::Uniform, &mut rng(9))))),
        ("noise", of_floats(FractionalNoise::new(0.8, 8).expect("in range").sample(&mut rng(10)))),
        ("refined", of_floats(refine.rates(&[90, 200, 30], &mut rng(11)).expect("in range"))),
        ("spread counts", spread_counts()),
        ("clients", clients()),
    ];
    let shown: Vec<String> =
        seen.iter().map(|(name, hash)| format!("(\"{name}\", {hash:#018x}),")).collect();
    assert_eq!(seen, PINNED, "now:\n{}", shown.join("\n"));
}

const PINNED: [(&str, u64); 13] = [
    ("mwm, fixed root", 0xed70_d532_6dab_3dc0),
    ("mwm, random root", 0x80d3_5ada_1f2d_ef86),
    ("mwm as arrivals", 0x251a_46f1_5eaf_2919),
    ("poisson on a ramp", 0x4879_3aca_ac09_244b),
    ("poisson", 0xcff4_126e_f007_08ea),
    ("sessions", 0x37be_0c76_2330_11ca),
    ("weibull", 0x5fe9_7602_f10d_f4b5),
    ("on/off", 0x5160_6645_e675_d429),
    ("burst", 0x0091_f0f4_963c_294a),
    ("noise", 0x1970_b6ce_e1e1_e8d1),
    ("refined", 0x524f_fb3c_ea9c_d368),
    ("spread counts", 0x9f91_c4c4_b9d5_b5aa),
    ("clients", 0xcfad_c227_ec9f_c0a2),
];

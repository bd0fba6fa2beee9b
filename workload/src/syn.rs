// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When clients send their SYNs again: tables with names, never a doubling rule.
//!
//! Nominal times are from the kernels' tables and documentation; the stretch is what kernel timers
//! add to long waits, measured on Linux 6.18 (4.09 s for 4 s, 19.39 for 19, 69.05 for 67).

use crate::rng::Rng;
use tidegate_units::{Nanos, Random};

/// What a client does when its SYN is answered by a RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReset {
    /// The connection attempt fails at once (Linux, BSD, macOS).
    Fail,
    /// The SYN is sent again after this pause, as often as the schedule has entries (Windows).
    Again(Nanos),
}

/// The SYNs of one kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Name in scenarios and in configuration.
    pub name: &'static str,
    /// Nominal milliseconds from the first SYN, which is entry 0.
    pub at_ms: &'static [u32],
    /// What the timers add to each entry, in milliseconds.
    pub stretch_ms: &'static [u32],
    /// Milliseconds after which the attempt is given up.
    pub gives_up_ms: u32,
    /// The reaction to a RST.
    pub on_reset: OnReset,
}

impl Schedule {
    /// The schedule with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SCHEDULES.iter().find(|s| s.name == name)
    }

    /// Time of the n-th SYN after the first (n = 0), as timers really fire; `None` when the
    /// client sends no more.
    #[must_use]
    pub fn at(&self, n: usize) -> Option<Nanos> {
        let stretch = self.stretch_ms.get(n).copied().unwrap_or(0);
        let ms = u64::from(*self.at_ms.get(n)?) + u64::from(stretch);
        Some(Nanos::from_millis(ms))
    }
}

const LINEAR: &[u32] = &[0, 1000, 2000, 3000, 4000, 5000, 7000, 11_000, 19_000, 35_000, 67_000];
const LINEAR_STRETCH: &[u32] = &[0, 20, 40, 70, 90, 110, 130, 190, 390, 510, 2050];
const DOUBLING: &[u32] = &[0, 1000, 3000, 7000, 15_000, 31_000, 63_000];
/// Not measured: the stretch of the linear table at like waits.
const DOUBLING_STRETCH: &[u32] = &[0, 20, 70, 130, 300, 450, 1900];
const NO_STRETCH: &[u32] = &[];

/// All schedules.
pub const SCHEDULES: &[Schedule] = &[
    Schedule {
        name: "linux-6.5",
        at_ms: LINEAR,
        stretch_ms: LINEAR_STRETCH,
        gives_up_ms: 131_000,
        on_reset: OnReset::Fail,
    },
    Schedule {
        name: "linux-3.7",
        at_ms: DOUBLING,
        stretch_ms: DOUBLING_STRETCH,
        gives_up_ms: 127_000,
        on_reset: OnReset::Fail,
    },
    Schedule {
        name: "windows",
        at_ms: &[0, 1000, 3000, 7000, 15_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 31_000,
        on_reset: OnReset::Again(Nanos(500_000_000)),
    },
    Schedule {
        name: "apple",
        at_ms: LINEAR,
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
    },
    Schedule {
        name: "freebsd",
        at_ms: DOUBLING,
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
    },
    Schedule {
        name: "classic",
        at_ms: &[0, 3000, 9000, 21_000, 45_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
    },
];

/// Kinds of clients and their shares.
#[derive(Clone, Debug)]
pub struct Mixture {
    parts: Vec<(&'static Schedule, f64)>,
    total: f64,
}

/// Why a mixture was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MixtureError {
    /// No schedule has this name.
    Unknown(String),
    /// The weights are negative, not finite, or all zero.
    Weights,
}

impl std::fmt::Display for MixtureError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(name) => {
                let known: Vec<&str> = SCHEDULES.iter().map(|s| s.name).collect();
                write!(f, "no SYN schedule is called {name:?}; known: {}", known.join(", "))
            }
            Self::Weights => f.write_str("weights must be finite, not negative, not all zero"),
        }
    }
}

impl std::error::Error for MixtureError {}

impl Mixture {
    /// A mixture by names and weights.
    ///
    /// # Errors
    /// An unknown name, or weights that cannot be shares.
    pub fn new(parts: &[(&str, f64)]) -> Result<Self, MixtureError> {
        let mut found = Vec::with_capacity(parts.len());
        for (name, weight) in parts {
            let schedule =
                Schedule::named(name).ok_or_else(|| MixtureError::Unknown((*name).to_owned()))?;
            if !weight.is_finite() || *weight < 0.0 {
                return Err(MixtureError::Weights);
            }
            found.push((schedule, *weight));
        }
        let total: f64 = found.iter().map(|(_, w)| w).sum();
        if total > 0.0 { Ok(Self { parts: found, total }) } else { Err(MixtureError::Weights) }
    }

    /// Our assumption about today's clients (spec: clients): 15 % Linux ≥ 6.5, 35 % older Linux
    /// and Android, 25 % Windows, 25 % Apple.
    ///
    /// # Errors
    /// Never; the names are in the table.
    pub fn today() -> Result<Self, MixtureError> {
        Self::new(&[("linux-6.5", 15.0), ("linux-3.7", 35.0), ("windows", 25.0), ("apple", 25.0)])
    }

    /// One client's schedule.
    pub fn draw(&self, rng: &mut Rng) -> &'static Schedule {
        let mut left = rng.next_f64() * self.total;
        let mut chosen = self.parts[0].0;
        for (schedule, weight) in &self.parts {
            chosen = schedule;
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linux_client_sends_six_syns_by_second_five_the_others_three_the_papers_two() {
        for (name, syns) in [
            ("linux-6.5", 6),
            ("apple", 6),
            ("linux-3.7", 3),
            ("windows", 3),
            ("freebsd", 3),
            ("classic", 2),
        ] {
            let schedule = Schedule::named(name).expect(name);
            assert_eq!(schedule.at_ms.iter().filter(|t| **t <= 5000).count(), syns, "{name}");
        }
    }

    #[test]
    fn tables_rise_and_end_before_the_client_gives_up() {
        for s in SCHEDULES {
            let times: Vec<Nanos> = (0..).map_while(|n| s.at(n)).collect();
            assert_eq!(times.len(), s.at_ms.len());
            assert_eq!(times[0], Nanos::ZERO);
            assert!(times.windows(2).all(|w| w[0] < w[1]), "{}", s.name);
            assert!(times[times.len() - 1] < Nanos::from_millis(u64::from(s.gives_up_ms)));
        }
    }

    #[test]
    fn a_mixture_draws_its_shares_and_names_what_it_does_not_know() {
        let mixture = Mixture::today().expect("known names");
        let mut rng = Rng::new(5, 0);
        let windows = (0..100_000).filter(|_| mixture.draw(&mut rng).name == "windows").count();
        assert!((24_000..26_000).contains(&windows), "{windows}");
        let error = Mixture::new(&[("beos", 1.0)]).expect_err("unknown");
        assert!(error.to_string().contains("\"beos\""), "{error}");
        assert_eq!(Mixture::new(&[("apple", 0.0)]).err(), Some(MixtureError::Weights));
    }
}

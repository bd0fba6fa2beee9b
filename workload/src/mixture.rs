// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Populations of clients: several SYN schedules at once, with their shares.

use crate::rng::Rng;
use crate::syn::{SCHEDULES, Schedule};
use tidegate_units::Random;

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

    /// All clients alike.
    #[must_use]
    pub fn only(schedule: &'static Schedule) -> Self {
        Self { parts: vec![(schedule, 1.0)], total: 1.0 }
    }

    /// The kinds of clients with their weights, in the order in which they were named.
    #[must_use]
    pub fn parts(&self) -> &[(&'static Schedule, f64)] {
        &self.parts
    }

    /// One client's schedule.
    pub fn draw(&self, rng: &mut Rng) -> &'static Schedule {
        self.parts[self.draw_part(rng)].0
    }

    /// One client's schedule, as an index into [`Self::parts`]: what a client that may only take
    /// a few bytes can remember.
    pub fn draw_part(&self, rng: &mut Rng) -> usize {
        let mut left = rng.next_f64() * self.total;
        let mut chosen = 0;
        for (index, (_, weight)) in self.parts.iter().enumerate() {
            chosen = index;
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

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Median and spread: on a shared machine a mean follows the disturbances.

use serde::Serialize;

/// What many measurements of one thing come down to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) median: f64,
    /// Smallest and largest.
    pub(super) min: f64,
    pub(super) max: f64,
    /// Distance of the quartiles, as a share of the median; 0 where that is 0.
    pub(super) spread: f64,
}

/// None without values.
pub(super) fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let median = quantile(&sorted, 0.5);
    let distance = quantile(&sorted, 0.75) - quantile(&sorted, 0.25);
    let spread = if median == 0.0 { 0.0 } else { (distance / median).abs() };
    Some(Summary { median, min, max, spread })
}

/// Interpolated between neighbours (the usual definition, type 7); of sorted values, at least one.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index below a thousand, never negative"
)]
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_disturbance_moves_the_maximum_only() {
        let summary = summary(&[10.0, 11.0, 9.0, 10.0, 500.0]).expect("values");
        assert_eq!((summary.median, summary.min, summary.max), (10.0, 9.0, 500.0));
        assert!((summary.spread - 0.1).abs() < 1e-12);
    }

    #[test]
    fn few_values_and_none() {
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[7.0]).expect("one").median, 7.0);
        assert_eq!(summary(&[1.0, 2.0]).expect("two").median, 1.5);
        assert_eq!(summary(&[0.0, 0.0]).expect("two").spread, 0.0);
    }
}

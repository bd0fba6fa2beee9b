// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The text of `/metrics`, read as a dashboard reads it.

use crate::error::Result;
use crate::lab::Lab;
use crate::topology::Role;

/// Where the lab's product serves its metrics.
const METRICS: &str = "http://127.0.0.1:7118/metrics";

/// What was scraped at a time.
#[derive(Clone, Debug, Default)]
pub struct Scrape(pub String);

impl Scrape {
    /// Scrapes the lab's product.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn take(lab: &Lab) -> Result<Self> {
        lab.run_in(Role::Server, &["curl", "-sS", METRICS], "").map(Self)
    }

    /// The sum of all samples of a metric with these labels.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let samples = self.0.lines().filter_map(|line| {
            let (with, value) = line.rsplit_once(' ')?;
            let rest = with.strip_prefix(name)?.strip_prefix('{')?;
            labels.iter().all(|label| rest.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        samples.sum()
    }

    /// A quantile of a histogram since another scrape, as Prometheus computes it; `None`: nothing was
    /// counted, or it lies above the last bound.
    #[must_use]
    pub fn quantile(&self, before: &Self, name: &str, share: f64) -> Option<f64> {
        let bound = |line: &str| {
            let label = line.strip_prefix(name)?.split_once("le=\"")?.1.split_once('"')?.0;
            let (label, bound) = (format!("le=\"{label}\""), label.parse::<f64>().ok()?);
            Some((bound, self.sum(name, &[&label]) - before.sum(name, &[&label])))
        };
        let mut buckets: Vec<(f64, f64)> = self.0.lines().filter_map(bound).collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rank = share * buckets.last()?.1;
        let (mut from, mut below) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= rank && count > below {
                let within = from + (bound - from) * (rank - below) / (count - below);
                return within.is_finite().then_some(within);
            }
            (from, below) = (bound, count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(counts: [u64; 3]) -> Scrape {
        let [first, second, all] = counts;
        Scrape(format!(
            "# TYPE t histogram\nt_bucket{{service=\"a\",le=\"0.1\"}} {first}\n\
             t_bucket{{service=\"a\",le=\"0.2\"}} {second}\n\
             t_bucket{{service=\"a\",le=\"+Inf\"}} {all}\nt_count{{service=\"a\"}} {all}\n"
        ))
    }

    #[test]
    fn a_quantile_is_of_what_came_between_two_scrapes() {
        let (before, after) = (scrape([10, 10, 10]), scrape([10, 110, 110]));
        let quantile = |share| after.quantile(&before, "t_bucket", share);
        assert!(quantile(0.5).is_some_and(|t| (t - 0.15).abs() < 1e-9), "{:?}", quantile(0.5));
        assert_eq!(before.quantile(&before, "t_bucket", 0.5), None, "nothing came");
        let above = scrape([0, 0, 5]);
        assert_eq!(above.quantile(&Scrape::default(), "t_bucket", 0.5), None);
        assert_eq!(after.sum("t_count", &["service=\"a\""]), 110.0);
        assert_eq!(after.sum("t_count", &["service=\"b\""]), 0.0);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pressure stall information: the share of time in which some task waited for a resource.
//!
//! From differences of `total=`, not from `avg10`: that one is a mean over 10 s and is brought up
//! to date every 2 s only, which is an age of its own at a tick of 100 ms.

use crate::file::{Probe, malformed};
use procfs::FromBufRead;
use std::io;
use std::path::PathBuf;
use tidegate_model::signals::Reading;
use tidegate_units::{Nanos, Share};

/// One pressure file and its last total.
#[derive(Debug)]
pub(crate) struct Pressure {
    probe: Probe,
    last: Option<(Nanos, u64)>,
}

impl Pressure {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { probe: Probe::new(path), last: None }
    }

    /// The share since the tick before; `None` at the first one.
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        buffer: &mut [u8],
    ) -> io::Result<Option<Reading<Share>>> {
        let total_us = self.total_us(buffer).inspect_err(|_| self.last = None)?;
        let before = self.last.replace((now, total_us));
        Ok(before.and_then(|(then, before_us)| {
            let span = now.since(then);
            let stalled_ns = total_us.checked_sub(before_us)?.saturating_mul(1000);
            (span > Nanos::ZERO)
                .then(|| Reading::fresh(Share::new(stalled_ns as f64 / span.0 as f64)))
        }))
    }

    fn total_us(&mut self, buffer: &mut [u8]) -> io::Result<u64> {
        let text = self.probe.read(buffer)?;
        // The three kinds of files have one form.
        procfs::CpuPressure::from_buf_read(text.as_bytes())
            .map(|pressure| pressure.some.total)
            .map_err(|e| malformed(self.probe.path(), &e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(total: u64) -> String {
        format!(
            "some avg10=99.00 avg60=99.00 avg300=99.00 total={total}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    }

    #[test]
    fn the_share_comes_from_the_totals_and_not_from_the_averages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu");
        std::fs::write(&path, file(1_000_000)).unwrap();
        let mut pressure = Pressure::new(path.clone());
        let mut buffer = [0; 512];
        assert_eq!(pressure.tick(Nanos::from_secs(1), &mut buffer).unwrap(), None);
        std::fs::write(&path, file(1_025_000)).unwrap();
        let share = pressure.tick(Nanos::from_millis(1_100), &mut buffer).unwrap().unwrap();
        assert!((share.value.get() - 0.25).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn a_total_that_goes_back_gives_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu");
        std::fs::write(&path, file(5_000_000)).unwrap();
        let mut pressure = Pressure::new(path.clone());
        let mut buffer = [0; 512];
        pressure.tick(Nanos::from_secs(1), &mut buffer).unwrap();
        std::fs::write(&path, file(7)).unwrap();
        assert_eq!(pressure.tick(Nanos::from_secs(2), &mut buffer).unwrap(), None);
    }
}

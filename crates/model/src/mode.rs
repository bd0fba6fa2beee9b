// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mode of a service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether refusals are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Verdicts are computed and counted, and not executed.
    Shadow,
    /// Refusals are executed.
    Enforce,
}

/// Of a service that is enforced: the share of the sources whose refusals are executed, in 1/65536. The
/// others are treated as in shadow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Canary(u16);

impl Canary {
    /// All sources: no canary.
    pub const ALL: Self = Self(0);

    /// So many percent of the sources; `None` where it is not above 0 and at most 100.
    #[must_use]
    pub fn of_percent(percent: f64) -> Option<Self> {
        let share = percent / 100.0 * 65_536.0;
        let is_share = percent > 0.0 && percent <= 100.0;
        // What rounds to all sources without being all of them is one less.
        let part = || Self(share.round().clamp(1.0, 65_535.0) as u16);
        is_share.then(|| if percent < 100.0 { part() } else { Self::ALL })
    }

    /// The share, in 1/65536; 0: all.
    #[must_use]
    pub const fn share_q16(self) -> u16 {
        self.0
    }

    /// Whether it is all sources.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.0 == 0
    }

    /// Whether what is decided in this mode may not limit those who ask on others' behalf (proxies, control
    /// nodes): in a canary they would refuse all sources.
    #[must_use]
    pub fn is_only_shown(self, mode: Mode) -> bool {
        mode == Mode::Shadow || !self.is_all()
    }

    /// The share in percent, to two places.
    #[must_use]
    pub fn percent(self) -> f64 {
        let share = if self.is_all() { 1.0 } else { f64::from(self.0) / 65_536.0 };
        (share * 10_000.0).round() / 100.0
    }
}

impl Mode {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Enforce => "enforce",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_kept_to_its_bounds() {
        for (percent, share) in [
            (5.0, Some(3277)),
            (100.0, Some(0)),
            (99.9999, Some(65_535)),
            (1e-9, Some(1)),
            (0.0, None),
            (-1.0, None),
            (100.1, None),
            (f64::NAN, None),
        ] {
            let canary = Canary::of_percent(percent);
            assert_eq!(canary.map(Canary::share_q16), share, "{percent}");
        }
        assert_eq!(Canary::of_percent(5.0).unwrap().percent(), 5.0);
        assert!(Canary::ALL.is_all() && Canary::ALL.percent() == 100.0);
    }
}

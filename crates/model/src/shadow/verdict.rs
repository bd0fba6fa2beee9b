// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows from a time in shadow: whether to enforce. It is asked whether enforcing would do harm, not
//! whether it would help.

use super::{ShadowPart, ShadowReport};
use crate::Mode;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// A day has an hour of the most load, and one of the least.
pub const PROOF_SPAN: Nanos = Nanos::from_secs(24 * 3600);
/// At most this share of what comes to a healthy service may be refused.
pub const WRONG_SHARE: f64 = 1e-4;
/// None wrong of so many: with 95 % the share is below [`WRONG_SHARE`] (the "rule of three": 3 / n).
pub const PROOF_OFFERED: u64 = 30_000;
/// Fewer wrong ones may be chance.
const WRONG_MIN: u64 = 10;

/// Whether to enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Hardly anything was refused while the service was healthy, for long enough.
    Safe,
    /// Too much was.
    Unsafe,
    /// Too little was seen.
    Unproved,
}

impl ShadowReport {
    /// Fills in what follows.
    pub(super) fn conclude(&mut self) {
        if self.since_unix_s.is_none() {
            self.sentence = self.nothing();
            return;
        }
        self.because = self.doubts();
        let (wrong, share) = (self.healthy.refused, share(&self.healthy));
        self.verdict = Some(match () {
            () if wrong >= WRONG_MIN && share > WRONG_SHARE => Verdict::Unsafe,
            () if self.because.is_empty() => Verdict::Safe,
            () => Verdict::Unproved,
        });
        self.sentence = self.words();
    }

    fn nothing(&self) -> String {
        match (self.mode, self.percent) {
            (Mode::Enforce, None) => format!(
                "{} is enforced, and no time in shadow is remembered: there is nothing to report",
                self.service
            ),
            _ => format!(
                "{}: nothing is remembered of this time; what is counted is there after a second",
                self.service
            ),
        }
    }

    /// Why enforcing is not known to do no harm.
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let Self { all, healthy, unknown, .. } = self;
        let per_10_000 = WRONG_SHARE * 10_000.0;
        if healthy.refused > 0 && share(healthy) > WRONG_SHARE {
            doubts.push(format!(
                "{} of {} would have been refused while it was healthy ({}); at most {per_10_000} in 10,000 may be",
                many(healthy.refused), many(healthy.offered), percent(share(healthy))
            ));
        }
        if all.watched_s < PROOF_SPAN.as_secs_f64() {
            let (seen, wanted) = (long(all.watched_s), long(PROOF_SPAN.as_secs_f64()));
            doubts.push(format!("it was watched for {seen}, of at least {wanted}"));
        }
        if healthy.offered < PROOF_OFFERED {
            doubts.push(format!(
                "{} came while it was known to be healthy, of at least {}",
                many(healthy.offered),
                many(PROOF_OFFERED)
            ));
        }
        let maybe = ShadowPart {
            refused: healthy.refused + unknown.refused,
            offered: healthy.offered + unknown.offered,
            ..*healthy
        };
        if unknown.refused > 0 && share(&maybe) > WRONG_SHARE {
            doubts.push(format!(
                "{} would have been refused in {} of which nothing can be told (too few responses were timed)",
                many(unknown.refused),
                long(unknown.watched_s)
            ));
        }
        doubts
    }

    fn words(&self) -> String {
        let Self { all, healthy, overloaded, unknown, .. } = self;
        let class = self.class.as_ref().map(|class| format!(", class {class}"));
        let mut text = format!(
            "{}{}: in {}: {} of {} would have been refused, {} of them while healthy",
            self.service,
            class.unwrap_or_default(),
            long(all.watched_s),
            many(all.refused),
            many(all.offered),
            many(healthy.refused)
        );
        if healthy.offered > 0 {
            text += &format!(" ({} of what came then)", percent(share(healthy)));
        }
        if unknown.refused > 0 {
            text += &format!(", {} while nothing can be told", many(unknown.refused));
        }
        match self.verdict {
            Some(Verdict::Safe) if overloaded.watched_s == 0.0 => {
                text += "; enforce is safe; no overload was seen in which it could have helped";
            }
            Some(Verdict::Safe) => text += "; enforce is safe",
            Some(Verdict::Unsafe) => {
                text += "; enforce is not safe: it would refuse what the service can take";
            }
            Some(Verdict::Unproved) | None => {
                text += &format!(
                    "; that enforce is safe is not yet proved, because {}",
                    self.because.join(", and because ")
                );
            }
        }
        text
    }
}

fn share(part: &ShadowPart) -> f64 {
    part.refused as f64 / part.offered.max(1) as f64
}

/// `1.2 M`, `412`.
fn many(count: u64) -> String {
    match count {
        n if n < 10_000 => n.to_string(),
        n if n < 1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        n if n < 1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        n => format!("{:.1} G", n as f64 / 1e9),
    }
}

/// To two digits that say something.
fn percent(share: f64) -> String {
    match 100.0 * share {
        0.0 => "0 %".into(),
        p if p < 0.0001 => "less than 0.0001 %".into(),
        p if p < 0.01 => format!("{p:.4} %"),
        p if p < 1.0 => format!("{p:.2} %"),
        p => format!("{p:.0} %"),
    }
}

/// `26 h`, `12 min`.
fn long(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 3600.0 => format!("{:.0} h", (s / 3600.0).floor()),
        s if s >= 120.0 => format!("{:.0} min", (s / 60.0).floor()),
        s => format!("{:.0} s", s.floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 26.0 * 3600.0;

    fn part(watched_s: f64, offered: u64, refused: u64) -> ShadowPart {
        ShadowPart { watched_s, offered, refused }
    }

    /// Of parts that were healthy, overloaded and unknown.
    fn report([healthy, overloaded, unknown]: [ShadowPart; 3]) -> ShadowReport {
        let parts = [healthy, overloaded, unknown];
        let all = part(
            parts.iter().map(|p| p.watched_s).sum(),
            parts.iter().map(|p| p.offered).sum(),
            parts.iter().map(|p| p.refused).sum(),
        );
        let mut report = ShadowReport {
            service: "web".into(),
            mode: Mode::Shadow,
            percent: None,
            class: None,
            since_unix_s: Some(0.0),
            until_unix_s: Some(1.0),
            all,
            healthy,
            overloaded,
            unknown,
            refused_by: Vec::new(),
            verdict: None,
            because: Vec::new(),
            sentence: String::new(),
        };
        report.conclude();
        report
    }

    #[test]
    fn the_last_sentence_can_be_acted_upon() {
        let none = part(0.0, 0, 0);
        let hour = part(3600.0, 100_000, 409);
        let day = |offered, refused| part(DAY - 3600.0, offered, refused);
        for (parts, verdict, said) in [
            (
                [day(1_100_000, 3), hour, none],
                Verdict::Safe,
                "web: in 26 h: 412 of 1.2 M would have been refused, 3 of them while healthy \
                 (0.0003 % of what came then); enforce is safe",
            ),
            ([day(1_000_000, 0), none, none], Verdict::Safe, "; no overload was seen"),
            ([day(30_000, 3), hour, none], Verdict::Safe, "enforce is safe"),
            (
                [day(29_999, 0), hour, none],
                Verdict::Unproved,
                "came while it was known to be healthy",
            ),
            ([day(1_000_000, 101), hour, none], Verdict::Unsafe, "enforce is not safe"),
            ([day(1_000_000, 100), hour, none], Verdict::Safe, "enforce is safe"),
            // Nine wrong ones may be chance, and are no proof.
            (
                [day(50_000, 9), hour, none],
                Verdict::Unproved,
                "(0.02 %); at most 1 in 10,000 may be",
            ),
            (
                [part(82_000.0, 1_000_000, 0), hour, none],
                Verdict::Unproved,
                "watched for 23 h, of at least 24 h",
            ),
            ([none, part(DAY, 1_000_000, 5), none], Verdict::Unproved, "0 came while"),
            // What is not known is never counted as right.
            (
                [day(100_000, 0), none, part(3600.0, 900, 50)],
                Verdict::Unproved,
                "50 would have been refused in 60 min of which nothing can be told",
            ),
            (
                [day(1_000_000, 0), hour, part(3600.0, 900, 50)],
                Verdict::Safe,
                "50 while nothing can be told",
            ),
        ] {
            let report = report(parts);
            assert_eq!(report.verdict, Some(verdict), "{}", report.sentence);
            assert!(report.sentence.contains(said), "{}", report.sentence);
            assert_eq!(report.because.is_empty(), verdict == Verdict::Safe, "{:?}", report.because);
        }
    }

    #[test]
    fn numbers_are_short_and_true() {
        let words: Vec<String> = [0, 9999, 10_000, 1_234_567].map(many).into();
        assert_eq!(words, ["0", "9999", "10.0 k", "1.2 M"]);
        let words: Vec<String> = [0.0, 1e-7, 2.5e-6, 0.0013, 0.4].map(percent).into();
        assert_eq!(words, ["0 %", "less than 0.0001 %", "0.0003 %", "0.13 %", "40 %"]);
        let words: Vec<String> = [0.5, 119.0, 7199.0, 7200.0].map(long).into();
        assert_eq!(words, ["0 s", "119 s", "119 min", "2 h"]);
    }
}

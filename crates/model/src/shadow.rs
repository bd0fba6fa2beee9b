// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What would have been refused in shadow, and how the service was then: rows of a ledger, and the report
//! that is made of them.

mod verdict;

use crate::Mode;
use crate::record::Moment;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;
pub use verdict::{PROOF_OFFERED, PROOF_SPAN, Verdict, WRONG_SHARE};

/// How a service was in a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Its responses came within the objective, and its accept queue was short.
    Healthy,
    /// One of both was not so.
    Overloaded,
    /// Too little was seen to tell.
    Unknown,
}

impl Health {
    /// In the order of [`Tallies`].
    pub const ALL: [Self; 3] = [Self::Healthy, Self::Overloaded, Self::Unknown];

    /// The word of metrics and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Overloaded => "overloaded",
            Self::Unknown => "unknown",
        }
    }
}

/// Whose new connections or requests are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// New connections of a class; at a gateway its requests.
    Class(String),
    /// Requests that met a request rule of the kernel.
    Rule(String),
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Whose.
    #[serde(flatten)]
    pub of: Of,
    /// How many.
    pub count: u64,
}

/// What would have been refused of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Whose.
    #[serde(flatten)]
    pub of: Of,
    /// Name of the reason (policy/reasons.def); `None`: the rule is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many.
    pub count: u64,
}

/// What was counted while the service was in one state of health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// For how long it was watched.
    pub span: Nanos,
    /// What came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offered: Vec<Arrivals>,
    /// What would have been refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusals>,
}

/// Most different counts of one kind in a tally: what finds no room is counted under [`MORE`].
pub const COUNTS_MAX: usize = 64;
/// The class of what found no room.
pub const MORE: &str = "(others)";

impl Tally {
    /// All that came.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.offered.iter().fold(0, |sum, more| sum.saturating_add(more.count))
    }

    /// All that would have been refused.
    #[must_use]
    pub fn would_refuse(&self) -> u64 {
        self.refused.iter().fold(0, |sum, more| sum.saturating_add(more.count))
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Counts what came.
    pub fn offer(&mut self, of: &Of, count: u64) {
        if count == 0 {
            return;
        }
        let known = self.offered.iter().position(|known| known.of == *of);
        let at = known.unwrap_or_else(|| {
            let full = self.offered.len() >= COUNTS_MAX;
            let of = if full { Of::Class(MORE.into()) } else { of.clone() };
            let others = self.offered.iter().position(|known| known.of == of);
            others.unwrap_or_else(|| {
                self.offered.push(Arrivals { of, count: 0 });
                self.offered.len() - 1
            })
        });
        let counted = &mut self.offered[at].count;
        *counted = counted.saturating_add(count);
    }

    /// Counts what would have been refused.
    pub fn refuse(&mut self, of: &Of, reason: Option<&str>, count: u64) {
        if count == 0 {
            return;
        }
        let find = |refused: &[Refusals], of: &Of, reason: Option<&str>| {
            refused.iter().position(|known| known.of == *of && known.reason.as_deref() == reason)
        };
        let at = find(&self.refused, of, reason).unwrap_or_else(|| {
            let full = self.refused.len() >= COUNTS_MAX;
            let of = if full { Of::Class(MORE.into()) } else { of.clone() };
            let reason = reason.filter(|_| !full);
            find(&self.refused, &of, reason).unwrap_or_else(|| {
                self.refused.push(Refusals { of, reason: reason.map(str::to_owned), count: 0 });
                self.refused.len() - 1
            })
        });
        let counted = &mut self.refused[at].count;
        *counted = counted.saturating_add(count);
    }

    /// Adds another one.
    pub fn add(&mut self, more: &Self) {
        self.span += more.span;
        for Arrivals { of, count } in &more.offered {
            self.offer(of, *count);
        }
        for Refusals { of, reason, count } in &more.refused {
            self.refuse(of, reason.as_deref(), *count);
        }
    }

    /// Only what is about one class.
    fn keep(&mut self, class: &str) {
        let is = |of: &Of| matches!(of, Of::Class(name) if name == class);
        self.offered.retain(|more| is(&more.of));
        self.refused.retain(|more| is(&more.of));
    }
}

/// A tally for each state of health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallies {
    /// While it was healthy.
    #[serde(default, skip_serializing_if = "Tally::is_empty")]
    pub healthy: Tally,
    /// While it was overloaded.
    #[serde(default, skip_serializing_if = "Tally::is_empty")]
    pub overloaded: Tally,
    /// While it was not known.
    #[serde(default, skip_serializing_if = "Tally::is_empty")]
    pub unknown: Tally,
}

impl Tallies {
    /// The tally of one state.
    #[must_use]
    pub const fn of(&self, health: Health) -> &Tally {
        match health {
            Health::Healthy => &self.healthy,
            Health::Overloaded => &self.overloaded,
            Health::Unknown => &self.unknown,
        }
    }

    /// The same, to be added to.
    pub const fn of_mut(&mut self, health: Health) -> &mut Tally {
        match health {
            Health::Healthy => &mut self.healthy,
            Health::Overloaded => &mut self.overloaded,
            Health::Unknown => &mut self.unknown,
        }
    }

    /// Adds others.
    pub fn add(&mut self, more: &Self) {
        Health::ALL.into_iter().for_each(|health| self.of_mut(health).add(more.of(health)));
    }

    /// Of all states.
    #[must_use]
    pub fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        Health::ALL.into_iter().for_each(|health| sum.add(self.of(health)));
        sum
    }
}

/// A minute of one service in shadow, or an hour of such minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowRow {
    /// Name of the service.
    pub service: String,
    /// When it begins.
    pub at: Moment,
    /// From its begin to its end; what is watched of it stands in the tallies.
    pub lasted: Nanos,
    /// Number of the time in shadow that it belongs to: a service that is enforced meanwhile, or is
    /// configured otherwise, begins another one.
    pub period: u64,
    /// What the service was configured as, as a checksum.
    pub identity: u64,
    /// The service is enforced from here on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// What was counted.
    #[serde(flatten)]
    pub tallies: Tallies,
}

impl ShadowRow {
    /// How long ago it ended, at least.
    #[must_use]
    pub fn ended_ago(&self, now: &Moment) -> Nanos {
        let begun = match self.at.boot == now.boot {
            true => now.up.since(self.at.up),
            false => now.unix.since(self.at.unix),
        };
        begun.since(self.lasted)
    }
}

/// What a service's time in shadow came to since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowSums {
    /// How long it was watched, by health, in the order of [`Health::ALL`].
    pub span: [Nanos; 3],
    /// What came.
    pub offered: [u64; 3],
    /// What would have been refused.
    pub refused: [u64; 3],
}

impl ShadowSums {
    /// Adds a row.
    pub fn add(&mut self, tallies: &Tallies) {
        for (at, health) in Health::ALL.into_iter().enumerate() {
            let tally = tallies.of(health);
            self.span[at] += tally.span;
            self.offered[at] = self.offered[at].saturating_add(tally.came());
            self.refused[at] = self.refused[at].saturating_add(tally.would_refuse());
        }
    }
}

/// What would have been refused, of one class or rule for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowLine {
    /// Whose.
    #[serde(flatten)]
    pub of: Of,
    /// Name of the reason; `None`: the rule is the reason.
    pub reason: Option<String>,
    /// How many, in all.
    pub refused: u64,
    /// Of them while the service was healthy.
    pub healthy: u64,
    /// While it was overloaded.
    pub overloaded: u64,
    /// While that was not known.
    pub unknown: u64,
}

/// How long a service was in one state of health, what came and what would have been refused then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowPart {
    /// How long, in seconds.
    pub watched_s: f64,
    /// What came.
    pub offered: u64,
    /// What would have been refused.
    pub refused: u64,
}

impl From<&Tally> for ShadowPart {
    fn from(tally: &Tally) -> Self {
        Self {
            watched_s: tally.span.as_secs_f64(),
            offered: tally.came(),
            refused: tally.would_refuse(),
        }
    }
}

/// The report about one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowReport {
    /// Name of the service.
    pub service: String,
    /// Its mode now.
    pub mode: Mode,
    /// Of how many percent of the sources refusals are executed; `None`: of all, or in shadow of none.
    pub percent: Option<f64>,
    /// Only this class; `None`: all, and the rules.
    pub class: Option<String>,
    /// When what is reported begins, in seconds since 1970; `None`: nothing is remembered.
    pub since_unix_s: Option<f64>,
    /// And ends.
    pub until_unix_s: Option<f64>,
    /// All of it.
    pub all: ShadowPart,
    /// While the service was healthy: what would have been refused then was wrong.
    pub healthy: ShadowPart,
    /// While it was overloaded.
    pub overloaded: ShadowPart,
    /// While nothing could be told.
    pub unknown: ShadowPart,
    /// What would have been refused, by class and reason, the most frequent first.
    pub refused_by: Vec<ShadowLine>,
    /// What follows; `None`: nothing is remembered.
    pub verdict: Option<Verdict>,
    /// Why it is not `safe`, a sentence each.
    pub because: Vec<String>,
    /// All of it in one sentence.
    pub sentence: String,
}

/// What is asked about a service.
#[derive(Clone, Debug)]
pub struct ShadowQuestion<'a> {
    /// Its name.
    pub service: &'a str,
    /// Its mode now.
    pub mode: Mode,
    /// Of how many percent of the sources refusals are executed.
    pub percent: Option<f64>,
    /// So long ago, and since; `None`: since it is in shadow.
    pub since: Option<Nanos>,
    /// Only this class.
    pub class: Option<&'a str>,
    /// When that is asked.
    pub now: &'a Moment,
}

impl ShadowReport {
    /// Made of rows, the oldest first.
    pub fn of<'a>(
        question: &ShadowQuestion<'_>,
        rows: impl Iterator<Item = &'a ShadowRow> + Clone,
    ) -> Self {
        let ShadowQuestion { service, mode, percent, since, class, now } = *question;
        let newest = rows.clone().last().map(|row| (row.period, row.identity));
        // What was configured otherwise says nothing of what is configured now.
        let wanted = |row: &&ShadowRow| match since {
            Some(since) => {
                row.ended_ago(now) < since && newest.is_some_and(|n| n.1 == row.identity)
            }
            None => newest.is_some_and(|newest| newest.0 == row.period),
        };
        let (mut tallies, mut first, mut last) = (Tallies::default(), None, None);
        for row in rows.filter(|row| !row.left).filter(wanted) {
            let begin = row.at.clone().seen_from(now).unix;
            first = Some(first.map_or(begin, |first: Nanos| first.min(begin)));
            let end = begin + row.lasted;
            last = Some(last.map_or(end, |last: Nanos| last.max(end)));
            tallies.add(&row.tallies);
        }
        if let Some(class) = class {
            Health::ALL.into_iter().for_each(|health| tallies.of_mut(health).keep(class));
        }
        let mut report = Self {
            service: service.to_owned(),
            mode,
            percent,
            class: class.map(str::to_owned),
            since_unix_s: first.map(Nanos::as_secs_f64),
            until_unix_s: last.map(Nanos::as_secs_f64),
            all: (&tallies.sum()).into(),
            healthy: (&tallies.healthy).into(),
            overloaded: (&tallies.overloaded).into(),
            unknown: (&tallies.unknown).into(),
            refused_by: lines(&tallies),
            verdict: None,
            because: Vec::new(),
            sentence: String::new(),
        };
        report.conclude();
        report
    }
}

fn lines(tallies: &Tallies) -> Vec<ShadowLine> {
    let mut lines: Vec<ShadowLine> = Vec::new();
    for health in Health::ALL {
        for Refusals { of, reason, count } in &tallies.of(health).refused {
            let same = |line: &ShadowLine| line.of == *of && line.reason == *reason;
            let at = lines.iter().position(same).unwrap_or_else(|| {
                let (of, reason) = (of.clone(), reason.clone());
                let (refused, healthy, overloaded, unknown) = (0, 0, 0, 0);
                lines.push(ShadowLine { of, reason, refused, healthy, overloaded, unknown });
                lines.len() - 1
            });
            let line = &mut lines[at];
            line.refused = line.refused.saturating_add(*count);
            let of_health = match health {
                Health::Healthy => &mut line.healthy,
                Health::Overloaded => &mut line.overloaded,
                Health::Unknown => &mut line.unknown,
            };
            *of_health = of_health.saturating_add(*count);
        }
    }
    lines.sort_by(|a, b| (b.refused, &a.of, &a.reason).cmp(&(a.refused, &b.of, &b.reason)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, up: u64, unix: u64) -> Moment {
        Moment { boot: boot.into(), up: Nanos::from_secs(up), unix: Nanos::from_secs(unix) }
    }

    fn row(at: Moment, period: u64, health: Health, (came, refused): (u64, u64)) -> ShadowRow {
        let mut tally = Tally { span: Nanos::from_secs(60), ..Tally::default() };
        tally.offer(&Of::Class("default".into()), came);
        tally.refuse(&Of::Class("default".into()), Some("rate"), refused);
        let mut tallies = Tallies::default();
        *tallies.of_mut(health) = tally;
        let (service, lasted) = ("web".into(), Nanos::from_secs(60));
        ShadowRow { service, at, lasted, period, tallies, ..ShadowRow::default() }
    }

    fn ask<'a>(
        now: &'a Moment,
        since: Option<Nanos>,
        class: Option<&'a str>,
    ) -> ShadowQuestion<'a> {
        let mode = Mode::Shadow;
        ShadowQuestion { service: "web", mode, percent: None, since, class, now }
    }

    /// Without `--since` the time in shadow counts that it is in; what was before is another policy's,
    /// or was before it was enforced.
    #[test]
    fn a_report_is_about_one_time_in_shadow_or_about_a_span() {
        let now = moment("b", 1000, 1_800_000_000);
        let rows = [
            row(moment("a", 5000, 1_799_999_000), 1, Health::Healthy, (10, 1)),
            row(moment("b", 700, 7), 2, Health::Healthy, (100, 2)),
            row(moment("b", 900, 9), 2, Health::Overloaded, (1000, 400)),
            row(moment("b", 960, 9), 2, Health::Unknown, (5, 3)),
        ];
        let report = |since, class| ShadowReport::of(&ask(&now, since, class), rows.iter());
        let whole = report(None, None);
        assert_eq!((whole.all.offered, whole.all.refused), (1105, 405));
        assert_eq!((whole.healthy.refused, whole.overloaded.refused), (2, 400));
        assert_eq!(whole.unknown.refused, 3);
        // The clock was set since: within a boot its time of day is that of now.
        assert_eq!(whole.since_unix_s, Some(1_799_999_700.0));
        assert_eq!(whole.until_unix_s, Some(1_800_000_020.0));
        let line = &whole.refused_by[0];
        assert_eq!((line.refused, line.healthy, line.overloaded, line.unknown), (405, 2, 400, 3));
        let of = |secs| report(Some(Nanos::from_secs(secs)), None).all.offered;
        assert_eq!((of(1), of(60), of(250), of(2000)), (5, 1005, 1105, 1115));
        assert_eq!(report(None, Some("other")).all.offered, 0);
        let mut rows = rows.clone();
        (rows[0].identity, rows[1].identity) = (7, 7);
        let since = Some(Nanos::from_secs(2000));
        let other = ShadowReport::of(&ask(&now, since, None), rows.iter());
        assert_eq!(other.all.offered, 1005, "what was configured otherwise is left out");
        let nothing = ShadowReport::of(&ask(&now, None, None), rows[..0].iter());
        assert_eq!((nothing.verdict, nothing.since_unix_s), (None, None));
    }

    #[test]
    fn more_classes_than_find_room_are_counted_together() {
        let mut tally = Tally::default();
        for class in 0..COUNTS_MAX as u64 + 5 {
            tally.offer(&Of::Class(class.to_string()), 2);
            tally.refuse(&Of::Class(class.to_string()), Some("rate"), 1);
        }
        let all = COUNTS_MAX as u64 + 5;
        assert_eq!((tally.came(), tally.would_refuse()), (2 * all, all));
        assert_eq!((tally.offered.len(), tally.refused.len()), (COUNTS_MAX + 1, COUNTS_MAX + 1));
        let mut twice = tally.clone();
        twice.add(&tally);
        assert_eq!(twice.would_refuse(), 2 * all);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources that hold a server's workers with silent or slow connections: how many such connections
//! one of them may have (docs/decisions/0014-sources.md). The dataplane enforces it, and never on a
//! source whose exchanges complete.

use tidegate_model::sources::SourceUse;
use tidegate_units::Nanos;

/// For so long silent connections hold the workers before somebody is refused for it: longer than
/// the queue of one burst.
const LASTS: Nanos = Nanos::SECOND;
/// A limit is lifted when for so long none of those it was set for held as many as it allows: longer than
/// servers wait for a request.
const LIFTED_AFTER: Nanos = Nanos::from_secs(60);
/// A limit is lifted when for so long it has not been known whether it is needed: with the others.
const LOST_AFTER: Nanos = Nanos::from_secs(3);
/// The least limit: one connection that is opened in advance, and one that is about to be used.
const LIMIT_MIN: u32 = 2;
/// Sources that a warning names.
const NAMED_MAX: usize = 3;

/// What is known of one service's silent connections, and the limit that follows.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Since when silent connections hold the workers.
    since: Option<Nanos>,
    /// The limit, and when it was needed last.
    limit: Option<(u32, Nanos)>,
    /// Those that hold most, at the last look.
    named: Vec<SourceUse>,
    /// Since when it is not known whether there is a cause.
    unknown: Option<Nanos>,
}

impl Holders {
    /// Goes on with the limit of a process before: because it works, there is no cause to see.
    pub fn inherit(&mut self, now: Nanos, limit: Option<u32>) {
        self.limit = limit.map(|limit| (limit, now));
    }

    /// Takes whether what a cause is made of is known: silence for long keeps no limit.
    pub fn known(&mut self, now: Nanos, known: bool) {
        if known {
            self.unknown = None;
        } else if now.since(*self.unknown.get_or_insert(now)) >= LOST_AFTER {
            *self = Self::default();
        }
    }

    /// Takes a tick: whether silent connections hold the service's workers now. True, if they have
    /// for long enough.
    #[must_use]
    pub fn see(&mut self, now: Nanos, cause: bool) -> bool {
        if !cause {
            self.since = None;
        }
        cause && now.since(*self.since.get_or_insert(now)) >= LASTS
    }

    /// Takes a look at the service's sources.
    pub fn look(&mut self, now: Nanos, lasting: bool, sources: &[SourceUse]) {
        if lasting {
            self.named.clear();
            if let Some((offenders, limit)) = offenders(sources) {
                self.named = offenders.into_iter().cloned().collect();
                self.limit = Some((limit, now));
            }
        }
        let Some((limit, needed)) = &mut self.limit else { return };
        let named = |source: &SourceUse| self.named.iter().any(|it| it.source == source.source);
        let at_it = |source: &SourceUse| source.held >= *limit && !source.completes();
        // Others may hold as many by chance: browsers that connect in advance.
        if sources.iter().any(|source| named(source) && at_it(source)) {
            *needed = now;
        }
        self.expire(now);
    }

    /// Lifts a limit that nobody needed for long, also while the sources cannot be looked at.
    pub fn expire(&mut self, now: Nanos) {
        if self.limit.is_some_and(|(_, needed)| now.since(needed) > LIFTED_AFTER) {
            self.limit = None;
            self.named.clear();
        }
    }

    /// Silent or slow connections that a source may have before it opens no more.
    #[must_use]
    pub fn limit(&self) -> Option<u32> {
        self.limit.map(|(limit, _)| limit)
    }

    /// Whether the table of sources is to be read more often.
    #[must_use]
    pub fn urgent(&self) -> bool {
        self.since.is_some()
    }

    /// What an operator should know of it.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        let (limit, _) = self.limit?;
        let shown = self.named.iter().take(NAMED_MAX);
        let names: Vec<String> =
            shown.map(|source| format!("{} ({})", source.source, source.held)).collect();
        let more = match self.named.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let who = if names.is_empty() {
            String::new()
        } else {
            format!("; those that held most: {}{more}", names.join(", "))
        };
        Some(format!(
            "a source that holds {limit} silent or slow connections opens no more, unless its \
             exchanges complete{who}"
        ))
    }
}

/// The fewest sources that together hold more than half of the silent and slow connections, and whose
/// exchanges do not complete; and the limit: what any other source holds. `None`: most are held by
/// sources that are not capped.
fn offenders(sources: &[SourceUse]) -> Option<(Vec<&SourceUse>, u32)> {
    let all: u64 = sources.iter().map(|source| u64::from(source.held)).sum();
    let mut ranked: Vec<&SourceUse> =
        sources.iter().filter(|source| source.held > 0 && !source.completes()).collect();
    ranked.sort_by(|a, b| b.held.cmp(&a.held).then_with(|| a.source.cmp(&b.source)));
    let mut held = 0;
    let most = ranked.iter().position(|source| {
        held += u64::from(source.held);
        2 * held > all
    })?;
    let rest = ranked.get(most + 1).map_or(0, |source| source.held);
    ranked.truncate(most + 1);
    Some((ranked, rest.max(LIMIT_MIN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8, held: u32, asked: u32, good: u32) -> SourceUse {
        SourceUse {
            service: 0,
            source: SourceUse::of([192, 0, 2, last].into()),
            open: held + asked,
            held,
            peak: held + asked,
            good,
            bad: 0,
            exchanges: good,
        }
    }

    const SECOND: Nanos = Nanos::SECOND;

    fn seconds(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    #[test]
    fn those_that_hold_most_are_found_and_the_limit_is_what_others_hold() {
        let names = |sources: &[SourceUse]| {
            offenders(sources).map(|(who, limit)| {
                (who.iter().map(|s| s.source.to_string()).collect::<Vec<_>>(), limit)
            })
        };
        let one = |last: u8| format!("192.0.2.{last}/32");
        for (sources, expected) in [
            (vec![], None),
            (vec![source(1, 300, 0, 0)], Some((vec![one(1)], LIMIT_MIN))),
            (
                vec![source(1, 5, 0, 0), source(2, 300, 0, 0), source(3, 1, 9, 40)],
                Some((vec![one(2)], 5)),
            ),
            // no one of them holds more than half
            (
                vec![source(1, 100, 0, 0), source(2, 100, 0, 0), source(3, 3, 0, 0)],
                Some((vec![one(1), one(2)], 3)),
            ),
            // a proxy holds more than half: none of the others is the reason
            (vec![source(1, 100, 10, 500), source(2, 90, 0, 0)], None),
            // a proxy holds many, and somebody holds more
            (vec![source(1, 100, 10, 500), source(2, 110, 0, 0)], Some((vec![one(2)], LIMIT_MIN))),
        ] {
            assert_eq!(names(&sources), expected, "{sources:?}");
        }
    }

    #[test]
    fn one_connection_each_of_many_sources_is_refused_to_nobody() {
        let sources: Vec<SourceUse> = (0..200).map(|last| source(last, 1, 0, 0)).collect();
        let (_, limit) = offenders(&sources).unwrap();
        assert!(sources.iter().all(|source| source.held < limit));
    }

    #[test]
    fn a_limit_comes_when_the_cause_lasts() {
        let hostile = [source(1, 300, 0, 0)];
        let mut holders = Holders::default();
        assert!(!holders.see(SECOND, true));
        assert!(!holders.see(SECOND + LASTS - Nanos(1), true));
        assert!(holders.see(SECOND + LASTS, true));
        assert!(!holders.see(seconds(3), false), "over");
        assert!(!holders.see(seconds(4), true), "begins anew");
        holders.look(seconds(4), false, &hostile);
        assert_eq!(holders.limit(), None, "it does no harm");
        holders.look(seconds(5), true, &hostile);
        assert_eq!(holders.limit(), Some(LIMIT_MIN));
        let words = holders.words().unwrap();
        assert!(words.contains("192.0.2.1/32 (300)"), "{words}");
    }

    #[test]
    fn a_limit_stays_while_somebody_is_at_it_and_a_minute_longer() {
        let mut holders = Holders::default();
        holders.look(seconds(5), true, &[source(1, 300, 0, 0)]);
        for at in [30, 80, 130] {
            holders.look(seconds(at), false, &[source(1, LIMIT_MIN, 0, 0)]);
            assert_eq!(holders.limit(), Some(LIMIT_MIN), "it is at the limit, so it goes on");
        }
        holders.look(seconds(190), false, &[source(1, LIMIT_MIN - 1, 0, 0)]);
        assert_eq!(holders.limit(), Some(LIMIT_MIN));
        holders.look(seconds(191), false, &[source(1, LIMIT_MIN, 9, 9)]);
        assert_eq!(
            (holders.limit(), holders.words()),
            (None, None),
            "a minute later, and it completes"
        );
    }

    /// By day some browser always holds two connections that it opened in advance.
    #[test]
    fn others_at_the_limit_do_not_prolong_it() {
        let mut holders = Holders::default();
        holders.look(seconds(5), true, &[source(1, 300, 0, 0)]);
        for at in 6..=65 {
            holders.look(seconds(at), false, &[source(2, LIMIT_MIN, 0, 0)]);
            assert_eq!(holders.limit(), Some(LIMIT_MIN), "{at} s");
        }
        holders.look(seconds(66), false, &[source(2, LIMIT_MIN, 0, 0)]);
        assert_eq!(holders.limit(), None);
        holders.look(seconds(70), true, &[source(1, 300, 0, 0)]);
        holders.expire(seconds(131));
        assert_eq!(holders.limit(), None, "also where nobody can look");
    }

    #[test]
    fn silence_keeps_no_limit() {
        let mut holders = Holders::default();
        holders.look(seconds(5), true, &[source(1, 300, 0, 0)]);
        for (at, known, limited) in [
            (5, false, true),
            (7, false, true),
            (8, true, true),
            (9, false, true),
            (12, false, false),
        ] {
            holders.known(seconds(at), known);
            assert_eq!(holders.limit().is_some(), limited, "{at} s");
        }
    }

    #[test]
    fn a_warning_names_few() {
        let mut holders = Holders::default();
        let sources: Vec<SourceUse> = (0..10).map(|last| source(last, 30, 0, 0)).collect();
        holders.look(seconds(5), true, &sources);
        let words = holders.words().unwrap();
        assert_eq!(words.matches("192.0.2.").count(), NAMED_MAX, "{words}");
        assert!(words.contains("and 3 more"), "{words}");
    }
}

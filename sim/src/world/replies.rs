// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The caps on RSTs, as in the dataplane (bpf/reply/rst.h): one for everybody, and one beyond it for
//! sources that have completed a handshake lately.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use tidegate_policy::{Action, BucketSpec, Event, Params, State, VerdictKind, admit};
use tidegate_units::{Nanos, Rate};

/// Part of a second's replies that may go out at once.
const BURST_SHARE: u32 = 4;
/// Part of a CPU's replies beyond the cap that one source takes at most.
const SOURCE_SHARE: u64 = 4;
/// How long a handshake proves that a source receives at its address.
const PROVED_FOR: Nanos = Nanos::from_secs(300);
const SECOND_NS: u64 = 1_000_000_000;

/// Most RSTs that are sent; what is above is dropped silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyCaps {
    /// Per second and CPU, to anybody; 0: none at all.
    pub all: u32,
    /// Per second and CPU beyond that, to proved sources. Where clients have no addresses
    /// ([`super::Arrival::source`]) nobody is proved.
    pub proved: u32,
    /// CPUs; their buckets are one here.
    pub cpus: u32,
    /// Sources that are remembered.
    pub sources: u32,
}

/// A bucket of RSTs.
struct Bucket {
    params: Params,
    state: State,
}

impl Bucket {
    fn new(per_second: u32) -> Option<Self> {
        let burst = (per_second / BURST_SHARE).max(1);
        let rate = Rate::per_second(f64::from(per_second));
        let params = Params::token_bucket(&BucketSpec::new(rate, burst, Action::Drop)).ok()?;
        Some(Self { params, state: State::fresh() })
    }

    fn allow(&mut self, now: Nanos) -> bool {
        admit(&self.params, &mut self.state, &Event::at(now.0)).kind == VerdictKind::Admit
    }
}

/// What is known of a source.
struct Source {
    proved: Nanos,
    /// Its own replies are used up to here.
    answered: Option<Nanos>,
}

/// What may still be answered.
pub(super) struct Replies {
    caps: ReplyCaps,
    /// Without a rate there is no bucket: no RST at all.
    all: Option<Bucket>,
    proved: Option<Bucket>,
    sources: BTreeMap<u64, Source>,
    /// Each source once, from who came first; what has come again since goes to the end.
    order: VecDeque<(u64, Nanos)>,
}

impl Replies {
    pub(super) fn new(caps: ReplyCaps) -> Self {
        let bucket = |per_second: u32| Bucket::new(per_second.saturating_mul(caps.cpus));
        let all = bucket(caps.all);
        let proved = all.is_some().then(|| bucket(caps.proved)).flatten();
        Self { caps, all, proved, sources: BTreeMap::new(), order: VecDeque::new() }
    }

    /// A client of this source has completed a handshake.
    pub(super) fn note(&mut self, now: Nanos, source: Option<u64>) {
        let Some(source) = source.filter(|_| self.proved.is_some()) else { return };
        match self.sources.entry(source) {
            Entry::Occupied(known) => known.into_mut().proved = now,
            Entry::Vacant(free) => {
                free.insert(Source { proved: now, answered: None });
                self.order.push_back((source, now));
            }
        }
        while self.sources.len() > self.caps.sources as usize {
            self.forget();
        }
    }

    /// Who came longest ago goes, or to the end if he came again.
    fn forget(&mut self) {
        let Some((source, then)) = self.order.pop_front() else { return };
        match self.sources.get(&source) {
            Some(known) if known.proved > then => self.order.push_back((source, known.proved)),
            _ => drop(self.sources.remove(&source)),
        }
    }

    /// Whether a refusal is answered. In a flood an address says nothing.
    pub(super) fn allow(&mut self, now: Nanos, source: Option<u64>, flood: bool) -> bool {
        self.all.as_mut().is_some_and(|all| all.allow(now))
            || (!flood && source.is_some_and(|source| self.share(now, source)) && self.beyond(now))
    }

    fn beyond(&mut self, now: Nanos) -> bool {
        self.proved.as_mut().is_some_and(|proved| proved.allow(now))
    }

    /// Takes one of a source's own replies.
    fn share(&mut self, now: Nanos, source: u64) -> bool {
        let rate = u64::from(self.caps.proved);
        let Some(known) = self.sources.get_mut(&source).filter(|_| rate > 0) else { return false };
        if now.since(known.proved) > PROVED_FOR {
            return false;
        }
        let each = Nanos(SOURCE_SHARE * SECOND_NS / rate);
        let full = (rate / u64::from(BURST_SHARE)).max(1) * SECOND_NS / rate;
        let from = Nanos(now.0.saturating_sub(full.max(each.0)));
        let used = known.answered.map_or(from, |used| used.max(from));
        if now.since(used) < each {
            return false;
        }
        known.answered = Some(used + each);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: ReplyCaps = ReplyCaps { all: 4, proved: 40, cpus: 1, sources: 16 };
    /// One that has used the first bucket up.
    fn capped(caps: ReplyCaps) -> Replies {
        let mut replies = Replies::new(caps);
        drain(&mut replies, START);
        replies
    }

    const START: Nanos = Nanos::from_secs(1_000);

    fn drain(replies: &mut Replies, now: Nanos) {
        while replies.allow(now, None, false) {}
    }

    fn count(replies: &mut Replies, now: Nanos, source: u64) -> usize {
        (0..100).filter(|_| replies.allow(now, Some(source), false)).count()
    }

    #[test]
    fn beyond_the_cap_the_proved_are_answered_lately_and_not_in_a_flood() {
        let mut replies = capped(CAPS);
        assert_eq!(count(&mut replies, START, 1), 0, "not proved");
        replies.note(START, Some(1));
        assert!(!replies.allow(START, Some(1), true), "a flood");
        assert_eq!(count(&mut replies, START, 1), 2, "a source's share of a quarter of a second");
        assert_eq!(count(&mut replies, START, 2), 0);
        replies.note(START, None);
        assert!(!replies.allow(START, None, false), "no address");
        for (after, told) in [(PROVED_FOR, true), (PROVED_FOR + Nanos(1), false)] {
            let mut replies = capped(CAPS);
            replies.note(START, Some(1));
            drain(&mut replies, START + after);
            assert_eq!(replies.allow(START + after, Some(1), false), told, "{after}");
        }
    }

    #[test]
    fn the_second_cap_holds_for_all_cpus_together() {
        for cpus in [1, 2] {
            let mut replies = capped(ReplyCaps { cpus, ..CAPS });
            (1..=15).for_each(|source| replies.note(START, Some(source)));
            let sum: usize = (1..=15).map(|source| count(&mut replies, START, source)).sum();
            assert_eq!(sum, 10 * cpus as usize);
        }
        for caps in [ReplyCaps { proved: 0, ..CAPS }, ReplyCaps { all: 0, ..CAPS }] {
            let mut replies = capped(caps);
            replies.note(START, Some(1));
            assert_eq!(count(&mut replies, START, 1), 0, "{caps:?}");
        }
    }

    #[test]
    fn the_last_who_came_are_remembered() {
        let mut replies = capped(ReplyCaps { proved: 4_000, sources: 3, ..CAPS });
        for (at, source) in [1, 2, 3, 1, 4, 5].into_iter().enumerate() {
            replies.note(START + Nanos(at as u64), Some(source));
        }
        let known = |source| replies.sources.contains_key(&source);
        assert_eq!([1, 2, 3, 4, 5].map(known), [true, false, false, true, true]);
        assert_eq!(replies.order.len(), 3);
    }
}

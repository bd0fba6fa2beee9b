// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events of imported rules: no more than the history, which holds 1,000 of all kinds, has room for. A router may
//! announce and withdraw the same routes each second. What is no event is in the number of a later one, and in the
//! status and the metrics.

use std::collections::BTreeMap;
use tidegate_model::record::What;
use tidegate_units::Nanos;

/// The same is an event no more than once within this time.
const AGAIN: Nanos = Nanos::from_secs(600);
/// No more rules are named within that time.
const NAMED_MAX: usize = 16;

/// Why routes are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// There is no list.
    List,
    /// The speaker has ended.
    Speaker,
    /// The router has no session.
    Session,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// With its rate.
    Rule(String, String),
    MoreRules,
    End,
    Unlisted(Cause),
}

/// Rules that nobody was told of yet.
#[derive(Default)]
struct Untold {
    count: u64,
    since: Nanos,
}

/// What is told of the rules of one router.
pub(super) struct Events {
    peer: String,
    shadow: bool,
    /// When each was told last, as long as it is not told again.
    told: BTreeMap<About, Nanos>,
    /// Rules that began or changed, and rules that ended.
    more: Untold,
    ended: Untold,
    events: Vec<What>,
}

impl Events {
    pub(super) fn new(peer: &str, shadow: bool) -> Self {
        Self {
            peer: peer.into(),
            shadow,
            told: BTreeMap::new(),
            more: Untold::default(),
            ended: Untold::default(),
            events: Vec::new(),
        }
    }

    /// A rule begins, or has another rate.
    pub(super) fn begin(&mut self, now: Nanos, rule: String, rate: String) {
        let about = About::Rule(rule.clone(), rate.clone());
        if self.named(now) >= NAMED_MAX || !self.first(now, about) {
            self.more.add(now, 1);
            return;
        }
        let (peer, shadow) = (self.peer.clone(), self.shadow);
        self.tell(What::RuleImported { peer, rule, rate, shadow });
    }

    /// So many rules ended.
    pub(super) fn end(&mut self, now: Nanos, count: u64) {
        self.ended.add(now, count);
    }

    /// Routes are not known; whether that is an event now.
    pub(super) fn unlisted(&mut self, now: Nanos, cause: Cause, why: &str) -> bool {
        let first = self.first(now, About::Unlisted(cause));
        if first {
            self.tell(What::RoutesUnlisted { peer: self.peer.clone(), why: why.into() });
        }
        first
    }

    /// What was told since the last call, and numbers whose time has come.
    pub(super) fn take(&mut self, now: Nanos) -> Vec<What> {
        let (peer, shadow) = (self.peer.clone(), self.shadow);
        if self.more.count > 0 && self.first(now, About::MoreRules) {
            let (count, within) = self.more.take(now);
            self.tell(What::MoreRulesImported { peer: peer.clone(), count, within, shadow });
        }
        if self.ended.count > 0 && self.first(now, About::End) {
            let (count, within) = self.ended.take(now);
            self.tell(What::RulesEnded { peer, count, within, shadow });
        }
        std::mem::take(&mut self.events)
    }

    fn named(&mut self, now: Nanos) -> usize {
        self.forget(now);
        self.told.keys().filter(|about| matches!(about, About::Rule(..))).count()
    }

    /// What is remembered is bounded by what may be told.
    fn forget(&mut self, now: Nanos) {
        self.told.retain(|_, then| now.since(*then) < AGAIN);
    }

    /// Whether it may be told; then it is.
    fn first(&mut self, now: Nanos, about: About) -> bool {
        self.forget(now);
        let first = !self.told.contains_key(&about);
        if first {
            self.told.insert(about, now);
        }
        first
    }

    fn tell(&mut self, what: What) {
        tracing::info!("{}", what.sentence());
        self.events.push(what);
    }
}

impl Untold {
    const fn add(&mut self, now: Nanos, count: u64) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += count;
    }

    /// The number, and within how long; `None`: all now.
    fn take(&mut self, now: Nanos) -> (u64, Option<Nanos>) {
        let within = now.since(self.since);
        (std::mem::take(&mut self.count), (within > Nanos::ZERO).then_some(within))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told in so many seconds of a router whose rules, so many, begin and end in turn each second.
    fn flapping(rules: usize, seconds: u64) -> Vec<String> {
        let mut events = Events::new("r", false);
        let mut told = Vec::new();
        for second in 0..seconds {
            let now = Nanos::from_secs(1000 + second);
            for rule in 0..rules {
                if second % 2 == 0 {
                    events.begin(now, format!("to {rule}"), "100 packets/s".into());
                } else {
                    events.end(now, 1);
                }
            }
            told.extend(events.take(now).iter().map(What::sentence));
        }
        told
    }

    #[test]
    fn a_router_that_flaps_leaves_room_in_the_history() {
        // The first rule, its end, and one number of each in every ten minutes.
        let told = flapping(1, 1800);
        assert_eq!(told[0], "the router r lets 100 packets/s to 0 pass");
        assert_eq!(told[1], "1 rule(s) of the router r ended");
        assert_eq!(told[2], "1 more rule(s) of the router r begin or change");
        assert_eq!(told[3], "the router r lets 100 packets/s to 0 pass", "{told:?}");
        assert_eq!(told[4], "300 rule(s) of the router r ended in the last 598 s");
        assert!(told.len() <= 9, "{told:?}");
        let told = flapping(256, 1800);
        let named = told.iter().filter(|text| text.contains("lets")).count();
        assert_eq!(named, 16 * 3);
        assert!(told.len() - named <= 6, "{told:?}");
    }

    #[test]
    fn another_rate_is_named_at_once() {
        let mut events = Events::new("r", false);
        for (second, rate) in ["100 packets/s", "1 packets/s", "100 packets/s"].iter().enumerate() {
            events.begin(Nanos::from_secs(second as u64), "to 0".into(), (*rate).into());
        }
        let told = events.take(Nanos::from_secs(3));
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[1].sentence(), "the router r lets 1 packets/s to 0 pass");
        assert!(told[2].sentence().starts_with("1 more rule(s)"), "{told:?}");
    }

    #[test]
    fn each_cause_is_told_once_in_ten_minutes() {
        let mut events = Events::new("r", false);
        for second in 0..1199 {
            let now = Nanos::from_secs(1000 + second);
            events.unlisted(now, Cause::List, "it answers slowly");
            if second % 2 == 0 {
                events.unlisted(now, Cause::Speaker, "it has ended");
            }
        }
        let told = events.take(Nanos::from_secs(2199));
        assert_eq!(told.len(), 4, "{told:?}");
    }
}

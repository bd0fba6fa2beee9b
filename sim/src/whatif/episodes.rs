// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When something was refused: refusals that are close to each other are one episode.

use tidegate_units::Nanos;

/// Most episodes that are kept one by one; further ones are only counted.
pub const EPISODES_MAX: usize = 1000;
/// An episode is over when nothing was refused for this long.
pub const PAUSE: Nanos = Nanos::from_secs(10);

/// One time of refusing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Episode {
    /// The first refusal.
    pub from: Nanos,
    /// The last one.
    pub to: Nanos,
    /// Clients that came from the first refusal to the last.
    pub offered: u64,
    /// Clients refused for the first time.
    pub refused: u64,
    /// SYNs refused, repeated ones included.
    pub refusals: u64,
    /// What the controller said when it began.
    pub why: String,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Episodes {
    all: Vec<Episode>,
    more: u64,
    /// The end of the last one, kept or not.
    last: Option<Nanos>,
    offered_before: u64,
}

impl Episodes {
    /// A refusal, when `offered` clients had come in all; `why` is asked when an episode begins.
    pub fn refused(&mut self, now: Nanos, (offered, first): (u64, bool), why: impl Fn() -> String) {
        let begins = self.last.is_none_or(|last| now.since(last) > PAUSE);
        self.last = Some(now);
        if begins {
            self.offered_before = offered.saturating_sub(1);
            if self.all.len() >= EPISODES_MAX {
                self.more += 1;
            } else {
                self.all.push(Episode { from: now, why: why(), ..Episode::default() });
            }
        }
        if self.more > 0 {
            return;
        }
        if let Some(episode) = self.all.last_mut() {
            episode.to = now;
            episode.offered = offered - self.offered_before;
            episode.refused += u64::from(first);
            episode.refusals += 1;
        }
    }

    /// The first [`EPISODES_MAX`], in the order of time.
    #[must_use]
    pub fn all(&self) -> &[Episode] {
        &self.all
    }

    /// How many there were beyond those.
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_ten_seconds_is_still_one_episode_a_longer_one_is_two() {
        let mut episodes = Episodes::default();
        let why = || "because".to_owned();
        for (second, offered, first) in [(1, 1, true), (11, 5, false), (22, 9, true)] {
            episodes.refused(Nanos::from_secs(second), (offered, first), why);
        }
        let [one, two] = episodes.all() else { panic!("{episodes:?}") };
        let seconds = Nanos::from_secs;
        assert_eq!((one.from, one.to), (seconds(1), seconds(11)));
        assert_eq!((one.offered, one.refused, one.refusals), (5, 1, 2));
        assert_eq!((two.from, two.to, two.offered), (seconds(22), seconds(22), 1));
    }

    #[test]
    fn episodes_are_kept_up_to_the_bound_and_counted_beyond_it() {
        let mut episodes = Episodes::default();
        let count = EPISODES_MAX as u64 + 3;
        for k in 0..count {
            episodes.refused(Nanos::from_secs(100 * k), (k + 1, true), String::new);
        }
        assert_eq!((episodes.all().len(), episodes.more()), (EPISODES_MAX, 3));
        assert_eq!(episodes.all().iter().map(|e| e.refusals).max(), Some(1));
    }
}

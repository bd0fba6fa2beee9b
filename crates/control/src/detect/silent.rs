// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has completed the handshake and said nothing yet.
//!
//! A client needs some milliseconds to ask. In a flash crowd a hundred are in that time, and all of
//! them are work that the server will have in a moment: the limit in flight of calm counts them. Others
//! never ask: connections that browsers open ahead, and hosts that only hold them. They must not close
//! the limit. Two numbers tell them apart, written with the limits of each tick:
//! - as many silent ones as there were a moment ago are usual;
//! - of those beyond, the share counts that asked lately. Who completes a handshake in a tick may ask
//!   in the next.
//!
//! While the alarm is on nobody is counted so: the rate allows for them (see coming.rs).

use super::history::History;
use super::scale::LASTING_TICKS;
use tidegate_model::limits::Pending;

/// The least of so many ticks is usual: one may have seen a crowd's beginning.
const USUAL_TICKS: usize = 2;
/// By so many ticks who asks may come after the end of its handshake.
const ASKS_AFTER: usize = 1;
/// Connections that are believed to ask, beside those that were seen: of few nothing is known.
const ASKS_PRIOR: f64 = 8.0;

/// How many were silent in the last ticks, the last one first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silent {
    lately: [Option<u64>; USUAL_TICKS],
}

impl Silent {
    /// Takes a tick; `None` where it is not known.
    pub(super) fn see(&mut self, silent: Option<u64>) {
        self.lately.rotate_right(1);
        self.lately[0] = silent;
    }

    /// Who counts beside those that wait; nobody where too little is known.
    pub(super) fn pending(&self, history: &History) -> Pending {
        let usual = self.lately.iter().copied().min().flatten();
        let Some(silent) = usual else { return Pending::default() };
        let asked = history.last(LASTING_TICKS).asked;
        let proved = history.between(LASTING_TICKS + ASKS_AFTER, ASKS_AFTER).proved;
        let share = (asked + ASKS_PRIOR) / (proved + ASKS_PRIOR);
        Pending { silent, asks_q10: (share.clamp(0.0, 1.0) * 1024.0).round() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::Sums;
    use super::*;

    /// So many handshakes and first requests a tick, in each of these ticks.
    fn after(ticks: &[(f64, f64)]) -> History {
        let mut history = History::default();
        for (proved, asked) in ticks {
            history.push(Sums { seconds: 0.1, proved: *proved, asked: *asked, ..Sums::default() });
        }
        history
    }

    #[test]
    fn what_was_silent_a_moment_ago_is_usual() {
        let mut silent = Silent::default();
        let history = after(&[(20.0, 20.0); 20]);
        silent.see(Some(7));
        assert!(silent.pending(&history).is_none(), "one tick is too little");
        silent.see(Some(90));
        assert_eq!(silent.pending(&history), Pending { silent: 7, asks_q10: 1024 });
        silent.see(Some(95));
        assert_eq!(silent.pending(&history).silent, 90);
        silent.see(None);
        assert!(silent.pending(&history).is_none(), "not known");
    }

    /// 640 idle connections a second beside 150 that ask: within a second hardly any of them counts.
    #[test]
    fn hosts_that_never_ask_count_for_little_within_a_second() {
        let mut silent = Silent::default();
        let mut ticks = vec![(15.0, 15.0); 20];
        let mut idle = 0;
        for tick in 0..20 {
            ticks.push((79.0, 15.0));
            silent.see(Some(idle));
            idle += 64;
            silent.see(Some(idle));
            let pending = silent.pending(&after(&ticks));
            // until the limits of the next tick, as many come again
            let counts = (idle + 64 - pending.silent) * u64::from(pending.asks_q10) / 1024;
            assert!(counts <= 128, "tick {tick}: {counts}");
            assert!(tick < 10 || counts <= 32, "tick {tick}: {counts}");
        }
    }

    /// In the first tick of a crowd, who has come has not asked yet; the share stays.
    #[test]
    fn the_first_tick_of_a_crowd_does_not_lower_the_share() {
        let mut ticks = vec![(20.0, 20.0); 20];
        ticks.push((300.0, 180.0));
        let mut silent = Silent::default();
        silent.see(Some(1));
        silent.see(Some(100));
        assert_eq!(silent.pending(&after(&ticks)).asks_q10, 1024);
    }
}

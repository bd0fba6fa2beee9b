// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When clients send their SYNs again: tables with names, never a doubling rule.
//!
//! Nominal times are from the kernels' tables and documentation; the stretch is what kernel timers
//! add to long waits, measured on Linux 6.18 (4.09 s for 4 s, 19.39 for 19, 69.05 for 67).

use tidegate_units::Nanos;

/// What a client does when its SYN is answered by a RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReset {
    /// The connection attempt fails at once (Linux, BSD, macOS).
    Fail,
    /// The SYN is sent again after this pause, as often as the schedule has entries (Windows).
    Again(Nanos),
}

/// What a client does when its SYN is answered by an ICMP destination unreachable (which is often
/// filtered on its way, and which hosts send at a limited rate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnIcmp {
    /// The connection attempt fails at once (Linux in SYN_SENT).
    Fail,
    /// As if nothing had come: the SYN is sent again when its timer fires.
    Ignore,
}

/// What became of a SYN, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No answer: it was dropped.
    Silence,
    /// A RST.
    Reset,
    /// An ICMP destination unreachable.
    Unreachable,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Sends the SYN again this long after the last one.
    SendsAgain(Nanos),
    /// Sends no more and gives up this long after the last SYN.
    GivesUp(Nanos),
    /// The connection attempt has failed, at once.
    Fails,
}

/// The SYNs of one kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Name in scenarios and in configuration.
    pub name: &'static str,
    /// Nominal milliseconds from the first SYN, which is entry 0.
    pub at_ms: &'static [u32],
    /// What the timers add to each entry, in milliseconds.
    pub stretch_ms: &'static [u32],
    /// Milliseconds after which the attempt is given up.
    pub gives_up_ms: u32,
    /// The reaction to a RST.
    pub on_reset: OnReset,
    /// The reaction to an ICMP destination unreachable.
    pub on_icmp: OnIcmp,
}

impl Schedule {
    /// The schedule with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SCHEDULES.iter().find(|s| s.name == name)
    }

    /// Time of the n-th SYN after the first (n = 0), as timers really fire; `None` when the
    /// client sends no more.
    #[must_use]
    pub fn at(&self, n: usize) -> Option<Nanos> {
        let stretch = self.stretch_ms.get(n).copied().unwrap_or(0);
        let ms = u64::from(*self.at_ms.get(n)?) + u64::from(stretch);
        Some(Nanos::from_millis(ms))
    }

    /// Time between the n-th SYN after the first and the next; `None` when there is no next.
    #[must_use]
    pub fn gap(&self, n: usize) -> Option<Nanos> {
        Some(self.at(n + 1)? - self.at(n)?)
    }

    /// When the attempt is given up, from the first SYN.
    #[must_use]
    pub const fn gives_up(&self) -> Nanos {
        Nanos::from_millis(self.gives_up_ms as u64)
    }

    /// What the client does after its n-th SYN after the first (n = 0) and this answer, without
    /// jitter. A client that answers a RST with another SYN does so until it has sent as many as
    /// its schedule has; then the attempt has failed.
    #[must_use]
    pub fn after(&self, n: usize, answer: Answer) -> Reaction {
        match (answer, self.on_reset, self.on_icmp) {
            (Answer::Reset, OnReset::Again(pause), _) if n + 1 < self.at_ms.len() => {
                Reaction::SendsAgain(pause)
            }
            (Answer::Reset, ..) | (Answer::Unreachable, _, OnIcmp::Fail) => Reaction::Fails,
            (Answer::Silence, ..) | (Answer::Unreachable, _, OnIcmp::Ignore) => match self.gap(n) {
                Some(gap) => Reaction::SendsAgain(gap),
                None => Reaction::GivesUp(self.gives_up() - self.at(n).unwrap_or(self.gives_up())),
            },
        }
    }
}

const LINEAR: &[u32] = &[0, 1000, 2000, 3000, 4000, 5000, 7000, 11_000, 19_000, 35_000, 67_000];
const LINEAR_STRETCH: &[u32] = &[0, 20, 40, 70, 90, 110, 130, 190, 390, 510, 2050];
const DOUBLING: &[u32] = &[0, 1000, 3000, 7000, 15_000, 31_000, 63_000];
/// Not measured: the stretch of the linear table at like waits.
const DOUBLING_STRETCH: &[u32] = &[0, 20, 70, 130, 300, 450, 1900];
const NO_STRETCH: &[u32] = &[];

/// Retransmits half a second after each RST.
const AGAIN: OnReset = OnReset::Again(Nanos::from_millis(500));

/// A browser opens a second connection, with a schedule of its own, when the first is not
/// established after this time (Chromium and Firefox; both attempts are one client).
pub const BACKUP_CONNECTION: Nanos = Nanos::from_millis(250);

/// All schedules.
pub const SCHEDULES: &[Schedule] = &[
    Schedule {
        name: "linux-6.5",
        at_ms: LINEAR,
        stretch_ms: LINEAR_STRETCH,
        gives_up_ms: 131_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    Schedule {
        name: "linux-3.7",
        at_ms: DOUBLING,
        stretch_ms: DOUBLING_STRETCH,
        gives_up_ms: 127_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    // 3.1 to 3.6: one retransmission fewer.
    Schedule {
        name: "linux-3.1",
        at_ms: &[0, 1000, 3000, 7000, 15_000, 31_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 63_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    // Before 3.1: first time-out of 3 s, five retransmissions.
    Schedule {
        name: "linux-2.6",
        at_ms: &[0, 3000, 9000, 21_000, 45_000, 93_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 189_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    // Unsure: 31 s follow from the time-outs; reports name 21 s, but fit the old schedule too.
    Schedule {
        name: "windows",
        at_ms: &[0, 1000, 3000, 7000, 15_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 31_000,
        on_reset: AGAIN,
        on_icmp: OnIcmp::Ignore,
    },
    // First time-out of 3 s, two retransmissions.
    Schedule {
        name: "windows-old",
        at_ms: &[0, 3000, 9000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 21_000,
        on_reset: AGAIN,
        on_icmp: OnIcmp::Ignore,
    },
    Schedule {
        name: "apple",
        at_ms: LINEAR,
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Ignore,
    },
    Schedule {
        name: "freebsd",
        at_ms: DOUBLING,
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Ignore,
    },
    // A table of back-offs times 3 s; fails on ICMP by table 1 of the Abacus paper.
    Schedule {
        name: "freebsd-old",
        at_ms: &[0, 3000, 6000, 9000, 12_000, 15_000, 21_000, 33_000, 57_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    // Table 1 of the Abacus paper, with the time-out of its section 6; 93 s follow from doubling.
    Schedule {
        name: "classic",
        at_ms: &[0, 3000, 9000, 21_000, 45_000],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 75_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Fail,
    },
    // RFC 9002: first probe after 3 times the initial RTT of 333 ms. Initial packets instead of SYNs;
    // the end is the stack's handshake or idle time-out, 30 s being common.
    Schedule {
        name: "quic",
        at_ms: &[0, 999, 2997, 6993, 14_985],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 30_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Ignore,
    },
    // Initial RTT of 100 ms; derived, not captured.
    Schedule {
        name: "quic-chromium",
        at_ms: &[0, 300, 900, 2100, 4500],
        stretch_ms: NO_STRETCH,
        gives_up_ms: 30_000,
        on_reset: OnReset::Fail,
        on_icmp: OnIcmp::Ignore,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linux_client_sends_six_syns_by_second_five_the_others_three_the_papers_two() {
        for (name, syns) in [
            ("linux-6.5", 6),
            ("apple", 6),
            ("linux-3.7", 3),
            ("windows", 3),
            ("freebsd", 3),
            ("classic", 2),
        ] {
            let schedule = Schedule::named(name).expect(name);
            assert_eq!(schedule.at_ms.iter().filter(|t| **t <= 5000).count(), syns, "{name}");
        }
    }

    #[test]
    fn tables_rise_and_end_before_the_client_gives_up() {
        for s in SCHEDULES {
            let times: Vec<Nanos> = (0..).map_while(|n| s.at(n)).collect();
            assert_eq!(times.len(), s.at_ms.len());
            assert_eq!(times[0], Nanos::ZERO);
            assert!(times.windows(2).all(|w| w[0] < w[1]), "{}", s.name);
            assert!(times[times.len() - 1] < Nanos::from_millis(u64::from(s.gives_up_ms)));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What went wrong lately and is not over: one sentence a subject, with its age.

use std::collections::BTreeMap;
use tidegate_units::Nanos;

/// A subject whose sentence changes is logged again, at most so often.
const AGAIN_AFTER: Nanos = Nanos::from_secs(10);
/// A warning is over when it was not raised again for so long.
const OVER_AFTER: Nanos = Nanos::from_secs(10);
/// Most warnings at once, without those of [`OWN`]; a new subject is then not taken in.
const WARNINGS_MAX: usize = 128;
/// What concerns the daemon as a whole always finds room.
const OWN: [&str; 24] = [
    "cluster",
    "connections",
    "control socket",
    "counters",
    "counts",
    "daemon",
    "dataplane",
    "flowspec",
    "history",
    "hooks",
    "interfaces",
    "kill switch",
    "lease",
    "limits",
    "log",
    "peers",
    "reload",
    "rules",
    "samples",
    "sources",
    "state",
    "take-over",
    "tick",
    "user",
];
/// The subject that says that others found no room.
const SURPLUS: &str = "warnings";

#[derive(Debug)]
struct Warning {
    since: Nanos,
    last: Nanos,
    times: u64,
    sticky: bool,
    text: String,
    /// What the log says of it, and since when.
    logged: (Nanos, String),
}

/// The words of a sentence: its figures may change without a new matter.
fn words(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| !c.is_ascii_digit())
}

/// The warnings by subject.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    active: BTreeMap<String, Warning>,
}

impl Warnings {
    /// Something is wrong now; it is over when it is not raised again. Logged when it begins, and when it
    /// says something else.
    pub(crate) fn raise(&mut self, now: Nanos, subject: &str, text: impl Into<String>) {
        self.put(now, subject, text.into(), false);
    }

    /// Something stays wrong until [`Self::clear`].
    pub(crate) fn stick(&mut self, now: Nanos, subject: &str, text: impl Into<String>) {
        self.put(now, subject, text.into(), true);
    }

    fn put(&mut self, now: Nanos, subject: &str, text: String, sticky: bool) {
        if let Some(known) = self.active.get_mut(subject) {
            known.last = now;
            known.times += 1;
            known.sticky = sticky;
            if now.since(known.logged.0) >= AGAIN_AFTER && words(&known.logged.1).ne(words(&text)) {
                tracing::warn!(subject, "{text}");
                known.logged = (now, text.clone());
            }
            known.text = text;
        } else if self.has_room(subject) {
            tracing::warn!(subject, "{text}");
            let logged = (now, text.clone());
            let warning = Warning { since: now, last: now, times: 1, sticky, text, logged };
            self.active.insert(subject.to_owned(), warning);
        } else {
            let text = format!("there are more than {WARNINGS_MAX}; left out, last: {subject}");
            self.put(now, SURPLUS, text, false);
        }
    }

    fn has_room(&self, subject: &str) -> bool {
        let own = |subject: &str| subject == SURPLUS || OWN.contains(&subject);
        own(subject) || self.active.keys().filter(|subject| !own(subject)).count() < WARNINGS_MAX
    }

    /// It is over.
    pub(crate) fn clear(&mut self, subject: &str) {
        if self.active.remove(subject).is_some() {
            tracing::info!(subject, "is over");
        }
    }

    /// Forgets those that are over.
    pub(crate) fn expire(&mut self, now: Nanos) {
        self.active.retain(|subject, warning| {
            let lasts = warning.sticky || now.since(warning.last) <= OVER_AFTER;
            if !lasts {
                tracing::info!(subject, "is over");
            }
            lasts
        });
    }

    /// One sentence each.
    pub(crate) fn sentences(&self, now: Nanos) -> Vec<String> {
        let sentence = |(subject, warning): (&String, &Warning)| {
            let age = now.since(warning.since);
            let times = warning.times;
            format!("{subject}: {} (for {age}, {times} times)", warning.text)
        };
        self.active.iter().map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_lasts_while_it_is_raised_and_says_for_how_long() {
        let second = Nanos::from_secs;
        let mut warnings = Warnings::default();
        warnings.raise(second(1), "cpu", "cannot be read");
        warnings.raise(second(5), "cpu", "cannot be read");
        warnings.stick(second(5), "reload", "refused");
        warnings.expire(second(6));
        assert_eq!(
            warnings.sentences(second(6)),
            ["cpu: cannot be read (for 5.00 s, 2 times)", "reload: refused (for 1.00 s, 1 times)"]
        );
        warnings.expire(second(100));
        assert_eq!(warnings.sentences(second(100)).len(), 1, "only what sticks is left");
        warnings.clear("reload");
        assert!(warnings.sentences(second(100)).is_empty());
    }

    /// "not open yet" of the first moment must not hide "Permission denied" of all others; figures alone are
    /// no news, and what alternates does not flood the log.
    #[test]
    fn the_log_hears_when_a_subject_says_something_else() {
        let at = |seconds| Nanos::from_secs(seconds);
        let mut warnings = Warnings::default();
        let logged = |warnings: &Warnings| warnings.active["gateway"].logged.clone();
        warnings.raise(at(1), "gateway", "not open yet");
        warnings.raise(at(2), "gateway", "Permission denied (os error 13)");
        assert_eq!(logged(&warnings), (at(1), "not open yet".into()), "too soon");
        warnings.raise(at(11), "gateway", "Permission denied (os error 13)");
        assert_eq!(logged(&warnings).0, at(11));
        warnings.raise(at(30), "gateway", "Permission denied (os error 1)");
        assert_eq!(logged(&warnings).0, at(11), "only a figure");
        warnings.raise(at(30), "gateway", "in use");
        assert_eq!(logged(&warnings), (at(30), "in use".into()));
    }

    #[test]
    fn subjects_are_bounded() {
        let mut warnings = Warnings::default();
        (0..2 * WARNINGS_MAX).for_each(|i| warnings.raise(Nanos(1), &i.to_string(), "x"));
        let lines = warnings.sentences(Nanos(1));
        assert_eq!(lines.len(), WARNINGS_MAX + 1);
        let last = format!("left out, last: {}", 2 * WARNINGS_MAX - 1);
        assert!(lines.last().is_some_and(|line| line.contains(&last)), "{lines:?}");
    }

    #[test]
    fn what_concerns_the_daemon_finds_room_among_any_number_of_others() {
        let mut warnings = Warnings::default();
        (0..2 * WARNINGS_MAX).for_each(|i| warnings.raise(Nanos(1), &format!("peer {i}"), "x"));
        warnings.raise(Nanos(1), "lease", "cannot be renewed");
        warnings.stick(Nanos(1), "reload", "refused");
        let lines = warnings.sentences(Nanos(1));
        for own in ["lease: ", "reload: "] {
            assert!(lines.iter().any(|line| line.starts_with(own)), "{own}");
        }
    }
}

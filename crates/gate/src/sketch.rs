// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute: a Bloom filter in slices of time (Bloom 1970; in blocks of one
//! cache line: Putze, Sanders, Singler 2007).
//!
//! A slice is 2^33 ns, 8.6 s. Eight of them, the present one included, reach back for 60 to 69 s. A
//! client that was refused is found, whoever else was; another one is found by chance, at 10,000
//! refusals of 10,000 clients per second in 3 of 10,000 questions about 32 services. Hashes are keyed
//! by a seed of the process (SipHash), so that nobody can make himself look like somebody else.

use std::array;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tidegate_units::Nanos;

/// A slice has 2 to the power of this nanoseconds.
const SPAN_BITS: u32 = 33;
/// Slices of which something is known.
const SLICES: u64 = 8;
/// Lines of eight words; with all slices 4 MiB, which are there from the first refusal on.
const LINES: usize = 8192;
/// Words of a line.
const LINE: usize = 8;
/// Bits that are set in each of two words of a line.
const BITS: u32 = 3;

struct Slice {
    /// One more than the number of the span that is in it; 0: none.
    holds: AtomicU64,
    clearing: Mutex<()>,
    words: Box<[AtomicU64]>,
}

impl Default for Slice {
    fn default() -> Self {
        let words = (0..LINES * LINE).map(|_| AtomicU64::new(0)).collect();
        Self { holds: AtomicU64::new(0), clearing: Mutex::new(()), words }
    }
}

impl Slice {
    /// Whether it holds this span now; what it held before is forgotten.
    fn begin(&self, span: u64) -> bool {
        let wanted = span + 1;
        if self.holds.load(Ordering::Acquire) == wanted {
            return true;
        }
        let _one = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.holds.load(Ordering::Acquire) < wanted {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.holds.store(wanted, Ordering::Release);
        }
        // Whoever comes with a time that has passed is too late.
        self.holds.load(Ordering::Acquire) == wanted
    }

    fn has(&self, span: u64, places: &[(usize, u64); 2]) -> bool {
        let bits =
            |(at, bits): &(usize, u64)| self.words[*at].load(Ordering::Relaxed) & bits == *bits;
        self.holds.load(Ordering::Acquire) == span + 1 && places.iter().all(bits)
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Sketch {
    keys: RandomState,
    slices: OnceLock<[Slice; SLICES as usize]>,
}

/// Two words of one line, and the bits in them.
fn places(hash: u64) -> [(usize, u64); 2] {
    let line = hash as usize % LINES * LINE;
    let rest = hash >> 13;
    array::from_fn(|half| {
        // The line takes 13 bits, each half two for its word and six for each of its bits.
        let own = rest >> (20 * half);
        let word = line + half * LINE / 2 + (own & 3) as usize;
        let bits = (0..BITS).fold(0, |bits, n| bits | 1 << (own >> (2 + 6 * n) & 63));
        (word, bits)
    })
}

impl Sketch {
    /// A client was refused by a service.
    pub(crate) fn note<K: Hash>(&self, now: Nanos, key: &K) {
        let slices = self.slices.get_or_init(|| array::from_fn(|_| Slice::default()));
        let span = now.0 >> SPAN_BITS;
        let slice = &slices[(span % SLICES) as usize];
        if slice.begin(span) {
            for (at, bits) in places(self.keys.hash_one(key)) {
                // Most who are refused were refused a moment ago as well.
                if slice.words[at].load(Ordering::Relaxed) & bits != bits {
                    slice.words[at].fetch_or(bits, Ordering::Relaxed);
                }
            }
        }
    }

    /// How long ago it was last refused, at least and at most, if that was within the last minute.
    pub(crate) fn find<K: Hash>(&self, now: Nanos, key: &K) -> Option<(Nanos, Nanos)> {
        let slices = self.slices.get()?;
        let places = places(self.keys.hash_one(key));
        let last = now.0 >> SPAN_BITS;
        let spans = (last.saturating_sub(SLICES - 1)..=last).rev();
        let mut found = spans.filter(|span| slices[(*span % SLICES) as usize].has(*span, &places));
        let span = found.next()?;
        let (begin, end) = (Nanos(span << SPAN_BITS), Nanos((span + 1) << SPAN_BITS));
        Some((now.since(end), now.since(begin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const START: Nanos = Nanos::from_secs(100_000);

    fn client(number: u32) -> (&'static str, Ipv4Addr) {
        ("shop", Ipv4Addr::from(number))
    }

    /// A minute of 10,000 refusals per second, each of another client.
    #[test]
    fn whoever_was_refused_in_the_last_minute_is_found_and_hardly_anyone_else() {
        let sketch = Sketch::default();
        let each = Nanos::SECOND.0 / 10_000;
        // Longer than the slices are, so that each was used before.
        let all = 1_000_000_u32;
        for number in 0..all {
            sketch.note(START + Nanos(u64::from(number) * each), &client(number));
        }
        let now = START + Nanos(u64::from(all) * each);
        for number in all - 600_000..all {
            let ago = now.since(START + Nanos(u64::from(number) * each));
            let found = sketch.find(now, &client(number));
            // It may also look as if it were refused later, by chance.
            assert!(found.is_some_and(|(least, _)| least <= ago), "{number}: {found:?} of {ago}");
        }
        let first = sketch.find(now, &client(all - 600_000));
        assert!(first.is_some_and(|(least, most)| least < most && most < Nanos::from_secs(70)));
        let others = 100_000_u32;
        let wrong =
            (0..others).filter(|n| sketch.find(now, &client(1 << 30 | n)).is_some()).count();
        // So that of 32 services one in a hundred is wrong at most.
        let share = wrong as f64 / f64::from(others);
        assert!(share < 0.01 / 32.0, "{share}");
        let old = (0..200_000).filter(|n| sketch.find(now, &client(*n)).is_some()).count();
        assert!(old < 200, "{old} of those who were refused more than 80 s ago");
    }

    #[test]
    fn after_a_minute_without_refusals_nobody_is_found() {
        let sketch = Sketch::default();
        assert_eq!(sketch.find(START, &client(1)), None, "nothing was noted yet");
        sketch.note(START, &client(1));
        assert_eq!(sketch.find(START + Nanos::from_secs(60), &client(1)).map(|_| ()), Some(()));
        assert_eq!(sketch.find(START + Nanos::from_secs(70), &client(1)), None);
        // Times that come late are no reason to forget what is newer.
        sketch.note(START + Nanos::from_secs(200), &client(2));
        let turn = Nanos((SLICES << SPAN_BITS).wrapping_mul(1));
        sketch.note((START + Nanos::from_secs(200)).since(turn), &client(3));
        assert!(sketch.find(START + Nanos::from_secs(201), &client(2)).is_some());
        assert!(sketch.find(START + Nanos::from_secs(201), &client(3)).is_none());
    }

    #[test]
    fn another_process_has_another_seed() {
        let (a, b) = (Sketch::default(), Sketch::default());
        let same = (0..1000)
            .filter(|n| places(a.keys.hash_one(client(*n))) == places(b.keys.hash_one(client(*n))));
        assert_eq!(same.count(), 0);
    }
}

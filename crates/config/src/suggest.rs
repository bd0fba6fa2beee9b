// SPDX-License-Identifier: Apache-2.0 OR MIT
//! "Did you mean …?"

/// Longest word that is compared, in characters: the work is its square.
const WORD_MAX: usize = 64;

/// The closest of the known words, if it is close: at most a third of its letters differ.
pub(super) fn closest<'a>(word: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    let candidates = known.iter().map(AsRef::as_ref);
    let scored = candidates.map(|k| (distance(word, k), k));
    let (best, name) = scored.min_by_key(|(d, _)| *d)?;
    (best <= (name.chars().count() / 3).max(1)).then_some(name)
}

/// ` (did you mean "x"?)`, or nothing.
pub(super) fn phrase(word: &str, known: &[impl AsRef<str>]) -> String {
    closest(word, known).map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

/// Edits between two words: insert, delete, replace, swap of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let begin = |word: &str| word.to_lowercase().chars().take(WORD_MAX).collect::<String>();
    strsim::osa_distance(&begin(a), &begin(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_found_and_a_stranger_is_not() {
        let known = ["token_bucket", "fresh_first", "abacus"];
        assert_eq!(closest("tokenbucket", &known), Some("token_bucket"));
        assert_eq!(closest("fresh-first", &known), Some("fresh_first"));
        assert_eq!(closest("abcaus", &known), Some("abacus"));
        assert_eq!(closest("leaky", &known), None);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hash by which names and values in requests are compared with those of rules: what
//! http/text_hash.h computes in the kernel. SipHash-1-3 with a key of this boot, and 1 where that
//! is 0, since 0 says "any value" in `struct tg_cookie_test`.

/// The hash of a text; `key` is `tg_settings.key`, whose words 2 and 3 this hash uses.
pub(crate) fn text_hash(key: &[u64; 6], text: &[u8]) -> u64 {
    siphash_1_3([key[2], key[3]], text).max(1)
}

/// Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012; one round a word, three at the
/// end.
fn siphash_1_3([k0, k1]: [u64; 2], text: &[u8]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let words = text.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    // the length modulo 256 is the last byte
    last[7] = text.len() as u8;
    for word in words.map(|word| word.try_into().unwrap_or_default()).chain([last]) {
        let word = u64::from_le_bytes(word);
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *v;
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    *v = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hasher};

    /// The standard library's hasher is SipHash-1-3 with a key of zeros.
    #[test]
    fn without_a_key_it_is_the_standard_librarys() {
        for length in 0..300 {
            let text: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            let mut standard = DefaultHasher::new();
            standard.write(&text);
            assert_eq!(siphash_1_3([0, 0], &text), standard.finish(), "{length} bytes");
        }
    }

    #[test]
    fn two_words_of_the_key_count() {
        for word in 0..6 {
            let mut key = [9; 6];
            key[word] += 1;
            let differs = text_hash(&key, b"gold") != text_hash(&[9; 6], b"gold");
            assert_eq!(differs, (2..4).contains(&word), "word {word}");
        }
    }
}

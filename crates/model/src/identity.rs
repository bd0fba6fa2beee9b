// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tells services apart, through reloads and restarts, wherever they stand in a file.

/// FNV-1a with 64 bits, byte by byte: finds every change of one byte. It is no secret, and guards against
/// accidents only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// With these bytes behind those so far.
    #[must_use]
    pub fn with(self, bytes: impl IntoIterator<Item = u8>) -> Self {
        let add =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(bytes.into_iter().fold(self.0, add))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The name of a service as a number, never 0.
#[must_use]
pub fn service_identity(name: &str) -> u64 {
    Fnv::default().with(name.bytes()).get() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the page of its authors; what was kept under such a number is found again.
    #[test]
    fn the_numbers_are_those_of_fnv_1a() {
        let of = |text: &str| Fnv::default().with(text.bytes()).get();
        assert_eq!(of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(Fnv::default().with(*b"foo").with(*b"bar").get(), of("foobar"));
        assert_eq!(service_identity("a"), of("a") | 1);
    }
}

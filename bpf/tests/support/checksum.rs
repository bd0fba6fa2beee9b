// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Internet checksum (RFC 1071), the slow and obvious way.

/// The ones' complement sum of some bytes, not yet inverted.
fn folded(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of a header whose checksum field is zero.
pub fn of(header: &[u8]) -> u16 {
    !folded(&[header])
}

/// Whether bytes that contain their checksum add up.
pub fn holds(header: &[u8]) -> bool {
    folded(&[header]) == 0xffff
}

/// The checksum of a TCP or UDP segment whose checksum field is zero; addresses of either family.
pub fn transport(src: &[u8], dst: &[u8], proto: u8, segment: &[u8]) -> u16 {
    !pseudo(src, dst, proto, segment)
}

/// Whether a segment that contains its checksum adds up.
pub fn transport_holds(src: &[u8], dst: &[u8], proto: u8, segment: &[u8]) -> bool {
    pseudo(src, dst, proto, segment) == 0xffff
}

fn pseudo(src: &[u8], dst: &[u8], proto: u8, segment: &[u8]) -> u16 {
    let length = (segment.len() as u32).to_be_bytes();
    folded(&[src, dst, &length, &[0, 0, 0, proto], segment])
}

/// An ICMPv4 message with 8 bytes of zeros behind its header.
pub fn icmp(kind: u8, code: u8) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    (bytes[0], bytes[1]) = (kind, code);
    let sum = of(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    /// The example of RFC 1071, section 3.
    #[test]
    fn the_rfc_example_adds_up() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(super::of(&bytes), !0xddf2);
        assert!(super::holds(&[&bytes[..], &[0x22, 0x0d]].concat()));
    }
}

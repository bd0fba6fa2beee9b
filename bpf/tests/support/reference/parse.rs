// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a frame to what is evaluated. Written from the documents (design.md "Parser", reasons.def,
//! RFC 791, 8200, 4302, 9293), not from the C.
//!
//! Where several reasons are true, the first in this order counts: what is cut or wrong on the way
//! to the header that is looked at, from the outside to the inside; length before content.

use tidegate_policy::Reason;

/// Tags that a frame may carry.
const VLAN_TAGS_MAX: usize = 2;
/// IPv6 extension headers that a packet may carry.
const EXTENSIONS_MAX: usize = 8;

/// What the hook needs of a TCP segment. Addresses are 16 bytes; IPv4 is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub sport: u16,
    pub dport: u16,
    pub seq: u32,
    pub flags: u8,
    /// The time stamp that it carries; not looked for behind IPv6 extension headers.
    pub stamp: Option<u32>,
    pub dscp: u8,
    /// Bytes behind the TCP header.
    pub payload: u32,
    pub ipv6: bool,
    /// Where the IP header begins: what stands before it goes back with an answer.
    pub ip_at: usize,
    /// Sent to a group at the link layer.
    pub group: bool,
}

impl Segment {
    /// New work begins with a SYN that contradicts itself in nothing.
    pub fn is_syn(&self) -> bool {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        self.flags & SYN != 0 && self.flags & (FIN | RST | ACK) == 0
    }
}

/// The bytes from here on, and how many of them IP says there are.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    bytes: &'a [u8],
    /// `None` outside of IP.
    announced: Option<usize>,
    /// Whether this is the first of several fragments: then what is missing is in the next one.
    fragment: bool,
}

impl<'a> Cursor<'a> {
    /// The next `n` bytes.
    fn take(&mut self, n: usize) -> Result<&'a [u8], Reason> {
        if self.announced.is_some_and(|announced| announced < n) {
            return Err(if self.fragment { Reason::Fragment } else { Reason::Malformed });
        }
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or(Reason::Truncated)?;
        self.bytes = rest;
        self.announced = self.announced.map(|announced| announced - n);
        Ok(taken)
    }

    fn peek(mut self, n: usize) -> Result<&'a [u8], Reason> {
        self.take(n)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The segment, or the reason why the frame passes without being evaluated.
pub fn parse(frame: &[u8]) -> Result<Segment, Reason> {
    let mut cursor = Cursor { bytes: frame, announced: None, fragment: false };
    let ethernet = cursor.take(14)?;
    let mut ethertype = u16_at(ethernet, 12);
    let mut tags = 0;
    while matches!(ethertype, 0x8100 | 0x88a8) {
        tags += 1;
        if tags > VLAN_TAGS_MAX {
            return Err(Reason::VlanDepth);
        }
        ethertype = u16_at(cursor.take(4)?, 2);
    }
    let mut segment = match ethertype {
        0x0800 => ipv4(cursor)?,
        0x86dd => ipv6(cursor)?,
        _ => return Err(Reason::NotIp),
    };
    segment.ip_at = 14 + 4 * tags;
    segment.group = (ethernet[0] | ethernet[6]) & 1 == 1;
    Ok(segment)
}

/// The length that IP announces; zero stands for what does not fit 16 bits (merged segments).
fn length(announced: u16, there: usize) -> Result<usize, Reason> {
    match usize::from(announced) {
        0 if there > usize::from(u16::MAX) => Ok(there),
        announced if announced > there => Err(Reason::Truncated),
        announced => Ok(announced),
    }
}

fn ipv4(mut cursor: Cursor<'_>) -> Result<Segment, Reason> {
    let header = cursor.peek(20)?;
    let (version, ihl) = (header[0] >> 4, usize::from(header[0] & 15) * 4);
    if version != 4 || ihl < 20 {
        return Err(Reason::Malformed);
    }
    cursor.announced = Some(length(u16_at(header, 2), cursor.bytes.len())?);
    cursor.take(ihl)?;
    if header[9] != 6 {
        return Err(Reason::NotService);
    }
    let field = u16_at(header, 6);
    if field & 0x1fff != 0 {
        return Err(Reason::Fragment);
    }
    cursor.fragment = field & 0x2000 != 0;
    let mut segment = tcp(cursor)?;
    segment.src = mapped(&header[12..16]);
    segment.dst = mapped(&header[16..20]);
    segment.dscp = header[1] >> 2;
    Ok(segment)
}

pub fn mapped(v4: &[u8]) -> [u8; 16] {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(v4);
    address
}

fn ipv6(mut cursor: Cursor<'_>) -> Result<Segment, Reason> {
    let header = cursor.take(40)?;
    if header[0] >> 4 != 6 {
        return Err(Reason::Malformed);
    }
    cursor.announced = Some(length(u16_at(header, 4), cursor.bytes.len())?);
    let mut next = header[6];
    for _ in 0..EXTENSIONS_MAX {
        next = match next {
            43 if cursor.peek(8)?[3] != 0 => return Err(Reason::Extensions),
            0 | 43 | 60 => skip(&mut cursor, |second| (second + 1) * 8)?,
            51 => skip(&mut cursor, |second| (second + 2) * 4)?,
            44 => fragment(&mut cursor)?,
            _ => break,
        };
    }
    match next {
        6 => {}
        // one more than allowed; or one behind which nothing can be read
        0 | 43 | 44 | 51 | 60 | 50 | 59 | 135 | 139 | 140 => return Err(Reason::Extensions),
        _ => return Err(Reason::NotService),
    }
    let mut segment = tcp(cursor)?;
    segment.stamp = segment.stamp.filter(|_| header[6] == 6);
    segment.src = header[8..24].try_into().unwrap();
    segment.dst = header[24..40].try_into().unwrap();
    segment.dscp = (u16_at(header, 0) >> 6 & 0x3f) as u8;
    segment.ipv6 = true;
    Ok(segment)
}

/// Skips an extension header, at least 8 bytes, whose length follows from its second byte.
fn skip(cursor: &mut Cursor<'_>, length: fn(usize) -> usize) -> Result<u8, Reason> {
    let head = cursor.peek(8)?;
    cursor.take(length(usize::from(head[1])))?;
    Ok(head[0])
}

fn fragment(cursor: &mut Cursor<'_>) -> Result<u8, Reason> {
    let head = cursor.take(8)?;
    let field = u16_at(head, 2);
    if field & 0xfff8 != 0 {
        return Err(Reason::Fragment);
    }
    cursor.fragment |= field & 1 != 0;
    Ok(head[0])
}

fn tcp(mut cursor: Cursor<'_>) -> Result<Segment, Reason> {
    let header = cursor.peek(20)?;
    let length = usize::from(header[12] >> 4) * 4;
    if length < 20 {
        return Err(Reason::Malformed);
    }
    let options = &cursor.take(length)?[20..];
    Ok(Segment {
        src: [0; 16],
        dst: [0; 16],
        sport: u16_at(header, 0),
        dport: u16_at(header, 2),
        seq: u32_at(header, 4),
        flags: header[13],
        stamp: stamp(options),
        dscp: 0,
        payload: cursor.announced.unwrap_or(0) as u32,
        ipv6: false,
        ip_at: 0,
        group: false,
    })
}

/// The value of the first time stamps among TCP options (RFC 7323, 3.2).
fn stamp(mut options: &[u8]) -> Option<u32> {
    loop {
        options = match options {
            [] | [0, ..] => return None,
            [1, rest @ ..] => rest,
            [8, 10, rest @ ..] if rest.len() >= 8 => return Some(u32_at(rest, 0)),
            [_, length @ 2..=255, ..] => options.get(usize::from(*length)..)?,
            _ => return None,
        };
    }
}

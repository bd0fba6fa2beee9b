// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server name of a TLS ClientHello, by another hand (RFC 8446, 4.1.2; RFC 6066, 3).

/// Extensions that are looked at (`TG_TLS_EXTENSIONS_MAX`).
const EXTENSIONS_MAX: usize = 64;
/// Bytes of a name (`TG_TLS_NAME_MAX`).
const NAME_MAX: usize = 255;

/// Why there is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoName {
    /// The segment ends before it.
    Split,
    /// There is none, or no hello that we read.
    Tls,
    /// No TLS record of a handshake.
    NotTls,
}

/// One record as far as the segment has it.
struct Record<'a> {
    segment: &'a [u8],
    end: usize,
    at: usize,
}

impl Record<'_> {
    fn byte_at(&self, at: usize) -> Result<u8, NoName> {
        let seen = self.segment.get(at).filter(|_| at < self.end);
        seen.copied().ok_or(if at < self.end { NoName::Split } else { NoName::Tls })
    }

    fn u8(&mut self) -> Result<usize, NoName> {
        self.at += 1;
        self.byte_at(self.at - 1).map(usize::from)
    }

    fn u16(&mut self) -> Result<usize, NoName> {
        Ok(self.u8()? << 8 | self.u8()?)
    }
}

/// The name, in lower case.
pub fn server_name(segment: &[u8]) -> Result<Vec<u8>, NoName> {
    let mut r = Record { segment, end: usize::MAX, at: 0 };
    if r.u8()? != 22 {
        return Err(NoName::NotTls);
    }
    r.at = 3;
    r.end = 5 + r.u16()?;
    if r.byte_at(1)? != 3 || r.byte_at(5)? != 1 {
        return Err(NoName::Tls);
    }
    r.at = 5 + 4 + 2 + 32;
    r.at += r.u8()?; // session id
    r.at += r.u16()?; // ciphers
    r.at += r.u8()?; // compressions
    let extensions = r.u16()?;
    let end = r.at + extensions;
    for _ in 0..EXTENSIONS_MAX {
        if r.at >= end {
            break;
        }
        let kind = r.u16()?;
        if kind == 0 {
            return name(&mut r);
        }
        r.at += r.u16()?;
    }
    Err(NoName::Tls)
}

fn name(r: &mut Record<'_>) -> Result<Vec<u8>, NoName> {
    let (extension, list, kind, bytes) = (r.u16()?, r.u16()?, r.u8()?, r.u16()?);
    if kind != 0 || bytes == 0 || bytes > NAME_MAX || list != bytes + 3 || extension != bytes + 5 {
        return Err(NoName::Tls);
    }
    r.byte_at(r.at + bytes - 1)?;
    let name = &r.segment[r.at..r.at + bytes];
    let usual = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    if !name.iter().all(usual) {
        return Err(NoName::Tls);
    }
    Ok(name.to_ascii_lowercase())
}

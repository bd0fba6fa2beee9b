// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed streams, told by their first bytes.

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Most memory that a file may ask its decoder for, in KiB: what `xz -9` writes needs 65 MiB.
const XZ_MEMORY_MAX_KIB: u32 = 80 << 10;
const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Not at all (or in a way that is not known: its text will be garbage).
    None,
    /// gzip (RFC 1952), also several members in a row.
    Gzip,
    /// xz.
    Xz,
}

/// The text of a stream that may be compressed; decompresses as it is read, in bounded memory.
///
/// # Errors
/// The beginning cannot be read.
pub fn unpacked<'a>(mut reader: impl BufRead + 'a) -> io::Result<(Box<dyn BufRead + 'a>, Packing)> {
    let mut magic = Vec::with_capacity(XZ.len());
    reader.by_ref().take(XZ.len() as u64).read_to_end(&mut magic)?;
    let packing = match magic.as_slice() {
        begin if begin.starts_with(GZIP) => Packing::Gzip,
        begin if begin.starts_with(XZ) => Packing::Xz,
        _ => Packing::None,
    };
    let whole = Cursor::new(magic).chain(reader);
    let text: Box<dyn BufRead + 'a> = match packing {
        Packing::None => Box::new(whole),
        Packing::Gzip => Box::new(BufReader::new(MultiGzDecoder::new(whole))),
        Packing::Xz => {
            let decoder = XzReader::new_mem_limit(whole, true, XZ_MEMORY_MAX_KIB);
            Box::new(BufReader::new(decoder))
        }
    };
    Ok((text, packing))
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed streams, told by their first bytes, and what their text looks like.

use super::Format;
use super::guess::{GUESS_BYTES, guess};
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
/// The first bytes cannot be read.
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

/// What a stream turned out to be.
pub struct Discovered<'a> {
    /// Its text, from the beginning.
    pub text: Box<dyn BufRead + 'a>,
    /// How it was compressed.
    pub packing: Packing,
    /// The format of its lines, when its beginning tells; see [`guess`].
    pub format: Option<Format>,
}

/// Decompresses a stream and guesses its format.
///
/// # Errors
/// The first bytes cannot be read. What comes later, such as a compressed file that is cut off,
/// is met when the text is read.
pub fn discover<'a>(reader: impl BufRead + 'a) -> io::Result<Discovered<'a>> {
    let (mut text, packing) = unpacked(reader)?;
    let mut beginning = Vec::with_capacity(GUESS_BYTES);
    let end = text.by_ref().take(GUESS_BYTES as u64).read_to_end(&mut beginning);
    let format = guess(&beginning);
    let beginning = Cursor::new(beginning);
    let text: Box<dyn BufRead + 'a> = match end {
        Ok(_) => Box::new(beginning.chain(text)),
        // A decoder that failed may not fail again when it is asked again.
        Err(error) => Box::new(beginning.chain(BufReader::new(Broken(Some(error))))),
    };
    Ok(Discovered { text, packing, format })
}

/// A stream that ends with this error.
struct Broken(Option<io::Error>);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

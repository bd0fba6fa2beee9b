// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames over a stream, with bounds in bytes and time.

use crate::frame::{BODY_MAX, Frame, FrameError, HEAD};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// How long a message may take to leave; a peer that does not read is no peer.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Bytes read at once.
const CHUNK: usize = 2048;

/// Why no frame came.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The stream ended.
    Ended,
    /// Bytes that are no frame.
    Wrong(FrameError),
    /// The stream failed.
    Io(io::Error),
}

/// Frames out of a stream. Holds at most one frame and a chunk.
pub(crate) struct Reader<R> {
    stream: R,
    version: u8,
    bytes: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(stream: R, version: u8) -> Self {
        Self { stream, version, bytes: Vec::with_capacity(HEAD + BODY_MAX + CHUNK) }
    }

    /// The next frame and its length. May be cancelled without loss.
    pub(crate) async fn next(&mut self) -> Result<(Frame, usize), Lost> {
        loop {
            let decoded = Frame::decode(self.version, &self.bytes).map_err(Lost::Wrong)?;
            if let Some((frame, length)) = decoded {
                self.bytes.drain(..length);
                return Ok((frame, length));
            }
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk).await.map_err(Lost::Io)? {
                0 => return Err(Lost::Ended),
                n => self.bytes.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

/// Writes all bytes, or fails in time.
pub(crate) async fn write<W: AsyncWrite + Unpin>(stream: &mut W, bytes: &[u8]) -> io::Result<()> {
    let all = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    timeout(WRITE_MAX, all).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Writes a frame of this version.
pub(crate) async fn say<W: AsyncWrite + Unpin>(
    stream: &mut W,
    version: u8,
    frame: &Frame,
) -> io::Result<()> {
    match frame.encode(version) {
        Some(bytes) => write(stream, &bytes).await,
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long")),
    }
}

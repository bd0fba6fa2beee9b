// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session of the protocol of peers, word by word: an attacker says what no peer says.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate_peer::frame::{Frame, VERSION};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long one look for a message may take.
const LOOK: Duration = Duration::from_millis(20);
/// Most bytes that wait for the rest of a message.
const WAITING_MAX: usize = 1 << 16;

/// Both ways of a session.
trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

pub(super) struct Line {
    wire: Box<dyn Wire>,
    waiting: Vec<u8>,
}

impl Line {
    /// To a router, whoever it is.
    pub(super) fn dial(to: SocketAddrV4, config: Arc<ClientConfig>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::V4(to), CONNECT)?;
        prepared(&stream)?;
        let name = ServerName::try_from("router.invalid").map_err(io::Error::other)?;
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self { wire: Box::new(StreamOwned::new(tls, stream)), waiting: Vec::new() })
    }

    /// Of a server that has connected.
    pub(super) fn taken(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        prepared(&stream)?;
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self { wire: Box::new(StreamOwned::new(tls, stream)), waiting: Vec::new() })
    }

    pub(super) fn say(&mut self, frame: &Frame) -> io::Result<()> {
        let bytes = frame.encode(VERSION).ok_or(ErrorKind::InvalidInput)?;
        // The handshake may still need bytes of the other side.
        let mut rest = &bytes[..];
        for _ in 0..100 {
            match self.wire.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
            }
            if rest.is_empty() {
                return self.flush();
            }
        }
        Err(ErrorKind::TimedOut.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.wire.flush() {
            Err(error) if !is_early(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The next message, if one comes while it looks.
    pub(super) fn hear(&mut self) -> io::Result<Option<Frame>> {
        let mut bytes = [0; 4096];
        match self.wire.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) if self.waiting.len() + length <= WAITING_MAX => {
                self.waiting.extend_from_slice(&bytes[..length]);
            }
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(error) if is_early(&error) => {}
            Err(error) => return Err(error),
        }
        match Frame::decode(VERSION, &self.waiting).map_err(io::Error::other)? {
            Some((frame, length)) => {
                self.waiting.drain(..length);
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }
}

fn prepared(stream: &TcpStream) -> io::Result<()> {
    // A listener that does not wait hands that on.
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(CONNECT))
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The blocking client of the control socket.

use crate::protocol::{ApiError, REPLY_BYTES_MAX, Reply, Request, decode_reply, encode_request};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the client waits for the daemon, where nothing else is said.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers on {}; start one with `tidegate run`", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket belongs to root.
    #[error("no permission to use {}; the control socket is root's", path.display())]
    Permission {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The daemon accepted and said nothing in time.
    #[error("the daemon on {} did not answer within {seconds} s", path.display())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        seconds: f64,
    },
    /// The connection broke.
    #[error("the connection to {} broke", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The daemon refused, or was not understood.
    #[error(transparent)]
    Refused(#[from] ApiError),
}

/// A connection to the daemon; requests are answered one after the other.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    timeout: Duration,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`], [`ClientError::Permission`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let wrong = |source: io::Error| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::PermissionDenied => ClientError::Permission { path, source },
                _ => ClientError::NoDaemon { path, source },
            }
        };
        let stream = UnixStream::connect(path).map_err(wrong)?;
        stream.set_read_timeout(Some(timeout)).map_err(wrong)?;
        stream.set_write_timeout(Some(timeout)).map_err(wrong)?;
        Ok(Self { path: path.to_owned(), timeout, stream: BufReader::new(stream) })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// Every [`ClientError`] but those of [`Client::connect`]; after [`ClientError::Silent`] and
    /// [`ClientError::Broken`] the connection is of no more use.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let sent = self.stream.get_mut().write_all(&encode_request(request));
        let answer = self.read_line();
        // A daemon that refuses and closes may be quicker than our writing: its reason counts.
        match (sent, answer) {
            (_, Ok(line)) => match decode_reply(&line)? {
                Reply::Error(error) => Err(error.into()),
                reply => Ok(reply),
            },
            (Err(source), Err(_)) | (Ok(()), Err(source)) => Err(self.broken(source)),
        }
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let limit = REPLY_BYTES_MAX as u64 + 1;
        (&mut self.stream).take(limit).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            return Ok(line);
        }
        let (kind, what) = if line.len() > REPLY_BYTES_MAX {
            (io::ErrorKind::InvalidData, "the reply is too long")
        } else {
            (
                io::ErrorKind::UnexpectedEof,
                "the daemon closed the connection in the middle of a reply",
            )
        };
        Err(io::Error::new(kind, what))
    }

    fn broken(&self, source: io::Error) -> ClientError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                ClientError::Silent { path, seconds: self.timeout.as_secs_f64() }
            }
            _ => ClientError::Broken { path, source },
        }
    }
}

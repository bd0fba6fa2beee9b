// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the server tells those who send: which ladders of thresholds are throttled. By UDP, as in the paper:
//! a message may be lost or overtaken, and the next one says the same again.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};

/// Longest message, in bytes.
const BYTES_MAX: usize = 64;
/// Messages taken by one look.
const MESSAGES_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Told {
    socket: Option<UdpSocket>,
    sequence: u64,
    ladders: Vec<bool>,
}

impl Told {
    /// Listens, if anybody is to be told.
    pub(crate) fn listen(at: Option<SocketAddrV4>) -> io::Result<Self> {
        let socket = at.map(UdpSocket::bind).transpose()?;
        if let Some(socket) = &socket {
            socket.set_nonblocking(true)?;
        }
        Ok(Self { socket, ..Self::default() })
    }

    pub(crate) const fn socket(&self) -> Option<&UdpSocket> {
        self.socket.as_ref()
    }

    /// Whether this ladder is throttled.
    pub(crate) fn throttles(&self, ladder: usize) -> bool {
        self.ladders.get(ladder).copied().unwrap_or(false)
    }

    /// Takes what is there.
    pub(crate) fn receive(&mut self) {
        let mut bytes = [0; BYTES_MAX];
        for _ in 0..MESSAGES_MAX {
            let read = self.socket.as_ref().and_then(|socket| socket.recv(&mut bytes).ok());
            let Some(length) = read else { return };
            self.take(&bytes[..length]);
        }
    }

    /// Takes a message, unless it is none or a later one was here before.
    fn take(&mut self, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let mut words = text.split(' ');
        let sequence = words.next().and_then(|word| word.parse::<u64>().ok());
        let ladders: Option<Vec<bool>> = words
            .map(|word| match word {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })
            .collect();
        if let (Some(sequence), Some(ladders)) = (sequence, ladders)
            && sequence > self.sequence
        {
            (self.sequence, self.ladders) = (sequence, ladders);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what is whole and newer counts.
    #[test]
    fn the_newest_message_counts() {
        let mut told = Told::default();
        assert!(!told.throttles(0));
        told.take(b"3 1 0");
        assert!(told.throttles(0) && !told.throttles(1) && !told.throttles(2));
        for other in [&b"2 0 0"[..], b"3 0 0", b"4 0 2", b"x 0 0", b"", b"5 \xff"] {
            told.take(other);
            assert!(told.throttles(0), "{other:?}");
        }
        told.take(b"4 0 1");
        assert!(!told.throttles(0) && told.throttles(1));
    }

    #[test]
    fn messages_come_by_udp() {
        let mut told = Told::listen("127.0.0.1:0".parse().ok()).unwrap();
        let to = told.socket().unwrap().local_addr().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"1 1", to).unwrap();
        // Loopback delivers before send returns.
        told.receive();
        assert!(told.throttles(0));
    }
}

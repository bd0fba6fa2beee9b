// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every conversation with the kernel by rtnetlink needs: requests, datagrams cut into
//! messages, attributes.

use crate::netns::in_namespace;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::path::Path;

/// Length of `nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// linux/netlink.h
pub(crate) const NLM_F_REQUEST: u16 = 1;
/// With the request: everything.
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_MULTI: u16 = 2;
const RECEIVE_BYTES: usize = 64 * 1024;
/// Most datagrams of one answer.
const DATAGRAMS_MAX: usize = 4096;

/// A socket and its buffer. It keeps working from any thread and without privileges.
pub(crate) struct Route {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Route {
    /// Opens the socket in the namespace at `path` (`None`: the caller's).
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        let socket = in_namespace(path, || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // The kernel fills the answer while it takes the request: receiving never needs to
            // wait. Sending may: for links and qdiscs the kernel takes its rtnl lock, which
            // whoever changes interfaces holds. So nobody asks for what decides nothing.
            socket.set_non_blocking(true)?;
            Ok(socket)
        })?;
        Ok(Self { socket, buffer: vec![0; RECEIVE_BYTES] })
    }

    /// Sends a request and gives each message of the answer, with its type and without its header.
    pub(crate) fn ask(
        &mut self,
        request: &[u8],
        mut take: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.socket.send(request, 0)?;
        for _ in 0..DATAGRAMS_MAX {
            let length = match self.socket.recv(&mut &mut self.buffer[..], 0) {
                Ok(length) => length.min(RECEIVE_BYTES),
                Err(error) => return Err(error),
            };
            match parse(&self.buffer[..length], &mut take) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.drain();
                    return Err(error);
                }
            }
        }
        self.drain();
        Err(io::Error::other("the kernel's answer does not end"))
    }

    /// What is left of an answer must not be taken for the next one.
    fn drain(&mut self) {
        for _ in 0..DATAGRAMS_MAX {
            if self.socket.recv(&mut &mut self.buffer[..], 0).is_err() {
                return;
            }
        }
    }
}

/// Messages of one datagram; true when the answer is complete.
pub(crate) fn parse(mut bytes: &[u8], take: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while bytes.len() >= HEADER {
        let length = u32_at(bytes, 0) as usize;
        let Some(message) = bytes.get(HEADER..length) else { break };
        match u16_at(bytes, 4) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => return Err(error(u32_at(message, 0))),
            kind => take(kind, message),
        }
        if u16_at(bytes, 6) & NLM_F_MULTI == 0 {
            return Ok(true);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The kernel's negative error number.
fn error(code: u32) -> io::Error {
    match code.cast_signed().checked_neg() {
        Some(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
        _ => io::Error::other("the kernel answers without an answer"),
    }
}

/// A request: header, the fixed part of its kind, attributes.
pub(crate) fn request(kind: u16, flags: u16, fixed: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(fixed);
    for (kind, value) in attributes {
        bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = (bytes.len() as u32).to_ne_bytes();
    bytes[0..4].copy_from_slice(&length);
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
    bytes
}

/// Attributes: length and kind of two bytes each, value, padding to four.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(bytes, 0));
        // The two highest bits say "nested" and "network order".
        let kind = u16_at(bytes, 2) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of one attribute.
pub(crate) fn nested(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// Zero where the message is too short, as in all of these.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_neither_a_panic_nor_a_message_beyond_its_bounds() {
        for length in 0..80 {
            for byte in [0_u8, 1, 16, 32, 255] {
                let bytes = vec![byte; length];
                let _ = parse(&bytes, &mut |_, message| assert!(message.len() < length));
                assert!(attributes(&bytes).count() <= length);
            }
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_an_error_with_its_number() {
        let mut message = request(NLMSG_ERROR, 0, &(-19_i32).to_ne_bytes(), &[]);
        let found = parse(&message, &mut |_, _| ()).unwrap_err();
        assert_eq!(found.raw_os_error(), Some(19));
        message[HEADER..].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(parse(&message, &mut |_, _| ()).is_err());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections of a port, by sock_diag.

use crate::netlink::{self, NLM_F_DUMP};
use crate::netns::in_namespace;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Most connections of one dump. What is behind is not looked at: the kernel goes through its table
/// in one order, so two dumps of which both are cut off still show what is new in their beginning.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// Most connections of a dump that is read to its end; a namespace with more tells nothing.
const DUMP_MAX: usize = 1 << 17;
const RECEIVE_BYTES: usize = 32 * 1024;
/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Every state that follows a handshake, as bits of their numbers: ESTABLISHED, FIN_WAIT1,
/// FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const STATES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 11;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) remote_port: u16,
}

/// Whoever can list the connections of the calling process' network namespace.
pub(crate) trait ConnectionSource {
    /// Those whose local port this is, in the kernel's order, at most [`CONNECTIONS_MAX`].
    fn list(&mut self, port: u16) -> io::Result<Vec<Connection>>;
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Diag;

impl ConnectionSource for Diag {
    /// Over a socket of its own each time: a dump that is not read to its end goes with it.
    fn list(&mut self, port: u16) -> io::Result<Vec<Connection>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            dump(&open()?, &request(family, port), CONNECTIONS_MAX, &mut found)?;
        }
        found.truncate(CONNECTIONS_MAX);
        Ok(found)
    }
}

/// The kernel, in another network namespace: over one socket, because the namespace can be entered at
/// the start only.
pub(crate) struct Kept(Socket);

impl Kept {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        in_namespace(Some(path), open).map(Self)
    }
}

impl ConnectionSource for Kept {
    /// Each dump is read to its end, or the next one would be refused; after an error what is left of it is
    /// thrown away.
    fn list(&mut self, port: u16) -> io::Result<Vec<Connection>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let dumped = dump(&self.0, &request(family, port), DUMP_MAX, &mut found);
            if let Err(error) = dumped {
                drain(&self.0);
                return Err(error);
            }
        }
        found.truncate(CONNECTIONS_MAX);
        Ok(found)
    }
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Reads what a socket that does not block still holds, at most a whole dump of [`DUMP_MAX`].
fn drain(socket: &Socket) {
    let mut buffer = vec![0; RECEIVE_BYTES];
    for _ in 0..DUMP_MAX {
        if socket.recv(&mut &mut buffer[..], 0).is_err() {
            return;
        }
    }
}

/// Reads a dump until it ends, or there are `most`.
fn dump(
    socket: &Socket,
    request: &[u8],
    most: usize,
    found: &mut Vec<Connection>,
) -> io::Result<()> {
    socket.send(request, 0)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    while found.len() < most {
        let length = socket.recv(&mut &mut buffer[..], 0)?.min(RECEIVE_BYTES);
        let done = netlink::parse(&buffer[..length], &mut |_, message| {
            found.extend(connection(message));
        })?;
        if done {
            return Ok(());
        }
    }
    if most > CONNECTIONS_MAX { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
}

/// `struct inet_diag_req_v2` (linux/inet_diag.h): family, protocol, extensions, padding, states, and
/// the identity, of which only the local port is given: the kernel skips all others.
fn request(family: u8, port: u16) -> Vec<u8> {
    const SOCKET_ID: usize = 48;
    let mut fixed = vec![family, TCP, 0, 0];
    fixed.extend_from_slice(&STATES.to_ne_bytes());
    fixed.extend_from_slice(&port.to_be_bytes());
    fixed.resize(8 + SOCKET_ID, 0);
    // No cookie (INET_DIAG_NOCOOKIE).
    let cookie = fixed.len() - 8;
    fixed[cookie..].fill(0xff);
    netlink::request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &fixed, &[])
}

/// `struct inet_diag_msg`: family, state, timer, retransmissions, ports, addresses.
fn connection(message: &[u8]) -> Option<Connection> {
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
        match *message.first()? {
            AF_INET => {
                let [a, b, c, d, ..] = bytes;
                Some(Ipv4Addr::new(a, b, c, d).into())
            }
            AF_INET6 => Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()),
            _ => None,
        }
    };
    let port = message.get(6..8)?.try_into().ok()?;
    let (local, remote) = (address(8)?, address(24)?);
    Some(Connection { local, remote, remote_port: u16::from_be_bytes(port) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_of_the_port_are_listed_and_no_others() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let [wanted, other] = [(); 2].map(|()| TcpListener::bind(address).unwrap());
            let connect =
                |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap());
            let held: Vec<_> = (0..3).map(|_| connect(&wanted).unwrap()).collect();
            let _others = connect(&other).unwrap();
            let found = Diag.list(wanted.local_addr().unwrap().port()).unwrap();
            let mut ports: Vec<_> = found.iter().map(|c| c.remote_port).collect();
            let mut expected: Vec<_> =
                held.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
            ports.sort_unstable();
            expected.sort_unstable();
            assert_eq!(ports, expected);
            assert!(found.iter().all(|c| c.local == c.remote && c.remote.is_loopback()));
        }
    }

    #[test]
    fn a_message_that_is_cut_off_is_none() {
        for length in 0..40 {
            assert_eq!(connection(&vec![AF_INET; length]), None);
        }
        assert!(connection(&[AF_INET; 40]).is_some());
        assert_eq!(connection(&[7; 72]), None, "another family");
    }
}

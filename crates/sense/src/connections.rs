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
const RECEIVE_BYTES: usize = 32 * 1024;
/// Most datagrams of an answer that nobody needs which are read at once.
const DRAIN_MAX: usize = 16;
/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// linux/tcp.h: a handshake that the client has not completed, or whose data is waited for (deferred accept).
const SYN_RECV: u8 = 3;
/// That, and every state that follows a handshake, as bits of their numbers: ESTABLISHED, FIN_WAIT1,
/// FIN_WAIT2, TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const STATES: u32 = 1 << SYN_RECV | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 11;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Connection {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) remote_port: u16,
}

/// One line of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) connection: Connection,
    /// The kernel has opened it.
    pub(crate) open: bool,
}

/// Whoever can list the connections of the calling process' network namespace.
pub(crate) trait ConnectionSource {
    /// Those whose local port this is, in the kernel's order, at most [`CONNECTIONS_MAX`]. `WouldBlock`: not at
    /// the moment.
    fn list(&mut self, port: u16) -> io::Result<Vec<Entry>>;
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Diag;

impl ConnectionSource for Diag {
    /// Over a socket of its own each time: a dump that is not read to its end goes with it.
    fn list(&mut self, port: u16) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            dump(&open()?, &request(family, port), &mut found)?;
        }
        found.truncate(CONNECTIONS_MAX);
        Ok(found)
    }
}

/// The kernel, in another network namespace: over one socket, because the namespace can be entered at
/// the start only.
pub(crate) struct Kept {
    socket: Socket,
    /// There may be something left of the last answer.
    unread: bool,
}

impl Kept {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: in_namespace(Some(path), open)?, unread: false })
    }

    /// Reads on in what is left of the last answer. As long as there is something, another dump would be
    /// refused.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        for _ in 0..DRAIN_MAX {
            let Ok(length) = self.socket.recv(&mut &mut buffer[..], 0) else {
                self.unread = false;
                return Ok(());
            };
            if netlink::parse(&buffer[..length.min(RECEIVE_BYTES)], &mut |_, _| ()).unwrap_or(false)
            {
                self.unread = false;
                return Ok(());
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl ConnectionSource for Kept {
    fn list(&mut self, port: u16) -> io::Result<Vec<Entry>> {
        if self.unread {
            self.drain()?;
        }
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            self.unread = true;
            if !dump(&self.socket, &request(family, port), &mut found)? {
                break;
            }
            self.unread = false;
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

/// Reads a dump until it ends (true), or there are [`CONNECTIONS_MAX`].
fn dump(socket: &Socket, request: &[u8], found: &mut Vec<Entry>) -> io::Result<bool> {
    if found.len() >= CONNECTIONS_MAX {
        return Ok(true);
    }
    socket.send(request, 0)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    while found.len() < CONNECTIONS_MAX {
        let received = socket.recv(&mut &mut buffer[..], 0);
        // Who is asked to come back shall do so for one reason only.
        let length = received.map_err(io::Error::other)?.min(RECEIVE_BYTES);
        let done = netlink::parse(&buffer[..length], &mut |_, message| {
            found.extend(entry(message));
        })?;
        if done {
            return Ok(true);
        }
    }
    Ok(false)
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
fn entry(message: &[u8]) -> Option<Entry> {
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
    let connection = Connection { local, remote, remote_port: u16::from_be_bytes(port) };
    Some(Entry { connection, open: *message.get(1)? != SYN_RECV })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    #[test]
    fn connections_of_the_port_are_listed_and_no_others() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let [wanted, other] = [(); 2].map(|()| TcpListener::bind(address).unwrap());
            let connect =
                |listener: &TcpListener| TcpStream::connect(listener.local_addr().unwrap());
            let held: Vec<_> = (0..3).map(|_| connect(&wanted).unwrap()).collect();
            let _others = connect(&other).unwrap();
            let found = Diag.list(wanted.local_addr().unwrap().port()).unwrap();
            let mut ports: Vec<_> = found.iter().map(|of| of.connection.remote_port).collect();
            let mut expected: Vec<_> =
                held.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
            ports.sort_unstable();
            expected.sort_unstable();
            assert_eq!(ports, expected);
            assert!(found.iter().all(|of| of.open && of.connection.remote.is_loopback()));
            assert!(found.iter().all(|of| of.connection.local == of.connection.remote));
        }
    }

    /// Takes connections once they have sent something (TCP_DEFER_ACCEPT), and says at which port.
    const DEFERS: &str = r"
import socket
s = socket.create_server(('127.0.0.1', 0))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
print(s.getsockname()[1], flush=True)
held = []
while True: held.append(s.accept()[0])
";

    #[test]
    fn a_connection_whose_data_is_waited_for_is_listed_and_not_open() {
        use std::io::{BufRead, BufReader, Write};
        let mut server =
            Command::new("python3").args(["-c", DEFERS]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let listed = || Diag.list(port).unwrap().iter().map(|of| of.open).collect::<Vec<_>>();
        assert_eq!(listed(), [false]);
        client.write_all(b"x").unwrap();
        // The loopback device takes it to the other end at once.
        let open = listed();
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(open, [true]);
    }

    #[test]
    fn a_message_that_is_cut_off_is_none() {
        for length in 0..40 {
            assert_eq!(entry(&vec![AF_INET; length]), None);
        }
        assert!(entry(&[AF_INET; 40]).is_some_and(|of| of.open));
        let mut half = [AF_INET; 40];
        half[1] = SYN_RECV;
        assert!(entry(&half).is_some_and(|of| !of.open));
        assert_eq!(entry(&[7; 72]), None, "another family");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listening TCP sockets and their accept queues, by sock_diag.

use crate::netns::in_namespace;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use tidegate_model::Listen;

/// Most listeners of one network namespace that are looked at.
pub const LISTENERS_MAX: usize = 8192;
/// Most messages that one dump may take; each holds at least one listener.
const MESSAGES_MAX: usize = 2 * LISTENERS_MAX;
/// The kernel fills at most this much per receive.
const RECEIVE_BYTES: usize = 32 * 1024;
/// Attribute with the id of the socket's cgroup (linux/inet_diag.h), since Linux 5.7.
const INET_DIAG_CGROUP_ID: u16 = 21;

/// One listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Bound address; unspecified for all, IPv4-mapped ones as IPv4.
    pub address: IpAddr,
    /// Bound port.
    pub port: u16,
    /// Whether an IPv6 socket refuses IPv4.
    pub v6_only: bool,
    /// Connections that wait for `accept`.
    pub queue: u32,
    /// Connections that fit.
    pub limit: u32,
    /// Inode of the socket: what `/proc/PID/fd` shows.
    pub inode: u32,
    /// Id of the cgroup in which it was made, where the kernel tells.
    pub cgroup_id: Option<u64>,
}

impl Listener {
    /// Whether connections to this address can end here, and if so how specifically (higher wins).
    #[must_use]
    pub fn serves(&self, listen: &Listen) -> Option<u8> {
        if self.port != listen.port {
            return None;
        }
        let Some(wanted) = listen.address else { return Some(0) };
        let dual = self.address.is_unspecified() && self.address.is_ipv6() && !self.v6_only;
        let family = self.address.is_ipv4() == wanted.is_ipv4();
        if wanted.is_unspecified() {
            return (family || dual).then_some(0);
        }
        match self.address {
            address if address == wanted => Some(2),
            address if address.is_unspecified() && family => Some(1),
            _ => dual.then_some(0),
        }
    }
}

/// The listeners that serve any of these addresses, each once.
///
/// For an address with several candidates only the most specific ones count, because the kernel
/// gives connections to those: `192.0.2.10:80` before `0.0.0.0:80` before `[::]:80`. Sockets that
/// share one address (SO_REUSEPORT) all count.
pub(crate) fn serving(all: &[Listener], listens: &[Listen], into: &mut Vec<Listener>) {
    into.clear();
    for listen in listens {
        let best = all.iter().filter_map(|listener| listener.serves(listen)).max();
        for listener in all.iter().filter(|l| best.is_some() && l.serves(listen) == best) {
            if !into.iter().any(|known| known.inode == listener.inode) {
                into.push(*listener);
            }
        }
    }
}

/// Whoever can list the listening sockets of a network namespace.
pub trait ListenerSource {
    /// Fills `into` with all listeners (at most [`LISTENERS_MAX`]).
    ///
    /// # Errors
    /// When they cannot be listed at the moment; `into` is then to be ignored.
    fn list(&mut self, into: &mut Vec<Listener>) -> io::Result<()>;
}

/// A netlink socket in the service's network namespace. It keeps working from any thread and
/// without privileges.
pub struct SockDiag {
    socket: Socket,
    buffer: Vec<u8>,
    requests: [Vec<u8>; 2],
}

impl SockDiag {
    /// Opens the socket in the namespace at `path` (`None`: the caller's).
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel has no sock_diag.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let socket = in_namespace(path, || {
            let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // The kernel fills the answer while it takes the request: waiting is never needed,
            // and a tick must not hang.
            socket.set_non_blocking(true)?;
            Ok(socket)
        })?;
        let requests = [request(AF_INET)?, request(AF_INET6)?];
        Ok(Self { socket, buffer: vec![0; RECEIVE_BYTES], requests })
    }

    /// Receives one dump to its end, or throws away what is left of it after an error.
    fn receive(&mut self, into: &mut Vec<Listener>) -> io::Result<()> {
        for _ in 0..MESSAGES_MAX {
            let length = self.socket.recv(&mut &mut self.buffer[..], 0)?;
            if parse(&self.buffer[..length.min(RECEIVE_BYTES)], into)? {
                return Ok(());
            }
        }
        Err(io::Error::other("the dump of listeners does not end"))
    }

    /// Answers of an earlier dump that failed half-way must not be taken for those of the next.
    fn drain(&mut self) {
        for _ in 0..MESSAGES_MAX {
            if self.socket.recv(&mut &mut self.buffer[..], 0).is_err() {
                return;
            }
        }
    }
}

impl ListenerSource for SockDiag {
    fn list(&mut self, into: &mut Vec<Listener>) -> io::Result<()> {
        into.clear();
        for family in 0..self.requests.len() {
            self.socket.send(&self.requests[family], 0)?;
            if let Err(error) = self.receive(into) {
                self.drain();
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A dump of the listening TCP sockets of one family. The state filter lets the kernel skip the
/// table of established connections: its cost does not depend on how many there are.
fn request(family: u8) -> io::Result<Vec<u8>> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::LISTEN,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut message =
        NetlinkMessage::new(header, NetlinkPayload::from(SockDiagMessage::InetRequest(request)));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    Ok(bytes)
}

/// Takes the listeners from one datagram; true when the dump is complete.
fn parse(mut bytes: &[u8], into: &mut Vec<Listener>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(bytes)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response))
                if into.len() < LISTENERS_MAX =>
            {
                into.push(listener(&response));
            }
            _ => {}
        }
        let aligned = (message.header.length as usize).div_ceil(4) * 4;
        bytes = bytes.get(aligned.max(1)..).unwrap_or_default();
    }
    Ok(false)
}

fn listener(response: &InetResponse) -> Listener {
    let mut listener = Listener {
        address: response.header.socket_id.source_address.to_canonical(),
        port: response.header.socket_id.source_port,
        v6_only: false,
        queue: response.header.recv_queue,
        limit: response.header.send_queue,
        inode: response.header.inode,
        cgroup_id: None,
    };
    for nla in &response.nlas {
        match nla {
            Nla::SkV6Only(only) => listener.v6_only = *only,
            Nla::Other(other) => {
                use netlink_packet_core::Nla as _;
                if other.kind() == INET_DIAG_CGROUP_ID && other.value_len() == 8 {
                    let mut value = [0; 8];
                    other.emit_value(&mut value);
                    listener.cgroup_id = Some(u64::from_ne_bytes(value));
                }
            }
            _ => {}
        }
    }
    listener
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn at(address: &str, port: u16, inode: u32) -> Listener {
        Listener {
            address: address.parse().unwrap(),
            port,
            v6_only: false,
            queue: 1,
            limit: 10,
            inode,
            cgroup_id: None,
        }
    }

    fn inodes(all: &[Listener], listens: &[(&str, u16)]) -> Vec<u32> {
        let listens: Vec<Listen> = listens
            .iter()
            .map(|(address, port)| format!("{address}:{port}").parse().unwrap())
            .collect();
        let mut found = Vec::new();
        serving(all, &listens, &mut found);
        found.iter().map(|listener| listener.inode).collect()
    }

    #[test]
    fn the_most_specific_listeners_of_an_address_count_and_each_once() {
        let all = [
            at("192.0.2.10", 80, 1),
            at("192.0.2.10", 80, 2), // SO_REUSEPORT
            at("0.0.0.0", 80, 3),
            at("::", 80, 4),
            at("::", 443, 5),
            Listener { v6_only: true, ..at("::", 8080, 6) },
        ];
        type Row<'a> = (&'a [(&'a str, u16)], &'a [u32]);
        let table: [Row<'_>; 9] = [
            (&[("192.0.2.10", 80)], &[1, 2]),
            (&[("192.0.2.11", 80)], &[3]),
            (&[("[2001:db8::1]", 80)], &[4]),
            (&[("192.0.2.10", 443)], &[5]),
            (&[("192.0.2.10", 8080)], &[]),
            (&[("*", 80)], &[1, 2, 3, 4]),
            (&[("0.0.0.0", 80)], &[1, 2, 3, 4]),
            (&[("[::]", 80)], &[4]),
            (&[("192.0.2.11", 80), ("192.0.2.12", 80), ("*", 443)], &[3, 5]),
        ];
        for (listens, expected) in table {
            assert_eq!(inodes(&all, listens), expected, "{listens:?}");
        }
    }

    #[test]
    fn a_live_listener_shows_its_queue_and_its_limit() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let _waiting: Vec<_> =
            (0..3).map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let mut diag = SockDiag::open(None).unwrap();
        let mut all = Vec::new();
        diag.list(&mut all).unwrap();
        let found = all.iter().find(|listener| listener.port == port).unwrap();
        assert_eq!(found.queue, 3);
        assert!(found.limit > 0 && found.inode > 0);
        assert!(all.iter().all(|l| l.limit > 0 || l.queue == 0), "only listeners are listed");
    }
}

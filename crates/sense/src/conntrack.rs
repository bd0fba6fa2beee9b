// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that this host passes on to another address (DNAT), as to a container without a userland
//! proxy. No socket of this network namespace knows of them. The kernel's connection tracking does: it sends a
//! message for each connection that it lets pass, to who has asked for that while it had the privilege to. A
//! process without privileges can receive these messages, and ask for nothing.
//!
//! Each message costs the kernel some work, whoever the connection is for. So they are asked for only where a
//! service may be passed on, and no more once the hooks have seen a SYN of each such service. What does not fit
//! into the socket's buffer between two ticks is lost: a part is enough.

use crate::addresses::ip;
use crate::connections::{Connection, ConnectionSource};
use crate::inside::Inside;
use crate::netlink::{nested, parse};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use std::io;
use std::net::IpAddr;
use tidegate_units::Nanos;

/// Most messages that are read in a tick.
const MESSAGES_MAX: usize = 1024;
const RECEIVE_BYTES: usize = 8 * 1024;
/// linux/netfilter/nfnetlink_compat.h: connections that are new.
const NF_NETLINK_CONNTRACK_NEW: u32 = 1;
/// NFNL_SUBSYS_CTNETLINK and IPCTNL_MSG_CT_NEW (linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h).
const MESSAGE_NEW: u16 = 1 << 8;
/// Length of `nfgenmsg`.
const NFGENMSG: usize = 4;
/// linux/netfilter/nfnetlink_conntrack.h
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_PROTOINFO: u16 = 4;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const TCP: u8 = 6;
/// linux/netfilter/nf_conntrack_tcp.h: the first packet was a SYN. A connection that the kernel has forgotten
/// begins in another state.
const SYN_SENT: u8 = 1;
/// No room in the buffer: messages were lost.
const ENOBUFS: i32 = 105;

/// A connection, and the port that the client asked for.
type Entry = (u16, Connection);

/// An address and a port.
type End = (IpAddr, u16);

/// What is passed on, and who asks for it.
#[derive(Default)]
pub(crate) struct PassedOn {
    pub(crate) events: Events,
    pub(crate) inside: Inside,
}

impl PassedOn {
    /// At the beginning of each tick. `needed`: the hooks have not seen a SYN of each service yet that may be
    /// passed on.
    pub(crate) fn begin(&mut self, now: Nanos, needed: bool) {
        let wanted = std::mem::take(&mut self.events.wanted);
        self.inside.prepare(now, wanted);
        if needed {
            self.events.read();
        } else {
            self.events = Events::default();
        }
    }
}

/// The kernel's messages.
#[derive(Default)]
pub(crate) struct Events {
    socket: Option<Socket>,
    buffer: Vec<u8>,
    /// What came since the tick before.
    new: Vec<Entry>,
    /// Somebody asked for a port to which something came.
    wanted: bool,
}

impl ConnectionSource for Events {
    /// Those that came since the tick before.
    fn list(&mut self, port: u16) -> io::Result<Vec<Connection>> {
        if self.socket.is_none() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let of_port = self.new.iter().filter(|entry| entry.0 == port);
        let found: Vec<Connection> = of_port.map(|entry| entry.1).collect();
        self.wanted |= !found.is_empty();
        Ok(found)
    }
}

impl Events {
    /// Asks for messages, which needs `CAP_NET_ADMIN`. Whoever has none hears nothing.
    pub(crate) fn open(&mut self) {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.set_non_blocking(true)?;
            socket.bind(&SocketAddr::new(0, NF_NETLINK_CONNTRACK_NEW))?;
            Ok(socket)
        };
        self.socket = open().ok();
        self.buffer = vec![0; RECEIVE_BYTES];
    }

    fn read(&mut self) {
        let Self { socket, buffer, new, .. } = self;
        new.clear();
        let Some(open) = socket else { return };
        for _ in 0..MESSAGES_MAX {
            match open.recv(&mut &mut buffer[..], 0) {
                Ok(length) => {
                    let message = &buffer[..length.min(RECEIVE_BYTES)];
                    // What cannot be read is no evidence.
                    let _ = parse(message, &mut |kind, message| new.extend(entry(kind, message)));
                }
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    *socket = None;
                    return;
                }
            }
        }
    }
}

/// A TCP connection that began with a SYN and is passed on: replies come from elsewhere than the client asked.
fn entry(kind: u16, message: &[u8]) -> Option<Entry> {
    if kind != MESSAGE_NEW {
        return None;
    }
    let attributes = message.get(NFGENMSG..)?;
    let tcp = nested(attributes, CTA_PROTOINFO).and_then(|of| nested(of, CTA_PROTOINFO_TCP));
    let state = tcp.and_then(|of| nested(of, CTA_PROTOINFO_TCP_STATE)).and_then(<[u8]>::first);
    if state.is_some_and(|state| *state != SYN_SENT) {
        return None;
    }
    let ((remote, remote_port), asked) = ends(nested(attributes, CTA_TUPLE_ORIG)?)?;
    let (server, _) = ends(nested(attributes, CTA_TUPLE_REPLY)?)?;
    let (local, port) = asked;
    (server != asked).then_some((port, Connection { local, remote, remote_port }))
}

/// Where packets of one direction come from, and where they go.
fn ends(tuple: &[u8]) -> Option<(End, End)> {
    let (addresses, protocol) = (nested(tuple, CTA_TUPLE_IP)?, nested(tuple, CTA_TUPLE_PROTO)?);
    if nested(protocol, CTA_PROTO_NUM)?.first() != Some(&TCP) {
        return None;
    }
    let end = |v4: u16, v6: u16, port: u16| -> Option<End> {
        let address = nested(addresses, v4).or_else(|| nested(addresses, v6))?;
        let port = nested(protocol, port)?.try_into().ok()?;
        Some((ip(address)?, u16::from_be_bytes(port)))
    };
    let from = end(CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT)?;
    Some((from, end(CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (value.len() + 4) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(kind: u16, from: &str, to: &str, protocol: u8) -> Vec<u8> {
        let end = |end: &str| {
            let end: std::net::SocketAddr = end.parse().unwrap();
            let bytes = match end.ip() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            (bytes, end.port().to_be_bytes())
        };
        let ((from, from_port), (to, to_port)) = (end(from), end(to));
        let (source, destination) = if from.len() == 4 { (1, 2) } else { (3, 4) };
        let addresses = [attribute(source, &from), attribute(destination, &to)].concat();
        let protocol =
            [attribute(1, &[protocol]), attribute(2, &from_port), attribute(3, &to_port)].concat();
        // Nested.
        let inner = [attribute(1 | 0x8000, &addresses), attribute(2 | 0x8000, &protocol)].concat();
        attribute(kind | 0x8000, &inner)
    }

    /// A client asks for one address, and another one replies.
    fn message(asked: &str, server: &str, protocol: u8, state: Option<u8>) -> Vec<u8> {
        let client = if asked.starts_with('[') { "[2001:db8::9]:40000" } else { "192.0.2.9:40000" };
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(tuple(CTA_TUPLE_ORIG, client, asked, protocol));
        bytes.extend(tuple(CTA_TUPLE_REPLY, server, client, protocol));
        if let Some(state) = state {
            let tcp = attribute(1 | 0x8000, &attribute(1, &[state]));
            bytes.extend(attribute(CTA_PROTOINFO | 0x8000, &tcp));
        }
        bytes
    }

    #[test]
    fn what_is_passed_on_after_a_syn_is_an_entry_and_nothing_else_is() {
        let found = |asked, server, protocol, state| {
            entry(MESSAGE_NEW, &message(asked, server, protocol, state))
        };
        let (host, container) = ("192.0.2.1:8080", "172.17.0.2:80");
        let connection = Connection {
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 9].into(),
            remote_port: 40000,
        };
        assert_eq!(found(host, container, TCP, Some(SYN_SENT)), Some((8080, connection)));
        assert_eq!(found(host, container, TCP, None), Some((8080, connection)));
        assert_eq!(
            found(host, "192.0.2.1:80", TCP, None),
            Some((8080, connection)),
            "another port"
        );
        let six = found("[2001:db8::1]:443", "[fd00::2]:8443", TCP, Some(SYN_SENT)).unwrap();
        assert_eq!((six.0, six.1.remote), (443, "2001:db8::9".parse().unwrap()));
        assert_eq!(found(host, host, TCP, Some(SYN_SENT)), None, "not passed on");
        assert_eq!(found(host, container, TCP, Some(3)), None, "it was there before");
        assert_eq!(found(host, container, 17, None), None);
        assert_eq!(entry(MESSAGE_NEW + 1, &message(host, container, TCP, None)), None);
        let whole = message(host, container, TCP, None);
        for length in 0..whole.len() {
            assert_eq!(entry(MESSAGE_NEW, &whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn what_came_is_listed_by_its_port_and_without_a_socket_nothing_is() {
        let mut passed_on = PassedOn::default();
        assert!(passed_on.events.list(8080).is_err());
        passed_on.events.socket = Some(Socket::new(NETLINK_NETFILTER).unwrap());
        let whole = message("192.0.2.1:8080", "172.17.0.2:80", TCP, None);
        passed_on.events.new.extend(entry(MESSAGE_NEW, &whole));
        assert!(passed_on.events.list(80).unwrap().is_empty() && !passed_on.events.wanted);
        assert_eq!(passed_on.events.list(8080).unwrap().len(), 1);
        assert!(passed_on.events.wanted);
        passed_on.begin(Nanos::SECOND, false);
        assert!(passed_on.events.list(8080).is_err(), "nobody needs it any more");
    }
}

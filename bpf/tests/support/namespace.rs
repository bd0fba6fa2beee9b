// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets of `scene`, made by real connections:
//!
//! ```text
//!  client namespace                        server namespace, where the hooks run
//!  c0 198.51.100.7, 2001:db8:c::7 ──────── s0 192.0.2.10, 2001:db8::10
//!     :40001 ─────────────────────────────── :80 established
//!     :40002 ─────────────────────────────── :80 TIME_WAIT
//!     :40004 ──────────────────────────────  :80 FIN_WAIT2, its process gone
//!     :40003 ──SYN──► ◄──SYN-ACK, lost────── :80 request
//!     three that nobody accepts ──────────── :81, a queue for four
//! ```

use super::netns::{Net, inside, says, wait_for, within};
use super::packet::{CLIENT4, CLIENT6, SERVER4, SERVER6};
use super::scene::{
    BACKLOG, BACKLOG_CROWDED, CLOSING, CROWD, ESTABLISHED, PORT, PORT_CROWDED, REQUEST, TIME_WAIT,
    TIME_WAIT_NEXT,
};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::{Child, Stdio};

/// Both namespaces and what is open in them.
pub struct Namespace {
    net: Net,
    listener: OwnedFd,
    open: Vec<OwnedFd>,
    numbered: Vec<Numbered>,
}

impl Namespace {
    /// All sockets of the scene.
    pub fn new() -> Self {
        let mut namespace = Self::listeners();
        let Self { net, listener, open, numbered } = &mut namespace;
        for (from, to) in [(CLIENT4.into(), SERVER4.into()), (CLIENT6.into(), IpAddr::V6(SERVER6))]
        {
            open.extend(established(net, listener, from, to));
            time_wait(net, listener, from, to);
        }
        for (from, to) in [(CLIENT4.into(), SERVER4.into()), (CLIENT6.into(), IpAddr::V6(SERVER6))]
        {
            numbered.push(closing(net, listener, from, to));
        }
        open.push(request(net));
        namespace
    }

    /// The listeners only: they last.
    pub fn listeners() -> Self {
        let net = Net::new();
        net.server_sh(&format!(
            "ip addr add {SERVER4}/32 dev s0; ip addr add {SERVER6}/128 dev s0 nodad; \
             ip route add {CLIENT4} dev s0; ip route add {CLIENT6} dev s0"
        ));
        let client = net.client.display().to_string();
        super::netns::sh(&format!(
            "nsenter --net={client} sh -ec \"ip addr add {CLIENT4}/32 dev c0; \
             ip addr add {CLIENT6}/128 dev c0 nodad; ip route add {SERVER4} dev c0 src {CLIENT4}; \
             ip route add {SERVER6} dev c0 src {CLIENT6}\""
        ));
        net.server_sh("sysctl -qw net.ipv4.tcp_timestamps=0");
        let listener = listen(&net, PORT, BACKLOG);
        let mut open = vec![listen(&net, PORT_CROWDED, BACKLOG_CROWDED)];
        for n in 0..CROWD as u16 {
            open.push(connect(&net, (CLIENT4.into(), 41_000 + n), (SERVER4.into(), PORT_CROWDED)));
        }
        Self { net, listener, open, numbered: Vec::new() }
    }

    /// Runs `work` in the server's namespace; it is given the number of the interface s0.
    pub fn within<T: Send>(&self, work: impl FnOnce(u32) -> T + Send) -> T {
        within(&self.net.server, || {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            work(rustix::net::netdevice::name_to_index(&socket, "s0").unwrap())
        })
    }
}

fn family(addr: IpAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A listener at every address of both families.
fn listen(net: &Net, port: u16, backlog: u32) -> OwnedFd {
    within(&net.server, || {
        let socket = rustix::net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        rustix::net::bind(&socket, &any).unwrap();
        rustix::net::listen(&socket, backlog as i32).unwrap();
        socket
    })
}

fn connect(net: &Net, from: (IpAddr, u16), to: (IpAddr, u16)) -> OwnedFd {
    within(&net.client, || {
        let socket = rustix::net::socket(family(from.0), SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(from)).unwrap();
        rustix::net::connect(&socket, &SocketAddr::from(to)).unwrap();
        socket
    })
}

/// A client that begins with a sequence number of its choice, which only TCP_REPAIR allows.
const NUMBERED: &str = "
import socket, sys
source, port, to, at, number = sys.argv[1:]
REPAIR, QUEUE, SEQUENCE, SEND = 19, 20, 21, 2
s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET)
s.setsockopt(socket.IPPROTO_TCP, REPAIR, 1)
s.setsockopt(socket.IPPROTO_TCP, QUEUE, SEND)
s.setsockopt(socket.IPPROTO_TCP, SEQUENCE, int(number))
s.setsockopt(socket.IPPROTO_TCP, REPAIR, 0)
s.bind((source, int(port)))
s.connect((to, int(at)))
print('connected', flush=True)
sys.stdin.readline()
";

/// See [`NUMBERED`]: after its SYN and FIN, the server expects [`TIME_WAIT_NEXT`].
struct Numbered(Child);

impl Numbered {
    fn connect(net: &Net, from: (IpAddr, u16), to: (IpAddr, u16)) -> Self {
        let child = inside(&net.client, &["python3", "-c", NUMBERED])
            .args([from.0.to_string(), from.1.to_string(), to.0.to_string(), to.1.to_string()])
            .arg(TIME_WAIT_NEXT.wrapping_sub(2).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "connected\n");
        Self(child)
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The server has closed and its process is gone; the client may still send.
fn closing(net: &Net, listener: &OwnedFd, from: IpAddr, to: IpAddr) -> Numbered {
    let before = in_state(net, "fin-wait-2");
    let client = Numbered::connect(net, (from, CLOSING), (to, PORT));
    drop(rustix::net::accept(listener).unwrap());
    wait_for("FIN_WAIT2", || in_state(net, "fin-wait-2") == before + 1);
    client
}

fn established(net: &Net, listener: &OwnedFd, from: IpAddr, to: IpAddr) -> [OwnedFd; 2] {
    let client = connect(net, (from, ESTABLISHED), (to, PORT));
    [client, rustix::net::accept(listener).unwrap()]
}

fn time_wait(net: &Net, listener: &OwnedFd, from: IpAddr, to: IpAddr) {
    let before = in_state(net, "time-wait");
    let client = Numbered::connect(net, (from, TIME_WAIT), (to, PORT));
    drop(rustix::net::accept(listener).unwrap());
    wait_for("the FIN", || in_state(net, "fin-wait-2") == 1);
    drop(client);
    wait_for("TIME_WAIT", || in_state(net, "time-wait") == before + 1);
}

/// The SYN-ACK goes to a wrong station, so that the handshake stays half done.
fn request(net: &Net) -> OwnedFd {
    net.server_sh(&format!(
        "ip neigh replace {CLIENT4} lladdr 02:de:ad:be:ef:00 dev s0 nud permanent"
    ));
    let client = within(&net.client, || {
        let flags = SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((CLIENT4, REQUEST))).unwrap();
        let result = rustix::net::connect(&socket, &SocketAddr::from((SERVER4, PORT)));
        assert_eq!(result, Err(Errno::INPROGRESS));
        socket
    });
    wait_for("the request socket", || in_state(net, "syn-recv") == 1);
    client
}

/// Sockets of the server in a state of ss(8).
fn in_state(net: &Net, state: &str) -> usize {
    says(&net.server, &["ss", "-Htn", "state", state]).lines().count()
}

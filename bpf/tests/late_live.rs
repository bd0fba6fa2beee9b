// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real stack whose accept queue is full: who it had no room for is not in flight, and is told so
//! when the queue is limited.
//!
//! ```text
//!  fillers ─────────────► accept queue, all places but one taken, nobody accepts
//!  crowd: SYN, SYN-ACK … ACK and request ► one is taken, the others are dropped in silence
//! ```

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, Net, one_token, plan, wait_for, within};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use tidegate_bpf::{Dataplane, ServiceParams};
use tidegate_model::totals::Totals;
use tidegate_policy::{Action, Reason, VerdictKind};

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 80);
const MODES: [AttachMode; 2] = [AttachMode::Xdp, AttachMode::Tcx];
/// Places of the accept queue but one: the kernel takes one more than it was told.
const BACKLOG: i32 = 4;
/// Clients that meet one free place.
const CROWD: usize = 4;

/// How the stack remembers handshakes that have not ended: `tcp_syncookies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    RequestSockets = 0,
    Cookies = 2,
}

struct World {
    net: Net,
    _listener: OwnedFd,
    _fillers: Vec<TcpStream>,
    crowd: Vec<TcpStream>,
}

impl World {
    fn new(memory: Memory) -> Self {
        let net = Net::new();
        net.server_sh(&format!("echo {} > /proc/sys/net/ipv4/tcp_syncookies", memory as u8));
        let listener = within(&net.server, || {
            let socket =
                rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::bind(&socket, &SERVER).unwrap();
            rustix::net::listen(&socket, BACKLOG).unwrap();
            socket
        });
        Self { net, _listener: listener, _fillers: Vec::new(), crowd: Vec::new() }
    }

    fn connect(&self) -> TcpStream {
        within(&self.net.client, || {
            let socket =
                rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            // the ACK that ends the handshake waits for the request
            sockopt::set_tcp_quickack(&socket, false).unwrap();
            rustix::net::connect(&socket, &SERVER).unwrap();
            TcpStream::from(socket)
        })
    }

    /// All places but one are taken, and the crowd sends its requests.
    fn press(&mut self) {
        self._fillers = (0..BACKLOG)
            .map(|_| {
                within(&self.net.client, || TcpStream::connect(SocketAddr::V4(SERVER)).unwrap())
            })
            .collect();
        self.crowd = (0..CROWD).map(|_| self.connect()).collect();
        for client in &mut self.crowd {
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
    }

    fn dataplane(&self, mode: AttachMode) -> Dataplane {
        Dataplane::start(&plan(vec![self.net.interface(mode)], Action::Reject)).unwrap()
    }

    /// How many of the crowd have been told that it is over; the others hear nothing.
    fn told(&mut self) -> usize {
        self.crowd.retain(|mut client| {
            client.set_nonblocking(true).unwrap();
            match client.read(&mut [0; 1]).map_err(|error| error.kind()) {
                Err(ErrorKind::ConnectionReset) => false,
                Err(ErrorKind::WouldBlock) => true,
                other => panic!("{other:?}"),
            }
        });
        CROWD - self.crowd.len()
    }
}

fn limited() -> [ServiceParams; 1] {
    [ServiceParams { accept_queue_max_q10: 1024, ..one_token(Action::Reject) }]
}

fn late(dataplane: &Dataplane) -> u64 {
    let counts = dataplane.counts().unwrap();
    let late = counts.iter().filter(|c| c.reason == Reason::Late);
    late.filter(|c| c.verdict == VerdictKind::Reject && !c.shadow).map(|c| c.count).sum()
}

#[test]
fn who_is_dropped_behind_the_handshake_is_not_in_flight_and_is_told() {
    for (mode, memory) in MODES.iter().zip([Memory::RequestSockets, Memory::Cookies]) {
        let mut world = World::new(memory);
        let mut dataplane = world.dataplane(*mode);
        world.press();
        let totals = || dataplane.totals(0).unwrap();
        wait_for("all have asked", || totals().connections.asked == CROWD as u64);
        wait_for("one was taken", || totals().waiting == 1);
        let before = totals();
        assert_eq!(world.told(), 0, "without a limit they wait");
        dataplane.set_limits(&limited(), &[], 2).unwrap();
        wait_for("they are told", || world.told() == CROWD - 1);
        assert_eq!(late(&dataplane), CROWD as u64 - 1, "{mode:?}, {memory:?}");
        let now = dataplane.totals(0).unwrap();
        assert_eq!((now.waiting, now.connections.lost), (1, 0), "{mode:?}, {memory:?}");
        assert_eq!(now.offered, before.offered, "it is no new work");
    }
}

#[test]
fn who_came_before_the_daemon_is_known_by_the_cookie() {
    for mode in MODES {
        let mut world = World::new(Memory::Cookies);
        world.press();
        let mut dataplane = world.dataplane(mode);
        dataplane.set_limits(&limited(), &[], 2).unwrap();
        wait_for("they are told", || world.told() == CROWD - 1);
        assert_eq!(late(&dataplane), CROWD as u64 - 1, "{mode:?}");
    }
}

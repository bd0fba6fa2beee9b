// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients for whose connections the server's stack had no room: what they send, and what is said to
//! it.

use super::connection::{give, handshake};
use super::engine::Arrival;
use super::native::{How, NOW, Native, Ran};
use super::packet::{CLIENT4, CLIENT6, PSH, Packet, SERVER4, SERVER6, eth};
use super::reference::Socket;
use super::setup::{SECOND, Setup, base};
use tidegate_policy::Action;

const MS: u64 = SECOND / 1000;
const PORT: u16 = 40_000;
/// What the server's SYN-ACK acknowledges, and began with.
const ISN: u32 = 500;
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
/// A client sends its request again after so many ms, as Linux does.
pub const AGAIN_MS: [u64; 5] = [200, 600, 1_400, 3_000, 6_200];
/// The first of them that is late.
pub const LATE: usize = 2;
/// A listener with a full queue.
pub const FULL: Socket = Socket::Listener { length: 8, limit: 8 };

/// One whose accept queue is limited.
pub fn limited() -> Setup {
    base().accept_queue_max(1024)
}

/// The same, and who is refused is told.
pub fn rejecting() -> Setup {
    limited().each(|service| service.action = Action::Reject)
}

fn request(seq: u32) -> Packet {
    eth().ipv4().tcp(PORT, 80).flags(PSH).seq(seq).ack(ISN + 1).data(GET)
}

/// What becomes of a packet.
pub fn run(native: &mut Native, packet: &Packet, (socket, how): (Socket, How)) -> Ran {
    let frame = packet.bytes();
    native.run(&Arrival { frame: &frame, socket, loopback: false }, how)
}

/// The connection of a client that has sent its request at [`NOW`], and hears nothing.
pub fn crowded_out(native: &mut Native, setup: &Setup) -> Ran {
    native.set(setup);
    for (frame, egress) in &handshake(PORT) {
        give(native, (frame, *egress), How::default());
    }
    run(native, &request(1), (FULL, How::default()))
}

/// It sends its request again, for the n-th time.
pub fn again(native: &mut Native, n: usize, how: How) -> Ran {
    native.advance_to(NOW + AGAIN_MS[n] * MS);
    anew(native, how)
}

/// It sends its request again, now.
pub fn anew(native: &mut Native, how: How) -> Ran {
    run(native, &request(1), (FULL, how))
}

/// All that it sends up to the n-th time; what became of the last.
pub fn until(native: &mut Native, setup: &Setup, (n, how): (usize, How)) -> Ran {
    crowded_out(native, setup);
    (0..n).for_each(|n| drop(again(native, n, How::default())));
    again(native, n, how)
}

/// The same, and the stack has this for the connection.
pub fn until_with(native: &mut Native, setup: &Setup, socket: Socket) -> Ran {
    until(native, setup, (LATE - 1, How::default()));
    native.advance_to(NOW + AGAIN_MS[LATE] * MS);
    run(native, &request(1), (socket, How::default()))
}

/// Something else than its request, `after_ms` its first one; the stack has this for it.
pub fn other(native: &mut Native, after_ms: u64, flags: u8, socket: Socket) -> Ran {
    native.advance_to(NOW + after_ms * MS);
    let packet = eth().ipv4().tcp(PORT, 80).flags(flags).seq(1 + GET.len() as u32).ack(ISN + 1);
    run(native, &packet, (socket, How::default()))
}

/// A SYN, and the same a second later; what became of that. `replied`: the server replied to the
/// first, and acknowledged so many bytes of it.
pub fn copy(native: &mut Native, setup: &Setup, replied: bool) -> Ran {
    let [(syn, _), (syn_ack, _), _] = handshake(PORT);
    let free = Socket::Listener { length: 0, limit: 8 };
    native.set(setup);
    let arrival = Arrival { frame: &syn, socket: free, loopback: false };
    native.run(&arrival, How::default());
    if replied {
        give(native, (&syn_ack, true), How::default());
    }
    native.advance_to(NOW + SECOND);
    native.run(&arrival, How::default())
}

/// A client with data in its SYN, of which the server acknowledges so many bytes.
pub fn fast_open(native: &mut Native, setup: &Setup, taken: u32) -> Ran {
    native.set(setup);
    let syn = eth().ipv4().tcp(PORT, 80).syn().seq(0).data(GET);
    let server = eth().ipv4().from4(SERVER4.octets()).to4(CLIENT4.octets());
    let syn_ack = server.tcp(80, PORT).syn().seq(ISN).ack(1 + taken);
    run(native, &syn, (Socket::Listener { length: 0, limit: 8 }, How::default()));
    give(native, (&syn_ack.bytes(), true), How::default());
    let ack = eth().ipv4().tcp(PORT, 80).seq(1 + taken).ack(ISN + 1);
    run(native, &ack, (FULL, How::default()))
}

/// Bytes of a request.
pub const ASKED: u32 = GET.len() as u32;

/// The server's stack acknowledges the request.
pub fn taken(native: &mut Native) -> Ran {
    let server = eth().ipv4().from4(SERVER4.octets()).to4(CLIENT4.octets());
    let ack = server.tcp(80, PORT).seq(ISN + 1).ack(1 + GET.len() as u32);
    give(native, (&ack.bytes(), true), How::default())
}

/// More than was sent before.
pub fn more(native: &mut Native, after_ms: u64) -> Ran {
    native.advance_to(NOW + after_ms * MS);
    run(native, &request(1 + GET.len() as u32), (FULL, How::default()))
}

/// The request of a connection that began before anybody looked, whose handshake the stack knows by
/// a cookie. `change` says what else its headers are.
pub fn unknown(
    native: &mut Native,
    (setup, ipv6): (&Setup, bool),
    (socket, how): (Socket, How),
    change: impl FnOnce(Packet) -> Packet,
) -> Ran {
    let mapped = |address: std::net::Ipv4Addr| {
        let mut bytes = [0; 16];
        bytes[12..].copy_from_slice(&address.octets());
        bytes
    };
    let (addresses, packet) = if ipv6 {
        ([CLIENT6.octets(), SERVER6.octets()], eth().ipv6().tcp(PORT, 80))
    } else {
        ([mapped(CLIENT4), mapped(SERVER4)], eth().ipv4().tcp(PORT, 80))
    };
    native.set(setup);
    native.cookie(addresses, [PORT, 80], [1, ISN + 1]);
    run(native, &change(packet.flags(PSH).seq(1).ack(ISN + 1)).data(GET), (socket, how))
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host in which all cases play: which sockets there are. `namespace` makes them for real.

use super::packet::{CLIENT4, CLIENT6, SEQ, SERVER4, SERVER6};
use super::reference::parse::{mapped, parse};
use super::reference::{Socket, TimeWait};

/// Listens on every address, nobody waits.
pub const PORT: u16 = 80;
/// Listens on every address, three of four places taken.
pub const PORT_CROWDED: u16 = 81;
/// The client's ports with a connection to [`PORT`] in each state.
pub const ESTABLISHED: u16 = 40001;
pub const TIME_WAIT: u16 = 40002;
pub const REQUEST: u16 = 40003;
/// In TIME_WAIT by name only: the client may still send (FIN_WAIT2).
pub const CLOSING: u16 = 40004;
/// Length of the queue at [`PORT`].
pub const BACKLOG: u32 = 128;
/// Length of the queue at [`PORT_CROWDED`], and how many wait in it.
pub const BACKLOG_CROWDED: u32 = 4;
pub const CROWD: u32 = 3;

/// The sequence number that the sockets in TIME_WAIT expect. They carry no time stamps.
pub const TIME_WAIT_NEXT: u32 = SEQ;

/// The socket that a frame meets where there are only the listeners.
pub fn listener(frame: &[u8]) -> Socket {
    match parse(frame).map(|segment| segment.dport) {
        Ok(PORT) => Socket::Listener { length: 0, limit: BACKLOG },
        Ok(PORT_CROWDED) => Socket::Listener { length: CROWD, limit: BACKLOG_CROWDED },
        _ => Socket::Nothing,
    }
}

/// The socket that a frame meets.
pub fn socket(frame: &[u8]) -> Socket {
    let Ok(segment) = parse(frame) else { return Socket::Nothing };
    let ours = [
        (mapped(&CLIENT4.octets()), mapped(&SERVER4.octets())),
        (CLIENT6.octets(), SERVER6.octets()),
    ];
    let known = ours.contains(&(segment.src, segment.dst));
    match (segment.dport, segment.sport) {
        (PORT, ESTABLISHED) if known => Socket::Established,
        (PORT, TIME_WAIT) if known => Socket::TimeWait(waits(false)),
        (PORT, CLOSING) if known => Socket::TimeWait(waits(true)),
        (PORT, REQUEST) if known => Socket::Request,
        _ => listener(frame),
    }
}

fn waits(closing: bool) -> TimeWait {
    TimeWait { next: TIME_WAIT_NEXT, stamp: None, closing, listener: Some((0, BACKLOG)) }
}

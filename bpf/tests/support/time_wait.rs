// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNs that reuse a tuple in TIME_WAIT: which of them the stack takes for a new connection (Linux,
//! `tcp_timewait_state_process`), as a table that a person can check.

use super::engine::Arrival;
use super::native::{How, Native, Ran};
use super::packet::{DEST_OPTIONS, Packet, eth};
use super::reference::{Action, Socket, TimeWait};
use super::setup::{base, rejecting};

const NEXT: u32 = 1000;
const LAST: u32 = 5000;

/// What is in TIME_WAIT, a SYN's number and time stamp, and whether it opens a connection.
pub type Row = (&'static str, Option<u32>, bool, u32, Option<u32>, bool);

/// The socket expects [`NEXT`]; its last stamp, and whether it is in FIN_WAIT2, stand in the row.
pub const ROWS: [Row; 20] = [
    ("the number that is expected", None, false, NEXT, None, false),
    ("the one behind it", None, false, NEXT + 1, None, true),
    ("the one before it", None, false, NEXT - 1, None, false),
    ("half of the numbers ahead", None, false, NEXT + (1 << 31), None, true),
    ("one more", None, false, NEXT + (1 << 31) + 1, None, false),
    ("stamped, where the connection was not", None, false, NEXT, Some(LAST), false),
    ("the same, behind", None, false, NEXT + 1, Some(0), true),
    ("a newer stamp, the same number", Some(LAST), false, NEXT, Some(LAST + 1), true),
    ("a newer stamp, an older number", Some(LAST), false, NEXT - 9, Some(LAST + 1), true),
    ("a newer stamp by half", Some(LAST), false, NEXT, Some(LAST + (1 << 31)), true),
    ("the same stamp, the same number", Some(LAST), false, NEXT, Some(LAST), false),
    ("the same stamp, behind", Some(LAST), false, NEXT + 1, Some(LAST), true),
    ("an older stamp, behind", Some(LAST), false, NEXT + 1, Some(LAST - 1), false),
    (
        "an older stamp by less than half",
        Some(LAST),
        false,
        NEXT + 1,
        Some(LAST + (1 << 31) + 1),
        false,
    ),
    ("no stamp, behind", Some(LAST), false, NEXT + 1, None, true),
    ("no stamp, the same number", Some(LAST), false, NEXT, None, false),
    ("the last stamp was zero, an older one", Some(0), false, NEXT + 1, Some(u32::MAX), true),
    ("the same with an old number", Some(0), false, NEXT - 1, Some(u32::MAX), false),
    ("FIN_WAIT2, behind", None, true, NEXT + 1, None, false),
    ("FIN_WAIT2, a newer stamp", Some(LAST), true, NEXT + 1, Some(LAST + 1), false),
];

/// Options of a SYN with the number that is expected, to a socket whose last stamp was [`LAST`]: it opens
/// a connection only by a newer stamp, if one is found.
pub const OPTIONS: [(&str, &[u8], bool); 9] = [
    ("a stamp at once", &[8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0, 1, 1], true),
    ("behind others", &[1, 3, 3, 7, 1, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0, 0], true),
    ("behind the end", &[0, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0, 0], false),
    ("behind an option without a length", &[2, 1, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0], false),
    ("behind an option of no length", &[2, 0, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0], false),
    ("of a wrong length", &[8, 9, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0], false),
    ("cut", &[1, 1, 8, 10, 0, 0, 0x20, 0], false),
    ("within another", &[254, 12, 8, 10, 0, 0, 0x20, 0, 0, 0, 0, 0], false),
    ("none", &[], false),
];

/// The frame of a row of [`OPTIONS`], and its socket.
pub fn with_options(options: &[u8]) -> (Vec<u8>, Socket) {
    let syn = eth().ipv4().tcp(40_000, 80).syn().seq(NEXT).options(options);
    let waits = TimeWait { next: NEXT, stamp: Some(LAST), closing: false, listener: None };
    (syn.bytes(), Socket::TimeWait(waits))
}

/// A newer stamp behind an IPv6 extension header, where none is looked for.
pub fn behind_an_extension() -> (Vec<u8>, Socket) {
    let packet = eth().ipv6().ext_with(DEST_OPTIONS, &[0; 6]);
    let waits = TimeWait { next: NEXT, stamp: Some(LAST), closing: false, listener: None };
    (syn_from(packet, 40_000, (NEXT, Some(LAST + 1))).bytes(), Socket::TimeWait(waits))
}

/// The SYN of a row: the stamp stands behind other options, as Linux sends it.
pub fn syn_from(packet: Packet, port: u16, (seq, stamp): (u32, Option<u32>)) -> Packet {
    let mut options = vec![2, 4, 5, 180, 4, 2];
    if let Some(stamp) = stamp {
        options.extend([8, 10]);
        options.extend(stamp.to_be_bytes());
        options.extend([0; 4]);
    } else {
        options.extend([1, 0]);
    }
    packet.tcp(port, 80).syn().seq(seq).options(&options)
}

/// The socket of a row.
pub fn socket(&(_, stamp, closing, ..): &Row) -> Socket {
    Socket::TimeWait(TimeWait { next: NEXT, stamp, closing, listener: Some((0, 128)) })
}

/// The frame of a row in each family.
pub fn frames(&(.., seq, stamp, _): &Row) -> [Vec<u8>; 2] {
    [eth().ipv4(), eth().ipv6()].map(|packet| syn_from(packet, 40_000, (seq, stamp)).bytes())
}

/// Whether a SYN that reuses a tuple is refused where nothing but the accept queue behind it is full.
pub fn full_queue_refuses(native: &mut Native) -> bool {
    native.set(&base().accept_queue_max(512));
    let listener = Some((128, 128));
    let waits = TimeWait { next: NEXT, stamp: None, closing: false, listener };
    let frame = syn_from(eth().ipv4(), 40_000, (NEXT + 1, None)).bytes();
    let arrival = Arrival { frame: &frame, socket: Socket::TimeWait(waits), loopback: false };
    native.run(&arrival, How::default()).seen.unwrap().action != Action::Pass
}

/// Gives the hook a frame that meets a socket, where nothing is admitted.
pub fn run(native: &mut Native, (frame, socket): (&[u8], Socket), how: How) -> Ran {
    native.set(&rejecting());
    native.run(&Arrival { frame, socket, loopback: false }, how)
}

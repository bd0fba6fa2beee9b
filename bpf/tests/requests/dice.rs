// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations at random.

use super::support::packet::{ACK, FIN, RST, SYN};
use super::support::random::Dice;
use super::support::talk::{Segment, Talk};

/// What either side may say, sensible or not.
const CLIENT_SAYS: [&str; 11] = [
    "",
    "GET /busy HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /close HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /close HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody",
    "POST /close HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "HEAD /close HTTP/1.1\r\nHost: a\r\n\r\n",
    "cde\r\n0\r\n\r\n",
    "body2",
    "GET /a;b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /bu",
    "\x16\x03\x01",
];
const SERVER_SAYS: [&str; 8] = [
    "",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc",
    "\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nabc",
    "abcdef",
];

/// One packet at random: mostly the next of its side, sometimes from somewhere near.
pub(crate) fn throw(talk: &mut Talk<'_>, dice: &mut Dice) {
    if dice.one_in(8) {
        talk.wait(1);
    }
    let client = !dice.one_in(3);
    let data = *dice.pick(if client { &CLIENT_SAYS[..] } else { &SERVER_SAYS[..] });
    let odd = dice.one_in(16);
    let flags = if odd { *dice.pick(&[ACK | FIN, ACK | RST, SYN, SYN | ACK]) } else { ACK };
    let off = if dice.one_in(12) { dice.below(40) as u32 } else { 0 };
    let back = if dice.one_in(12) { dice.below(40) as u32 } else { 0 };
    let side = if client {
        talk.client_segment(flags, data.as_bytes())
    } else {
        talk.server_segment(flags, data.as_bytes())
    };
    let segment = Segment { seq: side.seq + off - back, ack: side.ack - back, ..side };
    if off == 0 && back == 0 {
        let length = data.len() as u32 + u32::from(flags & (FIN | SYN) != 0);
        if client { talk.client += length } else { talk.server += length }
    }
    if client {
        talk.client_says(segment)
    } else {
        talk.server_says(segment)
    };
}

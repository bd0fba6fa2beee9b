// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One input of a fuzzer: a set-up, how the frame arrives, the frame; the native hook and the
//! reference must agree. Shared by fuzz/ and the ordinary tests.

use super::engine::{Arrival, Seen};
use super::native::{Answering, How, Mode, Native};
use super::random::Dice;
use super::reference::{Scene, decide};
use super::scene;
use super::setup::Heartbeat;
use super::setups::setup;

/// Bytes before the frame: two choose the set-up, one the ways, two are dice.
pub const HEAD: usize = 5;
/// Longest frame that is tried.
const FRAME_MAX: usize = 4096;

/// Panics if they do not agree.
pub fn differential(native: &mut Native, data: &[u8]) {
    let Some((head, frame)) = data.split_at_checked(HEAD) else { return };
    if frame.len() > FRAME_MAX {
        return;
    }
    let mut setup =
        setup(&mut Dice::new(u64::from_le_bytes([head[0], head[1], 0, 0, 0, 0, 0, 0])), true);
    if let Heartbeat::Ago(ns) = &mut setup.heartbeat {
        // a lease relaxes evenly: what its last bits are is tested elsewhere
        *ns = *ns / 3_000_000_000 * 3_000_000_000;
    }
    let (loopback, never) = (head[2] & 1 != 0, head[2] & 2 != 0);
    let dice = u16::from_le_bytes([head[3], head[4]]);
    let arrival = Arrival { frame, socket: scene::listener(frame), loopback };
    let scene = Scene { setup: &setup, socket: arrival.socket, loopback, can_answer: !never, dice };
    let expected = Seen::from(decide(frame, &scene));
    let answering = if never { Answering::Never } else { Answering::Transmit };
    native.set_mode(&setup, Mode { answering, ..Mode::default() });
    let ran = native.run(&arrival, How { dice: [0, dice.into()], ..How::default() });
    assert_eq!(ran.seen, Ok(expected), "{}: {setup}", super::decode::describe(frame));
    assert_eq!(ran.counted, 1);
}

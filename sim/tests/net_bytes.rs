// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same seed gives the same packets, however it was compiled: `cargo xtask test` runs this once more
//! as a release build.

#[path = "net/crowd.rs"]
mod crowd;

#[test]
fn a_flash_crowd_repeats_itself_to_the_packet() {
    let out = crowd::run(80, 7).expect("sound");
    let link = out.link;
    let packets = [out.net.events, out.net.sent, link.delivered.packets, link.overflowed.packets];
    assert_eq!(packets, [323_704, 105_953, 23_615, 35_032]);
    assert_eq!([out.clients, out.served, out.refused, out.syns], [5_980, 2_784, 0, 13_104]);
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A proxy that gives a question up does not let its request in: it is not in flight, whatever the gate had answered.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod listening;

use listening::{Listening, wait_for};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tidegate_model::totals::ServiceTotals;

const QUESTION: &[u8] =
    b"GET / HTTP/1.1\r\nHost: gate\r\nX-Tidegate-Method: GET\r\nX-Tidegate-Uri: /\r\n\r\n";

fn read_answer(stream: &mut UnixStream) {
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 204 "), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn what_nobody_has_read_is_not_in_flight() {
    let world = Listening::new();
    let totals = || -> ServiceTotals { world.gate.totals(0).unwrap() };
    let admitted = |wanted: u64| {
        wait_for("it is admitted", || (totals().admitted == wanted).then_some(()));
    };

    // One answer is read and one is not.
    let mut gives_up = world.connect();
    gives_up.write_all(QUESTION).unwrap();
    read_answer(&mut gives_up);
    gives_up.write_all(QUESTION).unwrap();
    admitted(2);
    assert_eq!((totals().waiting, totals().unseen), (2, 0));
    let mut first = [0];
    gives_up.read_exact(&mut first).unwrap();
    drop(gives_up);
    wait_for("it is withdrawn", || (totals().unseen == 1).then_some(()));
    assert_eq!(totals().waiting, 1, "the one that was read is there");

    // Whoever has read all closes as well.
    let mut reads = world.connect();
    reads.write_all(QUESTION).unwrap();
    read_answer(&mut reads);
    drop(reads);
    let mut next = world.connect();
    next.write_all(QUESTION).unwrap();
    read_answer(&mut next);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((totals().admitted, totals().waiting, totals().unseen), (4, 3, 1));
}

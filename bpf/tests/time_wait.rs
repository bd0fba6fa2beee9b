// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SYNs that reuse a tuple in TIME_WAIT are new connections where the stack opens one: by the table
//! of support/time_wait.rs in the native build and by the reference, with the stack's own sockets
//! and time stamps, and as a whole: one address that comes again and again.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use support::engine::{Hook, Seen};
use support::native::{How, NOW, Native, Program};
use support::netns::{AttachMode, Net, inside, one_token, plan, says, within};
use support::object::require_root;
use support::packet::{Packet, eth};
use support::reference::{Action, Counted};
use support::setup::{SECOND, rejecting};
use support::time_wait::{self, ROWS};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
use tidegate_bpf::{Dataplane, ServiceParams};
use tidegate_model::totals::Totals;
use tidegate_policy::{Action as Refusal, BucketSpec, Params, Reason};
use tidegate_units::{Clock, MonotonicClock, Rate};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

#[test]
fn native_build_and_reference_say_what_the_table_says() {
    for hook in Hook::ALL {
        let mut native = Native::start(Program::Ingress(hook));
        for row in &ROWS {
            let socket = time_wait::socket(row);
            for frame in time_wait::frames(row) {
                let seen = time_wait::run(&mut native, (&frame, socket), How::default()).seen;
                let seen = seen.unwrap();
                let arrival = support::engine::Arrival { frame: &frame, socket, loopback: false };
                assert_eq!(seen, Seen::expected(&rejecting(), &arrival), "{hook:?}: {}", row.0);
                assert_eq!(seen.action != Action::Pass, row.5, "{hook:?}: {}", row.0);
            }
        }
        for (about, options, taken) in time_wait::OPTIONS {
            let (frame, socket) = time_wait::with_options(options);
            let seen = time_wait::run(&mut native, (&frame, socket), How::default()).seen.unwrap();
            let arrival = support::engine::Arrival { frame: &frame, socket, loopback: false };
            assert_eq!(seen, Seen::expected(&rejecting(), &arrival), "{hook:?}: {about}");
            assert_eq!(seen.action != Action::Pass, taken, "{hook:?}: {about}");
        }
        assert!(time_wait::full_queue_refuses(&mut native), "{hook:?}");
        let (frame, socket) = time_wait::behind_an_extension();
        let seen = time_wait::run(&mut native, (&frame, socket), How::default()).seen.unwrap();
        assert_eq!(seen.counted, Counted::Passed(Reason::SocketTimeWait), "{hook:?}");
        native.finish();
    }
}

/// A copy of a SYN that was admitted passes while its note is there; one that the stack did not
/// take left no note by which a later copy could pass.
#[test]
fn copies_of_what_was_admitted_pass_and_of_what_was_not_taken_do_not() {
    let mut native = Native::start(Program::Ingress(Hook::Tc));
    let setup = rejecting().bucket(1, 0);
    let row = |about: &str| ROWS.iter().find(|row| row.0 == about).unwrap();
    let (taken, older) = (row("the one behind it"), row("the one before it"));
    for (row, first, copy) in [
        (taken, "admit token", Some(Reason::SocketRequest)),
        (older, "passed socket-time-wait", Some(Reason::SocketTimeWait)),
    ] {
        native.set(&setup);
        let [frame, _] = time_wait::frames(row);
        let mut give = |at: u64, socket| {
            native.advance_to(NOW + at);
            let arrival = support::engine::Arrival { frame: &frame, socket, loopback: false };
            native.run(&arrival, How::default()).seen.unwrap()
        };
        let seen = give(0, time_wait::socket(row));
        assert_eq!(seen.action, Action::Pass, "{first}");
        let again = give(SECOND, time_wait::socket(row));
        assert_eq!(again.counted, Counted::Passed(copy.unwrap()), "{first}");
        // when the socket is gone (TIME_WAIT is over), a copy of what was not taken is new work
        native.use_tokens(0, 1);
        native.advance_to(NOW + 2 * SECOND);
        let nothing = support::reference::Socket::Nothing;
        let arrival = support::engine::Arrival { frame: &frame, socket: nothing, loopback: false };
        let last = native.run(&arrival, How::default()).seen.unwrap();
        assert_eq!(last.action == Action::Pass, row.5, "{first}: {last:?}");
    }
    native.finish();
}

/// A client that connects from each port once, in turn, for as long as it is told; says how many of
/// its connections were accepted and how many refused, and what else happened.
const HAMMER: &str = "
import socket, sys, time
ports, seconds = int(sys.argv[1]), float(sys.argv[2])
done, refused, other = 0, 0, 0
end = time.monotonic() + seconds
turn = 0
while time.monotonic() < end:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.settimeout(2)
    turn += 1
    try:
        s.bind(('10.77.0.2', 30000 + turn % ports))
        s.connect(('10.77.0.1', 80))
        s.recv(1)
        done += 1
    except ConnectionRefusedError:
        refused += 1
    except OSError:
        other += 1
    s.close()
print(done, refused, other)
";

/// Accepts and closes at once: TIME_WAIT stays with the server.
fn close_all(listener: std::net::TcpListener) {
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            drop(stream);
        }
    });
}

fn hammer(net: &Net, seconds: f64) -> [u64; 3] {
    let text = says(&net.client, &["python3", "-c", HAMMER, "20", &seconds.to_string()]);
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn one_address_that_comes_again_through_time_wait_is_policed_like_any_other() {
    require_root();
    const RATE: f64 = 50.0;
    const BURST: u32 = 5;
    const SECONDS: f64 = 2.0;
    for mode in [AttachMode::Xdp, AttachMode::Tcx] {
        let net = Net::new();
        let mut plan = plan(vec![net.interface(mode)], Refusal::Reject);
        plan.config.replies.rst_per_second = 1_000_000;
        let mut dataplane = Dataplane::start(&plan).unwrap();
        let bucket = BucketSpec::new(Rate::per_second(RATE), BURST, Refusal::Reject);
        let params = Params::token_bucket(&bucket).unwrap();
        dataplane.set_limits(&[ServiceParams::new(0, params)], &[], 2).unwrap();
        dataplane.heartbeat().unwrap();
        let at = SocketAddr::from((SERVER, 80));
        close_all(within(&net.server, || std::net::TcpListener::bind(at).unwrap()));
        let began = MonotonicClock.now();
        let [done, refused, other] = hammer(&net, SECONDS);
        let took = (MonotonicClock.now() - began).as_secs_f64();
        let totals = dataplane.totals(0).unwrap();
        println!("{mode:?}: {done} done, {refused} refused, {other} other in {took} s; {totals:?}");
        // each of the 20 ports came many times: nearly all of these met a socket in TIME_WAIT
        assert!(done > 60 && refused > 100, "{mode:?}: {done} done, {refused} refused");
        let most = RATE * took + f64::from(BURST) + 1.0;
        assert!(totals.admitted as f64 <= most, "{mode:?}: {} of {most}", totals.admitted);
        assert!(totals.admitted as f64 >= 0.8 * RATE * SECONDS, "{mode:?}: {totals:?}");
        assert!(done <= totals.admitted, "{mode:?}: {done} of {}", totals.admitted);
        let passed = dataplane.passed().unwrap();
        let unevaluated: u64 =
            passed.iter().filter(|p| p.reason == Reason::SocketTimeWait).map(|p| p.count).sum();
        assert_eq!(unevaluated, 0, "{mode:?}: {passed:?}");
    }
}

/// Milliseconds of the clock that Linux puts into time stamps, where they have no offset.
fn stamp_now() -> u32 {
    (MonotonicClock.now().0 / 1_000_000) as u32
}

/// The stack's own sockets with its own time stamps: what is far newer opens a connection, what is
/// far older does not.
#[test]
fn the_time_stamps_of_the_stack_are_read() {
    require_root();
    const PORT: u16 = 41_234;
    const FAR_MS: u32 = 1_000_000;
    let net = Net::new();
    for side in [&net.client, &net.server] {
        // 2: without an offset of their own
        let nsenter = format!("nsenter --net={}", side.display());
        support::netns::sh(&format!("{nsenter} sysctl -qw net.ipv4.tcp_timestamps=2"));
    }
    let mut plane = TestPlane::load(&plan(vec![], Refusal::Drop)).unwrap();
    plane.set_limits(&[one_token(Refusal::Drop)], &[], 2).unwrap();
    let at = SocketAddr::from((SERVER, 80));
    let listener = within(&net.server, || std::net::TcpListener::bind(at).unwrap());
    let script = format!(
        "import socket; s = socket.socket(); s.bind(('{CLIENT}', {PORT})); \
         s.connect(('{SERVER}', 80)); s.recv(1)"
    );
    let client = inside(&net.client, &["python3", "-c", &script]).spawn();
    drop(listener.accept().unwrap());
    client.unwrap().wait().unwrap();
    support::netns::wait_for("TIME_WAIT", || {
        let sockets = says(&net.server, &["ss", "-Htn", "state", "time-wait"]);
        sockets.contains(&PORT.to_string())
    });
    let spend = syn(1, 0, None);
    assert_eq!(plane.run(TestHook::Xdp, &spend).unwrap().outcome, Outcome::Pass, "the one token");
    for (stamp, taken) in
        [(stamp_now().wrapping_add(FAR_MS), true), (stamp_now().wrapping_sub(FAR_MS), false)]
    {
        // of two numbers half of all apart, one is behind what is expected; with a newer stamp
        // both open a connection, with an older one none does
        for seq in [0, 1 << 31] {
            for hook in [TestHook::Xdp, TestHook::Tc] {
                let outcome = within(&net.server, || {
                    plane.run_on(hook, &syn(PORT, seq, Some(stamp)), interface()).unwrap().outcome
                });
                let refused = outcome == Outcome::Drop;
                assert_eq!(refused, taken, "{hook:?}, number {seq}, stamp {stamp}");
            }
        }
    }
}

/// The number of s0, in the server's namespace.
fn interface() -> u32 {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    rustix::net::netdevice::name_to_index(socket.unwrap(), "s0").unwrap()
}

fn syn(port: u16, seq: u32, stamp: Option<u32>) -> Vec<u8> {
    let packet: Packet = eth().ipv4().from4(CLIENT.octets()).to4(SERVER.octets());
    time_wait::syn_from(packet, port, (seq, stamp)).bytes()
}

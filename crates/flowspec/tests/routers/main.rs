// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routes between a daemon and a real router: GoBGP and ExaBGP as its speaker, BIRD as the router.
//!
//! ```text
//!  tgfs-…-us                                               tgfs-…-rt
//!  this program as `daemon` ─ keeper ─ gobgpd | exabgp ══ BGP ══ bird
//! ```
//!
//! No test harness: the program must be able to start as the daemon and as the keeper. Needs root, and the
//! packages gobgpd, exabgp and bird2.

#![allow(clippy::unwrap_used, reason = "a test without a harness")]

mod daemon;
mod world;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_flowspec::{Kind, keeper};
use world::{HOLD_TIME, World};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|word| word.to_str()) {
        Some("keeper") => return keeper::main(&arguments[1..]),
        Some("daemon") => return daemon::main(&arguments[1..]),
        // cargo asks every test program for its list.
        Some("--list") => return ExitCode::SUCCESS,
        _ => {}
    }
    let tests: [(&str, fn()); 5] = [
        ("a_speaker_that_cannot_start_says_why", a_speaker_that_cannot_start_says_why),
        ("gobgp_has_exactly_the_routes", || has_exactly_the_routes(Kind::GoBgp)),
        ("exabgp_has_exactly_the_routes", || has_exactly_the_routes(Kind::ExaBgp)),
        ("routes_of_a_router_become_rules", routes_of_a_router_become_rules),
        ("what_a_wrapper_has_started_ends_with_it", what_a_wrapper_has_started_ends_with_it),
    ];
    // Side by side: they wait for timers of BGP, each in namespaces of its own.
    let failed = std::thread::scope(|scope| {
        let running = tests
            .map(|(name, test)| (name, scope.spawn(move || catch_unwind(AssertUnwindSafe(test)))));
        running
            .map(|(name, test)| {
                let failed = !matches!(test.join(), Ok(Ok(())));
                println!("test {name} ... {}", if failed { "FAILED" } else { "ok" });
                usize::from(failed)
            })
            .iter()
            .sum::<usize>()
    });
    let (word, passed) = (if failed == 0 { "ok" } else { "FAILED" }, tests.len() - failed);
    println!(
        "test result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
    );
    ExitCode::from(u8::from(failed > 0))
}

/// What BIRD shows of the two routes: rates of 1,000 packets/s and 80,000 bytes/s.
const V4: &str = "flow4 { dst 192.0.2.7/32; proto 6; dport 80; tcp flags 0x2/0x2 && 0x0/0x10; }";
const V6: &str =
    "flow6 { dst 2001:db8:1::/48; next header 6; dport 443; tcp flags 0x2/0x2 && 0x0/0x10; }";
const PACKETS_1000: &str = "(generic, 0x800c0000, 0x447a0000)";
const PACKETS_2000: &str = "(generic, 0x800c0000, 0x44fa0000)";
const BYTES_80000: &str = "(generic, 0x80060000, 0x479c4000)";

const ONE: &str = "(generic, 0x800c0000, 0x3f800000)";

/// Longer than any timer here: the first session of GoBGP takes up to 10 s.
const PATIENCE: Duration = Duration::from_secs(60);

fn both() -> [(String, String); 2] {
    [(V4.to_owned(), PACKETS_1000.to_owned()), (V6.to_owned(), BYTES_80000.to_owned())]
}

fn has_exactly_the_routes(kind: Kind) {
    let world = World::new(match kind {
        Kind::GoBgp => "go",
        Kind::ExaBgp => "exa",
    });
    let bird = world.bird(world::RECEIVES);
    let mut daemon = world.export(kind);
    daemon.say("want 1000");
    bird.until("both routes, and nothing else", PATIENCE, |found| found == both());
    daemon.say("want 2000");
    bird.until("another rate", PATIENCE, |found| {
        found == [(V4.to_owned(), PACKETS_2000.to_owned()), both()[1].clone()]
    });
    daemon.say("want nothing");
    bird.until("no route", PATIENCE, |found| found.is_empty());
    daemon.say("want 1000");
    bird.until("both routes again", PATIENCE, |found| found == both());

    let processes = daemon.processes();
    assert!(processes.len() >= 2, "keeper and speaker: {processes:?}");

    // A route that ExaBGP does not take leaves the others alone.
    daemon.say("want 2000 odd");
    let odd =
        || ("flow4 { dst 192.0.2.9/32; proto 6; tcp flags 0x80/0x80; }".to_owned(), ONE.to_owned());
    let changed = || (V4.to_owned(), PACKETS_2000.to_owned());
    bird.until("another rate beside an odd route", PATIENCE, |found| match kind {
        Kind::GoBgp => found == [changed(), odd(), both()[1].clone()],
        Kind::ExaBgp => found == [changed(), both()[1].clone()],
    });
    assert_eq!(daemon.processes(), processes, "the same speaker");
    daemon.say("want 1000");
    bird.until("both routes as before", PATIENCE, |found| found == both());

    // Killed: the keeper and the speaker go, too.
    daemon.kill();
    bird.until("no route after SIGKILL", HOLD_TIME, |found| found.is_empty());
    world::until("no process of it", HOLD_TIME, || processes.iter().all(|id| !world::runs(*id)));

    // Stopped: the keeper's lease ends.
    let mut daemon = world.export(kind);
    daemon.say("want 1000");
    bird.until("both routes of the next one", PATIENCE, |found| found == both());
    daemon.stop();
    bird.until("no route after SIGSTOP", HOLD_TIME, |found| found.is_empty());
    drop(daemon);

    // The keeper is killed: the speaker with it. A new one is told everything.
    let mut daemon = world.export(kind);
    daemon.say("want 1000");
    bird.until("both routes of the third one", PATIENCE, |found| found == both());
    let processes = daemon.processes();
    world::kill(processes[0]);
    world::until("no process of the killed keeper", HOLD_TIME, || {
        processes.iter().all(|id| !world::runs(*id))
    });
    bird.until("both routes of the next speaker", PATIENCE, |found| {
        found == both() && daemon.processes().iter().all(|id| !processes.contains(id))
    });

    // The speaker hangs: the hold time ends, whatever the daemon and the keeper do.
    let processes = daemon.processes();
    world::pause(processes[1]);
    bird.until("no route after the hold time", HOLD_TIME, |found| found.is_empty());
}

fn routes_of_a_router_become_rules() {
    let world = World::new("in");
    let bird = world.bird(&world::sends());
    let mut daemon = world.import();
    let rules = "to 192.0.2.7/32 protocol 6 port 80 syn: packets 1000\n\
                 to 2001:db8:1::/48 protocol 17 port 1000-2000: bytes 80000\nrefused: ";
    // Outside of the configured prefixes, by fragments, an action that is no rate, and one that drops all.
    let refused = ["outside 1", "unsupported 1", "action 1", "discard 1"];
    daemon.until("the rules, and what is refused", PATIENCE, |shown| {
        shown.starts_with(rules) && refused.iter().all(|one| shown.contains(one))
    });
    daemon.until("both sessions, and how long they are held", PATIENCE, |shown| {
        shown.contains("\n10.9.0.2 held for 9.00 s")
            && shown.contains("\nfd00:9::2 held for 6.00 s")
    });
    // The other router gets our routes, and none of those that GoBGP has from this one.
    daemon.say("want 1000");
    world::until("our routes at the other router, and no others", PATIENCE, || {
        bird.others() == both()
    });
    daemon.say("want nothing");
    world::until("none of ours", PATIENCE, || bird.others().is_empty());
    // The unicast route goes: what hung on it, too.
    bird.ask("disable nets4");
    daemon.until("the rule without its route is gone", PATIENCE, |shown| {
        shown.starts_with("to 2001") && shown.contains("no-route")
    });
    bird.ask("enable nets4");
    daemon.until("it is back", PATIENCE, |shown| shown.starts_with(rules));
    // The session ends: nothing stays.
    bird.ask("disable up");
    daemon.until("no rules without the peer", PATIENCE, |shown| shown.starts_with("refused: "));
}

fn what_a_wrapper_has_started_ends_with_it() {
    let world = World::new("wr");
    let mut daemon = world.wrapped();
    let all = |daemon: &world::Daemon| {
        let mut ids = Vec::new();
        world::until("keeper, wrapper, and what that has started", PATIENCE, || {
            ids = daemon.processes();
            ids.len() == 3
        });
        ids
    };
    let gone = |ids: &[u32]| ids.iter().all(|id| !world::runs(*id));
    // The keeper is killed.
    let ids = all(&daemon);
    world::kill(ids[0]);
    world::until("nothing is left of it", HOLD_TIME, || gone(&ids));
    // The daemon is.
    let ids = all(&daemon);
    daemon.kill();
    world::until("nothing is left of that", HOLD_TIME, || gone(&ids));
}

fn a_speaker_that_cannot_start_says_why() {
    let world = World::new("no");
    let mut daemon = world.without_speaker();
    daemon.until("the reason", PATIENCE, |shown| {
        shown.contains("it has ended: ") && shown.contains("No such file")
    });
    assert!(daemon.runs(), "the daemon goes on");
}

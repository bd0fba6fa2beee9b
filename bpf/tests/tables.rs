// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of connections: as large as the plan says, harmless and visible when they are full,
//! and never resized behind anybody's back.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeMap;
use support::netns::{BpfFs, plan};
use support::object::require_root;
use support::packet::{ACK, PSH, Packet, SERVER4, SYN, eth};
use tidegate_bpf::testing::{Objects, Outcome, TestHook, TestPlane, maps_of, plans};
use tidegate_bpf::{Dataplane, Plan};
use tidegate_config::Tables;
use tidegate_policy::{Action, Reason};

/// The smallest table.
const SIZE: u32 = 1024;
const CLIENT_ISN: u32 = 100;
const SERVER_ISN: u32 = 500;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn small() -> Plan {
    let mut plan = plan(vec![], Action::Drop);
    plan.config.tables = plans::tables(SIZE);
    plan.config.services[0].requests = Some(plans::requests(&[], vec![plans::rule("/", None)]));
    plan
}

/// A packet of the client with this number.
fn client(n: u32) -> Packet {
    let [_, _, high, low] = n.to_be_bytes();
    eth().ipv4().from4([198, 18, high, low]).tcp(40_000, 80)
}

/// A packet to it.
fn server(n: u32) -> Packet {
    let [_, _, high, low] = n.to_be_bytes();
    eth().ipv4().from4(SERVER4.octets()).to4([198, 18, high, low]).tcp(80, 40_000)
}

fn passes(plane: &TestPlane, hooks: &[TestHook], packet: &Packet) {
    for hook in hooks {
        let outcome = plane.run(*hook, &packet.bytes()).unwrap().outcome;
        assert_eq!(outcome, Outcome::Pass, "{hook:?}");
    }
}

const IN: [TestHook; 2] = [TestHook::Tc, TestHook::RequestIn];
const OUT: [TestHook; 2] = [TestHook::Egress, TestHook::RequestOut];

fn open(plane: &TestPlane, n: u32) {
    passes(plane, &IN, &client(n).syn().seq(CLIENT_ISN));
    passes(plane, &OUT, &server(n).flags(SYN).seq(SERVER_ISN).ack(CLIENT_ISN + 1));
    passes(plane, &IN, &client(n).seq(CLIENT_ISN + 1).ack(SERVER_ISN + 1));
}

fn asks(plane: &TestPlane, n: u32) {
    let request = client(n).seq(CLIENT_ISN + 1).flags(PSH | ACK).ack(SERVER_ISN + 1);
    passes(plane, &IN, &request.data(REQUEST));
}

/// Requests that passed because their connection has no place; without a socket of the server's to
/// ask, as here, they count as `opaque`.
fn unfollowed(plane: &TestPlane) -> u64 {
    let full = |reason| [Reason::TableFull, Reason::Opaque].contains(&reason);
    let reasons = plane.request_reasons().unwrap();
    reasons.iter().filter(|r| full(r.reason)).map(|r| r.count).sum()
}

#[test]
fn at_101_percent_everything_passes_and_what_found_no_room_is_counted() {
    require_root();
    let plane = TestPlane::load(&small()).unwrap();
    let more = SIZE + SIZE / 100 + 1;
    let mut full_at = None;
    for n in 0..more {
        open(&plane, n);
        let lost = plane.table_losses().unwrap().connections;
        if lost > 0 && full_at.is_none() {
            full_at = Some(n);
        }
    }
    let (totals, losses) = (plane.totals(0).unwrap(), plane.table_losses().unwrap());
    println!("{totals:?}, {losses:?}, full at {full_at:?}");
    // sets of four: some are full before the table is
    assert_eq!(totals.open + losses.connections, u64::from(more));
    assert!(losses.connections >= u64::from(more - SIZE), "{losses:?}");
    assert!(totals.open > u64::from(SIZE) * 7 / 10, "{totals:?}");
    // The seed is another each time: five of the first n meet in one set of SIZE / 4 with n⁵ / 5! / (SIZE / 4)⁴,
    // which is 1 in 17 for SIZE / 8, and 1 in 20,000 here.
    assert!(full_at.unwrap() > SIZE / 32, "{full_at:?}");
    assert_eq!(losses.handshakes, 0, "each note is given back when its handshake ends");
    // a connection that has no place has its requests passed, and told
    (0..more).for_each(|n| asks(&plane, n));
    let counts = plane.rule_counts().unwrap();
    let unevaluated: u64 = plane.request_reasons().unwrap().iter().map(|r| r.count).sum();
    assert_eq!(counts[0].admitted, totals.open, "{counts:?}");
    assert_eq!(counts[0].admitted + unevaluated, u64::from(more));
}

#[test]
fn the_table_of_requests_is_filled_to_its_last_place() {
    require_root();
    let mut plan = small();
    plan.config.tables.connections = 64 * SIZE;
    let plane = TestPlane::load(&plan).unwrap();
    (0..SIZE).for_each(|n| open(&plane, n));
    (0..SIZE).for_each(|n| asks(&plane, n));
    assert_eq!(plane.rule_counts().unwrap()[0].admitted, u64::from(SIZE));
    assert_eq!(unfollowed(&plane), 0, "at 100 %");
    let more = SIZE / 100 + 1;
    (SIZE..SIZE + more).for_each(|n| open(&plane, n));
    (SIZE..SIZE + more).for_each(|n| asks(&plane, n));
    assert_eq!(unfollowed(&plane), u64::from(more), "at 101 %");
    assert_eq!(plane.followed().limit, u64::from(SIZE));
}

/// Handshakes that never end, as a flood of spoofed SYNs leaves them.
#[test]
fn notes_that_are_overwritten_while_they_are_young_are_counted() {
    require_root();
    let plane = TestPlane::load(&small()).unwrap();
    let lost = |plane: &TestPlane| plane.table_losses().unwrap().handshakes;
    let syn = |n| passes(&plane, &[TestHook::Xdp], &client(n).syn().seq(CLIENT_ISN));
    (0..SIZE / 8).for_each(syn);
    let at_an_eighth = lost(&plane);
    (SIZE / 8..SIZE).for_each(syn);
    let at_100 = lost(&plane);
    (SIZE..SIZE + SIZE / 100 + 1).for_each(syn);
    let at_101 = lost(&plane);
    println!("lost: {at_an_eighth} of {}, {at_100} of {SIZE}, then {at_101}", SIZE / 8);
    // two places each: of n SYNs in m pairs, Poisson; the bounds are six deviations away
    assert!(at_an_eighth <= 10, "{at_an_eighth}");
    assert!((200..400).contains(&at_100), "{at_100}");
    assert!(at_101 > at_100, "{at_101}");
    assert_eq!(plane.totals(0).unwrap().offered, u64::from(SIZE + SIZE / 100 + 1));
}

#[test]
fn a_reload_does_not_resize_and_a_restart_begins_anew() {
    require_root();
    let fs = BpfFs::new();
    let mut before = small();
    before.settings.pins = Some(fs.pins());
    let mut dataplane = Dataplane::start(&before).unwrap();
    dataplane.release(true).unwrap();
    for (table, change) in [
        ("connections", (|t: &mut Tables| t.connections *= 2) as fn(&mut Tables)),
        ("handshakes", |t| t.handshakes *= 2),
        ("requests", |t| t.requests *= 2),
    ] {
        let mut plan = before.clone();
        change(&mut plan.config.tables);
        let said = dataplane.apply(&plan).unwrap_err().to_string();
        let wanted = format!("the table of {table} has room for 1024, not for 2048");
        assert!(said.contains(&wanted) && said.contains("by a restart only"), "{said}");
    }
    dataplane.apply(&before).unwrap();
    drop(dataplane);
    let same = Dataplane::start(&before).unwrap();
    assert!(same.released().unwrap(), "the same sizes: state is adopted");
    drop(same);
    let mut after = before.clone();
    after.config.tables.connections *= 2;
    let anew = Dataplane::start(&after).unwrap();
    assert_eq!(anew.table_losses().unwrap(), tidegate_bpf::TableLosses::default());
    assert!(anew.released().unwrap(), "the operator's switch stays");
    let left: Vec<String> = anew.detach().into_iter().map(|left| left.to_string()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_memory_of_the_tables_is_what_the_kernel_takes() {
    require_root();
    let memory = Plan::default().memory(Some(1));
    let all: u64 = memory.iter().map(|(_, bytes)| bytes).sum();
    println!("{memory:?}: {} MiB", all >> 20);
    assert_eq!(memory[0], ("handshakes", (1 << 18) * 32));
    assert!(all < 64 << 20, "{memory:?}");
}

/// Bytes that a CPU has to work in: they are not counted, and do not grow with services or rules.
const WORK_MAX: u64 = 16 << 10;

/// What a plan says of all CPUs is what the maps in the programs come to, with request rules and without.
#[test]
fn the_memory_of_64_cpus_is_that_of_the_maps() {
    const CPUS: usize = 64;
    let Objects { xdp, tc, egress, heartbeat, replay, request_in, request_out, sweep } =
        Objects::default();
    let hooks = [xdp, tc, egress, heartbeat, replay];
    let rules = [request_in, request_out, sweep];
    let mut bare = small();
    bare.config.services[0].requests = None;
    for (plan, objects) in
        [(bare, hooks.to_vec()), (small(), hooks.into_iter().chain(rules).collect())]
    {
        let maps = maps_of(&objects).unwrap();
        let said: BTreeMap<&str, u64> = plan.memory(Some(CPUS)).into_iter().collect();
        let each: u64 = maps.values().filter_map(|(each, bytes)| each.then_some(*bytes)).sum();
        let of = |name: &str| maps.get(name).map_or(0, |(_, bytes)| *bytes);
        println!("{said:?}: {each} bytes a CPU");
        let work =
            each.checked_sub(said["counters"] / CPUS as u64).expect("more is said than there is");
        assert!(work < WORK_MAX, "{work} bytes of each CPU are not said: {maps:?}");
        assert_eq!(said["classification"], of("tg_src_prefixes") + of("tg_listeners"), "{maps:?}");
        assert_eq!(said["states"], of("tg_states") + of("tg_buckets"), "{maps:?}");
    }
}

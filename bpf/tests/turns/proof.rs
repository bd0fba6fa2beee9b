// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the conversations of turns.rs prove: they run every line of track/turn.h and track/said.h, also
//! when a helper fails or another CPU comes between, and they notice bugs that are planted there.

use super::shapes;
use super::support::canary::{Canary, Copy, plant};
use super::support::connection::give;
use super::support::dialog::{Dialog, Told};
use super::support::engine::Hook;
use super::support::gcov::{Unreachable, Wanted, gcov, wrong};
use super::support::native::{How, Native, Program};
use super::support::setup::base;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

/// Packets of a conversation in which every failure is tried; longer ones repeat themselves.
const FAILING_MAX: usize = 60;
/// Swaps of a connection's word in one run that another CPU may win.
const SWAPS_MAX: u32 = 4;

/// The files that are measured, and the share of their branches that must be taken, in percent.
const FILES: [Wanted; 2] = [
    ("said.h", 95.0), // the verifier wants pointers checked
    ("turn.h", 90.0), // the same; two CPUs at once; counts beyond 65,535
];
/// Lines that nothing can reach here, by what they say, with the reason.
const UNREACHABLE: [Unreachable; 5] = [
    ("said.h", "return 0;", "the verifier wants pointers checked"),
    ("turn.h", "return 0;", "two CPUs at once, twice"),
    ("turn.h", "return;", "two CPUs at once: the connection ends between two looks at it"),
    ("turn.h", "flights->h2 >>= 1;", "65,536 connections that offered HTTP/2"),
    ("turn.h", "flights->h1 >>= 1;", "the same"),
];

/// Bugs about what begins an exchange, and when.
const BEGINS: [Canary; 14] = [
    (
        "bpf/track/turn.h",
        "    (__s32)(p->seq - way->client_next) < 0)\n\t\treturn 0;",
        "    0)\n\t\treturn 0;",
    ),
    ("bpf/track/turn.h", "(__s32)(p->ack - way->reply) >= 0;", "1;"),
    (
        "bpf/track/turn.h",
        "if (ask.said != TG_SAID_CONTROL || meta & TG_FLOW_TURN)\n\t\ttg_turn_spoke",
        "tg_turn_spoke",
    ),
    ("bpf/track/turn.h", "TG_SAID_CONTROL || meta & TG_FLOW_TURN)", "TG_SAID_CONTROL)"),
    ("bpf/track/turn.h", "&meta, TG_FLOW_WAITING, 0);", "&meta, 0, 0);"),
    ("bpf/track/turn.h", "way->client |= TG_CLIENT_SLOW;", ""),
    (
        "bpf/track/turn.h",
        "if (!way || !p || (__s32)(p->seq - way->client_next) < 0)",
        "if (!way || !p)",
    ),
    ("bpf/track/turn.h", "*meta & TG_FLOW_H2 || tg_flow_talk(*meta) == TG_TALK_HTTP2)", "0)"),
    ("bpf/track/turn.h", "(way->client & TG_CLIENT_SPOKE || p->payload == 1)", "(way->client & 1)"),
    ("bpf/track/turn.h", "if ((__s32)(p->ack - way->client_next) > 0)", "if (0)"),
    ("bpf/track/turn.h", "if (p->payload == 1 && p->seq != way->client_next) {", "if (0) {"),
    ("bpf/track/turn.h", "p->payload == 1 && p->seq != way->client_next", "p->payload == 1"),
    ("bpf/track/turn.h", "way->request_ns = now_ns - owed_ns;", "way->request_ns = now_ns;"),
    ("bpf/track/turn.h", "set & TG_FLOW_ASKED && !(before & TG_FLOW_ASKED))", "1)"),
];

/// Bugs about what ends one, and how it is counted.
const ENDS: [Canary; 8] = [
    ("bpf/track/turn.h", "!(way->server & TG_SERVER_ANSWERED);", "1;"),
    ("bpf/track/turn.h", "set |= TG_FLOW_TALK_MASK;\t/* TG_TALK_LONG */", ";"),
    ("bpf/track/turn.h", "if (way->client & TG_CLIENT_SLOW)", "if (0)"),
    ("bpf/track/turn.h", "totals->lost++;", ""),
    ("bpf/track/turn.h", "+= last.exchanges;", "+= 1;"),
    ("bpf/track/turn.h", "if (meta & TG_FLOW_WAITING && !(meta & TG_FLOW_TURN)) {", "if (0) {"),
    ("bpf/track/turn.h", "way->client |= TG_CLIENT_FINISHED;", ""),
    ("bpf/track/turn.h", "if (*meta & TG_FLOW_BEHIND) {", "if (0) {"),
];

/// Bugs about flights of tickets.
const TICKETS: [Canary; 15] = [
    ("bpf/track/turn.h", "f->votes -= f->votes > 1 ? 2 : 1;", ";"),
    ("bpf/track/turn.h", "f->votes++;", "f->votes += 2;"),
    ("bpf/abi/tidegate.h", "#define TG_FLIGHT_KNOWN 8", "#define TG_FLIGHT_KNOWN 9"),
    ("bpf/track/turn.h", "#define TG_FLIGHT_RECORDS_MAX 4", "#define TG_FLIGHT_RECORDS_MAX 5"),
    ("bpf/track/turn.h", "#define TG_FLIGHT_BYTES_MAX 2048", "#define TG_FLIGHT_BYTES_MAX 4096"),
    ("bpf/track/turn.h", "at = at < alike ? at : alike;", ""),
    ("bpf/track/turn.h", "way->server |= TG_SERVER_CANDIDATE;", ""),
    ("bpf/track/turn.h", "ask->record[0].length <= TG_ALERT)\n\t\treturn;", "0)\n\t\treturn;"),
    ("bpf/track/turn.h", "return next && next <= TG_PREAMBLE_MAX;", "return 0;"),
    ("bpf/track/turn.h", "f->records = records;", ";"),
    ("bpf/track/turn.h", "least->votes--;", ""),
    ("bpf/track/turn.h", "if (!way || tg_turn_repeated(way, p))", "if (!way)"),
    ("bpf/track/turn.h", "} else if (tg_flight_goes_on(ask, way, alike)) {", "} else if (0) {"),
    ("bpf/track/turn.h", "f->records--;", ";"),
    (
        "bpf/track/turn.h",
        "meta, TG_FLOW_BEHIND, 0);\n\t}\n\treturn meta;",
        "meta, 0, 0);\n\t}\n\treturn meta;",
    ),
];

/// Bugs about what a segment says.
const SAYS: [Canary; 17] = [
    ("bpf/track/said.h", "ask->client &= ~TG_CLIENT_FINISHED;", ""),
    ("bpf/track/said.h", "1ULL << 22 | ", ""),
    ("bpf/track/said.h", "== TG_FINISHED_SHA256 || length == TG_FINISHED_SHA384;", "== 0;"),
    ("bpf/track/said.h", "|| length == TG_FINISHED_SHA384;", ";"),
    ("bpf/track/said.h", "#define TG_REQUEST_MIN (27 +", "#define TG_REQUEST_MIN (5 +"),
    ("bpf/track/said.h", "#define TG_CONTINUE (25 +", "#define TG_CONTINUE (24 +"),
    ("bpf/track/said.h", "ask->client |= TG_CLIENT_PREFACE;", ""),
    ("bpf/track/said.h", "ask->said = TG_SAID_HANDSHAKE;\t/* once more */", ""),
    ("bpf/track/said.h", "first ? TG_SAID_HANDSHAKE : TG_SAID_NOTHING;", "TG_SAID_HANDSHAKE;"),
    ("bpf/track/said.h", "#define TG_HELLO_MIN 64", "#define TG_HELLO_MIN 6"),
    ("bpf/track/said.h", "ask->client |= TG_CLIENT_CERT;", ""),
    ("bpf/track/said.h", "|| (server && b[3] == TG_FRAME_DATA))", "|| b[3] == TG_FRAME_DATA)"),
    ("bpf/track/said.h", "at += TG_RECORD_HEADER + length;", "at += length;"),
    ("bpf/track/said.h", "b[11] == '1' && b[10] == '0'", "b[11] == '1'"),
    ("bpf/track/said.h", "b[6] == 2 &&", ""),
    ("bpf/track/said.h", "w.h2 = last > w.end;", "w.h2 = 0;"),
    ("bpf/track/said.h", "if (!ask->h2)\n\t\treturn length >= TG_REQUEST_MIN;", ""),
];

/// All conversations, by name.
macro_rules! scenes {
    ($($scene:path),* $(,)?) => {
        const SCENES: &[(&str, fn())] = &[$((stringify!($scene), $scene)),*];
    };
}
scenes![
    super::a_silent_connection_waits_for_nothing_and_is_counted,
    super::a_connection_counts_once_and_its_exchanges_each,
    super::retransmitted_bytes_and_more_of_a_body_open_no_turn,
    super::a_client_that_leaves_waits_no_more_and_its_late_response_is_counted,
    super::an_interim_response_is_none,
    super::after_an_upgrade_there_are_no_turns,
    super::an_event_stream_is_one_exchange_and_a_long_poll_waits,
    super::a_slow_upload_is_not_the_servers_debt,
    super::a_server_that_greets_is_counted_and_not_timed,
    super::tls13_is_timed_from_the_hello_without_what_the_client_takes,
    super::a_finished_alone_is_no_request,
    super::tickets_are_learned_and_then_the_request_still_waits,
    super::a_request_may_cross_tickets_and_control_frames,
    super::tickets_on_both_sides_of_a_request_are_learned,
    super::a_ticket_and_settings_behind_a_request_are_neither_its_response,
    super::more_of_a_request_behind_tickets_is_no_request,
    super::what_the_server_sends_again_says_nothing_new,
    super::a_flight_that_was_learned_too_long_is_mended,
    super::tickets_apart_are_learned_from_clients_that_ask_nothing,
    super::a_ticket_alone_and_one_with_settings_are_a_flight_of_two,
    super::without_tickets_a_small_response_is_one,
    super::a_response_of_the_size_of_a_ticket_is_found_out,
    super::hello_retry_client_certificates_and_early_data,
    super::tls12_in_full_and_resumed,
    super::http1_in_tls_knows_alerts_interim_responses_and_key_updates,
    super::http2_in_tls_makes_no_phantoms,
    super::http2_behind_unknown_tickets_is_seen_and_teaches_them,
    super::what_a_listener_chooses_is_learned,
    super::http2_in_the_clear,
    shapes::the_first_bytes_say_what_a_connection_talks,
    shapes::the_first_bytes_of_a_response_say_what_it_is,
    shapes::what_is_no_frame_of_http2_is_more_of_a_body,
    shapes::what_is_no_record_of_tls_is_more_of_one,
    shapes::http2_in_tls12,
    shapes::only_h2_first_is_an_offer_of_it,
    shapes::the_largest_flight_is_remembered_and_the_likeliest_sizes,
    shapes::what_a_flight_cannot_be,
    shapes::a_reset_that_the_stack_would_not_believe_changes_nothing,
    shapes::a_reset_that_the_stack_may_not_believe_ends_waiting_only,
    shapes::a_server_that_speaks_behind_its_handshake_is_counted,
    shapes::segments_of_one_byte_are_data_and_probes_are_none,
    super::whatever_is_said_in_pieces_moves_gauges_by_one_at_most,
];

thread_local! {
    /// The build that plays what follows on this thread, if it is not the one of all tests.
    static OTHER: RefCell<Option<Native>> = const { RefCell::new(None) };
    /// Whether conversations are played again with every failure.
    static FAILING: Cell<bool> = const { Cell::new(false) };
}

/// Plays a conversation with the build of this thread, if it has one; else gives it back.
pub(super) fn instead<F: FnOnce(Dialog<'_>)>(test: F) -> Option<F> {
    let Some(mut native) = OTHER.take() else { return Some(test) };
    let told = Rc::default();
    test(Dialog::told(&mut native, &base(), Rc::clone(&told)));
    if FAILING.get() {
        fail(&mut native, &told.borrow());
    }
    OTHER.set(Some(native));
    None
}

/// Says all of it again; the calls of each packet. `at`: a packet that meets a failure.
fn replay(native: &mut Native, told: &[Told], at: Option<(usize, How, u32)>) -> Vec<u32> {
    native.set(&base());
    let mut calls = Vec::with_capacity(told.len());
    for (index, packet) in told.iter().enumerate() {
        let failure = at.filter(|(at, ..)| *at == index);
        let (_, how, lose) = failure.unwrap_or_default();
        native.advance_to(packet.at_ns);
        native.lose_swap(lose);
        calls.push(give(native, (&packet.frame, packet.egress), how).calls.len() as u32);
    }
    calls
}

/// The conversation again, each time with another failure: of one helper, or a lost swap.
fn fail(native: &mut Native, told: &[Told]) {
    let told = &told[..told.len().min(FAILING_MAX)];
    for (index, calls) in replay(native, told, None).into_iter().enumerate() {
        for fail_at in 1..=calls {
            let how = How { fail_at, ..How::default() };
            replay(native, &told[..(index + 4).min(told.len())], Some((index, how, 0)));
        }
        for lose in 1..=SWAPS_MAX {
            let failure = (index, How::default(), lose);
            replay(native, &told[..(index + 4).min(told.len())], Some(failure));
        }
    }
}

/// The first conversation that goes otherwise with these sources, or kills the program.
fn found(sources: &Path) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::Ingress(Hook::Tc);
    OTHER.set(Some(Native::start_from(program, sources, directory.path())));
    let found = SCENES.iter().find(|(_, scene)| catch_unwind(AssertUnwindSafe(scene)).is_err());
    OTHER.set(None);
    found.map(|(name, _)| (*name).to_owned())
}

#[test]
fn every_line_and_nearly_every_branch_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let native = Native::start_covered(Program::Ingress(Hook::Tc), directory.path());
    OTHER.set(Some(native));
    FAILING.set(true);
    SCENES.iter().for_each(|(_, scene)| scene());
    OTHER.take().unwrap().finish();
    let mut covered = BTreeMap::new();
    gcov((directory.path(), "native-tc-host.gcda"), &FILES, &mut covered);
    let wrong = wrong(&covered, &FILES, &UNREACHABLE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn untouched_sources_have_none() {
    assert_eq!(found(Copy::new().path()), None);
}

#[test]
fn bugs_about_what_begins_an_exchange_are_found() {
    plant(&BEGINS, found);
}

#[test]
fn bugs_about_what_ends_an_exchange_are_found() {
    plant(&ENDS, found);
}

#[test]
fn bugs_about_tickets_are_found() {
    plant(&TICKETS, found);
}

#[test]
fn bugs_about_what_a_segment_says_are_found() {
    plant(&SAYS, found);
}

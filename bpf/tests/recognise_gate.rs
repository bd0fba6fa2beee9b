// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the recogniser's tests are worth: which lines and branches of it they reach, and whether they
//! find bugs that are planted into it.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "recognise/exercise.rs"]
mod exercise;
mod support;

use exercise::{first_wrong, key};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use support::canary::{Canary, Copy, plant};
use support::gcov::{Unreachable, Wanted, gcov, wrong};
use support::recogniser::Native;

/// The files that are measured, and the share of their branches that must be taken, in percent.
const FILES: [Wanted; 10] = [
    ("http.h", 84.0), // a word is compared in three parts, of which two are mostly empty
    ("http_fields.h", 88.0), // the same
    ("http_host.h", 100.0),
    ("http_path.h", 98.0),
    ("http_cookie.h", 100.0),
    ("http_body.h", 90.0), // the verifier wants bounds checked, and loads that cannot fail
    ("response.h", 94.0),  // words
    ("http_scan.h", 96.0), // bounds
    ("tls_hello.h", 90.0), // bounds
    ("rule.h", 91.0),      // the verifier wants pointers checked
];
const VERIFIER: &str = "the verifier wants a pointer, or a bound, checked";
const UNREACHABLE: [Unreachable; 11] = [
    ("http.h", "return TG_REASON_LOOKUP_FAILED;", VERIFIER),
    ("http_fields.h", "return tg_scan_fail(s);", "states that only a request has"),
    ("http_body.h", "return TG_CHUNK_FAILED;", "states that read no byte"),
    ("http_body.h", "k->state = TG_CHUNK_FAILED;", "a byte of the packet can be loaded"),
    ("http_body.h", "return 1;", "the same"),
    ("response.h", "return -1;", VERIFIER),
    ("tls_hello.h", "return TG_REASON_LOOKUP_FAILED;", VERIFIER),
    ("rule.h", "s->reason = TG_REASON_LOOKUP_FAILED;", VERIFIER),
    ("rule.h", "s->at = 0;", VERIFIER),
    ("rule.h", "return 1;", VERIFIER),
    ("rule.h", "return TG_REASON_LOOKUP_FAILED;", VERIFIER),
];

const LINE: [Canary; 6] = [
    ("bpf/http/http.h", "else if (++s->part == 2)", "else if (++s->part == 1)"),
    (
        "bpf/http/http.h",
        "s->state == TG_SCAN_PATH && (c == '?' || c == '#')",
        "s->state == TG_SCAN_PATH && c == '?'",
    ),
    ("bpf/http/http.h", "s->seen |= TG_SEEN_TARGET;", ""),
    ("bpf/http/http.h", "s->seen & TG_SEEN_PREFACE && tg_word_is(s, \"HTTP/2.0\")", "0"),
    ("bpf/http/http.h", "++s->part > TG_BLANKS_MAX ?", "0 ?"),
    ("bpf/http/http.h", "if (!(s->seen & TG_SEEN_LINE))", "if (0)"),
];

const PATH: &str = "bpf/http/http_path.h";
const PATHS: [Canary; 12] = [
    (PATH, "if (at >= TG_PATH_MAX)", "if (at >= TG_PATH_MAX - 1)"),
    (PATH, "if (c == '.' && s->dots < 2)", "if (c == '.')"),
    (PATH, "if (s->full || !s->depth)", "if (!s->depth)"),
    (PATH, "if (s->full || !s->depth)", "if (s->full)"),
    (PATH, "if (c == ';' || c == '\\\\')", "if (c == ';')"),
    (PATH, "if (c < ' ' || c == 0x7f || c == '/')", "if (c < ' ' || c == '/')"),
    (PATH, "if (c < ' ' || c == 0x7f || c == '/')", "if (c == 0x7f || c == '/')"),
    (PATH, "if (value > 15)", "if (value > 16)"),
    (PATH, "'A' + value - 10", "'a' + value - 10"),
    (PATH, "if (s->dots == 1 || s->dots == 2)", "if (s->dots == 2)"),
    (PATH, "if (s->escape)\n\t\th->http.ambiguous", "if (0)\n\t\th->http.ambiguous"),
    (PATH, "s->dots == TG_DOTS_NONE) {", "1) {"),
];

const FIELDS: [Canary; 9] = [
    ("bpf/http/http_fields.h", "if (s->seen & seen)", "if (0)"),
    ("bpf/http/http_fields.h", "return s->seen & TG_SEEN_TARGET ?", "return 0 ?"),
    ("bpf/http/http_fields.h", "if (c != ':' || !s->word_bytes)", "if (c != ':')"),
    ("bpf/http/http_fields.h", "if (coded && (sized || !minor))", "if (coded && !minor)"),
    ("bpf/http/http_fields.h", "return !minor && !(s->seen & TG_SEEN_KEEP);", "return !minor;"),
    ("bpf/http/http_fields.h", "tg_word_spoil(s);", ""),
    (
        "bpf/http/http_fields.h",
        "return s->number < TG_BODY_MAX ? 0 : tg_scan_fail(s);",
        "return 0;",
    ),
    (
        "bpf/http/http_fields.h",
        "return tg_word_is(s, \"chunked\") && tg_value_ends(s, c) ? 0 :",
        "return tg_value_ends(s, c) ? 0 :",
    ),
    ("bpf/http/http_scan.h", "return c >= 'A' && c <= 'Z' ? c | 0x20 : c;", "return c;"),
];

const HOSTS: [Canary; 8] = [
    ("bpf/http/http_host.h", "if (c == ':' && s->part != TG_HOST_FIRST) {", "if (c == ':') {"),
    ("bpf/http/http_host.h", "if (s->part == TG_HOST_CLOSED)", "if (0)"),
    ("bpf/http/http_host.h", "if (c == '.' && s->part == TG_HOST_NAME) {", "if (c == '.') {"),
    ("bpf/http/http_cookie.h", "h->http.flags |= TG_HTTP_COOKIES;", ""),
    (
        "bpf/http/http_cookie.h",
        "if (c != '=' || s->state == TG_SCAN_COOKIE_VALUE)",
        "if (c != '=')",
    ),
    (
        "bpf/http/http_cookie.h",
        "h->pair[at].name = valued ? s->cookie : hash;",
        "h->pair[at].name = hash;",
    ),
    (
        "bpf/http/http_scan.h",
        "low = (w - '!' * TG_EACH_BYTE) & ~w;",
        "low = (w - ' ' * TG_EACH_BYTE) & ~w;",
    ),
    (
        "bpf/http/http_scan.h",
        "if ((low | del) & 0x80 * TG_EACH_BYTE)",
        "if (low & 0x80 * TG_EACH_BYTE)",
    ),
];

const BODIES: [Canary; 8] = [
    ("bpf/http/http_body.h", "k->size > TG_CHUNK_MAX >> 4", "0"),
    (
        "bpf/http/http_body.h",
        "return k->size ? TG_CHUNK_DATA : TG_CHUNK_LINE;",
        "return TG_CHUNK_DATA;",
    ),
    ("bpf/http/http_body.h", "return c == ';' || tg_is_space(c) ?", "return c == ';' ?"),
    ("bpf/http/http_body.h", "if (f->left < bytes)", "if (0)"),
    ("bpf/http/response.h", "r->code == 304 ||", ""),
    (
        "bpf/http/response.h",
        "to & TG_ANSWER_TO_CONNECT && r->code / 100 == 2",
        "to & TG_ANSWER_TO_CONNECT",
    ),
    ("bpf/http/response.h", "if (c != ' ' && c != '\\r')", "if (c != ' ')"),
    ("bpf/http/response.h", "r->flags = r->code == 101 ?", "r->flags = 0 ?"),
];

const HELLO: [Canary; 6] = [
    (
        "bpf/http/tls_hello.h",
        "s->failed = at < s->part ? TG_REASON_SPLIT :",
        "s->failed = 0 ? TG_REASON_SPLIT :",
    ),
    ("bpf/http/tls_hello.h", "if (s->length > end)", "if (0)"),
    ("bpf/http/tls_hello.h", "list != bytes + 3 ||", "list < bytes ||"),
    ("bpf/http/tls_hello.h", "extension != bytes + 5", "extension < bytes"),
    ("bpf/http/tls_hello.h", "tg_host_name(s, c) | TG_FEED_LOWER", "tg_host_name(s, c)"),
    ("bpf/http/tls_hello.h", "if (at >= s->number) {", "if (0) {"),
];

const RULE: [Canary; 8] = [
    ("bpf/http/rule.h", "if (!(h->http.flags & TG_HTTP_HOST))", "if (0)"),
    (
        "bpf/http/rule.h",
        "return rule->host == s->whole || rule->host == s->rest ?",
        "return rule->host == s->whole ?",
    ),
    (
        "bpf/http/rule.h",
        "(held & rule->cookies_all) != rule->cookies_all",
        "!(held & rule->cookies_all)",
    ),
    ("bpf/http/rule.h", "held & rule->cookies_none)", "0)"),
    ("bpf/http/rule.h", "(!test->value || test->value == h->pair[pair].value)", "1"),
    ("bpf/http/rule.h", "tls != !!a->tls ||", ""),
    ("bpf/http/rule.h", "a->protected = !!(s->cookies & rule->protect);", ""),
    ("bpf/http/rule.h", "s->at = rule->next;", "s->at = 0;"),
];

#[test]
fn every_line_and_nearly_every_branch_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let mut native = Native::start_covered(directory.path(), key());
    assert_eq!(first_wrong(&mut native), None);
    native.finish();
    let mut covered = BTreeMap::new();
    gcov((directory.path(), "recognise.gcda"), &FILES, &mut covered);
    let wrong = wrong(&covered, &FILES, &UNREACHABLE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The first that goes wrong, or how it died.
fn found(sources: &Path) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let said =
        |mut native: Native| match catch_unwind(AssertUnwindSafe(|| first_wrong(&mut native))) {
            Ok(wrong) => wrong,
            Err(_) => Some("it died".into()),
        };
    // Sanitizers take seconds to build, and most bugs are found without.
    said(Native::start_from(sources, directory.path(), key()))
        .or_else(|| said(Native::start_sanitized_from(sources, directory.path(), key())))
}

#[test]
fn untouched_sources_have_none() {
    assert_eq!(found(Copy::new().path()), None);
}

#[test]
fn bugs_in_request_lines_and_fields_are_found() {
    plant(&LINE, found);
    plant(&FIELDS, found);
}

#[test]
fn bugs_in_paths_are_found() {
    plant(&PATHS, found);
}

#[test]
fn bugs_in_hosts_cookies_and_bodies_are_found() {
    plant(&HOSTS, found);
    plant(&BODIES, found);
}

#[test]
fn bugs_in_names_of_tls_and_in_rules_are_found() {
    plant(&HELLO, found);
    plant(&RULE, found);
}

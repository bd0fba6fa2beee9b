// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recogniser of requests: what a person can read (support/cases/heads.rs), and what random bytes
//! say. The C, natively and in the kernel as every compiler makes it, agrees with a reference that
//! was written from the documents (support/reference/http.rs, tls.rs, rules.rs).

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "recognise/exercise.rs"]
mod exercise;
mod support;

use exercise::{body_expected, cuts, expected_rule, key, rule};
use support::cases::heads::{HEADS, HELLOS, REPLIES, RULES, Says, describe, describe_reply};
use support::heads;
use support::object::{COMPILER_DEFAULT, COMPILERS, Loaded, require_root};
use support::random::{Dice, from_env, seed};
use support::recogniser::{
    CHUNKED, FOLLOW_END, FOLLOW_FAILED, FOLLOW_MORE, Follow, HEAD_MAX, Key, Named, Native, Reader,
    Recognised, Replied, TO_CLOSE, Tables, named, reason, to_bits,
};
use support::reference::http::{self, To};
use support::reference::rules::{Found, HostTest, Rule};

/// Heads at random; `TIDEGATE_HEADS` makes it more.
const HEADS_COUNT: usize = 20_000;
/// Of them, how many the kernel sees, by each compiler.
const KERNEL_HEADS: usize = 1_500;
/// Heads that are cut at every byte.
const CUT_HEADS: usize = 300;
/// Chunked bodies, each cut into two packets at every byte.
const BODIES: usize = 300;
/// Sets of rules at random, and requests for each.
const RULE_SETS: usize = 60;
const RULE_HEADS: usize = 100;
/// Sets that the kernel sees.
const KERNEL_RULE_SETS: usize = 6;
/// Instructions that the recogniser may take of a hook's 300,000.
const INSTRUCTIONS_MAX: u32 = 80_000;

fn native() -> Native {
    Native::start(key())
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Every head as the table says, natively as the reference says.
#[test]
fn what_a_person_can_read() {
    let mut native = native();
    let mut wrong = Vec::new();
    let mut compare = |name: &str, found: String, says: &str| {
        if found != says {
            wrong.push(format!("{name}: {found}, not {says}"));
        }
    };
    for (name, head, says) in HEADS {
        let head = head.replace('\n', "\r\n").replace('¶', "\n");
        compare(name, describe(head.as_bytes()), says);
        let expected = Recognised::expected(head.as_bytes(), &key());
        assert_eq!(native.request(head.as_bytes()), expected, "{name}");
    }
    for (name, to, head, says) in REPLIES {
        let head = head.replace('\n', "\r\n");
        compare(name, describe_reply(head.as_bytes(), *to), says);
        let expected = Replied::expected(head.as_bytes(), *to);
        assert_eq!(native.answers(&[head.as_bytes()], *to), [expected], "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    native.finish();
}

/// Requests and answers at random, whole.
#[test]
fn heads_by_the_dice() {
    let mut native = native();
    let seed = seed();
    let mut dice = Dice::new(seed);
    let (mut evaluated, mut answered) = (0, 0);
    for _ in 0..from_env("TIDEGATE_HEADS").map_or(HEADS_COUNT, |count| count as usize) {
        let head = heads::request(&mut dice);
        let expected = Recognised::expected(&head, &key());
        let said = shown(&head);
        evaluated += usize::from(expected.reason == reason::NONE);
        assert_eq!(native.request(&head), expected, "TIDEGATE_SEED={seed}: {said}");
        let head = heads::answer(&mut dice);
        let to = To { head: dice.one_in(4), connect: dice.one_in(4) };
        let expected = Replied::expected(&head, to);
        answered += usize::from(expected.is_some());
        let said = shown(&head);
        assert_eq!(native.answers(&[&head], to), [expected], "TIDEGATE_SEED={seed}: {said}");
    }
    println!("{evaluated} requests and {answered} answers were recognised");
    assert!(evaluated > HEADS_COUNT / 10 && answered > HEADS_COUNT / 10, "{evaluated}, {answered}");
    native.finish();
}

/// Cut anywhere: what was seen counts, what was not is not guessed.
#[test]
fn heads_cut_at_every_byte() {
    let mut native = native();
    let seed = seed();
    let mut dice = Dice::new(seed);
    for _ in 0..CUT_HEADS {
        let head = heads::request(&mut dice);
        let cut = cuts(&head);
        for (cut, found) in cut.iter().zip(native.requests(&cut)) {
            let said = shown(cut);
            assert_eq!(found, Recognised::expected(cut, &key()), "TIDEGATE_SEED={seed}: {said}");
        }
        let head = heads::answer(&mut dice);
        let cut = cuts(&head);
        for (cut, found) in cut.iter().zip(native.answers(&cut, To::default())) {
            let said = shown(cut);
            let expected = Replied::expected(cut, To::default());
            assert_eq!(found, expected, "TIDEGATE_SEED={seed}: {said}");
        }
    }
    native.finish();
}

/// Longer than what is looked at: bombs of fields, of one line, of cookies, of empty lines.
#[test]
fn bombs_are_cut_and_take_no_harm() {
    let mut native = native();
    let start = "GET / HTTP/1.1\r\nHost: a\r\n";
    let bombs = [
        format!("{start}{}\r\n", "a:\r\n".repeat(5000)),
        format!("{start}X: {}\r\n\r\n", "x".repeat(20_000)),
        format!("{start}{}: x\r\n\r\n", "x".repeat(20_000)),
        format!("{start}Cookie: {}\r\n\r\n", "a;".repeat(10_000)),
        format!("GET /{} HTTP/1.1\r\n\r\n", "p".repeat(20_000)),
        format!("{} / HTTP/1.1\r\n\r\n", "M".repeat(20_000)),
        "\r\n".repeat(10_000),
        " ".repeat(10_000),
    ];
    let expected =
        [reason::NONE; 4].into_iter().chain([reason::SPLIT; 2]).chain([reason::NOT_HTTP; 2]);
    for (bomb, expected) in bombs.iter().zip(expected) {
        let seen = &bomb.as_bytes()[..HEAD_MAX];
        let found = native.request(seen);
        assert_eq!((found.reason, found.head), (expected, 0), "{}", &bomb[..60]);
        assert_eq!(found, Recognised::expected(seen, &key()));
    }
    native.finish();
}

/// Chunked bodies end where they end, wherever packets cut them.
#[test]
fn chunked_bodies_cut_anywhere() {
    let mut native = native();
    let seed = seed();
    let mut dice = Dice::new(seed);
    let fresh = Follow { left: CHUNKED, ..Follow::default() };
    let mut ended = 0;
    for _ in 0..BODIES {
        let body = heads::chunked(&mut dice);
        let expected = body_expected(&body);
        ended += usize::from(expected.0 == FOLLOW_END);
        let first: Vec<_> = (0..=body.len()).map(|cut| (fresh, &body[..cut])).collect();
        let first = native.bodies(&first);
        let rest: Vec<_> =
            first.iter().enumerate().map(|(cut, (_, then))| (*then, &body[cut..])).collect();
        let rest = native.bodies(&rest);
        for (cut, (first, rest)) in first.iter().zip(&rest).enumerate() {
            let said = format!("TIDEGATE_SEED={seed}: {} at {cut}", shown(&body));
            let (outcome, used) = match first {
                (FOLLOW_MORE, then) => {
                    assert_eq!(then.used as usize, cut, "{said}");
                    (rest.0, cut + rest.1.used as usize)
                }
                (outcome, then) => (*outcome, then.used as usize),
            };
            let used = (outcome != FOLLOW_FAILED).then_some(used);
            assert_eq!((outcome, used), expected, "{said}");
        }
    }
    println!("{ended} of {BODIES} bodies end");
    assert!(ended > BODIES / 10, "{ended}");
    native.finish();
}

/// Bodies of a known length, on both sides of the end of a packet; and those without one.
#[test]
fn bodies_of_a_length() {
    let mut native = native();
    let cases = [
        (0, 0, FOLLOW_END, 0, 0),
        (0, 3, FOLLOW_END, 0, 0),
        (5, 4, FOLLOW_MORE, 1, 4),
        (5, 5, FOLLOW_END, 0, 5),
        (5, 6, FOLLOW_END, 0, 5),
        (1 << 40, 9, FOLLOW_MORE, (1 << 40) - 9, 9),
        (TO_CLOSE, 9, FOLLOW_MORE, TO_CLOSE, 9),
    ];
    for (left, bytes, outcome, left_then, used) in cases {
        let (found, follow) = native.body(Follow { left, ..Follow::default() }, &vec![0; bytes]);
        assert_eq!((found, follow.left, follow.used), (outcome, left_then, used), "{left} {bytes}");
    }
    native.finish();
}

/// A packet with more chunks than are walked: nobody can tell where the body ends.
#[test]
fn too_many_chunks_in_one_packet() {
    let mut native = native();
    let fresh = Follow { left: CHUNKED, ..Follow::default() };
    // seven steps each, and 2048 steps
    let chunk = b"1\r\nx\r\n";
    let (outcome, _) = native.body(fresh, &chunk.repeat(341));
    assert_eq!(outcome, FOLLOW_MORE);
    let (outcome, _) = native.body(fresh, &chunk.repeat(342));
    assert_eq!(outcome, FOLLOW_FAILED);
    native.finish();
}

/// Hellos: the table, then random ones, cut at every byte.
#[test]
fn names_of_tls() {
    let mut native = native();
    for (name, hello, says) in HELLOS {
        let hello = hello();
        let expected: Named = match says {
            Says::Name(server) => {
                let rest = http::Host(server.as_bytes().to_vec());
                let rest = rest.rest().map_or(0, |rest| key().hash(rest));
                (reason::NONE, [key().hash(server.as_bytes()), rest])
            }
            Says::Reason(reason) => (*reason, [0; 2]),
        };
        assert_eq!(named(&hello, &key()), expected, "{name}");
        assert_eq!(native.hellos(&[&hello]), [expected], "{name}");
    }
    let seed = seed();
    let mut dice = Dice::new(seed);
    let mut found = 0;
    for _ in 0..CUT_HEADS {
        let hello = heads::any_hello(&mut dice);
        let cut = cuts(&hello);
        for (cut, name) in cut.iter().zip(native.hellos(&cut)) {
            found += usize::from(name.0 == reason::NONE);
            let said = shown(cut);
            assert_eq!(name, named(cut, &key()), "TIDEGATE_SEED={seed}: {said}");
        }
    }
    println!("{found} names");
    assert!(found > CUT_HEADS, "{found}");
    native.finish();
}

/// User space computes what the kernel does.
#[test]
fn the_hash_of_a_text() {
    let mut native = native();
    let mut dice = Dice::new(seed());
    for length in 0..300 {
        let text = dice.bytes(length);
        assert_eq!(native.hash(&text), key().hash(&text), "{length} bytes");
    }
    native.finish();
}

#[test]
fn rules_that_a_person_can_read() {
    let mut native = native();
    for (name, rules, head, expected) in RULES {
        let (rules, head) = (rules(), head.replace('\n', "\r\n"));
        let tables = Tables::of(&rules, key());
        native.rules(&tables);
        assert_eq!(expected_rule(&rules, head.as_bytes()), Some(*expected), "{name}");
        assert_eq!(native.find(&tables, head.as_bytes()).1, *expected, "{name}");
    }
    native.finish();
}

/// TLS connections meet rules of TLS only, requests those of HTTP.
#[test]
fn rules_of_tls() {
    let mut native = native();
    let exact = |name: &str| Some(HostTest::Exact(name.into()));
    let hosts = [exact("api.example"), Some(HostTest::Below(b".example".to_vec()))];
    let any = [exact("api.example"), None];
    let cases: [(&[_], &str, Found); 5] = [
        (&hosts, "API.example", Found::Rule(0, false)),
        (&hosts, "a.example", Found::Rule(1, false)),
        (&hosts, "a.b.example", Found::NoRule),
        (&hosts, "example", Found::NoRule),
        (&any, "example", Found::Rule(1, false)),
    ];
    for (hosts, name, expected) in cases {
        let tables = Tables::of_tls(hosts, key());
        native.rules(&tables);
        let hello = heads::hello(&heads::server_name(name.as_bytes()), 0);
        assert_eq!(native.find_tls(&tables, &hello).1, expected, "{name}");
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        assert_eq!(native.find(&tables, request.as_bytes()).1, Found::NoRule, "{name}");
    }
    let rules = [Rule { path: b"/".to_vec(), methods: 255, ..Rule::default() }];
    let tables = Tables::of(&rules, key());
    native.rules(&tables);
    let hello = heads::hello(&heads::server_name(b"example"), 0);
    assert_eq!(native.find_tls(&tables, &hello).1, Found::NoRule);
    native.finish();
}

/// Rules and requests at random, cut anywhere.
#[test]
fn rules_by_the_dice() {
    let mut native = native();
    let seed = seed();
    let mut dice = Dice::new(seed);
    let (mut ruled, mut split) = (0, 0);
    for _ in 0..RULE_SETS {
        let count = 1 + dice.below(20);
        let rules: Vec<Rule> = (0..count).map(|_| rule(&mut dice)).collect();
        let tables = Tables::of(&rules, key());
        native.rules(&tables);
        for _ in 0..RULE_HEADS {
            let mut head = heads::request(&mut dice);
            if dice.one_in(3) {
                head.truncate(1 + dice.below(head.len()));
            }
            let Some(expected) = expected_rule(&rules, &head) else { continue };
            let said = format!("TIDEGATE_SEED={seed}: {rules:?} {}", shown(&head));
            assert_eq!(native.find(&tables, &head).1, expected, "{said}");
            ruled += usize::from(matches!(expected, Found::Rule(..)));
            split += usize::from(expected == Found::Split);
        }
    }
    println!("{ruled} found a rule, {split} depend on what was not seen");
    assert!(ruled > RULE_SETS && split > RULE_SETS, "{ruled}, {split}");
    native.finish();
}

/// `struct recognise_args`, but for what is asked of rules.
fn arguments(call: u8, to: u32, follow: Follow) -> Vec<u8> {
    let words = [u32::from(call), to, 0, 0];
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    words.chain(follow.bytes()).collect()
}

/// The recogniser in the kernel: the result and the scratch afterwards.
struct Kernel(Loaded);

impl Kernel {
    /// Offset of `struct tg_http` in `struct tg_head`, and of what follows it.
    const HTTP: usize = 200;
    const REPLY: usize = Self::HTTP + 40;
    const KEY: usize = Self::REPLY + 16;
    const PAIRS: usize = Self::KEY + 128;

    fn call(&self, call: u8, to: u32, follow: Follow, bytes: &[u8]) -> Vec<u8> {
        self.run(&[&arguments(call, to, follow)[..], &[0; 24]].concat(), bytes)
    }

    /// The arguments afterwards.
    fn run(&self, arguments: &[u8], bytes: &[u8]) -> Vec<u8> {
        self.0.write("args", arguments);
        let frame = [&[0; 14][..], bytes].concat();
        assert_eq!(self.0.run_frame("recognise", &frame), -1, "{}", shown(bytes));
        self.0.read("args")
    }

    fn result(args: &[u8]) -> u32 {
        Reader(&args[8..]).u32()
    }

    fn request(&self, head: &[u8]) -> Recognised {
        let reason = Self::result(&self.call(b'q', 0, Follow::default(), head));
        let scratch = self.0.read("scratch");
        let (mut found, path, pairs) = Reader(&scratch[Self::HTTP..]).http(reason);
        found.path = scratch[Self::KEY + 6..][..path].to_vec();
        found.cookies = Reader(&scratch[Self::PAIRS..]).pairs(pairs);
        found.settled()
    }

    fn answer(&self, head: &[u8], to: To) -> Option<Replied> {
        let failed = Self::result(&self.call(b'a', to_bits(to), Follow::default(), head)) != 0;
        let scratch = self.0.read("scratch");
        (!failed).then(|| Replied::read(&scratch[Self::REPLY..]))
    }

    fn hello(&self, hello: &[u8]) -> Named {
        let reason = Self::result(&self.call(b't', 0, Follow::default(), hello));
        let scratch = self.0.read("scratch");
        let (found, _, _) = Reader(&scratch[Self::HTTP..]).http(reason);
        (reason, if reason == reason::NONE { found.host } else { [0; 2] })
    }

    /// The rule of what was recognised last.
    fn find(&self, tables: &Tables) -> Found {
        let arguments = arguments(b'f', 0, Follow::default());
        let args = self.run(&[arguments, tables.asked(false)].concat(), b" ");
        Tables::found(Self::result(&args), &args[32..])
    }

    fn body(&self, follow: Follow, packet: &[u8]) -> (u32, Follow) {
        let args = self.call(b'b', 0, follow, packet);
        (Self::result(&args), Follow::read(&args[16..]))
    }
}

/// What every compiler makes of it says the same as the reference, and stays within what a hook
/// can spare.
#[test]
fn the_kernel_agrees() {
    require_root();
    let zero = Key([0; 6]);
    let seed = seed();
    for compiler in COMPILERS {
        let kernel = Kernel(Loaded::compile("bpf/tests/recognise.bpf.c", compiler));
        let verified = kernel.0.verified("recognise");
        println!("{compiler}: {verified} instructions");
        assert!(verified <= INSTRUCTIONS_MAX, "{compiler}: {verified} instructions");
        let mut dice = Dice::new(seed);
        let count = if compiler == COMPILER_DEFAULT { KERNEL_HEADS * 2 } else { KERNEL_HEADS };
        for _ in 0..count {
            let head = heads::request(&mut dice);
            let said = format!("{compiler} TIDEGATE_SEED={seed}: {}", shown(&head));
            assert_eq!(kernel.request(&head), Recognised::expected(&head, &zero), "{said}");
            let head = heads::answer(&mut dice);
            let said = format!("{compiler} TIDEGATE_SEED={seed}: {}", shown(&head));
            let to = To { head: dice.one_in(4), connect: dice.one_in(4) };
            assert_eq!(kernel.answer(&head, to), Replied::expected(&head, to), "{said}");
            let hello = heads::any_hello(&mut dice);
            let said = format!("{compiler} TIDEGATE_SEED={seed}: {}", shown(&hello));
            assert_eq!(kernel.hello(&hello), named(&hello, &zero), "{said}");
            let body = heads::chunked(&mut dice);
            let said = format!("{compiler} TIDEGATE_SEED={seed}: {}", shown(&body));
            let fresh = Follow { left: CHUNKED, ..Follow::default() };
            let (outcome, follow) = kernel.body(fresh, &body);
            let used = (outcome != FOLLOW_FAILED).then_some(follow.used as usize);
            assert_eq!((outcome, used), body_expected(&body), "{said}");
        }
    }
}

/// Tables of the kernel find the same rules as the reference.
#[test]
fn the_kernel_finds_the_rule() {
    require_root();
    let zero = Key([0; 6]);
    let seed = seed();
    let mut dice = Dice::new(seed);
    for _ in 0..KERNEL_RULE_SETS {
        let kernel = Kernel(Loaded::compile("bpf/tests/recognise.bpf.c", COMPILER_DEFAULT));
        let count = 1 + dice.below(20);
        let rules: Vec<Rule> = (0..count).map(|_| rule(&mut dice)).collect();
        let tables = Tables::of(&rules, zero);
        for (map, key, value) in tables.entries() {
            kernel.0.put(map, key, value);
        }
        for _ in 0..RULE_HEADS * 3 {
            let mut head = heads::request(&mut dice);
            if dice.one_in(3) {
                head.truncate(1 + dice.below(head.len()));
            }
            let Some(expected) = expected_rule(&rules, &head) else { continue };
            let said = format!("TIDEGATE_SEED={seed}: {rules:?} {}", shown(&head));
            assert_eq!(kernel.request(&head).reason, reason::NONE, "{said}");
            assert_eq!(kernel.find(&tables), expected, "{said}");
        }
    }
}

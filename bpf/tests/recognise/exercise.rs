// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the recogniser is given and what the reference expects of it: shared by its tests, by the
//! measure of what they reach, and by the bugs that they must find.
#![allow(dead_code, reason = "each test file uses a part")]

use crate::support::cases::heads::{HEADS, HELLOS, REPLIES, RULES};
use crate::support::heads;
use crate::support::random::Dice;
use crate::support::recogniser::{
    CHUNKED, FOLLOW_END, FOLLOW_FAILED, FOLLOW_MORE, Follow, Key, Native, Recognised, Replied,
    TO_CLOSE, Tables, named, reason,
};
use crate::support::reference::http::{self, Stop, To};
use crate::support::reference::rules::{self, CookieTest, Found, HostTest, Rule};

pub(crate) fn key() -> Key {
    let mut dice = Dice::new(1);
    Key(std::array::from_fn(|_| dice.u64()))
}

/// All beginnings of a head, the empty one excepted.
pub(crate) fn cuts(head: &[u8]) -> Vec<&[u8]> {
    (1..=head.len()).map(|length| &head[..length]).collect()
}

/// How much of a body the reference sees in these bytes, as the C counts it.
pub(crate) fn body_expected(bytes: &[u8]) -> (u32, Option<usize>) {
    match http::chunked(bytes) {
        Ok(used) => (FOLLOW_END, Some(used)),
        Err(Stop::Cut) => (FOLLOW_MORE, Some(bytes.len())),
        Err(_) => (FOLLOW_FAILED, None),
    }
}

fn cookie_tests(dice: &mut Dice) -> Vec<CookieTest> {
    const TESTS: [(&[u8], Option<&[u8]>); 6] = [
        (b"session", None),
        (b"premium", Some(b"gold")),
        (b"a", Some(b"1")),
        (b"b", Some(b"\"2\"")),
        (b"d", Some(b"")),
        (b"z", None),
    ];
    let count = *dice.pick(&[0, 0, 0, 1, 2]);
    (0..count)
        .map(|_| {
            let (name, value) = *dice.pick(&TESTS);
            CookieTest { name: name.to_vec(), value: value.map(<[u8]>::to_vec) }
        })
        .collect()
}

pub(crate) fn rule(dice: &mut Dice) -> Rule {
    const PATHS: [&[u8]; 6] = [b"/", b"/c", b"/cgi-bin/", b"/cart", b"/cgi-bin/search", b"/ppp"];
    const HOSTS: [&[u8]; 3] = [b"shop.example", b"[2001:db8::a]", b"localhost"];
    let host = match dice.below(6) {
        0 => Some(HostTest::Exact(dice.pick(&HOSTS).to_vec())),
        1 => Some(HostTest::Below(b".example".to_vec())),
        _ => None,
    };
    Rule {
        path: dice.pick(&PATHS).to_vec(),
        methods: *dice.pick(&[255, 255, 1, 5, 128]),
        host,
        all: cookie_tests(dice),
        none: cookie_tests(dice),
        protect: cookie_tests(dice),
    }
}

/// The rule that a request meets, if its line was seen.
pub(crate) fn expected_rule(rules: &[Rule], head: &[u8]) -> Option<Found> {
    let expected = Recognised::expected(head, &key());
    let evaluated = expected.reason == reason::NONE && !expected.ambiguous;
    evaluated.then(|| rules::find(rules, &http::request(head).0, expected.method))
}

/// Heads, bodies, hellos and sets of rules at random in [`first_wrong`].
const DICE: (usize, usize, usize, usize) = (3_000, 300, 60, 20);
/// Heads that are cut at every byte there.
const CUT: usize = 30;

fn heads_and_answers(native: &mut Native) -> Option<String> {
    let mut dice = Dice::new(7);
    let request = |native: &mut Native, head: &[u8]| {
        let wrong = native.request(head) != Recognised::expected(head, &key());
        wrong.then(|| format!("request {}", head.escape_ascii()))
    };
    let answer = |native: &mut Native, head: &[u8], to: To| {
        let wrong = native.answers(&[head], to) != [Replied::expected(head, to)];
        wrong.then(|| format!("answer {}", head.escape_ascii()))
    };
    for (_, head, _) in HEADS {
        let head = head.replace('\n', "\r\n").replace('¶', "\n");
        if let Some(wrong) = request(native, head.as_bytes()) {
            return Some(wrong);
        }
    }
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: no pair\r\n\r\n",
        "GET /aaaa?bbbbbbbbbbbbbbbb cccccccc HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: aaaaaaaaaaaaaaaa\x7faaaaaaaaaaaaaaaa\r\n\r\n",
    ] {
        if let Some(wrong) = request(native, head.as_bytes()) {
            return Some(wrong);
        }
    }
    for (_, to, head, _) in REPLIES {
        if let Some(wrong) = answer(native, head.replace('\n', "\r\n").as_bytes(), *to) {
            return Some(wrong);
        }
    }
    for n in 0..DICE.0 {
        let (head, reply) = (heads::request(&mut dice), heads::answer(&mut dice));
        let to = To { head: dice.one_in(4), connect: dice.one_in(4) };
        let wrong = request(native, &head).or_else(|| answer(native, &reply, to));
        if wrong.is_some() {
            return wrong;
        }
        for cut in if n < CUT { cuts(&head) } else { Vec::new() } {
            if let Some(wrong) = request(native, cut) {
                return Some(wrong);
            }
        }
    }
    None
}

fn hellos(native: &mut Native) -> Option<String> {
    let mut dice = Dice::new(8);
    let hello = |native: &mut Native, hello: &[u8]| {
        let wrong = native.hellos(&[hello])[0] != named(hello, &key());
        wrong.then(|| format!("hello {}", hello.escape_ascii()))
    };
    for (_, bytes, _) in HELLOS {
        if let Some(wrong) = hello(native, &bytes()) {
            return Some(wrong);
        }
    }
    // Lengths of the extension, of the list and of the name that do not agree.
    let name = b"a.example";
    for back in [6, 4, 1] {
        for by in [1, u8::MAX] {
            let mut bytes = heads::hello(&heads::server_name(name), 0);
            let at = bytes.len() - name.len() - back;
            bytes[at] = bytes[at].wrapping_add(by);
            if let Some(wrong) = hello(native, &bytes) {
                return Some(wrong);
            }
        }
    }
    // What looks like a name behind the extensions, in the same record.
    let mut behind = heads::hello(b"", 0);
    behind.extend(heads::server_name(name));
    let record = (behind.len() - 5) as u16;
    behind[3..5].copy_from_slice(&record.to_be_bytes());
    if let Some(wrong) = hello(native, &behind) {
        return Some(wrong);
    }
    for _ in 0..DICE.2 {
        let bytes = heads::any_hello(&mut dice);
        if let Some(wrong) = cuts(&bytes).into_iter().find_map(|cut| hello(native, cut)) {
            return Some(wrong);
        }
    }
    None
}

fn bodies(native: &mut Native) -> Option<String> {
    let mut dice = Dice::new(10);
    for left in [0, 5, TO_CLOSE] {
        let (found, follow) = native.body(Follow { left, ..Follow::default() }, &[0; 6]);
        let expected = match left {
            TO_CLOSE => (FOLLOW_MORE, 6),
            _ => (FOLLOW_END, left as u32),
        };
        if (found, follow.used) != expected {
            return Some(format!("a body of {left} bytes"));
        }
    }
    let fresh = Follow { left: CHUNKED, ..Follow::default() };
    let known = [
        "1;x\u{1}\r\n",
        "1 \r\nx\r\n0\r\n\r\n",
        "1\rx",
        "1\r\nxx",
        "1\r\nx\rx",
        "0\r\nX: 1\rx",
        "0\r\nX: \u{1}",
        "0\r\n\rx",
        "0\r\n:",
        "g",
        "1g",
    ];
    for n in 0..DICE.1 + known.len() {
        let by_dice = || heads::chunked(&mut dice);
        let body = known.get(n).map_or_else(by_dice, |text| text.as_bytes().to_vec());
        let (first, rest) = body.split_at(dice.below(body.len() + 1));
        let (mut outcome, mut then) = native.body(fresh, first);
        let mut used = then.used as usize;
        if outcome == FOLLOW_MORE {
            (outcome, then) = native.body(then, rest);
            used += then.used as usize;
        }
        let used = (outcome != FOLLOW_FAILED).then_some(used);
        if (outcome, used) != body_expected(&body) {
            return Some(format!("chunks {}", body.escape_ascii()));
        }
    }
    None
}

fn finding_rules(native: &mut Native) -> Option<String> {
    let mut dice = Dice::new(9);
    let mut sets: Vec<(Vec<Rule>, Vec<Vec<u8>>)> = RULES
        .iter()
        .map(|(_, rules, head, _)| (rules(), vec![head.replace('\n', "\r\n").into_bytes()]))
        .collect();
    sets.extend((0..DICE.3).map(|_| {
        let count = 1 + dice.below(20);
        let rules = (0..count).map(|_| rule(&mut dice)).collect();
        let mut head = || {
            let mut head = heads::request(&mut dice);
            if dice.one_in(3) {
                head.truncate(1 + dice.below(head.len()));
            }
            head
        };
        (rules, (0..100).map(|_| head()).collect())
    }));
    for (rules, heads) in sets {
        let tables = Tables::of(&rules, key());
        native.rules(&tables);
        for head in heads {
            let Some(expected) = expected_rule(&rules, &head) else { continue };
            if native.find(&tables, &head).1 != expected {
                return Some(format!("rules {rules:?}: {}", head.escape_ascii()));
            }
        }
    }
    let hosts =
        [Some(HostTest::Exact("api.example".into())), Some(HostTest::Below(b".a".to_vec()))];
    let tables = Tables::of_tls(&hosts, key());
    native.rules(&tables);
    let expected = [
        ("API.example", Found::Rule(0, false)),
        ("x.a", Found::Rule(1, false)),
        ("a", Found::NoRule),
    ];
    for (name, expected) in expected {
        let hello = heads::hello(&heads::server_name(name.as_bytes()), 0);
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let found =
            (native.find_tls(&tables, &hello).1, native.find(&tables, request.as_bytes()).1);
        if found != (expected, Found::NoRule) {
            return Some(format!("rules of TLS: {name}"));
        }
    }
    None
}

/// Everything, in small: the first thing of which the recogniser says something else than the
/// reference.
pub(crate) fn first_wrong(native: &mut Native) -> Option<String> {
    heads_and_answers(native)
        .or_else(|| hellos(native))
        .or_else(|| bodies(native))
        .or_else(|| finding_rules(native))
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `tidegate rules test` shows is what the hooks do: for the same rules and the same request,
//! [`RequestHead::parse`] with [`RequestsConfig::select`] and the C (bpf/http/http.h, rule.h) name
//! the same rule, protected or not, or the same reason why no rule of its own evaluates it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::cases::heads::HEADS;
use support::heads;
use support::random::{Dice, from_env, seed};
use support::recogniser::{Key, Native, Tables, method_bit, reason};
use support::reference::rules::{CookieTest, Found, HostTest, Rule};
use tidegate_bpf::testing::plans;
use tidegate_config::{
    Cookie, CookieMatch, HostPattern, Method, RequestHead, RequestsConfig, RuleConfig, Unevaluated,
};
use tidegate_policy::Reason;

/// Sets of rules at random, and requests for each, of which about a third are hostile;
/// `TIDEGATE_HEADS` makes it more requests.
const RULE_SETS: usize = 60;
const RULE_HEADS: usize = 300;

/// A request as `rules test` is asked about it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    line: String,
    headers: Vec<String>,
}

impl Asked {
    fn new(line: &str, headers: &[&str]) -> Self {
        let headers = headers.iter().map(|header| (*header).to_owned()).collect();
        Self { line: line.to_owned(), headers }
    }

    /// What of a head can be asked about: text, from its first line to its end.
    fn of(head: &[u8]) -> Option<Self> {
        let text = String::from_utf8(head.to_vec()).ok()?;
        let (head, _) = text.trim_start_matches("\r\n").split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n").map(str::to_owned);
        Some(Self { line: lines.next()?, headers: lines.collect() })
    }

    /// As a client sends it, as much of it as the hooks look at.
    fn sent(&self) -> Vec<u8> {
        // The end of the line may be given, too.
        let line = self.line.trim_end_matches(['\r', '\n']);
        let lines = std::iter::once(line).chain(self.headers.iter().map(String::as_str));
        let mut bytes: Vec<u8> =
            lines.flat_map(|line| [line.as_bytes(), b"\r\n"].concat()).collect();
        bytes.extend(b"\r\n");
        bytes.truncate(support::recogniser::HEAD_MAX);
        bytes
    }
}

/// What is said of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Place of the rule, and whether a cookie protects.
    Rule(usize, bool),
    NoRule,
    Unevaluated(Unevaluated),
}

/// What `rules test` prints.
fn shown(rules: &RequestsConfig, asked: &Asked) -> Said {
    let head = match RequestHead::parse(&asked.line, &asked.headers) {
        Ok(head) => head,
        Err(unevaluable) => return Said::Unevaluated(unevaluable.reason),
    };
    let selection = rules.select(&head);
    match (selection.unevaluated, selection.rule) {
        (Some(reason), rule) => {
            assert_eq!(rule, rules.unevaluable_rule(), "{asked:?}");
            Said::Unevaluated(reason)
        }
        (None, Some(rule)) => Said::Rule(rule, selection.protected_by.is_some()),
        (None, None) => Said::NoRule,
    }
}

/// What the C says.
fn done(native: &mut Native, tables: &Tables, asked: &Asked) -> Said {
    let bytes = asked.sent();
    let recognised = native.request(&bytes);
    match recognised.reason {
        reason::NONE if recognised.ambiguous => {
            return Said::Unevaluated(Unevaluated::AmbiguousPath);
        }
        reason::NONE => {}
        reason::HTTP2 => return Said::Unevaluated(Unevaluated::Http2),
        reason::SPLIT => return Said::Unevaluated(Unevaluated::Split),
        reason::NOT_HTTP => return Said::Unevaluated(Unevaluated::NotHttp),
        other => panic!("reason {other}: {asked:?}"),
    }
    match native.find(tables, &bytes).1 {
        Found::Rule(rule, protected) => Said::Rule(rule, protected),
        Found::NoRule => Said::NoRule,
        Found::Split => Said::Unevaluated(Unevaluated::Split),
    }
}

fn key() -> Key {
    let mut dice = Dice::new(1);
    Key(std::array::from_fn(|_| dice.u64()))
}

/// The rule for the test's own tables.
fn raw(rule: &RuleConfig) -> Rule {
    let test = |cookie: &Cookie| CookieTest {
        name: cookie.name.clone().into_bytes(),
        value: cookie.value.clone().map(String::into_bytes),
    };
    let asked = |absent| {
        let cookie = rule.cookie.iter().filter(|cookie| cookie.absent == absent);
        cookie.map(|cookie| test(&cookie.cookie())).collect()
    };
    let bits = rule.methods.iter().map(|method| method_bit(method.name().as_bytes()));
    Rule {
        path: rule.path.as_ref().unwrap().as_str().into(),
        methods: if rule.methods.is_empty() { 255 } else { bits.fold(0, |all, bit| all | bit) },
        host: rule.host.as_ref().map(raw_host),
        all: asked(false),
        none: asked(true),
        protect: rule.protect.iter().map(test).collect(),
    }
}

fn raw_host(host: &HostPattern) -> HostTest {
    if host.below {
        HostTest::Below(format!(".{}", host.name).into_bytes())
    } else {
        HostTest::Exact(host.name.clone().into_bytes())
    }
}

fn cookie(dice: &mut Dice) -> Cookie {
    const COOKIES: [(&str, Option<&str>); 7] = [
        ("session", None),
        ("premium", Some("gold")),
        ("a", Some("1")),
        ("a", None),
        ("d", Some("")),
        ("w", None),
        ("z", None),
    ];
    let (name, value) = *dice.pick(&COOKIES);
    Cookie { name: name.to_owned(), value: value.map(str::to_owned) }
}

fn rule(dice: &mut Dice) -> RuleConfig {
    const PATHS: [&str; 8] =
        ["/", "/c", "/cgi-bin/", "/cart", "/cgi-bin/search", "/ppp", "/%C3%A9", "/b"];
    const HOSTS: [&str; 6] =
        ["shop.example", "[2001:db8::a]", "localhost", "*.example", "*.b.c", "a"];
    const METHODS: [&[Method]; 5] =
        [&[], &[], &[Method::Get], &[Method::Get, Method::Post], &[Method::Other]];
    let wanted =
        |cookie: Cookie, absent| CookieMatch { name: cookie.name, value: cookie.value, absent };
    let (absent, path) = (dice.one_in(2), *dice.pick(&PATHS));
    RuleConfig {
        methods: dice.pick(&METHODS).to_vec(),
        host: dice.one_in(3).then(|| dice.pick(&HOSTS).parse().unwrap()),
        cookie: dice.one_in(3).then(|| wanted(cookie(dice), absent)),
        protect: (0..dice.below(3)).map(|_| cookie(dice)).collect(),
        ..plans::rule(path, Some("all"))
    }
}

/// A request that most servers would serve, of what [`rule`] asks for.
fn sound(dice: &mut Dice) -> Asked {
    const METHODS: [&str; 6] = ["GET", "GET", "POST", "HEAD", "DELETE", "BREW"];
    const TARGETS: [&str; 9] = [
        "/",
        "/cart",
        "/cart?x=/../a",
        "/cgi-bin/./search",
        "//cgi-bin/x/../",
        "/c%61rt/1",
        "/\u{e9}/%c3%a9",
        "http://localhost:80/b",
        "/bb",
    ];
    const HEADERS: [&str; 9] = [
        "Host: shop.example",
        "Host: LOCALHOST:8080",
        "Host: x.example",
        "Host: a",
        "Cookie: session=1; a=1",
        "Cookie: premium=gold;w",
        "Cookie: d=; a=2; premium=silver",
        "Accept: */*",
        "Content-Length: 0",
    ];
    let line = format!("{} {} HTTP/1.1", dice.pick(&METHODS), dice.pick(&TARGETS));
    let headers: Vec<&str> = (0..dice.below(5)).map(|_| *dice.pick(&HEADERS)).collect();
    Asked::new(&line, &headers)
}

/// Rules in force for both.
fn in_force(native: &mut Native, mut rules: Vec<RuleConfig>) -> (RequestsConfig, Tables) {
    let raws: Vec<Rule> = rules.iter().map(raw).collect();
    let tables = Tables::of(&raws, key());
    native.rules(&tables);
    rules.push(plans::unevaluable_rule(Some("all")));
    (plans::requests(&["all"], rules), tables)
}

/// Rules that ask for everything a rule can ask for.
fn every_kind() -> Vec<RuleConfig> {
    let on = |path: &str, change: &dyn Fn(&mut RuleConfig)| {
        let mut rule = plans::rule(path, Some("all"));
        change(&mut rule);
        rule
    };
    let wants = |name: &str, absent| CookieMatch { name: name.into(), value: None, absent };
    vec![
        on("/cgi-bin/", &|r| r.host = "*.shop.example".parse().ok()),
        on("/cgi-bin/", &|r| r.methods = vec![Method::Get, Method::Other]),
        on("/cart", &|r| r.cookie = Some(wants("session", false))),
        on("/cart", &|r| r.cookie = Some(wants("bot", true))),
        on(&format!("/{}", "p".repeat(119)), &|_| ()),
        on("/", &|r| r.host = "shop.example".parse().ok()),
        on("/", &|r| {
            r.cookie = Some(CookieMatch { value: Some("1".into()), ..wants("a", false) });
            r.protect = vec![Cookie { name: "premium".into(), value: Some("gold".into()) }];
        }),
        on("/x", &|_| ()),
    ]
}

/// Request lines that could be read in different ways.
const LINES: &[&str] = &[
    " ",
    "GET",
    "GET /",
    "GET / ",
    "GET  / HTTP/1.1",
    " GET / HTTP/1.1",
    "GET / HTTP/1.1 ",
    "GET / HTTP/1.2",
    "GET / HTTP/0.9",
    "GET / HTTP/2.0",
    "GET / http/1.1",
    "GET / HTTP/1.10",
    "PRI * HTTP/2.0",
    "PRI / HTTP/2.0",
    "PRI *x HTTP/2.0",
    "pri * HTTP/2.0",
    "PRI * HTTP/1.1",
    "G(T / HTTP/1.1",
    "g / HTTP/1.0",
    "M!#$%&'*+-.^_`|~9 /cgi-bin/ HTTP/1.1",
    "GET * HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "CONNECT shop.example:443 HTTP/1.1",
    "GET http:/x HTTP/1.1",
    "GET http: HTTP/1.1",
    "GET http:// HTTP/1.1",
    "GET : HTTP/1.1",
    "GET http:///x HTTP/1.1",
    "GET HTTP://Shop.Example HTTP/1.1",
    "GET http://x.example:1?x HTTP/1.1",
    "GET https://shop.example#x HTTP/1.1",
    "GET ftp://shop.example/ HTTP/1.1",
    "GET HTTP://u@shop.example/ HTTP/1.1",
    "GET http://shop.example:x/ HTTP/1.1",
    "GET http://shop.example:/cart HTTP/1.1",
    "GET http://[::1]:80/x HTTP/1.1",
    "GET http://[::1/x HTTP/1.1",
    "GET http://[::1]x/x HTTP/1.1",
    "GET http://[]/x HTTP/1.1",
    "GET /x?a=/../.. HTTP/1.1",
    "GET /x#;/.. HTTP/1.1",
    "GET ?x HTTP/1.1",
    "GET //x HTTP/1.1",
    "GET /x/.. HTTP/1.1",
    "GET /.. HTTP/1.1",
    "GET /%2e%2e/x HTTP/1.1",
    "GET /%2F HTTP/1.1",
    "GET /a;b HTTP/1.1",
    "GET /a\\b HTTP/1.1",
    "GET /a%5Cb HTTP/1.1",
    "GET /%zz HTTP/1.1",
    "GET /% HTTP/1.1",
    "GET /%4 HTTP/1.1",
    "GET /%00 HTTP/1.1",
    "GET /%7F HTTP/1.1",
    "GET /\u{e9} HTTP/1.1",
    "GET /%63art HTTP/1.1",
    "GET /a\tb HTTP/1.1",
    "GET /\u{7f} HTTP/1.1",
];
/// Values of Host.
const HOSTS: &[&str] = &[
    "",
    " ",
    "shop.example",
    "SHOP.example:80",
    "a.shop.example",
    ".shop.example",
    "a.b.shop.example",
    "shop.example:",
    "shop.example:8x",
    ":80",
    "a b",
    "a,b",
    "u@a",
    "a/b",
    "[::1]",
    "[::1]:80",
    "[::1",
    "[]",
    "[::g]",
    "[::1]x",
    "a:1:2",
    "\u{e9}",
    "a%41",
    "a\t",
    "shop.example.",
];
/// Headers.
const FIELDS: &[&[&str]] = &[
    &["Cookie: session"],
    &["Cookie: session="],
    &["Cookie: session=1; bot"],
    &["Cookie: a=1;premium=gold"],
    &["Cookie: a=1", "Cookie: premium=gold"],
    &["Cookie: a = 1"],
    &["Cookie: a=1 2"],
    &["Cookie:;;a=1;"],
    &["COOKIE:\ta=1\t"],
    &["Cookie: a=\"1\""],
    &["Cookie: =1; =; a==1"],
    &["Cookie: A=1"],
    &["Cookie: a=1\u{e9}"],
    &["Cookie: a=1,premium=gold"],
    &["cookie:"],
    &["Cookie: ses\u{e9}sion"],
    &["Host: a", "host: a"],
    &["Host : a"],
    &[" Host: a"],
    &["Host"],
    &[": a"],
    &["H\u{e9}: a"],
    &["X: a\0"],
    &["X: a\u{7f}"],
    &["X: a\u{1}b"],
    &["X:\u{e9}"],
    &["X: a\rb"],
    &["X: a\nb"],
    &["Content-Length: 5"],
    &["Content-Length: 05 "],
    &["Content-Length:"],
    &["Content-Length: +5"],
    &["Content-Length: 5, 5"],
    &["Content-Length: 5", "Content-Length: 5"],
    &["Content-Length: 999999999999999999"],
    &["Content-Length: 1000000000000000000"],
    &["Content-Length: 0000000000000000000000000000005"],
    &["Content-Length: 99999999999999999999999999"],
    &["Transfer-Encoding: chunked"],
    &["Transfer-Encoding: CHUNKED\t"],
    &["Transfer-Encoding: gzip, chunked"],
    &["Transfer-Encoding: chunked;x"],
    &["Transfer-Encoding: chunked", "Content-Length: 5"],
    &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    &["Transfer-Encoding:"],
    &["Connection: \"close\",,x"],
    &["Expect: x"],
    &["Upgrade: x"],
];

/// Odd requests, each for a part that the two could read in different ways.
fn odd() -> Vec<Asked> {
    let mut all: Vec<Asked> = LINES.iter().map(|line| Asked::new(line, &[])).collect();
    for host in HOSTS {
        for path in ["/", "/cgi-bin/x", "/cart"] {
            all.push(Asked::new(&format!("GET {path} HTTP/1.1"), &[&format!("Host: {host}")]));
        }
    }
    for headers in FIELDS {
        for line in [
            "GET /cart HTTP/1.1",
            "POST / HTTP/1.0",
            "GET http://shop.example/cart HTTP/1.1",
            "GET /a;b HTTP/1.1",
        ] {
            all.push(Asked::new(line, headers));
        }
    }
    all
}

/// Paths about as long as what is compared, and about as many cookies as are looked at.
fn many() -> Vec<Asked> {
    let mut all = Vec::new();
    for length in 112..128 {
        for end in ["", "/", "/..", "/../x", "/../../x", "/.", "//", "%70", "/%2e%2e/b"] {
            let letters = "p".repeat(length);
            all.push(Asked::new(&format!("GET /{letters}{end} HTTP/1.1"), &[]));
        }
    }
    for cookies in 126..131 {
        for end in ["", "session", "no pair", "premium=gold; session"] {
            for path in ["/cart", "/x", "/"] {
                let header = format!("Cookie: {}{end}", "a=1; ".repeat(cookies));
                all.push(Asked::new(&format!("GET {path} HTTP/1.1"), &[&header]));
            }
        }
    }
    all
}

/// Heads about as long as what is looked at, by lines and fields.
fn long() -> Vec<Asked> {
    let mut all = Vec::new();
    for length in 4040..4110 {
        let line = format!("GET /x?{} HTTP/1.1", "q".repeat(length - 30));
        all.push(Asked::new(&line, &[]));
        let filler = format!("X: {}", "x".repeat(length - 60));
        for (line, header) in [
            ("GET /x HTTP/1.1", "Host: b"),
            ("GET /cart HTTP/1.1", "Cookie: session=1"),
            ("GET http://a.shop.example/cgi-bin/ HTTP/1.1", "Y: y"),
        ] {
            all.push(Asked::new(line, &[header, &filler]));
        }
        all.push(Asked::new("GET /x HTTP/1.1", &[&filler, "Host: b"]));
    }
    all
}

fn compare(
    native: &mut Native,
    (rules, tables): (&RequestsConfig, &Tables),
    asked: &Asked,
) -> Said {
    let (shown, done) = (shown(rules, asked), done(native, tables, asked));
    let rules: Vec<String> = rules.rules.iter().map(ToString::to_string).collect();
    assert_eq!(shown, done, "shown and done; TIDEGATE_SEED={}: {rules:?} {asked:?}", seed());
    done
}

#[test]
fn odd_requests_meet_the_rule_that_is_shown() {
    let mut native = Native::start(key());
    let (rules, tables) = in_force(&mut native, every_kind());
    let known = HEADS.iter().filter_map(|(_, head, _)| {
        Asked::of(head.replace('\n', "\r\n").replace('¶', "\n").as_bytes())
    });
    let mut seen: Vec<Said> = Vec::new();
    for asked in odd().into_iter().chain(many()).chain(long()).chain(known) {
        let said = compare(&mut native, (&rules, &tables), &asked);
        if !seen.contains(&said) {
            seen.push(said);
        }
    }
    for reason in Unevaluated::ALL.into_iter().filter(|reason| *reason != Unevaluated::Tls) {
        assert!(seen.contains(&Said::Unevaluated(reason)), "{reason:?} was never said");
    }
    let met =
        |at: &usize| seen.iter().any(|said| matches!(said, Said::Rule(rule, _) if rule == at));
    let missed: Vec<usize> = (0..every_kind().len()).filter(|at| !met(at)).collect();
    assert!(missed.is_empty(), "no request meets the rules {missed:?}");
    assert!(seen.contains(&Said::Rule(6, true)) && seen.contains(&Said::Rule(6, false)));
    native.finish();
}

#[test]
fn requests_by_the_dice_meet_the_rule_that_is_shown() {
    let mut native = Native::start(key());
    let mut dice = Dice::new(seed());
    let (mut ruled, mut protected, mut unevaluated, mut free) = (0, 0, 0, 0);
    let heads = from_env("TIDEGATE_HEADS").map_or(RULE_HEADS, |count| count as usize / RULE_SETS);
    for _ in 0..RULE_SETS {
        let count = 1 + dice.below(20);
        let (rules, tables) = in_force(&mut native, (0..count).map(|_| rule(&mut dice)).collect());
        for _ in 0..heads {
            let hostile = Asked::of(&heads::request(&mut dice));
            let asked = hostile.unwrap_or_else(|| sound(&mut dice));
            match compare(&mut native, (&rules, &tables), &asked) {
                Said::Rule(_, by_cookie) => {
                    ruled += 1;
                    protected += usize::from(by_cookie);
                }
                Said::NoRule => free += 1,
                Said::Unevaluated(_) => unevaluated += 1,
            }
        }
    }
    println!("{ruled} met a rule ({protected} protected), {free} none, {unevaluated} unevaluated");
    for count in [ruled, free, unevaluated] {
        assert!(count > RULE_SETS * 10, "{ruled}, {free}, {unevaluated}");
    }
    assert!(protected > RULE_SETS, "{protected}");
    native.finish();
}

#[test]
fn tls_connections_meet_the_rule_that_is_shown() {
    let mut native = Native::start(key());
    let patterns = ["api.example", "*.example", "*.a.example", "x_y.test"];
    let rules = patterns.map(|name| plans::tls_rule(name, Some("all")));
    let hosts: Vec<_> = rules.iter().map(|rule| rule.server_name.as_ref().map(raw_host)).collect();
    let tables = Tables::of_tls(&hosts, key());
    native.rules(&tables);
    let mut rules = rules.to_vec();
    rules.push(plans::unevaluable_rule(Some("all")));
    let rules = plans::requests(&["all"], rules);
    for name in [
        "api.example",
        "API.Example",
        "b.example",
        "b.a.example",
        "a.example",
        "example",
        ".example",
        "x_y.test",
        "x.y.test",
        "api.example.",
        "",
        "a b",
        "[::1]",
        "1.2.3.4",
        "\u{e9}.example",
    ] {
        let hello = heads::hello(&heads::server_name(name.as_bytes()), 0);
        let ((reason, _), found) = native.find_tls(&tables, &hello);
        let done = match (reason, found) {
            (reason::NONE, Found::Rule(rule, _)) => (None, Some(rule)),
            (reason::NONE, _) => (None, None),
            (reason::TLS, _) => (Some(Unevaluated::Tls), rules.unevaluable_rule()),
            other => panic!("{other:?}: {name:?}"),
        };
        let shown = rules.select_tls(&name.to_ascii_lowercase());
        assert_eq!((shown.unevaluated, shown.rule), done, "{name:?}");
    }
    native.finish();
}

/// The names that are shown are those that are counted.
#[test]
fn reasons_have_the_names_of_the_counters() {
    for unevaluated in Unevaluated::ALL {
        let known = Reason::ALL.iter().find(|reason| reason.name() == unevaluated.name());
        let number = known.map(|reason| *reason as u32);
        let counted = match unevaluated {
            Unevaluated::NotHttp => reason::NOT_HTTP,
            Unevaluated::Http2 => reason::HTTP2,
            Unevaluated::Split => reason::SPLIT,
            Unevaluated::AmbiguousPath => Reason::AmbiguousPath as u32,
            Unevaluated::Tls => reason::TLS,
        };
        assert_eq!(number, Some(counted), "{unevaluated:?}");
    }
}

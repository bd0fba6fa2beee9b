// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is recognised in heads, as a person reads it. In heads, a line break stands for CR LF, and
//! ¶ for a bare LF.

use super::super::heads::{hello, server_name};
use super::super::recogniser::reason;
use super::super::reference::http::{self, Body, Stop, To};
use super::super::reference::rules::{CookieTest, Found, HostTest, Rule};

/// Name, head, and what is said of it: see [`describe`].
pub const HEADS: &[(&str, &str, &str)] = &[
    ("plain", "GET /a HTTP/1.1\nHost: b\n\n", "GET /a 1.1 host=b head=28"),
    ("old", "GET / HTTP/1.0\n\n", "GET / 1.0 close head=18"),
    ("old, kept", "GET / HTTP/1.0\nConnection: keep-alive\n\n", "GET / 1.0 head=42"),
    ("close", "GET / HTTP/1.1\nConnection: close\n\n", "GET / 1.1 close head=37"),
    (
        "close in a list",
        "GET / HTTP/1.1\nConnection: x, Close ,keep-alive\n\n",
        "GET / 1.1 close head=52",
    ),
    (
        "close twice",
        "GET / HTTP/1.1\nConnection: a\nConnection: close\n\n",
        "GET / 1.1 close head=52",
    ),
    ("not close", "GET / HTTP/1.1\nConnection: closed\n\n", "GET / 1.1 head=38"),
    ("nothing follows", "GET / HTTP/1.1\n\nGET / HTTP/1.1\n\n", "GET / 1.1 head=18"),
    // methods
    ("any method", "M!#$%&'*+-.^_`|~9 / HTTP/1.1\n\n", "M!#$%&'*+-.^_`|~9 / 1.1 head=32"),
    ("case of methods", "get / HTTP/1.1\n\n", "get / 1.1 head=18"),
    ("no method", " / HTTP/1.1\n\n", "not http"),
    ("no token", "G(T / HTTP/1.1\n\n", "not http"),
    ("connect", "CONNECT a:443 HTTP/1.1\nHost: a:443\n\n", "CONNECT - 1.1 host=a tunnel head=39"),
    // targets
    ("query", "GET /a?b=/c HTTP/1.1\n\n", "GET /a 1.1 head=24"),
    ("fragment", "GET /a#b?c HTTP/1.1\n\n", "GET /a 1.1 head=23"),
    ("two slashes", "GET //a//b/// HTTP/1.1\n\n", "GET /a/b/ 1.1 head=26"),
    ("dots", "GET /./a/./b/../c HTTP/1.1\n\n", "GET /a/c 1.1 head=30"),
    ("a dot at the end", "GET /a/. HTTP/1.1\n\n", "GET /a/ 1.1 head=21"),
    ("two dots at the end", "GET /a/b/..?c HTTP/1.1\n\n", "GET /a/ 1.1 head=26"),
    ("up to the root", "GET /a/../b HTTP/1.1\n\n", "GET /b 1.1 head=24"),
    (
        "dots that belong to a name",
        "GET /.../.a/..b/c. HTTP/1.1\n\n",
        "GET /.../.a/..b/c. 1.1 head=31",
    ),
    ("escaped dots", "GET /a/%2e%2E/%2e/b HTTP/1.1\n\n", "GET /b 1.1 head=32"),
    ("escaped letters", "GET /%63gi%2dbin/%7E HTTP/1.1\n\n", "GET /cgi-bin/~ 1.1 head=33"),
    ("escaped delimiters", "GET /a%21%40%3a%2C HTTP/1.1\n\n", "GET /a!@:, 1.1 head=31"),
    (
        "what must be escaped",
        "GET /%20%c3%bc%25%3f HTTP/1.1\n\n",
        "GET /%20%C3%BC%25%3F 1.1 head=33",
    ),
    (
        "not escaped, though it must be",
        "GET /\u{fc}|\"^ HTTP/1.1\n\n",
        "GET /%C3%BC%7C%22%5E 1.1 head=23",
    ),
    ("above the root", "GET /../a HTTP/1.1\n\n", "GET ambiguous 1.1 head=22"),
    ("above the root, later", "GET /a/../../b HTTP/1.1\n\n", "GET ambiguous 1.1 head=27"),
    ("an escaped slash", "GET /a%2Fb HTTP/1.1\n\n", "GET ambiguous 1.1 head=23"),
    ("an escaped backslash", "GET /a%5cb HTTP/1.1\n\n", "GET ambiguous 1.1 head=23"),
    ("a backslash", "GET /a\\b HTTP/1.1\n\n", "GET ambiguous 1.1 head=21"),
    ("a semicolon", "GET /a;b=c/d HTTP/1.1\n\n", "GET ambiguous 1.1 head=25"),
    ("an escaped semicolon", "GET /a%3bb HTTP/1.1\n\n", "GET ambiguous 1.1 head=23"),
    ("an escaped NUL", "GET /a%00 HTTP/1.1\n\n", "GET ambiguous 1.1 head=22"),
    ("an escaped DEL", "GET /a%7f HTTP/1.1\n\n", "GET ambiguous 1.1 head=22"),
    ("no escape", "GET /a%6x HTTP/1.1\n\n", "GET ambiguous 1.1 head=22"),
    ("half an escape", "GET /a%6 HTTP/1.1\n\n", "GET ambiguous 1.1 head=21"),
    ("half an escape before a query", "GET /a%?b HTTP/1.1\n\n", "GET ambiguous 1.1 head=22"),
    ("in a query nothing matters", "GET /a?b=%2F;\\../ HTTP/1.1\n\n", "GET /a 1.1 head=30"),
    ("asterisk", "OPTIONS * HTTP/1.1\n\n", "OPTIONS - 1.1 head=22"),
    (
        "absolute, normalised",
        "GET http://test//b/./%63 HTTP/1.1\n\n",
        "GET /b/c 1.1 host=test head=37",
    ),
    (
        "absolute",
        "GET http://A.test:80/c?d HTTP/1.1\nHost: e\n\n",
        "GET /c 1.1 host=a.test head=46",
    ),
    ("absolute, no path", "GET HTTPS://a HTTP/1.1\n\n", "GET / 1.1 host=a head=26"),
    ("absolute, a query", "GET http://test?b HTTP/1.1\n\n", "GET / 1.1 host=test head=30"),
    ("absolute, no host", "GET http:///b HTTP/1.1\n\n", "not http"),
    ("absolute, a user", "GET HTTP://u@a/b HTTP/1.1\n\n", "not http"),
    ("another scheme", "GET ftp://a/b HTTP/1.1\n\n", "GET - 1.1 head=26"),
    ("no target", "GET  HTTP/1.1\n\n", "not http"),
    ("two spaces", "GET  / HTTP/1.1\n\n", "not http"),
    ("a tab", "GET\t/ HTTP/1.1\n\n", "not http"),
    ("control in the path", "GET /\u{1} HTTP/1.1\n\n", "not http"),
    ("DEL in the path", "GET /\u{7f} HTTP/1.1\n\n", "not http"),
    // versions
    ("1.2", "GET / HTTP/1.2\n\n", "not http"),
    ("0.9", "GET /\n\n", "not http"),
    ("two digits", "GET / HTTP/1.10\n\n", "not http"),
    ("lower case", "GET / http/1.1\n\n", "not http"),
    ("space at the end", "GET / HTTP/1.1 \n\n", "not http"),
    ("HTTP/2", "PRI * HTTP/2.0\n\nSM\n\n", "http/2"),
    ("like HTTP/2", "GET * HTTP/2.0\n\n", "not http"),
    // ends of lines
    ("bare LF", "GET / HTTP/1.1¶Host: a¶¶", "not http"),
    ("bare LF in fields", "GET / HTTP/1.1\nHost: a¶\n", "not http"),
    ("bare CR", "GET / HTTP/1.1\nX: a\rb\n\n", "not http"),
    ("CR CR LF", "GET / HTTP/1.1\nX: a\r\n\n", "not http"),
    ("empty lines before", "\n\nGET / HTTP/1.1\n\n", "GET / 1.1 head=22"),
    ("too many of them", "\n\n\nGET / HTTP/1.1\n\n", "not http"),
    ("a bare LF before", "¶GET / HTTP/1.1\n\n", "not http"),
    // fields
    ("space before the colon", "GET / HTTP/1.1\nHost : a\n\n", "not http"),
    ("folded", "GET / HTTP/1.1\nX: a\n b\n\n", "not http"),
    ("space before the first", "GET / HTTP/1.1\n Host: a\n\n", "not http"),
    ("no colon", "GET / HTTP/1.1\nHost\n\n", "not http"),
    ("no name", "GET / HTTP/1.1\n: a\n\n", "not http"),
    ("NUL", "GET / HTTP/1.1\nX: a\0b\n\n", "not http"),
    ("not ASCII in a value", "GET / HTTP/1.1\nX: \u{fc}\n\n", "GET / 1.1 head=25"),
    ("not ASCII in a name", "GET / HTTP/1.1\n\u{fc}: a\n\n", "not http"),
    ("upgrade", "GET / HTTP/1.1\nUPGRADE: h2c\n\n", "GET / 1.1 upgrade head=32"),
    ("expect", "PUT / HTTP/1.1\nExpect: 100-continue\n\n", "PUT / 1.1 expect head=40"),
    // hosts
    ("no host", "GET / HTTP/1.1\nHost:\n\n", "GET / 1.1 head=25"),
    ("port", "GET / HTTP/1.1\nhOsT:\ta.B:8080 \n\n", "GET / 1.1 host=a.b head=35"),
    ("literal", "GET / HTTP/1.1\nHost: [::A]:1\n\n", "GET / 1.1 host=[::a] head=33"),
    ("two hosts", "GET / HTTP/1.1\nHost: a\nHost: a\n\n", "not http"),
    ("two hosts in one", "GET / HTTP/1.1\nHost: a, b\n\n", "not http"),
    ("path in a host", "GET / HTTP/1.1\nHost: a/b\n\n", "not http"),
    ("user in a host", "GET / HTTP/1.1\nHost: u@a\n\n", "not http"),
    ("no port", "GET / HTTP/1.1\nHost: a:http\n\n", "not http"),
    ("open literal", "GET / HTTP/1.1\nHost: [::1\n\n", "not http"),
    ("dot at the end", "GET / HTTP/1.1\nHost: a.b.\n\n", "GET / 1.1 host=a.b. head=30"),
    // bodies
    ("length", "POST / HTTP/1.1\nContent-Length: 5\n\nabcde", "POST / 1.1 body=5 head=38"),
    ("zeros", "POST / HTTP/1.1\nContent-Length: 0005\n\n", "POST / 1.1 body=5 head=41"),
    (
        "long",
        "POST / HTTP/1.1\nContent-Length: 999999999999999999\n\n",
        "POST / 1.1 body=999999999999999999 head=55",
    ),
    ("too long", "POST / HTTP/1.1\nContent-Length: 1000000000000000000\n\n", "not http"),
    ("wraps", "POST / HTTP/1.1\nContent-Length: 18446744073709551621\n\n", "not http"),
    ("two lengths", "POST / HTTP/1.1\nContent-Length: 5\nContent-Length: 5\n\n", "not http"),
    ("a list of lengths", "POST / HTTP/1.1\nContent-Length: 5, 5\n\n", "not http"),
    ("sign", "POST / HTTP/1.1\nContent-Length: +5\n\n", "not http"),
    ("empty length", "POST / HTTP/1.1\nContent-Length:\n\n", "not http"),
    (
        "length, then a cookie",
        "POST / HTTP/1.1\nContent-Length: 5\nCookie: a=1\n\n",
        "POST / 1.1 cookies=a=1 body=5 head=51",
    ),
    ("chunked", "POST / HTTP/1.1\nTransfer-Encoding: CHUNKED\n\n", "POST / 1.1 chunked head=47"),
    (
        "chunked twice",
        "POST / HTTP/1.1\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n",
        "not http",
    ),
    ("chunked and more", "POST / HTTP/1.1\nTransfer-Encoding: gzip, chunked\n\n", "not http"),
    ("another coding", "POST / HTTP/1.1\nTransfer-Encoding: identity\n\n", "not http"),
    ("both", "POST / HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked\n\n", "not http"),
    ("chunked in 1.0", "POST / HTTP/1.0\nTransfer-Encoding: chunked\n\n", "not http"),
    // cookies
    ("cookies", "GET / HTTP/1.1\nCookie: a=1; b=2\n\n", "GET / 1.1 cookies=a=1;b=2 head=36"),
    ("two fields", "GET / HTTP/1.1\nCookie: a=1\ncookie: b\n\n", "GET / 1.1 cookies=a=1;b head=42"),
    ("quotes", "GET / HTTP/1.1\nCookie: a=\"1\"\n\n", "GET / 1.1 cookies=a=\"1\" head=33"),
    ("two equal signs", "GET / HTTP/1.1\nCookie: a=1=2\n\n", "GET / 1.1 cookies=a=1=2 head=33"),
    ("no value", "GET / HTTP/1.1\nCookie: a=;b\n\n", "GET / 1.1 cookies=a=;b head=32"),
    ("spaces", "GET / HTTP/1.1\nCookie:  a=1 ;;b=2 \n\n", "GET / 1.1 cookies=a=1;b=2 head=39"),
    (
        "spaces inside",
        "GET / HTTP/1.1\nCookie: a=1 2; b =3; c=4\n\n",
        "GET / 1.1 cookies=c=4 head=44",
    ),
    ("case of cookies", "GET / HTTP/1.1\nCookie: A=x\n\n", "GET / 1.1 cookies=A=x head=31"),
    ("NUL in a cookie", "GET / HTTP/1.1\nCookie: a=\0\n\n", "not http"),
    // cut
    ("only a letter", "G", "split"),
    ("half a line", "GET /cgi-bin/se", "split"),
    ("CR of the line", "GET / HTTP/1.1\r", "split"),
    ("cut after the line", "GET / HTTP/1.1\n", "GET / 1.1 cut"),
    ("cut in a name", "GET / HTTP/1.1\nHo", "GET / 1.1 cut"),
    ("cut in a host", "GET / HTTP/1.1\nHost: shop.exam", "GET / 1.1 cut"),
    ("cut after a host", "GET / HTTP/1.1\nHost: shop\r", "GET / 1.1 host=shop cut"),
    ("cut before the end", "GET / HTTP/1.1\nHost: shop\n\r", "GET / 1.1 host=shop cut"),
    ("wrong before the cut", "GET / HTTP/1.1\nHost: shop\n X", "not http"),
    ("no HTTP", "\u{16}\u{3}\u{1}", "not http"),
    ("SSH", "SSH-2.0-OpenSSH_9.2\n", "not http"),
];

/// What the reference reads in a head, in one line.
pub fn describe(bytes: &[u8]) -> String {
    let (request, result) = http::request(bytes);
    match result {
        Err(Stop::Bad) => return "not http".into(),
        Err(Stop::Http2) => return "http/2".into(),
        Err(Stop::Cut) if !http::has_line(bytes) => return "split".into(),
        _ => {}
    }
    let path = match &request.path[..] {
        _ if request.ambiguous => "ambiguous".into(),
        [] => "-".into(),
        path => path.escape_ascii().to_string(),
    };
    let method = String::from_utf8_lossy(&request.method);
    let mut words = vec![format!("{method} {path} 1.{}", request.minor)];
    if let Some(host) = request.host.as_ref().filter(|host| !host.0.is_empty()) {
        words.push(format!("host={}", String::from_utf8_lossy(&host.0)));
    }
    let pair = |(name, value): &http::Cookie| {
        let value = value.as_ref().map(|value| format!("={}", String::from_utf8_lossy(value)));
        format!("{}{}", String::from_utf8_lossy(name), value.unwrap_or_default())
    };
    if !request.cookies.is_empty() {
        let pairs: Vec<String> = request.cookies.iter().map(pair).collect();
        words.push(format!("cookies={}", pairs.join(";")));
    }
    let flags = [
        (request.upgrade, "upgrade"),
        (request.expect, "expect"),
        (request.method == b"CONNECT", "tunnel"),
    ];
    words.extend(flags.iter().filter(|(holds, _)| *holds).map(|(_, word)| (*word).to_owned()));
    match request.whole {
        Some(whole) => {
            words.extend(body(whole.body));
            words.extend(whole.close.then(|| "close".to_owned()));
            words.push(format!("head={}", whole.head));
        }
        None => words.push("cut".into()),
    }
    words.join(" ")
}

fn body(body: Body) -> Option<String> {
    match body {
        Body::Bytes(0) => None,
        Body::Bytes(bytes) => Some(format!("body={bytes}")),
        Body::Chunked => Some("chunked".into()),
        Body::ToClose => Some("to-close".into()),
    }
}

const ANY: To = To { head: false, connect: false };
const HEAD: To = To { head: true, connect: false };
const CONNECT: To = To { head: false, connect: true };

/// Name, what it answers, head, and what is said of it.
pub const REPLIES: &[(&str, To, &str, &str)] = &[
    ("length", ANY, "HTTP/1.1 200 OK\nContent-Length: 5\n\n", "200 body=5"),
    ("chunked", ANY, "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", "200 chunked"),
    ("to HEAD", HEAD, "HTTP/1.1 200 OK\nContent-Length: 5\n\n", "200"),
    ("not modified", ANY, "HTTP/1.1 304 x\nContent-Length: 5\n\n", "304"),
    ("no content", ANY, "HTTP/1.1 204 x\n\n", "204"),
    ("to the end", ANY, "HTTP/1.1 200 OK\n\n", "200 to-close close"),
    ("nothing", ANY, "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "200"),
    ("close", ANY, "HTTP/1.1 200 OK\nContent-Length: 0\nConnection: close\n\n", "200 close"),
    ("old", ANY, "HTTP/1.0 200 OK\nContent-Length: 3\n\n", "200 body=3 close"),
    (
        "old, kept",
        ANY,
        "HTTP/1.0 200 OK\nContent-Length: 3\nConnection: keep-alive\n\n",
        "200 body=3",
    ),
    ("interim", ANY, "HTTP/1.1 100 Continue\n\n", "100 interim"),
    ("hints", ANY, "HTTP/1.1 103 Early Hints\nLink: x\n\n", "103 interim"),
    ("another protocol", ANY, "HTTP/1.1 101 x\nUpgrade: websocket\n\n", "101 tunnel"),
    ("to CONNECT", CONNECT, "HTTP/1.1 200 OK\n\n", "200 tunnel"),
    ("to CONNECT, refused", CONNECT, "HTTP/1.1 403 x\nContent-Length: 1\n\n", "403 body=1"),
    ("no reason", ANY, "HTTP/1.1 200\nContent-Length: 5\n\n", "200 body=5"),
    ("both", ANY, "HTTP/1.1 200 OK\nContent-Length: 5\nTransfer-Encoding: chunked\n\n", "unframed"),
    ("chunked in 1.0", ANY, "HTTP/1.0 200 OK\nTransfer-Encoding: chunked\n\n", "unframed"),
    ("two lengths", ANY, "HTTP/1.1 200 OK\nContent-Length: 5\nContent-Length: 5\n\n", "unframed"),
    ("another coding", ANY, "HTTP/1.1 200 OK\nTransfer-Encoding: gzip\n\n", "unframed"),
    ("cut", ANY, "HTTP/1.1 200 OK\nContent-Length: 5\n", "unframed"),
    ("no code", ANY, "HTTP/1.1 2xx OK\n\n", "unframed"),
    ("no HTTP", ANY, "220 mail.example ESMTP\n", "unframed"),
];

/// What the reference reads in an answer, in one line.
pub fn describe_reply(bytes: &[u8], to: To) -> String {
    let Ok(answer) = http::answer(bytes, to) else { return "unframed".into() };
    let mut words = vec![answer.code.to_string()];
    words.extend(body(answer.body));
    let flags = [(answer.interim, "interim"), (answer.tunnel, "tunnel"), (answer.close, "close")];
    words.extend(flags.iter().filter(|(holds, _)| *holds).map(|(_, word)| (*word).to_owned()));
    words.join(" ")
}

/// What a hello says.
#[derive(Clone, Copy, Debug)]
pub enum Says {
    Name(&'static str),
    Reason(u32),
}

type Hello = fn() -> Vec<u8>;

/// Name, hello, and what it says.
pub const HELLOS: &[(&str, Hello, Says)] = &[
    ("name", || hello(&server_name(b"Shop.Example"), 32), Says::Name("shop.example")),
    (
        "GREASE before",
        || hello(&[&[0x0a, 0x0a, 0, 0], &server_name(b"a")[..]].concat(), 0),
        Says::Name("a"),
    ),
    ("no extensions", || hello(&[], 0), Says::Reason(reason::TLS)),
    ("another extension", || hello(&[0, 16, 0, 0], 0), Says::Reason(reason::TLS)),
    ("empty name", || hello(&server_name(b""), 0), Says::Reason(reason::TLS)),
    ("no name", || hello(&server_name(b"a b"), 0), Says::Reason(reason::TLS)),
    ("an address", || hello(&server_name(b"10.0.0.1"), 0), Says::Name("10.0.0.1")),
    ("longest", || hello(&server_name(&[b'a'; 255]), 0), Says::Name(LONGEST)),
    ("too long", || hello(&server_name(&[b'a'; 256]), 0), Says::Reason(reason::TLS)),
    (
        "cut in the name",
        || hello(&server_name(b"shop"), 0)[..62].to_vec(),
        Says::Reason(reason::SPLIT),
    ),
    ("a second record", || cut_record(&hello(&server_name(b"shop"), 0)), Says::Reason(reason::TLS)),
    ("an alert", || vec![21, 3, 1, 0, 2, 2, 40], Says::Reason(reason::NOT_HTTP)),
    ("a server's hello", || vec![22, 3, 3, 0, 4, 2, 0, 0, 0], Says::Reason(reason::TLS)),
    ("one byte", || vec![22], Says::Reason(reason::SPLIT)),
];

const LONGEST: &str = match std::str::from_utf8(&[b'a'; 255]) {
    Ok(text) => text,
    Err(_) => panic!("it is ASCII"),
};

/// The record ends before the hello does.
fn cut_record(hello: &[u8]) -> Vec<u8> {
    let mut cut = hello.to_vec();
    cut[4] -= 2;
    cut
}

fn cookie(name: &str, value: Option<&str>) -> CookieTest {
    CookieTest { name: name.into(), value: value.map(Into::into) }
}

fn rule(path: &str) -> Rule {
    Rule { path: path.into(), methods: 255, ..Rule::default() }
}

fn rules() -> Vec<Rule> {
    vec![
        rule("/"),
        Rule { methods: 1, ..rule("/cgi-bin/") },
        Rule { host: Some(HostTest::Exact(b"shop.example".into())), ..rule("/cart") },
        Rule { host: Some(HostTest::Below(b".example".into())), ..rule("/cart") },
        Rule { all: vec![cookie("session", None)], ..rule("/mine") },
        Rule { none: vec![cookie("session", None)], ..rule("/login") },
        Rule { protect: vec![cookie("premium", Some("gold"))], ..rule("/vip") },
    ]
}

fn without_the_last_resort() -> Vec<Rule> {
    let mut rules = rules();
    rules[0].path = b"/only".into();
    rules
}

type Rules = fn() -> Vec<Rule>;

/// Name, rules, head, and which rule it meets.
pub const RULES: &[(&str, Rules, &str, Found)] = &[
    ("longest path", rules, "GET /cgi-bin/x HTTP/1.1\n\n", Found::Rule(1, false)),
    ("another method", rules, "POST /cgi-bin/x HTTP/1.1\n\n", Found::Rule(0, false)),
    ("not quite the path", rules, "GET /cgi-bin HTTP/1.1\n\n", Found::Rule(0, false)),
    ("encoded", rules, "GET /%63gi%2dbin/ HTTP/1.1\n\n", Found::Rule(1, false)),
    ("round about", rules, "GET //x/../cgi-bin/./ HTTP/1.1\n\n", Found::Rule(1, false)),
    ("out of it again", rules, "GET /cgi-bin/../x HTTP/1.1\n\n", Found::Rule(0, false)),
    ("host", rules, "GET /cart HTTP/1.1\nHost: Shop.example:80\n\n", Found::Rule(2, false)),
    ("host below", rules, "GET /cart HTTP/1.1\nHost: a.example\n\n", Found::Rule(3, false)),
    ("two labels below", rules, "GET /cart HTTP/1.1\nHost: a.b.example\n\n", Found::Rule(0, false)),
    ("no host", rules, "GET /cart HTTP/1.1\n\n", Found::Rule(0, false)),
    ("host not seen", rules, "GET /cart HTTP/1.1\n", Found::Split),
    ("host seen", rules, "GET /cart HTTP/1.1\nHost: shop.example\n", Found::Rule(2, false)),
    ("no need of a host", rules, "GET /cgi-bin/x HTTP/1.1\nHo", Found::Rule(1, false)),
    ("cookie", rules, "GET /mine HTTP/1.1\nCookie: session=\n\n", Found::Rule(4, false)),
    ("no cookie", rules, "GET /mine HTTP/1.1\nCookie: Session=1\n\n", Found::Rule(0, false)),
    ("cookie not seen", rules, "GET /mine HTTP/1.1\nCookie: session=1\n", Found::Split),
    ("absent", rules, "GET /login HTTP/1.1\n\n", Found::Rule(5, false)),
    ("not absent", rules, "GET /login HTTP/1.1\nCookie: session\n\n", Found::Rule(0, false)),
    ("protected", rules, "GET /vip HTTP/1.1\nCookie: a=b; premium=gold\n\n", Found::Rule(6, true)),
    ("quoted", rules, "GET /vip HTTP/1.1\nCookie: premium=\"gold\"\n\n", Found::Rule(6, false)),
    ("none", without_the_last_resort, "GET /cgi HTTP/1.1\n\n", Found::NoRule),
    ("asterisk", rules, "OPTIONS * HTTP/1.1\n\n", Found::NoRule),
    ("authority", rules, "CONNECT a:1 HTTP/1.1\n\n", Found::NoRule),
];

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Heads, bodies and hellos at random: mostly sound, some hostile, some damaged.

use super::random::Dice;

const METHODS: [&str; 12] = [
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "PRI",
    "get",
    "M!#$%&'*+-.^_`|~9",
];
const TARGETS: [&str; 26] = [
    "/",
    "/cgi-bin/search?q=1",
    "/cgi-bin/",
    "/cart#top",
    "/a%2fb/../c//d",
    "/x/../cgi-bin/%73earch",
    "//cgi-bin/./search/..",
    "/a;b/c",
    "/..%2e/../%2e%2E/c",
    "/\u{e9}",
    "*",
    "http://Shop.example:8080/cart?x",
    "https://shop.example",
    "HTTP://shop.example?x",
    "http://[2001:DB8::1]:80/x",
    "HTTP://user@shop.example/",
    "http:///x",
    "http:/x",
    "ftp://shop.example/",
    "shop.example:443",
    "10.0.0.1:443",
    "[::1]:443",
    ":",
    "http:",
    "",
    "/a b",
];
const VERSIONS: [&str; 8] = [
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "HTTP/1.2",
    "http/1.1",
    "HTTP/1.10",
];
/// Sound ones first.
const FIELDS: [&str; 63] = [
    "Accept: */*",
    "User-Agent: curl/8.5.0 (x86_64) \u{fc}",
    "Accept-Encoding:gzip, deflate",
    "X-Empty:",
    "X-Tab:\ta\tb ",
    "Cookie: session=abc; premium=gold",
    "Cookie: a=1;b=\"2\" ; c ;; d=",
    "Cookie: =x; y z=1; w =2; =; a==b",
    "cookie:",
    "Cookie: ;",
    "Connection: close",
    "Connection: keep-alive",
    "connection: Keep-Alive, Upgrade",
    "Connection: foo;close, \"close\",x",
    "Connection: Close ,",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "Content-Length: 5",
    "Content-Length:0",
    "Content-Length: 000123 ",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: Chunked \t",
    "Host: shop.example",
    "HOST:  Shop.Example:8080 ",
    "Host: [2001:db8::A]:443",
    "Host:",
    "Host: a.b.c.",
    "Host: a:",
    "X: 12345678901234567890123456789012345678901234567890123456789012345678901234567890",
    // hostile
    "Host: a b",
    "Host: a/b",
    "Host: user@a",
    "Host: a:80x",
    "Host: [::1",
    "Host: []x",
    "Host: :80",
    "Host: a\u{fc}",
    "Content-Length: 5, 5",
    "Content-Length: +5",
    "Content-Length: 5 5",
    "Content-Length: 0x5",
    "Content-Length:",
    "Content-Length: 999999999999999999",
    "Content-Length: 1000000000000000000",
    "Content-Length: 18446744073709551621",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked;x",
    "Transfer-Encoding:",
    "Transfer-Encoding: chunkedchunkedchunkedchunkedchunked",
    "Content-Length : 5",
    " folded",
    "\tfolded",
    ": empty name",
    "No colon",
    "X: a\0b",
    "X: a\u{7f}b",
    "X: a\rb",
    "Cookie: a=\0",
    "Host: a\0",
    "Connection: close\u{1}",
    "\u{fc}: x",
    "Host: a[b",
];
/// Of [`FIELDS`], how many are sound by themselves.
const SOUND: usize = 29;

fn line(out: &mut Vec<u8>, text: &str, dice: &mut Dice) {
    out.extend(text.as_bytes());
    out.extend(*dice.pick(&[b"\r\n".as_slice(); 60]));
    if dice.one_in(200) {
        out.truncate(out.len() - 2);
        out.extend(*dice.pick(&[b"\n".as_slice(), b"\r", b"\n\n", b"\r\r\n"]));
    }
}

/// Which fields: one kind of head in four is hostile.
fn fields(out: &mut Vec<u8>, dice: &mut Dice) {
    let hostile = dice.one_in(4);
    for _ in 0..dice.below(8) {
        let kinds = if hostile && dice.one_in(3) { FIELDS.len() } else { SOUND };
        let at = dice.below(kinds);
        line(out, FIELDS[at], dice);
    }
    if dice.one_in(30) {
        many_cookies(out, dice);
    }
    out.extend(b"\r\n");
}

/// Around the number of cookies that are kept.
fn many_cookies(out: &mut Vec<u8>, dice: &mut Dice) {
    out.extend(b"Cookie: ");
    for _ in 0..126 + dice.below(5) {
        out.extend(*dice.pick(&[b"a=1; ".as_slice(), b"b=2;"]));
    }
    out.extend(b"\r\n");
}

/// One byte in two heads of five is another.
fn damage(out: &mut [u8], dice: &mut Dice) {
    while !out.is_empty() && dice.below(5) < 2 {
        let at = dice.below(out.len());
        out[at] = if dice.one_in(2) { dice.u8() } else { *dice.pick(b"\r\n :;=,/\t\0[]") };
    }
}

/// A path put together from what means more than it says, at times as long as what is kept.
fn path(dice: &mut Dice) -> String {
    const PIECES: [&str; 24] = [
        "/", "/", "/", "/", "/./", "/../", "/..", "/.", ".", "..", "...", "a", "cgi-bin", "%61",
        "%2e", "%2E", "%7E", "%40", "%20", "%c3", "\u{e9}", "~", "+", "%25",
    ];
    const ODD: [&str; 8] = ["%2F", "%2f", ";", "\\", "%5C", "%3b", "%", "%4x"];
    let mut path = "/".to_owned();
    if dice.one_in(3) {
        path += &"p".repeat(100 + dice.below(20));
    }
    for _ in 0..dice.below(16) {
        let pieces: &[&str] = if dice.one_in(30) { &ODD } else { &PIECES };
        let piece: &&str = dice.pick(pieces);
        path += piece;
    }
    path
}

/// A request, perhaps with the beginning of its body behind it.
pub fn request(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    if dice.one_in(20) {
        out.extend(*dice.pick(&[b"\r\n".as_slice(), b"\r\n\r\n", b"\r\n\r\n\r\n", b"\n"]));
    }
    let target = match dice.below(10) {
        0 => format!("/{}", "p".repeat(112 + dice.below(16))),
        1..4 => path(dice),
        _ => (*dice.pick(&TARGETS)).to_owned(),
    };
    let start = format!("{} {target} {}", dice.pick(&METHODS), dice.pick(&VERSIONS));
    line(&mut out, &start, dice);
    fields(&mut out, dice);
    let behind = dice.below(6);
    out.extend(dice.bytes(behind));
    if dice.one_in(3) {
        damage(&mut out, dice);
    }
    out
}

/// An answer's head.
pub fn answer(dice: &mut Dice) -> Vec<u8> {
    const STATUS: [&str; 18] = [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 ",
        "HTTP/1.1 200",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 100 Continue",
        "HTTP/1.1 101 Switching Protocols",
        "HTTP/1.1 103 Early Hints",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 503 \u{fc}",
        "HTTP/1.1 599 x",
        "HTTP/1.1 600 x",
        "HTTP/1.1 099 x",
        "HTTP/1.1 20 x",
        "HTTP/1.1 2000 x",
        "HTTP/2 200",
        "ICY 200 OK",
    ];
    let mut out = Vec::new();
    let status = *dice.pick(&STATUS);
    line(&mut out, status, dice);
    fields(&mut out, dice);
    if dice.one_in(4) {
        damage(&mut out, dice);
    }
    out
}

/// A chunked body, whole or damaged, and what may follow it.
pub fn chunked(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..dice.below(5) {
        let size = *dice.pick(&[1, 2, 9, 16, 17, 100]);
        let extension = *dice.pick(&["", "", "", ";x=1", " ", "  ;a"]);
        let digits = *dice.pick(&[1, 1, 4]);
        out.extend(format!("{size:0digits$x}{extension}\r\n").bytes());
        out.extend(dice.bytes(size));
        out.extend(b"\r\n");
    }
    let last = *dice.pick(&["0", "0", "000", "0;x", "fffffff", "10000000", "0x0", ""]);
    out.extend(format!("{last}\r\n").bytes());
    out.extend(*dice.pick(&[b"".as_slice(), b"", b"X: 1\r\n", b"X: 1\r\nY:\r\n", b" x\r\n"]));
    out.extend(b"\r\n");
    let behind = dice.below(4);
    out.extend(dice.bytes(behind));
    if dice.one_in(3) {
        damage(&mut out, dice);
    }
    out
}

fn vector(prefix: usize, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[4 - prefix..], bytes].concat()
}

fn extension(kind: u16, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(2, bytes)].concat()
}

/// The extension that names a server.
pub fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &vector(2, &[&[0], &vector(2, name)[..]].concat()))
}

/// A ClientHello with these extensions, in one record.
pub fn hello(extensions: &[u8], session: usize) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &vector(1, &vec![9; session]),
        &vector(2, &[0x13, 1, 0x13, 2]),
        &vector(1, &[0]),
        &vector(2, extensions),
    ]
    .concat();
    let message = [&[1][..], &vector(3, &body)].concat();
    [&[22, 3, 1][..], &vector(2, &message)].concat()
}

/// A hello at random.
pub fn any_hello(dice: &mut Dice) -> Vec<u8> {
    const NAMES: [&[u8]; 8] = [
        b"shop.example",
        b"API.Shop.Example",
        b"localhost",
        b"a_b-c.9",
        b"a b",
        b"",
        b".x",
        b"\xc3\xa9.example",
    ];
    let mut extensions = Vec::new();
    let count = *dice.pick(&[0, 3, 8, 16, 63, 64, 65]);
    let place = dice.below(count + 2);
    for at in 0..count {
        if at == place {
            let name: &&[u8] = dice.pick(&NAMES);
            extensions.extend(server_name(name));
        }
        let length = dice.below(12);
        // GREASE among them
        let kind = *dice.pick(&[0x0a0a, 10, 11, 16, 43, 51, 0xfafa]);
        extensions.extend(extension(kind, &dice.bytes(length)));
    }
    if dice.one_in(20) {
        extensions.extend(server_name(&vec![b'a'; 253 + dice.below(5)]));
    }
    let session = *dice.pick(&[0, 32]);
    let mut out = hello(&extensions, session);
    if dice.one_in(4) {
        let cut = out.len().saturating_sub(1 + dice.below(40)).saturating_sub(5);
        out[3..5].copy_from_slice(&(cut as u16).to_be_bytes());
    }
    if dice.one_in(3) {
        damage(&mut out, dice);
    }
    out
}

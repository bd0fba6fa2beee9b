// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recogniser of requests (bpf/http/http.h and its neighbours) as an ordinary program
//! (tests/native/recognise.c), and what the reference expects of it.

use super::built::Source;
use super::reference::http::{self, Answer, Body, Request, Stop, To};
use super::reference::rules::{self, Found, HostTest, Rule};
use super::reference::tls::{self, NoName};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

#[path = "../../src/text_hash.rs"]
mod text_hash;

/// `TG_HEAD_MAX`: no more is loaded.
pub const HEAD_MAX: usize = 4096;
/// Words of `tg_settings.key`.
const KEYS: usize = 6;
/// The numbers of what recognising a request may say.
pub mod reason {
    use tidegate_policy::Reason;
    pub const NONE: u32 = Reason::None as u32;
    pub const NO_RULE: u32 = Reason::NoRule as u32;
    pub const TLS: u32 = Reason::Tls as u32;
    pub const HTTP2: u32 = Reason::Http2 as u32;
    pub const SPLIT: u32 = Reason::Split as u32;
    pub const NOT_HTTP: u32 = Reason::NotHttp as u32;
}
/// `TG_HTTP_…`.
pub mod flag {
    pub const WHOLE: u8 = 1;
    pub const CHUNKED: u8 = 2;
    pub const CLOSE: u8 = 4;
    pub const UPGRADE: u8 = 8;
    pub const EXPECT: u8 = 16;
    pub const TUNNEL: u8 = 32;
    pub const HOST: u8 = 64;
    pub const COOKIES: u8 = 128;
}
/// `TG_REPLY_…`.
mod reply {
    pub const CHUNKED: u8 = 1;
    pub const CLOSE: u8 = 2;
    pub const INTERIM: u8 = 4;
    pub const TUNNEL: u8 = 8;
    pub const TO_CLOSE: u8 = 16;
}
/// `TG_CHUNKED`, `TG_TO_CLOSE`.
pub const CHUNKED: u64 = u64::MAX;
pub const TO_CLOSE: u64 = u64::MAX - 1;
/// `TG_FOLLOW_…`.
pub const FOLLOW_MORE: u32 = 0;
pub const FOLLOW_END: u32 = 1;
pub const FOLLOW_FAILED: u32 = 2;

/// What names and values become.
#[derive(Clone, Copy, Debug)]
pub struct Key(pub [u64; KEYS]);

impl Key {
    pub fn hash(&self, text: &[u8]) -> u64 {
        text_hash::text_hash(&self.0, text)
    }
}

/// `struct tg_http` with what belongs to it, and the reason; where it says nothing, zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recognised {
    pub reason: u32,
    pub flags: u8,
    pub method: u8,
    pub minor: u8,
    pub head: u32,
    pub body: u64,
    pub host: [u64; 2],
    pub path: Vec<u8>,
    pub ambiguous: bool,
    /// Hashes of names and values.
    pub cookies: Vec<(u64, u64)>,
}

impl Recognised {
    /// Only what may be relied on: of a head that is cut, or of none, less is.
    pub fn settled(mut self) -> Self {
        if self.reason != reason::NONE {
            return Self { reason: self.reason, ..Self::default() };
        }
        if self.ambiguous {
            self.path.clear();
        }
        if self.flags & flag::WHOLE == 0 {
            self.flags &= flag::HOST;
            self.cookies.clear();
        }
        if self.flags & flag::HOST == 0 {
            self.host = [0; 2];
        }
        self
    }

    /// What the reference says of these bytes.
    pub fn expected(bytes: &[u8], key: &Key) -> Self {
        let (request, result) = http::request(bytes);
        let reason = match result {
            Err(Stop::Bad) => reason::NOT_HTTP,
            Err(Stop::Http2) => reason::HTTP2,
            Err(Stop::Cut) if !http::has_line(bytes) => reason::SPLIT,
            Err(Stop::Cut) | Ok(()) => reason::NONE,
        };
        Self { reason, ..Self::of(&request, key) }.settled()
    }

    fn of(request: &Request, key: &Key) -> Self {
        let when = |holds: bool, flag: u8| if holds { flag } else { 0 };
        let whole = request.whole.as_ref();
        let body = whole.map_or(0, |whole| length(whole.body));
        let flags = when(whole.is_some(), flag::WHOLE)
            | when(body == CHUNKED, flag::CHUNKED)
            | when(whole.is_some_and(|whole| whole.close), flag::CLOSE)
            | when(request.upgrade, flag::UPGRADE)
            | when(request.expect, flag::EXPECT)
            | when(request.method == b"CONNECT", flag::TUNNEL)
            | when(request.host.is_some(), flag::HOST)
            | when(request.more_cookies, flag::COOKIES);
        let host = request.host.clone().unwrap_or_default();
        let name = if host.0.is_empty() { 0 } else { key.hash(&host.0) };
        let cookies = request.cookies.iter().map(|(name, value)| {
            (key.hash(name), value.as_ref().map_or(0, |value| key.hash(value)))
        });
        Self {
            reason: reason::NONE,
            flags,
            method: method_bit(&request.method),
            minor: request.minor,
            head: whole.map_or(0, |whole| whole.head as u32),
            body,
            host: [name, host.rest().map_or(0, |rest| key.hash(rest))],
            path: request.path.clone(),
            ambiguous: request.ambiguous,
            cookies: cookies.collect(),
        }
    }
}

/// `TG_METHOD_…`.
pub fn method_bit(method: &[u8]) -> u8 {
    const NAMES: [&[u8]; 7] = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"];
    NAMES.iter().position(|name| *name == method).map_or(128, |at| 1 << at)
}

fn length(body: Body) -> u64 {
    match body {
        Body::Bytes(bytes) => bytes,
        Body::Chunked => CHUNKED,
        Body::ToClose => TO_CLOSE,
    }
}

/// `struct tg_reply`; `None`: its framing cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replied {
    pub head: u32,
    pub code: u16,
    pub flags: u8,
    pub minor: u8,
    pub body: u64,
}

impl Replied {
    /// What the reference says of these bytes.
    pub fn expected(bytes: &[u8], to: To) -> Option<Self> {
        http::answer(bytes, to).ok().map(|answer| Self::of(&answer))
    }

    fn of(answer: &Answer) -> Self {
        let when = |holds: bool, flag: u8| if holds { flag } else { 0 };
        let flags = when(answer.body == Body::Chunked, reply::CHUNKED)
            | when(answer.close, reply::CLOSE)
            | when(answer.interim, reply::INTERIM)
            | when(answer.tunnel, reply::TUNNEL)
            | when(answer.body == Body::ToClose, reply::TO_CLOSE);
        Self {
            head: answer.head as u32,
            code: answer.code,
            flags,
            minor: answer.minor,
            body: length(answer.body),
        }
    }

    /// `struct tg_reply` as it lies in memory.
    pub fn read(bytes: &[u8]) -> Self {
        let mut at = Reader(bytes);
        Self { head: at.u32(), code: at.u16(), flags: at.u8(), minor: at.u8(), body: at.u64() }
    }
}

/// `TG_ANSWER_TO_…`.
pub fn to_bits(to: To) -> u32 {
    u32::from(to.head) | u32::from(to.connect) << 1
}

/// What a hello gives: reason and hashes of the name.
pub type Named = (u32, [u64; 2]);

/// What the reference says of a hello.
pub fn named(bytes: &[u8], key: &Key) -> Named {
    match tls::server_name(bytes) {
        Ok(name) => {
            let rest = http::Host(name.clone()).rest().map_or(0, |rest| key.hash(rest));
            (reason::NONE, [key.hash(&name), rest])
        }
        Err(NoName::Split) => (reason::SPLIT, [0; 2]),
        Err(NoName::Tls) => (reason::TLS, [0; 2]),
        Err(NoName::NotTls) => (reason::NOT_HTTP, [0; 2]),
    }
}

/// `struct tg_follow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    pub left: u64,
    pub chunk: u32,
    pub used: u32,
}

impl Follow {
    /// As it lies in memory.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.left.to_le_bytes()[..], &self.chunk.to_le_bytes(), &self.used.to_le_bytes()].concat()
    }

    pub fn read(bytes: &[u8]) -> Self {
        let mut at = Reader(bytes);
        Self { left: at.u64(), chunk: at.u32(), used: at.u32() }
    }
}

/// Reads what C wrote.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    pub fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take(2).try_into().unwrap())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    /// `struct tg_http`, path and pairs being elsewhere: how many there are.
    pub fn http(&mut self, reason: u32) -> (Recognised, usize, usize) {
        let (flags, method, minor) = (self.u8(), self.u8(), self.u8());
        let ambiguous = self.u8() != 0;
        let (head, body) = (self.u32(), self.u64());
        let host = [self.u64(), self.u64()];
        let (pairs, path) = (self.u32() as usize, self.u32() as usize);
        let found = Recognised {
            reason,
            flags,
            method,
            minor,
            head,
            body,
            host,
            ambiguous,
            ..Recognised::default()
        };
        (found, path, pairs)
    }

    pub fn pairs(&mut self, count: usize) -> Vec<(u64, u64)> {
        (0..count).map(|_| (self.u64(), self.u64())).collect()
    }
}

/// The running program.
pub struct Native {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pub key: Key,
}

impl Native {
    /// Starts it, compiled with sanitizers, if no test has yet.
    pub fn start(key: Key) -> Self {
        Self::launch(&source().sanitized(), key)
    }

    /// The same with sources below another root, which may hold bugs: quick to build, without sanitizers.
    pub fn start_from(sources: &Path, dir: &Path, key: Key) -> Self {
        Self::launch(&source().quick(sources, dir), key)
    }

    /// The same with sanitizers.
    pub fn start_sanitized_from(sources: &Path, dir: &Path, key: Key) -> Self {
        Self::launch(&source().sanitized_from(sources, dir), key)
    }

    /// The same for coverage, whose data it writes into this folder when it ends.
    pub fn start_covered(dir: &Path, key: Key) -> Self {
        Self::launch(&source().covered(dir), key)
    }

    fn launch(binary: &Path, key: Key) -> Self {
        let mut child =
            Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut native = Self { child, stdin, stdout, key };
        let words = key.0.iter().flat_map(|word| word.to_le_bytes());
        native.ask(&std::iter::once(b'k').chain(words).collect::<Vec<u8>>());
        native
    }

    /// Commands, and what they give.
    pub fn ask(&mut self, commands: &[u8]) -> Vec<u8> {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(&(commands.len() as u32).to_le_bytes()).unwrap();
        stdin.write_all(commands).unwrap();
        stdin.flush().unwrap();
        let mut length = [0; 4];
        self.stdout.read_exact(&mut length).unwrap();
        let mut reply = vec![0; u32::from_le_bytes(length) as usize];
        self.stdout.read_exact(&mut reply).unwrap();
        reply
    }

    /// What each of these begins with.
    pub fn requests(&mut self, heads: &[&[u8]]) -> Vec<Recognised> {
        let commands: Vec<u8> = heads.iter().flat_map(|head| command(b'q', &[], head)).collect();
        let reply = self.ask(&commands);
        let mut at = Reader(&reply);
        let one = |_: &&[u8]| {
            let reason = at.u32();
            let (mut found, path, pairs) = at.http(reason);
            found.path = at.take(path).to_vec();
            found.cookies = at.pairs(pairs);
            found.settled()
        };
        heads.iter().map(one).collect()
    }

    pub fn request(&mut self, head: &[u8]) -> Recognised {
        self.requests(&[head]).remove(0)
    }

    pub fn answers(&mut self, heads: &[&[u8]], to: To) -> Vec<Option<Replied>> {
        let to = to_bits(to).to_le_bytes();
        let commands: Vec<u8> = heads.iter().flat_map(|head| command(b'a', &to, head)).collect();
        let reply = self.ask(&commands);
        let mut at = Reader(&reply);
        let one = |_: &&[u8]| {
            let failed = at.u32() != 0;
            let read = Replied::read(at.take(16));
            (!failed).then_some(read)
        };
        heads.iter().map(one).collect()
    }

    pub fn hellos(&mut self, hellos: &[&[u8]]) -> Vec<Named> {
        let commands: Vec<u8> = hellos.iter().flat_map(|head| command(b't', &[], head)).collect();
        let reply = self.ask(&commands);
        let mut at = Reader(&reply);
        let one = |_: &&[u8]| {
            let reason = at.u32();
            let host = [at.u64(), at.u64()];
            (reason, if reason == reason::NONE { host } else { [0; 2] })
        };
        hellos.iter().map(one).collect()
    }

    /// A packet for each of these bodies: what it is, and where the body stands then.
    pub fn bodies(&mut self, packets: &[(Follow, &[u8])]) -> Vec<(u32, Follow)> {
        let command = |(follow, bytes): &(Follow, &[u8])| command(b'b', &follow.bytes(), bytes);
        let commands: Vec<u8> = packets.iter().flat_map(command).collect();
        let reply = self.ask(&commands);
        let mut at = Reader(&reply);
        packets.iter().map(|_| (at.u32(), Follow::read(at.take(16)))).collect()
    }

    pub fn body(&mut self, follow: Follow, packet: &[u8]) -> (u32, Follow) {
        self.bodies(&[(follow, packet)]).remove(0)
    }

    pub fn hash(&mut self, text: &[u8]) -> u64 {
        Reader(&self.ask(&command(b'x', &[], text))).u64()
    }

    /// Ends the program.
    pub fn finish(mut self) {
        self.stdin = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the native recogniser: {status}");
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

fn command(letter: u8, arguments: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&[letter], arguments, &length[..], bytes].concat()
}

fn source() -> Source {
    Source { name: "recognise".into(), main: "recognise.c", flags: Vec::new() }
}

/// `TG_RULES_MAX`, `TG_COOKIE_TESTS_MAX`, `TG_PATH_MAX`.
const RULES_MAX: u32 = 1024;
const TESTS_MAX: u32 = 32;
const PATH_MAX: usize = 120;
/// `TG_RULE_TLS`.
const RULE_TLS: u8 = 2;
/// The slot and the service that rules are put into.
const SLOT: u32 = 1;
const SERVICE: u32 = 3;

/// Rules as commands that fill the tables, and what a search needs to know.
pub struct Tables {
    pub commands: Vec<u8>,
    tests: Vec<rules::CookieTest>,
    hosts: Vec<Vec<u8>>,
    key: Key,
}

impl Tables {
    /// Rules of HTTP in the order of the file; each gets its place + 1 as its number.
    pub fn of(rules: &[Rule], key: Key) -> Self {
        let mut tables = Self { commands: vec![b'z'], tests: vec![], hosts: vec![], key };
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(rules[*at].path.len()));
        for (place, at) in order.iter().enumerate() {
            let rule = &rules[*at];
            // behind it in the order, the next whose path is a prefix of its own
            let next = order[place + 1..]
                .iter()
                .find(|later| rule.path.starts_with(&rules[**later].path))
                .map_or(0, |later| *later as u16 + 1);
            tables.rule((*at as u32 + 1, next, 0), rule);
            let first = order.iter().find(|other| rules[**other].path == rule.path);
            if first == Some(at) {
                tables.path(&rule.path, *at as u32 + 1);
            }
        }
        tables
    }

    fn path(&mut self, path: &[u8], first: u32) {
        let bits = 16 + 8 * path.len() as u32;
        self.commands.push(b'p');
        self.commands.extend(bits.to_le_bytes());
        self.commands.extend([SLOT as u8, SERVICE as u8]);
        self.commands.extend(path);
        self.commands.extend(vec![0; PATH_MAX - path.len() + 2]);
        self.commands.extend(first.to_le_bytes());
    }

    /// Rules of TLS in the order of the file.
    pub fn of_tls(hosts: &[Option<HostTest>], key: Key) -> Self {
        let mut tables = Self { commands: vec![b'z'], tests: vec![], hosts: vec![], key };
        for (host, number) in hosts.iter().zip(1..) {
            let next = if number as usize == hosts.len() { 0 } else { number as u16 + 1 };
            tables.rule((number, next, RULE_TLS), &Rule { host: host.clone(), ..Rule::default() });
        }
        tables.path(b"", 1);
        tables
    }

    /// `struct tg_rule`: its number, the next, its flags.
    fn rule(&mut self, (number, next, flags): (u32, u16, u8), rule: &Rule) {
        let host = rule.host.as_ref().map_or(0, |host| self.host(host));
        let masks = [&rule.all, &rule.none, &rule.protect].map(|tests| self.mask(tests));
        self.commands.push(b'r');
        self.commands.extend((SLOT * RULES_MAX + number).to_le_bytes());
        self.commands.extend(next.to_le_bytes());
        self.commands.extend([flags, 1, rule.methods, 0, 0, 0]);
        self.commands.extend(host.to_le_bytes());
        self.commands.extend(masks.iter().flat_map(|mask| mask.to_le_bytes()));
    }

    fn host(&mut self, host: &HostTest) -> u32 {
        let (HostTest::Exact(name) | HostTest::Below(name)) = host;
        if let Some(at) = self.hosts.iter().position(|known| known == name) {
            return at as u32 + 1;
        }
        self.hosts.push(name.clone());
        let id = self.hosts.len() as u32;
        self.commands.push(b'h');
        self.commands.extend(self.key.hash(name).to_le_bytes());
        self.commands.extend([SLOT as u8, 0, 0, 0, 0, 0, 0, 0]);
        self.commands.extend(id.to_le_bytes());
        id
    }

    fn mask(&mut self, tests: &[rules::CookieTest]) -> u32 {
        tests.iter().map(|test| 1 << self.test(test)).fold(0, |mask, bit| mask | bit)
    }

    fn test(&mut self, test: &rules::CookieTest) -> u32 {
        if let Some(at) = self.tests.iter().position(|known| known == test) {
            return at as u32;
        }
        let at = self.tests.len() as u32;
        assert!(at < TESTS_MAX, "too many tests of cookies");
        self.tests.push(test.clone());
        let value = test.value.as_ref().map_or(0, |value| self.key.hash(value));
        self.commands.push(b'c');
        self.commands.extend((SLOT * TESTS_MAX + at).to_le_bytes());
        self.commands.extend(self.key.hash(&test.name).to_le_bytes());
        self.commands.extend(value.to_le_bytes());
        at
    }

    /// The same as entries: map, key, value.
    pub fn entries(&self) -> Vec<(&'static str, &[u8], &[u8])> {
        let mut at = Reader(&self.commands);
        let mut entries = Vec::new();
        while !at.0.is_empty() {
            let (map, key, value) = match at.u8() {
                b'p' => ("tg_paths", 128, 4),
                b'h' => ("tg_hosts", 16, 4),
                b'r' => ("tg_rules", 4, 24),
                b'c' => ("tg_cookie_tests", 4, 16),
                _ => continue,
            };
            entries.push((map, at.take(key), at.take(value)));
        }
        entries
    }

    /// `struct tg_asked`.
    pub fn asked(&self, tls: bool) -> Vec<u8> {
        let words = [SLOT, SERVICE, self.tests.len() as u32, tls.into(), 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Result and `struct tg_asked` afterwards.
    pub fn found(result: u32, asked: &[u8]) -> Found {
        let mut at = Reader(&asked[16..]);
        let (rule, protected) = (at.u32(), at.u32() != 0);
        match result {
            reason::NONE => Found::Rule(rule as usize - 1, protected),
            reason::NO_RULE | reason::TLS => Found::NoRule,
            reason::SPLIT => Found::Split,
            other => panic!("reason {other}"),
        }
    }
}

impl Native {
    /// Puts rules in force.
    pub fn rules(&mut self, tables: &Tables) {
        self.ask(&tables.commands);
    }

    /// The rule of a request.
    pub fn find(&mut self, tables: &Tables, head: &[u8]) -> (Recognised, Found) {
        (self.request(head), self.search(tables, false))
    }

    /// The rule of a TLS connection.
    pub fn find_tls(&mut self, tables: &Tables, hello: &[u8]) -> (Named, Found) {
        (self.hellos(&[hello])[0], self.search(tables, true))
    }

    fn search(&mut self, tables: &Tables, tls: bool) -> Found {
        let reply = self.ask(&[&b"f"[..], &tables.asked(tls)].concat());
        let mut at = Reader(&reply);
        let result = at.u32();
        Tables::found(result, at.0)
    }
}

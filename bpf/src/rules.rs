// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From request rules to the tables of the hooks.
//!
//! A look-up finds the rule that stands first at the longest path; from there each rule names the
//! next one: those of its path in the order of the file, then those of the next shorter path.
//!
//! The tables have two slots. The one that is not in force is filled, one word puts it in force,
//! and when the last packet that began before is through, the other is emptied: no packet sees
//! half a rule set.

use crate::abi::{self, AnswerText, CookieTest, HostKey, PathKey, RequestControl, Rule, SLOTS};
use crate::numbers::Identity;
use crate::{Error, Plan};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::mem::offset_of;
use tidegate_config::{
    Cookie, CookieMatch, HostPattern, Method, RequestsConfig, RuleConfig, RuleRefusal,
};
use tidegate_model::SERVICES_MAX;
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// The rules that a look-up passes, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Chain<'a> {
    /// The path; `None`: TLS.
    path: Option<&'a [u8]>,
    /// Places of the rules in the service.
    pub(crate) rules: Vec<usize>,
}

/// One chain for each path that a rule names, and one for TLS.
pub(crate) fn chains(rules: &[RuleConfig]) -> Vec<Chain<'_>> {
    let mut own: BTreeMap<Option<&[u8]>, Vec<usize>> = BTreeMap::new();
    for (place, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.unevaluable) {
        let path = rule.path.as_ref().map(|path| path.as_str().as_bytes());
        own.entry(path).or_default().push(place);
    }
    // Shorter paths come before those that they begin: what follows is there already.
    let mut chains: Vec<Chain<'_>> = Vec::new();
    for (path, mut rules) in own {
        let begins = |chain: &&Chain<'_>| match (chain.path, path) {
            (Some(shorter), Some(path)) => path.starts_with(shorter),
            _ => false,
        };
        let shorter = chains.iter().filter(begins).max_by_key(|chain| chain.path.map(<[u8]>::len));
        if let Some(shorter) = shorter {
            rules.extend(&shorter.rules);
        }
        chains.push(Chain { path, rules });
    }
    chains
}

/// Who all the rules, buckets and answers of a plan are, in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identities {
    pub(crate) rules: Vec<u64>,
    pub(crate) buckets: Vec<u64>,
    pub(crate) answers: Vec<u64>,
}

/// A rule is the same while it matches the same and fills the same bucket of the same service, a
/// bucket and a text while they say the same: how a rule refuses, and where it stands, may change.
pub(crate) fn identities(plan: &Plan) -> Identities {
    let mut all = Identities::default();
    for service in &plan.config.services {
        let Some(requests) = &service.requests else { continue };
        let of = |what: &dyn Fn(&mut Identity)| {
            let mut identity = Identity::default();
            service.name.hash(&mut identity);
            what(&mut identity);
            identity.finish()
        };
        for rule in &requests.rules {
            all.rules.push(of(&|identity| (matched(rule), &rule.bucket).hash(identity)));
        }
        let buckets = requests.buckets.iter().map(|bucket| &bucket.name);
        all.buckets.extend(buckets.map(|name| of(&|identity| name.hash(identity))));
        if requests.sends_503() {
            all.answers.push(text_identity(requests));
        }
    }
    all
}

/// What a rule matches, in one form however it is written.
fn matched(rule: &RuleConfig) -> impl Hash + use<'_> {
    let RuleConfig { path, server_name, unevaluable, host, cookie, protect, .. } = rule;
    (path, server_name, unevaluable, methods(&rule.methods), host, cookie, protect)
}

fn text_identity(requests: &RequestsConfig) -> u64 {
    let mut identity = Identity::default();
    let RequestsConfig { retry_after, content_type, response_body, .. } = requests;
    (retry_after.min, retry_after.max, content_type, response_body).hash(&mut identity);
    identity.finish()
}

/// The bits of methods; none given means all.
fn methods(named: &[Method]) -> u8 {
    let bit = |method: &Method| match method {
        Method::Get => abi::METHOD_GET,
        Method::Head => abi::METHOD_HEAD,
        Method::Post => abi::METHOD_POST,
        Method::Put => abi::METHOD_PUT,
        Method::Delete => abi::METHOD_DELETE,
        Method::Options => abi::METHOD_OPTIONS,
        Method::Patch => abi::METHOD_PATCH,
        Method::Other => abi::METHOD_OTHER,
    };
    if named.is_empty() {
        abi::METHOD_ANY
    } else {
        named.iter().map(bit).fold(0, |all, bit| all | bit)
    }
}

/// How a refused request is answered, as the hooks have it.
const fn refusal(answer: RuleRefusal) -> u8 {
    match answer {
        RuleRefusal::Busy => abi::REFUSE_503,
        RuleRefusal::Reset => abi::REFUSE_RESET,
        RuleRefusal::Drop => abi::REFUSE_DROP,
        RuleRefusal::Auto => abi::REFUSE_AUTO,
    }
}

/// The numbers of one service's rules and buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seats {
    /// By place of the rule.
    pub(crate) rules: Vec<u32>,
    /// By place of the bucket.
    pub(crate) buckets: Vec<u32>,
    /// Number of the text of its 503, where it has one.
    pub(crate) answer: Option<u32>,
}

/// What the tables say of a whole plan, but for the slot.
#[derive(Debug, Default)]
pub(crate) struct RuleSet {
    paths: Vec<(PathKey, u32)>,
    rules: Vec<(u32, Rule)>,
    hosts: BTreeMap<u64, u32>,
    cookies: Vec<CookieTest>,
    texts: Vec<(u32, Box<AnswerText>)>,
    /// By service: the rule of what no other evaluates.
    unevaluable: Vec<(u32, u32)>,
    /// Bit n: service n has rules.
    pub(crate) services: u32,
}

/// Compiles the rules of a plan that was checked. `seats` are those of its services, in their
/// order; `hash` is that of http/text_hash.h.
pub(crate) fn compile(plan: &Plan, seats: &[Seats], hash: &dyn Fn(&[u8]) -> u64) -> RuleSet {
    let mut compiler = Compiler { set: RuleSet::default(), hash };
    for ((index, service), seats) in plan.config.services.iter().enumerate().zip(seats) {
        if let Some(requests) = service.requests.as_ref().filter(|r| !r.rules.is_empty()) {
            compiler.service(index as u8, requests, seats);
        }
    }
    compiler.set
}

struct Compiler<'a> {
    set: RuleSet,
    hash: &'a dyn Fn(&[u8]) -> u64,
}

impl Compiler<'_> {
    fn service(&mut self, index: u8, requests: &RequestsConfig, seats: &Seats) {
        self.set.services |= 1 << index;
        let mut next = vec![0; requests.rules.len()];
        for chain in chains(&requests.rules) {
            for pair in chain.rules.windows(2) {
                next[pair[0]] = seats.rules[pair[1]];
            }
            let Some(first) = chain.rules.first() else { continue };
            let key = path_key(index, chain.path.unwrap_or_default());
            self.set.paths.push((key, seats.rules[*first]));
        }
        for (place, rule) in requests.rules.iter().enumerate() {
            let raw = self.rule((requests, rule), seats);
            let raw = Rule { next: next[place] as u16, ..raw };
            if rule.unevaluable {
                self.set.unevaluable.push((index.into(), seats.rules[place]));
            }
            self.set.rules.push((seats.rules[place], raw));
        }
        if let Some(number) = seats.answer
            && !self.set.texts.iter().any(|(first, _)| *first == first_text(number))
        {
            self.set.texts.extend(texts(number, requests));
        }
    }

    fn rule(&mut self, (all, rule): (&RequestsConfig, &RuleConfig), seats: &Seats) -> Rule {
        let bucket = rule.bucket.as_ref().and_then(|name| seats.buckets.get(all.bucket(name)?));
        let answers = rule.bucket.is_some() && rule.sends_503();
        let answer = seats.answer.filter(|_| answers).map_or(0, first_text);
        let raw = Rule {
            flags: if rule.close_persistent { abi::RULE_CLOSE } else { 0 },
            refuse: refusal(rule.refusal()),
            bucket: bucket.map_or(abi::RULE_BUCKETS_MAX as u8, |bucket| *bucket as u8),
            answer: answer as u16,
            ..Rule::default()
        };
        if let Some(host) = &rule.server_name {
            return Rule {
                flags: raw.flags | abi::RULE_TLS,
                methods: abi::METHOD_ANY,
                host: self.host(host),
                ..raw
            };
        }
        if rule.unevaluable {
            return raw;
        }
        let asked = |absent| {
            let cookie = rule.cookie.as_ref().filter(|cookie| cookie.absent == absent);
            cookie.map(CookieMatch::cookie)
        };
        Rule {
            methods: methods(&rule.methods),
            host: rule.host.as_ref().map_or(0, |host| self.host(host)),
            cookies_all: self.tests(asked(false).as_slice()),
            cookies_none: self.tests(asked(true).as_slice()),
            protect: self.tests(&rule.protect),
            ..raw
        }
    }

    /// The id of a host; never 0. A rule names one host at most: there is room for all.
    fn host(&mut self, host: &HostPattern) -> u32 {
        let hash = (self.hash)(compared(host).as_bytes());
        let next = self.set.hosts.len() as u32 + 1;
        *self.set.hosts.entry(hash).or_insert(next)
    }

    /// The bits of these tests.
    fn tests(&mut self, tests: &[Cookie]) -> u32 {
        tests.iter().map(|test| 1 << self.test(test)).fold(0, |all, bit| all | bit)
    }

    fn test(&mut self, test: &Cookie) -> usize {
        let name = (self.hash)(test.name.as_bytes());
        let value = test.value.as_ref().map_or(0, |value| (self.hash)(value.as_bytes()));
        let known = |known: &CookieTest| (known.name, known.value) == (name, value);
        self.set.cookies.iter().position(known).unwrap_or_else(|| {
            self.set.cookies.push(CookieTest { name, value });
            self.set.cookies.len() - 1
        })
    }
}

/// The name that is compared; `*.name` without its star.
fn compared(host: &HostPattern) -> String {
    format!("{}{}", if host.below { "." } else { "" }, host.name)
}

fn path_key(service: u8, path: &[u8]) -> PathKey {
    let bits = abi::PATH_BITS + 8 * path.len() as u32;
    let mut key = PathKey { bits, service, ..PathKey::default() };
    key.path[..path.len()].copy_from_slice(path);
    key
}

/// Number of the first variant of a text.
const fn first_text(number: u32) -> u32 {
    number * abi::ANSWER_VARIANTS as u32
}

/// The variants of a 503.
fn texts(
    number: u32,
    requests: &RequestsConfig,
) -> impl Iterator<Item = (u32, Box<AnswerText>)> + use<'_> {
    (0_u32..).zip(requests.retry_after_seconds()).map(move |(variant, seconds)| {
        let (whole, head) = requests.busy_text(Nanos::from_secs(seconds));
        let bytes = whole.as_bytes();
        let mut text = Box::new(AnswerText::default());
        text.text[..bytes.len()].copy_from_slice(bytes);
        (text.bytes, text.head) = (bytes.len() as u16, head as u16);
        (text.sum, text.sum_head) = (sum(bytes), sum(&bytes[..head]));
        (first_text(number) + variant, text)
    })
}

/// What bytes add to a checksum (RFC 1071): 16-bit words as they lie in memory, added in ones'
/// complement, not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u16::from_ne_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    let sum: u64 = bytes.chunks(2).map(|pair| u64::from(word(pair))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// Where rule sets are kept: the kernel's maps, or what a test has instead.
pub(crate) trait Tables {
    /// What is in force.
    fn control(&self) -> Result<RequestControl, Error>;

    /// All keys of a table.
    fn keys(&self, table: &'static str) -> Vec<Vec<u8>>;

    /// Writes one entry, which a packet sees before or after, never halfway.
    fn write(&mut self, table: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Removes one entry.
    fn delete(&mut self, table: &'static str, key: &[u8]) -> Result<(), Error>;

    /// Returns when every packet that began before is through.
    fn wait(&mut self) -> Result<(), Error>;
}

/// Takes services out of force whose index is about to change hands: their requests pass until
/// the next rule set is in force.
pub(crate) fn pause(tables: &mut impl Tables, services: u32) -> Result<(), Error> {
    let control = tables.control()?;
    if control.services & services == 0 {
        return Ok(());
    }
    put(tables, RequestControl { services: control.services & !services, ..control })?;
    tables.wait()
}

/// No connection is young enough to be given a place: [`RequestControl::since_ns`] until it is known.
pub(crate) const NOBODY: u64 = u64::MAX;

/// Only connections that begin from now on are given a place: what the others have sent, the hooks
/// may not have seen.
pub(crate) fn listen_from(tables: &mut impl Tables, now: Nanos) -> Result<(), Error> {
    let control = tables.control()?;
    put(tables, RequestControl { since_ns: now.0, ..control })
}

/// From now on no connection is given a place, until [`listen_from`]: it is about to change which of
/// them belong to services with rules. The caller waits for the packets that began before.
pub(crate) fn listen_to_nobody(tables: &mut impl Tables) -> Result<(), Error> {
    let control = tables.control()?;
    put(tables, RequestControl { since_ns: NOBODY, ..control })
}

/// Puts a rule set in force. Where a service has rules that had none, no connection is given a
/// place any more until [`listen_from`] is told that the hooks see all.
pub(crate) fn put_in_force(tables: &mut impl Tables, set: &RuleSet) -> Result<(), Error> {
    let before = tables.control()?;
    let (old, slot) = (before.slot % SLOTS, (before.slot + 1) % SLOTS);
    // A reload that failed halfway may have left something.
    empty(tables, slot as u8)?;
    fill(tables, set, slot as u8)?;
    let cookies = set.cookies.len() as u32;
    // One field at a time, whatever a packet has read of the others. In between there are more
    // tests than a slot has (the rest of them are nobody's), or a service that has no rules in it
    // (all of its requests pass): nothing that either rule set would not say.
    let fresh = set.services & !before.services != 0;
    let since_ns = if fresh { NOBODY } else { before.since_ns };
    let more = RequestControl { cookies: before.cookies.max(cookies), since_ns, ..before };
    put(tables, more)?;
    if fresh {
        tables.wait()?;
    }
    let flipped = RequestControl { slot, ..more };
    put(tables, flipped)?;
    let served = RequestControl { services: set.services, ..flipped };
    put(tables, served)?;
    tables.wait()?;
    put(tables, RequestControl { cookies, ..served })?;
    empty(tables, old as u8)
}

fn put(tables: &mut impl Tables, control: RequestControl) -> Result<(), Error> {
    tables.write("tg_request_control", &0_u32.to_ne_bytes(), control.as_bytes())
}

/// Removes what leads to the rules of a slot.
fn empty(tables: &mut impl Tables, slot: u8) -> Result<(), Error> {
    for (table, at) in
        [("tg_paths", offset_of!(PathKey, slot)), ("tg_hosts", offset_of!(HostKey, slot))]
    {
        for key in tables.keys(table).into_iter().filter(|key| key.get(at) == Some(&slot)) {
            tables.delete(table, &key)?;
        }
    }
    Ok(())
}

fn fill(tables: &mut impl Tables, set: &RuleSet, slot: u8) -> Result<(), Error> {
    let place = |size: usize, number: u32| (u32::from(slot) * size as u32 + number).to_ne_bytes();
    for (number, rule) in &set.rules {
        tables.write("tg_rules", &place(abi::RULES_MAX, *number), rule.as_bytes())?;
    }
    let none = CookieTest::default();
    for number in 0..abi::COOKIE_TESTS_MAX {
        let test = set.cookies.get(number).unwrap_or(&none);
        let place = place(abi::COOKIE_TESTS_MAX, number as u32);
        tables.write("tg_cookie_tests", &place, test.as_bytes())?;
    }
    for service in 0..SERVICES_MAX as u32 {
        let rule = set.unevaluable.iter().find(|(of, _)| *of == service);
        let number = rule.map_or(0, |(_, number)| *number);
        let place = place(SERVICES_MAX, service);
        tables.write("tg_unevaluable", &place, &number.to_ne_bytes())?;
    }
    for (number, text) in &set.texts {
        tables.write("tg_answer_texts", &place(abi::ANSWERS_MAX, *number), text.as_bytes())?;
    }
    for (hash, id) in &set.hosts {
        let key = HostKey { hash: *hash, slot, ..HostKey::default() };
        tables.write("tg_hosts", key.as_bytes(), &id.to_ne_bytes())?;
    }
    for (key, first) in &set.paths {
        let key = PathKey { slot, ..*key };
        tables.write("tg_paths", key.as_bytes(), &first.to_ne_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is configured, decided and used when a packet arrives: the words in which the cases say it.
//! `plane` puts it into the kernel, `native` into the shim, `reference` decides by it.

use std::fmt;
use std::net::IpAddr;
use tidegate_policy::{Action, InFlight, Level, MinRate, Policy};
use tidegate_units::Rate;

pub const SECOND: u64 = 1_000_000_000;
/// Answers per second and CPU where a case says nothing: so many that the cap is never met by
/// chance, however fast the machine runs one case after the other.
pub const ANSWERS: u32 = 10_000_000;
/// The same beyond the cap: as shipped, so that no case finds out by chance who is not proved.
const PROVED: u32 = 20_000;

/// A prefix of either family, IPv4 mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub addr: IpAddr,
    pub bits: u8,
}

impl Prefix {
    /// From `192.0.2.0/24` or `2001:db8::/32`.
    pub fn new(text: &str) -> Self {
        let (addr, bits) = text.split_once('/').unwrap();
        Self { addr: addr.parse().unwrap(), bits: bits.parse().unwrap() }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.bits)
    }
}

/// An address and port to listen at; no address is any, of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    pub addr: Option<IpAddr>,
    pub port: u16,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            None => write!(f, "*:{}", self.port),
            Some(IpAddr::V4(a)) => write!(f, "{a}:{}", self.port),
            Some(IpAddr::V6(a)) => write!(f, "[{a}]:{}", self.port),
        }
    }
}

/// A class of requests; its index is its place in the service plus one (0 is the default class).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: &'static str,
    pub sources: Vec<Prefix>,
    pub dscp: Option<u8>,
    pub priority: u8,
}

/// One admission in so many seconds: so slow that no token comes back while a test runs.
pub const SECONDS_PER_TOKEN: u64 = 1000;

/// A bucket that fills by one token in [`SECONDS_PER_TOKEN`], and what of it was used just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub burst: u32,
    pub used: u32,
    pub reserve: [u32; 8],
}

/// One service with its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: &'static str,
    pub listen: Vec<Listen>,
    pub classes: Vec<Class>,
    pub policy: Policy,
    pub action: Action,
    pub shadow: bool,
    pub limit: Option<Limit>,
    /// Connections that may wait for an answer (0: any number), and those that do.
    pub waiting_max: u64,
    pub waiting: u64,
    /// How many may once that limit has refused, until how few are left; 0: as many.
    pub waiting_low: (u64, u64),
    /// Whether it has.
    pub tight: bool,
    /// Connections that have said nothing, how many are usual, and which share of the others will ask,
    /// in 1/1024.
    pub silent: u64,
    pub silent_usual: u64,
    pub asks_q10: u32,
    /// Silent or slow connections that one source may have before it opens no more; 0: any number.
    pub source_max: u32,
    /// In 1/1024 of the backlog; 0: never.
    pub accept_queue_max_q10: u32,
    /// One in so many microseconds passes these two when they are full (0: nobody), and how many
    /// nanoseconds ago the last one did.
    pub min_rate_us: u32,
    pub min_rate_ago: u64,
    /// How far ahead abacus may borrow, in seconds.
    pub abacus_window: u16,
    /// Whether this very SYN was refused just before.
    pub refused_before: bool,
    /// Whether a remote limit holds, so that copies of SYNs that passed are asked about.
    pub copies: bool,
    /// So many milliseconds from now its limits end, whatever the lease says.
    pub until_ms: Option<i64>,
}

/// When the daemon last said that it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    Never,
    /// Nanoseconds ago.
    Ago(u64),
    /// So many nanoseconds from now.
    Ahead(u64),
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub services: Vec<Service>,
    pub exempt_sources: Vec<Prefix>,
    pub exempt_ports: Vec<u16>,
    pub trust_dscp: bool,
    pub answers: u32,
    /// Answers that are left of this second's; `None`: all.
    pub answers_left: Option<u32>,
    /// Answers beyond these per second and CPU, to sources that have proved themselves.
    pub proved: u32,
    pub released: bool,
    pub heartbeat: Heartbeat,
}

fn listen(text: &str) -> Listen {
    let (addr, port) = text.rsplit_once(':').unwrap();
    let addr = addr.trim_matches(['[', ']']);
    Listen { addr: (addr != "*").then(|| addr.parse().unwrap()), port: port.parse().unwrap() }
}

fn service(name: &'static str, at: &[&str]) -> Service {
    Service {
        name,
        listen: at.iter().map(|text| listen(text)).collect(),
        classes: Vec::new(),
        policy: Policy::TokenBucket,
        action: Action::Drop,
        shadow: false,
        limit: None,
        waiting_max: 0,
        waiting: 0,
        waiting_low: (0, 0),
        tight: false,
        silent: 0,
        silent_usual: 0,
        asks_q10: 0,
        source_max: 0,
        accept_queue_max_q10: 0,
        min_rate_us: 0,
        min_rate_ago: super::native::NOW,
        abacus_window: 45,
        refused_before: false,
        copies: false,
        until_ms: None,
    }
}

/// The scene of most cases: `shop` at port 80 of the server's addresses, `any` at port 443 of all,
/// and no limit.
pub fn base() -> Setup {
    let shop = service("shop", &["192.0.2.10:80", "[2001:db8::10]:80", "192.0.2.10:81"]);
    let any = service("any", &["*:443", "192.0.2.10:8080"]);
    Setup {
        services: vec![shop, any],
        exempt_sources: vec![Prefix::new("10.0.0.0/8"), Prefix::new("2001:db8:aaaa::/48")],
        exempt_ports: vec![22],
        trust_dscp: false,
        answers: ANSWERS,
        answers_left: None,
        proved: PROVED,
        released: false,
        heartbeat: Heartbeat::Ago(0),
    }
}

/// The same with an empty bucket in front of every service that drops what it refuses.
pub fn dropping() -> Setup {
    base().each(|service| service.limit = Some(Limit::new(5, 5)))
}

/// The same, with an answer.
pub fn rejecting() -> Setup {
    dropping().each(|service| service.action = Action::Reject)
}

impl Limit {
    pub fn new(burst: u32, used: u32) -> Self {
        Self { burst, used, reserve: [0; 8] }
    }
}

/// Changes, one a word.
impl Setup {
    pub fn each(mut self, change: impl Fn(&mut Service)) -> Self {
        self.services.iter_mut().for_each(change);
        self
    }

    pub fn policy(self, policy: Policy) -> Self {
        self.each(|service| service.policy = policy)
    }

    /// A bucket of this depth of which so much is used.
    pub fn bucket(self, burst: u32, used: u32) -> Self {
        self.each(|service| service.limit = Some(Limit::new(burst, used)))
    }

    /// What each priority must leave in the bucket.
    pub fn reserve(self, tokens: [u32; 8]) -> Self {
        self.each(|service| {
            if let Some(limit) = &mut service.limit {
                limit.reserve = tokens;
            }
        })
    }

    pub fn shadow(self) -> Self {
        self.each(|service| service.shadow = true)
    }

    pub fn waiting(self, now: u64, max: u64) -> Self {
        self.each(|service| (service.waiting, service.waiting_max) = (now, max))
    }

    /// Tighter from the first refusal on, until so few wait.
    pub fn low(self, low: u64, rest: u64) -> Self {
        self.each(|service| service.waiting_low = (low, rest))
    }

    /// So many have said nothing, so many of them usually, and a share of the others will ask.
    pub fn silent(self, now: u64, usual: u64, asks_q10: u32) -> Self {
        self.each(|service| {
            (service.silent, service.silent_usual, service.asks_q10) = (now, usual, asks_q10);
        })
    }

    pub fn accept_queue_max(self, q10: u32) -> Self {
        self.each(|service| service.accept_queue_max_q10 = q10)
    }

    /// Limits end so many milliseconds from now.
    pub fn until(self, ms: i64) -> Self {
        self.each(|service| service.until_ms = Some(ms))
    }

    /// One in so many microseconds is admitted past a full limit, and none was yet.
    pub fn min_rate(self, interval_us: u32) -> Self {
        self.each(|service| service.min_rate_us = interval_us)
    }

    pub fn abacus(self, window: u16) -> Self {
        self.policy(Policy::Abacus).each(|service| service.abacus_window = window)
    }

    pub fn abacus_exact(self, window: u16) -> Self {
        self.policy(Policy::AbacusExact).each(|service| service.abacus_window = window)
    }

    /// A rejection is worth a wait of so many seconds.
    pub fn abacus_learned(self, window: u16) -> Self {
        self.policy(Policy::AbacusLearned).each(|service| service.abacus_window = window)
    }

    pub fn refused_before(self) -> Self {
        self.each(|service| service.refused_before = true)
    }

    /// Another class of every service.
    pub fn class(self, name: &'static str, sources: &[&str], priority: u8) -> Self {
        let sources: Vec<Prefix> = sources.iter().map(|text| Prefix::new(text)).collect();
        self.each(|service| {
            let class = Class { name, sources: sources.clone(), dscp: None, priority };
            service.classes.push(class);
        })
    }

    /// Gives the last class this DSCP.
    pub fn dscp(self, value: u8) -> Self {
        self.each(|service| service.classes.last_mut().unwrap().dscp = Some(value))
    }

    /// Another address of the service with this index.
    pub fn listening(mut self, service: usize, at: &str) -> Self {
        self.services[service].listen.push(listen(at));
        self
    }

    pub fn trusting(mut self) -> Self {
        self.trust_dscp = true;
        self
    }

    pub fn answers(mut self, per_second: u32, left: u32) -> Self {
        (self.answers, self.answers_left) = (per_second, Some(left));
        self
    }

    pub fn proved(mut self, per_second: u32) -> Self {
        self.proved = per_second;
        self
    }

    pub fn released(mut self) -> Self {
        self.released = true;
        self
    }

    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// The service's index, and its default class's name where the class is 0.
    pub fn class_name(&self, service: usize, class: usize) -> &'static str {
        match class.checked_sub(1) {
            None => "default",
            Some(at) => self.services[service].classes[at].name,
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.services.iter().map(Service::words).collect();
        let also = |(service, usual): (&Service, &Service)| {
            let more: Vec<String> =
                service.listen[usual.listen.len()..].iter().map(Listen::to_string).collect();
            (!more.is_empty()).then(|| format!("{} also at {}", service.name, more.join(" ")))
        };
        let more: Vec<String> =
            self.services.iter().zip(&base().services).filter_map(also).collect();
        words.dedup_by_key(|text| text.split_once(": ").map(|(_, rest)| rest.to_owned()));
        words.extend(more);
        let mut say = |it: bool, text: String| it.then(|| words.push(text));
        say(self.trust_dscp, "DSCP trusted".into());
        if let Some(left) = self.answers_left {
            say(true, format!("answers {left} left of {}/s", self.answers));
        }
        say(self.released, "released".into());
        match self.heartbeat {
            Heartbeat::Never => say(true, "no heartbeat ever".into()),
            Heartbeat::Ahead(ns) => {
                say(true, format!("heartbeat {:.1} s ahead", ns as f64 / SECOND as f64))
            }
            Heartbeat::Ago(ns) => {
                say(ns > 0, format!("heartbeat {:.1} s ago", ns as f64 / SECOND as f64))
            }
        };
        f.write_str(&words.join("; "))
    }
}

impl Service {
    /// The limit in flight, as the dataplane takes it.
    pub fn limit_in_flight(&self) -> Option<InFlight> {
        (self.waiting_max > 0).then(|| {
            InFlight::up_to(self.waiting_max)
                .tight(self.waiting_low)
                .counting(self.silent_usual, self.asks_q10)
        })
    }

    /// The least rate, as the dataplane takes it.
    pub fn min_rate(&self) -> Option<MinRate> {
        let per_second = 1e6 / f64::from(self.min_rate_us);
        (self.min_rate_us > 0).then(|| MinRate::per(Rate::per_second(per_second)))
    }

    /// 1: its level is the length of the accept queue; 0: it has none. What is in flight is in no level
    /// here: the queue comes with the frame.
    pub fn counts_queue(&self) -> u32 {
        (self.policy == Policy::Threshold).into()
    }

    /// The same as the dataplane takes it.
    pub fn level(&self) -> Level {
        if self.counts_queue() == 1 { Level::ACCEPT_QUEUE } else { Level::NONE }
    }

    /// Whether its policy takes tokens. Of the share of one of the others nobody is refused but priority 7
    /// (see `native::params`).
    pub fn takes_tokens(&self) -> bool {
        ![Policy::Threshold, Policy::Percent].contains(&self.policy)
    }

    /// Whether its policy borrows from later.
    pub fn is_abacus(&self) -> bool {
        [Policy::Abacus, Policy::AbacusExact, Policy::AbacusLearned].contains(&self.policy)
    }

    fn words(&self) -> String {
        let mut words = Vec::new();
        let action = match self.action {
            Action::Drop => "drops",
            Action::Reject => "rejects",
            Action::Auto => "drops or rejects",
        };
        match &self.limit {
            None => words.push(format!("{} {action}, no limit", self.policy.name())),
            Some(limit) => {
                let left = limit.burst - limit.used;
                words.push(format!(
                    "{} {action}, {left} of {} tokens left",
                    self.policy.name(),
                    limit.burst
                ));
                if limit.reserve != [0; 8] {
                    words.push(format!("reserve {:?}", limit.reserve));
                }
            }
        }
        let mut say = |it: bool, text: String| it.then(|| words.push(text));
        say(self.shadow, "shadow".into());
        say(self.waiting_max > 0, format!("waiting {} of {}", self.waiting, self.waiting_max));
        let (low, rest) = self.waiting_low;
        say(low > 0, format!("{low} after a refusal, until {rest}"));
        say(self.tight, "it has refused".into());
        say(
            self.asks_q10 > 0,
            format!(
                "silent {}, usually {}, of the others {}/1024 ask",
                self.silent, self.silent_usual, self.asks_q10
            ),
        );
        let queue = self.accept_queue_max_q10;
        say(queue > 0, format!("accept queue up to {queue}/1024"));
        let (every, ago) = (self.min_rate_us, self.min_rate_ago);
        say(every > 0, format!("one in {every} us at least, the last {ago} ns ago"));
        say(self.is_abacus(), format!("window {} s", self.abacus_window));
        say(self.refused_before, "this SYN was refused before".into());
        say(self.copies, "copies are asked about".into());
        let until = self.until_ms.unwrap_or_default();
        say(self.until_ms.is_some(), format!("limits end in {until} ms"));
        for class in &self.classes {
            words.push(class.to_string());
        }
        format!("{}: {}", self.name, words.join(", "))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class {} priority {}", self.name, self.priority)?;
        for source in &self.sources {
            write!(f, " {source}")?;
        }
        self.dscp.map_or(Ok(()), |dscp| write!(f, " dscp {dscp}"))
    }
}

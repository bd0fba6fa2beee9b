// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: what adapters ask, and what the daemon tells it.

use crate::asked::{Asked, Listener};
use crate::beside::{self, Question};
use crate::counters::{Counter, REASONS};
use crate::flight::{
    Completed, Completion, Ended, Flight, Flights, Id, Seen, Token, request_key, shortened,
};
use crate::refusal::{RateLimit, Refusal};
use crate::routes::{Gateway, Routing, Target};
use crate::service::{Bucket, Counted, Decided, GateState, Who};
use crate::sketch::Sketch;
use crate::turns::Turn;
use crate::unguessable::Unguessable;
use crate::waiting::{Subject, Waiting};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use tidegate_config::{BucketConfig, Config, RequestHead, Routed, ServiceConfig, Unevaluated};
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_model::totals::ServiceTotals;
use tidegate_model::{Canary, Mode, PRIORITIES, PRIORITY_DEFAULT};
use tidegate_policy::{
    Action, BucketSpec, Execution, Lease, Params, Policy, Rank, Reason, RequestLimits, SourceKey,
};
use tidegate_units::{Nanos, Rate};

/// The headers of a request, as far as routes ask for them.
pub trait Headers {
    /// The value of a header, by its name in any case; where there are several, the values joined as
    /// RFC 9110 says (of Cookie by `; `).
    fn get(&self, name: &str) -> Option<&str>;
}

/// A request without headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHeaders;

impl Headers for NoHeaders {
    fn get(&self, _: &str) -> Option<&str> {
        None
    }
}

/// What a proxy asks about one request.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The name of the gateway in the configuration. Its place there would not do: who asks learns of another
    /// configuration a little later than the gate.
    pub gateway: &'a str,
    /// The method, as the client sent it.
    pub method: &'a str,
    /// The host (Host, `:authority`), with or without a port.
    pub host: Option<&'a str>,
    /// Path and query, or any other form of a target.
    pub target: &'a str,
    /// The client's address, from the proxy's own field: never from a header that a client can send.
    pub client: Option<IpAddr>,
    /// The proxy's id of the request.
    pub request_id: Option<&'a str>,
    /// Whether the report of it will name the id, and not the token.
    pub reported_by_id: bool,
    /// The share of such requests that the proxy asks about, in ten-thousandths, where it can refuse the others by
    /// itself and this is known of the question.
    pub share: Option<u32>,
    /// When the turn of its loop began in which the proxy asks, where it says so.
    pub turn: Option<Turn>,
    /// Its headers.
    pub headers: &'a dyn Headers,
}

/// What a proxy is told about one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The place of the service in the configuration; `None`: no route led to one, and it passes.
    pub service: Option<usize>,
    /// Why, from the one list of reasons.
    pub reason: Reason,
    /// Whether the verdict was a refusal, executed or not.
    pub refused: bool,
    /// Names the request in its report; `None`: it is not followed.
    pub token: Option<Token>,
    /// What the client is told; `None`: the request passes.
    pub refusal: Option<Refusal>,
    /// The share that it shall ask about, for a second at most; `None`: it asks about everything.
    pub share: Option<u32>,
}

impl Answer {
    /// It passes, and nothing is followed.
    const fn unevaluated(reason: Reason) -> Self {
        Self { service: None, reason, refused: false, token: None, refusal: None, share: None }
    }

    /// Whether the request goes on to the server.
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.refusal.is_none()
    }
}

/// Of so many tokens the parts of priorities are computed.
const SCALE: u32 = 1 << 20;
/// A method that no route names.
const UNREADABLE: &str = "-";

/// Admission for all gateways of a configuration.
pub struct Gate {
    routing: RwLock<Arc<Routing>>,
    flights: Flights,
    heartbeat: AtomicU64,
    /// When the control loop came round first; 0: not yet.
    first_tick: AtomicU64,
    released: AtomicBool,
    /// Goes on with each random number.
    seed: AtomicU64,
    /// Whoever knows some of them must not know others: a report ends a request in flight.
    tokens: Unguessable,
    /// Passed without being evaluated, by reason.
    passed: Box<[Counter]>,
    completed: Counter,
    late: Counter,
    unknown: Counter,
    untracked: Counter,
    misunderstood: Counter,
    /// Clients that were refused in the last minute.
    refused: Sketch,
    /// By which a canary chooses its sources.
    sources: SourceKey,
}

impl Gate {
    /// A gate without limits, whose lease has not begun: everything passes. `seed` makes what it
    /// randomises; that of a process should be one that nobody can guess. Its tokens have a key of their own.
    #[must_use]
    pub fn new(config: &Config, seed: u64) -> Self {
        Self {
            routing: RwLock::new(Arc::new(Routing::new(config, &Routing::default()))),
            flights: Flights::default(),
            heartbeat: AtomicU64::new(0),
            first_tick: AtomicU64::new(0),
            released: AtomicBool::new(false),
            seed: AtomicU64::new(seed),
            tokens: Unguessable::default(),
            passed: (0..REASONS).map(|_| Counter::default()).collect(),
            completed: Counter::default(),
            late: Counter::default(),
            unknown: Counter::default(),
            untracked: Counter::default(),
            misunderstood: Counter::default(),
            refused: Sketch::default(),
            sources: random_key(),
        }
    }

    /// The same, with the key of the kernel's hooks: its canaries choose the sources that theirs do.
    #[must_use]
    pub fn with_sources(self, sources: SourceKey) -> Self {
        Self { sources, ..self }
    }

    fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.routing.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.seed.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Decides about a request. What passes and is routed to a service is in flight until
    /// [`Self::complete`] is told of it.
    pub fn ask(&self, now: Nanos, ask: &Ask<'_>) -> Answer {
        match self.asked(now, ask, false) {
            Ok(answer) => answer,
            // Nobody is told to wait who cannot.
            Err(waiting) => self.enter(now, &waiting),
        }
    }

    /// The same by a proxy that can let a request wait.
    ///
    /// # Errors
    /// When it is to wait. Nothing is counted of it before [`Self::enter`] or [`Self::turn_away`].
    pub fn ask_or_wait(&self, now: Nanos, ask: &Ask<'_>) -> Result<Answer, Box<Waiting>> {
        self.asked(now, ask, true)
    }

    /// A request that has waited passes.
    pub fn enter(&self, now: Nanos, waiting: &Waiting) -> Answer {
        waiting.passes(now);
        self.settle(now, &waiting.subject(), passing(Reason::Wait))
    }

    /// A request that was to wait does not pass: there was no room, or its client has left.
    pub fn turn_away(&self, now: Nanos, waiting: &Waiting) -> Answer {
        let refused = Decided {
            reason: Reason::Rate,
            refused: true,
            execution: Execution::Executed,
            passes: false,
            delay: None,
        };
        self.settle(now, &waiting.subject(), refused)
    }

    fn asked(&self, now: Nanos, ask: &Ask<'_>, waits: bool) -> Result<Answer, Box<Waiting>> {
        let routing = self.routing();
        let Some(gateway) = routing.gateway(ask.gateway) else {
            return Ok(self.pass(Reason::NoRule));
        };
        let Some(target) = target(gateway, ask) else {
            return Ok(self.pass(Reason::NoRule));
        };
        let Some(served) = routing.served(target.service) else {
            return Ok(self.pass(Reason::NoRule));
        };
        if ask.client.is_some_and(|client| routing.exempt.get(client).is_some()) {
            return Ok(self.pass(Reason::Exempt));
        }
        let (class, priority) = served.class(&target, ask.client);
        let subject = Subject {
            at: target.service,
            service: &served.service,
            tally: &served.tally,
            bucket: target.bucket.and_then(|bucket| served.buckets.get(bucket)),
            id: ask.request_id.unwrap_or_default(),
            reported_by_id: ask.reported_by_id && ask.request_id.is_some(),
            client: ask.client,
            class,
            priority,
            retry_after: gateway.retry_after,
            rate_limit_fields: gateway.rate_limit_fields,
        };
        self.estimate(now, (gateway.asked.as_ref(), ask.share), &subject);
        let decided = self.decide(now, (&subject, served.told.as_ref()), (waits, ask.turn));
        if let Some(delay) = decided.delay {
            return Err(Box::new(Waiting::new(&subject, now + delay)));
        }
        let mut answer = self.settle(now, &subject, decided);
        answer.share = gateway.asked.answer(now, ask.share);
        Ok(answer)
    }

    /// Counts whom the proxy has refused by itself, for each that it asks about.
    fn estimate(&self, now: Nanos, (asked, share): (&Asked, Option<u32>), of: &Subject<'_>) {
        let unseen = asked.unseen(now, share, || self.random());
        if unseen > 0 {
            of.service.refused_by_proxy(now, unseen, of.retry_after.1);
            of.tally.add(of.class, Execution::Executed, Reason::ByProxy, unseen);
        }
    }

    /// A proxy of this gateway can be told what share to ask about, until what this gives is dropped.
    pub(crate) fn listen(&self, gateway: &str) -> Option<Listener> {
        self.routing().gateway(gateway).map(|gateway| Asked::listen(&gateway.asked))
    }

    fn pass(&self, reason: Reason) -> Answer {
        self.passed[reason as usize % REASONS].one();
        Answer::unevaluated(reason)
    }

    fn decide(
        &self,
        now: Nanos,
        (of, told): (&Subject<'_>, &Bucket),
        (waits, turn): (bool, Option<Turn>),
    ) -> Decided {
        let source =
            of.client.map(|client| self.sources.source(mapped(client), of.service.identity));
        let who = Who { priority: of.priority, random: self.random(), source, turn };
        let lease = Lease::at(Nanos(self.heartbeat.load(Relaxed)), now);
        let service = of.service;
        if let Some(reason) = lease.passes(self.released.load(Relaxed)) {
            service.passes(now);
            return passing(reason);
        }
        let buckets = (told, of.bucket.map(|bucket| &**bucket));
        beside::decide(service, buckets, Question { now, who, lease, waits })
    }

    /// Counts what was decided, and makes the answer of it.
    fn settle(&self, now: Nanos, of: &Subject<'_>, decided: Decided) -> Answer {
        let service = of.service;
        service.count(now, &decided);
        of.tally.count(of.class, decided.execution, decided.reason);
        let token = decided.passes.then(|| self.follow(now, of)).flatten();
        self.note(now, of, &decided);
        let refusal = (!decided.passes).then(|| {
            let backlog = &service.backlog;
            let retry_after_s =
                backlog.refuse(now, service.serves(), of.retry_after, self.random());
            let rate_limit = of.rate_limit_fields.then(|| {
                RateLimit::new(&service.name, Rate::per_second(service.serves()), retry_after_s)
            });
            Refusal { reason: decided.reason, retry_after_s, rate_limit }
        });
        let Decided { reason, refused, .. } = decided;
        Answer { service: Some(of.at), reason, refused, token, refusal, share: None }
    }

    /// Follows a request that passes. `None`: there is no room.
    fn follow(&self, now: Nanos, of: &Subject<'_>) -> Option<Token> {
        let key = if of.reported_by_id { request_key(of.id) } else { self.tokens.next() };
        if let Some(bucket) = of.bucket {
            bucket.begun.one();
        }
        let flight = Flight::new(Arc::clone(of.service), of.bucket.cloned(), now);
        if self.flights.begin(key, flight) {
            return Some(Token(key));
        }
        self.untracked.one();
        of.service.untracked();
        if let Some(bucket) = of.bucket {
            bucket.untracked();
        }
        None
    }

    fn note(&self, now: Nanos, of: &Subject<'_>, decided: &Decided) {
        if let Some(client) = of.client.filter(|_| decided.refused) {
            let shadow = decided.execution != Execution::Executed;
            self.refused.note(now, (&of.service.name, client, shadow));
        }
        let seen = Seen {
            at: now,
            request_id: shortened(of.id),
            client: of.client,
            service: Arc::clone(&of.service.name),
            class: of.class,
            priority: of.priority,
            reason: decided.reason,
            refused: decided.refused,
            execution: decided.execution,
        };
        self.flights.note(request_key(of.id), seen);
    }

    /// Takes a report of what became of a request.
    pub fn complete(&self, now: Nanos, id: Id<'_>, completion: &Completion) -> Completed {
        match self.flights.end(id.key()) {
            Ended::Flight(flight) => {
                let times = (flight.started, now);
                flight.service.complete(times, flight.bucket.as_deref(), completion);
                self.completed.one();
                Completed::Counted
            }
            Ended::Gone(flight) => {
                flight.service.complete_late((flight.started, now), completion);
                self.late.one();
                Completed::Late
            }
            Ended::Unknown => {
                self.unknown.one();
                Completed::Unknown
            }
        }
    }

    /// The proxy has responded to a request itself, with this status, since no server could have it. It is not in
    /// flight any more, and counts neither as completed by the service nor with its times.
    pub fn unserved(&self, id: Id<'_>, status: u16) -> Completed {
        match self.flights.end(id.key()) {
            Ended::Flight(flight) => {
                flight.service.unserved(flight.bucket.as_deref(), status);
                self.completed.one();
                Completed::Counted
            }
            Ended::Gone(flight) => {
                flight.service.unserved_late(status);
                self.late.one();
                Completed::Late
            }
            Ended::Unknown => {
                self.unknown.one();
                Completed::Unknown
            }
        }
    }

    /// The proxy has not read the answer by which this request would have passed: it is not in flight. Whether it passes without an answer
    /// is not known.
    pub(crate) fn unheard(&self, token: Token) {
        match self.flights.end(Id::Token(token).key()) {
            Ended::Flight(flight) => flight.service.unserved(flight.bucket.as_deref(), 0),
            Ended::Gone(flight) => flight.service.unserved_late(0),
            Ended::Unknown => {}
        }
    }

    /// Whether no service to which routes of this gateway lead refuses anything now, whatever asks: the kill
    /// switch is on, nobody renews the lease, or each is in shadow. A canary spares whose source is not known.
    pub(crate) fn refuses_nothing(&self, now: Nanos, gateway: &str) -> bool {
        let lease = Lease::at(Nanos(self.heartbeat.load(Relaxed)), now);
        if lease.passes(self.released.load(Relaxed)).is_some() {
            return true;
        }
        let routing = self.routing();
        let targets =
            routing.gateway(gateway).into_iter().flat_map(|of| of.targets.iter().flatten());
        let mut led_to = targets.filter_map(|target| routing.served(target.service));
        !led_to.any(|served| served.service.executes_all())
    }

    /// Counts what an adapter did not understand.
    pub fn misunderstood(&self) {
        self.misunderstood.one();
    }

    /// Once a tick: renews the lease, and takes out of the count what is not in flight any more. After
    /// 3 s without it limits begin to open.
    pub fn tick(&self, now: Nanos) {
        self.heartbeat.store(now.0, Relaxed);
        let _ = self.first_tick.compare_exchange(0, now.0, Relaxed, Relaxed);
        let routing = self.routing();
        routing.services.iter().flatten().for_each(|served| served.service.tick(now));
        for gateway in &routing.gateways {
            let alike = gateway.alike.filter(|_| !self.released());
            match alike.and_then(|service| routing.served(service)) {
                // Whom a limit refuses that another node told is a choice, too: that counts apart.
                Some(served) if !gateway.asked.others_refuse(now, served.told.refused()) => {
                    gateway.asked.tick(now, &served.service);
                }
                _ => gateway.asked.all(),
            }
        }
        self.flights.age(now);
    }

    /// Follows another configuration. Services and buckets that have the same name go on from what they
    /// were, with the limits that they had until others are set.
    pub fn reconfigure(&self, config: &Config) {
        let mut routing = self.routing.write().unwrap_or_else(PoisonError::into_inner);
        *routing = Arc::new(Routing::new(config, &routing));
    }

    /// Writes the limits of all services, in the order of the configuration. Returns those that have
    /// none because they were refused, and why.
    pub fn set_limits(&self, config: &Config, limits: &[ServiceLimits]) -> Vec<(String, String)> {
        let routing = self.routing();
        let mut refused = Vec::new();
        for (at, (service, limits)) in config.services.iter().zip(limits).enumerate() {
            let Some(served) = routing.served(at) else { continue };
            let reserving = served.reserving(service);
            let waits = config.gateways.iter().filter_map(|gateway| gateway.waits(&service.name));
            let longest = waits.min().filter(|longest| *longest > Nanos::ZERO);
            if let Err(why) = served.service.set(&reserving, limits, longest) {
                refused.push((service.name.clone(), why));
            }
            let told = limits.requests.map(|limit| tidegate_params::remote(&reserving, &limit));
            let told = told.unwrap_or_else(|| Ok(RequestLimits::default()));
            if let Err(why) = set_bucket(&served.told, told, (service.mode, service.canary)) {
                refused.push((service.name.clone(), why));
            }
            let requests = service.requests.as_ref();
            let mode = requests.map_or(service.mode, |r| r.mode_within(service.mode));
            let planned = requests.iter().flat_map(|requests| &requests.buckets);
            let keeps = requests.is_some_and(|r| r.mode_within(Mode::Enforce) == Mode::Shadow);
            for (at, (bucket, planned)) in served.buckets.iter().zip(planned).enumerate() {
                bucket.keeps_shadow.store(keeps, Relaxed);
                let own = limits.buckets.get(at).cloned().unwrap_or_default();
                let written = bucket_limits((planned, &reserving), &own, limits);
                if let Err(why) = set_bucket(bucket, written, (mode, service.canary)) {
                    refused.push((service.name.clone(), why));
                }
            }
        }
        refused
    }

    /// Whose refusals of a service are carried out: nobody's, those of all, or of a share of the sources.
    pub fn set_mode(&self, service: usize, mode: Mode, canary: Canary) {
        let routing = self.routing();
        let Some(served) = routing.served(service) else { return };
        served.service.set_mode(mode, canary);
        for bucket in served.buckets.iter().chain([&served.told]) {
            let mut chain = bucket.chain();
            let mut limits = *chain.limits();
            limits.set_shadow(mode == Mode::Shadow || bucket.keeps_shadow.load(Relaxed));
            limits.set_canary(canary.share_q16());
            chain.set(limits);
        }
        // Not only at the next tick: nothing is refused by a proxy either.
        if !served.service.executes_all() {
            let of = routing.gateways.iter().filter(|gateway| gateway.alike == Some(service));
            of.for_each(|gateway| gateway.asked.all());
        }
    }

    /// The kill switch: on lets everything pass.
    pub fn release(&self, on: bool) {
        self.released.store(on, Relaxed);
        if on {
            self.routing().gateways.iter().for_each(|gateway| gateway.asked.all());
        }
    }

    /// Whether the kill switch is on.
    #[must_use]
    pub fn released(&self) -> bool {
        self.released.load(Relaxed)
    }

    /// Whether routes lead to the service with this place in the configuration.
    #[must_use]
    pub fn serves(&self, service: usize) -> bool {
        self.routing().served(service).is_some()
    }

    /// Whether it has noted for a minute whom it refuses.
    #[must_use]
    pub fn knows_a_minute(&self, now: Nanos) -> bool {
        let first = self.first_tick.load(Relaxed);
        first > 0 && now.since(Nanos(first)) >= Nanos::from_secs(60)
    }

    /// What was counted of a service, in the shape of the dataplane. `None`: no route leads there.
    #[must_use]
    pub fn totals(&self, service: usize) -> Option<ServiceTotals> {
        let routing = self.routing();
        routing.served(service).map(|served| served.service.totals(&served.told, &served.buckets))
    }

    /// Whether requests of a service pass and nothing is reported of them: how many are in flight is
    /// not known then.
    #[must_use]
    pub fn reports_missing(&self, service: usize) -> bool {
        self.routing().served(service).is_some_and(|served| served.service.reports_missing())
    }

    /// Of the reports about requests of a service in the last minute: the share that never came, or has not come yet,
    /// and how late the others were on average. `None`: no route leads there.
    #[must_use]
    pub fn reports_quality(&self, service: usize) -> Option<(f64, Nanos)> {
        Some(self.routing().served(service)?.service.reports_quality())
    }

    /// The rung of each priority on the ladder of thresholds of a service; `None`: it has none.
    #[must_use]
    pub fn rungs(&self, service: usize) -> Option<[u8; PRIORITIES]> {
        self.routing().served(service)?.service.rungs()
    }

    /// The same of one of its buckets.
    #[must_use]
    pub fn bucket_rungs(&self, service: usize, bucket: usize) -> Option<[u8; PRIORITIES]> {
        self.routing().served(service)?.buckets.get(bucket)?.chain().rungs()
    }

    /// Responses of a service by the hundreds of their status; 0: the client left before there was one.
    #[must_use]
    pub fn statuses(&self, service: usize) -> [u64; 6] {
        self.routing().served(service).map_or([0; 6], |served| served.service.statuses())
    }

    /// Verdicts of a service by class and reason.
    #[must_use]
    pub fn counts(&self, service: usize) -> Vec<Counted> {
        let routing = self.routing();
        let tally = routing.served(service).map(|served| &served.tally);
        let of = |(class, execution, reason, count)| Counted { class, execution, reason, count };
        tally.into_iter().flat_map(|tally| tally.read().map(of)).collect()
    }

    /// What no service's totals hold.
    #[must_use]
    pub fn state(&self) -> GateState {
        let passed = Reason::ALL
            .iter()
            .map(|reason| (*reason, self.passed.get(*reason as usize).map_or(0, Counter::get)));
        GateState {
            passed: passed.filter(|(_, count)| *count > 0).collect(),
            completed: self.completed.get(),
            late: self.late.get(),
            unknown: self.unknown.get(),
            untracked: self.untracked.get(),
            misunderstood: self.misunderstood.get(),
        }
    }

    /// The decisions about a request id that are remembered, the latest last.
    #[must_use]
    pub fn seen(&self, request_id: &str) -> Vec<Seen> {
        self.flights.seen(request_id)
    }

    /// Whether a service has refused this client in the last minute: how long ago, at least and at
    /// most. A client that was is always found; another one hardly ever. `shadow`: it was only
    /// computed.
    #[must_use]
    pub fn refused_lately(
        &self,
        now: Nanos,
        service: &str,
        (client, shadow): (IpAddr, bool),
    ) -> Option<(Nanos, Nanos)> {
        self.refused.find(now, (service, client, shadow))
    }

    /// Whether a proxy has refused requests of this service by itself in the last minute: of which clients, it does
    /// not say.
    #[must_use]
    pub fn proxy_refused_lately(&self, service: usize, now: Nanos) -> bool {
        let routing = self.routing();
        routing.served(service).is_some_and(|served| served.service.proxy_refused_lately(now))
    }

    /// Of so many addresses that nobody has, how many [`Self::refused_lately`] finds: in a flood it knows
    /// no longer who was refused.
    #[must_use]
    pub fn wrongly_refused(&self, now: Nanos, addresses: u32) -> u32 {
        self.refused.wrong(now, addresses)
    }

    /// Decisions since then that are remembered, at most the latest so many.
    #[must_use]
    pub fn seen_since(&self, then: Nanos, most: usize) -> Vec<Seen> {
        self.flights.seen_since(then, most)
    }
}

/// The target of the route that a request meets; `None`: none does.
fn target(gateway: &Gateway, ask: &Ask<'_>) -> Option<Target> {
    let cookie = if gateway.cookies { ask.headers.get("cookie") } else { None };
    let header = |name: &str| ask.headers.get(name);
    let routed = match RequestHead::of(ask.method, ask.host, ask.target, cookie.as_slice()) {
        Ok(head) => gateway.router.select(&head, header),
        Err(_) => Routed::Unevaluable(Unevaluated::AmbiguousPath),
    };
    match routed {
        Routed::Route(route) => gateway.targets.get(route).copied().flatten(),
        Routed::None => None,
        Routed::Unevaluable(_) => nearest(gateway, ask, cookie),
    }
}

/// The same where the path, the host or the method of a request cannot be told. Its sender wrote it so:
/// it is refused first.
fn nearest(gateway: &Gateway, ask: &Ask<'_>, cookie: Option<&str>) -> Option<Target> {
    let known = [(ask.method, ask.host), (UNREADABLE, ask.host), (UNREADABLE, None)];
    let head = |(method, host)| RequestHead::of(method, host, "/", cookie.as_slice()).ok();
    let head = known.into_iter().find_map(head)?;
    let nameless = head.host.is_none();
    match gateway.router.nearest(&head, nameless, |name| ask.headers.get(name)) {
        Routed::Route(route) => {
            let target = gateway.targets.get(route).copied().flatten()?;
            Some(target.of_priority(PRIORITY_DEFAULT))
        }
        Routed::None | Routed::Unevaluable(_) => None,
    }
}

/// A key that nobody can guess.
fn random_key() -> SourceKey {
    let random = RandomState::new();
    SourceKey::new(std::array::from_fn(|n| random.hash_one(n)))
}

/// An address as the kernel's hooks have it.
pub(crate) fn mapped(client: IpAddr) -> [u8; 16] {
    match client {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

const fn passing(reason: Reason) -> Decided {
    Decided { reason, refused: false, execution: Execution::Executed, passes: true, delay: None }
}

/// The limits of a bucket whose priorities are those of its service, and not ranks: of what the control
/// loop reserves from the lowest one, each priority leaves the part that the weights above it have.
fn bucket_limits(
    (bucket, service): (&BucketConfig, &ServiceConfig),
    own: &BucketLimits,
    limits: &ServiceLimits,
) -> Result<RequestLimits, String> {
    let made = tidegate_params::bucket(bucket, own, limits)?;
    let Some(rate) = own.rate.filter(|_| made.params().policy() == Policy::TokenBucket) else {
        return Ok(made);
    };
    let burst = own.burst.max(1);
    let kept = u64::from(own.reserve[Rank::New as usize].min(burst - 1));
    let above = service.reserve_tokens(SCALE);
    let all = u64::from(above[PRIORITIES - 1].max(1));
    let part = |above: u32| u32::try_from(kept * u64::from(above) / all).unwrap_or(u32::MAX);
    let mut spec = BucketSpec::new(rate, burst, Action::Reject);
    spec.reserve = above.map(part);
    spec.reserve[PRIORITIES - 1] = kept as u32;
    let params = Params::token_bucket(&spec).map_err(|error| error.to_string())?;
    let made = RequestLimits::new(params).unwrap_or(made);
    Ok(made.with_level(tidegate_params::bucket_level(bucket, limits)))
}

fn set_bucket(
    bucket: &Bucket,
    limits: Result<RequestLimits, String>,
    (mode, canary): (Mode, Canary),
) -> Result<(), String> {
    let (mut written, refused) = match limits {
        Ok(limits) => (limits, Ok(())),
        Err(why) => (RequestLimits::default(), Err(why)),
    };
    written.set_shadow(mode == Mode::Shadow);
    written.set_canary(canary.share_q16());
    bucket.limited.store(written.limited(), Relaxed);
    bucket.chain().set(written);
    refused
}

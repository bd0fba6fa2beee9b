// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine of one process: one thread, one epoll, one timer.
//!
//! Round by round: start what is due (a bounded batch), give up what waited too long, report, then
//! sleep until the next of these or until a socket has something to say. The timer has nanosecond
//! precision; epoll's own time-out would round arrivals up to whole milliseconds.

use super::conn::{self, BUFFER_BYTES, Conn, Request, State, Step};
use super::hist::Hist;
use super::manner::Drip;
use super::plan::{Arrive, LoadPlan};
use super::report::Progress;
use super::source::{Follow, Source};
use super::table::{Key, Table};
use super::tally::{Done, Outcome, ShardResult, StreamTally};
use super::told::Told;
use super::wire::Wires;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind};
use tidegate_units::{Clock, Nanos, ThreadCpuClock};

/// Arrivals started between two looks at the sockets.
const BATCH_MAX: usize = 32;
/// Events taken by one look.
const EVENTS_MAX: usize = 512;
/// A closed-loop client that failed waits this long before it tries again, or refusals would make
/// it spin.
const RETRY_WAIT: Nanos = Nanos::from_millis(10);
/// How long a client with its answer waits for the server's FIN.
const DRAIN_LIMIT: Nanos = Nanos::from_secs(2);
/// Mark timer and messages among the events.
const TIMER: u64 = u64::MAX;
const TOLD: u64 = u64::MAX - 1;

/// One process's engine. All its times are on the run's clock, which starts at `start`.
pub(crate) struct Engine<'a, C> {
    plan: &'a LoadPlan,
    clock: &'a C,
    start: Nanos,
    poll: OwnedFd,
    timer: OwnedFd,
    wires: Wires,
    wake: Nanos,
    told: Told,
    table: Table,
    sources: Vec<Source>,
    draining: VecDeque<(Nanos, Key)>,
    dripping: BinaryHeap<Reverse<(Nanos, Key)>>,
    tallies: Vec<StreamTally>,
    lag: Hist,
    error: Option<String>,
    cpu: Vec<Nanos>,
    cpu_mark: Nanos,
    second: u64,
    shard: (u64, u64),
    buffer: Vec<u8>,
}

impl<'a, C: Clock> Engine<'a, C> {
    /// An engine that takes every `shard.1`-th arrival, the first one being number `shard.0`.
    pub(crate) fn new(
        plan: &'a LoadPlan,
        clock: &'a C,
        start: Nanos,
        shard: (u64, u64),
    ) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Edge-triggered: each expiry wakes once, and the timer never has to be read.
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll, &timer, epoll::EventData::new_u64(TIMER), events)?;
        let told = Told::listen(plan.told_at)?;
        if let Some(socket) = told.socket() {
            let data = epoll::EventData::new_u64(TOLD);
            epoll::add(&poll, socket, data, epoll::EventFlags::IN)?;
        }
        let sources = plan.streams.iter().enumerate().map(|(i, s)| Source::new(plan, i, s, shard));
        Ok(Self {
            plan,
            clock,
            start,
            poll,
            timer,
            wires: Wires::new()?,
            wake: Nanos(u64::MAX),
            told,
            table: Table::default(),
            sources: sources.collect(),
            draining: VecDeque::new(),
            dripping: BinaryHeap::new(),
            tallies: plan.streams.iter().map(|s| StreamTally::new(plan, s.mix.is_some())).collect(),
            lag: Hist::fine(),
            error: None,
            cpu: Vec::new(),
            cpu_mark: Nanos::ZERO,
            second: 0,
            shard,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    fn now(&self) -> Nanos {
        self.clock.now() - self.start
    }

    /// Runs to the end: all arrivals have started and ended. Bounded by the plan's end.
    pub(crate) fn run(mut self, report: &mut dyn FnMut(&Progress)) -> io::Result<ShardResult> {
        std::thread::sleep((self.start - self.clock.now()).into());
        self.cpu_mark = ThreadCpuClock.now();
        loop {
            let now = self.now();
            let more = self.start_due(now);
            self.give_up(now);
            self.drip(now);
            if self.report_due(now) {
                report(&self.progress());
            }
            if !more && self.finished() {
                break;
            }
            self.wait(more)?;
        }
        report(&self.progress());
        Ok(ShardResult { streams: self.tallies, lag: self.lag, cpu: self.cpu, error: self.error })
    }

    fn finished(&mut self) -> bool {
        self.sources.iter_mut().all(|s| s.in_flight == 0 && s.next_start().is_none())
    }

    /// Starts what is due; `true` if the batch was full and more may be due.
    fn start_due(&mut self, now: Nanos) -> bool {
        let mut left = BATCH_MAX;
        for stream in 0..self.sources.len() {
            while left > 0
                && let Some(at) = self.sources[stream].next_start().filter(|at| *at <= now)
            {
                let request = self.sources[stream].take_start(self.shard.1, &self.told);
                let started = self.now();
                self.lag.record(started - at);
                self.sources[stream].progress.started += u64::from(1 + request.beside);
                self.begin(stream, Request { started, ..request });
                left -= 1;
            }
        }
        left == 0
    }

    /// Puts a request on an idle connection or on a new one.
    fn begin(&mut self, stream: usize, request: Request) {
        self.sources[stream].in_flight += u64::from(1 + request.beside);
        if !request.again && self.begin_on_idle(stream, request) {
            return;
        }
        if self.is_at_bound(stream) {
            self.done(stream, request, None, Outcome::NoHandshake);
            return;
        }
        let opened = if self.table.has_room() {
            let spec = &self.sources[stream].spec;
            conn::open(spec, request.number).and_then(|socket| Ok((socket, self.wires.open(spec)?)))
        } else {
            Err(io::Error::other("all descriptors of this process are in use"))
        };
        let (socket, wire) = match opened {
            Ok(opened) => opened,
            Err(error) if self.is_own_port(stream, &error) => {
                self.done(stream, request, None, Outcome::Broken);
                return;
            }
            Err(error) => {
                self.error.get_or_insert_with(|| error.to_string());
                self.done(stream, request, None, Outcome::Error);
                return;
            }
        };
        let key = self.table.insert(Conn::new(socket, wire, stream, request));
        self.give_up_at(stream, request, key);
        if self.plan.connect_timeout > Nanos::ZERO {
            let at = request.started + self.plan.connect_timeout;
            self.sources[stream].connecting.push_back((at, key));
        }
        let interest = epoll::EventFlags::OUT;
        if let Some(conn) = self.table.get(key)
            && epoll::add(&self.poll, &conn.socket, epoll::EventData::new_u64(key.pack()), interest)
                .is_err()
        {
            self.table.remove(key);
            self.done(stream, request, None, Outcome::Error);
        }
    }

    /// Whether clients hold as many connections as they may, all of them busy; each process of the load
    /// has its part.
    fn is_at_bound(&self, stream: usize) -> bool {
        let bound = self.sources[stream].spec.keep_alive.map_or(0, |keep| keep.connections);
        let part = u64::from(bound).div_ceil(self.shard.1.max(1));
        part > 0 && self.table.count() as u64 >= part
    }

    /// A client that chooses its ports finds the one in turn still in use: it does not come.
    fn is_own_port(&self, stream: usize, error: &io::Error) -> bool {
        let in_use = matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
        in_use && self.sources[stream].spec.ports.is_some()
    }

    /// A session has its own connection; else any that is idle will do.
    fn begin_on_idle(&mut self, stream: usize, request: Request) -> bool {
        let mut own = request.kept;
        while let Some(key) = own.take().or_else(|| self.sources[stream].idle.pop()) {
            let source = &self.sources[stream];
            let Some(conn) = self.table.get(key).filter(|c| c.state == State::Idle) else {
                continue;
            };
            if conn.reuse(request, &source.asker.bytes(&request)) {
                self.give_up_at(stream, request, key);
                return true;
            }
            self.table.remove(key);
        }
        false
    }

    fn give_up_at(&mut self, stream: usize, request: Request, key: Key) {
        let at = request.intended + self.plan.timeout;
        self.sources[stream].giving_up.push_back((at, key));
    }

    /// Ends what waited too long: requests whose clients give up, answers whose FIN never came.
    fn give_up(&mut self, now: Nanos) {
        for stream in 0..self.sources.len() {
            self.give_up_connecting(stream, now);
            while let Some(&(at, key)) = self.sources[stream].giving_up.front()
                && at <= now
            {
                self.sources[stream].giving_up.pop_front();
                let due = |c: &Conn| c.request.intended + self.plan.timeout <= now;
                let outcome = match self.table.get(key) {
                    Some(c) if c.state == State::Connecting => Outcome::NoHandshake,
                    // A kept connection may carry a later request by now.
                    Some(c) if c.state == State::Waiting && due(c) => Outcome::NoAnswer,
                    _ => continue,
                };
                if let Some(conn) = self.table.remove(key) {
                    self.done(stream, conn.request, Some(&conn), outcome);
                }
            }
        }
        while let Some(&(at, key)) = self.draining.front()
            && at <= now
        {
            self.draining.pop_front();
            if self.table.get(key).is_some_and(|c| c.state == State::Draining) {
                self.table.remove(key);
            }
        }
    }

    /// Sends what drips.
    fn drip(&mut self, now: Nanos) {
        while let Some(Reverse((at, key))) = self.dripping.peek().copied()
            && at <= now
        {
            self.dripping.pop();
            if let Some(conn) = self.table.get(key).filter(|c| c.state == State::Waiting) {
                let pause = conn.drip.as_ref().map(Drip::pause);
                if conn.drip()
                    && let Some(pause) = pause
                {
                    self.dripping.push(Reverse((now + pause, key)));
                }
            }
        }
    }

    /// Ends connections that were not made in time.
    fn give_up_connecting(&mut self, stream: usize, now: Nanos) {
        while let Some(&(at, key)) = self.sources[stream].connecting.front()
            && at <= now
        {
            self.sources[stream].connecting.pop_front();
            let connecting = |c: &&mut Conn| c.state == State::Connecting;
            if self.table.get(key).filter(connecting).is_some() {
                self.fail(key, Outcome::NoHandshake);
            }
        }
    }

    /// Sleeps until something is to be done, then handles what the sockets say.
    fn wait(&mut self, more: bool) -> io::Result<()> {
        let timeout = if more { Some(Timespec { tv_sec: 0, tv_nsec: 0 }) } else { self.arm()? };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())
        {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            match event.data.u64() {
                TIMER => {}
                TOLD => self.told.receive(),
                data => self.on_event(Key::unpack(data)),
            }
        }
        Ok(())
    }

    /// Sets the timer to the next thing to do; gives a time-out of nothing when that is due now.
    fn arm(&mut self) -> io::Result<Option<Timespec>> {
        let mut next = Nanos::from_secs(self.second + 1);
        for source in &mut self.sources {
            let starts = source.next_start().unwrap_or(Nanos(u64::MAX));
            let ends = source.next_end().unwrap_or(Nanos(u64::MAX));
            next = next.min(starts).min(ends);
        }
        next = self.draining.front().map_or(next, |(at, _)| next.min(*at));
        next = self.dripping.peek().map_or(next, |Reverse((at, _))| next.min(*at));
        if next <= self.now() {
            return Ok(Some(Timespec { tv_sec: 0, tv_nsec: 0 }));
        }
        if next != self.wake {
            let at = (self.start + next).0;
            let value = Timespec {
                tv_sec: (at / 1_000_000_000) as i64,
                tv_nsec: (at % 1_000_000_000) as i64,
            };
            let once =
                Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
            self.wake = next;
        }
        Ok(None)
    }

    fn on_event(&mut self, key: Key) {
        let now = self.now();
        let Some(conn) = self.table.get(key) else { return };
        let stream = conn.stream;
        // Only a new connection has something to send.
        let source = &self.sources[stream];
        let manner = source.spec.manner;
        let (bytes, drip) = match conn.state {
            State::Connecting => manner.bytes(&source.spec, source.asker.bytes(&conn.request)),
            _ => (Cow::Borrowed(&[][..]), None),
        };
        if let Some(drip) = drip {
            self.dripping.push(Reverse((now + drip.pause(), key)));
            conn.drip = Some(drip);
        }
        let step = conn.on_event(now, &bytes, &mut self.buffer);
        self.ended_early(key);
        let Some(conn) = self.table.get(key) else { return };
        match step {
            Step::Wait => {}
            Step::Sent => {
                let interest = epoll::EventFlags::IN;
                let data = epoll::EventData::new_u64(key.pack());
                let changed = epoll::modify(&self.poll, &conn.socket, data, interest);
                if changed.is_err() {
                    self.fail(key, Outcome::Error);
                }
            }
            Step::Answered { status, open } => self.answered(key, status, open),
            Step::Closed => drop(self.table.remove(key)),
            Step::Failed(outcome) => self.fail(key, outcome),
        }
    }

    /// Counts those that have ended while others that went out with them are under way.
    fn ended_early(&mut self, key: Key) {
        let Some(conn) = self.table.get(key) else { return };
        for status in conn.take_early() {
            let Some(conn) = self.table.get(key).filter(|c| c.request.beside > 0) else { return };
            let (stream, request, times) = (conn.stream, conn.request, Times::of(conn));
            let outcome = Outcome::Answer(status);
            conn.served += 1;
            conn.request.place += 1;
            conn.request.beside -= 1;
            conn.request.spoiled |= outcome != Outcome::Answer(200);
            self.tally(stream, &request, times, outcome);
        }
    }

    fn answered(&mut self, key: Key, status: u16, open: bool) {
        let Some(conn) = self.table.get(key) else { return };
        let (stream, request, served) = (conn.stream, conn.request, conn.served + 1);
        let times = Times::of(conn);
        let spec = &self.sources[stream].spec;
        let keep = open && spec.keep_alive.is_some_and(|k| served < k.requests);
        let more = spec.session.as_ref().map(|s| request.place + 1 < s.requests);
        let kept = keep && more != Some(false);
        if kept {
            conn.state = State::Idle;
            if more.is_none() {
                self.sources[stream].idle.push(key);
            }
        } else if open || conn.drained(&mut self.buffer) {
            // The server would keep it: the client has no more use for it and closes.
            conn.farewell();
            self.table.remove(key);
        } else {
            let at = self.now() + DRAIN_LIMIT;
            self.draining.push_back((at, key));
        }
        let request = Request { kept: kept.then_some(key), ..request };
        self.count(stream, request, times, Outcome::Answer(status));
    }

    fn fail(&mut self, key: Key, outcome: Outcome) {
        let Some(conn) = self.table.remove(key) else { return };
        // The server closed a kept connection just as the request set out: clients try again.
        if conn.served > 0 && conn.first_byte.is_none() && !conn.request.again {
            self.sources[conn.stream].in_flight -= u64::from(1 + conn.request.beside);
            self.begin(conn.stream, Request { again: true, kept: None, ..conn.request });
            return;
        }
        self.done(conn.stream, conn.request, Some(&conn), outcome);
    }

    fn done(&mut self, stream: usize, request: Request, conn: Option<&Conn>, outcome: Outcome) {
        self.count(stream, request, conn.map(Times::of).unwrap_or_default(), outcome);
    }

    /// Counts a request, and all that are under way with it: they end as it does.
    fn count(&mut self, stream: usize, request: Request, times: Times, outcome: Outcome) {
        for _ in 0..=request.beside {
            self.tally(stream, &request, times, outcome);
        }
        let over = self.follow(stream, request, outcome);
        let ended = self.now();
        let source = &mut self.sources[stream];
        if over && matches!(source.spec.arrive, Arrive::Closed { .. }) {
            let failed = !matches!(outcome, Outcome::Answer(200));
            let next = if failed { ended + RETRY_WAIT } else { ended };
            if next < self.plan.closed_until {
                source.between.push(Reverse(next));
            }
        }
    }

    fn tally(&mut self, stream: usize, request: &Request, times: Times, outcome: Outcome) {
        let ended = self.now();
        let done = Done {
            intended: request.intended,
            started: request.started,
            established: times.established,
            first_byte: times.first_byte,
            ended,
            outcome,
            reused: times.reused,
            kind: request.asked.map(|asked| asked.kind),
        };
        self.tallies[stream].done(self.plan, &done);
        let source = &mut self.sources[stream];
        source.in_flight -= 1;
        source.progress.done(&done, self.plan.objective);
    }

    /// What follows in the request's session: the next one after the client's pause, or its end.
    /// `true` if the client has no more to ask.
    fn follow(&mut self, stream: usize, request: Request, outcome: Outcome) -> bool {
        let now = self.now();
        let source = &mut self.sources[stream];
        let Some(session) = &source.spec.session else { return true };
        let ok = outcome == Outcome::Answer(200) && !request.spoiled;
        let place = request.place + 1 + request.beside;
        // Whoever measures a capacity stops in the middle of sessions: they would take as long as
        // they last, and nobody looks at them.
        let closing = matches!(source.spec.arrive, Arrive::Closed { .. })
            && now + session.think >= self.plan.closed_until;
        if ok && place < session.requests && !closing {
            source.follow.push(Reverse(Follow {
                at: now + session.think,
                number: request.number,
                place,
                beside: session.beside(place),
                session_start: request.session_start,
                kept: request.kept,
            }));
            return false;
        }
        if let Some(conn) = request.kept {
            self.table.remove(conn);
        }
        self.tallies[stream].session(self.plan, request.session_start, ok);
        true
    }

    fn report_due(&self, now: Nanos) -> bool {
        now >= Nanos::from_secs(self.second + 1)
    }

    fn progress(&mut self) -> Progress {
        let second = self.second;
        self.second += 1;
        // One thread does it all.
        let used = ThreadCpuClock.now();
        self.cpu.push(used - self.cpu_mark);
        self.cpu_mark = used;
        let streams = self.sources.iter_mut().map(Source::take_progress).collect();
        Progress { second, streams }
    }
}

/// When things happened on a connection, for the request that it carries.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    established: Option<Nanos>,
    first_byte: Option<Nanos>,
    reused: bool,
}

impl Times {
    fn of(conn: &Conn) -> Self {
        let reused = conn.served > 0;
        // A request on a kept connection waits for no handshake: its service begins at once.
        let established = if reused { Some(conn.request.intended) } else { conn.established };
        Self { established, first_byte: conn.first_byte, reused }
    }
}

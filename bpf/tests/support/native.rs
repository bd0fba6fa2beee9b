// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks as ordinary programs (tests/native): compiled with sanitizers or coverage, driven over
//! pipes, with a clock, dice and failures that the test chooses.

use super::built::Source;
use super::engine::{Arrival, Hook, Seen};
use super::reference::{Action, Counted, Evaluated, Socket};
use super::setup::{Heartbeat, Limit, Prefix, SECONDS_PER_TOKEN, Service, Setup};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action as Refusal, BucketSpec, GapSpec,
    InFlight, Params, PercentSpec, Policy, Reason, ThresholdSpec, VerdictKind,
};
use tidegate_units::{Nanos, Rate, Share};
use zerocopy::IntoBytes;

/// The native clock stands here unless a test moves it.
pub const NOW: u64 = 1_000_000_000_000;
/// The one token of the contract, in picotokens.
const TOKEN: u64 = 1_000_000_000_000;
/// `TG_SERVICES_MAX`: the number under which exempt prefixes are kept.
const NEVER: u8 = 32;
/// An interface that is not the loopback device.
const INTERFACE: u32 = 7;
/// Calls that the host records (`NATIVE_CALLS_MAX`).
const CALLS_MAX: usize = 64;
/// Size of `struct tg_sample`.
const SAMPLE: usize = 72;

/// Every helper call that can fail, fails.
pub const FAIL_ALL: u32 = u32::MAX;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Ingress(Hook),
    Egress,
}

impl Program {
    pub const ALL: [Self; 3] = [Self::Ingress(Hook::Xdp), Self::Ingress(Hook::Tc), Self::Egress];

    fn source(self) -> Source {
        let (file, function, more) = match self {
            Self::Ingress(Hook::Xdp) => ("xdp", "tg_xdp", "-DTG_AT_XDP"),
            Self::Ingress(Hook::Tc) => {
                ("tc", "tg_ingress", "-DTG_HOOK_EGRESS=\"hook/egress.bpf.c\"")
            }
            Self::Egress => ("egress", "tg_egress", ""),
        };
        let hook = [
            format!("-DTG_HOOK=\"hook/{file}.bpf.c\""),
            format!("-DTG_HOOK_FN={function}"),
            more.to_owned(),
            // frames end at a guard page, so they begin anywhere; the product's machines allow that
            "-fno-sanitize=alignment".to_owned(),
        ];
        let flags = hook.into_iter().filter(|flag| !flag.is_empty()).collect();
        Source { name: format!("native-{file}"), main: "host.c", flags }
    }
}

/// A helper call that can fail, in the order of the maps in host.c and of `enum native_call`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Control,
    Lease,
    Tables,
    Listens,
    Prefixes,
    Limits,
    States,
    Counts,
    Passed,
    Totals,
    Gauges,
    Answers,
    Pending,
    Flows,
    SrcPrefixes,
    Times,
    Listeners,
    Flights,
    Notes,
    FlowSources,
    SourceSets,
    Sources,
    Senders,
    Copies,
    LatelyTurn,
    Lately,
    LimitsOfService,
    Socket,
    ToTcp,
    ToRequest,
    ToTimeWait,
    Cookie,
    Ring,
    Tail,
    Pull,
    Load,
    Store,
}

impl Call {
    fn of(code: u8) -> Self {
        use Call::{
            Answers, Control, Cookie, Copies, Counts, Flights, FlowSources, Flows, Gauges, Lately,
            LatelyTurn, Lease, Limits, LimitsOfService, Listeners, Listens, Load, Notes, Passed,
            Pending, Prefixes, Pull, Ring, Senders, Socket, SourceSets, Sources, SrcPrefixes,
            States, Store, Tables, Tail, Times, ToRequest, ToTcp, ToTimeWait, Totals,
        };
        const MAPS: [Call; 27] = [
            Control,
            Lease,
            Tables,
            Listens,
            Prefixes,
            Limits,
            States,
            Counts,
            Passed,
            Totals,
            Gauges,
            Answers,
            Pending,
            Flows,
            SrcPrefixes,
            Times,
            Listeners,
            Flights,
            Notes,
            FlowSources,
            SourceSets,
            Sources,
            Senders,
            Copies,
            LatelyTurn,
            Lately,
            LimitsOfService,
        ];
        const OTHERS: [Call; 7] = [Socket, ToTcp, Ring, Tail, Pull, Load, Store];
        let at = usize::from(code);
        match at {
            41 => return ToRequest,
            42 => return ToTimeWait,
            43 => return Cookie,
            _ => {}
        }
        MAPS.get(at).or_else(|| OTHERS.get(at - 32)).copied().unwrap()
    }
}

impl Call {
    /// Memory for signals, for counters, for people: without it the same happens to a packet.
    pub fn is_memory(self) -> bool {
        use Call::{
            Flights, FlowSources, Flows, Lately, LatelyTurn, Notes, Pending, Ring, Senders,
            SourceSets, Sources, Times, Totals,
        };
        matches!(self, Pending | Notes | Senders | Flights | Flows | Times | Ring | Totals)
            || matches!(self, FlowSources | SourceSets | Sources | LatelyTurn | Lately)
    }
}

/// How one run differs from an ordinary one.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Bytes that can be read without pulling.
    pub linear: u32,
    /// Bytes below which a tail cannot be cut (a partial checksum).
    pub tail_min: u32,
    /// Number of the helper call that fails; 0: none; or [`FAIL_ALL`].
    pub fail_at: u32,
    /// The random numbers: first (to the policy) and second (to a lease that relaxes).
    pub dice: [u32; 2],
}

impl Default for How {
    fn default() -> Self {
        Self { linear: u32::MAX, tail_min: 0, fail_at: 0, dice: [7, 0] }
    }
}

/// How the hook answers (`TG_ANSWER_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answering {
    Transmit = 0,
    Redirect = 1,
    Never = 2,
}

/// What the loader chooses.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub answering: Answering,
    /// One verdict in so many is sampled; 0: none.
    pub sample_every: u32,
    /// The link has no Ethernet header.
    pub plain: bool,
}

impl Default for Mode {
    fn default() -> Self {
        Self { answering: Answering::Transmit, sample_every: 1, plain: false }
    }
}

/// What the first service's connections do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    pub waiting: i32,
    pub open: i32,
    /// First bytes of answers, and ends of connections, that were measured.
    pub first_bytes: u32,
    pub ends: u32,
    /// Connections that found no place in the table, and those that were idle and lost theirs.
    pub untracked: u32,
    pub evicted: u32,
    /// Open connections without a request to which nothing is owed.
    pub silent: i32,
    pub connections: Connections,
    /// Exchanges that could not be timed, and the sum of the times of the others.
    pub unknown: u32,
    pub first_bytes_ms: u32,
    /// Notes of SYNs that were overwritten while they were young.
    pub notes_lost: u32,
    /// Open connections whose client is slow to send a request.
    pub slow: i32,
    pub sources: Sources,
}

/// What is known of all sources together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Connections that are open, and those of them that are silent or slow.
    pub open: i32,
    pub held: i32,
    /// Connections that got a response, and those that ended silent or slow.
    pub good: u32,
    pub bad: u32,
    pub exchanges: u32,
    /// Connections without a source.
    pub none: u32,
}

/// What became of the first service's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    pub replied: u32,
    pub proved: u32,
    pub asked: u32,
    pub answered: u32,
    pub ended: u32,
    pub ended_exchanges: u32,
    pub lost: u32,
}

/// What the hook did and called.
#[derive(Clone, Debug)]
pub struct Ran {
    /// `None`: the hook returned something that no hook should, this number.
    pub seen: Result<Seen, i32>,
    /// Whether an answer leaves by redirection.
    pub redirected: bool,
    pub signals: Signals,
    pub calls: Vec<Call>,
    /// The sample that was sent, if there was one.
    pub sample: Option<Vec<u8>>,
    /// Whether the frame is another now: an answer is, what passes must not be.
    pub changed: bool,
    /// How often something was counted: 1, if nothing failed.
    pub counted: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

/// A program that may hold bugs.
pub struct Built {
    program: Program,
    binary: PathBuf,
}

impl Built {
    /// Compiles it from the sources below a root.
    pub fn from(program: Program, sources: &Path, dir: &Path) -> Self {
        Self { program, binary: program.source().quick(sources, dir) }
    }

    /// Starts it afresh; it dies silently.
    pub fn start(&self) -> Native {
        let mut command = Command::new(&self.binary);
        command.stderr(Stdio::null());
        Native::spawn(self.program, command)
    }
}

/// A running host.
pub struct Native {
    program: Program,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Commands that go before the next run.
    pending: Vec<u8>,
}

impl Native {
    /// Compiles the program with sanitizers, if no test has yet, and starts it.
    pub fn start(program: Program) -> Self {
        Self::spawn(program, Command::new(program.source().sanitized()))
    }

    /// The same for coverage, whose data stand in `dir` when it has ended.
    pub fn start_covered(program: Program, dir: &Path) -> Self {
        Self::spawn(program, Command::new(program.source().covered(dir)))
    }

    /// The same with sources that stand below another root, which may hold bugs.
    pub fn start_from(program: Program, sources: &Path, dir: &Path) -> Self {
        Built::from(program, sources, dir).start()
    }

    fn spawn(program: Program, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().unwrap();
        Self { program, child, stdin, stdout, pending: Vec::new() }
    }

    /// Forgets everything and puts this in force.
    pub fn set(&mut self, setup: &Setup) {
        self.set_mode(setup, Mode::default());
    }

    /// The same with what the loader chooses.
    pub fn set_mode(&mut self, setup: &Setup, mode: Mode) {
        self.pending = commands(setup, mode);
    }

    /// Moves the clock to this time, and renews the lease.
    pub fn advance_to(&mut self, now: u64) {
        self.clock(now, now);
    }

    /// What the clock says from now on, and when the last heartbeat was (0: never).
    pub fn clock(&mut self, now: u64, heartbeat: u64) {
        self.pending.push(b'n');
        self.pending.extend_from_slice(&now.to_le_bytes());
        self.pending.extend_from_slice(&heartbeat.to_le_bytes());
    }

    /// In each run from now on another CPU is faster with this swap of a connection's word; 0: none.
    pub fn lose_swap(&mut self, number: u32) {
        self.pending.push(b'z');
        push(&mut self.pending, &[number]);
    }

    /// Bits of DSCP that the border clears from now on; 0: there is none.
    pub fn border(&mut self, marks: u8) {
        self.pending.extend_from_slice(&[b'b', marks]);
    }

    /// Where the window of the socket begins that packets meet, and its size.
    pub fn window(&mut self, next: u32, size: u32) {
        self.pending.push(b'w');
        push(&mut self.pending, &[next, size]);
    }

    /// A packet like this ends a handshake by a cookie that is good: its addresses (of IPv4 the last
    /// four bytes) and ports, its sequence number, what it acknowledges.
    pub fn cookie(&mut self, addresses: [[u8; 16]; 2], ports: [u16; 2], numbers: [u32; 2]) {
        self.pending.push(b'q');
        addresses.iter().for_each(|address| self.pending.extend_from_slice(address));
        ports.iter().for_each(|port| self.pending.extend_from_slice(&port.to_be_bytes()));
        numbers.iter().for_each(|number| self.pending.extend_from_slice(&number.to_be_bytes()));
    }

    /// Uses up tokens of a service: so many are used from now on.
    pub fn use_tokens(&mut self, service: usize, used: u32) {
        self.pending.extend_from_slice(&[b'u', service as u8]);
        self.pending.extend_from_slice(&(u64::from(used) * TOKEN).to_le_bytes());
    }

    /// So many connections of a service wait for a response from now on.
    pub fn waiting(&mut self, service: usize, waiting: u64) {
        self.pending.extend_from_slice(&[b'g', service as u8]);
        self.pending.extend_from_slice(&waiting.to_le_bytes());
    }

    /// One run of the egress hook, where it was built into the ingress hook's program (tc).
    pub fn run_egress(&mut self, frame: &[u8], how: How) -> Ran {
        let arrival = Arrival { frame, socket: Socket::Nothing, loopback: false };
        self.give(b'y', &arrival, how).unwrap_or_else(|died| panic!("{died}"))
    }

    /// One run.
    pub fn run(&mut self, arrival: &Arrival<'_>, how: How) -> Ran {
        self.try_run(arrival, how).unwrap_or_else(|died| panic!("{died}"))
    }

    /// One run; the error says that and how the program died.
    pub fn try_run(&mut self, arrival: &Arrival<'_>, how: How) -> Result<Ran, String> {
        self.give(b'x', arrival, how)
    }

    fn give(&mut self, command: u8, arrival: &Arrival<'_>, how: How) -> Result<Ran, String> {
        let (state, length, limit) = match arrival.socket {
            Socket::Nothing => (0, 0, 0),
            Socket::Established => (1, 0, 0),
            Socket::CloseWait => (8, 0, 0),
            Socket::TimeWait(waits) => {
                let (length, limit) = waits.listener.unwrap_or_default();
                (6, length, limit)
            }
            Socket::Listener { length, limit } => (10, length, limit),
            Socket::Request => (12, 0, 0),
        };
        let interface = if arrival.loopback { 1 } else { INTERFACE };
        let size = arrival.frame.len() as u32;
        let mut message = std::mem::take(&mut self.pending);
        message.push(b'k');
        push(&mut message, &[state, length, limit]);
        if let Socket::TimeWait(waits) = arrival.socket {
            message.push(b'v');
            let substate = if waits.closing { 5 } else { 6 };
            let listener = if waits.listener.is_some() { 10 } else { 0 };
            let (stamp, stamped) = (waits.stamp.unwrap_or(0), u32::from(waits.stamp.is_some()));
            push(&mut message, &[waits.next, stamp, stamped, substate, listener]);
        }
        message.push(command);
        push(&mut message, &[interface, how.linear, how.tail_min, how.fail_at]);
        push(&mut message, &[how.dice[0], how.dice[1], size]);
        message.extend_from_slice(arrival.frame);
        let reply = self.exchange(&message)?;
        Ok(self.read(&reply, arrival.frame))
    }

    fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, String> {
        let stdin = self.stdin.as_mut().ok_or("it is over")?;
        let sent = stdin
            .write_all(&(message.len() as u32).to_le_bytes())
            .and_then(|()| stdin.write_all(message))
            .and_then(|()| stdin.flush());
        let mut length = [0; 4];
        let reply = sent.and_then(|()| self.stdout.read_exact(&mut length)).and_then(|()| {
            let mut reply = vec![0; u32::from_le_bytes(length) as usize];
            self.stdout.read_exact(&mut reply).map(|()| reply)
        });
        reply.map_err(|error| {
            self.stdin = None;
            let status = self.child.wait();
            format!("the native build of {:?} died ({error}): {status:?}", self.program)
        })
    }

    fn read(&self, reply: &[u8], before: &[u8]) -> Ran {
        let mut at = reply;
        let mut take = |n: usize| -> &[u8] {
            let (taken, rest) = at.split_at(n);
            at = rest;
            taken
        };
        let mut word = || u32::from_le_bytes(take(4).try_into().unwrap());
        let (action, redirected, held) = (word() as i32, word() != 0, word());
        assert_eq!(held, 0, "a lock, socket or sample was not given back");
        let reason = take(1)[0];
        let mut word = || u32::from_le_bytes(take(4).try_into().unwrap());
        let (row, cell, counted) = (word(), word(), word());
        let signals = Signals {
            waiting: word() as i32,
            open: word() as i32,
            first_bytes: word(),
            ends: word(),
            untracked: word(),
            evicted: word(),
            silent: word() as i32,
            connections: Connections {
                replied: word(),
                proved: word(),
                asked: word(),
                answered: word(),
                ended: word(),
                ended_exchanges: word(),
                lost: word(),
            },
            unknown: word(),
            first_bytes_ms: word(),
            notes_lost: word(),
            slow: word() as i32,
            sources: Sources {
                none: word(),
                open: word() as i32,
                held: word() as i32,
                good: word(),
                bad: word(),
                exchanges: word(),
            },
        };
        let sample = take(SAMPLE).to_vec();
        let calls = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        assert!(calls <= CALLS_MAX, "{calls} helper calls");
        let trace = take(CALLS_MAX);
        let calls = trace[..calls].iter().map(|code| Call::of(*code)).collect();
        let length = u32::from_le_bytes(take(4).try_into().unwrap());
        let frame = take(length as usize).to_vec();
        let counts = counts(reason, row, cell);
        Ran {
            seen: self.action(action, &frame).map(|action| Seen { action, counted: counts }),
            changed: frame != before,
            redirected,
            signals,
            calls,
            sample: sample.iter().any(|byte| *byte != 0).then_some(sample),
            counted,
            frame,
        }
    }

    /// The values of `enum xdp_action`, `TC_ACT_*`.
    fn action(&self, returned: i32, frame: &[u8]) -> Result<Action, i32> {
        let xdp = self.program == Program::Ingress(Hook::Xdp);
        match returned {
            2 if xdp => Ok(Action::Pass),
            -1 if !xdp => Ok(Action::Pass),
            1 if xdp => Ok(Action::Drop),
            2 => Ok(Action::Drop),
            3 | 4 if xdp => Ok(Action::Answer(frame.to_vec())),
            7 if !xdp => Ok(Action::Answer(frame.to_vec())),
            other => Err(other),
        }
    }

    /// Ends the program, which writes its coverage.
    pub fn finish(mut self) {
        self.stdin = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the native build of {:?}: {status}", self.program);
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// Counters of the host: a reason to pass, or row (service * 16 + class) and cell (`TG_COUNTS`:
/// 10 reasons to admit from 20 on; then 18 reasons to refuse from 30 on, for drop, drop in shadow,
/// reject, reject in shadow …). Nothing counted shows as reason none.
fn counts(reason: u8, row: u32, cell: u32) -> Counted {
    const CELLS: u32 = 10 + 6 * 18;
    if row == 0 || cell >= CELLS {
        return Counted::Passed(Reason::from_number(reason).unwrap_or(Reason::None));
    }
    let (service, class) = ((row - 1) as usize / 16, (row - 1) as usize % 16);
    let (kind, reason, shadow) = match cell.checked_sub(10) {
        None => (VerdictKind::Admit, 20 + cell, false),
        Some(at) => {
            let block = at / 18;
            (VerdictKind::ALL[1 + block as usize / 2], 30 + at % 18, block % 2 == 1)
        }
    };
    let reason = Reason::from_number(reason as u8).unwrap();
    Counted::Evaluated(Evaluated { service, class, kind, reason, shadow })
}

fn push(message: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        message.extend_from_slice(&word.to_le_bytes());
    }
}

/// The parameters of a service's policy.
pub fn params(service: &Service) -> Params {
    let Some(limit) = &service.limit else { return Params::no_limit(service.policy) };
    let Limit { burst, reserve, .. } = *limit;
    // an Abacus filter measures its room by the rate: one period must hold one SYN
    let borrows = service.is_abacus() && service.abacus_window > 0;
    let seconds = if borrows { 1 } else { SECONDS_PER_TOKEN };
    let rate = Rate::per_second(1.0 / seconds as f64);
    let mut bucket = BucketSpec::new(rate, burst, service.action);
    bucket.reserve = reserve;
    match service.policy {
        Policy::TokenBucket => Params::token_bucket(&bucket),
        Policy::FreshFirst => Params::fresh_first(&bucket),
        Policy::Abacus => Params::abacus(&AbacusSpec::classic(bucket, service.abacus_window)),
        Policy::AbacusExact => {
            Params::abacus_exact(&AbacusExactSpec::classic(bucket, service.abacus_window))
        }
        Policy::AbacusLearned => {
            let reject = Nanos::from_secs(service.abacus_window.into());
            Params::abacus_learned(&AbacusLearnedSpec {
                reject,
                ..AbacusLearnedSpec::classic(bucket)
            })
        }
        Policy::Threshold => {
            Params::threshold(&ThresholdSpec::dropping(burst, burst, bucket.action))
        }
        Policy::Gap => {
            // the same bucket in the words of RFC 7415
            let tau_milli = reserve.map(|kept| (burst - 1 - kept) * 1000);
            Params::gap(&GapSpec { tau_milli, ..GapSpec::new(rate, bucket.action) })
        }
        Policy::Percent => {
            // three quarters of a mix that is believed for longer than a test runs: all of priority 7
            let (mix, period) = ([25, 0, 0, 0, 0, 0, 0, 75], Nanos::from_secs(3600));
            let spec = PercentSpec::new(Share::new(0.75), bucket.action);
            Params::percent(&PercentSpec { period, mix, ..spec })
        }
    }
    .unwrap()
}

fn commands(setup: &Setup, mode: Mode) -> Vec<u8> {
    let mut out = vec![b'r', b't'];
    let heartbeat = match setup.heartbeat {
        Heartbeat::Never => 0,
        Heartbeat::Ago(ns) => NOW - ns,
        Heartbeat::Ahead(ns) => NOW + ns,
    };
    out.extend_from_slice(&NOW.to_le_bytes());
    out.extend_from_slice(&heartbeat.to_le_bytes());
    let switches = [
        setup.released.into(),
        setup.trust_dscp.into(),
        mode.answering as u8 | u8::from(mode.plain) << 4,
    ];
    out.extend_from_slice(&switches);
    push(&mut out, &[mode.sample_every]);
    for (at, service) in setup.services.iter().enumerate() {
        listens(&mut out, setup, at as u8, service);
        classes(&mut out, at as u8, service);
        limits(&mut out, at as u8, service);
    }
    for prefix in &setup.exempt_sources {
        push_prefix(&mut out, NEVER, prefix, 1);
    }
    answers(&mut out, setup);
    out
}

fn listens(out: &mut Vec<u8>, setup: &Setup, index: u8, service: &Service) {
    for listen in &service.listen {
        let never = setup.exempt_ports.contains(&listen.port);
        let addresses = match listen.addr {
            Some(addr) => vec![mapped(addr)],
            None => vec![mapped([0; 4].into()), mapped([0_u16; 8].into())],
        };
        for address in addresses {
            out.push(b'l');
            out.extend_from_slice(&address);
            out.extend_from_slice(&listen.port.to_le_bytes());
            out.extend_from_slice(&[listen.addr.is_none().into(), index, never.into()]);
        }
    }
}

fn classes(out: &mut Vec<u8>, index: u8, service: &Service) {
    out.extend_from_slice(&[b'c', index, 0, 7]);
    for (class, number) in service.classes.iter().zip(1_u8..) {
        out.extend_from_slice(&[b'c', index, number, class.priority]);
        for prefix in &class.sources {
            push_prefix(out, index, prefix, number);
        }
        if let Some(dscp) = class.dscp {
            out.extend_from_slice(&[b'd', index, number, dscp]);
        }
    }
}

fn limits(out: &mut Vec<u8>, index: u8, service: &Service) {
    let action = match service.action {
        Refusal::Drop => 0,
        Refusal::Reject => 2,
        Refusal::Auto => 2 | 4,
    };
    out.extend_from_slice(&[b'm', index]);
    let copies = if service.copies { 8 } else { 0 };
    push(out, &[u32::from(service.shadow) | action | copies, service.accept_queue_max_q10]);
    push(out, &words_of(service.limit_in_flight()));
    push(out, &[service.source_max, service.min_rate_us, service.counts_queue() << 10, 0]);
    push(out, &[until(service)]);
    out.extend_from_slice(params(service).as_bytes());
    out.extend_from_slice(&service.waiting.to_le_bytes());
    out.extend_from_slice(&service.silent.to_le_bytes());
    push(out, &[u32::from(service.tight)]);
    out.extend_from_slice(&(NOW - service.min_rate_ago).to_le_bytes());
    let used = service.limit.as_ref().map_or(0, |limit| limit.used);
    out.extend_from_slice(&(u64::from(used) * TOKEN).to_le_bytes());
}

/// When a limit ends: units of 2^20 ns, rounded up.
fn until(service: &Service) -> u32 {
    let end = |ms: i64| NOW.saturating_add_signed(1_000_000 * ms);
    service.until_ms.map_or(0, |ms| (end(ms) >> 20) as u32 + 1)
}

/// `struct tg_in_flight`.
fn words_of(limit: Option<InFlight>) -> [u32; 5] {
    let InFlight { max, low, rest, silent, asks } = limit.unwrap_or_default();
    [max, low, rest, silent, asks]
}

/// As the loader fills the buckets for answers: a quarter of a second's, at least one. Who is never
/// answered has none for proved sources, either.
fn answers(out: &mut Vec<u8>, setup: &Setup) {
    let proved = if setup.answers == 0 { 0 } else { setup.proved };
    out.push(b'a');
    for (per_second, left) in [(setup.answers, setup.answers_left), (proved, None)] {
        let per_second = u64::from(per_second);
        let tokens = (per_second / 4).max(u64::from(per_second > 0));
        let depth = tokens * TOKEN;
        let full = if per_second > 0 { depth.div_ceil(per_second * 1000) } else { 0 };
        let used = left.map_or(0, |left| depth - u64::from(left) * TOKEN);
        for word in [per_second * 1000, depth, full, used] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

fn push_prefix(out: &mut Vec<u8>, service: u8, prefix: &Prefix, class: u8) {
    let base = if prefix.addr.is_ipv4() { 96 } else { 0 };
    out.extend_from_slice(&[b'p', service, base + prefix.bits]);
    out.extend_from_slice(&mapped(prefix.addr));
    out.push(class);
}

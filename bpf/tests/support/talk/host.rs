// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The native build of all hooks together (tests/native/requests.c), over pipes.

use super::super::built::Source;
use super::super::native::NOW;
use super::super::packet::{CLIENT4, SERVER4, SERVER6};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tidegate_policy::{Reason, RequestLimits};
use tidegate_units::Rate;
use zerocopy::IntoBytes;

const TOKEN: u64 = 1_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const CALLS_MAX: usize = 64;
/// `TG_REASONS_MAX`.
const REASONS: usize = 80;
const RULES: usize = 9;
const CELLS: usize = 12;
const BUCKETS: usize = 4;
const BUCKET_CELLS: usize = 11;
/// `TC_ACT_UNSPEC`: on to the stack.
pub const NEXT: i32 = -1;
/// `TC_ACT_REDIRECT`: out again.
pub const REDIRECT: i32 = 7;

/// The 503 of the tests, and where its body begins.
pub const ANSWER: &str = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\n\
    Content-Length: 6\r\nConnection: close\r\n\r\nbusy.\n";
pub const ANSWER_HEAD: usize = ANSWER.len() - 6;

/// How a rule answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    Answer = 1,
    Reset = 2,
    Drop = 3,
    Auto = 4,
}

/// What is in force: a path for each way to refuse, all on one bucket (0), an admitting one.
///
/// ```text
///  /busy    1  503     bucket 0        /reset  2  reset   bucket 0
///  /drop    3  drop    bucket 0        /free   4  no bucket
///  TLS      5  reset   bucket 0        /close  6  503, persistent first, bucket 1
///  /shop    7  503, the cookie `session` last, bucket 1
///  what no rule can evaluate 8  503, bucket 2, where `unevaluable` says so
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Tokens of bucket 0 and 1 that are used, of 5; a thousand seconds a token.
    pub used: [u64; 2],
    /// Nobody has set a limit for bucket 0.
    pub unlimited: bool,
    /// Tokens that new and persistent requests must leave, of bucket 1.
    pub reserve: [u64; 2],
    /// Tokens of bucket 2 that are used, of 5; `None`: there is no rule 8.
    pub unevaluable: Option<u64>,
    pub shadow: bool,
    /// Of which share of the sources refusals are carried out, in 1/65536; 0: of all.
    pub canary: u16,
    pub released: bool,
    pub never: bool,
    /// Seconds since the last heartbeat.
    pub lease: u64,
    /// Every random number.
    pub dice: u32,
    /// Rules 1 and 5 choose their answer.
    pub auto: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            used: [5, 0],
            unlimited: false,
            reserve: [0, 0],
            unevaluable: None,
            shadow: false,
            canary: 0,
            released: false,
            never: false,
            lease: 0,
            dice: 0,
            auto: false,
        }
    }
}

/// The socket of the server's stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Socket {
    /// As the kernel counts; 0: none.
    pub state: u32,
    pub next: u32,
    pub written: u32,
    pub received: u32,
    pub client_isn: u32,
    pub server_isn: u32,
}

/// How one run differs.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub linear: u32,
    pub tail_min: u32,
    pub fail_at: u32,
}

/// What became of a packet, and what was counted by it.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub action: i32,
    pub frame: Vec<u8>,
    /// What went out.
    pub sent: Vec<Vec<u8>>,
    /// By reason: why no rule of its own evaluated it.
    pub reasons: Vec<u32>,
    pub rules: Vec<Vec<u32>>,
    /// Since the start: offered and refused by rank, begun, ended, first bytes, ends, and of the
    /// refused the first requests.
    pub buckets: Vec<Vec<u32>>,
    pub conns: u32,
    pub phase: u32,
    pub flight: u32,
    pub waiting: i32,
    pub open: i32,
    pub calls: u32,
    pub trace: Vec<u8>,
}

impl Heard {
    /// What goes on: the frame, another, or nothing.
    pub fn passed(&self, _before: &[u8]) -> Option<Vec<u8>> {
        (self.action == NEXT).then(|| self.frame.clone())
    }

    /// Names of what was counted, and the state of the last connection.
    pub fn words(&self) -> String {
        const CELLS: [&str; 6] = ["admitted", "refused", "shadowed", "lease", "repeated", "failed"];
        const PHASES: [&str; 6] = ["idle", "body", "wait", "answer", "opaque", "refused"];
        let mut words = Vec::new();
        for (rule, cells) in self.rules.iter().enumerate() {
            let counted = CELLS.iter().zip(cells).filter(|(_, count)| **count > 0);
            words.extend(counted.map(|(name, _)| format!("rule {rule} {name}")));
        }
        for (number, count) in (0_u8..).zip(&self.reasons) {
            let reason = Reason::from_number(number);
            words.extend(reason.filter(|_| *count > 0).map(|r| format!("reason: {}", r.name())));
        }
        if let Some(name) = PHASES.get(self.phase as usize) {
            let flight = match (self.flight, self.flight & 255) {
                (0, _) => String::new(),
                (_, 0) => ", in flight".to_owned(),
                (_, bucket) => format!(", in flight on {}", bucket - 1),
            };
            words.push(format!("[{name}{flight}]"));
        }
        words.join("; ")
    }
}

/// The running program.
pub struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    pending: Vec<u8>,
    now: u64,
    lease: u64,
    dice: u32,
}

impl Host {
    /// Compiles it with sanitizers, if no test has yet, and starts it.
    pub fn start() -> Self {
        Self::launch(&source().sanitized())
    }

    /// The same with sources below another root, which may hold bugs: quick to build.
    pub fn start_from(sources: &Path, dir: &Path) -> Self {
        Self::launch(&source().quick(sources, dir))
    }

    /// The same for coverage, whose data it writes into this folder when it ends.
    pub fn start_covered(dir: &Path) -> Self {
        Self::launch(&source().covered(dir))
    }

    fn launch(binary: &Path) -> Self {
        let mut command = Command::new(binary);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout, pending: Vec::new(), now: NOW, lease: 0, dice: 0 }
    }

    /// Forgets everything and puts this in force.
    pub fn set(&mut self, rules: &Rules) {
        (self.now, self.lease, self.dice) = (NOW, rules.lease * SECOND, rules.dice);
        self.pending = commands(rules);
    }

    /// Moves the clock, and renews the lease.
    pub fn wait(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
        self.pending.push(b'n');
        for word in [self.now, self.now - self.lease] {
            self.pending.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// The socket that the next packet meets.
    pub fn socket(&mut self, socket: Socket) {
        self.pending.push(b'K');
        let Socket { state, next, written, received, client_isn, server_isn } = socket;
        push(&mut self.pending, &[state, next, written, received, client_isn, server_isn]);
    }

    /// The client is exempt from now on.
    pub fn never(&mut self) {
        never(&mut self.pending);
    }

    /// The kill switch is on from now on.
    pub fn release(&mut self) {
        time(&mut self.pending, (self.now, self.lease), true);
    }

    /// The last heartbeat was so long ago.
    pub fn silence(&mut self, seconds: u64) {
        self.lease = seconds * SECOND;
        self.wait(0);
    }

    /// Tokens of bucket 0 and 2 that are used from now on.
    pub fn used(&mut self, rules: &Rules) {
        bucket(&mut self.pending, 0, rules);
        bucket(&mut self.pending, 2, rules);
    }

    pub fn packet(&mut self, frame: &[u8], egress: bool, run: Run) -> Heard {
        self.pending.push(if egress { b'o' } else { b'i' });
        let size = frame.len() as u32;
        push(&mut self.pending, &[run.linear, run.tail_min, run.fail_at, self.dice, size]);
        self.pending.extend_from_slice(frame);
        let reply = self.exchange();
        heard(&reply)
    }

    /// Which services have rules from now on, bit by bit.
    pub fn rules_of(&mut self, services: u32) {
        self.pending.push(b'R');
        push(&mut self.pending, &[services, 1]);
    }

    /// The hooks see every packet of connections that begin from now on.
    pub fn listens(&mut self) {
        self.pending.push(b'L');
        self.pending.extend_from_slice(&self.now.to_le_bytes());
    }

    /// Runs the sweep, with the services of which the hooks missed packets: freed, kept.
    pub fn sweep(&mut self, missed: u32) -> (u32, u32) {
        self.pending.push(b's');
        push(&mut self.pending, &[missed]);
        let reply = self.exchange();
        let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().unwrap());
        (word(0), word(4))
    }

    fn exchange(&mut self) -> Vec<u8> {
        let message = std::mem::take(&mut self.pending);
        let stdin = self.stdin.as_mut().unwrap();
        let sent = stdin
            .write_all(&(message.len() as u32).to_le_bytes())
            .and_then(|()| stdin.write_all(&message))
            .and_then(|()| stdin.flush());
        let mut length = [0; 4];
        let reply = sent.and_then(|()| self.stdout.read_exact(&mut length)).and_then(|()| {
            let mut reply = vec![0; u32::from_le_bytes(length) as usize];
            self.stdout.read_exact(&mut reply).map(|()| reply)
        });
        reply.unwrap_or_else(|error| {
            panic!("the native build died ({error}): {:?}", self.child.wait())
        })
    }
}

impl Host {
    /// Ends it, which writes its coverage.
    pub fn finish(mut self) {
        self.stdin = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the native build of the request hooks: {status}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

fn push(message: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        message.extend_from_slice(&word.to_le_bytes());
    }
}

fn heard(reply: &[u8]) -> Heard {
    let mut at = reply;
    let mut take = |n: usize| {
        let (taken, rest) = at.split_at(n);
        at = rest;
        taken.to_vec()
    };
    let word = |bytes: Vec<u8>| u32::from_le_bytes(bytes.try_into().unwrap());
    let action = word(take(4)) as i32;
    let length = word(take(4)) as usize;
    let frame = take(length);
    let mut sent = Vec::new();
    for _ in 0..word(take(4)) {
        let length = word(take(4)) as usize;
        sent.push(take(length));
    }
    let mut words = |n: usize| -> Vec<u32> { (0..n).map(|_| word(take(4))).collect() };
    let reasons = words(REASONS);
    let rules = (0..RULES).map(|_| words(CELLS)).collect();
    let buckets = (0..BUCKETS).map(|_| words(BUCKET_CELLS)).collect();
    let rest = words(6);
    let &[conns, phase, flight, waiting, open, calls] = &rest[..] else { panic!("{rest:?}") };
    let trace = take(CALLS_MAX);
    Heard {
        action,
        frame,
        sent,
        reasons,
        rules,
        buckets,
        conns,
        phase,
        flight,
        waiting: waiting as i32,
        open: open as i32,
        calls,
        trace,
    }
}

fn commands(rules: &Rules) -> Vec<u8> {
    let mut out = vec![b'r'];
    time(&mut out, (NOW, rules.lease * SECOND), rules.released);
    for address in [SERVER4.to_ipv6_mapped(), SERVER6] {
        out.push(b'l');
        out.extend_from_slice(&address.octets());
        out.extend_from_slice(&80_u16.to_le_bytes());
        out.extend_from_slice(&[0, 0, 0]);
    }
    if rules.never {
        never(&mut out);
    }
    out.push(b'R');
    push(&mut out, &[1, 1]);
    out.extend_from_slice(b"C\x00\x07session");
    rule_set(&mut out, rules.auto);
    text(&mut out);
    bucket(&mut out, 0, rules);
    bucket(&mut out, 1, rules);
    if rules.unevaluable.is_some() {
        out.extend_from_slice(&[b'Q', 8, 0, 0, 0, Refuse::Answer as u8, 0, 2, 0, 0]);
        push(&mut out, &[0, 0, 0, 0]);
        out.extend_from_slice(b"U\x00\x08");
        bucket(&mut out, 2, rules);
    }
    out
}

/// The clock, how long ago the last heartbeat was, and the kill switch.
fn time(out: &mut Vec<u8>, (now, lease): (u64, u64), released: bool) {
    out.push(b't');
    for word in [now, now - lease] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&[released.into(), 0, 0]);
    push(out, &[0]);
}

fn never(out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'p', 32, 128]);
    out.extend_from_slice(&CLIENT4.to_ipv6_mapped().octets());
    out.push(1);
}

/// See [`Rules`].
fn rule_set(out: &mut Vec<u8>, auto: bool) {
    let or_auto = |refuse| if auto { Refuse::Auto } else { refuse };
    let paths: [(&str, Refuse, u8, u8); 7] = [
        ("/busy", or_auto(Refuse::Answer), 0, 0),
        ("/reset", Refuse::Reset, 0, 0),
        ("/drop", Refuse::Drop, 0, 0),
        ("/free", Refuse::Answer, 128, 0),
        ("", or_auto(Refuse::Reset), 0, 2),
        ("/close", Refuse::Answer, 1, 4),
        ("/shop", Refuse::Answer, 1, 0),
    ];
    for ((path, refuse, bucket, flags), number) in paths.into_iter().zip(1_u8..) {
        out.extend_from_slice(&[b'P', 0, number, path.len() as u8]);
        out.extend_from_slice(path.as_bytes());
        out.extend_from_slice(&[b'Q', number, 0, 0, flags, refuse as u8, 255, bucket, 0, 0]);
        let protect = u32::from(path == "/shop");
        push(out, &[0, 0, 0, protect]);
    }
}

/// What bytes add to a checksum, as abi/request.h says.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|c| u16::from_ne_bytes([c[0], c.get(1).copied().unwrap_or(0)]));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn text(out: &mut Vec<u8>) {
    let (all, head) = (ANSWER.as_bytes(), &ANSWER.as_bytes()[..ANSWER_HEAD]);
    out.push(b'T');
    for word in [all.len() as u16, head.len() as u16, sum(all), sum(head)] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(all);
}

fn bucket(out: &mut Vec<u8>, index: u8, rules: &Rules) {
    let [new, persistent] = if index == 1 { rules.reserve.map(|n| n as u32) } else { [0, 0] };
    out.extend_from_slice(&[b'B', index]);
    let slow = (!rules.unlimited || index > 0).then(|| Rate::per_second(0.001));
    let mut limits = RequestLimits::bucket(slow, 5, [0, new, persistent]).unwrap();
    limits.set_shadow(rules.shadow);
    limits.set_canary(rules.canary);
    out.extend_from_slice(limits.as_bytes());
    let used = rules.used.get(usize::from(index)).copied().or(rules.unevaluable).unwrap_or(0);
    out.extend_from_slice(&(used * TOKEN).to_le_bytes());
}

fn source() -> Source {
    let flags = vec!["-fno-sanitize=alignment".to_owned()];
    Source { name: "native-requests".into(), main: "requests.c", flags }
}

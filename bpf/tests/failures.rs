// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every helper call of every case fails once (native build): the frame passes, or what happens is
//! written down here – and in no case something is refused that would have passed.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::cases::{Case, all};
use support::checksum;
use support::engine::{Arrival, Hook, Seen};
use support::native::{Call, FAIL_ALL, How, Native, Program, Ran};
use support::object::require_root;
use support::plane::Kernel;
use support::reference::parse::parse;
use support::reference::{Action, Counted, Evaluated, Socket, TimeWait};
use support::scene;
use support::setup::{Setup, rejecting};
use tidegate_bpf::Plan;
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
use tidegate_policy::{Reason, VerdictKind};

fn every_case() -> Vec<Case> {
    // what was refused before needs a run before: its calls are those of the others
    let cases = all().into_iter().flat_map(|(_, cases)| cases);
    cases.filter(|case| !case.setup.services.iter().any(|s| s.refused_before)).collect()
}

/// One case, ready to be run again and again.
struct Subject<'a> {
    case: &'a Case,
    frame: &'a [u8],
    hook: Hook,
}

impl Subject<'_> {
    fn arrival(&self) -> Arrival<'_> {
        let socket = scene::socket(self.frame);
        Arrival { frame: self.frame, socket, loopback: self.case.loopback }
    }

    fn run(&self, native: &mut Native, how: How) -> Ran {
        native.set(&self.case.setup);
        native.run(&self.arrival(), how)
    }

    /// What is right if the set-up or the socket were others.
    fn if_only(&self, change: impl Fn(&mut Setup), socket: Option<Socket>) -> Seen {
        let mut setup = self.case.setup.clone();
        change(&mut setup);
        let mut arrival = self.arrival();
        arrival.socket = socket.unwrap_or(arrival.socket);
        Seen::expected(&setup, &arrival)
    }

    /// The socket in TIME_WAIT that the case meets, changed.
    fn waiting(&self, change: impl Fn(&mut TimeWait)) -> Option<Socket> {
        let Socket::TimeWait(mut waits) = self.arrival().socket else { return None };
        change(&mut waits);
        Some(Socket::TimeWait(waits))
    }

    /// The listener behind the socket in TIME_WAIT that the case meets.
    fn behind(&self) -> Option<Socket> {
        let Socket::TimeWait(waits) = self.arrival().socket else { return None };
        waits.listener.map(|(length, limit)| Socket::Listener { length, limit })
    }

    fn passes(reason: Reason) -> Seen {
        Seen { action: Action::Pass, counted: Counted::Passed(reason) }
    }

    /// The refusal stands, and nothing is sent.
    fn silently(normal: &Seen) -> Seen {
        Seen { action: Action::Drop, counted: normal.counted }
    }

    /// The refusal stands; nothing could be sent, and so it is counted.
    fn impossible(normal: &Seen) -> Seen {
        let mut seen = Self::silently(normal);
        if let Counted::Evaluated(evaluated) = &mut seen.counted {
            (evaluated.kind, evaluated.reason) = (VerdictKind::Drop, Reason::ReplyImpossible);
        }
        seen
    }

    /// What may happen if what the stack knows of the tuple cannot be had.
    fn without_socket(&self, failing: Call) -> Vec<Seen> {
        // what cannot be read is new work
        if failing == Call::ToTimeWait {
            return vec![self.if_only(|_| {}, self.behind())];
        }
        // in TIME_WAIT the listener is looked up after that, and only its queue is lost
        vec![
            self.if_only(|_| {}, Some(Socket::Nothing)),
            self.if_only(|_| {}, self.waiting(|waits| waits.listener = None)),
        ]
    }

    /// A table without the prefix, which may be one of either kind.
    fn without_prefixes(&self) -> Vec<Seen> {
        let without = |change: &dyn Fn(&mut Setup)| self.if_only(change, None);
        vec![
            without(&|setup| setup.exempt_sources.clear()),
            without(&|setup| {
                let services = setup.services.iter_mut();
                let classes = services.flat_map(|service| &mut service.classes);
                classes.for_each(|class| class.sources.clear());
            }),
        ]
    }

    fn has_ended(&self) -> bool {
        self.case.setup.services.iter().any(|service| service.until_ms.is_some_and(|ms| ms <= 0))
    }

    /// What may happen if this call fails.
    fn allowed(&self, failing: Call, normal: &Seen) -> Vec<Seen> {
        let mut allowed = self.usually_allowed(failing, normal);
        // limits say when they end
        if matches!(failing, Call::Limits | Call::LimitsOfService) && self.has_ended() {
            allowed.push(Self::passes(Reason::LookupFailed));
        }
        allowed
    }

    fn usually_allowed(&self, failing: Call, normal: &Seen) -> Vec<Seen> {
        let without = |change: &dyn Fn(&mut Setup)| self.if_only(change, None);
        let answers = matches!(normal.action, Action::Answer(_));
        let passed = matches!(normal.counted, Counted::Passed(_));
        if failing.is_memory() {
            return vec![normal.clone()];
        }
        match failing {
            // looked up before it is known whether the frame is evaluated at all
            Call::Limits | Call::LimitsOfService | Call::Gauges if passed => vec![normal.clone()],
            Call::Control | Call::Tables | Call::Limits | Call::LimitsOfService | Call::Gauges => {
                vec![Self::passes(Reason::LookupFailed)]
            }
            // the hash has it, too
            Call::Listeners => vec![normal.clone()],
            // a table without the entry: another service, or none
            Call::Listens => vec![
                without(&|setup| {
                    let listens = setup.services.iter_mut().map(|service| &mut service.listen);
                    listens.for_each(|listen| listen.retain(|at| at.addr.is_none()));
                }),
                Self::passes(Reason::NotService),
            ],
            // the trie has it, too; but with the row known and lost, there is no class
            Call::SrcPrefixes => vec![
                normal.clone(),
                without(&|setup| {
                    let services = setup.services.iter_mut();
                    let classes = services.flat_map(|service| &mut service.classes);
                    classes.for_each(|class| class.sources.clear());
                }),
            ],
            Call::Prefixes => self.without_prefixes(),
            Call::Lease => vec![
                Self::passes(Reason::LeaseExpired),
                Self::passes(Reason::Released), // named first
            ],
            // the limits before the policy, and the policy
            Call::States => vec![
                Self::passes(Reason::LookupFailed),
                without(&|setup| {
                    setup.services.iter_mut().for_each(|service| service.limit = None);
                }),
            ],
            // the policy alone
            Call::Copies => vec![without(&|setup| {
                setup.services.iter_mut().for_each(|service| service.limit = None);
            })],
            Call::Answers => vec![without(&|setup| setup.answers = 0)],
            Call::Socket | Call::ToTcp | Call::ToTimeWait => self.without_socket(failing),
            Call::Counts | Call::Passed => {
                vec![Seen { action: normal.action.clone(), counted: Counted::Passed(Reason::None) }]
            }
            // extension headers are read by a helper; so are the addresses of an answer
            Call::Load if answers => {
                vec![Self::silently(normal), Self::passes(Reason::Truncated)]
            }
            // what needs no more than the first header is known all the same
            Call::Pull if normal.action == Action::Pass => {
                vec![normal.clone(), Self::passes(Reason::Truncated)]
            }
            Call::Load | Call::Pull => vec![Self::passes(Reason::Truncated)],
            Call::Store => vec![Self::silently(normal)],
            Call::Tail if self.hook == Hook::Tc => {
                vec![Self::impossible(normal), self.taken_for_partial(normal)]
            }
            _ => vec![Self::impossible(normal)], // a tail, at XDP
        }
    }

    /// At tc a tail that cannot be cut is the sign of a checksum that the device will complete.
    fn taken_for_partial(&self, normal: &Seen) -> Seen {
        let Action::Answer(bytes) = &normal.action else { return normal.clone() };
        let mut bytes = bytes.clone();
        let ip = parse(self.frame).unwrap().ip_at;
        let (addresses, tcp) = if bytes[ip] >> 4 == 4 {
            (bytes[ip + 12..ip + 20].to_vec(), ip + 20)
        } else {
            (bytes[ip + 8..ip + 40].to_vec(), ip + 40)
        };
        // over a segment of zeros: nothing but the pseudo header, and not inverted
        let (src, dst) = addresses.split_at(addresses.len() / 2);
        let sum = !checksum::transport(src, dst, 6, &[0; 20]);
        bytes[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        Seen { action: Action::Answer(bytes), counted: normal.counted }
    }
}

/// The first look at a policy's state only fetches it.
fn fetches(call: Call, before: &[Call]) -> bool {
    call == Call::States && !before.contains(&call)
}

/// Nothing that would have passed is refused – but where a table lacks what would have spared it.
fn stays_open(failing: Call, normal: &Seen, seen: &Seen) -> bool {
    let spared = matches!(
        failing,
        Call::SrcPrefixes
            | Call::Prefixes
            | Call::Socket
            | Call::ToTcp
            | Call::ToTimeWait
            | Call::Listens
    );
    spared || normal.action != Action::Pass || seen.action == Action::Pass
}

#[test]
fn one_helper_call_fails() {
    for hook in Hook::ALL {
        let mut native = Native::start(Program::Ingress(hook));
        let mut failed = std::collections::BTreeMap::<Call, usize>::new();
        for case in &every_case() {
            let frame = case.packet.bytes();
            let subject = Subject { case, frame: &frame, hook };
            let linear = if hook == Hook::Tc { 14 } else { u32::MAX };
            let normal = subject.run(&mut native, How { linear, ..How::default() });
            let (calls, normal) = (normal.calls, normal.seen.unwrap());
            for (n, call) in calls.iter().enumerate() {
                let how = How { linear, fail_at: n as u32 + 1, ..How::default() };
                let seen = subject.run(&mut native, how).seen.unwrap();
                let allowed = if fetches(*call, &calls[..n]) {
                    vec![normal.clone()]
                } else {
                    subject.allowed(*call, &normal)
                };
                let who = format!("{hook:?}, {}: call {n}, {call:?}", case.name);
                assert!(allowed.contains(&seen), "{who}: {seen:x?}, not of {allowed:x?}");
                assert!(stays_open(*call, &normal, &seen), "{who}: refused");
                *failed.entry(*call).or_default() += 1;
            }
        }
        native.finish();
        println!("{hook:?}: {failed:?}");
        let every = if hook == Hook::Tc { 23 } else { 21 };
        assert!(failed.len() >= every, "{hook:?}: {} kinds of calls failed", failed.len());
    }
}

#[test]
fn every_helper_call_fails() {
    for program in Program::ALL {
        let mut native = Native::start(program);
        for case in &every_case() {
            let frame = case.packet.bytes();
            let subject = Subject { case, frame: &frame, hook: Hook::Tc };
            let how = How { fail_at: FAIL_ALL, ..How::default() };
            let seen = subject.run(&mut native, how).seen.unwrap();
            assert_eq!(seen.action, Action::Pass, "{program:?}: {}", case.name);
        }
        native.finish();
    }
}

/// The egress hook watches: whatever fails, every frame passes untouched.
#[test]
fn egress_passes_everything() {
    let mut native = Native::start(Program::Egress);
    for case in &every_case() {
        let frame = case.packet.bytes();
        let subject = Subject { case, frame: &frame, hook: Hook::Tc };
        let normal = subject.run(&mut native, How::default());
        for fail_at in 0..=normal.calls.len() as u32 {
            let how = How { linear: 14, fail_at, ..How::default() };
            let ran = subject.run(&mut native, how);
            assert_eq!(ran.seen.unwrap().action, Action::Pass, "{}: call {fail_at}", case.name);
            assert_eq!(ran.frame, frame, "{}: call {fail_at}", case.name);
        }
    }
    native.finish();
}

/// A header that the hook cannot read directly: it passes as if it were cut, or is evaluated as ever;
/// and once enough can be read, more changes nothing.
#[test]
fn a_frame_that_can_be_read_in_part() {
    let mut native = Native::start(Program::Ingress(Hook::Xdp));
    for case in every_case().iter().filter(|case| case.setup == rejecting()) {
        let frame = case.packet.bytes();
        let subject = Subject { case, frame: &frame, hook: Hook::Xdp };
        let normal = subject.run(&mut native, How::default()).seen.unwrap();
        let (mut enough, mut last) = (false, None);
        for linear in 0..=frame.len() as u32 {
            native.set(&case.setup);
            let ran = native.run(&subject.arrival(), How { linear, ..How::default() });
            let seen = ran.seen.unwrap();
            // an answer needs room that can be written; it is refused all the same
            let same = seen == normal || seen == Subject::silently(&normal);
            let cut = seen == Subject::passes(Reason::Truncated);
            assert!(same || (cut && !enough), "{}: {linear} bytes: {seen:x?}", case.name);
            enough |= same && !cut;
            last = Some(seen);
        }
        assert_eq!(last, Some(normal), "{}", case.name);
    }
    native.finish();
}

/// Where the device completes the checksum, the field holds the sum of the pseudo header; and a
/// packet that cannot be cut so far (IP options) is refused silently, and counted so.
#[test]
fn a_partial_checksum_at_tc() {
    let mut native = Native::start(Program::Ingress(Hook::Tc));
    let (mut answered, mut silent) = (0, 0);
    for case in every_case().iter().filter(|case| case.setup == rejecting()) {
        let frame = case.packet.bytes();
        let subject = Subject { case, frame: &frame, hook: Hook::Tc };
        let normal = subject.run(&mut native, How::default()).seen.unwrap();
        let Action::Answer(whole) = &normal.action else { continue };
        // the SYN's own checksum must stay within the packet
        let tail_min = tcp_in(&frame) as u32 + 18;
        let how = How { tail_min, ..How::default() };
        let seen = subject.run(&mut native, how).seen.unwrap();
        if tail_min as usize <= whole.len() {
            assert_eq!(seen, subject.taken_for_partial(&normal), "{}", case.name);
            answered += 1;
        } else {
            assert_eq!(seen, Subject::impossible(&normal), "{}", case.name);
            silent += 1;
        }
    }
    native.finish();
    assert!(answered > 30 && silent > 5, "{answered} answered, {silent} silent");
}

/// Where TCP begins in a SYN: its payload and its header stand at the end of what IP announces.
fn tcp_in(frame: &[u8]) -> usize {
    let segment = parse(frame).unwrap();
    let ip = segment.ip_at;
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let end = if segment.ipv6 { ip + 40 + word(ip + 4) } else { ip + word(ip + 2) };
    let before_payload = end - segment.payload as usize;
    let begins = |at: &usize| frame[*at + 12] >> 4 == ((before_payload - at) / 4) as u8;
    (5..=15).map(|words| before_payload - 4 * words).find(begins).unwrap()
}

#[test]
fn without_any_service_the_kernel_passes_every_frame() {
    require_root();
    let plane = TestPlane::load(&Plan::default()).unwrap();
    for case in &every_case() {
        let frame = case.packet.bytes();
        for hook in Kernel::hooks_for(&frame) {
            let hook = if *hook == Hook::Xdp { TestHook::Xdp } else { TestHook::Tc };
            let run = plane.run(hook, &frame).unwrap();
            assert_eq!(run.outcome, Outcome::Pass, "{hook:?}: {}", case.name);
            assert_eq!(run.packet, frame, "{hook:?}: {}", case.name);
        }
    }
    assert!(plane.counts().unwrap().is_empty());
}

/// The sample tells what was counted.
#[test]
fn a_sample_says_what_was_decided() {
    let mut native = Native::start(Program::Ingress(Hook::Xdp));
    let mut samples = 0;
    for case in &every_case() {
        let frame = case.packet.bytes();
        let subject = Subject { case, frame: &frame, hook: Hook::Xdp };
        let ran = subject.run(&mut native, How::default());
        let Counted::Evaluated(evaluated) = ran.seen.unwrap().counted else {
            assert_eq!(ran.sample, None, "{}", case.name);
            continue;
        };
        let Evaluated { service, class, kind, reason, shadow } = evaluated;
        let sample = ran.sample.unwrap();
        // struct tg_sample: time, two addresses, two ports, then what was decided
        let kind = if kind == VerdictKind::Admit { 0 } else { kind as u8 };
        let decided = [service as u8, class as u8, kind, reason as u8, u8::from(shadow)];
        assert_eq!(sample[44..49], decided, "{}", case.name);
        assert_eq!(sample[8..24], parse(&frame).unwrap().src, "{}", case.name);
        samples += 1;
    }
    native.finish();
    assert!(samples > 100, "{samples} samples");
}

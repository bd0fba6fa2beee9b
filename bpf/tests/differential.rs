// SPDX-License-Identifier: Apache-2.0 OR MIT
//! At random: frames and set-ups, through the hooks and through the reference, which must agree
//! on what becomes of the frame, on what is counted, and on every byte of an answer.
//!
//! `TIDEGATE_SEED=… cargo test -p tidegate-bpf --test differential` repeats or varies a run,
//! `TIDEGATE_FRAMES` lengthens it.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::{BTreeMap, HashSet};
use support::engine::{Arrival, Hook, Seen};
use support::frames::frame;
use support::namespace::Namespace;
use support::native::{Answering, How, Mode, Native, Program};
use support::object::{COMPILER_DEFAULT, COMPILERS, objects, require_root};
use support::plane::Kernel;
use support::random::{Dice, from_env, seed};
use support::reference::parse::{Segment, parse};
use support::reference::{Action, Counted, Decision, Scene, Socket, TimeWait, decide};
use support::scene;
use support::setup::{Heartbeat, SECOND, Setup};
use support::setups::{answering, setup};
use tidegate_bpf::testing::Options;
use tidegate_policy::{Policy, Reason, VerdictKind};

/// Frames for each hook in the kernel.
const FRAMES_KERNEL: usize = 80_000;
/// Frames for each hook as each other compiler makes it.
const FRAMES_OTHER: usize = 12_000;
/// Frames for each hook of the native build.
const FRAMES_NATIVE: usize = 400_000;
/// Frames that one set-up meets: few enough that no two keys look alike by chance.
const BATCH: usize = 400;
/// How often every reason must occur, or random cases prove nothing.
const EACH_REASON_MIN: usize = 5;
/// What a lease's share of the random numbers may differ by rounding, of 65536.
const ROUNDING: i64 = 2;

/// A SYN as fresh_first knows it: service, family, tuple, sequence number. IPv6 with mapped addresses is
/// another tuple than IPv4.
type Key = (usize, bool, [u8; 16], [u8; 16], u16, u16, u32);

/// The reference with a memory: what the frames before used up.
struct Model {
    setup: Setup,
    refused: HashSet<Key>,
}

/// One frame and how it arrives.
struct Throw {
    frame: Vec<u8>,
    socket: Socket,
    loopback: bool,
    dice: u16,
}

impl Throw {
    fn new(dice: &mut Dice) -> Self {
        let frame = frame(dice);
        let socket = scene::listener(&frame);
        Self { frame, socket, loopback: dice.one_in(8), dice: dice.u32() as u16 }
    }

    /// Meets a listener whose queue is all but full, full, or above its limit: there the stack has no
    /// place.
    fn crowded(mut self, dice: &mut Dice) -> Self {
        if let Socket::Listener { length, limit } = &mut self.socket {
            *length = *limit - 1 + dice.below(3) as u32;
        }
        self
    }

    /// Meets a socket in TIME_WAIT whose memory is close to what the frame says.
    fn waiting(mut self, dice: &mut Dice) -> Self {
        let listener = match self.socket {
            Socket::Listener { length, limit } => Some((length, limit)),
            _ => None,
        };
        let segment = parse(&self.frame).ok();
        let mut near = |at: Option<u32>| {
            let offset = *dice.pick(&[0, 1, 2, 1 << 31, (1 << 31) + 1, u32::MAX, u32::MAX - 1]);
            at.unwrap_or(0).wrapping_sub(offset)
        };
        let next = near(segment.as_ref().map(|segment| segment.seq));
        let last = near(segment.as_ref().and_then(|segment| segment.stamp));
        let stamp = match dice.below(4) {
            0 => None,
            1 => Some(*dice.pick(&[0, 1, u32::MAX])),
            _ => Some(last),
        };
        self.socket = Socket::TimeWait(TimeWait { next, stamp, closing: dice.one_in(8), listener });
        self
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival { frame: &self.frame, socket: self.socket, loopback: self.loopback }
    }
}

impl Model {
    fn new(setup: &Setup) -> Self {
        Self { setup: setup.clone(), refused: HashSet::new() }
    }

    fn evaluate(&mut self, throw: &Throw, can_answer: bool) -> Decision {
        let arrival = throw.arrival();
        let segment = parse(arrival.frame).ok();
        self.recall(segment.as_ref());
        let scene = Scene {
            setup: &self.setup,
            socket: arrival.socket,
            loopback: arrival.loopback,
            can_answer,
            dice: throw.dice,
        };
        let decision = decide(arrival.frame, &scene);
        self.remember(segment.as_ref(), &decision);
        decision
    }

    /// Tokens come back to a service; how many are used then.
    fn give_back(&mut self, dice: &mut Dice) -> (usize, u32) {
        let service = dice.below(self.setup.services.len());
        let Some(limit) = &mut self.setup.services[service].limit else { return (service, 0) };
        limit.used = dice.below(limit.used as usize + 1) as u32;
        (service, limit.used)
    }

    fn key(service: usize, s: &Segment) -> Key {
        (service, s.ipv6, s.src, s.dst, s.sport, s.dport, s.seq)
    }

    fn recall(&mut self, segment: Option<&Segment>) {
        for (index, service) in self.setup.services.iter_mut().enumerate() {
            let known = segment.is_some_and(|s| self.refused.contains(&Self::key(index, s)));
            service.refused_before = known;
        }
    }

    fn remember(&mut self, segment: Option<&Segment>, decision: &Decision) {
        let Counted::Evaluated(evaluated) = decision.counted else { return };
        let service = &mut self.setup.services[evaluated.service];
        if decision.took_token
            && let Some(limit) = &mut service.limit
        {
            limit.used += 1;
        }
        if decision.took_min_rate {
            service.min_rate_ago = 0;
        }
        if decision.took_answer
            && let Some(left) = &mut self.setup.answers_left
        {
            *left -= 1;
        }
        // the policy remembers what it or a limit refused, executed or not
        if decision.refused && service.policy == Policy::FreshFirst {
            self.refused.extend(segment.map(|s| Self::key(evaluated.service, s)));
        }
    }
}

/// Dice that do not stand just where a relaxing lease draws its line.
fn off_the_line(dice: u16, heartbeat: Heartbeat) -> u16 {
    let Heartbeat::Ago(age) = heartbeat else { return dice };
    let line = (10 * SECOND).saturating_sub(age) * 65536 / (7 * SECOND);
    let near = (i64::from(dice) - line as i64).abs() <= ROUNDING;
    if near { dice.wrapping_add(4 * ROUNDING as u16) } else { dice }
}

#[derive(Default)]
struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn count(&mut self, seen: &Seen) {
        let entry = match seen.counted {
            Counted::Passed(reason) => reason.name().to_owned(),
            Counted::Evaluated(j) if j.kind == VerdictKind::Admit => j.reason.name().to_owned(),
            Counted::Evaluated(j) if j.shadow => {
                format!("{} {} (shadow)", j.kind.name(), j.reason.name())
            }
            Counted::Evaluated(j) => format!("{} {}", j.kind.name(), j.reason.name()),
        };
        *self.0.entry(entry).or_default() += 1;
    }

    /// Every reason that this test can bring about, often enough.
    fn check(&self, not: &[Reason]) {
        println!("{:#?}", self.0);
        let sockets = [Reason::SocketRequest, Reason::SocketEstablished, Reason::SocketTimeWait];
        let never = [Reason::None, Reason::LookupFailed, Reason::NoListener, Reason::Borrowed];
        // a memory of promises is what the replay is for; sources.rs, late.rs
        let elsewhere = [Reason::ExpectedAgain, Reason::LastAttempt, Reason::Source, Reason::Late];
        // no hook can wait, and nobody asks a hook
        let later = [Reason::Wait, Reason::ByProxy];
        let skipped = [&sockets[..], &never[..], &elsewhere[..], &later[..], not].concat();
        let of_syns = |reason: &&Reason| **reason < Reason::NoRule && !skipped.contains(reason);
        for reason in Reason::ALL.iter().filter(of_syns) {
            let ends = |name: &&String| name.trim_end_matches(" (shadow)").ends_with(reason.name());
            let times: usize = self.0.keys().filter(ends).map(|name| self.0[name]).sum();
            assert!(times >= EACH_REASON_MIN, "{}: {times} times", reason.name());
        }
    }
}

fn compare(
    who: &str,
    at: (usize, u64),
    throw: &Throw,
    (seen, model): (&Seen, &Model),
    decided: Decision,
) {
    let expected = Seen::from(decided);
    assert!(
        *seen == expected,
        "{who}, frame {} (TIDEGATE_SEED={}): {seen:x?}, the reference {expected:x?}\n{}\n{:x?}\n{:?}",
        at.0,
        at.1,
        support::decode::describe(&throw.frame),
        throw.frame,
        model.setup,
    );
}

#[test]
fn the_native_build_and_the_reference_agree() {
    let total = from_env("TIDEGATE_FRAMES").map_or(FRAMES_NATIVE, |n| n as usize);
    for hook in Hook::ALL {
        let (seed, mut tally) = (seed(), Tally::default());
        let mut dice = Dice::new(seed);
        let mut native = Native::start(Program::Ingress(hook));
        for batch in 0..total.div_ceil(BATCH) {
            let (setup, how) = (setup(&mut dice, true), answering(&mut dice));
            let mode = Mode { answering: how, ..Mode::default() };
            let mut model = Model::new(&setup);
            native.set_mode(&setup, mode);
            for n in 0..BATCH {
                if dice.one_in(40) {
                    let (service, used) = model.give_back(&mut dice);
                    native.use_tokens(service, used);
                }
                let mut throw = Throw::new(&mut dice);
                if dice.one_in(3) {
                    throw = throw.crowded(&mut dice);
                }
                if dice.one_in(4) {
                    throw = throw.waiting(&mut dice);
                }
                throw.dice = off_the_line(throw.dice, setup.heartbeat);
                let decided = model.evaluate(&throw, how != Answering::Never);
                let ran = native.run(&throw.arrival(), run_how(&mut dice, &throw, hook));
                let seen = ran.seen.unwrap();
                let answered = matches!(seen.action, Action::Answer(_));
                let redirects = hook == Hook::Tc || how == Answering::Redirect;
                assert_eq!(ran.redirected, answered && redirects, "{:x?}", throw.frame);
                assert_eq!(ran.counted, 1);
                tally.count(&seen);
                let at = (batch * BATCH + n, seed);
                compare(&format!("{hook:?}, native"), at, &throw, (&seen, &model), decided);
            }
        }
        native.finish();
        let reused = tally.0.get("socket-time-wait").copied().unwrap_or_default();
        assert!(reused >= EACH_REASON_MIN, "socket-time-wait: {reused} times");
        tally.check(&[]);
    }
}

/// At tc, a part of the frame may have to be pulled first.
fn run_how(dice: &mut Dice, throw: &Throw, hook: Hook) -> How {
    let lines = [14, 20, 34, 54, u32::MAX];
    let linear = if hook == Hook::Tc { *dice.pick(&lines) } else { u32::MAX };
    How { linear, dice: [dice.u32(), u32::from(throw.dice) | dice.u32() << 16], ..How::default() }
}

/// So many frames through each hook in the kernel, as this compiler made them.
fn kernel_agrees(compiler: &str, total: usize) {
    let with = (objects(compiler), Options { redirect: compiler != COMPILER_DEFAULT });
    let namespace = Namespace::listeners();
    namespace.within(|interface| {
        for hook in &Hook::ALL {
            let (seed, mut tally) = (seed() ^ 1, Tally::default());
            let mut dice = Dice::new(seed);
            // DSCP is trusted or not from the loading on: one plane for each
            let mut planes: [Option<Kernel>; 2] = [None, None];
            for batch in 0..total.div_ceil(BATCH) {
                let setup = setup(&mut dice, false);
                let plane = &mut planes[usize::from(setup.trust_dscp)];
                let load = || Kernel::load_with(&setup, interface, with.clone());
                let kernel = plane.get_or_insert_with(load);
                kernel.put(&setup);
                kernel.prepare(&setup, &Throw::new(&mut dice).arrival());
                let mut model = Model::new(&setup);
                for n in 0..BATCH {
                    let throw = Throw::new(&mut dice);
                    if !Kernel::hooks_for(&throw.frame).contains(hook) {
                        continue;
                    }
                    let decided = model.evaluate(&throw, true);
                    let seen = kernel.run(hook, &throw.arrival());
                    tally.count(&seen);
                    let at = (batch * BATCH + n, seed);
                    let who = format!("{hook:?}, kernel, {compiler}");
                    compare(&who, at, &throw, (&seen, &model), decided);
                }
            }
            if compiler == COMPILER_DEFAULT {
                // there, tokens do not come back while a test runs
                tally.check(&[Reason::Repeated]);
            }
        }
    });
}

#[test]
fn the_kernel_and_the_reference_agree() {
    require_root();
    let total = from_env("TIDEGATE_FRAMES").map_or(FRAMES_KERNEL, |n| n as usize);
    kernel_agrees(COMPILER_DEFAULT, total);
}

#[test]
fn whichever_compiler_made_the_hooks() {
    require_root();
    for compiler in COMPILERS.iter().filter(|name| **name != COMPILER_DEFAULT) {
        kernel_agrees(compiler, FRAMES_OTHER);
    }
}

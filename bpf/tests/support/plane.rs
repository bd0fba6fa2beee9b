// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks in the kernel, through the product's own loader: puts a set-up in force and gives the
//! hooks frames (`BPF_PROG_TEST_RUN`).

use super::engine::{Arrival, Hook, Seen};
use super::native::params;
use super::packet::{ACK, RST, eth};
use super::reference::{Action, Counted, Evaluated};
use super::setup::{Heartbeat, Listen, SECOND, SECONDS_PER_TOKEN, Service, Setup};
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::{LOOPBACK, Objects, Options, Outcome, Run, TestHook, TestPlane};
use tidegate_bpf::{Count, Plan, ServiceParams, Settings};
use tidegate_config::{
    ClassConfig, Config, Exempt, InterfaceConfig, Replies, ServiceConfig, Tables,
};
use tidegate_model::{Mode, Protocol};
use tidegate_policy::{Event, Reason, VerdictKind};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Longer frames the kernel does not take in a test run, or not at every hook.
const TEST_RUN_MAX: usize = 3_400;

/// What was counted up to now.
#[derive(Default)]
struct Counts {
    passed: Vec<(Reason, u64)>,
    evaluated: Vec<(Evaluated, u64)>,
}

/// The plane, and what it stands on.
pub struct Kernel {
    plane: TestPlane,
    /// Number of the interface that is no loopback device.
    interface: u32,
    /// Whether the hooks trust the DSCP: said once, at loading.
    trusting: bool,
    /// Set-ups that were put in force.
    turns: u32,
    counts: Counts,
    /// What is in force, unless a frame used something up.
    untouched: Option<Setup>,
    /// RSTs that end the connections which were opened to wait.
    ends: Vec<Vec<u8>>,
}

fn test_hook(hook: &Hook) -> TestHook {
    match hook {
        Hook::Xdp => TestHook::Xdp,
        Hook::Tc => TestHook::Tc,
    }
}

impl Kernel {
    /// Loads the hooks; `interface`: where frames arrive.
    pub fn load(setup: &Setup, interface: u32) -> Self {
        Self::load_with(setup, interface, (Objects::default(), Options::default()))
    }

    /// The same with objects of another compiler, or other ways to answer.
    pub fn load_with(setup: &Setup, interface: u32, with: (Objects, Options)) -> Self {
        let plane = TestPlane::load_objects(&plan(setup, 0), with.0, with.1).unwrap();
        let (trusting, counts) = (setup.trust_dscp, Counts::default());
        let mut kernel = Self {
            plane,
            interface,
            trusting,
            turns: 0,
            counts,
            untouched: None,
            ends: Vec::new(),
        };
        kernel.put(setup);
        kernel
    }

    /// The hooks to which the kernel gives a frame in a test run: XDP wants an Ethernet header,
    /// tc something behind it, and the IP header that it promises; neither takes very long ones.
    pub fn hooks_for(frame: &[u8]) -> &'static [Hook] {
        if frame.len() > TEST_RUN_MAX {
            return &[];
        }
        let enough = match frame.get(12..14) {
            None => return &[],
            Some([0x08, 0x00]) => 34,
            Some([0x86, 0xdd]) => 54,
            Some(_) => 15,
        };
        if frame.len() < enough { &[Hook::Xdp] } else { &Hook::ALL }
    }

    /// Whether a set-up can be put in force without loading anew.
    pub fn fits(&self, setup: &Setup) -> bool {
        self.trusting == setup.trust_dscp && setup.answers_left.is_none()
    }

    /// Whether this set-up is in force, and no frame used anything of it up.
    pub fn is_untouched(&self, setup: &Setup) -> bool {
        self.untouched.as_ref() == Some(setup)
    }

    /// Puts a set-up in force. Its services get new names, which makes their state fresh.
    pub fn put(&mut self, setup: &Setup) {
        TestPlane::stay_on_one_cpu();
        for rst in std::mem::take(&mut self.ends) {
            self.plane.run(TestHook::Egress, &rst).unwrap();
        }
        self.turns += 1;
        self.plane.apply(&plan(setup, self.turns)).unwrap();
        self.forget_syns();
        self.limits(setup);
        self.plane.release(setup.released).unwrap();
        self.refresh(setup);
        self.counts = self.counted();
    }

    /// A SYN that passed before lets no copy of itself pass.
    pub fn forget_syns(&self) {
        self.plane.forget_syns().unwrap();
    }

    /// Renews the lease, as old as the set-up says.
    pub fn refresh(&self, setup: &Setup) {
        let heartbeat = match setup.heartbeat {
            Heartbeat::Never => Nanos::ZERO,
            Heartbeat::Ago(ns) => MonotonicClock.now() - Nanos(ns),
            Heartbeat::Ahead(ns) => MonotonicClock.now() + Nanos(ns),
        };
        self.plane.set_lease(heartbeat).unwrap();
    }

    fn limits(&mut self, setup: &Setup) {
        let now = MonotonicClock.now();
        let services = setup.services.iter().enumerate();
        let limits: Vec<ServiceParams> = services
            .map(|(service, said)| ServiceParams {
                service,
                params: params(said),
                waiting_max: said.limit_in_flight(),
                accept_queue_max_q10: said.accept_queue_max_q10,
                source_max: (said.source_max > 0).then_some(said.source_max),
                min_rate: said.min_rate(),
                level: said.level(),
                copies: said.copies,
                until: said.until_ms.map(|ms| Nanos(now.0.saturating_add_signed(1_000_000 * ms))),
                ..ServiceParams::new(service, params(said))
            })
            .collect();
        self.plane.set_limits(&limits, &[], 1).unwrap();
    }

    /// Brings each service to where the set-up says it is, for a frame that comes next: tokens
    /// used, connections waiting, answers used, this SYN refused before.
    pub fn prepare(&mut self, setup: &Setup, arrival: &Arrival<'_>) {
        let refused = setup.services.iter().any(|service| service.refused_before);
        let services = || setup.services.iter().enumerate();
        for (index, service) in services() {
            self.wait(index, service);
            self.use_tokens(index, service, if refused { 0 } else { u32::MAX });
        }
        if refused {
            self.give(arrival);
            services().for_each(|(index, service)| self.give_back(index, service));
        }
        if setup.answers_left == Some(0) && setup.answers > 0 {
            self.use_answers(setup);
        }
        self.plane.release(setup.released).unwrap();
        self.refresh(setup);
        self.counts = self.counted();
        let by_frame = |service: &Service| service.refused_before || service.min_rate_us > 0;
        let by_frame = setup.services.iter().any(by_frame);
        self.untouched = (!by_frame && setup.answers_left.is_none()).then(|| setup.clone());
    }

    fn give(&self, arrival: &Arrival<'_>) {
        self.plane.run_on(TestHook::Xdp, arrival.frame, self.interface).unwrap();
    }

    /// Takes tokens until `used` of the set-up (or all but `left_max`) are taken.
    fn use_tokens(&self, index: usize, service: &Service, left_max: u32) {
        let Some(limit) = service.limit.as_ref().filter(|_| service.takes_tokens()) else { return };
        let used = limit.used.max(limit.burst.saturating_sub(left_max));
        let now = MonotonicClock.now().0;
        for n in 0..used {
            let key = u64::from(n) << 48 | 0xaaaa;
            let event = Event { key, ..Event::at(now) };
            let verdict = self.plane.replay(index, &event).unwrap();
            assert_eq!(verdict.reason, Reason::Token, "{index}: {n} of {used}");
        }
    }

    /// Lets tokens come back, from an empty bucket, by an event in the future, which takes
    /// one itself. When the clock goes back by more than a second, the policies believe it and add
    /// nothing.
    fn give_back(&self, index: usize, service: &Service) {
        let Some(limit) = service.limit.as_ref().filter(|_| service.takes_tokens()) else { return };
        let left = u64::from(limit.burst - limit.used);
        if left == 0 {
            return;
        }
        let then = MonotonicClock.now().0 + (2 * left + 3) * SECONDS_PER_TOKEN * SECOND / 2;
        let verdict = self.plane.replay(index, &Event::at(then)).unwrap();
        assert_eq!(verdict.reason, Reason::Token);
    }

    /// Opens connections that wait for a response: SYN, SYN-ACK, ACK, request. Of those that say nothing
    /// the request is missing.
    fn wait(&mut self, index: usize, service: &Service) {
        let Some(listen) = service.listen.iter().find(|at| at.addr.is_some()) else { return };
        let Some(std::net::IpAddr::V4(to)) = listen.addr else { return };
        for n in 0..service.waiting + service.silent {
            let port = 50_000 + n as u16;
            let from = [203, 0, 113, index as u8];
            let client = || eth().ipv4().from4(from).to4(to.octets()).tcp(port, listen.port);
            let server = || eth().ipv4().from4(to.octets()).to4(from).tcp(listen.port, port);
            let give = |hook, frame: &[u8]| self.plane.run(hook, frame).unwrap();
            self.plane.release(true).unwrap();
            give(TestHook::Xdp, &client().syn().bytes());
            give(TestHook::Egress, &server().syn().seq(77).ack(0).bytes());
            give(TestHook::Xdp, &client().flags(ACK).ack(78).bytes());
            if n < service.waiting {
                let request = client().flags(ACK).ack(78).data(b"GET / HTTP/1.1");
                give(TestHook::Xdp, &request.bytes());
                give(TestHook::Egress, &server().flags(ACK).seq(78).bytes());
            }
            // The stack, which knows nothing of this connection, would not believe a client's.
            self.ends.push(server().flags(RST).seq(78).bytes());
        }
        let totals = self.plane.totals(index).unwrap();
        let (waiting, silent) = (totals.waiting, totals.silent);
        assert_eq!((waiting, silent), (service.waiting, service.silent), "of {}", service.name);
    }

    /// Takes all answers of this CPU, with SYNs of a client that no case knows.
    fn use_answers(&self, setup: &Setup) {
        let at = setup.services[0].listen[0];
        let Some(std::net::IpAddr::V4(to)) = at.addr else { panic!("{at}: no IPv4 address") };
        let from = [203, 0, 113, 9];
        let syn = eth().ipv4().from4(from).to4(to.octets()).tcp(1, at.port).syn().bytes();
        // While a hook is loaded an answer comes back.
        self.plane.load_hook(TestHook::Tc).unwrap();
        for _ in 0..(setup.answers / 4).max(1) {
            self.plane.run(TestHook::Xdp, &syn).unwrap();
        }
    }

    /// One frame through one hook.
    pub fn run(&mut self, hook: &Hook, arrival: &Arrival<'_>) -> Seen {
        let interface = if arrival.loopback { LOOPBACK } else { self.interface };
        let run = self.plane.run_on(test_hook(hook), arrival.frame, interface);
        let run = run.unwrap_or_else(|error| panic!("{hook:?} {:x?}: {error:?}", arrival.frame));
        let seen = Seen { action: action(run, arrival.frame), counted: self.grown() };
        // a token, a borrowed period; answers come back faster than cases take them
        if matches!(seen.counted.reason(), Reason::Token | Reason::Borrowed) {
            self.untouched = None;
        }
        seen
    }

    /// What was counted since the last time: exactly one thing. Verdicts are read only if nothing
    /// passed without being evaluated; one too many would show the next time.
    fn grown(&mut self) -> Counted {
        let passed = self.passed();
        let reasons = growth(&self.counts.passed, &passed);
        self.counts.passed = passed;
        if let [(reason, 1)] = reasons.as_slice() {
            return Counted::Passed(*reason);
        }
        let evaluated = self.evaluated();
        let verdicts = growth(&self.counts.evaluated, &evaluated);
        self.counts.evaluated = evaluated;
        match (verdicts.as_slice(), reasons.as_slice()) {
            ([(evaluated, 1)], []) => Counted::Evaluated(*evaluated),
            _ => panic!("one packet was counted as {verdicts:?} and {reasons:?}"),
        }
    }

    /// One frame through the egress hook, which passes everything untouched.
    pub fn run_egress(&self, frame: &[u8]) -> Run {
        self.plane.run(TestHook::Egress, frame).unwrap()
    }

    pub fn plane(&mut self) -> &mut TestPlane {
        &mut self.plane
    }

    fn passed(&self) -> Vec<(Reason, u64)> {
        self.plane.passed().unwrap().iter().map(|p| (p.reason, p.count)).collect()
    }

    fn evaluated(&self) -> Vec<(Evaluated, u64)> {
        self.plane.counts().unwrap().iter().map(|c| (evaluated_of(c), c.count)).collect()
    }

    fn counted(&self) -> Counts {
        Counts { passed: self.passed(), evaluated: self.evaluated() }
    }
}

fn evaluated_of(count: &Count) -> Evaluated {
    Evaluated {
        service: count.service,
        class: count.class,
        kind: count.verdict,
        reason: count.reason,
        shadow: count.shadow,
    }
}

/// What grew, and by how much.
fn growth<T: Copy + PartialEq>(before: &[(T, u64)], after: &[(T, u64)]) -> Vec<(T, u64)> {
    let was = |what: &T| before.iter().find(|(known, _)| known == what).map_or(0, |(_, n)| *n);
    let grown = after.iter().map(|(what, n)| (*what, n - was(what)));
    grown.filter(|(_, n)| *n > 0).collect()
}

fn action(run: Run, frame: &[u8]) -> Action {
    match run.outcome {
        Outcome::Pass => {
            assert!(run.packet == frame, "a passed frame was changed");
            Action::Pass
        }
        Outcome::Drop => Action::Drop,
        Outcome::Transmit | Outcome::Redirect => Action::Answer(run.packet),
        Outcome::Other(number) => panic!("the hook said {number}"),
    }
}

fn plan(setup: &Setup, turn: u32) -> Plan {
    let config = Config {
        services: setup.services.iter().map(|service| planned(service, turn)).collect(),
        exempt: Exempt {
            sources: setup.exempt_sources.iter().map(net).collect(),
            ports: setup.exempt_ports.clone(),
            ..Exempt::default()
        },
        interfaces: vec![InterfaceConfig {
            trust_dscp: setup.trust_dscp,
            ..InterfaceConfig::default()
        }],
        replies: Replies { rst_per_second: setup.answers, rst_per_second_proved: setup.proved },
        tables: Tables {
            connections: 1024,
            handshakes: 1024,
            sources: 1024,
            refusals: 1024,
            ..Tables::default()
        },
        ..Config::default()
    };
    let settings = Settings { sample_admitted: 1, sample_refused: 1, ..Settings::default() };
    Plan { config, settings }
}

fn net(prefix: &super::setup::Prefix) -> ipnet::IpNet {
    ipnet::IpNet::new(prefix.addr, prefix.bits).unwrap()
}

fn planned(service: &Service, turn: u32) -> ServiceConfig {
    let class = |class: &super::setup::Class| ClassConfig {
        name: class.name.into(),
        sources: class.sources.iter().map(net).collect(),
        dscp: class.dscp,
        priority: class.priority,
        weight: 1,
    };
    let mode = if service.shadow { Mode::Shadow } else { Mode::Enforce };
    let listen = service.listen.iter().map(listen).collect();
    ServiceConfig {
        policy: plans::policy(service.policy, service.action),
        classes: service.classes.iter().map(class).collect(),
        ..ServiceConfig::new(&format!("{}-{turn}", service.name), mode, listen)
    }
}

fn listen(at: &Listen) -> tidegate_model::Listen {
    tidegate_model::Listen { address: at.addr, port: at.port, protocol: Protocol::Tcp }
}

/// What a frame is refused for, if it was.
pub fn refused(seen: &Seen) -> Option<Reason> {
    match seen.counted {
        Counted::Evaluated(evaluated) if evaluated.kind != VerdictKind::Admit => {
            Some(evaluated.reason)
        }
        _ => None,
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds per packet. Every subject is a ring of packets (`tests/bench/ring.bpf.c`) in front
//! of the XDP hook with tables of its own; what the hook counted must be what the subject says.

use super::compile::Object;
use super::frames::{ACK, Frame, SYN, Tuple, datagram, segment};
use super::space::{Guard, Space, last_cpu};
use super::tables::{Scale, Tables, limits};
use super::worker::{Subject, Subjects, median};
use anyhow::{Context, Result, bail, ensure};
use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::rc::Rc;
use tidegate_bpf::testing::bench::Bench;
use tidegate_bpf::testing::{TestHook, TestPlane, plans};
use tidegate_bpf::{Imported, ImportedRule};
use tidegate_model::SERVICES_MAX;
use tidegate_policy::{Action, DatagramLimit, Policy, Reason, VerdictKind};
use tidegate_units::Rate;

/// The product's default.
const DEFAULT: Policy = Policy::FreshFirst;
/// A cap that no bench reaches.
const ANSWERS_MANY: u32 = 100_000_000;
/// Packets of a ring whose keys are hot.
const HOT: usize = 1;
/// Samples that are taken out of the ring buffer before a measurement, as a daemon would.
const SAMPLES_MAX: usize = 1 << 16;

/// What the hook must have done with every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// There is no hook, but this program of the ring's object, which passes everything.
    Program(&'static str),
    Passed(Reason),
    Admitted,
    Refused,
    Answered,
    /// Datagrams to a service: passed, and dropped.
    Counted,
    Dropped,
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

impl Expect {
    fn returns(self) -> u32 {
        match self {
            Self::Program(_) | Self::Passed(_) | Self::Admitted | Self::Counted => XDP_PASS,
            Self::Refused | Self::Dropped => XDP_DROP,
            Self::Answered => XDP_TX,
        }
    }

    /// How often the hook counted this.
    pub(super) fn count(self, plane: &TestPlane) -> Result<u64> {
        if let Self::Passed(wanted) = self {
            let passed = plane.passed()?;
            return Ok(passed.iter().filter(|p| p.reason == wanted).map(|p| p.count).sum());
        }
        if matches!(self, Self::Counted | Self::Dropped) {
            let of = |service| Ok(plane.totals(service)?.datagrams.unwrap_or_default());
            let all = (0..SERVICES_MAX).map(of).collect::<Result<Vec<_>>>()?;
            let passed = all.iter().map(|of| of.offered - of.refused).sum();
            let refused = all.iter().map(|of| of.refused).sum();
            return Ok(if self == Self::Counted { passed } else { refused });
        }
        let fits = |verdict| match self {
            Self::Admitted => verdict == VerdictKind::Admit,
            Self::Answered => verdict == VerdictKind::Reject,
            _ => verdict == VerdictKind::Drop,
        };
        let counts = plane.counts()?;
        Ok(counts.iter().filter(|c| !c.shadow && fits(c.verdict)).map(|c| c.count).sum())
    }
}

/// A hook with tables; subjects share it.
pub(super) type Plane = Rc<RefCell<TestPlane>>;

/// A ring of packets in front of a hook.
pub(super) struct Packets {
    name: String,
    about: String,
    ring: Bench,
    first: Frame,
    plane: Option<Plane>,
    place: Rc<Place>,
    pub(super) expect: Expect,
    scale: Scale,
}

impl Subject for Packets {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn measure(&mut self) -> Result<f64> {
        let before = self.ready()?;
        let (turns, repeat) = (self.scale.turns, self.scale.ring as u32);
        let (ring, first) = (&self.ring, &self.first);
        let timed = self.place.space.on_cpu(last_cpu(), || {
            let turn = |_| ring.time("next_packet", first, repeat).map_err(Into::into);
            (0..turns).map(turn).collect::<Result<Vec<_>>>()
        })?;
        self.check(before, (turns * self.scale.ring) as u64)?;
        for turn in &timed {
            let wanted = self.expect.returns();
            ensure!(turn.returned == wanted, "XDP action {}, not {wanted}", turn.returned);
        }
        let means = timed.iter().map(|turn| turn.mean.as_nanos() as f64).collect();
        median(means).context("no turn")
    }
}

impl Packets {
    /// Renews the lease; what was counted so far.
    fn ready(&self) -> Result<u64> {
        let Some(plane) = &self.plane else { return Ok(0) };
        let mut plane = plane.borrow_mut();
        plane.heartbeat()?;
        plane.samples(SAMPLES_MAX)?;
        self.expect.count(&plane)
    }

    fn check(&self, before: u64, packets: u64) -> Result<()> {
        let Some(plane) = &self.plane else { return Ok(()) };
        let counted = self.expect.count(&plane.borrow())? - before;
        if counted != packets {
            bail!("{packets} packets, but {counted} were counted as {:?}", self.expect);
        }
        Ok(())
    }
}

/// Where a ring runs, and against what.
pub(super) struct Scene {
    pub(super) plane: Option<Plane>,
    pub(super) place: Rc<Place>,
    pub(super) expect: Expect,
}

/// Puts packets into a ring.
pub(super) fn fill(ring: &Bench, frames: &[Frame]) -> Result<()> {
    let count = frames.len();
    ensure!(count.is_power_of_two(), "{count} packets are no power of two");
    for (index, frame) in (0..).zip(frames) {
        let mut slot = frame.to_vec();
        slot.resize(64, 0);
        ring.write("ring", index, &slot)?;
    }
    // A hot key is the same packet again; in a large ring no SYN comes twice.
    let vary = u32::from(count > HOT);
    let place: Vec<u8> =
        [count as u32 - 1, vary, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(ring.write("place", 0, &place)?)
}

/// Makes subjects.
pub(super) struct Maker {
    scale: Scale,
    object: Object,
    subjects: Subjects,
}

impl Maker {
    /// For subjects of this size; none yet.
    pub(super) fn new(scale: &Scale) -> Result<Self> {
        Ok(Self { scale: *scale, object: Object::compile("ring")?, subjects: Subjects::new() })
    }

    /// A subject: these packets, in this scene.
    fn add(&mut self, named: (&str, &str), frames: &[Frame], scene: Scene) -> Result<()> {
        let packets = self.packets(named, frames, scene)?;
        self.subjects.push(Box::new(packets));
        Ok(())
    }

    /// The same, which is not offered.
    pub(super) fn packets(
        &self,
        (name, about): (&str, &str),
        frames: &[Frame],
        scene: Scene,
    ) -> Result<Packets> {
        let ring = self.object.load()?;
        fill(&ring, frames).context(name.to_owned())?;
        match (&scene.plane, scene.expect) {
            (Some(plane), _) => ring.call("target", plane.borrow().target(TestHook::Xdp)?)?,
            (None, Expect::Program(name)) => ring.call("target", ring.program(name)?)?,
            (None, expect) => bail!("{name}: {expect:?} without a hook"),
        }
        let Scene { plane, place, expect } = scene;
        let (name, about) = (name.to_owned(), about.to_owned());
        let (first, scale) = (frames[0], self.scale);
        Ok(Packets { name, about, ring, first, plane, place, expect, scale })
    }

    /// The subject, and beside it the same with a hot key.
    fn add_both(
        &mut self,
        (name, about): (&str, &str),
        frames: &[Frame],
        scene: Scene,
    ) -> Result<()> {
        let Scene { plane, place, expect } = &scene;
        let hot = Scene { plane: plane.clone(), place: Rc::clone(place), expect: *expect };
        self.add((name, about), frames, scene)?;
        self.add(
            (&format!("{name}-hot"), "the same, one packet again and again"),
            &frames[..HOT],
            hot,
        )
    }
}

/// A namespace with its sockets.
pub(super) struct Place {
    space: Space,
    _listeners: Vec<TcpListener>,
    _streams: Vec<TcpStream>,
}

impl Place {
    /// With a listener at each of these ports, and so many connections.
    pub(super) fn new(guard: &Rc<Guard>, ports: &[u16], connections: usize) -> Result<Rc<Self>> {
        let space = Space::new(guard)?;
        let (listeners, streams) = space.on_cpu(last_cpu(), || {
            let bind = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port));
            let listeners = ports.iter().map(bind).collect::<std::io::Result<Vec<_>>>()?;
            let streams = connect(&listeners, connections)?;
            Ok((listeners, streams))
        })?;
        Ok(Rc::new(Self { space, _listeners: listeners, _streams: streams }))
    }

    /// Where its namespace can be entered.
    pub(super) fn path(&self) -> &Path {
        self.space.path()
    }
}

/// The namespaces in which sockets are looked up.
struct Places {
    /// No socket.
    bare: Rc<Place>,
    /// A listener at every port of every service.
    listening: Rc<Place>,
    /// And many established connections.
    crowded: Rc<Place>,
}

impl Places {
    fn new(tables: &Tables, scale: &Scale) -> Result<Self> {
        let guard = Guard::start()?;
        let ports: Vec<u16> = tables.listeners.iter().map(|listener| listener.port).collect();
        Ok(Self {
            bare: Place::new(&guard, &[], 0)?,
            listening: Place::new(&guard, &ports, 0)?,
            crowded: Place::new(&guard, &ports, scale.sockets)?,
        })
    }
}

/// So many connections over the loopback device; both ends of each.
fn connect(listeners: &[TcpListener], count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for listener in listeners.iter().cycle().take(count) {
        let port = listener.local_addr()?.port();
        streams.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?);
        streams.push(listener.accept()?.0);
    }
    Ok(streams)
}

fn plane(tables: &Tables, policy: Policy, answers: u32) -> Result<TestPlane> {
    Ok(TestPlane::load(&tables.plan(policy, answers)?)?)
}

/// A plane whose every service is under limits that admit all, or nothing any more.
pub(super) fn limited(tables: &mut Tables, policy: Policy, expect: Expect) -> Result<Plane> {
    let action = if expect == Expect::Answered { Action::Reject } else { Action::Drop };
    // Abacus rejects by itself; without answers that is a drop.
    let answers = if expect == Expect::Answered { ANSWERS_MANY } else { 0 };
    let mut plane = plane(tables, policy, answers)?;
    let admit = expect == Expect::Admitted;
    plane.set_limits(&limits(policy, admit, action)?, &[], 1)?;
    if !admit {
        let last =
            (0..).zip(&tables.listeners).map(|(at, listener)| (listener.address.octets()[2], at));
        for listener in last.collect::<std::collections::BTreeMap<u8, usize>>().into_values() {
            // The one token of each service.
            let listener = tables.listeners[listener];
            let mut tuple = tables.clients(1)[0];
            (tuple.dst, tuple.dport) = (listener.address, listener.port);
            plane.run(TestHook::Xdp, &segment(&tuple, SYN, 1, 0))?;
        }
    }
    Ok(Rc::new(RefCell::new(plane)))
}

pub(super) fn frames(tuples: &[Tuple], flags: u8) -> Vec<Frame> {
    tuples
        .iter()
        .zip(1..)
        .map(|(tuple, seq)| segment(tuple, flags, seq, u32::from(flags & ACK)))
        .collect()
}

/// All subjects. Takes some seconds: tables are filled.
pub fn subjects(scale: &Scale) -> Result<Subjects> {
    let mut tables = Tables::new(scale, true)?;
    let places = Places::new(&tables, scale)?;
    let mut maker = Maker::new(scale)?;
    passing(&mut maker, &mut tables, &places)?;
    imported(&mut maker, &mut tables, &places)?;
    floors(&mut maker, &mut tables, &places)?;
    for policy in Policy::ALL.iter().copied() {
        evaluated(&mut maker, &mut tables, &places, policy)?;
    }
    variants(&mut maker, &mut tables, &places)?;
    datagrams(&mut maker, &mut tables, &places)?;
    maker.subjects.extend(super::cores::subjects(scale)?);
    Ok(maker.subjects)
}

/// What passes without being evaluated.
fn passing(maker: &mut Maker, tables: &mut Tables, places: &Places) -> Result<()> {
    let ring = maker.scale.ring;
    let shared = Rc::new(RefCell::new(plane(tables, DEFAULT, 0)?));
    let scene = |plane: Option<&Plane>, expect| Scene {
        plane: plane.cloned(),
        place: Rc::clone(&places.bare),
        expect,
    };
    let strangers = frames(&tables.strangers(ring), SYN);
    let nothing = ("empty", "XDP_PASS behind the ring of packets, nothing else");
    maker.add(nothing, &strangers, scene(None, Expect::Program("empty")))?;
    let foreign = ("foreign", "SYN to a port of no service");
    maker.add_both(
        foreign,
        &strangers,
        scene(Some(&shared), Expect::Passed(Reason::NotService)),
    )?;
    let flows = tables.fill_flows(&shared.borrow())?;
    let flows: Vec<Tuple> = flows.iter().cycle().take(ring).copied().collect();
    let established = ("established", "ACK of a connection in the full flow table");
    let scene = scene(Some(&shared), Expect::Passed(Reason::NotNew));
    maker.add_both(established, &frames(&flows, ACK), scene)
}

/// So many rules of a router, each for a prefix of its own to which nothing comes; `hit`: and one for all that comes,
/// whose rate is never reached.
fn rules(count: u16, hit: bool) -> Result<Imported> {
    let rule = |slot: u16, destination: &str| -> Result<ImportedRule> {
        Ok(ImportedRule {
            slot,
            generation: 1,
            destination: destination.parse()?,
            source: None,
            protocol: None,
            to: Vec::new(),
            from: Vec::new(),
            flags: None,
            packets: Some(Rate::per_second(1e9)),
            bytes: None,
        })
    };
    let others = (0..count).map(|slot| rule(slot, &format!("172.16.{slot}.0/24")));
    let all = hit.then(|| rule(count, "198.18.0.0/15"));
    Ok(Imported { rules: others.chain(all).collect::<Result<_>>()?, ..Imported::default() })
}

/// What passes where rules of a router are imported.
fn imported(maker: &mut Maker, tables: &mut Tables, places: &Places) -> Result<()> {
    let strangers = frames(&tables.strangers(maker.scale.ring), SYN);
    for (name, about, count, hit) in [
        ("imported-100", "the same, 100 imported rules for other destinations", 100, false),
        ("imported-100-hit", "the same, and one that it matches and that lets it pass", 100, true),
    ] {
        let mut plane = TestPlane::load(&plans::importing(tables.plan(DEFAULT, 0)?))?;
        plane.set_imported(&rules(count, hit)?)?;
        let scene = Scene {
            plane: Some(Rc::new(RefCell::new(plane))),
            place: Rc::clone(&places.bare),
            expect: Expect::Passed(Reason::NotService),
        };
        maker.add((name, about), &strangers, scene)?;
    }
    Ok(())
}

/// What every refusal contains: the headers are read, and the kernel is asked for the socket.
fn floors(maker: &mut Maker, tables: &mut Tables, places: &Places) -> Result<()> {
    let syns = frames(&tables.clients(maker.scale.ring), SYN);
    let scene = |place: &Rc<Place>, program| Scene {
        plane: None,
        place: Rc::clone(place),
        expect: Expect::Program(program),
    };
    let about = "the headers of a SYN are read, nothing else";
    maker.add_both(("parsed", about), &syns, scene(&places.bare, "parsed"))?;
    let about = "and the kernel looks for its socket; no socket in the namespace";
    maker.add_both(("socket-lookup", about), &syns, scene(&places.bare, "socket_floor"))?;
    for (name, about, place) in [
        ("socket-lookup-listener", "the same; a listener at every port", &places.listening),
        ("socket-lookup-sockets", "the same; thousands of established sockets", &places.crowded),
    ] {
        maker.add((name, about), &syns, scene(place, "socket_floor"))?;
    }
    Ok(())
}

/// Refused and admitted, with and without a listener.
fn evaluated(
    maker: &mut Maker,
    tables: &mut Tables,
    places: &Places,
    policy: Policy,
) -> Result<()> {
    let name = policy.name().replace('_', "-");
    let syns = frames(&tables.clients(maker.scale.ring), SYN);
    for (verb, expect) in [("refused", Expect::Refused), ("admitted", Expect::Admitted)] {
        if policy == Policy::Threshold && expect == Expect::Refused {
            continue; // no hook measures a level
        }
        let shared = limited(tables, policy, expect)?;
        let scene = |place: &Rc<Place>| Scene {
            plane: Some(Rc::clone(&shared)),
            place: Rc::clone(place),
            expect,
        };
        let about = "SYN; no socket in the namespace";
        maker.add_both((&format!("{verb}-{name}"), about), &syns, scene(&places.bare))?;
        let about = "SYN; a listener at every port of every service";
        maker.add((&format!("{verb}-{name}-listener"), about), &syns, scene(&places.listening))?;
    }
    Ok(())
}

/// Where datagrams to services are counted: what they cost, and what others cost there.
fn datagrams(maker: &mut Maker, tables: &mut Tables, places: &Places) -> Result<()> {
    let ring = maker.scale.ring;
    let mut plan = tables.plan(DEFAULT, 0)?;
    plan.config.services[0].datagrams = Some(Rate::per_second(1.0));
    let counting = |limit: DatagramLimit| -> Result<Plane> {
        let mut plane = TestPlane::load(&plan)?;
        let mut limits = limits(DEFAULT, true, Action::Drop)?;
        limits.iter_mut().for_each(|service| service.datagrams = limit);
        plane.set_limits(&limits, &[], 1)?;
        Ok(Rc::new(RefCell::new(plane)))
    };
    let scene = |plane: &Plane, expect| Scene {
        plane: Some(Rc::clone(plane)),
        place: Rc::clone(&places.bare),
        expect,
    };
    let udp = |tuples: &[Tuple]| tuples.iter().map(datagram).collect::<Vec<Frame>>();
    let open = counting(DatagramLimit::default())?;
    let foreign = tables.strangers(ring);
    let of_none = Expect::Passed(Reason::NotService);
    let about = "SYN to a port of no service; datagrams are counted";
    maker.add(("foreign-counting", about), &frames(&foreign, SYN), scene(&open, of_none))?;
    let about = "UDP to a port of no service; datagrams are counted";
    maker.add_both(("udp-foreign", about), &udp(&foreign), scene(&open, of_none))?;
    let clients = udp(&tables.clients(ring));
    let about = "UDP to a service, without a limit";
    maker.add_both(("udp", about), &clients, scene(&open, Expect::Counted))?;
    let wide = counting(DatagramLimit::new(Rate::per_second(1e9), 1_000_000)?)?;
    let about = "UDP to a service, with a token";
    maker.add_both(("udp-admitted", about), &clients, scene(&wide, Expect::Counted))?;
    let narrow = counting(DatagramLimit::new(Rate::per_second(0.001), 1)?)?;
    for frame in &clients {
        narrow.borrow().run(TestHook::Xdp, frame)?;
    }
    let about = "UDP to a service, without a token";
    maker.add_both(("udp-refused", about), &clients, scene(&narrow, Expect::Dropped))
}

/// The default policy in other surroundings.
fn variants(maker: &mut Maker, tables: &mut Tables, places: &Places) -> Result<()> {
    let policy = DEFAULT;
    let name = policy.name().replace('_', "-");
    let syns = frames(&tables.clients(maker.scale.ring), SYN);
    let mut bare = Tables::new(&maker.scale, false)?;
    let simple = frames(&bare.clients(maker.scale.ring), SYN);
    for (verb, expect) in [("refused", Expect::Refused), ("admitted", Expect::Admitted)] {
        let crowded = Scene {
            plane: Some(limited(tables, policy, expect)?),
            place: Rc::clone(&places.crowded),
            expect,
        };
        let about = "SYN; listeners, and thousands of established sockets";
        maker.add((&format!("{verb}-{name}-sockets"), about), &syns, crowded)?;
        let plain = Scene {
            plane: Some(limited(&mut bare, policy, expect)?),
            place: Rc::clone(&places.listening),
            expect,
        };
        let about = "SYN; listeners; neither classes nor exempt prefixes";
        maker.add((&format!("{verb}-{name}-plain"), about), &simple, plain)?;
    }
    let answered = Scene {
        plane: Some(limited(tables, policy, Expect::Answered)?),
        place: Rc::clone(&places.listening),
        expect: Expect::Answered,
    };
    maker.add((&format!("answered-{name}"), "SYN; listeners; refused, RST built"), &syns, answered)
}

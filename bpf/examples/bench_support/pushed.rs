// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Subjects of `cargo xtask bench router`: what a packet costs where servers have pushed limits into a router.
//!
//! The daemon joins all limits of one kind on a service, of connections or of datagrams, and writes them as the limit
//! of that service ([`TestPlane::set_limits`], as `Dataplane::set_limits`). So a hundred limits are two owners' limits
//! of both kinds on each of 25 services: 50 rows of `tg_limits`, for a hundred addresses. A host has 32 services at
//! most; those that are left have no limit.

use super::frames::{Frame, SYN, Tuple, datagram};
use super::packets::{self, Expect, Packets, Place, Plane, Scene, frames};
use super::random::SplitMix;
use super::space::Guard;
use super::tables::{Scale, Tables, limits};
use super::worker::{Subject, Subjects};
use anyhow::Result;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use tidegate_bpf::ServiceParams;
use tidegate_bpf::testing::{TestHook, TestPlane};
use tidegate_model::SERVICES_MAX;
use tidegate_policy::{Action, DatagramLimit, Params, Policy, Reason};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// The product's default.
const POLICY: Policy = Policy::FreshFirst;
/// Addresses of a service.
const ADDRESSES: usize = 4;
/// Services whose limits are a hundred: with two owners and two kinds each.
const LIMITED: usize = 25;
/// Runs of the whole ring in one measurement.
const TURNS: usize = 3;
/// When limits end: later than the bench.
const AHEAD: Nanos = Nanos::from_secs(86_400);
/// Packets that take the tokens: some for each limit.
const SPEND: usize = 4096;

/// The limits of all services at one time.
type InForce = Rc<Vec<ServiceParams>>;

/// The same packets, hooks and tables as other subjects, with other limits: nothing but these differs, not even where
/// in memory all of it lies.
struct Pushed {
    name: String,
    about: String,
    plane: Plane,
    in_force: InForce,
    /// These take the tokens that are there.
    spend: Vec<Frame>,
    packets: Rc<RefCell<Packets>>,
    expect: Expect,
}

impl Subject for Pushed {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    fn measure(&mut self) -> Result<f64> {
        let mut plane = self.plane.borrow_mut();
        plane.heartbeat()?;
        plane.set_limits(&self.in_force, &[], 1)?;
        self.spend.iter().try_for_each(|frame| plane.run(TestHook::Xdp, frame).map(drop))?;
        drop(plane);
        let mut packets = self.packets.borrow_mut();
        packets.expect = self.expect;
        packets.measure()
    }
}

/// Limits on the first services, of both kinds; the others have none.
fn pushed(services: usize, admit: bool) -> Result<Vec<ServiceParams>> {
    let (rate, burst) = if admit { (1e9, 1_000_000) } else { (0.001, 1) };
    let mut on_datagrams = DatagramLimit::new(Rate::per_second(rate), burst)?;
    let until = Some(MonotonicClock.now() + AHEAD);
    on_datagrams.set_until(until);
    let mut all = limits(POLICY, admit, Action::Drop)?;
    for (at, service) in all.iter_mut().enumerate() {
        if at < services {
            // As the daemon does where a remote limit holds.
            (service.datagrams, service.copies, service.until) = (on_datagrams, true, until);
        } else {
            service.params = Params::no_limit(POLICY);
        }
    }
    Ok(all)
}

fn router(tables: &Tables) -> Result<Plane> {
    let mut plan = tables.plan(POLICY, 0)?;
    // Then the hooks count datagrams.
    plan.config.services[0].datagrams = Some(Rate::per_second(1.0));
    Ok(Rc::new(RefCell::new(TestPlane::load(&plan)?)))
}

/// Packets of one kind.
type Make = fn(&[Tuple]) -> Vec<Frame>;

fn syns(tuples: &[Tuple]) -> Vec<Frame> {
    frames(tuples, SYN)
}

fn datagrams(tuples: &[Tuple]) -> Vec<Frame> {
    tuples.iter().map(datagram).collect()
}

/// Clients, at random, of the addresses of these services.
fn clients(tables: &mut Tables, services: &Range<usize>, count: usize) -> Vec<Tuple> {
    let mut random = SplitMix(11);
    let mut tuples = tables.clients(count);
    for tuple in &mut tuples {
        let at = services.start * ADDRESSES + random.below(services.len() * ADDRESSES);
        let listener = tables.listeners[at];
        (tuple.dst, tuple.dport) = (listener.address, listener.port);
    }
    tuples
}

/// Makes subjects of one kind of packets.
struct Maker<'a> {
    maker: packets::Maker,
    plane: &'a Plane,
    place: &'a Rc<Place>,
    subjects: Subjects,
}

/// What a subject differs in from others with the same packets: its name and what it says, the limits, what becomes
/// of the packets.
type Differs<'a> = (&'a str, &'a str, &'a InForce, Expect);

impl Maker<'_> {
    fn add(&mut self, kind: &str, frames: &[Frame], all: &[Differs<'_>]) -> Result<()> {
        let Some((name, about, _, expect)) = all.first().copied() else { return Ok(()) };
        let (plane, place) = (Some(Rc::clone(self.plane)), Rc::clone(self.place));
        let scene = Scene { plane, place, expect };
        let packets = self.maker.packets((name, about), frames, scene)?;
        let packets = Rc::new(RefCell::new(packets));
        for (name, about, in_force, expect) in all {
            let spends = matches!(expect, Expect::Refused | Expect::Dropped);
            self.subjects.push(Box::new(Pushed {
                name: format!("pushed-{}", name.replace("KIND", kind)),
                about: format!("{} {about}", kind.to_uppercase()),
                plane: Rc::clone(self.plane),
                in_force: Rc::clone(in_force),
                spend: if spends { frames[..frames.len().min(SPEND)].to_vec() } else { Vec::new() },
                packets: Rc::clone(&packets),
                expect: *expect,
            }));
        }
        Ok(())
    }
}

/// All subjects. Takes some seconds: tables are filled. What is compared is measured one after the other.
pub fn subjects(scale: &Scale) -> Result<Subjects> {
    // All of the bench ends before connections of its other subjects are idle for too long (60 s).
    let scale = &Scale { listens: ADDRESSES, turns: scale.turns.min(TURNS), ..*scale };
    let mut tables = Tables::new(scale, true)?;
    let (plane, place) = (router(&tables)?, Place::new(&Guard::start()?, &[], 0)?);
    let maker = packets::Maker::new(scale)?;
    let mut maker = Maker { maker, plane: &plane, place: &place, subjects: Subjects::new() };
    let limits = |services, admit| Ok::<_, anyhow::Error>(Rc::new(pushed(services, admit)?));
    let (none, one) = (&limits(0, true)?, &limits(1, true)?);
    let (all, spent) = (&limits(LIMITED, true)?, &limits(LIMITED, false)?);
    let both: [(&str, Make, [Expect; 2]); 2] = [
        ("syn", syns, [Expect::Admitted, Expect::Refused]),
        ("udp", datagrams, [Expect::Counted, Expect::Dropped]),
    ];
    for (kind, make, [passes, refused]) in both {
        let mut to = |services| make(&clients(&mut tables, &services, scale.ring));
        let (first, limited, others) = (to(0..1), to(0..LIMITED), to(LIMITED..SERVICES_MAX));
        let foreign = Expect::Passed(Reason::NotService);
        let differs = [
            ("0-KIND-one", "to one of four addresses; no limits", none, passes),
            ("1-KIND", "the same; the only limit, with tokens", one, passes),
        ];
        maker.add(kind, &first, &differs)?;
        let differs = [
            ("0-KIND", "to one of a hundred addresses; no limits", none, passes),
            ("100-KIND", "the same; a hundred limits, with tokens", all, passes),
            ("100-KIND-refused", "the same; without tokens", spent, refused),
        ];
        maker.add(kind, &limited, &differs)?;
        let differs = [
            ("0-KIND-others", "to one of 28 other addresses; no limits", none, passes),
            ("1-KIND-others", "the same; one limit elsewhere", one, passes),
            ("100-KIND-others", "the same; a hundred limits elsewhere", all, passes),
        ];
        maker.add(kind, &others, &differs)?;
        let differs = [
            ("0-KIND-transit", "to no service; no limits", none, foreign),
            ("100-KIND-transit", "the same; a hundred limits elsewhere", all, foreign),
        ];
        maker.add(kind, &make(&tables.strangers(scale.ring)), &differs)?;
    }
    Ok(maker.subjects)
}

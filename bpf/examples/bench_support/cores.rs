// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a refused SYN costs where several CPUs refuse for one service at the same time: whether
//! refusals a second grow with CPUs.

use super::compile::Object;
use super::frames::{Frame, SYN};
use super::packets::{Expect, Place, Plane, frames, limited};
use super::space::{Guard, pin};
use super::tables::{Scale, Tables};
use super::worker::{Subject, Subjects, median};
use anyhow::{Context, Result, bail, ensure};
use std::rc::Rc;
use std::sync::Barrier;
use tidegate_bpf::testing::TestHook;
use tidegate_bpf::testing::bench::{self, Bench};
use tidegate_policy::Policy;

/// The policies that are measured: the default, and the smallest.
const POLICIES: [Policy; 2] = [Policy::FreshFirst, Policy::TokenBucket];

/// So many CPUs, each with a ring of SYNs of its own.
struct Cores {
    name: String,
    about: String,
    rings: Vec<(Bench, Frame)>,
    plane: Plane,
    place: Rc<Place>,
    scale: Scale,
}

impl Subject for Cores {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &str {
        &self.about
    }

    /// Nanoseconds a refusal, of all CPUs together: 1e9 of these are refusals a second.
    fn measure(&mut self) -> Result<f64> {
        self.plane.borrow_mut().heartbeat()?;
        let before = self.refused()?;
        let (turns, repeat) = (self.scale.turns, self.scale.ring as u32);
        let (path, start) = (self.place.path(), Barrier::new(self.rings.len()));
        let start = &start;
        let means: Vec<Result<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&self.rings)
                .map(|(cpu, (ring, first))| {
                    scope.spawn(move || {
                        bench::within(path, || {
                            Ok(on_cpu(cpu, start, (ring, first), (turns, repeat)))
                        })?
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|ended| ended.unwrap_or_else(|_| bail!("a thread panicked"))).collect()
        });
        let means = means.into_iter().collect::<Result<Vec<f64>>>()?;
        let packets = (self.rings.len() * turns * self.scale.ring) as u64;
        let counted = self.refused()? - before;
        ensure!(counted == packets, "{packets} packets, but {counted} were refused");
        Ok(1.0 / means.iter().map(|mean| 1.0 / mean.max(1.0)).sum::<f64>())
    }
}

impl Cores {
    fn refused(&self) -> Result<u64> {
        Expect::Refused.count(&self.plane.borrow())
    }
}

/// The mean of the middle turn on this CPU; all begin at once.
fn on_cpu(
    cpu: usize,
    start: &Barrier,
    (ring, first): (&Bench, &Frame),
    (turns, repeat): (usize, u32),
) -> Result<f64> {
    let pinned = pin(cpu);
    start.wait();
    pinned?;
    let turn = |_| Ok(ring.time("next_packet", first, repeat)?.mean.as_nanos() as f64);
    median((0..turns).map(turn).collect::<Result<Vec<_>>>()?).context("no turn")
}

/// All subjects: both policies, on one CPU and on all of them.
pub fn subjects(scale: &Scale) -> Result<Subjects> {
    let guard = Guard::start()?;
    let mut tables = Tables::new(scale, true)?;
    let place = Place::new(&guard, &[], 0)?;
    let object = Object::compile("ring")?;
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut subjects = Subjects::new();
    for policy in POLICIES {
        let plane = limited(&mut tables, policy, Expect::Refused)?;
        for cores in [1, all] {
            let mut make = || ring(&object, &mut tables, (&plane, scale));
            let rings: Result<_> = (0..cores).map(|_| make()).collect();
            subjects.push(Box::new(Cores {
                name: format!("cores-{cores}-refused-{}", policy.name().replace('_', "-")),
                about: format!("SYNs of one service refused on {cores} CPUs at once"),
                rings: rings?,
                plane: Rc::clone(&plane),
                place: Rc::clone(&place),
                scale: *scale,
            }));
        }
    }
    Ok(subjects)
}

/// A ring of SYNs to one service.
fn ring(
    object: &Object,
    tables: &mut Tables,
    (plane, scale): (&Plane, &Scale),
) -> Result<(Bench, Frame)> {
    let listener = tables.listeners[0];
    let mut tuples = tables.clients(scale.ring);
    tuples
        .iter_mut()
        .for_each(|tuple| (tuple.dst, tuple.dport) = (listener.address, listener.port));
    let frames = frames(&tuples, SYN);
    let ring = object.load()?;
    super::packets::fill(&ring, &frames)?;
    ring.call("target", plane.borrow().target(TestHook::Xdp)?)?;
    Ok((ring, frames[0]))
}

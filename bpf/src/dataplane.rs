// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dataplane in place: core, hooks, pins.

use crate::attach::{self, Attached, Bound, Hook, Role};
use crate::core::Core;
use crate::objects::Objects;
use crate::syscall::Side;
use crate::{Error, Interface, Plan, maps, pins, programs};
use libbpf_rs::{MapCore, MapFlags};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_policy::Lease;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// The hooks on their interfaces, with their state.
///
/// Dropped, it leaves everything in place if it was pinned; without pins all ends with it. What was
/// begun and not committed is taken back.
#[derive(Debug)]
pub struct Dataplane {
    core: Core,
    bound: Vec<Bound>,
    /// What `bound` takes the place of, until the commit.
    former: Vec<Bound>,
    /// What has to go if there is no commit; `None` after it.
    begun: Option<Begun>,
}

/// What belongs to a start that is not committed yet, beside its new hooks.
#[derive(Debug, Default)]
struct Begun {
    /// Directories of pins that were not there before.
    directories: Vec<PathBuf>,
}

impl Begun {
    fn take_back(&self) {
        self.directories.iter().for_each(|directory| maps::remove_directory(directory));
    }
}

impl Dataplane {
    /// Puts a plan in place: adopts what an earlier process pinned (limits, counters, connections,
    /// links), or creates it. Renews the lease; limits whose lease has ended meanwhile are
    /// forgotten before, because nobody answers for them any more.
    ///
    /// # Errors
    /// When the plan breaks a bound, the kernel refuses something, or an interface cannot be
    /// attached. What was attached before stays attached.
    pub fn start(plan: &Plan) -> Result<Self, Error> {
        let mut dataplane = Self::begin(plan)?;
        dataplane.commit().iter().for_each(|text| tracing::warn!("{text}"));
        Ok(dataplane)
    }

    /// As [`Self::start`], beside a process that is still in charge: takes nothing off and removes
    /// no pins of another version before [`Self::commit`]. Dropped before that, it takes its new
    /// hooks off; what the other process has to put back is the plan, the limits, the programs of
    /// links that both use, and pins ([`Self::reassert`]). It can do that without privileges.
    ///
    /// Where the plan moves an interface to another kind of hook, the hook of before evaluates until
    /// the commit and the new one waits: no SYN is evaluated, counted or paid for twice.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn begin(plan: &Plan) -> Result<Self, Error> {
        let mut begun = Begun::default();
        if let Some(path) = &plan.settings.pins {
            pins::prepare(path)?;
            begun.directories = vec![maps::directory(path), programs::directory(path)];
            begun.directories.retain(|directory| !directory.exists());
        }
        let mut core = Core::start(plan, Objects::default()).inspect_err(|_| begun.take_back())?;
        renew(&mut core, &MonotonicClock)?;
        let (bound, former) = (Vec::new(), Vec::new());
        let mut dataplane = Self { core, bound, former, begun: Some(begun) };
        dataplane.attach(plan)?;
        Ok(dataplane)
    }

    /// Nobody else is in charge any more: detaches what is not planned, lets hooks that waited
    /// for that work, and removes what other processes and versions pinned. Returns what does not
    /// evaluate now, one sentence each. Does nothing where nothing was begun.
    pub fn commit(&mut self) -> Vec<String> {
        if self.begun.take().is_some() { self.settle() } else { Vec::new() }
    }

    /// Only what is planned now is in place and works.
    fn settle(&mut self) -> Vec<String> {
        let Self { core, bound, former, .. } = self;
        let mut left = Vec::new();
        for bound in bound.iter_mut() {
            let earlier = former.iter().find(|earlier| same(&earlier.interface, &bound.interface));
            left.extend(bound.settle(core, earlier));
        }
        for old in former.drain(..) {
            if !bound.iter().any(|bound| same(&bound.interface, &old.interface)) {
                // What stays is logged.
                let _ = old.detach();
            }
        }
        let missed = bound.iter().any(Bound::missed_requests);
        let forgotten = if missed { core.missed() } else { Ok(()) };
        let listening = forgotten.and_then(|()| core.listening(MonotonicClock.now(), true));
        left.extend(listening.err().map(|e| e.to_string()));
        left.extend(self.remove_others());
        left
    }

    /// Makes what is pinned and attached ours again, after another process began to take over and
    /// did not commit; what it left is removed. Returns which hooks are not ours, one sentence
    /// each: nothing is limited there, or not by us. The plan is put back by [`Self::apply`].
    pub fn reassert(&mut self) -> Vec<String> {
        let mut lost: Vec<String> = self.bound.iter().flat_map(Bound::reassert).collect();
        // Under the plan of the other process the hooks may have followed fewer connections, or counted them
        // for another service. Applying ours says from when on they follow them again.
        lost.extend(self.core.missed().err().map(|error| error.to_string()));
        if let Some(path) = &self.core.plan.settings.pins
            && let Err(error) = self.core.maps.pin(path)
        {
            lost.push(error.to_string());
        }
        lost.extend(self.remove_others());
        lost
    }

    /// Detaches links and filters, and removes pins, that are not ours. Returns what still evaluates
    /// where nothing is planned, one sentence each.
    fn remove_others(&self) -> Vec<String> {
        let Some(path) = &self.core.plan.settings.pins else {
            return Vec::new();
        };
        let used: Vec<_> = self.bound.iter().flat_map(Bound::pins).collect();
        attach::remove_stale(path, &used);
        let left = attach::remove_filters(path, &self.bound);
        maps::remove_other_versions(path);
        let hooks = self.bound.iter().flat_map(Bound::programs);
        programs::remove_others(path, hooks.chain(self.core.programs()));
        left
    }

    /// Changes the plan without a gap: the classification is swapped whole; programs by link
    /// updates, and only when the interfaces change. State is kept for services with the same name at the same index; where the
    /// policy changes, its memory is fresh. Sizes of tables and the pins stay as they were.
    ///
    /// # Errors
    /// As [`Self::start`]; a plan that breaks a bound changes nothing.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), Error> {
        let mut plan = plan.clone();
        plan.settings.pins.clone_from(&self.core.plan.settings.pins);
        self.core.apply(&plan)?;
        // Hooks that stay are left alone: loading programs needs privileges that a daemon gives
        // up after its start. What counts is what is attached: the plan before may have failed to be.
        if self.is_attached_as(&plan) {
            self.mend().iter().for_each(|text| tracing::warn!("{text}"));
            return self.attach_requests(&plan);
        }
        self.attach(&plan)?;
        self.settle().iter().for_each(|text| tracing::warn!("{text}"));
        Ok(())
    }

    fn is_attached_as(&self, plan: &Plan) -> bool {
        let wanted = plan.interfaces();
        // Hooks that look for imported rules or at datagrams serve where there are none.
        let serves = |bound: &Bound, wanted: &Interface| {
            let Interface { import, datagrams, .. } = bound.interface;
            let same = bound.interface == Interface { import, datagrams, ..wanted.clone() };
            import >= wanted.import && datagrams >= wanted.datagrams && same
        };
        self.bound.len() == wanted.len()
            && self.bound.iter().zip(&wanted).all(|(bound, wanted)| serves(bound, wanted))
    }

    /// Puts the hooks of request rules on, or takes them off, where the others stay.
    fn attach_requests(&mut self, plan: &Plan) -> Result<(), Error> {
        let there = self.bound.iter().all(Bound::has_requests);
        if !plan.has_rules() {
            self.bound.iter_mut().for_each(Bound::remove_requests);
        } else if !there {
            if let Some(path) = &plan.settings.pins {
                self.core.maps.pin(path)?;
            }
            for at in 0..self.bound.len() {
                if let Err(error) = self.bound[at].add_requests(&self.core) {
                    self.bound[..at].iter_mut().for_each(Bound::remove_requests);
                    return Err(error);
                }
            }
        }
        if !there {
            self.core.missed()?;
        }
        self.core.listening(MonotonicClock.now(), !there)
    }

    /// Where things are pinned.
    #[must_use]
    pub fn pins(&self) -> Option<&Path> {
        self.core.plan.settings.pins.as_deref()
    }

    /// Looks whether every hook still is where it was attached: a link ends with its interface, and
    /// one that is made anew under the same name has none; a filter goes with clsact. Cheap, and
    /// needs no privileges. What is not there is told by [`Self::lost`] and [`Self::hooks`].
    pub fn look(&mut self) {
        self.bound.iter_mut().for_each(Bound::look);
    }

    /// Hooks that were not there when [`Self::look`] was called last, one sentence each.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        self.bound.iter().flat_map(Bound::lost).collect()
    }

    /// Whether hooks are lost and there is an interface to put them on.
    #[must_use]
    pub fn can_mend(&self) -> bool {
        self.bound.iter().any(Bound::can_mend)
    }

    /// Makes pins again that somebody removed behind our back: without them a take-over, or a restart
    /// after a crash, would begin afresh. Needs no privileges. Whether there were any to make.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn pin_again(&self) -> Result<bool, Error> {
        let Some(path) = self.core.plan.settings.pins.as_ref().filter(|_| self.begun.is_none())
        else {
            return Ok(false);
        };
        let mut made = !self.core.maps.are_pinned(path);
        if made {
            self.core.maps.pin(path)?;
        }
        for bound in &self.bound {
            made |= bound.pin_again()?;
        }
        Ok(made)
    }

    /// Attaches hooks that are lost again, where there is an interface for them. Needs no privileges
    /// for links (XDP and tcx) in the namespace of the process; those of a start elsewhere. Returns
    /// what could not be attached, one sentence each; that stays lost ([`Self::lost`]).
    pub fn mend(&mut self) -> Vec<String> {
        let (mut left, mut mended) = (Vec::new(), false);
        // What is begun may belong to a process that is still in charge.
        let bound = if self.begun.is_none() { &mut self.bound[..] } else { &mut [] };
        for bound in bound.iter_mut().filter(|bound| bound.can_mend()) {
            match attach::attach_again(&self.core, bound) {
                Ok(anew) => {
                    let former = std::mem::replace(bound, anew);
                    left.extend(bound.settle(&self.core, Some(&former)));
                    left.extend(bound.lost());
                    mended |= bound.lost().count() < former.lost().count();
                }
                Err(error) => left.push(error.to_string()),
            }
        }
        if mended {
            let forgotten = self.core.missed();
            let begun = forgotten.and_then(|()| self.core.listening(MonotonicClock.now(), true));
            left.extend(begun.err().map(|error| error.to_string()));
            left.extend(self.remove_others());
        }
        left
    }

    /// Attaches what is planned; what was there before stays until the commit.
    fn attach(&mut self, plan: &Plan) -> Result<(), Error> {
        if let Some(path) = &plan.settings.pins {
            self.core.maps.pin(path)?;
        }
        let mut bound = Vec::new();
        for interface in &plan.interfaces() {
            let earlier = self.bound.iter().find(|bound| same(&bound.interface, interface));
            match attach::attach(&self.core, interface, earlier) {
                Ok(attached) => bound.push(attached),
                Err(error) => {
                    // What was there before stays, with the programs and pins that it had: going
                    // back has nothing to attach then, and nothing to fail at.
                    bound.iter().for_each(Bound::undo);
                    let lost = self.bound.iter().flat_map(Bound::reassert);
                    lost.for_each(|text| tracing::warn!("{text}"));
                    return Err(error);
                }
            }
        }
        self.former = std::mem::replace(&mut self.bound, bound);
        Ok(())
    }

    /// Whether [`Self::apply`] would load programs for this plan, for which a process needs the
    /// privileges of a start: interfaces change, the first rules come, or hooks are lost that could
    /// be attached again.
    #[must_use]
    pub fn needs_attach(&self, plan: &Plan) -> bool {
        let rules_come = plan.has_rules() && !self.bound.iter().all(Bound::has_requests);
        !self.is_attached_as(plan) || rules_come || self.can_mend()
    }

    /// The last of our links in the chain of a side of tcx; `None`: we have none there.
    pub(crate) fn last_at_tcx(&self, interface: &Interface, side: Side) -> Option<&OwnedFd> {
        let bound = self.bound.iter().find(|bound| same(&bound.interface, interface))?;
        let last_first = match side {
            Side::Ingress => [Role::Requests, Role::Syns],
            Side::Egress => [Role::Answers, Role::Watch],
        };
        last_first.into_iter().find_map(|role| bound.link(Hook::Tcx, role))
    }

    /// How each interface is attached, in the order of the plan.
    #[must_use]
    pub fn hooks(&self) -> Vec<Attached> {
        self.bound.iter().map(Bound::attached).collect()
    }

    /// Takes everything away: hooks, links, maps, pins. Everything passes first, so that a hook
    /// that cannot be detached limits nothing. Returns what stays, one sentence each.
    pub fn detach(mut self) -> Vec<String> {
        let mut left = self.commit();
        if let Err(error) = self.core.stop() {
            let text = format!("the kill switch was not thrown: {error}");
            tracing::warn!("{text}");
            left.push(text);
        }
        for bound in std::mem::take(&mut self.bound) {
            left.extend(bound.detach());
        }
        if let Some(path) = &self.core.plan.settings.pins {
            attach::remove_stale(path, &[]);
            maps::remove_directory(&attach::links(path));
            maps::remove_directory(&maps::directory(path));
            maps::remove_directory(&programs::directory(path));
            maps::remove_other_versions(path);
            // Fails while something else is in it, and then it is not ours to remove.
            let _ = std::fs::remove_dir(path);
        }
        left
    }
}

/// Limits are written and counters read as without hooks.
impl Deref for Dataplane {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Dataplane {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.bound.iter().for_each(Bound::undo);
            begun.take_back();
        }
        if self.core.plan.settings.pins.is_none() {
            for bound in &self.bound {
                bound.detach_unpinned();
            }
        }
    }
}

impl Totals for Dataplane {
    fn totals(&self, service: usize) -> io::Result<ServiceTotals> {
        self.core.totals(service).map_err(io::Error::other)
    }
}

/// Renews the lease at the start: limits that have stopped to hold must not come back.
fn renew(core: &mut Core, clock: &dyn Clock) -> Result<(), Error> {
    let lease = core.maps.get("tg_lease")?.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
    let lease = lease.map_err(Error::map("tg_lease"))?;
    let heartbeat = lease.and_then(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?)));
    let ended = heartbeat.is_some_and(|at| at != 0 && clock.now().since(Nanos(at)) >= Lease::END);
    if ended {
        core.forget_limits()?;
    }
    core.heartbeat().map(drop)
}

fn same(a: &Interface, b: &Interface) -> bool {
    a.config.name == b.config.name && a.planned() == b.planned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plans::{plan, requests, rule, service};
    use crate::{BucketParams, ServiceParams};
    use libbpf_rs::MapHandle;
    use tidegate_config::ServiceConfig;
    use tidegate_policy::{Action, BucketSpec, InFlight, Limits as ChainLimits, Params, Policy};
    use tidegate_units::{ManualClock, Rate};
    use zerocopy::IntoBytes;

    /// Policy's parameters of the first service as the kernel has them.
    fn in_force(core: &Core) -> Vec<u8> {
        let at = 0_u32.to_ne_bytes();
        let id = core.maps.get("tg_limits").unwrap().lookup(&at, MapFlags::ANY).unwrap().unwrap();
        let inner = MapHandle::from_map_id(u32::from_ne_bytes(id.try_into().unwrap())).unwrap();
        let limits = inner.lookup(&at, MapFlags::ANY).unwrap().unwrap();
        crate::abi::read::<ChainLimits>(&limits).unwrap().params.as_bytes().to_vec()
    }

    #[test]
    fn limits_whose_lease_has_ended_do_not_come_back_with_a_start() {
        let plan = plan(vec![service("web", &["0.0.0.0:80"])]);
        let mut core = Core::start(&plan, Objects::default()).unwrap();
        let spec = BucketSpec::new(Rate::per_second(5.0), 3, Action::Drop);
        let tight = Params::token_bucket(&spec).unwrap();
        let limits = ServiceParams {
            waiting_max: Some(InFlight::up_to(7)),
            source_max: Some(9),
            ..ServiceParams::new(0, tight)
        };
        core.set_limits(&[limits], &[], 40).unwrap();
        let clock = ManualClock::default();
        let beat = core.heartbeat().unwrap();
        clock.advance(beat + Lease::END - Nanos(1));
        renew(&mut core, &clock).unwrap();
        assert!(in_force(&core).starts_with(tight.as_bytes()), "the lease had not ended");
        let beat = core.heartbeat().unwrap();
        clock.advance(beat + Lease::END - clock.now());
        renew(&mut core, &clock).unwrap();
        assert!(in_force(&core).starts_with(Params::no_limit(Policy::TokenBucket).as_bytes()));
        assert_eq!(core.generation(), 41);
    }

    /// The model checks a configuration by them.
    #[test]
    fn tables_have_room_for_two_plans_within_the_bounds_of_the_model() {
        let core = Core::start(&Plan::default(), Objects::default()).unwrap();
        let room = |map| core.maps.get(map).unwrap().max_entries() / crate::abi::SLOTS;
        let bounds = [tidegate_model::LISTENS_MAX, tidegate_model::PREFIXES_MAX];
        assert_eq!(["tg_listens", "tg_prefixes"].map(room), bounds.map(|bound| bound as u32));
    }

    #[test]
    fn nor_do_those_of_request_buckets() {
        let requests = Some(requests(&["a"], vec![rule("/", Some("a"))]));
        let plan = plan(vec![ServiceConfig { requests, ..service("web", &[]) }]);
        let mut core = Core::start(&plan, Objects::default()).unwrap();
        let rate = Some(Rate::per_second(5.0));
        let limit = BucketParams::tokens((0, 0), rate, 3, [0; 3]).unwrap();
        core.set_limits(&[], &[limit], 40).unwrap();
        let limited = |core: &Core| core.limited(0, 0);
        let clock = ManualClock::default();
        let beat = core.heartbeat().unwrap();
        clock.advance(beat + Lease::END - Nanos(1));
        renew(&mut core, &clock).unwrap();
        assert!(limited(&core), "the lease had not ended");
        let beat = core.heartbeat().unwrap();
        clock.advance(beat + Lease::END - clock.now());
        renew(&mut core, &clock).unwrap();
        assert!(!limited(&core));
    }
}

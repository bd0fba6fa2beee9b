// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs at tcx (Linux 6.6 and newer) beside the dataplane, on both sides of interfaces: behind ours, or of what comes
//! in before them, and before those of others. Nothing is pinned: links end with the process.

use crate::dataplane::Dataplane;
use crate::syscall::{self, Order, Side};
use crate::{Error, Interface, namespace};
use std::os::fd::{AsFd, OwnedFd};

const SIDES: [Side; 2] = [Side::Ingress, Side::Egress];

/// An interface, and our links on it.
#[derive(Debug)]
struct Tapped {
    interface: Interface,
    links: Option<[OwnedFd; 2]>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Taps {
    /// What they are, for messages.
    what: &'static str,
    /// Whether they see what comes in before the dataplane does.
    first: bool,
    /// How those of an interface are made; whether its link has no Ethernet header.
    kind: KindOf,
    /// All ways in which they may be made.
    kinds: Vec<Kind>,
    /// Those that are loaded, by how they are made: an interface that comes later is attached without the privileges
    /// to load.
    programs: Vec<(Kind, [OwnedFd; 2])>,
    tapped: Vec<Tapped>,
}

/// How the programs for an interface are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The link has no Ethernet header.
    pub(crate) plain: bool,
    /// Packets that come in are from outside.
    pub(crate) border: bool,
    /// It leads to servers.
    pub(crate) to_servers: bool,
    /// A DSCP may choose the class of a client.
    pub(crate) trusts_dscp: bool,
}

impl Kind {
    /// Each of these, with an Ethernet header and without one.
    pub(crate) fn on_every_link(kinds: &[Self]) -> Vec<Self> {
        let on = |kind: &Self| [false, true].map(|plain| Self { plain, ..*kind });
        kinds.iter().flat_map(on).collect()
    }
}

/// What the programs of an interface are made for.
pub(crate) type KindOf = fn(&Interface, bool) -> Kind;

/// Loads the program of a side.
pub(crate) type Load<'a> = &'a dyn Fn(Side, Kind) -> Result<OwnedFd, Error>;

impl Taps {
    /// `kinds`: what the kind of an interface may be, now or after a reload.
    pub(crate) const fn new(
        (what, first): (&'static str, bool),
        kind: KindOf,
        kinds: Vec<Kind>,
    ) -> Self {
        Self { what, first, kind, kinds, programs: Vec::new(), tapped: Vec::new() }
    }

    /// Attaches to these interfaces where it is not attached yet, and detaches from others. Returns where it is
    /// not, one sentence each.
    pub(crate) fn attach(
        &mut self,
        interfaces: &[Interface],
        dataplane: Option<&Dataplane>,
        load: Load<'_>,
    ) -> Vec<String> {
        self.tapped.retain(|tapped| interfaces.contains(&tapped.interface));
        for interface in interfaces {
            if self.tapped.iter().all(|tapped| tapped.interface != *interface) {
                self.tapped.push(Tapped { interface: interface.clone(), links: None });
            }
        }
        self.load_all(load);
        let mut problems = Vec::new();
        for at in 0..self.tapped.len() {
            if self.tapped[at].is_alive() {
                continue;
            }
            self.tapped[at].links = None;
            match self.tap(&self.tapped[at].interface.clone(), dataplane, load) {
                Ok(links) => self.tapped[at].links = Some(links),
                Err(error) => problems.push(error.to_string()),
            }
        }
        problems
    }

    /// Whether it is attached to every interface that it was told.
    pub(crate) fn is_attached(&self) -> bool {
        self.tapped.iter().all(Tapped::is_alive)
    }

    /// The first time, while there are privileges, all kinds are loaded: another kind of interface may come later. One
    /// that cannot be loaded is a problem only for an interface that needs it.
    fn load_all(&mut self, load: Load<'_>) {
        for kind in std::mem::take(&mut self.kinds) {
            if let (Ok(ingress), Ok(egress)) = (load(Side::Ingress, kind), load(Side::Egress, kind))
            {
                self.programs.push((kind, [ingress, egress]));
            }
        }
    }

    fn tap(
        &mut self,
        interface: &Interface,
        dataplane: Option<&Dataplane>,
        load: Load<'_>,
    ) -> Result<[OwnedFd; 2], Error> {
        let device = namespace::of(interface, || namespace::device(interface))?;
        let kind = (self.kind)(interface, device.plain);
        let known = self.programs.iter().position(|(known, _)| *known == kind);
        let known = match known {
            Some(known) => known,
            None => {
                let both = [load(Side::Ingress, kind)?, load(Side::Egress, kind)?];
                self.programs.push((kind, both));
                self.programs.len() - 1
            }
        };
        let (what, programs) = (self.what, &self.programs[known].1);
        let ours = SIDES.map(|side| {
            let dataplane = dataplane.filter(|_| !(self.first && side == Side::Ingress))?;
            dataplane.last_at_tcx(interface, side)
        });
        namespace::of(interface, || {
            let link =
                |at: usize| {
                    let order = ours[at].map_or(Order::First, |link| Order::Behind(link.as_fd()));
                    let (ifindex, kind) = (device.ifindex, SIDES[at].tcx());
                    let place = syscall::Place { ifindex, kind, flags: 0, order };
                    syscall::link_create(programs[at].as_fd(), &place).map_err(|source| {
                        Error::Attach { interface: interface.shown(), hook: what, source }
                    })
                };
            Ok([link(0)?, link(1)?])
        })
    }
}

impl Tapped {
    /// A link ends with its interface.
    fn is_alive(&self) -> bool {
        let alive =
            |link: &OwnedFd| syscall::link_info(link.as_fd()).is_ok_and(|info| info.ifindex != 0);
        self.links.as_ref().is_some_and(|links| links.iter().all(alive))
    }
}

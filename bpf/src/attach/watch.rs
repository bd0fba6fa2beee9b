// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether hooks that were attached are still there.
//!
//! A link ends with its interface: one that is made anew (hot-plug, a restart of what sets up the
//! network, a bond, a VLAN) has the same name, another number, and no hook. A filter of clsact goes
//! with its qdisc, which anybody may delete who may change the network. Nothing tells the daemon of
//! it; so it looks. That needs no privileges: a link is asked by its own descriptor, clsact by a
//! question of netlink.

use super::{Bound, Hook, Mounted, Presence, Role};
use crate::namespace::{self, Device};
use crate::syscall;
use std::io;
use std::os::fd::AsFd;

/// A link that ended beside others of the same interface that did not.
const DETACHED: &str = "somebody detached its link";
/// All links ended. The kernel lets go of them with their interface, too, and the next one may have the
/// same number.
const ENDED: &str = "somebody detached its link, or made the interface anew with the same number";

impl Bound {
    /// Notes which hooks are not there any more. Where the namespace cannot be entered, links are asked
    /// by their own descriptors, and filters stay as they were known.
    pub(crate) fn look(&mut self) {
        let Self { interface, device, mounted, presence, .. } = self;
        let looked =
            namespace::of(interface, || Ok(look_at(&interface.config.name, *device, mounted)));
        let looked = looked.map_err(io::Error::other).and_then(|index| index);
        match looked {
            Ok(Some(_)) => *presence = Presence::Here,
            Ok(None) => *presence = Presence::Gone,
            Err(error) => {
                let shown = interface.shown();
                tracing::debug!(interface = %shown, %error, "cannot look after the hooks");
                look_from_outside(mounted);
                *presence = Presence::Unreachable;
            }
        }
    }

    /// Hooks that are not there any more, one sentence each.
    pub(crate) fn lost(&self) -> impl Iterator<Item = String> {
        let shown = self.interface.shown();
        self.mounted.iter().filter_map(move |mounted| {
            let (why, hook) = (mounted.lost.as_ref()?, mounted.hook.name());
            let role = mounted.role.pin_name();
            Some(format!("interface {shown}: {hook} ({role}) is not there any more: {why}"))
        })
    }

    /// Whether hooks are lost, and there is an interface to put them on.
    pub(crate) fn can_mend(&self) -> bool {
        self.presence == Presence::Here && self.mounted.iter().any(|mounted| mounted.lost.is_some())
    }

    /// The hook of a role that is in place and not lost.
    pub(super) fn works(&self, role: Role) -> Option<Hook> {
        let there = |mounted: &&Mounted| mounted.role == role && mounted.lost.is_none();
        self.mounted.iter().find(there).map(|mounted| mounted.hook)
    }
}

/// Looks at all hooks of an interface, within its namespace; returns the number that the interface
/// of that name has now.
fn look_at(name: &str, device: Device, mounted: &mut [Mounted]) -> io::Result<Option<u32>> {
    let index = namespace::index(name)?;
    let all = match index {
        None => Some("the interface is gone"),
        Some(index) if index != device.ifindex => Some("the interface was made anew"),
        Some(_) => None,
    };
    let ended = mounted.iter().filter(|mounted| !mounted.waits).filter_map(Mounted::has_ended);
    let why = if Vec::from_iter(ended).contains(&false) { DETACHED } else { ENDED };
    // What waits is not at work before the commit.
    for mounted in mounted.iter_mut().filter(|mounted| !mounted.waits) {
        mounted.lost = match all {
            Some(why) => Some(why.to_owned()),
            None => mounted.look(device, why)?,
        };
    }
    Ok(index)
}

/// What can be told of the hooks of an interface whose namespace cannot be entered: it is gone, or
/// the privileges are.
fn look_from_outside(mounted: &mut [Mounted]) {
    for mounted in mounted.iter_mut().filter(|mounted| !mounted.waits) {
        let Some(link) = &mounted.link else { continue };
        if syscall::link_info(link.as_fd()).is_ok_and(|info| info.ifindex == 0) {
            let why = "its interface has gone, perhaps with its namespace (a container that ended)";
            mounted.lost = Some(why.to_owned());
        }
    }
}

impl Mounted {
    /// Whether its link is attached nowhere any more; `None`: it has none.
    fn has_ended(&self) -> Option<bool> {
        Some(syscall::link_info(self.link.as_ref()?.as_fd()).ok()?.ifindex == 0)
    }

    /// Why it is not there any more; `None`: it is. `why` is for a link of an interface that is there.
    fn look(&self, device: Device, why: &str) -> io::Result<Option<String>> {
        let Some(link) = &self.link else {
            return self.look_at_filter(device);
        };
        let there = syscall::link_info(link.as_fd())?.ifindex == device.ifindex;
        Ok((!there).then(|| why.to_owned()))
    }

    fn look_at_filter(&self, device: Device) -> io::Result<Option<String>> {
        let ours = syscall::program_info(self.program.as_fd())?.id;
        Ok(match syscall::clsact_program(device.ifindex, self.role.filter())? {
            Some(id) if id == ours => None,
            Some(id) => Some(format!("another program is at its place (id {id})")),
            None => Some("its filter was deleted".to_owned()),
        })
    }
}

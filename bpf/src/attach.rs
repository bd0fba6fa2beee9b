// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Putting the hooks on an interface, beside whatever else is there.
//!
//! A link that is ours (from this process or pinned by an earlier one) gets the new program by an
//! atomic update; nothing of others is ever replaced. `auto` is tcx; where that is not supported it
//! goes on to clsact, and says why.

mod left;
mod watch;

pub(crate) use left::remove_filters;

use crate::core::Core;
use crate::mount::{Attempt, Told, pin_link};
use crate::namespace::{self, Device};
use crate::syscall::{self, Filter, Side};
use crate::{Error, Interface, pins};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// An attach point in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// XDP in the driver.
    Xdp,
    /// XDP in the generic receive path.
    XdpGeneric,
    /// tcx (Linux 6.6 and newer).
    Tcx,
    /// A clsact filter.
    Clsact,
}

impl Hook {
    /// The name in snapshots and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// What a program of ours does on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Evaluates SYNs.
    Syns,
    /// Watches answers for the passive signals.
    Watch,
    /// Evaluates requests by request rules.
    Requests,
    /// Follows the answers to them.
    Answers,
}

impl Role {
    pub(crate) const ALL: [Self; 4] = [Self::Syns, Self::Watch, Self::Requests, Self::Answers];
    /// Those of request rules.
    pub(crate) const OF_REQUESTS: [Self; 2] = [Self::Answers, Self::Requests];

    pub(crate) const fn side(self) -> Side {
        match self {
            Self::Syns | Self::Requests => Side::Ingress,
            Self::Watch | Self::Answers => Side::Egress,
        }
    }

    /// Our place in clsact: requests are evaluated after SYNs.
    pub(crate) const fn filter(self) -> Filter {
        let later = matches!(self, Self::Requests | Self::Answers) as u32;
        Filter { side: self.side(), priority: syscall::CLSACT_PRIORITY + later }
    }

    /// In file names, with the hook: a BPF filesystem takes no dots.
    pub(crate) const fn pin_name(self) -> &'static str {
        match self {
            Self::Syns => "in",
            Self::Watch => "out",
            Self::Requests => "request_in",
            Self::Answers => "request_out",
        }
    }
}

/// Whether there is an interface of a name in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There is.
    Here,
    /// There is none: it was deleted, renamed, or moved to another namespace.
    Gone,
    /// Its namespace cannot be entered: that is gone, or the privileges are.
    Unreachable,
}

/// How an interface is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface, as planned.
    pub interface: String,
    /// Its namespace, as planned.
    pub namespace: Option<PathBuf>,
    /// Whether it is there, as of the last look.
    pub presence: Presence,
    /// The ingress hook; `None`: it is lost, nothing is evaluated.
    pub ingress: Option<Hook>,
    /// The egress hook; `None`: no passive signals.
    pub egress: Option<Hook>,
    /// The hook of request rules; `None`: no service has any, or it is lost.
    pub requests: Option<Hook>,
    /// Hooks that were attached and are not there any more, one sentence each, as of the last look.
    pub lost: Vec<String>,
    /// What the operator should know about it.
    pub notes: Vec<String>,
    /// What the operator should doubt, for as long as it is attached so.
    pub warnings: Vec<String>,
}

/// A hook in place.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) hook: Hook,
    pub(crate) role: Role,
    /// The link; a clsact filter has none.
    pub(crate) link: Option<OwnedFd>,
    /// Where it is pinned.
    pub(crate) pin: Option<PathBuf>,
    /// Whether it was not there before.
    pub(crate) new: bool,
    /// What it runs, or shall run once it does not wait any more.
    pub(crate) program: OwnedFd,
    /// Another hook of ours is at work in this role until the commit.
    pub(crate) waits: bool,
    /// The link at tcx that is at work until then, behind a program that is not ours.
    pub(crate) replaces: Option<OwnedFd>,
    /// Why it is not there any more, as of the last look; `None`: it is.
    pub(crate) lost: Option<String>,
}

impl Mounted {
    /// Whoever looks for the link that was to be replaced finds it again.
    pub(crate) fn restore_pin(&self) {
        if let (Some(link), Some(pin)) = (&self.replaces, &self.pin)
            && let Err(error) = pin_link(link, pin)
        {
            tracing::warn!("{error}");
        }
    }

    /// Puts our program back where another process has put its own, and the pin; both need no
    /// privileges with a link.
    fn reassert(&self, device: Device) -> io::Result<()> {
        let Some(link) = &self.link else {
            return self.reassert_filter(device);
        };
        if syscall::link_info(link.as_fd())?.ifindex != device.ifindex {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it was detached"));
        }
        syscall::link_update(link.as_fd(), self.program.as_fd())?;
        match &self.pin {
            Some(pin) => pin_link(link, pin).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// A filter of clsact is ours as long as it runs our program; to change it needs privileges.
    fn reassert_filter(&self, device: Device) -> io::Result<()> {
        let filter = self.role.filter();
        let ours = syscall::program_info(self.program.as_fd())?.id;
        if syscall::clsact_program(device.ifindex, filter)? == Some(ours) {
            return Ok(());
        }
        syscall::clsact_attach(self.program.as_fd(), device.ifindex, filter)
    }
}

/// An interface with its hooks.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) interface: Interface,
    device: Device,
    /// One for each role that is in place.
    mounted: Vec<Mounted>,
    told: Told,
    /// As of the last look.
    presence: Presence,
}

impl Bound {
    pub(crate) fn attached(&self) -> Attached {
        Attached {
            interface: self.interface.config.name.clone(),
            namespace: self.interface.planned(),
            presence: self.presence,
            ingress: self.works(Role::Syns),
            egress: self.works(Role::Watch),
            requests: self.works(Role::Requests),
            lost: self.lost().collect(),
            notes: self.told.notes.clone(),
            warnings: self.told.warnings.clone(),
        }
    }

    fn hook(&self, role: Role) -> Option<Hook> {
        self.mounted.iter().find(|mounted| mounted.role == role).map(|mounted| mounted.hook)
    }

    /// Whether the hooks of request rules are in place.
    pub(crate) fn has_requests(&self) -> bool {
        self.hook(Role::Requests).is_some() && self.hook(Role::Answers).is_some()
    }

    /// Whether hooks of request rules were not there before: packets may have passed unseen.
    pub(crate) fn missed_requests(&self) -> bool {
        self.mounted.iter().any(|mounted| mounted.new && is_of_requests(mounted))
    }

    /// Our own link of a role, if it is at this hook.
    pub(crate) fn link(&self, hook: Hook, role: Role) -> Option<&OwnedFd> {
        let same = self.mounted.iter().find(|m| m.hook == hook && m.role == role);
        same?.link.as_ref()
    }

    /// The program of a hook, for another device on which the same program can run. Its settings hold
    /// since it was loaded: handshakes that passed while it was lost count as seen, so what follows
    /// of them passes.
    pub(crate) fn spare(&self, device: &Device, hook: Hook, role: Role) -> Option<OwnedFd> {
        let alike = (device.veth, device.plain) == (self.device.veth, self.device.plain);
        let same = self.mounted.iter().find(|m| alike && m.hook == hook && m.role == role);
        same?.program.try_clone().ok()
    }

    /// The hook of a role as it was, lost for this reason: whoever takes the place of this goes on to know
    /// of it, and tries again.
    pub(crate) fn lost_hook(&self, role: Role, why: &Error) -> Option<Mounted> {
        let was = self.mounted.iter().find(|mounted| mounted.role == role)?;
        let link = was.link.as_ref().map(OwnedFd::try_clone).transpose().ok()?;
        Some(Mounted {
            hook: was.hook,
            role,
            link,
            pin: was.pin.clone(),
            new: false,
            program: was.program.try_clone().ok()?,
            waits: false,
            replaces: None,
            lost: Some(why.to_string()),
        })
    }

    /// Makes the pins of hooks that are in place again, where somebody has removed them; whether
    /// there were any to make.
    pub(crate) fn pin_again(&self) -> Result<bool, Error> {
        let mut made = false;
        for mounted in self.mounted.iter().filter(|mounted| mounted.lost.is_none()) {
            let (Some(link), Some(pin)) = (&mounted.link, &mounted.pin) else { continue };
            if !pin.exists() {
                pin_link(link, pin)?;
                made = true;
            }
        }
        Ok(made)
    }

    /// Paths of the pins in use.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Path> {
        self.mounted.iter().filter_map(|mounted| mounted.pin.as_deref())
    }

    /// The programs of its hooks.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &OwnedFd> {
        self.mounted.iter().map(|mounted| &mounted.program)
    }

    /// Takes our hooks off the interface; returns what stays, one sentence each, already logged.
    pub(crate) fn detach(&self) -> Vec<String> {
        self.mounted.iter().filter_map(|mounted| self.unmount(mounted)).collect()
    }

    /// Puts the hooks of request rules on, beside those that are in place: first the one that sees
    /// the answers, so that no request waits for one that nobody sees.
    pub(crate) fn add_requests(&mut self, core: &Core) -> Result<(), Error> {
        let (interface, device) = (&self.interface, self.device);
        let attempt = Attempt { core, interface, device, earlier: Some(&*self), former: None };
        let added = namespace::of(interface, || attempt.requests())?;
        self.mounted.retain(|mounted| !is_of_requests(mounted));
        self.mounted.extend(added);
        self.settle(core, None).iter().for_each(|text| tracing::warn!("{text}"));
        Ok(())
    }

    /// Takes hooks of ours off that this interface had before and does not need any more, and
    /// activates those that waited for that. Returns what does not evaluate now, one sentence each.
    pub(crate) fn settle(&mut self, core: &Core, earlier: Option<&Self>) -> Vec<String> {
        let Self { interface, device, mounted, .. } = self;
        let earlier = earlier.filter(|earlier| earlier.device == *device);
        let attempt = Attempt { core, interface, device: *device, earlier, former: None };
        let settled = namespace::of(interface, || Ok(attempt.settle(mounted)));
        settled.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Makes the hooks ours again after another process may have changed them. Returns what is
    /// not, one sentence each.
    pub(crate) fn reassert(&self) -> Vec<String> {
        let (shown, device) = (self.interface.shown(), self.device);
        let look = || {
            let lost = |mounted: &Mounted| {
                let error = mounted.reassert(device).err()?;
                let (hook, role) = (mounted.hook.name(), mounted.role.pin_name());
                Some(format!("interface {shown}: {hook} ({role}) is not ours any more: {error}"))
            };
            Ok(self.mounted.iter().filter_map(lost).collect())
        };
        let lost = namespace::of(&self.interface, look);
        lost.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Takes the hooks of request rules off.
    pub(crate) fn remove_requests(&mut self) {
        let mounted = std::mem::take(&mut self.mounted);
        let (mut requests, mut kept): (Vec<_>, Vec<_>) =
            mounted.into_iter().partition(is_of_requests);
        // What stays stays known: without privileges no filter can be detached, and while it is
        // there, rules may come back.
        requests.reverse();
        requests.retain(|mounted| self.unmount(mounted).is_some());
        requests.reverse();
        kept.extend(requests);
        self.mounted = kept;
    }

    /// Detaches what was not there before.
    pub(crate) fn undo(&self) {
        for mounted in self.mounted.iter().filter(|mounted| mounted.new) {
            let _ = self.unmount(mounted);
            mounted.restore_pin();
        }
    }

    /// Takes clsact filters off: they do not end with a descriptor.
    pub(crate) fn detach_unpinned(&self) {
        for mounted in self.mounted.iter().filter(|mounted| mounted.pin.is_none()) {
            let _ = self.unmount(mounted);
        }
    }

    /// What stays, in a sentence with the command that removes it.
    fn unmount(&self, mounted: &Mounted) -> Option<String> {
        if let Some(pin) = &mounted.pin {
            remove_pin(pin);
        }
        let error = match &mounted.link {
            Some(link) => syscall::link_detach(link.as_fd()),
            None => self.remove_filter(mounted.role.filter()),
        }
        .err()?;
        let interface = self.interface.shown();
        if is_gone(&error) {
            tracing::debug!(%interface, %error, "was gone already");
            return None;
        }
        let hook = mounted.hook.name();
        let how = match mounted.link {
            // Nothing holds a link that is not pinned but this process.
            Some(_) => "it goes with this process".to_string(),
            None => {
                format!("remove it with `{}`", removal(&self.interface, mounted.role.filter()))
            }
        };
        let left = format!("interface {interface}: {hook} stays attached ({error}); {how}");
        tracing::warn!("{left}");
        Some(left)
    }

    fn remove_filter(&self, filter: Filter) -> io::Result<()> {
        let removed = namespace::of(&self.interface, || {
            Ok(syscall::clsact_detach(self.device.ifindex, filter))
        });
        match removed {
            Ok(result) => result,
            Err(Error::Namespace { source, .. }) => Err(source),
            Err(other) => Err(io::Error::other(other)),
        }
    }
}

/// The command that removes a clsact filter of ours.
pub(crate) fn removal(interface: &Interface, filter: Filter) -> String {
    let namespace = interface.path().ok().flatten();
    let enter = namespace.map(|path| format!("nsenter --net={} ", path.display()));
    let side = if filter.side == Side::Ingress { "ingress" } else { "egress" };
    format!(
        "{}tc filter del dev {} {side} protocol all pref {} handle {:#x} bpf",
        enter.unwrap_or_default(),
        interface.config.name,
        filter.priority,
        syscall::CLSACT_HANDLE,
    )
}

/// Whether a hook is one of request rules.
const fn is_of_requests(mounted: &Mounted) -> bool {
    matches!(mounted.role, Role::Requests | Role::Answers)
}

/// Whether a detach failed because there was nothing: no filter (`ENOENT`), no clsact (`EINVAL`),
/// no interface (`ENODEV`).
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(2 | 19 | 22))
}

/// Attaches the hooks of an interface, or gives the ones in place new programs; takes nothing off
/// that was there before ([`Bound::settle`] does).
pub(crate) fn attach(
    core: &Core,
    interface: &Interface,
    earlier: Option<&Bound>,
) -> Result<Bound, Error> {
    attach_with(core, interface, (earlier, None))
}

/// Attaches hooks that are lost again, with the programs that they had: a link to a program that is
/// loaded needs no privileges, and nothing to wait for.
pub(crate) fn attach_again(core: &Core, lost: &Bound) -> Result<Bound, Error> {
    attach_with(core, &lost.interface, (Some(lost), Some(lost)))
}

fn attach_with(
    core: &Core,
    interface: &Interface,
    (earlier, former): (Option<&Bound>, Option<&Bound>),
) -> Result<Bound, Error> {
    namespace::of(interface, || {
        let device = namespace::device(interface)?;
        let earlier = earlier.filter(|bound| bound.device == device);
        let attempt = Attempt { core, interface, device, earlier, former };
        let (mounted, told) = attempt.all()?;
        let (interface, presence) = (interface.clone(), Presence::Here);
        Ok(Bound { interface, device, mounted, told, presence })
    })
}

/// Where links are pinned: beside the versions of the maps, so that an upgrade finds them.
pub(crate) fn links(pins: &Path) -> PathBuf {
    pins.join("links")
}

/// Removes a pin; one that is not there is fine.
pub(crate) fn remove_pin(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %pins::shown(path).display(), %error, "a pin stays behind");
    }
}

/// Detaches links that an earlier process pinned and nobody uses any more.
pub(crate) fn remove_stale(pins: &Path, used: &[&Path]) {
    let Ok(entries) = fs::read_dir(links(pins)) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if used.contains(&path.as_path()) {
            continue;
        }
        if let Ok(link) = syscall::open_pin(&path)
            && let Err(error) = syscall::link_detach(link.as_fd())
        {
            let path = pins::shown(&path);
            let path = path.display();
            if is_gone(&error) {
                tracing::debug!(%path, %error, "its interface is gone");
            } else {
                tracing::warn!(%path, %error, "a link of before could not be detached");
            }
        }
        remove_pin(&path);
    }
}

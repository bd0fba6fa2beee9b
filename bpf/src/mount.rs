// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One attempt to put our programs on one interface, within its namespace.
//!
//! An attempt only adds links and gives links that are there new programs; nothing is detached
//! before [`Attempt::settle`], which is called when whoever was in charge before has left. Until
//! then two of our hooks can be on one interface in the same role (XDP and tcx, say). To evaluate a
//! SYN twice would count it twice and take two tokens, so the later one waits: a new hook lets
//! everything pass, one that was there keeps its program. Settling takes the others off first and
//! activates the new one then: for the moment in between, SYNs pass and are not counted.

use crate::attach::{Bound, Hook, Mounted, Role, links, remove_pin};
use crate::core::Core;
use crate::namespace::{self, Device};
use crate::objects::{self, Load, Variant};
use crate::programs::{self, Runs};
use crate::syscall::{self, Side};
use crate::{Error, Interface, abi};
use libbpf_rs::ProgramAttachType;
use libbpf_sys as sys;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use tidegate_config::Attach;

/// What the names of our programs begin with.
pub(crate) const OUR_PREFIX: &str = "tg_";

/// Hooks that are links.
const LINKS: [Hook; 3] = [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];

/// What holds for RSTs from native XDP on veth. The peer is in another namespace, and its settings
/// may change at any time: nobody here can look.
const VETH_WARNING: &str = "attach: xdp on veth: a RST reaches the peer only if the peer has GRO on or \
    an XDP program; otherwise it is lost, and a reject acts as a drop (`attach: auto` and \
    `attach: tcx` have no such condition)";

/// Why `auto` does not take XDP there.
const VETH_NOTE: &str = "veth: attached at tcx, because a RST from native XDP is lost where the peer has \
    neither GRO nor an XDP program";

/// What has to be said of XDP on a link without Ethernet header.
const PLAIN: &str = "XDP on a link without Ethernet header (write attach: auto or tcx)";

/// What an operator is told of how an interface is attached.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Worth to know.
    pub(crate) notes: Vec<String>,
    /// Doubts that last as long as it is attached so.
    pub(crate) warnings: Vec<String>,
}

/// What an attempt to attach needs to know.
pub(crate) struct Attempt<'a> {
    pub(crate) core: &'a Core,
    pub(crate) interface: &'a Interface,
    pub(crate) device: Device,
    /// What is in place.
    pub(crate) earlier: Option<&'a Bound>,
    /// What was in place on an interface of this name, also on one that is gone.
    pub(crate) former: Option<&'a Bound>,
}

impl Attempt<'_> {
    /// Every hook that the plan needs, and what the operator should know. If one cannot be attached,
    /// what was attached before goes again. Where hooks come back, SYNs are evaluated without the others, too:
    /// those stay known as lost.
    pub(crate) fn all(&self) -> Result<(Vec<Mounted>, Told), Error> {
        let mut told = Told::default();
        // First those of requests: what comes later goes to the head of the chain, before them.
        let mut mounted = Vec::new();
        if self.core.plan.has_rules() {
            let requests = self.requests().map(Vec::from);
            mounted.extend(requests.or_else(|error| self.still_lost(&Role::OF_REQUESTS, error))?);
        }
        match self.ingress(&mut told) {
            Ok(ingress) => mounted.push(ingress),
            Err(error) => {
                mounted.iter().for_each(|mounted| self.take_back(mounted));
                return Err(error);
            }
        }
        mounted.extend(self.egress(&mut told.notes));
        Ok((mounted, told))
    }

    /// Hooks that were there before, as lost. The error itself, where there were none.
    fn still_lost(&self, roles: &[Role], error: Error) -> Result<Vec<Mounted>, Error> {
        let lost = |former: &Bound| -> Vec<Mounted> {
            roles.iter().filter_map(|role| former.lost_hook(*role, &error)).collect()
        };
        match self.former.map(lost) {
            Some(lost) if !lost.is_empty() => Ok(lost),
            _ => Err(error),
        }
    }

    /// Detaches our hooks that are not used any more, then activates those that waited. Returns what
    /// does not evaluate now, one sentence each.
    pub(crate) fn settle(&self, mounted: &mut [Mounted]) -> Vec<String> {
        self.remove_unused(mounted);
        let waiting = mounted.iter_mut().filter(|mounted| mounted.waits);
        waiting.filter_map(|mounted| self.activate(mounted).err()).map(|e| e.to_string()).collect()
    }

    fn activate(&self, mounted: &mut Mounted) -> Result<(), Error> {
        if let Some(replaced) = mounted.replaces.take() {
            // One that is gone already needs no detaching.
            let _ = syscall::link_detach(replaced.as_fd());
        }
        let active = match &mounted.link {
            Some(link) => syscall::link_update(link.as_fd(), mounted.program.as_fd()),
            None => {
                let (program, filter) = (mounted.program.as_fd(), mounted.role.filter());
                syscall::clsact_attach(program, self.device.ifindex, filter)
            }
        };
        active.map_err(|source| self.failed(mounted.hook.name(), source))?;
        mounted.waits = false;
        Ok(())
    }

    /// The hooks of request rules: first the one that sees the answers.
    pub(crate) fn requests(&self) -> Result<[Mounted; 2], Error> {
        let answers = self.tc(Role::Answers)?;
        match self.tc(Role::Requests) {
            Ok(requests) => Ok([answers, requests]),
            Err(error) => {
                self.take_back(&answers);
                Err(error)
            }
        }
    }

    /// Detaches what was not there before.
    fn take_back(&self, mounted: &Mounted) {
        if !mounted.new {
            return;
        }
        if let Some(pin) = &mounted.pin {
            remove_pin(pin);
        }
        let _ = match &mounted.link {
            Some(link) => syscall::link_detach(link.as_fd()),
            None => syscall::clsact_detach(self.device.ifindex, mounted.role.filter()),
        };
        mounted.restore_pin();
    }

    /// The first of the candidates that works.
    fn ingress(&self, told: &mut Told) -> Result<Mounted, Error> {
        let replies = self.core.plan.config.replies.rst_per_second > 0;
        let loses_replies = self.device.veth && replies;
        let candidates: &[Hook] = match self.interface.config.attach {
            _ if self.interface.wants_clsact() => &[Hook::Clsact],
            Attach::Xdp | Attach::XdpGeneric if self.device.plain => {
                return Err(self.failed(PLAIN, io::ErrorKind::Unsupported.into()));
            }
            Attach::Xdp => &[Hook::Xdp],
            Attach::XdpGeneric => &[Hook::XdpGeneric],
            // XDP costs other traffic something on nearly every driver: it is asked for.
            Attach::Auto | Attach::Tcx => &[Hook::Tcx, Hook::Clsact],
        };
        for (place, hook) in candidates.iter().enumerate() {
            match self.mount(*hook, Role::Syns) {
                Ok(mounted) => {
                    match (hook, self.interface.config.attach) {
                        (Hook::Xdp, _) if loses_replies => {
                            told.warnings.push(VETH_WARNING.to_string());
                        }
                        (_, Attach::Auto) if loses_replies => {
                            told.notes.push(VETH_NOTE.to_string());
                        }
                        (_, Attach::Auto) => {
                            let costs = self.device.costs;
                            let note = |costs| format!("attached at tcx: with XDP, {costs}");
                            told.notes.extend(costs.map(note));
                        }
                        _ => {}
                    }
                    if matches!(hook, Hook::Xdp | Hook::XdpGeneric) {
                        let name = &self.interface.config.name;
                        told.notes.extend(namespace::offload_notes(name, replies));
                    }
                    return Ok(mounted);
                }
                Err(error) if place + 1 == candidates.len() => return Err(error),
                Err(error) => told.notes.push(format!("{error}; trying the next hook")),
            }
        }
        Err(self.failed("ingress", io::ErrorKind::Unsupported.into()))
    }

    /// Egress only watches: without it there are no passive signals, and limits still hold.
    fn egress(&self, notes: &mut Vec<String>) -> Vec<Mounted> {
        let watch = self.tc(Role::Watch).map(|mounted| vec![mounted]);
        match watch.or_else(|error| self.still_lost(&[Role::Watch], error)) {
            Ok(mounted) => mounted,
            Err(error) => {
                let note = format!("no passive signals: {error}");
                if matches!(error, Error::Whose { .. }) {
                    tracing::warn!("{note}");
                }
                notes.push(note);
                Vec::new()
            }
        }
    }

    /// At tcx, or where that is not to be had, at clsact.
    fn tc(&self, role: Role) -> Result<Mounted, Error> {
        if self.interface.wants_clsact() {
            return self.mount(Hook::Clsact, role);
        }
        self.mount(Hook::Tcx, role).or_else(|_| self.mount(Hook::Clsact, role))
    }

    fn failed(&self, hook: &'static str, source: io::Error) -> Error {
        Error::Attach { interface: self.interface.shown(), hook, source }
    }

    fn program(&self, hook: Hook, role: Role) -> Result<OwnedFd, Error> {
        if let Some(program) = self.former.and_then(|bound| bound.spare(&self.device, hook, role)) {
            return Ok(program);
        }
        let redirect = hook == Hook::Xdp && self.device.veth;
        let answer = if redirect { abi::ANSWER_REDIRECT } else { abi::ANSWER_TX };
        let trust_dscp = self.interface.config.trust_dscp;
        let import = self.interface.import && role == Role::Syns;
        let datagrams = self.interface.datagrams && role == Role::Syns;
        let border = if role == Role::Syns { self.interface.border } else { 0 };
        let plain = self.device.plain;
        let variant = Variant { answer, trust_dscp, plain, import, datagrams, border };
        let objects = &self.core.objects;
        let (object, bytes) = match role {
            Role::Syns if matches!(hook, Hook::Xdp | Hook::XdpGeneric) => ("xdp", &objects.xdp),
            Role::Syns => ("tc", &objects.tc),
            Role::Watch => ("egress", &objects.egress),
            Role::Requests => ("request_in", &objects.request_in),
            Role::Answers => ("request_out", &objects.request_out),
        };
        let attach_type = (hook == Hook::Tcx).then(|| match role.side() {
            Side::Ingress => ProgramAttachType::TcxIngress,
            Side::Egress => ProgramAttachType::TcxEgress,
        });
        let settings = objects::settings(&self.core.maps, &self.core.plan, variant)?;
        let load = Load { object, bytes, settings, attach_type };
        let pins = self.core.plan.settings.pins.as_deref();
        let name = self.name(hook, role);
        let runs = Runs::Hook(&name, self.running(hook, role));
        programs::load(pins, &self.core.maps, &load, &runs)
    }

    /// The number of the program of ours that is at work at this hook.
    fn running(&self, hook: Hook, role: Role) -> Option<u32> {
        if hook == Hook::Clsact {
            return syscall::clsact_program(self.device.ifindex, role.filter()).ok().flatten();
        }
        Some(syscall::link_info(self.own_link(hook, role)?.as_fd()).ok()?.program)
    }

    /// What lets everything pass, where our program goes later.
    fn standby(&self, hook: Hook, role: Role) -> Result<OwnedFd, Error> {
        let kind = match (hook, role.side()) {
            (Hook::Xdp | Hook::XdpGeneric, _) => syscall::Pass::Xdp,
            (Hook::Tcx, side) => syscall::Pass::Tcx(side),
            (Hook::Clsact, _) => syscall::Pass::Clsact,
        };
        syscall::load_pass(kind).map_err(|source| self.failed(hook.name(), source))
    }

    fn mount(&self, hook: Hook, role: Role) -> Result<Mounted, Error> {
        let program = self.program(hook, role)?;
        if hook == Hook::Clsact {
            return self.clsact(program, role);
        }
        let pin = self.pin(hook, role);
        let own = self.own_link(hook, role);
        // A link cannot be moved: one behind a program of somebody else gets a successor.
        let hidden = |link: &OwnedFd| hook == Hook::Tcx && self.is_hidden(link, role.side());
        let (own, replaces) =
            if own.as_ref().is_some_and(hidden) { (None, own) } else { (own, None) };
        let new = own.is_none();
        let waits = replaces.is_some() || self.is_elsewhere(hook, role);
        let link = match own {
            Some(link) => {
                if !waits {
                    syscall::link_update(link.as_fd(), program.as_fd())
                        .map_err(|source| self.failed(hook.name(), source))?;
                }
                link
            }
            None if waits => self.create(hook, role, &self.standby(hook, role)?)?,
            None => self.create(hook, role, &program)?,
        };
        if let Some(pin) = &pin {
            pin_link(&link, pin)?;
        }
        let link = Some(link);
        Ok(Mounted { hook, role, link, pin, new, program, waits, replaces, lost: None })
    }

    /// Whether a program that is not ours runs before a link of ours at tcx: if it ends the chain,
    /// nothing comes to us. Without the privileges to look nothing could be moved, either.
    fn is_hidden(&self, link: &OwnedFd, side: Side) -> bool {
        let program = |link: &OwnedFd| Some(syscall::link_info(link.as_fd()).ok()?.program);
        let (Ok(chain), Some(own)) =
            (syscall::tcx_programs(self.device.ifindex, side), program(link))
        else {
            return false;
        };
        let ours = Role::ALL.into_iter().filter(|role| role.side() == side);
        let ours: Vec<u32> = ours
            .filter_map(|role| self.own_link(Hook::Tcx, role))
            .filter_map(|link| program(&link))
            .collect();
        chain.iter().take_while(|id| **id != own).any(|id| !ours.contains(id))
    }

    /// At the head of the chain, so that no program of somebody else that ends it hides traffic
    /// from us; requests right behind SYNs.
    fn order<'l>(&self, before: Option<&'l OwnedFd>, role: Role) -> syscall::Order<'l> {
        match before {
            Some(link) if !self.is_hidden(link, role.side()) => {
                syscall::Order::Behind(link.as_fd())
            }
            _ => syscall::Order::First,
        }
    }

    /// Whether another hook of ours is in place in this role: then this one waits.
    fn is_elsewhere(&self, hook: Hook, role: Role) -> bool {
        let other = |link: &Hook| *link != hook && self.own_link(*link, role).is_some();
        LINKS.iter().any(other) || hook != Hook::Clsact && self.has_filter(role)
    }

    /// Whether a filter of ours is at clsact.
    fn has_filter(&self, role: Role) -> bool {
        let found = syscall::clsact_program(self.device.ifindex, role.filter());
        let Some(id) = found.ok().flatten() else {
            return false;
        };
        self.is_ours(id, role).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            false
        })
    }

    /// Whether the program at our place of clsact is ours.
    fn is_ours(&self, id: u32, role: Role) -> Result<bool, Error> {
        match program_name(id) {
            Ok(name) => Ok(name.starts_with(OUR_PREFIX)),
            Err(source) => {
                let (interface, priority) = (self.interface.shown(), role.filter().priority);
                Err(Error::Whose { interface, priority, id, source })
            }
        }
    }

    /// The place in the BPF filesystem for a link of this device.
    fn pin(&self, hook: Hook, role: Role) -> Option<PathBuf> {
        let pins = self.core.plan.settings.pins.as_ref()?;
        Some(links(pins).join(self.name(hook, role)))
    }

    /// A hook of this device, in a file name.
    fn name(&self, hook: Hook, role: Role) -> String {
        let Device { namespace, ifindex, .. } = self.device;
        let (hook, role) = (hook.name(), role.pin_name());
        format!("{namespace}_{ifindex}_{hook}_{role}")
    }

    /// Our own link from before: of this process, or pinned by an earlier one.
    fn own_link(&self, hook: Hook, role: Role) -> Option<OwnedFd> {
        let held = self.earlier.and_then(|bound| bound.link(hook, role)?.try_clone().ok());
        let link = held.or_else(|| syscall::open_pin(&self.pin(hook, role)?).ok())?;
        let info = syscall::link_info(link.as_fd()).ok()?;
        let kind = match hook {
            Hook::Tcx => sys::BPF_LINK_TYPE_TCX,
            _ => sys::BPF_LINK_TYPE_XDP,
        };
        let alive = info.kind == kind && info.ifindex == self.device.ifindex;
        alive.then_some(link)
    }

    fn create(&self, hook: Hook, role: Role, program: &OwnedFd) -> Result<OwnedFd, Error> {
        let (kind, flags) = match (hook, role.side()) {
            (Hook::Xdp, _) => (sys::BPF_XDP, syscall::XDP_NATIVE),
            (Hook::XdpGeneric, _) => (sys::BPF_XDP, syscall::XDP_GENERIC),
            (_, side) => (side.tcx(), 0),
        };
        let ifindex = self.device.ifindex;
        if kind == sys::BPF_XDP {
            self.refuse_foreign(syscall::xdp_program(ifindex).ok().flatten())?;
        }
        let first = match role {
            Role::Syns | Role::Watch => None,
            Role::Requests => self.own_link(Hook::Tcx, Role::Syns),
            Role::Answers => self.own_link(Hook::Tcx, Role::Watch),
        };
        let order = match hook {
            Hook::Tcx => self.order(first.as_ref(), role),
            Hook::Xdp | Hook::XdpGeneric | Hook::Clsact => syscall::Order::None,
        };
        let place = syscall::Place { ifindex, kind, flags, order };
        syscall::link_create(program.as_fd(), &place).map_err(|source| {
            // Somebody may have come in between.
            let busy = matches!(source.raw_os_error(), Some(16 | 17));
            let found = if busy { syscall::xdp_program(ifindex).ok().flatten() } else { None };
            self.refuse_foreign(found).err().unwrap_or_else(|| self.failed(hook.name(), source))
        })
    }

    fn refuse_foreign(&self, program: Option<u32>) -> Result<(), Error> {
        let Some(id) = program else {
            return Ok(());
        };
        // It is foreign because no link of ours holds it; the name is for people.
        let name = program_name(id).unwrap_or_else(|error| format!("not known: {error}"));
        Err(Error::Foreign { interface: self.interface.shown(), id, name })
    }

    fn clsact(&self, program: OwnedFd, role: Role) -> Result<Mounted, Error> {
        let (hook, ifindex, filter) = (Hook::Clsact, self.device.ifindex, role.filter());
        let failed = |source| self.failed(hook.name(), source);
        let found = syscall::clsact_program(ifindex, filter).map_err(failed)?;
        if let Some(id) = found
            && !self.is_ours(id, role)?
        {
            let (interface, priority) = (self.interface.shown(), filter.priority);
            let name = program_name(id).unwrap_or_default();
            return Err(Error::ForeignFilter { interface, priority, id, name });
        }
        let (new, waits) = (found.is_none(), self.is_elsewhere(hook, role));
        if !waits {
            syscall::clsact_attach(program.as_fd(), ifindex, filter).map_err(failed)?;
        } else if new {
            let standby = self.standby(hook, role)?;
            syscall::clsact_attach(standby.as_fd(), ifindex, filter).map_err(failed)?;
        }
        let (link, pin, replaces) = (None, None, None);
        Ok(Mounted { hook, role, link, pin, new, program, waits, replaces, lost: None })
    }

    /// Hooks of ours that this interface had before and does not need any more.
    fn remove_unused(&self, mounted: &[Mounted]) {
        for role in Role::ALL {
            let used = mounted.iter().find(|mounted| mounted.role == role);
            for hook in LINKS {
                if used.is_some_and(|used| used.hook == hook) {
                    continue;
                }
                if let Some(link) = self.own_link(hook, role) {
                    let _ = syscall::link_detach(link.as_fd());
                }
                if let Some(pin) = self.pin(hook, role) {
                    remove_pin(&pin);
                }
            }
            if used.is_none_or(|used| used.hook != Hook::Clsact) && self.has_filter(role) {
                let _ = syscall::clsact_detach(self.device.ifindex, role.filter());
            }
        }
    }
}

/// The name of a program that is not ours, by its number; `None`: it is ours.
///
/// # Errors
/// When the kernel does not tell: it is gone, or the caller may not look.
pub fn foreign_program(id: u32) -> io::Result<Option<String>> {
    let program = syscall::program_by_id(id)?;
    let name = syscall::program_info(program.as_fd())?.name;
    Ok((!name.starts_with(OUR_PREFIX)).then_some(name))
}

/// Pins a link, unless it is pinned there already.
pub(crate) fn pin_link(link: &OwnedFd, pin: &Path) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Pins { path: pin.to_path_buf(), source };
    if let Ok(pinned) = syscall::open_pin(pin) {
        let ids = (syscall::link_info(pinned.as_fd()), syscall::link_info(link.as_fd()));
        if matches!(ids, (Ok(a), Ok(b)) if a.id == b.id) {
            return Ok(());
        }
        remove_pin(pin);
    }
    if let Some(directory) = pin.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    syscall::pin(link.as_fd(), pin).map_err(failed)
}

/// The name of a program; empty where it is gone. To open a program by its number the kernel wants
/// CAP_SYS_ADMIN, and nothing less: without it the name is not known, which says nothing of whose
/// the program is.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    match syscall::program_by_id(id).and_then(|fd| syscall::program_info(fd.as_fd())) {
        Ok(info) => Ok(info.name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

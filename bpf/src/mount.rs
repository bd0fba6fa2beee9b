// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One attempt to put our programs on one interface, within its namespace.

use crate::attach::{Bound, Hook, Mounted, Role, links, remove_pin};
use crate::core::Core;
use crate::namespace::{self, Device};
use crate::objects::{self, Load, Variant};
use crate::syscall::{self, Side};
use crate::{AttachMode, Error, Interface, abi};
use libbpf_rs::ProgramAttachType;
use libbpf_sys as sys;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What the names of our programs begin with.
const OUR_PREFIX: &str = "tg_";

/// What holds for answers from XDP on veth.
const VETH_NOTE: &str = "veth: answers (RST) from XDP reach the peer only if it has GRO on or an \
    XDP program; otherwise they are lost, and a reject acts as a drop (attach: tcx has no such \
    condition)";

/// What an attempt to attach needs to know.
pub(crate) struct Attempt<'a> {
    pub(crate) core: &'a Core,
    pub(crate) interface: &'a Interface,
    pub(crate) device: Device,
    /// What is in place.
    pub(crate) earlier: Option<&'a Bound>,
}

impl Attempt<'_> {
    /// Every hook that the plan needs, and what the operator should know. If one cannot be put on,
    /// what was put on before goes again.
    pub(crate) fn all(&self) -> Result<(Vec<Mounted>, Vec<String>), Error> {
        let mut notes = Vec::new();
        let mut mounted = vec![self.ingress(&mut notes)?];
        mounted.extend(self.egress(&mut notes));
        if self.core.plan.has_rules() {
            match self.requests() {
                Ok(requests) => mounted.extend(requests),
                Err(error) => {
                    mounted.iter().filter(|mounted| mounted.new).for_each(|m| self.take_off(m));
                    return Err(error);
                }
            }
        }
        self.remove_unused(&mounted);
        Ok((mounted, notes))
    }

    /// The hooks of header rules: first the one that sees the answers.
    pub(crate) fn requests(&self) -> Result<[Mounted; 2], Error> {
        let answers = self.tc(Role::Answers)?;
        match self.tc(Role::Requests) {
            Ok(requests) => Ok([answers, requests]),
            Err(error) => {
                if answers.new {
                    self.take_off(&answers);
                }
                Err(error)
            }
        }
    }

    fn take_off(&self, mounted: &Mounted) {
        if let Some(pin) = &mounted.pin {
            remove_pin(pin);
        }
        let _ = match &mounted.link {
            Some(link) => syscall::link_detach(link.as_fd()),
            None => syscall::clsact_detach(self.device.ifindex, mounted.role.filter()),
        };
    }

    /// The first of the candidates that works.
    fn ingress(&self, notes: &mut Vec<String>) -> Result<Mounted, Error> {
        let candidates: &[Hook] = match self.interface.attach {
            AttachMode::Auto => &[Hook::Xdp, Hook::Tcx, Hook::Clsact],
            AttachMode::Xdp => &[Hook::Xdp],
            AttachMode::XdpGeneric => &[Hook::XdpGeneric],
            AttachMode::Tcx => &[Hook::Tcx, Hook::Clsact],
            AttachMode::Clsact => &[Hook::Clsact],
        };
        for (place, hook) in candidates.iter().enumerate() {
            match self.mount(*hook, Role::Judge) {
                Ok(mounted) => {
                    if *hook == Hook::Xdp && self.device.veth {
                        notes.push(VETH_NOTE.to_string());
                    }
                    if matches!(hook, Hook::Xdp | Hook::XdpGeneric) {
                        let answers = self.core.plan.settings.rst_per_second > 0;
                        notes.extend(namespace::offload_notes(self.interface, answers));
                    }
                    return Ok(mounted);
                }
                Err(error) if place + 1 == candidates.len() => return Err(error),
                Err(error) => notes.push(format!("{error}; trying the next hook")),
            }
        }
        Err(self.failed("ingress", io::ErrorKind::Unsupported.into()))
    }

    /// Egress only watches: without it there are no passive signals, and limits still hold.
    fn egress(&self, notes: &mut Vec<String>) -> Option<Mounted> {
        match self.tc(Role::Watch) {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                notes.push(format!("no passive signals: {error}"));
                None
            }
        }
    }

    /// At tcx, or where that is not to be had, at clsact.
    fn tc(&self, role: Role) -> Result<Mounted, Error> {
        if self.interface.attach == AttachMode::Clsact {
            return self.mount(Hook::Clsact, role);
        }
        self.mount(Hook::Tcx, role).or_else(|_| self.mount(Hook::Clsact, role))
    }

    fn failed(&self, hook: &'static str, source: io::Error) -> Error {
        Error::Attach { interface: self.interface.shown(), hook, source }
    }

    fn program(&self, hook: Hook, role: Role) -> Result<OwnedFd, Error> {
        let redirect = hook == Hook::Xdp && self.device.veth;
        let answer = if redirect { abi::ANSWER_REDIRECT } else { abi::ANSWER_TX };
        let variant = Variant { answer, trust_dscp: self.interface.trust_dscp };
        let objects = &self.core.objects;
        let (object, bytes) = match role {
            Role::Judge if matches!(hook, Hook::Xdp | Hook::XdpGeneric) => ("xdp", &objects.xdp),
            Role::Judge => ("tc", &objects.tc),
            Role::Watch => ("egress", &objects.egress),
            Role::Requests => ("request_in", &objects.request_in),
            Role::Answers => ("request_out", &objects.request_out),
        };
        let attach_type = (hook == Hook::Tcx).then(|| match role.side() {
            Side::Ingress => ProgramAttachType::TcxIngress,
            Side::Egress => ProgramAttachType::TcxEgress,
        });
        let settings = objects::settings(&self.core.maps, &self.core.plan, variant)?;
        objects::load(&self.core.maps, &Load { object, bytes, settings, attach_type })
    }

    fn mount(&self, hook: Hook, role: Role) -> Result<Mounted, Error> {
        let program = self.program(hook, role)?;
        if hook == Hook::Clsact {
            let new = self.clsact(&program, role)?;
            return Ok(Mounted { hook, role, link: None, pin: None, new });
        }
        let pin = self.pin(hook, role);
        let own = self.own_link(hook, role);
        let new = own.is_none();
        let link = match own {
            Some(link) => {
                syscall::link_update(link.as_fd(), program.as_fd())
                    .map_err(|source| self.failed(hook.name(), source))?;
                link
            }
            None => self.create(hook, role, &program)?,
        };
        if let Some(pin) = &pin {
            self.pin_link(&link, pin)?;
        }
        Ok(Mounted { hook, role, link: Some(link), pin, new })
    }

    /// The place in the BPF filesystem for a link of this device.
    fn pin(&self, hook: Hook, role: Role) -> Option<PathBuf> {
        let pins = self.core.plan.settings.pins.as_ref()?;
        let Device { namespace, ifindex, .. } = self.device;
        let (hook, role) = (hook.name(), role.pin_name());
        Some(links(pins).join(format!("{namespace}_{ifindex}_{hook}_{role}")))
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
            (_, Side::Ingress) => (sys::BPF_TCX_INGRESS, 0),
            (_, Side::Egress) => (sys::BPF_TCX_EGRESS, 0),
        };
        let ifindex = self.device.ifindex;
        if kind == sys::BPF_XDP {
            self.refuse_foreign(syscall::xdp_program(ifindex).ok().flatten())?;
        }
        // SYNs are judged before requests, also where requests were there first.
        let judge = hook == Hook::Tcx && role == Role::Judge;
        let next = if judge { self.own_link(Hook::Tcx, Role::Requests) } else { None };
        let place = syscall::Place { ifindex, kind, flags, before: next.as_ref().map(AsFd::as_fd) };
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
        let name = program_name(id);
        Err(Error::Foreign { interface: self.interface.shown(), id, name })
    }

    /// Whether the filter is new.
    fn clsact(&self, program: &OwnedFd, role: Role) -> Result<bool, Error> {
        let (ifindex, filter) = (self.device.ifindex, role.filter());
        let failed = |source| self.failed(Hook::Clsact.name(), source);
        let found = syscall::clsact_program(ifindex, filter).map_err(failed)?;
        if let Some(id) = found {
            let name = program_name(id);
            if !name.starts_with(OUR_PREFIX) {
                let (interface, priority) = (self.interface.shown(), filter.priority);
                return Err(Error::ForeignFilter { interface, priority, id, name });
            }
        }
        syscall::clsact_attach(program.as_fd(), ifindex, filter).map_err(failed)?;
        Ok(found.is_none())
    }

    fn pin_link(&self, link: &OwnedFd, pin: &Path) -> Result<(), Error> {
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

    /// Hooks of ours that this interface had before and does not need any more.
    fn remove_unused(&self, mounted: &[Mounted]) {
        for role in Role::ALL {
            let used = mounted.iter().find(|mounted| mounted.role == role);
            for hook in [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx] {
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
            let filter = role.filter();
            let ours = syscall::clsact_program(self.device.ifindex, filter)
                .is_ok_and(|id| id.is_some_and(|id| program_name(id).starts_with(OUR_PREFIX)));
            if ours && used.is_none_or(|used| used.hook != Hook::Clsact) {
                let _ = syscall::clsact_detach(self.device.ifindex, filter);
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

/// The name of a program; empty where it is gone.
pub(crate) fn program_name(id: u32) -> String {
    let info = syscall::program_by_id(id).and_then(|fd| syscall::program_info(fd.as_fd()));
    info.map(|info| info.name).unwrap_or_default()
}

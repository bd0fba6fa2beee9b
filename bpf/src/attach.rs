// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Putting the hooks on an interface, beside whatever else is there.
//!
//! A link that is ours (from this process or pinned by an earlier one) gets the new program by an
//! atomic update; nothing of others is ever replaced. Where XDP is taken or not supported, `auto`
//! goes on to tcx and then to clsact, and says why.

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

    /// In file names: a BPF filesystem takes no dots, and the side tells two tcx links apart.
    fn pin_name(self, side: Side) -> String {
        let side = if side == Side::Ingress { "in" } else { "out" };
        format!("{}_{side}", self.name())
    }
}

/// How an interface is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface, as planned.
    pub interface: String,
    /// Its namespace, as planned.
    pub namespace: Option<PathBuf>,
    /// The ingress hook.
    pub ingress: Hook,
    /// The egress hook; `None`: no passive signals.
    pub egress: Option<Hook>,
    /// What the operator should know about it.
    pub notes: Vec<String>,
}

/// A hook in place.
#[derive(Debug)]
struct Mounted {
    hook: Hook,
    side: Side,
    /// The link; a clsact filter has none.
    link: Option<OwnedFd>,
    /// Where it is pinned.
    pin: Option<PathBuf>,
    /// Whether it was not there before.
    new: bool,
}

/// An interface with its hooks.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) interface: Interface,
    device: Device,
    ingress: Mounted,
    egress: Option<Mounted>,
    notes: Vec<String>,
}

impl Bound {
    pub(crate) fn attached(&self) -> Attached {
        Attached {
            interface: self.interface.name.clone(),
            namespace: self.interface.namespace.clone(),
            ingress: self.ingress.hook,
            egress: self.egress.as_ref().map(|mounted| mounted.hook),
            notes: self.notes.clone(),
        }
    }

    fn mounted(&self) -> impl Iterator<Item = &Mounted> {
        std::iter::once(&self.ingress).chain(&self.egress)
    }

    /// Paths of the pins in use.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Path> {
        self.mounted().filter_map(|mounted| mounted.pin.as_deref())
    }

    /// Takes our hooks off the interface; returns what stays, one sentence each, already logged.
    pub(crate) fn detach(&self) -> Vec<String> {
        self.mounted().filter_map(|mounted| self.unmount(mounted)).collect()
    }

    /// Takes off what was not there before.
    pub(crate) fn undo(&self) {
        for mounted in self.mounted().filter(|mounted| mounted.new) {
            let _ = self.unmount(mounted);
        }
    }

    /// Takes clsact filters off: they do not end with a descriptor.
    pub(crate) fn detach_unpinned(&self) {
        for mounted in self.mounted().filter(|mounted| mounted.pin.is_none()) {
            let _ = self.unmount(mounted);
        }
    }

    /// What stays, in a sentence with the command that takes it off.
    fn unmount(&self, mounted: &Mounted) -> Option<String> {
        if let Some(pin) = &mounted.pin {
            remove_pin(pin);
        }
        let error = match &mounted.link {
            Some(link) => syscall::link_detach(link.as_fd()),
            None => self.remove_filter(mounted.side),
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
            None => format!("take it off with `{}`", self.removal(mounted.side)),
        };
        let left = format!("interface {interface}: {hook} stays attached ({error}); {how}");
        tracing::warn!("{left}");
        Some(left)
    }

    fn remove_filter(&self, side: Side) -> io::Result<()> {
        let removed = namespace::within(self.interface.namespace.as_deref(), || {
            Ok(syscall::clsact_detach(self.device.ifindex, side))
        });
        match removed {
            Ok(result) => result,
            Err(Error::Namespace { source, .. }) => Err(source),
            Err(other) => Err(io::Error::other(other)),
        }
    }

    /// The command that removes a clsact filter of ours.
    fn removal(&self, side: Side) -> String {
        let namespace = self.interface.namespace.as_ref();
        let enter = namespace.map(|path| format!("nsenter --net={} ", path.display()));
        let side = if side == Side::Ingress { "ingress" } else { "egress" };
        format!(
            "{}tc filter del dev {} {side} protocol all pref {} handle {:#x} bpf",
            enter.unwrap_or_default(),
            self.interface.name,
            syscall::CLSACT_PRIORITY,
            syscall::CLSACT_HANDLE,
        )
    }
}

/// Whether a detach failed because there was nothing: no filter (`ENOENT`), no clsact (`EINVAL`),
/// no interface (`ENODEV`).
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(2 | 19 | 22))
}

/// What an attempt to attach needs to know.
struct Attempt<'a> {
    core: &'a Core,
    interface: &'a Interface,
    device: Device,
    earlier: Option<&'a Bound>,
}

/// Attaches both hooks of an interface, or gives the ones in place new programs.
pub(crate) fn attach(
    core: &Core,
    interface: &Interface,
    earlier: Option<&Bound>,
) -> Result<Bound, Error> {
    namespace::within(interface.namespace.as_deref(), || {
        let device = namespace::device(interface)?;
        let earlier = earlier.filter(|bound| bound.device == device);
        let attempt = Attempt { core, interface, device, earlier };
        let mut notes = Vec::new();
        let ingress = attempt.ingress(&mut notes)?;
        let egress = attempt.egress(&mut notes);
        attempt.remove_unused(&ingress, egress.as_ref());
        Ok(Bound { interface: interface.clone(), device, ingress, egress, notes })
    })
}

impl Attempt<'_> {
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
            match self.mount(*hook, Side::Ingress) {
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
        let attached = if self.interface.attach == AttachMode::Clsact {
            self.mount(Hook::Clsact, Side::Egress)
        } else {
            let tcx = self.mount(Hook::Tcx, Side::Egress);
            tcx.or_else(|_| self.mount(Hook::Clsact, Side::Egress))
        };
        match attached {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                notes.push(format!("no passive signals: {error}"));
                None
            }
        }
    }

    fn failed(&self, hook: &'static str, source: io::Error) -> Error {
        Error::Attach { interface: self.interface.shown(), hook, source }
    }

    fn program(&self, hook: Hook, side: Side) -> Result<OwnedFd, Error> {
        let redirect = hook == Hook::Xdp && self.device.veth;
        let answer = if redirect { abi::ANSWER_REDIRECT } else { abi::ANSWER_TX };
        let variant = Variant { answer, trust_dscp: self.interface.trust_dscp };
        let objects = &self.core.objects;
        let (object, bytes, attach_type) = match (hook, side) {
            (Hook::Xdp | Hook::XdpGeneric, _) => ("xdp", &objects.xdp, None),
            (Hook::Tcx, Side::Ingress) => ("tc", &objects.tc, Some(ProgramAttachType::TcxIngress)),
            (Hook::Tcx, Side::Egress) => {
                ("egress", &objects.egress, Some(ProgramAttachType::TcxEgress))
            }
            (Hook::Clsact, Side::Ingress) => ("tc", &objects.tc, None),
            (Hook::Clsact, Side::Egress) => ("egress", &objects.egress, None),
        };
        let settings = objects::settings(&self.core.maps, &self.core.plan, variant)?;
        objects::load(&self.core.maps, &Load { object, bytes, settings, attach_type })
    }

    fn mount(&self, hook: Hook, side: Side) -> Result<Mounted, Error> {
        let program = self.program(hook, side)?;
        if hook == Hook::Clsact {
            let new = self.clsact(&program, side)?;
            return Ok(Mounted { hook, side, link: None, pin: None, new });
        }
        let pin = self.pin(hook, side);
        let own = self.own_link(hook, side, pin.as_deref());
        let new = own.is_none();
        let link = match own {
            Some(link) => {
                syscall::link_update(link.as_fd(), program.as_fd())
                    .map_err(|source| self.failed(hook.name(), source))?;
                link
            }
            None => self.create(hook, side, &program)?,
        };
        if let Some(pin) = &pin {
            self.pin_link(&link, pin)?;
        }
        Ok(Mounted { hook, side, link: Some(link), pin, new })
    }

    /// The place in the BPF filesystem for a link of this device.
    fn pin(&self, hook: Hook, side: Side) -> Option<PathBuf> {
        let pins = self.core.plan.settings.pins.as_ref()?;
        let Device { namespace, ifindex, .. } = self.device;
        Some(links(pins).join(format!("{namespace}_{ifindex}_{}", hook.pin_name(side))))
    }

    /// Our own link from before: of this process, or pinned by an earlier one.
    fn own_link(&self, hook: Hook, side: Side, pin: Option<&Path>) -> Option<OwnedFd> {
        let held = self.earlier.and_then(|bound| {
            let same = bound.mounted().find(|m| m.hook == hook && m.side == side);
            same?.link.as_ref()?.try_clone().ok()
        });
        let link = held.or_else(|| syscall::open_pin(pin?).ok())?;
        let info = syscall::link_info(link.as_fd()).ok()?;
        let kind = match hook {
            Hook::Tcx => sys::BPF_LINK_TYPE_TCX,
            _ => sys::BPF_LINK_TYPE_XDP,
        };
        let alive = info.kind == kind && info.ifindex == self.device.ifindex;
        alive.then_some(link)
    }

    fn create(&self, hook: Hook, side: Side, program: &OwnedFd) -> Result<OwnedFd, Error> {
        let (kind, flags) = match (hook, side) {
            (Hook::Xdp, _) => (sys::BPF_XDP, syscall::XDP_NATIVE),
            (Hook::XdpGeneric, _) => (sys::BPF_XDP, syscall::XDP_GENERIC),
            (_, Side::Ingress) => (sys::BPF_TCX_INGRESS, 0),
            (_, Side::Egress) => (sys::BPF_TCX_EGRESS, 0),
        };
        let ifindex = self.device.ifindex;
        if kind == sys::BPF_XDP {
            self.refuse_foreign(syscall::xdp_program(ifindex).ok().flatten())?;
        }
        syscall::link_create(program.as_fd(), ifindex, kind, flags).map_err(|source| {
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
    fn clsact(&self, program: &OwnedFd, side: Side) -> Result<bool, Error> {
        let ifindex = self.device.ifindex;
        let failed = |source| self.failed(Hook::Clsact.name(), source);
        let found = syscall::clsact_program(ifindex, side).map_err(failed)?;
        if let Some(id) = found {
            let name = program_name(id);
            if !name.starts_with(OUR_PREFIX) {
                let interface = self.interface.shown();
                return Err(Error::ForeignFilter { interface, id, name });
            }
        }
        syscall::clsact_attach(program.as_fd(), ifindex, side).map_err(failed)?;
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
    fn remove_unused(&self, ingress: &Mounted, egress: Option<&Mounted>) {
        for side in [Side::Ingress, Side::Egress] {
            let used = if side == Side::Ingress { Some(ingress) } else { egress };
            for hook in [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx] {
                let pin = self.pin(hook, side);
                if used.is_some_and(|used| used.hook == hook) {
                    continue;
                }
                if let Some(link) = self.own_link(hook, side, pin.as_deref()) {
                    let _ = syscall::link_detach(link.as_fd());
                }
                if let Some(pin) = pin {
                    remove_pin(&pin);
                }
            }
            let ours = syscall::clsact_program(self.device.ifindex, side)
                .is_ok_and(|id| id.is_some_and(|id| program_name(id).starts_with(OUR_PREFIX)));
            if ours && used.is_none_or(|used| used.hook != Hook::Clsact) {
                let _ = syscall::clsact_detach(self.device.ifindex, side);
            }
        }
    }
}

/// What the names of our programs begin with.
const OUR_PREFIX: &str = "tg_";

/// What holds for answers from XDP on veth.
const VETH_NOTE: &str = "veth: answers (RST) from XDP reach the peer only if it has GRO on or an \
    XDP program; otherwise they are lost, and a reject acts as a drop (attach: tcx has no such \
    condition)";

/// Where links are pinned: beside the versions of the maps, so that an upgrade finds them.
pub(crate) fn links(pins: &Path) -> PathBuf {
    pins.join("links")
}

fn program_name(id: u32) -> String {
    let info = syscall::program_by_id(id).and_then(|fd| syscall::program_info(fd.as_fd()));
    info.map(|info| info.name).unwrap_or_default()
}

/// Removes a pin; one that is not there is fine.
fn remove_pin(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a pin stays behind");
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

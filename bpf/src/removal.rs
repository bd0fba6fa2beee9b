// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detaching everything that is ours, without a daemon: hooks that a crash left, pins of older
//! versions, filters on interfaces that are not planned any more, in any network namespace.
//!
//! Ours is a program whose name begins as ours do and that uses a map that is pinned below the pins; or,
//! where the pins are gone, one that uses a control block of ours whose lease has ended ([`Whose`]). All
//! else is left alone, whatever it is called. Links are found by their numbers, which the kernel gives
//! for all namespaces; filters of clsact only by a look at each interface.

use crate::attach::{self, Role, is_gone, removal};
use crate::namespace;
use crate::syscall::{self, Filter, LinkInfo, Side};
use crate::{Error, Interface, Plan, abi, maps, objects, pins, programs};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_policy::Lease;
use tidegate_units::Nanos;

/// Most interfaces of a namespace that are looked at, and most links of the machine.
const INTERFACES_MAX: usize = 4096;
const LINKS_MAX: usize = 65_536;
/// The map in which the heartbeat stands, and the control block.
const LEASE: &str = "tg_lease";
const CONTROL: &str = "tg_control";
/// Where named network namespaces are: those of iproute2, of Docker, and of containerd.
const NAMED: [&str; 3] = ["/run/netns", "/run/docker/netns", "/run/containerd/netns"];

/// Whose hooks are detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those that belong to the pins.
    Pins,
    /// Also those of other pins, or of none, in whose name nobody renews a lease any more.
    Orphans,
}

/// What was done, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// What is not there any more (or, where nothing was to be changed, would not be).
    pub removed: Vec<String>,
    /// What stays, and why.
    pub left: Vec<String>,
    /// Hooks of other pins, or of none, in whose name nobody renews a lease: only counted, unless they are asked
    /// for ([`Whose::Orphans`]).
    pub orphans: usize,
}

/// Detaches everything that is ours. Nobody may be in charge of the pins. With `look_only` nothing is
/// changed: it is said what would be.
///
/// # Errors
/// When the kernel does not say which links there are; then nothing was changed.
pub fn remove_all(
    pins: &Path,
    (whose, now): (Whose, Nanos),
    look_only: bool,
) -> Result<Removal, Error> {
    objects::quiet();
    let links = links().map_err(|source| Error::Pins { path: pins.to_path_buf(), source })?;
    let mut search = Search {
        maps: maps::pinned_ids(pins).into_iter().collect(),
        orphans: orphaned(&links, now),
        asked: whose,
        now,
        look_only,
        known: BTreeMap::new(),
        places: BTreeMap::new(),
        done: Removal::default(),
    };
    for namespace in namespaces() {
        search.visit(namespace.as_deref());
    }
    for (link, info) in &links {
        search.link(link, *info);
    }
    search.pins(pins);
    if whose == Whose::Orphans {
        search.orphaned_pins(pins);
    }
    Ok(search.done)
}

/// The links of the machine that have to do with interfaces.
fn links() -> io::Result<Vec<(OwnedFd, LinkInfo)>> {
    let mut found = Vec::new();
    let mut id = 0;
    for _ in 0..LINKS_MAX {
        let Some(next) = syscall::next_link(id)? else { break };
        id = next;
        // One that ended meanwhile is none.
        let Ok(link) = syscall::link_by_id(id) else { continue };
        let Ok(info) = syscall::link_info(link.as_fd()) else { continue };
        if info.is_of_interface() {
            found.push((link, info));
        }
    }
    Ok(found)
}

/// The maps of dataplanes that nobody renews the lease of, by their links. A hook of one may use no
/// lease itself: that at egress.
fn orphaned(links: &[(OwnedFd, LinkInfo)], now: Nanos) -> BTreeSet<u32> {
    let used = links.iter().filter_map(|(_, info)| programs::maps_of_ours(info.program).ok()?);
    used.filter(|used| is_orphan(used, now)).flatten().collect()
}

/// Paths of all network namespaces that can be found, each once; `None` is our own.
fn namespaces() -> Vec<Option<PathBuf>> {
    let mut seen: BTreeSet<u64> = namespace::inode().into_iter().collect();
    let mut found = vec![None];
    let named = NAMED.iter().flat_map(|directory| entries(Path::new(directory)));
    // Those of processes: one in a container has no name.
    let processes = entries(Path::new("/proc")).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.bytes().all(|digit| digit.is_ascii_digit())
    });
    for path in named.chain(processes.map(|process| process.join("ns/net"))) {
        if fs::metadata(&path).is_ok_and(|namespace| seen.insert(namespace.ino())) {
            found.push(Some(path));
        }
    }
    found
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Whose a program is.
#[derive(Clone, Copy)]
enum Found {
    /// To be detached.
    Ours,
    /// Of a tidegate in whose name nobody renews a lease, and not asked for.
    Nobodys,
    /// To be left alone.
    Others,
}

struct Search {
    /// The maps that make a program ours.
    maps: BTreeSet<u32>,
    /// Those of dataplanes that nobody renews the lease of.
    orphans: BTreeSet<u32>,
    asked: Whose,
    now: Nanos,
    look_only: bool,
    /// What is known of programs by their numbers.
    known: BTreeMap<u32, Found>,
    /// Where programs of links are, for people.
    places: BTreeMap<(u32, u32), String>,
    done: Removal,
}

impl Search {
    fn visit(&mut self, namespace: Option<&Path>) {
        let looked = namespace::within(namespace, || Ok(self.look(namespace)));
        match looked {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.done.left.push(format!(
                "{}: cannot be looked at: {error}",
                namespace
                    .map_or_else(|| "this namespace".into(), |path| path.display().to_string())
            )),
            // Its process has ended.
            Err(error) => tracing::debug!(%error, "a namespace is gone"),
        }
    }

    /// All interfaces of a namespace; to be called within it.
    fn look(&mut self, namespace: Option<&Path>) -> io::Result<()> {
        let names = namespace::names()?;
        if names.len() > INTERFACES_MAX {
            let (all, shown) = (names.len(), namespace.unwrap_or_else(|| Path::new("")).display());
            self.done.left.push(format!(
                "{shown}: has {all} interfaces, of which {INTERFACES_MAX} were looked at"
            ));
        }
        for name in names.into_iter().take(INTERFACES_MAX) {
            // One that has gone meanwhile has taken its filters with it.
            let Some(index) = namespace::index(&name)? else { continue };
            let interface = Interface::named(name, namespace.map(Path::to_path_buf));
            self.note_places(&interface, index);
            for filter in Role::ALL.map(Role::filter) {
                self.filter(&interface, index, filter);
            }
        }
        Ok(())
    }

    fn note_places(&mut self, interface: &Interface, index: u32) {
        let shown = interface.shown();
        let xdp = syscall::xdp_program(index).ok().flatten();
        self.places.extend(xdp.map(|program| ((program, index), format!("{shown}: xdp"))));
        for (side, name) in [(Side::Ingress, "ingress"), (Side::Egress, "egress")] {
            // Before Linux 6.6 there is no such hook.
            let programs = syscall::tcx_programs(index, side).unwrap_or_default();
            let named = |program| ((program, index), format!("{shown}: tcx {name}"));
            self.places.extend(programs.into_iter().map(named));
        }
    }

    /// A filter at one of our places in clsact.
    fn filter(&mut self, interface: &Interface, index: u32, filter: Filter) {
        let Some(id) = syscall::clsact_program(index, filter).ok().flatten() else { return };
        let shown = interface.shown();
        match self.whose(id) {
            Ok(Found::Ours) => {}
            Ok(Found::Nobodys) => {
                self.done.orphans += 1;
                return;
            }
            Ok(Found::Others) => return,
            Err(source) => {
                let error =
                    Error::Whose { interface: shown, priority: filter.priority, id, source };
                self.done.left.push(error.to_string());
                return;
            }
        }
        let what = format!("interface {shown}: clsact filter (priority {})", filter.priority);
        let removed = if self.look_only { Ok(()) } else { syscall::clsact_detach(index, filter) };
        match removed {
            Err(error) if !is_gone(&error) => {
                let how = removal(interface, filter);
                self.done.left.push(format!("{what}: {error}; remove it with `{how}`"));
            }
            _ => self.done.removed.push(what),
        }
    }

    /// A link, wherever it is.
    fn link(&mut self, link: &OwnedFd, info: LinkInfo) {
        match self.whose(info.program).unwrap_or(Found::Others) {
            Found::Ours => {}
            Found::Nobodys => {
                self.done.orphans += usize::from(info.ifindex != 0);
                return;
            }
            Found::Others => return,
        }
        let place = self.places.get(&(info.program, info.ifindex));
        let place = place.map_or_else(
            || format!("interface number {}: in a namespace without a name", info.ifindex),
            |place| format!("interface {place}"),
        );
        let what = format!("{place} (link {})", info.id);
        // 0: the interface is gone, and only the pin is left.
        let ended = self.look_only || info.ifindex == 0;
        match if ended { Ok(()) } else { syscall::link_detach(link.as_fd()) } {
            Err(error) if !is_gone(&error) => self.done.left.push(format!("{what}: {error}")),
            _ if info.ifindex == 0 => {}
            _ => self.done.removed.push(what),
        }
    }

    fn whose(&mut self, id: u32) -> io::Result<Found> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        let whose = self.find(id)?;
        self.known.insert(id, whose);
        Ok(whose)
    }

    fn find(&mut self, id: u32) -> io::Result<Found> {
        let Some(used) = programs::maps_of_ours(id)? else { return Ok(Found::Others) };
        if used.iter().any(|map| self.maps.contains(map)) {
            return Ok(Found::Ours);
        }
        // One with a lease of its own is evaluated by that, whatever maps it has in common with another.
        let nobodys = match heartbeat(&used) {
            Some(heartbeat) => has_ended(heartbeat, self.now),
            None => used.iter().any(|map| self.orphans.contains(map)),
        };
        if !nobodys {
            return Ok(Found::Others);
        }
        // The filter at egress beside this one has no lease, but maps of one that has.
        self.orphans.extend(used);
        Ok(if self.asked == Whose::Orphans { Found::Ours } else { Found::Nobodys })
    }

    /// Other pins of dataplanes that nobody renews the lease of, wherever they are: whoever has lost the file of
    /// a daemon does not know where.
    fn orphaned_pins(&mut self, done: &Path) {
        let now = self.now;
        let of_nobody = |path: &PathBuf| path != done && is_orphan(&maps::pinned_ids(path), now);
        for path in pins::all().into_iter().filter(of_nobody).collect::<Vec<_>>() {
            // One that just starts, or was stopped, has not renewed its lease; its pins are its own.
            if let Some(_lock) = lock(&path) {
                self.pins(&path);
            }
        }
    }

    /// The pins below the directory, each group in a sentence.
    fn pins(&mut self, pins: &Path) {
        let groups = maps::versions(pins).into_iter().map(|path| (path, "maps"));
        let groups = [(attach::links(pins), "links"), (programs::directory(pins), "programs")]
            .into_iter()
            .chain(groups);
        for (path, kind) in groups {
            let held = entries(&path).count();
            if held == 0 && !path.exists() {
                continue;
            }
            let what = format!("{}: {held} {kind}", path.display());
            match if self.look_only { Ok(()) } else { fs::remove_dir_all(&path) } {
                Ok(()) => self.done.removed.push(what),
                Err(error) => self.done.left.push(format!("{what}: {error}")),
            }
        }
        if self.look_only {
            return;
        }
        let others: Vec<String> = entries(pins).map(|path| path.display().to_string()).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            self.done.left.push(format!("{others}: not made by tidegate, and left alone"));
        } else if pins.exists()
            && let Err(error) = fs::remove_dir(pins)
        {
            self.done.left.push(format!("{}: {error}", pins.display()));
        }
    }
}

/// The lock that a daemon holds on its pins as long as it lives; `None`: one does.
fn lock(pins: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(pins, flags, Mode::empty()).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok().map(|()| directory)
}

/// Whether these maps are those of a dataplane whose lease nobody renews. What cannot be read is not.
fn is_orphan(used: &[u32], now: Nanos) -> bool {
    heartbeat(used).is_some_and(|heartbeat| has_ended(heartbeat, now))
}

fn has_ended(heartbeat: Nanos, now: Nanos) -> bool {
    Lease::at(heartbeat, now).passes(false).is_some()
}

/// The last heartbeat of the dataplane that these maps are of; `None`: they are of none.
fn heartbeat(used: &[u32]) -> Option<Nanos> {
    let named = |wanted: &str| {
        let maps = used.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
        maps.into_iter().find(|map| map.name() == wanted)
    };
    named(CONTROL)?;
    let value = named(LEASE)?.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok()??;
    Some(Nanos(abi::read::<u64>(value.get(..8)?)?))
}

/// Hooks of ours on planned interfaces that belong to other pins, or to none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Somebody renews their lease, or did until a moment ago.
    pub alive: Vec<InForce>,
    /// Nobody does: these were detached (or, where nothing was to be changed, would be).
    pub removed: Vec<String>,
    /// What could not be detached, and why.
    pub left: Vec<String>,
}

/// Hooks that may refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The interface, with its namespace.
    pub interface: String,
    /// The number of the link; `None`: it is a filter of clsact.
    pub link: Option<u32>,
    /// Age of the last heartbeat.
    pub age: Nanos,
}

/// Finds hooks of other tidegates on the interfaces of a plan, and detaches those whose lease has ended:
/// ours would stand beside them. With `look_only` nothing is changed. Filters of clsact are left to
/// the start, which takes their places.
///
/// # Errors
/// When the kernel does not say which links there are.
pub fn leftovers(plan: &Plan, now: Nanos, look_only: bool) -> Result<Leftovers, Error> {
    objects::quiet();
    let pins = plan.settings.pins.clone().unwrap_or_default();
    let links = links().map_err(|source| Error::Pins { path: pins.clone(), source })?;
    let ours: BTreeSet<u32> = maps::pinned_ids(&pins).into_iter().collect();
    let mut found = Leftovers::default();
    for interface in &plan.interfaces() {
        // One that is not there has no hooks; attaching says so.
        let looked = namespace::of(interface, || Ok(hooks_of(&interface.config.name)));
        let Ok(Ok((index, hooks))) = looked else { continue };
        let foreign = hooks.into_iter().filter_map(|(id, hook)| {
            let used = programs::maps_of_ours(id).ok()??;
            (!used.iter().any(|map| ours.contains(map))).then_some((id, hook, used))
        });
        let foreign = Vec::from_iter(foreign);
        for (id, hook, used) in &foreign {
            // A hook at egress has no lease, but maps of one that has.
            let kin =
                |(_, _, others): &&(u32, _, Vec<u32>)| others.iter().any(|m| used.contains(m));
            let mut leases = foreign.iter().filter(kin).filter_map(|(_, _, of)| heartbeat(of));
            let Some(heartbeat) = leases.next() else { continue };
            let interface = interface.shown();
            let its =
                |(_, info): &&(OwnedFd, LinkInfo)| (info.program, info.ifindex) == (*id, index);
            let link = links.iter().find(its);
            if Lease::at(heartbeat, now).passes(false).is_none() {
                let link = link.map(|(_, info)| info.id);
                found.alive.push(InForce { interface, link, age: now.since(heartbeat) });
                continue;
            }
            let Some((link, info)) = link else { continue };
            let what = format!("interface {interface}: {hook} (link {})", info.id);
            match if look_only { Ok(()) } else { syscall::link_detach(link.as_fd()) } {
                Err(error) if !is_gone(&error) => found.left.push(format!("{what}: {error}")),
                _ => found.removed.push(what),
            }
        }
    }
    Ok(found)
}

/// The programs at an interface, and where each is; to be called within its namespace.
fn hooks_of(name: &str) -> io::Result<(u32, Vec<(u32, &'static str)>)> {
    let index = namespace::index(name)?.ok_or(io::ErrorKind::NotFound)?;
    let xdp = syscall::xdp_program(index).ok().flatten();
    let mut hooks: Vec<_> = xdp.map(|id| (id, "xdp")).into_iter().collect();
    for (side, name) in [(Side::Ingress, "tcx ingress"), (Side::Egress, "tcx egress")] {
        // Before Linux 6.6 there is no such hook.
        let programs = syscall::tcx_programs(index, side).unwrap_or_default();
        hooks.extend(programs.into_iter().map(|id| (id, name)));
    }
    let filters = Role::ALL.map(Role::filter).map(|at| syscall::clsact_program(index, at));
    hooks.extend(filters.into_iter().filter_map(|id| Some((id.ok()??, "clsact"))));
    Ok((index, hooks))
}

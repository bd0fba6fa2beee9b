// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks in packets as the daemon keeps them: what this host says, who has said something, and links that are made
//! again. It is no part of what protects: whatever fails here is told, and all else goes on.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use tidegate_bpf::{Dataplane, Error, HostMarks, Interface, Marks, OptionCounts};
use tidegate_config::{Config, InBandConfig};
use tidegate_model::in_band::{InBandState, RouterSaid};
use tidegate_units::Nanos;

/// How often links are looked after.
const LOOK_EVERY: Nanos = Nanos::SECOND;

/// The marks; nothing of them is there unless the configuration says so.
#[derive(Debug, Default)]
pub(super) struct Marked {
    marks: Option<Marks>,
    interfaces: Vec<Interface>,
    /// Whose options are read, by their names.
    routers: Vec<(String, Ipv4Addr)>,
    /// Options are for others: they are not read here.
    is_router: bool,
    /// Why they could not be loaded.
    unloaded: Option<String>,
    /// Where they are not attached, one sentence each.
    unattached: Vec<String>,
    /// What was added to packets and read in them, as of the last tick.
    options: OptionCounts,
    /// Packets for which routers have added options, since the start.
    ever: BTreeMap<Ipv4Addr, u64>,
    /// Why options of routers are not read.
    unread: Option<String>,
    /// What failed in the last tick.
    failed: Option<String>,
    look_at: Nanos,
}

/// The section, where it is for more than a border.
fn section(config: &Config) -> Option<&InBandConfig> {
    config.in_band.as_ref().filter(|in_band| in_band.mark)
}

impl Marked {
    pub(super) fn start(
        config: &Config,
        interfaces: Vec<Interface>,
        dataplane: &Dataplane,
    ) -> Self {
        let Some(bits) = section(config) else { return Self::default() };
        let mut marked = Self { interfaces, ..Self::default() };
        match Marks::load(bits) {
            Ok(marks) => marked.marks = Some(marks),
            Err(error) => marked.unloaded = Some(error.to_string()),
        }
        marked.know(config);
        marked.attach(dataplane);
        marked.doubts().for_each(|text| tracing::warn!("{text}"));
        marked
    }

    /// Why a configuration cannot be followed without a restart.
    pub(super) fn refuses(&self, config: &Config) -> Option<&'static str> {
        let begins = section(config).is_some() && self.marks.is_none() && self.unloaded.is_none();
        begins.then_some(
            "in_band.mark: packets are marked from a restart on: start the daemon anew with it",
        )
    }

    /// Follows a configuration that it does not refuse.
    pub(super) fn apply(
        &mut self,
        config: &Config,
        interfaces: Vec<Interface>,
        dataplane: &Dataplane,
    ) {
        let Some(bits) = section(config) else {
            *self = Self::default();
            return;
        };
        self.interfaces = interfaces;
        if let Some(marks) = &mut self.marks {
            marks.follow(bits);
        }
        self.know(config);
        self.attach(dataplane);
    }

    fn know(&mut self, config: &Config) {
        self.is_router = config.links().next().is_some();
        let known = config.routers_in_band().into_iter();
        self.routers = known.map(|(name, address)| (name.to_owned(), address)).collect();
        self.read();
    }

    /// Says whose options are read.
    fn read(&mut self) {
        let addresses: Vec<_> = self.routers.iter().map(|(_, address)| *address).collect();
        let addresses = (!self.is_router).then_some(addresses.as_slice());
        let known = self.marks.as_mut().map_or(Ok(()), |marks| marks.know(addresses));
        self.unread = known.err().map(|error| error.to_string());
    }

    fn attach(&mut self, dataplane: &Dataplane) {
        if let Some(marks) = &mut self.marks {
            self.unattached = marks.attach(&self.interfaces, Some(dataplane));
        }
    }

    /// Once a tick: says what this host says. Servers that have said since the last call that they are overloaded.
    pub(super) fn tick(
        &mut self,
        now: Nanos,
        says: HostMarks,
        dataplane: &Dataplane,
    ) -> Vec<Ipv4Addr> {
        if now >= self.look_at {
            self.look_at = now + LOOK_EVERY;
            if self.marks.as_ref().is_some_and(|marks| !marks.is_attached()) {
                self.attach(dataplane);
            }
            if self.unread.is_some() {
                self.read();
            }
        }
        let Some(marks) = &mut self.marks else { return Vec::new() };
        let done = said(marks, now, &says);
        self.failed = done.as_ref().err().map(ToString::to_string);
        let Ok((servers, options)) = done else { return Vec::new() };
        for (address, said) in &options.routers {
            let before = self.options.routers.get(address).copied();
            // Fewer than before: it has begun anew.
            let before = before.filter(|before| before.entries <= said.entries);
            let more = said.packets.saturating_sub(before.map_or(0, |before| before.packets));
            *self.ever.entry(*address).or_default() += more;
        }
        self.options = options;
        servers
    }

    /// What was added to packets, and what routers have said in them; `None`: nothing is marked.
    pub(super) fn state(&self) -> Option<InBandState> {
        self.marks.as_ref()?;
        let said = |(router, address): &(String, Ipv4Addr)| {
            let said = self.options.routers.get(address)?;
            let (entries, packets, at) = (said.entries, said.packets, said.at);
            let packets_ever = self.ever.get(address).copied().unwrap_or(0);
            let (router, address) = (router.clone(), *address);
            Some(RouterSaid { router, address, entries, packets, packets_ever, at })
        };
        let OptionCounts { added, no_room, unknown_routers, .. } = self.options;
        let routers = self.routers.iter().filter_map(said).collect();
        Some(InBandState { added, no_room, routers, unknown_routers })
    }

    /// What an operator should know, one sentence each.
    pub(super) fn doubts(&self) -> impl Iterator<Item = String> + '_ {
        let problems =
            self.unloaded.iter().chain(&self.unattached).chain(&self.unread).chain(&self.failed);
        problems.map(|text| format!("in_band: not everything is marked: {text}"))
    }
}

/// Says what this host says, and reads what others have said.
fn said(
    marks: &mut Marks,
    now: Nanos,
    says: &HostMarks,
) -> Result<(Vec<Ipv4Addr>, OptionCounts), Error> {
    marks.say(now, says)?;
    Ok((marks.servers()?, marks.options()?))
}

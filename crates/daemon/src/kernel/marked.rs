// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks in packets as the daemon keeps them: what this host says, who has said something, and links that are made
//! again. It is no part of what protects: whatever fails here is told, and all else goes on.

use std::net::Ipv4Addr;
use tidegate_bpf::{Dataplane, HostMarks, Interface, Marks};
use tidegate_config::{Config, InBandConfig};
use tidegate_units::Nanos;

/// How often links are looked after.
const LOOK_EVERY: Nanos = Nanos::SECOND;

/// The marks; nothing of them is there unless the configuration says so.
#[derive(Debug, Default)]
pub(super) struct Marked {
    marks: Option<Marks>,
    interfaces: Vec<Interface>,
    /// Why they could not be loaded.
    unloaded: Option<String>,
    /// Where they are not attached, one sentence each.
    unattached: Vec<String>,
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
        self.attach(dataplane);
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
        }
        let Some(marks) = &mut self.marks else { return Vec::new() };
        let done = marks.say(now, &says).and_then(|()| marks.servers());
        self.failed = done.as_ref().err().map(ToString::to_string);
        done.unwrap_or_default()
    }

    /// What an operator should know, one sentence each.
    pub(super) fn doubts(&self) -> impl Iterator<Item = String> + '_ {
        let problems = self.unloaded.iter().chain(&self.unattached).chain(&self.failed);
        problems.map(|text| format!("in_band: not everything is marked: {text}"))
    }
}

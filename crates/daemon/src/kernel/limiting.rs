// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit of a destination behind a router: what of the law's word reaches the kernel. The law, who gets a limit, and
//! its bounds are those of `tidegate_control::crowd`.

use super::crowds::Counted;
use tidegate_bpf::policy::{Action, BucketSpec};
use tidegate_bpf::{Error, RouterLimited};
use tidegate_config::Config;
use tidegate_control::crowd::{CrowdLimit, LimitBounds};
use tidegate_model::{Listen, Mode};
use tidegate_units::{Nanos, Rate};

/// What a bucket of the kernel can be.
const BURST: (f64, f64) = (1.0, 1e6);

/// What the operator wants of limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LimitIntent {
    /// Whether refusals are executed; `None`: nothing is limited.
    mode: Option<Mode>,
    /// Connections per second that a destination gets in any case.
    least: f64,
    /// The kill switch.
    released: bool,
    /// The kernel does not know whom no limit refuses.
    unexempted: bool,
    /// Where services of this host listen, and whether these have limits of their own.
    services: Vec<(Vec<Listen>, Mode)>,
    /// Ports that are exempt.
    ports: Vec<u16>,
}

impl LimitIntent {
    pub(super) fn of(config: &Config) -> Self {
        let limit = config.router.as_ref().and_then(|router| router.limit.as_ref());
        let services = config.services.iter().map(|of| (of.listen.clone(), of.mode)).collect();
        Self {
            mode: limit.map(|limit| limit.mode),
            least: limit.map_or(0.0, |limit| limit.least().get()),
            released: false,
            unexempted: false,
            services,
            ports: config.exempt.ports.clone(),
        }
    }

    /// Another mode of a service.
    pub(super) fn set_mode(&mut self, service: usize, mode: Mode) {
        if let Some((_, of)) = self.services.get_mut(service) {
            *of = mode;
        }
    }

    /// The kill switch: no limit holds.
    pub(super) const fn release(&mut self, on: bool) {
        self.released = on;
    }

    /// Exemptions are not in the kernel: no limit holds until they are.
    pub(super) const fn unexempt(&mut self, failed: bool) {
        self.unexempted = failed;
    }

    pub(super) const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// How limits hold at the moment.
    pub(super) fn now(&self) -> Option<Mode> {
        self.mode.filter(|_| !self.released && !self.unexempted)
    }

    /// Why they do not hold, where [`Self::now`] says so.
    pub(super) const fn why_not(&self) -> &'static str {
        match self {
            Self { mode: None, .. } => "limits are not wanted any more",
            Self { released: true, .. } => "everything is released",
            _ => "exemptions could not be written",
        }
    }

    /// Why a destination never gets a limit here, if so: its port is exempt, or the service that listens there limits
    /// it. Of several services the one that names the address counts, as for packets.
    pub(super) fn spares(&self, destination: Listen) -> Option<&'static str> {
        let address = destination.address?;
        let closest = |(listens, mode): &(Vec<Listen>, Mode)| {
            let matches = listens.iter().map(|listen| listen.matches(address, destination.port));
            let best = matches.max().filter(|best| *best > 0)?;
            Some((best, *mode == Mode::Enforce))
        };
        let services = self.services.iter().filter_map(closest);
        match services.max() {
            _ if self.ports.contains(&destination.port) => Some("its port is exempt"),
            Some((_, true)) => Some("the service that listens there is enforced, and limits it"),
            _ => None,
        }
    }
}

/// The limit of a destination that is watched.
#[derive(Debug, Default)]
pub(super) struct Limited {
    bounds: LimitBounds,
    /// What the kernel had counted at the last look.
    counted: RouterLimited,
    /// Connections per second, as the kernel has it.
    rate: Option<f64>,
    /// Whether it has an Abacus filter, where one is wanted.
    filter: Option<bool>,
    /// It had one in the process before.
    resumes: bool,
}

/// What is new at a destination: SYNs that took tokens, and first ones that were refused.
pub(super) type New = RouterLimited;

impl Limited {
    pub(super) fn new(counted: &impl Counted, place: usize) -> Self {
        let counted = counted.limited(place).unwrap_or_default();
        Self { counted, ..Self::default() }
    }

    pub(super) const fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Whether it has an Abacus filter; `None`: there is no limit, or none is wanted.
    pub(super) fn filter(&self) -> Option<bool> {
        self.rate.and(self.filter)
    }

    /// It had one in the process before, and has it again if the law still wants it.
    pub(super) const fn resume(&mut self) {
        self.resumes = true;
    }

    /// Whether it had one up to now.
    pub(super) const fn goes_on(&self) -> bool {
        self.rate.is_some() || self.resumes
    }

    /// What was counted up to now is not looked at.
    pub(super) fn begin_anew(&mut self, counted: &impl Counted, place: usize) {
        self.counted = counted.limited(place).unwrap_or_default();
    }

    /// A tick.
    pub(super) fn tick(&mut self, counted: &impl Counted, place: usize) -> New {
        let now = counted.limited(place).unwrap_or(self.counted);
        let new = New {
            tokens: now.tokens.saturating_sub(self.counted.tokens),
            refused_first: now.refused_first.saturating_sub(self.counted.refused_first),
        };
        self.counted = now;
        new
    }

    /// What the law wants, within its bounds, goes to the kernel. `connected`: in this tick, of all connections.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub(super) fn put(
        &mut self,
        counted: &impl Counted,
        place: usize,
        (period, connected): (Nanos, f64),
        (wanted, intent): (Option<CrowdLimit>, &LimitIntent),
    ) -> Result<(), Error> {
        let held = self.bounds.hold((period, connected), wanted, intent.least);
        self.resumes = false;
        let Some(limit) = held else { return self.lift(counted, place) };
        let burst = limit.burst.round().clamp(BURST.0, BURST.1) as u32;
        let bucket = BucketSpec::new(Rate::per_second(limit.rate), burst, Action::Drop);
        // Also where it fails: what the kernel has may be this one.
        self.rate = Some(limit.rate);
        let set = counted.set_limit(place, Some(&bucket));
        self.filter = counted.has_filter(place);
        set
    }

    /// Ends the limit, if there is one.
    ///
    /// # Errors
    /// When the kernel does not take it: then it is tried again.
    pub(super) fn lift(&mut self, counted: &impl Counted, place: usize) -> Result<(), Error> {
        self.bounds.begin_anew();
        if self.rate.is_some() {
            counted.set_limit(place, None)?;
            self.rate = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    fn intent(services: &[(&str, Mode)], ports: &[u16]) -> LimitIntent {
        let of = |(listen, mode): &(&str, Mode)| (vec![listen.parse().unwrap()], *mode);
        let services = services.iter().map(of).collect();
        LimitIntent { services, ports: ports.to_vec(), ..LimitIntent::default() }
    }

    #[test]
    fn who_has_limits_of_its_own_gets_no_second_one() {
        use Mode::{Enforce, Shadow};
        for (services, ports, spared) in [
            (&[][..], &[][..], false),
            (&[], &[22, 80], true),
            (&[("*:80", Enforce)], &[], true),
            (&[("*:80", Shadow)], &[], false),
            (&[("*:81", Enforce)], &[22], false),
            (&[("192.0.2.2:80", Enforce)], &[], false),
            // The one that names the address evaluates its packets.
            (&[("*:80", Enforce), ("192.0.2.1:80", Shadow)], &[], false),
            (&[("*:80", Shadow), ("192.0.2.1:80", Enforce)], &[], true),
            (&[("[::]:80", Enforce)], &[], false),
        ] {
            let found = intent(services, ports).spares("192.0.2.1:80".parse().unwrap());
            assert_eq!(found.is_some(), spared, "{services:?} {ports:?}");
        }
        let mut intent = intent(&[("*:80", Shadow)], &[]);
        intent.set_mode(0, Enforce);
        assert!(
            intent
                .spares("192.0.2.1:80".parse().unwrap())
                .is_some_and(|why| why.contains("enforced"))
        );
    }
}

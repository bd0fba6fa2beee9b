// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which routes the speaker is to have: a budget, few updates, and none without a lease.
//!
//! BGP sends every change to every router. So a route changes at most once in [`Bounds::between`], and only
//! if its rate is another by [`Bounds::hysteresis`]. What ends is withdrawn at once.

use crate::nlri::Malformed;
use crate::rule::{Action, Route, Rule};
use std::collections::HashMap;
use tidegate_units::{Nanos, Share};

/// What the plan keeps to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Most routes at a time (10): tables for FlowSpec in routers are small. A rule that was withdrawn counts until
    /// `between` has passed.
    pub routes: usize,
    /// A rate that differs by less stays as it was told (20 %).
    pub hysteresis: Share,
    /// Shortest time from one update of a rule to the next (10 s). A withdrawal does not wait.
    pub between: Nanos,
    /// Without [`Plan::want`] for so long, all routes end (3 s).
    pub lease: Nanos,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            routes: 10,
            hysteresis: Share::new(0.2),
            between: Nanos::from_secs(10),
            lease: Nanos::from_secs(3),
        }
    }
}

/// What the speaker is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A route that is new, or has another rate.
    Announce(Route),
    /// A rule that ends.
    Withdraw(Rule),
}

/// Why a route is not told as it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// [`Bounds::routes`] are there, or were a short while ago.
    Budget,
    /// It differs by less than [`Bounds::hysteresis`].
    Hysteresis,
    /// The last update is younger than [`Bounds::between`].
    Between,
    /// The speaker does not take it.
    Refused,
    /// The speaker was not told yet.
    Speaker,
}

impl Withheld {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Hysteresis => "hysteresis",
            Self::Between => "between",
            Self::Refused => "refused",
            Self::Speaker => "speaker",
        }
    }
}

/// A rule that is wanted, or announced.
#[derive(Clone, Debug, PartialEq)]
pub struct Stand {
    /// Which packets.
    pub rule: Rule,
    /// How many shall pass; `None`: it is to end.
    pub wanted: Option<Action>,
    /// How many pass, as the speaker was told; `None`: it is not announced.
    pub told: Option<Action>,
    /// Why the two differ.
    pub withheld: Option<Withheld>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    /// `None`: it was withdrawn, or never taken.
    action: Option<Action>,
    at: Nanos,
    refused: bool,
}

/// Most routes beyond the budget that are remembered to be shown.
const OVER_MAX: usize = 64;

/// The plan. It changes by what the speaker has taken ([`Plan::done`]), not by what it was told.
#[derive(Debug)]
pub struct Plan {
    bounds: Bounds,
    /// In the order in which they were asked for; at most [`Bounds::routes`].
    wanted: Vec<Route>,
    /// Those beyond the budget, at most [`OVER_MAX`].
    over: Vec<Route>,
    told: HashMap<Rule, Told>,
    renewed: Option<Nanos>,
}

impl Plan {
    /// Without routes.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let (wanted, over) = (Vec::new(), Vec::new());
        Self { bounds, wanted, over, told: HashMap::new(), renewed: None }
    }

    /// From now on these routes are to be there, and no others; renews the lease. Gives how many do not fit into
    /// the budget. Routes that are there already come first, then the order of the list.
    ///
    /// # Errors
    /// A rule that cannot be encoded; then nothing changes.
    pub fn want(&mut self, now: Nanos, routes: &[Route]) -> Result<usize, Malformed> {
        let mut all: Vec<&Route> = Vec::new();
        for route in routes {
            route.rule.flow()?;
            // Of two limits for the same packets the first counts.
            if !all.iter().any(|other| other.rule == route.rule) {
                all.push(route);
            }
        }
        all.sort_by_key(|route| !self.is_announced(&route.rule));
        let over = all.len().saturating_sub(self.bounds.routes);
        let left_out = all.iter().skip(self.bounds.routes).take(OVER_MAX);
        self.over = left_out.map(|route| (*route).clone()).collect();
        all.truncate(self.bounds.routes);
        self.wanted = all.into_iter().cloned().collect();
        self.renewed = Some(now);
        Ok(over)
    }

    /// What is to be told now: withdrawals first.
    #[must_use]
    pub fn changes(&self, now: Nanos) -> Vec<Change> {
        let leased = self.renewed.is_some_and(|at| now.since(at) < self.bounds.lease);
        let wanted: &[Route] = if leased { &self.wanted } else { &[] };
        let mut ends: Vec<&Rule> = self
            .told
            .iter()
            .filter(|(rule, told)| {
                told.action.is_some() && !wanted.iter().any(|route| route.rule == **rule)
            })
            .map(|(rule, _)| rule)
            .collect();
        ends.sort_by_key(|rule| rule.to_string());
        let ends = ends.into_iter().map(|rule| Change::Withdraw(rule.clone()));
        // A rule that went holds its place for a while: else ever new rules would be ever new updates.
        let stay = |rule: &Rule| wanted.iter().any(|route| route.rule == *rule);
        let gone = self.told.iter().filter(|(rule, told)| !stay(rule) && self.is_held(now, told));
        let here = wanted.iter().filter(|route| self.told.contains_key(&route.rule)).count();
        let mut free = self.bounds.routes.saturating_sub(gone.count() + here);
        let begins = wanted.iter().filter(|route| {
            let new = !self.told.contains_key(&route.rule);
            let fits = !new || free > 0;
            free -= usize::from(new && fits);
            fits && self.is_due(now, route)
        });
        ends.chain(begins.map(|route| Change::Announce(route.clone()))).collect()
    }

    /// The speaker has taken it.
    pub fn done(&mut self, now: Nanos, change: &Change) {
        let (rule, action) = match change {
            Change::Announce(route) => (&route.rule, Some(route.action)),
            Change::Withdraw(rule) => (rule, None),
        };
        self.told.insert(rule.clone(), Told { action, at: now, refused: false });
        // What was withdrawn is known for as long as it may not come back.
        let told = std::mem::take(&mut self.told);
        self.told = told.into_iter().filter(|(_, told)| self.is_held(now, told)).collect();
    }

    /// The speaker does not take it. It is tried again after [`Bounds::between`]. False: the rule is there with
    /// another rate, or should have ended; then the speaker has to end.
    pub fn refuse(&mut self, now: Nanos, change: &Change) -> bool {
        let Change::Announce(route) = change else { return false };
        if self.is_announced(&route.rule) {
            return false;
        }
        self.told.insert(route.rule.clone(), Told { action: None, at: now, refused: true });
        true
    }

    /// The speaker is another one, which has no routes.
    pub fn forget(&mut self) {
        self.told.clear();
    }

    /// How many routes the speaker has.
    #[must_use]
    pub fn announced(&self) -> usize {
        self.told.values().filter(|told| told.action.is_some()).count()
    }

    /// The rules that are announced, in the order of their text.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let told = self.told.iter().filter(|(_, told)| told.action.is_some());
        let mut rules: Vec<Rule> = told.map(|(rule, _)| rule.clone()).collect();
        rules.sort_by_key(ToString::to_string);
        rules
    }

    /// All rules that are wanted or announced, for people: as they are wanted, then those that are to end.
    #[must_use]
    pub fn stands(&self, now: Nanos) -> Vec<Stand> {
        let told = |rule: &Rule| self.told.get(rule);
        let inside = self.wanted.iter().map(|route| (route, false));
        let over = self.over.iter().map(|route| (route, true));
        let mut stands: Vec<Stand> = inside
            .chain(over)
            .map(|(route, over)| Stand {
                rule: route.rule.clone(),
                wanted: Some(route.action),
                told: told(&route.rule).and_then(|told| told.action),
                withheld: self.withheld(now, route, over),
            })
            .collect();
        for rule in self.rules() {
            if !stands.iter().any(|stand| stand.rule == rule) {
                let told = told(&rule).and_then(|told| told.action);
                stands.push(Stand { rule, wanted: None, told, withheld: None });
            }
        }
        stands
    }

    fn withheld(&self, now: Nanos, route: &Route, over: bool) -> Option<Withheld> {
        let young = |told: &Told| now.since(told.at) < self.bounds.between;
        match self.told.get(&route.rule) {
            Some(Told { action: Some(action), .. }) if *action == route.action => None,
            _ if over => Some(Withheld::Budget),
            Some(told) if told.refused && young(told) => Some(Withheld::Refused),
            Some(Told { action: Some(action), .. }) if !self.differs(*action, route.action) => {
                Some(Withheld::Hysteresis)
            }
            Some(told) if young(told) => Some(Withheld::Between),
            Some(_) => Some(Withheld::Speaker),
            None => {
                let stay = |rule: &Rule| self.wanted.iter().any(|route| route.rule == *rule);
                let here =
                    self.told.iter().filter(|(rule, told)| stay(rule) || self.is_held(now, told));
                let full = here.count() >= self.bounds.routes;
                Some(if full { Withheld::Budget } else { Withheld::Speaker })
            }
        }
    }

    /// Announced, or withdrawn a short while ago.
    fn is_held(&self, now: Nanos, told: &Told) -> bool {
        told.action.is_some() || now.since(told.at) < self.bounds.between
    }

    fn is_announced(&self, rule: &Rule) -> bool {
        self.told.get(rule).is_some_and(|told| told.action.is_some())
    }

    fn is_due(&self, now: Nanos, route: &Route) -> bool {
        let Some(told) = self.told.get(&route.rule) else { return true };
        let differs = told.action.is_none_or(|action| self.differs(action, route.action));
        differs && now.since(told.at) >= self.bounds.between
    }

    fn differs(&self, told: Action, wanted: Action) -> bool {
        let (told, wanted) = match (told, wanted) {
            (Action::Bytes(told), Action::Bytes(wanted))
            | (Action::Packets(told), Action::Packets(wanted)) => (told.get(), wanted.get()),
            _ => return true,
        };
        (wanted - told).abs() >= told * self.bounds.hysteresis.get() && told != wanted
    }
}

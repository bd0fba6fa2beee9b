// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a router refuses clients: their classes, what is done by class, and the filters that Abacus needs.

use super::Router;
use super::limits::{PrefixKey, key};
use crate::abi::{self, RouterActions};
use crate::{Error, classification};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use tidegate_config::{AbacusConfig, Replies, RouterAction, RouterLimitConfig};
use tidegate_policy::{AbacusExactSpec, BucketSpec, CrowdAction};
use zerocopy::IntoBytes;

pub(super) const ACTIONS: &str = "tg_router_actions";
pub(super) const CLASSES: &str = "tg_router_classes";
pub(super) const FILTERS: &str = "tg_router_filters";
pub(super) const ROWS: &str = "tg_router_rows";
/// Tokens for replies: the dataplane's.
pub(super) const REPLIES: &str = "tg_answers";

/// Rows of parameters of one filter.
const ROWS_EACH: usize = abi::ROUTER_FILTER_ROWS;

/// How many filters a router has that is configured like this.
pub(super) fn filters(limit: Option<&RouterLimitConfig>) -> usize {
    if limit.is_some_and(RouterLimitConfig::wants_abacus) { abi::ROUTER_FILTERS } else { 0 }
}

/// A filter: the place of the destination that has it, and which of its rows is in force.
pub(super) type Held = Option<(u32, usize)>;

/// A filter for the limit of a destination, before it is in force.
pub(super) struct Taken {
    filter: usize,
    row: usize,
}

impl Taken {
    /// As the limit names it.
    pub(super) fn number(&self) -> u32 {
        1 + (self.filter * ROWS_EACH + self.row) as u32
    }
}

impl Router {
    /// From now on clients are refused as the configuration says, with no more replies than these. While classes change
    /// a SYN may be refused as one of before.
    ///
    /// # Errors
    /// When a map cannot be written.
    pub fn refuse(&mut self, replies: &Replies) -> Result<(), Error> {
        let limit = self.config.limit.clone();
        let classes = limit.as_ref().map_or(&[][..], |limit| &limit.classes[..]);
        let mut wanted: BTreeMap<PrefixKey, u32> = BTreeMap::new();
        for class in classes {
            let named = u32::from(named(class.action));
            wanted.extend(class.sources.iter().map(|source| (key(source), named)));
        }
        // Long prefixes first: what is in a short one may be refused otherwise, before and after.
        for (source, action) in wanted.iter().rev() {
            if self.classes.get(source) != Some(action) {
                self.maps.write(CLASSES, source, &action.to_ne_bytes())?;
                self.classes.insert(*source, *action);
            }
        }
        let actions = actions(limit.as_ref(), replies);
        self.maps.write(ACTIONS, &0_u32.to_ne_bytes(), actions.as_bytes())?;
        let map = self.maps.get(CLASSES)?;
        let gone = self.classes.keys().filter(|source| !wanted.contains_key(*source));
        for source in gone.copied().collect::<Vec<PrefixKey>>() {
            map.delete(&source).map_err(Error::map(CLASSES))?;
            self.classes.remove(&source);
        }
        Ok(())
    }

    /// Whether the limit of the destination at a place has a filter; `None`: no class has Abacus.
    #[must_use]
    pub fn has_filter(&self, place: usize) -> Option<bool> {
        let wanted = self.config.limit.as_ref().is_some_and(RouterLimitConfig::wants_abacus);
        let is_its = |held: &Held| held.is_some_and(|(of, _)| of as usize == place);
        wanted.then(|| self.held().iter().any(is_its))
    }

    /// A filter for the limit of a destination: the one that it has, with the other row, or one that is free. `None`: no
    /// class has Abacus, or all are taken.
    pub(super) fn take_filter(
        &self,
        place: u32,
        bucket: &BucketSpec,
    ) -> Result<Option<Taken>, Error> {
        let Some(limit) = self.config.limit.as_ref().filter(|limit| limit.wants_abacus()) else {
            return Ok(None);
        };
        let held = self.held().clone();
        let its = held.iter().position(|held| held.is_some_and(|(of, _)| of == place));
        let Some(filter) = its.or_else(|| held.iter().position(Option::is_none)) else {
            return Ok(None);
        };
        let row = held[filter].map_or(0, |(_, row)| (row + 1) % ROWS_EACH);
        if its.is_none() {
            let fresh = vec![0; size_of::<abi::RouterFilter>()];
            let map = self.maps.get(FILTERS)?;
            let written = map.update(&(filter as u32).to_ne_bytes(), &fresh, MapFlags::LOCK);
            written.map_err(Error::map(FILTERS))?;
        }
        let AbacusConfig { schedule, window, period } = limit.abacus();
        let spec = AbacusExactSpec { bucket: bucket.clone(), schedule, window, period };
        let params = spec.filter().map_err(|error| Error::Plan(error.to_string()))?;
        let taken = Taken { filter, row };
        self.maps.write(ROWS, &(taken.number() - 1).to_ne_bytes(), &params)?;
        Ok(Some(taken))
    }

    /// The limit of a destination is in force, with this filter or without one.
    pub(super) fn hold_filter(&self, place: u32, taken: Option<&Taken>) {
        let mut held = self.held();
        for one in held.iter_mut().filter(|held| held.is_some_and(|(of, _)| of == place)) {
            *one = None;
        }
        if let Some(taken) = taken {
            held[taken.filter] = Some((place, taken.row));
        }
    }

    /// How many filters there are.
    pub(super) fn has_filters(&self) -> usize {
        self.held().len()
    }

    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is done by DSCP, and with what no class names.
fn actions(limit: Option<&RouterLimitConfig>, replies: &Replies) -> RouterActions {
    let mut actions = RouterActions {
        replies: classification::answers(replies.rst_per_second),
        ..RouterActions::default()
    };
    let Some(limit) = limit else { return actions };
    actions.others = code(limit.action).into();
    for class in &limit.classes {
        let by_dscp = class.dscp.and_then(|dscp| actions.dscp.get_mut(usize::from(dscp)));
        if let Some(place) = by_dscp {
            *place = named(class.action);
            actions.flags |= u32::from(abi::SERVICE_DSCP);
        }
        if !class.sources.is_empty() {
            actions.flags |= u32::from(abi::SERVICE_PREFIXES);
        }
    }
    actions
}

/// As a prefix or a DSCP says it, where zero is none.
fn named(action: RouterAction) -> u8 {
    1 + code(action)
}

fn code(action: RouterAction) -> u8 {
    match action {
        RouterAction::Drop => CrowdAction::Drop,
        RouterAction::Reset => CrowdAction::Reset,
        RouterAction::Abacus => CrowdAction::Abacus,
    }
    .code()
}

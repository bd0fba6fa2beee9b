// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits on new connections to destinations of a router, and the lease on them.

use super::Router;
use super::actions::{REPLIES, Taken};
use crate::Error;
use crate::abi::{self, RouterControl, RouterPrefix};
use crate::core::Core;
use crate::lately::{self, router_identity};
use crate::maps::Maps;
use crate::plan::mapped;
use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeSet;
use std::mem::offset_of;
use tidegate_model::Mode;
use tidegate_policy::{BucketSpec, CrowdLimit};
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

pub(super) const LIMITS: &str = "tg_router_limits";
pub(super) const BUCKETS: &str = "tg_router_buckets";
pub(super) const CONTROL: &str = "tg_router_control";
/// The dataplane's, with the kill switch; one of the router's own where no dataplane was named.
pub(super) const SWITCH: &str = "tg_control";
/// What a router has of the dataplane: the switch, who was refused lately, and tokens for replies.
pub(super) const SHARED: [&str; 4] = [SWITCH, lately::LINES, lately::TURN, REPLIES];
const EXEMPT: &str = "tg_router_exempt";
const IDENTITY_AT: usize = offset_of!(abi::RouterLimit, identity);
const FILTER_AT: usize = offset_of!(abi::RouterLimit, filter);

/// Takes the maps of a dataplane in the place of the router's own. Its seed.
pub(super) fn share(maps: &mut Maps, dataplane: &Core) -> Result<[u64; 2], Error> {
    for name in SHARED {
        let map = MapHandle::try_from(dataplane.maps.get(name)?).map_err(Error::map(name))?;
        maps.insert(name, map);
    }
    Ok(maps.read::<abi::Control>(SWITCH, 0)?.seed)
}

impl Router {
    /// Limits new connections to the destination at a place, or does not any more. What was used of the limit before
    /// stays used. No SYN sees a half of it. Where a class of clients has Abacus, it gets a filter as well, as long as
    /// there are any.
    ///
    /// # Errors
    /// For a rate or a burst that is out of range, and when the map cannot be written.
    pub fn set_limit(&self, place: usize, limit: Option<&BucketSpec>) -> Result<(), Error> {
        let identity = self.address(place).map_or(0, router_identity);
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let mut value = [0; size_of::<abi::RouterLimit>()];
        let taken = match limit {
            Some(bucket) => self.take_filter(place, bucket)?,
            None => None,
        };
        if let Some(bucket) = limit {
            let limit = CrowdLimit { key: u64::from(place) + 1, bucket: bucket.clone() };
            let compiled = limit.compiled().map_err(|error| Error::Plan(error.to_string()))?;
            value[IDENTITY_AT..][..size_of::<u64>()].copy_from_slice(&identity.to_ne_bytes());
            let filter = taken.as_ref().map_or(0, Taken::number);
            value[FILTER_AT..][..size_of::<u32>()].copy_from_slice(&filter.to_ne_bytes());
            value[size_of::<abi::RouterLimit>() - compiled.len()..].copy_from_slice(&compiled);
        }
        // Under the lock of the value, which is left out of it.
        let map = self.maps.get(LIMITS)?;
        map.update(&place.to_ne_bytes(), &value, MapFlags::LOCK).map_err(Error::map(LIMITS))?;
        self.hold_filter(place, taken.as_ref());
        Ok(())
    }

    /// Renews the lease on all limits: they hold for three seconds from `now`, and less and less until ten. `None`:
    /// they do not hold.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn renew(&self, now: Nanos, mode: Option<Mode>) -> Result<(), Error> {
        let mode = match mode {
            None => abi::TG_ROUTER_OPEN,
            Some(Mode::Shadow) => abi::TG_ROUTER_SHADOW,
            Some(Mode::Enforce) => abi::TG_ROUTER_ENFORCE,
        };
        let control = RouterControl { heartbeat_ns: now.0, mode, pad: 0 };
        self.maps.write(CONTROL, &0_u32.to_ne_bytes(), control.as_bytes())
    }

    /// No limit refuses these sources from now on, and only these. While they change both those of before and the
    /// new ones are exempt.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn exempt(&mut self, sources: &[IpNet]) -> Result<(), Error> {
        // By what the kernel compares: 10.0.0.0/8 and ::ffff:10.0.0.0/104 are one entry.
        let wanted: BTreeSet<PrefixKey> = sources.iter().map(key).collect();
        for source in &wanted {
            if !self.exempt.contains(source) {
                self.maps.write(EXEMPT, source, &1_u32.to_ne_bytes())?;
                self.exempt.insert(*source);
            }
        }
        let map = self.maps.get(EXEMPT)?;
        let gone: Vec<PrefixKey> = self.exempt.difference(&wanted).copied().collect();
        for source in gone {
            map.delete(&source).map_err(Error::map(EXEMPT))?;
            self.exempt.remove(&source);
        }
        Ok(())
    }
}

/// The limits, for tests that read them while they are written.
#[doc(hidden)]
#[derive(Debug)]
pub struct RouterLimits([MapHandle; 2]);

impl Router {
    /// See [`RouterLimits`].
    ///
    /// # Errors
    /// When there is no such map.
    #[doc(hidden)]
    pub fn limits(&self) -> Result<RouterLimits, Error> {
        let map = |name| MapHandle::try_from(self.maps.get(name)?).map_err(Error::map(name));
        Ok(RouterLimits([map(LIMITS)?, map(BUCKETS)?]))
    }
}

impl RouterLimits {
    /// Rate, in thousandths, and depth of the limit at a place, as a SYN finds them.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn of(&self, place: u32) -> Result<(u64, u64), Error> {
        let value =
            self.0[0].lookup(&place.to_ne_bytes(), MapFlags::LOCK).map_err(Error::map(LIMITS));
        let limit = value?.and_then(|value| abi::read::<abi::RouterLimit>(&value));
        let limit = limit.ok_or_else(|| Error::Layout { map: LIMITS.into() })?.limit;
        Ok((limit.bucket.rate_milli, limit.bucket.depth))
    }

    /// What is used of the limit at a place, in picotokens, and since when it refills.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn used(&self, place: u32) -> Result<(u64, Nanos), Error> {
        let value = self.0[1].lookup(&place.to_ne_bytes(), MapFlags::LOCK);
        let bucket = value.map_err(Error::map(BUCKETS))?;
        let bucket = bucket.and_then(|value| abi::read::<abi::RouterBucket>(&value));
        let bucket = bucket.ok_or_else(|| Error::Layout { map: BUCKETS.into() })?.bucket.bucket;
        Ok((bucket.used, Nanos(bucket.then_ns)))
    }
}

/// The bytes of a prefix as the kernel finds it.
pub(super) type PrefixKey = [u8; size_of::<RouterPrefix>()];

/// A prefix as the kernel finds it, IPv4 mapped into IPv6: a short one of IPv6 has IPv4 in it.
pub(super) fn key(source: &IpNet) -> PrefixKey {
    let source = source.trunc();
    let beyond = if source.addr().is_ipv4() { 96 } else { 0 };
    let bits = abi::ROUTER_PREFIX_BITS + beyond + u32::from(source.prefix_len());
    let mut key = [0; size_of::<RouterPrefix>()];
    let whole = RouterPrefix { bits, pad: 0, addr: mapped(source.network()) };
    key.copy_from_slice(whole.as_bytes());
    key
}

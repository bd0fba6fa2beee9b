// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the plan to the tables of the hooks. The tables have two slots; one is in force, the other
//! is filled and then put in force by one number: no packet sees a mixture.

use crate::abi::{self, BucketParams, Listen, ListenKey, PrefixKey, Table};
use crate::maps::Maps;
use crate::plan::{keys, mapped};
use crate::{Error, Plan, listeners, source_prefixes};
use ipnet::IpNet;
use libbpf_rs::MapCore;
use std::mem::offset_of;
use std::net::Ipv4Addr;
use tidegate_model::{PRIORITY_DEFAULT, SERVICES_MAX, service_identity};
use tidegate_policy::TOKEN;
use zerocopy::{IntoBytes, transmute};

/// Picotokens are milli-tokens per second times nanoseconds; a full bucket is a quarter second's.
const ANSWER_BURST_SHARE: u64 = 4;

/// Fills a slot that is not in force.
pub(crate) fn fill(maps: &Maps, plan: &Plan, slot: u8, gauges: &[u8]) -> Result<(), Error> {
    clear(maps, slot)?;
    for (index, service) in plan.config.services.iter().enumerate() {
        for listen in &service.listen {
            let value = listen_value(plan, index, listen.port);
            for (addr, port) in keys(listen) {
                let proto = listen.protocol.number();
                let key = ListenKey { addr: transmute!(addr), port, proto, slot };
                maps.write("tg_listens", key.as_bytes(), value.as_bytes())?;
            }
        }
        for (class, sources) in service.classes.iter().map(|class| &class.sources).enumerate() {
            for source in sources {
                let key = prefix_key(slot, index as u8, source);
                maps.write("tg_prefixes", key.as_bytes(), &(class as u32 + 1).to_ne_bytes())?;
            }
        }
    }
    for source in &plan.config.exempt.sources {
        let key = prefix_key(slot, SERVICES_MAX as u8, source);
        maps.write("tg_prefixes", key.as_bytes(), &1_u32.to_ne_bytes())?;
    }
    let slot = u32::from(slot).to_ne_bytes();
    maps.write("tg_listeners", &slot, &listeners::table(plan))?;
    let mut table = table(plan, gauges);
    if let Some(prefixes) = source_prefixes::tables(plan) {
        maps.write("tg_src_prefixes", &slot, &prefixes)?;
        table.flags |= abi::TABLE_SRC_PREFIXES;
    }
    maps.write("tg_tables", &slot, table.as_bytes())
}

/// What listens at a port of a service.
pub(crate) fn listen_value(plan: &Plan, service: usize, port: u16) -> Listen {
    let never = plan.config.exempt.ports.contains(&port);
    let flags = if never { abi::LISTEN_EXEMPT } else { 0 };
    Listen { service: service as u8, flags, pad: [0; 2] }
}

fn prefix_key(slot: u8, service: u8, source: &IpNet) -> PrefixKey {
    let mapping = if matches!(source, IpNet::V4(_)) { 96 } else { 0 };
    PrefixKey {
        bits: abi::PREFIX_BITS + mapping + u32::from(source.prefix_len()),
        slot,
        service,
        addr: mapped(source.network()),
        pad: [0; 2],
    }
}

/// Removes what an earlier plan left in a slot.
fn clear(maps: &Maps, slot: u8) -> Result<(), Error> {
    let slots =
        [("tg_listens", offset_of!(ListenKey, slot)), ("tg_prefixes", offset_of!(PrefixKey, slot))];
    for (name, at) in slots {
        let map = maps.get(name)?;
        let keys: Vec<Vec<u8>> = map.keys().filter(|key| key[at] == slot).collect();
        for key in keys {
            map.delete(&key).map_err(Error::map(name))?;
        }
    }
    Ok(())
}

/// How many replies may be sent, of each CPU.
pub(crate) fn answers(per_second: u32) -> BucketParams {
    if per_second == 0 {
        return BucketParams::default();
    }
    let tokens = (u64::from(per_second) / ANSWER_BURST_SHARE).clamp(1, 1_000_000);
    let rate_milli = u64::from(per_second) * 1000;
    let depth = tokens * TOKEN;
    BucketParams { rate_milli, depth, full_ns: depth.div_ceil(rate_milli) }
}

fn table(plan: &Plan, gauges: &[u8]) -> Box<Table> {
    let mut table = Box::new(Table {
        flags: if plan.config.exempt.sources.is_empty() { 0 } else { abi::TABLE_EXEMPT },
        sample_admitted: plan.settings.sample_admitted,
        sample_refused: plan.settings.sample_refused,
        answers: answers(plan.config.replies.rst_per_second),
        answers_proved: answers(plan.proved()),
        ..Table::default()
    });
    for (index, service) in plan.config.services.iter().enumerate() {
        let entry = &mut table.service[index];
        entry.gauge = gauges.get(index).copied().unwrap_or_default();
        entry.identity = service_identity(&service.name);
        entry.priority = [PRIORITY_DEFAULT; tidegate_model::CLASSES_MAX];
        for (class, number) in service.classes.iter().zip(1_u8..) {
            entry.priority[usize::from(number)] = class.priority;
            let by_dscp = class.dscp.and_then(|dscp| entry.dscp.get_mut(usize::from(dscp)));
            if let Some(class) = by_dscp {
                *class = number;
                entry.flags |= abi::SERVICE_DSCP;
            }
            if !class.sources.is_empty() {
                entry.flags |= abi::SERVICE_PREFIXES;
            }
        }
        for (addr, port) in service.listen.iter().flat_map(keys) {
            let any = addr == [0; 16] || addr == mapped(Ipv4Addr::UNSPECIFIED.into());
            let bits = if any { abi::PORT_ANY } else { abi::PORT_EXACT };
            table.ports[usize::from(port >> 2)] |= bits << ((port & 3) * 2);
        }
    }
    table
}

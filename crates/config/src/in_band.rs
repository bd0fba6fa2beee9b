// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `in_band`: marks of congested routers and overloaded servers in packets (NetDraino). Whoever sends
//! packets can set them, so they are cleared where packets come from outside.

use super::error::{ConfigError, step};
use super::shape::Places;
use super::text;
use super::types::{Config, Side};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};

/// The highest bit of a DSCP.
const BIT_MAX: u8 = 5;
/// An option is added to one packet in so many. To each it would be too many, and one in more shows nothing in time.
const ONE_IN_RANGE: (u16, u16) = (2, 1024);
/// From here on addresses are of groups, reserved, or of everybody.
const FIRST_MULTICAST: u8 = 224;
/// As in the testbed of the paper: `p_a` 0.125.
const ONE_IN_DEFAULT: u16 = 8;

/// The bits of the DSCP that are marks. A packet is marked only if no other bit of its DSCP is set: a DSCP with
/// others is a class of traffic, and stays as it is. IPv4 only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InBandConfig {
    /// The bit by which a router says that it is congested (RCN); 0 is the lowest of the DSCP.
    #[schemars(range(min = 0, max = BIT_MAX))]
    pub router_bit: u8,
    /// The bit by which a server says that it is overloaded (SCN).
    #[schemars(range(min = 0, max = BIT_MAX))]
    pub server_bit: u8,
    /// Whether this host sets and reads marks, on all interfaces (Linux 6.6): as a router that is congested,
    /// and as a server that refuses. A mark makes a router send its notice sooner, and add its `option`.
    /// Changes by a restart only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mark: bool,
    /// As a router, with `mark`: where it is congested it adds an IPv4 option (number 158) with its address to some
    /// packets for servers that have said by marks that they are overloaded. They show it, and decide nothing by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option: Option<OptionConfig>,
}

/// The option that a congested router adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptionConfig {
    /// This router's address, as the servers have it under `report_to`: they take no other for it.
    #[schemars(with = "text::Ipv4Text")]
    pub address: Ipv4Addr,
    /// It is added to one packet in so many, at random.
    #[serde(default = "one_in")]
    #[schemars(range(min = ONE_IN_RANGE.0, max = ONE_IN_RANGE.1))]
    pub one_in: u16,
}

const fn one_in() -> u16 {
    ONE_IN_DEFAULT
}

impl InBandConfig {
    /// Both bits, as a DSCP.
    #[must_use]
    pub const fn marks(&self) -> u8 {
        (1 << self.router_bit | 1 << self.server_bit) & 0x3f
    }

    /// Whether a packet with this DSCP is marked.
    #[must_use]
    pub const fn is_mark(&self, dscp: u8) -> bool {
        dscp != 0 && dscp & !self.marks() == 0
    }
}

pub(super) fn check(config: &Config, places: &Places) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    let mut fault = |path: &str, message: String| errors.push(places.error(path, message));
    let border = config.interfaces.iter().position(|interface| interface.border);
    let Some(in_band) = &config.in_band else {
        if let Some(i) = border {
            let why = "there are no marks to clear: the section in_band is missing";
            fault(&format!("interfaces[{i}].border"), why.into());
        }
        return errors;
    };
    if in_band.router_bit == in_band.server_bit {
        let why = format!("found {}, which is router_bit already", in_band.server_bit);
        fault("in_band.server_bit", why);
    }
    if border.is_none() && !in_band.mark {
        let why = "it has no effect: no interface has border: true, and mark is false";
        fault("in_band", why.into());
    }
    if let Some(option) = &in_band.option {
        check_option(config, (in_band, option), &mut fault);
    }
    for (i, interface) in config.interfaces.iter().enumerate() {
        if interface.border && interface.side == Side::Servers {
            let why = "an interface with side: servers has no hook; leave the key out";
            fault(&format!("interfaces[{i}].border"), why.into());
        }
    }
    for service in &config.services {
        for (i, class) in service.classes.iter().enumerate() {
            if let Some(dscp) = class.dscp.filter(|dscp| in_band.is_mark(*dscp)) {
                let path = format!("services.{}.classes[{i}].dscp", step(&service.name));
                fault(&path, format!("found {dscp}, which is a mark by in_band"));
            }
        }
    }
    errors
}

fn check_option(
    config: &Config,
    (in_band, option): (&InBandConfig, &OptionConfig),
    fault: &mut impl FnMut(&str, String),
) {
    if !in_band.mark {
        fault("in_band.option", "it has no effect: mark is false".into());
    } else if config.links().next().is_none() {
        let why = "it has no effect: no interface has side: servers, so this host is no router";
        fault("in_band.option", why.into());
    }
    let address = option.address;
    let many = address.octets()[0] >= FIRST_MULTICAST;
    if many || address.is_unspecified() || address.is_loopback() {
        let why = format!("found {address}; allowed: the address of this router for its servers");
        fault("in_band.option.address", why);
    }
}

impl Config {
    /// Routers to which this host reports, by name, and their IPv4 addresses: options of others say nothing.
    #[must_use]
    pub fn routers_in_band(&self) -> Vec<(&str, Ipv4Addr)> {
        let targets = self.cluster.iter().flat_map(|cluster| &cluster.report_to);
        let of = targets.filter_map(|target| match target.address.0.ip() {
            IpAddr::V4(address) => Some((target.name.as_str(), address)),
            IpAddr::V6(_) => None,
        });
        of.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dscp_with_another_bit_is_no_mark() {
        let in_band = InBandConfig { router_bit: 1, server_bit: 2, mark: false, option: None };
        assert_eq!(in_band.marks(), 6);
        let marks: Vec<u8> = (0..64).filter(|dscp| in_band.is_mark(*dscp)).collect();
        assert_eq!(marks, [2, 4, 6]);
    }
}

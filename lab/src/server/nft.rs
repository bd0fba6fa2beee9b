// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits by nftables: what an operator does today. Of new connections in the server's namespace, and of
//! datagrams wherever they pass.

use crate::error::{LabError, Result};
use crate::topology::{self, Role};
use std::net::SocketAddrV4;

/// Where the rule sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NftHook {
    /// Input of the IP layer: the usual place.
    Input,
    /// Ingress of the device: earlier and cheaper.
    Netdev,
}

/// A limit on SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NftLimit {
    /// Where.
    pub hook: NftHook,
    /// Port of the service.
    pub port: u16,
    /// New connections per second.
    pub rate: u32,
    /// Burst in packets (nftables' default is 5).
    pub burst: u32,
    /// RST instead of a silent drop.
    pub reject: bool,
}

/// A limit in force; removed by drop.
#[derive(Debug)]
pub struct NftRule {
    id: String,
    table: &'static str,
}

/// The action of a rule above its limit, and the table that holds it.
fn ruleset(limit: &NftLimit) -> (&'static str, String) {
    let NftLimit { port, rate, burst, .. } = limit;
    let action = if limit.reject { "reject with tcp reset" } else { "drop" };
    let (table, hook) = match limit.hook {
        NftHook::Input => ("inet tglimit", "hook input priority 0".to_owned()),
        NftHook::Netdev => {
            let device = topology::SERVER_INTERFACE;
            ("netdev tglimit", format!("hook ingress device \"{device}\" priority 0"))
        }
    };
    let text = format!(
        "table {table} {{\n chain new {{\n  type filter {hook}; policy accept;\n  \
         tcp dport {port} tcp flags & (fin|syn|rst|ack) == syn \
         limit rate over {rate}/second burst {burst} packets counter {action}\n }}\n}}\n"
    );
    (table, text)
}

pub(crate) fn apply(id: &str, limit: &NftLimit) -> Result<NftRule> {
    let (table, text) = ruleset(limit);
    topology::inside(id, Role::Server, &["nft", "-f", "-"], &text)?;
    let rule = NftRule { id: id.to_owned(), table };
    // A rule that was silently not taken would measure nothing: look that it counts.
    rule.refused()?;
    Ok(rule)
}

impl NftRule {
    /// How many packets it has refused.
    ///
    /// # Errors
    /// When the rule is not there.
    pub fn refused(&self) -> Result<u64> {
        let (family, name) = self.table.split_once(' ').unwrap_or(("inet", self.table));
        let command = ["nft", "-j", "list", "table", family, name];
        let json = topology::inside(&self.id, Role::Server, &command, "")?;
        let parsed: serde_json::Value = serde_json::from_str(&json)
            .map_err(|e| LabError::Missing(format!("nftables counter: {e}")))?;
        find_counter(&parsed)
            .ok_or_else(|| LabError::Missing(format!("a counter in nftables table {}", self.table)))
    }
}

/// The first counter in nft's JSON.
fn find_counter(value: &serde_json::Value) -> Option<u64> {
    counters(value).first().copied()
}

/// All counters in nft's JSON, in the order of the rules: packets.
fn counters(value: &serde_json::Value) -> Vec<u64> {
    all_counters(value).into_iter().map(|(packets, _)| packets).collect()
}

/// Packets and bytes.
fn all_counters(value: &serde_json::Value) -> Vec<(u64, u64)> {
    let rules = value.get("nftables").and_then(serde_json::Value::as_array);
    let rules = rules.into_iter().flatten();
    let expressions = rules.filter_map(|r| r.get("rule")?.get("expr")?.as_array());
    let counter = |e: &serde_json::Value| {
        let counter = e.get("counter")?;
        Some((counter.get("packets")?.as_u64()?, counter.get("bytes")?.as_u64()?))
    };
    expressions.flatten().filter_map(counter).collect()
}

/// Packets and bytes of all counters of a table of the family `inet`, in the order of its rules.
pub(crate) fn counts_of(net: &str, table: &str) -> Result<Vec<(u64, u64)>> {
    let json = topology::within(net, &["nft", "-j", "list", "table", "inet", table], "")?;
    let parsed: serde_json::Value = serde_json::from_str(&json)
        .map_err(|e| LabError::Missing(format!("nftables counters: {e}")))?;
    Ok(all_counters(&parsed))
}

/// Deletes such a table.
pub(crate) fn delete(net: &str, table: &str) {
    // Gone with the namespace otherwise.
    let _ = topology::within(net, &["nft", "-f", "-"], &format!("delete table inet {table}\n"));
}

/// Datagrams for a server, where a rule of ours meets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Within the limit.
    pub passed: u64,
    /// Above it.
    pub refused: u64,
}

/// A limit on datagrams; removed by drop.
#[derive(Debug)]
pub struct DatagramRule {
    net: String,
    limited: bool,
}

const DATAGRAMS: &str = "tgdatagrams";

/// The rules for datagrams for `to`: above a rate they are dropped. `ends`: nobody gets the others either.
fn datagram_ruleset(to: SocketAddrV4, rate: Option<u32>, ends: bool) -> String {
    let these = format!("ip daddr {} udp dport {}", to.ip(), to.port());
    let limit = rate.map(|rate| {
        format!("  {these} limit rate over {rate}/second burst 5 packets counter drop\n")
    });
    let last = if ends { "drop" } else { "accept" };
    format!(
        "table inet {DATAGRAMS} {{\n chain datagrams {{\n  type filter hook prerouting priority 0; policy accept;\n\
         {}  {these} counter {last}\n }}\n}}\n",
        limit.unwrap_or_default()
    )
}

/// Limits datagrams in the namespace that lies at `net`, or counts them.
pub(crate) fn limit_datagrams(
    net: String,
    (to, ends): (SocketAddrV4, bool),
    rate: Option<u32>,
) -> Result<DatagramRule> {
    topology::within(&net, &["nft", "-f", "-"], &datagram_ruleset(to, rate, ends))?;
    let rule = DatagramRule { net, limited: rate.is_some() };
    rule.counts()?;
    Ok(rule)
}

impl DatagramRule {
    /// What it has counted.
    ///
    /// # Errors
    /// When the rule is not there.
    pub fn counts(&self) -> Result<DatagramCounts> {
        let command = ["nft", "-j", "list", "table", "inet", DATAGRAMS];
        let json = topology::within(&self.net, &command, "")?;
        let parsed: serde_json::Value = serde_json::from_str(&json)
            .map_err(|e| LabError::Missing(format!("nftables counters: {e}")))?;
        match (self.limited, &counters(&parsed)[..]) {
            (true, [refused, passed]) => Ok(DatagramCounts { passed: *passed, refused: *refused }),
            (false, [passed]) => Ok(DatagramCounts { passed: *passed, refused: 0 }),
            (_, found) => Err(LabError::Missing(format!("counters of {DATAGRAMS}: {found:?}"))),
        }
    }
}

impl Drop for DatagramRule {
    fn drop(&mut self) {
        let text = format!("delete table inet {DATAGRAMS}\n");
        // Gone with the namespace otherwise.
        let _ = topology::within(&self.net, &["nft", "-f", "-"], &text);
    }
}

impl Drop for NftRule {
    fn drop(&mut self) {
        let text = format!("delete table {}\n", self.table);
        // Gone with the namespace otherwise.
        let _ = topology::inside(&self.id, Role::Server, &["nft", "-f", "-"], &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_above_the_rate_are_dropped_and_all_are_counted() {
        let to = "10.64.5.2:80".parse().unwrap();
        let limited = datagram_ruleset(to, Some(50), true);
        let rules: Vec<&str> = limited.lines().map(str::trim).collect();
        let these = "ip daddr 10.64.5.2 udp dport 80";
        let limit = format!("{these} limit rate over 50/second burst 5 packets counter drop");
        assert_eq!(rules[3..5], [limit, format!("{these} counter drop")]);
        let counted = datagram_ruleset(to, None, false);
        assert!(counted.contains(&format!("{these} counter accept")), "{counted}");
        assert!(!counted.contains("limit"), "{counted}");
    }

    #[test]
    fn counters_come_in_the_order_of_the_rules() {
        let rule = |packets: u64| serde_json::json!({"rule": {"expr": [{"match": {}}, {"counter": {"packets": packets, "bytes": 1}}]}});
        let all = serde_json::json!({"nftables": [{"table": {}}, rule(3), rule(8)]});
        assert_eq!(counters(&all), [3, 8]);
        assert_eq!(all_counters(&all)[1], (8, 1));
        assert_eq!(find_counter(&all), Some(3));
        assert_eq!(find_counter(&serde_json::json!({})), None);
    }
}

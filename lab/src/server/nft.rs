// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit of new connections by nftables in the server's namespace: what an operator does today.

use crate::error::{LabError, Result};
use crate::topology::{self, Role};

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
    let rules = value.get("nftables")?.as_array()?;
    let expressions = rules.iter().filter_map(|r| r.get("rule")?.get("expr")?.as_array());
    expressions.flatten().find_map(|e| e.get("counter")?.get("packets")?.as_u64())
}

impl Drop for NftRule {
    fn drop(&mut self) {
        let text = format!("delete table {}\n", self.table);
        // Gone with the namespace otherwise.
        let _ = topology::inside(&self.id, Role::Server, &["nft", "-f", "-"], &text);
    }
}

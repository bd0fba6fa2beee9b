// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The product as the gate of a proxy: no interfaces, no privileges, the configuration of
//! docs/gateways.md, and nothing said about the service.

use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use crate::product::{self, Product};
use crate::server::EdgeProxy;
use serde_json::{Value, json};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

/// Nobody: no user of a machine, and no capabilities.
const NOBODY: u32 = 65_534;

/// A running gate; killed by drop.
#[derive(Debug)]
pub struct Gate {
    /// The daemon.
    pub product: Product,
    /// Where the proxy asks.
    pub(crate) ask: PathBuf,
    /// Where it reports.
    pub(crate) report: PathBuf,
}

pub(crate) fn start(lab: &Lab, program: &Path, proxy: &EdgeProxy) -> Result<Gate> {
    let Some(adapter) = proxy.adapter() else {
        return Err(LabError::Plan(format!("{proxy:?} cannot ask")));
    };
    let dir = lab.private_dir("gate")?;
    chown(&dir, Some(NOBODY), Some(NOBODY)).map_err(LabError::io("give the gate its directory"))?;
    let (ask, report) = (dir.join("edge.sock"), dir.join("edge.log"));
    let (socket, file) = (dir.join("control.sock"), dir.join("tidegate.yaml"));
    let config = config(adapter, (&ask, &report), &socket);
    os::write(&file, config.to_string())?;
    let product = product::start_as(lab, (program, Some(NOBODY)), &file, &socket)?;
    let gate = Gate { product, ask, report };
    os::wait_or_fail("the gate to serve", START_LIMIT, Some(gate.product.process().log()), || {
        gate.serves()
    })?;
    Ok(gate)
}

/// The five minutes of docs/gateways.md, enforced.
fn config(adapter: &str, (ask, report): (&Path, &Path), socket: &Path) -> Value {
    let unix = |path: &Path| format!("unix:{}", path.display());
    let mut edge =
        json!({"adapter": adapter, "listen": unix(ask), "routes": [{"service": "shop"}]});
    // Envoy reports where it asks.
    if adapter != "envoy" {
        edge["completions"] = json!(unix(report));
    }
    json!({
        "services": {"shop": {"mode": "enforce"}},
        "gateways": {"edge": edge},
        "daemon": {"socket": socket, "http": "off"},
    })
}

impl Gate {
    /// Whether all its listeners are open.
    fn serves(&self) -> bool {
        let Ok(status) = self.product.status() else { return false };
        let gateways = status.pointer("/gateways/gateways").and_then(Value::as_array);
        let open = |gateway: &Value| gateway["problem"].as_str().is_none_or(str::is_empty);
        gateways.is_some_and(|all| !all.is_empty() && all.iter().all(open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is said about the service but that it is there; Envoy has one address.
    #[test]
    fn the_configuration_is_that_of_the_documentation() {
        let of =
            |adapter| config(adapter, (Path::new("/x/a"), Path::new("/x/b")), Path::new("/x/c"));
        let nginx = of("nginx");
        assert_eq!(nginx["services"], json!({"shop": {"mode": "enforce"}}));
        assert_eq!(nginx["gateways"]["edge"]["completions"], json!("unix:/x/b"));
        assert!(of("envoy")["gateways"]["edge"].get("completions").is_none());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One arm of the comparison: a fresh server and whatever protects it.

use super::scenario::ServerSpec;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tidegate_lab::{
    Front, FrontKind, Lab, NftHook, NftLimit, NftRule, Product, ProductConfig, Server,
};
use tidegate_units::Nanos;

/// Port of the server where a proxy stands in front of it.
const BEHIND: u16 = 8080;
/// A short `ListenBacklog`, as an operator sets it who wants failures early.
const BACKLOG_SHORT: u32 = 5;
/// nftables' default burst of a limit, in packets.
const NFT_BURST: u32 = 5;
/// Arms of tidegate with a rate set by hand.
const FIXED: &str = "fixed-";
/// How long HAProxy lets a request wait: the `timeout queue` of its examples.
const QUEUE: Nanos = Nanos::from_secs(5);
/// Where `cargo xtask setup --rivals` puts Envoy; the variable names another place.
const ENVOY: (&str, &str) = ("TIDEGATE_ENVOY", "target/rivals/envoy");

/// What was measured before: what an operator would set limits by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Answers per second.
    pub(crate) capacity: f64,
    /// The fewest clients of a closed loop that reach it.
    pub(crate) clients: u32,
}

/// Where, what and by which program.
pub(crate) struct Place<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) server: &'a ServerSpec,
    pub(crate) program: &'a Path,
    /// The request rules of the service; null for none.
    pub(crate) requests: Value,
}

/// What runs; ended by [`Arm::end`], or by drop.
pub(crate) struct Arm {
    // In this order they are dropped: what stands in front goes first.
    product: Option<Product>,
    front: Option<Front>,
    rule: Option<NftRule>,
    server: Server,
}

impl Arm {
    /// Starts one: `none`; `drop` or `reject` (tidegate with its default configuration); `fixed-` and
    /// a policy (tidegate with the capacity as its rate, and `drop` where it has an action); or a rival: `backlog`, `nft`,
    /// `nft-reject`, `haproxy`, `nginx`, `envoy`.
    pub(crate) fn start(place: &Place<'_>, variant: &str, known: Known) -> Result<Self> {
        let port = if matches!(variant, "haproxy" | "nginx" | "envoy") { BEHIND } else { 80 };
        let backlog = (variant == "backlog").then_some(BACKLOG_SHORT);
        let server = place.server.start(place.lab, port, backlog).context("the server")?;
        let mut arm = Self { product: None, front: None, rule: None, server };
        match variant {
            "none" | "backlog" => {}
            "drop" | "reject" => {
                arm.product = Some(product(place, &json!({"action": variant}), &json!({}))?);
            }
            _ if variant.starts_with(FIXED) => {
                let name = &variant[FIXED.len()..];
                // The Abacus filters choose between drop and reject by themselves.
                let policy = if name.starts_with("abacus") {
                    json!({"name": name})
                } else {
                    json!({"name": name, "action": "drop"})
                };
                let control = json!({"name": "fixed", "rate": known.capacity.max(1.0)});
                arm.product = Some(product(place, &policy, &control)?);
            }
            "nft" | "nft-reject" => {
                let limit = NftLimit {
                    hook: NftHook::Input,
                    port: 80,
                    rate: known.capacity.floor().max(1.0) as u32,
                    burst: NFT_BURST,
                    reject: variant == "nft-reject",
                };
                arm.rule = Some(place.lab.limit_by_nft(&limit).context("nftables")?);
            }
            _ => {
                let kind = front(variant, known)?;
                let front = place.lab.start_front(&kind, &arm.server, 80);
                arm.front = Some(front.with_context(|| variant.to_owned())?);
            }
        }
        Ok(arm)
    }

    /// Where the crowd goes.
    pub(crate) fn server(&self) -> &Server {
        self.front.as_ref().map_or(&self.server, |front| &front.server)
    }

    /// The product, where it runs.
    pub(crate) const fn product(&self) -> Option<&Product> {
        self.product.as_ref()
    }

    /// Ends it in good order.
    pub(crate) fn end(mut self) -> Result<()> {
        self.product.take().map_or(Ok(()), Product::stop).context("tidegate does not end")
    }
}

fn product(place: &Place<'_>, policy: &Value, control: &Value) -> Result<Product> {
    let mut web = json!({"mode": "enforce", "listen": ["*:80"], "policy": policy});
    if control.as_object().is_some_and(|keys| !keys.is_empty()) {
        web["control"] = control.clone();
    }
    if !place.requests.is_null() {
        web["requests"] = place.requests.clone();
    }
    let services = json!({"web": web});
    let config = ProductConfig { services, ..ProductConfig::one("web", &[]) };
    place.lab.start_product(place.program, &config).context("tidegate")
}

fn front(variant: &str, known: Known) -> Result<FrontKind> {
    Ok(match variant {
        "haproxy" => FrontKind::Haproxy { maxconn: known.clients, queue: QUEUE },
        "nginx" => FrontKind::NginxLimitConn { connections: known.clients },
        "envoy" => FrontKind::Envoy { program: envoy()? },
        other => bail!("there is no variant {other:?}"),
    })
}

fn envoy() -> Result<PathBuf> {
    let path = std::env::var_os(ENVOY.0).map_or_else(|| PathBuf::from(ENVOY.1), PathBuf::from);
    if !path.is_file() {
        bail!("{} is not there: cargo xtask setup --rivals, or set {}", path.display(), ENVOY.0);
    }
    Ok(path)
}

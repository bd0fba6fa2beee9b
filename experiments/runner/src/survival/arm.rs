// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One arm of the comparison: a fresh server and whatever protects it.

use super::scenario::ServerSpec;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tidegate_lab::{
    FailsafePolicy, Front, FrontKind, Lab, NftHook, NftLimit, NftRule, Product, ProductConfig,
    Server,
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
/// When a response is a failure for failsafe-go's throttler: the objective.
const FAILED_AFTER: Nanos = Nanos::SECOND;
/// Where `cargo xtask setup --rivals` puts Envoy and the proxy of failsafe-go; the variables name
/// other places.
pub(crate) const ENVOY: (&str, &str) = ("TIDEGATE_ENVOY", "target/rivals/envoy");
pub(crate) const FAILSAFE: (&str, &str) = ("TIDEGATE_FAILSAFE", "target/rivals/failsafe");
/// A CPU that no machine of ours has: the product, told that the server runs on it, has no CPU
/// signal. Without a cgroup alone it would take how busy the machine is.
const NO_CPU: &str = "511";
/// Variants with a proxy in front of the server.
const FRONTS: [&str; 6] =
    ["haproxy", "nginx-req", "nginx-conn", "envoy", "failsafe", "failsafe-throttler"];

/// What was measured before: what an operator would set limits by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Answers per second.
    pub(crate) capacity: f64,
    /// The fewest clients of a closed loop that reach it.
    pub(crate) clients: u32,
}

/// The numbers of a rival that takes numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Requests or connections per second.
    pub(crate) rate: f64,
    /// More that may come at once.
    pub(crate) burst: u32,
    /// Requests at the server at a time.
    pub(crate) places: u32,
    /// How long others may wait.
    pub(crate) queue: Nanos,
}

impl Setting {
    /// By what was measured, and defaults.
    pub(crate) const fn of(known: Known) -> Self {
        Self { rate: known.capacity, burst: NFT_BURST, places: known.clients, queue: QUEUE }
    }
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
    /// a policy (tidegate with the capacity as its rate, and `drop` where it has an action); or a
    /// rival: `backlog`, `nft`, `nft-reject`, or one of [`FRONTS`].
    pub(crate) fn start(place: &Place<'_>, variant: &str, known: Known) -> Result<Self> {
        Self::start_set(place, variant, &Setting::of(known))
    }

    /// The same with the numbers of a rival.
    pub(crate) fn start_set(place: &Place<'_>, variant: &str, set: &Setting) -> Result<Self> {
        let port = if FRONTS.contains(&variant) { BEHIND } else { 80 };
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
                let control = json!({"name": "fixed", "rate": set.rate.max(1.0)});
                arm.product = Some(product(place, &policy, &json!({"control": control}))?);
            }
            "nft" | "nft-reject" => {
                let limit = NftLimit {
                    hook: NftHook::Input,
                    port: 80,
                    rate: set.rate.floor().max(1.0) as u32,
                    burst: set.burst,
                    reject: variant == "nft-reject",
                };
                arm.rule = Some(place.lab.limit_by_nft(&limit).context("nftables")?);
            }
            _ => {
                let kind = front(variant, set)?;
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

    /// Takes the product out: whoever has it ends and starts it.
    pub(crate) const fn take_product(&mut self) -> Option<Product> {
        self.product.take()
    }

    /// Gives it back.
    pub(crate) fn give_product(&mut self, product: Option<Product>) {
        self.product = product;
    }

    /// Ends it in good order.
    pub(crate) fn end(mut self) -> Result<()> {
        self.product.take().map_or(Ok(()), Product::stop).context("tidegate does not end")
    }
}

/// tidegate beside a server whose CPU time it cannot see.
pub(crate) fn product_without_cpu(place: &Place<'_>, action: &str) -> Result<Product> {
    product(place, &json!({"action": action}), &json!({"process": {"cpus": NO_CPU}}))
}

/// tidegate with this policy, and with these keys beside the defaults of its service.
fn product(place: &Place<'_>, policy: &Value, keys: &Value) -> Result<Product> {
    let mut web = json!({"mode": "enforce", "listen": ["*:80"], "policy": policy});
    for (key, value) in keys.as_object().into_iter().flatten() {
        web[key] = value.clone();
    }
    if !place.requests.is_null() {
        web["requests"] = place.requests.clone();
    }
    let services = json!({"web": web});
    let config = ProductConfig { services, ..ProductConfig::one("web", &[]) };
    place.lab.start_product(place.program, &config).context("tidegate")
}

fn front(variant: &str, set: &Setting) -> Result<FrontKind> {
    let failsafe = |policy, wait| -> Result<FrontKind> {
        Ok(FrontKind::Failsafe { program: installed(FAILSAFE)?, policy, wait })
    };
    Ok(match variant {
        "haproxy" => FrontKind::Haproxy { maxconn: set.places, queue: set.queue },
        "nginx-conn" => FrontKind::NginxLimitConn { connections: set.places },
        "nginx-req" => {
            let rate = set.rate.floor().max(1.0) as u32;
            FrontKind::NginxLimitReq { rate, burst: set.burst }
        }
        "envoy" => FrontKind::Envoy { program: installed(ENVOY)? },
        "failsafe" => failsafe(FailsafePolicy::Limiter, set.queue)?,
        "failsafe-throttler" => failsafe(FailsafePolicy::Throttler, FAILED_AFTER)?,
        other => bail!("there is no variant {other:?}"),
    })
}

/// Why a variant cannot run here, if its program was not installed.
pub(crate) fn lacks(variant: &str) -> Option<String> {
    let place = match variant {
        "envoy" => ENVOY,
        "failsafe" | "failsafe-throttler" => FAILSAFE,
        _ => return None,
    };
    installed(place).err().map(|error| error.to_string())
}

/// Where a program that no package brings was put.
///
/// # Errors
/// When it is not there, with how to get it.
pub(crate) fn installed((variable, usual): (&str, &str)) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map_or_else(|| PathBuf::from(usual), PathBuf::from);
    if !path.is_file() {
        bail!("{} is not there: cargo xtask setup --rivals, or set {variable}", path.display());
    }
    // A process of the lab does not start where this one does.
    path.canonicalize().with_context(|| path.display().to_string())
}

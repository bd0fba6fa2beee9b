// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has probably refused a client in the last minute: the kernel's filter and that of the gate,
//! asked about every service and every limit that this host had as a router, enforced and in shadow. Of whom a proxy refuses by itself, nobody knows: then
//! the services are named.

use std::net::{IpAddr, SocketAddr};
use tidegate_bpf::{Core, Error};
use tidegate_config::Config;
use tidegate_gate::{Agents, Gate};
use tidegate_model::snapshot::{Lately, RefusedLately};
use tidegate_units::Nanos;

/// Questions about nobody, by which it is measured how often an answer is wrong.
const MEASURED: u32 = 4096;

/// What is asked about one client.
fn questions(config: &Config) -> impl Iterator<Item = (&str, bool)> {
    config.services.iter().flat_map(|service| [false, true].map(|shadow| (&*service.name, shadow)))
}

fn found((service, shadow): (&str, bool), (ago_min, ago_max): (Nanos, Nanos)) -> RefusedLately {
    let service = service.to_owned();
    RefusedLately { service, shadow, ago_min, ago_max, ..RefusedLately::default() }
}

/// How often one of so many questions about a client has a wrong answer.
fn share(wrong: u32, questions: usize) -> f64 {
    let one = f64::from(wrong) / f64::from(MEASURED);
    1.0 - (1.0 - one).powf(questions as f64)
}

/// What the hooks have noted, and the limits of these destinations behind a router.
pub(crate) fn of_kernel(
    core: &Core,
    (config, limited): (&Config, &[SocketAddr]),
    client: IpAddr,
) -> Result<Lately, Error> {
    let lately = core.lately()?;
    let by_services = questions(config).filter_map(|(service, shadow)| {
        Some(found((service, shadow), lately.find(client, service, shadow)?))
    });
    let mut refused = Vec::from_iter(by_services);
    let how = config.refused_at_router(client);
    let (class, action) = how.map_or(("", ""), |(class, action)| (class, action.text()));
    for destination in limited {
        for shadow in [false, true] {
            if let Some(ago) = lately.find_at_router(client, *destination, shadow) {
                let one = found((&destination.to_string(), shadow), ago);
                let (class, action) = (class.to_owned(), action.to_owned());
                refused.push(RefusedLately { router: true, class, action, ..one });
            }
        }
    }
    let asked = questions(config).count() + 2 * limited.len();
    Ok(Lately {
        refused,
        unnamed: Vec::new(),
        complete: lately.knows_a_minute(),
        wrong: share(lately.wrong(MEASURED), asked),
    })
}

/// That, and what the gate has noted. A service may have been limited at both within a minute, and may refuse
/// connections at its hooks and requests at its gateways.
pub(crate) fn join(
    kernel: Option<Lately>,
    (gate, agents, now): (&Gate, Option<&Agents>, Nanos),
    config: &Config,
    client: IpAddr,
) -> Lately {
    // Without hooks they have refused nobody.
    let by_hooks = kernel.as_ref().is_none_or(|lately| lately.complete);
    let by_gate = gate.knows_a_minute(now);
    let mut all = kernel.unwrap_or_default();
    all.complete = config.services.iter().enumerate().all(|(at, service)| {
        (service.listen.is_empty() || by_hooks) && (!gate.serves(at) || by_gate)
    });
    all.complete &= config.router.is_none() || by_hooks;
    for (service, shadow) in questions(config) {
        if let Some(ago) = gate.refused_lately(now, service, (client, shadow)) {
            let one = found((service, shadow), ago);
            all.refused.push(RefusedLately { gateway: true, ..one });
        }
    }
    let by_proxy =
        |at: usize| gate.proxy_refused_lately(at, now) || agents.is_some_and(|a| a.limits(at));
    let services = config.services.iter().enumerate().filter(|(at, _)| by_proxy(*at));
    all.unnamed = services.map(|(_, service)| service.name.clone()).collect();
    let wrong = share(gate.wrongly_refused(now, MEASURED), questions(config).count());
    all.wrong = 1.0 - (1.0 - all.wrong) * (1.0 - wrong);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use serde_json::Value;
    use std::net::Ipv4Addr;
    use tidegate_api::explain::{Known, explain};
    use tidegate_bpf::policy::{Action, BucketSpec, Params};
    use tidegate_bpf::testing::{Outcome, TestHook, TestPlane};
    use tidegate_bpf::{Plan, ServiceParams};
    use tidegate_config::{Registry, parse};
    use tidegate_gate::{Ask, NoHeaders};
    use tidegate_model::limits::ServiceLimits;
    use tidegate_model::snapshot::Snapshot;
    use tidegate_units::Rate;

    const MINUTE: Nanos = Nanos::from_secs(60);
    /// Refused per second, each time another client.
    const EACH_SECOND: u32 = 10_000;
    /// Longer than a slice of the hooks lasts, and how many of these are a minute.
    const SLICE: Nanos = Nanos::from_millis(4286);
    const SLICES: u32 = 14;
    /// Refused in one of them.
    const EACH_SLICE: u32 = 43_000;
    /// Where clients of the hooks, of the gateway, and those who were never refused begin.
    const AT_HOOKS: u32 = 0x0b00_0000;
    const AT_GATE: u32 = 0x0c00_0000;
    const NOBODY: u32 = 0x0d00_0000;
    /// A SYN to port 80; the client's address stands at [`CLIENT`].
    const SYN: [u8; 54] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 1, 2, 0, 0, 61, 6, 0, 0, 198, 51,
        100, 7, 192, 0, 2, 10, 0x9c, 0x40, 0, 80, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 0x50, 2,
        0xff, 0xff, 0, 0, 0, 0,
    ];
    const CLIENT: std::ops::Range<usize> = 26..30;

    /// Hooks that there are not have refused nobody; those that there are have to know a minute.
    #[test]
    fn without_hooks_the_word_of_the_gate_is_all() {
        let text = "services: {shop: {mode: enforce, listen: ['*:80']}}
gateways: {edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}}
";
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        let config = parse(text, &registry).unwrap();
        let gate = Gate::new(&config, 7);
        gate.tick(Nanos::SECOND);
        let client = [192, 0, 2, 7].into();
        let complete = |kernel: Option<Lately>, seconds| {
            join(kernel, (&gate, None, Nanos::from_secs(seconds)), &config, client).complete
        };
        assert!(!complete(None, 30) && complete(None, 61));
        let hooks = |complete| Some(Lately { complete, ..Lately::default() });
        assert!(!complete(hooks(false), 61) && complete(hooks(true), 61));
    }

    /// One service at the hooks and one behind a gateway.
    fn both() -> Config {
        let text = "interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['*:80'], policy: {name: token_bucket, action: drop}}
  site: {mode: enforce}
gateways: {edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: site}]}}
";
        let registry = Registry::new(["fresh_first", "token_bucket"], controllers::NAMES);
        parse(text, &registry).unwrap()
    }

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from(number).into()
    }

    /// A minute of refusals at the hooks, packet by packet, and how long ago each slice of them began. The clock
    /// is the kernel's: it is moved on between the slices.
    fn refused_at_hooks(config: &Config) -> (TestPlane, Vec<Nanos>) {
        let plan = Plan { config: config.clone(), ..Plan::default() };
        let mut plane = TestPlane::load(&plan).unwrap();
        TestPlane::stay_on_one_cpu();
        let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
        let params = Params::token_bucket(&spec).unwrap();
        plane.set_limits(&[ServiceParams::new(0, params)], &[], 2).unwrap();
        let mut frame = SYN;
        assert_eq!(plane.run(TestHook::Xdp, &frame).unwrap().outcome, Outcome::Pass);
        let (mut begun, mut aged) = (Vec::new(), Nanos::ZERO);
        for slice in 0..SLICES {
            if slice > 0 {
                plane.age_refusals(SLICE).unwrap();
                aged += SLICE;
                // In these the next slice is cleared, and then used.
                for _ in 0..10 {
                    plane.heartbeat().unwrap();
                }
            }
            begun.push(plane.heartbeat().unwrap() + aged);
            for number in slice * EACH_SLICE..(slice + 1) * EACH_SLICE {
                if number % 1000 == 999 {
                    plane.heartbeat().unwrap();
                }
                frame[CLIENT].copy_from_slice(&(AT_HOOKS | number).to_be_bytes());
                let run = plane.run(TestHook::Xdp, &frame).unwrap();
                assert_eq!(run.outcome, Outcome::Drop, "{number}");
            }
        }
        let now = plane.heartbeat().unwrap() + aged;
        (plane, begun.into_iter().map(|at| now.since(at)).collect())
    }

    /// The same at a gateway, and the time at the end of the minute.
    fn refused_at_gate(config: &Config) -> (Gate, Nanos) {
        let (gate, start) = (Gate::new(config, 7), Nanos::from_secs(1000));
        gate.tick(start);
        let rate = Some(Rate::per_second(0.001));
        let limits = ServiceLimits { rate, burst: 1, ..ServiceLimits::default() };
        assert!(gate.set_limits(config, &[ServiceLimits::default(), limits]).is_empty());
        let ask = |now, client| {
            let ask = Ask {
                gateway: "edge",
                method: "GET",
                host: Some("site.example"),
                target: "/",
                client: Some(address(client)),
                request_id: None,
                reported_by_id: false,
                share: None,
                turn: None,
                headers: &NoHeaders,
            };
            gate.ask(now, &ask).passes()
        };
        assert!(ask(start, NOBODY), "the only token");
        let mut now = start;
        for number in 0..60 * EACH_SECOND {
            if number % 1000 == 0 {
                gate.tick(now);
            }
            assert!(!ask(now, AT_GATE | number), "{number}");
            now += Nanos(Nanos::SECOND.0 / u64::from(EACH_SECOND));
        }
        (gate, now)
    }

    /// 10,000 refusals a second for a minute, at the hooks and at a gateway, each of another client: what
    /// `explain` answers finds everyone who was refused, and of others hardly anyone.
    #[test]
    fn explain_finds_whoever_was_refused_in_a_minute_of_ten_thousand_refusals_a_second() {
        let config = both();
        let (plane, ages) = refused_at_hooks(&config);
        let (gate, now) = refused_at_gate(&config);
        let answer = |client: u32| -> Value {
            let client = address(client);
            let kernel = of_kernel(&plane, (&config, &[]), client).unwrap();
            let refused = join(Some(kernel), (&gate, None, now), &config, client);
            let (classes, snapshot) = (config.classify(client), Snapshot::default());
            let known = Known {
                classes: &classes,
                snapshot: &snapshot,
                samples: &[],
                refused,
                reason_text: &|_: &str| String::new(),
            };
            serde_json::to_value(explain(&known, client, None)).unwrap()
        };
        let named = |answer: &Value, service: &str| {
            assert!(answer["refused_wrong"].as_f64().unwrap() <= 0.01, "{answer}");
            let refused = answer["refused"].as_array();
            refused.is_some_and(|all| all.iter().any(|of| of["service"] == service))
        };
        // A machine that is slow takes longer than these minutes: what is older may be forgotten.
        let slices = ages.iter().zip(0..SLICES).filter(|(age, _)| **age <= MINUTE);
        let (mut asked, each) = (0, 6);
        for (age, slice) in slices {
            for n in 0..each {
                let number = slice * EACH_SLICE + n * (EACH_SLICE / each);
                let answer = answer(AT_HOOKS | number);
                assert!(named(&answer, "shop"), "{number}, {age} ago: {answer}");
                asked += 1;
            }
        }
        assert!(asked >= each, "{ages:?}");
        for number in (0..60 * EACH_SECOND).step_by(10_007) {
            let answer = answer(AT_GATE | number);
            assert!(named(&answer, "site"), "{number}: {answer}");
        }
        let (others, mut wrong) = (200, 0);
        for number in 1..=others {
            let answer = answer(NOBODY | number);
            wrong += u32::from(named(&answer, "shop") || named(&answer, "site"));
        }
        println!("{asked} asked of the hooks; of {others} others {wrong} found");
        assert!(wrong <= others / 100, "{wrong} of {others}");
    }
}

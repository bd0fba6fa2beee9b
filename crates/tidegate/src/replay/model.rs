// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From options and configuration to the modelled server and its protection.

use super::args::{ServerArgs, ShapeName};
use tidegate_config::{Config, Refusal, ServiceConfig};
use tidegate_control::Mode;
use tidegate_daemon::controllers;
use tidegate_model::limits::ServiceLimits;
use tidegate_policy::{Action, Policy};
use tidegate_sim::world::gate::{GateSpec, PolicyLimits};
use tidegate_sim::world::server::{ServerSpec, Work};
use tidegate_sim::world::{Protection, ReplyCaps};
use tidegate_workload::Shape;

/// Standard deviation over mean of a heavy service time.
const HEAVY_CV: f64 = 3.0;
/// Shortest service time, in seconds: below, the model's own steps would count.
const SERVICE_MIN_S: f64 = 1e-6;

/// The server that the options describe.
pub(crate) fn server(args: &ServerArgs) -> ServerSpec {
    let shape = match args.shape {
        ShapeName::Constant => Shape::Constant,
        ShapeName::Exponential => Shape::Exponential,
        ShapeName::Heavy => Shape::Lognormal { cv: HEAVY_CV },
    };
    let served_at_once = if args.waiting { args.workers } else { args.cpus.min(args.workers) };
    let of_capacity = args.capacity.map(|rate| f64::from(served_at_once) / rate);
    let given = args.service_time.map(|t| t.as_secs_f64());
    let mean_s = given.or(of_capacity).unwrap_or(SERVICE_MIN_S).max(SERVICE_MIN_S);
    let work = Some(Work { mean_s, shape });
    let (wait, cpu) = if args.waiting { (work, None) } else { (None, work) };
    ServerSpec {
        workers: args.workers as usize,
        accept_limit: args.queue as usize,
        cpus: args.cpus,
        wait,
        cpu,
        upstream: None,
    }
}

/// Policy and controller of the configuration, as the daemon would run them, enforced.
pub(crate) fn protection(
    config: &Config,
    service: &ServiceConfig,
    cpus: u32,
) -> anyhow::Result<Protection> {
    let policy = Policy::from_name(&service.policy.name)
        .ok_or_else(|| anyhow::anyhow!("no policy is called {:?}", service.policy.name))?;
    let action = match service.policy.refusal() {
        Refusal::Drop => Action::Drop,
        Refusal::Reject => Action::Reject,
        Refusal::Auto => Action::Auto,
    };
    let owned = service.clone();
    let make = move |limits: &ServiceLimits| {
        let params = tidegate_params::service(policy, action, &owned.policy, limits);
        let params = params.map_err(|error| error.to_string())?;
        Ok(PolicyLimits { params, level: tidegate_params::level(&owned, limits) })
    };
    let gate = GateSpec {
        params: Some(Box::new(make)),
        replies: Some(ReplyCaps {
            all: config.replies.rst_per_second,
            proved: config.replies.rst_per_second_proved,
            cpus,
            sources: config.tables.sources,
        }),
        ..GateSpec::new(policy, action, Mode::Enforce)
    };
    let (controller, terms) = (controllers::make(service), controllers::terms(service));
    Ok(Protection { controller, terms, gate })
}

#[cfg(test)]
mod tests {
    use super::super::args::ReplayArgs;
    use super::*;
    use clap::Args;

    fn server_of(options: &[&str]) -> ServerSpec {
        let command = ReplayArgs::augment_args(clap::Command::new("replay"));
        let all = ["replay", "log"].iter().chain(options);
        let matches = command.try_get_matches_from(all).unwrap();
        server(&<ReplayArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap().server)
    }

    /// Whatever way it is said, the capacity that is asked for is the one that comes out.
    #[test]
    fn a_capacity_gives_the_service_time_and_the_other_way_round() {
        for (options, capacity) in [
            (&["--capacity", "50"][..], 50.0),
            (&["--capacity", "50", "--waiting"], 50.0),
            (&["--capacity", "50", "--cpus", "8", "--workers", "4"], 50.0),
            (&["--service-time", "20ms"], 50.0),
            (&["--service-time", "20ms", "--cpus", "4"], 200.0),
            (&["--service-time", "100ms", "--waiting", "--workers", "7"], 70.0),
        ] {
            let found = server_of(options).capacity();
            assert!((found / capacity - 1.0).abs() < 1e-9, "{options:?}: {found}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of one run: half of all requests from each agent.

use super::setting::Setting;
use super::stand::Stand;
use tidegate_lab::{Arrive, LoadPlan, Phase, Road, RoadHost};
use tidegate_units::Nanos;
use tidegate_workload::Profile;

/// The agents, at R0 and at R1.
pub(super) const AGENTS: u8 = 2;
/// The measured part.
pub(super) const MEASURED: &str = "measured";

/// When a run is measured, in seconds since its load began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) from: f64,
    pub(super) to: f64,
}

impl Span {
    pub(super) fn seconds(self) -> f64 {
        self.to - self.from
    }
}

/// The name of a stream.
pub(super) fn name(host: RoadHost, agent: u8) -> String {
    format!("{}-{agent}", host.name())
}

/// Requests at random times: the paper's are uniformly distributed, and it says that this makes no difference.
pub(super) fn plan(
    road: &Road<'_>,
    stand: &Stand,
    (setting, span): (&Setting, Span),
    seed: u64,
) -> LoadPlan {
    let lasts = Nanos::from_secs_f64(span.to);
    let wanted = [
        (RoadHost::S0, &stand.s0, setting.s0_requests),
        (RoadHost::S1, &stand.s1, setting.s1_requests),
    ];
    let mut streams = Vec::new();
    for (host, server, rate) in wanted.into_iter().filter(|(.., rate)| *rate > 0.0) {
        for agent in 0..AGENTS {
            let rate = rate / f64::from(AGENTS);
            let arrive = Arrive::poisson(Profile::constant(lasts, rate));
            let bytes = setting.request_bytes as usize;
            streams.push(road.stream((&name(host, agent), agent), (host, server), bytes, arrive));
        }
    }
    let phase = Phase {
        name: MEASURED.into(),
        start: Nanos::from_secs_f64(span.from),
        end: Nanos::from_secs_f64(span.to),
    };
    LoadPlan {
        seed,
        streams,
        phases: vec![phase],
        timeout: Nanos::from_secs_f64(setting.patience_s),
        ..LoadPlan::default()
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Presets exempt health checkers. If much of what comes is exempt, clients come from the same addresses: a
//! load balancer that opens connections of its own brings everybody from them.

use crate::plane::Counted;
use crate::warnings::Warnings;
use std::net::IpAddr;
use tidegate_config::Config;
use tidegate_sense::node_addresses;
use tidegate_units::Nanos;

/// Reason of what is on the list of what is never refused (policy/reasons.def).
const EXEMPT: &str = "exempt";
/// Over how long the share is taken.
const WINDOW: Nanos = Nanos::from_secs(60);
/// Of less nothing is said.
const CAME_MIN: u64 = 1000;
/// Health checkers bring less than this share.
const SHARE: f64 = 0.05;

/// The addresses of this node, if a preset names it.
pub(crate) fn node_of(config: &Config) -> Vec<IpAddr> {
    if !config.exempt.needs_node() {
        return Vec::new();
    }
    node_addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "exempt.presets: the addresses of this node are not known, and not exempt");
        Vec::new()
    })
}

/// What came when the window began.
#[derive(Debug, Default)]
pub(crate) struct ExemptWatch {
    begun: Option<(Nanos, u64, u64)>,
}

impl ExemptWatch {
    /// Takes what was counted; the warning stays until a window shows that it is over.
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        (config, counts): (&Config, &Counted),
        warnings: &mut Warnings,
    ) {
        if config.exempt.presets.is_empty() {
            self.begun = None;
            warnings.clear(EXEMPT);
            return;
        }
        let passed = counts.passed.iter().filter(|passed| passed.reason == EXEMPT);
        let exempt: u64 = passed.map(|passed| passed.count).sum();
        let evaluated: u64 = counts.services.iter().flatten().map(|count| count.count).sum();
        let Some((at, exempt_then, evaluated_then)) = self.begun else {
            self.begun = Some((now, exempt, evaluated));
            return;
        };
        if now.since(at) < WINDOW {
            return;
        }
        self.begun = Some((now, exempt, evaluated));
        let exempt = exempt.saturating_sub(exempt_then);
        let came = exempt.saturating_add(evaluated.saturating_sub(evaluated_then));
        let share = exempt as f64 / came.max(1) as f64;
        if came < CAME_MIN || share <= SHARE {
            warnings.clear(EXEMPT);
            return;
        }
        let names: Vec<&str> = config.exempt.presets.iter().map(|preset| preset.name()).collect();
        let text = format!(
            "{:.0} % of the new connections and requests of the last minute were exempt, and are never refused. \
             Health checkers bring less. Check whether a load balancer brings clients from the addresses of \
             exempt.presets ({})",
            100.0 * share,
            names.join(", ")
        );
        warnings.stick(now, EXEMPT, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_model::snapshot::{ReasonCount, VerdictCount};

    fn config(exempt: &str) -> Config {
        let text = format!(
            "interfaces: [{{name: lo}}]\nexempt: {{{exempt}}}\nservices: {{web: {{mode: shadow, listen: ['*:80']}}}}\n"
        );
        parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    fn counts(exempt: u64, evaluated: u64) -> Counted {
        let verdict = VerdictCount { count: evaluated, ..VerdictCount::default() };
        let passed = vec![ReasonCount { reason: EXEMPT.into(), count: exempt }];
        Counted { services: vec![vec![verdict]], passed, ..Counted::default() }
    }

    #[test]
    fn a_preset_that_exempts_everybody_is_told() {
        let presets = config("presets: [gcp-passthrough]");
        for (exempt, came, told) in [
            (&presets, (51, 949), true),
            (&presets, (50, 950), false),
            (&presets, (900, 99), false),
            (&config("sources: [10.0.0.0/8]"), (900, 900), false),
        ] {
            let (mut watch, mut warnings) = (ExemptWatch::default(), Warnings::default());
            let now = |s: u64| Nanos::from_secs(1000 + s);
            watch.look(now(0), (exempt, &counts(7, 7)), &mut warnings);
            let after = counts(7 + came.0, 7 + came.1);
            watch.look(now(59), (exempt, &after), &mut warnings);
            assert!(warnings.sentences(now(59)).is_empty(), "of a minute");
            watch.look(now(60), (exempt, &after), &mut warnings);
            let said = warnings.sentences(now(60)).join("\n");
            assert_eq!(said.contains("gcp-passthrough"), told, "{came:?}: {said}");
            // A quiet minute ends it.
            watch.look(now(120), (exempt, &after), &mut warnings);
            assert!(warnings.sentences(now(120)).is_empty());
        }
    }
}

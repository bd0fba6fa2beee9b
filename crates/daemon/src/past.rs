// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that come to a service past our hooks: what an operator is told, and can do.

use tidegate_config::Config;
use tidegate_model::snapshot::Bypassed;
use tidegate_sense::Sensed;

/// One sentence for each direction in which a service is not seen. The way to a client is asked for in our namespace: it
/// says nothing of hooks in another one, and is taken out where there are some.
pub(crate) fn past_the_hooks(config: &Config, sensed: &mut Sensed) -> Vec<String> {
    if config.hooked().any(|ours| ours.namespace.is_some()) {
        let found = [&mut sensed.bypassed, &mut sensed.unreplied];
        found.into_iter().flatten().for_each(|found| found.interface.clear());
    }
    let mut told = Vec::new();
    if let Some(found) = &sensed.bypassed {
        let Bypassed { connections, span, .. } = found;
        let remedy = remedy(config, found);
        told.push(format!(
            "{connections} connections were accepted in the last {span} and the hooks saw none: the \
             service is not protected. {remedy}"
        ));
    } else if let Some(found) = &sensed.unreplied {
        let Bypassed { connections, span, .. } = found;
        let remedy = remedy(config, found);
        told.push(format!(
            "{connections} connections were accepted in the last {span} and the hooks saw no packet of \
             the server: exchanges are not counted, and limits that need them are off. {remedy}"
        ));
    }
    told
}

/// Where the packets probably go, and what to write.
fn remedy(config: &Config, found: &Bypassed) -> String {
    let Bypassed { interface, client, .. } = found;
    let Some(client) = client.filter(|_| !interface.is_empty()) else {
        return "Is it reached by another interface (`interfaces`), or does another program end the \
                chain before ours (`bpftool net show`)?"
            .into();
    };
    if config.hooked().any(|ours| ours.name == *interface) {
        format!(
            "Its last client, {client}, is reached by {interface}, where ours are attached: another \
             program there ends the chain before ours (`bpftool net show dev {interface}`; a restart \
             of tidegate attaches first again), or packets of this direction go another way"
        )
    } else {
        format!(
            "Its last client, {client}, is reached by {interface}: attach there too (`interfaces: \
             [{{name: {interface}}}]`)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};
    use tidegate_units::Nanos;

    #[test]
    fn each_direction_is_told_with_the_place_to_attach_to() {
        let config = |interface: &str| {
            let text = format!(
                "interfaces: [{interface}]\nservices: {{web: {{mode: enforce, listen: ['*:80']}}}}\n"
            );
            let registry = Registry::new(["fresh_first"], controllers::NAMES);
            parse(&text, &registry).unwrap_or_else(|error| panic!("{error}"))
        };
        let found = |interface: &str| Bypassed {
            connections: 7,
            span: Nanos::from_secs(4),
            client: Some([192, 0, 2, 9].into()),
            interface: interface.into(),
        };
        let told_at = |interface: &str, bypassed, unreplied| {
            let mut sensed = Sensed { bypassed, unreplied, ..Sensed::default() };
            let told = past_the_hooks(&config(interface), &mut sensed).join("\n");
            let shown = sensed.bypassed.map(|found| found.interface).unwrap_or_default();
            assert!(shown.is_empty() || told.contains(&shown), "/readyz says {shown}: {told}");
            told
        };
        let told = |bypassed, unreplied| told_at("{name: eth0}", bypassed, unreplied);
        assert_eq!(told(None, None), "");
        let other = told(Some(found("eth1")), Some(found("eth1")));
        assert!(other.contains("saw none") && other.contains("{name: eth1}"), "{other}");
        assert_eq!(other.lines().count(), 1, "who sees nothing sees no reply, either");
        let ours = told(None, Some(found("eth0")));
        assert!(ours.contains("no packet of the server") && ours.contains("dev eth0"), "{ours}");
        let inside = told_at("{name: eth0, namespace: 'pid:1'}", Some(found("eth0")), None);
        assert!(inside.contains("`interfaces`") && !inside.contains("dev eth0"), "{inside}");
        let unknown = told(Some(found("")), None);
        assert!(unknown.contains("`interfaces`"), "{unknown}");
    }
}

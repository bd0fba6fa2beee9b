// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The schema and what is made of it. `TIDEGATE_BLESS=1` writes the golden files.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod sample;

use proptest::prelude::*;
use sample::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tidegate_model::Mode;
use tidegate_model::in_band::InBandState;
use tidegate_model::router::RouterState;
use tidegate_model::snapshot::{FlowspecState, Snapshot, VerdictCount};
use tidegate_model::totals::Histogram;
use tidegate_telemetry::{
    Kind, LABEL_BYTES_MAX, OVER_TIME, OverTime, buckets_table, bus_lines, flowspec_lines,
    in_band_lines, links_table, metrics, openmetrics, peers_table, points, reference, remote_table,
    router_lines, rules_table, services_table, unevaluated_lines,
};
use tidegate_units::Nanos;

fn golden(path: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == found,
        "{} is not up to date (TIDEGATE_BLESS=1 writes it):\n{found}",
        path.display()
    );
}

#[test]
fn what_routers_are_told_is_shown() {
    golden("tests/golden/flowspec.txt", &flowspec_lines(&snapshot()));
    let shadow = FlowspecState { shadow: true, ..flowspec() };
    let shown = flowspec_lines(&Snapshot { flowspec: Some(shadow), ..Snapshot::default() });
    assert!(shown.starts_with("flowspec (gobgp): shadow: nothing is announced\nroute"), "{shown}");
    let mut state = flowspec();
    let import = state.import.as_mut().unwrap();
    (import.shadow, import.heard) = (true, false);
    import.problem = "it has more than 1024 paths".into();
    let shown = flowspec_lines(&Snapshot { flowspec: Some(state), ..Snapshot::default() });
    assert!(shown.contains("import from r1: no list of routes, 3 rule(s)"), "{shown}");
    assert!(shown.contains("\n    it has more than 1024 paths\n"), "{shown}");
    assert_eq!(flowspec_lines(&Snapshot::default()), "");
}

#[test]
fn what_a_router_measures_is_shown() {
    golden("tests/golden/router.txt", &router_lines(&snapshot()));
    let problem = RouterState { problem: "no tcx".into(), ..RouterState::default() };
    let shown = router_lines(&Snapshot { router: Some(problem), ..Snapshot::default() });
    assert!(shown.contains("  not measured: no tcx\n"), "{shown}");
    let open = "limits are open: everything is released".into();
    let shadow = RouterState { limit_mode: Some(Mode::Shadow), limits_open: open, ..router() };
    let shown = router_lines(&Snapshot { router: Some(shadow), ..Snapshot::default() });
    assert!(shown.contains("\n  limits are open: everything is released\n"), "{shown}");
    assert!(shown.contains("\n    shadow: limit of 48.2 new connections/s, 31 "), "{shown}");
    let mut without = router();
    (without.crowds[0].limit, without.crowds[0].unlimited) = (None, "its port is exempt".into());
    let shown = router_lines(&Snapshot { router: Some(without), ..Snapshot::default() });
    assert!(shown.contains("\n    not limited: its port is exempt\n"), "{shown}");
    assert_eq!(router_lines(&Snapshot::default()), "");
}

#[test]
fn the_table_of_peers_is_what_it_was() {
    golden("tests/golden/links.txt", &links_table(&snapshot()));
    golden("tests/golden/peers.txt", &peers_table(&snapshot()));
    golden("tests/golden/remote.txt", &remote_table(&snapshot()));
    golden("tests/golden/bus.txt", &bus_lines(&snapshot()));
    assert_eq!(bus_lines(&Snapshot::default()), "");
    golden("tests/golden/in-band.txt", &in_band_lines(&snapshot()));
    let nothing = Snapshot { in_band: Some(InBandState::default()), ..Snapshot::default() };
    assert_eq!(in_band_lines(&nothing), "");
    assert_eq!(peers_table(&Snapshot::default()) + &remote_table(&Snapshot::default()), "");
}

#[test]
fn the_page_is_what_it_was() {
    golden("tests/golden/openmetrics.txt", &openmetrics(&snapshot()));
}

#[test]
fn the_table_is_what_it_was() {
    golden("tests/golden/services.txt", &services_table(&snapshot()));
}

#[test]
fn the_tables_of_request_rules_are_what_they_were() {
    let snapshot = snapshot();
    let lines = unevaluated_lines(&snapshot).join("\n");
    let all = [buckets_table(&snapshot, None), rules_table(&snapshot), lines].join("\n");
    golden("tests/golden/rules.txt", &format!("{all}\n"));
    let one = buckets_table(&snapshot, Some("watched"));
    assert!(one.contains("watched") && !one.contains("shop"), "{one}");
}

#[test]
fn without_request_rules_nothing_is_said_of_them() {
    let mut none = snapshot();
    none.services.iter_mut().for_each(|service| service.requests = None);
    assert_eq!((buckets_table(&none, None), rules_table(&none)), (String::new(), String::new()));
    assert!(unevaluated_lines(&none).is_empty());
    assert!(!openmetrics(&none).contains("tidegate_requests_rule_outcomes_requests_total{"));
}

/// A command reads the status of a daemon that was started before an upgrade.
#[test]
fn old_names_of_a_status_are_read() {
    let snapshot = sample::snapshot();
    let now = serde_json::to_string(&snapshot).unwrap();
    let mut before = now.clone();
    let peer = "Connection refused";
    for (old, new) in [
        (format!("\"trouble\":\"{peer}"), format!("\"problem\":\"{peer}")),
        ("\"unjudged\":".to_owned(), "\"unevaluated\":".to_owned()),
    ] {
        assert!(now.contains(&new), "{new}");
        before = before.replace(&new, &old);
    }
    assert_eq!(serde_json::from_str::<Snapshot>(&before).unwrap(), snapshot);
}

#[test]
fn the_document_is_made_from_the_schema() {
    golden("../../docs/metrics.md", &reference());
}

#[test]
fn names_follow_the_rule_and_are_unique() {
    let names: Vec<String> = metrics().map(|m| m.full_name()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for (metric, name) in metrics().zip(&names) {
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert!(metric.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(metric.help.ends_with('.'), "{name} has a sentence");
        let allowed = [
            "service",
            "class",
            "verdict",
            "reason",
            "shadow",
            "layer",
            "interface",
            "namespace",
            "family",
            "signal",
            "resource",
            "cause",
            "stage",
            "timed",
            "mode",
            "version",
            "rule",
            "name",
            "bucket",
            "rank",
            "outcome",
            "status",
            "peer",
            "role",
            "table",
            "gateway",
            "adapter",
            "sign",
            "health",
            "level",
            "speaker",
            "state",
            "route",
            "unit",
            "destination",
            "below",
            "quantile",
            "counts",
            "kind",
            "priority",
        ];
        assert!(
            metric.labels.iter().all(|l| allowed.contains(l)),
            "{name}: a label beyond the list"
        );
    }
}

/// A gauge without a sum shows nothing of the time between two scrapes: each has one, or says why not.
#[test]
fn each_gauge_is_drawn_over_time() {
    let gauges = metrics().filter(|metric| metric.kind == Kind::Gauge);
    let gauges: Vec<String> = gauges.map(|gauge| gauge.full_name()).collect();
    let told: Vec<String> = OVER_TIME.iter().map(|(name, _)| format!("tidegate_{name}")).collect();
    assert_eq!(gauges, told, "each gauge stands in OVER_TIME, in the order of the schema");
    for (gauge, over) in OVER_TIME {
        let OverTime::Sum(sum) = over else { continue };
        let sum = metrics().find(|metric| metric.full_name() == format!("tidegate_{sum}"));
        assert!(sum.is_some_and(|sum| sum.kind == Kind::Counter), "the counter of {gauge}");
    }
}

#[test]
fn every_metric_appears_for_a_full_snapshot_with_as_many_values_as_labels() {
    let full = snapshot();
    let found: BTreeSet<String> = points(&full).into_iter().map(|p| p.name).collect();
    for metric in metrics() {
        assert!(found.contains(&metric.full_name()), "{} never appears", metric.full_name());
    }
    for point in points(&full) {
        let metric = metrics().find(|m| m.full_name() == point.name).unwrap();
        assert_eq!(point.labels.len(), metric.labels.len(), "{}", point.name);
    }
}

/// A counter that appears with its first increase hides that increase from a rate.
#[test]
fn what_refused_nothing_and_was_not_limited_counts_from_zero() {
    let page = openmetrics(&snapshot());
    for line in [
        "service_limit_allowed_syns_total{service=\"watched\"}",
        "service_level_known_seconds_total{service=\"watched\",level=\"limit_rate\"}",
        "service_shedding_seconds_total{service=\"watched\",cause=\"growth\",shadow=\"false\"}",
        "requests_bucket_limit_allowed_requests_total{service=\"shop\",bucket=\"large\"}",
    ] {
        assert_eq!(value(&page, &format!("tidegate_{line}")), 0.0, "{line}");
    }
    assert!(!page.contains("service_cpu_share_seconds_total{service=\"watched\"}"), "not known");
}

#[test]
fn what_is_not_known_is_absent_and_never_zero() {
    let page = openmetrics(&snapshot());
    assert!(!page.contains("tidegate_service_waiting_connections{service=\"silent\"}"));
    assert!(!page.contains("tidegate_service_limit_rate_per_second{service=\"watched\"}"));
}

/// The value of a line of the page.
fn value(page: &str, line: &str) -> f64 {
    let found = page.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} is missing")).parse().unwrap()
}

/// As Prometheus does it (`histogram_quantile`): linear between the bounds around the rank.
fn quantile(page: &str, name: &str, share: f64) -> f64 {
    let prefix = format!("{name}_bucket{{le=\"");
    let bounds: Vec<(f64, f64)> = page
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once("\",service=\"shop\"} "))
        .map(|(bound, count)| (bound.replace("+Inf", "inf"), count))
        .map(|(bound, count)| (bound.parse().unwrap(), count.parse().unwrap()))
        .collect();
    let rank = share * bounds.last().unwrap().1;
    let at = bounds.iter().position(|(_, count)| *count >= rank).unwrap();
    let (low, below) = if at == 0 { (0.0, 0.0) } else { bounds[at - 1] };
    let (high, count) = bounds[at];
    low + (high - low) * (rank - below) / (count - below)
}

/// Whatever the times are: their quantiles in Prometheus are within 13 % of the true ones.
#[test]
fn quantiles_of_the_page_are_those_of_the_times() {
    let mut seed = 1_u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 11) as f64 / (1_u64 << 53) as f64
    };
    for mean_ms in [0.3, 4.0, 110.0, 3000.0] {
        // Exponential, and all the same.
        let spread: Vec<f64> = (0..5000).map(|_| -mean_ms * uniform().ln()).collect();
        for mut all in [spread, vec![mean_ms; 100]] {
            let mut shop = snapshot();
            let mut times = Histogram::default();
            all.iter().for_each(|ms| times.record(Nanos::from_secs_f64(ms / 1e3)));
            let totals = shop.services[0].totals.get_or_insert_default();
            totals.first_byte = times;
            let page = openmetrics(&shop);
            all.sort_by(f64::total_cmp);
            for share in [0.5, 0.99] {
                let told = quantile(&page, "tidegate_service_first_byte_time_seconds", share) * 1e3;
                let is = all[((all.len() as f64 * share).ceil() as usize).max(1) - 1];
                assert!((told / is - 1.0).abs() < 0.13, "{share} of {mean_ms} ms: {told} for {is}");
            }
        }
    }
}

#[test]
fn a_histogram_holds_every_time_once() {
    let page = openmetrics(&snapshot());
    let name = "tidegate_service_first_byte_time_seconds";
    assert_eq!(value(&page, &format!("{name}_count{{service=\"shop\"}}")), 6.0);
    assert!((value(&page, &format!("{name}_sum{{service=\"shop\"}}")) - 60.71).abs() < 1e-9);
    let below = value(&page, &format!("{name}_bucket{{le=\"0.000131072\",service=\"shop\"}}"));
    let all = value(&page, &format!("{name}_bucket{{le=\"+Inf\",service=\"shop\"}}"));
    assert_eq!((below, all), (1.0, 6.0), "one of 0 ms, and one beyond the last bound");
    // A metric without responses says nothing, and not zero.
    let mut blind = snapshot();
    blind.services[0].sees_answers = false;
    assert!(!openmetrics(&blind).contains(&format!("{name}_bucket")));
}

#[test]
fn moments_are_times_of_day_by_the_clocks_of_the_snapshot() {
    let page = openmetrics(&snapshot());
    let began = value(&page, "tidegate_service_shedding_began_timestamp_seconds{service=\"shop\"}");
    assert_eq!(began, 1_800_000_070.0);
    let mut unknown = snapshot();
    unknown.unix = None;
    assert!(!openmetrics(&unknown).contains("began_timestamp_seconds{"));
}

/// Reads a page as a strict reader would: every line is a comment or `name{labels} value`.
fn samples(page: &str) -> Result<usize, String> {
    let mut count = 0;
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let wrong = || format!("not a sample: {line:?}");
        let name = line.find(['{', ' ']).ok_or_else(wrong)?;
        let mut rest = &line[name..];
        if let Some(labels) = rest.strip_prefix('{') {
            rest = after_labels(labels).ok_or_else(wrong)?;
        }
        rest.strip_prefix(' ').and_then(|v| v.parse::<f64>().ok()).ok_or_else(wrong)?;
        count += 1;
    }
    Ok(count)
}

/// What follows `key="value",…}`; escapes are `\\`, `\"` and `\n`.
fn after_labels(mut text: &str) -> Option<&str> {
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some(rest);
        }
        text = text.strip_prefix(',').unwrap_or(text);
        let (key, rest) = text.split_once("=\"")?;
        key.bytes().all(|b| b.is_ascii_lowercase()).then_some(())?;
        let mut chars = rest.char_indices();
        text = loop {
            match chars.next()? {
                (_, '\\') => {
                    chars.next().filter(|(_, c)| matches!(c, '\\' | '"' | 'n'))?;
                }
                (i, '"') => break &rest[i + 1..],
                _ => {}
            }
        };
    }
}

#[test]
fn hostile_names_cannot_break_out_of_a_label() {
    for name in ["a\"} 1\nevil_total 9", "back\\slash", "new\nline", "\u{1f525}", "", "\\\"", "}"] {
        let mut hostile = snapshot();
        let before = samples(&openmetrics(&hostile)).unwrap();
        hostile.services[0].name = name.into();
        hostile.services[0].counts[0].class = name.into();
        let rules = hostile.services[0].requests.as_mut().unwrap();
        rules.buckets[0].name = name.into();
        rules.rules[0].name = name.into();
        let page = openmetrics(&hostile);
        assert_eq!(samples(&page), Ok(before), "{name:?}");
        assert!(!page.contains("\nevil"), "{name:?}");
        assert!(!services_table(&hostile).contains("\nevil"));
        assert!(!buckets_table(&hostile, None).contains("\nevil"));
        assert!(!rules_table(&hostile).contains("\nevil"));
    }
}

#[test]
fn demand_goes_on_without_verdicts_and_has_no_late_request_twice() {
    let shown = |snapshot: &Snapshot| {
        let page = openmetrics(snapshot);
        let name = "tidegate_service_offered_syns_total{service=\"shop\"} ";
        page.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok())
    };
    let mut of = snapshot();
    assert_eq!(shown(&of), Some(1400));
    let late = VerdictCount { reason: "late".into(), ..of.services[0].counts[0].clone() };
    of.services[0].counts.push(late);
    assert_eq!(shown(&of), Some(1400), "late requests");
    of.services[0].totals.as_mut().unwrap().offered = 1420;
    assert_eq!(shown(&of), Some(1420), "released");
    of.services[0].totals = None;
    assert_eq!(shown(&of), Some(1400), "never read");
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let mut long = snapshot();
    long.services[0].name = "é".repeat(LABEL_BYTES_MAX);
    let cut = points(&long).into_iter().filter_map(|p| p.labels.get("service").cloned());
    assert!(cut.map(|v| v.len()).all(|n| n <= LABEL_BYTES_MAX));
}

proptest! {
    #[test]
    fn any_name_gives_a_page_that_can_be_read(name in any::<String>(), reason in any::<String>()) {
        let mut hostile = snapshot();
        hostile.services[0].name = name;
        hostile.passed[0].reason = reason;
        prop_assert!(samples(&openmetrics(&hostile)).is_ok());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden configurations: wrong ones with their messages, right ones with what was understood.
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-config` writes what is compared here.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_config::{
    CONFIG_BYTES_MAX, Command, Config, ConfigErrors, CookieMatch, HostPattern, Intent, Ladder,
    Method, PathPrefix, Refusal, Registry, RequestHead, RuleAction, RuleConfig, ServiceConfig,
    ThrottleConfig, bounds, diff, load, parse, parse_bytes, reference, schema,
};
use tidegate_model::Mode;
use tidegate_units::{Nanos, Share};

/// Wrong configurations that must at least be there.
const BAD_MIN: usize = 185;

fn registry() -> Registry {
    Registry::new(
        [
            "token_bucket",
            "fresh_first",
            "abacus",
            "abacus_exact",
            "abacus_learned",
            "threshold",
            "gap",
            "percent",
        ],
        ["default", "syn", "fixed"],
    )
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares with a golden file, or writes it.
fn golden(path: &Path, found: &str) -> Result<(), String> {
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        return fs::write(path, found).map_err(|e| e.to_string());
    }
    let wanted = fs::read_to_string(path).unwrap_or_default();
    let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if wanted == found {
        return Ok(());
    }
    let lines = |text: &str, other: &str| -> String {
        let missing = text.lines().filter(|line| !other.lines().any(|theirs| theirs == *line));
        missing.take(20).map(|line| format!("  {line}\n")).collect()
    };
    Err(format!(
        "{shown} is not up to date (TIDEGATE_BLESS=1 cargo test -p tidegate-config writes it)\n\
         only in the file:\n{}only in what the code says:\n{}",
        lines(&wanted, found),
        lines(found, &wanted),
    ))
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(here(folder)).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    files
}

fn good(name: &str) -> Config {
    load(&here(&format!("tests/config/good/{name}.yaml")), &registry()).unwrap()
}

#[test]
fn every_wrong_configuration_is_refused_with_its_message() {
    let files = yaml_files("tests/config/bad");
    assert!(files.len() >= BAD_MIN, "{} wrong configurations", files.len());
    let mut wrong = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        match parse(&text, &registry()) {
            Ok(_) => wrong.push(format!("{name} was accepted")),
            Err(errors) => {
                let message = errors.in_file(name).to_string() + "\n";
                wrong.extend(golden(&file.with_extension("txt"), &message).err());
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn right_configurations_are_understood_and_survive_a_round_trip() {
    for file in yaml_files("tests/config/good") {
        let config = load(&file, &registry()).unwrap();
        let json = serde_json::to_string_pretty(&config).unwrap() + "\n";
        golden(&file.with_extension("json"), &json).unwrap();
        // JSON is YAML: what was understood, written out, is understood the same.
        let again = parse(&json, &registry()).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert_eq!(again, config, "{}", file.display());
    }
}

#[test]
fn services_keep_the_order_of_the_file() {
    let names: Vec<String> = good("everything").services.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["zebra", "api"]);
}

#[test]
fn what_is_not_given_has_its_default() {
    let config = good("minimal");
    let shop = &config.services[0];
    assert_eq!(shop.objective, Nanos::SECOND);
    assert_eq!(
        (shop.policy.name.as_str(), shop.policy.refusal().name()),
        ("fresh_first", "reject")
    );
    assert_eq!(shop.control.name, "default");
    assert_eq!(config.daemon.tick, Nanos::from_millis(100));
    assert_eq!(config.daemon.http.to_string(), "127.0.0.1:7118");
    assert_eq!(shop.policy.abacus().schedule, [1, 3, 7]);
}

/// A service with these keys besides the required ones.
fn shop(keys: &str) -> Result<ServiceConfig, ConfigErrors> {
    let text = format!(
        "interfaces: [{{name: lo}}]\nservices:\n  shop:\n    mode: enforce\n    \
         listen: ['*:80']\n    {keys}\n"
    );
    parse(&text, &registry()).map(|mut config| config.services.remove(0))
}

#[test]
fn auto_is_an_action_of_services_and_of_rules() {
    let service = shop("policy: {action: auto}").unwrap();
    assert_eq!(service.policy.action.map(Refusal::name), Some("auto"));
    let service = shop(
        "requests: {buckets: {a: {resource: cpu}}, rules: [{path: /a, bucket: a, action: auto}, \
         {server_name: a.example, bucket: a, action: auto}, {server_name: b.example, bucket: a}]}",
    )
    .unwrap();
    let rules = service.requests.unwrap().rules;
    // the last one is there without being written
    let sends: Vec<(&str, bool)> =
        rules[..3].iter().map(|rule| (rule.refusal().name(), rule.sends_503())).collect();
    assert_eq!(sends, [("auto", true), ("auto", false), ("reset", false)], "none inside TLS");
    for wrong in ["policy: {action: Auto}", "policy: {action: automatic}"] {
        let error = shop(wrong).unwrap_err().to_string();
        assert!(error.contains("auto"), "{error}");
    }
}

#[test]
fn the_table_of_sources_has_a_size() {
    let sized = |size: &str| {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  shop: {{mode: enforce, listen: ['*:80']}}\n\
             tables: {{sources: {size}}}\n"
        );
        parse(&text, &registry()).map(|config| config.tables.sources)
    };
    assert_eq!(sized("1024").unwrap(), 1024);
    assert_eq!(sized("4194304").unwrap(), 1 << 22);
    for wrong in ["1023", "4194305", "65535"] {
        let error = sized(wrong).unwrap_err().to_string();
        assert!(error.contains("tables.sources"), "{error}");
    }
}

#[test]
fn an_objective_at_either_end_is_accepted() {
    for (objective, span) in [("10ms", Nanos::from_millis(10)), ("60s", Nanos::from_secs(60))] {
        assert_eq!(shop(&format!("objective: {objective}")).unwrap().objective, span);
    }
}

/// Whatever period is accepted, the defaults mean what they say in it: 1, 3 and 7 s, all of it.
#[test]
fn an_abacus_without_a_schedule_has_the_default_one_or_is_refused() {
    let accepted = |policy: &str| {
        let service = shop(&format!("policy: {policy}")).ok()?;
        Some(service.policy.abacus())
    };
    let mut refused = Vec::new();
    for period in [10, 50, 56, 62, 100, 125, 200, 250, 300, 500, 600, 999, 1000, 1001, 2000, 7000] {
        let Some(found) = accepted(&format!("{{name: abacus, period: {period}ms}}")) else {
            refused.push(period);
            continue;
        };
        let times = found.schedule.iter().map(|at| u64::from(*at) * period);
        assert_eq!(times.collect::<Vec<_>>(), [1000, 3000, 7000], "{period} ms");
        assert_eq!(u64::from(found.window) * period, 7000, "{period} ms");
    }
    assert_eq!(refused, [10, 50, 56, 62, 300, 600, 999, 1001, 2000, 7000]);
    for (policy, window) in [
        ("{name: abacus, period: 10ms, window: 1270ms}", 127),
        ("{name: abacus_learned, schedule: [1s, 127s]}", 127),
        ("{name: abacus_exact, period: 2s, schedule: [2s, 6s]}", 3),
        ("{name: abacus, schedule: [1s, 200s], window: 0s}", 0),
    ] {
        assert_eq!(accepted(policy).map(|found| found.window), Some(window), "{policy}");
    }
}

/// What operators copy.
#[test]
fn the_examples_of_the_page_on_throttling_are_accepted() {
    let page = fs::read_to_string(here("../../docs/throttling.md")).unwrap();
    let examples: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(text, _)| text))
        .collect();
    assert_eq!(examples.len(), 6);
    for example in examples {
        let service = shop(&example.replace('\n', "\n    "));
        let service = service.unwrap_or_else(|e| panic!("{example}\n{e}"));
        let own = service.policy.has_own_limits() || service.policy.name == "percent";
        assert!(own || service.requests.is_some(), "{example}");
    }
}

/// Abatement, onset and discard of priorities 7 and 0.
fn lowest_and_highest(policy: &str) -> [(u32, u32, Option<u32>); 2] {
    let service = shop(&format!("policy: {policy}")).unwrap_or_else(|e| panic!("{policy}: {e}"));
    let ladders = service.policy.threshold().ladders;
    [ladders[7], ladders[0]].map(|l: Ladder| (l.abatement, l.onset, l.discard))
}

/// Few keys make a whole ladder for every priority.
#[test]
fn thresholds_that_are_left_out_are_derived() {
    let same = |ladder| [ladder; 2];
    for (policy, expected) in [
        ("{name: threshold, discard: 200}", same((100, 100, Some(200)))),
        ("{name: threshold, discard: 1}", same((1, 1, Some(1)))),
        ("{name: threshold, discard: 20, abatement: 5}", same((5, 5, Some(20)))),
        ("{name: threshold, onset: 150, gap: 250ms}", same((75, 150, None))),
        ("{name: threshold, onset: 150, gap: 250ms, discard: 200}", same((75, 150, Some(200)))),
        (
            "{name: threshold, level: waiting-time, onset: 500ms, share: 50%, discard: 2s}",
            same((250_000, 500_000, Some(2_000_000))),
        ),
        (
            "{name: threshold, onset: 150, share: 0.5, discard: 300, priorities: [{priority: 3, onset: 250}]}",
            [(75, 150, Some(300)), (125, 250, Some(300))],
        ),
        (
            "{name: threshold, discard: 100, priorities: [{priority: 1, discard: 300}]}",
            [(50, 50, Some(100)), (150, 150, Some(300))],
        ),
        (
            "{name: threshold, abatement: 90, onset: 100, gap: 1ms, priorities: [{priority: 1, onset: 110}]}",
            [(90, 100, None), (90, 110, None)],
        ),
    ] {
        assert_eq!(lowest_and_highest(policy), expected, "{policy}");
    }
}

#[test]
fn severities_and_shares_are_as_they_are_written() {
    let service = shop(
        "policy: {name: threshold, preferred: 1, priorities: [{priority: 2, extra_severity: 0}], extra_severity: 2, \
         severities: [{onset: 100, share: 12.5%}, {onset: 150, share: 0.5}, {onset: 400, share: 100%}]}",
    );
    let config = service.unwrap().policy.threshold();
    assert_eq!((config.rises, config.preferred), (vec![50, 300], 0b11));
    let shares = [0.125, 0.5, 1.0].map(Share::new).to_vec();
    assert_eq!(config.throttle, ThrottleConfig::Share(shares));
    let extra = config.ladders.map(|ladder| ladder.extra_severity);
    assert_eq!(extra, [0, 0, 0, 2, 2, 2, 2, 2]);
    for wrong in ["101%", "1.1", "-1%", "half"] {
        let error = shop(&format!("policy: {{name: percent, share: {wrong}}}")).unwrap_err();
        assert!(error.to_string().contains("a percentage such as 50%"), "{error}");
    }
}

#[test]
fn a_tolerance_holds_for_a_priority_and_those_above() {
    let gap = |policy: &str| shop(&format!("policy: {policy}")).unwrap().policy.gap();
    assert_eq!(gap("{name: gap}").tolerance, [4.0; 8]);
    let two =
        gap("{name: gap, gap: 20ms, tolerance: 5, priorities: [{priority: 1, tolerance: 10}]}");
    assert_eq!(two.tolerance, [10.0, 10.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]);
    assert_eq!(two.gap, Some(Nanos::from_millis(20)));
}

#[test]
fn the_reserve_is_divided_by_weight_and_never_takes_the_whole_bucket() {
    let zebra = &good("everything").services[0];
    // 0.25 of 120 tokens; weights above the lowest priority: 2 at 0, 1 at 1.
    assert_eq!(zebra.reserve_tokens(120), [0, 20, 30, 30, 30, 30, 30, 30]);
    assert_eq!(zebra.reserve_tokens(1), [0; 8]);
    assert_eq!(good("minimal").services[0].reserve_tokens(1000), [0; 8]);
}

/// What is there unless it is written.
#[test]
fn what_no_rule_can_evaluate_has_a_bucket_of_its_own() {
    let rules = "{buckets: {a: {resource: cpu}}, rules: [{path: /, bucket: a}]}";
    let requests = shop(&format!("requests: {rules}")).unwrap().requests.unwrap();
    let names: Vec<&str> = requests.buckets.iter().map(|bucket| bucket.name.as_str()).collect();
    assert_eq!(names, ["a", "unevaluable"]);
    let last = requests.rules.last().unwrap();
    assert!(last.unevaluable && last.sends_503());
    assert_eq!(last.bucket.as_deref(), Some("unevaluable"));
}

/// A configuration that was put together in a program is bounded as one of a file.
#[test]
fn what_has_no_room_in_the_tables_is_refused_wherever_it_comes_from() {
    let fine = good("requests");
    fine.fits().unwrap();
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = fine.clone();
        change(&mut config);
        config.fits().unwrap_err().to_string()
    };
    let service = |config: &Config, n: usize| ServiceConfig {
        name: format!("s{n}"),
        requests: None,
        ..config.services[0].clone()
    };
    let said = refused(&|config| config.services = (0..33).map(|n| service(config, n)).collect());
    assert!(said.contains("services: found 33 services; allowed: at most 32"), "{said}");
    let said = refused(&|config| config.tables.sources = 512);
    assert!(said.contains("tables.sources: found 512; allowed: 1024 to 4194304"), "{said}");
    let said = refused(&|config| config.tables.sources = 1500);
    assert!(said.contains("a power of two, such as 1024 or 2048"), "{said}");
    let said = refused(&|config| {
        let requests = config.services.iter_mut().find_map(|s| s.requests.as_mut()).unwrap();
        let rule = requests.rules[0].clone();
        requests.rules.extend(vec![rule; 1024]);
    });
    assert!(said.contains("rules in all services; at most 1023"), "{said}");
    let said = refused(&|config| {
        let requests = config.services.iter_mut().find_map(|s| s.requests.as_mut()).unwrap();
        requests.response_body = "x".repeat(600);
    });
    assert!(said.contains("requests.response_body: found 600 bytes"), "{said}");
}

#[test]
fn files_that_are_no_text_or_too_long_are_refused() {
    let say = |bytes: &[u8]| parse_bytes(bytes, &registry()).unwrap_err().to_string();
    assert_eq!(
        say(b""),
        "found nothing; a configuration has at least the key services, and interfaces or gateways"
    );
    assert_eq!(say(b"a: b\nc: \xff\n"), "2:4: found the byte 0xff; the file must be UTF-8 text");
    let huge = vec![b'#'; CONFIG_BYTES_MAX + 1];
    assert_eq!(say(&huge), "found 1048577 bytes; a configuration has at most 1048576");
    let longest = vec![b'#'; CONFIG_BYTES_MAX];
    assert!(say(&longest).starts_with("found only comments"));
    let missing = load(Path::new("/nonexistent/tidegate.yaml"), &registry()).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read /nonexistent/tidegate.yaml: "));
}

#[test]
fn many_values_and_many_faults_stay_bounded() {
    let values = format!("interfaces: [{}]\n", "a,".repeat(200_000));
    let error = parse(&values, &registry()).unwrap_err().to_string();
    assert!(error.contains("more than 100000 values"), "{error}");
    let faults = format!("{{{}}}", (0..5000).map(|i| format!("k{i}: 1, ")).collect::<String>());
    assert_eq!(parse(&faults, &registry()).unwrap_err().errors.len(), 100);
}

/// Entries of a flow list.
fn list<T: ToString>(entries: impl Iterator<Item = T>) -> String {
    entries.map(|entry| entry.to_string()).collect::<Vec<_>>().join(", ")
}

/// As many as the dataplane's table takes are accepted, one more is said at its place: `check` must
/// not call right what the loader refuses. 16 services with 64 addresses fill it; `*` is two.
#[test]
fn more_listen_addresses_than_the_table_takes_are_refused() {
    let listening = |last: &str| {
        let of = |service: u16| list((1..=64).map(|i| format!("192.0.2.1:{}", service * 100 + i)));
        let services: String =
            (1..=15).map(|s| format!("  s{s}: {{mode: shadow, listen: [{}]}}\n", of(s))).collect();
        let most = list((2..=63).map(|i| format!("192.0.2.2:{i}")));
        parse(
            &format!(
                "interfaces: [{{name: lo}}]\nservices:\n{services}  \
                 last: {{mode: shadow, listen: [{most}, {last}]}}\n"
            ),
            &registry(),
        )
    };
    assert_eq!(listening("'*:9'").unwrap().services.len(), 16);
    assert_eq!(
        listening("'192.0.2.2:8080', '*:9'").unwrap_err().to_string(),
        "18:32: services.last.listen: found 1025 listen addresses in all services together \
         (* is two); allowed: at most 1024"
    );
}

/// Two classes of 4,096 fill the table.
#[test]
fn more_prefixes_than_the_table_takes_are_refused() {
    let prefixes = |classes: [u16; 3], exempt: u16| {
        let class = |(service, entries): (u16, u16)| {
            let address = |i| format!("10.{service}.{}.{}", i / 256, i % 256);
            format!(
                "  s{service}:\n    mode: shadow\n    listen: ['*:{service}']\n    classes:\n    \
                 - {{name: c, priority: 0, sources: [{sources}]}}\n",
                sources = list((0..entries).map(address)),
            )
        };
        let filled = (1..).zip(classes).filter(|(_, entries)| *entries > 0);
        let services: String = filled.map(class).collect();
        let never = list((0..exempt).map(|i| format!("192.0.2.{i}")));
        let head = format!("interfaces: [{{name: lo}}]\nservices:\n{services}");
        parse(&format!("{head}exempt: {{sources: [{never}]}}\n"), &registry())
    };
    assert!(prefixes([4096, 4096, 0], 0).is_ok() && prefixes([4096, 4094, 1], 1).is_ok());
    let said = "source prefixes in all classes and exempt together; allowed: at most 8192";
    for (two, three, exempt, place) in [
        (4096, 0, 1, "13:19: exempt.sources: found 8193"),
        (4092, 4, 1, "18:19: exempt.sources: found 8193"),
        (4096, 3, 2, "17:39: services.s3.classes[0].sources: found 8197"),
    ] {
        let found = prefixes([4096, two, three], exempt).unwrap_err().to_string();
        assert_eq!(found, format!("{place} {said}"));
    }
}

#[test]
fn a_reload_says_what_it_changes() {
    let before = good("everything");
    assert!(diff(&before, &before).is_empty());
    let mut after = before.clone();
    after.services[0].mode = Mode::Shadow;
    after.services[0].classes.pop();
    after.daemon.tick = Nanos::from_millis(100);
    after.services.swap(0, 1);
    let text: Vec<String> = diff(&before, &after).iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "~ daemon.tick: 50ms -> 100ms",
            "- services.zebra.classes[2]: {\"name\":\"off\",\"priority\":7,\"sources\":[\"203.0.113.9/32\"],\"weight\":1}",
            "~ services.zebra.mode: enforce -> shadow",
            "~ order of services: zebra, api -> api, zebra",
        ]
    );
}

/// A value in every place that takes one.
fn with_cookies(value: &str) -> String {
    format!(
        "interfaces: [{{name: lo}}]\nservices:\n  shop:\n    mode: enforce\n    listen: ['*:80']\n    \
         requests:\n      buckets: {{a: {{resource: cpu}}}}\n      rules:\n      \
         - {{path: /a, cookie: {{name: sid, value: {value}a}}, bucket: a}}\n      \
         - {{path: /b, protect: [{{name: sid}}, {{name: sid, value: {value}b}}], bucket: a}}\n      \
         - {{path: /, cookie: {{name: sid, value: {value}c, absent: true}}, bucket: a}}\n"
    )
}

#[test]
fn no_value_of_a_cookie_is_ever_shown() {
    let of = |value: &str| parse(&with_cookies(value), &registry()).unwrap();
    let (before, after) = (of("secret-"), of("hidden-"));
    let mut without = before.clone();
    without.services[0].requests.as_mut().unwrap().rules.remove(0);
    let mut said: Vec<String> = Vec::new();
    for (old, new) in [(&before, &after), (&before, &without), (&without, &before)] {
        let changes = diff(old, new);
        assert!(!changes.is_empty());
        said.extend(changes.iter().map(ToString::to_string));
    }
    assert!(said.contains(&"~ services.shop.requests.rules[0].cookie.value: … -> …".to_owned()));
    let requests = before.services[0].requests.as_ref().unwrap();
    for rule in &requests.rules {
        said.extend([rule.to_string(), rule.label()]);
    }
    for cookie in ["sid=secret-a", "sid=secret-b", "sid=secret-c"] {
        for path in ["/a", "/b", "/"] {
            let headers = [format!("Cookie: {cookie}")];
            let head = RequestHead::parse(&format!("GET {path} HTTP/1.1"), &headers).unwrap();
            let selection = requests.select(&head);
            said.extend(selection.compared.into_iter().filter_map(|c| c.mismatch));
            said.extend(selection.protected_by.map(|cookie| cookie.to_string()));
        }
    }
    assert!(said.contains(&"/a cookie sid=…".to_owned()), "{said:#?}");
    let broken = with_cookies("secret-").replace("secret-b", "'secret b'");
    said.push(parse(&broken, &registry()).unwrap_err().to_string());
    for text in said {
        assert!(!text.contains("secret") && !text.contains("hidden"), "{text}");
    }
}

#[test]
fn commands_change_the_intent_and_unknown_services_do_not() {
    let mut intent = Intent::new(good("minimal"));
    intent.apply(Command::Release { on: true }).unwrap();
    let mode = |service: &str| Command::Mode {
        service: service.into(),
        mode: Mode::Enforce,
        canary: tidegate_model::Canary::ALL,
    };
    intent.apply(mode("shop")).unwrap();
    assert_eq!((intent.released, intent.config.services[0].mode), (true, Mode::Enforce));
    let before = intent.clone();
    let error = intent.apply(mode("shpo")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no service is called \"shpo\" (did you mean \"shop\"?); configured: shop"
    );
    assert_eq!(intent, before);
    intent.apply(Command::Reload { config: Box::new(good("everything")) }).unwrap();
    assert!(intent.released, "a reload does not turn the kill switch off");
}

#[test]
fn the_published_schema_is_the_one_that_is_enforced() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    golden(&here("../../packaging/tidegate.schema.json"), &text).unwrap();
}

#[test]
fn the_annotated_example_is_right() {
    load(&here("../../packaging/tidegate.yaml"), &registry()).unwrap();
}

#[test]
fn the_reference_in_the_documents_is_made_from_the_schema() {
    let path = here("../../docs/configuration.md");
    for (name, table) in [("reference", reference()), ("bounds", bounds())] {
        let page = fs::read_to_string(&path).unwrap();
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let (head, rest) = page.split_once(&begin).expect("the page has the first mark");
        let (_, tail) = rest.split_once(&end).expect("the page has the second mark");
        golden(&path, &format!("{head}{begin}{table}{end}{tail}")).unwrap();
    }
}

/// Any rule of a few words; two of them often say nearly the same.
fn any_rule() -> impl Strategy<Value = RuleConfig> {
    let path = prop::sample::select(vec!["/", "/a", "/a/b"]);
    let methods = prop::collection::btree_set(prop::sample::select(Method::ALL.to_vec()), 0..3);
    let host = prop::option::of(prop::sample::select(vec!["x.y", "*.y", "z.y", "y"]));
    let cookie = prop::option::of((
        prop::sample::select(vec!["c", "d"]),
        prop::option::of(prop::sample::select(vec!["1", "2"])),
        any::<bool>(),
    ));
    (path, methods, host, cookie).prop_map(|(path, methods, host, cookie)| RuleConfig {
        path: Some(path.parse().unwrap()),
        methods: methods.into_iter().collect(),
        host: host.map(|host| host.parse().unwrap()),
        cookie: cookie.map(|(name, value, absent)| CookieMatch {
            name: name.into(),
            value: value.map(Into::into),
            absent,
        }),
        action: Some(RuleAction::Allow),
        ..RuleConfig::default()
    })
}

fn any_request() -> impl Strategy<Value = RequestHead> {
    let method = prop::sample::select(vec!["GET", "HEAD", "POST", "BREW"]);
    let target = prop::sample::select(vec!["/", "/a", "/ab", "/a/b/c"]);
    let host = prop::option::of(prop::sample::select(vec!["x.y", "z.y", "y", "w.x.y"]));
    let cookie = (prop::sample::select(vec!["c", "d"]), prop::sample::select(vec!["1", "2"]));
    let cookies = prop::collection::vec(cookie, 0..3);
    (method, target, host, cookies).prop_map(|(method, target, host, cookies)| RequestHead {
        method: method.into(),
        target: target.into(),
        path: target.into(),
        host: host.map(Into::into),
        cookies: cookies.into_iter().map(|(n, v)| (n.into(), Some(v.into()))).collect(),
        ..RequestHead::default()
    })
}

/// Text that looks enough like a configuration to get behind the first checks.
fn almost_yaml() -> impl Strategy<Value = String> {
    let words = [
        "interfaces",
        "services",
        "name",
        "mode",
        "listen",
        "classes",
        "daemon",
        ": ",
        "- ",
        "\n",
        "\n  ",
        "\n    ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "\"",
        "'",
        "&a ",
        "*a",
        "!!t ",
        "|",
        ">",
        "#",
        "\t",
        "eth0",
        "*:80",
        "shadow",
        "requests",
        "buckets",
        "rules",
        "resource",
        "cpu",
        "path",
        "/a",
        "1s",
        "0",
        "-1",
        "1e999",
        "?",
        "---\n",
        "%",
        "é",
        "\u{0}",
        "\u{feff}",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..80).prop_map(|w| w.concat())
}

proptest! {
    /// What the check calls unreachable is met by no request, and the rule that is met is the first
    /// of the longest path that begins the request's.
    #[test]
    fn a_covered_rule_is_never_met(
        rules in prop::collection::vec(any_rule(), 1..6),
        requests in prop::collection::vec(any_request(), 20),
    ) {
        let mut config = good("requests").services.remove(0).requests.unwrap();
        config.rules = rules;
        for request in requests {
            let found = config.select(&request);
            let Some(met) = found.rule else { continue };
            let earlier = &config.rules[..met];
            prop_assert!(!earlier.iter().any(|rule| rule.covers(&config.rules[met])));
            for compared in &found.compared {
                prop_assert_eq!(compared.mismatch.is_none(), compared.rule == met);
            }
        }
    }

    #[test]
    fn no_request_makes_the_search_panic(
        line in prop_oneof![any::<String>(), "[A-Z]{1,4} (http://|https://|/)?[a-z:/?#@\\[\\]é]{0,9} HTTP/1\\.[01]"],
        headers in prop::collection::vec("(Host|Cookie|x)?:?[ -~é]{0,20}", 0..4),
    ) {
        let config = good("requests").services.remove(0).requests.unwrap();
        if let Ok(head) = RequestHead::parse(&line, &headers) {
            let found = config.select(&head);
            prop_assert!(found.rule.is_none_or(|rule| rule < config.rules.len()));
        }
        let _ = config.select_tls(&line);
    }

    /// What is accepted is shown as it can be written again.
    #[test]
    fn paths_and_hosts_survive_a_round_trip(text in prop_oneof![any::<String>(), "/?[a-z%A-F0-9.*?-]{0,12}"]) {
        if let Ok(path) = text.parse::<PathPrefix>() {
            prop_assert_eq!(path.as_str(), &text);
            prop_assert!(path.begins(&text) && text.starts_with('/'));
        }
        if let Ok(host) = text.parse::<HostPattern>() {
            prop_assert_eq!(host.to_string().parse::<HostPattern>().unwrap(), host.clone());
            prop_assert!(host.covers(&host) && host.matches(&host.name) != host.below);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = parse(&text, &registry());
    }

    #[test]
    fn no_near_configuration_makes_the_parser_panic(text in almost_yaml()) {
        if let Err(errors) = parse(&text, &registry()) {
            prop_assert!(!errors.errors.is_empty());
            let _ = errors.to_string();
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_bytes(&bytes, &registry());
    }

    /// One byte of a right file changed: never a panic, and what is accepted is a configuration.
    #[test]
    fn a_flipped_byte_never_panics(
        name in prop::sample::select(vec!["everything", "requests"]),
        at in 0_usize..2400,
        byte in any::<u8>(),
    ) {
        let mut bytes = fs::read(here(&format!("tests/config/good/{name}.yaml"))).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(config) = parse_bytes(&bytes, &registry()) {
            prop_assert!(!config.services.is_empty());
        }
    }
}

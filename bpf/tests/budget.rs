// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the verifier needs: every program of the dataplane, made by every compiler that we name,
//! loads, and stays within a quarter of the verifier's limit and near the number that is recorded
//! in tests/golden/budget.txt (rewritten with `TIDEGATE_BLESS=1`, `cargo xtask golden --bless`).
//!
//! A compiler that is missing is an error: `make setup` installs them all.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use support::golden::blessing;
use support::object::{COMPILERS, mark_objects, objects, require_root, router_objects};
use support::place::root;
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::{Options, TestHook, TestPlane};
use tidegate_bpf::{Marks, Plan, Router};
use tidegate_config::{InBandConfig, InterfaceConfig, RuleConfig, ServiceConfig};
use tidegate_policy::{Action, Policy};
use tidegate_units::Rate;

/// Instructions that any program may take: three tenths of the million that the kernel allows. One patch of the
/// kernel once made a program three times as expensive (spec: safety, V1), and that still loads. One more policy
/// takes about 7,000.
const INSTRUCTIONS_MAX: u32 = 300_000;
/// How much more than recorded a program may take, in percent.
const GROWTH_MAX: u32 = 20;
/// How many more than recorded always pass: small programs are all rounding.
const GROWTH_FREE: u32 = 200;

/// Program and compiler.
type Budgets = BTreeMap<(String, String), u32>;

/// Everything on, so that nothing is pruned.
fn plan(trust_dscp: bool) -> Plan {
    let rule = RuleConfig { close_persistent: true, ..plans::rule("/", Some("all")) };
    let services = vec![ServiceConfig {
        datagrams: Some(Rate::per_second(50.0)),
        policy: plans::policy(Policy::Abacus, Action::Reject),
        requests: Some(plans::requests(&["all"], vec![rule])),
        ..plans::service("shop", &["*:80"])
    }];
    let mut plan = plans::importing(plans::plan(services));
    plan.config.interfaces =
        vec![InterfaceConfig { trust_dscp, border: true, ..InterfaceConfig::default() }];
    plan.config.in_band =
        Some(InBandConfig { router_bit: 1, server_bit: 2, mark: false, option: None });
    plan
}

/// What the ingress hooks take of those who import no rules, count no datagrams and are no border.
fn measure_without_import(compiler: &str) -> Budgets {
    let mut plan = plan(true);
    plan.config.flowspec = None;
    plan.config.services[0].datagrams = None;
    plan.config.in_band = None;
    let plane = TestPlane::load_objects(&plan, objects(compiler), Options { redirect: true });
    let hooks = [("tc_alone", TestHook::Tc), ("xdp_alone", TestHook::Xdp)];
    let count = |(name, hook): (&str, TestHook)| {
        (
            (name.to_owned(), compiler.to_owned()),
            plane.as_ref().unwrap().verified_insns(hook).unwrap(),
        )
    };
    hooks.into_iter().map(count).collect()
}

/// The most that each program took, over what the loader may choose.
fn measure(compiler: &str) -> Budgets {
    let objects = objects(compiler);
    let mut budgets = measure_without_import(compiler);
    for (redirect, trust_dscp) in [(false, false), (true, true)] {
        let options = Options { redirect };
        let plane = TestPlane::load_objects(&plan(trust_dscp), objects.clone(), options);
        let plane = plane.unwrap_or_else(|error| panic!("made by {compiler}: {error}"));
        for (program, count) in plane.budgets().unwrap() {
            let most = budgets.entry((program.into(), compiler.into())).or_default();
            *most = count.max(*most);
        }
    }
    let router =
        Router::load_objects(&plans::router(&["192.0.2.0/24:80"]), router_objects(compiler));
    let router = router.unwrap_or_else(|error| panic!("made by {compiler}: {error}"));
    let bits = InBandConfig { router_bit: 1, server_bit: 2, mark: true, option: None };
    let marks = Marks::load_objects(&bits, mark_objects(compiler));
    let marks = marks.unwrap_or_else(|error| panic!("made by {compiler}: {error}"));
    let (router, marks) = (router.budgets().unwrap(), marks.budgets().unwrap());
    for (program, count) in router.into_iter().chain(marks) {
        budgets.insert((program.into(), compiler.into()), count);
    }
    budgets
}

fn path() -> PathBuf {
    root().join("bpf/tests/golden/budget.txt")
}

fn record(budgets: &Budgets) {
    let mut text = String::from(
        "# SPDX-License-Identifier: Apache-2.0 OR MIT\n\
         # Instructions that the verifier processes: program, compiler, number.\n\
         # Written by `cargo xtask golden --bless`; may grow by 20 %, to 300,000 at most.\n",
    );
    for ((program, compiler), count) in budgets {
        writeln!(text, "{program:<11} {compiler:<10}{count:>7}").unwrap();
    }
    std::fs::write(path(), text).unwrap();
}

fn recorded() -> Budgets {
    let text = std::fs::read_to_string(path()).unwrap_or_else(|error| {
        panic!("{}: {error}: cargo xtask golden --bless", path().display())
    });
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [program, compiler, count] = words[..] else { panic!("budget.txt: {line}") };
        ((program.to_owned(), compiler.to_owned()), count.parse().unwrap())
    });
    rows.collect()
}

/// What is wrong with a number, if anything.
fn complaint(now: u32, then: Option<u32>) -> Option<String> {
    let allowed = then.map(|then| then + (then * GROWTH_MAX / 100).max(GROWTH_FREE));
    match (then, allowed) {
        _ if now > INSTRUCTIONS_MAX => Some(format!("{now}: more than {INSTRUCTIONS_MAX}")),
        (Some(then), Some(allowed)) if now > allowed => {
            Some(format!("{now}: {then} are recorded, {allowed} allowed"))
        }
        (None, _) => Some(format!("{now}: nothing is recorded")),
        _ => None,
    }
}

#[test]
fn every_program_of_every_compiler_loads_within_its_budget() {
    require_root();
    // The verifier takes one processor for each.
    let mut budgets = Budgets::new();
    std::thread::scope(|scope| {
        let threads = COMPILERS.map(|compiler| scope.spawn(move || measure(compiler)));
        threads.into_iter().for_each(|thread| budgets.append(&mut thread.join().unwrap()));
    });
    for ((program, compiler), count) in &budgets {
        println!("{program:<11} {compiler:<10}{count:>7}");
    }
    if blessing() {
        record(&budgets);
    }
    let recorded = recorded();
    let mut wrong: Vec<String> = budgets
        .iter()
        .filter_map(|(key, now)| {
            let complaint = complaint(*now, recorded.get(key).copied());
            complaint.map(|text| format!("{} by {}: {text}", key.0, key.1))
        })
        .collect();
    let unused = recorded.keys().filter(|key| !budgets.contains_key(key));
    wrong.extend(unused.map(|key| format!("budget.txt: no {} by {}", key.0, key.1)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Both sides of every bound.
#[test]
fn a_budget_is_exceeded_just_above_it() {
    assert_eq!(complaint(12_000, Some(10_000)), None);
    assert!(complaint(12_001, Some(10_000)).is_some());
    assert_eq!(complaint(300, Some(100)), None);
    assert!(complaint(301, Some(100)).is_some());
    assert_eq!(complaint(INSTRUCTIONS_MAX, Some(INSTRUCTIONS_MAX)), None);
    assert!(complaint(INSTRUCTIONS_MAX + 1, Some(INSTRUCTIONS_MAX)).is_some());
    assert!(complaint(1, None).is_some());
}

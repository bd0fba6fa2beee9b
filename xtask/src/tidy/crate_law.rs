// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which crate may use which (docs/architecture.md). Tests may use more, but what they use is
//! listed, too.

use super::workspace::{Dependency, Package};
use super::{Problem, Repository};

/// A row may use only what stands in it. Names without `tidegate-`.
const LAW: [(&str, &[&str]); 27] = [
    ("units", &[]),
    ("policy", &["units"]),
    ("model", &["units"]),
    ("config", &["model", "units"]),
    ("params", &["policy", "config", "model", "units"]),
    ("control", &["policy", "model", "units"]),
    ("workload", &["units"]),
    ("sim", &["policy", "control", "model", "workload", "units"]),
    ("bpf", &["policy", "config", "model", "units"]),
    ("sense", &["model", "units"]),
    ("peer", &["model", "units"]),
    ("flowspec", &["model", "units"]),
    ("gate", &["params", "policy", "config", "model", "units"]),
    ("proxy", &["gate", "config", "model", "units"]),
    ("telemetry", &["model", "units"]),
    ("api", &["telemetry", "model", "units"]),
    (
        "daemon",
        &[
            "bpf",
            "sense",
            "control",
            "peer",
            "flowspec",
            "gate",
            "proxy",
            "telemetry",
            "api",
            "params",
            "config",
            "model",
            "units",
        ],
    ),
    ("cli", &["api", "telemetry", "config", "model", "units"]),
    ("dashboard", &["api", "telemetry", "config", "model", "units"]),
    ("lab", &["workload", "api", "peer", "model", "units"]),
    ("results", &[]),
    ("experiments", &["sim", "lab", "results", "workload", "units"]),
    ("tidegate", &["*"]),
    ("lab-cli", &["cli", "lab", "experiments"]),
    ("fuzz", &["*"]),
    // Must build before the tools are there that the others need.
    ("xtask", &[]),
    // The bench's worker, should it become a crate of its own.
    ("bench", &["bpf", "lab", "policy", "config", "model", "units"]),
];

/// What only tests may use beyond the law, with the reason.
const TESTS_TOO: [(&str, &str, &str); 3] = [
    ("control", "flowspec", "the law for routers is tried with the plan that tells them"),
    ("gate", "control", "the shipped controller finds the limit by what the gate counts"),
    ("api", "config", "explanations are tried on a real configuration"),
];

/// What is not linked into a program that runs as root, directly or by a crate of ours.
const PRODUCT: &str = "tidegate";
const APART: [&str; 4] = ["tidegate-lab", "tidegate-experiments", "plotters", "indicatif"];
const WHY_APART: &str = "the daemon runs as root: what draws and makes labs is tidegate-lab";

const WHY: &str = "each crate must be understood, tested and reused without those above it";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in &repository.packages {
        let Some(allowed) = row(&package.name) else {
            problems.push(problem(
                repository,
                package,
                &package.name,
                format!("crate `{}` has no row in the dependency law", package.name),
                "add a row to LAW in xtask/src/tidy/crate_law.rs and to docs/architecture.md",
            ));
            continue;
        };
        for used in package.dependencies.iter().filter(|used| used.is_ours()) {
            if !may_use(&package.name, allowed, used) {
                problems.push(problem(
                    repository,
                    package,
                    &used.name,
                    format!("`{}` may not use `{}`", package.name, used.name),
                    &format!("it may use: {}; pass what is needed through a trait", list(allowed)),
                ));
            }
        }
        problems.extend(lints(repository, package));
    }
    problems.extend(apart(repository));
    problems
}

/// What the product links although it must not; tests may use it.
fn apart(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen = vec![PRODUCT];
    let mut next = 0;
    while let Some(name) = seen.get(next).copied() {
        next += 1;
        let Some(package) = repository.packages.iter().find(|package| package.name == name) else {
            continue;
        };
        for used in package.dependencies.iter().filter(|used| used.kind.is_none()) {
            if APART.contains(&&*used.name) {
                let what = format!("the product links `{}` by `{name}`", used.name);
                let fix = "move what needs it to crates/lab-cli, or use it in tests only";
                let found = problem(repository, package, &used.name, what, fix);
                problems.push(Problem { why: WHY_APART, ..found });
            } else if used.is_ours() && !seen.contains(&&*used.name) {
                seen.push(&used.name);
            }
        }
    }
    problems
}

fn short(name: &str) -> &str {
    name.strip_prefix("tidegate-").unwrap_or(name)
}

fn row(name: &str) -> Option<&'static [&'static str]> {
    LAW.iter().find(|(row, _)| *row == short(name)).map(|(_, allowed)| *allowed)
}

fn may_use(name: &str, allowed: &[&str], used: &Dependency) -> bool {
    let (name, other) = (short(name), short(&used.name));
    allowed.contains(&"*")
        || allowed.contains(&other)
        || used.is_dev()
            && TESTS_TOO.iter().any(|(row, extra, _why)| *row == name && *extra == other)
}

fn list(allowed: &[&str]) -> String {
    if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") }
}

/// Every crate takes the lints of the workspace.
fn lints(repository: &Repository, package: &Package) -> Option<Problem> {
    let manifest = repository.tree.file(&package.manifest_path)?;
    let mut lines = manifest.lines().skip_while(|(_, line)| line.trim() != "[lints]").skip(1);
    if lines.next().is_some_and(|(_, line)| line.replace(' ', "") == "workspace=true") {
        return None;
    }
    Some(problem(
        repository,
        package,
        "[package]",
        format!("crate `{}` does not take the lints of the workspace", package.name),
        "add `[lints]` and below it `workspace = true`",
    ))
}

fn problem(
    repository: &Repository,
    package: &Package,
    at: &str,
    what: String,
    fix: &str,
) -> Problem {
    let line = repository
        .tree
        .file(&package.manifest_path)
        .and_then(|manifest| manifest.lines().find(|(_, line)| line.contains(at)))
        .map_or(1, |(line, _)| line);
    Problem { path: package.manifest_path.clone(), line, what, why: WHY, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::super::workspace::package;
    use super::*;

    fn problems(packages: Vec<Package>) -> Vec<String> {
        let manifests: Vec<(String, &str)> = packages
            .iter()
            .map(|package| {
                (package.manifest_path.clone(), "[package]\n\n[lints]\nworkspace = true\n")
            })
            .collect();
        let files: Vec<(&str, &str)> =
            manifests.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let repository = Repository { tree: Tree::of(&files), packages };
        check(&repository).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn what_stands_in_the_row_may_be_used() {
        let uses = [("tidegate-model", "normal", true), ("serde", "normal", false)];
        assert!(problems(vec![package("tidegate-control", &uses)]).is_empty());
    }

    #[test]
    fn the_configuration_is_above_the_nouns_and_beside_what_senses_and_tells() {
        let uses = [("tidegate-model", "normal", true), ("tidegate-units", "normal", true)];
        assert!(problems(vec![package("tidegate-config", &uses)]).is_empty());
        for user in ["tidegate-model", "tidegate-sense", "tidegate-peer", "tidegate-api"] {
            let uses = [("tidegate-config", "normal", true)];
            assert_eq!(problems(vec![package(user, &uses)]).len(), 1, "{user}");
        }
    }

    #[test]
    fn what_does_not_stand_there_may_not_even_to_build() {
        for kind in ["normal", "build"] {
            let uses = [("tidegate-daemon", kind, true)];
            assert_eq!(
                problems(vec![package("tidegate-units", &uses)]),
                ["`tidegate-units` may not use `tidegate-daemon`"]
            );
        }
    }

    #[test]
    fn tests_may_use_what_is_listed_for_them_and_no_more() {
        let of = |user: &str, used: &str, kind: &str| {
            problems(vec![package(user, &[(used, kind, true)])]).len()
        };
        assert_eq!(of("tidegate-gate", "tidegate-control", "dev"), 0);
        assert_eq!(of("tidegate-gate", "tidegate-control", "normal"), 1);
        assert_eq!(of("tidegate-units", "tidegate-control", "dev"), 1);
    }

    #[test]
    fn the_product_links_nothing_that_draws_or_makes_labs() {
        let with = |kind: &str| {
            vec![
                package(PRODUCT, &[("tidegate-cli", "normal", true), ("tidegate-lab", kind, true)]),
                package("tidegate-cli", &[("indicatif", kind, false)]),
                package("tidegate-lab-cli", &[("indicatif", "normal", false)]),
            ]
        };
        assert_eq!(
            problems(with("normal")),
            [
                "the product links `tidegate-lab` by `tidegate`",
                "the product links `indicatif` by `tidegate-cli`"
            ]
        );
        assert!(problems(with("dev")).is_empty());
    }

    /// The same by cargo's own account, in which crates of others stand, too.
    #[test]
    fn cargo_says_the_same() {
        let tree = |package: &str| {
            let words = ["tree", "--locked", "--edges", "normal", "--prefix", "none", "--package"];
            let output = crate::process::cargo().args(words).arg(package).output();
            let output = output.expect("cargo runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let names = text.lines().filter_map(|line| line.split(' ').next());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let (product, lab) = (tree(PRODUCT), tree("tidegate-lab-cli"));
        for name in APART {
            assert!(!product.iter().any(|found| found == name), "the product links {name}");
            assert!(lab.iter().any(|found| found == name), "tidegate-lab links {name}");
        }
        assert!(product.iter().any(|found| found == "tidegate-daemon"));
    }

    #[test]
    fn a_crate_without_a_row_and_one_without_lints_are_found() {
        assert!(problems(vec![package("tidegate-new", &[])])[0].contains("no row"));
        let tree = Tree::of(&[("tidegate-units/Cargo.toml", "[package]\n")]);
        let repository = Repository { tree, packages: vec![package("tidegate-units", &[])] };
        assert!(check(&repository)[0].what.contains("lints"));
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which C folder may include which (docs/architecture.md).

use super::tree::{File, Tree, folder, join};
use super::{Problem, Repository};

/// A folder, the paths (prefixes) that its files may include, and the system headers
/// (prefixes). The longest folder that matches a file holds.
struct Row {
    folder: &'static str,
    ours: &'static [&'static str],
    system: &'static [&'static str],
}

/// Also a name that the compiler is given as a macro.
const ANY: &str = "";

const ABI: &str = "bpf/abi/";
const KERNEL: &str = "bpf/vmlinux/";

const LAW: [Row; 23] = [
    Row {
        folder: "policy/contract",
        ours: &["policy/contract/", "policy/reasons.def"],
        system: &[],
    },
    Row { folder: "policy/algo", ours: &["policy/contract/"], system: &[] },
    Row {
        folder: "policy/chain",
        ours: &["policy/contract/", "policy/chain/", "policy/policies.h"],
        system: &[],
    },
    Row { folder: "policy/router", ours: &["policy/contract/", "policy/router/"], system: &[] },
    Row {
        folder: "policy",
        ours: &["policy/contract/", "policy/algo/", "policy/policies.def", "policy/reasons.def"],
        system: &[],
    },
    // What Rust calls: plain functions around the same headers.
    Row { folder: "policy/src", ours: &["policy/"], system: &["stddef.h", "stdint.h"] },
    Row { folder: "bpf/vmlinux", ours: &["bpf/vmlinux/"], system: &[] },
    Row { folder: "bpf/abi", ours: &["bpf/abi/", "bpf/vmlinux/", "policy/"], system: &["bpf/"] },
    // By job; each may include those above it.
    Row { folder: "bpf/packet", ours: &["bpf/packet/", ABI, KERNEL, "policy/"], system: &["bpf/"] },
    Row {
        folder: "bpf/http",
        ours: &["bpf/http/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/track",
        ours: &["bpf/track/", "bpf/http/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/reply",
        ours: &["bpf/reply/", "bpf/track/", "bpf/http/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/import",
        ours: &["bpf/import/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/datagram",
        ours: &["bpf/datagram/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/border",
        ours: &["bpf/border/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/syn",
        ours: &[
            "bpf/syn/",
            "bpf/reply/",
            "bpf/track/",
            "bpf/import/",
            "bpf/datagram/",
            "bpf/packet/",
            ABI,
            "policy/",
        ],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/request",
        ours: &[
            "bpf/request/",
            "bpf/reply/",
            "bpf/track/",
            "bpf/http/",
            "bpf/packet/",
            ABI,
            "policy/",
        ],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/router",
        ours: &["bpf/router/", "bpf/reply/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/mark",
        ours: &["bpf/mark/", "bpf/packet/", ABI, "policy/"],
        system: &["bpf/"],
    },
    Row {
        folder: "bpf/hook",
        ours: &[
            "bpf/router/",
            "bpf/mark/",
            "bpf/border/",
            "bpf/import/",
            "bpf/datagram/",
            "bpf/request/",
            "bpf/syn/",
            "bpf/reply/",
            "bpf/track/",
            "bpf/http/",
            "bpf/packet/",
            ABI,
            KERNEL,
            "policy/",
        ],
        system: &["bpf/"],
    },
    // Programs that tests load beside ours, and hooks that tests run natively.
    Row { folder: "bpf/tests", ours: &["bpf/", "policy/"], system: &[ANY] },
    // What feeds the same hooks and policies with whatever a fuzzer invents.
    Row { folder: "fuzz/harness", ours: &["fuzz/", "bpf/", "policy/"], system: &[ANY] },
    // Programs that real servers run as CGI.
    Row { folder: "lab/c", ours: &[], system: &[ANY] },
];

/// Where a compiler is told to look, besides the folder of the file.
const SEARCH: [&str; 5] = ["", "policy", "bpf", "bpf/vmlinux", "bpf/abi"];

const WHY: &str = "a policy that includes nothing but the contract runs in every host; a hook that \
                   includes no hook can be read alone";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let tree = &repository.tree;
    let files = tree.files().iter().filter(|file| file.is_c());
    files.flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: &File) -> Vec<Problem> {
    let row = LAW
        .iter()
        .filter(|row| file.path.starts_with(&format!("{}/", row.folder)))
        .max_by_key(|row| row.folder.len());
    let mut problems = Vec::new();
    let Some(row) = row else {
        problems.push(problem(file, 1, "C outside the folders of the include law".into(), &[]));
        return problems;
    };
    // The name stands in quotes, so the whole line is needed; the mask says that it is code.
    for ((line, text), (_, code)) in file.lines().zip(file.code_lines()) {
        let is_include = code.trim_start().strip_prefix('#').map(str::trim_start);
        if !is_include.is_some_and(|rest| rest.starts_with("include")) {
            continue;
        }
        if let Some(what) = judge(tree, file, row, text) {
            problems.push(problem(file, line, what, row.ours));
        }
    }
    problems
}

/// What is wrong with an include line; none if nothing is.
fn judge(tree: &Tree, file: &File, row: &Row, text: &str) -> Option<String> {
    let name = |open, close| text.split_once(open)?.1.split_once(close).map(|(name, _)| name);
    if let Some(system) = name('<', '>') {
        let allowed = row.system.iter().any(|prefix| system.starts_with(prefix));
        return (!allowed).then(|| format!("`<{system}>` may not be included in {}", row.folder));
    }
    let Some(name) = name('"', '"') else {
        return (!row.system.contains(&ANY)).then(|| "an include without a name".to_owned());
    };
    let found = std::iter::once(folder(&file.path))
        .chain(SEARCH)
        .filter_map(|place| join(place, name))
        .find(|path| tree.file(path).is_some());
    let Some(path) = found else {
        return Some(format!("`{name}` is not found in the repository"));
    };
    let allowed = row.ours.iter().any(|prefix| path.starts_with(prefix));
    (!allowed).then(|| format!("`{path}` may not be included in {}", row.folder))
}

fn problem(file: &File, line: usize, what: String, ours: &[&str]) -> Problem {
    let fix = if ours.is_empty() {
        "include nothing; or add a row to LAW in xtask/src/tidy/include_law.rs".to_owned()
    } else {
        format!("include only {}", ours.join(", "))
    };
    Problem { path: file.path.clone(), line, what, why: WHY, fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![
            ("policy/contract/contract.h", "#include \"../reasons.def\"\n"),
            ("policy/reasons.def", ""),
            ("policy/policies.def", ""),
            ("bpf/packet/parse.h", ""),
            ("bpf/hook/other.h", ""),
            ("bpf/vmlinux/vmlinux.h", ""),
        ];
        all.extend(files);
        let repository = Repository { tree: Tree::of(&all), packages: Vec::new() };
        check(&repository).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn what_the_law_allows_passes() {
        let found = problems(&[
            ("policy/algo/a.h", "#include \"../contract/contract.h\"\n"),
            (
                "bpf/hook/xdp.bpf.c",
                "#include \"vmlinux.h\"\n#include <bpf/bpf_helpers.h>\n# include \"../packet/parse.h\"\n",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_policy_includes_the_contract_and_nothing_else() {
        for include in ["<linux/types.h>", "\"../policies.def\"", "\"../../bpf/packet/parse.h\""] {
            let text = format!("#include {include}\n");
            assert_eq!(problems(&[("policy/algo/a.h", &text)]).len(), 1, "{include}");
        }
    }

    #[test]
    fn a_hook_includes_no_hook_and_nothing_that_is_not_there() {
        let found = problems(&[(
            "bpf/hook/a.bpf.c",
            "/* #include \"x\" */\n#include \"other.h\"\n#include \"gone.h\"\n",
        )]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("bpf/hook/other.h") && found[1].contains("not found"));
    }

    #[test]
    fn tests_may_run_a_hook_natively() {
        let text = "#include HOOK\n#include <stdio.h>\n#include \"../hook/other.h\"\n";
        assert!(problems(&[("bpf/tests/native.c", text)]).is_empty());
        assert_eq!(problems(&[("bpf/packet/a.h", text)]).len(), 3);
    }

    #[test]
    fn c_elsewhere_is_a_problem() {
        assert_eq!(problems(&[("lab/x.c", "")]).len(), 1);
    }
}

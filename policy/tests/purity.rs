// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy calls nothing and holds nothing: its object file has no undefined symbol, no writable
//! data and no floating point, with every compiler that is here; and the register, the headers and
//! the tests name the same policies.

use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_policy::Policy;

/// Test files that are not of one policy.
const NO_POLICIES: [&str; 7] =
    ["chain", "copies", "in_flight", "laws", "min_rate", "purity", "senders"];
const COMPILERS: [&str; 5] = ["clang-14", "clang-16", "clang-19", "clang-22", "cc"];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn compile(compiler: &str, policy: &str, out: &Path) {
    let source = out.with_extension("c");
    let text = format!(
        "#include \"algo/{policy}.h\"\n\
         struct tg_verdict f(const struct tg_{policy}_params *p, struct tg_{policy}_state *s,\n\
         struct tg_{policy}_stats *t, const struct tg_event *e);\n\
         struct tg_verdict f(const struct tg_{policy}_params *p, struct tg_{policy}_state *s,\n\
         struct tg_{policy}_stats *t, const struct tg_event *e)\n\
         {{ tg_{policy}_observe(p, s, e); tg_{policy}_tick(p, s, e->now_ns);\n\
         return tg_{policy}_admit(p, s, t, e); }}\n"
    );
    std::fs::write(&source, text).expect("the test's folder is writable");
    let flags = "-std=gnu11 -O2 -Wall -Wextra -Werror -mgeneral-regs-only -ffreestanding -c";
    run(Command::new(compiler)
        .args(flags.split(' '))
        .arg("-I")
        .arg(folder())
        .arg(&source)
        .arg("-o")
        .arg(out));
}

/// `-mgeneral-regs-only` forbids floats, `nm` shows what is undefined or writable.
#[test]
fn no_undefined_symbols_no_data_no_floats() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut tried = 0;
    for compiler in COMPILERS {
        if Command::new(compiler).arg("--version").output().is_err() {
            continue;
        }
        tried += 1;
        for policy in Policy::ALL {
            let object = out.join(format!("{}-{compiler}.o", policy.name()));
            compile(compiler, policy.name(), &object);
            let symbols = run(Command::new("nm").arg(&object));
            for line in symbols.lines() {
                let kind = line.split_whitespace().nth_back(1).unwrap_or("");
                assert_eq!(kind, "T", "{compiler}, {}: {line}", policy.name());
            }
        }
    }
    assert!(tried >= 2, "at least two compilers must be here, {tried} are");
}

/// One line in policies.def, one header, one test file.
#[test]
fn register_headers_and_tests_agree() {
    let names = |dir: &str, ending: &str| -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder().join(dir))
            .expect("the folder is there")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(ending).map(str::to_string))
            .filter(|name| !NO_POLICIES.contains(&name.as_str()))
            .collect();
        names.sort();
        names
    };
    let mut registered: Vec<String> = Policy::ALL.iter().map(|p| p.name().to_string()).collect();
    registered.sort();
    assert_eq!(names("algo", ".h"), registered);
    assert_eq!(names("tests", ".rs"), registered);
}

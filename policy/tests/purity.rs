// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A policy calls nothing and holds nothing: its object file has no undefined symbol, no writable
//! data and no floating point, with every compiler that is here; and the register, the headers and
//! the tests name the same policies.

use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_policy::Policy;

/// Test files that are not of one policy.
const NO_POLICIES: [&str; 9] =
    ["chain", "copies", "datagram", "in_flight", "lately", "laws", "min_rate", "purity", "senders"];
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

/// The same of what a router measures and decides, and each also for the kernel.
#[test]
fn what_a_router_runs_is_pure_and_compiles_for_the_kernel() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = out.join("router.c");
    let text = "#include \"router/crowd.h\"\n#include \"router/durations.h\"\n#include \"router/tsw.h\"\n\
         #include \"router/congestion.h\"\n#include \"router/pushback.h\"\n#include \"router/tailor.h\"\n#include \"chain/refusal.h\"\n\
         #include \"chain/datagram.h\"\n\
         int d(const struct tg_datagram_limit *l, struct tg_datagram_chain *c, struct tg_bucket_copy *o, tg_u64 n);\n\
         int d(const struct tg_datagram_limit *l, struct tg_datagram_chain *c, struct tg_bucket_copy *o, tg_u64 n)\n\
         { return tg_datagram_admit(l, c, o, n, 2).kind; }\n\
         int q(const struct tg_congestion_params *p, struct tg_congestion *s,\n\
         const struct tg_link_tick *t, struct tg_offered *o);\n\
         int q(const struct tg_congestion_params *p, struct tg_congestion *s,\n\
         const struct tg_link_tick *t, struct tg_offered *o)\n\
         { tg_congestion_queue(p, s, 1); tg_congestion_unknown(s); tg_offered_add(o, 1); tg_offered_tick(o, 5, 6);\n\
         return tg_congestion_tick(p, s, t); }\n\
         int b(const struct tg_pushback_params *p, struct tg_pushback_state *s,\n\
         const struct tg_event *e);\n\
         int b(const struct tg_pushback_params *p, struct tg_pushback_state *s,\n\
         const struct tg_event *e)\n\
         { return tg_pushback_install(p, s, 1, 2, 3, 4) + tg_pushback_admit(p, s, e).kind; }\n\
         tg_u64 l(const struct tg_tailor_params *p, struct tg_tailor *t,\n\
         const struct tg_tailor_part *part);\n\
         tg_u64 l(const struct tg_tailor_params *p, struct tg_tailor *t,\n\
         const struct tg_tailor_part *part)\n\
         { tg_tailor_demand(t, part, 2, 3); return tg_tailor_published(p, 1, t->all_milli); }\n\
         void t(const struct tg_tsw_params *p, struct tg_tsw *s, struct tg_durations *d, tg_u64 n);\n\
         void t(const struct tg_tsw_params *p, struct tg_tsw *s, struct tg_durations *d, tg_u64 n)\n\
         { tg_tsw_add(p, s, n, 1); tg_durations_add(d, tg_tsw_rate(p, s, n), n); }\n\
         tg_u64 h(const struct tg_hot_aged_params *p, struct tg_hot_list *l, tg_u64 k);\n\
         tg_u64 h(const struct tg_hot_aged_params *p, struct tg_hot_list *l, tg_u64 k)\n\
         { tg_hot_hit(l, k); tg_hot_fade(l); tg_hot_admitted(l, k); tg_hot_aged_hit(p, l, k, 1, 2);\n\
         return tg_hot_aged_top(p, l, 3) + tg_hot_is(l, k, 4); }\n\
         int c(const struct tg_crowd_params *p, struct tg_crowd_state *s,\n\
         const struct tg_hot_list *l, const struct tg_event *e);\n\
         int c(const struct tg_crowd_params *p, struct tg_crowd_state *s,\n\
         const struct tg_hot_list *l, const struct tg_event *e)\n\
         { return tg_crowd_admit(p, s, l, e).kind; }\n\
         int f(const struct tg_abacus_exact_params *p, struct tg_crowd_filter *s, const struct tg_event *e);\n\
         int f(const struct tg_abacus_exact_params *p, struct tg_crowd_filter *s, const struct tg_event *e)\n\
         { return tg_crowd_filtered(p, s, TG_CROWD_RESET, e).kind + tg_crowd_filtered(p, s, TG_CROWD_ABACUS, e).kind; }\n";
    std::fs::write(&source, text).expect("the test's folder is writable");
    let here = |compiler: &&&str| Command::new(compiler).arg("--version").output().is_ok();
    let native = "-mgeneral-regs-only -ffreestanding";
    let mut tried = 0;
    for compiler in COMPILERS.iter().filter(here) {
        let kernel = compiler.starts_with("clang").then_some("-target bpf -mcpu=v3");
        for flags in [Some(native), kernel].into_iter().flatten() {
            tried += 1;
            let object = out.join("router.o");
            let flags = format!("-std=gnu11 -O2 -Wall -Wextra -Werror -c {flags}");
            run(Command::new(compiler)
                .args(flags.split(' '))
                .arg("-I")
                .arg(folder())
                .arg(&source)
                .arg("-o")
                .arg(&object));
            if flags.contains("bpf") {
                continue; // nm does not know it; the flags have refused floats and calls
            }
            for line in run(Command::new("nm").arg(&object)).lines() {
                let kind = line.split_whitespace().nth_back(1).unwrap_or("");
                assert_eq!(kind, "T", "{compiler}: {line}");
            }
        }
    }
    assert!(tried >= 3, "two compilers and the kernel's target, {tried} were tried");
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

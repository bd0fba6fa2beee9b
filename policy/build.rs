// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the policies natively, generates the Rust side of their C (of src/shim.h and what that
//! includes) and derives the Rust registers from policies.def and reasons.def.

mod bindings;

use bindgen::callbacks::IntKind;
use bindings::Conventions;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Constants have the types of what they are compared with; fields that methods guard are private.
const CONVENTIONS: Conventions = Conventions {
    constants: &[
        ("TG_LIMITS_", IntKind::U32),
        ("TG_DATAGRAMS_MERGED_MAX", IntKind::U32),
        ("TG_BUCKET_", IntKind::U32),
        ("TG_LEASE_WHOLE", IntKind::U32),
        ("TG_ASKS_SHIFT", IntKind::U32),
        ("TG_BURST_MAX", IntKind::U32),
        ("TG_LEVEL_NONE", IntKind::U32),
        ("TG_ABACUS_PERIODS", IntKind::U16),
        ("TG_LEARNED_CALM", IntKind::U32),
        ("TG_RANK_", IntKind::U8),
        ("TG_HOT_SHARE_ONE", IntKind::U32),
        ("TG_SIGN_", IntKind::U32),
        ("TG_LATELY_SLICES", IntKind::U32),
    ],
    private: &[
        "Params.",
        "RequestLimits.",
        "Limits.flags",
        "Limits.min_rate_us",
        "Limits.pad",
        "Level.",
        "Tsw",
        "HotEntry.",
        "HotList.",
        "HotAgedParams.",
        "Crowd",
        "CongestionParams.",
        "Congestion.",
        "Offered.",
        "Pushback",
        "Tailor",
        "LatelyTurn.",
        "Datagram",
    ],
};

/// One line of a register: number, C name, arguments in quotes.
struct Row {
    number: u32,
    name: String,
    /// What stands between name and texts.
    words: Vec<String>,
    texts: Vec<String>,
}

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for file in [
        "contract",
        "algo",
        "chain",
        "router",
        "policies.h",
        "policies.def",
        "reasons.def",
        "src/shim.c",
        "src/shim.h",
        "bindings.rs",
    ] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/shim.c")
        .include(".")
        .flag("-std=gnu11")
        .flag_if_supported("-Wno-missing-field-initializers")
        .opt_level(2)
        .warnings_into_errors(true)
        .compile("tidegate_policy_shim");
    generate(&Path::new(&out).join("abi.rs"));
    let policies = rows("policies.def", "TG_POLICY(");
    let about = "The policies, from policies.def.";
    write_enum(&out, ("policies.rs", "Policy", about), &policies, |row| {
        (row.name.clone(), row.name.clone(), row.texts[0].clone())
    });
    write_words(&out, &policies);
    let reasons = rows("reasons.def", "TG_REASON(");
    let about = "The reasons for a verdict, from reasons.def.";
    write_enum(&out, ("reasons.rs", "Reason", about), &reasons, |row| {
        (row.name.to_lowercase(), row.texts[0].clone(), row.texts[1].clone())
    });
}

/// Writes what Rust needs of the C.
fn generate(file: &Path) {
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let bindings = bindings::bindings(CONVENTIONS)
        .header("src/shim.h")
        .clang_arg("-fparse-all-comments")
        .derive_eq(true)
        .allowlist_function("tg_native_.*")
        .allowlist_type("tg_([a-z_]+_)?params|tg_(request_)?(limits|chain|state)")
        .allowlist_type("tg_(event|verdict|verdict_kind|execution|throttle)")
        .allowlist_type("tg_(ask|queue|in_flight|level|senders|cohort)")
        .allowlist_type("tg_(bucket|bucket_copy|policy_stats)")
        .allowlist_type("tg_(tsw|durations|hot_(entry|list|aged_params))")
        .allowlist_type("tg_lately_(turn|line)")
        .allowlist_type("tg_datagram_(limit|chain)")
        .allowlist_type("tg_crowd_(rule|action|limit|bucket|params|state|filter)")
        .allowlist_type("tg_(congestion(_sign|_params)?|link_tick|offered)")
        .allowlist_type("tg_(pushback_(error|params|state)|tailor(_params|_part)?)")
        .allowlist_var("TG_.*")
        .allowlist_recursively(false)
        .blocklist_type("tg_.*__bindgen_ty_.*")
        .opaque_type("tg_policy_(params|stats)|tg_(request_)?state|tg_crowd_filter")
        .generate()
        .expect("the headers compile");
    bindings.write_to_file(file).expect("OUT_DIR is writable");
}

fn rows(file: &str, call: &str) -> Vec<Row> {
    let text = fs::read_to_string(file).expect("the register stands beside build.rs");
    text.lines().filter_map(|line| line.strip_prefix(call)).map(row).collect()
}

fn row(line: &str) -> Row {
    let (number, rest) = line.split_once(',').expect("TG_…(number, …");
    let (name, rest) = rest.split_once(',').expect("TG_…(number, NAME, …");
    let words = rest.split(',').map(str::trim).take_while(|word| !word.starts_with('"'));
    Row {
        number: number.trim().parse().expect("a number"),
        name: name.trim().to_string(),
        words: words.map(str::to_string).collect(),
        texts: line.split('"').skip(1).step_by(2).map(str::to_string).collect(),
    }
}

/// Writes `enum kind` with `ALL`, `name`, `text`; `parts` gives identifier, name and text of a row.
fn write_enum(
    out: &str,
    (file, kind, about): (&str, &str, &str),
    rows: &[Row],
    parts: impl Fn(&Row) -> (String, String, String),
) {
    let mut variants = String::new();
    let (mut all, mut names, mut texts) = (String::new(), String::new(), String::new());
    for row in rows {
        let (ident, name, text) = parts(row);
        let variant = camel(&ident);
        let _ = writeln!(variants, "/// {text}.\n{variant} = {},", row.number);
        let _ = writeln!(all, "Self::{variant},");
        let _ = writeln!(names, "Self::{variant} => {name:?},");
        let _ = writeln!(texts, "Self::{variant} => {text:?},");
    }
    let source = format!(
        "/// {about}\n#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\n#[repr(u8)]\n\
         pub enum {kind} {{\n{variants}}}\n\
         impl {kind} {{\n/// All of them, in the order of their numbers.\n\
         pub const ALL: &'static [Self] = &[{all}];\n\
         /// The name in configuration, counters and documents.\n\
         #[must_use]\npub const fn name(self) -> &'static str {{ match self {{ {names} }} }}\n\
         /// One line for people.\n\
         #[must_use]\npub const fn text(self) -> &'static str {{ match self {{ {texts} }} }}\n}}\n"
    );
    fs::write(Path::new(out).join(file), source).expect("OUT_DIR is writable");
}

/// Writes what the register says of each policy beside its name.
fn write_words(out: &str, policies: &[Row]) {
    let (mut serves, mut remembers) = (String::new(), String::new());
    for row in policies {
        let [events, key, state] = row.words.as_slice() else {
            panic!("TG_POLICY(…, SERVES, KEY, STATE, …)")
        };
        let known = ["SYN", "ANY"].contains(&events.as_str())
            && ["NONE", "ATTEMPT"].contains(&key.as_str())
            && ["LOCKED", "COPIED"].contains(&state.as_str());
        assert!(known, "policies.def: {events}, {key}, {state}");
        let variant = camel(&row.name);
        let _ = writeln!(serves, "Self::{variant} => {},", events == "ANY");
        let _ = writeln!(remembers, "Self::{variant} => {},", key == "ATTEMPT");
    }
    let source = format!(
        "impl Policy {{\n/// Whether it may be asked about requests, beside new connections.\n\
         #[must_use]\npub const fn serves_requests(self) -> bool {{ match self {{ {serves} }} }}\n\
         /// Whether the event's key has to be the same for all copies of one SYN, and for no other.\n\
         #[must_use]\npub const fn recognises_copies(self) -> bool {{ match self {{ {remembers} }} }}\n}}\n"
    );
    fs::write(Path::new(out).join("policy_words.rs"), source).expect("OUT_DIR is writable");
}

fn camel(snake: &str) -> String {
    snake.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

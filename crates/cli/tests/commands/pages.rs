// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all commands have in common: documents, pages, units, and where some of them went.

use super::{CONFIG, Dance, RULES, World};
use std::path::Path;
use tempfile::TempDir;
use tidegate_cli::{Exit, main_of};

/// Durations have a unit, and files an option, in every command.
#[test]
fn no_bare_seconds_and_no_bare_files() {
    let world = World::new();
    for (args, said) in [
        (&["status", "--timeout", "5"][..], "it has no unit, such as 500ms"),
        (&["status", "--timeout", "50ms"], "100ms to 1h are allowed"),
        (&["top", "--once", "--every", "2h"], "100ms to 1h are allowed"),
        (&["mode", "shop", "shadow", "--for", "60"], "it has no unit, such as 10m"),
        (&["release", "--for", "10ms"], "shorter than a second"),
        (&["check", "tidegate.yaml"], "unexpected argument 'tidegate.yaml'"),
        (&["reload", "tidegate.yaml"], "unexpected argument 'tidegate.yaml'"),
        (&["run", "tidegate.yaml"], "unexpected argument 'tidegate.yaml'"),
    ] {
        let (exit, out, err) = world.tidegate(args);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{args:?}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
    assert_eq!(world.tidegate(&["status", "--timeout", "1.5s"]).0, Exit::Ok);
}

/// Every command that prints data: its document has name and version, and each of its fields is in
/// docs/json.md (of a snapshot, those of the first level).
#[test]
fn every_document_is_named_and_described() {
    let world = World::new();
    let (good, rules) = (world.file("good.yaml", CONFIG), world.file("rules.yaml", RULES));
    let wrong = world.file("wrong.yaml", &CONFIG.replace("eth0", "eth9"));
    let (get, bad) = ("GET / HTTP/1.1", world.file("bad.yaml", "services: 1\n"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (args, schema, exit) in [
        (&["status"][..], "status/1", Exit::Ok),
        (&["history"], "history/1", Exit::Ok),
        (&["explain", "192.0.2.1"], "explain/1", Exit::Ok),
        (&["shadow", "report"], "shadow-report/1", Exit::Ok),
        (&["shadow", "report", "shop", "--log", "access.log"], "shadow-report/1", Exit::Ok),
        (&["explain", "--request", "r-1"], "explain-request/1", Exit::Ok),
        (&["mode", "shop", "shadow", "--for", "90s"], "mode/1", Exit::Ok),
        (&["release", "--for", "10m"], "release/1", Exit::Ok),
        (&["reload", "-c", &good], "reload/1", Exit::Ok),
        (&["detach", "--pins", "/pinned", "--dry-run"], "detach/1", Exit::Ok),
        (&["check", "-c", &good, "--against", &wrong], "check/1", Exit::Ok),
        (&["check", "-c", &wrong], "check/1", Exit::Config),
        (&["check", "-c", &bad], "check/1", Exit::Config),
        (&["check", "-c", &good, "--against", &bad], "check/1", Exit::Config),
        (&["rules", "test", "-c", &rules, get], "rules-test/1", Exit::Ok),
    ] {
        let (found, out, err) = world.tidegate(&[args, &["-o", "json"]].concat());
        assert_eq!((found, err.as_str()), (exit, ""), "{args:?}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let schema = format!("tidegate-{schema}");
        assert_eq!(json["schema"], *schema, "{args:?}");
        let described = |name: &str| page.contains(&format!("`{name}`"));
        assert!(described(&schema), "{schema}");
        for (name, value) in json.as_object().unwrap() {
            assert!(described(name), "{args:?}: {name} is not described");
            let first = value.as_array().and_then(|rows| rows.first()).unwrap_or(value);
            let below = first.as_object().filter(|_| !schema.starts_with("tidegate-status"));
            for name in below.into_iter().flat_map(|fields| fields.keys()) {
                assert!(described(name), "{args:?}: {name} is not described");
            }
        }
        let valid = exit == Exit::Ok;
        assert!(json.get("valid").is_none_or(|said| *said == valid), "{args:?}: {out}");
    }
    let (_, out, _) = world.tidegate(&["mode", "shop", "shadow", "--for", "90s", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["mode"], &json["lasts_s"]), (&"shadow".into(), &90.0.into()));
    let (_, out, _) = world.tidegate(&["check", "-c", &wrong, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let finding = &json["findings"][0];
    assert_eq!((&finding["line"], &finding["severity"]), (&1.into(), &"error".into()));
}

/// Commands that the program had once: one line says where each went, whatever its arguments were.
#[test]
fn commands_that_moved_say_where_they_are() {
    let world = World::new();
    for args in [&["experiment", "run", "product/survival", "--demo"][..], &["lab", "hold"]] {
        let (exit, out, err) = world.tidegate(args);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{args:?}");
        let word = args[0];
        let wanted =
            format!("tidegate: `{word}` is a command of another program: tidegate-lab {word}\n");
        assert_eq!(err, wanted);
    }
    // Behind another command it is no command.
    let (exit, _, err) = world.tidegate(&["rules", "lab"]);
    assert_eq!(exit, Exit::Usage);
    assert!(err.contains("lab") && !err.contains("another program"), "{err}");
}

/// Another program of ours has its own name in errors and pages, and the same exit codes.
#[test]
fn a_program_of_extensions_is_run_alike() {
    let dir = TempDir::new().unwrap();
    let run = |args: &[&str]| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let program = clap::Command::new("tidegate-dance").about("Dances").version("7");
        let args = [&["tidegate-dance"], args].concat();
        let exit = main_of(args, (program, &[&Dance]), (&mut out, &mut err));
        (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    };
    assert_eq!(run(&["dance", "three"]), (Exit::ClaimFails, "three steps\n".into(), String::new()));
    assert_eq!(run(&["--version"]), (Exit::Ok, "tidegate-dance 7\n".into(), String::new()));
    for args in [&[][..], &["dance"], &["lab"], &["status"]] {
        let (exit, out, err) = run(args);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{args:?}");
        assert!(!err.is_empty());
    }
    assert!(run(&["completions", "bash"]).1.contains("dance"));
    let pages = dir.path().join("man");
    assert_eq!(run(&["man", pages.to_str().unwrap()]).0, Exit::Ok);
    assert!(pages.join("tidegate-dance-dance.1").is_file());
    let (exit, _, err) = run(&["man", "/proc/nowhere"]);
    assert_eq!(exit, Exit::Failure);
    assert!(err.starts_with("tidegate-dance: no manual pages in"), "{err}");
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every command against a real control socket, with what it prints and how it exits.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod pages;
mod shadow;

use clap::ArgMatches;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tidegate_api::explain::{Known, explain, explain_samples};
use tidegate_api::protocol::{ApiError, ErrorKind, Reply, Request, encode_reply};
use tidegate_api::server::{Bounds, Handler, bind, serve};
use tidegate_cli::{
    DetachArgs, Detached, Exit, Extension, Host, ReplayAsked, Replayed, RunArgs, SystemReport,
    main, reference,
};
use tidegate_config::{
    Config, Intent, LoadError, Places, Registry, SystemFault, UnknownService, load, parse,
};
use tidegate_model::record::{By, Event, Moment, What};
use tidegate_model::snapshot::{Sample, ServiceState, Snapshot};
use tidegate_model::{Canary, Change, Mode};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tokio::runtime::Runtime;

const CONFIG: &str =
    "interfaces: [{name: eth0}]\nservices:\n  shop: {mode: enforce, listen: [\"*:80\"]}\n";

fn registry() -> Registry {
    Registry::new(["fresh_first"], ["default"])
}

/// A daemon that only answers.
struct Daemon;

fn snapshot() -> Snapshot {
    let mut shop =
        ServiceState { name: "shop".into(), mode: "shadow".into(), ..ServiceState::default() };
    shop.limits.why.text = "all calm".into();
    Snapshot {
        version: "0.1.0".into(),
        now: Nanos::from_secs(75),
        config_generation: 3,
        services: vec![shop],
        warnings: vec!["PSI cannot be read".into()],
        ..Snapshot::default()
    }
}

fn unknown(error: UnknownService) -> ApiError {
    ApiError::new(ErrorKind::UnknownService, error.to_string())
}

fn not_loaded(error: LoadError) -> ApiError {
    let LoadError::Invalid(errors) = error else { panic!("{error}") };
    ApiError::config_invalid(errors.to_string().lines().map(str::to_owned).collect())
}

impl Handler for Daemon {
    async fn handle(&self, request: Request) -> Result<Reply, ApiError> {
        let config = parse(CONFIG, &registry()).unwrap();
        Ok(match request {
            Request::Ping {} => Reply::Pong { program: "0.1.0".into(), pid: 1 },
            Request::Status {} => Reply::Status { snapshot: Box::new(snapshot()) },
            Request::Explain { address, port } => {
                let samples = [Sample {
                    at: Nanos::from_secs(74),
                    client: "192.0.2.1:4711".into(),
                    request: None,
                    service: "shop".into(),
                    class: "default".into(),
                    verdict: "reject".into(),
                    shadow: true,
                    reason: "rate".into(),
                }];
                let known = Known {
                    classes: &config.classify(address),
                    snapshot: &snapshot(),
                    samples: &samples,
                    refused: tidegate_model::snapshot::Lately::default(),
                    reason_text: &|_| "the bucket was empty".into(),
                };
                Reply::Explain { explanation: Box::new(explain(&known, address, port)) }
            }
            Request::ExplainRequest { id } => {
                let sample = Sample {
                    client: "192.0.2.1".into(),
                    request: Some(id.clone()),
                    service: "shop".into(),
                    class: "default".into(),
                    verdict: "reject".into(),
                    reason: "rate".into(),
                    ..Sample::default()
                };
                let found = if id == "r-1" { vec![sample] } else { Vec::new() };
                let text = |_: &str| "the bucket was empty".to_owned();
                Reply::ExplainRequest { samples: explain_samples(found, Nanos::SECOND, &text) }
            }
            Request::History {} => happened(),
            asked @ Request::ShadowReport { .. } => shadow::answer(&asked)?,
            Request::Release { on, lasts } => Reply::Release { on, before: false, lasts },
            Request::ModeOfFile { service } => Reply::Mode {
                service,
                mode: Mode::Enforce,
                percent: None,
                before: Mode::Shadow,
                lasts: None,
            },
            Request::Mode { service, mode, percent, lasts } => {
                let mut intent = Intent::new(config);
                intent.apply(set(&service, mode)).map_err(unknown)?;
                Reply::Mode { service, mode, percent, before: Mode::Enforce, lasts }
            }
            Request::Reload { path: Some(path) } => {
                load(&path, &registry()).map_err(not_loaded)?;
                let change = Change {
                    path: "daemon.tick".into(),
                    before: Some("100ms".into()),
                    after: Some("1s".into()),
                };
                let kept = vec!["shop: keeps shadow".to_owned()];
                Reply::Reload { generation: 4, changes: vec![change], kept }
            }
            Request::Reload { path: None } => {
                return Err(ApiError::new(ErrorKind::Failed, "the disk is full"));
            }
            other => panic!("no command sends {other:?}"),
        })
    }
}

fn set(service: &str, mode: Mode) -> tidegate_config::Command {
    tidegate_config::Command::Mode { service: service.to_owned(), mode, canary: Canary::ALL }
}

fn happened() -> Reply {
    let at = |unix| Moment { unix: Nanos::from_secs(1_800_000_000 + unix), ..Moment::default() };
    let mode = |service: &str| What::Mode {
        service: service.into(),
        mode: Mode::Shadow,
        percent: None,
        before: Mode::Enforce,
        lasts: Some(Nanos::from_secs(60)),
        by: By::Operator,
    };
    let started = What::Started { version: "9".into(), took_over: false };
    let all = [started, mode("shop"), mode("b\u{1b}log")].into_iter().enumerate();
    let events = all.map(|(n, what)| Event { number: n as u64, at: at(n as u64), what });
    Reply::History { now: at(9), events: events.collect() }
}

/// The daemon on a socket in a directory of its own.
struct World {
    directory: TempDir,
    _runtime: Option<Runtime>,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let world = Self { directory: TempDir::new().unwrap(), _runtime: None };
        let _entered = runtime.enter();
        let socket = bind(&world.socket(), None).unwrap();
        runtime.spawn(serve(socket, Arc::new(Daemon), Bounds::default(), std::future::pending()));
        drop(_entered);
        Self { _runtime: Some(runtime), ..world }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Exit code, standard output, standard error; the directory's name replaced.
    fn tidegate(&self, args: &[&str]) -> (Exit, String, String) {
        let socket = self.socket().display().to_string();
        let talks = ["status", "top", "explain", "history", "shadow", "release", "mode", "reload"];
        let reached = args.first().is_some_and(|name| talks.contains(name));
        let remote = if reached { &["--socket", &socket][..] } else { &[] };
        let (ours, last) =
            args.split_at(args.iter().position(|arg| *arg == "--").unwrap_or(args.len()));
        let args = ["tidegate"].iter().chain(ours).chain(remote).chain(last).copied();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = main(args, (&Machine, &[&Dance]), (&mut out, &mut err));
        let clean = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            text.replace(&self.directory.path().display().to_string(), "DIR")
        };
        (exit, clean(out), clean(err))
    }
}

/// A machine with one interface.
struct Machine;

impl Host for Machine {
    fn registry(&self) -> Registry {
        registry()
    }

    fn run(&self, args: &RunArgs) -> anyhow::Result<()> {
        load(&args.config, &registry())?;
        Err(anyhow::anyhow!("Permission denied (os error 13)").context("cannot load the dataplane"))
    }

    fn check_system(&self, config: &Config, places: &Places) -> anyhow::Result<SystemReport> {
        let present = vec!["lo".to_owned(), "eth0".to_owned()];
        let missing = config.interfaces.iter().filter(|i| !present.contains(&i.name));
        let faults = missing.map(|i| SystemFault::InterfaceMissing {
            name: i.name.clone(),
            present: present.clone(),
        });
        let listens = SystemFault::NothingListens { service: "shop".into(), index: 0 };
        Ok(SystemReport {
            notes: vec!["eth0: virtual (veth), MTU 1500, up".into()],
            findings: faults.chain([listens]).map(|f| f.locate(config, places)).collect(),
        })
    }

    fn release_pinned(&self, pins: &Path, _: bool) -> anyhow::Result<()> {
        anyhow::ensure!(pins == Path::new("/pinned"), "nothing is pinned there");
        Ok(())
    }

    fn replay(&self, asked: &ReplayAsked<'_>) -> anyhow::Result<Replayed> {
        shadow::replay(asked)
    }

    fn detach(&self, args: &DetachArgs) -> anyhow::Result<Detached> {
        let mut done = Detached::default();
        if args.pins == Path::new("/pinned") {
            done.removed.push("interface eth0: tcx ingress (link 7)".into());
        }
        done.orphans = usize::from(args.pins == Path::new("/none") && !args.orphans) * 2;
        if args.orphans {
            done.left.push("interface eth1: clsact filter: Operation not permitted".into());
        }
        Ok(done)
    }
}

/// A command of the binary.
struct Dance;

impl Extension for Dance {
    fn command(&self) -> clap::Command {
        clap::Command::new("dance").arg(clap::Arg::new("steps").required(true))
    }

    fn run(&self, matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let steps: &String = matches.get_one("steps").unwrap();
        writeln!(out, "{steps} steps")?;
        Ok(Exit::ClaimFails)
    }
}

#[test]
fn status_is_a_table_or_json() {
    let world = World::new();
    let (exit, out, err) = world.tidegate(&["status"]);
    assert_eq!((exit, err.as_str()), (Exit::Ok, ""));
    assert_eq!(
        out,
        "tidegate 0.1.0  up 1m 15s  configuration 3  limits 0  no interface\n\
         warning: PSI cannot be read\n\n\
         service  mode    offered/s  admitted/s  refused/s  limit/s  waiting  p99  accept queue  CPU  alarmed\n\
         shop     shadow          -           -          -     none        -    -             -    -  -\n\n\
         shop: all calm\n\n\
         In shadow mode nothing is refused; <= marks an upper bound of what would be.\n"
    );
    assert_eq!(world.tidegate(&["top", "--once"]).1, out, "top --once shows the same");
    let (_, json, _) = world.tidegate(&["status", "-o", "json"]);
    assert_eq!(world.tidegate(&["top", "--once", "-o", "json"]).1, json);
    let (exit, out, err) = world.tidegate(&["top", "-o", "json"]);
    assert_eq!((exit, out.as_str(), err.contains("--once")), (Exit::Usage, "", true), "{err}");
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot());
}

#[test]
fn explain_speaks_in_sentences() {
    let world = World::new();
    let (exit, out, _) = world.tidegate(&["explain", "192.0.2.1:4711"]);
    assert_eq!(exit, Exit::Ok);
    assert_eq!(
        out,
        "shop (shadow): class default, priority 7, as no class names its source.\n\
         shop: no rate limit is set.\n\
         shop: all calm\n\
         1.00 s ago 192.0.2.1:4711 to shop, class default: reject (in shadow: it passed) for rate: the bucket was empty.\n"
    );
    let (_, json, _) = world.tidegate(&["explain", "2001:db8::1", "-o", "json"]);
    assert!(json.contains("\"address\": \"2001:db8::1\""), "{json}");
    assert_eq!(world.tidegate(&["explain", "nobody"]).0, Exit::Usage);
}

#[test]
fn history_is_a_line_an_event_or_json() {
    let world = World::new();
    let (exit, out, _) = world.tidegate(&["history"]);
    let lines = [
        "2027-01-15T08:00:00Z  tidegate 9 started",
        "2027-01-15T08:00:01Z  shop: shadow for 60.00 s by command (before: enforce)",
        "2027-01-15T08:00:02Z  b\\u{1b}log: shadow for 60.00 s by command (before: enforce)",
    ];
    assert_eq!((exit, out), (Exit::Ok, lines.join("\n") + "\n"));
    let (_, out, _) = world.tidegate(&["history", "--service", "shop"]);
    assert_eq!(out, lines[..2].join("\n") + "\n", "what is about all stays");
    let (_, out, _) = world.tidegate(&["history", "-n", "1"]);
    assert_eq!(out, format!("{}\n", lines[2]));
    let (_, json, _) = world.tidegate(&["history", "-o", "json", "-n", "1"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["schema"], &json["events"][0]["event"]),
        (&"tidegate-history/1".into(), &"mode".into())
    );
}

#[test]
fn a_request_at_a_gateway_is_explained_by_its_id() {
    let world = World::new();
    let (exit, out, _) = world.tidegate(&["explain", "--request", "r-1"]);
    assert_eq!(exit, Exit::Ok);
    assert_eq!(
        out,
        "1.00 s ago request r-1 of 192.0.2.1 to shop, class default: reject for rate: the bucket was empty.\n"
    );
    let (_, out, _) = world.tidegate(&["explain", "--request", "r-2"]);
    assert_eq!(out, "No decision about the request r-2 is remembered.\n");
    assert_eq!(world.tidegate(&["explain", "192.0.2.1", "--request", "r-1"]).0, Exit::Usage);
    assert_eq!(world.tidegate(&["explain"]).0, Exit::Usage);
}

#[test]
fn the_commands_of_an_operator_say_what_they_did() {
    let world = World::new();
    let said = |args: &[&str]| {
        let (exit, out, err) = world.tidegate(args);
        assert_eq!((exit, err.as_str()), (Exit::Ok, ""), "{args:?}");
        out
    };
    assert_eq!(said(&["release"]), "everything passes\n");
    assert_eq!(said(&["release", "off"]), "limits are in force (as before)\n");
    assert_eq!(said(&["release", "--for", "10m"]), "everything passes for 10m\n");
    let timed = said(&["mode", "shop", "shadow", "--for", "1h"]);
    assert_eq!(timed, "shop: shadow (before: enforce); for 1h, then as the file says\n");
    let file_says = said(&["mode", "shop", "file"]);
    assert_eq!(file_says, "shop: enforce (before: shadow); as the file says\n");
    assert_eq!(
        said(&["mode", "shop", "shadow"]),
        "shop: shadow (before: enforce); until another is set or the machine boots\n"
    );
    let file = world.file("new.yaml", CONFIG);
    let reloaded =
        "~ daemon.tick: 100ms -> 1s\nshop: keeps shadow\nreloaded; configuration 4 is in force\n";
    assert_eq!(said(&["reload", "-c", &file]), reloaded);
}

#[test]
fn errors_are_one_sentence_their_details_and_an_exit_code() {
    let world = World::new();
    let (exit, out, err) = world.tidegate(&["mode", "shpo", "shadow"]);
    assert_eq!((exit, out.as_str()), (Exit::NotFound, ""));
    assert_eq!(
        err,
        "tidegate: no service is called \"shpo\" (did you mean \"shop\"?); configured: shop\n"
    );
    let (exit, _, err) = world.tidegate(&["reload"]);
    assert_eq!((exit, err.as_str()), (Exit::Failure, "tidegate: the disk is full\n"));
    let bad = world.file("bad.yaml", "interfaces: []\nservices: {}\n");
    let (exit, _, err) = world.tidegate(&["reload", "-c", &bad]);
    assert_eq!(exit, Exit::Config);
    assert_eq!(
        err,
        "tidegate: the configuration has 2 fault(s); nothing was changed\n  \
         DIR/bad.yaml:1:13: interfaces: found 0 entries; allowed: 1 to 32\n  \
         DIR/bad.yaml:2:11: services: found 0 entries; allowed: 1 to 32\n"
    );
    let good = world.file("good.yaml", CONFIG);
    let (exit, _, err) = world.tidegate(&["run", "--config", &good]);
    assert_eq!(exit, Exit::Failure);
    assert_eq!(
        err,
        "tidegate: cannot load the dataplane\n  because: Permission denied (os error 13)\n"
    );
    assert_eq!(world.tidegate(&["run", "-c", &bad]).0, Exit::Config);
}

#[test]
fn without_a_daemon_every_command_that_needs_one_says_so() {
    let world = World { directory: TempDir::new().unwrap(), _runtime: None };
    for args in [
        &["status"][..],
        &["top"],
        &["top", "--once"],
        &["explain", "192.0.2.1"],
        &["mode", "shop", "shadow"],
        &["reload"],
    ] {
        let (exit, out, err) = world.tidegate(args);
        assert_eq!((exit, out.as_str()), (Exit::Unreachable, ""), "{args:?}");
        assert_eq!(
            err,
            "tidegate: no daemon answers on DIR/control.sock; start one with `tidegate run`\n  \
             because: No such file or directory (os error 2)\n"
        );
    }
}

#[test]
fn the_kill_switch_works_without_a_daemon_on_what_is_pinned() {
    let world = World { directory: TempDir::new().unwrap(), _runtime: None };
    let (exit, out, _) = world.tidegate(&["release", "--pins", "/pinned"]);
    let told = "everything passes; no daemon answered, the dataplane was told itself\n";
    assert_eq!((exit, out.as_str()), (Exit::Ok, told));
    let (_, out, _) = world.tidegate(&["release", "--pins", "/pinned", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["by"], &json["why"]), (&"pins".into(), &"no daemon answered".into()));
    let (exit, _, err) = world.tidegate(&["release", "--pins", "/elsewhere"]);
    assert_eq!(exit, Exit::Unreachable);
    assert!(
        err.starts_with("tidegate: nothing was changed, neither by a daemon nor in what is pinned at /elsewhere (nothing is pinned there). Where neither is, nothing is limited. A daemon with other paths: --socket, --pins\n  because: no daemon answers on DIR/control.sock"),
        "{err}"
    );
}

/// A daemon that says one thing to every request, or nothing and keeps the connection.
fn stubborn(world: &World, answer: Option<Vec<u8>>) {
    let listener = std::os::unix::net::UnixListener::bind(world.socket()).unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            match &answer {
                Some(answer) => {
                    let mut line = String::new();
                    BufReader::new(&stream).read_line(&mut line).unwrap();
                    stream.write_all(answer).unwrap();
                }
                None => kept.push(stream),
            }
        }
    });
}

#[test]
fn the_kill_switch_works_whatever_the_daemon_says() {
    let refusal = |kind| encode_reply(Reply::Error(ApiError::new(kind, "not now")));
    let told = "everything passes; not now, the dataplane was told itself\n";
    let broken = "everything passes; the connection to DIR/control.sock broke, the dataplane was \
                  told itself\n";
    let silent = "everything passes; no daemon answered, the dataplane was told itself\n";
    for (answer, wanted) in [
        (Some(refusal(ErrorKind::Busy)), told),
        (Some(refusal(ErrorKind::Version)), told),
        (Some(refusal(ErrorKind::Failed)), told),
        (Some(Vec::new()), broken),
        (None, silent),
    ] {
        let world = World { directory: TempDir::new().unwrap(), _runtime: None };
        stubborn(&world, answer);
        let clock = MonotonicClock;
        let asked = clock.now();
        let (exit, out, err) = world.tidegate(&["release", "--pins", "/pinned"]);
        assert_eq!((exit, out.as_str(), err.as_str()), (Exit::Ok, wanted, ""));
        let took = clock.now().since(asked);
        assert!(took < Nanos::SECOND, "{took}");
    }
    let world = World { directory: TempDir::new().unwrap(), _runtime: None };
    stubborn(&world, Some(refusal(ErrorKind::Permission)));
    let (exit, out, _) = world.tidegate(&["release", "--pins", "/pinned"]);
    assert_eq!((exit, out.as_str()), (Exit::Permission, ""), "who may not, may not");
}

#[test]
fn only_commands_that_talk_to_the_daemon_take_its_socket() {
    let world = World::new();
    for command in ["check", "run"] {
        let (exit, _, err) = world.tidegate(&[command, "--socket", "/nowhere"]);
        assert_eq!(exit, Exit::Usage, "{command}");
        assert!(err.contains("--socket"), "{err}");
    }
}

#[test]
fn check_looks_at_the_file_and_at_the_system() {
    let world = World::new();
    let good = world.file("good.yaml", CONFIG);
    let (exit, out, err) = world.tidegate(&["check", "-c", &good]);
    assert_eq!(exit, Exit::Ok);
    let quiet = "DIR/good.yaml:3:34: services.shop.listen[0]: nobody listens here at the moment (warning)\n";
    assert_eq!(err, quiet, "whatever is doubtful is on one stream, with what is wrong");
    assert_eq!(
        out,
        "eth0: virtual (veth), MTU 1500, up\n\
         interface eth0: attach auto\n\
         service shop: enforce at *:80; policy fresh_first, controller default, 1 class(es)\n\
         DIR/good.yaml: configuration is valid\n"
    );
    let other =
        world.file("other.yaml", &CONFIG.replace("eth0", "eth9").replace("enforce", "shadow"));
    let (exit, out, err) = world.tidegate(&["check", "-c", &other]);
    assert_eq!(exit, Exit::Config);
    assert!(err.contains("DIR/other.yaml:1:21: interfaces[0].name: found \"eth9\": no such interface (did you mean \"eth0\"?); present: lo, eth0 (error)\n"), "{err}");
    assert!(!out.contains("valid"));
    let (exit, out, _) =
        world.tidegate(&["check", "-c", &other, "--no-system", "--against", &good]);
    assert_eq!(exit, Exit::Ok);
    assert!(
        out.starts_with(
            "~ interfaces[0].name: eth0 -> eth9\n~ services.shop.mode: enforce -> shadow\n"
        ),
        "{out}"
    );
    // Whether connections pass the hooks is only known where they are attached.
    let socket = format!("daemon: {{socket: {}}}\n", world.socket().display());
    let runs = world.file("runs.yaml", &(CONFIG.to_owned() + &socket));
    let (exit, _, err) = world.tidegate(&["check", "-c", &runs]);
    let told = "the daemon that runs is not ready (warning): no interface is attached\n";
    assert!(exit == Exit::Ok && err.ends_with(told), "{err}");
    let (_, out, _) = world.tidegate(&["check", "-c", &runs, "-o", "json"]);
    assert!(out.contains("\"not_ready\"") && out.contains("no interface is attached"), "{out}");
    let (_, _, err) = world.tidegate(&["check", "-c", &runs, "--no-system"]);
    assert!(!err.contains("not ready"), "{err}");
    let bad = world.file("bad.yaml", "services: 1\n");
    let (exit, out, err) = world.tidegate(&["check", "--config", &bad]);
    assert_eq!((exit, out.as_str()), (Exit::Config, ""));
    assert!(
        err.starts_with("tidegate: DIR/bad.yaml:1:11: services: found \"1\"; allowed: a map"),
        "{err}"
    );
    assert!(matches!(load(Path::new("/nonexistent"), &registry()), Err(LoadError::Read { .. })));
}

/// Rules of every kind, with requests for each way through them.
const RULES: &str = "interfaces: [{name: eth0}]
services:
  shop:
    mode: enforce
    listen: [\"*:80\"]
    requests:
      buckets:
        cgi: {resource: cpu, control: {name: p}}
        api: {resource: in-flight, control: {name: fixed, rate: 40/s}}
      rules:
        - {path: /cgi-bin/, host: \"*.shop.example\", protect: [{name: premium, value: gold}], close_persistent: true, bucket: cgi}
        - {name: scripts, path: /cgi-bin/, methods: [GET, POST], bucket: cgi, action: reset}
        - {path: /, cookie: {name: session}, action: allow}
        - {server_name: api.shop.example, bucket: api}
  blog:
    mode: shadow
    listen: [\"*:81\"]
    requests: {buckets: {all: {resource: cpu}}, rules: [{path: /, bucket: all}]}
  plain: {mode: enforce, listen: [\"*:82\"]}
";

#[test]
fn rules_test_says_which_rule_a_request_meets_and_why() {
    let world = World::new();
    let file = world.file("rules.yaml", RULES);
    let mut page = String::new();
    for asked in [
        &["GET /cgi-bin/x HTTP/1.1"][..],
        &["GET /cgi-bin/x HTTP/1.1", "-H", "Host: www.shop.example:80"],
        &["GET /cgi-bin/x HTTP/1.1", "-H", "Host: www.shop.example", "--later"],
        &["GET /cgi-bin/x HTTP/1.1", "-H", "Host: www.shop.example", "-H", "Cookie: premium=gold"],
        &["DELETE /cgi-bin/x HTTP/1.1", "-H", "Cookie: a=b; session=1"],
        &["GET /x HTTP/1.1", "--service", "shop"],
        &["GET /x HTTP/1.1", "--service", "blog"],
        &["PRI * HTTP/2.0", "--service", "shop"],
        &["GET /x", "--service", "shop"],
        &["GET /a;b HTTP/1.1", "--service", "shop"],
        &["GET /x HTTP/1.1", "-H", "Host: a", "-H", "Host: a", "--service", "shop"],
        &["--tls", "API.shop.example"],
        &["--tls", "www.shop.example", "--service", "shop"],
        &["--tls", "www shop", "--service", "shop"],
    ] {
        let args = [&["rules", "test", "--config", &file][..], asked].concat();
        let (exit, out, err) = world.tidegate(&args);
        assert_eq!((exit, err.as_str()), (Exit::Ok, ""), "{asked:?}");
        page += &format!("$ tidegate rules test {}\n{out}\n", asked.join(" "));
    }
    golden("rules-test.txt", &page);
    let args = ["rules", "test", "-c", &file, "GET /x HTTP/1.1", "-o", "json"];
    let json: serde_json::Value = serde_json::from_str(&world.tidegate(&args).1).unwrap();
    assert_eq!(json["schema"], "tidegate-rules-test/1");
    let json = &json["services"];
    assert_eq!(json[0]["rule"], serde_json::Value::Null);
    assert_eq!((&json[1]["service"], &json[1]["bucket"]), (&"blog".into(), &"all".into()));
    assert_eq!(json[1]["action"], "503");
}

#[test]
fn rules_test_refuses_what_it_cannot_answer() {
    let world = World::new();
    let (rules, none) = (world.file("rules.yaml", RULES), world.file("none.yaml", CONFIG));
    let bad = world.file("bad.yaml", "services: 1\n");
    let line = "GET / HTTP/1.1";
    for (args, exit, said) in [
        (&["-c", &rules][..], Exit::Usage, "ask about a request"),
        (&["-c", &rules, line, "--tls", "a"], Exit::Usage, "cannot be used with"),
        (&["-c", &rules, line, "--service", "plain"], Exit::Usage, "no service \"plain\" with"),
        (&["-c", &none, line], Exit::Usage, "has no service with request rules"),
        (&["-c", &bad, line], Exit::Config, "services: found \"1\"; allowed: a map"),
    ] {
        let args = [&["rules", "test"][..], args].concat();
        let (found, out, err) = world.tidegate(&args);
        assert_eq!((found, out.as_str()), (exit, ""), "{args:?}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn check_names_request_rules_and_their_buckets() {
    let world = World::new();
    let file = world.file("rules.yaml", RULES);
    let (exit, out, _) = world.tidegate(&["check", "--no-system", "-c", &file]);
    assert_eq!(exit, Exit::Ok);
    assert!(
        out.contains(
            "  request rules: enforce, 5 rule(s)\n  bucket cgi: cpu, controller p, 2 rule(s)\n  \
             bucket api: in-flight, controller fixed, 1 rule(s)\n  \
             bucket unevaluable: cpu, controller default, 1 rule(s)\nservice blog"
        ),
        "{out}"
    );
    assert!(out.contains("  request rules: shadow, 2 rule(s)\n"), "{out}");
}

/// Which of two routes gets a request is told by the file alone.
#[test]
fn check_warns_of_routes_that_overlap() {
    let world = World::new();
    let routes = "services: {shop: {mode: shadow}, mail: {mode: shadow}}
gateways:
  edge:
    adapter: envoy
    listen: unix:/run/a.sock
    routes:
      - {path: /cart/, service: mail}
      - {host: shop.example, service: shop}
";
    let file = world.file("routes.yaml", routes);
    let (exit, out, err) = world.tidegate(&["check", "--no-system", "-c", &file]);
    let place = "DIR/routes.yaml:8:9: gateways.edge.routes[1]: ";
    assert!(err.starts_with(place) && err.ends_with("(warning)\n"), "{err}");
    assert!(err.contains("routes[0] (line 7)"), "{err}");
    assert!(exit == Exit::Ok && out.contains("configuration is valid"), "{out}");
    let (_, out, _) = world.tidegate(&["check", "--no-system", "-c", &file, "-o", "json"]);
    assert!(out.contains("\"severity\": \"warning\""), "{out}");
}

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == found, "{name} is not up to date (TIDEGATE_BLESS=1 writes it):\n{found}");
}

#[test]
fn wrong_arguments_are_the_callers_fault_and_help_is_data() {
    let world = World::new();
    for args in [&["dacne"][..], &[], &["mode", "shop", "enforced"], &["top", "--every", "0s"]] {
        let (exit, out, err) = world.tidegate(args);
        assert_eq!((exit, out.as_str()), (Exit::Usage, ""), "{args:?}");
        assert!(!err.is_empty());
    }
    let (exit, out, err) = world.tidegate(&["--help"]);
    assert_eq!((exit, err.as_str()), (Exit::Ok, ""));
    assert!(out.contains("release") && out.contains("dance"));
    assert_eq!(world.tidegate(&["--version"]).0, Exit::Ok);
}

#[test]
fn an_extension_is_a_command_like_any_other() {
    let world = World::new();
    let (exit, out, _) = world.tidegate(&["dance", "three"]);
    assert_eq!((exit, out.as_str()), (Exit::ClaimFails, "three steps\n"));
    assert_eq!(world.tidegate(&["dance"]).0, Exit::Usage);
}

/// A pipe whose reader is gone.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let world = World::new();
    let socket = world.socket().display().to_string();
    for format in ["table", "json"] {
        let args = ["tidegate", "status", "--socket", &socket, "-o", format];
        let mut err = Vec::new();
        let exit = main(args, (&Machine, &[]), (&mut Gone, &mut err));
        assert_eq!((exit, err.len()), (Exit::Ok, 0), "{format}");
    }
}

#[test]
fn the_document_is_made_from_the_commands() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let found = reference();
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == found, "docs/cli.md is not up to date (TIDEGATE_BLESS=1 writes it)");
}

/// Every command is on a manual page of its own, and every shell hears of all of them.
#[test]
fn pages_and_completions_are_made_from_the_commands() {
    let dir = TempDir::new().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut run = |args: &[&str]| {
        out.clear();
        let exit = main(args, (&Machine, &[&Dance]), (&mut out, &mut err));
        assert_eq!(exit, Exit::Ok, "{args:?}: {}", String::from_utf8_lossy(&err));
        String::from_utf8(out.clone()).unwrap()
    };
    let pages = dir.path().join("man");
    run(&["tidegate", "man", pages.to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
    assert!(page("tidegate-explain").contains("Address of the client"));
    assert!(page("tidegate-rules-test").contains("request line"));
    for command in ["run", "check", "status", "release", "dance"] {
        assert!(page("tidegate").contains(command), "{command}");
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            assert!(
                run(&["tidegate", "completions", shell]).contains(command),
                "{command}, {shell}"
            );
        }
    }
}

#[test]
fn detach_says_what_it_detached_and_what_stays() {
    let world = World::new();
    for (args, exit, said) in [
        (
            vec!["detach", "--pins", "/none"],
            Exit::Ok,
            "nothing of tidegate's was found (pins: /none)\n\
             not asked for: 2 hooks of other pins, or of none, in whose name nobody renews the lease; \
             `tidegate detach --orphans` detaches them\n",
        ),
        (
            vec!["detach", "--pins", "/pinned"],
            Exit::Ok,
            "detached: interface eth0: tcx ingress (link 7)\n",
        ),
        (
            vec!["detach", "--pins", "/pinned", "--dry-run"],
            Exit::Ok,
            "would detach: interface eth0: tcx ingress (link 7)\n",
        ),
        (
            vec!["detach", "--pins", "/none", "--orphans"],
            Exit::Failure,
            "stays: interface eth1: clsact filter: Operation not permitted\n",
        ),
    ] {
        let (code, out, _) = world.tidegate(&args);
        assert_eq!((code, out.as_str()), (exit, said), "{args:?}");
    }
}

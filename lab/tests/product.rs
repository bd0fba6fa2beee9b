// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the lab starts, asks, replaces and ends the product.
//!
//! ```text
//!  test ── control socket ── stand-in (this program, started as `run --config FILE` in sv)
//! ```
//!
//! The stand-in speaks the control socket's protocol and nothing else, so that this proves the lab's
//! side. No test harness: the program must be able to start as the stand-in.

mod common;

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use tidegate_api::client::Client;
use tidegate_api::protocol::{
    Handover, HandoverPhase, Reply, Request, decode_request, encode_reply,
};
use tidegate_lab::{LabError, ProductConfig, Role, remains};
use tidegate_units::Nanos;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "run") {
        stand_in(args.last().expect("a configuration"));
        return;
    }
    // `cargo test -- --list` and filters come here, too: one test, cheap enough to run always.
    the_daemon_is_started_asked_replaced_and_ended();
    a_daemon_that_cannot_start_is_reported_with_its_words();
    println!(
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
    );
}

/// A daemon without a dataplane: answers ping and status, hands over, ends by signal.
fn stand_in(config: &str) {
    let text = std::fs::read_to_string(config).expect("a configuration");
    let config: Value = serde_json::from_str(&text).expect("the lab writes JSON");
    assert_eq!(config["interfaces"][0]["name"], "s0");
    if config["services"]["shop"]["mode"] != "enforce" {
        eprintln!("services.shop.mode: missing");
        std::process::exit(2);
    }
    let path = Path::new(config["daemon"]["socket"].as_str().expect("a socket"));
    if let Ok(mut before) = Client::connect(path, std::time::Duration::from_secs(1)) {
        let _ = before.ask(&Request::Handover { phase: HandoverPhase::Finish });
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).expect("the socket");
    for stream in listener.incoming().flatten() {
        serve(&stream);
    }
}

fn serve(stream: &UnixStream) {
    let mut line = String::new();
    while BufReader::new(stream).read_line(&mut line).is_ok_and(|n| n > 0) {
        let (reply, ends) = match decode_request(line.as_bytes()) {
            Ok(Request::Ping {}) => {
                (Reply::Pong { program: "0".into(), pid: std::process::id() }, false)
            }
            Ok(Request::Status {}) => (Reply::Status { snapshot: Box::default() }, false),
            _ => (Reply::Handover(Handover { generation: 7, ..Handover::default() }), true),
        };
        let mut stream = stream;
        let _ = stream.write_all(&encode_reply(reply));
        if ends {
            std::process::exit(0);
        }
        line.clear();
    }
}

fn this() -> std::path::PathBuf {
    std::env::current_exe().expect("this program")
}

fn the_daemon_is_started_asked_replaced_and_ended() {
    let lab = common::lab();
    let config = ProductConfig::one("shop", &["*:80".to_owned()]);
    let first = lab.start_product(&this(), &config).expect("the first daemon");
    assert!(first.status().expect("a snapshot").get("services").is_some());
    let inside = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).expect("alive");
    let server = lab.run_in(Role::Server, &["readlink", "/proc/self/ns/net"], "").expect("runs");
    assert_eq!(inside(first.process().pid()).to_string_lossy(), server.trim());
    assert_eq!(first.process().group().processes(), [first.process().pid()]);

    let second = lab.start_product_like(&this(), &first).expect("a second one takes over");
    first.wait_end(Nanos::from_secs(5)).expect("the first one has ended");
    second.status().expect("the second one answers");
    let config = second.config().to_path_buf();
    second.kill9().expect("dies");
    let third = lab.start_product(&this(), &ProductConfig::one("shop", &["*:80".to_owned()]));
    let third = third.expect("one starts after a kill");
    assert_ne!(third.config(), config);
    let text = std::fs::read_to_string(third.config()).expect("its configuration");
    assert!(text.contains(&*lab.pins().to_string_lossy()), "{text}");
    // What a supervisor does: what has crashed or ended is started again as it was.
    let mut third = third;
    third.crash().expect("dies");
    third.status().expect_err("nobody answers");
    let mut fourth = lab.start_product_like(&this(), &third).expect("one starts after a crash");
    assert_eq!(fourth.config(), third.config());
    fourth.end_for_restart().expect("ends by SIGUSR2");
    let fifth = lab.start_product_like(&this(), &fourth).expect("one starts after that");
    fifth.status().expect("it answers");
    fifth.stop().expect("ends by SIGTERM");
    let id = lab.id().to_owned();
    drop(lab);
    assert_eq!(remains(&id), Vec::<String>::new());
}

fn a_daemon_that_cannot_start_is_reported_with_its_words() {
    let lab = common::lab();
    let mut config = ProductConfig::one("shop", &[]);
    config.services = serde_json::json!({"shop": {}});
    let error = lab.start_product(&this(), &config).expect_err("must not start");
    assert!(matches!(error, LabError::Product(_)), "{error}");
    let message = error.to_string();
    assert!(message.contains("services.shop.mode: missing"), "{message}");
    let nobody = lab.start_product(Path::new("/nowhere/tidegate"), &config);
    assert!(nobody.expect_err("no such program").to_string().contains("/nowhere/tidegate"));
}

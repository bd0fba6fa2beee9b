// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules for TLS with real clients and a real server: their hellos, as they are on the wire, short and
//! longer than a segment.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod netns;

use netns::{AttachMode, Net, Server, certificate, inside, plan, says, sh, wait_for};
use std::path::Path;
use std::process::{Output, Stdio};
use tidegate_bpf::testing::plans;
use tidegate_bpf::{BucketParams, Dataplane};
use tidegate_config::{RuleAction, RuleConfig, RuleRefusal};
use tidegate_policy::Action;
use tidegate_units::Rate;

const ADDRESS: &str = "10.77.0.1:80";

/// One token for `busy.example`, and for what is below `busy.test` no more than that.
fn start(net: &Net, answer: RuleRefusal) -> Dataplane {
    let rule = |name| RuleConfig {
        action: Some(RuleAction::Refuse(answer)),
        ..plans::tls_rule(name, Some("all"))
    };
    let mut plan = plan(vec![net.interface(AttachMode::Xdp)], Action::Drop);
    plan.config.services[0].requests =
        Some(plans::requests(&["all"], vec![rule("busy.example"), rule("*.busy.test")]));
    let mut dataplane = Dataplane::start(&plan).unwrap();
    let rate = Some(Rate::per_second(0.001));
    let one = BucketParams::tokens((0, 0), rate, 1, [0; 3]).unwrap();
    dataplane.set_limits(&[], &[one], 2).unwrap();
    dataplane
}

/// A TLS server that answers every request with a page.
fn serve(net: &Net, place: &Path) -> Server {
    let (key, cert) = certificate(place);
    let words = ["openssl", "s_server", "-accept", ADDRESS, "-www", "-quiet"];
    Server::new(net, &[&words[..], &["-key", &key, "-cert", &cert]].concat())
}

/// Runs a client in its namespace.
fn client(net: &Net, words: &[&str]) -> Output {
    let words = [&["timeout", "10"], words].concat();
    inside(&net.client, &words).stdin(Stdio::null()).output().unwrap()
}

/// curl's exit code and what it got.
fn curl(net: &Net, host: &str) -> (i32, String) {
    let (to, url) = (format!("{host}:80:10.77.0.1"), format!("https://{host}:80/"));
    let words = ["curl", "-sk", "--noproxy", "*", "--max-time", "8", "--resolve", &to, &url];
    let output = client(net, &words);
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `got`, or the name of the exception; with so many bytes of ALPN beside the server's name.
fn python(net: &Net, host: &str, padding: usize) -> String {
    let script = format!(
        "import socket, ssl\n\
         context = ssl.create_default_context()\n\
         context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n\
         if {padding}: context.set_alpn_protocols(['x' * 200] * ({padding} // 201) + ['http/1.1'])\n\
         try:\n    \
             plain = socket.create_connection(('10.77.0.1', 80), timeout=8)\n    \
             tls = context.wrap_socket(plain, server_hostname='{host}')\n    \
             tls.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n    \
             print('got' if tls.recv(12).startswith(b'HTTP/1.0 200') else 'nonsense')\n\
         except Exception as error:\n    \
             print(type(error).__name__)\n"
    );
    let output = client(net, &["python3", "-c", &script]);
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(!text.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Admitted and refused, of the rule.
fn counts(dataplane: &Dataplane, rule: usize) -> (u64, u64) {
    let counts = dataplane.rule_counts().unwrap();
    let found = counts.into_iter().find(|count| count.rule == rule).unwrap();
    (found.admitted, found.refused)
}

/// Exit codes of curl: the handshake failed, or data could not be received.
const RESET: [i32; 2] = [35, 56];

#[test]
fn real_clients_are_reset_by_the_name_that_they_ask_for() {
    let (net, place) = (Net::new(), tempfile::tempdir().unwrap());
    let _server = serve(&net, place.path());
    let mut dataplane = start(&net, RuleRefusal::Reset);
    let (code, page) = curl(&net, "busy.example");
    assert!(code == 0 && page.contains("s_server"), "the token: {code} {page}");
    assert_eq!(counts(&dataplane, 0), (1, 0));
    dataplane.heartbeat().unwrap();
    let (code, _) = curl(&net, "busy.example");
    assert!(RESET.contains(&code), "{code}");
    dataplane.heartbeat().unwrap(); // a client may take as long as the lease
    assert_eq!(python(&net, "BUSY.example", 0), "ConnectionResetError");
    dataplane.heartbeat().unwrap();
    assert_eq!(python(&net, "www.busy.test", 0), "ConnectionResetError");
    assert_eq!((counts(&dataplane, 0), counts(&dataplane, 1)), ((1, 2), (0, 1)));
    dataplane.heartbeat().unwrap();
    // Others, and those who ask for no name, are not concerned.
    let (code, page) = curl(&net, "calm.example");
    assert!(code == 0 && page.contains("s_server"), "{code} {page}");
    assert_eq!(python(&net, "busy.test", 0), "got", "not below it");
    let unnamed = curl(&net, "10.77.0.1");
    assert_eq!(unnamed.0, 0, "{unnamed:?}");
    assert_eq!((counts(&dataplane, 0), counts(&dataplane, 1)), ((1, 2), (0, 1)));
}

/// Some browsers' hellos do not fit into a segment. The name is evaluated where it is in the first.
#[test]
fn a_hello_longer_than_a_segment_is_evaluated_by_what_is_in_the_first() {
    let (net, place) = (Net::new(), tempfile::tempdir().unwrap());
    let _server = serve(&net, place.path());
    // Nothing merges what is sent in two segments.
    let namespace = net.client.display();
    sh(&format!("nsenter --net={namespace} ethtool -K c0 tso off gso off"));
    net.server_sh("ethtool -K s0 gro off");
    let mut dataplane = start(&net, RuleRefusal::Reset);
    assert_eq!(python(&net, "busy.example", 2000), "got", "the token");
    assert_eq!(counts(&dataplane, 0), (1, 0));
    dataplane.heartbeat().unwrap();
    assert_eq!(python(&net, "busy.example", 2000), "ConnectionResetError");
    assert_eq!(counts(&dataplane, 0), (1, 1));
}

#[test]
fn a_dropped_hello_leaves_the_client_waiting_and_the_server_without_a_socket() {
    let (net, place) = (Net::new(), tempfile::tempdir().unwrap());
    let _server = serve(&net, place.path());
    let mut dataplane = start(&net, RuleRefusal::Drop);
    assert_eq!(curl(&net, "busy.example").0, 0, "the token");
    dataplane.heartbeat().unwrap();
    let url = "https://busy.example:80/";
    let resolve = ["--resolve", "busy.example:80:10.77.0.1"];
    let output = client(
        &net,
        &[&["curl", "-sk", "--noproxy", "*", "--max-time", "2"], &resolve[..], &[url]].concat(),
    );
    assert_eq!(output.status.code(), Some(28), "curl gives up by its own clock");
    wait_for("the server's socket goes", || {
        let words = ["ss", "-Htan", "state", "connected", "exclude", "time-wait"];
        says(&net.server, &words).is_empty()
    });
    assert_eq!(counts(&dataplane, 0), (1, 1));
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routers that share over a real NATS server on loopback.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;
#[path = "../../gate/tests/port/mod.rs"]
mod port;

use common::{Authority, id, report, wait_for};
use nkeys::KeyPair;
use port::free_port;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tidegate_model::sharing::{BusState, RouterReports};
use tidegate_peer::node::{Node, NodeConfig};
use tidegate_peer::tls::Files;
use tidegate_peer::{BusConfig, DelegationFiles, Grant};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const SUBJECT: &str = "tidegate.routers";
/// The daemon's thread never waits for the bus.
const AT_ONCE: Nanos = Nanos::from_millis(100);
/// As often as a router tells others.
const EVERY: Nanos = Nanos::from_millis(250);

fn now() -> Nanos {
    MonotonicClock.now()
}

/// A server, stopped when it is dropped.
struct Server {
    child: Option<Child>,
    file: PathBuf,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Server {
    /// With these lines in its configuration.
    fn new(more: &str) -> Self {
        let address = free_port();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nats.conf");
        fs::write(&file, format!("listen: {address}\n{more}\n")).unwrap();
        let mut server = Self { child: None, file, address, _dir: dir };
        server.start();
        server
    }

    fn start(&mut self) {
        let mut command = Command::new("nats-server");
        command.arg("-c").arg(&self.file).stdin(Stdio::null()).stdout(Stdio::null());
        let spawned = command.stderr(Stdio::null()).spawn();
        self.child = Some(spawned.expect("the package nats-server (cargo xtask setup)"));
        wait_for("the server listens", || TcpStream::connect(self.address).ok().map(drop));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&self, name: &str) {
        let child = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &child]).status().unwrap().success());
    }

    fn bus(&self) -> BusConfig {
        BusConfig {
            servers: vec![self.address.to_string()],
            subject: SUBJECT.into(),
            authority: None,
            certificate: None,
            credentials: None,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A router, and when it told others last.
struct Router {
    node: Node,
    told: Nanos,
}

impl Router {
    fn new(files: Files, other: &str, bus: BusConfig) -> Self {
        let grant = Grant {
            name: other.into(),
            identity: id(other),
            services: Vec::new(),
            limits: Vec::new(),
            when_congested: Vec::new(),
            targets: 0,
        };
        let node = Node::start(Arc::new(MonotonicClock)).unwrap();
        let config = NodeConfig {
            files,
            listen: None,
            grants: vec![grant],
            targets: Vec::new(),
            delegation: DelegationFiles::default(),
            routers: vec![id(other)],
            bus: Some(bus),
        };
        node.follow(Some(config)).unwrap();
        Self { node, told: Nanos::ZERO }
    }

    fn pair(authority: &Authority, bus: &BusConfig) -> [Self; 2] {
        let r1 = Self::new(authority.host("r1"), "r2", bus.clone());
        let r2 = Self::new(authority.host("r2"), "r1", bus.clone());
        [r1, r2]
    }

    /// Tells others, now and then.
    fn share(&mut self, started: u32) {
        let begun = now();
        if begun.since(self.told) >= EVERY {
            self.told = begun;
            self.node.share(vec![report(80, started)]);
            assert!(now().since(begun) < AT_ONCE);
        }
    }

    fn heard(&self) -> Option<RouterReports> {
        self.node.shared().into_iter().find(|told| !told.reports.is_empty())
    }

    fn state(&self) -> BusState {
        wait_for("the bus is followed", || self.node.bus(now()))
    }

    fn refused(&self, reason: &str) -> u64 {
        let refused = self.state().refused;
        refused.iter().find(|of| of.reason == reason).map_or(0, |of| of.count)
    }
}

/// Both hear each other say this.
fn hear_each_other([r1, r2]: &mut [Router; 2], started: u32) {
    let (mut first, mut second) = (false, false);
    wait_for("both are heard", || {
        r1.share(started);
        r2.share(started);
        let is_new = |heard: Option<RouterReports>| {
            heard.is_some_and(|heard| heard.reports == [report(80, started)])
        };
        first |= is_new(r1.heard());
        second |= is_new(r2.heard());
        (first && second).then_some(())
    });
}

/// Neither has a connection.
fn both_lost(routers: &mut [Router; 2]) {
    wait_for("the bus is lost", || {
        routers.iter_mut().for_each(|router| router.share(7));
        routers.iter().all(|router| !router.state().up).then_some(())
    });
    for router in routers.iter() {
        assert!(!router.state().problem.is_empty());
        let _ = router.node.shared();
    }
}

#[test]
fn a_server_that_is_lost_comes_back() {
    let authority = Authority::new();
    let mut server = Server::new("");
    let mut routers = Router::pair(&authority, &server.bus());
    hear_each_other(&mut routers, 3);
    for router in &routers {
        let state = router.state();
        assert!(state.up && state.sent > 0 && state.taken > 0 && state.connections == 1);
        assert_eq!((state.problem.as_str(), state.subject.as_str()), ("", SUBJECT));
    }
    server.kill();
    both_lost(&mut routers);
    let before = now();
    wait_for("a while without a server", || {
        routers.iter_mut().for_each(|router| router.share(8));
        (now().since(before) >= Nanos::from_secs(3)).then_some(())
    });
    assert!(routers.iter().all(|router| router.heard().is_none()));
    server.start();
    wait_for("both are connected", || routers.iter().all(|router| router.state().up).then_some(()));
    let (mut told, before) = (Vec::new(), now());
    wait_for("what waited could arrive", || {
        routers.iter().for_each(|router| told.extend(router.heard()));
        (now().since(before) >= Nanos::SECOND).then_some(())
    });
    assert!(told.is_empty(), "what waited was sent late: {told:?}");
    hear_each_other(&mut routers, 9);
    for router in &routers {
        let state = router.state();
        assert!(state.up && state.connections == 2 && state.problem.is_empty(), "{state:?}");
        // The session goes on.
        let peers = router.node.states(now());
        assert!(peers[0].up && peers[0].epoch == 1, "{peers:?}");
    }
}

#[test]
fn a_server_that_hangs_is_lost() {
    let authority = Authority::new();
    let server = Server::new("");
    let mut routers = Router::pair(&authority, &server.bus());
    hear_each_other(&mut routers, 3);
    server.signal("-STOP");
    let before = now();
    both_lost(&mut routers);
    assert!(now().since(before) < Nanos::from_secs(8), "{:?}", now().since(before));
    server.signal("-CONT");
    hear_each_other(&mut routers, 4);
}

#[test]
fn there_may_be_no_server_at_first() {
    let authority = Authority::new();
    let mut server = Server::new("");
    server.kill();
    let mut routers = Router::pair(&authority, &server.bus());
    wait_for("the first attempts fail", || {
        let problem = routers[0].state().problem;
        problem.contains("refused").then_some(())
    });
    server.start();
    hear_each_other(&mut routers, 3);
    // A configuration without a bus ends it.
    let [r1, _] = &routers;
    r1.node.follow(None).unwrap();
    wait_for("there is no bus", || r1.node.bus(now()).is_none().then_some(()));
}

/// Whoever may publish on the subject, without a key.
struct Stranger {
    lines: BufReader<TcpStream>,
}

impl Stranger {
    fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).unwrap();
        let mut stranger = Self { lines: BufReader::new(stream) };
        stranger.say(b"CONNECT {\"verbose\":false}\r\n");
        stranger.say(format!("SUB {SUBJECT} 1\r\n").as_bytes());
        stranger
    }

    fn say(&mut self, bytes: &[u8]) {
        self.lines.get_mut().write_all(bytes).unwrap();
    }

    fn publish(&mut self, message: &[u8]) {
        self.say(format!("PUB {SUBJECT} {}\r\n", message.len()).as_bytes());
        self.say(&[message, b"\r\n"].concat());
    }

    /// The next message of somebody.
    fn next(&mut self) -> Vec<u8> {
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            if line.starts_with("PING") {
                self.say(b"PONG\r\n");
            }
            if line.starts_with("MSG") {
                let length: usize = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
                let mut message = vec![0; length + 2];
                self.lines.read_exact(&mut message).unwrap();
                message.truncate(length);
                return message;
            }
        }
    }
}

#[test]
fn a_stranger_is_counted_and_nothing_else() {
    let authority = Authority::new();
    let server = Server::new("");
    let mut routers = Router::pair(&authority, &server.bus());
    let mut stranger = Stranger::new(&server);
    hear_each_other(&mut routers, 3);
    let recorded: Vec<Vec<u8>> = (0..4).map(|_| stranger.next()).collect();
    let [r1, r2] = routers;
    // r2 is silent from now on; what is heard in its name is the stranger's.
    drop(r2);
    wait_for("the last words arrive", || {
        let before = r1.state().taken;
        std::thread::park_timeout(std::time::Duration::from_millis(300));
        (r1.state().taken == before).then_some(())
    });
    let _ = r1.node.shared();
    let taken = r1.state().taken;
    stranger.publish(b"");
    stranger.publish(b"hello");
    stranger.publish(&vec![1; 100_000]);
    for message in &recorded {
        stranger.publish(message);
        let mut altered = message.clone();
        let last = altered.len() - 1;
        altered[last] ^= 1;
        stranger.publish(&altered);
    }
    wait_for("all of it is counted", || {
        let refused = r1.state().refused;
        (refused.iter().map(|of| of.count).sum::<u64>() >= 11).then_some(())
    });
    assert!(r1.refused("malformed") >= 2 && r1.refused("version") == 1, "{:?}", r1.state());
    assert!(r1.refused("stale") > 0, "{:?}", r1.state());
    assert_eq!((r1.state().taken, r1.node.shared()), (taken, Vec::new()));
    assert!(r1.state().up);
    // A new process of r2 is heard.
    let r2 = Router::new(authority.host("r2"), "r1", server.bus());
    hear_each_other(&mut [r1, r2], 5);
}

/// Much more at once than anybody reads, and then the server is gone.
#[test]
fn a_flood_hides_no_loss() {
    let authority = Authority::new();
    let mut server = Server::new("");
    let mut routers = Router::pair(&authority, &server.bus());
    hear_each_other(&mut routers, 3);
    let mut stranger = Stranger::new(&server);
    for _ in 0..20 {
        for _ in 0..1000 {
            stranger.publish(b"hello");
        }
        routers.iter_mut().for_each(|router| router.share(4));
    }
    wait_for("the flood is counted", || {
        routers.iter_mut().for_each(|router| router.share(4));
        let counted = |router: &Router| router.refused("version") + router.refused("quota");
        routers.iter().all(|router| counted(router) >= 1_000).then_some(())
    });
    server.kill();
    both_lost(&mut routers);
    server.start();
    hear_each_other(&mut routers, 5);
}

/// Bytes as a JWT has them: base64 with the letters of URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letters = |three: &[u8]| {
        let all = three.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let all = all << (8 * (3 - three.len()));
        let letter = move |at: usize| char::from(LETTERS[(all >> (18 - 6 * at)) as usize & 63]);
        (0..=three.len()).map(letter).collect::<String>()
    };
    bytes.chunks(3).map(letters).collect()
}

/// Claims on a key, signed by another.
fn jwt(issuer: &KeyPair, (subject, name): (&KeyPair, &str), nats: &str) -> String {
    let head = base64(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let claims = format!(
        r#"{{"jti":"{name}","iat":1700000000,"iss":"{iss}","sub":"{sub}","name":"{name}","nats":{nats}}}"#
    );
    let said = format!("{head}.{}", base64(claims.as_bytes()));
    let signature = issuer.sign(said.as_bytes()).unwrap();
    format!("{said}.{}", base64(&signature))
}

/// Lines of a server that knows its clients by their credentials, and a file of such.
fn credentials() -> (String, String) {
    let (operator, account, user) =
        (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let of_operator = jwt(&operator, (&operator, "operator"), r#"{"type":"operator","version":2}"#);
    let of_account = jwt(
        &operator,
        (&account, "account"),
        r#"{"type":"account","version":2,"limits":{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1},"default_permissions":{"pub":{},"sub":{}}}"#,
    );
    let of_user = jwt(
        &account,
        (&user, "user"),
        r#"{"type":"user","version":2,"pub":{},"sub":{},"subs":-1,"data":-1,"payload":-1}"#,
    );
    let server = format!(
        "operator: {of_operator}\nresolver: MEMORY\nresolver_preload: {{ {}: {of_account} }}\n",
        account.public_key()
    );
    let seed = user.seed().unwrap();
    let file = format!(
        "-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    (server, file)
}

#[test]
fn tls_and_credentials() {
    let authority = Authority::new();
    let nats = authority.sign("nats", &[], &["127.0.0.1"]);
    let client = authority.sign("client", &[], &["client"]);
    let (lines, text) = credentials();
    let file = authority.dir().join("nats.creds");
    fs::write(&file, text).unwrap();
    let show = |path: &PathBuf| path.display().to_string();
    let server = Server::new(&format!(
        "{lines}tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        show(&nats.certificate),
        show(&nats.key),
        show(&nats.authority)
    ));
    let good = BusConfig {
        authority: Some(authority.authority()),
        certificate: Some((client.certificate, client.key)),
        credentials: Some(file.clone()),
        ..server.bus()
    };
    good.examine().unwrap();
    hear_each_other(&mut Router::pair(&authority, &good), 3);
    let other = Authority::new();
    let name =
        BusConfig { servers: vec![format!("localhost:{}", server.address.port())], ..good.clone() };
    for bad in [
        // Its certificate is for another name.
        name,
        BusConfig { authority: Some(other.authority()), ..good.clone() },
        BusConfig { certificate: None, ..good.clone() },
        BusConfig { credentials: None, ..good.clone() },
    ] {
        bad.examine().unwrap();
        let router = Router::new(authority.host("r1"), "r2", bad.clone());
        let state = wait_for("it is refused", || {
            Some(router.state()).filter(|state| !state.problem.is_empty())
        });
        assert!(!state.up && state.connections == 0, "{bad:?}: {state:?}");
    }
    // Files that cannot be used are told before.
    fs::write(&file, "no credentials").unwrap();
    let said = good.examine().unwrap_err().to_string();
    assert!(
        said.ends_with("nats.creds: it is no credentials file of NATS (a JWT and a seed)"),
        "{said}"
    );
    let missing = BusConfig { authority: Some("/nonexistent".into()), ..server.bus() };
    assert!(missing.examine().is_err());
}

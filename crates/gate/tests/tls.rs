// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener of a gateway with mutual TLS: who may ask, who may not, and what becomes of either when files
//! change. The client is rustls, the question is nginx's.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

mod port;

use port::free_port;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{GatewayConfig, Registry, parse};
use tidegate_gate::{Adapters, Gate};
use tidegate_model::snapshot::TlsCounts;
use tidegate_units::{Clock, MonotonicClock};

const PATIENCE: Duration = Duration::from_secs(20);
const QUESTION: &[u8] =
    b"GET / HTTP/1.1\r\nHost: gate\r\nX-Tidegate-Method: GET\r\nX-Tidegate-Uri: /\r\n\r\n";

/// Signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate with this name, and its key, as PEM.
    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn client(&self) -> (String, String) {
        self.sign("proxy", ExtendedKeyUsagePurpose::ClientAuth)
    }
}

/// A gateway with its files.
struct World {
    dir: tempfile::TempDir,
    adapters: Adapters,
    gate: Arc<Gate>,
    gateways: Vec<GatewayConfig>,
    address: SocketAddr,
    /// Who signs the gate's certificate.
    own: Authority,
    /// Who signs those of proxies.
    proxies: Authority,
}

type Session = StreamOwned<ClientConnection, TcpStream>;

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = free_port();
        let path = |file: &str| dir.path().join(file).display().to_string();
        let text = format!(
            "services: {{shop: {{mode: enforce}}}}\ngateways:\n  edge:\n    adapter: nginx\n    listen: {address}\n    \
             completions: unix:{}\n    tls: {{certificate: {}, key: {}, ca_file: {}}}\n    routes: [{{service: shop}}]\n",
            path("edge.log"),
            path("gate.pem"),
            path("gate.key"),
            path("proxies.pem"),
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let gate = Arc::new(Gate::new(&config, 7));
        gate.tick(MonotonicClock.now());
        let adapters = Adapters::start(Arc::clone(&gate), Arc::new(MonotonicClock)).unwrap();
        let (own, proxies) = (Authority::new(), Authority::new());
        let gateways = config.gateways;
        let world = Self { dir, adapters, gate, gateways, address, own, proxies };
        world.write("proxies.pem", &world.proxies.0.pem());
        world.renew();
        world.adapters.follow(&world.gateways);
        wait_for("it is served", || world.problem().is_none());
        world
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    /// The gate gets a new certificate.
    fn renew(&self) {
        let (certificate, key) = self.own.sign("gate", ExtendedKeyUsagePurpose::ServerAuth);
        self.write("gate.pem", &certificate);
        self.write("gate.key", &key);
    }

    fn problem(&self) -> Option<String> {
        self.adapters.problems().into_iter().next().unwrap_or(Some("none yet".into()))
    }

    fn refused(&self) -> TlsCounts {
        self.adapters.refused().swap_remove(0).unwrap()
    }

    fn connect(&self, shown: Option<(String, String)>) -> Session {
        self.connect_by(&[&TLS12, &TLS13], shown)
    }

    fn connect_by(
        &self,
        versions: &[&'static rustls::SupportedProtocolVersion],
        shown: Option<(String, String)>,
    ) -> Session {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.own.0.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let session = ClientConnection::new(Arc::new(config), "gate".try_into().unwrap()).unwrap();
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(session, stream)
    }

    /// Waits until so many handshakes have failed: why the last one did.
    fn counted(&self, failed: u64) -> String {
        wait_for("it is counted", || self.refused().handshakes_failed >= failed);
        let refused = self.refused();
        assert_eq!(refused.handshakes_failed, failed, "{}", refused.last);
        refused.last
    }
}

/// Whether the gate answers the question.
fn answers(session: &mut Session) -> bool {
    if session.write_all(QUESTION).is_err() {
        return false;
    }
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(b"\r\n\r\n") {
        if session.read_exact(&mut byte).is_err() {
            return false;
        }
        said.push(byte[0]);
    }
    said.starts_with(b"HTTP/1.1 204")
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = MonotonicClock.now();
    while !happened() {
        assert!(MonotonicClock.now().since(begin) < PATIENCE.into(), "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn only_who_shows_a_certificate_of_the_authority_may_ask() {
    let world = World::new();
    for version in [&TLS12, &TLS13] {
        let mut session = world.connect_by(&[version], Some(world.proxies.client()));
        assert!(answers(&mut session), "{version:?}");
        assert_eq!(session.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    let asked = world.gate.totals(0).unwrap().offered;
    assert_eq!((asked, world.refused()), (2, TlsCounts::default()));

    let strange = Authority::new().client();
    let server = world.proxies.sign("proxy", ExtendedKeyUsagePurpose::ServerAuth);
    let mut failed = 0;
    for (shown, why) in [
        (None, "no certificates"),
        (Some(strange), "invalid peer certificate"),
        (Some(server), "key usage"),
    ] {
        for version in [&TLS12, &TLS13] {
            let mut session = world.connect_by(&[version], shown.clone());
            assert!(!answers(&mut session), "{why}");
            failed += 1;
            let told = world.counted(failed);
            assert!(told.starts_with("127.0.0.1: ") && told.contains(why), "{told}");
        }
    }
    // The question in the clear.
    let mut plain = TcpStream::connect(world.address).unwrap();
    plain.write_all(QUESTION).unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    world.counted(failed + 1);
    // Who only looks whether somebody listens is no fault.
    let looks = TcpStream::connect(world.address).unwrap();
    looks.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!((&looks).read(&mut [0]).unwrap(), 0);
    world.counted(failed + 1);
    assert_eq!(world.gate.totals(0).unwrap().offered, asked, "nobody else has asked");
    assert_eq!(world.gate.state().misunderstood, 0);
}

/// Those who say nothing are as many as may be, and more; then they are closed.
#[test]
fn silent_connections_keep_no_proxy_out() {
    let world = World::new();
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(world.address).unwrap()).collect();
    assert!(answers(&mut world.connect(Some(world.proxies.client()))));
    wait_for("the oldest made room", || world.refused().handshakes_failed >= 200 - 64);
    assert!(world.refused().last.contains("64 others were under way"));
    // The rest has its time.
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(stream.read(&mut [0]).is_ok_and(|n| n == 0), "it is closed");
    }
    assert!(world.counted(200).contains("took too long"));
}

#[test]
fn a_reload_reads_the_files_again_and_closes_nothing() {
    let world = World::new();
    let mut kept = world.connect(Some(world.proxies.client()));
    assert!(answers(&mut kept));
    let shown = |session: &Session| session.conn.peer_certificates().unwrap()[0].to_vec();
    let before = shown(&kept);
    world.renew();
    world.adapters.follow(&world.gateways);
    wait_for("the new certificate is shown", || {
        let mut session = world.connect(Some(world.proxies.client()));
        assert!(answers(&mut session));
        shown(&session) != before
    });
    assert!(answers(&mut kept), "it stays");

    // Half renewed: the one before stays, somebody is told, and it is read again without a reload.
    let (certificate, key) = world.own.sign("gate", ExtendedKeyUsagePurpose::ServerAuth);
    world.write("gate.pem", &certificate);
    world.adapters.follow(&world.gateways);
    wait_for("it is told", || {
        world.problem().is_some_and(|why| why.contains("not the key of the certificate"))
    });
    assert!(answers(&mut world.connect(Some(world.proxies.client()))));
    world.write("gate.key", &key);
    wait_for("it is whole", || world.problem().is_none());
    assert!(answers(&mut kept), "it stays");
    assert_eq!(world.refused().handshakes_failed, 0);
}

/// An authority that is replaced is not trusted any more, nor is who came by it.
#[test]
fn whoever_came_by_another_authority_has_to_come_again() {
    let world = World::new();
    let old = world.proxies.client();
    let mut kept = world.connect(Some(old.clone()));
    assert!(answers(&mut kept));
    let next = Authority::new();
    world.write("proxies.pem", &next.0.pem());
    world.adapters.follow(&world.gateways);
    wait_for("the connection is closed", || !answers(&mut kept));
    assert!(answers(&mut world.connect(Some(next.client()))));
    assert!(!answers(&mut world.connect(Some(old))));
    assert!(world.counted(1).contains("invalid peer certificate"));
}

#[test]
fn without_files_everybody_is_closed_at_once_until_they_are_there() {
    let world = World::new();
    fs::remove_file(world.path("gate.key")).unwrap();
    let adapters = Adapters::start(Arc::clone(&world.gate), Arc::new(MonotonicClock)).unwrap();
    let mut gateways = world.gateways.clone();
    let address = free_port();
    gateways[0].listen = address.to_string().parse().unwrap();
    gateways[0].completions =
        Some(format!("unix:{}", world.path("other.log").display()).parse().unwrap());
    adapters.follow(&gateways);
    let problem = || adapters.problems().into_iter().next().flatten();
    wait_for("it is told", || problem().is_some_and(|why| why.contains("gate.key")));
    wait_for("it listens", || TcpStream::connect(address).is_ok());
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    world.renew();
    wait_for("it is served", || problem().is_none());
    let there = World { address, ..world };
    assert!(answers(&mut there.connect(Some(there.proxies.client()))));
}

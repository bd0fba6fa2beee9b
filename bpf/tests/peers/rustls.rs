// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server and a client of rustls, for exchanges_live.rs: HTTP/1.1, HTTP/2 by hand, early data.

use super::netns::{Net, within};
use super::{ADDRESS, DELAY_MS, certificate};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a page.
const PAGE: usize = 700;
/// Bytes of early data that a server takes.
const EARLY_MAX: u32 = 4096;
/// What a client does between two requests.
const THINK: Duration = Duration::from_millis(5);
/// No read waits longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is spoken inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Talk {
    Http1,
    Http2,
    /// HTTP/1.1; the first request of a resumed connection comes with its hello.
    Early,
}

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: any.example\r\nAccept: */*\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;

/// A frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads one frame: its kind and its flags.
fn read_frame(from: &mut impl Read) -> std::io::Result<(u8, u8)> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    from.read_exact(&mut vec![0; length as usize])?;
    Ok((head[3], head[4]))
}

fn serve_http1(tls: &mut (impl Read + Write), mut head: Vec<u8>) -> std::io::Result<()> {
    let head_end = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE}\r\n\r\n");
    let page = [head_end.as_bytes(), &[b'x'; PAGE]].concat();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            let mut some = [0; 4096];
            let got = tls.read(&mut some)?;
            if got == 0 {
                return Ok(());
            }
            head.extend(&some[..got]);
        }
        head.clear();
        std::thread::sleep(Duration::from_millis(DELAY_MS as u64));
        tls.write_all(&page)?;
        tls.flush()?;
    }
}

fn serve_http2(tls: &mut (impl Read + Write)) -> std::io::Result<()> {
    tls.read_exact(&mut [0; PREFACE.len()])?;
    tls.write_all(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]))?;
    // :status 200, and a field as any server has some
    let fields = [&[0x88, 0, 6][..], b"server", &[12], b"rustls tests"].concat();
    let mut stream = 1;
    loop {
        match read_frame(tls)? {
            (SETTINGS, 0) => tls.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            (HEADERS, _) => {
                std::thread::sleep(Duration::from_millis(DELAY_MS as u64));
                let page =
                    [frame(HEADERS, 4, stream, &fields), frame(DATA, 1, stream, &[b'x'; PAGE])];
                tls.write_all(&page.concat())?;
                stream += 2;
            }
            _ => {}
        }
        tls.flush()?;
    }
}

/// Serves connections, each in a thread, until their clients end them.
pub(super) struct Server;

impl Server {
    pub(super) fn start(net: &Net, place: &Path, talk: Talk) -> Self {
        let (key, cert) = certificate(place);
        let cert = CertificateDer::from_pem_file(cert).unwrap();
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let builder = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let mut config = builder.with_no_client_auth().with_single_cert(vec![cert], key).unwrap();
        config.max_early_data_size = if talk == Talk::Early { EARLY_MAX } else { 0 };
        config.alpn_protocols = alpn(talk);
        let config = Arc::new(config);
        let address: SocketAddr = ADDRESS.parse().unwrap();
        let listener = within(&net.server, || TcpListener::bind(address)).unwrap();
        // ends with the process: nobody waits for it
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let config = Arc::clone(&config);
                std::thread::spawn(move || serve(stream, config, talk));
            }
        });
        Self
    }
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>, talk: Talk) {
    // an end that is no end of a request: its client is gone
    let _ = try_serve(stream, config, talk);
}

fn try_serve(mut tcp: TcpStream, config: Arc<ServerConfig>, talk: Talk) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    let mut connection = ServerConnection::new(config).unwrap();
    let mut early = Vec::new();
    while talk == Talk::Early && connection.is_handshaking() {
        connection.complete_io(&mut tcp)?;
        if let Some(mut data) = connection.early_data() {
            data.read_to_end(&mut early)?;
        }
    }
    let mut tls = StreamOwned::new(connection, tcp);
    match talk {
        Talk::Http2 => serve_http2(&mut tls),
        Talk::Http1 | Talk::Early => serve_http1(&mut tls, early),
    }
}

fn alpn(talk: Talk) -> Vec<Vec<u8>> {
    let h2 = (talk == Talk::Http2).then(|| b"h2".to_vec());
    h2.into_iter().chain([b"http/1.1".to_vec()]).collect()
}

/// Connections one after the other, sessions resumed where there are some.
pub(super) struct Client {
    config: Arc<ClientConfig>,
    talk: Talk,
}

impl Client {
    pub(super) fn new(talk: Talk) -> Self {
        let builder = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = alpn(talk);
        config.enable_early_data = talk == Talk::Early;
        Self { config: Arc::new(config), talk }
    }

    pub(super) fn run(&self, net: &Net, connections: u64, requests: u64) {
        for _ in 0..connections {
            let address: SocketAddr = ADDRESS.parse().unwrap();
            let tcp = within(&net.client, || TcpStream::connect(address)).unwrap();
            tcp.set_nodelay(true).unwrap();
            tcp.set_read_timeout(Some(PATIENCE)).unwrap();
            let name = ServerName::try_from("any.example").unwrap();
            let mut connection = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
            let early = connection.early_data().map(|mut data| data.write_all(GET).unwrap());
            let mut tls = StreamOwned::new(connection, tcp);
            match self.talk {
                Talk::Http2 => ask_http2(&mut tls, requests),
                Talk::Http1 | Talk::Early => ask_http1(&mut tls, requests, early.is_some()),
            }
            tls.conn.send_close_notify();
            tls.flush().unwrap();
        }
    }
}

fn ask_http1(tls: &mut (impl Read + Write), requests: u64, early: bool) {
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {PAGE}\r\n\r\n").len() + PAGE;
    for n in 0..requests {
        if n > 0 || !early {
            tls.write_all(GET).unwrap();
            tls.flush().unwrap();
        }
        tls.read_exact(&mut vec![0; length]).unwrap();
        std::thread::sleep(THINK);
    }
}

fn ask_http2(tls: &mut (impl Read + Write), requests: u64) {
    // GET, https, /page, any.example: RFC 7541, 6.2.2 without an entry
    let fields = [&[0x82, 0x87, 4, 5][..], b"/page", &[1, 11], b"any.example"].concat();
    tls.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 0])].concat()).unwrap();
    for n in 0..requests {
        tls.write_all(&frame(HEADERS, 5, 2 * n as u32 + 1, &fields)).unwrap();
        tls.flush().unwrap();
        loop {
            match read_frame(tls).unwrap() {
                (SETTINGS, 0) => tls.write_all(&frame(SETTINGS, ACK, 0, &[])).unwrap(),
                (DATA, 1) => break,
                _ => {}
            }
        }
        std::thread::sleep(THINK);
    }
}

/// Trusts everybody: this is about packets.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256]
    }
}

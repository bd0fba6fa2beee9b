// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection carries requests by: HTTP/1.1 in cleartext or in TLS 1.3, or HTTP/2 in TLS 1.3.
//!
//! Each connection makes a full handshake, as a client does that has not been here before.

use super::h2::{self, H2};
use super::http::{Answer, Progress};
use super::plan::Stream;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConnection, Resumption};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version};
use serde::{Deserialize, Serialize};
use socket2::Socket;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

/// Most reads for one wake-up; the rest comes with the next one.
const READS_MAX: usize = 16;
/// Most writes in a row: far more than a request and a handshake need.
const WRITES_MAX: usize = 16;
/// The protocols of ALPN.
const ALPN: [&[u8]; 2] = [b"http/1.1", b"h2"];

/// How requests are carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// HTTP/1.1 in cleartext.
    #[default]
    Clear,
    /// HTTP/1.1 in TLS 1.3.
    Tls,
    /// HTTP/2 in TLS 1.3.
    H2,
}

/// The configurations of TLS, made once: one for each protocol of [`ALPN`].
pub(crate) struct Wires {
    configs: [Arc<ClientConfig>; 2],
}

impl Wires {
    pub(crate) fn new() -> io::Result<Self> {
        let [one, two] = ALPN.map(config);
        Ok(Self { configs: [one?, two?] })
    }

    /// The wire of a new connection.
    pub(crate) fn open(&self, spec: &Stream) -> io::Result<Wire> {
        let (transport, headless) = (spec.transport, spec.manner.is_headless());
        let wire = |tls| Wire { tls, reader: Reader::new(transport), headless };
        let config = match transport {
            Transport::Clear => return Ok(wire(None)),
            Transport::Tls => &self.configs[0],
            Transport::H2 => &self.configs[1],
        };
        let name = ServerName::try_from(spec.host.clone()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(wire(Some(Box::new(tls))))
    }
}

fn config(alpn: &[u8]) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?;
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Takes any certificate: the lab's servers make their own, and what is measured is the server.
/// A verification would cost the generator more than all the rest of a handshake.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
    }
}

/// Reads responses.
enum Reader {
    Http(Answer),
    H2(Box<H2>),
}

impl Reader {
    fn new(transport: Transport) -> Self {
        match transport {
            Transport::H2 => Self::H2(Box::new(H2::new())),
            Transport::Clear | Transport::Tls => Self::Http(Answer::default()),
        }
    }
}

/// What a wake-up brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// How far the present response is.
    pub(crate) progress: Progress,
    /// Whether bytes of HTTP came.
    pub(crate) any: bool,
    /// Whether the server has ended the connection.
    pub(crate) ended: bool,
}

/// One connection's protocols.
pub(crate) struct Wire {
    tls: Option<Box<ClientConnection>>,
    reader: Reader,
    /// Responses have no head, as in HTTP/0.9.
    headless: bool,
}

impl Wire {
    /// Sends a request: its bytes, or in HTTP/2 its header block, on so many streams. In TLS it waits for the handshake
    /// and goes out behind the client's Finished. `false` when the connection does not take it.
    pub(crate) fn send(&mut self, socket: &Socket, (request, times): (&[u8], u32)) -> bool {
        match &mut self.reader {
            Reader::Http(answer) => {
                *answer = if self.headless { Answer::headless() } else { Answer::default() };
                self.write(socket, request)
            }
            Reader::H2(h2) => {
                (0..times).for_each(|_| h2.request(request));
                self.flush_h2(socket)
            }
        }
    }

    /// Sends more of the present request.
    pub(crate) fn send_more(&mut self, socket: &Socket, bytes: &[u8]) -> bool {
        self.write(socket, bytes)
    }

    fn flush_h2(&mut self, socket: &Socket) -> bool {
        let Reader::H2(h2) = &mut self.reader else { return true };
        let output = h2.take_output();
        output.is_empty() || self.write(socket, &output)
    }

    fn write(&mut self, mut socket: &Socket, bytes: &[u8]) -> bool {
        let Some(tls) = &mut self.tls else {
            // A request is far smaller than the smallest send buffer: it goes whole or not at all.
            return matches!(socket.write(bytes), Ok(n) if n == bytes.len());
        };
        tls.writer().write_all(bytes).is_ok() && flush(tls, socket)
    }

    /// Reads what is there. The buffer takes one read.
    pub(crate) fn hear(&mut self, socket: &Socket, buffer: &mut [u8]) -> Heard {
        let mut heard = Heard { progress: Progress::Partial, any: false, ended: false };
        let mut reads = 0;
        // What TLS has decrypted is taken to its end: no event of the socket would tell of it.
        while reads < READS_MAX || self.holds_text() {
            reads += 1;
            let bytes = match self.read(socket, buffer) {
                Ok(Some(0)) => {
                    heard.ended = true;
                    heard.progress = self.end();
                    return heard;
                }
                Ok(Some(n)) => &buffer[..n],
                Ok(None) => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return heard,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    return Heard { progress: Progress::Broken, ended: true, ..heard };
                }
            };
            heard.any = true;
            heard.progress = match &mut self.reader {
                Reader::Http(answer) => answer.feed(bytes),
                Reader::H2(h2) => h2.feed(bytes),
            };
            if !self.flush_h2(socket) {
                heard.progress = Progress::Broken;
            }
            if heard.progress != Progress::Partial {
                return heard;
            }
        }
        heard
    }

    fn holds_text(&mut self) -> bool {
        let state = self.tls.as_mut().and_then(|tls| tls.process_new_packets().ok());
        state.is_some_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Bytes of HTTP, in cleartext: 0 at the end, nothing when those of TLS were for TLS alone.
    fn read(&mut self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(tls) = &mut self.tls else { return socket.read(buffer).map(Some) };
        match tls.reader().read(buffer) {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if tls.read_tls(&mut socket)? == 0 {
            return Ok(Some(0));
        }
        let state = tls.process_new_packets().map_err(io::Error::other)?;
        if !flush(tls, socket) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if !tls.is_handshaking() && tls.alpn_protocol() != Some(self.reader.alpn()) {
            return Err(io::Error::other("the server speaks another protocol"));
        }
        match state.plaintext_bytes_to_read() {
            0 if state.peer_has_closed() => Ok(Some(0)),
            0 => Ok(None),
            _ => tls.reader().read(buffer).map(Some),
        }
    }

    fn end(&mut self) -> Progress {
        match &mut self.reader {
            Reader::Http(answer) => answer.end(),
            Reader::H2(_) => Progress::Broken,
        }
    }

    pub(crate) const fn status(&self) -> u16 {
        match &self.reader {
            Reader::Http(answer) => answer.status(),
            Reader::H2(h2) => h2.status(),
        }
    }

    /// Whether the server leaves the connection open after the present response.
    pub(crate) const fn keeps_open(&self) -> bool {
        match &self.reader {
            Reader::Http(answer) => answer.keeps_open(),
            Reader::H2(h2) => h2.keeps_open(),
        }
    }

    /// The statuses of responses that have ended while others are under way.
    pub(crate) fn take_early(&mut self) -> Vec<u16> {
        match &mut self.reader {
            Reader::Http(_) => Vec::new(),
            Reader::H2(h2) => h2.take_early(),
        }
    }

    /// Whether a connection without a request may stay after what was heard: HTTP/1.1 has nothing
    /// to say then, HTTP/2 has control frames.
    pub(crate) const fn stays_idle(&self, heard: Heard) -> bool {
        match &self.reader {
            Reader::Http(_) => !heard.any,
            Reader::H2(h2) => h2.keeps_open(),
        }
    }

    /// Says goodbye in TLS before the client closes.
    pub(crate) fn farewell(&mut self, socket: &Socket) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The server may be gone already.
            let _ = flush(tls, socket);
        }
    }
}

impl Reader {
    const fn alpn(&self) -> &'static [u8] {
        match self {
            Self::Http(_) => ALPN[0],
            Self::H2(_) => ALPN[1],
        }
    }
}

/// Sends what TLS has to send; `false` when it does not go out at once.
fn flush(tls: &mut ClientConnection, mut socket: &Socket) -> bool {
    for _ in 0..WRITES_MAX {
        if !tls.wants_write() {
            return true;
        }
        match tls.write_tls(&mut socket) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    !tls.wants_write()
}

/// The bytes of a request, or in HTTP/2 its header block.
pub(crate) fn request_bytes(stream: &Stream, path: &str, cookie: Option<&str>) -> Vec<u8> {
    let host = &stream.host;
    if stream.transport == Transport::H2 {
        return h2::request_block(host, path, cookie);
    }
    let close = if stream.keep_alive.is_some() { "" } else { "Connection: close\r\n" };
    let cookie = cookie.map(|c| format!("Cookie: {c}\r\n")).unwrap_or_default();
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tidegate-load\r\nAccept: */*\r\n\
         {cookie}{close}\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cleartext wire needs no TLS; the other two offer what they speak.
    #[test]
    fn each_wire_speaks_its_protocol() {
        let wires = Wires::new().unwrap();
        let mut spec = crate::load::plan::tests::plan(1.0).streams.remove(0);
        let mut alpn = |transport| {
            spec.transport = transport;
            wires.open(&spec).map(|w| (w.tls.is_some(), w.reader.alpn()))
        };
        assert_eq!(alpn(Transport::Clear).unwrap(), (false, &b"http/1.1"[..]));
        assert_eq!(alpn(Transport::Tls).unwrap(), (true, &b"http/1.1"[..]));
        assert_eq!(alpn(Transport::H2).unwrap(), (true, &b"h2"[..]));
        spec.host = "a b".into();
        assert!(wires.open(&spec).is_err());
    }
}

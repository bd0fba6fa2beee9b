// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole connections to tidegate's own proxy, of any bytes, with a server behind it that reads strictly.
//!
//! Whoever gets a request past the gate has found a way to say one thing to the proxy and another to the
//! server. So the server trusts nothing: it takes only what has one reading, and counts requests itself.

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_config::{Registry, parse};
use tidegate_gate::Gate;
use tidegate_model::limits::ServiceLimits;
use tidegate_proxy::Proxies;
use tidegate_units::{Clock, MonotonicClock, Rate};

/// Longer than a connection may last whose client has said everything.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who hears nothing for so long has been answered, or is not.
const QUIET: Duration = Duration::from_millis(2);
/// How often the proxy is asked whether it is open.
const OPENS: Duration = Duration::from_millis(5);
/// Most bytes of a line, and most lines, that a proxy of ours sends.
const LINE_MAX: usize = 64 * 1024;
const LINES_MAX: usize = 128;
/// What the proxy says of the client, once each.
const OURS: [&str; 5] =
    ["host", "x-request-id", "x-forwarded-for", "x-forwarded-proto", "forwarded"];
/// What concerns the client's connection alone, or says who it is in its own words. With `_` for `-` they
/// are the same to servers that hand fields on as variables.
const NEVER: [&str; 10] = [
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "x-real-ip",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-server",
];

/// What the server saw.
#[derive(Default)]
struct Seen {
    requests: AtomicU64,
    /// The first thing that has more than one reading.
    wrong: Mutex<Option<String>>,
}

/// The proxy, its gate, and the server behind.
pub(crate) struct Harness {
    gate: Arc<Gate>,
    _proxies: Proxies,
    /// In the clear, and in TLS.
    fronts: [SocketAddr; 2],
    /// HTTP/2 is in TLS only.
    tls: Arc<ClientConfig>,
    seen: Arc<Seen>,
}

/// A connection to the proxy.
pub(crate) enum Said {
    /// HTTP/1.
    Clear(TcpStream),
    /// HTTP/2.
    Secure(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Said {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Clear(stream) => stream,
            Self::Secure(stream) => &stream.sock,
        }
    }

    fn both(&mut self) -> &mut dyn ReadWrite {
        match self {
            Self::Clear(stream) => stream,
            Self::Secure(stream) => stream.as_mut(),
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// The section `tls` of a gateway with a certificate of its own, and a client that trusts it.
fn secured(dir: &std::path::Path) -> (String, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]);
    let made = made.unwrap_or_else(|error| panic!("{error}"));
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    for (path, pem) in [(&certificate, made.cert.pem()), (&key, made.signing_key.serialize_pem())] {
        std::fs::write(path, pem).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut roots = RootCertStore::empty();
    let read = CertificateDer::from_pem_file(&certificate);
    roots.add(read.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let versions = builder.with_safe_default_protocol_versions();
    let mut client = versions
        .unwrap_or_else(|error| panic!("{error}"))
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (certificate, key) = (certificate.display(), key.display());
    (format!("tls: {{certificate: '{certificate}', key: '{key}'}}"), Arc::new(client))
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("{error}"));
    listener.local_addr().unwrap_or_else(|error| panic!("{error}"))
}

/// A line without its CRLF; nothing else ends one. `None`: nothing comes.
fn line(reader: &mut impl BufRead) -> Result<Option<Vec<u8>>, String> {
    let mut line = Vec::new();
    let read = reader.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line);
    match read {
        Ok(0) | Err(_) => return Ok(None),
        Ok(_) if !line.ends_with(b"\r\n") => return Err(format!("no CRLF: {line:?}")),
        Ok(_) => line.truncate(line.len() - 2),
    }
    if line.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
        return Err(format!("a control byte: {}", line.escape_ascii()));
    }
    Ok(Some(line))
}

fn is_token(name: &[u8]) -> bool {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !name.is_empty() && name.iter().all(fits)
}

/// A field by its name in lower case.
type Field = (String, Vec<u8>);

fn field(line: &[u8]) -> Result<Field, String> {
    let at = line.iter().position(|b| *b == b':').ok_or("a field without a colon")?;
    let (name, value) = (&line[..at], line[at + 1..].trim_ascii());
    if !is_token(name) {
        return Err(format!("a field's name: {}", name.escape_ascii()));
    }
    Ok((String::from_utf8_lossy(name).to_lowercase(), value.to_vec()))
}

/// How the body is framed.
enum Framing {
    Length(u64),
    Chunks,
}

fn framing(fields: &[Field]) -> Result<Framing, String> {
    let of = |name: &str| -> Vec<&[u8]> {
        fields.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_slice()).collect()
    };
    match (of("content-length").as_slice(), of("transfer-encoding").as_slice()) {
        ([], []) => Ok(Framing::Length(0)),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunks),
        ([length], []) if length.iter().all(u8::is_ascii_digit) => {
            let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
            length.map(Framing::Length).ok_or_else(|| "a length".into())
        }
        (lengths, codings) => Err(format!("lengths {lengths:?}, codings {codings:?}")),
    }
}

fn examine(first: &[u8], fields: &[Field]) -> Result<(), String> {
    let parts: Vec<&[u8]> = first.split(|b| *b == b' ').collect();
    let &[method, target, b"HTTP/1.1"] = parts.as_slice() else {
        return Err(format!("the first line: {}", first.escape_ascii()));
    };
    let origin = target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS");
    if !is_token(method) || method == b"CONNECT" || !origin {
        return Err(format!("method or target: {}", first.escape_ascii()));
    }
    for name in OURS {
        let same = |field: &&Field| field.0.replace('_', "-") == name;
        let found = fields.iter().filter(same).count();
        if found != 1 {
            return Err(format!("{found} times {name}"));
        }
    }
    let client = |field: &Field| field.0 == "x-forwarded-for" && field.1 == b"127.0.0.1";
    if !fields.iter().any(client) {
        return Err("another client".into());
    }
    let never = |field: &&Field| NEVER.contains(&field.0.replace('_', "-").as_str());
    match fields.iter().find(never) {
        Some((name, _)) => Err(format!("{name} has come through")),
        None => Ok(()),
    }
}

/// Reads past a body.
fn body(reader: &mut impl BufRead, framing: Framing) -> Result<Option<()>, String> {
    let skip = |reader: &mut dyn BufRead, length: u64| {
        let copied = std::io::copy(&mut reader.take(length), &mut std::io::sink());
        copied.is_ok_and(|n| n == length)
    };
    let Framing::Length(length) = framing else {
        loop {
            let Some(size) = line(reader)? else { return Ok(None) };
            let hex = !size.is_empty() && size.iter().all(u8::is_ascii_hexdigit);
            let text = String::from_utf8_lossy(&size).into_owned();
            let length = hex.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
            let Some(length) = length else { return Err(format!("a chunk of {text:?}")) };
            if !skip(reader, length) {
                return Ok(None);
            }
            match line(reader)? {
                None => return Ok(None),
                Some(rest) if !rest.is_empty() => return Err("trailers, or a chunk's end".into()),
                Some(_) if length == 0 => return Ok(Some(())),
                Some(_) => {}
            }
        }
    };
    Ok(skip(reader, length).then_some(()))
}

/// One request; `None`: nothing more comes, or its end does not.
fn request(reader: &mut impl BufRead, seen: &Seen) -> Result<Option<()>, String> {
    let Some(first) = line(reader)? else { return Ok(None) };
    seen.requests.fetch_add(1, SeqCst);
    let mut fields = Vec::new();
    loop {
        match line(reader)? {
            None => return Ok(None),
            Some(end) if end.is_empty() => break,
            Some(_) if fields.len() > LINES_MAX => return Err("too many fields".into()),
            Some(text) => fields.push(field(&text)?),
        }
    }
    examine(&first, &fields)?;
    body(reader, framing(&fields)?)
}

fn attend(stream: TcpStream, seen: &Seen) {
    let Ok(read) = stream.try_clone() else { return };
    let (mut reader, mut writer) = (BufReader::new(read), stream);
    loop {
        match request(&mut reader, seen) {
            Ok(Some(())) => {
                if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(why) => {
                let mut wrong = seen.wrong.lock().unwrap_or_else(|e| panic!("{e}"));
                wrong.get_or_insert(why);
                return;
            }
        }
    }
}

impl Default for Harness {
    fn default() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let behind = listener.local_addr().unwrap_or_else(|e| panic!("{e}"));
        let seen = Arc::new(Seen::default());
        let of = Arc::clone(&seen);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let seen = Arc::clone(&of);
                std::thread::spawn(move || attend(stream, &seen));
            }
        });
        let first = free_port();
        let other = std::iter::repeat_with(free_port).find(|other| *other != first);
        let fronts = [first, other.unwrap_or(first)];
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let (secure, tls) = secured(dir.path());
        let gateway = |name: &str, front: SocketAddr, more: &str| {
            format!(
                "  {name}: {{adapter: proxy, listen: '{front}', upstream: {{servers: ['{behind}']}}, \
                 routes: [{{service: shop}}]{more}}}\n"
            )
        };
        let text = format!(
            "services: {{shop: {{mode: enforce}}}}\ngateways:\n{}{}",
            gateway("clear", fronts[0], ""),
            gateway("secure", fronts[1], &format!(", {secure}"))
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"]));
        let config = config.unwrap_or_else(|errors| panic!("{errors}"));
        let gate = Arc::new(Gate::new(&config, 1));
        let proxies = Proxies::start(Arc::clone(&gate), Arc::new(MonotonicClock));
        let proxies = proxies.unwrap_or_else(|error| panic!("{error}"));
        proxies.follow(&config.gateways);
        gate.tick(MonotonicClock.now());
        // Some are refused: a refusal is no way past the gate either.
        let rate = Some(Rate::per_second(2000.0));
        let limits = ServiceLimits { rate, burst: 30, ..ServiceLimits::default() };
        assert!(gate.set_limits(&config, &[limits]).is_empty());
        let late = MonotonicClock.now() + PATIENCE.into();
        while proxies.problems() != [None, None] {
            assert!(MonotonicClock.now() < late, "not open: {:?}", proxies.problems());
            std::thread::park_timeout(OPENS);
        }
        Self { gate, _proxies: proxies, fronts, tls, seen }
    }
}

impl Harness {
    /// The first byte says where the rest is cut and, if it is odd, that all is in TLS; the rest is all that
    /// is said. Returns what was answered.
    pub(crate) fn run(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut said = self.say(bytes);
        // Who closes its half at once has left, and is not answered.
        let mut answered = Vec::new();
        let mut part = [0; 4096];
        let _ = said.socket().set_read_timeout(Some(QUIET));
        while let Ok(read @ 1..) = said.both().read(&mut part) {
            answered.extend(&part[..read]);
        }
        self.end(said, answered)
    }

    /// Says it, and stays.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> Said {
        self.gate.tick(MonotonicClock.now());
        let (cut, said) = bytes.split_first().unwrap_or((&0, &[]));
        let at = said.len() * usize::from(*cut) / 256;
        let secure = cut % 2 == 1;
        let connected = TcpStream::connect(self.fronts[usize::from(secure)]);
        let stream = connected.unwrap_or_else(|error| panic!("no connection: {error}"));
        stream.set_nodelay(true).unwrap_or_else(|error| panic!("{error}"));
        let mut connection = if secure {
            let name = "shop.example".try_into().unwrap_or_else(|error| panic!("{error}"));
            let client = ClientConnection::new(Arc::clone(&self.tls), name);
            let client = client.unwrap_or_else(|error| panic!("{error}"));
            Said::Secure(Box::new(StreamOwned::new(client, stream)))
        } else {
            Said::Clear(stream)
        };
        // A proxy that has heard enough closes.
        let first = connection.both().write_all(&said[..at]);
        let _ = first.and_then(|()| connection.both().write_all(&said[at..]));
        let _ = connection.both().flush();
        connection
    }

    /// Leaves: the connection is closed, and nobody has come past the gate. Returns all that was answered.
    pub(crate) fn end(&mut self, mut said: Said, mut answered: Vec<u8>) -> Vec<u8> {
        let _ = said.socket().shutdown(Shutdown::Write);
        let _ = said.socket().set_read_timeout(Some(PATIENCE));
        let read = said.both().read_to_end(&mut answered);
        let late = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
        assert!(!read.is_err_and(|e| late.contains(&e.kind())), "the connection is not closed");
        let served = self.served();
        let totals = self.gate.totals(0).unwrap_or_default();
        assert_eq!(totals.offered, totals.admitted + totals.refused);
        let wrong = self.seen.wrong.lock().unwrap_or_else(|error| panic!("{error}")).clone();
        assert_eq!(wrong, None, "the server reads it in another way");
        assert!(served <= totals.admitted, "a request has come past the gate");
        answered
    }

    /// How many requests the server has seen.
    pub(crate) fn served(&self) -> u64 {
        self.seen.requests.load(SeqCst)
    }
}

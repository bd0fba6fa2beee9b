// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx, Caddy and Traefik: kept connections, one question at a time on each.

use super::grpc::field;
use super::sockets::{HEADERS, Proxy, token};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UdpSocket, UnixDatagram, UnixStream};
use tokio::task::spawn_local;

/// How nginx names the parts of the client's request.
const NGINX: &str = "GET /tidegate HTTP/1.1\r\nHost: tidegate\r\nX-Tidegate-Method: GET\r\nX-Tidegate-Uri: /item?id=1\r\n\
    X-Tidegate-Host: shop.example\r\nX-Tidegate-Client: 192.0.2.7\r\nX-Tidegate-Request: r-1\r\n";
/// The same of Caddy and Traefik.
const FORWARD_AUTH: &str = "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Host: shop.example\r\n\
    X-Forwarded-Method: GET\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Uri: /item?id=1\r\n";
/// How often Traefik exports its log here; a second by itself.
const EXPORT: Duration = Duration::from_millis(50);

/// Where reports go, and how they look.
#[derive(Clone)]
enum Reports {
    Nginx(Rc<UnixDatagram>),
    Caddy(Rc<UdpSocket>),
    /// Records that the next export takes.
    Traefik(Rc<RefCell<Vec<u8>>>),
}

#[derive(Clone)]
pub(crate) struct Http {
    path: Rc<PathBuf>,
    question: Rc<str>,
    idle: Rc<RefCell<Vec<UnixStream>>>,
    reports: Reports,
}

fn socket(log: &Path) -> io::Result<Rc<UnixDatagram>> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(log)?;
    Ok(Rc::new(socket))
}

impl Http {
    fn new(path: &Path, begins: &str, reports: Reports) -> Self {
        let headers: String =
            HEADERS[1..].iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let question = format!("{begins}{headers}\r\n").into();
        Self { path: Rc::new(path.to_owned()), question, idle: Rc::default(), reports }
    }

    pub(crate) fn nginx(path: &Path, log: &Path) -> io::Result<Self> {
        Ok(Self::new(path, NGINX, Reports::Nginx(socket(log)?)))
    }

    pub(crate) async fn caddy(path: &Path, log: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((log.ip(), 0)).await?;
        socket.connect(log).await?;
        Ok(Self::new(path, FORWARD_AUTH, Reports::Caddy(Rc::new(socket))))
    }

    pub(crate) fn traefik(path: &Path) -> Self {
        let records = Rc::default();
        let proxy = Self::new(path, FORWARD_AUTH, Reports::Traefik(Rc::clone(&records)));
        spawn_local(export(proxy.clone(), records));
        proxy
    }

    /// The head of the response to this.
    async fn say(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let kept = self.idle.borrow_mut().pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => UnixStream::connect(self.path.as_ref()).await?,
        };
        stream.write_all(request).await?;
        let mut response = Vec::with_capacity(1024);
        let end = loop {
            if stream.read_buf(&mut response).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let ends = |window: &[u8]| window == b"\r\n\r\n";
            if let Some(at) = response.windows(4).position(ends) {
                break at + 4;
            }
        };
        let body = end + length(&response[..end]);
        while response.len() < body {
            if stream.read_buf(&mut response).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.idle.borrow_mut().push(stream);
        Ok(response)
    }
}

/// Of the body, as the head says.
fn length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// Traefik's log by OTLP (`ExportLogsServiceRequest`), until the program ends.
async fn export(proxy: Http, records: Rc<RefCell<Vec<u8>>>) {
    loop {
        tokio::time::sleep(EXPORT).await;
        let records = records.take();
        if records.is_empty() {
            continue;
        }
        let body = field(1, &field(2, &records));
        let head = format!(
            "POST /v1/logs HTTP/1.1\r\nHost: tidegate\r\nContent-Type: application/x-protobuf\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        if proxy.say(&[head.as_bytes(), &body].concat()).await.is_err() {
            return;
        }
    }
}

impl Proxy for Http {
    async fn ask(&self) -> io::Result<Option<String>> {
        Ok(token(&self.say(self.question.as_bytes()).await?, b"x-tidegate-token: "))
    }

    async fn report(&self, token: &str) -> io::Result<()> {
        match &self.reports {
            Reports::Nginx(log) => {
                let line = format!("<190>Nov 25 22:00:00 tidegate: {token}|200|0.001|0.001|0.001");
                log.send(line.as_bytes()).await.map(drop)
            }
            Reports::Caddy(log) => {
                let line = format!(
                    r#"{{"level":"info","msg":"handled request","user_id":"{token} 1.0 1.0 0.1","duration":0.001,"size":3,"status":200}}"#
                );
                log.send(line.as_bytes()).await.map(drop)
            }
            Reports::Traefik(records) => {
                let line = format!(
                    r#"{{"ClientUsername":"{token}","DownstreamStatus":200,"Duration":1000000,"OriginDuration":1000000,"level":"info","msg":""}}"#
                );
                records.borrow_mut().extend(field(2, &field(5, &field(1, line.as_bytes()))));
                Ok(())
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets of gateways: streams and datagrams, of Unix or IP. One that cannot be opened is tried again:
//! a predecessor may still hold it.

use super::Context;
use super::secured::Secured;
use socket2::{Domain, SockAddr, Socket, Type};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use tidegate_config::Endpoint;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Most connections of one gateway at once. A worker of nginx keeps up to 256 that are idle.
const CONNECTIONS_MAX: usize = 4096;
/// How often a socket is tried that cannot be opened.
const RETRY: Duration = Duration::from_millis(100);
/// Who may enter the directory of a Unix socket may use it: the proxy runs as another user.
const SOCKET_MODE: u32 = 0o666;
/// Longest datagram, in bytes.
const DATAGRAM_MAX: usize = 8192;

/// A connection of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// Somebody who has connected.
pub(super) struct Arrived {
    pub(super) stream: Box<dyn Stream>,
    /// From where; `None` at a Unix socket.
    pub(super) from: Option<IpAddr>,
}

/// Accepts connections and serves each in a task of its own. Inside TLS one of these protocols is spoken
/// (ALPN).
pub(super) async fn streams<F: Future<Output = ()> + Send + 'static>(
    context: &Context,
    alpn: &'static [&'static [u8]],
    attend: impl Fn(Context, Box<dyn Stream>) -> F,
) {
    let (secured, follow) = Secured::new(context, alpn);
    tokio::join!(follow, seat(context, secured, attend));
}

async fn seat<F: Future<Output = ()> + Send + 'static>(
    context: &Context,
    mut secured: Secured,
    attend: impl Fn(Context, Box<dyn Stream>) -> F,
) {
    let listener = open(context, &context.config.listen, Listener::bind).await;
    let mut seated = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(arrived) => secured.enter(arrived),
                // Out of descriptors, most likely: some will be given back.
                Err(_) => {
                    tokio::time::sleep(RETRY).await;
                    None
                }
            },
            next = secured.next() => {
                if next.is_none() {
                    seated.abort_all();
                }
                next
            }
        };
        while seated.try_join_next().is_some() {}
        // Without a seat it is closed: the proxy passes its request.
        if let Some(stream) = stream.filter(|_| seated.len() < CONNECTIONS_MAX) {
            seated.spawn(attend(context.clone(), stream));
        }
    }
}

/// Gives each datagram to `take`.
pub(super) async fn datagrams(
    context: &Context,
    endpoint: &Endpoint,
    take: impl Fn(&Context, &[u8]),
) {
    let socket = open(context, endpoint, Datagrams::bind).await;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        match socket.receive(&mut buffer).await {
            Ok(length) => take(context, &buffer[..length]),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

async fn open<T>(
    context: &Context,
    endpoint: &Endpoint,
    bind: impl AsyncFn(&Endpoint) -> io::Result<T>,
) -> T {
    let of = endpoint.to_string();
    loop {
        match bind(endpoint).await {
            Ok(socket) => {
                context.problem(&of, None);
                return socket;
            }
            Err(error) => {
                context.problem(&of, Some(format!("{endpoint} cannot be opened: {error}")));
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A socket that somebody left is removed, and that of a daemon of ours which goes on serving who is
/// connected. No other file is: a wrong path must not take the log away from a machine.
async fn make_room(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file is no socket"));
    }
    if is_left(path)? || is_ours(path).await {
        return std::fs::remove_file(path);
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there"))
}

/// Whether nobody has the socket open: then none of both kinds can be connected.
fn is_left(path: &Path) -> io::Result<bool> {
    let refused = |kind| -> io::Result<bool> {
        let socket = Socket::new(Domain::UNIX, kind, None)?;
        socket.set_nonblocking(true)?;
        let connected = socket.connect(&SockAddr::unix(path)?);
        Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
    };
    // The wrong kind says so (EPROTOTYPE) before it says that nobody is there.
    Ok(refused(Type::STREAM)? || refused(Type::DGRAM)?)
}

/// Whether a process of this program and this user listens there. A socket for datagrams does not tell:
/// it is waited for.
async fn is_ours(path: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(path).await else { return false };
    let Ok(peer) = stream.peer_cred() else { return false };
    let name = |process: &str| std::fs::read_to_string(format!("/proc/{process}/comm")).ok();
    let theirs = peer.pid().and_then(|pid| name(&pid.to_string()));
    let same_user = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == peer.uid());
    same_user && theirs.is_some() && theirs == name("self")
}

fn admit_all(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Ip(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Endpoint::Unix(path) => {
                make_room(path).await?;
                let listener = UnixListener::bind(path)?;
                admit_all(path)?;
                Ok(Self::Unix(listener))
            }
        }
    }

    async fn accept(&self) -> io::Result<Arrived> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                // A response is one small segment, and somebody waits for it.
                stream.set_nodelay(true)?;
                Ok(Arrived { stream: Box::new(stream), from: Some(from.ip().to_canonical()) })
            }
            Self::Unix(listener) => {
                Ok(Arrived { stream: Box::new(listener.accept().await?.0), from: None })
            }
        }
    }
}

enum Datagrams {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Datagrams {
    async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Ip(address) => UdpSocket::bind(address).await.map(Self::Udp),
            Endpoint::Unix(path) => {
                make_room(path).await?;
                let socket = UnixDatagram::bind(path)?;
                admit_all(path)?;
                Ok(Self::Unix(socket))
            }
        }
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => socket.recv(buffer).await,
            Self::Unix(socket) => socket.recv(buffer).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn room(path: &Path) -> Result<bool, io::ErrorKind> {
        make_room(path).await.map(|()| !path.exists()).map_err(|error| error.kind())
    }

    #[tokio::test]
    async fn only_a_socket_that_nobody_else_has_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(room(&path("nothing")).await, Ok(true));

        std::fs::write(path("file"), "of somebody").unwrap();
        assert_eq!(room(&path("file")).await, Err(io::ErrorKind::AlreadyExists));

        drop(UnixListener::bind(path("stream")).unwrap());
        drop(UnixDatagram::bind(path("datagram")).unwrap());
        assert_eq!(room(&path("stream")).await, Ok(true), "left");
        assert_eq!(room(&path("datagram")).await, Ok(true), "left");

        let of_a_log = UnixDatagram::bind(path("datagram")).unwrap();
        assert_eq!(room(&path("datagram")).await, Err(io::ErrorKind::AddrInUse));
        assert!(path("datagram").exists());
        drop(of_a_log);
        assert_eq!(room(&path("datagram")).await, Ok(true), "and then it is ours");

        let predecessor = UnixListener::bind(path("stream")).unwrap();
        assert_eq!(room(&path("stream")).await, Ok(true), "of this program and this user");
        drop(predecessor);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server side of the control socket: bounded in clients, bytes and time, so that one bad
//! client never hurts the others or the daemon.

use crate::protocol::{
    ApiError, ErrorKind, REQUEST_BYTES_MAX, Reply, Request, decode_request, encode_reply,
};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, chownat, fstat, open};
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Who answers.
pub trait Handler: Send + Sync + 'static {
    /// Serves one request. Several may be served at once; dropping the future must do no harm.
    fn handle(&self, request: Request) -> impl Future<Output = Result<Reply, ApiError>> + Send;

    /// A client has left; `last` is the last request of its that was served and not refused.
    fn left(&self, _last: Request) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most clients at once, of those who may change something and of those who may only look: the next
    /// one of a kind is told and closed. So nobody who may only look keeps an operator out.
    pub clients_max: usize,
    /// Longest time for a whole request line to arrive.
    pub request: Duration,
    /// Longest time for the handler.
    pub handle: Duration,
    /// Longest time for a reply to be taken.
    pub reply: Duration,
    /// Most requests that are not understood before the client is closed.
    pub bad_requests_max: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            clients_max: 32,
            request: Duration::from_secs(60),
            handle: Duration::from_secs(10),
            reply: Duration::from_secs(5),
            bad_requests_max: 8,
        }
    }
}

/// Why the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something that is no socket stands there.
    #[error("{} exists and is no socket; it is left alone", .0.display())]
    Foreign(PathBuf),
    /// The system refused.
    #[error("cannot make the control socket {}: {source}", path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where a control socket was made.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    inode: u64,
}

impl Place {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file still is that socket, and not another daemon's or gone.
    #[must_use]
    pub fn is_held(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode)
    }
}

/// What a client may do, by the user that the kernel says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// Root, and the user as whom the socket was made.
    All,
    /// Whoever else may open the socket: members of its group.
    Look,
}

impl Rights {
    fn of(stream: &UnixStream, owner: u32) -> Self {
        let user = stream.peer_cred().map(|peer| peer.uid());
        if user.is_ok_and(|user| user == 0 || user == owner) { Self::All } else { Self::Look }
    }

    /// # Errors
    /// When the request changes something and the client may only look.
    fn allow(self, request: &Request) -> Result<(), ApiError> {
        if self == Self::All || request.only_looks() {
            return Ok(());
        }
        let message = "only root may change anything; members of the socket's group may look";
        Err(ApiError::new(ErrorKind::Permission, message))
    }
}

/// A listening control socket; its file is removed when this is dropped, unless another daemon has
/// put its own in its place.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    place: Place,
    /// The user as whom it was made.
    owner: u32,
    /// Why the group may not look, though it was to.
    ungrouped: Option<io::Error>,
}

impl ControlSocket {
    /// Why the group may not look, though it was to: whoever has given up privileges cannot give it the
    /// socket.
    #[must_use]
    pub const fn ungrouped(&self) -> Option<&io::Error> {
        self.ungrouped.as_ref()
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place.clone()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if self.place.is_held() {
            // A file that cannot be removed is replaced by the next daemon.
            let _ = std::fs::remove_file(&self.place.path);
        }
    }
}

/// Makes the socket, its directory (0755) where that is missing. Its mode is 0600, and 0660 where a
/// group may look. A group that cannot have it leaves it as without one ([`ControlSocket::ungrouped`]). A socket
/// that stands there is replaced in one step, so that a daemon that takes over is reachable at every moment.
///
/// # Errors
/// [`BindError`].
pub fn bind(path: &Path, group: Option<u32>) -> Result<ControlSocket, BindError> {
    if std::fs::symlink_metadata(path).is_ok_and(|m| !m.file_type().is_socket()) {
        return Err(BindError::Foreign(path.to_owned()));
    }
    let made = || -> io::Result<ControlSocket> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // What stands under our own process id was left by a process that is gone.
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        let made = Made::open(&temporary)?;
        made.set_mode(0o600)?;
        let shared = group.map_or(Ok(()), |group| {
            made.set_group(group)?;
            // Not earlier: its group was our own.
            made.set_mode(0o660)
        });
        std::fs::rename(&temporary, path)?;
        let place = Place { path: path.to_owned(), inode: made.stat.st_ino };
        Ok(ControlSocket { listener, place, owner: made.stat.st_uid, ungrouped: shared.err() })
    };
    made().map_err(|source| BindError::System { path: path.to_owned(), source })
}

/// A socket that was made, by its descriptor. The directory may be another user's (`daemon.user`), who can put
/// a link in the place of a name at any time; root must not change what that leads to.
struct Made {
    socket: OwnedFd,
    stat: Stat,
}

impl Made {
    /// # Errors
    /// When it is no socket of ours, or has a second name: somebody has put it there.
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = open(path, flags, Mode::empty())?;
        let stat = fstat(&socket)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_nlink == 1;
        if is_socket && is_ours {
            return Ok(Self { socket, stat });
        }
        let message = "somebody has put another file in the place of the new socket";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }

    /// Such a descriptor has no mode to change; its name in /proc leads to the file itself.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let itself = format!("/proc/self/fd/{}", self.socket.as_raw_fd());
        std::fs::set_permissions(itself, std::fs::Permissions::from_mode(mode))
    }

    fn set_group(&self, group: u32) -> io::Result<()> {
        let group = Some(Gid::from_raw(group));
        Ok(chownat(&self.socket, c"", None, group, AtFlags::EMPTY_PATH)?)
    }
}

/// Serves clients until `stop` completes; those that are being served then are cut off.
pub async fn serve<H: Handler>(
    socket: ControlSocket,
    handler: Arc<H>,
    bounds: Bounds,
    stop: impl Future<Output = ()>,
) {
    let places = [(); 2].map(|()| Arc::new(Semaphore::new(bounds.clients_max)));
    let mut clients = tokio::task::JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return,
            // Tasks that ended are taken out, so that the set stays as small as the clients.
            Some(_) = clients.join_next() => continue,
            accepted = socket.listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: those who are being served will give some back.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let rights = Rights::of(&stream, socket.owner);
        let place = Arc::clone(&places[rights as usize]).try_acquire_owned();
        let handler = Arc::clone(&handler);
        match place {
            Ok(place) => {
                clients.spawn(async move {
                    client(stream, (&*handler, rights), bounds).await;
                    drop(place);
                });
            }
            Err(_) => turn_away(&stream, bounds.clients_max),
        }
    }
}

/// Pause after an `accept` that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One line into the socket's empty buffer; whether it is read is the client's affair.
fn turn_away(stream: &UnixStream, clients_max: usize) {
    let message = format!("{clients_max} clients are connected already; try again");
    let line = encode_reply(Reply::Error(ApiError::new(ErrorKind::Busy, message)));
    let _ = stream.try_write(&line);
}

async fn client<H: Handler>(stream: UnixStream, (handler, rights): (&H, Rights), bounds: Bounds) {
    if let Some(last) = serve_client(stream, (handler, rights), bounds).await {
        handler.left(last).await;
    }
}

/// Until the client leaves or is closed; returns the last request that was served.
async fn serve_client<H: Handler>(
    stream: UnixStream,
    (handler, rights): (&H, Rights),
    bounds: Bounds,
) -> Option<Request> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut bad = 0;
    let mut last = None;
    while bad < bounds.bad_requests_max {
        let line = match timeout(bounds.request, read_line(&mut read)).await {
            Ok(Ok(Line::Whole(line))) => line,
            Ok(Ok(Line::TooLong)) => {
                let message = format!("a request has at most {REQUEST_BYTES_MAX} bytes");
                let error = ApiError::new(ErrorKind::TooLong, message);
                let _ = reply(&mut write, Reply::Error(error), bounds).await;
                return last;
            }
            // Gone, in the middle of a line or not, or too slow: nobody waits for an answer.
            Ok(Ok(Line::End) | Err(_)) | Err(_) => return last,
        };
        let allowed = |request| rights.allow(&request).map(|()| request);
        let answer = match decode_request(&line).and_then(allowed) {
            Ok(request) => match timeout(bounds.handle, handler.handle(request.clone())).await {
                Ok(answer) => {
                    if answer.is_ok() {
                        last = Some(request);
                    }
                    answer
                }
                Err(_) => {
                    Err(ApiError::new(ErrorKind::Busy, "the daemon did not get to it in time"))
                }
            },
            Err(error) => {
                bad += 1;
                Err(error)
            }
        };
        if reply(&mut write, answer.unwrap_or_else(Reply::Error), bounds).await.is_err() {
            return last;
        }
    }
    last
}

enum Line {
    Whole(Vec<u8>),
    TooLong,
    End,
}

async fn read_line(read: &mut BufReader<OwnedReadHalf>) -> io::Result<Line> {
    let mut line = Vec::new();
    let limit = REQUEST_BYTES_MAX as u64 + 1;
    read.take(limit).read_until(b'\n', &mut line).await?;
    Ok(match line.last() {
        _ if line.len() > REQUEST_BYTES_MAX => Line::TooLong,
        Some(b'\n') => Line::Whole(line),
        _ => Line::End,
    })
}

async fn reply(write: &mut OwnedWriteHalf, reply: Reply, bounds: Bounds) -> io::Result<()> {
    let line = encode_reply(reply);
    timeout(bounds.reply, write.write_all(&line)).await.map_err(io::Error::from)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    /// What the owner of the directory may put in the place of the socket between two steps. Needs root.
    #[test]
    fn only_a_socket_of_ours_with_one_name_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let socket = |name: &str| drop(std::os::unix::net::UnixListener::bind(path(name)).unwrap());
        ["own", "linked", "foreign"].into_iter().for_each(socket);
        std::fs::hard_link(path("linked"), path("other-name")).unwrap();
        chown(path("foreign"), Some(65_534), None).unwrap();
        std::fs::write(path("file"), "").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("own"), path("link-to-socket")).unwrap();
        for name in ["linked", "other-name", "foreign", "file", "link", "link-to-socket", "nothing"]
        {
            assert!(Made::open(&path(name)).is_err(), "{name}");
        }
        let made = Made::open(&path("own")).unwrap();
        // Whatever has its name by now.
        std::fs::rename(path("own"), path("moved")).unwrap();
        symlink(path("file"), path("own")).unwrap();
        let before = std::fs::metadata(path("file")).unwrap();
        made.set_group(100).unwrap();
        made.set_mode(0o660).unwrap();
        let moved = std::fs::metadata(path("moved")).unwrap();
        assert_eq!((moved.mode() & 0o7777, moved.gid()), (0o660, 100));
        let after = std::fs::metadata(path("file")).unwrap();
        assert_eq!((after.mode(), after.gid()), (before.mode(), before.gid()));
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Client and server over a real Unix socket, with good clients and with hostile ones.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use std::future::pending;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{ApiError, ErrorKind, REQUEST_BYTES_MAX, Reply, Request};
use tidegate_api::server::{BindError, Bounds, Handler, bind, serve};
use tidegate_model::Mode;
use tidegate_model::snapshot::Snapshot;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a few requests; `reload` never answers, as a handler that hangs.
struct Answers;

impl Handler for Answers {
    async fn handle(&self, request: Request) -> Result<Reply, ApiError> {
        match request {
            Request::Ping {} => Ok(Reply::Pong { program: "test".into(), pid: 7 }),
            Request::Status {} => Ok(Reply::Status { snapshot: Box::new(Snapshot::default()) }),
            Request::Mode { service, mode, percent, lasts } if service == "shop" => {
                Ok(Reply::Mode { service, mode, percent, before: Mode::Shadow, lasts })
            }
            Request::Reload { .. } => std::future::pending().await,
            _ => Err(ApiError::new(ErrorKind::UnknownService, "no service is called so")),
        }
    }
}

/// A server in a directory of its own; stopped and removed by drop.
struct Server {
    directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    _runtime: Runtime,
}

impl Server {
    fn start(bounds: Bounds) -> Self {
        let directory = TempDir::new().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let path = directory.path().join("control.sock");
        let _entered = runtime.enter();
        let socket = bind(&path, None).unwrap();
        runtime.spawn(serve(socket, Arc::new(Answers), bounds, async {
            let _ = stopped.await;
        }));
        drop(_entered);
        Self { directory, stop: Some(stop), _runtime: runtime }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("control.sock")
    }

    fn client(&self) -> Client {
        Client::connect(&self.path(), PATIENCE).unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn assert_alive(&self) {
        assert!(matches!(self.client().ask(&Request::Ping {}), Ok(Reply::Pong { pid: 7, .. })));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

fn line(stream: &UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

fn refused(error: ClientError) -> ApiError {
    match error {
        ClientError::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_answered_in_their_order_on_one_connection() {
    let server = Server::start(Bounds::default());
    let mut client = server.client();
    assert!(matches!(client.ask(&Request::Ping {}).unwrap(), Reply::Pong { .. }));
    assert!(matches!(client.ask(&Request::Status {}).unwrap(), Reply::Status { .. }));
    let mode =
        Request::Mode { service: "shop".into(), mode: Mode::Enforce, percent: None, lasts: None };
    let reply = client.ask(&mode).unwrap();
    let wanted = Reply::Mode {
        service: "shop".into(),
        mode: Mode::Enforce,
        percent: None,
        before: Mode::Shadow,
        lasts: None,
    };
    assert_eq!(reply, wanted);
    let unknown =
        Request::Mode { service: "shpo".into(), mode: Mode::Enforce, percent: None, lasts: None };
    let error = client.ask(&unknown).unwrap_err();
    assert_eq!(Exit::from(&error), Exit::NotFound);
    assert_eq!(refused(error).kind, ErrorKind::UnknownService);
}

#[test]
fn the_socket_belongs_to_its_owner_alone_and_goes_with_the_server() {
    let server = Server::start(Bounds::default());
    let path = server.path();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    server.assert_alive();
    let files = std::fs::read_dir(server.directory.path()).unwrap().count();
    assert_eq!(files, 1, "no temporary file stays");
}

#[test]
fn a_second_server_takes_over_and_the_first_leaves_its_socket_alone() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("run/control.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let first = bind(&path, None).unwrap();
    let second = bind(&path, None).unwrap();
    drop(first);
    assert!(UnixStream::connect(&path).is_ok(), "the second one is still there");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_never_replaced() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(matches!(bind(&path, None), Err(BindError::Foreign(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

#[test]
fn a_request_of_the_largest_size_is_read_and_one_byte_more_is_refused() {
    let server = Server::start(Bounds::default());
    for (extra, kind) in [(0, "unknown-service"), (1, "too-long")] {
        let mut stream = server.raw();
        let frame = r#"{"version":1,"request":"mode","mode":"shadow","service":""}"#.len() + 1;
        let name = "x".repeat(REQUEST_BYTES_MAX - frame + extra);
        let request =
            format!(r#"{{"version":1,"request":"mode","mode":"shadow","service":"{name}"}}"#);
        // The server may close while the last byte is on its way.
        let _ = stream.write_all((request + "\n").as_bytes());
        let answer = line(&stream);
        assert!(answer.contains(&format!("\"kind\":\"{kind}\"")), "{extra}: {answer}");
    }
    server.assert_alive();
}

#[test]
fn an_endless_line_is_cut_off() {
    let server = Server::start(Bounds::default());
    let mut stream = server.raw();
    let block = [b'a'; 4096];
    let mut sent = 0;
    while sent < 64 * REQUEST_BYTES_MAX && stream.write_all(&block).is_ok() {
        sent += block.len();
    }
    assert!(sent < 64 * REQUEST_BYTES_MAX, "the server took {sent} bytes");
    server.assert_alive();
}

#[test]
fn garbage_is_answered_with_what_is_wrong_and_then_closed() {
    let server = Server::start(Bounds { bad_requests_max: 6, ..Bounds::default() });
    let mut stream = server.raw();
    let cases: [(&[u8], &str); 6] = [
        (b"GET / HTTP/1.1\r\n", "not JSON"),
        (b"\xff\xfe\x00\n", "not JSON"),
        (b"[1,2]\n", "not a JSON object"),
        (b"{\"request\":\"ping\"}\n", "no \\\"version\\\""),
        (b"{\"version\":2,\"request\":\"dance\"}\n", "speaks version 2"),
        (b"{\"version\":1,\"request\":\"ping\",\"extra\":1}\n", "unknown field"),
    ];
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for (bytes, wanted) in cases {
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert!(answer.contains(wanted), "{:?}: {answer}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(answers.read(&mut [0]).unwrap(), 0, "closed after the last one");
    server.assert_alive();
}

#[test]
fn nested_json_does_not_reach_the_stack() {
    let server = Server::start(Bounds::default());
    let mut stream = server.raw();
    stream.write_all(("[".repeat(REQUEST_BYTES_MAX - 1) + "\n").as_bytes()).unwrap();
    assert!(line(&stream).contains("bad-request"));
    server.assert_alive();
}

#[test]
fn half_a_line_and_a_slow_client_hurt_nobody() {
    let server = Server::start(Bounds { request: Duration::from_millis(50), ..Bounds::default() });
    let mut half = server.raw();
    half.write_all(b"{\"version\":1,").unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(half.read(&mut [0]).unwrap(), 0, "half a line gets no answer");
    let mut slow = server.raw();
    slow.write_all(b"{").unwrap();
    server.assert_alive();
    assert_eq!(slow.read(&mut [0]).unwrap(), 0, "closed when its time was over");
}

#[test]
fn one_client_too_many_is_told_and_a_place_is_free_again_later() {
    let server = Server::start(Bounds { clients_max: 2, ..Bounds::default() });
    let mut first = server.client();
    let mut second = server.client();
    first.ask(&Request::Ping {}).unwrap();
    second.ask(&Request::Ping {}).unwrap();
    let error = server.client().ask(&Request::Ping {}).unwrap_err();
    assert_eq!(Exit::from(&error), Exit::Unreachable);
    assert_eq!(refused(error).kind, ErrorKind::Busy);
    drop(first);
    let free = (0..10_000).any(|_| {
        std::thread::yield_now();
        server.client().ask(&Request::Ping {}).is_ok()
    });
    assert!(free, "the place of a client that left is given to another");
}

#[test]
fn a_handler_that_hangs_is_given_up_and_the_connection_goes_on() {
    let server = Server::start(Bounds { handle: Duration::from_millis(20), ..Bounds::default() });
    let mut client = server.client();
    let error = refused(client.ask(&Request::Reload { path: None }).unwrap_err());
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(client.ask(&Request::Ping {}).is_ok());
}

#[test]
fn without_a_daemon_the_error_says_how_to_start_one() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("control.sock");
    let check = |path: &Path| {
        let error = Client::connect(path, PATIENCE).unwrap_err();
        assert_eq!(Exit::from(&error), Exit::Unreachable);
        assert!(error.to_string().ends_with("start one with `tidegate run`"), "{error}");
    };
    check(&path);
    // A socket whose daemon was killed: the file is there, nobody listens.
    drop(UnixListener::bind(&path).unwrap());
    check(&path);
}

/// Tells what clients had been served last when they left.
struct Remembers(mpsc::UnboundedSender<Request>);

impl Handler for Remembers {
    async fn handle(&self, request: Request) -> Result<Reply, ApiError> {
        Answers.handle(request).await
    }

    async fn left(&self, last: Request) {
        self.0.send(last).unwrap();
    }
}

#[test]
fn who_leaves_is_told_of_with_the_last_request_that_was_served() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("control.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (sender, mut left) = mpsc::unbounded_channel();
    let asked = path.clone();
    let clients = move || {
        Client::connect(&asked, PATIENCE).unwrap();
        let mut client = Client::connect(&asked, PATIENCE).unwrap();
        client.ask(&Request::Ping {}).unwrap();
        client.ask(&Request::Status {}).unwrap();
        client.ask(&Request::Release { on: true, lasts: None }).unwrap_err();
    };
    let last = runtime.block_on(async {
        let socket = bind(&path, None).unwrap();
        let handler = Arc::new(Remembers(sender));
        let serving = tokio::spawn(serve(socket, handler, Bounds::default(), pending()));
        tokio::task::spawn_blocking(clients).await.unwrap();
        let last = tokio::time::timeout(PATIENCE, left.recv()).await.unwrap();
        serving.abort();
        last
    });
    assert_eq!(
        last,
        Some(Request::Status {}),
        "not one that was refused, nor of who asked nothing"
    );
}

#[test]
fn a_socket_knows_whether_its_file_is_still_its_own() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("control.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let first = bind(&path, None).unwrap();
    assert!(first.place().is_held() && first.place().path() == path);
    let second = bind(&path, None).unwrap();
    assert!(!first.place().is_held() && second.place().is_held());
    drop(first);
    assert!(second.place().is_held(), "what is another's is not removed");
    std::fs::remove_file(&path).unwrap();
    assert!(!second.place().is_held());
}

/// A server that says one thing, whatever it is asked.
fn says(answer: &'static [u8]) -> (TempDir, Client) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = BufReader::new(&stream).read_line(&mut String::new());
        let _ = stream.write_all(answer);
        if answer.is_empty() {
            // Silent, and not gone: until the client has given up.
            let _ = stream.read(&mut [0]);
        }
    });
    let client = Client::connect(&path, Duration::from_millis(200)).unwrap();
    (directory, client)
}

#[test]
fn a_daemon_that_misbehaves_gives_a_clear_error() {
    let ask = |answer: &'static [u8]| {
        let (_directory, mut client) = says(answer);
        client.ask(&Request::Ping {}).unwrap_err()
    };
    let old = ask(b"{\"version\":9,\"reply\":\"whatever\"}\n");
    assert_eq!(Exit::from(&old), Exit::Version);
    assert!(old.to_string().contains("speaks version 9"), "{old}");
    assert!(matches!(ask(b""), ClientError::Silent { .. }));
    assert!(matches!(ask(b"{\"version\":1,"), ClientError::Broken { .. }));
    assert_eq!(refused(ask(b"hello\n")).kind, ErrorKind::BadRequest);
    assert_eq!(refused(ask(b"{\"version\":1,\"reply\":\"dance\"}\n")).kind, ErrorKind::BadRequest);
}

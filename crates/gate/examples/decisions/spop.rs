// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HAProxy: one connection, questions one behind the other without waiting.

use super::sockets::{HEADERS, Proxy, token};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixDatagram, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;

type Waiting = Rc<RefCell<VecDeque<oneshot::Sender<Option<String>>>>>;

#[derive(Clone)]
pub(crate) struct Spop {
    out: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Waiting,
    log: Rc<UnixDatagram>,
}

impl Spop {
    pub(crate) async fn connect(path: &Path, log: &Path) -> io::Result<Self> {
        let (mut reader, writer) = UnixStream::connect(path).await?.into_split();
        let (out, frames) = mpsc::unbounded_channel();
        spawn_local(write(frames, writer));
        let mut hello = Vec::new();
        for (name, value) in [("supported-versions", "2.0"), ("capabilities", "pipelining")] {
            string(name, &mut hello);
            typed(value, &mut hello);
        }
        string("max-frame-size", &mut hello);
        hello.push(3);
        spop::encode_varint_into(16_380, &mut hello);
        let waiting = Waiting::default();
        let _ = out.send(frame(1, 0, &hello));
        frame_of(&mut reader).await?;
        spawn_local(read(reader, Rc::clone(&waiting)));
        let socket = UnixDatagram::unbound()?;
        socket.connect(log)?;
        Ok(Self { out, waiting, log: Rc::new(socket) })
    }
}

impl Proxy for Spop {
    async fn ask(&self) -> io::Result<Option<String>> {
        let headers: String =
            HEADERS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut message = Vec::new();
        string("ask", &mut message);
        message.push(5);
        for (name, value) in
            [("method", "GET"), ("target", "/item?id=1"), ("id", "r-1"), ("headers", &headers)]
        {
            string(name, &mut message);
            typed(value, &mut message);
        }
        string("client", &mut message);
        message.extend([6, 192, 0, 2, 7]);
        let (told, answer) = oneshot::channel();
        self.waiting.borrow_mut().push_back(told);
        let _ = self.out.send(frame(3, 1, &message));
        answer.await.map_err(io::Error::other)
    }

    async fn report(&self, token: &str) -> io::Result<()> {
        let line = format!("<134>Nov 25 22:00:00 haproxy[7]: x tidegate={token}|200|0|0|1|0");
        self.log.send(line.as_bytes()).await.map(drop)
    }
}

fn string(text: &str, out: &mut Vec<u8>) {
    spop::encode_varint_into(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// A value, of type string.
fn typed(text: &str, out: &mut Vec<u8>) {
    out.push(8);
    string(text, out);
}

fn frame(kind: u8, id: u64, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, 1];
    spop::encode_varint_into(id, &mut body);
    spop::encode_varint_into(id, &mut body);
    body.extend_from_slice(payload);
    let length = u32::try_from(body.len()).unwrap_or_default();
    [length.to_be_bytes().as_slice(), &body].concat()
}

async fn write(mut frames: mpsc::UnboundedReceiver<Vec<u8>>, mut out: OwnedWriteHalf) {
    let mut some = Vec::new();
    while frames.recv_many(&mut some, 64).await > 0 {
        if out.write_all(&some.concat()).await.is_err() {
            return;
        }
        some.clear();
    }
}

async fn frame_of(reader: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut body = vec![0; reader.read_u32().await? as usize];
    reader.read_exact(&mut body).await?;
    Ok(body)
}

async fn read(reader: OwnedReadHalf, waiting: Waiting) {
    let mut reader = tokio::io::BufReader::with_capacity(64 * 1024, reader);
    loop {
        let Ok(length) = reader.read_u32().await else { return };
        let mut body = vec![0; length as usize];
        if reader.read_exact(&mut body).await.is_err() {
            return;
        }
        let told = waiting.borrow_mut().pop_front();
        if let Some(told) = told {
            // A string of 16 bytes.
            let _ = told.send(token(&body, b"\x05token\x08\x10"));
        }
    }
}

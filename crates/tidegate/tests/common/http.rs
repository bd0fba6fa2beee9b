// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of HTTP/1.1 that keeps its connection.

use super::PATIENCE;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// What came back.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A client that keeps its connection.
pub(crate) struct Http(BufReader<TcpStream>);

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE.into())).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn get(&mut self) -> Response {
        self.ask("")
    }

    /// With more header lines.
    pub(crate) fn ask(&mut self, lines: &str) -> Response {
        self.send("GET", lines, "")
    }

    pub(crate) fn post(&mut self, body: &str) -> Response {
        self.send("POST", &format!("Content-Length: {}\r\n", body.len()), body)
    }

    fn send(&mut self, method: &str, lines: &str, body: &str) -> Response {
        let port = self.0.get_ref().peer_addr().unwrap().port();
        let request = format!(
            "{method} /item?id=1 HTTP/1.1\r\nHost: shop.example:{port}\r\nX-Tidegate-Client: 10.0.0.1\r\n{lines}\r\n{body}"
        );
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let line = |reader: &mut BufReader<TcpStream>| {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let status = line(&mut self.0).split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let header = line(&mut self.0);
            let Some((name, value)) = header.split_once(": ") else { break };
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: String::new() };
        let length = response.header("content-length").map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        response.body = String::from_utf8(body).unwrap();
        response
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a gateway listens: a Unix socket, or an address.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, PathBuf};
use std::str::FromStr;
use tidegate_model::written_as_text;

/// What a Unix socket is written with.
const UNIX: &str = "unix:";
/// Longest path of a Unix socket, in bytes (sockaddr_un without the final zero).
const PATH_MAX: usize = 107;

/// A Unix socket, or an address and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// The socket's absolute path.
    Unix(PathBuf),
    /// TCP, or UDP for datagrams.
    Ip(SocketAddr),
}

impl Endpoint {
    /// Whether only this host reaches it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Ip(address) => address.ip().to_canonical().is_loopback(),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let address = text.parse::<SocketAddr>().map_err(|_| "it is no address with a port")?;
            if address.port() == 0 {
                return Err("port 0 is no port".into());
            }
            return Ok(Self::Ip(address));
        };
        let parsed = PathBuf::from(path);
        if !parsed.is_absolute() || parsed.components().any(|c| c == Component::ParentDir) {
            return Err("a Unix socket has an absolute path without \"..\"".into());
        }
        if path.len() > PATH_MAX {
            return Err(format!("the path of a Unix socket has at most {PATH_MAX} bytes"));
        }
        Ok(Self::Unix(parsed))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

written_as_text!(Endpoint, "endpoint");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read_again_and_nothing_else_is_taken() {
        for (text, local) in [
            ("127.0.0.1:9470", true),
            ("[::1]:9470", true),
            ("[::ffff:127.0.0.1]:9470", true),
            ("unix:/run/tidegate/edge.sock", true),
            ("192.0.2.1:9470", false),
            ("0.0.0.0:9470", false),
            ("[::]:9470", false),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.to_string().as_str(), endpoint.is_local()), (text, local));
        }
        let long = format!("unix:/{}", "x".repeat(PATH_MAX));
        for text in
            ["9470", "127.0.0.1:0", "localhost:9470", "unix:edge", "unix:/a/../b", "unix:", &long]
        {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        assert!(long[..long.len() - 1].parse::<Endpoint>().is_ok());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses of peers, as they are written.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use tidegate_model::written_as_text;

/// An address with a port, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<SocketAddr>().map_err(|_| "it is no address with a port")?;
        if address.port() == 0 { Err("port 0 is no port".into()) } else { Ok(Self(address)) }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(PeerAddress, "address");

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How exchanges begin at destinations whose requests are looked at.

use super::Router;
use crate::Error;
use crate::abi::{self, RouterAsked};
use libbpf_rs::RingBufferBuilder;

pub(super) const LOOKS: &str = "tg_router_looks";
const ASKED: &str = "tg_router_requests";

/// The begin of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterRequest {
    /// The place of its destination.
    pub place: usize,
    /// Its connection, by a hash.
    pub connection: u64,
    /// The first bytes of its first segment.
    pub payload: Vec<u8>,
}

impl Router {
    /// From now on it is told how exchanges begin at the destination at a place: of one connection in so many, once a
    /// second each; 0: of none.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn look_at_requests(&self, place: usize, every: u32) -> Result<(), Error> {
        let key = u32::try_from(place).unwrap_or(u32::MAX).to_ne_bytes();
        self.maps.write(LOOKS, &key, &every.to_ne_bytes())
    }

    /// Up to so many of them, the oldest first; what came later stays for the next call.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn requests(&self, max: usize) -> Result<Vec<RouterRequest>, Error> {
        let mut requests = Vec::new();
        if max == 0 {
            return Ok(requests);
        }
        let failed = || Error::map(ASKED);
        let mut builder = RingBufferBuilder::new();
        let take = |bytes: &[u8]| {
            requests.extend(abi::read::<RouterAsked>(bytes).map(|asked| {
                let payload = asked.payload.iter().take(asked.bytes as usize);
                let (place, connection) = (asked.place as usize, asked.connection);
                RouterRequest { place, connection, payload: payload.copied().collect() }
            }));
            0
        };
        builder.add(self.maps.get(ASKED)?, take).map_err(failed())?;
        let ring = builder.build().map_err(failed())?;
        let result = ring.consume_raw_n(max);
        drop(ring);
        if result < 0 {
            let source = libbpf_rs::Error::from_raw_os_error(-result);
            return Err(Error::Map { map: ASKED.into(), source });
        }
        Ok(requests)
    }
}

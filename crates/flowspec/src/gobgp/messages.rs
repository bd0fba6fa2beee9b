// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The messages of GoBGP 3's API that are used, with its field numbers. All other fields are skipped.
//!
//! Names and numbers are those of `api/gobgp.proto` of GoBGP 3.10, Copyright (C) 2015-2017 Nippon Telegraph
//! and Telephone Corporation, under the MIT licence.

use prost::Message;

/// `TableType`
pub(super) const GLOBAL: i32 = 0;
/// `Family.Safi`
pub(super) const UNICAST: i32 = 1;
/// `Family.Safi`
pub(super) const FLOW_SPEC: i32 = 133;
/// `PeerState.SessionState`
pub(super) const ESTABLISHED: i32 = 6;
/// `TableLookupPrefix.Type`
pub(super) const LONGER: i32 = 1;
/// `TableLookupPrefix.Type`
pub(super) const SHORTER: i32 = 2;

/// `google.protobuf.Empty`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Family {
    #[prost(int32, tag = "1")]
    pub(super) afi: i32,
    #[prost(int32, tag = "2")]
    pub(super) safi: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Path {
    #[prost(bool, tag = "4")]
    pub(super) best: bool,
    #[prost(bool, tag = "5")]
    pub(super) is_withdraw: bool,
    #[prost(message, optional, tag = "9")]
    pub(super) family: Option<Family>,
    #[prost(string, tag = "15")]
    pub(super) neighbor_ip: String,
    #[prost(bytes = "vec", tag = "20")]
    pub(super) nlri_binary: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "21")]
    pub(super) pattrs_binary: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Destination {
    #[prost(string, tag = "1")]
    pub(super) prefix: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) paths: Vec<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddPathRequest {
    #[prost(int32, tag = "1")]
    pub(super) table_type: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) path: Option<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddPathResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeletePathRequest {
    #[prost(int32, tag = "1")]
    pub(super) table_type: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) family: Option<Family>,
    #[prost(message, optional, tag = "4")]
    pub(super) path: Option<Path>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TableLookupPrefix {
    #[prost(string, tag = "1")]
    pub(super) prefix: String,
    #[prost(int32, tag = "2")]
    pub(super) kind: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPathRequest {
    #[prost(int32, tag = "1")]
    pub(super) table_type: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) family: Option<Family>,
    #[prost(message, repeated, tag = "4")]
    pub(super) prefixes: Vec<TableLookupPrefix>,
    #[prost(bool, tag = "9")]
    pub(super) enable_only_binary: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPathResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) destination: Option<Destination>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPeerRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPeerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) peer: Option<Peer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "5")]
    pub(super) state: Option<PeerState>,
    #[prost(message, optional, tag = "6")]
    pub(super) timers: Option<Timers>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Timers {
    #[prost(message, optional, tag = "2")]
    pub(super) state: Option<TimersState>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct TimersState {
    /// In seconds; 0: the session never ends by silence.
    #[prost(uint64, tag = "5")]
    pub(super) negotiated_hold_time: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerState {
    #[prost(string, tag = "5")]
    pub(super) neighbor_address: String,
    #[prost(int32, tag = "13")]
    pub(super) session_state: i32,
}

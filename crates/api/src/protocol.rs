// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests and replies, version [`VERSION`].
//!
//! ```text
//! > {"version":1,"request":"mode","service":"shop","mode":"shadow"}
//! < {"version":1,"reply":"mode","service":"shop","mode":"shadow","before":"enforce"}
//! > {"version":1,"request":"mode","service":"shpo","mode":"shadow"}
//! < {"version":1,"reply":"error","kind":"unknown-service","message":"no service is called …","details":[]}
//! ```

use crate::explain::{ExplainedSample, Explanation};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::{Event, Moment};
use tidegate_model::shadow::ShadowReport;
use tidegate_model::snapshot::Snapshot;
use tidegate_model::{Canary, Change, Mode};
use tidegate_units::Nanos;

/// Version of the protocol; both sides must speak the same.
pub const VERSION: u32 = 1;
/// Longest request, in bytes, the line end included.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest reply, in bytes, the line end included.
pub const REPLY_BYTES_MAX: usize = 16 << 20;

/// A request as it stands on the line; read by [`decode_request`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestLine {
    /// The protocol's version.
    pub version: u32,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// A reply as it stands on the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplyLine {
    /// The protocol's version.
    pub version: u32,
    /// The reply.
    #[serde(flatten)]
    pub reply: Reply,
}

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Is anyone there, and which version?
    Ping {},
    /// The snapshot. `top` asks once a second on one connection; nothing is pushed.
    Status {},
    /// What happens to a client, and why.
    Explain {
        /// The client's address.
        address: IpAddr,
        /// The client's port, to see one connection only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    },
    /// What was decided about a request at a gateway.
    ExplainRequest {
        /// The proxy's id of it.
        id: String,
    },
    /// What happened: shedding, modes, reloads.
    History {},
    /// What would have been refused in shadow, and how the services were then.
    ShadowReport {
        /// Only this service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        service: Option<String>,
        /// So long ago, and since; without it since the service is in shadow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Nanos>,
        /// Only this class.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<String>,
    },
    /// The kill switch: on lets everything pass.
    Release {
        /// Whether everything shall pass.
        on: bool,
        /// For how long; without it until it is switched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
    },
    /// The mode of one service, until another is set or the machine boots; to keep it, change the file.
    Mode {
        /// Name of the service.
        service: String,
        /// Its mode from now on.
        mode: Mode,
        /// Of how many percent of the sources refusals are executed, with `enforce`; without it of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
        /// For how long; then the file's holds again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
    },
    /// The mode of one service is that of the file again.
    ModeOfFile {
        /// Name of the service.
        service: String,
    },
    /// Reads the configuration again.
    Reload {
        /// Another file than before, an absolute path as the daemon sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
    },
    /// A daemon that starts beside this one takes over, in two steps, so that a start that fails
    /// leaves this one in charge.
    Handover {
        /// The step.
        phase: HandoverPhase,
    },
}

impl Request {
    /// Whether it changes nothing, whoever asks. What is not listed here does.
    #[must_use]
    pub const fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Ping {}
                | Self::Status {}
                | Self::Explain { .. }
                | Self::ExplainRequest { .. }
                | Self::History {}
                | Self::ShadowReport { .. }
        )
    }
}

/// The steps of a take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandoverPhase {
    /// Decide nothing any more, only renew the lease; say what was decided.
    Begin,
    /// The other one is in charge: end, and leave everything attached.
    Finish,
    /// The other one could not start: go on.
    Abort,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Ping`].
    Pong {
        /// Version of the daemon's program.
        program: String,
        /// Its process id.
        pid: u32,
    },
    /// To [`Request::Status`].
    Status {
        /// The snapshot.
        snapshot: Box<Snapshot>,
    },
    /// To [`Request::Explain`].
    Explain {
        /// The explanation.
        explanation: Box<Explanation>,
    },
    /// To [`Request::ExplainRequest`].
    ExplainRequest {
        /// Decisions about it, newest first; empty where none is remembered.
        samples: Vec<ExplainedSample>,
    },
    /// To [`Request::History`].
    History {
        /// When this was said.
        now: Moment,
        /// The events that are remembered, the oldest first.
        events: Vec<Event>,
    },
    /// To [`Request::ShadowReport`].
    ShadowReport {
        /// A report a service, in the order of the configuration.
        services: Vec<ShadowReport>,
    },
    /// To [`Request::Release`].
    Release {
        /// Whether everything passes now.
        on: bool,
        /// Whether it did before.
        before: bool,
        /// For how long; without it until it is switched.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
    },
    /// To [`Request::Mode`].
    Mode {
        /// Name of the service.
        service: String,
        /// Its mode now.
        mode: Mode,
        /// Of how many percent of the sources refusals are executed; without it of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        percent: Option<f64>,
        /// Its mode before.
        before: Mode,
        /// For how long; then the file's holds again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lasts: Option<Nanos>,
    },
    /// To [`Request::Reload`].
    Reload {
        /// Number of the configuration now in force.
        generation: u64,
        /// What changed.
        changes: Vec<Change>,
        /// Modes that commands had set and that stay, against the file: a sentence each.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept: Vec<String>,
    },
    /// To [`Request::Handover`].
    Handover(Handover),
    /// To any request that could not be served; then nothing changed.
    Error(ApiError),
}

/// What a daemon leaves to the one that takes over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Handover {
    /// Number of the limits in force.
    pub generation: u64,
    /// What was decided last, by service.
    pub limits: BTreeMap<String, ServiceLimits>,
    /// Modes that commands have set, by service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<String, Mode>,
    /// Of which share of the sources refusals are executed, where it is not all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub canaries: BTreeMap<String, Canary>,
    /// How long these hold, where that was said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes_left: BTreeMap<String, Nanos>,
    /// Services that went back to shadow by themselves: no command has set their mode.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub guarded: BTreeSet<String>,
    /// How long the kill switch stays on, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_left: Option<Nanos>,
    /// Where its state is pinned; a daemon that does not say so is an older one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins: Option<PathBuf>,
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind: what a program acts on.
    pub kind: ErrorKind,
    /// One sentence.
    pub message: String,
    /// More lines, such as the faults of a configuration.
    #[serde(default)]
    pub details: Vec<String>,
}

impl ApiError {
    /// An error without details.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: Vec::new() }
    }

    /// A configuration with these faults, one sentence each.
    #[must_use]
    pub fn config_invalid(faults: Vec<String>) -> Self {
        let message =
            format!("the configuration has {} fault(s); nothing was changed", faults.len());
        Self::new(ErrorKind::ConfigInvalid, message).with_details(faults)
    }

    /// The same with details.
    #[must_use]
    pub fn with_details(mut self, details: Vec<String>) -> Self {
        self.details = details;
        self
    }
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request.
    BadRequest,
    /// The line is longer than [`REQUEST_BYTES_MAX`].
    TooLong,
    /// The other side speaks another version.
    Version,
    /// The caller may not use the socket.
    Permission,
    /// Too many clients, or the daemon did not answer in time.
    Busy,
    /// No such service.
    UnknownService,
    /// The configuration is wrong; nothing was changed.
    ConfigInvalid,
    /// The request is right and could not be done.
    Failed,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadRequest => "bad-request",
            Self::TooLong => "too-long",
            Self::Version => "version",
            Self::Permission => "permission",
            Self::Busy => "busy",
            Self::UnknownService => "unknown-service",
            Self::ConfigInvalid => "config-invalid",
            Self::Failed => "failed",
        })
    }
}

/// Reads a request line. The version is looked at before anything else, so that a newer client
/// hears about its version and not about a key.
///
/// # Errors
/// [`ErrorKind::BadRequest`] or [`ErrorKind::Version`], with what was found.
pub fn decode_request(line: &[u8]) -> Result<Request, ApiError> {
    let bad = |what: String| ApiError::new(ErrorKind::BadRequest, what);
    let mut value: serde_json::Value =
        serde_json::from_slice(line).map_err(|e| bad(format!("the request is not JSON: {e}")))?;
    let Some(map) = value.as_object_mut() else {
        return Err(bad("the request is not a JSON object".into()));
    };
    match map.remove("version").and_then(|v| v.as_u64()) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err(wrong_version(version)),
        None => return Err(bad(format!("the request has no \"version\"; this is {VERSION}"))),
    }
    serde_json::from_value(value).map_err(|e| bad(format!("the request is not known: {e}")))
}

fn wrong_version(version: u64) -> ApiError {
    let message = format!(
        "the other side speaks version {version} of the control protocol, this side {VERSION}"
    );
    ApiError::new(ErrorKind::Version, message)
}

/// Reads a reply line.
///
/// # Errors
/// As [`decode_request`].
pub fn decode_reply(line: &[u8]) -> Result<Reply, ApiError> {
    #[derive(Deserialize)]
    struct Head {
        version: u64,
    }
    let bad = |what: String| ApiError::new(ErrorKind::BadRequest, what);
    let head: Head = serde_json::from_slice(line)
        .map_err(|e| bad(format!("the reply is not understood: {e}")))?;
    if head.version != u64::from(VERSION) {
        return Err(wrong_version(head.version));
    }
    let line: ReplyLine = serde_json::from_slice(line)
        .map_err(|e| bad(format!("the reply is not understood: {e}")))?;
    Ok(line.reply)
}

/// A request as a line.
#[must_use]
pub fn encode_request(request: &Request) -> Vec<u8> {
    encode(&RequestLine { version: VERSION, request: request.clone() })
}

/// A reply as a line; one that grew beyond [`REPLY_BYTES_MAX`] becomes an error.
#[must_use]
pub fn encode_reply(reply: Reply) -> Vec<u8> {
    let line = encode(&ReplyLine { version: VERSION, reply });
    if line.len() <= REPLY_BYTES_MAX {
        return line;
    }
    let error = ApiError::new(ErrorKind::Failed, "the reply is too long for the control socket");
    encode(&ReplyLine { version: VERSION, reply: Reply::Error(error) })
}

fn encode<T: Serialize>(line: &T) -> Vec<u8> {
    // Our types have no map with other keys than strings, so this does not fail.
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP as a pure function: `/metrics`, `/healthz`, `/readyz`.
//!
//! `/healthz`: 200 while the owner task ticks. `/readyz`: 200 while every hook is attached and the
//! lease is fresh – that is, while the limits that it shows really hold. Both say why not (503).

use tidegate_model::snapshot::Snapshot;
use tidegate_units::Nanos;

/// The paths that are served.
pub const PATHS: [&str; 3] = ["/metrics", "/healthz", "/readyz"];
/// An owner task that took no snapshot for so long hangs.
pub const SNAPSHOT_AGE_MAX: Nanos = Nanos::from_secs(30);
/// A lease older than this does not hold limits any more (spec: safety rule R2).
pub const HEARTBEAT_AGE_MAX: Nanos = Nanos::from_secs(3);
const TEXT: &str = "text/plain; charset=utf-8";

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Content-Type.
    pub content_type: &'static str,
    /// Body.
    pub body: String,
}

impl Response {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: body.into() + "\n" }
    }
}

/// The response to a request, from the last snapshot (`None` before the first) and the time now.
/// A HEAD request gets the response to GET; the server in front leaves the body out.
#[must_use]
pub fn respond(method: &str, path: &str, snapshot: Option<&Snapshot>, now: Nanos) -> Response {
    let path = path.split('?').next().unwrap_or_default();
    if !PATHS.contains(&path) {
        return Response::text(404, format!("not found; there are {}", PATHS.join(", ")));
    }
    if method != "GET" && method != "HEAD" {
        return Response::text(405, "only GET and HEAD");
    }
    let Some(snapshot) = snapshot else {
        return Response::text(503, "starting: nothing was sensed yet");
    };
    match path {
        "/metrics" => metrics(snapshot, now),
        "/healthz" => verdict(health_fault(snapshot, now)),
        _ => verdict(health_fault(snapshot, now).or_else(|| ready_fault(snapshot, now))),
    }
}

/// Ages in a page are as of the scrape, not of the last tick: a daemon that hangs must show it.
fn metrics(snapshot: &Snapshot, now: Nanos) -> Response {
    let snapshot = Snapshot { now: now.max(snapshot.now), ..snapshot.clone() };
    let body = tidegate_telemetry::openmetrics(&snapshot);
    Response { status: 200, content_type: tidegate_telemetry::CONTENT_TYPE, body }
}

fn verdict(fault: Option<String>) -> Response {
    fault.map_or_else(|| Response::text(200, "ok"), |why| Response::text(503, why))
}

fn health_fault(snapshot: &Snapshot, now: Nanos) -> Option<String> {
    let age = now.since(snapshot.now);
    (age > SNAPSHOT_AGE_MAX).then(|| format!("the owner task has not ticked for {age}"))
}

fn ready_fault(snapshot: &Snapshot, now: Nanos) -> Option<String> {
    if snapshot.interfaces.is_empty() {
        return Some("no interface is attached".into());
    }
    if let Some(i) = snapshot.interfaces.iter().find(|i| i.attached.is_empty()) {
        return Some(format!("interface {} is not attached", i.name));
    }
    match snapshot.heartbeat.map(|at| now.since(at)) {
        None => Some("the lease was never renewed".into()),
        Some(age) if age > HEARTBEAT_AGE_MAX => {
            Some(format!("the lease was last renewed {age} ago: limits do not hold"))
        }
        Some(_) => None,
    }
}

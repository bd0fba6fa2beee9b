// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP as a pure function: `/metrics`, `/healthz`, `/readyz`; and [`Pages`], which makes the one
//! page that is dear once a snapshot, however often it is asked for.
//!
//! `/healthz`: 200 while the owner task ticks. `/readyz`: 200 while every hook is attached, sees the
//! connections of its services, every gateway is served, and the lease is fresh – that is, while the limits that it shows
//! really hold. Both say why not (503).

use std::ops::Deref;
use std::sync::Arc;
use tidegate_model::snapshot::{Bypassed, ServiceState, Snapshot};
use tidegate_units::Nanos;

/// The paths that are served.
pub const PATHS: [&str; 3] = ["/metrics", "/healthz", "/readyz"];
/// An owner task that took no snapshot for so long hangs.
pub const SNAPSHOT_AGE_MAX: Nanos = Nanos::from_secs(30);
/// A lease older than this does not hold limits any more (spec: safety rule R2).
pub const HEARTBEAT_AGE_MAX: Nanos = Nanos::from_secs(3);
/// For so long the metrics of one snapshot are given again: a tick, by which their ages are old.
const PAGE_AGE_MAX: Nanos = Nanos::from_millis(100);
const TEXT: &str = "text/plain; charset=utf-8";

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Content-Type.
    pub content_type: &'static str,
    /// Body; shared by all who get the same page.
    pub body: Arc<str>,
}

impl Response {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: TEXT, body: (body.into() + "\n").into() }
    }
}

/// The response to a request, from the last snapshot (`None` before the first) and the time now.
/// A HEAD request gets the response to GET; the server in front leaves the body out.
#[must_use]
pub fn respond(method: &str, path: &str, snapshot: Option<&Snapshot>, now: Nanos) -> Response {
    let metrics = |snapshot| tidegate_telemetry::openmetrics_as_of(snapshot, now).into();
    answer((method, path), snapshot, now, metrics)
}

/// [`respond`] for any number of requests: the metrics of a snapshot are encoded once, and again
/// when their ages are no longer those of the scrape: a daemon that hangs must show it.
#[derive(Debug)]
pub struct Pages {
    encode: fn(&Snapshot, Nanos) -> String,
    kept: Option<Kept>,
}

/// The metrics that were encoded last.
#[derive(Debug)]
struct Kept {
    snapshot: Arc<Snapshot>,
    at: Nanos,
    page: Arc<str>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { encode: tidegate_telemetry::openmetrics_as_of, kept: None }
    }
}

impl Pages {
    /// As [`respond`], with ages that are at most a tick old.
    pub fn respond(
        &mut self,
        method: &str,
        path: &str,
        snapshot: Option<Arc<Snapshot>>,
        now: Nanos,
    ) -> Response {
        answer((method, path), snapshot, now, |snapshot| self.metrics(snapshot, now))
    }

    fn metrics(&mut self, snapshot: Arc<Snapshot>, now: Nanos) -> Arc<str> {
        let good = |kept: &&Kept| {
            Arc::ptr_eq(&kept.snapshot, &snapshot) && now.since(kept.at) < PAGE_AGE_MAX
        };
        if let Some(kept) = self.kept.as_ref().filter(good) {
            return Arc::clone(&kept.page);
        }
        let page: Arc<str> = (self.encode)(&snapshot, now).into();
        self.kept = Some(Kept { snapshot, at: now, page: Arc::clone(&page) });
        page
    }
}

fn answer<S: Deref<Target = Snapshot>>(
    (method, path): (&str, &str),
    snapshot: Option<S>,
    now: Nanos,
    metrics: impl FnOnce(S) -> Arc<str>,
) -> Response {
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
        "/metrics" => {
            let content_type = tidegate_telemetry::CONTENT_TYPE;
            Response { status: 200, content_type, body: metrics(snapshot) }
        }
        "/healthz" => verdict(health_fault(&snapshot, now)),
        _ => verdict(health_fault(&snapshot, now).or_else(|| ready_fault(&snapshot, now))),
    }
}

fn verdict(fault: Option<String>) -> Response {
    fault.map_or_else(|| Response::text(200, "ok"), |why| Response::text(503, why))
}

fn health_fault(snapshot: &Snapshot, now: Nanos) -> Option<String> {
    let age = now.since(snapshot.now);
    (age > SNAPSHOT_AGE_MAX).then(|| format!("the owner task has not ticked for {age}"))
}

fn ready_fault(snapshot: &Snapshot, now: Nanos) -> Option<String> {
    let gateways = snapshot.gateways.as_ref().map_or(&[][..], |state| &state.gateways);
    if snapshot.interfaces.is_empty() && gateways.is_empty() {
        return Some("no interface is attached".into());
    }
    if let Some(gateway) = gateways.iter().find(|gateway| !gateway.problem.is_empty()) {
        return Some(format!("gateway {}: {}", gateway.name, gateway.problem));
    }
    if let Some(i) = snapshot.interfaces.iter().find(|i| i.attached.is_empty()) {
        return Some(format!("interface {} is not attached", i.name));
    }
    if let Some(interface) = snapshot.interfaces.iter().find(|i| !i.blind.is_empty()) {
        return Some(interface.blind.clone());
    }
    if let Some(fault) = snapshot.services.iter().find_map(past_the_hooks) {
        return Some(fault);
    }
    if let Some(service) = snapshot.services.iter().find(|service| !service.barred.is_empty()) {
        return Some(format!("service {}: {}", service.name, service.barred));
    }
    match snapshot.heartbeat.map(|at| now.since(at)) {
        None => Some("the lease was never renewed".into()),
        Some(age) if age > HEARTBEAT_AGE_MAX => {
            Some(format!("the lease was last renewed {age} ago: limits do not hold"))
        }
        Some(_) => None,
    }
}

/// Connections of a service that the hooks do not see, or see one half of.
fn past_the_hooks(service: &ServiceState) -> Option<String> {
    let (found, what) = match (&service.bypassed, &service.unreplied) {
        (Some(found), _) => (found, "saw none"),
        (None, Some(found)) => (found, "saw no reply of the server"),
        (None, None) => return None,
    };
    let Bypassed { connections, span, interface, .. } = found;
    let (name, mut by) = (&service.name, String::new());
    if !interface.is_empty() {
        by = format!("; the last client is reached by {interface}");
    }
    Some(format!(
        "service {name}: {connections} connections were accepted in the last {span} and the hooks \
         {what}{by}; `tidegate status` says what to do"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ENCODED: AtomicUsize = AtomicUsize::new(0);

    fn encode(snapshot: &Snapshot, now: Nanos) -> String {
        ENCODED.fetch_add(1, Ordering::Relaxed);
        format!("{} {now}", snapshot.version)
    }

    #[test]
    fn metrics_are_encoded_once_a_snapshot_however_many_ask() {
        let snapshot =
            |version: &str| Arc::new(Snapshot { version: version.into(), ..Snapshot::default() });
        let mut pages = Pages { encode, kept: None };
        let mut get = |path: &str, snapshot: &Arc<Snapshot>, now| {
            let body = pages.respond("GET", path, Some(Arc::clone(snapshot)), now).body;
            (body.to_string(), ENCODED.load(Ordering::Relaxed))
        };
        let (first, second) = (snapshot("a"), snapshot("b"));
        let begin = Nanos::from_secs(1);
        let just_before = begin + Nanos(PAGE_AGE_MAX.0 - 1);
        for i in 0..1000 {
            let now = if i < 500 { begin } else { just_before };
            assert_eq!(get("/metrics", &first, now), (format!("a {begin}"), 1));
        }
        assert_eq!(get("/healthz", &first, begin), ("ok\n".into(), 1), "needs no encoder");
        let (_, encoded) = get("/metrics", &second, just_before);
        assert_eq!(encoded, 2, "another snapshot");
        let late = just_before + PAGE_AGE_MAX;
        let (page, encoded) = get("/metrics", &second, late);
        assert_eq!((page, encoded), (format!("b {late}"), 3), "a daemon that hangs shows its age");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One request: what is no request is refused, then the gate is asked, then a server.

use crate::body::{Outgoing, Report, SLOW, Uploaded};
use crate::connection::{Announced, Busy, UnderWay};
use crate::counters::one;
use crate::front::{Front, Site, duration};
use crate::head::{self, Client, Fault};
use crate::pool::Failure;
use crate::queue::{Queue, Waited};
use crate::response;
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_config::ProxyQueue;
use tidegate_gate::{Answer, Ask, Joined, Waiting};
use tidegate_units::Nanos;

/// The headers of a request that routes ask for.
fn received<'a>(headers: &'a HeaderMap, asked: &'a BTreeSet<String>) -> Joined<'a> {
    let values = |name: &'a String| headers.get_all(name).iter().map(move |value| (name, value));
    let all = asked.iter().flat_map(values);
    all.map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()))).collect()
}

/// Answers one request.
pub(crate) async fn exchange(
    front: Arc<Front>,
    client: Client,
    request: Request<Incoming>,
    under_way: &mut UnderWay,
) -> Response<Outgoing> {
    let id = front.id();
    let http1 = request.version() < Version::HTTP_2;
    let (mut parts, body) = request.into_parts();
    let examined = head::examine(&parts.method, &parts.uri, parts.version, &parts.headers);
    let host = match examined {
        Ok((host, uri)) => {
            parts.uri = uri;
            host
        }
        Err((status, why)) => {
            one(&front.counters.malformed);
            let response = response::fault(status, why, id);
            return if http1 { response::closing(response) } else { response };
        }
    };
    let patience = duration(front.site().clients.body_timeout);
    let mut body = Uploaded::new(body, Arc::clone(&front), patience);
    // Who asks whether to send a body is told so once the gate has passed the request.
    let asks = parts.headers.contains_key(header::EXPECT);
    if !asks && let Err(fault) = begins(&mut body, under_way.busy()).await {
        return by_client(&front, fault, id, under_way);
    }
    let site = front.site();
    let answer = match ask(&front, &site, (&parts, client), (&host, &id)) {
        Ok(answer) => answer,
        Err(waiting) => wait(&front, &site.queue.unwrap_or_default(), &waiting).await,
    };
    // What waited was no work of the server: its time counts in the queue.
    let started = front.now();
    if let Some(refusal) = &answer.refusal {
        return response::refused(refusal, id);
    }
    let mut report = Report::new(Arc::clone(&front), answer.token, started);
    report.uploads(body.upload());
    if asks && let Err(fault) = is_sent(&front, &mut body, under_way.busy()).await {
        report.unserved(fault.0.as_u16());
        return by_client(&front, fault, id, under_way);
    }
    let passed = Passed { front, report, source: client.source() };
    let Parts { method, uri, mut headers, .. } = parts;
    head::to_server(&mut headers, client, host, &id);
    let mut request = Request::new(body);
    (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
    passed.on(request, id, under_way).await
}

/// Waits until a part of a body is here that was announced: before, neither the gate nor a server has anything to do.
async fn begins(body: &mut Uploaded, busy: &Busy) -> Result<(), Fault> {
    let _announced = Announced::new(busy);
    body.begins().await
}

/// The same, of a client that is told to send. The gate has its request in flight: of too many, the oldest ends.
async fn is_sent(front: &Front, body: &mut Uploaded, busy: &Busy) -> Result<(), Fault> {
    let place = front.expected.enter(front.site().pool.connections());
    tokio::select! {
        begun = begins(body, busy) => begun,
        () = place.ends() => Err(SLOW),
    }
}

/// The response to what a client did instead of sending its body.
fn by_client(
    front: &Front,
    (status, why): Fault,
    id: HeaderValue,
    under_way: &mut UnderWay,
) -> Response<Outgoing> {
    if status != SLOW.0 {
        under_way.breaks_off();
    }
    one(&front.counters.malformed);
    response::closing(response::fault(status, why, id))
}

fn ask(
    front: &Front,
    site: &Site,
    (parts, client): (&Parts, Client),
    (host, id): (&HeaderValue, &HeaderValue),
) -> Result<Answer, Box<Waiting>> {
    let headers = received(&parts.headers, &site.asked);
    let ask = Ask {
        gateway: &site.name,
        method: parts.method.as_str(),
        host: host.to_str().ok().filter(|host| !host.is_empty()),
        target: parts.uri.path_and_query().map_or("/", |target| target.as_str()),
        client: Some(client.address.to_canonical()),
        request_id: id.to_str().ok(),
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &headers,
    };
    match site.queue {
        Some(_) => front.gate.ask_or_wait(front.now(), &ask),
        None => Ok(front.gate.ask(front.now(), &ask)),
    }
}

/// A request in the queue; refused there, should its client leave.
struct Place<'a> {
    front: &'a Front,
    waiting: &'a Waiting,
    settled: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.front.gate.turn_away(self.front.now(), self.waiting);
        }
    }
}

/// Waits until it is its turn.
async fn wait(front: &Arc<Front>, queue: &ProxyQueue, waiting: &Waiting) -> Answer {
    let mut place = Place { front, waiting, settled: false };
    let waited = Waited::new(front);
    let turn = Queue::wait(front, waiting, queue).await;
    waited.end(turn);
    place.settled = true;
    match turn {
        Ok(()) => front.gate.enter(front.now(), waiting),
        Err(_) => front.gate.turn_away(front.now(), waiting),
    }
}

/// A request that the gate has passed.
struct Passed {
    front: Arc<Front>,
    report: Report,
    source: IpAddr,
}

impl Passed {
    /// On to a server. Dropped meanwhile, the client has left, and the report says so.
    async fn on(
        mut self,
        mut request: Request<Uploaded>,
        id: HeaderValue,
        under_way: &mut UnderWay,
    ) -> Response<Outgoing> {
        let upload = request.body().upload();
        if request.body().is_end_stream() {
            let method = request.method().clone();
            head::without_body(&method, request.headers_mut());
        }
        self.report.sends();
        // What holds now: a reload may have come while the body was only announced.
        let pool = Arc::clone(&self.front.site().pool);
        match pool.send(self.source, request).await {
            Ok((response, lease)) => {
                self.report.begin();
                let (mut parts, body) = response.into_parts();
                let status = parts.status;
                head::to_client(&mut parts.headers, id);
                // A server that offers to upgrade by itself has nobody to do it with.
                let answered = (self.report, lease);
                let patience = pool.patience();
                let body = Outgoing::passed(body, status.as_u16(), answered, patience);
                let mut response = Response::new(body);
                (*response.status_mut(), *response.headers_mut()) = (status, parts.headers);
                response
            }
            Err(failure) => match upload.fault() {
                // What the client did is no response of the service.
                Some(fault) => by_client(&self.front, fault, id, under_way),
                None => self.fails(failure, id),
            },
        }
    }

    fn fails(mut self, failure: Failure, id: HeaderValue) -> Response<Outgoing> {
        let counters = &self.front.counters;
        let (counter, status, why) = match failure {
            Failure::Unreachable => {
                (&counters.unreachable, StatusCode::BAD_GATEWAY, "no server can be reached")
            }
            Failure::Broken => {
                (&counters.broken, StatusCode::BAD_GATEWAY, "the server gave no response")
            }
            Failure::TimedOut => {
                (&counters.timed_out, StatusCode::GATEWAY_TIMEOUT, "the server took too long")
            }
            Failure::Full => {
                (&counters.full, StatusCode::SERVICE_UNAVAILABLE, "all connections are in use")
            }
        };
        one(counter);
        // What never reached the service is no response of it.
        match failure {
            Failure::Unreachable | Failure::Full => self.report.unserved(status.as_u16()),
            Failure::Broken | Failure::TimedOut => self.report.end(status.as_u16(), Nanos::ZERO),
        }
        response::fault(status, why, id)
    }
}

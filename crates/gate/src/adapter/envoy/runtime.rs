// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What share of its requests Envoy is to ask about (see [`crate::asked`]), by its runtime discovery
//! service.
//!
//! Envoy's `ext_authz` takes from its runtime for which share it is enabled, and whether a request for
//! which it is not is refused. Both are one layer here, and its name begins theirs: an Envoy with two
//! gateways has two layers. While a share is withheld the layer has a time to live of a second and is renewed
//! three times in it, so Envoy asks about everything again when tidegate is gone or hangs. Envoy
//! acknowledges each version, and only then its share counts.

use super::Talk;
use super::messages::{
    Any, DiscoveryRequest, DiscoveryResponse, Duration as Ttl, Field, Resource, Runtime, Struct,
    Value,
};
use crate::asked::{Listener, PARTS};
use prost::Message;
use prost::bytes::Bytes;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_units::Nanos;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::StreamingService;
use tonic::{Status, Streaming};

const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";
const RESOURCE: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
/// After the name of the layer, `filter_enabled` of ext_authz: the share that is asked about.
const ASKS: &str = "asks";
/// The same, `deny_at_disable` of ext_authz: whether the rest is refused.
const REFUSES: &str = "refuses";
/// How often the share is looked at: once a tick of the control loop.
const LOOK: Duration = Duration::from_millis(100);
/// A layer that withholds lives for so long, and is told again after the second.
const TTL: Ttl = Ttl { seconds: 1, nanos: 0 };
const RENEW: Nanos = Nanos::from_millis(300);
/// One that withholds nothing is told again after this: Envoy's word keeps the connection open.
const REPEAT: Nanos = Nanos::from_secs(60);
/// A share that is nearer to the last one that was told is not told: in parts of it.
const SAME: u32 = 20;
/// Responses without an acknowledgement: then Envoy does not read, and the layer runs out.
const WAITING: usize = 8;
/// Longest name of a layer.
const NAME_MAX: usize = 128;

/// The call: Envoy names its layer, and is told what is in it.
pub(super) struct Layers(pub(super) Arc<Talk>);

impl StreamingService<DiscoveryRequest> for Layers {
    type Response = DiscoveryResponse;
    type ResponseStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (talk, requests) = (Arc::clone(&self.0), request.into_inner());
        let (told, responses) = mpsc::channel(WAITING);
        tokio::spawn(tell(talk, requests, told));
        Box::pin(async move { Ok(tonic::Response::new(ReceiverStream::new(responses))) })
    }
}

/// Tells until the call ends.
async fn tell(
    talk: Arc<Talk>,
    mut requests: Streaming<DiscoveryRequest>,
    told: mpsc::Sender<Result<DiscoveryResponse, Status>>,
) {
    let Ok(Some(first)) = requests.message().await else { return };
    let named = first.names.into_iter().next().filter(|name| name.len() <= NAME_MAX);
    let Some(layer) = named else { return talk.misunderstood() };
    let Some(listener) = talk.context.listen() else { return };
    let mut told =
        Told { layer, listener, told, versions: VecDeque::new(), version: 0, last: None };
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            message = requests.message() => match message {
                // Another version of Envoy, which does not take what is told.
                Ok(Some(request)) if request.error.is_some() => return talk.misunderstood(),
                Ok(Some(request)) => {
                    talk.heard();
                    told.taken(&request.nonce);
                }
                Ok(None) | Err(_) => return,
            },
            _ = looks.tick() => {
                let now = talk.context.now();
                let parts = told.listener.parts(now);
                if told.is_due(now, parts) && !told.tell(now, parts) {
                    return;
                }
            }
            () = talk.closed() => {
                told.tell(talk.context.now(), PARTS);
                return;
            }
        }
    }
}

/// What one Envoy was told.
struct Told {
    layer: String,
    listener: Listener,
    told: mpsc::Sender<Result<DiscoveryResponse, Status>>,
    /// Versions that it has not acknowledged, and their shares.
    versions: VecDeque<(u64, u32)>,
    version: u64,
    /// The last share, and when it was told.
    last: Option<(u32, Nanos)>,
}

impl Told {
    fn is_due(&self, now: Nanos, parts: u32) -> bool {
        let Some((last, at)) = self.last else { return true };
        let renew = if parts < PARTS { RENEW } else { REPEAT };
        !is_same(last, parts) || now.since(at) >= renew
    }

    /// False: nobody reads.
    fn tell(&mut self, now: Nanos, parts: u32) -> bool {
        self.version += 1;
        if self.versions.len() == WAITING {
            self.versions.pop_front();
        }
        self.versions.push_back((self.version, parts));
        self.last = Some((parts, now));
        self.told.try_send(Ok(response(&self.layer, parts, self.version))).is_ok()
    }

    /// It has this version now.
    fn taken(&mut self, nonce: &str) {
        let Some(version) = nonce.parse().ok() else { return };
        while let Some((of, parts)) = self.versions.front().copied() {
            if of > version {
                break;
            }
            self.versions.pop_front();
            if of == version {
                self.listener.has(parts);
            }
        }
    }
}

const fn is_same(last: u32, parts: u32) -> bool {
    last == parts || (parts < PARTS && last < PARTS && last.abs_diff(parts) <= last / SAME)
}

/// The layer of this name, in which so many of [`PARTS`] are asked about.
fn response(layer: &str, parts: u32, version: u64) -> DiscoveryResponse {
    let number = |number: f64| Value { number: Some(number), ..Value::default() };
    let text = |text: &'static str| Value {
        text: Bytes::from_static(text.as_bytes()),
        ..Value::default()
    };
    let share = Struct::values([
        ("numerator", number(f64::from(parts))),
        // `envoy.type.v3.FractionalPercent`: of PARTS.
        ("denominator", text("TEN_THOUSAND")),
    ]);
    let field = |name: &str, value: Value| Field {
        key: Bytes::from(format!("{layer}.{name}")),
        value: Some(value),
    };
    let fields = vec![
        field(ASKS, Value { fields: Some(share), ..Value::default() }),
        field(REFUSES, Value { is: Some(parts < PARTS), ..Value::default() }),
    ];
    let runtime = Runtime { name: layer.to_owned(), layer: Some(Struct { fields }) };
    let version = version.to_string();
    let resource = Resource {
        version: version.clone(),
        resource: Some(any(RUNTIME, &runtime)),
        name: layer.to_owned(),
        ttl: (parts < PARTS).then_some(TTL),
    };
    DiscoveryResponse {
        nonce: version.clone(),
        version,
        resources: vec![any(RESOURCE, &resource)],
        type_url: RUNTIME.to_owned(),
    }
}

fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: Bytes::from(message.encode_to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what withholds runs out, and small changes are not worth a message.
    #[test]
    fn a_layer_that_withholds_runs_out() {
        let read = |parts| {
            let response = response("tidegate", parts, 3);
            assert_eq!((response.type_url.as_str(), response.nonce.as_str()), (RUNTIME, "3"));
            let resource = Resource::decode(response.resources[0].value.clone()).unwrap();
            let runtime = Runtime::decode(resource.resource.unwrap().value).unwrap();
            assert_eq!((runtime.name.as_str(), resource.name.as_str()), ("tidegate", "tidegate"));
            let fields = runtime.layer.unwrap().fields;
            let value = |name: &str| {
                fields
                    .iter()
                    .find(|f| f.key == format!("tidegate.{name}").as_bytes())
                    .and_then(|f| f.value.clone())
            };
            let share = value(ASKS).and_then(|value| value.fields).unwrap();
            let number = share.fields[0].value.as_ref().and_then(|value| value.number);
            (number, value(REFUSES).and_then(|value| value.is), resource.ttl)
        };
        assert_eq!(read(1_500), (Some(1_500.0), Some(true), Some(TTL)));
        assert_eq!(read(PARTS), (Some(f64::from(PARTS)), Some(false), None));
        assert!(is_same(1_500, 1_570) && !is_same(1_500, 1_600));
        assert!(!is_same(PARTS, PARTS - 1) && is_same(PARTS, PARTS), "the end is told at once");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What Envoy says and is told: the fields that are used, with the numbers of Envoy's API v3. All
//! others are skipped.
//!
//! Text is bytes here. A client may send headers that are no UTF-8, and a message that is refused as a
//! whole because of one would let its request pass. A map is a list of keys and values, as on the wire.

use prost::Message;
use prost::bytes::Bytes;
use std::borrow::Cow;

/// `envoy.service.auth.v3.CheckRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

/// `envoy.service.auth.v3.AttributeContext`
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<AttributedRequest>,
}

/// `envoy.service.auth.v3.AttributeContext.Peer`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<Address>,
}

/// `envoy.config.core.v3.Address`: others are no IP address.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Address {
    #[prost(message, optional, tag = "1")]
    pub(super) socket: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) address: Bytes,
}

/// `envoy.service.auth.v3.AttributeContext.Request`
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributedRequest {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequest>,
}

/// `envoy.service.auth.v3.AttributeContext.HttpRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) method: Bytes,
    /// Headers of one name joined; without `encode_raw_headers`.
    #[prost(message, repeated, tag = "3")]
    pub(super) headers: Vec<Pair>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) path: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) host: Bytes,
    /// The headers one by one; with `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub(super) header_map: Option<HeaderMap>,
}

/// An entry of a map, or of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// `envoy.config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<HeaderValue>,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) raw_value: Bytes,
}

/// `envoy.service.auth.v3.CheckResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied: Option<DeniedHttpResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) ok: Option<OkHttpResponse>,
    #[prost(message, optional, tag = "4")]
    pub(super) dynamic_metadata: Option<Struct>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// `envoy.service.auth.v3.DeniedHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

/// `envoy.type.v3.HttpStatus`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// `envoy.config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderValue>,
}

/// `envoy.service.auth.v3.OkHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Struct {
    #[prost(message, repeated, tag = "1")]
    pub(super) fields: Vec<Field>,
}

/// An entry of `google.protobuf.Struct.fields`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Field {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<Value>,
}

/// `google.protobuf.Value`: one of these.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(double, optional, tag = "2")]
    pub(super) number: Option<f64>,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) text: Bytes,
    #[prost(bool, optional, tag = "4")]
    pub(super) is: Option<bool>,
    #[prost(message, optional, tag = "5")]
    pub(super) fields: Option<Struct>,
}

/// `envoy.service.discovery.v3.DiscoveryRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryRequest {
    #[prost(string, repeated, tag = "3")]
    pub(super) names: Vec<String>,
    /// Of the response that it has read.
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
    /// Why it does not take what that says.
    #[prost(message, optional, tag = "6")]
    pub(super) error: Option<Status>,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Any {
    #[prost(string, tag = "1")]
    pub(super) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// `envoy.service.discovery.v3.Resource`: one that Envoy forgets after a time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    #[prost(message, optional, tag = "2")]
    pub(super) resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(message, optional, tag = "6")]
    pub(super) ttl: Option<Duration>,
}

/// `envoy.service.runtime.v3.Runtime`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Runtime {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) layer: Option<Struct>,
}

/// `envoy.service.accesslog.v3.StreamAccessLogsMessage`
#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamAccessLogsMessage {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpAccessLogEntries>,
}

/// `envoy.service.accesslog.v3.StreamAccessLogsMessage.HTTPAccessLogEntries`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpAccessLogEntries {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<HttpAccessLogEntry>,
}

/// `envoy.service.accesslog.v3.StreamAccessLogsResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamAccessLogsResponse {}

/// `envoy.data.accesslog.v3.HTTPAccessLogEntry`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpAccessLogEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) common: Option<AccessLogCommon>,
    #[prost(message, optional, tag = "4")]
    pub(super) response: Option<HttpResponseProperties>,
}

/// `envoy.data.accesslog.v3.AccessLogCommon`. Times count from the first byte of the request.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AccessLogCommon {
    #[prost(message, optional, tag = "7")]
    pub(super) first_upstream_tx: Option<Duration>,
    #[prost(message, optional, tag = "8")]
    pub(super) last_upstream_tx: Option<Duration>,
    #[prost(message, optional, tag = "9")]
    pub(super) first_upstream_rx: Option<Duration>,
    #[prost(message, optional, tag = "10")]
    pub(super) last_upstream_rx: Option<Duration>,
    #[prost(message, optional, tag = "12")]
    pub(super) last_downstream_tx: Option<Duration>,
    #[prost(message, optional, tag = "16")]
    pub(super) flags: Option<ResponseFlags>,
    #[prost(message, optional, tag = "17")]
    pub(super) metadata: Option<Metadata>,
    #[prost(message, optional, tag = "23")]
    pub(super) duration: Option<Duration>,
    /// The request has not ended.
    #[prost(bool, tag = "27")]
    pub(super) intermediate: bool,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Duration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// `envoy.data.accesslog.v3.ResponseFlags`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ResponseFlags {
    #[prost(bool, tag = "5")]
    pub(super) upstream_remote_reset: bool,
    #[prost(bool, tag = "7")]
    pub(super) upstream_connection_termination: bool,
    #[prost(bool, tag = "24")]
    pub(super) upstream_protocol_error: bool,
}

/// `envoy.config.core.v3.Metadata`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, repeated, tag = "1")]
    pub(super) by_filter: Vec<FilterMetadata>,
}

/// An entry of `envoy.config.core.v3.Metadata.filter_metadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FilterMetadata {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) filter: Bytes,
    #[prost(message, optional, tag = "2")]
    pub(super) values: Option<Struct>,
}

/// `envoy.data.accesslog.v3.HTTPResponseProperties`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpResponseProperties {
    #[prost(message, optional, tag = "1")]
    pub(super) code: Option<UInt32>,
}

/// `google.protobuf.UInt32Value`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct UInt32 {
    #[prost(uint32, tag = "1")]
    pub(super) value: u32,
}

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Pair>,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    /// One for each descriptor.
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers: Vec<HeaderValue>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) body: Bytes,
    #[prost(message, optional, tag = "6")]
    pub(super) dynamic_metadata: Option<Struct>,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// `grpc.health.v1.HealthCheckRequest`: of whichever service.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

impl HeaderValue {
    /// A header of a response.
    pub(super) fn of(name: &'static str, value: impl Into<String>) -> Self {
        let (key, value) = (Bytes::from_static(name.as_bytes()), Bytes::from(value.into()));
        Self { key, value, raw_value: Bytes::new() }
    }
}

impl Struct {
    /// Names and texts.
    pub(super) fn of(fields: impl Iterator<Item = (&'static str, Bytes)>) -> Self {
        Self::values(fields.map(|(key, text)| (key, Value { text, ..Value::default() })))
    }

    /// Names and values.
    pub(super) fn values(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let field = |(key, value): (&'static str, Value)| Field {
            key: Bytes::from_static(key.as_bytes()),
            value: Some(value),
        };
        Self { fields: fields.into_iter().map(field).collect() }
    }

    /// The text of a field.
    pub(super) fn text(&self, name: &str) -> Option<&[u8]> {
        let field = self.fields.iter().find(|field| field.key == name.as_bytes())?;
        field.value.as_ref().map(|value| value.text.as_ref())
    }
}

impl Pair {
    /// The value, as text.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.value)
    }
}

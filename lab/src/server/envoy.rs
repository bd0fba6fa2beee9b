// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Envoy's configuration, with the filters that find their limit by themselves.

use super::tls::Certificate;
use serde_json::{Value, json};
use std::path::Path;

/// Envoy's own default of 1,024 would limit in a filter's place.
const LIMIT: u32 = 100_000;

/// What is in front of the router. The values are those of Envoy's documentation of each filter, its
/// example configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Nothing.
    None,
    /// `envoy.filters.http.adaptive_concurrency`.
    AdaptiveConcurrency,
    /// `envoy.filters.http.admission_control`.
    AdmissionControl,
}

/// What an Envoy is to do.
#[derive(Debug)]
pub(crate) struct Config<'a> {
    /// The administration socket.
    pub(crate) admin: &'a Path,
    /// Port of the server behind it.
    pub(crate) behind: u16,
    /// Its own port.
    pub(crate) port: u16,
    /// With TLS 1.3, HTTP/2 and HTTP/1.1.
    pub(crate) tls: Option<&'a Certificate>,
    /// The filter.
    pub(crate) filter: Filter,
    /// When a response is late, as Envoy writes durations.
    pub(crate) timeout: &'a str,
}

fn typed(name: &str) -> String {
    format!("type.googleapis.com/envoy.extensions.{name}")
}

impl Filter {
    fn json(self) -> Option<Value> {
        let (name, config) = match self {
            Self::None => return None,
            Self::AdaptiveConcurrency => ("adaptive_concurrency", adaptive_concurrency()),
            Self::AdmissionControl => ("admission_control", admission_control()),
        };
        Some(json!({"name": format!("envoy.filters.http.{name}"), "typed_config": config}))
    }
}

fn adaptive_concurrency() -> Value {
    json!({
        "@type": typed("filters.http.adaptive_concurrency.v3.AdaptiveConcurrency"),
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {
                "jitter": {"value": 10}, "interval": "60s", "request_count": 50
            }
        },
        "enabled": {"default_value": true, "runtime_key": "adaptive_concurrency.enabled"}
    })
}

fn admission_control() -> Value {
    let key = |name: &str| format!("admission_control.{name}");
    json!({
        "@type": typed("filters.http.admission_control.v3.AdmissionControl"),
        "enabled": {"default_value": true, "runtime_key": key("enabled")},
        "sampling_window": "120s",
        "sr_threshold": {"default_value": {"value": 95.0}, "runtime_key": key("sr_threshold")},
        "aggression": {"default_value": 1.5, "runtime_key": key("aggression")},
        "success_criteria": {
            "http_criteria": {"http_success_status": [
                {"start": 100, "end": 400}, {"start": 404, "end": 404}
            ]},
            "grpc_criteria": {"grpc_success_status": [0, 1]}
        }
    })
}

impl Config<'_> {
    pub(crate) fn json(&self) -> Value {
        let router = json!({"name": "envoy.filters.http.router",
            "typed_config": {"@type": typed("filters.http.router.v3.Router")}});
        let filters: Vec<Value> = self.filter.json().into_iter().chain([router]).collect();
        let manager = json!({
            "@type": typed("filters.network.http_connection_manager.v3.HttpConnectionManager"),
            "stat_prefix": "in",
            "route_config": {"virtual_hosts": [{
                "name": "all", "domains": ["*"],
                "routes": [{"match": {"prefix": "/"},
                            "route": {"cluster": "out", "timeout": self.timeout}}]
            }]},
            "http_filters": filters
        });
        let mut chain = json!({"filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]});
        if let Some(tls) = self.tls {
            chain["transport_socket"] = secured(tls);
        }
        json!({
            "admin": admin(self.admin),
            "static_resources": {
                // As our example says: handshakes of a crowd take turns with what is in flight.
                "listeners": [{"name": "in", "address": socket("::", self.port),
                               "max_connections_to_accept_per_socket_event": 1,
                               "filter_chains": [chain]}],
                "clusters": [{"name": "out", "type": "STATIC", "connect_timeout": "5s",
                    "circuit_breakers": {"thresholds": [{"max_connections": LIMIT,
                        "max_pending_requests": LIMIT, "max_requests": LIMIT}]},
                    "load_assignment": {"cluster_name": "out", "endpoints": [{"lb_endpoints": [{
                        "endpoint": {"address": socket("127.0.0.1", self.behind)}}]}]}}]
            }
        })
    }
}

/// Its administration at a socket of this path.
pub(crate) fn admin(path: &Path) -> Value {
    json!({"address": {"pipe": {"path": path}}})
}

fn socket(address: &str, port: u16) -> Value {
    json!({"socket_address":
        {"address": address, "port_value": port, "ipv4_compat": address == "::"}})
}

/// A listener's TLS 1.3.
pub(crate) fn secured(files: &Certificate) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": {
        "@type": typed("transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
            "tls_certificates": [{
                "certificate_chain": {"filename": files.certificate},
                "private_key": {"filename": files.key}}]
        }
    }})
}

/// The words that start it.
pub(crate) fn command(program: &Path, config: &Path, threads: usize) -> Vec<String> {
    let words =
        ["-c", &config.to_string_lossy(), "--concurrency", &threads.to_string()].map(str::to_owned);
    let quiet = ["--disable-hot-restart", "--log-level", "warning"].map(str::to_owned);
    let program = program.to_string_lossy().into_owned();
    std::iter::once(program).chain(words).chain(quiet).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_its_filter_both_ports_and_its_certificate() {
        let files = Certificate { certificate: "/x/cert".into(), key: "/x/key".into() };
        let mut config = Config {
            admin: Path::new("/x/admin"),
            behind: 8080,
            port: 80,
            tls: None,
            filter: Filter::AdaptiveConcurrency,
            timeout: "60s",
        };
        let text = config.json().to_string();
        for word in ["AdaptiveConcurrency", "\"port_value\":8080", "\"port_value\":80}", "/x/admin"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(!text.contains("transport_socket"), "{text}");
        config.tls = Some(&files);
        config.filter = Filter::AdmissionControl;
        let text = config.json().to_string();
        for word in ["AdmissionControl", "/x/cert", "/x/key", "TLSv1_3"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        config.filter = Filter::None;
        let text = config.json().to_string();
        assert!(!text.contains("Adaptive") && !text.contains("Admission"), "{text}");
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each gauge is over a span: its value between two scrapes is seen by nobody.

/// How a gauge is drawn over a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverTime {
    /// By the rate of this counter.
    Sum(&'static str),
    /// By itself, for this reason.
    Itself(&'static str),
}

use OverTime::{Itself, Sum};

const AGE: &str = "an age: it tells itself since when";
const EVENT: &str = "each change is an event of `tidegate history`";
const EVENTS: &str = "changes are events of `tidegate history`, or are added up there";
const UNHEARD: &str =
    "a failure that lasts is an event of `tidegate history`, one of a kind in ten minutes";
const MINUTE: &str = "over a minute: no scrape misses what came";
const MOMENT: &str = "a moment: it stays until the next";
const QUANTILE: &str =
    "it is of the last five seconds, and cannot be added up; exchanges and bytes are counters";
const NUMBER: &str = "a number that only grows";
const SETTING: &str = "a setting";

/// Every gauge, in the order of the schema, by its full name without `tidegate_`.
pub const OVER_TIME: &[(&str, OverTime)] = &[
    ("daemon_build_info", Itself(SETTING)),
    ("daemon_uptime_seconds", Itself(AGE)),
    ("daemon_config_generation", Itself(NUMBER)),
    ("daemon_released", Itself(EVENT)),
    ("daemon_warnings", Itself("each warning is a line of the log, and stays for a while")),
    ("dataplane_limits_generation", Itself(NUMBER)),
    ("dataplane_heartbeat_age_seconds", Itself(AGE)),
    ("dataplane_attached", Itself(EVENT)),
    ("service_mode", Itself(EVENT)),
    ("service_bypassed_connections", Itself(MINUTE)),
    ("service_unreplied_connections", Itself(MINUTE)),
    ("service_waiting_connections", Sum("service_waiting_connection_seconds_total")),
    ("service_open_connections", Sum("service_open_connection_seconds_total")),
    ("service_silent_connections", Sum("service_silent_connection_seconds_total")),
    ("service_slow_connections", Sum("service_slow_connection_seconds_total")),
    ("service_accept_queue_connections", Sum("service_accept_queue_connection_seconds_total")),
    ("service_accept_queue_limit_connections", Itself(SETTING)),
    ("service_interface_queue_packets", Sum("service_interface_queue_packet_seconds_total")),
    ("service_interface_queue_limit_packets", Itself(SETTING)),
    ("service_cpu_ratio", Sum("service_cpu_share_seconds_total")),
    ("service_busiest_thread_ratio", Sum("service_busiest_thread_share_seconds_total")),
    ("service_pressure_ratio", Sum("service_pressure_seconds_total")),
    ("service_signal_age_seconds", Sum("service_level_known_seconds_total")),
    ("service_alarmed", Sum("service_alarmed_seconds_total")),
    ("service_shedding", Sum("service_shedding_seconds_total")),
    ("service_limit_rate_per_second", Sum("service_limit_allowed_syns_total")),
    ("service_limit_burst_syns", Sum("service_limit_burst_syn_seconds_total")),
    ("service_limit_waiting_connections", Sum("service_limit_waiting_connection_seconds_total")),
    ("service_shedding_began_timestamp_seconds", Itself(MOMENT)),
    ("service_shedding_ended_timestamp_seconds", Itself(MOMENT)),
    ("requests_mode", Itself(EVENT)),
    ("requests_rule_in_flight_requests", Sum("requests_rule_in_flight_request_seconds_total")),
    ("requests_rule_signal_age_seconds", Itself(AGE)),
    ("requests_bucket_limit_rate_per_second", Sum("requests_bucket_limit_allowed_requests_total")),
    (
        "requests_bucket_limit_burst_requests",
        Sum("requests_bucket_limit_burst_request_seconds_total"),
    ),
    ("requests_bucket_shedding", Sum("requests_bucket_shedding_seconds_total")),
    ("requests_bucket_in_flight_requests", Sum("requests_bucket_in_flight_request_seconds_total")),
    ("requests_bucket_signal_age_seconds", Sum("requests_bucket_level_known_seconds_total")),
    ("requests_defer_accept", Itself(SETTING)),
    ("requests_followed_connections", Sum("requests_followed_connection_seconds_total")),
    ("requests_followed_limit_connections", Itself(SETTING)),
    ("link_congested", Sum("link_congested_seconds_total")),
    ("link_sign", Sum("link_sign_seconds_total")),
    ("link_sent_bytes_per_second", Sum("link_sent_bytes_total")),
    ("link_capacity_bytes_per_second", Itself(SETTING)),
    ("peer_up", Itself("each session that begins raises `peer_epoch`")),
    ("peer_report_age_seconds", Sum("peer_reports_messages_total")),
    ("peer_epoch", Itself(NUMBER)),
    ("peer_sequence", Itself(NUMBER)),
    ("remote_limit_rate_per_second", Sum("remote_limit_allowed_syns_total")),
    ("remote_limit_validity_seconds", Sum("remote_limit_in_force_seconds_total")),
    ("remote_limit_kind", Itself("how long there is a limit is a counter")),
    ("request_limit_rate_per_second", Sum("request_limit_allowed_requests_total")),
    ("datagram_limit_rate_per_second", Sum("datagram_limit_allowed_datagrams_total")),
    ("bus_up", Itself("each connection that comes up raises `bus_connections_total`")),
    ("bus_state_seconds", Itself(AGE)),
    ("gateway_served", Itself("what keeps a gateway from it is a warning, and a line of the log")),
    ("proxy_connections", Sum("proxy_connection_seconds_total")),
    ("proxy_queue_requests", Sum("proxy_queue_request_seconds_total")),
    (
        "flowspec_speaker_up",
        Itself("what keeps it from running is a warning, and a line of the log"),
    ),
    ("flowspec_session_up", Itself("what it does is seen by the routes: each change is an event")),
    ("flowspec_routes", Itself(EVENT)),
    ("flowspec_route_rate_per_second", Itself(EVENT)),
    ("flowspec_imported_rules", Itself(EVENTS)),
    ("flowspec_import_heard", Itself(UNHEARD)),
    ("router_connections", Itself("what found no room is a counter")),
    ("router_destinations", Itself(NUMBER)),
    ("router_exchange_seconds", Itself(QUANTILE)),
    ("router_fastest_rate_bytes_per_second", Itself(QUANTILE)),
    ("router_flash_crowd", Sum("router_flash_crowd_seconds_total")),
    (
        "router_hot_spot_share_ratio",
        Itself("it is of the last seconds already, with counts that fade"),
    ),
    ("router_limit_rate_per_second", Sum("router_limit_allowed_connections_total")),
    (
        "router_limit_share_ratio",
        Itself("the rate of the limit is counted: it has the share in it"),
    ),
    ("router_shared_report_age_seconds", Itself(AGE)),
];

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One described schema over [`Snapshot`](tidegate_model::snapshot::Snapshot) becomes OpenMetrics
//! text, JSON, tables and docs/metrics.md.
//!
//! A metric is one row of [`metrics`]: name, unit, help, labels, and where its value stands. A
//! column of a table is one row of [`COLUMNS`]. Nothing else names a metric.

mod bus;
mod export;
mod flowspec;
mod in_band;
mod peers;
mod requests;
mod router;
mod schema;
mod service;
mod table;

pub use bus::bus_lines;
pub use export::{CONTENT_TYPE, Point, openmetrics, openmetrics_as_of, points, reference};
pub use flowspec::flowspec_lines;
pub use in_band::in_band_lines;
pub use peers::{links_table, peers_table, remote_table};
pub use requests::{BucketFigures, bucket_figures, buckets_table, rules_table, unevaluated_lines};
pub use router::router_lines;
pub use schema::{Kind, LABEL_BYTES_MAX, Metric, Number, OVER_TIME, OverTime, metrics};
pub use service::{Figures, figures};
pub use table::{COLUMNS, Column, fitting, render_rows, services_table};

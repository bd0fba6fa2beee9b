// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One described schema becomes Prometheus text, JSON and tables.

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! procfs, netlink and dataplane counters become Signals.

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arrival processes and client schedules, for the simulator and the lab.

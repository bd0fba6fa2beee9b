// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals become Limits: pure, ticked, no I/O.

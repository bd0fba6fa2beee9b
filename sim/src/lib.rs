// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time: engine, clients, servers and checkers.

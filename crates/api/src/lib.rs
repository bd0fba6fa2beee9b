// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket and the HTTP contract.

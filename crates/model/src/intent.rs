// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the operator wants.

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The admission policies: Rust binding of the C that the kernel runs.

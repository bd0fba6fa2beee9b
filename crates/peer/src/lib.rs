// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of back-ends to a front-end.

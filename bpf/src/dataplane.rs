// SPDX-License-Identifier: Apache-2.0 OR MIT
//! placeholder
/// placeholder
#[derive(Debug)]
pub struct Dataplane;

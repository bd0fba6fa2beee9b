// SPDX-License-Identifier: Apache-2.0 OR MIT
//! placeholder
/// placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook { /// x
 Xdp }
/// placeholder
#[derive(Debug)]
pub struct Attached;

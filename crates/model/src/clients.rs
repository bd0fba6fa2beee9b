// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration says about one client.

use crate::Mode;
use ipnet::IpNet;

/// What one service holds of a client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientClass {
    /// Name of the service.
    pub service: String,
    /// Its mode in the configuration.
    pub mode: Mode,
    /// The class by the address.
    pub class: String,
    /// The prefix that chose the class; `None` for the default class.
    pub prefix: Option<IpNet>,
    /// Priority of the class, 0 the highest.
    pub priority: u8,
    /// Classes that a trusted DSCP could choose instead, and that DSCP.
    pub by_dscp: Vec<(String, u8)>,
    /// The exempt prefix that contains the address.
    pub exempt: Option<IpNet>,
}

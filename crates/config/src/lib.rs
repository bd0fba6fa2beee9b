// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the operator wants: one strict configuration file, and commands.
//!
//! The way of a file: bytes → tree with places ([`tree`]) → shape, checked against the JSON Schema
//! that the types themselves give ([`shape`]) → types ([`types`]) → meaning ([`check`]). The schema
//! that is published is thus the one that is enforced. Every fault is reported with its place, the
//! path of keys, what was found and what is allowed; all faults of one stage at once.

mod check;
mod clients;
mod cluster;
mod diff;
mod error;
mod file;
mod files;
mod flowspec;
mod gateways;
mod in_band;
mod name;
mod named;
mod namespace;
mod presets;
mod reference;
mod renamed;
mod requests;
mod router;
mod schema;
mod shape;
mod suggest;
mod system;
mod text;
mod throttle;
mod tree;
mod types;

pub use check::CLASS_DEFAULT;
pub use cluster::{
    BACKENDS_MAX, BUS_SERVERS_MAX, BackendConfig, BusConfig, BusServer, BusTls, ClusterConfig,
    Counts, GRANTS_MAX, GrantsConfig, PeerAddress, PeerConfig, SUBJECT_MAX, SentLimitConfig,
    SharingRouterConfig, SigningConfig, Subject, TARGETS_MAX, TargetConfig, VALIDITY_DEFAULT,
    VALIDITY_RANGE, When,
};
pub use diff::diff;
pub use error::{ConfigError, ConfigErrors, ERRORS_MAX, Place};
pub use file::{CONFIG_BYTES_MAX, LoadError, load, load_located};
pub use flowspec::{
    ExportConfig, FlowspecConfig, IMPORT_PREFIXES_MAX, ImportConfig, RouteUnit, SPEAKER_PEERS_MAX,
    SpeakerKind, SpeakerPeerConfig,
};
pub use gateways::*;
pub use in_band::{InBandConfig, OptionConfig};
pub use namespace::namespace_path;
pub use presets::Preset;
pub use reference::{bounds, reference};
pub use requests::*;
pub use router::{
    ROUTER_CONNECTIONS_RANGE, ROUTER_DESTINATIONS_MAX, ROUTER_KNOWN_RANGE, RouterAction,
    RouterClassConfig, RouterConfig, RouterLimitConfig,
};
pub use schema::schema;
pub use shape::Places;
pub use system::{Finding, SystemFault};
pub use text::{HttpAddress, parse_span};
pub use throttle::*;
pub use types::*;

use serde::{Deserialize, Serialize};
use tidegate_model::{Canary, Mode};

/// The names that a configuration may use, handed in by the binary: this crate knows no policy and no
/// controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    /// Names of the policies (policy/policies.def).
    pub policies: Vec<String>,
    /// Names of the controllers.
    pub controllers: Vec<String>,
}

impl Registry {
    /// A registry of these names.
    pub fn new<P, C>(policies: P, controllers: C) -> Self
    where
        P: IntoIterator<Item: Into<String>>,
        C: IntoIterator<Item: Into<String>>,
    {
        Self {
            policies: policies.into_iter().map(Into::into).collect(),
            controllers: controllers.into_iter().map(Into::into).collect(),
        }
    }
}

/// What the operator wants at this moment: the configuration in force and what was said since.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// The configuration in force.
    pub config: Config,
    /// The kill switch: everything passes.
    pub released: bool,
}

impl Intent {
    /// The intent of a configuration without commands.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, released: false }
    }

    /// Takes a command in; a reload brings its own configuration and keeps the kill switch.
    ///
    /// # Errors
    /// When it names a service that does not exist; then nothing changed.
    pub fn apply(&mut self, command: Command) -> Result<(), UnknownService> {
        match command {
            Command::Release { on } => self.released = on,
            Command::Mode { service, mode, canary } => {
                let known = self.config.services.iter_mut().find(|s| s.name == service);
                let Some(found) = known else {
                    return Err(UnknownService::new(&service, &self.config));
                };
                (found.mode, found.canary) = (mode, canary);
            }
            Command::Reload { config } => self.config = *config,
        }
        Ok(())
    }
}

/// What an operator may say to a running daemon.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Command {
    /// The kill switch: on lets everything pass.
    Release {
        /// Whether everything passes.
        on: bool,
    },
    /// The mode of one service, until another is set.
    Mode {
        /// Name of the service.
        service: String,
        /// Its mode from now on.
        mode: Mode,
        /// Whose refusals are executed, where they are.
        canary: Canary,
    },
    /// A configuration that was parsed and checked.
    Reload {
        /// The new configuration.
        config: Box<Config>,
    },
}

/// A command named a service that is not configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("no service is called {name:?}{}; configured: {}", suggest::phrase(.name, .known), .known.join(", "))]
pub struct UnknownService {
    /// The name that was given.
    pub name: String,
    /// The names that exist.
    pub known: Vec<String>,
}

impl UnknownService {
    /// The error for this name under this configuration.
    #[must_use]
    pub fn new(name: &str, config: &Config) -> Self {
        let known = config.services.iter().map(|s| s.name.clone()).collect();
        Self { name: name.to_owned(), known }
    }
}

/// Parses and checks a configuration.
///
/// # Errors
/// Every fault that was found, in the order of the file; see [`ConfigErrors`].
pub fn parse(text: &str, registry: &Registry) -> Result<Config, ConfigErrors> {
    parse_located(text, registry).map(|(config, _)| config)
}

/// [`parse`], and the places of all keys, for checks against the system that come later.
///
/// # Errors
/// As [`parse`].
pub fn parse_located(text: &str, registry: &Registry) -> Result<(Config, Places), ConfigErrors> {
    let tree = tree::read(text)?;
    let (json, places) = shape::check(&tree, &schema())?;
    let mut config: Config = serde_json::from_str(&json)
        .map_err(|e| ConfigError::new(Place::default(), "", e.to_string()))?;
    config.services.iter_mut().flat_map(|s| &mut s.requests).for_each(RequestsConfig::complete);
    config.exempt.complete();
    let errors = check::check(&config, &places, registry);
    if errors.is_empty() { Ok((config, places)) } else { Err(ConfigErrors::new(errors)) }
}

/// [`parse`] for bytes: what is not UTF-8, or longer than [`CONFIG_BYTES_MAX`], is an error.
///
/// # Errors
/// As [`parse`].
pub fn parse_bytes(bytes: &[u8], registry: &Registry) -> Result<Config, ConfigErrors> {
    parse(file::as_text(bytes)?, registry)
}

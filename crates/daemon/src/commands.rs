// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator may say to the owner. Each command changes everything or nothing.

use crate::cluster;
use crate::flowspec;
use crate::governed::Governed;
use crate::overrides::guarded;
use crate::owner::Owner;
use crate::sources;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use tidegate_api::explain::{ExplainedSample, Explanation, Known, explain, explain_samples};
use tidegate_api::protocol::{ApiError, ErrorKind, Reply};
use tidegate_config::{CLASS_DEFAULT, Config, LoadError, Registry, ServiceConfig, UnknownService};
use tidegate_model::record::What;
use tidegate_model::shadow::{ShadowQuestion, ShadowReport};
use tidegate_model::{Change, Mode};
use tidegate_units::Nanos;

/// So many changes of a reload are remembered.
const CHANGES_NOTED: usize = 10;

impl Owner {
    /// What is remembered, the oldest first.
    #[must_use]
    pub fn history(&self) -> Reply {
        Reply::History { now: self.record.moment(), events: self.record.events() }
    }

    /// What would have been refused in shadow: of one service, or of all that are in shadow or have been.
    ///
    /// # Errors
    /// When there is no such service, or no such class in any of them.
    pub fn shadow_report(
        &self,
        service: Option<&str>,
        since: Option<Nanos>,
        class: Option<&str>,
    ) -> Result<Reply, ApiError> {
        let config = &self.intent.config;
        let asked = config.services.iter().filter(|s| service.is_none_or(|name| s.name == name));
        if let Some(name) = service.filter(|_| asked.clone().next().is_none()) {
            return Err(unknown(&UnknownService::new(name, config)));
        }
        let has = |s: &ServiceConfig, class: &str| {
            class == CLASS_DEFAULT || s.classes.iter().any(|known| known.name == class)
        };
        if let Some(class) = class.filter(|class| !asked.clone().any(|s| has(s, class))) {
            let message = format!("no class is called {class:?} there");
            return Err(ApiError::new(ErrorKind::BadRequest, message));
        }
        let now = self.record.moment();
        let report = |of: &ServiceConfig| {
            let mode = of.requests.as_ref().map_or(of.mode, |r| r.mode_within(of.mode));
            let percent = (!of.canary.is_all()).then(|| of.canary.percent());
            let rows = self.record.shadow_rows(&of.name);
            let asked =
                ShadowQuestion { service: &of.name, mode, percent, since, class, now: &now };
            ShadowReport::of(&asked, rows.iter())
        };
        let is_shadow = |report: &ShadowReport| {
            report.mode == Mode::Shadow || report.percent.is_some() || report.since_unix_s.is_some()
        };
        let named = service.is_some();
        let services = asked.map(report).filter(|report| named || is_shadow(report)).collect();
        Ok(Reply::ShadowReport { services })
    }

    /// Reads a configuration file and follows it, but for modes that commands set.
    ///
    /// # Errors
    /// When it cannot be read, is wrong, or the dataplane does not take it: then what was followed
    /// before is followed again, and a warning says so until a reload succeeds.
    pub fn reload(
        &mut self,
        path: &Path,
        registry: &Registry,
        prepare: &dyn Fn(Config) -> Result<Config, ApiError>,
    ) -> Result<Reply, ApiError> {
        let loaded = tidegate_config::load(path, registry).map_err(not_loaded);
        let changed = loaded.and_then(prepare).and_then(|config| self.follow(config));
        let now = self.clock.now();
        let reply = match changed {
            Ok((changes, kept)) => {
                self.warnings.clear("reload");
                tracing::info!(path = %path.display(), changes = changes.len(), "reloaded");
                let said = changes.iter().take(CHANGES_NOTED).map(ToString::to_string);
                let said = said.chain(kept.iter().cloned()).collect();
                let generation = self.config_generation;
                self.record.note(What::Reload { generation, changes: said });
                Ok(Reply::Reload { generation, changes, kept })
            }
            Err(error) => {
                let text = format!("{} was refused: {}", path.display(), one_line(&error));
                self.warnings.stick(now, "reload", text);
                Err(error)
            }
        };
        self.publish(now);
        reply
    }

    /// What changes, and which modes stay against the file, in sentences.
    fn follow(&mut self, mut config: Config) -> Result<(Vec<Change>, Vec<String>), ApiError> {
        let (mut overrides, now) = (self.overrides.clone(), self.clock.now());
        let kept = overrides.keep(&mut config, now);
        let changes = tidegate_config::diff(&self.intent.config, &config);
        if let Err(error) = self.plane.examine(&config) {
            let why = format!("nothing was changed: {error}");
            return Err(ApiError::new(ErrorKind::Failed, why));
        }
        if let Err(error) = cluster::examine(&config) {
            let why = format!("nothing was changed: cluster: {error}");
            return Err(ApiError::new(ErrorKind::ConfigInvalid, why));
        }
        if let Err(why) = flowspec::examine(&config) {
            let why = format!("nothing was changed: flowspec: {why}");
            return Err(ApiError::new(ErrorKind::ConfigInvalid, why));
        }
        if let Err(error) = self.plane.apply(&config) {
            let failed = |what| ApiError::new(ErrorKind::Failed, format!("{what}: {error}"));
            return Err(match self.go_back() {
                Ok(()) => failed("nothing was changed"),
                Err(back) => failed("it is not followed")
                    .with_details(vec![format!("and going back failed: {back}")]),
            });
        }
        self.followed();
        // Before the services of the configuration so far go to those that come.
        self.requests.begin_anew((&self.intent.config, &config));
        self.keep_governors(&config);
        self.senses.reconfigure(sources::all(&config));
        self.senses.rename_interfaces(cluster::interfaces_read(&config));
        self.senses.join(&config);
        self.remote.follow(&config);
        self.record.follow(&config, now);
        // In the order of the configuration before: shown again when they are read again.
        self.sensed.clear();
        self.counts.services.clear();
        self.counted = None;
        self.warn_of_what_waits(&config);
        self.intent.config = config;
        let before = std::mem::replace(&mut self.overrides, overrides);
        // Where the file has the last word, or the service is gone, the guard's word is over.
        for service in before.guarded().filter(|name| self.overrides.of(name, now).is_none()) {
            self.warnings.clear(&guarded(service));
        }
        for said in &kept {
            tracing::warn!("{said}");
        }
        self.config_generation += 1;
        self.rewrite();
        Ok((changes, kept))
    }

    /// A service that stays, wherever in the file, keeps the controllers whose configuration
    /// stays, and what they have learned.
    fn keep_governors(&mut self, config: &Config) {
        let before = std::mem::take(&mut self.intent.config.services);
        let governors = std::mem::take(&mut self.governors);
        let named =
            before.iter().zip(governors).map(|(was, governor)| (&*was.name, (was, governor)));
        let mut old: BTreeMap<&str, _> = named.collect();
        let make = self.make;
        let kept = config.services.iter().map(|service| match old.remove(&*service.name) {
            Some((was, governor)) => governor.follow(was, service),
            None => Governed::new(service, make),
        });
        self.governors = kept.collect();
    }

    /// What a running daemon cannot change in itself.
    fn warn_of_what_waits(&mut self, config: &Config) {
        let (old, new) = (&self.intent.config.daemon, &config.daemon);
        let take_over = "changes when `tidegate run` takes over";
        // By its socket a daemon is found, and on its pins it has the lock.
        let stop = "changes when this daemon is stopped first and started then: beside it, \
            `tidegate run` is refused";
        let waits = [
            ("socket", old.socket != new.socket, stop),
            ("http", old.http != new.http, take_over),
            ("user", old.user != new.user, take_over),
            ("socket_group", old.socket_group != new.socket_group, take_over),
            ("pins", old.pins != new.pins, stop),
        ];
        let waits = waits.iter().filter(|(_, waits, _)| *waits);
        let texts: Vec<String> = waits.map(|(key, _, how)| format!("daemon.{key} {how}")).collect();
        if texts.is_empty() {
            self.warnings.clear("daemon");
        } else {
            self.warnings.stick(self.clock.now(), "daemon", texts.join("; "));
        }
    }

    /// What was decided about a request at a gateway, newest first.
    #[must_use]
    pub fn explain_request(
        &self,
        reason_text: &dyn Fn(&str) -> String,
        id: &str,
    ) -> Vec<ExplainedSample> {
        let found = self.plane.decisions(&self.intent.config, id);
        explain_samples(found, self.clock.now(), reason_text)
    }

    /// Why a client is treated as it is, as of the last snapshot.
    pub fn explain(
        &mut self,
        reason_text: &dyn Fn(&str) -> String,
        address: IpAddr,
        port: Option<u16>,
    ) -> Explanation {
        let snapshot = self.last_snapshot();
        let samples = &*self.samples.make_contiguous();
        let classes = &self.intent.config.classify(address);
        let refused = self.plane.refused_lately(&self.intent.config, address);
        let snapshot = &*snapshot;
        explain(&Known { classes, snapshot, samples, refused, reason_text }, address, port)
    }
}

pub(crate) fn unknown(error: &UnknownService) -> ApiError {
    ApiError::new(ErrorKind::UnknownService, error.to_string())
}

fn not_loaded(error: LoadError) -> ApiError {
    match error {
        LoadError::Invalid(errors) => {
            ApiError::config_invalid(errors.to_string().lines().map(str::to_owned).collect())
        }
        other => ApiError::new(ErrorKind::ConfigInvalid, other.to_string()),
    }
}

fn one_line(error: &ApiError) -> String {
    match error.details.first() {
        Some(first) => format!("{} ({first})", error.message),
        None => error.message.clone(),
    }
}

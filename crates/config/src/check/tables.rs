// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the entries of all services together fill in the dataplane's tables.

use super::Check;
use super::step;
use crate::Registry;
use crate::error::ConfigErrors;
use crate::shape::Places;
use crate::types::{Config, TABLE_RANGE};
use tidegate_model::{CLASSES_MAX, LISTENS_MAX, PREFIXES_MAX, SERVICES_MAX};

impl Config {
    /// Whether the dataplane's tables have room for all of it: what a file could not say either.
    /// Everything that [`crate::parse`] gives fits; this is for what was put together otherwise.
    ///
    /// # Errors
    /// What has no room, in the words of the check of a file.
    pub fn fits(&self) -> Result<(), ConfigErrors> {
        let (places, registry) = (Places::default(), Registry::default());
        let mut check =
            Check { config: self, places: &places, registry: &registry, errors: Vec::new() };
        check.lists();
        check.tables();
        if check.errors.is_empty() { Ok(()) } else { Err(ConfigErrors::new(check.errors)) }
    }
}

impl Check<'_> {
    /// Lists whose length the schema bounds, and texts of a 503.
    fn lists(&mut self) {
        let config = self.config;
        let mut list = |path: &str, found: usize, most: usize, what: &str| {
            if found > most {
                self.fault(path, format!("found {found} {what}; allowed: at most {most}"));
            }
        };
        list("services", config.services.len(), SERVICES_MAX, "services");
        for service in &config.services {
            let path = format!("services.{}.classes", step(&service.name));
            list(&path, service.classes.len(), CLASSES_MAX - 1, "classes");
        }
        for service in &config.services {
            if let Some(requests) = &service.requests {
                let path = format!("services.{}.requests", step(&service.name));
                self.answer_length(&path, requests);
            }
        }
    }

    /// The tables that all services share.
    pub(super) fn tables(&mut self) {
        self.request_tables();
        self.table_sizes();
        self.listen_table();
        self.prefix_table();
    }

    /// The dataplane finds a place by the bits of a hash.
    fn table_sizes(&mut self) {
        for (key, size) in self.config.tables.sizes() {
            let (min, max) = TABLE_RANGE;
            if size < min || size > max {
                self.fault(
                    &format!("tables.{key}"),
                    format!("found {size}; allowed: {min} to {max}"),
                );
            } else if !size.is_power_of_two() {
                let near = (size.next_power_of_two() / 2, size.next_power_of_two());
                self.fault(
                    &format!("tables.{key}"),
                    format!(
                        "found {size}; allowed: a power of two, such as {} or {}",
                        near.0, near.1
                    ),
                );
            }
        }
    }

    /// `*` is two listen addresses, one of each family.
    fn listen_table(&mut self) {
        let lists = self.config.services.iter().map(|service| {
            let entries = service.listen.iter().flat_map(|listen| listen.entries()).count();
            (format!("services.{}.listen", step(&service.name)), entries)
        });
        self.table(lists, LISTENS_MAX, "listen addresses in all services together (* is two)");
    }

    fn prefix_table(&mut self) {
        let config = self.config;
        let of_classes = config.services.iter().flat_map(|service| {
            let path = move |i| format!("services.{}.classes[{i}].sources", step(&service.name));
            let classes = service.classes.iter().enumerate();
            classes.map(move |(i, class)| (path(i), class.sources.len()))
        });
        let exempt = ("exempt.sources".to_owned(), config.exempt.sources.len());
        let limit = config.router.as_ref().and_then(|router| router.limit.as_ref());
        let of_router = limit.into_iter().flat_map(|limit| limit.classes.iter().enumerate());
        let of_router = of_router
            .map(|(i, class)| (format!("router.limit.classes[{i}].sources"), class.sources.len()));
        let lists = of_classes.chain([exempt]).chain(of_router);
        self.table(lists, PREFIXES_MAX, "source prefixes in all classes and exempt together");
    }

    /// The fault stands at the first list that does not fit any more; how many there are in all tells
    /// how many are too many.
    fn table(&mut self, lists: impl Iterator<Item = (String, usize)>, max: usize, what: &str) {
        let mut all = 0;
        let mut first = None;
        for (path, entries) in lists {
            all += entries;
            if all > max {
                first.get_or_insert(path);
            }
        }
        if let Some(path) = first {
            self.fault(&path, format!("found {all} {what}; allowed: at most {max}"));
        }
    }
}

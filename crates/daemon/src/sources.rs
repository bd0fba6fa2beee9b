// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the configuration to what is sensed.

use tidegate_config::{Config, ControlledResource, ServiceConfig};
use tidegate_model::sources::SourceUse;
use tidegate_sense::ServiceSource;

/// All services of a configuration.
pub(crate) fn all(config: &Config) -> Vec<ServiceSource> {
    let exempt = &config.exempt.sources;
    let source = |service: &ServiceConfig| ServiceSource {
        listen: service.target().to_vec(),
        namespace: service.namespace.clone(),
        cgroup: service.process.cgroup.clone(),
        cpus: service.process.cpus.clone(),
        needs_interface: needs_interface(service),
        exempt: exempt.clone(),
        buckets: buckets(service),
    };
    config.services.iter().map(source).collect()
}

fn buckets(service: &ServiceConfig) -> Vec<String> {
    let buckets = service.requests.iter().flat_map(|requests| &requests.buckets);
    buckets.map(|bucket| bucket.name.clone()).collect()
}

/// Whether something is decided by the queue of the interfaces.
pub(crate) fn needs_interface(service: &ServiceConfig) -> bool {
    service.requests.as_ref().is_some_and(|requests| {
        let resources = requests.buckets.iter().map(|bucket| bucket.resource);
        resources.into_iter().any(ControlledResource::is_of_interface)
    })
}

/// The sources of one service.
pub(crate) fn of_service(sources: &[SourceUse], index: usize) -> Vec<SourceUse> {
    sources.iter().filter(|source| source.service == index).cloned().collect()
}

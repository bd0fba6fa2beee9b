// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate check`.

use crate::Streams;
use crate::args::CheckArgs;
use crate::format::{Format, json, plain};
use crate::host::{Host, SystemReport};
use anyhow::Context;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tidegate_api::client::Client;
use tidegate_api::exit::Exit;
use tidegate_api::http::respond;
use tidegate_api::protocol::{Reply, Request};
use tidegate_config::{
    ClusterConfig, Config, ConfigError, ConfigErrors, ImportConfig, LoadError, Place, RouterAction,
    RouterConfig, ServiceConfig, diff, doubts, load, load_located,
};
use tidegate_model::remote::Scope;
use tidegate_model::{Change, Listen, Mode};

/// Name and version of the document.
const SCHEMA: &str = "tidegate-check/1";
/// How long the daemon that runs may take to say how it is.
const DAEMON_LIMIT: Duration = Duration::from_secs(2);
/// The status of a page that says that all is well.
const READY: u16 = 200;
/// The subject of warnings about hooks, of the daemon or of one of its services.
const HOOKS: &str = "hooks: ";

/// What was found, as a document.
#[derive(Serialize)]
struct Checked {
    file: String,
    /// Whether it would be taken.
    valid: bool,
    findings: Vec<FindingRow>,
    /// What would be attached where.
    notes: Vec<String>,
    /// Why the daemon that runs on this file's control socket is not ready, and what it says of its
    /// hooks; empty if it is, or none answers.
    not_ready: Vec<String>,
    /// What the file would change against another; `None`: none was named.
    changes: Option<Vec<Change>>,
    tables: Vec<TableRow>,
}

#[derive(Serialize)]
struct FindingRow {
    severity: &'static str,
    line: usize,
    column: usize,
    path: String,
    message: String,
}

impl FindingRow {
    fn new(error: &ConfigError, fatal: bool) -> Self {
        let severity = if fatal { "error" } else { "warning" };
        let Place { line, column } = error.place;
        let (path, message) = (error.path.clone(), error.message.clone());
        Self { severity, line, column, path, message }
    }
}

#[derive(Serialize)]
struct TableRow {
    table: &'static str,
    bytes: u64,
}

/// The file first; only a right one is held against the system. Whatever is wrong, or doubtful, goes to
/// standard error.
pub(crate) fn check(
    args: &CheckArgs,
    host: &dyn Host,
    (out, err): Streams<'_>,
) -> anyhow::Result<Exit> {
    let registry = host.registry();
    let as_json = args.output.output == Format::Json;
    let file = args.config.display().to_string();
    let (config, places) = match load_located(&args.config, &registry) {
        Ok(loaded) => loaded,
        Err(LoadError::Invalid(errors)) if as_json => return invalid(file, &errors, out),
        Err(error) => return Err(error.into()),
    };
    let mut found = if args.no_system {
        SystemReport::default()
    } else {
        host.check_system(&config, &places).context("the system could not be looked at")?
    };
    found.findings.extend(doubts(&config, &places));
    let not_ready = if args.no_system { Vec::new() } else { not_ready(&config.daemon.socket) };
    let before = match args.against.as_ref().map(|other| (other, load(other, &registry))) {
        None => None,
        Some((_, Ok(before))) => Some(before),
        // The document is about the other file then: nothing can be said of the first.
        Some((other, Err(LoadError::Invalid(errors)))) if as_json => {
            return invalid(other.display().to_string(), &errors, out);
        }
        Some((_, Err(error))) => return Err(error.into()),
    };
    let changes = before.map(|before| diff(&before, &config));
    let valid = found.findings.iter().all(|finding| !finding.fatal);
    let memory = host.table_memory(&config);
    if as_json {
        let rows = found.findings.iter().map(|f| FindingRow::new(&f.error, f.fatal));
        let tables = memory.iter().map(|&(table, bytes)| TableRow { table, bytes }).collect();
        let (findings, notes) = (rows.collect(), found.notes);
        let all = Checked { file, valid, findings, notes, not_ready, changes, tables };
        json(SCHEMA, &all, out)?;
        return Ok(if valid { Exit::Ok } else { Exit::Config });
    }
    found.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
    for finding in &found.findings {
        let kind = if finding.fatal { "error" } else { "warning" };
        writeln!(err, "{file}:{} ({kind})", finding.error)?;
    }
    for text in &not_ready {
        writeln!(err, "the daemon that runs is not ready (warning): {}", plain(text))?;
    }
    if let (Some(changes), Some(other)) = (&changes, &args.against) {
        changes.iter().try_for_each(|change| writeln!(out, "{change}"))?;
        if changes.is_empty() {
            writeln!(out, "no difference to {}", other.display())?;
        }
    }
    if !valid {
        return Ok(Exit::Config);
    }
    summary(&config, out)?;
    tables(&memory, out)?;
    writeln!(out, "{file}: configuration is valid")?;
    Ok(Exit::Ok)
}

/// Whether connections pass the hooks is only known where they are attached: what the daemon that runs
/// says of itself. One that does not answer is no fault of the file.
fn not_ready(socket: &Path) -> Vec<String> {
    let status = || Client::connect(socket, DAEMON_LIMIT)?.ask(&Request::Status {});
    let Ok(Reply::Status { snapshot }) = status() else { return Vec::new() };
    let page = respond("GET", "/readyz", Some(&*snapshot), snapshot.now);
    if page.status == READY {
        return Vec::new();
    }
    let first = page.body.trim().to_owned();
    let barred = snapshot.services.iter().filter(|service| !service.barred.is_empty());
    let barred = barred.map(|service| format!("service {}: {}", service.name, service.barred));
    let barred = Vec::from_iter(barred.filter(|text| *text != first));
    let of_hooks = snapshot.warnings.into_iter().filter(|text| text.contains(HOOKS));
    std::iter::once(first).chain(barred).chain(of_hooks).collect()
}

/// The document about a file that is no configuration.
fn invalid(file: String, errors: &ConfigErrors, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let findings = errors.errors.iter().map(|error| FindingRow::new(error, true)).collect();
    let nothing = Checked {
        file,
        valid: false,
        findings,
        notes: Vec::new(),
        not_ready: Vec::new(),
        changes: None,
        tables: Vec::new(),
    };
    json(SCHEMA, &nothing, out)?;
    Ok(Exit::Config)
}

/// What the configuration takes of the kernel's memory.
fn tables(memory: &[(&str, u64)], out: &mut dyn Write) -> anyhow::Result<()> {
    const MIB: f64 = 1_048_576.0;
    if memory.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> =
        memory.iter().map(|(key, bytes)| format!("{key} {:.1}", *bytes as f64 / MIB)).collect();
    let all = memory.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64 / MIB;
    writeln!(out, "kernel memory: {} MiB, {all:.1} in all", shown.join(", "))?;
    Ok(())
}

/// The request rules of a service: a line for them all, and one a bucket.
fn rules(service: &ServiceConfig, out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(requests) = &service.requests else { return Ok(()) };
    let mode = requests.mode_within(service.mode).name();
    if !requests.rules.is_empty() {
        writeln!(out, "  request rules: {mode}, {} rule(s)", requests.rules.len())?;
    }
    for bucket in &requests.buckets {
        let rules = requests.rules.iter().filter(|rule| rule.bucket.as_ref() == Some(&bucket.name));
        writeln!(
            out,
            "  bucket {}: {}, controller {}, {} rule(s)",
            bucket.name,
            bucket.resource.name(),
            bucket.control.name.name(),
            rules.count(),
        )?;
    }
    Ok(())
}

/// What would happen, in one line an item: an operator reads it before the first `run`.
fn summary(config: &Config, out: &mut dyn Write) -> anyhow::Result<()> {
    for link in config.links() {
        writeln!(out, "interface {}: to the servers, no hook, watched", link.name)?;
    }
    for interface in config.hooked() {
        writeln!(out, "interface {}: attach {}", interface.name, interface.attach.name())?;
    }
    for service in &config.services {
        let listen: Vec<String> = service.listen.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "service {}: {} at {}; policy {}, controller {}, {} class(es)",
            service.name,
            service.mode.name(),
            listen.join(", "),
            service.policy.name,
            service.control.name,
            service.classes.len() + 1,
        )?;
        rules(service, out)?;
    }
    if let Some(router) = &config.router {
        summary_of_router(router, (&config.services[..], config.cluster.as_ref()), out)?;
        summary_of_refusals(router, config.replies.rst_per_second, out)?;
    }
    let Some(flowspec) = &config.flowspec else { return Ok(()) };
    let exports: Vec<&str> = flowspec.export.iter().map(|export| &*export.service).collect();
    let shadow = if flowspec.shadow { " in shadow, nothing is announced" } else { "" };
    let (speaker, routers) = (flowspec.speaker.name(), flowspec.peers.len());
    if !exports.is_empty() {
        let exports = exports.join(", ");
        writeln!(
            out,
            "flowspec: {speaker} tells {routers} router(s) the limits of {exports}{shadow}"
        )?;
    }
    if let Some(ImportConfig { peer, mode, prefixes, .. }) = &flowspec.import {
        let (mode, prefixes) = (mode.name(), prefixes.len());
        writeln!(
            out,
            "flowspec: rules of the router {peer} for {prefixes} prefix(es) hold here ({mode})"
        )?;
    }
    Ok(())
}

fn summary_of_router(
    router: &RouterConfig,
    (services, cluster): (&[ServiceConfig], Option<&ClusterConfig>),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let prefixes: Vec<String> = router.destinations.iter().map(ToString::to_string).collect();
    writeln!(out, "router: measures destinations in {}", prefixes.join(", "))?;
    let others = cluster.iter().flat_map(|cluster| &cluster.routers);
    let others: Vec<&str> = others.map(|router| router.name.as_str()).collect();
    if !others.is_empty() {
        let bus = cluster.and_then(|cluster| cluster.bus.as_ref());
        let over = bus.map(|bus| format!(", over the bus ({})", bus.subject)).unwrap_or_default();
        writeln!(out, "router: shares what it measures with {}{over}", others.join(", "))?;
    }
    let Some(limit) = &router.limit else { return Ok(()) };
    let (mode, least) = (limit.mode.name(), limit.least());
    writeln!(
        out,
        "router: in a flash crowd limits new connections to what a destination completes, {least} at least ({mode}); \
         needs Linux 6.6"
    )?;
    let limits_itself = |service: &&ServiceConfig| {
        let among = |listen: &Listen| router.destinations.iter().any(|one| has(one, listen));
        service.mode == Mode::Enforce && service.listen.iter().any(among)
    };
    for service in services.iter().filter(limits_itself) {
        let name = &service.name;
        writeln!(
            out,
            "router: destinations of {name} are not limited: the service is enforced, and limits them itself"
        )?;
    }
    Ok(())
}

/// How clients are refused, where not all are dropped.
fn summary_of_refusals(
    router: &RouterConfig,
    replies: u32,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(limit) = &router.limit else { return Ok(()) };
    let silent = limit.actions().all(|(_, action)| action == RouterAction::Drop);
    if silent {
        return Ok(());
    }
    for (class, action) in limit.actions() {
        let what = action.text();
        writeln!(out, "router: beyond the limit a SYN of class {class} is {what}")?;
    }
    writeln!(
        out,
        "router: a proxy or a NAT that gets a RST may take the server for dead, for all of its clients: give it the \
         action drop"
    )?;
    if replies == 0 {
        writeln!(out, "router: replies.rst_per_second is 0: in place of a RST nothing is sent")?;
    }
    Ok(())
}

/// Whether a service that listens there may have a destination of this scope.
fn has(scope: &Scope, listen: &Listen) -> bool {
    let Scope::Destination { prefix, port } = scope else { return false };
    let address = listen.address.filter(|address| !address.is_unspecified());
    port.is_none_or(|port| port == listen.port)
        && address.is_none_or(|address| prefix.contains(&address))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;
    use tidegate_config::{Registry, parse};

    #[test]
    fn a_limit_of_a_router_says_how_it_refuses() {
        let said = |limit: &str, more: &str| {
            let text = format!(
                "interfaces: [{{name: eth0}}]\nservices:\n  web: {{mode: shadow, listen: ['*:80']}}\n\
                 router: {{destinations: ['192.0.2.0/24:80'], limit: {limit}}}\n{more}"
            );
            let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
            let (router, mut out) = (config.router.as_ref().unwrap(), Vec::new());
            summary_of_refusals(router, config.replies.rst_per_second, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said("{mode: enforce}", ""), "");
        let limit = "{mode: enforce, classes: [{name: a, sources: [192.0.2.7], action: reset}]}";
        let some = said(limit, "");
        assert!(some.contains("a SYN of class default is dropped\n"), "{some}");
        assert!(some.contains("a SYN of class a is replied to with a RST\n"), "{some}");
        assert!(some.contains("may take the server for dead") && !some.contains("is 0"), "{some}");
        let none = said("{mode: enforce, action: abacus}", "replies: {rst_per_second: 0}\n");
        assert!(none.contains("in place of a RST nothing is sent"), "{none}");
    }

    #[test]
    fn a_limit_of_a_router_says_which_services_it_leaves_alone() {
        for (service, named) in [
            ("{mode: enforce, listen: ['192.0.2.7:80']}", true),
            ("{mode: enforce, listen: ['*:80']}", true),
            ("{mode: shadow, listen: ['192.0.2.7:80']}", false),
            ("{mode: enforce, listen: ['192.0.2.7:443']}", false),
            ("{mode: enforce, listen: ['198.51.100.7:80']}", false),
        ] {
            let text = format!(
                "interfaces: [{{name: eth0}}]\nservices:\n  web: {service}\n\
                 router: {{destinations: ['192.0.2.0/24:80'], limit: {{mode: shadow}}}}\n"
            );
            let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
            let (router, mut out) = (config.router.as_ref().unwrap(), Vec::new());
            summary_of_router(router, (&config.services[..], None), &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert!(out.contains("what a destination completes, 1.0/s at least (shadow)"), "{out}");
            assert_eq!(out.contains("router: destinations of web are not"), named, "{service}");
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate check`.

use crate::args::CheckArgs;
use crate::host::Host;
use anyhow::Context;
use std::io::Write;
use tidegate_api::exit::Exit;
use tidegate_config::{Config, ServiceConfig, diff, load, load_located};

/// The file first; only a right one is held against the system.
pub(crate) fn check(
    args: &CheckArgs,
    host: &dyn Host,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let registry = host.registry();
    let (config, places) = load_located(&args.config, &registry)?;
    let file = args.config.display();
    let mut fatal = 0;
    if !args.no_system {
        let found =
            host.check_system(&config, &places).context("the system could not be looked at")?;
        found.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
        for finding in &found.findings {
            let kind = if finding.fatal { "error" } else { "warning" };
            writeln!(out, "{file}:{} ({kind})", finding.error)?;
        }
        fatal = found.findings.iter().filter(|f| f.fatal).count();
    }
    if let Some(other) = &args.against {
        let before = load(other, &registry)?;
        let changes = diff(&before, &config);
        changes.iter().try_for_each(|change| writeln!(out, "{change}"))?;
        if changes.is_empty() {
            writeln!(out, "no difference to {}", other.display())?;
        }
    }
    if fatal > 0 {
        return Ok(Exit::Config);
    }
    summary(&config, out)?;
    tables(&host.table_memory(&config), out)?;
    writeln!(out, "{file}: right")?;
    Ok(Exit::Ok)
}

/// What the tables of connections take of the kernel's memory.
fn tables(memory: &[(&str, u64)], out: &mut dyn Write) -> anyhow::Result<()> {
    const MIB: f64 = 1_048_576.0;
    if memory.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> =
        memory.iter().map(|(key, bytes)| format!("{key} {:.1}", *bytes as f64 / MIB)).collect();
    let all = memory.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64 / MIB;
    writeln!(out, "tables: {} MiB, {all:.1} in all", shown.join(", "))?;
    Ok(())
}

/// The header rules of a service: a line for them all, and one a bucket.
fn rules(service: &ServiceConfig, out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(requests) = &service.requests else { return Ok(()) };
    let mode = requests.mode_within(service.mode).name();
    if !requests.rules.is_empty() {
        writeln!(out, "  header rules: {mode}, {} rule(s)", requests.rules.len())?;
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
    for interface in &config.interfaces {
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
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that ask the daemon one thing: `explain`, `release`, `mode`, `reload`.

use crate::args::{ExplainArgs, ReleaseArgs, Remote};
use crate::format::{Format, json, plain};
use crate::host::Host;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::PathBuf;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::intent::Mode;

/// The daemon answered something else than what was asked: a bug worth a report.
pub(crate) const UNEXPECTED: &str = "the daemon answered another question than the one asked";

pub(crate) fn explain(
    remote: &Remote,
    args: &ExplainArgs,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let (address, port) = args.client;
    let reply = remote.connect()?.ask(&Request::Explain { address, port })?;
    let Reply::Explain { explanation } = reply else { bail!(UNEXPECTED) };
    match args.output.output {
        Format::Json => json(&explanation, out)?,
        Format::Table => {
            let words = explanation.words.iter();
            words.map(|w| plain(w)).try_for_each(|w| writeln!(out, "{w}"))?;
        }
    }
    Ok(Exit::Ok)
}

/// Through the daemon; where none answers, on what is pinned: the switch must work when all else
/// fails.
pub(crate) fn release(
    remote: &Remote,
    (args, host): (&ReleaseArgs, &dyn Host),
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let on = args.state == "on";
    let asked = Client::connect(&remote.socket, remote.timeout)
        .and_then(|mut client| client.ask(&Request::Release { on }));
    let state = |on| if on { "everything passes" } else { "limits are in force" };
    match asked {
        Ok(Reply::Release { on, before }) => {
            let already = if on == before { " (as before)" } else { "" };
            writeln!(out, "{}{already}", state(on))?;
        }
        Ok(_) => bail!(UNEXPECTED),
        Err(error @ (ClientError::NoDaemon { .. } | ClientError::Silent { .. })) => {
            if let Err(pinned) = host.release_pinned(&args.pins, on) {
                let path = args.pins.display();
                return Err(anyhow::Error::from(error).context(format!(
                    "neither a daemon nor what is pinned at {path} ({pinned:#})"
                )));
            }
            writeln!(out, "{}; no daemon answered, the dataplane was told itself", state(on))?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(Exit::Ok)
}

pub(crate) fn mode(
    remote: &Remote,
    (service, mode): (String, Mode),
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let reply = remote.connect()?.ask(&Request::Mode { service, mode })?;
    let Reply::Mode { service, mode, before } = reply else { bail!(UNEXPECTED) };
    let (service, mode, before) = (plain(&service), mode.name(), before.name());
    writeln!(out, "{service}: {mode} (before: {before}); until the next reload")?;
    Ok(Exit::Ok)
}

pub(crate) fn reload(
    remote: &Remote,
    file: Option<PathBuf>,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    // The daemon has its own working directory.
    let absolute = file.map(std::path::absolute).transpose();
    let path = absolute.context("the name of the file is not understood")?;
    let reply = remote.connect()?.ask(&Request::Reload { path })?;
    let Reply::Reload { generation, changes } = reply else { bail!(UNEXPECTED) };
    for change in &changes {
        writeln!(out, "{}", plain(&change.to_string()))?;
    }
    let what = if changes.is_empty() { "no difference" } else { "reloaded" };
    writeln!(out, "{what}; configuration {generation} is in force")?;
    Ok(Exit::Ok)
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that ask the daemon one thing: `explain`, `release`, `mode`, `reload`.

use crate::args::{ExplainArgs, ReleaseArgs, Remote};
use crate::format::{Format, json, plain};
use crate::host::Host;
use anyhow::{Context, anyhow, bail};
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{ErrorKind, Reply, Request};
use tidegate_model::Mode;

/// The daemon answered something else than what was asked: a bug worth a report.
pub(crate) const UNEXPECTED: &str = "the daemon answered another question than the one asked";

pub(crate) fn explain(
    remote: &Remote,
    args: &ExplainArgs,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    if let Some(id) = &args.request {
        return explain_request(remote, (id, args.output.output), out);
    }
    let Some((address, port)) = args.client else { bail!("an address or --request is missing") };
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

fn explain_request(
    remote: &Remote,
    (id, format): (&str, Format),
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let asked = Request::ExplainRequest { id: id.to_owned() };
    let Reply::ExplainRequest { samples } = remote.connect()?.ask(&asked)? else {
        bail!(UNEXPECTED)
    };
    match format {
        Format::Json => json(&samples, out)?,
        Format::Table if samples.is_empty() => {
            writeln!(out, "No decision about the request {} is remembered.", plain(id))?;
        }
        Format::Table => {
            samples.iter().map(|s| plain(&s.sentence())).try_for_each(|w| writeln!(out, "{w}"))?;
        }
    }
    Ok(Exit::Ok)
}

/// How long `release` waits for the daemon, where nothing else is said: whoever throws the switch
/// is in a hurry, and what is pinned can be told within a second in any case.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);

/// Asks the daemon; the whole of it, with connecting, takes no longer than `timeout`.
fn ask_within(remote: &Remote, timeout: Duration, request: Request) -> Result<Reply, ClientError> {
    let (sender, answer) = mpsc::channel();
    let path = remote.socket.clone();
    std::thread::spawn(move || {
        let asked = Client::connect(&path, timeout).and_then(|mut client| client.ask(&request));
        // Who gave up waiting does not want it any more.
        let _ = sender.send(asked);
    });
    answer.recv_timeout(timeout).unwrap_or_else(|_| {
        let path = remote.socket.clone();
        Err(ClientError::Silent { path, seconds: timeout.as_secs_f64() })
    })
}

/// Whether the caller may not throw the switch at all.
fn is_forbidden(error: &ClientError) -> bool {
    match error {
        ClientError::Permission { .. } => true,
        ClientError::Refused(refused) => refused.kind == ErrorKind::Permission,
        _ => false,
    }
}

/// Through the daemon; where it does not do it, for whatever reason, on what is pinned: the switch
/// must work when all else fails.
pub(crate) fn release(
    remote: &Remote,
    (args, host): (&ReleaseArgs, &dyn Host),
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let on = args.state == "on";
    let timeout = remote.timeout.unwrap_or(RELEASE_TIMEOUT);
    let asked = ask_within(remote, timeout, Request::Release { on });
    let state = |on| if on { "everything passes" } else { "limits are in force" };
    match asked {
        Ok(Reply::Release { on, before }) => {
            let already = if on == before { " (as before)" } else { "" };
            writeln!(out, "{}{already}", state(on))?;
        }
        Err(error) if is_forbidden(&error) => return Err(error.into()),
        failed => {
            if let Err(pinned) = host.release_pinned(&args.pins, on) {
                let error = failed.map_or_else(anyhow::Error::from, |_| anyhow!(UNEXPECTED));
                let path = args.pins.display();
                return Err(error.context(format!(
                    "neither a daemon nor what is pinned at {path} ({pinned:#})"
                )));
            }
            let why = match failed {
                Err(ClientError::NoDaemon { .. } | ClientError::Silent { .. }) => {
                    "no daemon answered".to_owned()
                }
                Err(error) => plain(&error.to_string()).to_string(),
                Ok(_) => UNEXPECTED.to_owned(),
            };
            writeln!(out, "{}; {why}, the dataplane was told itself", state(on))?;
        }
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
    writeln!(out, "{service}: {mode} (before: {before}); until the next reload or restart")?;
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

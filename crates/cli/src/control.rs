// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that ask the daemon one thing: `explain`, `release`, `mode`, `reload`.

use crate::args::{ExplainArgs, ReleaseArgs, Remote};
use crate::failure::UsageError;
use crate::format::{Format, duration, json, plain};
use crate::host::Host;
use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::exit::Exit;
use tidegate_api::explain::ExplainedSample;
use tidegate_api::protocol::{ErrorKind, Reply, Request};
use tidegate_model::{Change, Mode};
use tidegate_units::Nanos;

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
        Format::Json => json("tidegate-explain/1", &explanation, out)?,
        Format::Table => {
            let words = explanation.words.iter();
            words.map(|w| plain(w)).try_for_each(|w| writeln!(out, "{w}"))?;
        }
    }
    Ok(Exit::Ok)
}

/// The document about one request.
#[derive(Serialize)]
struct Samples<'a> {
    samples: &'a [ExplainedSample],
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
        Format::Json => json("tidegate-explain-request/1", &Samples { samples: &samples }, out)?,
        Format::Table if samples.is_empty() => {
            writeln!(out, "No decision about the request {} is remembered.", plain(id))?;
        }
        Format::Table => {
            samples.iter().map(|s| plain(&s.sentence())).try_for_each(|w| writeln!(out, "{w}"))?;
        }
    }
    Ok(Exit::Ok)
}

/// Said where nobody will end what was set for a time.
const UNTIMED: &str = " until `tidegate release off`: no daemon keeps the time";

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

/// What the kill switch did, as a document.
#[derive(Serialize)]
struct Released {
    on: bool,
    /// Nobody knows where no daemon was asked.
    before: Option<bool>,
    lasts_s: Option<f64>,
    by: &'static str,
    /// Why not by the daemon.
    why: Option<String>,
}

impl Released {
    fn print(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        Ok(json("tidegate-release/1", self, out)?)
    }
}

/// Through the daemon; where it does not do it, for whatever reason, on what is pinned: the switch
/// must work when all else fails.
pub(crate) fn release(
    remote: &Remote,
    (args, host): (&ReleaseArgs, &dyn Host),
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let format = args.output.output;
    let on = args.state == "on";
    let timeout = remote.timeout.unwrap_or(RELEASE_TIMEOUT);
    let asked = ask_within(remote, timeout, Request::Release { on, lasts: args.lasts });
    let state = |on| if on { "everything passes" } else { "limits are in force" };
    match asked {
        Ok(Reply::Release { on, before, lasts }) if format == Format::Json => {
            let lasts_s = lasts.map(Nanos::as_secs_f64);
            Released { on, before: Some(before), lasts_s, by: "daemon", why: None }.print(out)?;
        }
        Ok(Reply::Release { on, before, lasts }) => {
            let already = if on == before { " (as before)" } else { "" };
            let time = match (lasts, args.lasts.filter(|_| on)) {
                (Some(lasts), _) => format!(" for {}", duration(lasts)),
                (None, Some(_)) => UNTIMED.to_owned(),
                (None, None) => String::new(),
            };
            writeln!(out, "{}{already}{time}", state(on))?;
        }
        Err(error) if is_forbidden(&error) => return Err(error.into()),
        failed => {
            if let Err(pinned) = host.release_pinned(&args.pins, on) {
                let error = failed.map_or_else(anyhow::Error::from, |_| anyhow!(UNEXPECTED));
                let path = args.pins.display();
                return Err(error.context(format!(
                    "nothing was changed, neither by a daemon nor in what is pinned at {path} ({pinned:#}). \
                     Where neither is, nothing is limited. A daemon with other paths: --socket, --pins"
                )));
            }
            let why = match failed {
                Err(ClientError::NoDaemon { .. } | ClientError::Silent { .. }) => {
                    "no daemon answered".to_owned()
                }
                Err(error) => plain(&error.to_string()).to_string(),
                Ok(_) => UNEXPECTED.to_owned(),
            };
            if format == Format::Json {
                let done = Released { on, before: None, lasts_s: None, by: "pins", why: Some(why) };
                done.print(out)?;
                return Ok(Exit::Ok);
            }
            let time = if on && args.lasts.is_some() { UNTIMED } else { "" };
            writeln!(out, "{}{time}; {why}, the dataplane was told itself", state(on))?;
        }
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct ModeSet {
    service: String,
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
    before: Mode,
    lasts_s: Option<f64>,
}

#[derive(Serialize)]
struct Reloaded {
    generation: u64,
    changes: Vec<Change>,
    kept: Vec<String>,
}

/// `mode`: `None` is what the file says.
pub(crate) fn mode(
    remote: &Remote,
    (service, mode, percent, lasts): (String, Option<Mode>, Option<f64>, Option<Nanos>),
    (format, out): (Format, &mut dyn Write),
) -> anyhow::Result<Exit> {
    if percent.is_some() && mode != Some(Mode::Enforce) {
        let message = "--percent says whose refusals are executed: only with enforce";
        return Err(UsageError(message.into()).into());
    }
    let request = match mode {
        Some(mode) => Request::Mode { service, mode, percent, lasts },
        None => Request::ModeOfFile { service },
    };
    let Reply::Mode { service, mode: now, percent, before, lasts } =
        remote.connect()?.ask(&request)?
    else {
        bail!(UNEXPECTED)
    };
    if format == Format::Json {
        let lasts_s = lasts.map(Nanos::as_secs_f64);
        let set = ModeSet { service, mode: now, percent, before, lasts_s };
        json("tidegate-mode/1", &set, out)?;
        return Ok(Exit::Ok);
    }
    let until = match (mode, lasts) {
        (None, _) => "as the file says".to_owned(),
        (_, Some(lasts)) => format!("for {}, then as the file says", duration(lasts)),
        (_, None) => "until another is set or the machine boots".to_owned(),
    };
    let (service, now, before) = (plain(&service), now.name(), before.name());
    let share = percent.map(|percent| format!(" for {percent} % of the sources"));
    let share = share.unwrap_or_default();
    writeln!(out, "{service}: {now}{share} (before: {before}); {until}")?;
    Ok(Exit::Ok)
}

pub(crate) fn reload(
    remote: &Remote,
    file: Option<PathBuf>,
    (format, out): (Format, &mut dyn Write),
) -> anyhow::Result<Exit> {
    // The daemon has its own working directory.
    let absolute = file.map(std::path::absolute).transpose();
    let path = absolute.context("the name of the file is not understood")?;
    let reply = remote.connect()?.ask(&Request::Reload { path })?;
    let Reply::Reload { generation, changes, kept } = reply else { bail!(UNEXPECTED) };
    if format == Format::Json {
        json("tidegate-reload/1", &Reloaded { generation, changes, kept }, out)?;
        return Ok(Exit::Ok);
    }
    for change in &changes {
        writeln!(out, "{}", plain(&change.to_string()))?;
    }
    for said in &kept {
        writeln!(out, "{}", plain(said))?;
    }
    let what = if changes.is_empty() { "no difference" } else { "reloaded" };
    writeln!(out, "{what}; configuration {generation} is in force")?;
    Ok(Exit::Ok)
}

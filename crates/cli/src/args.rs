// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments.

use crate::Streams;
use crate::detach::{self, DetachArgs};
use crate::format::Format;
use crate::history::{self, HistoryArgs};
use crate::host::{Extension, Host};
use crate::pages::Pages;
use crate::shadow::{self, ShadowCommand};
use crate::{check, control, rules, status, top};
use anyhow::Context;
use clap::{
    ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_api::client::{Client, TIMEOUT_DEFAULT};
use tidegate_api::exit::Exit;
use tidegate_config::{PINS_DEFAULT, SOCKET_DEFAULT};
use tidegate_model::{Canary, Mode};
use tidegate_units::Nanos;

/// The configuration file where none is named.
pub const CONFIG_DEFAULT: &str = "/etc/tidegate/tidegate.yaml";
/// Widest line of help.
pub(crate) const WIDTH_MAX: usize = 100;

/// tidegate keeps an overloaded Linux service at its best: it measures how overloaded a service
/// is, decides how much to admit, and refuses the rest early and cheaply.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = WIDTH_MAX)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How the daemon is reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Remote {
    /// Control socket of the daemon.
    #[arg(long, default_value = SOCKET_DEFAULT)]
    pub(crate) socket: PathBuf,
    /// How long to wait for the daemon, such as 5s; 15s where nothing is said, 500ms for `release`,
    /// which goes on without the daemon then.
    #[arg(long, value_name = "TIME", value_parser = wait)]
    pub(crate) timeout: Option<Duration>,
}

impl Remote {
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.socket, self.timeout.unwrap_or(TIMEOUT_DEFAULT))?)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon; beside a running one it takes over.
    Run(RunArgs),
    /// Check a configuration: the file, and how it fits this system. Changes nothing.
    ///
    /// The exit code is about the file and the system. That the daemon that runs is not ready is a warning: no other
    /// file would change it.
    Check(CheckArgs),
    /// Request rules.
    Rules {
        #[command(subcommand)]
        command: RulesCommand,
    },
    /// Show services, limits and warnings.
    Status {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        output: Output,
    },
    /// Watch services live (q quits).
    Top(TopArgs),
    /// Say what happens to a client, and why.
    ///
    /// That a service "probably" refused a client is wrong for at most 1 % of other clients, while
    /// `tables.refusals` holds all refusals of a minute: 8,700 new clients a second by default, and about
    /// 1,750 of those that are dropped silently, since each sends its SYN again and counts up to five times.
    /// In a larger flood the answer gives its own share of wrong hits (`refused_wrong` in JSON).
    Explain(ExplainArgs),
    /// Show what happened: when services shed, why and what came of it, modes, reloads, restarts.
    History(HistoryArgs),
    /// Shadow mode: what enforcing would do.
    Shadow {
        #[command(subcommand)]
        command: ShadowCommand,
    },
    /// The kill switch: let everything pass until it is switched off. Works without a daemon, too.
    Release(ReleaseArgs),
    /// Detach and remove what belongs to the pins of a daemon that has ended: hooks on any interface and in any
    /// network namespace, and the pins, of any version. With `--orphans` everything that daemons have left. Not while a
    /// daemon runs; nothing of others is touched.
    Detach(DetachArgs),
    /// Set the mode of one service until another is set or the machine boots; a reload, a restart of the daemon
    /// and a daemon that takes over keep it.
    Mode {
        #[command(flatten)]
        remote: Remote,
        /// Name of the service.
        service: String,
        /// `shadow` counts what would be refused, `enforce` refuses, `file` is what the file says.
        #[arg(value_parser = mode)]
        mode: ModeWord,
        /// A canary: execute refusals of so many percent of the sources, by a hash of each; the others are
        /// treated as in shadow. Only with `enforce`.
        #[arg(long, value_parser = percent)]
        percent: Option<f64>,
        /// For how long, such as 1h; then what the file says holds again.
        #[arg(long = "for", value_name = "TIME", value_parser = span)]
        lasts: Option<Nanos>,
        #[command(flatten)]
        output: Output,
    },
    /// Read the configuration again; a wrong one changes nothing.
    Reload {
        #[command(flatten)]
        remote: Remote,
        /// Another file than before.
        #[arg(short, long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    #[command(flatten)]
    Pages(Pages),
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line an event, for people.
    #[default]
    Text,
    /// A JSON object an event, one a line.
    Json,
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    pub config: PathBuf,
    /// On SIGTERM leave the dataplane attached: its limits hold for 3 s and open until 10 s, unless
    /// another daemon comes.
    #[arg(long, action = ArgAction::SetTrue)]
    pub keep: bool,
    /// Do not give up capabilities after the start.
    #[arg(long, action = ArgAction::SetTrue)]
    pub keep_privileges: bool,
    /// How the log is written to standard error. Behind the journal each line has its priority.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Arguments of `release`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// `on` lets everything pass, `off` puts the limits in force again.
    #[arg(default_value = "on", value_parser = ["on", "off"])]
    pub(crate) state: String,
    /// For how long everything passes, such as 10m; then limits are in force again.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    pub(crate) lasts: Option<Nanos>,
    /// Where the dataplane is pinned: used when no daemon answers.
    #[arg(long, default_value = PINS_DEFAULT)]
    pub(crate) pins: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    pub(crate) config: PathBuf,
    /// Look at the file only, not at interfaces and cgroups of this system.
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) no_system: bool,
    /// Say what the file would change against this one.
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Commands about request rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    /// Say which request rule a request meets, and why, from the configuration alone: nothing is
    /// sent, and no daemon is asked.
    Test(RulesTestArgs),
}

/// Arguments of `rules test`.
#[derive(Debug, Args)]
pub(crate) struct RulesTestArgs {
    /// The request line, such as "GET /cgi-bin/search HTTP/1.1".
    #[arg(value_name = "REQUEST")]
    pub(crate) request: Option<String>,
    /// A header of the request, such as "Cookie: session=1"; may be given again.
    #[arg(short = 'H', long, value_name = "NAME: VALUE")]
    pub(crate) header: Vec<String>,
    /// Instead of a request: a TLS connection to this server name.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["request", "header", "later"])]
    pub(crate) tls: Option<String>,
    /// A later request of a connection that stayed open, not its first.
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) later: bool,
    /// Only in this service; else in all that have rules.
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// How data is printed; docs/json.md describes the documents.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Print what `status` prints and leave.
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) once: bool,
    /// The format for `--once`; docs/json.md describes the document.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", requires = "once")]
    pub(crate) output: Format,
    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = wait)]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Address of the client, with its port to see one connection: ADDRESS, ADDRESS:PORT or
    /// [IPv6]:PORT.
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = client, required_unless_present = "request")]
    pub(crate) client: Option<(IpAddr, Option<u16>)>,
    /// Instead of a client: what was decided about the request with this id of the proxy.
    #[arg(long, value_name = "ID", conflicts_with = "client")]
    pub(crate) request: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Shortest and longest time-out, and pause between two looks.
const WAIT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(3600));

fn wait(text: &str) -> Result<Duration, String> {
    let time = tidegate_config::parse_span(text).map_err(|why| format!("{why}, such as 500ms"))?;
    let (min, max) = WAIT_RANGE;
    let fits = (min..=max).contains(&time);
    if fits { Ok(Duration::from_nanos(time.0)) } else { Err("100ms to 1h are allowed".into()) }
}

/// What may be said for a mode; `None`: what the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeWord(pub(crate) Option<Mode>);

fn mode(text: &str) -> Result<ModeWord, String> {
    let modes = [Mode::Shadow, Mode::Enforce];
    let found = modes.into_iter().find(|m| m.name() == text);
    if text == "file" || found.is_some() {
        return Ok(ModeWord(found));
    }
    Err("a mode is shadow, enforce or file".into())
}

fn percent(text: &str) -> Result<f64, String> {
    let wrong = || "a number above 0 and at most 100".to_owned();
    let percent = text.trim_end_matches('%').parse::<f64>().map_err(|_| wrong())?;
    Canary::of_percent(percent).map(|_| percent).ok_or_else(wrong)
}

pub(crate) fn span(text: &str) -> Result<Nanos, String> {
    let span = tidegate_config::parse_span(text).map_err(|why| format!("{why}, such as 10m"))?;
    let long = span >= Nanos::SECOND;
    if long { Ok(span) } else { Err("it is shorter than a second".into()) }
}

fn client(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let both = text.parse::<SocketAddr>().map(|a| (a.ip(), Some(a.port())));
    both.map_err(|_| {
        format!("{text:?} is not an address (192.0.2.1, 192.0.2.1:4711, [2001:db8::1]:4711)")
    })
}

/// All commands, those of the extensions included.
pub(crate) fn command(extensions: &[&dyn Extension]) -> clap::Command {
    let added = extensions.iter().map(|e| e.command());
    Cli::command().subcommands(added)
}

/// Runs the extension that was asked for, if one was.
pub(crate) fn extended(
    matches: &ArgMatches,
    extensions: &[&dyn Extension],
    out: &mut dyn Write,
) -> Option<anyhow::Result<Exit>> {
    let (name, below) = matches.subcommand()?;
    let extension = extensions.iter().find(|e| e.command().get_name() == name)?;
    Some(extension.run(below, out))
}

/// Runs what was asked for.
pub(crate) fn dispatch(
    matches: &ArgMatches,
    (host, extensions): (&dyn Host, &[&dyn Extension]),
    (out, err): Streams<'_>,
) -> anyhow::Result<Exit> {
    let run = matches.subcommand_matches("run");
    host.log(run.and_then(|run| run.get_one("log_format")).copied().unwrap_or_default());
    if let Some(done) = extended(matches, extensions, out) {
        return done;
    }
    let cli = Cli::from_arg_matches(matches).context("the arguments contradict each other")?;
    match cli.command {
        Command::Run(args) => host.run(&args).map(|()| Exit::Ok),
        Command::Check(args) => check::check(&args, host, (out, err)),
        Command::Rules { command: RulesCommand::Test(args) } => rules::test(&args, host, out),
        Command::Status { remote, output } => status::status(&remote, output.output, out),
        Command::Top(args) => top::top(&args.remote, &args, out),
        Command::Explain(args) => control::explain(&args.remote, &args, out),
        Command::History(args) => history::history(&args, out),
        Command::Shadow { command: ShadowCommand::Report(args) } => {
            shadow::report(&args, host, out)
        }
        Command::Detach(args) => detach::detach(&args, host, out),
        Command::Release(args) => control::release(&args.remote, (&args, host), out),
        Command::Mode { remote, service, mode: ModeWord(mode), percent, lasts, output } => {
            control::mode(&remote, (service, mode, percent, lasts), (output.output, out))
        }
        Command::Reload { remote, config, output } => {
            control::reload(&remote, config, (output.output, out))
        }
        Command::Pages(pages) => pages.run(command(extensions), out),
    }
}

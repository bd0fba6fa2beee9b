// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ExaBGP 4.2 and 5: its configuration, and its text API over the pipe of its child.
//!
//! ExaBGP starts the keeper's `relay`, which connects to a socket of ours. It says `done` or `error` to each
//! command. The action travels as extended community in hexadecimal digits, because ExaBGP 4.2 has no word for
//! traffic-rate-packets.

use crate::attributes;
use crate::nlri::Family;
use crate::rule::{Action, Ports, Route, Rule};
use crate::speaker::{Error, Neighbor, Options, unlink, write};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_units::Rate;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

/// What ExaBGP is told by its environment. It stays the user that it is: if root becomes another one, the kernel
/// forgets the signal that ends ExaBGP with its keeper. It ends when its child does.
pub(crate) const ENVIRONMENT: [(&str, &str); 5] = [
    ("exabgp.api.ack", "true"),
    ("exabgp.api.cli", "false"),
    ("exabgp.api.respawn", "false"),
    ("exabgp.api.terminate", "true"),
    ("exabgp.daemon.user", "root"),
];
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Its configuration, in the speaker's directory.
pub(crate) const FILE: &str = "exabgp.conf";
/// Longest answer.
const LINE_MAX: u64 = 4_096;
/// TCP flags by their bits, as ExaBGP names them.
const FLAGS: [&str; 6] = ["fin", "syn", "rst", "push", "ack", "urgent"];

/// Writes ExaBGP's configuration and waits for its child; gives the arguments of exabgp.
pub(crate) fn prepare(options: &Options) -> std::io::Result<(Vec<String>, UnixListener)> {
    let (file, socket) = (options.dir.join(FILE), socket(options));
    write(&file, &configuration(options))?;
    unlink(&socket)?;
    Ok((vec![file.display().to_string()], UnixListener::bind(socket)?))
}

fn socket(options: &Options) -> PathBuf {
    options.dir.join("exabgp.sock")
}

fn configuration(options: &Options) -> String {
    let helper = &options.helper;
    let run: Vec<String> = std::iter::once(helper.program.display().to_string())
        .chain(helper.arguments.iter().cloned())
        .chain(["relay".to_owned(), socket(options).display().to_string()])
        .collect();
    let mut text = format!("process tidegate {{\n  run {};\n  encoder text;\n}}\n", run.join(" "));
    for Neighbor { address, local, peer_as, password, ttl_security } in &options.neighbors {
        // Else ExaBGP takes a password of hexadecimal digits as base64.
        let signed = password.as_ref().map_or_else(String::new, |password| {
            format!("  md5-password '{}';\n  md5-base64 false;\n", password.text())
        });
        let hop = if *ttl_security { "  outgoing-ttl 255;\n  incoming-ttl 255;\n" } else { "" };
        let _ = write!(
            text,
            "neighbor {address} {{\n  router-id {};\n  local-address {local};\n  local-as {};\n  \
             peer-as {peer_as};\n  hold-time {};\n  connect {};\n{signed}{hop}  family {{\n    ipv4 flow;\n    \
             ipv6 flow;\n  }}\n  api {{\n    processes [ tidegate ];\n  }}\n}}\n",
            options.router_id, options.own_as, options.hold_time_s, options.port
        );
    }
    text
}

/// Talks with ExaBGP's child.
#[derive(Debug)]
pub(crate) struct Session {
    answers: BufReader<OwnedReadHalf>,
    commands: OwnedWriteHalf,
}

impl Session {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let (answers, commands) = stream.into_split();
        Self { answers: BufReader::new(answers), commands }
    }

    pub(crate) async fn announce(&mut self, route: &Route) -> Result<(), Error> {
        self.say(command("announce", &route.rule, route.action)?).await
    }

    pub(crate) async fn withdraw(&mut self, rule: &Rule) -> Result<(), Error> {
        self.say(command("withdraw", rule, Action::Bytes(Rate::ZERO))?).await
    }

    async fn say(&mut self, command: String) -> Result<(), Error> {
        let call = async {
            self.commands.write_all(command.as_bytes()).await.map_err(Error::Socket)?;
            let mut answer = String::new();
            let mut line = (&mut self.answers).take(LINE_MAX);
            line.read_line(&mut answer).await.map_err(Error::Socket)?;
            match answer.trim() {
                "done" => Ok(()),
                "" => Err(Error::Ended("its child has closed the pipe".into())),
                other => Err(Error::Refused(format!("{other}: {}", command.trim()))),
            }
        };
        tokio::time::timeout(ANSWER_MAX, call).await.unwrap_or(Err(Error::Silent))
    }
}

/// One line of ExaBGP's API.
fn command(verb: &str, rule: &Rule, action: Action) -> Result<String, Error> {
    // What it could not be told must not be told as something else.
    rule.flow().map_err(Error::Rule)?;
    let v4 = rule.family() == Family::V4;
    let offset = if v4 { "" } else { "/0" };
    let mut text =
        format!("{verb} flow route {{ match {{ destination {}{offset};", rule.destination);
    if let Some(source) = rule.source {
        let _ = write!(text, " source {source}{offset};");
    }
    if let Some(protocol) = rule.protocol {
        let name = if v4 { "protocol" } else { "next-header" };
        let _ = write!(text, " {name} ={protocol};");
    }
    ports(&mut text, "destination-port", &rule.to);
    ports(&mut text, "source-port", &rule.from);
    if let Some(flags) = rule.flags.filter(|flags| flags.mask != 0) {
        let bits = |of: u8| (0..8).filter(move |bit| of & 1 << bit != 0);
        let name = |bit: usize| FLAGS.get(bit).ok_or(Error::Flags);
        let mut terms: Vec<String> = Vec::new();
        for bit in bits(flags.mask & flags.value) {
            terms.push(format!("={}", name(bit)?));
        }
        for bit in bits(flags.mask & !flags.value) {
            terms.push(format!("!{}", name(bit)?));
        }
        let _ = write!(text, " tcp-flags [ {} ];", terms.join("&"));
    }
    let community: String =
        attributes::community(action).iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = writeln!(text, " }} then {{ extended-community [ 0x{community} ]; }} }}");
    Ok(text)
}

fn ports(text: &mut String, name: &str, ports: &Ports) {
    if ports.is_empty() {
        return;
    }
    let _ = write!(text, " {name} [");
    for range in ports {
        let _ = if range.start() == range.end() {
            write!(text, " ={}", range.start())
        } else {
            write!(text, " >={}&<={}", range.start(), range.end())
        };
    }
    text.push_str(" ];");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Flags, TCP};

    #[test]
    fn a_route_is_one_line_of_the_api() {
        let mut rule = Rule {
            protocol: Some(TCP),
            flags: Some(Flags::FIRST),
            ..Rule::to("192.0.2.7/32".parse().unwrap())
        };
        rule.to = vec![80..=80, 8_000..=8_080];
        let rate = Action::Packets(Rate::per_second(1_000.0));
        assert_eq!(
            command("announce", &rule, rate).unwrap(),
            "announce flow route { match { destination 192.0.2.7/32; protocol =6; destination-port [ =80 \
             >=8000&<=8080 ]; tcp-flags [ =syn&!ack ]; } then { extended-community [ \
             0x800c0000447a0000 ]; } }\n"
        );
        let rule = Rule { protocol: Some(17), ..Rule::to("2001:db8::/64".parse().unwrap()) };
        assert_eq!(
            command("withdraw", &rule, Action::Bytes(Rate::ZERO)).unwrap(),
            "withdraw flow route { match { destination 2001:db8::/64/0; next-header =17; } then { \
             extended-community [ 0x8006000000000000 ]; } }\n"
        );
        let rule = Rule { flags: Some(Flags { mask: 0x80, value: 0 }), ..rule };
        assert!(matches!(command("announce", &rule, rate), Err(Error::Flags)));
    }
}

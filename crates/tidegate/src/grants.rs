// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate grants`: who may limit what. Only `issue` and `revoke` need the operator's private key, so it
//! can stay on a machine without a network; what they print goes to the routers.

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use tidegate_cli::{Exit, Extension};
use tidegate_peer::authority::{
    GrantBody, Kinds, Revocations, SignedGrant, SignedRevocations, SigningKey, VerifyingKey,
};
use tidegate_units::{Clock as _, DayClock, Nanos};

const DAY_S: u64 = 86_400;
/// A shorter grant is a mistake.
const FOR_MIN: Nanos = Nanos::from_secs(60);
/// Longest file that is read.
const FILE_MAX: u64 = 1 << 17;

/// The command.
pub(crate) struct Grants;

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .required(true)
        .value_name("FILE")
        .help(help)
        .value_parser(value_parser!(PathBuf))
}

fn number(name: &'static str, usual: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).default_value(usual).help(help).value_parser(value_parser!(u64))
}

/// What there is to grant.
const KIND: &str = "kind of limit: rate, loss or gap of connections; datagrams: a rate of UDP";

fn issue() -> Command {
    let many =
        |name, help| Arg::new(name).long(name).action(ArgAction::Append).required(true).help(help);
    Command::new("issue")
        .about("Sign a grant, and print it")
        .arg(file(
            "operator-key",
            "the operator's private key, PEM (openssl genpkey -algorithm ed25519)",
        ))
        .arg(
            Arg::new("holder")
                .long("holder")
                .required(true)
                .help("identity of the server, spiffe://…"),
        )
        .arg(file("holder-key", "the server's public key, PEM (openssl pkey -pubout)"))
        .arg(many("scope", "prefix with port that it owns, 192.0.2.0/24:80 or [2001:db8::/48]:*"))
        .arg(many("kind", KIND).value_parser(["rate", "loss", "gap", "datagrams"]))
        .arg(number(
            "serial",
            "0",
            "its number, one for each grant; 0: the milliseconds since 1970",
        ))
        .arg(number("limits", "64", "limits at once, 1 to 256"))
        .arg(number("changes", "120", "changes per minute"))
        .arg(
            Arg::new("for")
                .long("for")
                .default_value("2160h")
                .value_name("TIME")
                .value_parser(tidegate_config::parse_span)
                .help("valid from now for so long, at least a minute"),
        )
        .arg(
            Arg::new("waive-staging")
                .long("waive-staging")
                .action(ArgAction::SetTrue)
                .help("enforce limits at once; without, a new one only counts for 5 s"),
        )
}

impl Extension for Grants {
    fn command(&self) -> Command {
        let path = || Arg::new("FILE").required(true).value_parser(value_parser!(PathBuf));
        Command::new("grants")
            .about("Grants: which server may give limits for which destinations to routers")
            .subcommand_required(true)
            .subcommand(issue())
            .subcommand(
                Command::new("show")
                    .about(
                        "Print what a grant or a list of revocations says, whoever has signed it",
                    )
                    .arg(path())
                    .arg(
                        Arg::new("output")
                            .short('o')
                            .long("output")
                            .default_value("table")
                            .value_parser(["table", "json"])
                            .help("how it is printed"),
                    ),
            )
            .subcommand(
                Command::new("check")
                    .about("Whether the operator has signed it, and it is valid now")
                    .arg(path())
                    .arg(file("operator", "the operator's public key, PEM"))
                    .arg(
                        file("revoked", "the operator's list of grants that are taken back")
                            .required(false),
                    ),
            )
            .subcommand(
                Command::new("revoke")
                    .about("Sign a list of all grants that are taken back, and print it")
                    .arg(file("operator-key", "the operator's private key, PEM"))
                    .arg(number(
                        "sequence",
                        "0",
                        "above that of the list before; 0: the milliseconds since 1970",
                    ))
                    .arg(
                        Arg::new("SERIAL")
                            .required(true)
                            .action(ArgAction::Append)
                            .value_parser(value_parser!(u64))
                            .help("numbers of grants, those of earlier lists as well"),
                    ),
            )
    }

    fn run(&self, matches: &ArgMatches, out: &mut dyn Write) -> Result<Exit> {
        match matches.subcommand() {
            Some(("issue", matches)) => write!(out, "{}", issued(matches)?.to_text())?,
            Some(("revoke", matches)) => write!(out, "{}", revoked(matches)?.to_text())?,
            Some(("show", matches)) if words(matches, "output") == ["json"] => {
                show_json(&text(matches, "FILE")?, out)?;
            }
            Some(("show", matches)) => show(&text(matches, "FILE")?, out)?,
            Some(("check", matches)) => return check(matches, out),
            _ => bail!("issue, show, check or revoke"),
        }
        Ok(Exit::Ok)
    }
}

fn bytes(matches: &ArgMatches, name: &str) -> Result<Vec<u8>> {
    let path = matches.get_one::<PathBuf>(name).context("a file")?;
    let size = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?.len();
    ensure!(size <= FILE_MAX, "{}: more than {FILE_MAX} bytes", path.display());
    std::fs::read(path).with_context(|| format!("{}", path.display()))
}

fn text(matches: &ArgMatches, name: &str) -> Result<String> {
    String::from_utf8(bytes(matches, name)?).context("not a grant: it is no text")
}

fn value(matches: &ArgMatches, name: &str) -> u64 {
    matches.get_one::<u64>(name).copied().unwrap_or_default()
}

fn words(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many::<String>(name).into_iter().flatten().cloned().collect()
}

fn today_s() -> u64 {
    DayClock.now().0 / 1_000_000_000
}

/// A number, or the time in milliseconds, which is above all before.
fn or_time(number: u64) -> u64 {
    if number > 0 { number } else { DayClock.now().0 / 1_000_000 }
}

fn issued(matches: &ArgMatches) -> Result<SignedGrant> {
    let operator =
        SigningKey::from_pem(&bytes(matches, "operator-key")?).context("--operator-key")?;
    let key = VerifyingKey::from_pem(&bytes(matches, "holder-key")?).context("--holder-key")?;
    let kinds = words(matches, "kind");
    let has = |kind: &str| kinds.iter().any(|one| one == kind);
    let from_s = today_s();
    let lasts = matches.get_one::<Nanos>("for").copied().unwrap_or_default();
    ensure!(lasts >= FOR_MIN, "--for: at least {FOR_MIN}");
    let body = GrantBody {
        serial: or_time(value(matches, "serial")),
        holder: words(matches, "holder").concat(),
        key,
        scopes: words(matches, "scope"),
        kinds: Kinds {
            rate: has("rate"),
            loss: has("loss"),
            gap: has("gap"),
            datagrams: has("datagrams"),
        },
        limits: u16::try_from(value(matches, "limits")).context("--limits: 1 to 256")?,
        changes: u16::try_from(value(matches, "changes")).context("--changes: 1 to 65535")?,
        staged: !matches.get_flag("waive-staging"),
        from_s,
        until_s: from_s.saturating_add(lasts.0 / Nanos::SECOND.0),
    };
    if let Some(bad) = body.scopes.iter().find(|scope| !is_destination(scope)) {
        bail!(
            "--scope {bad:?}: a prefix with a port as 192.0.2.0/24:80, /24 or longer (IPv6: /48)"
        );
    }
    SignedGrant::sign(body, &operator).context(
        "out of range: a spiffe:// identity, 1 to 64 scopes, 1 to 256 limits, at least one change",
    )
}

fn is_destination(text: &str) -> bool {
    use tidegate_model::remote::Scope;
    let parsed = text.parse::<Scope>().ok();
    parsed.is_some_and(|scope| {
        matches!(scope, Scope::Destination { .. }) && scope.to_string() == text
    })
}

fn revoked(matches: &ArgMatches) -> Result<SignedRevocations> {
    let operator =
        SigningKey::from_pem(&bytes(matches, "operator-key")?).context("--operator-key")?;
    let serials = matches.get_many::<u64>("SERIAL").into_iter().flatten().copied().collect();
    let body = Revocations { sequence: or_time(value(matches, "sequence")), serials };
    SignedRevocations::sign(body, &operator).context("more than 4096 grants")
}

fn show(text: &str, out: &mut dyn Write) -> Result<()> {
    if let Some(list) = SignedRevocations::from_text(text) {
        writeln!(out, "revoked   {:?}\nsequence  {}", list.body().serials, list.body().sequence)?;
        return Ok(());
    }
    let grant =
        SignedGrant::from_text(text).context("neither a grant nor a list of revocations")?;
    let GrantBody { serial, holder, key, scopes, kinds, limits, changes, staged, from_s, until_s } =
        grant.body();
    let kinds = names(kinds);
    let staged = if *staged { "5 s" } else { "waived" };
    writeln!(out, "serial    {serial}\nholder    {holder}\nkey       {key}")?;
    writeln!(out, "scopes    {}\nkinds     {}", scopes.join(" "), kinds.join(" "))?;
    writeln!(out, "limits    {limits} at once, {changes} changes a minute, staging {staged}")?;
    let days = until_s.saturating_sub(today_s()) / DAY_S;
    writeln!(out, "valid     {from_s} to {until_s} (seconds since 1970; {days} days are left)")?;
    Ok(())
}

/// A grant as a document (docs/json.md).
#[derive(Serialize)]
struct GrantDocument<'a> {
    schema: &'static str,
    serial: u64,
    holder: &'a str,
    key: String,
    scopes: &'a [String],
    kinds: Vec<&'static str>,
    limits: u16,
    changes: u16,
    staged: bool,
    from_s: u64,
    until_s: u64,
}

/// A list of revocations as a document.
#[derive(Serialize)]
struct RevocationsDocument {
    schema: &'static str,
    sequence: u64,
    serials: Vec<u64>,
}

fn show_json(text: &str, out: &mut dyn Write) -> Result<()> {
    if let Some(list) = SignedRevocations::from_text(text) {
        let Revocations { sequence, serials } = list.body();
        let (schema, serials) = ("tidegate-revocations/1", serials.clone());
        let document = RevocationsDocument { schema, sequence: *sequence, serials };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        return Ok(writeln!(out)?);
    }
    let grant =
        SignedGrant::from_text(text).context("neither a grant nor a list of revocations")?;
    let GrantBody { serial, holder, key, scopes, kinds, limits, changes, staged, from_s, until_s } =
        grant.body();
    let document = GrantDocument {
        schema: "tidegate-grant/1",
        serial: *serial,
        holder,
        key: key.to_string(),
        scopes,
        kinds: names(kinds),
        limits: *limits,
        changes: *changes,
        staged: *staged,
        from_s: *from_s,
        until_s: *until_s,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    Ok(writeln!(out)?)
}

fn names(kinds: &Kinds) -> Vec<&'static str> {
    let Kinds { rate, loss, gap, datagrams } = *kinds;
    let names = [("rate", rate), ("loss", loss), ("gap", gap), ("datagrams", datagrams)];
    names.iter().filter(|kind| kind.1).map(|kind| kind.0).collect()
}

/// The grant is not on the list, which the operator has signed.
fn not_revoked(grant: &SignedGrant, list: &str, operator: &VerifyingKey) -> Result<()> {
    let list =
        SignedRevocations::from_text(list).context("--revoked: not a list of revocations")?;
    ensure!(list.verified(operator), "--revoked: the list is not signed by this operator");
    let Revocations { sequence, serials } = list.body();
    let revoked = serials.iter().any(|serial| *serial == grant.body().serial);
    ensure!(!revoked, "the grant is revoked (by the list with the sequence {sequence})");
    Ok(())
}

fn check(matches: &ArgMatches, out: &mut dyn Write) -> Result<Exit> {
    let operator = VerifyingKey::from_pem(&bytes(matches, "operator")?).context("--operator")?;
    let text = text(matches, "FILE")?;
    if let Some(list) = SignedRevocations::from_text(&text) {
        ensure!(list.verified(&operator), "the list is not signed by this operator");
        writeln!(out, "the list is signed by the operator")?;
        return Ok(Exit::Ok);
    }
    let grant =
        SignedGrant::from_text(&text).context("neither a grant nor a list of revocations")?;
    ensure!(grant.verified(&operator), "the grant is not signed by this operator");
    let (from, until) = (grant.body().from_s, grant.body().until_s);
    ensure!(today_s() >= from, "the grant is not valid yet");
    ensure!(today_s() < until, "the grant has expired");
    if matches.contains_id("revoked") {
        not_revoked(&grant, &self::text(matches, "revoked")?, &operator)?;
        writeln!(out, "the grant is signed by the operator, valid, and not revoked")?;
        return Ok(Exit::Ok);
    }
    writeln!(out, "the grant is signed by the operator, and valid")?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The pair of RFC 8410, section 10.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
        -----END PUBLIC KEY-----\n";

    fn grants(folder: &std::path::Path, line: &str) -> Result<String> {
        let line = line.replace('@', &format!("{}/", folder.display()));
        let words = std::iter::once("grants").chain(line.split(' '));
        let matches = Grants.command().try_get_matches_from(words)?;
        let mut out = Vec::new();
        let exit = Grants.run(&matches, &mut out)?;
        assert!(exit == Exit::Ok);
        Ok(String::from_utf8(out)?)
    }

    const ISSUE: &str = "issue --operator-key @private --holder spiffe://example.org/s0 --holder-key @public \
        --scope 192.0.2.0/24:80 --kind rate --serial 5";

    #[test]
    fn a_grant_from_issue_to_revoke() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let at = folder.path();
        std::fs::write(at.join("private"), PRIVATE)?;
        std::fs::write(at.join("public"), PUBLIC)?;
        let grant = grants(at, ISSUE)?;
        std::fs::write(at.join("grant"), &grant)?;
        let shown = grants(at, "show @grant")?;
        for part in [
            "serial    5",
            "spiffe://example.org/s0",
            "192.0.2.0/24:80",
            "kinds     rate",
            "89 days",
        ] {
            assert!(
                shown.contains(part) || part == "89 days" && shown.contains("90 days"),
                "{part}: {shown}"
            );
        }
        assert!(grants(at, "check @grant --operator @public")?.contains("valid"));
        let digit = if grant.as_bytes()[40] == b'0' { "1" } else { "0" };
        std::fs::write(at.join("changed"), format!("{}{digit}{}", &grant[..40], &grant[41..]))?;
        assert!(grants(at, "check @changed --operator @public").is_err());
        std::fs::write(at.join("revoked"), grants(at, "revoke --operator-key @private 5 3")?)?;
        assert!(grants(at, "show @revoked")?.contains("[3, 5]"));
        assert!(grants(at, "check @revoked --operator @public").is_ok());
        let with = |list| grants(at, &format!("check @grant --operator @public --revoked @{list}"));
        let error = with("revoked").expect_err("5 is on the list");
        assert!(error.to_string().contains("the grant is revoked"), "{error:#}");
        std::fs::write(at.join("others"), grants(at, "revoke --operator-key @private 3")?)?;
        assert!(with("others")?.contains("not revoked"));
        assert!(with("grant").is_err(), "no list");
        for (file, schema) in [("grant", "tidegate-grant/1"), ("revoked", "tidegate-revocations/1")]
        {
            let shown = grants(at, &format!("show @{file} -o json"))?;
            let json: serde_json::Value = serde_json::from_str(&shown)?;
            assert_eq!(json["schema"], schema);
            let page = include_str!("../../../docs/json.md");
            for name in json.as_object().into_iter().flat_map(|fields| fields.keys()) {
                assert!(page.contains(&format!("`{name}`")), "{name} is not described");
            }
        }
        std::fs::write(at.join("expired"), grants(at, &format!("{ISSUE} --for 24h"))?)?;
        assert!(grants(at, "check @expired --operator @public").is_ok(), "valid for a day");
        Ok(())
    }

    #[test]
    fn what_is_wrong_is_named() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let at = folder.path();
        std::fs::write(at.join("private"), PRIVATE)?;
        std::fs::write(at.join("public"), PUBLIC)?;
        for (change, part) in [
            (("192.0.2.0/24:80", "192.0.2.1/24:80"), "--scope"),
            (("192.0.2.0/24:80", "shop"), "--scope"),
            (("spiffe://example.org/s0", "s0"), "out of range"),
            (("--serial 5", "--for 0s"), "--for"),
            (("--serial 5", "--for 90"), "invalid value"),
            (("--serial 5", "--limits 65536"), "--limits"),
            (("--kind rate", "--kind all"), "invalid value"),
            (("@private", "@public"), "--operator-key"),
            (("@private", "@nowhere"), "nowhere"),
        ] {
            let failed = grants(at, &ISSUE.replace(change.0, change.1)).expect_err(part);
            let text = format!("{failed:#}");
            assert!(text.contains(part), "{change:?}: {text}");
        }
        Ok(())
    }
}

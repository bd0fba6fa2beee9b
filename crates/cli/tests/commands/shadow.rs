// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate shadow report`: figures first, then what replay says, and a last sentence to act upon.

use super::World;
use std::path::Path;
use tidegate_api::protocol::{ApiError, ErrorKind, Reply, Request};
use tidegate_cli::{Exit, ReplayAsked, Replayed};
use tidegate_model::Mode;
use tidegate_model::record::Moment;
use tidegate_model::shadow::{Of, ShadowQuestion, ShadowReport, ShadowRow, Tallies};
use tidegate_units::Nanos;

const HOUR: Nanos = Nanos::from_secs(3600);

fn row(hour: u64, service: &str) -> ShadowRow {
    let mut tallies = Tallies::default();
    let tally = if hour == 3 { &mut tallies.overloaded } else { &mut tallies.healthy };
    tally.span = HOUR;
    tally.offer(&Of::Class("default".into()), 50_000);
    tally.refuse(&Of::Class("def\u{1b}ault".into()), Some("rate"), if hour == 3 { 409 } else { 0 });
    tally.refuse(&Of::Rule("/search".into()), None, u64::from(hour == 7));
    let at = Moment { unix: Nanos::from_secs(1_800_000_000 + hour * 3600), ..Moment::default() };
    let at = Moment { up: Nanos::from_secs(hour * 3600), ..at };
    ShadowRow { service: service.into(), at, lasted: HOUR, tallies, ..ShadowRow::default() }
}

/// What the daemon says: `shop` was in shadow for 26 hours, `idle` is enforced.
pub(crate) fn answer(asked: &Request) -> Result<Reply, ApiError> {
    let Request::ShadowReport { service, since, class } = asked else { panic!("{asked:?}") };
    let (service, since, class) = (service.as_deref(), *since, class.as_deref());
    if service.is_some_and(|name| !["shop", "idle"].contains(&name)) {
        return Err(ApiError::new(ErrorKind::UnknownService, "no service is called that"));
    }
    let now = Moment {
        up: Nanos::from_secs(26 * 3600),
        unix: Nanos::from_secs(1_800_000_000 + 26 * 3600),
        ..Moment::default()
    };
    let rows: Vec<ShadowRow> = (0..26).map(|hour| row(hour, "shop")).collect();
    let of = |service: &str| {
        let idle = service == "idle";
        let mode = if idle { Mode::Enforce } else { Mode::Shadow };
        let asked = ShadowQuestion { service, mode, percent: None, since, class, now: &now };
        ShadowReport::of(&asked, rows.iter().filter(|_| !idle))
    };
    Ok(Reply::ShadowReport { services: vec![of(service.unwrap_or("shop"))] })
}

/// What replay says.
pub(crate) fn replay(asked: &ReplayAsked<'_>) -> anyhow::Result<Replayed> {
    anyhow::ensure!(asked.log == Path::new("access.log"), "no such file");
    assert_eq!((asked.from_unix_s, asked.until_unix_s), (1_800_000_000.0, 1_800_093_600.0));
    let offered = asked.options.len() as u64;
    let log = "access.log".into();
    Ok(Replayed { log, offered, notes: vec!["it is a model".into()], ..Replayed::default() })
}

#[test]
fn a_report_ends_with_what_to_do() {
    let world = World::new();
    let (exit, out, err) = world.tidegate(&["shadow", "report"]);
    assert_eq!((exit, err.as_str()), (Exit::Ok, ""));
    let wanted = "\
shop: shadow; from 2027-01-15T08:00:00Z to 2027-01-16T10:00:00Z

while       watched  offered  would be refused
healthy    1500 min  1250000                 1
overloaded   60 min    50000               409
unknown       0 min        0                 0

class or rule     reason  refused  healthy  overloaded  unknown
def\\u{1b}ault    rate        409        0         409        0
rule /search      -             1        1           0        0

replay: there is no recording of these hours; with an access log, `tidegate shadow report NAME --log FILE -- \
--capacity RATE` says what would have been refused on a modelled server

shop: in 26 h: 410 of 1.3 M would have been refused, 1 of them while healthy (less than 0.0001 % of what came then); \
enforce is safe
";
    let squeezed = |text: &str| {
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(squeezed(&out), squeezed(wanted));
    let (_, out, _) = world.tidegate(&["shadow", "report", "shop", "--since", "2h"]);
    assert!(
        out.contains("100000") && out.contains("it was watched for 2 h, of at least 24 h"),
        "{out}"
    );
    let (_, out, _) = world.tidegate(&["shadow", "report", "shop", "--class", "default"]);
    assert!(out.contains("class default") && out.contains("0 of 1.3 M"), "{out}");
}

#[test]
fn what_cannot_be_reported_says_why() {
    let world = World::new();
    let (exit, out, _) = world.tidegate(&["shadow", "report", "idle"]);
    assert_eq!(exit, Exit::Ok);
    assert!(out.contains("no time in shadow is remembered"), "{out}");
    for (args, exit, said) in [
        (&["shadow", "report", "shpo"][..], Exit::NotFound, "no service is called"),
        (&["shadow", "report", "--since", "1"], Exit::Usage, "no unit"),
        (&["shadow", "report", "shop", "--", "--capacity", "1"], Exit::Usage, "--log <FILE>"),
        (&["shadow", "report", "shop", "--log", "nothing"], Exit::Failure, "no such file"),
        (&["shadow", "report", "idle", "--log", "access.log"], Exit::Failure, "no hours to replay"),
    ] {
        let (found, _, err) = world.tidegate(args);
        assert_eq!(found, exit, "{args:?}: {err}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn replay_is_asked_for_the_same_hours() {
    let world = World::new();
    let args = ["shadow", "report", "shop", "--log", "access.log", "--", "--capacity", "400"];
    let (exit, out, err) = world.tidegate(&args);
    assert_eq!((exit, err.as_str()), (Exit::Ok, ""));
    assert!(out.contains("0 of 2 clients would have been refused"), "{out}");
    assert!(out.contains("it is a model") && out.trim_end().ends_with("enforce is safe"), "{out}");
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This program as the daemon: it has a speaker, does what lines of its input say, and shows what it imports.

use std::ffi::OsString;
use std::io::BufRead;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tidegate_flowspec::{
    Action, Bounds, Error, Exporter, Family, Flags, Helper, Importer, Kind, Neighbor, Options,
    Password, Policy, Route, Rule, Session, Speaker,
};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

/// Of both sessions. ExaBGP would take these digits as something else if it was not told.
const PASSWORD: &str = "0badc0de";
/// How often it looks at everything.
const TICK: Duration = Duration::from_millis(200);

/// `export gobgp|exabgp DIRECTORY`, `import DIRECTORY`, `missing DIRECTORY`, or `wrapped DIRECTORY`.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    let (kind, receive, dir) = match words[..] {
        ["export", "gobgp", dir] => (Kind::GoBgp, false, dir),
        ["export", "exabgp", dir] => (Kind::ExaBgp, false, dir),
        ["import", dir] => (Kind::GoBgp, true, dir),
        ["missing" | "wrapped", dir] => (Kind::GoBgp, false, dir),
        _ => panic!("{words:?}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounds = Bounds { between: Nanos::from_secs(1), ..Bounds::default() };
    let mut options = options(kind, receive, dir.into());
    match words[0] {
        "missing" => options.program = "/nonexistent/gobgpd".into(),
        "wrapped" => options.program = options.dir.with_file_name("wrapper"),
        _ => {}
    }
    let exporter = Exporter::new(options, bounds).unwrap();
    runtime.block_on(run(exporter, receive, lines()));
    ExitCode::SUCCESS
}

fn options(kind: Kind, receive: bool, dir: PathBuf) -> Options {
    let program = match kind {
        Kind::GoBgp => "gobgpd",
        Kind::ExaBgp => "exabgp",
    };
    let arguments = vec!["keeper".to_owned()];
    let mut neighbors = vec![neighbor(kind)];
    if receive {
        // Another router, which sends more than can be read.
        neighbors.push(Neighbor { peer_as: 65_003, ..neighbor(Kind::ExaBgp) });
    }
    Options {
        kind,
        program: program.into(),
        helper: Helper { program: std::env::current_exe().unwrap(), arguments },
        dir,
        own_as: 65_001,
        router_id: [10, 9, 0, 1].into(),
        neighbors,
        port: 1_179,
        hold_time_s: 9,
        lease: Nanos::from_secs(3),
        receive: receive.then_some([10, 9, 0, 2].into()),
    }
}

/// A session over IPv4; with ExaBGP over IPv6.
fn neighbor(kind: Kind) -> Neighbor {
    let host = |host: u8| match kind {
        Kind::GoBgp => IpAddr::from([10, 9, 0, host]),
        Kind::ExaBgp => IpAddr::from([0xfd00, 9, 0, 0, 0, 0, 0, host.into()]),
    };
    Neighbor {
        address: host(2),
        local: host(1),
        peer_as: 65_002,
        password: Password::new(PASSWORD),
        ttl_security: true,
    }
}

fn lines() -> Receiver<String> {
    let (told, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if told.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

async fn run(mut exporter: Exporter, receive: bool, lines: Receiver<String>) {
    let mut wanted = Vec::new();
    let prefixes = ["192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"];
    let peer = (IpAddr::from([10, 9, 0, 2]), 65_002);
    let prefixes = prefixes.map(|net| net.parse().unwrap()).to_vec();
    let mut importer = Importer::new(Policy::new(prefixes.clone(), 65_001, peer));
    loop {
        while let Ok(line) = lines.try_recv() {
            let mut words = line.split(' ').skip(1);
            wanted = words.next().and_then(|rate| rate.parse().ok()).map_or_else(Vec::new, routes);
            wanted.extend(words.next().map(|_| odd()));
        }
        let now = MonotonicClock.now();
        assert_eq!(exporter.want(now, &wanted).unwrap(), 0);
        if let Err(why) = exporter.tick(now).await {
            println!("speaker: {why}");
        }
        if receive && let Some(Speaker::GoBgp(client)) = exporter.speaker() {
            match read(client, peer.0, &prefixes).await {
                Ok((paths, unicast)) => importer.update(&paths, &unicast),
                Err(why) => eprintln!("import: {why}"),
            }
            show(&importer, &client.sessions().await.unwrap_or_default());
        }
        tokio::time::sleep(TICK).await;
    }
}

async fn read(
    client: &mut tidegate_flowspec::gobgp::Client,
    peer: IpAddr,
    prefixes: &[ipnet::IpNet],
) -> Result<(Vec<tidegate_flowspec::Path>, Vec<tidegate_flowspec::Unicast>), Error> {
    let mut paths = client.flows(Family::V4, peer).await?;
    paths.extend(client.flows(Family::V6, peer).await?);
    Ok((paths, client.unicast(prefixes).await?))
}

/// One line: the rules, then what was refused, and the sessions.
fn show(importer: &Importer, sessions: &[Session]) {
    let mut shown = String::new();
    for entry in importer.entries() {
        let rates = [("bytes", entry.bytes), ("packets", entry.packets)];
        let rates =
            rates.into_iter().filter_map(|(unit, rate)| Some(format!("{unit} {}", rate?.get())));
        shown.push_str(&format!("{}: {}|", entry.rule, rates.collect::<Vec<_>>().join(", ")));
    }
    let refused = importer.refused().iter().map(|(why, count)| format!("{} {count}", why.name()));
    let session = |of: &Session| match of.hold_time {
        Some(time) => format!("|{} held for {time}", of.router),
        None => format!("|{} held for ever", of.router),
    };
    let sessions: String = sessions.iter().map(session).collect();
    println!("{shown}refused: {}{sessions}", refused.collect::<Vec<_>>().join(", "));
}

/// New connections to two services.
fn routes(packets: f64) -> Vec<Route> {
    let rule = |destination: &str, port: u16| Rule {
        protocol: Some(6),
        flags: Some(Flags::FIRST),
        to: vec![port..=port],
        ..Rule::to(destination.parse().unwrap())
    };
    vec![
        Route {
            rule: rule("192.0.2.7/32", 80),
            action: Action::Packets(Rate::per_second(packets)),
        },
        Route {
            rule: rule("2001:db8:1::/48", 443),
            action: Action::Bytes(Rate::per_second(80_000.0)),
        },
    ]
}

/// ExaBGP has no name for this flag.
fn odd() -> Route {
    let flags = Some(Flags { mask: 0x80, value: 0x80 });
    let rule = Rule { protocol: Some(6), flags, ..Rule::to("192.0.2.9/32".parse().unwrap()) };
    Route { rule, action: Action::Packets(Rate::per_second(1.0)) }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When limits of servers end in congested routers (needs root). By their time in the router's kernel, though nobody is left
//! who could lift them: the lease alone would hold them for seconds more. And with their grant. The topology is that of
//! `common/congested.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::congested::{TAKES, World, connections, target};
use common::star::{Daemon, Load, refused};
use common::wait_for;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use tidegate_model::remote::REMOTE_VALIDITY_MAX;
use tidegate_model::snapshot::{RemoteState, ServiceState};
use tidegate_sense::in_namespace;
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const NET: u8 = 93;
/// So long after the server's daemon the router's is gone: the lease would hold until ten seconds later.
const LATER: Nanos = Nanos::from_secs(7);
/// A connection whose first SYN passes is there sooner.
const SOON: Duration = Duration::from_millis(900);
const TRIES: usize = 30;
/// Files about grants are looked at so often.
const FILES_READ: Nanos = Nanos::from_secs(5);
/// What a busy machine needs beside that. The limit itself would hold for 9 s more at least.
const SLOW: Nanos = Nanos::from_secs(3);

fn service(daemon: &Daemon) -> ServiceState {
    daemon.snapshot().unwrap().services.remove(0)
}

fn limit(daemon: &Daemon) -> Option<RemoteState> {
    service(daemon).remote.into_iter().find(|limit| limit.rate.is_some())
}

/// Connections that come up soon, of [`TRIES`].
fn connected(world: &World) -> usize {
    let to = target(NET).parse().unwrap();
    let once = || Ok(TcpStream::connect_timeout(&to, SOON).is_ok());
    let up = |_: &usize| in_namespace(Some(&world.star.namespace("c")), once).unwrap();
    (0..TRIES).filter(up).count()
}

/// The server accepts, and sends back what it is sent.
fn accepts(world: &World) -> Load {
    let listener = world.listener.try_clone().unwrap();
    listener.set_nonblocking(true).unwrap();
    Load::start(&world.star, "s", move |goes_on| {
        let mut open: Vec<TcpStream> = Vec::new();
        while goes_on() {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true)?;
                open.push(stream);
            }
            let mut some = [0; 64];
            open.retain_mut(|stream| match stream.read(&mut some) {
                Ok(n) => n > 0 && stream.write_all(&some[..n]).is_ok(),
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
            sleep(Duration::from_millis(2));
        }
        Ok(())
    })
}

/// A connection of the client that was there before.
struct Established(TcpStream);

impl Established {
    fn new(world: &World) -> Self {
        let to = target(NET).parse().unwrap();
        let connect = || TcpStream::connect_timeout(&to, SOON);
        let stream = in_namespace(Some(&world.star.namespace("c")), connect).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(stream)
    }

    fn works(&mut self) {
        self.0.write_all(b"still there").unwrap();
        let mut back = [0; 11];
        self.0.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still there");
    }
}

fn grants(arguments: &[&str]) -> Vec<u8> {
    let mut grants = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = grants.arg("grants").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The operator takes these grants back, in a list with this number.
fn revoke(world: &World, sequence: u32, serials: &[u64]) {
    let (key, sequence) = (world.star.path("operator.key"), sequence.to_string());
    let serials: Vec<String> = serials.iter().map(u64::to_string).collect();
    let key = key.to_str().unwrap();
    let mut arguments = vec!["revoke", "--operator-key", key, "--sequence", &sequence];
    arguments.extend(serials.iter().map(String::as_str));
    let list = world.star.path("revoked");
    fs::write(list.with_extension("new"), grants(&arguments)).unwrap();
    fs::rename(list.with_extension("new"), list).unwrap();
}

fn until(end: Nanos) {
    sleep(Duration::from_nanos(end.since(MonotonicClock.now()).0));
}

fn held_and_dead(dies: impl FnOnce(&mut Option<Daemon>)) {
    let world = World::new("tgd", NET, None);
    let (mut router, server) = (Some(world.router()), world.server());
    let of = |router: &Option<Daemon>| service(router.as_ref().unwrap());
    wait_for("the session is up", || server.snapshot()?.peers.remove(0).up.then_some(()));
    let _accepts = accepts(&world);
    let mut established = Established::new(&world);
    let datagrams = world.datagrams(9);
    let crowd = connections(&world.star, &target(NET));
    let whole = Rate::per_second(TAKES as f64);
    wait_for("the limit is down to what the server takes", || {
        limit(router.as_ref().unwrap()).filter(|limit| limit.rate.is_some_and(|rate| rate <= whole))
    });
    established.works();

    server.kill();
    let killed = MonotonicClock.now();
    until(killed + LATER - Nanos::SECOND);
    let before = refused(&of(&router));
    until(killed + LATER);
    assert!(refused(&of(&router)) > before, "the limit still refuses after {LATER}");
    dies(&mut router);
    drop((datagrams, crowd));
    until(killed + REMOTE_VALIDITY_MAX + Nanos::SECOND);
    let up = connected(&world);
    let took = MonotonicClock.now().since(killed);
    eprintln!("{up} of {TRIES} connect, {took} after the server's daemon was killed");
    assert_eq!(up, TRIES, "nobody is limited any more");
    established.works();
}

#[test]
fn a_limit_ends_by_its_time_in_the_kernel_of_a_router_whose_daemon_was_killed() {
    held_and_dead(|router| router.take().unwrap().kill());
}

#[test]
fn a_limit_ends_by_its_time_in_the_kernel_of_a_router_whose_daemon_hangs() {
    held_and_dead(|router| {
        let id = router.as_ref().unwrap().id().to_string();
        let stopped = Command::new("kill").args(["-STOP", &id]).status().unwrap();
        assert!(stopped.success());
    });
}

/// The server lives, and asks for its limit again and again: it is gone as soon as its grant was taken back, well within the
/// time for which the last one was given.
#[test]
fn a_limit_ends_with_its_grant() {
    let world = World::new("tgv", NET + 1, None).revoking();
    revoke(&world, 1, &[1]);
    let (router, server) = (world.router(), world.server());
    wait_for("the session is up", || server.snapshot()?.peers.remove(0).up.then_some(()));
    let datagrams = world.datagrams(9);
    let crowd = connections(&world.star, &target(NET + 1));
    wait_for("a limit counts", || service(&router).limits.rate);
    let grant = world.star.path("grant").display().to_string();
    let shown: serde_json::Value =
        serde_json::from_slice(&grants(&["show", &grant, "-o", "json"])).unwrap();
    revoke(&world, 2, &[1, shown["serial"].as_u64().unwrap()]);
    let revoked = MonotonicClock.now();
    wait_for("the limit is gone", || service(&router).limits.rate.is_none().then_some(()));
    let took = MonotonicClock.now().since(revoked);
    eprintln!("gone {took} after the grant was revoked");
    assert!(took < FILES_READ + SLOW, "{took}");
    assert!(router.snapshot().unwrap().links[0].congested, "it has ended with its grant only");
    let passed = || service(&router).counts.iter().map(|count| count.count).sum::<u64>();
    // What was refused in the limit's last tick is counted in the next ones.
    let gone = passed();
    wait_for("the next ticks", || (passed() > gone + 40).then_some(()));
    let (before, refusals) = (passed(), refused(&service(&router)));
    wait_for("more come", || (passed() > before + 200).then_some(()));
    assert_eq!(refused(&service(&router)), refusals, "and none comes back");
    drop((crowd, datagrams));
}

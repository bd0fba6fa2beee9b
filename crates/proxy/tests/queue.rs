// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue in front of the server: a gap between requests, priorities, bounds, clients that leave.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::{Server, World, config_of, field, free_port, get, status, wait_for};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// One request every second, and none before its time: long enough for a thread of a busy machine to come in
/// time.
const GAP: &str = "policy: {name: gap, gap: 1s, tolerance: 0}, control: {name: fixed}";

fn world(mode: &str, server: &Server, queue: &str) -> World {
    let front = free_port();
    let keys = format!(
        "routes: [{{path: /high, service: shop, priority: 0}}, {{service: shop}}]\n    \
         upstream: {{servers: [{}]}}\n    queue: {queue}",
        server.address
    );
    World::with(config_of(&format!("{{mode: {mode}, {GAP}}}"), front, &keys))
}

fn ask(front: SocketAddr, path: &'static str) -> JoinHandle<(u16, String)> {
    std::thread::spawn(move || {
        let response = get(front, path);
        (status(&response), response)
    })
}

/// Asks, and sees it wait.
fn ask_and_wait(world: &World, path: &'static str) -> JoinHandle<(u16, String)> {
    let before = came(world);
    let asked = ask(world.front, path);
    wait_for("it waits", || (came(world) > before).then_some(()));
    asked
}

/// Requests that have come to the queue: another one may leave it meanwhile.
fn came(world: &World) -> u64 {
    let counts = world.counts();
    let left = counts.waited + counts.left_queue + counts.queue_full + counts.waited_too_long;
    counts.waiting + left
}

fn paths(server: &Server) -> Vec<String> {
    let path = |head: &String| head.split(' ').nth(1).unwrap().to_owned();
    server.heads().iter().map(path).collect()
}

#[test]
fn requests_that_come_together_reach_the_server_apart() {
    let server = Server::start();
    let world = world("enforce", &server, "{length: 10, longest_wait: 30s}");
    let begin = MonotonicClock.now();
    let asked: Vec<_> = (0..3).map(|_| ask(world.front, "/")).collect();
    assert!(asked.into_iter().all(|asked| asked.join().unwrap().0 == 200));
    let took = MonotonicClock.now().since(begin);
    assert!(took >= Nanos::from_secs(2), "three requests took {took}");
    let counts = world.counts();
    assert_eq!((counts.waited, counts.waiting, counts.queue_full), (2, 0, 0));
    // 1 s and 2 s, but for what they came later than the first.
    assert!(counts.waited_ns >= 1_500_000_000, "{counts:?}");
    wait_for("all are reported", || (world.in_flight() == 0).then_some(()));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.offered, totals.admitted, totals.refused), (3, 3, 0));
    // What waits is no work of the server.
    assert!(totals.end.sum_ns < counts.waited_ns / 2, "{} {counts:?}", totals.end.sum_ns);
}

#[test]
fn a_higher_priority_is_next_and_among_equals_who_came_first() {
    let server = Server::start();
    let world = world("enforce", &server, "{length: 10, longest_wait: 30s}");
    assert_eq!(status(&get(world.front, "/0")), 200);
    let asked = ["/1", "/2", "/3", "/high"].map(|path| ask_and_wait(&world, path));
    assert!(asked.into_iter().all(|asked| asked.join().unwrap().0 == 200));
    let order = paths(&server);
    assert_eq!(
        order.iter().filter(|path| *path != "/high").collect::<Vec<_>>(),
        ["/0", "/1", "/2", "/3"]
    );
    let high = order.iter().position(|path| path == "/high").unwrap();
    assert!(high < 4, "it came last and is not served last: {order:?}");
}

#[test]
fn the_queue_has_a_length_and_a_longest_wait() {
    let server = Server::start();
    let world = world("enforce", &server, "{length: 2, longest_wait: 30s}");
    assert_eq!(status(&get(world.front, "/")), 200);
    let asked = ["/1", "/2"].map(|path| ask_and_wait(&world, path));
    let (refused, response) = ask(world.front, "/3").join().unwrap();
    assert_eq!(refused, 503);
    assert!(field(&response, "retry-after").is_some() && response.contains("temporary-reduced"));
    let seen = world.gate.seen(field(&response, "x-request-id").unwrap());
    assert!(seen[0].refused && seen[0].executed());
    assert!(asked.into_iter().all(|asked| asked.join().unwrap().0 == 200));
    assert_eq!((world.counts().queue_full, world.counts().waited), (1, 2));

    // 1.5 s: one waits for 1 s, and whoever would have to wait for 2 is refused by the policy.
    let world = self::world("enforce", &server, "{length: 100, longest_wait: 1500ms}");
    let asked: Vec<_> = (0..6).map(|_| ask(world.front, "/")).collect();
    let answers: Vec<u16> = asked.into_iter().map(|asked| asked.join().unwrap().0).collect();
    assert_eq!(
        answers.iter().filter(|status| **status == 503).count()
            + answers.iter().filter(|status| **status == 200).count(),
        6
    );
    assert!(answers.contains(&503), "{answers:?}");
    let totals = world.gate.totals(0).unwrap();
    assert_eq!(totals.admitted + totals.refused, 6);
}

/// What is full of the lowest priority is not full for the highest.
#[test]
fn a_full_queue_takes_a_higher_priority_and_refuses_the_last_of_the_lowest() {
    let server = Server::start();
    let world = world("enforce", &server, "{length: 2, longest_wait: 30s}");
    assert_eq!(status(&get(world.front, "/0")), 200);
    let first = ask_and_wait(&world, "/1");
    let last = ask_and_wait(&world, "/2");
    let high = ask_and_wait(&world, "/high");
    let (refused, response) = last.join().unwrap();
    assert_eq!(refused, 503, "{response}");
    assert!(field(&response, "retry-after").is_some() && response.contains("temporary-reduced"));
    assert_eq!((first.join().unwrap().0, high.join().unwrap().0), (200, 200));
    assert!(!paths(&server).contains(&"/2".to_owned()));
    assert_eq!((world.counts().queue_full, world.counts().waited), (1, 2));
    let totals = world.gate.totals(0).unwrap();
    assert_eq!((totals.offered, totals.admitted, totals.refused), (4, 3, 1));
}

#[test]
fn a_client_that_leaves_gives_its_place_to_the_next() {
    let server = Server::start();
    let world = world("enforce", &server, "{length: 10, longest_wait: 30s}");
    assert_eq!(status(&get(world.front, "/0")), 200);
    let leaves: Vec<TcpStream> = (1..=5)
        .map(|_| {
            let before = came(&world);
            let mut stream = TcpStream::connect(world.front).unwrap();
            stream.write_all(b"GET /left HTTP/1.1\r\nHost: shop\r\n\r\n").unwrap();
            wait_for("it waits", || (came(&world) > before).then_some(()));
            stream
        })
        .collect();
    let begin = MonotonicClock.now();
    let asked = ask_and_wait(&world, "/stayed");
    drop(leaves);
    assert_eq!(asked.join().unwrap().0, 200);
    // Behind those whose turn had not come it would be a second for each.
    let took = MonotonicClock.now().since(begin);
    assert!(took < Nanos::from_millis(4500), "{took}");
    wait_for("they have left", || (world.counts().left_queue >= 3).then_some(()));
    let totals = wait_for("all are counted", || {
        let totals = world.gate.totals(0).unwrap();
        (totals.offered == 7).then_some(totals)
    });
    assert_eq!(totals.admitted + totals.refused, 7);
    assert_eq!(world.counts().waiting, 0);
}

/// What is only counted delays nobody.
#[test]
fn in_shadow_nobody_waits() {
    let server = Server::start();
    let world = world("shadow", &server, "{length: 10, longest_wait: 5s}");
    assert!((0..5).all(|_| status(&get(world.front, "/")) == 200));
    assert_eq!(world.counts().waited, 0);
}

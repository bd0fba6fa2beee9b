// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Far more comes than passes: the real nginx, HAProxy, Envoy and Caddy refuse most of it without a question, as tidegate
//! tells them to, and stop by themselves when it does not answer. The world is that of the file gateways.rs.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod common;

use common::http::{Http, Response};
use common::proxied::{Proxy, World};
use common::wait_for;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Clients in a closed loop: more than ten times what passes.
const CLIENTS: usize = 16;
/// What a share may live, and something for a machine that is busy.
const LEASE: Duration = Duration::from_millis(1_300);
/// Twice this after a kill the proxy still refuses what it does not ask about.
const AT_ONCE: Duration = Duration::from_millis(200);
/// How long after a flash crowd nobody is refused any more.
const RECOVERY: Duration = Duration::from_secs(2);
/// What only a proxy may say, as a client would forge it: that it is in a slot that is open, or in one that is not,
/// that it was asked about, that nobody is.
const FORGED: &str = "X-Tidegate-Slot: 00\r\nX-Accel-Expires: 3600\r\nCache-Control: max-age=3600\r\n\
                      X-Tidegate-Asked: 1\r\nX-Tidegate-Asks: 0\r\nX-Tidegate-Request: 00000000\r\n\
                      X-Request-Id: 00000000\r\n";

#[test]
fn nginx_refuses_by_itself_and_fails_open() {
    refuses_by_itself(Proxy::Nginx);
}

#[test]
fn haproxy_refuses_by_itself_and_fails_open() {
    refuses_by_itself(Proxy::Haproxy);
}

#[test]
fn envoy_refuses_by_itself_and_fails_open() {
    refuses_by_itself(Proxy::Envoy);
}

#[test]
fn caddy_refuses_by_itself_and_fails_open() {
    refuses_by_itself(Proxy::Caddy);
}

/// What clients have seen.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    served: AtomicU64,
}

/// Ends the load of a test, however the test ends.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Asks on until the end, and counts the responses.
fn asks_on(proxy: Proxy, world: &World, (ended, counts): (&AtomicBool, &Counts)) {
    let mut client = Http::connect(world.front);
    while !ended.load(Relaxed) {
        let response = client.ask(FORGED);
        is_right(proxy, &response);
        counts.answered.fetch_add(1, Relaxed);
        counts.served.fetch_add(u64::from(response.status == 200), Relaxed);
        if response.header("connection").is_some_and(|said| said.eq_ignore_ascii_case("close")) {
            client = Http::connect(world.front);
        }
    }
}

/// It is served, or told when to come back.
fn is_right(proxy: Proxy, response: &Response) {
    assert!(matches!(response.status, 200 | 503), "{}", response.status);
    if response.status == 503 {
        let after = response.header("retry-after").and_then(|s| s.parse::<u8>().ok());
        assert!(after.is_some_and(|seconds| seconds > 0), "{:?}", response.headers);
        assert_eq!(response.header("cache-control"), Some("no-store"));
        assert_eq!(response.header("x-accel-expires"), None);
        match proxy {
            Proxy::Envoy => assert_eq!(response.header("x-envoy-ratelimited"), Some("true")),
            _ => assert!(response.body.contains("temporary-reduced-capacity")),
        }
    }
}

/// Verdicts of this reason; without one all.
fn counted(world: &World, reason: Option<&str>) -> u64 {
    let counts = world.status().unwrap().services.remove(0).counts;
    let of = counts.iter().filter(|count| reason.is_none_or(|reason| count.reason == reason));
    of.map(|count| count.count).sum()
}

fn refuses_by_itself(proxy: Proxy) {
    let world = World::telling(proxy, "{name: fixed, rate: 20/s, burst: 5}", false);
    wait_for("the limit is in force", || world.status()?.services[0].limits.rate);
    let (ended, counts) = (AtomicBool::new(false), Counts::default());
    under_load(proxy, &world, (&ended, &counts));
    // The flash crowd has left: those who come now are asked about, and are fewer than the limit.
    std::thread::sleep(RECOVERY);
    let mut client = Http::connect(world.front);
    for n in 0..15 {
        let response = client.get();
        assert_eq!(response.status, 200, "request {n} after the load\n{}", world.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    ended.store(false, Relaxed);
    killed(proxy, &world, (&ended, &counts));
}

fn under_load(proxy: Proxy, world: &World, (ended, counts): (&AtomicBool, &Counts)) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| asks_on(proxy, world, (ended, counts)));
        }
        // Whoever waits below and gives up must not leave them running.
        let _ended = Ended(ended);
        let by_proxy = || counted(world, Some("by-proxy"));
        wait_for("the proxy refuses by itself", || {
            (by_proxy() > 1_000 && counted(world, Some("token")) > 0).then_some(())
        });
        demand_is_what_comes(proxy, world, &counts.answered);

        // It hangs while the proxy refuses: that ends by itself, and all pass.
        world.stop();
        if matches!(proxy, Proxy::Nginx | Proxy::Caddy) {
            unanswered_is_refused_while_closed(world);
        }
        std::thread::sleep(LEASE);
        let begin = MonotonicClock.now();
        let passed = world.requests(5).iter().all(|response| response.status == 200);
        assert!(passed, "it hangs\n{}", world.log());
        let took = MonotonicClock.now().since(begin);
        assert!(took < Nanos::from_secs(3), "5 requests took {took}");
        world.signal(Signal::CONT);
        let before = wait_for("it answers", || world.status().map(|_| by_proxy()));
        wait_for("the proxy refuses by itself again", || {
            (by_proxy() > before + 1_000).then_some(())
        });
    });
}

/// Just now it has hung: what the proxy asks about in vain would all be too much, while slots are closed.
fn unanswered_is_refused_while_closed(world: &World) {
    let begin = MonotonicClock.now();
    let since = || MonotonicClock.now().since(begin);
    let one = || {
        let mut client = Http::connect(world.front);
        let mut waited = Vec::new();
        while since() < Nanos::from_millis(400) {
            let before = since();
            let status = client.ask("").status;
            let after = since();
            // The last names are of 0.7 s after the last answer.
            if after.since(before) > Nanos::from_millis(150) && after < Nanos::from_millis(600) {
                waited.push(status);
            }
        }
        waited
    };
    let waited: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    println!("{} waited for an answer that did not come", waited.len());
    assert!(!waited.is_empty(), "the proxy asked about nothing");
    assert!(waited.iter().all(|status| *status == 503), "{waited:?}\n{}", world.log());
}

/// What is counted, mostly estimated, is what clients have sent.
fn demand_is_what_comes(proxy: Proxy, world: &World, answered: &AtomicU64) {
    // What came at the beginning, when all was asked about, is not in this.
    std::thread::sleep(Duration::from_secs(1));
    let now = || (counted(world, None), counted(world, Some("by-proxy")), answered.load(Relaxed));
    let before = now();
    std::thread::sleep(Duration::from_secs(4));
    let after = now();
    let (all, by_proxy, came) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    let (share, asked) = (all as f64 / came as f64, (all - by_proxy) as f64 / came as f64);
    println!("{proxy:?}: {came} came in 4 s, counted {share:.3} of them, asked about {asked:.3}");
    assert!((0.8..1.25).contains(&share), "{share} of what came is counted");
    assert!(by_proxy as f64 > 0.3 * came as f64, "{by_proxy} of {came} were refused unasked");
}

/// It is killed while the proxy refuses: nobody fails, what the proxy asks about passes at once, and all pass within
/// the lease.
fn killed(proxy: Proxy, world: &World, (ended, counts): (&AtomicBool, &Counts)) {
    let before = counted(world, Some("by-proxy"));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| asks_on(proxy, world, (ended, counts)));
        }
        let _ended = Ended(ended);
        wait_for("the proxy refuses by itself", || {
            (counted(world, Some("by-proxy")) > before + 1_000).then_some(())
        });
        world.signal(Signal::KILL);
        // What was told is in force for longer, and nobody is there to let anybody in.
        std::thread::sleep(AT_ONCE);
        let served = counts.served.load(Relaxed);
        std::thread::sleep(AT_ONCE);
        let more = counts.served.load(Relaxed) - served;
        println!("{proxy:?}: {more} passed while it was gone and slots were closed");
        assert!(more > 0, "what is asked about does not pass\n{}", world.log());
        std::thread::sleep(LEASE);
        let passed = world.requests(5).iter().all(|response| response.status == 200);
        assert!(passed, "it was killed\n{}", world.log());
    });
}

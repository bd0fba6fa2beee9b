// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two routers to one server share what they see of it, and divide the limit of its flash crowd (needs root).

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::routers::{Domain, HOT, divide, intent, learn, limit};

#[test]
fn two_routers_divide_the_limit_of_one_server() {
    let [mut first, mut second] = Domain::new([41, 42]).run(|number, folder| {
        let other = 3 - number;
        let cluster = format!(
            "  listen: 10.85.0.{number}:7416\n  routers:\n    \
             r{other}: {{address: \"10.85.0.{other}:7416\", identity: spiffe://example.org/r{other}}}\n"
        );
        intent(number, folder, &cluster)
    });
    first.usual(HOT, "14");
    second.usual(HOT, "6");
    first.told("the router r2 shares what it measures");
    second.told("the router r1 shares what it measures");
    first.shows("shares with r2: 1 destinations");
    learn(&first);
    let crowds = [first.come(HOT, "70"), second.come(HOT, "30")];
    for scene in [&first, &second] {
        scene.told("10.84.0.2:80: flash crowd began: ");
        scene.told("10.84.0.2:80: new connections are limited to ");
    }
    divide(&first, &second);
    first.shows("% of the demand at 2 routers, ");
    // The second ends: the first goes on with its part.
    second.world.daemon().kill().unwrap();
    second.world.daemon().wait().unwrap();
    first.told("the router r2 has not been heard for ");
    assert!(limit(&first) > 0.0, "the limit stays");
    drop(crowds);
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two routers to one server share what they see of it, and divide the limit of its flash crowd (needs root).

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::routers::{Domain, crowd, intent, limit, usual};

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
    usual(&mut first, &mut second);
    let crowds = crowd(&first, &second);
    // The second ends: the first goes on with its part.
    second.world.daemon().kill().unwrap();
    second.world.daemon().wait().unwrap();
    first.told("the router r2 has not been heard for ");
    assert!(limit(&first) > 0.0, "the limit stays");
    drop(crowds);
}

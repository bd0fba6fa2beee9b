// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a server behind a router that refuses by class: some clients get a RST, some nothing, and those of no
//! class what Abacus says; and what it asks for (needs root). The topology: common/routed.rs.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::flash::Scene;
use common::routed::{BYSTANDER, HOT, scene};
use common::{ip, wait_for};

/// Addresses of the classes.
const SHOP: &str = "10.83.0.70";
const CRAWLER: &str = "10.83.0.90";
const LIMIT: &str = ", hot_spots: true, limit: {mode: enforce, action: abacus, classes: [\
    {name: shops, sources: [10.83.0.64/28], action: reset}, \
    {name: crawlers, sources: [10.83.0.80/28], action: drop}]}";

/// A RST at once for a shop, silence for a crawler; each as long as it takes until there is no token for some of twenty.
fn each_class_is_refused_in_its_way(scene: &Scene) {
    wait_for("a RST", || {
        let [_, reset, silent] = scene.outcomes(SHOP);
        assert_eq!(silent, 0, "a shop is never left to wait");
        (reset > 0).then_some(())
    });
    wait_for("silence", || {
        let [_, reset, silent] = scene.outcomes(CRAWLER);
        assert_eq!(reset, 0, "a crawler never gets a RST");
        (silent > 0).then_some(())
    });
}

fn it_is_explained(scene: &Scene) {
    for (address, class, what) in
        [(SHOP, "shops", "replied to with a RST"), (CRAWLER, "crawlers", "dropped")]
    {
        let output = scene.world.tidegate(&["explain", address]);
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        let said = format!(
            "10.84.0.2:80: beyond the limit a SYN of class {class}, to which its source belongs, is {what}."
        );
        assert!(told.contains(&said), "{told}");
    }
}

#[test]
fn clients_are_refused_by_their_class() {
    let scene = scene(33, LIMIT);
    for address in [SHOP, CRAWLER] {
        ip(&format!("-n {} address add {address}/24 dev v1", scene.clients.0));
    }
    scene.learn();
    let crowd = scene.come(HOT, "100");
    scene.told("10.84.0.2:80: new connections are limited to ");
    wait_for("a server at its work", || (scene.goodput(HOT) > 25.0).then_some(()));
    each_class_is_refused_in_its_way(&scene);
    it_is_explained(&scene);
    // All of them ask for the same.
    scene.shows("    asks for shop.example ");
    scene.shows(", shop.example/live ");
    assert!(scene.metric(&format!("hot_spot_share_ratio{{destination=\"{HOT}\"}}")) > 0.5);
    scene.shows(" with a RST)");
    // Of the crowd, which is of no class, Abacus resets some and drops some.
    let of_crowd = |of: &str| scene.metric(&format!("{of}{{destination=\"{HOT}\"}}"));
    wait_for("a hundred RSTs", || (of_crowd("reset_syns_total") > 100.0).then_some(()));
    assert!(of_crowd("reset_syns_total") < scene.limited(HOT, "refused"));
    assert!(scene.all_pass(BYSTANDER));
    scene.assert_spared(BYSTANDER);
    // A reload changes what is done at once; that the filter is there any longer is no harm.
    let dropping = LIMIT.replace("action: abacus", "action: drop");
    scene.reload(&common::routed::intent(&dropping.replace("action: reset", "action: drop")));
    wait_for("silence", || {
        let [_, reset, silent] = scene.outcomes(SHOP);
        assert_eq!(reset, 0);
        (silent > 0).then_some(())
    });
    drop(crowd);
    let told = scene.told("10.84.0.2:80: flash crowd ended after ");
    assert!(told.contains(" of them with a RST"), "{told}");
}

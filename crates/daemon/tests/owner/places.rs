// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A service that is limited at another place than before: by the kernel while no gateway of it is open.

use super::world::*;

const ROUTED: &str = "
interfaces: [{name: lo}]
services: {shop: {mode: enforce, listen: ['*:80']}}
gateways:
  edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}
";

#[test]
fn what_was_learned_at_one_place_is_not_taken_to_another() {
    let mut world = World::new(ROUTED);
    let told = |world: &World| {
        world.snapshot().warnings.iter().any(|warning| warning.starts_with("shop: gateways: "))
    };
    let written = |world: &World| world.memory.lock().unwrap().written.len();
    for _ in 0..3 {
        world.tick(Some(50));
    }
    assert_eq!((written(&world), told(&world)), (1, false));
    for (at_kernel, total) in [(true, 2), (false, 3)] {
        world.memory.lock().unwrap().at_kernel = at_kernel;
        // It is noticed in one tick, and written in the next, although the limit is the same.
        world.tick(Some(50));
        world.tick(Some(50));
        assert_eq!(written(&world), total);
        assert!(told(&world), "it lasts for a while");
    }
}

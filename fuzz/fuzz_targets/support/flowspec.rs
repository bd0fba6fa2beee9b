// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzz target of FlowSpec does with its bytes. Also run, bounded, by
//! crates/flowspec/tests/fuzz_smoke.rs.

use tidegate_flowspec::{Attributes, Family, Flow, Importer, Path, Policy, Rule, Unicast};

/// Any bytes as a match, as attributes, and as a path; gives how often the path was imported.
pub(crate) fn bytes(bytes: &[u8]) -> usize {
    let mut taken = 0;
    for family in Family::ALL {
        if let Ok(flow) = Flow::decode(family, bytes) {
            // Read again, what was written means the same.
            let written = flow.encode().expect("what was read is no longer when it is written");
            assert!(written.len() <= bytes.len());
            assert_eq!(Flow::decode(family, &written).as_ref(), Ok(&flow));
            assert!(flow.precedence(&flow).is_eq());
            if let Ok(rule) = Rule::of(&flow) {
                let again = rule.flow().expect("a rule has a match");
                assert_eq!(Rule::of(&again).as_ref(), Ok(&rule));
            }
        }
        taken += path(family, bytes);
    }
    let _ = Attributes::decode(&[bytes.to_vec()]);
    taken
}

/// The first byte says where the match ends and the attributes begin.
fn path(family: Family, bytes: &[u8]) -> usize {
    let Some((cut, rest)) = bytes.split_first() else { return 0 };
    let (nlri, attributes) = rest.split_at(usize::from(*cut).min(rest.len()));
    let neighbor = std::net::IpAddr::from([10, 9, 0, 2]);
    let prefixes = ["192.0.2.0/24", "2001:db8::/32"];
    let prefixes = prefixes.map(|net| net.parse().expect("a prefix")).to_vec();
    let unicast: Vec<Unicast> = prefixes
        .iter()
        .map(|prefix| Unicast {
            prefix: *prefix,
            neighbor,
            originator: None,
            last_as: Some(65_002),
        })
        .collect();
    let attributes = vec![attributes.to_vec()];
    let path = Path { family, nlri: nlri.to_vec(), attributes, neighbor };
    let mut importer = Importer::new(Policy::new(prefixes.clone(), 65_001, (neighbor, 65_001)));
    importer.update(std::slice::from_ref(&path), &unicast);
    let refused = importer.refusal(family, nlri).is_some();
    assert_eq!(importer.entries().len(), usize::from(!refused));
    for entry in importer.entries() {
        assert!(prefixes.iter().any(|prefix| prefix.contains(&entry.rule.destination)));
        // A route without a traffic action has none: what it matches passes, and is counted.
        let rates = [entry.bytes, entry.packets];
        assert!(rates.iter().flatten().all(|rate| rate.get() > 0.0));
    }
    importer.entries().len()
}

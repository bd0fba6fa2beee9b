// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class of a client, by its address alone.

use super::check::CLASS_DEFAULT;
use super::router::RouterAction;
use super::types::{ClassConfig, Config, ServiceConfig};
use ipnet::IpNet;
use std::net::IpAddr;
use tidegate_model::{ClientClass, PRIORITY_DEFAULT};

impl Config {
    /// What each service holds of a client, in the order of the file.
    #[must_use]
    pub fn classify(&self, client: IpAddr) -> Vec<ClientClass> {
        let client = client.to_canonical();
        self.services.iter().map(|service| self.class_in(service, client)).collect()
    }

    /// How the limit of a router refuses a client, by its address alone: its class, and what is done; `None`: it has no
    /// limit.
    #[must_use]
    pub fn refused_at_router(&self, client: IpAddr) -> Option<(&str, RouterAction)> {
        let client = client.to_canonical();
        let limit = self.router.as_ref()?.limit.as_ref()?;
        let of = limit.classes.iter().filter_map(|c| Some((c, longest(&c.sources, client)?)));
        let class = of.max_by_key(|(_, prefix)| prefix.prefix_len());
        Some(class.map_or((CLASS_DEFAULT, limit.action), |(c, _)| (c.name.as_str(), c.action)))
    }

    fn class_in(&self, service: &ServiceConfig, client: IpAddr) -> ClientClass {
        let candidates =
            service.classes.iter().filter_map(|c| Some((c, longest(&c.sources, client)?)));
        let by_source = candidates.max_by_key(|(_, prefix)| prefix.prefix_len());
        let trusted = self.interfaces.iter().any(|i| i.trust_dscp);
        // A source prefix wins over a DSCP, so only the default class leaves room for one.
        let dscp = |c: &ClassConfig| c.dscp.map(|dscp| (c.name.clone(), dscp));
        let by_dscp = match by_source {
            None if trusted => service.classes.iter().filter_map(dscp).collect(),
            _ => Vec::new(),
        };
        ClientClass {
            service: service.name.clone(),
            mode: service.mode,
            class: by_source.map_or(CLASS_DEFAULT, |(c, _)| &c.name).to_owned(),
            prefix: by_source.map(|(_, prefix)| prefix),
            priority: by_source.map_or(PRIORITY_DEFAULT, |(c, _)| c.priority),
            by_dscp,
            exempt: longest(&self.exempt.sources, client),
        }
    }
}

fn longest(prefixes: &[IpNet], address: IpAddr) -> Option<IpNet> {
    let matching = prefixes.iter().filter(|p| p.contains(&address));
    matching.max_by_key(|p| p.prefix_len()).copied()
}

#[cfg(test)]
mod tests {
    use crate::{Config, Registry, parse};

    fn config(trust_dscp: bool) -> Config {
        let text = "interfaces: [{name: lo, trust_dscp: true}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    classes:
      - {name: partners, sources: [198.51.100.0/24], priority: 0}
      - {name: crawler, sources: [198.51.100.64/26], priority: 5}
      - {name: voice, dscp: 46, priority: 1}
  mail: {mode: shadow, listen: ['*:25']}
exempt: {sources: [198.51.100.0/28, 10.0.0.0/8]}
";
        let mut config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        config.interfaces[0].trust_dscp = trust_dscp;
        config
    }

    #[test]
    fn the_longest_prefix_chooses_the_class_in_each_service() {
        for (client, class, priority, prefix, exempt) in [
            ("198.51.100.70", "crawler", 5, Some("198.51.100.64/26"), None),
            ("::ffff:198.51.100.70", "crawler", 5, Some("198.51.100.64/26"), None),
            ("198.51.100.1", "partners", 0, Some("198.51.100.0/24"), Some("198.51.100.0/28")),
            ("10.1.2.3", "default", 7, None, Some("10.0.0.0/8")),
            ("2001:db8::1", "default", 7, None, None),
        ] {
            let found = config(true).classify(client.parse().unwrap());
            let names: Vec<&str> = found.iter().map(|of| of.service.as_str()).collect();
            assert_eq!(names, ["shop", "mail"], "{client}");
            let [shop, mail] = [&found[0], &found[1]];
            assert_eq!((shop.class.as_str(), shop.priority), (class, priority), "{client}");
            assert_eq!(shop.prefix.map(|p| p.to_string()).as_deref(), prefix, "{client}");
            assert_eq!(shop.exempt.map(|p| p.to_string()).as_deref(), exempt, "{client}");
            assert_eq!((mail.class.as_str(), mail.prefix), ("default", None), "{client}");
        }
    }

    #[test]
    fn the_longest_prefix_chooses_how_a_router_refuses() {
        let text = "interfaces: [{name: lo}]
services: {web: {mode: shadow, listen: ['*:80']}}
router:
  destinations: ['192.0.2.0/24:80']
  limit:
    mode: enforce
    action: abacus
    classes:
      - {name: partners, sources: [198.51.100.0/24], action: reset}
      - {name: crawler, sources: [198.51.100.64/26, '2001:db8::/32'], action: drop}
";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        for (client, class, action) in [
            ("198.51.100.1", "partners", "reset"),
            ("198.51.100.64", "crawler", "drop"),
            ("::ffff:198.51.100.127", "crawler", "drop"),
            ("198.51.100.128", "partners", "reset"),
            ("2001:db8::1", "crawler", "drop"),
            ("203.0.113.1", "default", "abacus"),
        ] {
            let found = config.refused_at_router(client.parse().unwrap()).unwrap();
            assert_eq!((found.0, found.1.name()), (class, action), "{client}");
        }
        assert_eq!(self::config(true).refused_at_router([192, 0, 2, 1].into()), None);
    }

    #[test]
    fn a_dscp_chooses_only_where_it_is_trusted_and_no_prefix_does() {
        let by_dscp = |client: &str, trusted| {
            config(trusted).classify(client.parse().unwrap()).remove(0).by_dscp
        };
        assert_eq!(by_dscp("203.0.113.1", true), [("voice".to_owned(), 46)]);
        assert!(by_dscp("203.0.113.1", false).is_empty());
        assert!(by_dscp("198.51.100.70", true).is_empty());
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listen addresses by port: most ports have one or two, which are read instead of searched.
//!
//! Ports with more than `LISTENERS_AT` of them, and all if there are too many at all, are left to the
//! hash, which always has everything.

use crate::Plan;
use crate::abi::{
    LISTENER_IPV4, LISTENER_IPV6, LISTENERS_AT, LISTENERS_MAX, Listen, Listener, Listeners,
};
use crate::classification::listen_value;
use crate::plan::mapped;
use std::collections::BTreeMap;
use std::net::IpAddr;
use zerocopy::{IntoBytes, transmute};

/// `struct tg_listeners` of a plan.
pub(crate) fn table(plan: &Plan) -> Vec<u8> {
    let mut first = vec![0_u16; 1 << 16];
    let mut listeners = vec![Listener::default()]; // number 0 says that there is none
    for (port, mut here) in by_port(plan) {
        if here.len() > LISTENERS_AT || listeners.len() + here.len() > LISTENERS_MAX {
            continue;
        }
        // One address is more than any.
        here.sort_by_key(|listener| listener.any != 0);
        let last = here.len() - 1;
        first[usize::from(port)] = listeners.len() as u16;
        listeners.extend(here.into_iter().enumerate().map(|(n, listener)| {
            let more = u8::from(n < last);
            Listener { more, ..listener }
        }));
    }
    let mut bytes = Vec::with_capacity(size_of::<Listeners>());
    first.iter().for_each(|number| bytes.extend_from_slice(&number.to_ne_bytes()));
    listeners.iter().for_each(|listener| bytes.extend_from_slice(listener.as_bytes()));
    bytes.resize(size_of::<Listeners>(), 0);
    bytes
}

fn by_port(plan: &Plan) -> BTreeMap<u16, Vec<Listener>> {
    let mut ports = BTreeMap::<u16, Vec<Listener>>::new();
    for (index, service) in plan.config.services.iter().enumerate() {
        for at in &service.listen {
            let listen = listen_value(plan, index, at.port);
            ports.entry(at.port).or_default().push(listener(at.address, listen));
        }
    }
    ports
}

fn listener(address: Option<IpAddr>, listen: Listen) -> Listener {
    let any = |any| Listener { listen, any, ..Listener::default() };
    match address {
        None => any(LISTENER_IPV4 | LISTENER_IPV6),
        Some(ip) if ip.is_unspecified() && ip.is_ipv4() => any(LISTENER_IPV4),
        Some(ip) if ip.is_unspecified() => any(LISTENER_IPV6),
        Some(ip) => Listener { addr: transmute!(mapped(ip)), listen, ..Listener::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::testing::plans;
    use std::mem::offset_of;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use tidegate_config::Exempt;
    use tidegate_config::ServiceConfig;
    use tidegate_model::{Listen, Mode, Protocol};

    fn plan(services: &[&[(&str, u16)]]) -> Plan {
        let listen = |(address, port): &(&str, u16)| {
            let address = match *address {
                "any" => None,
                "any4" => Some(Ipv4Addr::UNSPECIFIED.into()),
                "any6" => Some(Ipv6Addr::UNSPECIFIED.into()),
                address => Some(address.parse().unwrap()),
            };
            Listen { address, port: *port, protocol: Protocol::Tcp }
        };
        let service = |(index, listens): (usize, &&[(&str, u16)])| {
            ServiceConfig::new(
                &format!("s{index}"),
                Mode::Enforce,
                listens.iter().map(listen).collect(),
            )
        };
        let mut plan = plans::plan(services.iter().enumerate().map(service).collect());
        plan.config.exempt = Exempt { ports: vec![22], ..Exempt::default() };
        plan
    }

    /// What the kernel reads (`tg_listener_of` in packet/classify.h): `None` where it asks the hash, else
    /// the service there.
    fn read(bytes: &[u8], address: &str, port: u16) -> Option<Option<u8>> {
        let first = &bytes[2 * usize::from(port)..][..2];
        let first = usize::from(u16::from_ne_bytes(first.try_into().unwrap()));
        let address: IpAddr = address.parse().unwrap();
        let family = if address.is_ipv4() { LISTENER_IPV4 } else { LISTENER_IPV6 };
        let listener = |number: usize| {
            abi::read::<Listener>(
                &bytes[offset_of!(Listeners, listener) + size_of::<Listener>() * number..],
            )
            .unwrap()
        };
        if first == 0 {
            return None;
        }
        let walk = (first..first + LISTENERS_AT).map(listener);
        let mut more = true;
        let here = walk.take_while(|listener| std::mem::replace(&mut more, listener.more == 1));
        let fits = |listener: &Listener| match listener.any {
            0 => listener.addr.as_bytes() == mapped(address),
            any => any & family != 0,
        };
        Some({ here }.find(fits).map(|listener| listener.listen.service))
    }

    #[test]
    fn an_address_comes_before_any_address_of_its_family() {
        let services: [&[(&str, u16)]; 3] = [
            &[("any", 80), ("any4", 443), ("any6", 8443), ("0.0.0.0", 81), ("::", 82)],
            &[("192.0.2.1", 80), ("2001:db8::1", 80)],
            &[("192.0.2.1", 443)],
        ];
        let bytes = table(&plan(&services));
        assert_eq!(bytes.len(), size_of::<Listeners>());
        for (address, port, service) in [
            ("192.0.2.1", 80, Some(1)),
            ("2001:db8::1", 80, Some(1)),
            ("192.0.2.2", 80, Some(0)),
            ("2001:db8::2", 80, Some(0)),
            ("192.0.2.1", 443, Some(2)),
            ("192.0.2.2", 443, Some(0)),
            ("2001:db8::1", 443, None),
            ("192.0.2.1", 8443, None),
            ("2001:db8::1", 8443, Some(0)),
            ("192.0.2.1", 81, Some(0)),
            ("2001:db8::1", 81, None),
            ("2001:db8::1", 82, Some(0)),
            ("192.0.2.1", 82, None),
        ] {
            assert_eq!(read(&bytes, address, port), Some(service), "{address} {port}");
        }
        assert_eq!(read(&bytes, "192.0.2.1", 79), None, "no listener");
    }

    #[test]
    fn a_port_with_too_many_addresses_is_left_to_the_hash() {
        let addresses: Vec<String> =
            (1..=LISTENERS_AT + 1).map(|n| format!("192.0.2.{n}")).collect();
        let listens: Vec<(&str, u16)> = addresses.iter().map(|a| (a.as_str(), 80)).collect();
        let fit = table(&plan(&[&listens[..LISTENERS_AT]]));
        for address in &addresses[..LISTENERS_AT] {
            assert_eq!(read(&fit, address, 80), Some(Some(0)));
        }
        assert_eq!(read(&fit, &addresses[LISTENERS_AT], 80), Some(None));
        let bytes = table(&plan(&[&listens, &[("192.0.2.1", 81)]]));
        assert_eq!(read(&bytes, &addresses[0], 80), None);
        assert_eq!(read(&bytes, "192.0.2.1", 81), Some(Some(1)));
    }

    #[test]
    fn what_is_exempt_is_told_with_the_listener() {
        let bytes = table(&plan(&[&[("any", 22), ("any", 80)]]));
        let listener = |number: usize| {
            abi::read::<Listener>(
                &bytes[offset_of!(Listeners, listener) + size_of::<Listener>() * number..],
            )
            .unwrap()
        };
        assert_eq!((listener(1).listen.flags, listener(2).listen.flags), (1, 0));
        assert_eq!((listener(1).more, listener(2).more), (0, 0));
    }
}
